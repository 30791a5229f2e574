"""Starts a foreign process: with few environment variables, with limits, and in the best sandbox that works here."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TypedDict

from ....core import landlock, seccomp
from ....core.confinement import BWRAP_TAKES, Confinement, bwrap, bwrap_problem, landlock_problem, seccomp_problem, user_problem
from . import other_user, privileges

ROOT = Path(__file__).resolve().parents[4]
MOST_PROCESSES = 128             # compilers start about twenty
MOST_DISK_BYTES = 4 << 30         # of all files in a scratch folder, and of each file
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PARTIES = ("candidate", "reference", "benchmark", "compiler", "spare", "nvcc")  # the names of scratch folders
_DEVICES = tuple(Path("/dev") / name for name in ("null", "zero", "full", "random", "urandom"))
_OPEN_TO_ALL = tuple(Path(name) for name in ("/dev/shm", "/tmp", "/var/tmp"))
_SMALL_BYTES = 64 << 20
_PIPE_BYTES = 1 << 20
_INTERNET = (socket.AF_INET, socket.AF_INET6, socket.AF_PACKET)
# What CUDA and torch may need to share memory between processes. There Landlock and bwrap keep foreign processes away.
_OF_CUDA = ("process_vm_readv", "process_vm_writev", "pidfd_getfd", "shmget", "msgget", "semget", "mq_open")
_DRIVER_IN_RUN = "/run/opengl-driver"  # NixOS has the libraries of the driver there
_START_CUDA = "import ctypes, sys; code = ctypes.CDLL('libcuda.so.1').cuInit(0); sys.exit(f'CUDA error {code}' if code else 0)"
# Variables with which a process finds its interpreter, compilers and GPU. It gets no others: no token, no key.
_KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CXX",
         "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "VIRTUAL_ENV", "OMP_NUM_THREADS",
         "CUDACPU_THREADS")
# With these settings two processes take the same time for the same call. Without them glibc changes its thresholds depending on
# what a process has freed before, and OpenMP threads of one process spin on cores that the other one needs.
_SAME_FOR_ALL = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
                 "OMP_WAIT_POLICY": "PASSIVE"}
# Without this setting torch.compile first compiles three files to find out whether g++ supports AVX2 and AVX-512. Whether the
# processor has them is read from another source, and features of newer compilers are still tried.
_OF_INDUCTOR = {"TORCHINDUCTOR_VEC_ISA_OK": "1"} if platform.machine() == "x86_64" else {}
_libc = ctypes.CDLL(None)


def environment(scratch: Path) -> dict[str, str]:
    """Variables of a foreign process; home, temporary files and torch's builds go to its scratch folder."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, "HOME": str(scratch), "TMPDIR": str(scratch), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1", "TORCH_EXTENSIONS_DIR": str(scratch / "extensions"),
            "TRITON_CACHE_DIR": str(scratch / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
            "TORCH_USE_CUDA_DSA": "1", "MAX_JOBS": "4", **_OF_INDUCTOR, **_SAME_FOR_ALL}


@lru_cache(maxsize=4)
def confinement(device: str) -> Confinement:
    """The sandbox of foreign processes for this device: bwrap if it works, else Landlock. If root checks on the CPU, another
    user is used in addition to Landlock. On a GPU another user is used only without Landlock, because CUDA IPC between users
    may be refused. Raises `BadRequest` for a wrong $KERNEL_WORKBENCH_CONFINE."""
    sockets = "" if seccomp_problem() else "all" if device == "cpu" else "internet"
    why = [bwrap_problem()]
    for version, refused in () if why[0] else dict.fromkeys(
            ((0 if landlock_problem() else landlock.version(), sockets), (0, sockets), (0, ""))):
        in_bwrap = Confinement(bwrap=True, landlock=version, sockets=refused)
        said = _fails(in_bwrap, _starts(device), device)
        if not said:
            return in_bwrap
        why = [f"what the file needs does not start in bwrap ({said})"]
    if sockets and (said := _fails(Confinement(sockets=sockets), _starts(device), device)):
        sockets = ""
        why.append(f"what the file needs does not start without sockets ({said})")
    no_landlock = landlock_problem() or _fails(Confinement(landlock=landlock.version()), _starts(device), device)
    found = Confinement(landlock=0 if no_landlock else landlock.version(), sockets=sockets,
                        own_shm=device == "cpu" and bool(sockets or not no_landlock) and privileges.has_own_shm())
    if no_landlock or device == "cpu":
        no_user = user_problem() or privileges.users_problem(len(_PARTIES))
        said = ""
        for reads in (False, True) if not no_user else ():  # an interpreter below /root needs further rights
            as_other = replace(found, user=privileges.first_user(len(_PARTIES)), reads=reads)
            said = _fails(as_other, other_user.words(device), device)
            if not said:
                found = as_other
                break
        if no_landlock:
            why.append(no_landlock)
            if not found.user:
                why.append(no_user or f"user {privileges.first_user(len(_PARTIES))} cannot run it ({said})")
    return replace(found, why="; ".join(dict.fromkeys(why)))


