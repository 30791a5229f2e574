"""Makes the entries of core/best_known.json from recorded sessions: for every cell the fast variants, each with its best
config. A measured config is ranked by its time. sm_80 was not measured: its entry is the fastest candidate of a newer GPU that
can run there and that nvcc compiles for sm_80 without spills. The best configs of slower variants are listed apart."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from ...core import best_known
from ...core.best_known import DERIVED, BestKnown, class_of, load, save
from ...core.candidate import Candidate, why_not
from ...core.env import find_toolchain, nvcc_problem
from ...core.errors import BadRequest, RenderError
from ...core.gpu import sm_of
from ...core.precision import CLASSES
from ...core.presets import parse_preset
from ...core.template import render
from ...core.trial import Trial
from ...core.trial_parts import KernelNumbers
from ...core.variants import find
from ..reporting import report
from ..running.builds import BuildPool
from ..sessions.recorded import candidate_of
from ..sessions.session import Session
from .defaults import default_precision, defaults_of

DERIVED_ARCHS = ("sm_80",)
_TIMEOUT_S = 300.0        # limit of one call of nvcc
_Key = tuple[str, str, str, str, str]  # arch, preset or layer, direction, dtype, memory format
_WORTH_KNOWING = 1.5     # variants slower than this multiple of the best are left out, except the best of each precision


@dataclass(frozen=True)
class Baselines:
    """PyTorch's trials. Times are kept by session, because times of two sessions are not compared. `defaults` are those of all
    sessions."""

    defaults: list[Trial]
    of_session: dict[str, list[Trial]] = field(default_factory=dict)

    def beside(self, trial: Trial, session: Session, precision_class: str) -> Trial | None:
        """The fastest PyTorch of the same session that competes in this class."""
        return report.best_baseline(self.of_session.get(session.name, []), replace(trial, precision=precision_class))

    def ranked(self, trials: list[tuple[Trial, Session]], precision_class: str) -> list[tuple[Trial, Session]]:
        """By time; those beside which PyTorch was not measured come last."""
        def place(pair: tuple[Trial, Session]) -> tuple[bool, float]:
            return self.beside(pair[0], pair[1], precision_class) is None, pair[0].kernel_median_ms

        return sorted(trials, key=place)


class Nvcc:
    """Compiles candidates for an architecture, several at a time. The build cache keeps each answer."""

    def __init__(self) -> None:
        self.problem = nvcc_problem(find_toolchain(), None)  # why there is none, or None
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-workbench-")
        self._pool = BuildPool(Path(self._folder.name))
        self.size = self._pool.size  # how many calls it handles at the same time

    def spills(self, candidate: Candidate, arch: str) -> int | None:
        """Bytes of spilled registers per thread; None without nvcc, or if nvcc rejects the source."""
        if self.problem:
            return None
        answer = self._pool.resources_of(render(candidate), [arch], timeout_s=_TIMEOUT_S)
        return _most(answer.resources.get(candidate.variant.arch or arch)) if answer else None

    def __enter__(self) -> Nvcc:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.close()
        self._folder.cleanup()


def write_best(sessions: Sequence[Session], file: Path) -> list[BestKnown]:
    """Make the entries and write the file. Entries of cells that are not in the sessions stay in it. Returns the new ones.

    Raises `BadRequest` if no session has a GPU time, or if nvcc is missing, which compiles for the GPUs that were not measured.
    """
    with Nvcc() as nvcc:
        if nvcc.problem:
            raise BadRequest(f"A config for {', '.join(DERIVED_ARCHS)} needs nvcc. {nvcc.problem}")
        found = derive(sessions, nvcc)
    apart = slower_of(sessions, found)
    if not found:
        names = ", ".join(s.name for s in sessions) or "no session"
        raise BadRequest(f"There is no GPU time of a right candidate in {names}, so the best config is not known; run "
                         f"'python -m workbench bench' on a machine with a GPU.")
    measured = {e.key for e in found if not e.derived}
    before = load(file)
    kept_measured = {e.key for e in before if not e.derived} - measured
    new = [e for e in found if not (e.derived and e.key in kept_measured)]
    keys = {e.key for e in new}
    seen = {(*e.key, e.variant, e.precision) for e in apart}
    save([*new, *(e for e in before if e.key not in keys)], file,
         [*apart, *(e for e in best_known.slower(file) if (*e.key, e.variant, e.precision) not in seen)])
    return new


def slower_of(sessions: Iterable[Session], entries: Iterable[BestKnown]) -> list[BestKnown]:
    """For each cell the best config of each variant that has no entry there, because it is much slower than the best one. The
    config must be faster than another one of the variant in that cell. It must not be the default, which a tune tries anyway.
    """
    listed = {(e.arch, e.layer, e.direction, e.dtype, e.memory_format, e.variant, e.precision) for e in entries}
    found = []
    for (arch, _, direction, dtype, memory_format), trials in _cells(list(sessions))[0].items():
        of_variant: dict[tuple[str, str], list[tuple[Trial, Session]]] = {}
        for trial, session in sorted(trials, key=lambda pair: pair[0].kernel_median_ms):
            of_variant.setdefault((trial.name, trial.precision), []).append((trial, session))
        for (name, precision), there in of_variant.items():
            best, session = there[0]
            known = (arch, str(best.workload.layer), direction, dtype, memory_format, name, precision) in listed
            if not known and _was_chosen([trial for trial, _ in there]):
                found.append(replace(_entry(best, session, Baselines([]), class_of(precision), ""), rel_l2=None))
    return found


def derive(sessions: Iterable[Session], nvcc: Nvcc) -> list[BestKnown]:
    """The entries of all sessions. They come from right candidates that were timed on a GPU, with the largest tensors on which
    their preset or layer was run. For GPUs that were not measured, only candidates without spills count."""
    cells, baselines = _cells(list(sessions))
    entries: list[BestKnown] = []
    for trials in cells.values():
        for precision_class, admitted in CLASSES.items():
            entries += _of_cell([(t, s) for t, s in trials if t.precision in admitted], baselines, precision_class)
    there = {e.key for e in entries}
    for arch in DERIVED_ARCHS:
        entries += [e for e in _derived(cells, baselines, arch, nvcc) if e.key not in there]
    return entries


def _cells(sessions: list[Session]) -> tuple[dict[_Key, list[tuple[Trial, Session]]], Baselines]:
    """The right candidates of each cell, timed on a GPU with its largest tensors; and PyTorch's trials."""
    cells: dict[_Key, list[tuple[Trial, Session]]] = {}
    baselines = Baselines(defaults_of(sessions))
    for session in sessions:
        for trial in session.trials():
            if trial.device.kind != "cuda" or not trial.ok or not trial.kernel_ms:
                continue
            if trial.kind == "baseline":
                baselines.of_session.setdefault(session.name, []).append(trial)
            elif trial.kind == "candidate" and not trial.forked_from:
                work = trial.workload
                named = parse_preset(work.preset)[0].name if work.preset else str(work.layer)
                key = (trial.device.arch, named, trial.direction, work.dtype, work.memory_format)
                cells.setdefault(key, []).append((trial, session))
    for key, trials in cells.items():
        largest = max(_elements(t) for t, _ in trials)
        cells[key] = [(t, s) for t, s in trials if _elements(t) == largest]
    return cells, baselines


