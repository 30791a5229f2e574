"""Records which instructions of the foreign file run, inside its process, and which lines of the CUDA and C++ that the
emulator compiles. `reached.py` finds what did not run.

From Python 3.12 on the interpreter tells of each instruction once (sys.monitoring), in all threads. Before that a trace
function is called at each instruction, in the threads of Python: autograd's own thread on a GPU is not seen.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ..foreign.replies import NativeLine

FILE = "<model file>"
_TOOL = 3            # a free number of sys.monitoring: 0 to 2 and 5 have a fixed use
_MOST = 1 << 20      # events of a code object; a trace function makes long loops in Python slow


def codes_of(code: CodeType) -> list[CodeType]:
    """A code object and those inside it, in a fixed order."""
    return [code, *(inner for one in code.co_consts if isinstance(one, CodeType) for inner in codes_of(one))]


def as_text(offsets: set[int]) -> str:
    """The offsets of the instructions that ran, as a hexadecimal number with a bit for each."""
    return f"{sum(1 << (offset // 2) for offset in offsets):x}"


# Flags of g++ by which a library counts how often each of the file's own lines runs.
COUNTED = ("--coverage", "-fprofile-filter-files=_sources")
WRITES_COUNTS = """extern "C" void __gcov_dump();
extern "C" void __gcov_reset();
extern "C" void cuda_on_cpu_write_counts() { __gcov_dump(), __gcov_reset(); }"""
_MOST_LINES = 1 << 14


class Native:
    """The libraries that the emulator has built from sources of load_inline. gcov tells what ran of them."""

    def __init__(self) -> None:
        self._libraries: list[tuple[int, ctypes.CDLL]] = []   # with the number of the call

    def add(self, call: int, library: ctypes.CDLL) -> None:
        self._libraries.append((call, library))

    @property
    def lines(self) -> tuple[NativeLine, ...] | None:
        """What has not run since the libraries were built, also in an earlier process. None if this is not known: on a GPU, or
        without gcov."""
        found: list[NativeLine] = []
        for call, library in self._libraries:
            try:
                library.cuda_on_cpu_write_counts()
                notes = Path(library._name).with_name("unit.gcno")
                told = subprocess.run(["gcov", "--branch-probabilities", "--json-format", "--stdout", notes.name],
                                      cwd=notes.parent, capture_output=True, text=True, check=True, timeout=60).stdout
                files = [f for f in json.loads(told)["files"] if f["file"] in ("cuda_sources", "cpp_sources")]
                if not files:
                    return None
                for file in files:
                    found += [NativeLine(call, file["file"], line, half) for line, half in _not_run(file["lines"])]
            except (OSError, ValueError, KeyError, TypeError, AttributeError, subprocess.SubprocessError):
                return None
        return tuple(found[:_MOST_LINES]) if self._libraries else None


def _not_run(told: list[dict[str, Any]]) -> Iterator[tuple[int, bool]]:
    """Lines that did not run, and (True) lines of which a branch did not. An instance of a template has lines of its own; what
    ran in one of them has run."""
    counts: dict[int, int] = {}
    branches: dict[int, dict[int, int]] = {}
    for one in told:
        line = one["line_number"]
        counts[line] = counts.get(line, 0) + one["count"]
        of_line = branches.setdefault(line, {})
        for place, branch in enumerate(b for b in one["branches"] if not b["throw"]):
            of_line[place] = of_line.get(place, 0) + branch["count"]
    for line in sorted(counts):
        if not counts[line] or 0 in branches[line].values():
            yield line, bool(counts[line])


class Recorder:
    """`begin` before the file runs."""

    def __init__(self) -> None:
        self._codes: list[CodeType] = []
        self._ran: dict[int, set[int]] = {}      # id of the code object -> offsets
        self._left: dict[int, int] = {}          # how many events are still recorded
        self._on = False

    def begin(self, code: CodeType) -> None:
        self._codes = codes_of(code)
        self._ran = {id(one): set() for one in self._codes}
        self._left = {id(one): _MOST for one in self._codes}
        if sys.version_info >= (3, 12):
            sys.monitoring.use_tool_id(_TOOL, "lines")
            sys.monitoring.register_callback(_TOOL, sys.monitoring.events.INSTRUCTION, self._instruction)
        self.switch(on=True)

    def switch(self, *, on: bool) -> None:
        """Off while calls are timed, or while torch.compile reads the code."""
        if on is self._on or not self._codes:
            return
        self._on = on
        if sys.version_info >= (3, 12):
            for one in self._codes:
                sys.monitoring.set_local_events(_TOOL, one, sys.monitoring.events.INSTRUCTION if on else 0)
        else:
            sys.settrace(self._call if on else None)
            threading.settrace(self._call if on else None)

    @property
    def record(self) -> tuple[str, ...]:
        """For each code object what ran; nothing if there is no whole record."""
        whole = all(left > 0 for left in self._left.values())
        return tuple(as_text(self._ran[id(one)]) for one in self._codes) if whole else ()

    def _instruction(self, code: CodeType, offset: int) -> Any:
        self._ran[id(code)].add(offset)
        return sys.monitoring.DISABLE  # type: ignore[attr-defined]  # from Python 3.12 on

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self._left.get(id(frame.f_code), 0) <= 0:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._local

    def _local(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            place = id(frame.f_code)
            self._ran[place].add(frame.f_lasti)
            self._left[place] -= 1
            if self._left[place] <= 0:
                frame.f_trace = None
                return None
        return self._local
