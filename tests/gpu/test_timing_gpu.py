"""On a GPU: the whole ladder of baselines, contestants in turns, ceilings, and the flags for what is hard to time. Cold means
cold also for loads that ask L2 to keep their lines longest, and for those in the part of L2 that a launcher has set aside."""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.drive.conftest import WORKLOAD, good
from tests.shared import require
from workbench.core.candidate import Candidate
from workbench.core.env import find_toolchain
from workbench.core.layer import DIRECTIONS, FORWARD, ConvTranspose, Workload
from workbench.core.presets import preset
from workbench.core.profile import METRICS
from workbench.core.roofline import kept
from workbench.core.toolchain import nvcc_problem
from workbench.core.trial import FORMULATION, Status
from workbench.core.variants import find
from workbench.core.verdict import SAME, UNSURE, from_samples
from workbench.drive.checking.selftest import confinement, selftest, summary
from workbench.drive.running.request import RunRequest
from workbench.drive.running.runner import Runner
from workbench.drive.sessions import profiles
from workbench.drive.sessions.session import Session
from workbench.measure.clock import timing
from workbench.measure.device import l2_bytes

SOURCE = r"""
#include <cuda_runtime.h>
template <bool KEEP>
__global__ void read_all(const float4* from, long long count, float* sink) {
  unsigned long long policy = 0;
  if (KEEP) asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  float sum = 0;
  for (long long i = blockIdx.x * 256LL + threadIdx.x; i < count; i += gridDim.x * 256LL) {
    float4 v;
    if (KEEP)
      asm volatile("ld.global.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
                   : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from + i), "l"(policy));
    else
      v = __ldg(from + i);
    sum += v.x + v.y + v.z + v.w;
  }
  if (sum == 1.2345f) *sink = sum;  // never, but the compiler does not know
}
// What a launcher can do before each launch: set aside all of L2 that may be, and have the stream keep the input there.
extern "C" int set_aside(const void* from, size_t bytes, cudaStream_t stream) {
  int device = 0, most = 0, window = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxPersistingL2CacheSize, device);
  cudaDeviceGetAttribute(&window, cudaDevAttrMaxAccessPolicyWindowSize, device);
  cudaError_t code = cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, most);
  cudaStreamAttrValue value = {};
  value.accessPolicyWindow.base_ptr = const_cast<void*>(from);
  value.accessPolicyWindow.num_bytes = bytes < size_t(window) ? bytes : size_t(window);
  value.accessPolicyWindow.hitRatio = 1.0f;
  value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
  value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
  return code ? code : cudaStreamSetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &value);
}
extern "C" void read_input(const float4* from, long long count, float* sink, int keep, cudaStream_t stream) {
  (keep ? read_all<true> : read_all<false>)<<<1056, 256, 0, stream>>>(from, count, sink);
}
"""

@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    require(torch.cuda.is_available(), "no CUDA GPU")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as one:
        yield one


def test_every_attack_is_caught(runner: Runner) -> None:
    def show(result) -> None:
        print(f"{'CAUGHT' if result.caught else 'MISSED'} {result.name} {result.status} {result.happened}", flush=True)

    results = selftest("cuda:0", on_result=show, runner=runner)
    print(summary(results), confinement(results), sep="\n")
    assert all(r.caught for r in results), summary(results)


def test_ceilings_are_measured_once_and_kept(runner: Runner) -> None:
    runner.measure_ceilings("cuda:0")
    found = kept(runner.device("cuda:0").name)
    print(found)
    assert found and not found.predicted
    assert 0.5e12 < found.read_bytes_per_s and 0.8 < found.read_bytes_per_s / found.copy_bytes_per_s < 1.3
    assert found.flops_per_s["tf32"] > 3 * found.flops_per_s["ieee"]


