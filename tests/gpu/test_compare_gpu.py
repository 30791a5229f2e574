"""On a GPU: the whole ladder of baselines, contestants in turns, ceilings, and the flags for what is hard to time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.drive.conftest import WORKLOAD, good
from tests.shared import require
from workbench.core.candidate import Candidate
from workbench.core.ceilings import kept
from workbench.core.env import find_toolchain
from workbench.core.layer import DIRECTIONS, FORWARD, ConvTranspose, Workload
from workbench.core.presets import preset
from workbench.core.profile import METRICS
from workbench.core.trial import FORMULATION, Status
from workbench.core.variants import find
from workbench.core.verdict import SAME, UNSURE, from_samples
from workbench.drive.checking.selftest import confinement, selftest, summary
from workbench.drive.running.request import RunRequest
from workbench.drive.running.runner import Runner
from workbench.drive.sessions import profiles
from workbench.drive.sessions.session import Session
from workbench.measure.clock import timing


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
