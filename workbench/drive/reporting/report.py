"""Evaluates trials: the table (a DataFrame), the best baselines, verdicts and the headline sentence.

Page, notebook and CLI show the same numbers because all of them come from here. Ratios are taken from unrounded
medians, and only between times of one device, one workload and one direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ...core import numbers
from ...core.layer import BACKWARD, FORWARD, LAUNCHES, Workload
from ...core.precision import QUALIFIES
from ...core.roofline import Floor, ceilings_for, floor
from ...core.trial import FORMULATION, NOT_DROP_IN, Status, Timing, Trial
from ...core.verdict import FASTER as FASTER
from ...core.verdict import SAME, UNSURE, Verdict, from_quartiles, from_samples, more_samples
from ...core.verdict import SLOWER as SLOWER
from ..sessions.files import samples_of
from .main_kernel import OwnName, main_numbers, own_name
from .pairing import differences, matched

if TYPE_CHECKING:
    import pandas

Place = tuple[str, str]   # device key and workload key, as `Trial.place`
Where = tuple[Place, str, str]   # with clock and direction: equal for two times that may be compared
_Cell = tuple[Place, str, str, str]   # with GPU name, direction and precision: all such trials have the same floor
EMULATED = "EMULATED"
BASELINES = ("baseline", "module_baseline")
FLAG_WORDS = {"launch_bound": "Launch-bound: the launch on the host takes longer than the kernel on the GPU.",
              "nvcc_flags": "The emulator ignores flags that only nvcc has.",
              "too_small": "Too short for an exact time: below 10 µs the CUDA events are part of it.",
              "throttled": "The GPU lowered its clocks during some samples."}
COLUMNS = ("status", "verdict", "kind", "variant", "direction", "precision", "config", "median_ms", "spread", "speedup",
           "of_limit", "floor_ms", "rel_l2", "max_abs", "registers", "build_s", "peak_bytes", "clock", "device",
           "headline", "advice", "trial_id")


@dataclass(frozen=True)
class Headline:
    """The line at the top of a result: `badge` (a verdict, a status or a mark), a sentence with the number, and a line of
    evidence."""

    badge: str
    sentence: str
    evidence: str


@dataclass(frozen=True)
class Pair:
    """Two trials that are compared. `ratio` is B / A; None if their times may not be compared."""

    a: Trial
    b: Trial
    ratio: Verdict | None
    verdict: str
    note: str
    clock: str = "kernel_ms"
    direction: str = ""


def frame(trials: Iterable[Trial]) -> pandas.DataFrame:
    """One row for each trial and time; the verdict is the first column. In each direction the fastest is first, then come
    failures, then baselines. Emulated times are not ranked: those rows keep their order.

    A module trial has a row for `forward` and one for `backward` with `clock` "module_ms"; all others one row with "kernel_ms".
    Times are in ms, `of_limit` and `spread` in percent. A wrong result has no time. An emulated one has a time and no speed-up.
    """
    import pandas as pd  # imported here, because it takes half a second that the first view of the page does not need
    trials = list(trials)
    baselines = Baselines(trials)
    limits: dict[_Cell, float | None] = {}
    # Cached, because searching the folder of templates for each trial would take most of the time.
    names = lru_cache(maxsize=None)(own_name)
    rows = [row for trial in trials for row in _rows(trial, baselines, limits, names)]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    if table.empty:
        return table
    rank = pd.DataFrame({
        "direction": table["direction"].map({d: i for i, d in enumerate(LAUNCHES)}),
        "baseline": table["kind"].isin(BASELINES), "failed": table["status"].ne("OK"),
        "ms": table["median_ms"].where(table["verdict"].ne(EMULATED)).fillna(float("inf"))})
    return table.loc[rank.sort_values(["direction", "baseline", "failed", "ms"], kind="stable").index].reset_index(
        drop=True)


class Baselines:
    """The right baselines of some trials, indexed by the trials with which they may be compared. It is built once and used for
    many trials."""

    def __init__(self, trials: Iterable[Trial]) -> None:
        self._there: dict[Where, list[tuple[float, Trial]]] = {}
        self._best: dict[tuple[Where, str, bool], Trial | None] = {}
        for b in trials:
            if is_baseline(b) and b.ok:
                times = {("module_ms", d): t for d, t in b.module_ms.items()} | {("kernel_ms", b.direction): b.kernel_ms}
                for (clock, direction), timing in times.items():
                    if timing:
                        self._there.setdefault((b.place, clock, direction), []).append((timing.median_ms, b))

    def at(self, trial: Trial, clock: str, direction: str) -> list[tuple[float, Trial]]:
        """(median in ms, baseline) of all that may be compared with `trial` on that clock."""
        return self._there.get(_where(trial, clock, direction), [])

    def best(self, trial: Trial, clock: str, direction: str, *, formulations: bool = False) -> Trial | None:
        """The fastest drop-in baseline whose precision is at least as strict as the trial's. Only modes of nn.ConvTranspose
        count, or with `formulations` all."""
        key = (_where(trial, clock, direction), trial.precision, formulations)
        if key not in self._best:
            there = [(ms, b) for ms, b in self.at(trial, clock, direction)
                     if NOT_DROP_IN not in b.flags and (formulations or FORMULATION not in b.flags)
                     and b.precision in QUALIFIES.get(trial.precision, ())]
            self._best[key] = min(there, key=lambda pair: pair[0])[1] if there else None
        return self._best[key]


def best_baseline(trials: Iterable[Trial] | Baselines, trial: Trial, *, clock: str = "kernel_ms",
                  direction: str | None = None) -> Trial | None:
    """The fastest right drop-in baseline that may be compared with `trial`: same device key, workload and direction, and a
    precision at least as strict. Only modes of nn.ConvTranspose count, not other formulations. None if there is none."""
    baselines = trials if isinstance(trials, Baselines) else Baselines(trials)
    return baselines.best(trial, clock, direction or trial.direction)


def strongest_baseline(trials: Iterable[Trial] | Baselines, trial: Trial) -> Trial | None:
    """The fastest of all formulations in PyTorch that may be compared with `trial` in kernel_ms. If no formulations were
    measured, it is the best baseline."""
    baselines = trials if isinstance(trials, Baselines) else Baselines(trials)
    return baselines.best(trial, "kernel_ms", trial.direction, formulations=True)


def best_candidate(trials: Iterable[Trial], direction: str) -> Trial | None:
    """The fastest right candidate of a direction on a GPU. Emulated times do not count."""
    there = [t for t in trials if t.kind == "candidate" and t.ok and t.kernel_ms and t.direction == direction
             and not is_emulated(t)]
    return min(there, key=lambda t: t.kernel_median_ms, default=None)


def speedup(trial: Trial, baseline: Trial | None, *, clock: str = "kernel_ms", direction: str | None = None
            ) -> Verdict | None:
    """How many times as fast as `baseline` the trial is; None without two times that may be compared.

    If the two were timed alternately in one run, the ratio of these pairs is used."""
    direction = direction or trial.direction
    if baseline is None or not trial.ok or not same_place(trial, baseline):
        return None
    ours, theirs = timing_of(trial, clock, direction), timing_of(baseline, clock, direction)
    if ours is None or theirs is None:
        return None
    in_turns = (trial.detail.against, trial.detail.against_strongest)
    against = next((a for a in in_turns if a and a.trial_id == baseline.trial_id), None)
    if against is not None and clock == "kernel_ms":
        ratio = Verdict(against.ratio, against.low, against.high, against.verdict)
    else:
        ratio = ratio_of(ours, theirs)
    return Verdict(ratio.value, ratio.low, ratio.high, EMULATED) if is_emulated(trial) else ratio


def ratio_of(ours: Timing, theirs: Timing) -> Verdict:
    """theirs / ours with its 95 % interval, from the samples if the session has them, else from the quartiles."""
    a, b = samples_of(ours), samples_of(theirs)
    if a and b:
        return _bootstrapped(a, b)
    return from_quartiles((ours.median_ms, ours.q25_ms, ours.q75_ms, ours.samples),
                          (theirs.median_ms, theirs.q25_ms, theirs.q75_ms, theirs.samples))


@lru_cache(maxsize=4096)
def _bootstrapped(ours: tuple[float, ...], theirs: tuple[float, ...]) -> Verdict:
    return from_samples(ours, theirs)


def pairs(ours: Iterable[Trial], theirs: Iterable[Trial]) -> list[Pair]:
    """Trials of two sessions as `pairing.matched` pairs them: the same config, else the fastest right ones of a variant.

    Times of two devices, or emulated times, have no ratio; `note` says why.
    """
    found = []
    for a, b in matched(ours, theirs):
        if a and b:
            clocks = [("module_ms", d) for d in a.module_ms] or [("kernel_ms", a.direction)]
            found += [_pair(a, b, clock, direction) for clock, direction in clocks]
    return found


def chosen_pairs(trials: Sequence[Trial]) -> list[Pair]:
    """Pairs of each trial with the first one. Times of two layers or directions have no ratio; `note` says why."""
    found = []
    for a in trials[1:]:
        for clock, direction in [("module_ms", d) for d in a.module_ms] or [("kernel_ms", a.direction)]:
            pair = _pair(a, trials[0], clock, direction)
            if pair.ratio and (in_turns := speedup(a, trials[0], clock=clock, direction=direction)):
                pair = replace(pair, ratio=in_turns, verdict=in_turns.verdict)
            if (a.workload, a.direction) != (trials[0].workload, trials[0].direction):
                what = "layers" if a.workload != trials[0].workload else "directions"
                pair = replace(pair, ratio=None, verdict="", note=f"A and B have different {what}: not compared")
            found.append(pair)
    return found


def against_pytorch(trials: Iterable[Trial], *, default: bool = False) -> list[Pair]:
    """The fastest right candidate of each workload, direction and precision, and ModelNew, with the best PyTorch that may be
    compared with it in the same session; `default`: with PyTorch in its default settings, in any precision. If a candidate was
    judged several times, its newest trial counts, as in `for_workload`."""
    trials = list(trials)
    best: dict[tuple[Place, str, str, str], Trial] = {}
    for t in {(t.place, *_identity(t)): t for t in trials}.values():
        if is_baseline(t) or not t.ok or not (t.kernel_ms or t.module_ms):
            continue
        key = (t.place, t.kind, t.direction, t.precision)
        held = best.get(key)
        if held is None or (t.kernel_ms and held.kernel_ms and t.kernel_ms.median_ms < held.kernel_ms.median_ms):
            best[key] = t
    baselines, found = Baselines(trials), []
    for t in best.values():
        for clock, direction in [("module_ms", d) for d in t.module_ms] or [("kernel_ms", t.direction)]:
            other = _default_of(baselines, t, clock, direction) if default else best_baseline(
                baselines, t, clock=clock, direction=direction)
            if other is not None:
                found.append(_against(t, other, clock, direction))
    return found


def timing_of(trial: Trial, clock: str, direction: str) -> Timing | None:
    """The time of a right trial on that clock ("kernel_ms" or "module_ms"), else None."""
    if not trial.ok:
        return None
    if clock == "module_ms":
        return trial.module_ms.get(FORWARD if direction == FORWARD else BACKWARD)
    return trial.kernel_ms if trial.direction == direction else None


def floor_ms(trial: Trial) -> float | None:
    """The physical limit of the trial's direction on its GPU; None on the emulator or an unmeasured GPU."""
    found = floor_of(trial.workload, trial.direction, trial.precision, trial.device.name)
    return found.ms if found else None


