"""Check variants on awkward layers and print one line per case.

Exits 0 only if at least one case ran and every case is right. Effort: quick (under 45 s), normal, full (all dtypes, both
forms of the layer).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ...core.variants import refuse_broken
from ...drive.checking.variant_tests import CaseResult, Chosen, junit, to_json, validate
from ...drive.machine.doctor import resolve_device
from ...drive.running.request import EFFORTS
from ...drive.running.runner import Runner
from .. import exit_codes
from ..arguments import add_candidates, add_workload, check_folder, directions_from, say_broken, workload_from


def add(parser: argparse.ArgumentParser) -> None:
    add_workload(parser, required=False)
    add_candidates(parser)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda:N")
    parser.add_argument("--effort", choices=EFFORTS, default="normal",
                        help="how many layers, dtypes and forms (default normal)")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write a JUnit XML file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the cases as JSON")


def run(args: argparse.Namespace) -> int:
    check_folder(args.junit)
    check_folder(args.json)
    refuse_broken(args.variant, directions_from(args), args.templates)
    left_out = say_broken(args.templates) and not args.variant  # all variants were requested, and one could not be tested
    work = [workload_from(args, resolve_device(args.device))] if (args.preset, args.layer) != (None, None) else []

    def show(case: CaseResult) -> None:
        print(case.line, flush=True)

    with Runner() as runner:
        asked = Chosen(args.effort, tuple(args.variant), tuple(directions_from(args)), tuple(work), args.templates)
        cases = validate(runner, asked, device=args.device, on_case=show,
                         on_text=lambda text: print(text, file=sys.stderr, flush=True))
    if args.junit:
        args.junit.write_bytes(junit(cases))
    if args.json:
        args.json.write_text(json.dumps(to_json(cases), indent=1))
    bad = sum(not c.ok for c in cases)
    if not cases:
        print("Nothing ran: no chosen variant serves the chosen layers.", file=sys.stderr)
        return exit_codes.NOTHING_RAN
    print(f"{len(cases) - bad} of {len(cases)} cases are right." +
          (" A template could not be read (see above), so not every variant was tried." if left_out else ""))
    return exit_codes.of(c.status for c in cases) or (exit_codes.WRONG if left_out else exit_codes.RIGHT)
