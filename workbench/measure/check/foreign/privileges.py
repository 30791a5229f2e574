"""The users as which foreign processes run, and the rights that root gives up in a child between fork and exec. After exec the
child cannot get them back. Each judge has its own users, because a user may signal, trace and read all its processes, and Linux
applies limits to all of them together."""

from __future__ import annotations

import ctypes
import os
import socket
from contextlib import suppress
from functools import lru_cache

_PR_SET_KEEPCAPS, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 8, 24, 38, 47
_AMBIENT_RAISE = 2
_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 2, 4, 1 << 14, 1 << 18
_CAP_DAC_READ_SEARCH = 2          # the right to read every file and enter every folder
_LAST = 63
_VERSION_3 = 0x20080522           # of capset's structures: two words of 32 bits
_FIRST_USER, _LAST_USER = 60578, 61183  # systemd's list of user numbers has these as unused
_held: list[socket.socket] = []
_libc = ctypes.CDLL(None, use_errno=True)


def users_problem(count: int) -> str:
    """"" if so many users are free for this process, else the reason."""
    try:
        first_user(count)
    except OSError as error:
        return str(error)
    return ""


@lru_cache(maxsize=1)
def first_user(count: int) -> int:
    """The first of `count` consecutive users that are reserved for this process until it ends. Raises OSError if none are left.
    """
    for user in range(_FIRST_USER, _LAST_USER - count + 2, count):
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0kernel-workbench-user-{user}")  # a name without a file: it is free again as soon as the process ends
        except OSError:
            lock.close()
            continue
        _held.append(lock)
        return user
    raise OSError(f"other processes hold all users from {_FIRST_USER} to {_LAST_USER}")


def become(user: int, *, reads: bool) -> None:
    """Become that user, in the group of the same number only, without capabilities; with `reads` it may read everything.
    Raises OSError."""
    if reads:
        _libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):  # otherwise a program with the setuid bit would restore all rights
        raise OSError(ctypes.get_errno(), "no_new_privs was refused")
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    if reads:
        header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
        kept = 1 << _CAP_DAC_READ_SEARCH
        if _libc.capset(header, (ctypes.c_uint32 * 6)(kept, kept, kept, 0, 0, 0)) or \
                _libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, _CAP_DAC_READ_SEARCH, 0, 0):
            raise OSError(ctypes.get_errno(), "the right to read everything was refused")


@lru_cache(maxsize=1)
def has_own_shm() -> bool:
    """Whether `mount_own_shm` works here: a process tries it."""
    if os.geteuid() != 0:
        return False
    child = os.fork()
    if child == 0:
        with suppress(OSError):
            mount_own_shm(1 << 20)
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def mount_own_shm(size_bytes: int) -> None:
    """An empty /dev/shm that ends with this process and all it starts. To be called by root, between fork and exec, before
    rights are given up. Raises OSError."""
    options = f"mode=1777,size={size_bytes}".encode()
    if _libc.unshare(_CLONE_NEWNS) or _libc.mount(None, b"/", None, ctypes.c_ulong(_MS_PRIVATE | _MS_REC), None) or \
            _libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", ctypes.c_ulong(_MS_NOSUID | _MS_NODEV), options):
        raise OSError(ctypes.get_errno(), "/dev/shm could not be mounted")


def keep_reading_only() -> None:
    """Root stays root, but after exec it has only the rights of an owner of files, and may read everything."""
    for capability in range(_LAST + 1):
        if capability != _CAP_DAC_READ_SEARCH:
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
