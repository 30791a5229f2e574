"""What a measuring process needs in its environment to load kernels built with AddressSanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ...core.env import find_toolchain
from ...core.errors import BadRequest


def sanitizer_environment() -> dict[str, str]:
    """AddressSanitizer's runtime must be in the process before Python: preload it. Leaks are Python's, not ours."""
    compiler = find_toolchain().cxx
    if compiler is None:
        raise BadRequest("AddressSanitizer needs a C++ compiler; install g++.")
    library = subprocess.run([str(compiler), "-print-file-name=libasan.so"], capture_output=True, text=True, timeout=10,
                             check=False).stdout.strip()
    if not Path(library).is_absolute():
        raise BadRequest("AddressSanitizer's runtime (libasan) was not found; install the libasan of your g++.")
    return {"LD_PRELOAD": library, "CUDACPU_THREADS": "1",
            "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:verify_asan_link_order=0:exitcode=86"}
