"""Runs `main` as a program: handles a closed pipe, a full disk behind stdout, and signals."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TextIO

from .exit_codes import BAD_REQUEST


def console(main: Callable[[Sequence[str]], int], words: Sequence[str]) -> int:
    """`main` as a program: a reader that closes its end changes neither the work nor the exit code, letters that the
    terminal has not are escaped, and SIGTERM and SIGHUP stop the work as Ctrl-C does."""
    out = _Stream.of(sys.stdout)
    sys.stdout, sys.stderr = _text(out, sys.stdout), _text(_Stream.of(sys.stderr), sys.stderr)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, _interrupt)
    code = main(words)
    if sys.stdout:
        sys.stdout.flush()
    if out and out.refused:
        print(f"stdout cannot be written: {out.refused}. Not all was printed.", file=sys.stderr)
        return code or BAD_REQUEST
    return code


class _Stream(io.FileIO):
    """Once it is refused, the rest is dropped; `refused` says why, unless it was only that nobody reads any more."""

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
    raise KeyboardInterrupt