def floor_of(workload: Workload, direction: str, precision: str, gpu_name: str) -> Floor | None:
    """The floor of a direction on a GPU whose ceilings are known for that precision, else None."""
    ceilings = ceilings_for(gpu_name)
    return floor(workload, direction, precision, ceilings) if ceilings and precision in ceilings.flops_per_s else None


def is_baseline(trial: Trial) -> bool:
    """Whether the trial is PyTorch's: of one direction ("baseline") or of a whole nn.ConvTranspose ("module_baseline")."""
    return trial.kind in BASELINES


def is_emulated(trial: Trial) -> bool:
    """Whether a kernel ran on the CPU emulator, so that its time does not predict a GPU. Baselines on the CPU are not emulated.
    """
    return not is_baseline(trial) and (trial.device.kind == "cpu" or "emulated" in trial.flags)


def same_place(a: Trial, b: Trial) -> bool:
    """Whether two times may be compared: they have the same device key and workload."""
    return a.place == b.place


def for_workload(trials: Iterable[Trial], workload: Workload) -> list[Trial]:
    """The trials of that workload. If a candidate was judged several times, only its newest trial."""
    newest: dict[tuple[object, ...], Trial] = {}
    for trial in trials:
        if trial.workload == workload:
            newest[_identity(trial)] = trial
    return list(newest.values())


