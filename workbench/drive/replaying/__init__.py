"""Replays searches on recorded spaces. No kernel runs; all times are read from the records.

`recorded_space` reads a space from a session or from a file of another tuner, and writes sessions as T4 results.
`replay` runs searches on spaces, scores and draws them.
"""
