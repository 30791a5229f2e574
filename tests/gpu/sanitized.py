"""Run below compute-sanitizer: launch every library of a JSON list once on its workload, with no allocator between
the kernels and cudaMalloc.   python tests/gpu/sanitized.py jobs.json"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from workbench.core.layer import Workload
from workbench.measure.kernel.launch import ARGUMENTS, Launcher, problem_of


def main(jobs: Path) -> None:
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