@pytest.mark.parametrize("number", [74, 81])
def test_the_whole_ladder(runner: Runner, tmp_path: Path, number: int) -> None:
    workload = preset(f"kb{number}").workload("full")
    candidate = Candidate(find("shared_weight_tiling", "forward"), workload.layer, "float32", {})
    run = runner.run(RunRequest(workload, (candidate,), device="cuda:0", strength="strong", effort="quick"),
                     Session.create(tmp_path))
    there = {t.name: t for t in run.trials if t.kind == "baseline"}
    for t in there.values():
        print(t.status, t.name, t.kernel_ms and round(t.kernel_ms.median_ms, 4), t.precision, t.flags,
              t.headline if not t.ok else "", t.detail, flush=True)
    ours = next(t for t in run.trials if t.kind == "candidate")
    print(ours.status, ours.headline, ours.kernel_ms, ours.flags, ours.detail)
    assert ours.ok and ours.detail.against.verdict in ("FASTER", "SLOWER", "SAME", "UNSURE")
    assert all(t.detail.kernels for t in there.values() if t.ok and "brief_look" not in t.flags)
    assert {t.status for t in there.values() if FORMULATION in t.flags} <= {Status.OK, Status.SKIPPED, Status.OUT_OF_MEMORY}
    assert any(t.ok for t in there.values() if FORMULATION in t.flags)
    assert {"eager", "eager, TF32 on", "eager, TF32 off", "torch.compile", "eager, called by the host"} <= set(there)
    assert ("as convolution, flipped weight" in there) == (set(workload.layer.stride) == {1})


@pytest.mark.parametrize(("layer", "batch", "size", "dtype", "memory_format"), [
    (ConvTranspose(2, 256, 128, 2, 2), 8, (128, 128), "float32", "contiguous"),
    (ConvTranspose(2, 256, 128, 2, 2), 8, (128, 128), "bfloat16", "channels_last"),
    (ConvTranspose(3, 64, 32, 2, 2), 2, (64, 80, 96), "float32", "contiguous"),
    (ConvTranspose(1, 128, 64, 4, 2, 1), 16, (2048,), "float16", "contiguous"),
    (ConvTranspose(2, 32, 32, 3, groups=4), 8, (64, 64), "float32", "contiguous")], ids=str)
def test_every_formulation_is_right_on_a_gpu(runner: Runner, tmp_path: Path, layer: ConvTranspose, batch: int,
                                             size: tuple[int, ...], dtype: str, memory_format: str) -> None:
    """Both classes, and max-autotune on the forward alone. What each takes is printed."""
    workload, session = Workload(layer, batch, size, dtype, memory_format), Session.create(tmp_path)
    for directions, tuned in ((DIRECTIONS, False), ((FORWARD,), True)):
        began = time.monotonic()
        runner.run(RunRequest(workload, (), directions=directions, device="cuda:0", strength="strong", effort="quick",
                              max_autotune=tuned), session, resume=True)
        print(f"{directions} of {layer}: {time.monotonic() - began:.1f} s")
    for t in session.trials():
        print(t.status, t.direction, t.name, t.kernel_ms and round(t.kernel_ms.median_ms, 4), t.precision,
              "" if t.ok else t.headline)
    assert all(t.ok for t in session.trials() if not t.name.startswith("torch.compile"))
    assert all(t.status in (Status.OK, Status.SKIPPED) for t in session.trials())
    assert {"tf32x3", "ieee"} & {t.precision for t in session.trials() if t.name.startswith("three TF32")} or dtype != "float32"


def test_small_and_launch_bound_are_said() -> None:
    x = torch.ones(64, device="cuda")
    tiny = timing.measure(lambda: x.add_(1), device="cuda:0", effort="quick")
    assert "too_small" in tiny.flags and tiny.timing.median_ms < timing.TOO_SMALL_MS

    def slow_host() -> None:
        sum(range(200_000))
        x.add_(1)

    assert "launch_bound" in timing.measure(slow_host, device="cuda:0", effort="quick").flags


def test_the_same_call_twice_is_no_victory() -> None:
    x, y = torch.randn(1 << 26, device="cuda"), torch.empty(1 << 26, device="cuda")
    a, b = timing.measure_in_turns([lambda: y.copy_(x)] * 2, device="cuda:0", effort="quick")
    verdict = from_samples(a.samples, b.samples, paired=True)
    print(verdict)
    assert verdict.verdict in (SAME, UNSURE) and len(a.samples) == len(b.samples)


