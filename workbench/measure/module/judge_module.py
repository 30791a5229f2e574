"""Judges a file that the workbench exported: does it do what nn.ConvTranspose does, and what is its module_ms beside PyTorch's?

Checked: every result against the float64 truth for its own workload and for other sizes, layouts and constructor
arguments; parameters, state_dict, empty batch, single gradients, double backward, another dtype. Then it is timed.

Why is this not `check`? `check` judges files of other people. Such a file runs in another process, so its kernels cannot be
queried. An exported file is written by the workbench and runs in this process. It reports for each kernel whether it serves the
call, its precision, and why it was not used. So each direction has the tolerance of its own kernel. Both use the same truth,
inputs, comparison and findings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...core.layer import BACKWARD, FORWARD, GRAD_INPUT, GRAD_WEIGHT, Workload
from ...core.orders import Emit, ModuleOrder
from ...core.precision import precision_of
from ...core.pytorch_ways import WAYS, Way, module_ways
from ...core.replies import Event, ModuleJudged, ModuleTimes
from ...core.trial import DEFAULT_ADVICE, Errors, Status
from ...core.trial_parts import Detail
from ..clock import timing
from ..device import free_bytes, out_of_memory
from ..kernel import findings
from ..kernel.findings import Finding
from ..kernel.inputs import INTEGERS, NORMAL, changed, fill, needed, results, shapes, torch_dtype
from ..kernel.validate import Comparison, allowed_rel_l2
from ..pytorch.aten import is_channels_last
from ..pytorch.ways import switches
from ..truth import Truth
from .cases import Arguments, ModuleCase, cases, laid_out
from .subject import Subject

Tensors = dict[str, torch.Tensor]
_TURNS = {"quick": 1, "normal": 3, "full": 4}
_DIRECTION_OF = {"output": FORWARD, "grad_input": GRAD_INPUT, "grad_weight": GRAD_WEIGHT, "grad_bias": GRAD_WEIGHT}


def judge_module(order: ModuleOrder, emit: Emit) -> ModuleJudged:
    """Worker operation "module"."""
    try:
        result = _judge(order, emit)
    except Finding as finding:
        result = finding.told(partial(ModuleJudged, errors=finding.errors))
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        result = ModuleJudged(status=Status.OUT_OF_MEMORY, headline=f"The check ran out of memory on {order.device}.",
                              detail=Detail(shown={"free_bytes": free_bytes(order.device)}))
    flags = [*(["emulated"] if order.device == "cpu" else []), *result.flags]
    return replace(result, flags=tuple(dict.fromkeys(flags)))


def _judge(order: ModuleOrder, emit: Emit) -> ModuleJudged:
    workload, device = order.workload, order.device
    if device != "cpu":
        torch.cuda.set_device(device)
    scratch = order.scratch / "truth"
    subject = Subject(order)
    subject.build_all(emit)
    given = [tuple(a) if isinstance(a, list) else a for a in order.constructor_args]
    arguments = dict(zip(subject.parameters, given, strict=False))
    emit(Event("check", "parameters and state_dict"))
    _check_parameters(subject, workload, arguments)
    errors: dict[str, Errors] = {}
    tried = cases(workload, arguments)
    for case in tried:
        for kind in case.kinds:
            emit(Event("check", f"{case.name}, {kind}"))
            found = _check(subject, case, kind, scratch)
            errors = errors or (found if kind != INTEGERS else {})
    emit(Event("check", "gradients one by one, an empty batch, another dtype"))
    _check_gradients_apart(subject, tried[1])
    _check_empty_batch(subject, tried[1])
    _check_other_dtype(subject, tried[1])
    precisions = {d: subject.precision(d, own=True) for d in (FORWARD, GRAD_INPUT, GRAD_WEIGHT)}
    ours = {d: p for d, (p, own) in precisions.items() if own}
    emulator = " The emulator ran the templates; the file holds the parts of them that a GPU runs." * subject.ran_templates
    right = ModuleJudged(
        status=Status.OK, headline=f"Matches nn.ConvTranspose in all checks.{emulator}", advice=DEFAULT_ADVICE[Status.OK],
        errors=errors, precision="+".join(dict.fromkeys(ours.values())),
        detail=Detail(left_to_pytorch=tuple(d for d in precisions if d not in ours), checked=tuple(case.name for case in tried),
                      shown={"precision": ours}))
    if not order.time:
        return right
    subject.namespace["_DEBUG_SYNC"] = False
    (mine, *others), flags = _times(subject, workload, arguments, emit=emit, effort=order.effort)
    return replace(right, module_ms=mine.module_ms, samples=mine.samples, baselines=tuple(others), flags=flags)


def _check_parameters(subject: Subject, workload: Workload, arguments: Arguments) -> None:
    """The same numbers under the same seed, under names that take the original's state_dict."""
    torch.manual_seed(workload.seed + 1)
    original = _original(workload)
    torch.manual_seed(workload.seed + 1)
    module = subject.call(lambda: subject.cls(**arguments))
    prefix = f"{subject.attribute}." if subject.attribute else ""
    theirs = {prefix + name: value for name, value in original.state_dict().items()}
    ours = module.state_dict()
    if list(ours) != list(theirs):
        raise Finding(Status.MISMATCH, f"Its state_dict has {', '.join(ours) or 'nothing'}; the original's has "
                      f"{', '.join(theirs)}.", "Keep the original's parameter names.")
    for name, value in theirs.items():
        if not torch.equal(value, ours[name]):
            raise Finding(Status.MISMATCH, f"Under the same seed {name} differs from PyTorch's.",
                          "Draw the parameters as nn.ConvTranspose does, and in the same order.")
    module.load_state_dict({name: value + 1 for name, value in theirs.items()})
    if not all(torch.equal(module.state_dict()[name], value + 1) for name, value in theirs.items()):
        raise Finding(Status.MISMATCH, "It cannot load the original's state_dict.", "Load it as nn.Module does.")


