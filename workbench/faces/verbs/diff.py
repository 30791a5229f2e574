"""Show how two candidates differ: template, rendered source, config, PTX or SASS.

A and B are each a trial (SESSION:TRIAL, with the beginning of its id), a variant (such as forward/naive_gather), or a file. A
variant is rendered with its defaults, for the layer of the other side or for --preset or --layer.

    python -m workbench diff first:3f2a first:91bc
    python -m workbench diff forward/naive_gather forward/shared_weight_tiling --what template
"""

from __future__ import annotations

import argparse
import json
import sys

from ...core.plain_text import plain
from ...core.source_parts import side_by_side
from ...drive.running.runner import Runner
from ...drive.sessions.recorded import WHAT, text_of
from ..arguments import add_workload, sides_from, unified_text, workload_from


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", help="SESSION:TRIAL, a variant or a file")
    parser.add_argument("b", help="SESSION:TRIAL, a variant or a file")
    parser.add_argument("--what", choices=WHAT, default="source", help="what to compare (default: source)")
    parser.add_argument("--context", type=int, default=3, metavar="N", help="equal lines around each change (default 3)")
    add_workload(parser, required=False)
    parser.add_argument("--json", action="store_true", help="print the lines side by side as JSON")


def run(args: argparse.Namespace) -> int:
    workload = None if args.preset is args.layer is None else workload_from(args)
    left, right = sides_from(args.a, args.b, workload)
    with Runner() as runner:
        a, b = (text_of(side, args.what, runner.machine_code) for side in (left, right))
    if args.json:
        rows = side_by_side(a, b, context=max(0, args.context))
        print(json.dumps({"a": left.name, "b": right.name, "what": args.what, "rows": [vars(row) for row in rows]}))
    else:
        text = unified_text(left.name, right.name, a, b, max(0, args.context)) or f"The two have the same {args.what}."
        print(plain(text) if sys.stdout.isatty() else text)
    return 0
