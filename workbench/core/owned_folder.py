"""A folder that belongs to this process. An flock on it ends with the process, so others see that they may remove it."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def owned_folder(parent: Path, key: str, *, mode: int = 0o777) -> tuple[Path, int]:
    """A new folder with an flock on it. The kernel drops the lock with the process, however that ends; unlike a
    process id it is never reused, and holds across containers that share the cache."""
    while True:
        folder = parent / f"{key}.{os.getpid()}.{secrets.token_hex(4)}"
        folder.mkdir(mode)
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # swept in the instant before it was locked
            continue
        with suppress(OSError):  # a file system without locks: then nothing is ever swept there
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)


def sweep(folders: Iterable[Path]) -> None:
    """Remove those whose process is gone."""
    for folder in folders:
        with abandoned(folder) as nobodys:
            if nobodys:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def abandoned(folder: Path) -> Iterator[bool]:
    """Whether the process that made `folder` is gone; while the block runs nobody else takes it."""
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
