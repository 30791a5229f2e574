"""Check a foreign ModelNew file against a reference: build, values, gradients and time.

    python -m workbench check model_new.py --preset kb81
    python -m workbench check model_new.py --reference problem.py --json

A check runs foreign code on this machine. The file runs in a process of its own, with limits of time and memory and without
your environment variables. With bwrap it has no network and can write only to its scratch folder. Without bwrap, Landlock
limits where it can write. Without both, a check that root runs starts the file as another user. Else the file has no sandbox.
The last line of the report names the sandbox.

Each answer is shown on stderr as soon as it is known; the report follows on stdout. With --json stdout has one JSON object per
line. {"kind": "answer", ...} is one answer; a later answer with the same "key" replaces an earlier one. The last line is
{"kind": "report", ...}, the whole report ("check ... --json | tail -n 1"). After Ctrl-C the report holds the answers so far.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from ...core.answers import Answer, Question
from ...core.check_parts import SmallestCase
from ...core.errors import BadRequest
from ...drive.checking.check import MOST, Check, CheckRequest, size_of, workload_reference
from ...drive.checking.check_text import advice_lines, answer_line, log_text, not_asked_text, report_text, smallest_lines
from ...drive.machine.doctor import resolve_device
from ..arguments import add_workload, workload_from
from ..exit_codes import INTERRUPTED, NOTHING_RAN, RIGHT, WRONG

_LIMITS = {"memory_gib": "--memory", "call_s": "--time-limit", "build_s": "--build-limit"}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the file that defines ModelNew")
    add_workload(parser, required=False)
    parser.add_argument("--reference", type=Path, metavar="FILE",
                        help="file with Model, get_inputs and get_init_inputs; any module")
    parser.add_argument("--class-name", default="ModelNew", help="class of FILE to check (default ModelNew)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda:N; on cpu CUDA sources run on the emulator")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S",
                        help="seconds for one call, without those in which no processor is free (default 60)")
    parser.add_argument("--build-limit", type=float, default=300.0, metavar="S",
                        help="seconds for import and build (default 300)")
    parser.add_argument("--memory", type=float, default=16.0, metavar="GIB", help="memory of the file's process (default 16)")
    parser.add_argument("--effort", choices=("quick", "normal", "full"), default="normal",
                        help="how long to measure times (default normal)")
    parser.add_argument("--no-time", action="store_true", help="check without timing")
    parser.add_argument("--no-nvcc", action="store_true", help="on a machine without a GPU: do not compile with nvcc")
    parser.add_argument("--check-seed", type=int, metavar="N", help="repeat a check with the seed of its report")
    parser.add_argument("--log", action="store_true",
                        help="also print the details below the report: the whole logs, and the list of what is not asked")
    parser.add_argument("--json", action="store_true", help="print JSON lines: each answer when known, last the report")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 nothing is wrong; 1 something failed; 3 the file could not run on this machine; 130 stopped, the report has
    the answers so far."""
    request = request_from(args)
    if request.device == "cpu" and "__global__" in request.text:
        print("The kernels of this file run in the CPU emulator. The check may take some minutes; Ctrl-C ends it with the "
              "answers so far.", file=sys.stderr)
    check = Check(request).start()
    show = _Live(json_lines=args.json, terminal=sys.stderr.isatty())
    try:
        while not check.wait(0.2):
            show.new(check)
    except KeyboardInterrupt:
        check.stop()
        check.wait(20)  # so that its processes have time to end
        if check.report is None:
            raise
    finally:
        show.new(check)
        show.end()
    if check.report is None:
        raise BadRequest(check.problem)
    print(json.dumps({"kind": "report", **check.report.to_json()}) if args.json else report_text(check.report))
    if args.log and not args.json:
        print(*filter(None, (log_text(check.report), not_asked_text(check.report))), sep="\n")
    if check.report.stopped:
        print("Stopped. The report holds the answers so far.", file=sys.stderr)
        return INTERRUPTED
    if check.report.failed:
        return WRONG
    values = check.report.question("values")
    return RIGHT if values is not None and values.answer is Answer.PASSED else NOTHING_RAN


