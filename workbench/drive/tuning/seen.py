"""Reads the candidates of a session while it grows: their trials, and the candidates that other processes have begun."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from ...core.trial import Trial
from ..sessions.files import EVENTS
from ..sessions.session import Session

BEGUN = "tune_begun"       # event with the candidates that a process is going to judge
_LOCK = ".tune.lock"
# Held, shared, by each process in its finals and around each build. So nothing is built while one of them is in its finals.
_FINALS, _BUILDS = ".tune.finals.lock", ".tune.builds.lock"
_WAIT_S = 60.0             # the longest time that finals wait for the builds of other processes
_POLL_S = 0.1
# Other names in an event are ignored, because a session may come from an untrusted source.
_WHO = re.compile(r"\.tune-\d+-[0-9a-f]+\.lock")


class Follower:
    """Reads the lines that were added to a file of the session since the last call, by any process. A line that is still being
    written is read the next time."""

    def __init__(self, session: Session, name: str) -> None:
        self._session, self._file, self._offset = session, session.path / name, 0

    def lines(self) -> list[str]:
        try:
            with self._file.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[:data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode("utf-8", "replace").splitlines()

    def trials(self) -> list[Trial]:
        """The new trials that can be read."""
        found = []
        for line in self.lines():
            with suppress(ValueError):
                found.append(self._session.read_trial(line))
        return found

    def events(self) -> list[dict[str, Any]]:
        found = []
        for line in self.lines():
            with suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    found.append(event)
        return found


class Claims:
    """Records which process judges which candidates. Use it as a context manager: at its end the claims of this process are no
    longer valid. The same holds if the process is killed, because Linux releases its lock. `of`: the subject of the tune; only
    claims with the same `of` count."""

    def __init__(self, session: Session, of: Mapping[str, Any] | None = None) -> None:
        self.of = dict(of or {})
        self.session, self.name = session, f".tune-{os.getpid()}-{secrets.token_hex(4)}.lock"
        self._events = Follower(session, EVENTS)
        self._begun: dict[str, str] = {}       # key -> name of the process
        self._own = _taken(session.path / self.name, fcntl.LOCK_EX)

    def close(self) -> None:
        (self.session.path / self.name).unlink(missing_ok=True)
        os.close(self._own)

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def exclusive(self) -> AbstractContextManager[None]:
        """Holds a lock, so that only one process at a time reads the claims and adds its own."""
        return locked(self.session.path / _LOCK)

    def of_others(self) -> set[str]:
        """The keys of candidates that another running process has claimed."""
        for event in self._events.events():
            same = all(event.get(name) == value for name, value in self.of.items())
            who = str(event.get("by"))
            if event.get("event") == BEGUN and same and isinstance(event.get("keys"), list) and _WHO.fullmatch(who):
                self._begun.update(dict.fromkeys(map(str, event["keys"]), who))
        alive = {who for who in set(self._begun.values()) - {self.name} if _held(self.session.path / who)}
        return {key for key, who in self._begun.items() if who in alive}

    @contextmanager
    def finals(self, ended: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Held during the finals. Other processes of the session begin no build meanwhile. It first waits for the builds that
        they have begun, at most a minute, and no longer if the run has `ended`."""
        with locked(self.session.path / _FINALS, fcntl.LOCK_SH):
            since = time.monotonic()
            while _busy(self.session.path / _BUILDS) and not ended() and time.monotonic() - since < _WAIT_S:
                time.sleep(_POLL_S)
            yield

    @contextmanager
    def building(self, ended: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Held around a build. It waits while a process of the session is in its finals, unless the run has `ended`."""
        while True:
            with locked(self.session.path / _BUILDS, fcntl.LOCK_SH):   # first this, because finals that begin now wait for it
                if not _busy(self.session.path / _FINALS) or ended():
                    yield
                    return
            time.sleep(_POLL_S)

    def claim(self, keys: list[str]) -> None:
        self.session.event(BEGUN, by=self.name, keys=keys, **self.of)


@contextmanager
def locked(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Holds the lock of a file, which is made if it is missing: alone, or together with others (`fcntl.LOCK_SH`)."""
    fd = _taken(path, how)
    try:
        yield
    finally:
        os.close(fd)


def tuned_now(session: Path) -> bool:
    """Whether a running process tunes in that session."""
    return session.is_dir() and any(_WHO.fullmatch(path.name) and _held(path) for path in session.glob(".tune-*.lock"))


def _taken(path: Path, how: int, *, create: int = os.O_CREAT) -> int:
    """The lock is held until this file descriptor is closed."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | create, 0o644)
    try:
        fcntl.flock(fd, how)
    except OSError:
        os.close(fd)
        raise
    return fd


def _busy(path: Path, *, create: int = os.O_CREAT) -> bool:
    """Whether a running process holds that lock."""
    try:
        os.close(_taken(path, fcntl.LOCK_EX | fcntl.LOCK_NB, create=create))
    except BlockingIOError:
        return True
    return False


def _held(path: Path) -> bool:
    """Whether a running process holds the lock of its claims. That of a killed process is removed."""
    try:
        if _busy(path, create=0):
            return True
    except OSError:
        return False
    path.unlink(missing_ok=True)
    return False