def headline(trials: Sequence[Trial]) -> Headline | None:
    """The sentence with the number for a finished set of trials of one workload; None when there are none."""
    ours = [t for t in trials if not is_baseline(t)]
    if not ours:
        return None
    right = [t for t in ours if t.ok]
    counted = _counted(ours)
    if not right:
        worst = next((t for t in ours if t.status not in (Status.SKIPPED, Status.CANCELLED)), ours[0])
        return Headline(str(worst.status), f"{worst.name} {worst.direction}: {worst.headline}",
                        f"{worst.advice} {counted}")
    timed = [t for t in right if t.kernel_ms or t.module_ms]
    if not timed:
        return Headline("OK", f"{_of_all(right, ours)} right in all checks; none was timed", counted)
    if all(is_emulated(t) for t in timed):
        wrong = [t for t in ours if t.status in WRONG]
        which = f"{', for example' if wrong[1:] else ':'} {wrong[0].name}, {wrong[0].direction}" if wrong else ""
        sentence = f"{_of_all(wrong, ours)} wrong{which}" if wrong else f"{_of_all(right, ours)} right in all checks"
        return Headline(str(wrong[0].status) if wrong else EMULATED, sentence,
                        f"A time of the CPU emulator does not predict a GPU. {counted}")
    return _fastest(trials, timed) or Headline("OK", f"{_of_all(right, ours)} right in all checks",
                                               f"No PyTorch time of this device to compare with. {counted}")


