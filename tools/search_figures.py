"""How good the search is, on recorded spaces.

    python tools/search_figures.py FOLDER [--repeats 100] [--jobs 2]      cache files, T4 files and sessions
    python tools/search_figures.py --own SESSION [SESSION ...]            exhaustive sessions of this project
    python tools/search_figures.py --agree SESSION [--repeats 50]         how often two tunes of such a space agree
    python tools/search_figures.py --same ONE TWO                         whether two sessions name the same winners

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

--agree replays pairs of tunes with different seeds: the search, then the finals of a tune with their time limit. Times are
drawn from the recorded samples. Each first time is also multiplied by a random factor (standard deviation 0.4 %), because the
recorded first times differ by that much from the times in turns. For each space it prints how many pairs name the same winner,
or a winner that the other tune declares as a tie; and how many more name one that the other tune declares as not told apart.

--same prints the same words for each layer that was tuned in both sessions. It returns 1 if a pair names another winner that is
not declared.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import ceil
from pathlib import Path
from statistics import mean
from threading import Event
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from workbench.core import best_known  # noqa: E402
from workbench.core.best_known import BestKnown, without_bias  # noqa: E402
from workbench.core.errors import BadRequest  # noqa: E402
from workbench.core.orders import InterleaveOrder  # noqa: E402
from workbench.core.replies import Built, Device, Interleaved  # noqa: E402
from workbench.core.template import Rendered  # noqa: E402
from workbench.core.trial import Status, Trial  # noqa: E402
from workbench.drive.replaying.recorded_space import RecordedSpace, missing, spaces_of  # noqa: E402
from workbench.drive.replaying.replay import OURS, Replayed, replay, table, text  # noqa: E402
from workbench.drive.running.request import Row, RunRequest  # noqa: E402
from workbench.drive.running.resume import SLOWER  # noqa: E402
from workbench.drive.searching.points import Seen, points_from  # noqa: E402
from workbench.drive.searching.propose import propose  # noqa: E402
from workbench.drive.sessions.files import TUNE_WON, samples_of  # noqa: E402
from workbench.drive.sessions.session import Session  # noqa: E402
from workbench.drive.tuning import store  # noqa: E402
from workbench.drive.tuning.finals import Final, finals  # noqa: E402
from workbench.drive.tuning.space import TuneSpace, class_for, key_of, key_of_trial  # noqa: E402

LIMITS = (("share_of_best", "share of the best at 100 evaluations", 0.94), ("near", "runs within 5 % of the best", 0.60),
          ("score", "score over evaluations 10 to 100", 0.55))
TRIALS = 100
OWN_SHARE, OWN_SEEDS, OWN_NEAR = 0.1, 10, 1.03
TOP, TOP_NEAR = 16, 1.04
QUICK_TRIALS = 70            # what a quick tune of one direction judges on an H200
QUICK_S, COMPARED_S = 8.0, 0.8   # its time for the finals beyond the first ones; the time of a comparison
DRIFT = 0.004                # standard deviation of a first time, beside that of its samples
PAIRS = 60                   # samples of a comparison, of which an H200 takes 50 to 190
AGREEMENTS = ("same winner", "a declared tie", "declared as not told apart", "another winner")
LEAST = 100   # configs of a space for --own; a tenth of a smaller one is spent before the model is used


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+", help="folder of cache files, T4 files or sessions; with --own sessions")
    parser.add_argument("--own", action="store_true", help="the figures of exhaustive sessions of this project")
    parser.add_argument("--agree", action="store_true", help="how often two tunes of an exhaustive session's space agree")
    parser.add_argument("--same", action="store_true", help="whether the tunes of two sessions name the same winners")
    parser.add_argument("--trials", type=int, default=QUICK_TRIALS, help="with --agree: the trials of each tune")
    parser.add_argument("--searches", default=f"{OURS},random", help="with commas, as those of 'workbench replay'")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    try:
        if args.same:
            return same(*map(Session.open, args.folder))
        if args.agree:
            return agree([space for path in args.folder for space in spaces_of(path)], pairs=args.repeats, trials=args.trials)
        if args.own:
            return own([space for path in args.folder for space in spaces_of(path)], jobs=args.jobs)
        spaces = [space for folder in args.folder for space in _spaces(folder)]
        done = replay(spaces, args.searches.split(","), repeats=args.repeats, trials=TRIALS, jobs=args.jobs)
    except BadRequest as error:
        print(error, file=sys.stderr)
        return 2
    frame = table(done)
    print(text(frame, trials=TRIALS))
    for name in dict.fromkeys(one.search for one in done if args.repeats > 1):
        print(_standard_error([one for one in done if one.search == name]))
    whole = frame[frame["space"] == "all"] if len(spaces) > 1 else frame
    ours = whole[whole["search"] == OURS]
    for column, words, limit in LIMITS if len(ours) else ():
        print(f"{words:45} {ours.iloc[0][column]:6.3f}   at least {limit}")
    for seen in (TRIALS, 1000):
        cpu_ms, wall_ms = _proposal_ms(seen)
        print(f"{f'one proposal at {seen} seen, 20 000 points':45} {cpu_ms:6.1f} ms of CPU, {wall_ms:.1f} of time   under 100")
    return 0


def _standard_error(of: list[Replayed]) -> str:
    """That of two columns of the row of a search over all spaces, from the spread of the runs on each space."""
    each = [(100 * np.log(one.best_ms / one.outcome.best[:, -1]), 100.0 * (one.outcome.best[:, -1] <= 1.05 * one.best_ms))
            for one in of]
    share, near = (np.sqrt(sum(runs.var(ddof=1) / len(runs) for runs in part)) / len(of) for part in zip(*each, strict=True))
    return f"{of[0].search}: standard error of the share {share:.1f} %, of the runs within 5 % {near:.1f} points"


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


def agree(spaces: list[RecordedSpace], *, pairs: int, trials: int) -> int:
    """Print for each space how many of the pairs of tunes agree, with the first finalists only and with all that fit."""
    for space in spaces:
        if len(space.ms) < LEAST or not space.trials:
            continue
        order, searched = ranking(space), tune_space(space)
        known = replace(space, points=replace(space.points, order=order))
        met = [_searched(known, trials, seed) for seed in range(2 * pairs)]
        print(f"{space.name}, {trials} trials a tune, {pairs} pairs of tunes")
        for words, seconds in (("the first finalists only", 0.0), (f"more for {QUICK_S:g} s", QUICK_S)):
            found = [_finals(space, searched, one, seconds, seed) for seed, one in enumerate(met)]
            counts = Counter(_agreement(*({"searched": {f.searched}, "ties": {*f.ties}, "untold": {*f.untold}} for f in pair))
                             for pair in zip(found[::2], found[1::2], strict=True))
            print(f"  {words}: {', '.join(f'{word} {counts[word]}' for word in AGREEMENTS)}; "
                  f"{mean(len(one.ties) for one in found):.1f} ties and {mean(len(one.untold) for one in found):.1f} not told "
                  "apart in a tune", flush=True)
    return 0


def same(one: Session, two: Session) -> int:
    """Print for each cell that was tuned in both sessions whether the last tunes agree. Returns 1 if some do not, 2 if there
    is no such cell."""
    winners = [_winners(session) for session in (one, two)]
    cells = [cell for cell in winners[0] if cell in winners[1]]
    words = [_agreement(*(found[cell] for found in winners)) for cell in cells]
    for cell, word in zip(cells, words, strict=True):
        print(f"{' '.join(cell)}: {word}")
    return 2 if not cells else int(AGREEMENTS[-1] in words)


def _winners(session: Session) -> dict[tuple[str, ...], dict[str, set[str]]]:
    """(preset or layer, direction, class) -> the ids of the candidates that the last tune names."""
    trials = {t.trial_id: t for t in session.trials()}
    found = {}
    for event in session.events():
        if event.get("event") == TUNE_WON and (won := trials.get(event["trial_id"])):
            named = {"searched": [won.trial_id], "ties": event["ties"], "untold": event.get("untold", ())}
            found[won.workload.preset or str(won.workload.layer), won.direction, event["precision_class"]] = {
                word: {trials[i].candidate_id for i in ids if i in trials} for word, ids in named.items()}
    return found


def _agreement(one: dict[str, set[str]], two: dict[str, set[str]]) -> str:
    """One of AGREEMENTS."""
    return next(word for word, field in zip(AGREEMENTS, ("searched", "ties", "untold", ""), strict=True)
                if not field or one["searched"] & two[field] or two["searched"] & one[field])


def _searched(space: RecordedSpace, count: int, seed: int) -> list[Trial]:
    """The trials of a search, with times as another tune would measure them."""
    random, seen, found = np.random.default_rng(seed), list[Seen](), list[Trial]()
    while len(seen) < count and (points := propose(space.points, seen, (), min(4, count - len(seen)), seed=seed)):
        for point in points:
            trial = space.trials[point]
            samples = samples_of(trial.kernel_ms) if trial.ok and trial.kernel_ms else ()
            if samples:
                drawn = np.exp(random.normal(0, DRIFT)) * random.choice(samples, len(samples))
                low, median, high = np.quantile(drawn, (0.25, 0.5, 0.75))
                trial = replace(trial, kernel_ms=replace(trial.kernel_ms, median_ms=float(median), q25_ms=float(low),
                                                         q75_ms=float(high)))
            found.append(trial)
            seen.append(Seen(point, trial.kernel_median_ms if samples else None,
                             bool(samples and trial.kernel_ms.stop == SLOWER)))
    return found


def _finals(space: RecordedSpace, searched: TuneSpace, trials: list[Trial], seconds: float, seed: int) -> Final:
    """The finals of a tune, on recorded samples and with a clock that counts the comparisons."""
    replayed = _Finals(space, seed)
    with patch("workbench.drive.tuning.finals.time", SimpleNamespace(monotonic=lambda: COMPARED_S * replayed.comparisons)):
        final, _ = finals(replayed, trials, (), effort="quick", space=searched, seconds=seconds)
    assert final
    return final


class _Finals:
    """What the finals need of an `Execution`: it builds nothing, and takes samples from the recorded ones."""

    name, workers = "cuda:0", SimpleNamespace(judge_order=lambda place, item, built, request: item)

    def __init__(self, space: RecordedSpace, seed: int) -> None:
        self.comparisons, self._random, self._of = 0, np.random.default_rng(seed), dict[str, Trial]()
        self._there = {key_of_trial(trial): trial for trial in space.trials}
        self.run = SimpleNamespace(rows=[], trials=[], message="", cancelled=Event())
        self.session = SimpleNamespace(event=lambda *given, **more: None)
        self.request = RunRequest(space.trials[0].workload, ())

    def build(self, wave: list[tuple[Row, Rendered]]) -> dict[str, Built]:
        self._of |= {rendered.candidate_id: self._there[key_of(row.candidate)] for row, rendered in wave}
        return {rendered.candidate_id: Built(status=Status.OK, headline="") for _, rendered in wave}

    def interleave(self, order: InterleaveOrder) -> Interleaved:
        self.comparisons += 1
        ours, theirs = (tuple(self._random.choice(samples_of(self._of[one.candidate_id].kernel_ms), PAIRS))
                        for one in (order.ours, order.theirs))
        return Interleaved(status=Status.OK, headline="", ours=ours, theirs=theirs)

    def judge_again(self, row: Row, *given: object, **more: object) -> Trial:
        return self._there[key_of(row.candidate)]

    def record(self, trial: Trial) -> None:
        self.run.trials.append(trial)


def _off(space: RecordedSpace, order: tuple[int, ...]) -> str:
    times = [float(space.ms[i]) for i in order[:TOP] if space.ms[i] == space.ms[i]]
    return f"{100 * (min(times) / space.best_ms - 1):.1f} % above the best" if times else "not timed"


def ranking(space: RecordedSpace, without: Callable[[BestKnown, RecordedSpace], bool] | None = None) -> tuple[int, ...]:
    """The points of the space in the order in which a tune begins on a machine that has tuned nothing: the best known configs
    of the cell, those of similar layers, the defaults. Shipped configs for which `without` is true are left out."""
    there = {key_of_trial(trial): i for i, trial in enumerate(space.trials)}
    entries, slower = ([e for e in listed if not (without and without(e, space))]
                       for listed in (best_known.load(), best_known.slower()))
    with tempfile.TemporaryDirectory() as folder, patch.dict(
            os.environ, {"KERNEL_WORKBENCH_STORE": str(Path(folder, "tuned.json"))}):
        known = Path(folder, "known.json")
        best_known.save(entries, known, slower)
        with patch.object(best_known, "FILE", known):
            searched = tune_space(space)
            order = searched.points(store.near(searched, searched.device)).order
    return tuple(there[searched.keys[i]] for i in order if searched.keys[i] in there)


def tune_space(space: RecordedSpace) -> TuneSpace:
    """The space that a tune of the recorded variants searches."""
    one = space.trials[0]
    device = Device(one.device.kind, one.device.index, one.device.name, one.device.arch, one.device.sm, one.device.key, 0, 0,
                    "", "", 0, "", 0)
    return TuneSpace(one.workload, one.direction, class_for(one.workload, one.direction, device.arch), device,
                     variants=tuple({trial.name for trial in space.trials}))


def _of_session(entry: BestKnown, space: RecordedSpace) -> bool:
    return entry.session == space.session


def _of_layer(entry: BestKnown, space: RecordedSpace) -> bool:
    return without_bias(entry.layer) == without_bias(str(space.trials[0].workload.layer))


def _spaces(folder: Path) -> list[RecordedSpace]:
    files = sorted(path for path in folder.glob("*") if path.name.endswith((".json", ".json.gz", ".zip")))
    if not files:
        raise BadRequest(f"{folder} has no cache file (.json, .json.gz) and no session (.zip); name a folder that has some.")
    return [space for file in files for space in spaces_of(file)]


def _proposal_ms(count: int) -> tuple[float, float]:
    """CPU time and time: the means over trials in a row, so that fits of the model are shared as in a search."""
    values = ((16, 32, 64, 128, 256), (1, 2, 3, 4, 5), (1, 2, 4, 8), (1, 2, 4), (0, 1), (0, 1), range(17))
    points = points_from([dict(zip("ABCDEFG", config, strict=True)) for config in product(*values)][:20_000])
    step = len(points) // (count + 20)
    seen = [Seen(step * i, 1 + (i * 7919 % 100) / 50) for i in range(count + 16)]
    propose(points, seen[:20], (), 1, seed=0)
    begun, at = time.process_time(), time.perf_counter()
    for i in range(16):
        propose(points, seen[:count + i], (), 1, seed=0)
    return 1e3 * (time.process_time() - begun) / 16, 1e3 * (time.perf_counter() - at) / 16


if __name__ == "__main__":
    sys.exit(main())
