"""The config of derived entries: the default, a config that is known to be better for the layer, or the nearest one that can
run. The variant's default is not changed, because recorded tables refer to it. Two things are known. `python
tools/compile_table.py --mend` finds defaults that spill registers; the configs that replace them were compiled, not timed.
`python -m workbench bench --default-configs` finds values that were faster on every layer on which both were timed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .presets import preset
from .space import SearchSpace

# Target, variant, precisions and layers for which the default config spills, and the changes that avoid it.
_SPILLS = (
    # One job is loaded ahead instead of two. In the timed cases (tf32, bf16) that was faster, or at most 2 % slower.
    ("sm_90a", "grad_weight/persistent_wgmma", "tf32 bf16 fp16", "hifigan-1 dac-1 encodec-2", {"AHEAD": 1}),
    ("sm_90a", "grad_weight/persistent_wgmma", "bf16 fp16", "hifigan-2 hifigan-3 dac-3 dcgan-4 pix2pix pose", {"AHEAD": 1}),
    # One warpgroup packs instead of two, so the others may use more registers.
    ("sm_90a", "forward/wgmma_packed", "tf32x3", "kb77", {"PACKERS": 1}),
    # Fewer warps copy, and each has more copies in flight.
    ("sm_90a", "grad_weight/persistent_wgmma", "tf32 bf16 fp16", "kb64", {"COPY_WARPS": 4}),
    # A lane sums fewer neighbouring positions, so it reads each weight more often.
    *((f"sm_{sm}", f"{direction}/implicit_gemm_mma", "tf32 bf16 fp16", "kb64 kb69", {"STRIP": 4})
      for sm in (80, 86, 89) for direction in ("forward", "grad_input")),
    # A warp sums fewer tiles of 16 channels, so it reads the staged source more often. WARPS_N=1 or WARPS_M=1 is set if the
    # default also does not fit in shared memory.
    *((f"sm_{sm}", "grad_input/implicit_gemm_mma", "bf16 fp16", layer, {"FRAGMENTS_M": tiles})
      for sm in (80, 86, 89) for layer, tiles in (("dac-3", 3), ("encodec-2", 2))),
    ("sm_80", "grad_input/implicit_gemm_mma", "tf32", "dac-3", {"FRAGMENTS_M": 3}),
    ("sm_80", "grad_input/implicit_gemm_mma", "bf16 fp16", "hifigan-1 hifigan-2 dac-1", {"FRAGMENTS_M": 1}),
    ("sm_80", "grad_input/implicit_gemm_mma", "tf32", "hifigan-1 hifigan-2 dac-1 encodec-2", {"FRAGMENTS_M": 2, "WARPS_M": 1}),
    *((f"sm_{sm}", "grad_input/implicit_gemm_mma", precisions, layers, {"FRAGMENTS_M": tiles, "WARPS_N": 1})
      for sm in (86, 89) for precisions, layers, tiles in (
          ("tf32", "hifigan-1 hifigan-2 dac-1 dac-3 encodec-2", 2), ("bf16 fp16", "hifigan-1 hifigan-2 dac-1", 1))),
    *(("sm_120", "grad_input/implicit_gemm_mma", precisions, layers, {"FRAGMENTS_M": 1, "WARPS_N": 1})
      for precisions, layers in (("tf32 bf16 fp16", "hifigan-1 hifigan-2 dac-1 encodec-2"), ("tf32", "dac-3"))),
    *(("sm_120", "forward/implicit_gemm_mma", precisions, layers, changes) for precisions, layers, changes in (
        ("tf32 bf16 fp16", "kb68 pillars", {"FRAGMENTS_M": 2}), ("tf32", "kb69", {"STRIP": 4}),
        ("tf32", "nnunet-1", {"ROLL": 1}))),
    *(("sm_100", "forward/implicit_gemm_mma", precisions, layers, changes) for precisions, layers, changes in (
        ("tf32 bf16 fp16", "kb68", {"FRAGMENTS_M": 3}), ("tf32 bf16 fp16", "pillars", {"FRAGMENTS_M": 2}),
        ("tf32", "monai", {"ROLL": 1}), ("tf32", "kb69", {"STRIP": 4}), ("tf32", "kb70 kb71", {"BLOCKS": 1}),
        ("bf16 fp16", "dcgan-2 dcgan-4 pix2pix pose", {"STRIP": 4}))),
    *(("sm_100", "grad_input/implicit_gemm_mma", precisions, layers, changes) for precisions, layers, changes in (
        ("tf32", "kb68 kb69 monai", {"FRAGMENTS_M": 1}), ("tf32", "kb71", {"STRIP": 4}),
        ("bf16 fp16", "hifigan-1 hifigan-2 dac-1", {"FRAGMENTS_M": 1}), ("bf16 fp16", "kb69", {"FRAGMENTS_M": 2}),
        ("bf16 fp16", "kb73", {"BLOCKS": 1}))),
    # With BLOCKS=1 the compiler may use more registers; the number of blocks on a multiprocessor is not limited to 1.
    ("sm_100", "forward/disjoint_mma", "tf32", "unet-2 sam-1 maskrcnn pillars", {"BLOCKS": 1}),
    ("sm_120", "forward/disjoint_mma", "tf32", "unet-2 sam-1 pillars nnunet-1", {"BLOCKS": 1}),
    *((f"sm_{sm}", "forward/disjoint_mma", "tf32", "nnunet-1", {"BLOCKS": 1}) for sm in (80, 86, 89)),
    # Three stages. If shared memory is too small, each has fewer positions.
    ("sm_80", "grad_weight/split_mma", "bf16 fp16", "kb70 kb71", {"STAGES": 3}),
    ("sm_100", "grad_weight/split_mma", "bf16 fp16", "hifigan-4 dcgan-2 pose monai", {"STAGES": 3}),
    ("sm_100", "grad_weight/split_mma", "tf32", "kb79", {"STAGES": 3}),
    ("sm_120", "grad_weight/split_mma", "bf16 fp16", "kb79 monai", {"STAGES": 3, "SHARED_KB": 72}),
    # A warp sums fewer tiles of 8 output channels; a thread sums fewer channel pairs.
    ("sm_100", "grad_weight/split_mma", "bf16 fp16", "kb79", {"N_TILES": 1}),
    ("sm_120", "grad_weight/register_blocked", "ieee", "dac-3", {"SUMS": 48}),
    *((f"sm_{sm}", "grad_weight/split_mma", "tf32", "kb72", {"SHARED_KB": 72, "WARPS": 4}) for sm in (86, 89)),
)
# Variant and precision -> values that were at least as fast as the default wherever both were timed: on #73, #78 and #79 in
# both directions. The gain was up to 14 % (#79 forward). In tf32 the value was slower on one of these layers, so tf32 is not
# listed.
_FASTER = {(f"{direction}/implicit_gemm_mma", "tf32x3"): {"ROLL": 1} for direction in ("forward", "grad_input")}


@dataclass(frozen=True)
class Start:
    """A config to start from. `why`: why it differs from the config that was asked for; "" if it does not."""

    config: dict[str, int]
    why: str = ""


def start(space: SearchSpace, arch: str, config: dict[str, int] | None = None) -> Start | None:
    """The config to start from: `config` (default: the variant's default), changed if needed. None if no config near it can
    run."""
    default = space.default
    asked = default if config is None else config
    if asked == default:
        target = space.variant.arch or arch
        spills = _instead().get((target, space.variant.key, space.precision, str(space.layer)))
        faster = _FASTER.get((space.variant.key, space.precision)) if config is None else None
        for changes, why in ((spills, "otherwise registers spill"), (faster, "that was faster on the layers timed so far")):
            if changes and space.why_not({**default, **changes}) is None:
                return Start({**default, **changes}, why)
    found = space.nearest(asked)
    if found is None:
        return None
    return Start(found, "" if found == asked else "otherwise it does not fit this GPU")


@lru_cache(maxsize=1)
def _instead() -> dict[tuple[str, str, str, str], dict[str, int]]:
    return {(target, variant, precision, str(preset(layer).layer)): changes
            for target, variant, precisions, layers, changes in _SPILLS
            for precision in precisions.split() for layer in layers.split()}
