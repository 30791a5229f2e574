"""`Recipe`: the candidates that together cover a layer's directions, and what serves the layers they cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from ..core.candidate import Candidate, why_not
from ..core.errors import BadRequest
from ..core.layer import BACKWARD, DIRECTIONS, FORWARD, GRAD_INPUT, GRAD_WEIGHT, LAUNCHES, ConvTranspose, Workload
from ..core.variants import PRECISIONS_OF, TEMPLATES, Variant, discover, find

_OLDEST_SM = 80


@dataclass(frozen=True)
class Recipe:
    """One candidate per direction; None leaves the direction to PyTorch. `backward` is launched where both gradients
    are wanted; where one of them is, the candidate of that direction, or without one `backward`, whose other result is
    dropped. Raises `BadRequest` for candidates that do not belong to the workload or the direction.
    """

    workload: Workload
    forward: Candidate | None = None
    grad_input: Candidate | None = None
    grad_weight: Candidate | None = None
    backward: Candidate | None = None

    def __post_init__(self) -> None:
        if not self.chosen:
            raise BadRequest("The recipe leaves every direction to PyTorch; choose a candidate for one of them.")
        for direction, candidate in self.chosen.items():
            _check(candidate, direction, self.workload)

    @property
    def chosen(self) -> dict[str, Candidate]:
        """Launch -> its candidate, those that there are."""
        return {d: c for d in LAUNCHES if (c := getattr(self, d)) is not None}

    @property
    def layer(self) -> ConvTranspose:
        return self.workload.layer

    @property
    def precision(self) -> dict[str, str]:
        """Direction -> the precision it is computed in where all are wanted; those left to PyTorch are absent."""
        found = {d: getattr(self, d) if d == FORWARD else self.backward or getattr(self, d) for d in DIRECTIONS}
        return {d: c.precision for d, c in found.items() if c is not None}

    @property
    def kernels(self) -> dict[str, tuple[Candidate, ...]]:
        """Launcher direction -> its candidates, the chosen one first, then one that serves every other layer."""
        table: dict[str, tuple[Candidate, ...]] = {BACKWARD: (self.backward,)} if self.backward else {}
        for direction in DIRECTIONS:
            candidate = getattr(self, direction)
            like = candidate or (self.backward if direction != FORWARD else None)
            fallback = _general(like, direction) if like else None
            table[direction] = tuple(dict.fromkeys(c for c in (candidate, fallback) if c is not None))
        return {direction: table[direction] for direction in LAUNCHES if table.get(direction)}

    def to_json(self) -> dict[str, Any]:
        return {"workload": self.workload.to_json(), **{d: _to_json(c) for d, c in self.chosen.items()}}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Recipe:
        """The recipe again, with the templates as they are now. Raises `BadRequest` when a variant is gone."""
        workload = Workload.from_json(data["workload"])
        return cls(workload, **{d: _from_json(data[d], workload) for d in LAUNCHES if data.get(d)})


def fastest(ms: Mapping[str, float]) -> tuple[str, ...]:
    """Launches of the fastest recipe, from the least time of each: all but a `backward` that is slower than the two
    gradients one after the other."""
    alone = ms.get(GRAD_INPUT, inf) + ms.get(GRAD_WEIGHT, inf)
    worth = BACKWARD in ms and (ms[BACKWARD] < alone or not {GRAD_INPUT, GRAD_WEIGHT} <= set(ms))
    return tuple(d for d in LAUNCHES if d in ms and (d != BACKWARD or worth))


def serves_any_layer(candidate: Candidate) -> bool:
    """Whether its launcher takes every layer as an argument."""
    return candidate.form == "runtime" and _is_general(candidate.variant)


def _check(candidate: Candidate, direction: str, workload: Workload) -> None:
    name = candidate.variant.name
    if direction != candidate.direction:
        advice = f"give it as {BACKWARD}" if candidate.direction == BACKWARD else f"choose another variant for {direction}"
        raise BadRequest(f"{name} computes {' and '.join(candidate.variant.computes)}; {advice}.", field=direction)
    if candidate.layer != workload.layer:
        raise BadRequest(f"{name} was made for {candidate.layer}; the recipe is for {workload.layer}.",
                         field=direction)
    if candidate.dtype != workload.dtype:
        raise BadRequest(f"{name} computes {candidate.dtype}; the recipe is for {workload.dtype}.", field=direction)
    if not candidate.precision:
        raise BadRequest(f"{name} does not compute {candidate.dtype}; choose another variant for {direction}.",
                         field=direction)


def _general(candidate: Candidate, direction: str) -> Candidate | None:
    """The same variant in its run-time form; else the first general variant of that direction in reading order.

    One of the same precision is preferred. None when no variant serves: then PyTorch computes the other layers.
    """
    root = candidate.variant.path.parent.parent
    others = [v for where in dict.fromkeys((root, TEMPLATES)) for v in discover(where) if v.direction == direction]
    fitting = [v for v in others if _is_general(v) and _offered(v, candidate.dtype)]
    fitting.sort(key=lambda v: candidate.precision not in _offered(v, candidate.dtype))
    if _is_general(candidate.variant) and candidate.direction == direction:
        same = _runtime(candidate.variant, candidate, candidate.config)
        # A config may need more than the oldest GPU has, or more than the run-time form has.
        return same if why_not(same, sm=_OLDEST_SM) is None else _runtime(candidate.variant, candidate, {})
    return _runtime(fitting[0], candidate, {}) if fitting else None


def _runtime(variant: Variant, candidate: Candidate, config: dict[str, int]) -> Candidate:
    offered = _offered(variant, candidate.dtype)
    precision = candidate.precision if candidate.precision in offered else offered[0]
    # A layer of its own does not matter to the run-time form: the same source serves every recipe.
    return Candidate(variant, candidate.layer, candidate.dtype, config, precision, "runtime", candidate.compile_flags)


def _is_general(variant: Variant) -> bool:
    conditions = (*variant.needs, *(text for _, text in variant.derived))
    return "runtime" in variant.forms and variant.min_sm <= _OLDEST_SM and not any("layer." in c for c in conditions)


def _offered(variant: Variant, dtype: str) -> list[str]:
    return [p for p in variant.precision if p in PRECISIONS_OF[dtype]]


def _to_json(candidate: Candidate) -> dict[str, Any]:
    root = candidate.variant.path.parent.parent
    data = {"variant": candidate.variant.name, "direction": candidate.direction, "config": candidate.config,
            "precision": candidate.precision, "form": candidate.form, "compile_flags": list(candidate.compile_flags)}
    return data if root == TEMPLATES else {**data, "templates": str(root)}


def _from_json(data: dict[str, Any], workload: Workload) -> Candidate:
    root = Path(data["templates"]) if data.get("templates") else None
    return Candidate(find(data["variant"], data["direction"], root=root), workload.layer, workload.dtype,
                     dict(data["config"]), data["precision"], data["form"], tuple(data.get("compile_flags", ())))