def verdict_sentence(name: str, ratio: Verdict, baseline: Trial) -> str:
    """"split_mma grad_weight is 2.55× as fast as the best PyTorch (eager, TF32 on)". The words depend on the verdict: for
    UNSURE the sentence names no winner."""
    best, shown = f"the best PyTorch ({baseline.name})", numbers.ratio(ratio.value)
    return {SAME: f"{name} takes the same time as {best}, within 1 %",
            UNSURE: f"No clear winner: {name} {shown} {best}, {interval_words(ratio)}"}.get(
                ratio.verdict, f"{name} is {shown} as fast as {best}")


def interval_words(ratio: Verdict) -> str:
    return (f"95 % interval {numbers.interval(ratio.low, ratio.high, ratio.value)}" if ratio.low is not None
            else "fewer than 5 samples, so no interval")


def more_words(ratio: Verdict, ours: Timing, theirs: Timing) -> str:
    """ " About 40 more samples may decide it.", or nothing."""
    more = more_samples(ratio, min(ours.samples, theirs.samples))
    return f" About {numbers.count(more)} more samples may decide it." if more else ""


WRONG = frozenset({Status.WRONG_SHAPE, Status.WRONG_DTYPE, Status.WRONG_DEVICE, Status.UNWRITTEN, Status.OUT_OF_BOUNDS,
                   Status.NON_FINITE, Status.MISMATCH, Status.INPUT_MODIFIED, Status.NO_GRADIENT,
                   Status.NONDETERMINISTIC})


