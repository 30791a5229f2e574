"""List the trials of a session, verdict first. Without a name list all sessions."""

from __future__ import annotations

import argparse
import json
import sys

from ...core.errors import BadRequest
from ...core.plain_text import plain
from ...drive.reporting import tables
from ...drive.reporting.main_kernel import arch_of, main_kernel
from ...drive.running.resume import not_run
from ...drive.sessions.recorded import most_shared_bytes, occupancy_of
from ...drive.sessions.session import Session, list_sessions, sessions_root
from ..arguments import session_from


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", nargs="?", help="name or folder of the session")
    parser.add_argument("--trial", metavar="ID", help="print everything recorded of one trial")
    parser.add_argument("--source", action="store_true", help="with --trial: print its CUDA source")
    parser.add_argument("--log", action="store_true", help="with --trial: print its compiler log")
    parser.add_argument("--json", action="store_true", help="print the trials (or the sessions) as JSON lines")


def run(args: argparse.Namespace) -> int:
    if not args.session:
        if args.trial:
            raise BadRequest("--trial needs the name of its session: show NAME --trial ID.", field="session")
        there = {s.name: len(s.trials()) for s in map(Session.open, list_sessions())}
        for name, count in there.items():
            print(json.dumps({"session": name, "trials": count}) if args.json else f"{name}: {count} trials")
        if not there and not args.json:
            print(f"No sessions below {sessions_root()} yet; 'python -m workbench run' makes one.")
        return 0
    if (args.source or args.log) and not args.trial:
        raise BadRequest(f"--{'source' if args.source else 'log'} needs the trial: show {args.session} --trial ID "
                         f"--{'source' if args.source else 'log'}.", field="trial")
    session = session_from(args.session)
    trials = session.trials()
    if args.trial:
        return _one(session, trials, args)
    if args.json:
        for trial in trials:
            print(json.dumps(trial.to_json()))
    else:
        print(tables.text_table(trials, not_run=not_run(session.events(), trials)))
    return 0


def _one(session: Session, trials: list, args: argparse.Namespace) -> int:
    found = [t for t in trials if t.trial_id.startswith(args.trial)]
    if len(found) != 1:
        raise BadRequest(f"{len(found)} trials of {session.name} begin with {args.trial!r}; give more characters of the id.")
    for wanted, blob in ((args.source, "source"), (args.log, "log")):
        if wanted:
            if blob not in found[0].blobs:
                raise BadRequest(f"Trial {found[0].trial_id} has no {blob}.")
            text = session.blob(found[0].blobs[blob]).decode("utf-8", "replace")
            print(text if args.source and not sys.stdout.isatty() else plain(text))  # a file gets the source as it is
    if not args.source and not args.log:
        trial, arch = found[0], arch_of(found[0])
        shared = {"main_kernel": main_kernel(trial, arch), "most_shared_bytes": most_shared_bytes(trial, arch)} if arch else {}
        occupancy = {arch: {name: {"warps_per_sm": one.warps_per_sm, "max_warps": one.max_warps, "limiter": one.limiter}
                            for name, one in kernels.items()} for arch, kernels in occupancy_of(trial).items()}
        print(json.dumps({**trial.to_json(), **shared, "occupancy": occupancy}, indent=2))
    return 0