def _was_chosen(trials: list[Trial]) -> bool:
    """Whether the first of one variant's trials, sorted by time, is more than its default or the only config that was tried."""
    first = trials[0]
    try:
        default = find(first.name, first.direction).default_for(first.workload.memory_format)
    except BadRequest:
        return False
    return {**default, **first.tunables} != default and any(t.tunables != first.tunables for t in trials)


def _of_cell(trials: list[tuple[Trial, Session]], baselines: Baselines, precision_class: str, *,
             arch: str = "") -> list[BestKnown]:
    """The best config of each variant and precision, without those that are much slower than the best (see `_WORTH_KNOWING`).
    A trial beside which PyTorch was not measured counts only if there is no other one of that variant and precision."""
    best: dict[tuple[str, str], tuple[Trial, Session]] = {}
    for trial, session in baselines.ranked(trials, precision_class):
        best.setdefault((trial.name, trial.precision), (trial, session))
    if not best:
        return []
    ranked = sorted(best.values(), key=lambda pair: pair[0].kernel_median_ms)
    least = ranked[0][0].kernel_median_ms
    first_of = {precision: next(t for t, _ in ranked if t.precision == precision) for _, precision in best}
    return [_entry(t, s, baselines, precision_class, arch) for t, s in ranked
            if t.kernel_median_ms <= _WORTH_KNOWING * least or first_of[t.precision] is t]


