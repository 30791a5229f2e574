"""The device cpu: CUDA source in; C++ text, include folders and compiler flags out. Compiling is the caller's part.
The CPU code of a PTX instruction is beside its wrapper, in kernel_templates/hardware/.
`translate` makes the text, `flags` has the rest; `host_process` runs the host code of kernels, a process for each candidate.

    lines = translate(source)                                  # then: g++ COMPILE_FLAGS -I... lines LINK_FLAGS
    ctypes.CDLL(library).cuda_on_cpu_last_error                # why the latest launch of this library failed

Every library keeps its own hidden state, so any number of them live in one process. Environment, read at each launch:

    CUDACPU_ORDER    forward (default), reverse, or a number that seeds a shuffle of the threads and of the blocks
    CUDACPU_THREADS  how many blocks run at once; default: the CPUs this process may use
    CUDACPU_STACK    bytes of stack of one CUDA thread; default 65536 (262144 under AddressSanitizer)
"""

from .flags import ASAN_FLAGS, COMPILE_FLAGS, INCLUDE_DIRS, LINK_FLAGS, asan_environment
from .translate import translate

__all__ = ["ASAN_FLAGS", "COMPILE_FLAGS", "INCLUDE_DIRS", "LINK_FLAGS", "asan_environment", "translate"]
