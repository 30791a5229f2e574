"""Run the adversarial test suite on this machine: kernels and modules that are broken or cheat. Each must get exactly its
expected status. Prints one line per attack: whether it was caught, its status, and what happened. WARNED: it was caught by
a warning, as expected. With --honest also run right files and count those that are called wrong. Exits 1 if an attack is not
caught or a right file is called wrong.

    python -m workbench selftest --device cpu
    python -m workbench selftest --device cpu --honest only
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ...core.errors import BadRequest
from ...drive.checking import attacks, selftest
from ...drive.machine.doctor import resolve_device


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto, cpu (the emulator) or cuda:N")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--only", nargs="+", metavar="NAME",
                        help="run these attacks or right files, and one right kernel as a control; the result is not stored")
    chosen.add_argument("--honest", nargs="?", const="also", choices=("also", "only"),
                        help="also run the right files, or only these; the result is not stored")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", type=Path, metavar="FILE",
                        help="replace the table in this file, between the lines <!-- matrix of cpu --> (or cuda) and <!-- end "
                             "-->, with the table of sources and statuses")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 all as expected, 1 an attack was not caught or a right file is called wrong, 3 nothing could be built on
    this machine."""
    if args.write and args.honest == "only":
        raise BadRequest("'--honest only' runs no attacks, so there is no table to write. Leave out --write or the word only.",
                         field="write")
    show = (lambda result: None) if args.json else _show
    wanted = attacks.chosen(args.only) if args.only else None
    if args.honest:
        wanted = [*(attacks.attacks() if args.honest == "also" else []), *attacks.honest()]
    results = selftest.selftest(args.device, on_result=show, wanted=wanted)
    if args.json:
        print(json.dumps(selftest.to_json(results), indent=1))
    else:
        if table := selftest.matrix(results):
            print(f"\n{table}\n")
        print(selftest.summary(results))
        print(selftest.confinement(results))
    if args.write:
        selftest.publish(args.write, results, attacks.device_kind(resolve_device(args.device)))
    if args.honest != "only" and all(r.status == "NO_COMPILER" for r in results if r.kind in ("control", "kernel")):
        print(results[0].happened, file=sys.stderr)
        return 3
    return 0 if results and all(r.caught for r in results) else 1


def _show(result: selftest.Result) -> None:
    if result.kind in ("control", "honest"):
        word = "right " if result.caught else "WRONG "
    else:
        word = "MISSED" if not result.caught else "WARNED" if result.warned else "CAUGHT"
    print(f"{word}  {result.name:<26} {result.status:<16} {result.happened}", flush=True)
    if not result.caught:
        print(f"        expected {result.expected}: {result.idea}", flush=True)
