"""Makes the table of a bench session: one `Cell` for each layer, direction and precision class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import Protocol, TypeVar

from ...core import numbers
from ...core.layer import BACKWARD, CONTIGUOUS, DIRECTIONS, FORWARD, LAUNCHES, MEMORY_FORMATS, Workload
from ...core.precision import CLASSES, QUALIFIES
from ...core.presets import PRESETS, SIZES, SUITES
from ...core.pytorch_ways import UNCONVERTED
from ...core.roofline import Floor, ceilings_of, floor
from ...core.trial import FORMULATION, Status, Trial
from ...core.verdict import MARGIN, Verdict
from ..reporting import report
from ..sessions.session import Session
from .execute import EVENT, is_of_modules
from .plan import dtype_of

NOTE = "bench_note"
NOT_YET = "not measured yet"                    # why a cell has no time, before its turn has come
Group = tuple[str, str, str, str]               # suite, memory format, class, GPU
# The targets for the full size on a GPU.
_TWICE = ("kb64", "kb74", "kb81")               # our time in every direction must be at most max(baseline / 2, floor / 0.65)
_FOUR_TIMES = ("kb72", "kb73", "kb75", "kb77", "kb79", "kb81")  # forward
_ERROR = {"ieee": 3e-6}                         # the largest relative L2 error to float64
_ERROR_TF32 = 1.1                               # in TF32: largest error / error of cuDNN's TF32 in the same cell


@dataclass(frozen=True)
class Wanted:
    """A cell by name."""

    preset: str
    size: str
    direction: str
    precision: str        # the class
    memory_format: str = CONTIGUOUS

    @property
    def group(self) -> tuple[str, str, str]:
        """Its table, without the GPU: suite, memory format, class."""
        return PRESETS[self.preset].suite, self.memory_format, self.precision


@dataclass(frozen=True)
class Cell:
    """The best right candidate of a cell against the fastest PyTorch that qualifies. Times are kernel_ms medians."""

    name: Wanted
    best: Trial | None
    baseline: Trial | None
    verdict: Verdict | None       # None for emulated times and without a baseline
    floor: Floor | None
    candidates: tuple[Trial, ...]
    missed: tuple[str, ...]       # one clause for each missed target
    note: str = ""                # a sentence that a person wrote about it (bench --note)
    session: str = ""             # the session that has the times
    strongest: Trial | None = None            # fastest of all formulations in PyTorch; None if they were not measured
    strongest_verdict: Verdict | None = None
    unconverted: Trial | None = None          # PyTorch with all tensors in channels_last before and after
    gpu: str = ""                             # the GPU of its session; "" if it ran only on the emulator

    @property
    def group(self) -> Group:
        """Its table: suite, memory format, class, GPU."""
        return (*self.name.group, self.gpu)

    @property
    def ms(self) -> float | None:
        return self.best.kernel_ms.median_ms if self.best and self.best.kernel_ms else None

    @property
    def baseline_ms(self) -> float | None:
        return self.baseline.kernel_ms.median_ms if self.baseline and self.baseline.kernel_ms else None

    @property
    def ratio(self) -> float | None:
        return self.verdict.value if self.verdict else None

    @property
    def strongest_ratio(self) -> float | None:
        return self.strongest_verdict.value if self.strongest_verdict else None

    @property
    def of_floor(self) -> float | None:
        return self.floor.ms / self.ms if self.floor and self.ms else None

    @property
    def rel_l2(self) -> float | None:
        return max((e.rel_l2 for e in self.best.errors.values()), default=None) if self.best else None

    @property
    def emulated(self) -> bool:
        return self.best is not None and report.is_emulated(self.best)

    @property
    def reason(self) -> str:
        """Why it misses a target, as one clause; "" where it misses none."""
        return "; ".join([*self.missed, *([self.note] if self.note else [])])


@dataclass(frozen=True)
class Summary:
    """The geometric means of one class, over its cells that have a ratio."""

    precision: str
    cells: int
    counted: int
    missed: int
    ratio: float | None
    of_floor: float | None
    # The mean ratio over the `asked` cells whose formulations were measured; None if these are fewer than half of the cells.
    strongest: float | None = None
    asked: int = 0
    left: int = 0                     # cells slower than PyTorch
    with_left: float | None = None    # mean ratio if PyTorch computes the `left` cells


def wanted_of(sessions: Iterable[Session], *, of_all_variants: bool = False) -> list[Wanted]:
    """The cells of the benches in these sessions, in the order of the suite. A session without a bench has none; nor has a
    bench of only PyTorch's defaults or of whole modules. `of_all_variants` leaves out benches of named variants, and of
    configs from a file that was given."""
    found = {Wanted(layer, event["size"], direction, event["precision"], event.get("memory_format", CONTIGUOUS))
             for session in sessions for event in session.events() if event.get("event") == EVENT and not event.get("defaults")
             and not is_of_modules(event) and not (of_all_variants and (event.get("variants") or event.get("known")))
             for layer in event["layers"] if layer in PRESETS for direction in event["directions"]}
    names = list(PRESETS)
    return sorted(found, key=lambda w: (list(SUITES).index(w.group[0]), MEMORY_FORMATS.index(w.memory_format),
                                        list(CLASSES).index(w.precision), SIZES.index(w.size), names.index(w.preset),
                                        LAUNCHES.index(w.direction)))


def holds_bench(session: Session) -> bool:
    """Whether a bench was begun in it, of candidates or of PyTorch's defaults."""
    return any(event.get("event") == EVENT for event in session.events())