def _derived(cells: dict[_Key, list[tuple[Trial, Session]]], baselines: Baselines, arch: str, nvcc: Nvcc
               ) -> list[BestKnown]:
    """Entries for a GPU that was not measured. For each cell, only trials on the nearest newer GPU count. Of these the fastest
    one is taken that can run on the unmeasured GPU and that nvcc compiles for it without spills."""
    def fastest(precision_class: str, trials: list[tuple[Trial, Session]]) -> list[tuple[Trial, Session]]:
        ranked = baselines.ranked(trials, precision_class)
        return next(([pair] for pair in ranked if runs_there(pair[0], arch, nvcc)), [])

    measured = sorted((key for key in cells if sm_of(key[0]) > sm_of(arch)), key=lambda key: sm_of(key[0]))
    lists = [(precision_class, [(t, s) for t, s in cells[key] if t.precision in admitted])
             for key in measured for precision_class, admitted in CLASSES.items()]
    with ThreadPoolExecutor(nvcc.size) as pool:
        chosen = list(pool.map(lambda one: fastest(*one), lists))
    found: dict[tuple[object, ...], BestKnown] = {}
    for (precision_class, _), best in zip(lists, chosen, strict=True):
        for entry in _of_cell(best, baselines, precision_class, arch=arch):
            found.setdefault(entry.key, replace(entry, note=DERIVED))
    return list(found.values())


def runs_there(trial: Trial, arch: str, nvcc: Nvcc) -> bool:
    """Whether the trial's candidate can run there: the header's conditions, shared memory, target, and no spills."""
    try:
        candidate = candidate_of(trial)
    except (BadRequest, RenderError):
        return False
    if why_not(candidate, sm=sm_of(arch)) is not None:
        return False
    known = _recorded_spills(trial, candidate, arch)
    return (nvcc.spills(candidate, arch) if known is None else known) == 0


def _entry(trial: Trial, session: Session, baselines: Baselines, precision_class: str, arch: str) -> BestKnown:
    work = trial.workload
    baseline = baselines.beside(trial, session, precision_class)
    return BestKnown(
        arch=arch or trial.device.arch, layer=str(work.layer), direction=trial.direction, dtype=work.dtype,
        precision_class=precision_class, variant=trial.name, config=_config(trial), precision=trial.precision,
        form=trial.form or "constant", ms=round(trial.kernel_median_ms, 6), batch=work.batch, input_size=tuple(work.input_size),
        gpu=trial.device.name, session=session.name,
        rel_l2=_two_digits(max((e.rel_l2 for e in trial.errors.values()), default=None)),
        baseline=baseline.name if baseline else "",
        baseline_ms=round(baseline.kernel_median_ms, 6) if baseline and baseline.kernel_ms else None,
        pytorch_precision=default_precision(baselines.defaults, trial), compile_flags=trial.compile_flags,
        memory_format=work.memory_format)


def _config(trial: Trial) -> dict[str, int]:
    """The trial's config in today's template: a tunable that is newer than the trial has its default."""
    try:
        return dict(candidate_of(trial).config)
    except (BadRequest, RenderError):  # the variant no longer offers it
        return trial.tunables


def _elements(trial: Trial) -> int:
    work = trial.workload
    return work.result_elements("forward") + work.result_elements("grad_input")


def _two_digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.2g}")


def _recorded_spills(trial: Trial, candidate: Candidate, arch: str) -> int | None:
    """Bytes of spilled registers per thread as recorded in the trial; None if they were not recorded."""
    return _most(trial.resources.get(candidate.variant.arch or arch))


def _most(kernels: Mapping[str, KernelNumbers] | None) -> int | None:
    return max((k.spill_store_bytes for k in (kernels or {}).values()), default=None)
