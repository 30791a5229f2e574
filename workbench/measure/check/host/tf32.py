"""Convolutions as TF32 computes them, inside the reference's process: operands are rounded, products and sums are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

ROUNDINGS = ("away", "even", "cut")  # how a half is rounded; what reads the upper 19 bits only cuts off
_DROPPED = 13
_CONVOLUTIONS = {getattr(functional, name) for name in ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
                                                        "conv_transpose3d")}


def rounded(x: torch.Tensor, how: str) -> torch.Tensor:
    """The values that TF32 keeps of x, once it is a float32."""
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