def _fastest(trials: Sequence[Trial], timed: list[Trial]) -> Headline | None:
    """The trial for the headline: the fastest module_ms if there is one, because it is the time of the whole call; else the
    best kernel_ms ratio."""
    baselines, found = Baselines(trials), []
    for trial in timed:
        for clock, direction in (*(("module_ms", d) for d in trial.module_ms), ("kernel_ms", trial.direction)):
            baseline = best_baseline(baselines, trial, clock=clock, direction=direction)
            ratio = speedup(trial, baseline, clock=clock, direction=direction)
            ours, theirs = timing_of(trial, clock, direction), baseline and timing_of(baseline, clock, direction)
            if baseline and ratio and ours and theirs:
                found.append((clock == "module_ms", ratio.value, clock, direction, trial, baseline, ratio, ours, theirs))
    if not found:
        return None
    _, _, clock, direction, trial, baseline, ratio, ours, theirs = max(found, key=lambda f: f[:2])
    name = f"{trial.name} {direction}"
    sentence = verdict_sentence(name, ratio, baseline)
    evidence = f"{numbers.time(ours.median_ms)} against {numbers.time(theirs.median_ms)}, {clock}; {interval_words(ratio)}."
    evidence += more_words(ratio, ours, theirs)
    strongest = strongest_baseline(baselines, trial) if clock == "kernel_ms" else None
    if strongest is not None and strongest is not baseline and (other := speedup(trial, strongest)):
        evidence += f" Against the strongest PyTorch ({strongest.name}): {numbers.ratio(other.value)}."
    evidence += "".join(f" {FLAG_WORDS[flag]}" for flag in trial.flags if flag in FLAG_WORDS)
    limit = floor_ms(trial) if clock == "kernel_ms" else None
    if limit:
        share = limit / ours.median_ms
        evidence += f" It runs at {numbers.share(share)} of the physical limit"
        evidence += f", so it can become at most {numbers.ratio(1 / share)} as fast." if share < 1 else "."
    return Headline(ratio.verdict, sentence, evidence)


def _where(trial: Trial, clock: str, direction: str) -> Where:
    """The key of times that may be compared. The times of a module are those of forward and of backward; each gradient counts
    as backward."""
    if clock == "module_ms":
        direction = FORWARD if direction == FORWARD else BACKWARD
    return trial.place, clock, direction


def _rows(trial: Trial, baselines: Baselines, limits: dict[_Cell, float | None], names: OwnName) -> list[dict[str, object]]:
    """`limits`: a cache of floors, because the trials of a session have few different ones."""
    key = (trial.place, trial.device.name, trial.direction, trial.precision)
    if key not in limits and not is_emulated(trial):
        limits[key] = floor_ms(trial)
    clocks = [("module_ms", d) for d in trial.module_ms] or [("kernel_ms", trial.direction)]
    main = main_numbers(trial, names)
    registers = main.registers if main else None
    return [_row(trial, baselines, clock, direction, limits.get(key) if clock == "kernel_ms" else None, registers)
            for clock, direction in clocks]


def _row(trial: Trial, baselines: Baselines, clock: str, direction: str, limit: float | None,
         registers: int | None) -> dict[str, object]:
    timing = timing_of(trial, clock, direction)
    ratio = None if is_baseline(trial) else speedup(
        trial, best_baseline(baselines, trial, clock=clock, direction=direction), clock=clock, direction=direction)
    # The spread of samples on the CPU depends on other processes, so it is not shown.
    spread = timing.spread if timing and trial.device.kind != "cpu" else None
    verdict = EMULATED if timing and is_emulated(trial) else ratio.verdict if ratio else ""
    # If some values are not finite or were not written, the error of the other values does not describe the result.
    errors = () if trial.status in (Status.NON_FINITE, Status.UNWRITTEN) else trial.errors.values()
    return {"status": str(trial.status), "verdict": verdict, "kind": trial.kind, "variant": trial.name,
            "direction": direction, "precision": trial.precision,
            "config": " ".join(f"{k}={v}" for k, v in trial.config.items()),
            "median_ms": timing.median_ms if timing else None, "spread": spread * 100 if spread is not None else None,
            "speedup": ratio.value if ratio and verdict != EMULATED else None,
            "of_limit": 100 * limit / timing.median_ms if limit and timing else None, "floor_ms": limit,
            "rel_l2": max((e.rel_l2 for e in errors), default=None),
            "max_abs": max((e.max_abs for e in errors), default=None),
            "registers": registers, "build_s": trial.build.seconds if trial.build else None,
            "peak_bytes": trial.memory.get("peak_bytes"), "clock": clock,
            "device": trial.device.name, "headline": trial.headline, "advice": trial.advice,
            "trial_id": trial.trial_id}


