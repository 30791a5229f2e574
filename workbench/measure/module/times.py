"""module_ms: forward and backward of a module and of nn.ConvTranspose in its modes, in turns, allocation included."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from ...core.layer import BACKWARD, FORWARD, Workload
from ...core.orders import Emit
from ...core.precision import precision_of
from ...core.pytorch_ways import WAYS, Way, module_ways
from ...core.replies import Event, ModuleTimes
from ..clock import timing
from ..kernel.inputs import NORMAL, fill, shapes, torch_dtype
from ..pytorch.ways import switches
from .cases import Arguments, laid_out
from .subject import Subject

_TURNS = {"quick": 1, "normal": 3, "full": 4}


def original(workload: Workload) -> nn.Module:
    """nn.ConvTransposeNd of the workload's layer, in float32 on the CPU, freshly drawn."""
    layer = workload.layer
    return getattr(nn, f"ConvTranspose{layer.dims}d")(
        layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding, layer.output_padding,
        layer.groups, layer.bias, layer.dilation)


def measure(subject: Subject, workload: Workload, arguments: Arguments, *, effort: str, emit: Emit
            ) -> tuple[list[ModuleTimes], tuple[str, ...]]:
    """The module and behind it PyTorch's modes, and the flags of the module's own times. Times are of the host and the
    device together, cold L2."""
    device = subject.device
    module = subject.make(arguments)
    theirs = original(workload).to(device, torch_dtype(workload))
    theirs.load_state_dict(subject.holder(module).state_dict())
    x = _made(workload, "input", device).requires_grad_()
    grad_output = _made(workload, "grad_output", device)
    modes = [WAYS[key] for key in module_ways(workload, device)]
    contestants: dict[str, tuple[nn.Module, Way | None]] = {"": (module, None), **{way.name: (theirs, way) for way in modes}}
    samples: dict[tuple[str, str], list[float]] = {}
    last: dict[tuple[str, str], timing.Measurement] = {}
    flags: list[str] = []
    turns = _TURNS[effort]
    wall_s = timing.EFFORTS["cpu" if device == "cpu" else "cuda"][effort].wall_s
    for turn in range(turns):
        for name, (contestant, way) in contestants.items():
            emit(Event("time", f"{name or 'ModelNew'}, turn {turn + 1} of {turns}"))
            with switches(way):
                for direction, run in _runs(contestant, x, grad_output).items():
                    run()
                    found = timing.measure(run, device=device, effort=effort, limit_s=wall_s / turns)
                    samples.setdefault((name, direction), []).extend(found.samples)
                    last[name, direction] = found
                    flags += found.flags if name == "" else []
    summaries = {key: timing.summary(taken, stop=last[key].timing.stop, cold_l2=last[key].timing.cold_l2)
                 for key, taken in samples.items()}
    dtype = precision_of(workload.dtype)
    return [ModuleTimes(name, "tf32" if way and way.tf32 else dtype, {d: summaries[name, d] for d in (FORWARD, BACKWARD)},
                        {d: tuple(samples[name, d]) for d in (FORWARD, BACKWARD)})
            for name, (_, way) in contestants.items()], tuple(dict.fromkeys(flags))


def _runs(module: nn.Module, x: torch.Tensor, grad_output: torch.Tensor) -> dict[str, Callable[[], None]]:
    """Direction -> one call. Backward repeats on one graph, whose output is kept alive by the call."""
    parameters = list(module.parameters())
    output = module(x)

    def forward() -> None:
        module(x)

    def backward() -> None:
        torch.autograd.grad(output, [x, *parameters], grad_output, retain_graph=True)

    return {FORWARD: forward, BACKWARD: backward}


def _made(workload: Workload, name: str, device: str) -> torch.Tensor:
    tensor = torch.empty(shapes(workload)[name], dtype=torch_dtype(workload), device=device)
    fill(tensor, name, workload, NORMAL)
    return laid_out(tensor, workload.memory_format).detach()
