"""A session is a folder of trials: `session` writes and reads it, `files` reads a folder or a zip.

`recorded` turns recorded trials into candidates again. `profiles` profiles a trial, and finds a kept profile.
"""
