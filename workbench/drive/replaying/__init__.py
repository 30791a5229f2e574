"""Replays searches on recorded spaces: no kernel runs, every time is looked up.

`recorded_space` reads a space from a session or from a file of another tuner, and writes sessions as T4 results.
`replay` runs searches on spaces, scores and draws them.
"""
