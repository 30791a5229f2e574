"""Two sessions side by side: the same work and the same variant in both, with the ratio of their medians.

Times of different devices are never compared. Exits 1 when a candidate that was right in A is not right in B.
"""

from __future__ import annotations

import argparse
import json

from ...drive import tables
from ..arguments import session_from


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", help="session A (before)")
    parser.add_argument("b", help="session B (after)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    rows = tables.compare(session_from(args.a).trials(), session_from(args.b).trials())
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        print(tables.compare_text(rows))
    return 1 if any(r["status_a"] == "OK" and r["status_b"] not in ("OK", "") for r in rows) else 0