def cells_of(sessions: Sequence[Session]) -> list[Cell]:
    """The cells of some sessions, separately for each GPU, because times of two GPUs are not compared. The GPU with the most
    cells comes first. Emulated cells are listed with it."""
    of_gpu: dict[str, list[Session]] = {}
    for session in sessions:
        of_gpu.setdefault(_gpu_of(session), []).append(session)
    emulated = of_gpu.pop("", []) if len(of_gpu) > 1 else []
    gpus = sorted(of_gpu, key=lambda gpu: -len(wanted_of(of_gpu[gpu])))
    return [replace(one, gpu=gpu) for gpu in gpus
            for one in _cells([s for s in sessions if s in of_gpu[gpu] or gpu == gpus[0] and s in emulated])]


def _gpu_of(session: Session) -> str:
    return next((t.device.name for t in session.trials() if t.device.kind == "cuda"), "")


def _cells(sessions: Sequence[Session]) -> list[Cell]:
    """The cells of sessions of one GPU. All times of a cell, also PyTorch's, come from one session: the latest whose bench
    covers the cell and found a right candidate. Times of several sessions are not mixed. Trials on a GPU hide emulated ones of
    the same cell. A bench of named variants, or of configs from a given file, gives a cell only if its time is less than
    that of the latest bench of all variants. `backward` is a cell only if a variant computes it."""
    trials = [(_by_layer(session), set(wanted_of([session])), set(wanted_of([session], of_all_variants=True)), session.name)
              for session in sessions]
    notes = {(e["preset"], e["direction"], e["precision"], e.get("memory_format", CONTIGUOUS)): e["text"]
             for session in sessions for e in session.events() if e.get("event") == NOTE}
    found = []
    for name in wanted_of(sessions):
        note = notes.get((name.preset, name.direction, name.precision, name.memory_format), "")
        made, of_all = [], []
        for here, wanted, whole, session in trials:
            if name in wanted:
                made.append(replace(cell(name, here.get(f"{name.preset}/{name.size}", ()), note=note), session=session))
                of_all += made[-1:] if name in whole else []
        best = _shown(made, of_all)
        if name.direction != BACKWARD or best.candidates:
            found.append(replace(best, candidates=tuple(t for c in made for t in c.candidates)))
    return found


def _shown(made: Sequence[Cell], of_all: Sequence[Cell]) -> Cell:
    """The cell that is shown, of those from several sessions. It is the latest one; but if that is from a bench of named
    variants, or of a given file, and not faster, it is the latest one from a bench of all variants."""
    latest, whole = max(made, key=_rank), max(of_all, key=_rank, default=None)
    if whole is None or whole.ms is None or latest.ms is None or whole.emulated != latest.emulated:
        return latest
    return latest if latest in of_all or latest.ms < whole.ms else whole


def _rank(one: Cell) -> tuple[bool, bool, str, bool]:
    return one.ms is not None, not one.emulated, one.best.at if one.best else "", bool(one.candidates)


def _by_layer(session: Session) -> dict[str, list[Trial]]:
    found: dict[str, list[Trial]] = {}
    for trial in session.trials():
        found.setdefault(trial.workload.preset, []).append(trial)
    return found


def cell(name: Wanted, trials: Iterable[Trial], *, note: str = "") -> Cell:
    """One cell from trials of its layer."""
    work = PRESETS[name.preset].workload(name.size, dtype_of(name.precision), memory_format=name.memory_format)
    here = [t for t in trials if t.direction == name.direction and t.kind in ("candidate", "baseline")
            and (t.workload, t.workload.preset) == (work, work.preset)]
    if any(t.device.kind == "cuda" for t in here):
        here = [t for t in here if t.device.kind == "cuda"]
    ours = tuple(t for t in here if t.kind == "candidate" and not t.forked_from and t.precision in CLASSES[name.precision])
    right = [t for t in ours if t.ok and t.kernel_ms]
    best = min(right, key=lambda t: t.kernel_ms.median_ms if t.kernel_ms else 0.0, default=None)
    if best is None:
        return Cell(name, None, None, None, None, ours, (_nothing(ours),), note)
    baselines = report.Baselines(here)
    baseline = report.best_baseline(baselines, replace(best, precision=name.precision))
    verdict = None if report.is_emulated(best) else report.speedup(best, baseline)
    strongest = _strongest(baselines, best, name) if any(FORMULATION in t.flags for t in here) else None
    limit = None if report.is_emulated(best) else class_floor(work, name.direction, name.precision, best.device.name)
    made = Cell(name, best, baseline, verdict, limit, ours, (), note, strongest=strongest,
                strongest_verdict=None if report.is_emulated(best) else report.speedup(best, strongest),
                unconverted=_unconverted(baselines, best, name.precision))
    return replace(made, missed=tuple(_missed(made, here)))


