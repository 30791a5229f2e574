"""Find the fastest right kernel of a layer on this machine, and keep it.

    python -m workbench tune kb74 --effort quick                     about a minute, all three directions
    python -m workbench tune kb74 --direction forward --trials 200
    python -m workbench tune --layer "ConvTranspose2d(64, 32, 4, stride=2)" --input-size 56 --minutes 30
    python -m workbench tune --resume NAME                           continue, also after it was killed
    python -m workbench tune kb74 --explain                          what would be searched, and why the rest is not
    python -m workbench tune --suite models --precision tf32,bf16 --minutes 480
    python -m workbench tune kb74 --cluster tcp://HOST:8786          on the GPUs of a cluster

A search proposes candidates of all variants that serve the layer. Some are built while others are judged and timed, on every
free GPU of the same kind. Then the best are timed alternately, a fixed rule breaks ties, and the winner is judged again on new
inputs and odd sizes. A winner that a GPU timed is kept: export --best, run --best and patch use it.

The first Ctrl-C ends the search: the best so far are timed again, and the winner is kept. The second Ctrl-C stops at once.

On the CPU the kernels are emulated. Such times do not predict a GPU, and nothing is kept.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ...core.errors import BadRequest
from ...core.layer import DIRECTIONS
from ...core.presets import SUITES, default_size
from ...core.trial import Status
from ...drive.machine.doctor import resolve_device
from ...drive.running.runner import Runner
from ...drive.sessions.session import Session
from ...drive.tuning import text
from ...drive.tuning.batch import BatchRequest, batch
from ...drive.tuning.cluster import Joined, places_of
from ...drive.tuning.feed import EFFORTS, TuneRequest
from ...drive.tuning.tune import TuneResult, asked, explain, limited, tune
from .. import exit_codes
from ..arguments import add_workload, say_broken, session_from, workload_from


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME[/SIZE]", help="a named layer, as --preset")
    add_workload(parser, required=False)
    parser.add_argument("--small", action="store_true", help="the small size of a named layer")
    parser.add_argument("--direction", action="append", choices=DIRECTIONS, help="may be given several times (default: all)")
    parser.add_argument("--precision", default="", help="class to tune in: tf32, ieee, fp16 or bf16 (default: the precision "
                        "that PyTorch uses by default); with --suite a comma-separated list (default: tf32)")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME",
                        help="search only this variant; may be given several times (default: all)")
    parser.add_argument("--templates", type=Path, metavar="DIR", help="use the templates of this folder, not the shipped ones")
    parser.add_argument("--device", default="auto", help="cpu: the emulator; cuda:N: only this GPU; auto (default): every "
                                                         "free GPU of the same kind as the first")
    parser.add_argument("--cluster", default="", metavar="ADDRESS",
                        help="use the GPUs of a dask.distributed cluster; ADDRESS is the address of its scheduler")
    parser.add_argument("--effort", choices=tuple(EFFORTS),
                        help="quick: a minute; normal: ten minutes (default); full: until every candidate has been tried, at "
                             "most 20 000 per direction")
    parser.add_argument("--trials", type=int, metavar="N", help="stop after N candidates; replaces the limit of --effort")
    parser.add_argument("--minutes", type=float, metavar="M", help="stop after M minutes, earlier runs in this session "
                        "included; replaces the limit of --effort")
    parser.add_argument("--session", metavar="NAME", help="add to this session (default: a new one)")
    parser.add_argument("--resume", metavar="NAME", help="continue the tune of this session; --trials, --minutes or --effort "
                        "set a new limit")
    parser.add_argument("--suite", choices=tuple(SUITES), help="share --minutes or --trials over all layers of a suite")
    parser.add_argument("--explain", action="store_true", help="print what would be searched, and stop")
    parser.add_argument("--no-baselines", action="store_true", help="do not measure PyTorch")
    parser.add_argument("--run-timeout", type=float, default=60.0, metavar="S", help="seconds for one run (default 60)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON; progress goes to stderr")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 there is a winner in every direction, 1 a direction has none, 3 nothing could run, 130 stopped (the best so
    far is printed)."""
    if args.suite:
        return _suite(args)
    known = session_from(args.resume) if args.resume else None
    with Runner() as runner, places_of(args.cluster, runner.workers, known, args.device) as cluster:
        request, session = _asked(args, cluster.device)
        if args.explain:
            told = explain(request, runner, *cluster.places[:1])
            print(json.dumps({d: e.to_json() for d, e in told.items()}) if args.json else text.explained(told))
            return exit_codes.RIGHT
        if session is None:
            session = Session.create(name=args.session)
        say = partial(print, file=sys.stderr, flush=True)
        say(text.planned(request, emulated=(cluster.device or resolve_device(request.device)) == "cpu"))
        say(f"Session {session.name}")
        for note in cluster.notes:
            say(note)
        result = tune(request, session, runner, on_line=say, places=cluster.places, finish=threading.Event(),
                      on_space=lambda told: say(f"{text.explained(told, short=True)}\n--explain lists the variants, and what "
                                                "removes configs."))
    return _told(result, session, args, cluster)


