"""The other users that foreign processes run as. Each judge has its own: a user may signal, trace and read all its processes,
and the system counts its processes together."""

from __future__ import annotations

import socket
from functools import lru_cache

_FIRST, _LAST = 60578, 61183  # systemd's list of user numbers has these as unused
_held: list[socket.socket] = []


def problem(count: int) -> str:
    """"" when there are so many users for this process, else why not."""
    try:
        first(count)
    except OSError as error:
        return str(error)
    return ""


@lru_cache(maxsize=1)
def first(count: int) -> int:
    """The first of `count` users in a row who are this process's until it ends. Raises OSError if none are left."""
    for user in range(_FIRST, _LAST - count + 2, count):
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0kernel-workbench-user-{user}")  # a name without a file: it is free again as soon as the process ends
        except OSError:
            lock.close()
            continue
        _held.append(lock)
        return user
    raise OSError(f"other processes hold all users from {_FIRST} to {_LAST}")
