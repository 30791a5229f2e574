"""What a foreign process may use: a bare environment, limits, and where bwrap works a sandbox without network."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MOST_PROCESSES = 128             # compilers start some twenty
_MOST_FILE_BYTES = 4 << 30
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# What a process needs to find its interpreter, compilers and GPU. Nothing else is handed on: no token, no key.
_KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CXX",
         "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "VIRTUAL_ENV", "OMP_NUM_THREADS",
         "CUDACPU_THREADS")
# So that two processes pay the same for the same call: glibc adapts its thresholds to what a process has freed before, and
# OpenMP's threads go on spinning after a call of one, on the cores that the other now needs.
_SAME_FOR_ALL = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
                 "OMP_WAIT_POLICY": "PASSIVE"}
_libc = ctypes.CDLL(None)


def environment(scratch: Path) -> dict[str, str]:
    """Variables of a foreign process; home, temporary files and torch's builds go to its scratch folder."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, "HOME": str(scratch), "TMPDIR": str(scratch), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1", "TORCH_EXTENSIONS_DIR": str(scratch / "extensions"),
            "TRITON_CACHE_DIR": str(scratch / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
            "TORCH_USE_CUDA_DSA": "1", "MAX_JOBS": "4", **_SAME_FOR_ALL}


def sandbox(words: list[str], scratch: Path, *, device: str) -> list[str]:
    """The command inside bwrap, or as it is where `why_unconfined` gives a reason."""
    if why_unconfined():
        return words
    seen = dict.fromkeys(str(Path(p).resolve()) for p in (ROOT, sys.prefix, sys.base_prefix, sys.exec_prefix))
    # A GPU's driver files live in /dev; its shared memory between processes does not cross process namespaces.
    machine = ["--dev", "/dev", "--unshare-pid"] if device == "cpu" else ["--dev-bind", "/dev", "/dev"]
    return [_bwrap(), "--ro-bind", "/", "/", *machine, "--proc", "/proc", "--tmpfs", "/tmp",
            *(word for path in seen for word in ("--ro-bind", path, path)), "--bind", str(scratch), str(scratch),
            "--unshare-net", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session",
            "--chdir", str(scratch), *words]


@lru_cache(maxsize=1)
def why_unconfined() -> str:
    """"" when foreign processes run inside bwrap, else the reason why they do not."""
    if not _bwrap():
        return "bwrap is not installed"
    tried = subprocess.run([_bwrap(), "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-net",
                            "--unshare-pid", "true"], capture_output=True, text=True, timeout=20, check=False)
    if tried.returncode == 0:
        return ""
    return f"bwrap does not work here ({(tried.stderr.strip().splitlines() or ['it said nothing'])[0][:120]})"


def limits(memory_bytes: int, *, device: str) -> None:
    """Called in the child before it becomes the foreign program: limits on files, memory, core dumps; dies with us."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_FILE_BYTES, _MOST_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if device == "cpu":  # CUDA reserves address space by the terabyte: there only the watch on resident memory holds
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def adopt_orphans() -> None:
    """Grandchildren that leave their group and lose their parent become children of this process."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(root: int) -> list[int]:
    """All living descendants of a process."""
    parents: dict[int, list[int]] = {}  # the dead that nobody has waited for are left out
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            words = text.rpartition(")")[2].split()
            if words[0] != "Z":
                parents.setdefault(int(words[1]), []).append(int(entry.name))
    found, ahead = [], [root]
    while ahead:
        children = parents.get(ahead.pop(), [])
        found += children
        ahead += children
    return found


def takes_more(pids: list[int], limit_bytes: int) -> bool:
    """Whether these processes together hold more memory of their own. What a fork shares is counted once."""
    return _resident_bytes(pids) > limit_bytes and _proportional_bytes(pids) > limit_bytes


def _proportional_bytes(pids: list[int]) -> int:
    """Exact, and some milliseconds for each process."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss_Anon:"))
    return total


def _resident_bytes(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/statm").read_text().split()
        except OSError:
            continue
        total += (int(words[1]) - int(words[2])) * os.sysconf("SC_PAGE_SIZE")
    return total


def _bwrap() -> str:
    return shutil.which("bwrap") or ""
