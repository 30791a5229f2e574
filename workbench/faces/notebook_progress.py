"""How far a run or a tune of the notebook is: lines that are drawn again."""

from __future__ import annotations

import html
import shutil
import sys
import threading
import time
from typing import Any

from ..drive.running.request import Run


class ProgressBar:
    """The progress of a tune in one updating line, in a notebook or a terminal; elsewhere one line for each new best."""

    def __init__(self, trials: int | None, seconds: float | None) -> None:
        self._trials, self._seconds, self._begun, self._said = trials, seconds, time.monotonic(), "starting"
        self._handle: Any = None
        self._drawn = _in_notebook() or sys.stderr.isatty()
        self._thread, self._done = threading.Thread(), 0

    def say(self, text: str) -> None:
        """A message of the tune: a new best, or its current step."""
        self._said = text.partition("] ")[2] if text.startswith("[") else text
        if not self._drawn:
            print(text, file=sys.stderr, flush=True)

    def follow(self, run: Run) -> None:
        """Draw until the run ends."""
        def draw() -> None:
            while not run.wait(0.3):
                self._draw(run.done_rows)
            self._draw(run.done_rows)
        if self._drawn:
            self._thread = threading.Thread(target=draw, daemon=True)
            self._thread.start()

    def close(self) -> None:
        if self._thread.ident is not None:
            self._thread.join(2)
            print(end="" if _in_notebook() else "\n", file=sys.stderr, flush=True)

    def _draw(self, done: int) -> None:
        """ "[#####     ] 12 of 40 judged, 8 s: forward: 0.265 ms with naive_gather ieee"; without an end there is no bar."""
        done, spent = min(done, self._trials or done), time.monotonic() - self._begun   # the finals have rows, too
        share = done / self._trials if self._trials else min(1.0, spent / self._seconds) if self._seconds else None
        text = (f"{done}{f' of {self._trials}' if self._trials else ''} judged, "
                f"{spent:.0f}{f' of {self._seconds:.0f}' if self._seconds else ''} s: {self._said}")
        if _in_notebook():
            value = "" if share is None else f' value="{share:.3f}"'
            self._handle = _show(self._handle, f"<progress max=1{value}></progress> <code>{html.escape(text)}</code>")
            return
        bar = "" if share is None else f"[{'#' * round(20 * share):<20}] "
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{(bar + text)[:width]:<{width}}", end="", file=sys.stderr, flush=True)


class ProgressLine:
    """One updating line: IPython's display in a notebook, otherwise a line on stderr for each change."""

    def __init__(self) -> None:
        self._last = ""
        self._handle: Any = None

    def __call__(self, run: Run) -> None:
        text = f"{run.done_rows} of {len(run.rows)} candidates: {run.message}"
        if text == self._last:
            return
        self._last = text
        if _in_notebook():
            self._handle = _show(self._handle, f"<code>{html.escape(text)}</code>")
        else:
            print(text, file=sys.stderr, flush=True)


def _in_notebook() -> bool:
    return bool("IPython" in sys.modules and sys.modules["IPython"].get_ipython())


def _show(handle: Any, markup: str) -> Any:
    """Display it, in place of what `handle` displays if there is a handle. Returns the handle."""
    from IPython.display import HTML, display
    if handle is None:
        return display(HTML(markup), display_id=True)
    handle.update(HTML(markup))
    return handle
