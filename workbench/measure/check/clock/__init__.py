"""The time of a foreign file: `times` measures it, `ladder` lists the ways of PyTorch that are timed beside it,
`slots` is the judge's memory for their results."""
