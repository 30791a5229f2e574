"""Searches replayed on recorded spaces: no kernel runs, every time is looked up.

`recorded_space` reads a space from a session or from a file of another tuner, `t4` writes sessions as T4 results,
`score` judges a search by what it found, `searches` are the ones to compare, `replay` runs them and draws them.
"""
