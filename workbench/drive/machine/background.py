"""`Background`: work in its own thread, which a user interface starts, watches and stops."""

from __future__ import annotations

import threading
import time
from typing import Self


class Background:
    """A subclass does the work in `_work`. `said`: all texts, each with its seconds from the start. `problem`: why it failed.
    """

    def __init__(self, name: str) -> None:
        self.said: list[tuple[float, str]] = []
        self.problem = ""
        self._begun = time.monotonic()
        self._stopped = threading.Event()
        self._ended = threading.Event()  # after a join that was ended by KeyboardInterrupt, Python reports the thread as ended
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)

    @property
    def text(self) -> str:
        """The current step."""
        return self.said[-1][1] if self.said else "starting"

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def start(self) -> Self:
        self._thread.start()
        return self

    def wait(self, timeout: float | None = None) -> bool:
        return self._ended.wait(timeout)

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End all its processes now."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._ended.set()

    def _work(self) -> None:
        raise NotImplementedError

    def _say(self, text: str) -> None:
        self.said.append((self.elapsed_s, text))
