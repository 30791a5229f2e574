"""What a session already holds of a request: `--resume` runs only what is missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..core.candidate import Candidate
from ..core.errors import RenderError
from ..core.template import render
from ..core.trial import Status, Trial
from .devices import resolve_device
from .run import RunRequest


def missing(candidates: Iterable[Candidate], trials: list[Trial], request: RunRequest) -> list[Candidate]:
    """Candidates without a finished trial of the same work on the same kind of device. CANCELLED is not finished."""
    kind = "cpu" if resolve_device(request.device) == "cpu" else "cuda"
    done = {(t.candidate_id or (t.name, t.direction, str(sorted(t.config.items())))) for t in trials
            if t.kind == "candidate" and t.status is not Status.CANCELLED and t.device.get("kind") == kind
            and t.workload == request.workload.to_json()}
    left = []
    for candidate in candidates:
        try:
            key: object = render(candidate).candidate_id
        except RenderError:
            key = None
        if key not in done and (candidate.variant.name, candidate.direction,
                                str(sorted(candidate.config.items()))) not in done:
            left.append(candidate)
    return left


def measured_directions(trials: list[Trial], request: RunRequest, device: dict[str, Any]) -> set[str]:
    """Directions whose PyTorch baselines were measured: the same workload, on that very device."""
    return {t.direction for t in trials if t.kind == "baseline" and t.ok
            and t.workload == request.workload.to_json() and t.device.get("key") == device["key"]}
