"""Binds one of PyTorch's ways (`ladder.py`) to a module, inside the reference's process, for calls in batches. Which layer a
module is. Copies of a module in chosen memory. And convolutions as TF32 computes them: operands are rounded, products and sums
are not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ....core.layer import FORWARD, Workload
from ....core.pytorch_ways import Way
from ...device import CHANNELS_LAST_LAYOUTS, out_of_memory
from ...pytorch.aten import as_convolution, channels_last
from ...pytorch.ways import Unavailable
from ..foreign.replies import Structure
from ..foreign.wire import Tensors
from .module import CLASSES, alone, as_it_was, overwrite, the_state

Forward = Callable[..., torch.Tensor]
_SAME = 1e-9  # relative L2, of float64
ROUNDINGS = ("away", "even", "cut")  # how a tie is rounded; code that reads only the upper 19 bits truncates
# Like one of these, but values that float32 does not hold exactly are first moved by a few float32 roundings.
UP, DOWN = "+", "-"
_DROPPED = 13
_MOVE = 2.0**-21                   # a value of float32 inside a module is off by some 2^-24, by more after a long sum
_CONVOLUTIONS = {getattr(functional, name) for name in ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
                                                        "conv_transpose3d")}


@dataclass
class Bound:
    """`inputs`, or one grad_output (backward), whose values may be changed; `results()` computes from them."""

    inputs: list[torch.Tensor]
    results: Callable[[], Sequence[torch.Tensor]]


def bind(way: Way, module: torch.nn.Module, direction: str, fixed: list[torch.Tensor],
         inputs: list[torch.Tensor]) -> Bound:
    """`fixed`: the inputs of a backward, whose `inputs` are its grad_output. Raises `Unavailable`."""
    xs = [x.detach().requires_grad_(x.is_floating_point()) for x in (fixed or inputs)]
    module = module if way.kind in ("eager", "flipped") else copy.deepcopy(module)
    if way.kind in ("channels_last", "converted"):
        module = module.to(  # type: ignore[call-overload]  # its stub lacks memory_format
            memory_format=CHANNELS_LAST_LAYOUTS[4 if any(x.dim() == 4 for x in xs) else 5])
    if way.kind == "channels_last":
        xs = [channels_last(x).detach().requires_grad_(x.requires_grad) for x in xs]
        inputs = [channels_last(x.detach()).clone(memory_format=torch.preserve_format) for x in inputs]
    forward = _forward(way.kind, module, xs)
    if direction == FORWARD:
        for x in inputs:
            x.requires_grad_(x.is_floating_point())
        return Bound(inputs, lambda: (forward(*inputs),))
    output = forward(*xs)
    wanted = [x for x in xs if x.requires_grad] + [p for p in module.parameters() if p.requires_grad]
    # As torch.autograd.grad does, which imports sympy when it is first given a grad_output: that takes seconds.
    run: Callable[..., Sequence[torch.Tensor]] = torch.autograd.Variable._execution_engine.run_backward
    return Bound(inputs, lambda: run((output,), (inputs[0],), True, False, tuple(wanted), accumulate_grad=False))


def of_memory(error: BaseException | None) -> bool:
    """Whether memory was missing. torch.compile raises an error of its own, which holds the first one."""
    met: list[BaseException] = []
    while error is not None and error not in met:
        if isinstance(error, Exception) and (out_of_memory(error) or "out of memory" in str(error)):
            return True
        met.append(error)
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return False


def _forward(kind: str, module: torch.nn.Module, xs: list[torch.Tensor]) -> Forward:
    if kind == "converted":
        return lambda *inputs: module(*map(channels_last, inputs)).contiguous()
    if kind == "flipped":
        return _flipped(module, xs[0])
    if kind == "compiled":
        torch._dynamo.reset()
        compiled: Forward = torch.compile(module, dynamic=False)
        _tried(lambda: compiled(*xs), "torch.compile gave up")
        return compiled
    if kind == "graphed":
        samples = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in xs)
        graphed: Forward = _tried(lambda: torch.cuda.make_graphed_callables(module, samples), "it cannot be captured")
        return graphed
    return module


def _flipped(module: torch.nn.Module, x: torch.Tensor) -> Forward:
    found = structure(module)
    assert found is not None, "it is offered for a transposed convolution only"
    own: Any
    own, layer = module.get_submodule(found.attribute), found.layer

    def forward(x: torch.Tensor) -> torch.Tensor:
        workload = Workload(layer, x.shape[0], tuple(x.shape[2:]), str(x.dtype).removeprefix("torch."))
        tensors = {"input": x, "weight": own.weight, **({"bias": own.bias} if own.bias is not None else {})}
        return as_convolution(workload, FORWARD, tensors)["output"]

    return forward


def _tried(what: Callable[[], Any], sentence: str) -> Any:
    try:
        return what()
    except torch.cuda.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError, NotImplementedError, OSError) as error:  # what dynamo, inductor and capture raise
        raise Unavailable(f"{sentence}: {str(error).strip().splitlines()[0][:160]}") from error


def structure(module: nn.Module) -> Structure | None:
    """The one transposed convolution that has all parameters of the module, or None, also if it lacks an attribute. The
    module may do more with its output; `is_the_layer` finds that out."""
    names = set(the_state(module)[0])
    for name, layer in module.named_modules():
        dims = next((d for cls, d in CLASSES.items() if isinstance(layer, cls)), None)
        own = {f"{name}.{of}".lstrip(".") for of in ("weight", "bias") if getattr(layer, of, None) is not None}
        if dims and names == own:
            with suppress(AttributeError):   # of a subclass with a constructor of its own
                sizes = (tuple(map(int, values)) for values in (
                    layer.kernel_size, layer.stride, layer.padding, layer.output_padding, layer.dilation))
                kernel, stride, padding, output_padding, dilation = sizes   # a file may have put other numbers there
                return Structure(name, dims, int(layer.in_channels), int(layer.out_channels), kernel, stride, padding,
                                 output_padding, int(layer.groups), layer.bias is not None, dilation)
    return None


@torch.no_grad()
def is_the_layer(module: nn.Module, found: Structure, inputs: list[torch.Tensor]) -> bool:
    """Whether the module, in float64, gives the output of its layer and does nothing before or after it. It is called with the
    first of these inputs, and with large and small values, which a clamp or a threshold would change."""
    if len(inputs) != 1:
        return False
    layer: Any = module.get_submodule(found.attribute)
    convolve = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[found.dims - 1]
    try:
        for factor in (1.0, 1e6, 1e-6):
            x = factor * inputs[0][:1].to(layer.weight)
            y = module(x)
            expected = convolve(x, layer.weight, layer.bias, layer.stride, layer.padding, layer.output_padding, layer.groups,
                                layer.dilation)
            if y.shape != expected.shape or not bool((y - expected).norm() <= _SAME * expected.norm()):
                return False
        return True
    except Exception:  # foreign code: the check reports what it raises, when it calls it
        return False


def convolves(module: nn.Module) -> bool:
    """Whether PyTorch may compute part of it in TF32 on a GPU, which by default it does for convolutions alone."""
    return any(isinstance(one, nn.modules.conv._ConvNd) for one in module.modules())


def in_used_memory(module: torch.nn.Module, xs: Tensors, values: dict[str, torch.Tensor]) -> tuple[tuple[str, ...], Tensors]:
    """The output with these parameters. Added to it is how far the outputs of two copies with them are apart. The parameters of
    one copy lie in new memory. Those of the other lie in the memory of a copy with the present parameters that was called and
    has gone, unless somebody still holds it. A module that cannot be copied so is called alone."""
    present = {n: p.detach().clone() for n, p in module.named_parameters() if n in values}
    overwrite(dict(module.named_parameters()), [*values], [*values.values()])
    with torch.no_grad():
        output = module(*xs).detach().clone()
    new, places = dict[str, torch.Tensor](), dict[str, torch.Tensor]()   # `new` is kept, so that no other copy gets its memory
    try:
        fresh = _of_copy(module, xs, values, new)
    except Exception:  # foreign code
        return (), [output]
    again = [_of_copy(module, xs, which, places) for which in (present, values)][1]
    return (), [output + (again - fresh).abs() if output.is_floating_point() else output]


def _of_copy(module: torch.nn.Module, xs: Tensors, values: dict[str, torch.Tensor], places: dict[str, torch.Tensor]
             ) -> torch.Tensor:
    """The output of a copy with these parameters, which lie in these places: without gradients, and what differs with them."""
    one = copy.deepcopy(module)
    for name, parameter in one.named_parameters():
        if name in values:
            if name not in places or not alone(places[name]):
                places[name] = torch.empty_like(parameter.detach())
            parameter.data = places[name].copy_(values[name])
    output: torch.Tensor
    with torch.no_grad():
        output = one(*xs).detach().clone()
    return output + (one(*xs).detach() - output).abs() if output.is_floating_point() else output


def rounded(x: torch.Tensor, how: str) -> torch.Tensor:
    """The values that TF32 keeps of x, once it is a float32. Two values that differ by a rounding of float32 may be kept as two
    numbers that differ by 2^-10: `UP` and `DOWN` show which. A value that is already a float32, such as an input, has no such
    error."""
    if how[-1] in (UP, DOWN):
        exact = x.to(torch.float32).to(x.dtype) == x
        move = _MOVE * (x.abs() + x.square().mean().sqrt()) * (1 if how[-1] == UP else -1)
        x, how = torch.where(exact, x, x + move), how[:-1]
    bits = x.detach().to(torch.float32).contiguous().view(torch.int32)
    half = 1 << (_DROPPED - 1)
    if how == "away":
        bits = bits + half
    elif how == "even":
        bits = bits + (half - 1) + ((bits >> _DROPPED) & 1)
    return (bits & ~((1 << _DROPPED) - 1)).view(torch.float32).to(x.dtype).view(x.shape)


@contextmanager
def in_tf32(how: str) -> Iterator[None]:
    """Convolutions called here, and their backwards, take rounded operands; "" leaves them alone."""
    if not how:
        yield
        return
    with _Rounded(how):
        yield


class _Operand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, how: str) -> torch.Tensor:
        return rounded(x, how)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class _Result(torch.autograd.Function):
    """Its gradient is an operand of both convolutions of the backward."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, how: str) -> torch.Tensor:
        ctx.how = how
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return rounded(grad, ctx.how), None


class _Rounded(TorchFunctionMode):
    def __init__(self, how: str) -> None:
        super().__init__()
        self._how = how

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function not in _CONVOLUTIONS:
            return function(*args, **kwargs)
        x, weight, *rest = args
        bias = rest.pop(0) if rest else kwargs.pop("bias", None)
        operand: Callable[..., torch.Tensor] = _Operand.apply
        y = function(operand(x, self._how), operand(weight, self._how), None, *rest, **kwargs)
        y = _Result.apply(y, self._how)  # type: ignore[no-untyped-call]  # torch does not type apply
        if bias is None:
            return y
        return y + bias.view(-1, *(1,) * (weight.dim() - 2))


@torch.no_grad()
def called_in_bfloat16(module: nn.Module, xs: Tensors) -> torch.Tensor:
    """A call of the module and of inputs in bfloat16. Afterwards the module is as it was. A file may raise an exception."""
    floats = {t.dtype for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()}
    if len(floats) < 2:
        with as_it_was(module), suppress(Exception):   # foreign code
            try:
                module.to(torch.bfloat16)(*(x.bfloat16() if x.is_floating_point() else x for x in xs))
            finally:
                for dtype in floats:
                    module.to(dtype)
    return torch.zeros(())
