"""A whole model: `load` makes it, `step` runs it, `find` looks for its transposed convolutions, `replace` puts kernels into it,
`drift` measures how far results differ, `compare` compares the patched model with the original, also their times in turns."""