def _identity(trial: Trial) -> tuple[object, ...]:
    return (trial.kind, trial.name, trial.direction, trial.precision, trial.device.key, trial.candidate_id,
            tuple(sorted(trial.config.items())), trial.form, trial.compile_flags)


def _pair(a: Trial, b: Trial, clock: str, direction: str) -> Pair:
    ours, theirs = timing_of(a, clock, direction), timing_of(b, clock, direction)
    ratio, verdict, note = None, "", ""
    if ours is None or theirs is None:
        wrong = next((t for t in (a, b) if not t.ok), None)
        note = wrong.headline if wrong else "not timed"
    elif a.device.key != b.device.key:
        note = f"A ran on {a.device.name}, B on {b.device.name}: not compared"
    elif is_emulated(a) or is_emulated(b):
        verdict, note = EMULATED, "emulated times: no verdict"
    else:
        ratio = ratio_of(ours, theirs)
        verdict = ratio.verdict
        if a.candidate_id and b.candidate_id and a.candidate_id != b.candidate_id:
            note = "the source or the flags differ"
    if differ := differences(a, b):
        note = differ if note in ("", "the source or the flags differ") else f"{note}; {differ}"
    return Pair(a, b, ratio, verdict, note, clock, direction)


def _of_all(some: Sequence[Trial], ours: Sequence[Trial]) -> str:
    """"4 of 6 candidates and ModelNew are": a module consists of candidates, so it is counted separately. A candidate that does
    not apply to the layer is not counted."""
    modules = [t for t in some if t.kind == "module"]
    everyone = [t for t in ours if t.kind != "module" and t.status is not Status.SKIPPED]
    words = [f"{len(some) - len(modules)} of {len(everyone)} candidates"] if everyone else []
    words += [modules[0].name if len(modules) == 1 else f"{len(modules)} modules"] if modules else []
    words = words or ["no module"]
    single = len(words) == 1 and (bool(modules) or len(some) == 1 or len(everyone) == 1)
    return f"{' and '.join(words)} {'is' if single else 'are'}"


def _against(trial: Trial, baseline: Trial, clock: str, direction: str) -> Pair:
    ratio = speedup(trial, baseline, clock=clock, direction=direction)
    ours, theirs = trial.precision.split("+")[0], baseline.precision
    note = "" if ours == theirs else f"A computes in {trial.precision}, B in {theirs}"
    if is_emulated(trial):
        return Pair(trial, baseline, None, EMULATED, "emulated times: no verdict", clock, direction)
    return Pair(trial, baseline, ratio, ratio.verdict if ratio else "", note, clock, direction)


def _default_of(baselines: Baselines, trial: Trial, clock: str, direction: str) -> Trial | None:
    """PyTorch in its default settings. If that was not measured, PyTorch with TF32 on, which is its default for convolutions.
    """
    order = ("eager", "nn.ConvTranspose", "eager, TF32 on", "nn.ConvTranspose, TF32 on")
    there = [b for _, b in baselines.at(trial, clock, direction) if b.name in order]
    return min(there, key=lambda b: order.index(b.name), default=None)


def _counted(ours: Sequence[Trial]) -> str:
    """ "7 OK, 1 MISMATCH, 1 SKIPPED." """
    count: dict[str, int] = {}
    for trial in ours:
        count[str(trial.status)] = count.get(str(trial.status), 0) + 1
    return ", ".join(f"{n} {status}" for status, n in count.items()) + "."
