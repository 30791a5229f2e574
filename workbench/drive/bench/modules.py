"""Whole modules, as sessions recorded them: the best known kernels of a layer as one ModelNew against nn.ConvTranspose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import fsum

from ...core import numbers
from ...core.layer import BACKWARD, CONTIGUOUS, DIRECTIONS, FORWARD
from ...core.precision import CLASSES_OF, QUALIFIES
from ...core.presets import PRESETS, parse_preset
from ...core.trial import Status, Trial
from ..reporting.report import is_emulated
from ..reporting.tables import aligned
from ..sessions.session import Session
from .cells import Cell, Group, geometric_mean, groups_of
from .execute import is_of_modules

HEADER = ("layer", "forward, ms", "PyTorch, ms", "ratio", "of the kernels", "forward + backward, ms", "PyTorch, ms", "ratio",
          "of the kernels")


@dataclass(frozen=True)
class Module:
    """One layer: the trial of the ModelNew, those of nn.ConvTranspose in its modes, and the layer's cells on the same GPU."""

    ours: Trial
    theirs: tuple[Trial, ...]
    session: str
    cells: tuple[Cell, ...] = ()

    @property
    def group(self) -> Group:
        """Its table, as that of a cell; the GPU is "" on the emulator."""
        work, gpu = self.ours.workload, "" if is_emulated(self.ours) else self.ours.device.name
        return parse_preset(work.preset)[0].suite, work.memory_format, CLASSES_OF[work.dtype][0], gpu

    def ms(self, *, both: bool) -> float | None:
        """Median of forward, or the sum of the medians of forward and backward; None if the module was not right or not timed.
        """
        return _ms(self.ours, both)

    def pytorch_ms(self, *, both: bool) -> float | None:
        """The same of PyTorch's fastest mode."""
        return min((ms for t in self.theirs if (ms := _ms(t, both)) is not None), default=None)

    def ratio(self, *, both: bool) -> float | None:
        """PyTorch's time over ours: the quotient of the medians. None for emulated times."""
        mine, other = self.ms(both=both), self.pytorch_ms(both=both)
        return other / mine if mine and other and not is_emulated(self.ours) else None

    def of_kernels(self, *, both: bool) -> float | None:
        """The same quotient of kernel_ms of forward, or of all three directions, by the layer's cells. A direction in which
        PyTorch is faster has PyTorch's time, because the module leaves it to PyTorch."""
        times = self._kernels(both)
        return fsum(other for _, other in times) / fsum(min(pair) for pair in times) if times else None

    def against_fastest(self, *, both: bool) -> float | None:
        """kernel_ms of PyTorch's fastest mode, by the layer's cells, over module_ms of ours. `of_kernels` has the same PyTorch,
        so their quotient is what the module adds to its kernels."""
        mine, times = self.ms(both=both), self._kernels(both)
        return fsum(other for _, other in times) / mine if mine and times and not is_emulated(self.ours) else None

    def _kernels(self, both: bool) -> list[tuple[float, float]]:
        """(our kernel_ms, PyTorch's) of each direction; [] if one is not measured."""
        there = {c.name.direction: (c.ms, c.baseline_ms) for c in self.cells}
        wanted = [there.get(d, (None, None)) for d in (DIRECTIONS if both else (FORWARD,))]
        times = [(ms, other) for ms, other in wanted if ms is not None and other is not None]
        return times if len(times) == len(wanted) else []


def modules_of(sessions: Iterable[Session], cells: Iterable[Cell] = ()) -> list[Module]:
    """The modules of benches of whole modules, in the order of the suites. A layer that several sessions measured on one GPU
    comes from the latest."""
    of_layer: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        of_layer.setdefault((f"{cell.name.preset}/{cell.name.size}", *cell.group[1:]), []).append(cell)
    found: dict[tuple[str, ...], Module] = {}
    for session in sessions:
        if not any(is_of_modules(event) for event in session.events()):
            continue
        trials = [t for t in session.trials() if t.workload.preset]
        for ours in (t for t in trials if t.kind == "module"):
            allowed = QUALIFIES[CLASSES_OF[ours.workload.dtype][0]]
            theirs = tuple(t for t in trials if t.kind == "module_baseline" and t.precision in allowed
                           and (t.run_id, t.place) == (ours.run_id, ours.place))
            one = Module(ours, theirs, session.name)
            key = ours.workload.preset, *one.group
            if key not in found or found[key].ours.at <= ours.at:
                found[key] = replace(one, cells=tuple(of_layer.get((ours.workload.preset, *one.group[1:]), ())))
    order = list(PRESETS)
    return sorted(found.values(), key=lambda m: (m.group[1:], order.index(parse_preset(m.ours.workload.preset)[0].name)))


def rows(modules: Sequence[Module], *, title: Callable[[str], str]) -> list[tuple[str, ...]]:
    """One row for each module, in the columns of `HEADER`; the last one has the geometric means. `title`: preset -> name."""
    found = []
    for one in modules:
        words = [title(parse_preset(one.ours.workload.preset)[0].name)]
        for both in (False, True):
            words += [numbers.milliseconds(one.ms(both=both)), numbers.milliseconds(one.pytorch_ms(both=both)),
                      numbers.ratio(one.ratio(both=both)), numbers.ratio(one.of_kernels(both=both))]
        found.append(tuple(words) if one.ours.ok else (words[0], f"{one.ours.status}: {one.ours.headline}", *[""] * 7))
    means = [["", "", numbers.ratio(mean_ratio(modules, both=both)),
              numbers.ratio(_mean(one.of_kernels(both=both) for one in modules))] for both in (False, True)]
    return [*found, ("geometric mean", *means[0], *means[1])]


def mean_ratio(modules: Iterable[Module], *, both: bool) -> float | None:
    """The geometric mean of the ratios; None without a ratio."""
    return _mean(one.ratio(both=both) for one in modules)


def sentence(modules: Sequence[Module]) -> str:
    """What modules add to their kernels, by the geometric means; "" without cells."""
    means = [(_mean(m.against_fastest(both=both) for m in modules), _mean(m.of_kernels(both=both) for m in modules))
             for both in (False, True)]
    if not all(value for pair in means for value in pair):
        return ""
    (forward, forward_kernels), (whole, kernels) = ((numbers.ratio(a), numbers.ratio(b)) for a, b in means)
    return (f"Against the fastest mode of PyTorch, by its `kernel_ms`, the modules reach {forward} in forward and {whole} in "
            f"forward + backward; their kernels alone reach {forward_kernels} and {kernels}.")


def table(modules: Sequence[Module]) -> str:
    """For a terminal: one block for each suite, memory format, class and GPU."""
    blocks = [[", ".join([suite, f"precision class {precision}", *([] if form == CONTIGUOUS else [form]), gpu or "emulated"]),
               *aligned([HEADER, *rows(mine, title=lambda name: name)])]
              for (suite, form, precision, gpu), mine in groups_of(modules).items()]
    return "\n\n".join("\n".join(lines) for lines in blocks) or "No module was judged."


def _ms(trial: Trial, both: bool) -> float | None:
    wanted = [trial.module_ms.get(d) for d in ((FORWARD, BACKWARD) if both else (FORWARD,))]
    known = [t.median_ms for t in wanted if t is not None]
    return fsum(known) if trial.status == Status.OK and len(known) == len(wanted) else None


def _mean(values: Iterable[float | None]) -> float | None:
    return geometric_mean([v for v in values if v])
