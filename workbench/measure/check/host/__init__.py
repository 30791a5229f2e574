"""The code inside the process of a foreign file or of the reference. The judge does not trust its answers.

`host` answers the judge; `load`, `module` and `calls` do what is asked. `ways` binds PyTorch's ways. `habits` and `networks`
make the calls for the questions of the same names, `lifetimes` says what stays in memory. `lines` records what of it runs.
`module` also knows what a file can change for all modules of its process.
"""
