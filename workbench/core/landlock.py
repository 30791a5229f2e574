"""Landlock: a Linux process permanently gives up rights, for itself and for every process that it starts. Here it gives up
writing outside a few folders.

Not every C library has the three system calls, so they are called by number. The numbers are the same on x86-64 and aarch64
(https://docs.kernel.org/userspace-api/landlock.html). Each newer version of the interface can restrict more rights.

    python -m workbench.core.landlock FOLDER... [--devices DEVICE...] -- COMMAND

runs a command without these rights. It is used inside bwrap: Landlock would refuse the mounts of bwrap itself.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38
_WRITE_FILE, _REFER, _TRUNCATE, _IOCTL_DEV = 1 << 1, 1 << 13, 1 << 14, 1 << 15
_READ_DIR = 1 << 3
_RUN_AND_READ = 1 << 0 | 1 << 2 | _READ_DIR
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))  # folders, files, devices, sockets, pipes, links
_BIND_AND_CONNECT_TCP = 3
_SCOPE_SIGNALS = 2
HOLDS_TRUNCATION, HOLDS_TCP = 3, 4                        # the first version of the interface that restricts each of them
_HOLDS_REFER, _HOLDS_IOCTL, _HOLDS_SIGNALS = 2, 5, 6
_WHY: dict[int | None, str] = {
    errno.ENOSYS: "this kernel has no Landlock", errno.EOPNOTSUPP: "Landlock is switched off in this kernel"}
_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"  # packed, as in the kernel; newer versions of Python require it explicitly
    _fields_ = [("rights", ctypes.c_uint64), ("place", ctypes.c_int32)]


@lru_cache(maxsize=1)
def version() -> int:
    """The version of the kernel's Landlock interface. 0 if there is none; `problem` then says why."""
    return _asked()[0]


def problem() -> str:
    """"" if this kernel has Landlock, else the reason."""
    return _asked()[1]


def ruleset(folders: Iterable[Path], devices: Iterable[Path], *, reads: Iterable[Path] | None = None) -> int:
    """A descriptor of a ruleset for `restrict`. A process with this ruleset can write only below `folders` and to `devices`,
    and read only below `reads` (None: everywhere). Paths that do not exist are left out. The caller closes the descriptor.
    Raises OSError."""
    has = version()
    to_file = _WRITE_FILE | (_TRUNCATE if has >= HOLDS_TRUNCATION else 0)
    to_device = to_file | (_IOCTL_DEV if has >= _HOLDS_IOCTL else 0)
    everything = _everything()
    wanted = _Ruleset(everything | (_RUN_AND_READ if reads is not None else 0),
                      _BIND_AND_CONNECT_TCP if has >= HOLDS_TCP else 0,
                      _SCOPE_SIGNALS if has >= _HOLDS_SIGNALS else 0)
    size = 8 * (3 if has >= _HOLDS_SIGNALS else 2 if has >= HOLDS_TCP else 1)
    fd = _call(_CREATE_RULESET, ctypes.byref(wanted), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path in folders:
            _allow(fd, path, everything & ~_IOCTL_DEV)
        for path in devices:
            _allow(fd, path, to_device)
        for path in reads or ():
            _allow(fd, path, _RUN_AND_READ if path.is_dir() else _RUN_AND_READ & ~_READ_DIR)
    except OSError:
        os.close(fd)
        raise
    return fd


def restrict(fd: int, folders: Iterable[Path] = ()) -> None:
    """Apply the ruleset to this process and all that it starts. Call it between fork and exec. The process may also write below
    `folders`, which are paths as this process sees them, and to /proc/self, where CUDA's driver writes the names of its
    threads; the driver fails without that. Raises OSError."""
    for path in folders:
        _allow(fd, path, _everything() & ~_IOCTL_DEV)
    _allow(fd, Path("/proc/self"), _WRITE_FILE | (_TRUNCATE if version() >= HOLDS_TRUNCATION else 0))
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")
    _call(_RESTRICT_SELF, ctypes.c_int(fd), ctypes.c_uint32(0))


def main(argv: list[str]) -> None:
    """Restrict this process, then replace it with the command."""
    places, command = argv[:argv.index("--")], argv[argv.index("--") + 1:]
    cut = places.index("--devices") if "--devices" in places else len(places)
    fd = ruleset(map(Path, places[:cut]), map(Path, places[cut + 1:]))
    restrict(fd)
    os.close(fd)
    os.execvp(command[0], command)


def _everything() -> int:
    has = version()
    return _WRITE_FILE | _REMOVE_AND_MAKE | (_TRUNCATE if has >= HOLDS_TRUNCATION else 0) | (
        _IOCTL_DEV if has >= _HOLDS_IOCTL else 0) | (_REFER if has >= _HOLDS_REFER else 0)


def _allow(ruleset_fd: int, path: Path, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rule = _PathBeneath(rights, place)
        _call(_ADD_RULE, ctypes.c_int(ruleset_fd), ctypes.c_int(_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(place)


@lru_cache(maxsize=1)
def _asked() -> tuple[int, str]:
    if platform.system() != "Linux":
        return 0, "Landlock exists only on Linux"
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)), ""
    except OSError as error:
        return 0, _WHY.get(error.errno, f"Landlock was refused ({error.strerror})")


def _call(number: int, *arguments: object) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
