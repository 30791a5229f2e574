"""CUDA source becomes a library (`build`, `load_inline`), or the first error with its line (`compiler_log`).

`resources` asks nvcc what a kernel takes: registers, spills, shared memory. `machine_code` makes PTX and SASS.
"""
