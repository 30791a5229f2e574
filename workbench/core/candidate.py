"""`Candidate`, which is built and judged; the names that its expressions may use; and whether it can run on a layer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .errors import BadRequest, RenderError
from .expressions import Named, Names, evaluate, names_in
from .gpu import GPU_LIMITS, gpu_limits, sm_of
from .layer import INT32_MAX, ConvTranspose, Workload
from .precision import PRECISIONS_OF
from .variants import TAKES_CHANNELS_LAST, Variant
from .wrong_values import Tile

AXES = ("d", "h", "w")
# Tunables that are the extent of a tile: along W, along the channels of the result, or along output or input channels.
_TILES = {"W": re.compile(r"TILE(_N|_W|_POSITIONS)?|RUN|STRIP|POSITIONS_PER_\w+"), "C": re.compile(r"CHANNEL_TILE|TILE_(M|C)"),
          "CO": re.compile(r"TILE_CO|CO_PER_\w+"), "CI": re.compile(r"TILE_CI|CI_PER_\w+")}
EMULATED_SM = 90  # the emulator has the limits of this GPU, so that every config that fits on the GPU also runs on the emulator


@dataclass(frozen=True)
class Candidate:
    """A variant with a value for every tunable, a layer, a dtype and compile flags.

    `form` says whether the layer's parameters are constants of the source or arguments of the launcher. `core/fork.py` makes
    one from an edited text.
    """

    variant: Variant
    layer: ConvTranspose
    dtype: str
    config: dict[str, int] = field(hash=False)
    precision: str = ""
    form: str = "constant"
    compile_flags: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()  # (name, text) of all headers, if a person has edited one of them

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", self.variant.config(self.config))
        offered = [p for p in self.variant.precision if p in PRECISIONS_OF[self.dtype]]
        if not self.precision:
            object.__setattr__(self, "precision", offered[0] if offered else "")
        elif self.precision not in offered:
            raise BadRequest(f"{self.variant.name} does not compute {self.dtype} in {self.precision}; it offers "
                             f"{', '.join(offered) or 'nothing for this dtype'}.", field="precision")
        if self.form not in self.variant.forms:
            raise BadRequest(f"{self.variant.name} has no {self.form} form; it has {', '.join(self.variant.forms)}.",
                             field="form")

    @property
    def direction(self) -> str:
        return self.variant.direction

    @property
    def takes_channels_last(self) -> bool:
        """Whether its launcher takes channels_last activations. If not, it takes contiguous ones."""
        return bool(self.config.get(TAKES_CHANNELS_LAST))


def layer_fields(layer: ConvTranspose) -> dict[str, int]:
    """The layer as kernels see it: three dimensions, whole numbers, has_bias 0 or 1."""
    layer = layer.in_three_dimensions()
    fields = {"in_channels": layer.in_channels, "out_channels": layer.out_channels, "groups": layer.groups}
    for member, name in (("kernel", "kernel_size"), ("stride", "stride"), ("padding", "padding"),
                         ("dilation", "dilation")):
        fields |= {f"{member}_{axis}": v for axis, v in zip(AXES, getattr(layer, name), strict=True)}
    return fields | {"has_bias": int(layer.bias)}


def problem_fields(workload: Workload) -> dict[str, int]:
    """The members of `struct Problem` (kernel_templates/contract/problem.cuh), in its order; all are int64."""
    flat = workload.in_three_dimensions()
    return {"batch": flat.batch,
            **{f"in_{a}": v for a, v in zip(AXES, flat.input_size, strict=True)},
            **{f"out_{a}": v for a, v in zip(AXES, flat.output_size, strict=True)},
            **layer_fields(flat.layer)}


def derived_values(candidate: Candidate, *, sm: int) -> dict[str, int]:
    """The [derived] values of the header, in order; each may use the ones before it."""
    names = _names(candidate, sm)
    values: dict[str, int] = {}
    for name, text in candidate.variant.derived:
        values[name] = names[name] = evaluate(text, names)
    return values


def resolved_values(candidate: Candidate, *, sm: int) -> dict[str, int]:
    """The values that are used for tunables that are 0 ("automatic"), if the header derives them. The value of such a tunable
    is the derived value of the same name, or the derived value that equals the tunable wherever the tunable is not 0."""
    automatic = [t for t in candidate.variant.tune if candidate.config[t.name] == 0 and "(0: " in t.help
                 and not t.help.endswith(("(0: off)", "(0: any)"))]
    derived = derived_values(candidate, sm=sm) if automatic else {}
    found = {}
    for tunable in automatic:
        name = tunable.name.lower()
        if name not in derived:
            there = {v: derived_values(replace(candidate, config={**candidate.config, tunable.name: v}), sm=sm)
                     for v in tunable.values if v}
            name = next((n for n in derived if len(there) > 1 and all(values[n] == v for v, values in there.items())), "")
        if name:
            found[tunable.name] = int(derived[name])
    return found


def tiles_of(candidate: Candidate, *, sm: int) -> tuple[Tile, ...]:
    """The tunables that are extents of a tile, as their names say. A value of 0 ("automatic") is replaced by the derived one;
    without one it is left out."""
    automatic = resolved_values(candidate, sm=sm)
    found = (Tile(name, axis, automatic.get(name, value)) for name, value in candidate.config.items()
             for axis, named in _TILES.items() if named.fullmatch(name))
    return tuple(tile for tile in found if tile.extent > 1)


def why_not(candidate: Candidate, *, sm: int) -> str | None:
    """The sentence that says why the candidate cannot run on that GPU generation; None if it can."""
    return examined(candidate, sm=sm)[0]


def examined(candidate: Candidate, *, sm: int) -> tuple[str | None, dict[str, int]]:
    """`why_not`, and the [derived] values if they could be computed."""
    derived: dict[str, int] = {}
    return _examined(candidate, sm, derived), derived


def _names(candidate: Candidate, sm: int) -> dict[str, Named]:
    from .layer import DTYPES
    return {**candidate.config, "layer": layer_fields(candidate.layer), "gpu": {**gpu_limits(sm), "sm": sm},
            "element_bytes": DTYPES[candidate.dtype], "precision": candidate.precision, "dtype": candidate.dtype,
            "constant": candidate.form == "constant", "direction": candidate.direction, "INT32_MAX": INT32_MAX}


def _examined(candidate: Candidate, sm: int, derived: dict[str, int]) -> str | None:
    variant = candidate.variant
    if not candidate.precision:
        return f"Not run: {variant.name} does not compute {candidate.dtype}."
    if sm < variant.min_sm:
        return f"Not run: {variant.name} needs sm_{variant.min_sm}, this GPU is sm_{sm}."
    if variant.arch and sm_of(variant.arch) != sm:  # a target such as sm_90a has instructions that no other generation has
        return f"Not run: {variant.name} needs the instructions of {variant.arch}, this GPU is sm_{sm}."
    derived |= derived_values(candidate, sm=sm)
    names = _names(candidate, sm) | derived
    for text in variant.needs:
        try:
            holds = evaluate(text, names)
        except RenderError as error:
            raise RenderError(f"The header of {variant.path.name}, key needs: {error}") from error
        if not holds:
            return f"Not run: {variant.name} needs {text}; here {_shown(text, names)}."
    limit = gpu_limits(sm)["shared_per_block"]
    used = derived.get("smem_bytes", 0)
    if used > limit:
        config = " ".join(f"{k}={v}" for k, v in candidate.config.items())
        grouped = [f"{size:,}".replace(",", " ") for size in (used, limit)]
        return f"Not run: {config} needs {grouped[0]} bytes of shared memory, this GPU has {grouped[1]}."
    return None


def _shown(text: str, names: Names) -> str:
    parts = []
    for name in sorted(names_in(text)):
        owner, _, attr = name.partition(".")
        value = names.get(owner)
        if isinstance(value, Mapping):
            value = value[attr]
        if value is not None and not callable(value):
            parts.append(f"{name} is {value}")
    return ", ".join(parts) or "it does not hold"


__all__ = ["GPU_LIMITS", "Candidate", "RenderError", "derived_values", "gpu_limits", "layer_fields", "problem_fields",
           "why_not"]
