"""Convolutions as TF32 computes them, inside the reference's process: operands are rounded, products and sums are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

ROUNDINGS = ("away", "even", "cut")  # how a tie is rounded; code that reads only the upper 19 bits truncates
# Like one of these, but values that float32 does not hold exactly are first moved by a few float32 roundings.
UP, DOWN = "+", "-"
_DROPPED = 13
_MOVE = 2.0**-21                   # a value of float32 inside a module is off by some 2^-24, by more after a long sum
_CONVOLUTIONS = {getattr(functional, name) for name in ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
                                                        "conv_transpose3d")}


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
