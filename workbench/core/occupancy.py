"""Theoretical occupancy: resident warps and the limiter, from the registers, shared memory and threads of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .candidate import Candidate, derived_values
from .errors import BadRequest
from .gpu import gpu_limits
from .trial_parts import KernelNumbers

# The rules are those of NVIDIA's occupancy calculator (cuda_occupancy.h of the CUDA toolkit), compute capability 8 and newer.
WARP = 32
REGISTERS_PER_WARP_STEP = 256
SUB_PARTITIONS = 4
SHARED_STEP_BYTES = 128
SHARED_RESERVED_BYTES = 1024  # shared memory of each block that the system takes
THREADS_PER_BLOCK_MAX = 1024
REGISTERS_PER_THREAD_MAX = 255
LIMITERS = ("blocks", "threads", "registers", "shared memory")  # if limits are equal, the first is named


@dataclass(frozen=True)
class Occupancy:
    """`fraction` = warps_per_sm / max_warps. `limiter`: the resource that limits the number of blocks."""

    blocks_per_sm: int
    warps_per_sm: int
    max_warps: int
    fraction: float
    limiter: str


def occupancy(*, registers: int, shared_bytes: int, threads: int, sm: int) -> Occupancy:
    """Occupancy of a kernel that uses `registers` per thread and `shared_bytes` (static and dynamic) per block.

    The number of blocks is 0 if one block exceeds a limit. Raises `BadRequest` for less than one thread.
    """
    if threads < 1:
        raise BadRequest(f"threads is {threads}; a block has at least one.", field="threads")
    limits = gpu_limits(sm)
    max_warps = limits["threads_per_sm"] // WARP
    warps = -(-threads // WARP)
    blocks = {
        "blocks": limits["blocks_per_sm"],
        "threads": max_warps // warps if threads <= THREADS_PER_BLOCK_MAX else 0,
        "registers": _blocks_by_registers(registers, warps, limits["registers_per_sm"]),
        "shared memory": _blocks_by_shared(shared_bytes, limits),
    }
    limiter = min(LIMITERS, key=blocks.__getitem__)
    resident = blocks[limiter] * warps
    return Occupancy(blocks[limiter], resident, max_warps, resident / max_warps, limiter)


def threads_per_block(candidate: Candidate, *, sm: int) -> int | None:
    """Block size of a candidate: [derived] threads, else the tunable BLOCK; None without both."""
    threads = derived_values(candidate, sm=sm).get("threads", candidate.config.get("BLOCK"))
    return None if threads is None else int(threads)


def candidate_occupancy(candidate: Candidate, kernel: KernelNumbers, *, sm: int) -> Occupancy | None:
    """Occupancy of one compiled kernel of a candidate, from its numbers in the `resources` of a trial.

    The compiler knows only static shared memory; [derived] smem_bytes includes dynamic shared memory. None if the block size is
    known only at run time.
    """
    threads = threads_per_block(candidate, sm=sm)
    if threads is None:
        return None
    shared = max(kernel.shared_bytes, int(derived_values(candidate, sm=sm).get("smem_bytes", 0)))
    return occupancy(registers=kernel.registers, shared_bytes=shared, threads=threads, sm=sm)


def too_many_registers(candidate: Candidate, kernels: Mapping[str, KernelNumbers], *, sm: int) -> str | None:
    """Why the GPU cannot launch the main kernel of a candidate: a block would need more registers than a multiprocessor has.
    None if it can, or if the block size is known only at run time. `kernels`: the compiler's numbers by kernel. Other kernels
    are left out, because their blocks have other sizes."""
    own, threads = candidate.variant.kernel or candidate.variant.name, threads_per_block(candidate, sm=sm)
    for name, kernel in kernels.items():
        found = candidate_occupancy(candidate, kernel, sm=sm) if name.partition("<")[0] == own else None
        if found is not None and found.blocks_per_sm == 0 and found.limiter == "registers":
            return (f"Not run: a block of {threads} threads with {kernel.registers} registers each needs more than the "
                    f"{gpu_limits(sm)['registers_per_sm']} registers of sm_{sm}; choose fewer threads.")
    return None


def _blocks_by_registers(registers: int, warps: int, per_sm: int) -> int:
    """Registers are given to warps in steps of 256, each warp within one of the four sub-partitions."""
    if registers < 1:
        return per_sm  # a kernel that uses none of it is not limited by it
    per_warp = _round_up(registers * WARP, REGISTERS_PER_WARP_STEP)
    if registers > REGISTERS_PER_THREAD_MAX or per_warp * _round_up(warps, SUB_PARTITIONS) > per_sm:
        return 0
    return per_sm // SUB_PARTITIONS // per_warp * SUB_PARTITIONS // warps


def _blocks_by_shared(shared_bytes: int, limits: dict[str, int]) -> int:
    if shared_bytes > limits["shared_per_block"]:
        return 0
    return limits["shared_per_sm"] // _round_up(shared_bytes + SHARED_RESERVED_BYTES, SHARED_STEP_BYTES)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
