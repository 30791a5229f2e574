"""Builds a library from CUDA source (`build`, `load_inline`), or finds the first error and its line (`compiler_log`).

`resources` asks nvcc what a kernel needs: registers, spills, shared memory. `machine_code` makes PTX and SASS.
"""
