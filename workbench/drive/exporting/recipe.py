"""`Recipe`: the candidates that together compute a layer's directions. A direction without a candidate is left to PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from ...core.candidate import Candidate
from ...core.errors import BadRequest
from ...core.layer import BACKWARD, DIRECTIONS, FORWARD, GRAD_INPUT, GRAD_WEIGHT, LAUNCHES, ConvTranspose, Workload
from ...core.variants import TEMPLATES, find


@dataclass(frozen=True)
class Recipe:
    """One candidate per direction; None leaves the direction to PyTorch. `backward` is launched if both gradients are needed.
    If only one is needed, the candidate of that direction is launched. Without one, `backward` is launched and its other result
    is discarded. `proven`: direction -> the GPU generation (such as 90) on which the candidate was measured to be faster than
    PyTorch; 0 if on none. A direction is absent if a person chose the candidate. Raises `BadRequest` for candidates that do not
    fit the workload or the direction.
    """

    workload: Workload
    forward: Candidate | None = None
    grad_input: Candidate | None = None
    grad_weight: Candidate | None = None
    backward: Candidate | None = None
    proven: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not self.chosen:
            raise BadRequest("The recipe leaves every direction to PyTorch; choose a candidate for one of them.")
        for direction, candidate in self.chosen.items():
            _check(candidate, direction, self.workload)

    @classmethod
    def of(cls, workload: Workload, chosen: Mapping[str, Candidate], *, proven: Mapping[str, int] | None = None) -> Recipe:
        """The recipe of these candidates, launch -> candidate."""
        forward, grad_input, grad_weight, backward = (chosen.get(d) for d in LAUNCHES)
        return cls(workload, forward, grad_input, grad_weight, backward, proven or {})

    @property
    def chosen(self) -> dict[str, Candidate]:
        """Launch -> its candidate. Launches without a candidate are absent."""
        return {d: c for d in LAUNCHES if (c := getattr(self, d)) is not None}

    @property
    def layer(self) -> ConvTranspose:
        return self.workload.layer

    @property
    def precision(self) -> dict[str, str]:
        """Direction -> the precision in which it is computed if all directions are needed. Directions left to PyTorch are
        absent."""
        found = {d: getattr(self, d) if d == FORWARD else self.backward or getattr(self, d) for d in DIRECTIONS}
        return {d: c.precision for d, c in found.items() if c is not None}

    def to_json(self) -> dict[str, Any]:
        return {"workload": self.workload.to_json(), "proven": dict(self.proven),
                **{d: _to_json(c) for d, c in self.chosen.items()}}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Recipe:
        """The recipe from its JSON, with the present templates. Raises `BadRequest` if a variant no longer exists."""
        workload = Workload.from_json(data["workload"])
        chosen = {d: _from_json(data[d], workload) for d in LAUNCHES if data.get(d)}
        return cls.of(workload, chosen, proven=data.get("proven"))


def fastest(ms: Mapping[str, float]) -> tuple[str, ...]:
    """The launches of the fastest recipe. `ms`: the least time of each launch. All launches are used, except a `backward` that
    is slower than the two gradients one after the other."""
    alone = ms.get(GRAD_INPUT, inf) + ms.get(GRAD_WEIGHT, inf)
    worth = BACKWARD in ms and (ms[BACKWARD] < alone or not {GRAD_INPUT, GRAD_WEIGHT} <= set(ms))
    return tuple(d for d in LAUNCHES if d in ms and (d != BACKWARD or worth))


def serves_any_layer(candidate: Candidate) -> bool:
    """Whether its launcher takes the layer's parameters at run time and has no condition on them."""
    conditions = (*candidate.variant.needs, *(text for _, text in candidate.variant.derived))
    return candidate.form == "runtime" and not any("layer." in c for c in conditions)


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


def _to_json(candidate: Candidate) -> dict[str, Any]:
    root = candidate.variant.path.parent.parent
    data = {"variant": candidate.variant.name, "direction": candidate.direction, "config": candidate.config,
            "precision": candidate.precision, "form": candidate.form, "compile_flags": list(candidate.compile_flags)}
    return data if root == TEMPLATES else {**data, "templates": str(root)}


def _from_json(data: dict[str, Any], workload: Workload) -> Candidate:
    root = Path(data["templates"]) if data.get("templates") else None
    return Candidate(find(data["variant"], data["direction"], root=root), workload.layer, workload.dtype,
                     dict(data["config"]), data["precision"], data["form"], tuple(data.get("compile_flags", ())))
