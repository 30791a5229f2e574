"""Reads the lines and blobs of a session, from its folder or from a zip.

A zip holds `NAME/trials.jsonl`, `NAME/events.jsonl` and `NAME/blobs/<sha256>`, as `pack` writes it.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from ...core.trial import Timing, Trial

TRIALS, EVENTS, BLOBS = "trials.jsonl", "events.jsonl", "blobs"
TUNE_WON = "tune_won"   # event with the result of the finals of a tune
# Bytes at the end of the file in which the newest trial's time is searched; a line is at most half as long.
_END_BYTES = 8192
# A session may come from somebody else. A few hundred KB of a zip can hold a GB of zeros.
MOST_LINES_BYTES = 256 << 20   # of one file of lines in a zip: 60 000 trials or more
MOST_BLOB_BYTES = 64 << 20


def name_of(path: Path) -> str:
    """The session's name: that of its folder, or of its zip without the ending."""
    return path.stem if path.suffix == ".zip" else path.name


def is_session(path: Path) -> bool:
    """Whether a session lies there, as a folder or as a zip."""
    if path.suffix == ".zip":
        return path.is_file() and zipfile.is_zipfile(path)
    return (path / BLOBS).is_dir() or (path / TRIALS).is_file()


def stamp(path: Path) -> tuple[int, int]:
    """(time, size) of the file with the trials. If it changes, the trials have changed. (0, 0) without a file."""
    file = path if path.suffix == ".zip" else path / TRIALS
    if not file.is_file():
        return (0, 0)
    stat = file.stat()
    return stat.st_mtime_ns, stat.st_size


def lines(path: Path, name: str) -> Iterator[tuple[int, str]]:
    """The lines of TRIALS or EVENTS that are not empty, with their numbers in the file. Raises OSError."""
    file = path / name
    if path.suffix == ".zip":
        found = io.StringIO((_in_zip(path, name) or b"").decode("utf-8", "replace"))
        yield from ((number, line) for number, line in enumerate(found, 1) if line.strip())
    elif file.is_file():
        with file.open(encoding="utf-8", errors="replace") as folder_file:
            yield from ((number, line) for number, line in enumerate(folder_file, 1) if line.strip())


def blob(path: Path, name: str) -> bytes | None:
    """The bytes kept under that SHA-256; None if there are none, or others: a blob that was changed, or a link, is not read."""
    if not re.fullmatch(r"[0-9a-f]{64}", name):
        return None
    file = path / BLOBS / name
    if path.suffix == ".zip":
        data = _in_zip(path, f"{BLOBS}/{name}")
    elif file.is_file() and not is_link(file) and file.stat().st_size <= MOST_BLOB_BYTES:
        data = file.read_bytes()
    else:
        return None
    return data if data is not None and hashlib.sha256(data).hexdigest() == name else None


def is_link(file: Path) -> bool:
    """Whether a file of a session leads elsewhere. A session from somebody else could name any file of this machine so."""
    return file.is_symlink() or file.parent.name == BLOBS and file.parent.is_symlink()


def newest_trial(path: Path) -> str:
    """When the last trial was written, in UTC. Only the end of the file is read, because the page asks at each update."""
    try:
        if path.suffix == ".zip":
            end = _end_of_zip(path, stamp(path))
        else:
            with (path / TRIALS).open("rb") as file:
                file.seek(max(0, file.seek(0, io.SEEK_END) - _END_BYTES))
                end = file.read()
    except OSError:
        return ""
    return max(re.findall(r'"at":"([^"]+)"', end.decode("utf-8", "replace")), default="")


def samples_of(timing: Timing) -> tuple[float, ...]:
    """The samples of a timing in ms, in the order in which they were taken; () if its session does not have them."""
    if not timing.samples_blob or not timing.samples_in:
        return ()
    return _samples(timing.samples_in, timing.samples_blob)


def clocks_of(trial: Trial) -> tuple[float, ...]:
    """The SM clock in MHz at each of the samples; () where the trial or its session does not hold them."""
    name = trial.blobs.get("clocks", "")
    return _samples(trial.kept_in, name) if name and trial.kept_in else ()


@lru_cache(maxsize=4096)
def _samples(session: str, name: str) -> tuple[float, ...]:
    try:
        data = blob(Path(session), name)
    except OSError:
        return ()
    return tuple(float(x) for x in json.loads(data)) if data is not None else ()


def _in_zip(path: Path, name: str) -> bytes | None:
    """Raises OSError for a zip that cannot be read."""
    archive = _archive(path, stamp(path))
    try:
        entry = archive.getinfo(f"{archive.namelist()[0].partition('/')[0]}/{name}")
        if entry.file_size > (MOST_LINES_BYTES if name in (TRIALS, EVENTS) else MOST_BLOB_BYTES):
            raise OSError(27, f"{name} is larger than any session's")
        return archive.read(entry)
    except KeyError:
        return None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise OSError(5, f"{path.name} is damaged") from error


@lru_cache(maxsize=16)
def _archive(path: Path, _stamp: tuple[int, int]) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise OSError(5, f"{path.name} is not a zip") from error
    if not archive.namelist():
        raise OSError(5, f"{path.name} is empty")
    return archive


@lru_cache(maxsize=16)
def _end_of_zip(path: Path, _stamp: tuple[int, int]) -> bytes:
    return (_in_zip(path, TRIALS) or b"")[-_END_BYTES:]
