"""Runs `main` as a program: handles a closed pipe, a full disk behind stdout, and signals."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TextIO

from ..core.errors import Terminated
from .exit_codes import BAD_REQUEST


def console(main: Callable[[Sequence[str]], int], words: Sequence[str]) -> int:
    """Run `main` as a program. If the reader of a pipe closes it, the work and the exit code do not change. Characters that the
    terminal cannot show are escaped. SIGTERM and SIGHUP stop the work as Ctrl-C does."""
    out = _Stream.of(sys.stdout)
    sys.stdout, sys.stderr = _text(out, sys.stdout), _text(_Stream.of(sys.stderr), sys.stderr)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup the signal is ignored
            signal.signal(number, _interrupt)
    code = main(words)
    if sys.stdout:
        sys.stdout.flush()
    if out and out.refused:
        print(f"stdout cannot be written: {out.refused}. Not all was printed.", file=sys.stderr)
        return code or BAD_REQUEST
    return code


class _Stream(io.FileIO):
    """After a write has failed, all further output is dropped. `refused` gives the reason, except for a closed pipe."""

    gone, refused = False, ""

    @classmethod
    def of(cls, stream: TextIO | None) -> _Stream | None:
        return cls(stream.fileno(), "w", closefd=False) if stream else None

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if not self.gone:
            try:
                return super().write(data) or 0
            except BrokenPipeError:
                self.gone = True
            except OSError as error:
                self.gone, self.refused = True, error.strerror or type(error).__name__
        return memoryview(data).nbytes


def _text(stream: _Stream | None, usual: TextIO | None) -> TextIO | None:
    return stream and io.TextIOWrapper(io.BufferedWriter(stream), encoding=usual.encoding, errors="backslashreplace",
                                       line_buffering=usual.line_buffering)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Terminated
