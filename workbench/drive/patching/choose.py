"""The distinct layers of a model, and a recipe for each. The recipe is the best known one, if it was measured. Otherwise, on a
GPU it has the fastest of the `likely` kernels, which are measured here. On the emulator it has the general kernels, which serve
every layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import prod

from ...core.best_known import BestKnown, load, slower, stored
from ...core.candidate import EMULATED_SM, Candidate, why_not
from ...core.command import parse_layer
from ...core.derived_best import ORDER, OTHER_CLASSES
from ...core.errors import BadRequest
from ...core.gpu import sm_of
from ...core.layer import DIRECTIONS, FORWARD, LAUNCHES, Workload
from ...core.patching import FoundLayer
from ...core.precision import CLASSES, CLASSES_OF, PRECISIONS_OF
from ...core.space import SearchSpace
from ...core.start_config import start
from ...core.variants import discover
from ..exporting.best_recipe import best_recipe
from ..exporting.recipe import Recipe
from ..tuning.space import class_for
from ..tuning.store import apart

_GENERAL = ("naive_gather", "shared_weight_tiling", "warp_per_output")   # they serve every layer, and are slow
MOST_LIKELY = 4                   # that many variants of a direction are measured
Measured = Callable[[Workload, list[Candidate]], Recipe | None]


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
    """Choose a recipe. `measured` runs candidates on the GPU, those of the derived recipe and the `likely` ones, and returns a
    recipe of the fastest right ones that are faster than PyTorch. Without `train` the recipe has only forward."""
    derived: Recipe | None = None
    try:
        derived, entries = best_recipe(workload, arch)
        if not any(entry.derived for entry in entries):
            return _only_forward(derived, " ".join(map(_where, entries[:1])), train)
    except BadRequest as error:
        if not emulated and workload.dtype not in CLASSES_OF:
            return Chosen(None, str(error))
    if not emulated:
        directions = LAUNCHES if train else LAUNCHES[:1]
        there = [c for d, c in (derived.chosen if derived else {}).items() if d in directions]
        there += [c for d in directions for c in likely(workload, d, arch) if c not in there]
        found = measured(workload, there)
        return _only_forward(found, "the fastest of those that were measured here", train) if found else Chosen(
            None, "No kernel was right and faster than PyTorch here.")
    general = {d: c for d in DIRECTIONS if (c := _general(workload, d))}
    # Nobody measured them on a GPU: a patch file leaves their layers to PyTorch there.
    return _only_forward(Recipe.of(workload, general, proven=dict.fromkeys(general, 0)), "the general kernels, on the emulator",
                         train) if general else Chosen(
        None, f"No general kernel computes {workload.dtype}.")


def likely(workload: Workload, direction: str, arch: str) -> list[Candidate]:
    """At most `MOST_LIKELY` candidates of different variants that can run on that GPU: the fastest known variants of the most
    similar layers, each with its config there or the nearest one that can run. Those that were measured on such a GPU and in
    that precision class come first, then those of similar classes and other GPUs. If there are too few, variants in the usual
    order of preference, each with its default config."""
    wanted, sm = class_for(workload, direction, arch), sm_of(arch)
    classes, admitted = (wanted, *OTHER_CLASSES.get(wanted, ())), CLASSES.get(wanted, (wanted,))

    def nearest(entries: Iterable[BestKnown]) -> list[BestKnown]:
        return sorted((e for e in entries if e.direction == direction and e.precision_class in classes and not e.derived
                       and parse_layer(e.layer).dims == workload.layer.dims), key=lambda e: (
            sm_of(e.arch) // 10 != sm // 10, classes.index(e.precision_class), e.memory_format != workload.memory_format,
            apart(e, workload)))

    asked: list[tuple[str, str, dict[str, int] | None]] = [
        (e.variant, p, e.config) for e in (*nearest([*stored(), *load()]), *nearest(slower()))
        for p in ([e.precision] if e.precision in admitted else admitted)]
    # Without the last variant of the order: it serves every layer, but it is slow.
    asked += [(name, p, None) for name in ORDER.get(direction, ())[:-1] for p in admitted]
    variants = {v.name: v for v in discover() if v.direction == direction and v.name not in _GENERAL}
    found: dict[str, Candidate] = {}
    for name, precision, config in asked:
        variant = variants.get(name)
        if name in found or variant is None or precision not in variant.precision:
            continue
        space = SearchSpace(variant, workload.layer, workload.dtype, sm, precision, variant.forms[0], workload.memory_format)
        with suppress(BadRequest):   # the template has changed since
            there = start(space, arch, None if config is None else variant.config(config))
            if there is not None:
                found[name] = space.candidate(there.config)
        if len(found) == MOST_LIKELY:
            break
    return list(found.values())


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
        if (variant.direction == direction and variant.name.startswith("naive") and "runtime" in variant.forms
                and set(variant.precision) & set(PRECISIONS_OF[workload.dtype])):
            candidate = Candidate(variant, workload.layer, workload.dtype, {}, form="runtime")
            if why_not(candidate, sm=EMULATED_SM) is None:
                return candidate
    return None
