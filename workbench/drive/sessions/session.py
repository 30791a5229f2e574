"""A session: the folder in which finished trials, events and blobs are kept, safe against crashes and two writers.

    trials.jsonl   one immutable `Trial` a line, under 4 KB
    events.jsonl   run started, phases, heartbeat, stopped
    blobs/<sha256> sources, logs, samples; the part of a trial beyond 4 KB ("more")
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import re
import secrets
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...core.diagnostics import LOG
from ...core.env import shipped
from ...core.errors import BadRequest
from ...core.plain_text import plain_json
from ...core.trial import SCHEMA, Trial
from .files import BLOBS, EVENTS, TRIALS, blob, is_link, is_session, lines, name_of, newest_trial

RECORDED = "recorded-"   # the names of shipped sessions begin with this
_FOLDER = "KERNEL_WORKBENCH_SESSIONS"
_SCHEMA_FAMILY = SCHEMA.rsplit("/", 1)[0] + "/"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_MAX_PACKED_BYTES = 1 << 30
_MOST_LINE_BYTES = 4096
MORE = "more"                                                      # the blob with the parts that are too long for the line
_MAY_LIE_ELSEWHERE = ("resources", "detail", "environment", "memory")  # these parts are moved to the blob in this order
_OFTEN_EQUAL = ("workload", "device", "environment", "resources", "memory", "detail", "headline", "advice", "blobs")
_warned: set[str] = set()


class SessionFull(OSError):
    """The disk is full. Everything recorded so far is kept."""

    def __str__(self) -> str:
        return f"{self.strerror}."


class Session:
    """One session folder. Reading never fails because of a bad line: it is counted in `unreadable`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unreadable: list[str] = []
        self._parts: dict[tuple[str, str], Any] = {}   # parts of trials that are equal in several trials

    @classmethod
    def create(cls, root: Path | None = None, name: str | None = None) -> Session:
        """Make the folder, or open it if it exists. Without a name it is always a new folder, named by the present time. Raises
        `BadRequest` if the name is not a file name, or if the folder cannot be written."""
        there, root = list_sessions(root), root or sessions_root()
        if not name:
            return cls(_new_folder(root, datetime.now(UTC).strftime("%Y%m%d-%H%M%S")))
        if not _NAME.match(name):
            raise BadRequest(f"Session name {name!r} is not a plain file name; use letters, digits, '.', '_' and '-'.",
                             field="session")
        session = cls(root / name)
        packed = next((p for p in there if name_of(p) == name and p.suffix == ".zip"), None)
        if packed and not any(path.is_file() for path in session.path.rglob("*")):
            shutil.rmtree(session.path, ignore_errors=True)
            return unpack(packed, root, name=name)  # a run adds trials to an unpacked copy of a shipped session
        with _disk(session.path):
            (session.path / BLOBS).mkdir(parents=True, exist_ok=True)
        return session

    @classmethod
    def open(cls, path: Path) -> Session:
        """Open an existing session. Raises `BadRequest` when there is none."""
        if not is_session(path):
            raise BadRequest(f"{path} is not a session: it has no {TRIALS}. Sessions are folders below {sessions_root()}.",
                             field="session")
        return cls(path)

    @property
    def name(self) -> str:
        return name_of(self.path)

    @property
    def recorded(self) -> bool:
        """Whether the session is shipped with the project."""
        return self.name.startswith(RECORDED)

    def trials(self) -> list[Trial]:
        """All readable trials, oldest first. `unreadable` then holds one sentence for each line left out; the first time
        it is also a warning of the log, which without a handler goes to stderr."""
        self.unreadable = []
        found = []
        file = self.path / TRIALS
        try:
            for number, line in lines(self.path, TRIALS):
                try:
                    found.append(self.read_trial(line))
                except ValueError as error:
                    self.unreadable.append(f"{file}, line {number} was left out: {str(error).rstrip('.')}.")
        except OSError as error:
            self.unreadable.append(f"{file} cannot be read: {error.strerror}.")
        for sentence in self.unreadable:
            if sentence not in _warned:
                _warned.add(sentence)
                LOG.warning(sentence)
        return found

    def read_trial(self, line: str) -> Trial:
        """The trial of one line. Raises ValueError, which says what is wrong with it."""
        return self._trial(_data(line))

    def events(self) -> list[dict[str, Any]]:
        """All readable events, oldest first."""
        found = []
        with suppress(OSError):  # what cannot be read is said of the trials, which are in the same place
            for _, line in lines(self.path, EVENTS):
                with suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict):
                        found.append(event)
        return found

    def append(self, trial: Trial) -> None:
        """Add one finished trial. Raises `SessionFull` when the disk is full; nothing recorded before is lost."""
        data = trial.to_json()
        if len(_line(data)) >= _MOST_LINE_BYTES:
            self._shorten(data)
        self._append(TRIALS, _line(data))

    def event(self, event: str, **fields: Any) -> None:
        """Add one event with its time. Raises `SessionFull` when the disk is full."""
        self._append(EVENTS, json.dumps({"at": now(), "event": event, **fields}, ensure_ascii=False).encode())

    def put_blob(self, data: bytes) -> str:
        """Keep bytes under their SHA-256; returns it."""
        name = hashlib.sha256(data).hexdigest()
        target = self.path / BLOBS / name
        if not target.exists():
            temporary = target.with_name(f".{name}.{secrets.token_hex(4)}")   # threads may put the same bytes at once
            with _disk(self.path):
                temporary.parent.mkdir(parents=True, exist_ok=True)
                try:
                    temporary.write_bytes(data)
                    temporary.replace(target)
                finally:
                    temporary.unlink(missing_ok=True)
        return name

    def blob(self, name: str) -> bytes:
        """The bytes of a blob. Raises `BadRequest` if the session does not have it, or if it cannot be read."""
        try:
            found = blob(self.path, name)
        except OSError as error:
            raise BadRequest(f"The blob {name[:12]!r} of session {self.name} cannot be read: {error.strerror}.") from error
        if found is None:
            raise BadRequest(f"Session {self.name} has no blob {name[:12]!r}; it was packed without it, is a link, or was "
                             "changed since.")
        return found

    def pack(self, target: Path) -> Path:
        """One zip of the whole session that `unpack` opens elsewhere. Raises `BadRequest`, also for a link or a changed blob.
        """
        with _disk(target.parent):
            if self.path.suffix == ".zip":
                return Path(shutil.copyfile(self.path, target))
            temporary = target.with_name(f".{target.name}.{os.getpid()}")
            try:
                with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
                    for path in (self.path / TRIALS, self.path / EVENTS, *sorted((self.path / BLOBS).glob("[0-9a-f]*"))):
                        if is_link(path):
                            raise BadRequest(f"{path} is a link; a session is packed without links to other files.")
                        if path.parent.name == BLOBS:
                            self.blob(path.name)   # raises if it cannot be read, or was changed
                        if path.is_file():
                            archive.write(path, f"{self.name}/{path.relative_to(self.path)}")
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
        return target

    def _shorten(self, data: dict[str, Any]) -> None:
        """Moves parts that make the line too long into a blob."""
        more = {}
        for key in _MAY_LIE_ELSEWHERE:
            if key in data:
                more[key] = data.pop(key)
            data["blobs"] = {**data.get("blobs", {}), MORE: "0" * 64}
            if len(_line(data)) < _MOST_LINE_BYTES:
                break
        data["blobs"][MORE] = self.put_blob(_line(more))

    def _trial(self, data: dict[str, Any]) -> Trial:
        """The complete trial of a line, with the session that has its samples. Raises ValueError, which says what is wrong with
        the line."""
        modules = data.get("module_ms")
        for timing in (data.get("kernel_ms"), *(modules.values() if isinstance(modules, dict) else ())):
            if isinstance(timing, dict) and timing.get("samples_blob"):
                timing["samples_in"] = str(self.path)
        data["kept_in"] = str(self.path)
        trial = self._sharing(Trial.from_json(data))
        try:
            found = self.blob(trial.blobs[MORE]) if MORE in trial.blobs else None
        except BadRequest:  # what the line has is shown all the same
            found = None
        if found is None:
            return trial
        more = plain_json(found.decode("utf-8", "replace"))
        if not isinstance(more, dict):
            raise ValueError(f"its blob {trial.blobs[MORE][:12]} is not a part of a trial")
        return Trial.from_json({**data, **{k: more[k] for k in _MAY_LIE_ELSEWHERE if k in more}})

    def _sharing(self, trial: Trial) -> Trial:
        """The same trial, but parts that are equal to those of an earlier trial are the same object. 10 000 trials then take
        half of the memory, and comparing these parts is fast."""
        parts = {name: getattr(trial, name) for name in _OFTEN_EQUAL}
        return replace(trial, **{name: self._parts.setdefault((name, repr(part)), part) for name, part in parts.items()})

    def _append(self, name: str, line: bytes) -> None:
        """Append a line with one write, under a lock. An incomplete last line gets its line end first. If the write fails, its
        part of a line is removed."""
        if self.path.suffix == ".zip":
            raise BadRequest(f"{self.path} is packed: nothing can be added to it. Unpack it with 'pack --open {self.path}'.",
                             field="session")
        with _disk(self.path):
            fd = os.open(self.path / name, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                size = os.fstat(fd).st_size
                torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
                data = (b"\n" if torn else b"") + line + b"\n"
                try:
                    written = os.write(fd, data)
                    if written != len(data):
                        raise OSError(28, "No space left on device")
                except OSError:
                    os.ftruncate(fd, size)
                    raise
            finally:
                os.close(fd)


def unpack(archive_path: Path, root: Path | None = None, *, name: str = "") -> Session:
    """Open a packed session below `root`. Without `name` it has the name in the zip, which may not pretend that the session is
    shipped. Raises `BadRequest` when the zip holds anything but one whole session."""
    root = root or sessions_root()
    try:
        archive = zipfile.ZipFile(archive_path)
    except (zipfile.BadZipFile, OSError) as error:
        raise BadRequest(f"{Path(archive_path).name} is not a zip of a session: {error}.") from error
    with archive:
        names = [n for n in archive.namelist() if not n.endswith("/")]
        tops = {n.split("/", 1)[0] for n in names}
        allowed = re.compile(r"[^/]+/(trials\.jsonl|events\.jsonl|blobs/[0-9a-f]{64})\Z")
        if len(tops) != 1 or not all(allowed.match(n) for n in names) or not _NAME.match(next(iter(tops))):
            raise BadRequest(f"{Path(archive_path).name} holds something other than one session; "
                             f"make it with 'python -m workbench pack'.")
        if sum(i.file_size for i in archive.infolist()) > _MAX_PACKED_BYTES:
            raise BadRequest(f"{Path(archive_path).name} unpacks to over 1 GiB; that is not a session.")
        target = _new_folder(root, name or next(iter(tops)).removeprefix(RECORDED) or "session")
        try:
            with _disk(root):
                for entry in names:
                    data, sha256 = archive.read(entry), entry.rpartition("/")[2]
                    if f"/{BLOBS}/" in entry and hashlib.sha256(data).hexdigest() != sha256:
                        raise BadRequest(f"{Path(archive_path).name} cannot be unpacked: its blob {sha256[:12]} was changed.")
                    (target / entry.split("/", 1)[1]).write_bytes(data)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # torn, or with a password
            shutil.rmtree(target, ignore_errors=True)
            raise BadRequest(f"{Path(archive_path).name} cannot be unpacked: {str(error).rstrip('.')}. Pack the session again, "
                             f"without a password.") from error
        except (SessionFull, BadRequest):
            shutil.rmtree(target, ignore_errors=True)
            raise
    return Session(target)


def sessions_root() -> Path:
    """KERNEL_WORKBENCH_SESSIONS, else ./sessions."""
    return Path(os.environ.get(_FOLDER) or "sessions")


def list_sessions(root: Path | None = None) -> list[Path]:
    """The session folders, the newest first. After them come the recorded sessions (folders or zips), sorted by their newest
    trial, because the file times of a checkout are not those of the sessions. With the default folder, the sessions shipped
    with the package are listed too."""
    places = [root or sessions_root()]
    if root is None and not os.environ.get(_FOLDER):
        places = list(dict.fromkeys(p.resolve() for p in (*places, shipped("sessions"))))
    there = [p for place in places if place.is_dir() for p in sorted(place.glob("*"), key=_empty_ones_last)]
    found: dict[str, Path] = {}
    # Of sessions with the same name the first counts: the user's before the shipped one, a folder before a zip.
    for path in there:
        if name_of(path) not in found and is_session(path):
            found[name_of(path)] = path
    own = [p for p in found.values() if not p.name.startswith(RECORDED)]
    recorded = [p for p in found.values() if p.name.startswith(RECORDED)]
    return [*sorted(own, key=lambda p: -p.stat().st_mtime), *sorted(recorded, key=newest_trial, reverse=True)]


def _empty_ones_last(path: Path) -> int:
    """The order of sessions with the same name: a folder with trials, a zip, a folder without trials (left by an unpacking that
    was stopped)."""
    return 1 if path.suffix == ".zip" else 0 if (path / TRIALS).is_file() else 2


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@contextmanager
def _disk(place: Path) -> Iterator[None]:
    """Turns a failed write into one sentence: `SessionFull` if there is no space, `BadRequest` if the place cannot be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (28, 122):  # no space, over quota
            raise SessionFull(error.errno, f"The disk under {place} is full; free some space and resume the run. "
                              f"Everything recorded so far is kept") from error
        why = error.strerror or type(error).__name__
        raise BadRequest(f"{place} cannot be written: {why}. Set KERNEL_WORKBENCH_SESSIONS to "
                         f"another folder.", field="session") from error


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def _data(line: str) -> dict[str, Any]:
    """The JSON of a trial's line. Raises ValueError for an incomplete line, and for one of another version."""
    try:
        data = plain_json(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is incomplete or not a trial") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema is None:
        raise ValueError("it is incomplete or not a trial")
    if schema != SCHEMA:
        other = str(schema).startswith(_SCHEMA_FAMILY)
        raise ValueError(f"its schema {schema!r} {'was written by another version' if other else 'is unknown'}")
    return dict(data)


def _new_folder(root: Path, name: str) -> Path:
    """A new folder for a session: NAME, NAME-2, ... Two processes never get the same folder."""
    with _disk(root / name):
        root.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            folder = root / (name if number == 1 else f"{name}-{number}")
            with suppress(FileExistsError):
                folder.mkdir()
                (folder / BLOBS).mkdir()
                return folder
    raise AssertionError("unreachable: the count has no end")
