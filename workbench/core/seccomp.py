"""seccomp: a Linux process permanently gives up system calls, for itself and for every process that it starts. A refused call
fails with EPERM.

The filter is a program of 8-byte instructions (https://docs.kernel.org/userspace-api/seccomp_filter.html). Numbers of system
calls differ between machines; where they are not known here, `problem` says so.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass

_PR_GET_SECCOMP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 21, 22, 38, 2
_LOAD, _MASK, _SAME, _AT_LEAST, _ANY_OF, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _ARGUMENT = 0, 4, 16                  # offsets in the data that the filter reads
_ALLOW, _REFUSE, _NOT_THERE = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_X32 = 0x40000000                                        # the bit of x32 system calls on x86-64
_CLONE_THREAD = 0x00010000
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# name -> number on x86-64 and on aarch64; None: there is no such call
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None), "clone": (56, 220), "clone3": (435, 435), "execve": (59, 221),
    "execveat": (322, 281), "socket": (41, 198), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424),
    "io_uring_setup": (425, 425), "mknod": (133, None), "mknodat": (259, 33), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180), "mount": (165, 40), "umount2": (166, 39), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "kexec_load": (246, 104), "init_module": (175, 105),
    "finit_module": (313, 273), "open_by_handle_at": (304, 265), "swapon": (167, 224), "acct": (163, 89),
    "quotactl": (179, 60), "mprotect": (10, 226), "pkey_mprotect": (329, 288), "mmap": (9, 222), "munmap": (11, 215),
    "mremap": (25, 216), "remap_file_pages": (216, 234)}
# Calls that no module and no launcher needs. They act on other processes, on the machine, or last longer than the process.
TO_OTHERS = ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "io_uring_setup", "shmget", "msgget", "semget",
             "mq_open", "mount", "umount2", "open_tree", "move_mount", "fsopen", "pivot_root", "chroot", "unshare", "setns",
             "bpf", "mknod", "mknodat", "perf_event_open", "userfaultfd", "add_key", "request_key", "keyctl", "kexec_load",
             "init_module", "finit_module", "open_by_handle_at", "swapon", "acct", "quotactl")
# Calls that start a process. `clone` for a thread stays allowed. C libraries use `clone` if there is no `clone3`.
STARTS = ("fork", "vfork", "clone", "clone3", "execve", "execveat")
# Calls that give memory another address or another protection. C libraries do without the last three.
MAPS = ("mprotect", "mmap", "munmap", "pkey_mprotect", "mremap", "remap_file_pages")
SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal")
_libc = ctypes.CDLL(None, use_errno=True)


def problem() -> str:
    """"" if a filter can be used, else the reason."""
    if platform.system() != "Linux" or platform.machine() not in _MACHINES or sys.maxsize < 1 << 32:
        return f"the system calls of {platform.system()} on {platform.machine()} are not known here"
    return "" if _libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0 else "this kernel has no seccomp"


@dataclass(frozen=True)
class Closed:
    """Memory from address `start` to `stop`, both multiples of 4 GiB, whose protection only those may change who pass `key` as
    fourth and fifth argument of mprotect: two positive numbers below 2^31."""

    start: int
    stop: int
    key: tuple[int, int]


def program(calls: Iterable[str], *, families: Iterable[int] | None = None, closed: Closed | None = None) -> bytes:
    """A filter that refuses these calls, `mknod` only for devices. `families`: the address families for which `socket` is
    refused; None: all. `closed`: the memory for which mprotect, mmap and munmap are refused; None: all memory. Signals to the
    own process stay allowed, because `abort` needs them; so the filter fits only the process that makes it."""
    machine = platform.machine()
    column = list(_MACHINES).index(machine)
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _MACHINE), (_SAME, 1, 0, _MACHINES[machine]), (_RETURN, 0, 0, _REFUSE), (_LOAD, 0, 0, _NUMBER)]
    if machine == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _REFUSE)]
    for name in calls:
        number = _CALLS[name][column]
        if number is None:
            continue
        body: list[tuple[int, int, int, int]]
        if name == "clone":
            body = [(_LOAD, 0, 0, _ARGUMENT), (_ANY_OF, 1, 0, _CLONE_THREAD), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
        elif name == "clone3":
            body = [(_RETURN, 0, 0, _NOT_THERE)]
        elif name in ("kill", "tgkill"):
            body = [(_LOAD, 0, 0, _ARGUMENT), (_SAME, 1, 0, os.getpid()), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
        elif name in ("mknod", "mknodat"):
            body = [(_LOAD, 0, 0, _ARGUMENT + (8 if name == "mknod" else 16)), (_MASK, 0, 0, stat.S_IFMT(0xFFFF)),
                    (_SAME, 1, 0, stat.S_IFCHR), (_SAME, 0, 1, stat.S_IFBLK), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
        elif name in ("mprotect", "mmap", "munmap") and closed is not None:
            body = _outside(closed, name)
        elif name == "socket" and families is not None:
            body = [(_LOAD, 0, 0, _ARGUMENT)]
            for family in families:
                body += [(_SAME, 0, 1, family), (_RETURN, 0, 0, _REFUSE)]
            body.append((_RETURN, 0, 0, _ALLOW))
        else:
            body = [(_RETURN, 0, 0, _REFUSE)]
        code += [(_SAME, 0, len(body), number), *body]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _outside(closed: Closed, name: str) -> list[tuple[int, int, int, int]]:
    """Allows the call only outside of the closed memory. A filter compares words of 32 bits. So it refuses 4 GiB and more at
    once, and addresses less than 4 GiB below the closed memory."""
    address, size, keys = (_ARGUMENT + 4, _ARGUMENT + 8 + 4, (_ARGUMENT + 24, _ARGUMENT + 32))
    tests = [(_LOAD, 0, 0, size), (_SAME, 1, 0, 0), (_RETURN, 0, 0, _REFUSE),
             (_LOAD, 0, 0, address), (_AT_LEAST, 1, 0, (closed.start >> 32) - 1), (_RETURN, 0, 0, _ALLOW),
             (_AT_LEAST, 1, 0, closed.stop >> 32), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    if name == "mmap":  # nearly always the system chooses the address
        return [(_LOAD, 0, 0, address), (_SAME, 0, 1, 0), (_RETURN, 0, 0, _ALLOW), *tests]
    if name == "munmap":
        return tests
    return [(_LOAD, 0, 0, keys[0]), (_SAME, 0, 3, closed.key[0]), (_LOAD, 0, 0, keys[1]), (_SAME, 0, 1, closed.key[1]),
            (_RETURN, 0, 0, _ALLOW), *tests]


def restrict(filter_program: bytes) -> None:
    """Apply the filter to this thread and all that it starts. Raises OSError."""
    count = len(filter_program) // 8
    kept = ctypes.create_string_buffer(filter_program, len(filter_program))

    class Program(ctypes.Structure):
        _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    pointer = ctypes.byref(Program(count, ctypes.addressof(kept)))
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or _libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, pointer, 0, 0):
        raise OSError(ctypes.get_errno(), "the seccomp filter was refused")
