"""How good the search is, on a folder of recorded spaces.   python tools/search_figures.py FOLDER [--repeats 100] [--jobs 2]

Prints one line for each space and search, then the figures over all spaces beside their limits, then milliseconds a proposal.

    share of the best at 100 evaluations, geometric mean      at least 94 %
    runs that end within 5 % of the best                      at least 60 %
    score over evaluations 10 to 100                          at least +0.55
    one proposal at 1 000 seen, 20 000 points                 under 100 ms
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from workbench.core.errors import BadRequest  # noqa: E402
from workbench.drive.replaying.recorded_space import RecordedSpace, spaces_of  # noqa: E402
from workbench.drive.replaying.replay import replay, table, text  # noqa: E402
from workbench.drive.replaying.searches import OURS  # noqa: E402
from workbench.drive.searching.points import Seen, points_from  # noqa: E402
from workbench.drive.searching.propose import propose  # noqa: E402

LIMITS = (("share_of_best", "share of the best at 100 evaluations", 0.94), ("near", "runs within 5 % of the best", 0.60),
          ("score", "score over evaluations 10 to 100", 0.55))
TRIALS = 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of cache files, T4 files or sessions")
    parser.add_argument("--searches", default=f"{OURS},random", help="with commas, as those of 'workbench replay'")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    try:
        spaces = _spaces(args.folder)
        done = replay(spaces, args.searches.split(","), repeats=args.repeats, trials=TRIALS, jobs=args.jobs)
    except BadRequest as error:
        print(error, file=sys.stderr)
        return 2
    frame = table(done)
    print(text(frame, trials=TRIALS))
    whole = frame[frame["space"] == "all"] if len(spaces) > 1 else frame
    ours = whole[whole["search"] == OURS]
    for column, words, limit in LIMITS if len(ours) else ():
        print(f"{words:45} {ours.iloc[0][column]:6.3f}   at least {limit}")
    for seen in (TRIALS, 1000):
        print(f"{f'one proposal at {seen} seen, 20 000 points':45} {_proposal_ms(seen):6.1f} ms of CPU   under 100")
    return 0


def _spaces(folder: Path) -> list[RecordedSpace]:
    files = sorted(path for path in folder.glob("*") if path.name.endswith((".json", ".json.gz", ".zip")))
    if not files:
        raise BadRequest(f"{folder} has no cache file (.json, .json.gz) and no session (.zip); name a folder that has some.")
    return [space for file in files for space in spaces_of(file)]


def _proposal_ms(count: int) -> float:
    """The mean over trials in a row, so that fits of the model are shared as in a search."""
    values = ((16, 32, 64, 128, 256), (1, 2, 3, 4, 5), (1, 2, 4, 8), (1, 2, 4), (0, 1), (0, 1), range(17))
    points = points_from([dict(zip("ABCDEFG", config, strict=True)) for config in product(*values)][:20_000])
    step = len(points) // (count + 20)
    seen = [Seen(step * i, 1 + (i * 7919 % 100) / 50) for i in range(count + 16)]
    propose(points, seen[:20], (), 1, seed=0)
    begun = time.process_time()
    for i in range(16):
        propose(points, seen[:count + i], (), 1, seed=0)
    return 1e3 * (time.process_time() - begun) / 16


if __name__ == "__main__":
    sys.exit(main())
