"""One module for each verb of the command line, with its options and its output.

A new verb is a module here with the functions add and run, and a line in VERBS of faces/cli.py. Its docstring is its --help.
"""
