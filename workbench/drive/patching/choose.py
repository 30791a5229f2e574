"""The distinct layers of a model, and a recipe for each. The recipe is the best known one, if it was measured. Otherwise, on a
GPU it has the fastest kernels that are measured here; on the emulator it has the general kernels, which serve every layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from ...core.best_known import BestKnown
from ...core.candidate import EMULATED_SM, Candidate, why_not
from ...core.errors import BadRequest
from ...core.layer import DIRECTIONS, FORWARD, Workload
from ...core.patching import FoundLayer
from ...core.precision import CLASSES_OF, PRECISIONS_OF
from ...core.variants import discover
from ..exporting.best_recipe import best_recipe
from ..exporting.recipe import Recipe

GENERAL = "naive"                 # the names of general variants begin with this: they serve every layer and are slow
Measured = Callable[[Workload, Recipe | None], Recipe | None]


@dataclass(frozen=True)
class Distinct:
    """Instances of nn.ConvTranspose with the same parameters and dtype. The workload is that of their largest call."""

    workload: Workload
    layers: tuple[FoundLayer, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(layer.paths[0] for layer in self.layers)


@dataclass(frozen=True)
class Chosen:
    """A recipe and its origin; or None, and the reason in `origin`."""

    recipe: Recipe | None
    origin: str


def distinct(layers: tuple[FoundLayer, ...]) -> list[Distinct]:
    """The layers that can be replaced, grouped by layer and dtype, in the model's order."""
    groups: dict[tuple[object, str], list[tuple[Workload, FoundLayer]]] = {}
    for layer in layers:
        call = layer.largest
        if layer.why_not or call is None:
            continue
        workload = call.workload(layer.layer)
        groups.setdefault((layer.layer, call.dtype), []).append((workload, layer))
    return [Distinct(max((w for w, _ in group), key=lambda w: w.batch * prod(w.input_size)), tuple(one for _, one in group))
            for group in groups.values()]


def choose(workload: Workload, *, arch: str, emulated: bool, train: bool, measured: Measured) -> Chosen:
    """Choose a recipe. `measured` runs candidates on the GPU and returns a recipe of the fastest right ones that are faster
    than PyTorch. It also gets the derived recipe of this layer, if there is one. Without `train` the recipe has only forward.
    """
    derived: Recipe | None = None
    try:
        derived, entries = best_recipe(workload, arch)
        if not any(entry.derived for entry in entries):
            return _only_forward(derived, " ".join(map(_where, entries[:1])), train)
    except BadRequest as error:
        if not emulated and workload.dtype not in CLASSES_OF:
            return Chosen(None, str(error))
    if not emulated:
        found = measured(workload, derived)
        return _only_forward(found, "the fastest of those that were measured here", train) if found else Chosen(
            None, "No kernel was right and faster than PyTorch here.")
    general = {d: c for d in DIRECTIONS if (c := _general(workload, d))}
    # Nobody measured them on a GPU: a patch file leaves their layers to PyTorch there.
    return _only_forward(Recipe.of(workload, general, proven=dict.fromkeys(general, 0)), "the general kernels, on the emulator",
                         train) if general else Chosen(
        None, f"No general kernel computes {workload.dtype}.")


def _only_forward(recipe: Recipe, origin: str, train: bool) -> Chosen:
    """Without training the recipe has only forward, because the gradients are not used."""
    if train:
        return Chosen(recipe, origin)
    if recipe.forward is None:
        return Chosen(None, "No kernel for forward is known to be faster than PyTorch.")
    proven = {d: sm for d, sm in recipe.proven.items() if d == FORWARD}
    return Chosen(Recipe(recipe.workload, recipe.forward, proven=proven), origin)


def _where(entry: BestKnown) -> str:
    return f"{'tuned here' if entry.tuned else 'best known'}, session {entry.session}"


def _general(workload: Workload, direction: str) -> Candidate | None:
    for variant in discover():
        if (variant.direction == direction and variant.name.startswith(GENERAL) and "runtime" in variant.forms
                and set(variant.precision) & set(PRECISIONS_OF[workload.dtype])):
            candidate = Candidate(variant, workload.layer, workload.dtype, {}, form="runtime")
            if why_not(candidate, sm=EMULATED_SM) is None:
                return candidate
    return None
