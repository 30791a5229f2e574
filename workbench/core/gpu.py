"""GPU generations: the limits that decide whether a config can run, and its occupancy."""

from __future__ import annotations

import re

from .errors import BadRequest

ARCH = re.compile(r"sm_(\d+)[af]?")   # the name of a generation, or of one with its own instructions (sm_90a)

# Limits by sm version, from the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Bytes of shared
# memory: for a block (opt-in) and for a multiprocessor. Registers are counted in 32-bit words.
GPU_LIMITS = {
    80: {"shared_per_block": 163 * 1024, "shared_per_sm": 164 * 1024, "registers_per_sm": 65536, "threads_per_sm": 2048,
         "blocks_per_sm": 32},
    86: {"shared_per_block": 99 * 1024, "shared_per_sm": 100 * 1024, "registers_per_sm": 65536, "threads_per_sm": 1536,
         "blocks_per_sm": 16},
    87: {"shared_per_block": 163 * 1024, "shared_per_sm": 164 * 1024, "registers_per_sm": 65536, "threads_per_sm": 1536,
         "blocks_per_sm": 16},
    89: {"shared_per_block": 99 * 1024, "shared_per_sm": 100 * 1024, "registers_per_sm": 65536, "threads_per_sm": 1536,
         "blocks_per_sm": 24},
    90: {"shared_per_block": 227 * 1024, "shared_per_sm": 228 * 1024, "registers_per_sm": 65536,
         "threads_per_sm": 2048, "blocks_per_sm": 32},
    100: {"shared_per_block": 227 * 1024, "shared_per_sm": 228 * 1024, "registers_per_sm": 65536,
          "threads_per_sm": 2048, "blocks_per_sm": 32},
    120: {"shared_per_block": 99 * 1024, "shared_per_sm": 100 * 1024, "registers_per_sm": 65536,
          "threads_per_sm": 1536, "blocks_per_sm": 24},
}


# Generations without limits of their own here: those of the nearest older one hold.
_OTHERS = (88, 101, 103, 110, 121)


def gpu_limits(sm: int) -> dict[str, int]:
    """The limits of `sm`. For an unknown generation: those of the newest known one that is older."""
    known = [k for k in GPU_LIMITS if k <= sm]
    if not known:
        raise BadRequest(f"sm_{sm} is older than sm_80, the oldest GPU the templates are written for.")
    return GPU_LIMITS[max(known)]


def sm_of(arch: str) -> int:
    """90 of "sm_90" or "sm_90a"."""
    found = ARCH.fullmatch(arch)
    if not found:
        raise BadRequest(f"{arch!r} is not a GPU architecture; write sm_90.", field="arch")
    return int(found[1])


def named_arch(text: str) -> str:
    """`sm_90` of what a user writes, such as "sm_90a". Raises `BadRequest` for an older generation than sm_80, and for one that
    is not known here."""
    sm, known = sm_of(text), sorted((*GPU_LIMITS, *_OTHERS))
    gpu_limits(sm)
    if sm not in known:
        raise BadRequest(f"The GPU architecture {text!r} is not known here; choose {', '.join(f'sm_{one}' for one in known)}.",
                         field="arch")
    return f"sm_{sm}"
