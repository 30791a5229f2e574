"""Build, judge and time candidates on one layer, and write a session.

    python -m workbench run --preset kb74/small --direction forward
    python -m workbench run --layer "ConvTranspose2d(32, 64, 3, stride=2)" --input-size 32,48 --variant naive_gather \\
        --set naive_gather.BLOCK=64,128

A kernel that you have edited is a fork. The session keeps its text:

    python -m workbench show NAME --trial ID --source > edited.cu
    python -m workbench run --source edited.cu --fork-of NAME:ID
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence

from ...core.candidate import Candidate
from ...core.errors import BadRequest
from ...core.layer import Workload
from ...core.precision import CLASSES_OF
from ...core.trial import Status
from ...drive.exporting.best_recipe import arch_of, best_known, origin
from ...drive.machine.doctor import resolve_device
from ...drive.reporting import tables
from ...drive.running.candidate_selection import candidates, parse_settings
from ...drive.running.request import EFFORTS, STRENGTHS, Run, RunRequest
from ...drive.running.runner import Runner
from ...drive.sessions.session import Session
from .. import exit_codes
from ..arguments import (
    add_candidates,
    add_workload,
    directions_from,
    fork_candidates,
    say_broken,
    source_from,
    trial_from,
    workload_from,
)

_MOST_SILENT_S = 10.0


def add(parser: argparse.ArgumentParser) -> None:
    add_workload(parser, required=False)
    add_candidates(parser)
    parser.add_argument("--set", action="append", default=[], metavar="[VARIANT.]TUNABLE=V[,V]",
                        help="value of a tunable of this variant, or of all that have it; several values make several "
                             "candidates")
    parser.add_argument("--source", metavar="FILE", help="judge this file: an edited template or an edited source of a trial "
                                                         "('show --trial ID --source'). Or SESSION:TRIAL: judge the source "
                                                         "of that trial")
    parser.add_argument("--fork-of", default="", metavar="CANDIDATE", help="with --source: the original of FILE before the "
                                                                           "edit, SESSION:TRIAL or a variant (default: the "
                                                                           "variant that FILE names)")
    parser.add_argument("--best", action="store_true", help="use the best known variants and configs of this layer")
    parser.add_argument("--precision", default="", help="ieee, tf32, tf32x3, fp16, bf16 or fp64")
    parser.add_argument("--form", choices=("constant", "runtime"), default="constant",
                        help="the layer's parameters are constants in the source, or arguments")
    parser.add_argument("--flag", action="append", default=[], metavar="FLAG", help="compile flag for nvcc: "
                        "--flag=--use_fast_math")
    parser.add_argument("--device", default="auto", help="auto, cpu (the emulator) or cuda:N")
    parser.add_argument("--effort", choices=EFFORTS, default="normal", help="how long to measure times (default normal)")
    parser.add_argument("--session", metavar="NAME", help="add to this session (default: a new one)")
    parser.add_argument("--resume", action="store_true", help="run only the candidates that the session lacks")
    parser.add_argument("--baselines", choices=STRENGTHS, default="quick",
                        help="PyTorch modes to measure; quick: TF32 on and off, at stride 1 also as a convolution; "
                             "strong: all modes and other formulations of the layer; default: only PyTorch with its default "
                             "settings")
    parser.add_argument("--max-autotune", action="store_true", help="measure strong baselines also by torch.compile with "
                                                                    "max-autotune")
    parser.add_argument("--no-baselines", action="store_true", help="do not measure PyTorch")
    parser.add_argument("--baselines-only", action="store_true", help="measure only PyTorch")
    parser.add_argument("--modules", action="store_true", help="also judge the best candidates as one ModelNew (module_ms)")
    parser.add_argument("--no-time", action="store_true", help="check without timing")
    parser.add_argument("--hot-l2", action="store_true", help="time with a warm L2 cache")
    parser.add_argument("--sanitize", choices=("address",), default="", help="run emulated kernels under AddressSanitizer")
    parser.add_argument("--build-timeout", type=float, default=300.0, metavar="S",
                        help="seconds for one build (default 300)")
    parser.add_argument("--run-timeout", type=float, default=60.0, metavar="S", help="seconds for one run (default 60)")
    parser.add_argument("--json", action="store_true", help="print the trials as JSON lines")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 all are right, 1 something is not right, 3 nothing could run."""
    if args.resume and not args.session:
        raise BadRequest("--resume needs --session with the session to resume.", field="session")
    if args.no_baselines and args.baselines_only:
        raise BadRequest("--no-baselines with --baselines-only measures nothing; give only one of them.", field="baselines")
    for name, seconds in (("build", args.build_timeout), ("run", args.run_timeout)):
        if not seconds > 0:
            raise BadRequest(f"--{name}-timeout is {seconds:g}; give seconds above 0.", field=f"{name}_timeout")
    device = resolve_device(args.device)
    directions = directions_from(args)
    if args.source:
        workload, chosen = _forks(args, device)
        directions = tuple(dict.fromkeys(c.direction for c in chosen))
    elif args.fork_of or args.preset is args.layer is None:
        raise BadRequest("--fork-of needs --source, the edited file." if args.fork_of else
                         "Give --preset or --layer: the layer to run on.", field="source" if args.fork_of else "layer")
    else:
        workload = workload_from(args, device)
        chosen = () if args.baselines_only else _best(args, workload) if args.best else tuple(candidates(
            workload, directions=directions, variants=args.variant, settings=parse_settings(args.set),
            precision=args.precision, form=args.form, compile_flags=args.flag, templates=args.templates))
    if not (args.baselines_only or args.best or args.source):
        say_broken(args.templates)
    request = RunRequest(
        workload, chosen, device=device, directions=directions, baselines=not args.no_baselines,
        strength=args.baselines, classes=_classes(chosen), max_autotune=args.max_autotune, modules=args.modules,
        effort=args.effort, time=not args.no_time, cold_l2=not args.hot_l2,
        sanitize=args.sanitize, build_timeout_s=args.build_timeout, run_timeout_s=args.run_timeout)
    session = Session.create(name=args.session)
    progress = _Progress(quiet=args.json, verbose=args.verbose)
    with Runner() as runner:
        try:
            done = runner.run(request, session, resume=args.resume, on_change=progress.show)
        except KeyboardInterrupt:
            _say_stopped(session, runner.runs)
            return exit_codes.INTERRUPTED
    if done.state == "failed":
        print(done.message, file=sys.stderr)
        return exit_codes.NOTHING_RAN
    if args.json:
        for trial in done.trials:
            print(json.dumps(trial.to_json()))
    else:
        print(tables.text_table(session.trials() if args.resume else done.trials))
        print(f"Session {session.path}")
    all_of_it = [*done.kept, *done.trials]
    if args.resume and not all_of_it:  # the result of baselines that the session had already
        return exit_codes.RIGHT
    return exit_codes.of(t.status for t in [t for t in all_of_it if t.kind in ("candidate", "module")] or all_of_it)


