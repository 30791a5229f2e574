"""`SearchSpace`: every config of a variant for one layer and GPU generation, and how many configs each constraint excludes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice, product
from math import prod

from .candidate import Candidate, examined
from .expressions import names_in
from .layer import CHANNELS_LAST, CONTIGUOUS, ConvTranspose
from .variants import TAKES_CHANNELS_LAST, Variant

SHARED_MEMORY = "fits in shared memory"
MEMORY_FORMAT = "is for the memory format"
SAMPLED_AT_MOST = 200_000  # the most configs that one sample() examines


@dataclass(frozen=True)
class SearchSpace:
    """All configs of a variant with its constraints. `form` and `precision` hold for every candidate ("": the variant's first).
    """

    variant: Variant
    layer: ConvTranspose
    dtype: str
    sm: int
    precision: str = ""
    form: str = "constant"
    memory_format: str = CONTIGUOUS  # of the activations

    @property
    def default(self) -> dict[str, int]:
        """The variant's default config in that memory format."""
        return self.variant.default_for(self.memory_format)

    @property
    def size(self) -> int:
        """Configs before any constraint."""
        return prod(len(t.values) for t in self.variant.tune)

    def __iter__(self) -> Iterator[dict[str, int]]:
        """The valid configs in the order of the header. The default comes first, if it is valid."""
        default = self.default
        if self.why_not(default) is None:
            yield default
        yield from (c for c in self._all() if c != default and self.why_not(c) is None)

    def explain(self) -> list[tuple[str, int]]:
        """The number of configs as a subtraction: ("all", n), then for each constraint how many it excludes (negative), then
        ("valid", n).

        A config that breaks several constraints counts for the first one.
        """
        taken = dict.fromkeys((MEMORY_FORMAT, *self.variant.needs, SHARED_MEMORY), 0)
        valid = 0
        for config in self._all():
            reason = self.why_not(config)
            if reason is None:
                valid += 1
            else:
                label = self.label(reason)
                taken[label] = taken.get(label, 0) - 1
        return [("all", self.size), *((k, v) for k, v in taken.items() if v), ("valid", valid)]

    def sample(self, count: int, *, seed: int) -> list[dict[str, int]]:
        """Up to `count` different valid configs in random order; the same ones for the same seed."""
        order = random.Random(seed).sample(range(self.size), min(self.size, SAMPLED_AT_MOST))
        return list(islice((c for c in map(self.at, order) if self.why_not(c) is None), count))

    def nearest(self, config: dict[str, int]) -> dict[str, int] | None:
        """The valid config nearest to `config`, or None. It differs in one tunable or, if that is not possible, in two, and by
        as few places in the lists of their values as possible."""
        reason = self.why_not(config)
        if reason is None:
            return config
        if not self.depends_on_config(reason):
            return None
        places = {t.name: t.values.index(config[t.name]) for t in self.variant.tune}
        for count in (1, 2):
            changes = (dict(zip((t.name for t in tunables), values, strict=True))
                       for tunables in combinations(self.variant.tune, count)
                       for values in product(*([v for v in t.values if v != config[t.name]] for t in tunables)))
            known = {t.name: t.values for t in self.variant.tune}
            for change in sorted(changes, key=lambda c: sum(abs(known[n].index(v) - places[n]) for n, v in c.items())):
                if self.why_not({**config, **change}) is None:
                    return {**config, **change}
        return None

    def depends_on_config(self, reason: str) -> bool:
        """Whether another config may run: the reason is shared memory, the memory format of some configs, or a constraint that
        names a tunable or a derived value."""
        chosen = {t.name for t in self.variant.tune} | {name for name, _ in self.variant.derived}
        label = self.label(reason)
        if label == MEMORY_FORMAT:
            return not self.variant.only_channels_last
        return label == SHARED_MEMORY or (label in self.variant.needs and bool(names_in(label) & chosen))

    def why_not(self, config: dict[str, int]) -> str | None:
        """The sentence that says why a config cannot run here; None if it can."""
        return self.examined(config)[0]

    def examined(self, config: dict[str, int]) -> tuple[str | None, dict[str, int]]:
        """`why_not`, and the [derived] values if they could be computed."""
        candidate = self.candidate(config)
        if candidate.takes_channels_last and self.memory_format != CHANNELS_LAST:
            which = self.variant.name if self.variant.only_channels_last else f"{TAKES_CHANNELS_LAST}=1"
            return f"Not run: {which} is for channels_last; the activations are {self.memory_format}.", {}
        return examined(candidate, sm=self.sm)

    def candidate(self, config: dict[str, int], *, compile_flags: tuple[str, ...] = ()) -> Candidate:
        """The candidate of that config."""
        return Candidate(self.variant, self.layer, self.dtype, config, precision=self.precision, form=self.form,
                         compile_flags=compile_flags)

    def at(self, index: int) -> dict[str, int]:
        """Config number `index` of all, legal or not, in the order of the header."""
        config: dict[str, int] = {}
        for tunable in reversed(self.variant.tune):
            index, place = divmod(index, len(tunable.values))
            config[tunable.name] = tunable.values[place]
        return {t.name: config[t.name] for t in self.variant.tune}

    def label(self, reason: str) -> str:
        """The constraint that a sentence of `why_not` names."""
        for text in sorted(self.variant.needs, key=len, reverse=True):
            if f" needs {text};" in reason:
                return text
        if " is for channels_last;" in reason:
            return MEMORY_FORMAT
        return SHARED_MEMORY if "bytes of shared memory" in reason else reason

    def _all(self) -> Iterator[dict[str, int]]:
        return map(self.at, range(self.size))
