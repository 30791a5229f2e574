"""Say what limits a trial's kernels on its GPU, by the counters of Nsight Compute (ncu). Two trials are shown side by side.

ncu runs the trial's kernel once more, in a process of its own. The session keeps what it counts, and shows it on any machine.
If ncu is missing or not permitted, or the trial ran on the emulator, counts from the machine code are shown instead. They
need nvcc, but no GPU.

    python -m workbench profile first:3f2a
    python -m workbench profile first:3f2a second:91bc
"""

from __future__ import annotations

import argparse
import json
import sys

from ...core.errors import BadRequest
from ...core.plain_text import plain
from ...drive.running.runner import Runner
from ...drive.sessions.profiles import LIMIT_S, reading, text
from ..arguments import trial_from


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="TRIAL", help="SESSION:TRIAL, with the beginning of its id")
    parser.add_argument("b", metavar="TRIAL", nargs="?", help="a second one, shown beside the first")
    parser.add_argument("--again", action="store_true", help="count again, even if the session has a profile of the trial")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS",
                        help=f"time limit of ncu (default {LIMIT_S:g})")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each trial")


def run(args: argparse.Namespace) -> int:
    if not 0 < args.limit < 1e6:
        raise BadRequest(f"--limit is {args.limit:g}; give seconds above 0.", field="limit")
    trials = [trial_from(text) for text in (args.a, args.b) if text is not None]
    with Runner() as runner:
        found = [reading(*pair, runner, again=args.again, limit_s=args.limit,
                         on_text=lambda said: print(said, file=sys.stderr, flush=True)) for pair in trials]
    if args.json:
        for one in found:
            print(json.dumps(one.to_json()))
    else:
        told = text(found)
        print(plain(told) if sys.stdout.isatty() else told)
    return 0