def _check(subject: Subject, case: ModuleCase, kind: str, scratch: Path) -> dict[str, Errors]:
    """One case with one kind of inputs: every result against the truth. Raises `Finding`."""
    workload, device = case.workload, subject.device
    tensors = {name: torch.empty(shape, dtype=torch_dtype(workload), device=device)
               for name, shape in shapes(workload).items() if name in ("input", "weight", "bias", "grad_output")}
    for name, tensor in tensors.items():
        fill(tensor, name, workload, kind)
    truths = {d: Truth(workload, d, kind, device=device, scratch=scratch) for d in (FORWARD, BACKWARD)}
    for truth in truths.values():
        truth.prepare(tensors)
    got = _run(subject, case, tensors)
    for name in needed(workload, FORWARD):
        count, first = changed(tensors[name], name, workload, kind)
        if first is not None:
            raise findings.input_modified(name, count, (first,))
    errors = {}
    for direction, truth in truths.items():
        for name in results(workload, direction):
            comparison, precision = _compare(subject, case, name, got[name], truth, tensors, exact=kind == INTEGERS)
            errors[name] = comparison.errors()
            if comparison.failed and not _is_pytorchs(subject, case, name, got[name], tensors):
                found = findings.wrong_result(name, comparison, kind=kind, precision=precision)
                raise Finding(found.status, f"For {case.name}: {found.headline}", found.advice,
                              {**found.detail, "case": case.name}, found.errors)
    return errors


def _compare(subject: Subject, case: ModuleCase, name: str, got: torch.Tensor, truth: Truth, tensors: Tensors, *,
             exact: bool) -> tuple[Comparison, str]:
    precision, by_kernel = subject.precision(_DIRECTION_OF[name], own=case.own)
    # PyTorch may choose an algorithm (Winograd) that is not exact for integers, so its directions need not be exact.
    comparison = Comparison(tuple(got.shape), exact=exact and by_kernel, rms=truth.rms[name], poisoned=False,
                            least_norm=truth.least_norm[name],
                            allowed=allowed_rel_l2(precision, truth.reduction[name]))
    for index, expected in truth.blocks(name, tensors):
        comparison.add(index, got[index].contiguous(), expected)
    return comparison, precision


def _is_pytorchs(subject: Subject, case: ModuleCase, name: str, got: torch.Tensor, tensors: Tensors) -> bool:
    """Whether the file leaves the direction to PyTorch and has the bits of nn.ConvTranspose. On some CPUs these have larger
    errors in float16 than a kernel may have."""
    _, by_kernel = subject.precision(_DIRECTION_OF[name], own=case.own)
    return not by_kernel and torch.equal(got, _by_pytorch(subject, case, tensors)[name])