def _suite(args: argparse.Namespace) -> int:
    if args.name or args.preset or args.layer or args.resume or args.explain:
        raise BadRequest("--suite names the layers; leave out the layer, --resume and --explain. To continue a suite, give the "
                         "same --session.", field="suite")
    with Runner() as runner, places_of(args.cluster, runner.workers, device=args.device) as cluster:
        return _all_of(args, runner, cluster)


def _all_of(args: argparse.Namespace, runner: Runner, cluster: Joined) -> int:
    """Tune the layers of the suite."""
    device = cluster.device or resolve_device(args.device)
    size = "small" if args.small else default_size(device)
    first = next(iter(SUITES[args.suite].values())).workload(size, "float32")
    each = TuneRequest(first, tuple(dict.fromkeys(args.direction or DIRECTIONS)), "", args.device, args.effort or "normal",
                       variants=tuple(args.variant), templates=args.templates, seed=args.seed,
                       baselines=not args.no_baselines, run_timeout_s=args.run_timeout)
    request = BatchRequest(args.suite, each, tuple(args.precision.split(",")) if args.precision else ("tf32",), args.minutes,
                           args.trials, size)
    name = args.session or Session.create().name
    say = partial(print, file=sys.stderr, flush=True)
    say(f"Session {name}, with a session for each layer")
    for note in cluster.notes:
        say(note)
    jobs = batch(request, name, runner, on_line=say, places=cluster.places)
    for job in jobs:
        print(f"{job.name}, session {job.session}" if job.result else f"{job.name} was not tuned: the limit was reached "
                                                                      "before.")
        if job.result:
            print(text.result(job.result))
            if job.result.state == "failed":
                print(job.result.message, file=sys.stderr)
    return suite_code([job.result for job in jobs])


def _told(result: TuneResult, session: Session, args: argparse.Namespace, cluster: Joined) -> int:
    print(json.dumps(text.as_json(result, session) | {"notes": cluster.notes}) if args.json else text.result(result))
    if not args.json:
        for note in cluster.notes:
            print(note)
        print(f"Session {session.path}")
    if result.state == "failed":
        print(result.message, file=sys.stderr)
    if result.state != "done" or result.early:
        words = ["python", "-m", "workbench", "tune", "--resume", session.name]
        words += ["--cluster", args.cluster] if args.cluster else []
        stopped = f"Stopped. Session {session.name} keeps the finished trials. " if result.state == "stopped" else ""
        stopped = "The search was ended before its limit. " if result.state == "done" else stopped
        print(f"{stopped}To continue, run: {shlex.join(words)}", file=sys.stderr)
    return exit_code(result)


def exit_code(result: TuneResult) -> int:
    if result.state != "done":
        return exit_codes.INTERRUPTED if result.state == "stopped" else exit_codes.NOTHING_RAN
    if result.failures and all(d in result.winners for d in result.failures):
        return exit_codes.RIGHT
    if result.winners:
        return exit_codes.WRONG
    return exit_codes.of([s for counts in result.failures.values() for s in counts] or [Status.SKIPPED])


def suite_code(results: Sequence[TuneResult | None]) -> int:
    """The exit code of a suite, as for one layer. None: a layer for which no time was left."""
    codes = {exit_code(result) if result else exit_codes.NOTHING_RAN for result in results}
    if exit_codes.INTERRUPTED in codes or len(codes) == 1:
        return exit_codes.INTERRUPTED if exit_codes.INTERRUPTED in codes else codes.pop()
    return exit_codes.WRONG


def _asked(args: argparse.Namespace, device: str) -> tuple[TuneRequest, Session | None]:
    """The request, and the session of a tune to continue. `device`: that of the cluster, if the tune runs on one."""
    if args.resume:
        if args.name or args.preset or args.layer or args.session or args.suite:
            raise BadRequest("--resume takes layer and directions from the session; leave out the layer, --session and "
                             "--suite.", field="resume")
        session = session_from(args.resume)
        return limited(asked(session), args.trials, args.minutes, args.effort or ""), session
    if args.name is not None:
        if args.preset is not None or args.layer is not None:
            raise BadRequest("Several layers are given; give only one of NAME, --preset and --layer.", field="preset")
        args.preset = args.name
    if args.preset is None and args.layer is None:
        raise BadRequest("Give a layer: NAME, --preset, --layer, --resume or --suite.", field="preset")
    if args.small:
        if args.preset is None:
            raise BadRequest("--small needs a named layer; give NAME or --preset.", field="small")
        args.preset = f"{args.preset.partition('/small')[0]}/small"
    device = device or resolve_device(args.device)   # a wrong name is refused at once
    say_broken(args.templates)
    return TuneRequest(
        workload_from(args, device), tuple(dict.fromkeys(args.direction or DIRECTIONS)), args.precision, args.device,
        args.effort or "normal", args.trials, args.minutes, tuple(args.variant), args.templates, args.seed,
        not args.no_baselines, args.run_timeout), None
