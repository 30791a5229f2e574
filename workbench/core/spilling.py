"""Where a search for a config starts: the default, or the nearest one to it that can run and is not known to spill registers.

What is known comes from `python tools/compile_table.py --mend`. The configs that stand in were compiled, not timed.
"""

from __future__ import annotations

from functools import lru_cache

from .presets import preset
from .space import SearchSpace

# Target, variant, precisions and layers whose default spills; and what to change in it so that it does not.
_SPILLS = (
    # The same tile. A stage holds half as many positions, three stages fit instead of two, and with the halo they take 7 %
    # more shared memory for each position.
    ("sm_90a", "grad_weight/persistent_wgmma", "tf32", "hifigan-3 vae", {"STRIP": 4}),
    ("sm_90a", "grad_weight/persistent_wgmma", "bf16 fp16",
     "hifigan-1 hifigan-2 hifigan-3 stream-2 dac-1 dac-3 dcgan-4 pix2pix pose", {"STRIP": 4}),
    # Fewer warps copy, and each has more copies on the way.
    ("sm_90a", "grad_weight/persistent_wgmma", "tf32 bf16 fp16", "kb64", {"COPY_WARPS": 4}),
)


def start(space: SearchSpace, arch: str, config: dict[str, int] | None = None) -> dict[str, int] | None:
    """The default (or `config`) where it can run and is not known to spill, else the nearest one that can; None for none."""
    default = space.variant.default_config
    found = space.nearest(default if config is None else config)
    if found != default:
        return found
    return {**default, **_instead().get((space.variant.arch or arch, space.variant.key, space.precision, str(space.layer)), {})}


@lru_cache(maxsize=1)
def _instead() -> dict[tuple[str, str, str, str], dict[str, int]]:
    return {(target, variant, precision, str(preset(layer).layer)): changes
            for target, variant, precisions, layers, changes in _SPILLS
            for precision in precisions.split() for layer in layers.split()}