@dataclass(frozen=True)
class Launched:
    """A process that has been started, and the ends of its pipes."""

    process: subprocess.Popen[bytes]
    to_write: int
    from_read: int


def launch(scratch: Path, device: str, memory_bytes: int, *, popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen
           ) -> Launched:
    """Starts a `host`, confined to its scratch folder; its log lies beside the folder."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    for fd in (to_write, from_read):  # large pipes for tensors; if the system refuses, the size stays
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    words = [sys.executable, "-m", "workbench.measure.check.host", str(to_read), str(from_write), device, scratch.name]
    with log_of(scratch).open("wb") as log, start(words, scratch, device=device, memory_bytes=memory_bytes) as how:
        how["pass_fds"] += (to_read, from_write)
        process = popen(**how, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    os.close(to_read)
    os.close(from_write)
    return Launched(process, to_write, from_read)


def log_of(scratch: Path) -> Path:
    """The file for the output of the process. Its folder is created."""
    scratch.mkdir(parents=True, exist_ok=True)
    return scratch.with_name(f"{scratch.name}.log")


class Start(TypedDict):
    """Arguments of `subprocess.Popen`."""

    args: list[str]
    cwd: Path
    env: dict[str, str]
    start_new_session: bool
    preexec_fn: Callable[[], None]
    pass_fds: tuple[int, ...]


@contextmanager
def start(words: list[str], scratch: Path, *, device: str, memory_bytes: int, data_limit: bool = True
          ) -> Iterator[Start]:
    """Arguments of `subprocess.Popen` for a command that is confined to its scratch folder, as `confinement` says."""
    with _held(confinement(device), words, scratch, device, memory_bytes if data_limit and device == "cpu" else 0) as how:
        yield how


def user_of(scratch: Path, device: str) -> int:
    """The user who runs the process and owns its scratch folder; 0 if it is not another user. Each process has another one,
    because a user can read the memory of all its processes."""
    first = confinement(device).user
    return first + _PARTIES.index(scratch.name) if first else 0


def remove_leftovers(device: str) -> None:
    """Remove files that the other users have left in folders that are open to every user. Only the workbench uses these users.
    """
    first = confinement(device).user
    for folder in _OPEN_TO_ALL if first else ():
        for path in folder.iterdir():
            with suppress(OSError):  # a file of another process may vanish meanwhile
                if first <= path.lstat().st_uid < first + len(_PARTIES):
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    else:
                        path.unlink()


@contextmanager
def _held(way: Confinement, words: list[str], scratch: Path, device: str, data_bytes: int) -> Iterator[Start]:
    user, rules, filter_fd = 0, -1, -1
    if way.user:
        user = way.user + _PARTIES.index(scratch.name)  # the numbers belong to users without a name or a group
        scratch.parent.chmod(0o711)
        scratch.chmod(0o700)
        os.chown(scratch, user, user)
    if way.landlock and not way.bwrap:
        rules = landlock.ruleset([scratch], [*_DEVICES, *_of_the_gpu(device)])
    calls = _refused(way, device)
    if way.bwrap:
        if calls:  # bwrap needs to mount, so it applies the filter as its last step
            filter_fd = os.memfd_create("filter")
            os.write(filter_fd, calls)
            os.lseek(filter_fd, 0, os.SEEK_SET)
        words, calls = _in_bwrap(words, scratch, device, way, filter_fd), b""
    try:
        yield {"args": words, "cwd": scratch, "env": environment(scratch), "start_new_session": True,
               "pass_fds": (filter_fd,) if filter_fd >= 0 else (),
               "preexec_fn": partial(_in_child, rules, data_bytes, user, way, calls)}
    finally:
        for fd in (rules, filter_fd):
            if fd >= 0:
                os.close(fd)


def _refused(way: Confinement, device: str) -> bytes:
    """The filter of system calls; b"" for none."""
    if not way.sockets:
        return b""
    calls = [name for name in seccomp.TO_OTHERS if device == "cpu" or name not in _OF_CUDA]
    return seccomp.program(("socket", *calls), families=None if way.sockets == "all" else _INTERNET)


def _in_child(rules: int, data_bytes: int, user: int, way: Confinement, calls: bytes) -> None:
    """Called between fork and exec: sets the user and the limits on files, memory and core dumps. The process dies with its
    parent."""
    if way.own_shm:
        privileges.mount_own_shm(_SMALL_BYTES)
    if user:
        privileges.become(user, reads=way.reads)
    elif rules >= 0 and os.geteuid() == 0:
        privileges.keep_reading_only()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a later change of the user would undo it
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_DISK_BYTES, MOST_DISK_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if data_bytes:  # not with CUDA, which reserves terabytes of address space; there only resident memory is checked
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    if rules >= 0:
        landlock.restrict(rules, [Path("/dev/shm")])
    if calls:
        seccomp.restrict(calls)


def _starts(device: str) -> list[str]:
    """A command that fails if the interpreter, or CUDA's driver, cannot start in the sandbox. It takes half a second, as it
    does not import torch."""
    return [sys.executable, "-c", "import workbench" if device == "cpu" else _START_CUDA]


def _fails(way: Confinement, words: list[str], device: str) -> str:
    """"" if the command succeeds in that sandbox, in a folder like those of a check; else its error."""
    with tempfile.TemporaryDirectory(prefix="kernel-workbench-try-") as name:
        scratch = Path(name) / _PARTIES[0]
        scratch.mkdir()
        try:
            with _held(way, words, scratch, device, 0) as how:
                return other_user.tried(how, device if way.user else "cpu")
        except OSError as error:
            return str(error)


def _in_bwrap(words: list[str], scratch: Path, device: str, way: Confinement, filter_fd: int) -> list[str]:
    """The command with bwrap: without capabilities, without the sockets of system services in /run, and with only the usual
    devices in /dev and those of the GPU, because root could write to a disk's device even without capabilities. Folders in
    memory are small, because their contents do not count as the memory of a process."""
    seen = dict.fromkeys(str(Path(p).resolve()) for p in (ROOT, sys.prefix, sys.base_prefix, sys.exec_prefix))
    gpu = _of_the_gpu(device)
    # The GPU's shared memory between processes does not cross process namespaces, and torch counts who uses it in /dev/shm.
    small = ["--size", str(_SMALL_BYTES), "--tmpfs"]
    machine = ["--unshare-pid", *small, "/dev/shm", "--remount-ro", "/dev"] if device == "cpu" else [
        "--bind", "/dev/shm", "/dev/shm", *(word for p in gpu for word in ("--dev-bind", str(p), str(p))),
        "--ro-bind-try", _DRIVER_IN_RUN, _DRIVER_IN_RUN]
    if way.landlock:
        words = [sys.executable, "-m", landlock.__name__, str(scratch), "/tmp", "/dev/shm", "--devices",
                 *map(str, (*_DEVICES, *gpu)), "--", *words]
    return [bwrap(), "--ro-bind", "/", "/", "--dev", "/dev", *small, "/run", *machine, "--proc", "/proc", *small, "/tmp",
            *(("--seccomp", str(filter_fd)) if filter_fd >= 0 else ()),
            *(word for path in seen for word in ("--ro-bind", path, path)), "--bind", str(scratch), str(scratch),
            *BWRAP_TAKES, "--die-with-parent", "--new-session", "--chdir", str(scratch), *words]


def _of_the_gpu(device: str) -> list[Path]:
    """The files of /dev that CUDA's driver opens: NVIDIA's, under WSL dxg."""
    return [] if device == "cpu" else [*Path("/dev").glob("nvidia*"), *Path("/dev").glob("dxg")]


def adopt_orphans() -> None:
    """Grandchildren that leave their group and lose their parent become children of this process."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(root: int, *, dead: bool = False, without: Container[int] = ()) -> list[int]:
    """All living descendants of a process. `dead`: also zombies, whose threads may still live. `without`: children that are
    left out together with all that they started."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (words := stat_words(f"/proc/{name}")) and (dead or words[0] != "Z"):
            parents.setdefault(int(words[1]), []).append(int(name))
    found, ahead = [], [root]
    while ahead:
        children = [pid for pid in parents.get(ahead.pop(), []) if pid not in without]
        found += children
        ahead += children
    return found


def stat_words(folder: str) -> list[str]:
    """The words behind the name in /proc's stat: state, parent, ... Read without pathlib, which takes four times as long."""
    try:
        fd = os.open(f"{folder}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return os.read(fd, 4096).rpartition(b")")[2].decode("ascii").split()
    except OSError:  # it has ended meanwhile
        return []
    finally:
        os.close(fd)


def takes_more(pids: list[int], limit_bytes: int) -> bool:
    """Whether these processes together use more memory than that, including shared mappings and files in memory. Memory that
    several share is counted once."""
    return _bytes_of(pids, "status", ("RssAnon:", "RssShmem:")) > limit_bytes and (  # exact, and some milliseconds for each:
        _bytes_of(pids, "smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")) > limit_bytes)


def _bytes_of(pids: list[int], file: str, names: tuple[str, ...]) -> int:
    total = 0
    for pid in pids:
        with suppress(OSError):  # it has ended
            lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
            total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith(names))
    return total


def fills_the_disk(folder: Path) -> bool:
    """Whether the files in a scratch folder take more than is allowed."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # it was removed meanwhile
                total += 512 * os.lstat(os.path.join(place, name)).st_blocks
    return total > MOST_DISK_BYTES
