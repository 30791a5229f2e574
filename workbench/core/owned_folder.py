"""A folder that belongs to this process. The process holds an flock on it. When the process has ended, other processes can take
the lock, and may then remove the folder."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def owned_folder(parent: Path, key: str, *, mode: int = 0o777) -> tuple[Path, int]:
    """A new folder with an flock on it. Linux releases the lock when the process ends in any way. Unlike a process id, a lock
    is never reused, and it is visible in all containers that share the cache."""
    while True:
        folder = parent / f"{key}.{os.getpid()}.{secrets.token_hex(4)}"
        folder.mkdir(mode)
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # another process removed it before it was locked
            continue
        with suppress(OSError):  # a file system without locks: abandoned folders are not removed there
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)


def sweep(folders: Iterable[Path]) -> None:
    """Remove the folders whose process has ended."""
    for folder in folders:
        with abandoned(folder) as nobodys:
            if nobodys:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def abandoned(folder: Path) -> Iterator[bool]:
    """Whether the process that made `folder` has ended. While the block runs, no other process can take the folder."""
    try:
        probe = os.open(folder, os.O_RDONLY)
    except OSError:
        yield True
        return
    try:
        fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        nobodys = True
    except OSError:
        nobodys = False
    try:
        yield nobodys
    finally:
        os.close(probe)