def test_ncu_counts_what_limits_a_kernel_or_says_why_not(tmp_path: Path) -> None:
    """The real one. Most machines that are rented refuse counters: then the reason is printed."""
    require(find_toolchain().ncu, "no ncu")
    session = Session.create(tmp_path, "s")
    with Runner(build_workers=1) as runner:
        runner.run(RunRequest(WORKLOAD, (good(),), device="cuda:0", baselines=False, effort="quick"), session)
        trial, = session.trials()
        found = profiles.reading(trial, session, runner)
    if found.profile is None:
        print(f"ncu counted nothing: {found.why_not}")
        assert "ERR_NVGPUCTRPERM" in found.why_not and found.static is not None
        return
    main = found.kernels[0]
    assert main.name.partition("<")[0] == "naive_gather" and main.values["duration"] > 0
    assert set(METRICS) - set(main.values) <= {"tensor"} and main.stalls, "every metric has its name on this GPU"
    assert 0 < main.values["dram"] <= 100 and found.sentence and profiles.kept(trial, session) == found.profile



@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    require(torch.cuda.is_available(), "an NVIDIA GPU")
    tools = find_toolchain()
    problem = nvcc_problem(tools, None)
    require(problem is None, str(problem))
    folder: Path = tmp_path_factory.mktemp("flush")
    (folder / "reads.cu").write_text(SOURCE)
    arch = "sm_" + "".join(map(str, torch.cuda.get_device_capability()))
    subprocess.run([str(tools.nvcc), "-shared", "-Xcompiler", "-fPIC", "-O3", f"-arch={arch}", str(folder / "reads.cu"), "-o",
                    str(folder / "reads.so")], check=True)
    return ctypes.CDLL(str(folder / "reads.so"))


@pytest.mark.parametrize("share", [2, 1])
def test_lines_that_are_to_stay_do_not_outlive_the_flush(library: ctypes.CDLL, share: int) -> None:
    """Inputs of half the L2 cache and of all of it. From the cache half of it is read in two thirds of the time."""
    x = torch.rand(l2_bytes(0) // share // 4, device="cuda")
    sink = torch.zeros(1, device="cuda")

    def median(keep: bool, cold: bool) -> float:
        def run() -> None:
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            library.read_input(ctypes.c_void_p(x.data_ptr()), ctypes.c_longlong(x.numel() // 4),
                               ctypes.c_void_p(sink.data_ptr()), int(keep), stream)

        return timing.measure(run, device="cuda:0", effort="normal", cold_l2=cold).timing.median_ms

    plain, kept, hot = median(False, True), median(True, True), median(True, False)
    again = median(False, True)  # the GPU's clocks rise meanwhile
    print(f"{x.nbytes / 1e6:.0f} MB: {plain * 1e3:.2f} and {again * 1e3:.2f} us, with evict_last {kept * 1e3:.2f}, "
          f"hot {hot * 1e3:.2f}")
    assert hot < 0.9 * plain or share == 1
    assert kept > 0.97 * min(plain, again)


def test_a_part_of_l2_that_a_launcher_sets_aside_is_emptied(library: ctypes.CDLL) -> None:
    """A quarter of L2, which fits into the part that may be set aside. The launcher asks for it again at every launch."""
    x = torch.rand(l2_bytes(0) // 16, device="cuda")
    sink = torch.zeros(1, device="cuda")
    persisting = timing.Persisting(0)
    asked: list[int] = []

    def median(aside: bool, cold: bool = True) -> float:
        def run() -> None:
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            if aside:
                asked.append(library.set_aside(ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(x.nbytes), stream))
            library.read_input(ctypes.c_void_p(x.data_ptr()), ctypes.c_longlong(x.numel() // 4),
                               ctypes.c_void_p(sink.data_ptr()), 0, stream)

        return timing.measure(run, device="cuda:0", effort="normal", cold_l2=cold).timing.median_ms

    with torch.cuda.stream(torch.cuda.Stream()):  # the attribute belongs to a stream
        plain, kept, hot = median(False), median(True), median(False, cold=False)
        left = persisting.bytes
        persisting.end()
        again = median(False)
    print(f"{x.nbytes / 1e6:.0f} MB: {plain * 1e3:.2f} and {again * 1e3:.2f} us, set aside {kept * 1e3:.2f}, "
          f"hot {hot * 1e3:.2f}; {left / 1e6:.0f} MB were set aside")
    require(not any(asked) and left, "a GPU that can set aside a part of L2")
    assert persisting.bytes == 0
    assert hot < 0.9 * plain
    assert kept > 0.97 * min(plain, again)
