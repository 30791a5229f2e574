"""Two sessions side by side: the same work and the same variant in both, with the ratio of their medians.

The verdict is the Workbench's own: a bootstrap interval of the ratio of medians, from the samples both sessions hold.
Times of different devices, and emulated ones, are never compared. A config that both sessions hold is compared with itself;
where a variant's configs differ (a new default, say), its fastest right one in A is compared with its fastest right one in B,
and the row says so.

Exits 1 on a regression: a candidate that was right in A and is not right in B, or is not in B at all, or is SLOWER in B; and
when B has no trials. Exits 3 when there is none, but B's machine could not judge what was right in A (no compiler, say).
Exits 0 otherwise, 2 when a session is not there. So two sessions guard a kernel in CI, both recorded by
the same command:

    python -m workbench run --preset kb74 --variant mine --session after && python -m workbench compare before after
"""

from __future__ import annotations

import argparse
import json
import sys

from ...drive.reporting import tables
from ..arguments import session_from
from ..exit_codes import NOTHING_RAN, RIGHT, WRONG


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
        print("".join(f"\nREGRESSION  {sentence}" for sentence in tables.regressions(rows)), end="\n")
    for sentence in tables.unjudged(rows):
        print(sentence, file=sys.stderr)
    return WRONG if tables.regressions(rows) else NOTHING_RAN if tables.unjudged(rows) else RIGHT
