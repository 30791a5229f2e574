"""How good the search is, on recorded spaces.

    python tools/search_figures.py FOLDER [--repeats 100] [--jobs 2]      cache files, T4 files and sessions
    python tools/search_figures.py --own SESSION [SESSION ...]            exhaustive sessions of this project

The first form prints one line for each space and search, then the figures over all spaces beside their limits, then
milliseconds a proposal.

    share of the best at 100 evaluations, geometric mean      at least 94 %
    runs that end within 5 % of the best                      at least 60 %
    score over evaluations 10 to 100                          at least +0.55
    one proposal at 1 000 seen, 20 000 points                 under 100 ms

--own prints for each space of a session, without and with the known ranking as in a tune:

    within 3 % of the best after 10 % of the trials           in at least 9 of 10 seeds
    the first 16 configs of the shipped ranking               at least one within 4 % of the best

The ranking is that of a tune on a machine that has tuned nothing. It may hold configs that were found in this very session. So
the second figure is also printed for a list of best known configs from which this session, or the whole layer, is left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import ceil
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from workbench.core import best_known  # noqa: E402
from workbench.core.best_known import BestKnown, without_bias  # noqa: E402
from workbench.core.errors import BadRequest  # noqa: E402
from workbench.core.replies import Device  # noqa: E402
from workbench.drive.replaying.recorded_space import RecordedSpace, missing, spaces_of  # noqa: E402
from workbench.drive.replaying.replay import OURS, replay, table, text  # noqa: E402
from workbench.drive.searching.points import Seen, points_from  # noqa: E402
from workbench.drive.searching.propose import propose  # noqa: E402
from workbench.drive.tuning import store  # noqa: E402
from workbench.drive.tuning.space import TuneSpace, class_for, key_of_trial  # noqa: E402

LIMITS = (("share_of_best", "share of the best at 100 evaluations", 0.94), ("near", "runs within 5 % of the best", 0.60),
          ("score", "score over evaluations 10 to 100", 0.55))
TRIALS = 100
OWN_SHARE, OWN_SEEDS, OWN_NEAR = 0.1, 10, 1.03
TOP, TOP_NEAR = 16, 1.04
LEAST = 100   # configs of a space for --own; a tenth of a smaller one is spent before the model is used


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+", help="folder of cache files, T4 files or sessions; with --own sessions")
    parser.add_argument("--own", action="store_true", help="the figures of exhaustive sessions of this project")
    parser.add_argument("--searches", default=f"{OURS},random", help="with commas, as those of 'workbench replay'")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    try:
        if args.own:
            return own([space for path in args.folder for space in spaces_of(path)], jobs=args.jobs)
        spaces = [space for folder in args.folder for space in _spaces(folder)]
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


def own(spaces: list[RecordedSpace], *, jobs: int = 1) -> int:
    """Print the figures of each space from a session. Returns 2 if no space is large enough."""
    large = [space for space in spaces if len(space.ms) >= LEAST and space.trials]
    if not large:
        print(f"No space of these sessions has {LEAST} configs; name an exhaustive session.", file=sys.stderr)
        return 2
    for space in large:
        order, trials = ranking(space), ceil(OWN_SHARE * len(space.ms))
        known = replace(space, points=replace(space.points, order=order))
        print(space)
        for words, one in (("no known ranking", space), ("with the ranking", known)):
            [done] = replay([one], [OURS], repeats=OWN_SEEDS, trials=trials, jobs=jobs)
            near = int((done.outcome.best[:, -1] <= OWN_NEAR * space.best_ms).sum())
            print(f"  {words}: within {100 * (OWN_NEAR - 1):.0f} % of the best after {trials} trials in {near} of {OWN_SEEDS} "
                  "seeds   at least 9")
        print(f"  the fastest of the first {min(TOP, len(order))} of the ranking: {_off(space, order)}   at most "
              f"{100 * (TOP_NEAR - 1):.0f} %")
        for words, own_ in (("from this session", _of_session), ("of this layer", _of_layer)):
            print(f"  the same without what is known {words}: {_off(space, ranking(space, without=own_))}")
        for sentence in missing(space):
            print(f"  not exhaustive: {sentence}")
    return 0


def _off(space: RecordedSpace, order: tuple[int, ...]) -> str:
    times = [float(space.ms[i]) for i in order[:TOP] if space.ms[i] == space.ms[i]]
    return f"{100 * (min(times) / space.best_ms - 1):.1f} % above the best" if times else "not timed"


def ranking(space: RecordedSpace, without: Callable[[BestKnown, RecordedSpace], bool] | None = None) -> tuple[int, ...]:
    """The points of the space in the order in which a tune begins on a machine that has tuned nothing: the best known configs
    of the cell, those of similar layers, the defaults. Shipped configs for which `without` is true are left out."""
    one = space.trials[0]
    device = Device(one.device.kind, one.device.index, one.device.name, one.device.arch, one.device.sm, one.device.key, 0, 0,
                    "", "", 0, "", 0)
    there = {key_of_trial(trial): i for i, trial in enumerate(space.trials)}
    entries, slower = ([e for e in listed if not (without and without(e, space))]
                       for listed in (best_known.load(), best_known.slower()))
    with tempfile.TemporaryDirectory() as folder, patch.dict(
            os.environ, {"KERNEL_WORKBENCH_STORE": str(Path(folder, "tuned.json"))}):
        known = Path(folder, "known.json")
        best_known.save(entries, known, slower)
        with patch.object(best_known, "FILE", known):
            searched = TuneSpace(one.workload, one.direction, class_for(one.workload, one.direction, device.arch), device,
                                 variants=tuple({trial.name for trial in space.trials}))
            order = searched.points(store.near(searched, device)).order
    return tuple(there[searched.keys[i]] for i in order if searched.keys[i] in there)


def _of_session(entry: BestKnown, space: RecordedSpace) -> bool:
    return entry.session == space.session


def _of_layer(entry: BestKnown, space: RecordedSpace) -> bool:
    return without_bias(entry.layer) == without_bias(str(space.trials[0].workload.layer))


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