def class_floor(workload: Workload, direction: str, precision: str, gpu_name: str) -> Floor | None:
    """The lowest floor on that GPU, of all precisions that belong to the class."""
    ceilings = ceilings_of(gpu_name)
    found = [f for p in CLASSES[precision] if (f := floor(workload, direction, p, ceilings))]
    return min(found, key=lambda f: f.ms, default=None)


class _Grouped(Protocol):
    @property
    def group(self) -> Group: ...


G = TypeVar("G", bound=_Grouped)


def groups_of(cells: Iterable[G]) -> dict[Group, list[G]]:
    """The cells or modules of each table, in their order."""
    found: dict[Group, list[G]] = {}
    for one in cells:
        found.setdefault(one.group, []).append(one)
    return found


def summary(cells: Sequence[Cell], precision: str) -> Summary:
    """The geometric means of a class. `backward` does not count as a cell, because it consists of both gradients, which are
    cells."""
    mine = [c for c in cells if c.name.precision == precision and c.name.direction in DIRECTIONS]
    ratios = [c.ratio for c in mine if c.ratio]
    shares = [c.of_floor for c in mine if c.of_floor]
    strongest = [c.strongest_ratio for c in mine if c.strongest_ratio]
    return Summary(precision, len(mine), len(ratios), sum(bool(c.missed) for c in mine), geometric_mean(ratios),
                   geometric_mean(shares), geometric_mean(strongest) if 2 * len(strongest) >= len(ratios) else None,
                   len(strongest), sum(r < 1 for r in ratios),
                   geometric_mean([max(r, 1.0) for r in ratios]))


def _strongest(baselines: report.Baselines, best: Trial, name: Wanted) -> Trial | None:
    """The strongest PyTorch. In the class ieee, PyTorch's split TF32 products count only against our tf32x3 kernels, not
    against our fp32 kernels."""
    return report.strongest_baseline(baselines, best if name.precision == "ieee" else replace(best, precision=name.precision))


def _unconverted(baselines: report.Baselines, best: Trial, precision: str) -> Trial | None:
    there = [(ms, b) for ms, b in baselines.at(best, "kernel_ms", best.direction)
             if b.detail.way in UNCONVERTED and b.precision in QUALIFIES[precision]]
    return min(there, key=lambda pair: pair[0])[1] if there else None


def _missed(made: Cell, here: list[Trial]) -> list[str]:
    """One clause for each target that the cell misses; [] if it meets all."""
    if made.name.size != "full" or made.emulated or made.ms is None or made.name.direction == BACKWARD:
        return []
    if made.baseline_ms is None:
        return ["no PyTorch time to compare with"]
    found = []
    ratio = made.ratio or made.baseline_ms / made.ms
    if ratio < 1 - MARGIN:
        found.append(f"slower than PyTorch ({numbers.ratio(ratio)})")
    elif made.name.precision == "tf32":
        if made.name.preset in _TWICE:
            most = max(made.baseline_ms / 2, made.floor.ms / 0.65 if made.floor else 0.0)
            if made.ms > most:
                found.append(f"the target is at most {numbers.time(most)}")
        if made.name.preset in _FOUR_TIMES and made.name.direction == FORWARD and ratio < 4:
            found.append("the target is 4×")
    limit = _ERROR.get(made.name.precision)
    cudnns = [e.rel_l2 for t in here if t.kind == "baseline" and t.ok and t.precision == "tf32" for e in t.errors.values()]
    if made.name.precision == "tf32" and cudnns:
        limit = _ERROR_TF32 * max(cudnns)
    if limit is not None and made.rel_l2 is not None and not made.rel_l2 <= limit:
        found.append(f"error {numbers.error(made.rel_l2)} above {numbers.error(limit)}")
    return found


def _nothing(ours: tuple[Trial, ...]) -> str:
    """Why there is no time at all."""
    failed = [t for t in ours if not t.ok and t.status is not Status.SKIPPED]
    if not ours:
        return NOT_YET
    if not failed:
        return f"no variant ran: {ours[0].headline}"
    if all(t.status is Status.OUT_OF_MEMORY for t in failed):
        return failed[0].headline.removesuffix(".")
    return f"no candidate was right: {failed[0].name} {failed[0].status}, {failed[0].headline}"


def geometric_mean(values: Sequence[float]) -> float | None:
    """None without values."""
    return exp(sum(map(log, values)) / len(values)) if values else None