class _Live:
    """The output during a check. Answers are lines on stderr, or with `json_lines` JSON on stdout. In a terminal the current
    step is the last line, which is redrawn. In a file or a pipe each phase is one line, and all turns of one timing are one
    phase."""

    def __init__(self, *, json_lines: bool, terminal: bool) -> None:
        self._json, self._terminal = json_lines, terminal
        self._shown, self._said, self._phase = 0, 0, ""
        self._last: dict[str, Question] = {}
        self._smallest: SmallestCase | None = None

    def new(self, check: Check) -> None:
        lines = list[tuple[float, str]]()
        for seconds, text in check.said[self._said:]:
            self._said += 1
            phase = text.partition(", turn ")[0]
            if phase != self._phase and not self._terminal:
                self._phase = phase
                lines.append((seconds, phase))
        for seconds, q in check.answers[self._shown:]:
            lines += [(seconds, line) for line in self._lines(q)]
            if self._json:
                print(json.dumps({"kind": "answer", **q.to_json()}), flush=True)
            self._shown += 1  # set only now, so that after an interrupt an answer may be shown twice but none is lost
        if check.smallest is not None and check.smallest[1] != self._smallest:
            self._smallest = check.smallest[1]
            lines += [(check.smallest[0], line) for line in filter(None, smallest_lines(self._smallest))]
        begin = "\r\033[K" if self._terminal else ""
        for seconds, line in sorted(lines, key=lambda one: one[0]):
            print(f"{begin}{seconds:6.1f} s  {line}", file=sys.stderr, flush=True)
        if self._terminal and not check.done:
            now = f"{check.elapsed_s:6.1f} s  {check.text} ..."[:shutil.get_terminal_size().columns - 1]
            print(f"{begin}{now}", end="", file=sys.stderr, flush=True)

    def _lines(self, q: Question) -> list[str]:
        """What is new: of an answer that was shown before, only another advice."""
        before, self._last[q.key] = self._last.get(q.key), q
        if before is None or answer_line(before) != answer_line(q):
            return [answer_line(q)]
        return advice_lines(q) if before.advice != q.advice else []

    def end(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def request_from(args: argparse.Namespace) -> CheckRequest:
    """The request for the arguments. Raises `BadRequest` for files that do not exist, for more than one reference, and for
    invalid limits."""
    for name, value in zip(_LIMITS, (args.memory, args.time_limit, args.build_limit), strict=True):
        if not 0 < value <= MOST[name]:  # false for NaN, too
            raise BadRequest(f"{_LIMITS[name]} is {value:g}; give a number above 0, at most {MOST[name]}.", field=name)
    device = resolve_device(args.device)
    if bool(args.reference) + bool(args.preset) + bool(args.layer) != 1:
        raise BadRequest("Give one reference: --preset kb74, --layer \"ConvTranspose2d(...)\" or --reference FILE.")
    text = _read(args.file)
    if args.reference:
        reference, name, size = _read(args.reference), args.reference.name, ""
    else:
        workload = workload_from(args, device)
        args.preset = workload.preset or None  # the preset with its size, for the command that repeats the check
        reference, name = workload_reference(workload)
        size = size_of(workload)
    return CheckRequest(text, reference, device, name=args.file.name, reference_name=name, size=size,
                        class_name=args.class_name, memory_gib=args.memory, call_s=args.time_limit,
                        build_s=args.build_limit, time=not args.no_time, nvcc=not args.no_nvcc, effort=args.effort,
                        seed=args.check_seed, command=tuple(_words(args, device)))


def _words(args: argparse.Namespace, device: str) -> list[str]:
    words = [str(args.file), "--device", device]
    for name in ("preset", "layer", "input_size", "batch", "reference"):
        value = getattr(args, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    for name, usual in (("dtype", "float32"), ("memory_format", "contiguous"), ("class_name", "ModelNew")):
        if getattr(args, name) != usual:
            words += [f"--{name.replace('_', '-')}", getattr(args, name)]
    return words


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadRequest(f"{path} does not exist; name an existing file.") from error
    except IsADirectoryError as error:
        raise BadRequest(f"{path} is a folder; name a file.") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"{path} is not UTF-8 text; name a Python file.") from error
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}.") from error