def _run(subject: Subject, case: ModuleCase, tensors: Tensors) -> Tensors:
    """output, grad_input, grad_weight and grad_bias of one call through autograd; kinds of result are checked."""
    module = _loaded(subject, case.arguments, tensors)
    return _called(subject, case, tensors, module, subject.holder(module))


def _by_pytorch(subject: Subject, case: ModuleCase, tensors: Tensors) -> Tensors:
    """The same of nn.ConvTranspose."""
    original = _original(case.workload)
    for name in ("weight", "bias"):
        if name in tensors:
            getattr(original, name).data = tensors[name]
    return _called(subject, case, tensors, original, original)


def _called(subject: Subject, case: ModuleCase, tensors: Tensors, module: nn.Module, holder: nn.Module) -> Tensors:
    x = laid_out(tensors["input"], case.layout).detach().requires_grad_()
    with _Poisoned():
        output = subject.call(lambda: module(x))
        _check_kind(case, output, x)
        wanted = {"grad_input": x, "grad_weight": holder.weight}
        if case.workload.layer.bias:
            wanted["grad_bias"] = holder.bias
        grad_output = laid_out(tensors["grad_output"], case.layout)
        gradients = subject.call(lambda: torch.autograd.grad(output, list(wanted.values()), grad_output,
                                                             allow_unused=True))
    for name, gradient in zip(wanted, gradients, strict=True):
        if gradient is None:
            raise Finding(Status.NO_GRADIENT, f"For {case.name}: autograd gives no {name}.")
    return {"output": output.detach(), **dict(zip(wanted, gradients, strict=True))}


def _check_kind(case: ModuleCase, output: Any, x: torch.Tensor) -> None:
    expected = case.workload.output_shape
    if not isinstance(output, torch.Tensor) or tuple(output.shape) != expected:
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise Finding(Status.WRONG_SHAPE, f"For {case.name}: the output is {shape}, expected {expected}.")
    if output.dtype != x.dtype:
        raise Finding(Status.WRONG_DTYPE, f"For {case.name}: the output is {output.dtype}, expected {x.dtype}.")
    if output.device != x.device:
        raise Finding(Status.WRONG_DEVICE, f"For {case.name}: the output is on {output.device}, expected {x.device}.")
    if not output.requires_grad:
        raise Finding(Status.NO_GRADIENT, f"For {case.name}: the output does not require a gradient.")
    # An input whose sizes of 1 make it contiguous as well is no channels_last input to PyTorch either.
    if case.layout == "channels_last" and not x.is_contiguous() and not is_channels_last(output):
        raise Finding(Status.MISMATCH, f"For {case.name}: the output is not channels_last, PyTorch's is.",
                      "Convert the output to the input's memory format.")


def _check_gradients_apart(subject: Subject, case: ModuleCase) -> None:
    """Each gradient alone must have the same bits as together with the others. Second derivatives must be those of PyTorch."""
    tensors = _filled(subject, case)
    together = _run(subject, case, tensors)
    module = _loaded(subject, case.arguments, tensors)
    holder = subject.holder(module)
    x = tensors["input"].detach().requires_grad_()
    names = {"grad_input": x, "grad_weight": holder.weight}
    if case.workload.layer.bias:
        names["grad_bias"] = holder.bias
    for name, tensor in names.items():
        for other in names.values():
            other.requires_grad_(other is tensor)
        alone = subject.call(lambda one=tensor: torch.autograd.grad(module(x), one, tensors["grad_output"])[0])
        # The bias alone is a plain sum, by PyTorch.
        same = torch.equal(alone, together[name]) if name != "grad_bias" else torch.allclose(alone, together[name])
        if not same:
            raise Finding(Status.MISMATCH, f"{name} differs when it is computed without the other gradients.")
    original = _original(case.workload).to(subject.device, tensors["input"].dtype)
    original.load_state_dict(holder.state_dict())
    # Large squares are infinite in float16, so the gradients are divided by the largest, which is right here.
    largest = float(together["grad_input"].abs().max().clamp(min=1))
    ours, theirs = (_second_derivative(one, tensors, largest) for one in (module, original))
    if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2 * float(theirs.abs().max())):
        raise Finding(Status.MISMATCH, "The second derivative differs from nn.ConvTranspose's.",
                      "Compute gradients by torch.ops.aten.convolution_backward while PyTorch records them.")