def _forks(args: argparse.Namespace, device: str) -> tuple[Workload, tuple[Candidate, ...]]:
    """The candidates of --source. Without --preset or --layer, the layer is that of the trial."""
    if args.variant or args.best or args.modules or args.baselines_only:
        raise BadRequest("--source is the kernel to run; leave out --variant, --best, --modules and --baselines-only.",
                         field="source")
    given, workload = source_from(args.source), None if args.preset is args.layer is None else workload_from(args, device)
    if isinstance(given, Candidate):
        return trial_from(args.source)[0].workload, (given,)
    workload, found = fork_candidates(given, args.fork_of, workload, {
        "directions": args.direction, "settings": parse_settings(args.set), "precision": args.precision, "form": args.form,
        "compile_flags": args.flag, "templates": args.templates})
    return workload, tuple(found)


def _classes(chosen: Sequence[Candidate]) -> tuple[str, ...]:
    """The classes of float32 that the candidates compete in; both without candidates."""
    of_float32 = CLASSES_OF["float32"]
    return tuple(c for c in of_float32 if any((one.precision == "tf32") == (c == "tf32") for one in chosen)) or of_float32


def _say_stopped(session: Session, runs: list[Run]) -> None:
    """One line on stderr: how many candidates were judged, the session that keeps them, and the command to continue."""
    done = f" after {sum(bool(r.trial_id) for r in runs[-1].rows)} of {len(runs[-1].rows)} candidates" if runs else ""
    words = sys.argv[2:] if sys.argv[1:2] == ["run"] else []
    more = [] if any(w.partition("=")[0] == "--session" for w in words) else ["--session", session.name]
    more += [] if "--resume" in words else ["--resume"]
    print(f"Stopped{done}. Session {session.name} keeps the finished trials. To continue, run: "
          f"{shlex.join(['python', '-m', 'workbench', 'run', *words, *more])}", file=sys.stderr)


def _best(args: argparse.Namespace, workload: Workload) -> tuple[Candidate, ...]:
    """The best known candidates. Their origin is printed on stderr."""
    if args.variant or args.set or args.templates or args.flag or args.form != "constant":
        raise BadRequest("--best chooses variants and configs itself; leave out --variant, --set, --form, --flag and "
                         "--templates.")
    entries = best_known(workload, arch_of(args.device), precision=args.precision, directions=directions_from(args))
    for entry in entries.values():
        print(origin(entry), file=sys.stderr)
    return tuple(entry.candidate(workload) for entry in entries.values())


class _Progress:
    """Prints a line on stderr for each candidate that is done. Of one that takes long also what is done with it; with `verbose`
    each change of state."""

    def __init__(self, *, quiet: bool, verbose: bool) -> None:
        self._quiet, self._verbose = quiet, verbose
        self._said: dict[int, str] = {}
        self._message, self._at = "", time.monotonic()

    def show(self, run: Run) -> None:
        if self._quiet:
            return
        if run.state == "waiting" and run.message.startswith("waits") and run.message != self._message:
            self._message = run.message
            print(run.message, file=sys.stderr, flush=True)
        for number, row in enumerate(run.rows):
            state = str(row.status) if row.phase == "done" and row.status else row.phase
            if state == "queued" or self._said.get(number) == state:
                continue
            self._said[number] = state
            if row.phase == "done" or self._verbose or time.monotonic() - self._at > _MOST_SILENT_S:
                done = sum(run.rows[n].phase == "done" for n in self._said)   # one by one, also if several were skipped at once
                text = f"  {row.text}" if self._verbose or row.status is not Status.SKIPPED else ""   # the table has the reason
                print(f"[{done}/{len(run.rows)}] {row.label}: {state}{text}", file=sys.stderr, flush=True)
                self._at = time.monotonic()
