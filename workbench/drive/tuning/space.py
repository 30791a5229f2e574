"""All candidates for a workload in one direction, as numbers for the search, and the reasons for which other variants are left
out."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ...core.best_known import BestKnown, ranked
from ...core.candidate import Candidate
from ...core.derived_best import best_or_derived
from ...core.errors import BadRequest, RenderError
from ...core.layer import CONTIGUOUS, Workload
from ...core.occupancy import THREADS_PER_BLOCK_MAX, occupancy
from ...core.precision import CLASSES, CLASSES_OF, PRECISIONS_OF
from ...core.replies import Device
from ...core.space import SearchSpace
from ...core.trial import Trial
from ...core.variants import Variant, discover
from ..bench.plan import precisions
from ..searching.points import Points, points_from

MOST_POINTS = 20_000
RANKED = 16                # a ranking with fewer configs is continued with variations of its first one
_GENERAL = "naive"         # the names of general variants begin with this: they serve every layer, and take seconds on a GPU
_TOO_MANY_THREADS = f"a block has at most {THREADS_PER_BLOCK_MAX} threads"
_STATIC = ("threads", "smem_bytes")   # derived values that are features of the search, beside the tunables
_RESIDENT = "resident_warps"          # another one: how many warps of such blocks a multiprocessor holds


# more than two by place: the parts that identify a candidate, in the order of its fields
def key_of_parts(name: str, direction: str, precision: str, form: str, config: Mapping[str, object]) -> str:
    """The identity of a candidate in a tune, the same in every process and after every restart."""
    return " ".join([f"{direction}/{name}", precision, form, *(f"{k}={v}" for k, v in sorted(config.items()))])


def key_of(candidate: Candidate) -> str:
    return key_of_parts(candidate.variant.name, candidate.direction, candidate.precision, candidate.form, candidate.config)


def key_of_trial(trial: Trial) -> str:
    return key_of_parts(trial.name, trial.direction, trial.precision, trial.form or "constant", trial.config)


def class_for(workload: Workload, direction: str, arch: str, precision: str = "") -> str:
    """The precision class of a tune: the requested one, else the one in which PyTorch computes the layer by default."""
    if precision:
        if workload.dtype in CLASSES_OF and precision not in CLASSES_OF[workload.dtype]:
            raise BadRequest(f"precision {precision!r} is not a class of {workload.dtype}; choose "
                             f"{', '.join(CLASSES_OF[workload.dtype])}{_or_dtype(precision)}.", field="precision")
        return precision
    if workload.dtype not in CLASSES_OF:
        return PRECISIONS_OF[workload.dtype][0]
    first = CLASSES_OF[workload.dtype][0]
    known = best_or_derived(direction, workload, first, arch)
    return "ieee" if known and known.pytorch_precision == "ieee" else first


@dataclass(frozen=True)
class Removed:
    """How many configs one constraint excludes. It is an estimate if only a sample was examined."""

    why: str
    configs: int


@dataclass(frozen=True)
class Coverage:
    """The values of a tunable in the configs that can be tried, and the values that no legal config has."""

    tunable: str
    there: tuple[int, ...]
    left_out: tuple[int, ...]


@dataclass(frozen=True)
class Family:
    """A variant in one precision. `legal`: the number of legal configs, an estimate unless `whole`. `points`: how many of them
    can be tried."""

    name: str
    precision: str
    size: int
    legal: int
    points: int
    whole: bool
    removed: tuple[Removed, ...] = ()
    coverage: tuple[Coverage, ...] = ()


@dataclass(frozen=True)
class Explained:
    """The space that a tune searches in one direction. `left_out`: variant -> why it is left out."""

    direction: str
    precision_class: str
    size: int
    legal: int
    points: int
    families: tuple[Family, ...]
    left_out: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def why_empty(left_out: Mapping[str, str]) -> str:
    """Why nothing of a direction can be tried, in one line."""
    return "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "No variant has that name."


class TuneSpace:
    """All candidates of `workload` in one direction and precision class on a device: variants x legal configs.

    `looks`: the most configs of one variant that are examined. From a larger space a random sample is taken, the same one each
    time. The default config (or the nearest one that can run) and the best known ones are always in it.
    """

    def __init__(self, workload: Workload, direction: str, precision_class: str, device: Device, *, looks: int = 20_000,
                 variants: Sequence[str] = (), templates: Path | None = None) -> None:
        self.workload, self.direction, self.precision_class = workload, direction, precision_class
        self.device, self.looks, self.templates = device, looks, templates
        self.left_out: dict[str, str] = {}
        self._spaces: list[SearchSpace] = []
        # For each space: pairs of a config and its derived values.
        self._configs: list[list[tuple[dict[str, int], dict[str, int]]]] = []
        self._removed: list[dict[str, int]] = []
        for variant in discover(templates):
            if variant.direction == direction:
                self._take(variant, variants)
        self._thin()

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def families(self) -> tuple[tuple[str, str], ...]:
        """The variant and precision of each family."""
        return tuple((space.variant.name, space.precision) for space in self._spaces)

    @property
    def admitted(self) -> tuple[str, ...]:
        """The precisions in which a candidate of the class may compute."""
        return CLASSES.get(self.precision_class, (self.precision_class,))

    @cached_property
    def _members(self) -> list[tuple[int, dict[str, int]]]:
        return [(number, config) for number, configs in enumerate(self._configs) for config, _ in configs]

    @cached_property
    def keys(self) -> tuple[str, ...]:
        return tuple(key_of_parts(s.variant.name, self.direction, s.precision, s.form, config)
                     for s, config in ((self._spaces[number], config) for number, config in self._members))

    @cached_property
    def place_of(self) -> dict[str, int]:
        return {key: place for place, key in enumerate(self.keys)}

    def candidate(self, place: int) -> Candidate:
        number, config = self._members[place]
        return self._spaces[number].candidate(config)

    def label(self, place: int) -> str:
        """The family of a point, as text."""
        space = self._spaces[self._members[place][0]]
        return f"{space.variant.name} {space.precision}"

    def points(self, first: Iterable[str] = ()) -> Points:
        """The space as numbers. The ranking begins with the best known configs of this cell. Then come `first` (keys, such as
        those of similar layers) and the default config of each variant, in the order of the templates. Variants that have no
        config before them come first, so that a short tune tries each variant."""
        rows = [{**config, **{name: derived[name] for name in _STATIC if name in derived}, **_resident(
            derived.get("threads", config.get("BLOCK")), derived.get("smem_bytes", 0), self.device.sm)}
                for configs in self._configs for config, derived in configs]
        order = [self.place_of[key] for key in (*self.known, *first) if key in self.place_of]
        has = {self.label(place) for place in order}
        order += sorted((self.place_of[key] for key in self.starts if key in self.place_of), key=lambda i: self.label(i) in has)
        order = list(dict.fromkeys(order))
        order += self._one_step(order)[:max(0, RANKED - len(order))]
        return points_from(rows, keys=self.keys, families=[self.label(i) for i in range(len(self))], order=order,
                           derived=(*_STATIC, _RESIDENT))

    def _one_step(self, order: Sequence[int]) -> list[int]:
        """The points that differ from the first one of the ranking in one tunable, without those of the ranking."""
        if not order:
            return []
        (number, first), ranked = self._members[order[0]], set(order)
        return [place for place, (other, config) in enumerate(self._members) if other == number and place not in ranked
                and sum(config[name] != value for name, value in first.items()) == 1]

    def explain(self) -> Explained:
        families = []
        for space, configs, removed in zip(self._spaces, self._configs, self._removed, strict=True):
            looked, whole = removed["looked"], removed["looked"] == space.size
            scale = space.size / looked
            told = tuple(Removed(why, round(count * scale)) for why, count in removed.items() if why not in ("looked", "legal"))
            families.append(Family(
                space.variant.name, space.precision, space.size, round(removed["legal"] * scale), len(configs),
                whole and removed["legal"] == len(configs), told, tuple(
                    Coverage(t.name, tuple(v for v in t.values if v in there), tuple(v for v in t.values if v not in there))
                    for t in space.variant.tune for there in [{config[t.name] for config, _ in configs}])))
        return Explained(self.direction, self.precision_class, sum(f.size for f in families),
                         sum(f.legal for f in families), len(self), tuple(families), self.left_out)

    def _take(self, variant: Variant, wanted: Sequence[str]) -> None:
        """Add the legal configs of a variant, or the reason why there are none."""
        if wanted and not {variant.name, variant.key} & set(wanted):
            return
        if not wanted and self.device.kind == "cuda" and variant.name.startswith(_GENERAL):
            self.left_out[variant.name] = "general and slow on a GPU; name it with --variant to try it"
            return
        if self.precision_class in CLASSES:
            offered = [p for p in precisions(variant, self.precision_class) if p in PRECISIONS_OF[self.workload.dtype]]
        else:
            offered = [p for p in variant.precision if p == self.precision_class]
        if not offered:
            self.left_out[variant.name] = f"does not compute in the class {self.precision_class}"
        for precision in offered:
            space = SearchSpace(variant, self.workload.layer, self.workload.dtype, self.device.sm, precision, variant.forms[0],
                                self.workload.memory_format)
            legal, removed = self._looked(space)
            if legal:
                self._spaces.append(space)
                self._configs.append(legal)
                self._removed.append(removed)
            else:
                self.left_out[f"{variant.name} {precision}"] = self._reason(space)

    def _looked(self, space: SearchSpace) -> tuple[list[tuple[dict[str, int], dict[str, int]]], dict[str, int]]:
        """The legal configs with their derived values; and the counts: how many were examined, how many are legal, and how many
        each constraint excludes."""
        if space.size <= self.looks:
            places: Iterable[int] = range(space.size)
        else:
            places = random.Random(0).sample(range(space.size), self.looks)
        removed = {"looked": min(space.size, self.looks), "legal": 0}
        legal = []
        for config in map(space.at, places):
            reason, derived = _why_not(space, config)
            if reason is None:
                legal.append((config, derived))
                removed["legal"] += 1
            else:
                removed[reason] = removed.get(reason, 0) + 1
        there = [config for config, _ in legal]
        for config in self._always(space):
            if config not in there and (found := _why_not(space, config))[0] is None:
                legal.insert(0, (config, found[1]))
                there.insert(0, config)
        return legal, removed

    def _always(self, space: SearchSpace) -> list[dict[str, int]]:
        """Configs that are never left out by sampling."""
        start = space.nearest(space.default)
        known = [entry.config for entry in self._entries if entry.variant == space.variant.name
                 and entry.precision == space.precision]
        return [space.variant.config(config) for config in (*known, *([start] if start else []))]

    def _thin(self) -> None:
        """Reduce the space to MOST_POINTS. Small families stay complete; the others share the remaining points evenly."""
        left, families = MOST_POINTS, sorted(range(len(self._configs)), key=lambda n: len(self._configs[n]))
        for done, number in enumerate(families):
            share, configs = left // (len(families) - done), self._configs[number]
            if len(configs) > share:
                always = self._always(self._spaces[number])
                kept = [pair for pair in configs if pair[0] in always]
                rest = [pair for pair in configs if pair[0] not in always]
                self._configs[number] = kept + random.Random(0).sample(rest, max(0, share - len(kept)))
            left -= len(self._configs[number])

    @cached_property
    def _entries(self) -> list[BestKnown]:
        """Best known configs of the cell."""
        if self.precision_class not in CLASSES or not self.device.arch.startswith("sm_"):
            return []
        return list(ranked(self.direction, self.workload, self.precision_class, self.device.arch, root=self.templates))

    @cached_property
    def known(self) -> tuple[str, ...]:
        """The keys of the best known configs of the cell; not all of them need be in the space."""
        return tuple(key_of_parts(e.variant, self.direction, e.precision, e.form, e.config) for e in self._entries
                     if e.memory_format in (self.workload.memory_format, CONTIGUOUS))

    @cached_property
    def starts(self) -> tuple[str, ...]:
        """The keys of the default config of each variant, or of the nearest one that can run."""
        starts = ((space, space.nearest(space.default)) for space in self._spaces)
        return tuple(key_of_parts(space.variant.name, self.direction, space.precision, space.form, config)
                     for space, config in starts if config)

    def _reason(self, space: SearchSpace) -> str:
        reason, _ = _why_not(space, space.default, whole=True)
        return (reason or "no legal config was found").removeprefix("Not run: ")


@lru_cache(maxsize=4096)
def _resident(threads: int | None, smem_bytes: int, sm: int) -> dict[str, int]:
    """The occupancy as far as it is known before a build, when the registers are unknown. Empty without a block size."""
    if not threads:
        return {}
    return {_RESIDENT: occupancy(registers=0, shared_bytes=smem_bytes, threads=threads, sm=sm).warps_per_sm}


def _or_dtype(precision: str) -> str:
    """The words that ask for the dtype that has this class."""
    dtype = next((dtype for dtype, classes in CLASSES_OF.items() if precision in classes), "")
    return f", or tune another dtype: --dtype {dtype}" if dtype else ""


def _why_not(space: SearchSpace, config: dict[str, int], *, whole: bool = False) -> tuple[str | None, dict[str, int]]:
    """The constraint that excludes a config (with `whole` the full sentence), and the derived values."""
    try:
        reason, derived = space.examined(config)
    except RenderError as error:
        return str(error), {}
    if reason is None and derived.get("threads", config.get("BLOCK", 0)) > THREADS_PER_BLOCK_MAX:
        reason = _TOO_MANY_THREADS
    return reason if reason is None or whole else space.label(reason), derived
