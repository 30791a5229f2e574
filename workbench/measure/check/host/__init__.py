"""The code inside the process of a foreign file or of the reference. The judge does not trust its answers.

`host` answers the judge; `load`, `module` and `calls` do what is asked. `ways` binds PyTorch's ways. `habits`, `networks` and
`tf32` make the calls for the questions of the same names. `lines` records what of the file runs. `module` also knows what a
file can change for all modules of its process.
"""
