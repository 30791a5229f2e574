"""module_ms: the fastest right candidate of each direction becomes a ModelNew, judged against nn.ConvTranspose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...core.layer import LAUNCHES
from ...core.presets import problem_of
from ...core.replies import ModuleJudged
from ...core.trial import Trial
from ..reporting.report import is_emulated
from ..running import outcome
from ..running.request import Row, Run
from ..running.worker_process import WorkerDied, WorkerFailed, WorkerTimeout
from ..sessions.session import Session
from .export import export_text, module_order
from .recipe import Recipe, fastest


def best_rows(run: Run) -> dict[str, Row]:
    """Direction -> the row with the fastest right trial, for the directions of the fastest recipe. Without GPU times it is the
    first right row."""
    times = {t.trial_id: t.kernel_ms.median_ms if t.kernel_ms and not is_emulated(t) else float("inf")
             for t in run.trials if t.ok}
    best: dict[str, Row] = {}
    for row in run.rows:
        if row.trial_id in times and row.direction in LAUNCHES:
            if row.direction not in best or times[row.trial_id] < times[best[row.direction].trial_id]:
                best[row.direction] = row
    return {d: best[d] for d in fastest({d: times[row.trial_id] for d, row in best.items()})}


def judge_modules(call: Callable[..., ModuleJudged], run: Run, session: Session, device: str, scratch: Path) -> list[Trial]:
    """Trials of the ModelNew and of nn.ConvTranspose in its modes; empty when no candidate was right."""
    best = best_rows(run)
    if not best:
        return []
    request = run.request
    recipe = Recipe.of(request.workload, {d: row.candidate for d, row in best.items()})
    preset = problem_of(request.workload)
    text = export_text(recipe, constructor=preset)
    order = module_order(text, request.workload, device=device, scratch=scratch, preset=preset)
    try:
        result = call(replace(order, time=request.time, effort=request.effort), limit_s=max(300.0, 4 * request.run_timeout_s))
    except (WorkerDied, WorkerFailed, WorkerTimeout) as error:
        result = ModuleJudged(**vars(outcome.failure(error, building=False)))
    return outcome.module_trials(session, run, result, recipe={d: row.candidate for d, row in best.items()}, text=text)
