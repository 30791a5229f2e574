"""The cache of finished builds: one folder per key. A build is finished elsewhere, then renamed into the cache.

    <root>/libraries/<key>/   library.so, log.txt, meta.json, source.cu: complete, never changed
    <root>/building/<name>/   one build at work, locked by the process that owns it

`meta.json` names the entry's own key and has the SHA-256 of every file: an entry whose files were changed, or that lies under
another key, is removed and built again. When the cache is too large, the least recently used builds are removed first.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from .env import cache_dir
from .errors import BadRequest
from .owned_folder import abandoned, owned_folder, sweep
from .typed import keys_of, read, to_json

T = TypeVar("T")
DEFAULT_LIMIT_BYTES = 2 * 2**30
LIMIT_VARIABLE = "KERNEL_WORKBENCH_CACHE_BYTES"
_TRIES = 50
KEEP_RECENT_S = 600  # trim keeps builds used within this time: another process may be about to load one


@dataclass(frozen=True)
class Usage:
    """`entries` finished builds take `bytes`; `building` counts builds at work now."""

    path: Path
    bytes: int
    limit_bytes: int
    entries: int
    building: int


def build_key(source: str, flags: Iterable[str], *, device: str, arch: str, compiler: str, torch: str,
              extra: Iterable[str] = ()) -> str:
    """Hash of everything that a library depends on. `compiler` includes its version. A separator stands between the parts."""
    digest = hashlib.sha256()
    for part in (source, *flags, "", device, arch, compiler, torch, *extra):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:24]


@dataclass(frozen=True)
class Entry(Generic[T]):
    """`digests`: name of a file -> its SHA-256."""

    path: Path
    value: T
    digests: dict[str, str]


class Cache:
    """Safe with any number of processes. No process waits for the build of another."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or cache_dir()
        self._libraries = self.root / "libraries"
        self._building = self.root / "building"

    def find(self, key: str, kind: type[T]) -> Entry[T] | None:
        """The entry of `key` whose `meta.json` can be read as that type, or None. It is marked as used."""
        entry = self._libraries / key
        try:
            meta = json.loads((entry / "meta.json").read_text(encoding="utf-8"))
            of_key, digests = meta.pop("key"), read(dict[str, str], meta.pop("digests"))
            whole = of_key == key and all(digest_of(entry / name) == digest for name, digest in digests.items())
            value = read(kind, meta)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        if not whole:  # somebody changed it, or the machine lost power between the rename and the data
            self._discard(entry)
            return None
        with suppress(OSError):  # in a read-only cache the entry is still usable
            os.utime(entry)
        return Entry(entry, value, digests)

    @contextmanager
    def building(self, key: str) -> Iterator[Path]:
        """A private folder for one build, which is removed afterwards. Before that, the folders of killed builds are removed.
        """
        self._building.mkdir(parents=True, exist_ok=True)
        self.sweep()
        folder, lock = owned_folder(self._building, key)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)

    def publish(self, key: str, folder: Path, value: T) -> Entry[T]:
        """Make `folder` the entry of `key`. The first rename counts; a later one is discarded. `value`: a dataclass for its
        `meta.json`. Returns what `find` returns."""
        digests = {item.name: digest_of(item) for item in sorted(folder.iterdir())}
        (folder / "meta.json").write_text(to_json({**keys_of(value), "key": key, "digests": digests}), encoding="utf-8")
        entry = self._libraries / key
        self._libraries.mkdir(parents=True, exist_ok=True)
        for _ in range(_TRIES):
            try:
                folder.rename(entry)
                break
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            if found := self.find(key, type(value)):  # another process was first
                return found
            self._discard(entry)  # the folder there is not an entry, or it was trimmed a moment ago: the next try succeeds
        else:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(entry))
        self.trim()
        return Entry(entry, value, digests)

    def usage(self) -> Usage:
        entries = self._entries()
        live = 0
        for folder in _folders(self._building):
            with abandoned(folder) as nobodys:
                live += not nobodys
        return Usage(self.root, sum(size for _, size, _ in entries), limit_bytes(), len(entries), live)

    def trim(self, limit: int | None = None, *, keep_recent_s: float = KEEP_RECENT_S) -> int:
        """Remove the least recently used builds until the others take at most `limit` bytes. Returns the bytes freed."""
        limit = limit_bytes() if limit is None else limit
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        freed = 0
        for used_at, size, entry in entries:
            if total - freed <= limit or used_at > time.time() - keep_recent_s:
                break
            self._discard(entry)
            freed += size
        return freed

    def clear(self) -> int:
        """Remove every finished build and the folders of killed builds, but not those of running builds. Returns the bytes
        freed."""
        self.sweep()
        entries = self._entries()
        for _, _, entry in entries:
            self._discard(entry)
        return sum(size for _, size, _ in entries)

    def sweep(self) -> None:
        """Remove the folders of builds whose process is gone."""
        sweep(_folders(self._building))

    def _entries(self) -> list[tuple[float, int, Path]]:
        """(used at, bytes, folder) of each entry; an entry that another process removes meanwhile is left out."""
        found = []
        for entry in _folders(self._libraries):
            with suppress(OSError):
                size = sum(item.stat().st_size for item in entry.iterdir())
                found.append((entry.stat().st_mtime, size, entry))
        return found

    def _discard(self, entry: Path) -> None:
        """Remove an entry. It is renamed first, so that no process sees a part of an entry. A library that is loaded stays
        loaded."""
        away = self._building / f"discarded.{os.getpid()}.{secrets.token_hex(4)}"
        with suppress(OSError):
            self._building.mkdir(parents=True, exist_ok=True)
            entry.rename(away)
            shutil.rmtree(away, ignore_errors=True)


def digest_of(file: Path) -> str:
    """SHA-256 of its contents. Raises OSError."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def limit_bytes() -> int:
    """$KERNEL_WORKBENCH_CACHE_BYTES, else 2 GiB. Raises `BadRequest` when it is not a number of bytes."""
    text = os.environ.get(LIMIT_VARIABLE, "").strip()
    if not text:
        return DEFAULT_LIMIT_BYTES
    if not text.isdigit():
        raise BadRequest(f"{LIMIT_VARIABLE} is {text!r}; give a whole number of bytes.")
    return int(text)


def _folders(parent: Path) -> list[Path]:
    try:
        return [item for item in parent.iterdir() if item.is_dir()]
    except OSError:
        return []