def _second_derivative(module: nn.Module, tensors: Tensors, largest: float) -> torch.Tensor:
    """Of a sum of squared gradients, by grad_output. They are divided by `largest` before."""
    x, grad_output = (tensors[name].detach().requires_grad_() for name in ("input", "grad_output"))
    gradient = torch.autograd.grad(module(x), x, grad_output, create_graph=True)[0]
    return torch.autograd.grad((gradient / largest).square().sum(), grad_output)[0]


def _check_empty_batch(subject: Subject, case: ModuleCase) -> None:
    """An empty batch gives an empty output and gradients of zero, as PyTorch's does."""
    tensors = _filled(subject, case)
    module = _loaded(subject, case.arguments, tensors)
    weight = subject.holder(module).weight
    x = tensors["input"][:0].detach().requires_grad_()
    output = subject.call(lambda: module(x))
    gradients = subject.call(lambda: torch.autograd.grad(output.sum(), [x, weight]))
    expected = (0, *case.workload.output_shape[1:])
    if tuple(output.shape) != expected or gradients[0].shape != x.shape or bool(gradients[1].any()):
        raise Finding(Status.WRONG_SHAPE, f"For an empty batch: the output is {tuple(output.shape)}, expected "
                      f"{expected} and gradients of zero.")


def _check_other_dtype(subject: Subject, case: ModuleCase) -> None:
    """A dtype the kernels do not have is PyTorch's: the same numbers as nn.ConvTranspose."""
    dtype = torch.float32 if torch_dtype(case.workload) == torch.float64 else torch.float64
    tensors = {name: tensor.to(dtype) for name, tensor in _filled(subject, case).items()}
    module = _loaded(subject, case.arguments, tensors, dtype)
    original = _original(case.workload).to(subject.device, dtype)
    original.load_state_dict(subject.holder(module).state_dict())
    ours, theirs = subject.call(lambda: module(tensors["input"])), original(tensors["input"])
    if ours.dtype != dtype or not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3):
        raise Finding(Status.WRONG_DTYPE, f"For {dtype} the output is {ours.dtype} and differs from nn.ConvTranspose.",
                      "Leave other dtypes to PyTorch's own op.")


def _filled(subject: Subject, case: ModuleCase) -> Tensors:
    tensors = {name: torch.empty(shape, dtype=torch_dtype(case.workload), device=subject.device)
               for name, shape in shapes(case.workload).items() if name in ("input", "weight", "bias", "grad_output")}
    for name, tensor in tensors.items():
        fill(tensor, name, case.workload, INTEGERS)
    return tensors


def _loaded(subject: Subject, arguments: Arguments, tensors: Tensors,
            dtype: torch.dtype | None = None) -> nn.Module:
    """The module with these parameters; the tensors themselves, so that a kernel that writes to them is seen."""
    module = subject.make(arguments, dtype)
    holder = subject.holder(module)
    for name in ("weight", "bias"):
        if name in tensors:
            getattr(holder, name).data = tensors[name]
    return module


class _Poisoned:
    """Inside this block new tensors hold NaN (integers: their largest value), so that elements which are not written show."""

    def __enter__(self) -> None:
        torch.set_deterministic_debug_mode("warn")  # use_deterministic_algorithms would import the compiler: 2 s

    def __exit__(self, *error: object) -> None:
        torch.set_deterministic_debug_mode("default")


def _original(workload: Workload) -> nn.Module:
    """nn.ConvTransposeNd of the workload's layer, in float32 on the CPU, freshly drawn."""
    layer = workload.layer
    return getattr(nn, f"ConvTranspose{layer.dims}d")(
        layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding, layer.output_padding,
        layer.groups, layer.bias, layer.dilation)


def _times(subject: Subject, workload: Workload, arguments: Arguments, *, effort: str, emit: Emit
            ) -> tuple[list[ModuleTimes], tuple[str, ...]]:
    """module_ms: the module and behind it PyTorch's modes, in turns, and the flags of the module's own times. Times are of the
    host and the device together, allocation included, cold L2."""
    device = subject.device
    module = subject.make(arguments)
    theirs = _original(workload).to(device, torch_dtype(workload))
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
