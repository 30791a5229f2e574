"""Theoretical occupancy against values worked out by hand, and against NVIDIA's own calculator as a header."""

from __future__ import annotations

import subprocess
from itertools import product
from pathlib import Path

import pytest

from tests.shared import require
from workbench.core.candidate import Candidate
from workbench.core.env import find_toolchain
from workbench.core.errors import BadRequest
from workbench.core.gpu import GPU_LIMITS
from workbench.core.layer import ConvTranspose
from workbench.core.occupancy import candidate_occupancy, occupancy, threads_per_block
from workbench.core.trial_parts import KernelNumbers
from workbench.core.variants import TEMPLATES, discover, find, parse

# cuda_occupancy.h calculates on the host; its device is filled in from our own limits and NVIDIA's constants.
CALCULATOR = r"""
#include <cuda_occupancy.h>
#include <cstdio>
int main() {
  int sm, registers, shared, threads, per_block, per_sm, threads_per_sm;
  while (std::scanf("%d %d %d %d %d %d %d", &sm, &registers, &shared, &threads, &per_block, &per_sm,
                    &threads_per_sm) == 7) {
    cudaOccDeviceProp device;
    device.computeMajor = sm / 10;
    device.computeMinor = sm % 10;
    device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = threads_per_sm;
    device.regsPerBlock = device.regsPerMultiprocessor = 65536;
    device.warpSize = 32;
    device.sharedMemPerBlock = 48 * 1024;
    device.sharedMemPerBlockOptin = per_block;
    device.sharedMemPerMultiprocessor = per_sm;
    device.reservedSharedMemPerBlock = 1024;
    device.numSms = 1;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = 1024;
    kernel.numRegs = registers;
    kernel.sharedSizeBytes = 0;
    kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.maxDynamicSharedSizeBytes = shared > 48 * 1024 ? per_block : 48 * 1024;
    cudaOccDeviceState state;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult result;
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, shared)) return 1;
    std::printf("%d\n", result.activeBlocksPerMultiprocessor);
  }
}
"""


@pytest.mark.parametrize(("registers", "shared", "threads", "sm", "blocks", "limiter"), [
    (32, 0, 256, 90, 8, "threads"),             # 64 warps / 8 warps
    (32, 0, 64, 90, 32, "blocks"),              # 2 warps a block would allow 32 as well: the first is named
    (24, 0, 32, 90, 32, "blocks"),
    (64, 0, 256, 90, 4, "registers"),           # 2048 a warp: 8 warps in each quarter, 32 / 8
    (65, 0, 256, 90, 3, "registers"),           # 2080 -> 2304 a warp: 7 warps in each quarter, 28 / 8
    (255, 0, 512, 90, 0, "registers"),          # 8192 * 16 is more than there is
    (32, 100 * 1024, 128, 90, 2, "shared memory"),   # (228 KiB) / (101 KiB)
    (32, 227 * 1024, 128, 90, 1, "shared memory"),
    (32, 228 * 1024, 128, 90, 0, "shared memory"),
    (32, 40 * 1024, 128, 80, 4, "shared memory"),    # 164 / 41
    (32, 0, 1024, 86, 1, "threads"),            # 1536 threads: one block of 1024
    (32, 0, 1056, 90, 0, "threads"),
])
def test_by_hand(registers: int, shared: int, threads: int, sm: int, blocks: int, limiter: str) -> None:
    found = occupancy(registers=registers, shared_bytes=shared, threads=threads, sm=sm)
    assert (found.blocks_per_sm, found.limiter) == (blocks, limiter)
    assert found.warps_per_sm == blocks * -(-threads // 32)
    assert found.fraction == found.warps_per_sm / found.max_warps <= 1


def test_against_nvidias_own_calculator(tmp_path: Path) -> None:
    tools = find_toolchain()
    require(tools.cxx and tools.cuda_home and (tools.cuda_home / "include/cuda_occupancy.h").exists(),
            "a C++ compiler and cuda_occupancy.h of the CUDA toolkit")
    source, program = tmp_path / "calculator.cpp", tmp_path / "calculator"
    source.write_text(CALCULATOR)
    subprocess.run([str(tools.cxx), "-I", f"{tools.cuda_home}/include", source, "-o", program], check=True,
                   capture_output=True)
    cases = list(product((80, 86, 89, 90), (16, 32, 40, 64, 72, 96, 128, 168, 255),
                         (0, 1000, 20_000, 48 * 1024, 99_000),
                         (32, 64, 96, 128, 160, 256, 384, 512, 1024)))
    rows = [(sm, r, s, t, GPU_LIMITS[sm]["shared_per_block"], GPU_LIMITS[sm]["shared_per_sm"],
             GPU_LIMITS[sm]["threads_per_sm"]) for sm, r, s, t in cases]
    said = subprocess.run([program], input="\n".join(" ".join(map(str, r)) for r in rows), capture_output=True,
                          text=True, check=True).stdout.split()
    assert len(said) == len(cases) == 1620
    for case, blocks in zip(cases, map(int, said), strict=True):
        sm, registers, shared, threads = case
        ours = occupancy(registers=registers, shared_bytes=shared, threads=threads, sm=sm)
        assert ours.blocks_per_sm == blocks, case


def test_a_block_of_no_threads_is_refused() -> None:
    with pytest.raises(BadRequest, match="threads is 0"):
        occupancy(registers=32, shared_bytes=0, threads=0, sm=90)


def test_the_block_size_of_a_candidate() -> None:
    variant = find("naive_gather", "forward")
    layer = ConvTranspose(1, 4, 4, (3,))
    candidate = Candidate(variant, layer, "float32", {"BLOCK": 256})
    assert threads_per_block(candidate, sm=90) == 256
    numbers = KernelNumbers(64, 0, 0, 0, 0, 0, 0)
    found = candidate_occupancy(candidate, numbers, sm=90)
    assert found and (found.blocks_per_sm, found.limiter) == (4, "registers")
    lines = '\n[derived]\nthreads = "2 * BLOCK"\nsmem_bytes = "120 * 1024"\n*/'
    derived = parse(variant.text.replace("\n*/", lines, 1), variant.path)
    candidate = Candidate(derived, layer, "float32", {"BLOCK": 64})
    assert threads_per_block(candidate, sm=90) == 128
    found = candidate_occupancy(candidate, numbers, sm=90)
    assert found and (found.blocks_per_sm, found.limiter) == (1, "shared memory")


def test_the_shipped_variants_know_their_block_size_or_say_nothing() -> None:
    """Without it no occupancy is shown: these choose how many warps they need by loops that a header cannot write."""
    layer, unknown = ConvTranspose(1, 4, 4, 3, 4, groups=4), set()
    for variant in discover(TEMPLATES):
        threads = threads_per_block(Candidate(variant, layer, "float32", {}), sm=90)
        if threads is None:
            unknown.add(variant.key)
        else:
            assert 32 <= threads <= 1024 and threads % 32 == 0, (variant.key, threads)
    assert unknown == {"forward/register_blocked", "grad_input/register_blocked", "grad_weight/register_blocked",
                       "grad_weight/split_mma", "grad_weight/rolling_mma", "backward/fused_mma"}
