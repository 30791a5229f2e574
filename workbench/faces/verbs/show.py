"""List the trials of a session, with the verdict above them. Without a name list all sessions."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ...core import sass
from ...core.errors import BadRequest
from ...core.plain_text import plain
from ...core.trial import Status, Trial
from ...drive.reporting import tables
from ...drive.reporting.main_kernel import arch_of, main_kernel
from ...drive.running.resume import not_run
from ...drive.running.runner import Runner
from ...drive.sessions.recorded import machine_code_of, most_shared_bytes, occupancy_of
from ...drive.sessions.session import Session, list_sessions, sessions_root
from ..arguments import check_folder, no_one, session_from, write_whole


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", nargs="?", help="name or folder of the session")
    parser.add_argument("--trial", metavar="ID", help="print one trial; with --json, all that is recorded about it")
    parser.add_argument("--source", action="store_true", help="with --trial: print its CUDA source")
    parser.add_argument("--log", action="store_true", help="with --trial: print its compiler log")
    parser.add_argument("--asm", action="store_true", help="with --trial: print the machine code of its main kernel with "
                        "source lines, control codes and a summary of its loops. Needs nvcc and nvdisasm, but no GPU")
    parser.add_argument("--asm-against", metavar="ID",
                        help="with --trial: print how its machine code differs from that of ID, loop by loop")
    parser.add_argument("--ptx", action="store_true", help="with --trial: print its PTX. Needs nvcc, but no GPU")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one HTML file with tables and figures, which needs no "
                        "network and no other file")
    parser.add_argument("--json", action="store_true", help="print the trials (or the sessions) as JSON lines; with "
                        "--trial, that trial")


def run(args: argparse.Namespace) -> int:
    check_folder(args.html)
    if args.html and (args.trial or not args.session):
        raise BadRequest("--html needs a session, without --trial: show NAME --html FILE.", field="html")
    if not args.session:
        if args.trial:
            raise BadRequest("--trial needs the name of its session: show NAME --trial ID.", field="session")
        there = tables.session_records(map(Session.open, list_sessions()))
        if args.json:
            for one in there:
                print(json.dumps(one))
        else:
            print(tables.sessions_text(there) if there else
                  f"No sessions below {sessions_root()} yet; 'python -m workbench run' makes one.")
        return 0
    needs = next((name for name in ("source", "log", "asm", "asm_against", "ptx") if getattr(args, name)), "").replace("_", "-")
    if needs and not args.trial:
        raise BadRequest(f"--{needs} needs the trial: show {args.session} --trial ID --{needs}.", field="trial")
    session = session_from(args.session)
    trials = session.trials()
    if args.trial and (args.asm or args.asm_against or args.ptx):
        return _machine_code(session, trials, args)
    if args.trial:
        return _one(session, trials, args)
    if args.html:
        from ...drive.reporting import html_report  # plotly takes half a second
        write_whole(args.html, html_report.of_session(trials, session.name))
        print(f"{args.html} is written.")
    elif args.json:
        for trial in trials:
            print(json.dumps(trial.to_json()))
    else:
        print(tables.text_table(trials, not_run=not_run(session.events(), trials)))
    return 0


def _found(session: Session, trials: list[Trial], begin: str) -> list[Trial]:
    found = [t for t in trials if t.trial_id.startswith(begin)]
    if len(found) != 1:
        raise no_one(found, session, begin)
    return found


def _machine_code(session: Session, trials: list[Trial], args: argparse.Namespace) -> int:
    both = [_found(session, trials, begin)[0] for begin in (args.trial, args.asm_against) if begin]
    kernels = []
    with Runner() as runner:
        for trial in both:
            answer, there, arch = machine_code_of(trial, session, runner.machine_code)
            if answer.status is not Status.OK or not there and not args.ptx:
                raise BadRequest(answer.headline or f"{trial.name} has no kernel.")
            kernels += there[:1]
            if args.ptx:
                print(answer.ptx)
                return 0
    if args.asm_against:
        rows = [("loop", "kind", both[0].name, both[1].name), *(tuple(map(str, row)) for row in sass.differences(*kernels))]
        print("\n".join(tables.aligned(rows)) if rows[1:] else "The two have the same instructions in every loop.")
        return 0
    kernel = kernels[0]
    print(f"{kernel.name} for {arch}, {len(kernel.code)} instructions. {sass.sentence(kernel)}\n")
    print("\n".join(tables.aligned([("loop", "depth", "source", "instructions", "their kinds"), *sass.loop_rows(kernel)])))
    print("\n" + "\n".join(tables.aligned([("address", "control", "live", "instruction", "source"), *(
        (f"{i.address:05x}", i.control.text if i.control else "", "" if i.live is None else str(i.live), i.text,
         f"{i.file}:{i.line}" if i.file else "") for i in kernel.code)])))
    return 0


def _one(session: Session, trials: list[Trial], args: argparse.Namespace) -> int:
    found = _found(session, trials, args.trial)
    for wanted, blob in ((args.source, "source"), (args.log, "log")):
        if wanted:
            if blob not in found[0].blobs:
                raise BadRequest(f"Trial {found[0].trial_id} has no {blob}.")
            text = session.blob(found[0].blobs[blob]).decode("utf-8", "replace")
            print(text if args.source and not sys.stdout.isatty() else plain(text))  # a file gets the source unchanged
    if args.source or args.log:
        return 0
    trial, arch = found[0], arch_of(found[0])
    if not args.json:
        print(tables.trial_text(trial))
        return 0
    shared = {"main_kernel": main_kernel(trial, arch), "most_shared_bytes": most_shared_bytes(trial, arch)} if arch else {}
    occupancy = {arch: {name: {"warps_per_sm": one.warps_per_sm, "max_warps": one.max_warps, "limiter": one.limiter}
                        for name, one in kernels.items()} for arch, kernels in occupancy_of(trial).items()}
    print(json.dumps({**trial.to_json(), **shared, "occupancy": occupancy}, indent=2))
    return 0
