"""The device cpu: CUDA source in; C++ text, include folders and compiler flags out. Compiling is the caller's part.
The CPU code of a PTX instruction is beside its wrapper, in kernel_templates/hardware/.
`translate` makes the text, the rest is here; `host_process` runs the host code of kernels, a process for each candidate.

    lines = translate(source)                                  # then: g++ COMPILE_FLAGS -I... lines LINK_FLAGS
    ctypes.CDLL(library).cuda_on_cpu_last_error                # why the latest launch of this library failed

Every library keeps its own hidden state, so any number of them live in one process. Environment, read at each launch:

    CUDACPU_ORDER    forward (default), reverse, or a number that seeds a shuffle of the threads and of the blocks
    CUDACPU_THREADS  how many blocks run at once; default: the CPUs this process may use
    CUDACPU_STACK    bytes of stack of one CUDA thread; default 65536 (262144 under AddressSanitizer)
"""

import os
import shutil
import subprocess
from pathlib import Path

from .translate import translate

__all__ = ["ASAN_FLAGS", "COMPILE_FLAGS", "INCLUDE_DIRS", "LINK_FLAGS", "asan_environment", "translate"]

INCLUDE_DIRS: list[Path] = [Path(__file__).resolve().parent / "include"]

COMPILE_FLAGS: list[str] = [
    "-std=c++20",
    "-O1",
    "-fPIC",
    "-pthread",
    # A static inside a template would otherwise be one object for all libraries of the process.
    "-fno-gnu-unique",
    # As nvcc does: a*b+c may become one fused multiply-add where the host has one.
    "-ffp-contract=fast",
    # A float4 at an address that 16 does not divide faults on a GPU. builtins.h has the function that is called for it. That it
    # does not return makes kernels faster.
    "-fsanitize=alignment",
    "-fno-sanitize-recover=alignment",
    "-Wall",
    # nvcc's pragmas (`#pragma unroll`) mean nothing to g++.
    "-Wno-unknown-pragmas",
]

# -Bsymbolic: a kernel of the same name in another library of this process is never called by mistake.
LINK_FLAGS: list[str] = ["-shared", "-pthread", "-Wl,-Bsymbolic"]

ASAN_FLAGS: list[str] = ["-fsanitize=address", "-fno-omit-frame-pointer", "-g"]


def asan_environment(compiler: str = "g++") -> dict[str, str] | None:
    """Variables to add to a Python process that loads a library built with `ASAN_FLAGS`; None without libasan.

    Python itself is not instrumented, so the runtime must be loaded before everything else, and Python's own leaks
    are not reported.
    """
    if shutil.which(compiler) is None:
        return None
    # -print-file-name answers the bare name when there is no such file.
    asked = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    library = asked.stdout.strip()
    if not os.path.isabs(library) or not Path(library).exists():
        return None
    options = "detect_leaks=0:detect_stack_use_after_return=0"
    return {"LD_PRELOAD": str(Path(library).resolve()), "ASAN_OPTIONS": options}
