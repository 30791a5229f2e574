"""PyTorch's own way of computing a direction, timed and compared with the float64 truth like a candidate.

`kernel_ms` replays a CUDA graph of the call, so that PyTorch's host time is not counted. Modes: "default" (PyTorch as
it stands), "tf32_on", "tf32_off" (both with cudnn.benchmark, which picks the fastest algorithm that cuDNN has).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..core.candidate import PRECISIONS_OF
from ..core.layer import BACKWARD, DIRECTIONS, FORWARD, GRAD_INPUT, GRAD_WEIGHT, Workload
from ..core.trial import DEFAULT_ADVICE, Status
from . import timing
from .inputs import NORMAL, fill, needed, results, shapes, torch_dtype
from .reference import Truth
from .validate import Comparison, allowed_rel_l2

Emit = Callable[[dict[str, Any]], None]
NAMES = {"default": "eager", "tf32_on": "eager, TF32 on", "tf32_off": "eager, TF32 off"}
_LAYOUT = {4: torch.channels_last, 5: torch.channels_last_3d}
# (grad_input, grad_weight, grad_bias) that aten::convolution_backward is asked for; grad_bias only with a bias
_WANTED = {GRAD_INPUT: (True, False, False), GRAD_WEIGHT: (False, True, True), BACKWARD: (True, True, True)}


def measure(request: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Worker operation "baseline". Request: workload, directions, modes (default: what tells apart on this device),
    device, effort, cold_l2, scratch. Returns {"baselines": [{name, direction, precision, kernel_ms, samples, errors,
    flags, status, headline, advice}]}; one that does not fit into memory has that status and no time."""
    workload, device = Workload.from_json(request["workload"]), request["device"]
    cuda = device != "cpu"
    if cuda:
        torch.cuda.set_device(device)
    with_tf32 = cuda and workload.dtype == "float32"
    modes = request.get("modes") or (["tf32_on", "tf32_off"] if with_tf32 else ["default"])
    found = []
    for direction in request.get("directions") or DIRECTIONS:
        for mode in modes if with_tf32 else ["default"]:
            emit({"phase": "baseline", "text": f"{NAMES[mode]}, {direction}"})
            found.append({"name": NAMES[mode], "direction": direction,
                          **_one(workload, direction, mode, device, request)})
    return {"baselines": found}


def call(workload: Workload, direction: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The results of one direction by PyTorch, from tensors in the caller's memory format."""
    layer = workload.layer
    if direction == FORWARD:
        operator = getattr(torch.nn.functional, f"conv_transpose{layer.dims}d")
        return {"output": operator(tensors["input"], tensors["weight"], tensors.get("bias"), layer.stride,
                                   layer.padding, layer.output_padding, layer.groups, layer.dilation)}
    gx, gw, gb = _WANTED[direction]
    gradients = torch.ops.aten.convolution_backward(
        tensors["grad_output"], tensors["input"], tensors["weight"], [layer.out_channels] if layer.bias else None,
        layer.stride, layer.padding, layer.dilation, True, layer.output_padding, layer.groups,
        [gx, gw, gb and layer.bias])
    return dict(zip(("grad_input", "grad_weight", "grad_bias"), gradients, strict=True))


def _one(workload: Workload, direction: str, mode: str, device: str, request: dict[str, Any]) -> dict[str, Any]:
    scratch = Path(request.get("scratch") or Path(tempfile.gettempdir()) / "kernel-workbench-truth")
    try:
        with _mode(mode):
            return _measured(workload, direction, device, scratch, request)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return {"precision": "", "kernel_ms": None, "samples": [], "errors": {}, "flags": [],
                "status": str(Status.OUT_OF_MEMORY), "headline": f"PyTorch ran out of memory on {device}.",
                "advice": DEFAULT_ADVICE[Status.OUT_OF_MEMORY]}


def _measured(workload: Workload, direction: str, device: str, scratch: Path,
              request: dict[str, Any]) -> dict[str, Any]:
    plain = {}
    # The backward operator wants input and weight in hand even for the gradient that reads only one of them.
    for name in dict.fromkeys((*needed(workload, direction), *(("input", "weight") if direction != FORWARD else ()))):
        plain[name] = torch.empty(shapes(workload)[name], dtype=torch_dtype(workload), device=device)
        fill(plain[name], name, workload, NORMAL)
    truth = Truth(workload, direction, NORMAL, device=device, scratch=scratch)
    truth.prepare(plain)
    tensors = {name: _laid_out(t, workload) for name, t in plain.items()}
    flags: list[str] = []
    run: Callable[[], None] = lambda: call(workload, direction, tensors)  # noqa: E731
    got = call(workload, direction, tensors)
    if device != "cpu":
        torch.cuda.synchronize()
    errors, precision = _errors(workload, direction, got, truth, plain)
    del got
    if device != "cpu":
        replay = _graph(run)
        flags += [] if replay else ["no_cuda_graph"]
        run = replay or run
    measured = timing.measure(run, device=device, effort=request.get("effort", "normal"),
                              cold_l2=request.get("cold_l2", True), host_pays=False)
    return {"precision": precision, "kernel_ms": measured.timing, "samples": measured.samples, "errors": errors,
            "flags": [f for f in (*flags, *measured.flags) if f != "emulated"], "status": str(Status.OK),
            "headline": "PyTorch, measured in the same run.", "advice": ""}


def _errors(workload: Workload, direction: str, got: dict[str, torch.Tensor], truth: Truth,
            plain: dict[str, torch.Tensor]) -> tuple[dict[str, Any], str]:
    """Distances to the truth, and the precision that they show: what a float32 call really computed in."""
    offered = PRECISIONS_OF[workload.dtype]
    errors, precision = {}, offered[0]
    for name in results(workload, direction):
        strict = allowed_rel_l2(offered[0], truth.reduction[name])
        comparison = Comparison(shapes(workload)[name], allowed=strict, rms=truth.rms[name], exact=False,
                                poisoned=False)
        for index, expected in truth.blocks(name, plain):
            comparison.add(index, got[name][index].contiguous(), expected)
        errors[name] = comparison.errors()
        if workload.dtype == "float32" and not comparison.rel_l2 <= strict:
            precision = "tf32"
    return errors, precision


def _laid_out(tensor: torch.Tensor, workload: Workload) -> torch.Tensor:
    """As the caller holds it: for channels_last, activations and weight both are (PyTorch's own advice)."""
    if workload.memory_format == "channels_last" and tensor.dim() in _LAYOUT:
        return tensor.contiguous(memory_format=_LAYOUT[tensor.dim()])
    return tensor


def _graph(run: Callable[[], None]) -> Callable[[], None] | None:
    """A replay of the call; None where it cannot be captured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # cudnn.benchmark must have chosen before the capture
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run()
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:
        return None
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


@contextmanager
def _mode(mode: str) -> Iterator[None]:
    """PyTorch's switches for one mode, put back afterwards."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark
    if mode != "default":
        cudnn.allow_tf32, cudnn.benchmark = mode == "tf32_on", True
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark = before
