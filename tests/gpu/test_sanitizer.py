"""compute-sanitizer over small shapes: clean for every variant in every precision, and it names the line of a seeded read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.judge.conftest import WORKLOAD, bad_candidate
from tests.shared import require
from workbench.core.awkward import FEW
from workbench.core.candidate import Candidate, why_not
from workbench.core.env import find_toolchain
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.template import Rendered, render, symbol
from workbench.core.variants import Variant, discover
from workbench.drive.checking.attacks import kernels
from workbench.drive.running.runner import Runner
from workbench.measure.kernel.launch import ARGUMENTS, Launcher, problem_of

ROOT = Path(__file__).resolve().parents[2]
UPSAMPLING = Workload(ConvTranspose(2, 10, 18, 2, stride=2, bias=True), 2, (3, 150))  # one tap an output, two chunks a row
SMALL = [*FEW[:8], UPSAMPLING]
FEWEST = 1  # shape of a precision that a variant does not name first: the sanitizers are slow
DTYPE_OF = {"fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
# Code that no default config reaches.
MORE = {"implicit_gemm_mma": ({"ROLL": 1},), "strip_wgmma": ({"U": 1}, {"ROLL": 0}, {"IMAGES": 2}),
        "box_mma": ({"SPLIT_D": 2, "STAGES": 3, "STRIPS": 3, "SUMS": 8}, {"RAW": 1}), "wgmma_packed": ({"FOLD": 1},),
        "wgmma_strided": ({"TILE": 64, "STAGES": 4},), "rolling_mma": ({"COPY_WARPS": 2, "STAGES": 2, "TILE": 32},),
        "wgmma_residues": ({"TEAMS": 1, "BUFFERS": 2, "OWNED": 128},)}
GRAINS = Workload(ConvTranspose(3, 6, 10, 3, stride=2, padding=1, dilation=2, bias=True), 3, (3, 4, 5))
# Blocks that go on from row to row, so that shared memory is written over and over; few positions, whose sums are split; and
# stride and dilation that share a divisor.
LONG = {"strip_wgmma": GRAINS, "packed_wgmma": GRAINS, "wgmma_packed": GRAINS,
        "box_mma": Workload(ConvTranspose(3, 20, 24, 3, stride=2, padding=1, groups=2, bias=True), 150, (3, 5, 6)),
        "rolling_mma": Workload(ConvTranspose(2, 32, 64, (3, 5), stride=(2, 3), padding=(1, 2), groups=16), 2, (40, 21)),
        "wgmma_strided": Workload(ConvTranspose(3, 8, 16, 3, stride=2, padding=1), 2, (9, 33, 130)),
        "gathered_mma": Workload(ConvTranspose(2, 3, 5, 16, stride=16), 1, (2, 3))}


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    require(torch.cuda.is_available(), "an NVIDIA GPU")
    require(find_toolchain().compute_sanitizer, "compute-sanitizer of the CUDA toolkit")
    with Runner() as shared:
        yield shared


def sanitize(tool: str, jobs: list[dict], folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "jobs.json").write_text(json.dumps(jobs))
    program = find_toolchain().compute_sanitizer or shutil.which("compute-sanitizer")
    return subprocess.run([str(program), "--tool", tool, "--error-exitcode", "9", sys.executable, "tests/gpu/test_sanitizer.py",
                           str(folder / "jobs.json")], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False,
                          env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": str(ROOT)})


def launch_all(jobs: Path) -> None:
    """Below compute-sanitizer: launches every library of a JSON list once on its workload. No allocator stands between the
    kernels and cudaMalloc."""
    for job in json.loads(jobs.read_text()):
        workload = Workload.from_json(job["workload"])
        launch, problem = Launcher(Path(job["library"]), job["symbol"], job["direction"]), problem_of(workload)
        shapes = {"x": workload.input_shape, "w": workload.layer.weight_shape, "bias": (workload.layer.out_channels,),
                  "y": workload.output_shape}
        alias = {"input": "x", "weight": "w", "bias": "bias", "output": "y", "grad_output": "y", "grad_input": "x",
                 "grad_weight": "w", "grad_bias": "bias"}
        dtype = getattr(torch, workload.dtype)
        tensors = {name: torch.ones(shapes[alias[name]], dtype=dtype, device="cuda") for name in ARGUMENTS[job["direction"]]
                   if "bias" not in name or workload.layer.bias}
        size = launch.workspace_bytes(problem)
        workspace = torch.empty(size, dtype=torch.uint8, device="cuda") if size else None
        code = launch(problem, tensors, workspace, torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        assert code == 0, (job["symbol"], launch.error_text(code))
    print("LAUNCHED", len(json.loads(jobs.read_text())))


def jobs_of(runner: Runner, work: list[tuple[Rendered, Workload]]) -> list[dict]:
    built = runner.build_all([r for r, _ in work], "cuda:0")
    return [{"library": built[r.candidate_id].library, "symbol": symbol(r), "direction": r.candidate.direction,
             "workload": w.to_json()} for r, w in work]


def served(variant: Variant, precision: str, config: dict[str, int], shapes: Sequence[Workload] = SMALL
           ) -> list[tuple[Rendered, Workload]]:
    """The small shapes that the variant serves so, rendered in the form it names last."""
    dtype, found = DTYPE_OF.get(precision, "float32"), []
    for shape in shapes:
        candidate = Candidate(variant, shape.layer, dtype, dict(config), precision, variant.forms[-1])
        if why_not(candidate, sm=90) is None:
            found.append((render(candidate), replace(shape, dtype=dtype)))
    return found


def all_work() -> list[tuple[Rendered, Workload]]:
    """Every variant: all small shapes in its first precision, a few in each other one, and what no default config reaches."""
    work = []
    for variant in discover():
        for number, precision in enumerate(variant.precision):
            work += served(variant, precision, {})[:FEWEST if number else None]
        for config in MORE.get(variant.name, ()):
            work += served(variant, variant.precision[0], config)
        if variant.name in LONG:
            work += served(variant, variant.precision[0], {}, [LONG[variant.name]])
    return work


def test_no_precision_of_any_variant_is_left_out() -> None:
    there = {(r.candidate.variant.key, r.candidate.precision) for r, _ in all_work()}
    assert there == {(v.key, precision) for v in discover() for precision in v.precision}


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_every_variant_is_clean(tool: str, runner: Runner, tmp_path: Path) -> None:
    work = all_work()
    done = sanitize(tool, jobs_of(runner, work), tmp_path)
    assert done.returncode == 0 and f"LAUNCHED {len(work)}" in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]
    assert "0 errors" in done.stdout or "0 hazards" in done.stdout or "ERROR SUMMARY: 0" in done.stdout, done.stdout[-500:]


def test_memcheck_reports_a_seeded_read_with_its_line(runner: Runner, tmp_path: Path) -> None:
    seeded = bad_candidate(kernels(tmp_path), "reads_past_input")
    done = sanitize("memcheck", jobs_of(runner, [(render(seeded), WORKLOAD)]), tmp_path)
    assert done.returncode == 9 and "Invalid __global__ read" in done.stdout, done.stdout[-2000:]
    assert "reads_past_input.cu:" in done.stdout


if __name__ == "__main__":
    launch_all(Path(sys.argv[1]))
