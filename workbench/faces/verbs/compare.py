"""Compare two sessions: for each variant on the same work, the ratio of the medians and a verdict.

The ratio is the time of A divided by the time of B: above 1, B is faster. The page and --html show B / A: above 1, A is faster.

The verdict comes from a bootstrap interval of this ratio, computed from the samples of both sessions. Times of different
devices and emulated times are never compared. If both sessions hold a config, its two trials are compared. If they hold
different configs of a variant (for example after a new default), its fastest right config in A is compared with its fastest
right config in B, and the row says so.

Exits 1 on a regression, or if B has no trials. A regression is a candidate that is right in A, and wrong, missing or SLOWER in
B. Exits 3 if B's machine could not judge a candidate that is right in A, for example without a compiler. Exits 2 if a session
does not exist, and 0 otherwise. To guard a kernel in CI, record both sessions with the same command:

    python -m workbench run --preset kb74 --variant mine --session after && python -m workbench compare before after
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ...core.typed import keys_of
from ...drive.reporting import report, tables
from ..arguments import check_folder, session_from, write_whole
from ..exit_codes import NOTHING_RAN, RIGHT, WRONG


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", help="session A (before)")
    parser.add_argument("b", help="session B (after)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write one HTML file with table and figures, which "
                        "needs no network. It shows B / A: above 1, A is faster")


def run(args: argparse.Namespace) -> int:
    check_folder(args.html)
    a, b = (session_from(name) for name in (args.a, args.b))
    if a.path.resolve() == b.path.resolve():
        print(f"A and B are the same session, {a.name}: its times are compared with themselves. Give two sessions.",
              file=sys.stderr)
    before, after = a.trials(), b.trials()
    rows = tables.compare_sessions(before, after)
    if args.html:
        found = tables.regressions(rows)
        strip = ("SLOWER" if found else "NOTE", f"{len(found)} regressions in B" if found else "No regression in B",
                 f"A is {a.name}; B is {b.name}. If B / A is above 1, A is faster. {' '.join(found[:5])}")
        from ...drive.reporting import html_report  # plotly takes half a second
        pairs = tables.in_order(report.pairs(before, after))
        write_whole(args.html, html_report.of_pairs(pairs, f"{a.name} and {b.name}", strip))
    if args.json:
        print(json.dumps([keys_of(row) for row in rows], indent=1))
    else:
        print(tables.compare_text(rows))
        print("".join(f"\nREGRESSION  {sentence}" for sentence in tables.regressions(rows)), end="\n")
    for sentence in tables.unjudged(rows):
        print(sentence, file=sys.stderr)
    return WRONG if tables.regressions(rows) else NOTHING_RAN if tables.unjudged(rows) else RIGHT
