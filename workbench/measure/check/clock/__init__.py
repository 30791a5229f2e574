"""The time of a foreign file: `times` measures it, `contestant` is one of the modules that are timed in turns.

`ladder` lists the ways of PyTorch that it is timed against. `slots` is the judge's memory for their results, `timed_input` the
input of each call.
"""
