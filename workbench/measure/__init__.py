"""The worker processes: everything here runs in them, and they may crash. Only this package imports torch.

`worker`       reads an order, runs its operation, sends the reply; OPS says where each operation is
`fork_server`  starts the workers that use no GPU, as forks of a process that has imported torch
`patching/`    runs a whole model, as it is and with kernels in it
`truth`        the right results, in float64
`mistakes`     known wrong formulas of a transposed convolution
`kernel/`      judges one candidate: inputs, poison, comparison, tolerances, time
`module/`      judges a ModelNew that the workbench exported
`check/`       judges a ModelNew that somebody else wrote; that file runs in a third process
`pytorch/`     PyTorch's ways of computing a direction, and their times
`clock/`       the time of a launch; the rates of a GPU
`device`       facts about a device
`build/`       CUDA source becomes a library
`emulator/`    CUDA source becomes C++ for the CPU
"""
