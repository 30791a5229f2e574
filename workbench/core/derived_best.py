"""The best known entry of a cell on any GPU. It was measured there, or it is derived by one rule; its note then says how.

The rule. The first of these that can run on the GPU is taken:

1. the fastest entry of that architecture;
2. the fastest entry of an older architecture; if no entry fits, the first for which a nearby config fits;
3. the fastest variant known for the layer in another precision, if the variant offers the wanted precision;
4. for layers of the suites: the first variant of `ORDER` that serves the layer, at its default config.

`start` changes a config that does not fit, and a default that is known to spill registers or to be slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

from .best_known import BestKnown, class_of, entries_of, without_bias
from .candidate import why_not
from .errors import BadRequest
from .gpu import sm_of
from .layer import FORWARD, GRAD_INPUT, GRAD_WEIGHT, Workload
from .precision import CLASSES
from .presets import PRESETS, SIZES
from .space import SearchSpace
from .start_config import Start, start
from .variants import Variant, discover

# In the order of preference: a variant that comes earlier was the fastest on most of the measured layers that it serves. The
# last variant serves every layer.
ORDER = {
    FORWARD: ("depthwise_rows", "wgmma_packed", "persistent_wgmma", "disjoint_mma", "implicit_gemm_mma", "gathered_mma",
              "register_blocked", "shared_weight_tiling"),
    GRAD_INPUT: ("depthwise_rows", "wgmma_packed", "persistent_wgmma", "implicit_gemm_mma", "gathered_mma",
                 "register_blocked", "shared_weight_tiling"),
    GRAD_WEIGHT: ("depthwise_rows", "strip_wgmma", "packed_wgmma", "persistent_wgmma", "split_mma", "register_blocked",
                  "shared_weight_tiling"),
}
# Precision class -> other classes whose fastest variant is taken, the most similar class first.
OTHER_CLASSES = {"tf32": (), "ieee": ("tf32",), "fp16": ("bf16", "tf32"), "bf16": ("fp16", "tf32")}
_DTYPE = {"tf32": "float32", "ieee": "float32", "fp16": "float16", "bf16": "bfloat16"}


def best_or_derived(direction: str, workload: Workload, precision: str, arch: str, *, exact: bool = False,
                    root: Path | None = None, file: Path | None = None) -> BestKnown | None:
    """The entry of a cell by the rule above, or None; parameters as `best_known.ranked`. Its `arch` is the one asked for."""
    chosen = class_of(precision)
    admitted = (precision,) if exact else CLASSES[chosen]
    sm = sm_of(arch)
    there = entries_of(direction, workload, chosen, sm, file=file)
    derived = _Derived(direction, workload, chosen, admitted, arch, next((e.pytorch_precision for e in there), ""), root)
    for changed in (False, True):
        for entry in there:
            if entry.precision in admitted and (found := derived.known(entry, changed=changed)):
                return found
    for other in OTHER_CLASSES[chosen]:
        for entry in entries_of(direction, replace(workload, dtype=_DTYPE[other]), other, sm, file=file):
            if found := derived.of_another_precision(entry, other):
                return found
    return next(derived.by_order(), None) if without_bias(str(workload.layer)) in _suite_layers() else None


@dataclass(frozen=True)
class _Derived:
    """Makes the entries of one cell."""

    direction: str
    workload: Workload
    precision_class: str
    admitted: tuple[str, ...]       # the precisions in which the kernel may compute
    arch: str
    pytorch_precision: str
    root: Path | None

    def known(self, entry: BestKnown, *, changed: bool) -> BestKnown | None:
        """Steps 1 and 2. `changed`: use only configs that must be changed, otherwise only configs that need no change. An entry
        of this architecture was measured there or compiled for it without spills, and is taken as it is."""
        variant = self._variant(entry.variant)
        if variant is not None and entry.arch == self.arch and self._runs(entry):
            return None if changed else entry
        found = self._config(entry, entry.precision)
        if variant is None or found is None or bool(found.why) != changed:
            return None
        if changed:
            return self._unmeasured(variant, found, entry.precision, f"derived: the fastest config known for {entry.arch}"
                                    f"{_changes(variant.config(entry.config), found)}; not measured")
        return replace(entry, arch=self.arch, note=f"derived: the fastest config known for {entry.arch} that runs here; not "
                                                   "measured here")

    def of_another_precision(self, entry: BestKnown, other: str) -> BestKnown | None:
        """Step 3."""
        variant = self._variant(entry.variant)
        precision = next((p for p in self.admitted if variant and p in variant.precision), "")
        found = self._config(entry, precision) if precision else None
        if found is None or variant is None:
            return None
        return self._unmeasured(variant, found, precision, f"derived: {entry.variant} is the fastest known for this layer in "
                                f"{other}; its config there{_changes(variant.config(entry.config), found)}, not measured in "
                                f"{precision}")

    def by_order(self) -> Iterator[BestKnown]:
        """Step 4."""
        for name in ORDER.get(self.direction, ()):
            variant = self._variant(name)
            precision = next((p for p in self.admitted if variant and p in variant.precision), "")
            if variant is None or not precision:
                continue
            found = start(self._space(variant, precision, variant.forms[0]), self.arch)
            if found is not None:
                yield self._unmeasured(variant, found, precision, f"derived: {name} is the first in the order of preference "
                                       f"that serves this layer here; its default config"
                                       f"{_changes(variant.default_config, found)}, not measured")

    def _config(self, entry: BestKnown, precision: str) -> Start | None:
        """The entry's config, or the nearest one that can run there in that precision; None if there is none."""
        variant = self._variant(entry.variant)
        if variant is None:
            return None
        try:
            config = variant.config(entry.config)
        except BadRequest:
            return None  # the template has changed since
        return start(self._space(variant, precision, entry.form), self.arch, config)

    def _runs(self, entry: BestKnown) -> bool:
        try:
            candidate = entry.candidate(self.workload, root=self.root)
        except BadRequest:
            return False  # the template has changed since
        return why_not(candidate, sm=sm_of(self.arch)) is None

    def _space(self, variant: Variant, precision: str, form: str) -> SearchSpace:
        return SearchSpace(variant, self.workload.layer, self.workload.dtype, sm_of(self.arch), precision, form,
                           self.workload.memory_format)

    def _variant(self, name: str) -> Variant | None:
        return self._variants.get(name)

    @cached_property
    def _variants(self) -> dict[str, Variant]:
        return {v.name: v for v in discover(self.root) if v.direction == self.direction}

    def _unmeasured(self, variant: Variant, found: Start, precision: str, why: str) -> BestKnown:
        work = self.workload
        return BestKnown(self.arch, str(work.layer), self.direction, work.dtype, self.precision_class, variant.name,
                         found.config, precision, variant.forms[0], None, work.batch, tuple(work.input_size), gpu="",
                         session="", note=why, memory_format=work.memory_format, pytorch_precision=self.pytorch_precision)


def _changes(before: dict[str, int], found: Start) -> str:
    changes = " ".join(f"{name}={value}" for name, value in found.config.items() if value != before[name])
    return f" with {changes}, because {found.why}" if changes else ""


@lru_cache(maxsize=1)
def _suite_layers() -> frozenset[str]:
    return frozenset(without_bias(str(p.layer_of(size))) for p in PRESETS.values() for size in SIZES)
