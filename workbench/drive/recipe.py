"""`Recipe`: the candidates that together cover a layer's directions, and what serves the layers they cannot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.candidate import Candidate, why_not
from ..core.errors import BadRequest
from ..core.layer import BACKWARD, DIRECTIONS, GRAD_INPUT, GRAD_WEIGHT, ConvTranspose, Workload
from ..core.variants import PRECISIONS_OF, TEMPLATES, Variant, discover, find

_OLDEST_SM = 80


@dataclass(frozen=True)
class Recipe:
    """One candidate per direction; None leaves the direction to PyTorch. A `backward` candidate given for one
    gradient serves both. Raises `BadRequest` for candidates that do not belong to the workload or the direction.
    """

    workload: Workload
    forward: Candidate | None = None
    grad_input: Candidate | None = None
    grad_weight: Candidate | None = None

    def __post_init__(self) -> None:
        both = [c for c in (self.grad_input, self.grad_weight) if c is not None and c.direction == BACKWARD]
        if both:
            other = next((c for c in (self.grad_input, self.grad_weight) if c is not None and c != both[0]), None)
            if other is not None:
                raise BadRequest(f"{both[0].variant.name} computes both gradients; leave out {other.variant.name} for "
                                 f"the other one.", field=BACKWARD)
            object.__setattr__(self, GRAD_INPUT, both[0])
            object.__setattr__(self, GRAD_WEIGHT, both[0])
        chosen = {d: c for d in DIRECTIONS if (c := getattr(self, d)) is not None}
        if not chosen:
            raise BadRequest("The recipe leaves every direction to PyTorch; choose a candidate for one of them.")
        for direction, candidate in chosen.items():
            _check(candidate, direction, self.workload)

    @property
    def layer(self) -> ConvTranspose:
        return self.workload.layer

    @property
    def precision(self) -> dict[str, str]:
        """Direction -> the precision it is computed in; directions left to PyTorch are absent."""
        return {d: c.precision for d in DIRECTIONS if (c := getattr(self, d)) is not None}

    @property
    def kernels(self) -> dict[str, tuple[Candidate, ...]]:
        """Launcher direction -> its candidates, the chosen one first, then one that serves every other layer."""
        table: dict[str, tuple[Candidate, ...]] = {}
        for direction in DIRECTIONS:
            candidate = getattr(self, direction)
            if candidate is None:
                continue
            fallback = _general(candidate, direction)
            if candidate.direction == BACKWARD:
                table[BACKWARD] = (candidate,)
            chosen = () if candidate.direction == BACKWARD else (candidate,)
            table[direction] = chosen + ((fallback,) if fallback and fallback != candidate else ())
        return {direction: found for direction, found in table.items() if found}

    def to_json(self) -> dict[str, Any]:
        return {"workload": self.workload.to_json(),
                **{d: _to_json(c) for d in DIRECTIONS if (c := getattr(self, d)) is not None}}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Recipe:
        """The recipe again, with the templates as they are now. Raises `BadRequest` when a variant is gone."""
        workload = Workload.from_json(data["workload"])
        return cls(workload, **{d: _from_json(data[d], workload) for d in DIRECTIONS if data.get(d)})


def serves_any_layer(candidate: Candidate) -> bool:
    """Whether its launcher takes every layer as an argument."""
    return candidate.form == "runtime" and _is_general(candidate.variant)


def _check(candidate: Candidate, direction: str, workload: Workload) -> None:
    name = candidate.variant.name
    if direction not in candidate.variant.computes:
        raise BadRequest(f"{name} computes {', '.join(candidate.variant.computes)}; choose another variant for "
                         f"{direction}.", field=direction)
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
