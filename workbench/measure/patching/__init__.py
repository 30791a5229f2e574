"""A whole model: `load` makes it, `step` runs it, `find` looks for its transposed convolutions, `replace` puts kernels into it,
`turns` times two ways in turns, `drift` says how far the results moved, `compare` sets the patched beside the original."""
