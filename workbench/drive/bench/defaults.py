"""Two kinds of defaults, as sessions recorded them: the precision in which PyTorch computes a direction with its default
settings, and the default config of the fastest variant, compared with its best config.

cuDNN keeps the algorithm that it chose first for a problem, whatever `cudnn.benchmark` says later, and algorithms differ in
precision. So only baselines that ran in their own process show PyTorch's default.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...core import numbers
from ...core.best_known import class_of
from ...core.errors import BadRequest
from ...core.layer import BACKWARD, GRAD_INPUT, GRAD_WEIGHT
from ...core.trial import Trial
from ...core.variants import find
from ..reporting import report
from ..reporting.tables import aligned
from ..sessions.session import Session


def defaults_of(sessions: Iterable[Session]) -> list[Trial]:
    """The newest baseline of each workload, direction and device that ran in its own process."""
    found: dict[tuple[str, str, str], Trial] = {}
    for session in sessions:
        for trial in session.trials():
            if trial.kind == "baseline" and trial.detail.fresh_process:
                key = *trial.place, trial.direction
                if key not in found or found[key].at <= trial.at:
                    found[key] = trial
    return list(found.values())


def default_precision(defaults: Iterable[Trial], trial: Trial) -> str:
    """The precision of PyTorch's default in the trial's cell; "" if it was not measured. For `backward` it is the higher of the
    precisions of the two gradients."""
    here = {b.direction: b.precision for b in defaults if b.ok and report.same_place(b, trial)}
    if trial.direction != BACKWARD or BACKWARD in here:
        return here.get(trial.direction, "")
    alone = [here.get(GRAD_INPUT, ""), here.get(GRAD_WEIGHT, "")]
    return "ieee" if "ieee" in alone else "" if "" in alone else alone[0]


def defaults_table(defaults: Iterable[Trial]) -> str:
    """One line for each baseline: layer, direction, precision, time, and the kernel that took the longest."""
    rows = [("layer", "direction", "computed in", "median, ms", "longest kernel")]
    for trial in defaults:
        kernels = trial.detail.kernels or (trial.headline,)
        rows.append((trial.workload.preset, trial.direction, trial.precision or numbers.MISSING,
                     numbers.milliseconds(trial.kernel_ms.median_ms if trial.kernel_ms else None), kernels[0]))
    return "\n".join(aligned(rows))


@dataclass(frozen=True)
class DefaultConfig:
    """One cell of a session: its fastest candidate, and the same variant and precision at its default config."""

    best: Trial
    default: Trial | None       # None: not measured

    @property
    def ratio(self) -> float | None:
        """The default's time divided by the best config's time."""
        return self.default.kernel_median_ms / self.best.kernel_median_ms if self.default else None


def default_configs(sessions: Iterable[Session]) -> list[DefaultConfig]:
    """For every cell with a GPU time. Times of two sessions are not compared, but a session counts only if its best config is
    at most 3 % slower than that of any session: the same kernel differs by up to 3 % between sessions. If several sessions
    count, the cell comes from one that timed the default, else from the one that timed the most candidates. Variants that no
    longer exist do not count."""
    there: dict[tuple[str, ...], list[tuple[bool, int, DefaultConfig]]] = {}
    for session in sessions:
        cells: dict[tuple[str, ...], list[Trial]] = {}
        for trial in session.trials():
            if trial.kind == "candidate" and trial.ok and trial.kernel_ms and trial.device.kind == "cuda" and _config(trial):
                cells.setdefault((*trial.place, trial.direction, class_of(trial.precision)), []).append(trial)
        for key, trials in cells.items():
            best = min(trials, key=lambda t: t.kernel_median_ms)
            same = [t for t in trials if (t.name, t.precision) == (best.name, best.precision)]
            defaults = [t for t in same if _config(t) == find(t.name, t.direction).default_for(t.workload.memory_format)]
            one = DefaultConfig(best, min(defaults, key=lambda t: t.kernel_median_ms, default=None))
            there.setdefault(key, []).append((bool(defaults), len(trials), one))
    chosen = []
    for found in there.values():
        most = 1.03 * min(one.best.kernel_median_ms for *_, one in found)
        chosen.append(max((each for each in found if each[2].best.kernel_median_ms <= most), key=lambda each: each[:2])[2])
    return chosen


def default_configs_table(found: Iterable[DefaultConfig]) -> str:
    """The cells in which the default is not the best config, and the number of cells of each kind."""
    found = list(found)
    other = [one for one in found if one.default is not one.best]
    timed = sorted((one for one in other if one.ratio), key=lambda one: -(one.ratio or 0))
    rows = [("layer", "direction", "variant", "best, ms", "default takes", "best config differs in")]
    for one in (*timed, *(one for one in other if not one.ratio)):
        best, variant = one.best, find(one.best.name, one.best.direction)
        differs = " ".join(f"{k}={v}" for k, v in (_config(best) or {}).items() if v != variant.default_config[k])
        rows.append((best.workload.preset or str(best.workload.layer), best.direction, f"{best.name} in {best.precision}",
                     numbers.milliseconds(best.kernel_median_ms), f"{one.ratio:.3f} times" if one.ratio else "not measured",
                     differs))
    slow = sum((one.ratio or 0) > 1.15 for one in timed)
    counted = (f"{len(found)} cells. In {len(found) - len(other)} the default is the fastest config that was measured, or the "
               f"only one; in {len(timed) - slow} it takes at most 1.15 times as long; in {slow} it takes longer; in "
               f"{len(other) - len(timed)} it was not measured.")
    return "\n".join([*aligned(rows), "", counted])


def _config(trial: Trial) -> dict[str, int] | None:
    """The trial's config; None if the variant no longer exists, and for a fork."""
    try:
        return find(trial.name, trial.direction).config(trial.tunables)
    except BadRequest:
        return None
