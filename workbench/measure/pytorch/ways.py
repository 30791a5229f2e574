"""A way of core/pytorch_ways.py comes in, a call on the workload's tensors goes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...core.layer import Workload
from ...core.pytorch_ways import AUTOTUNED, COMPILED, FORMULATIONS, Way
from .aten import Tensors, as_convolution, call, channels_last
from .formulations import formulated


class Unavailable(Exception):
    """This way does not exist for this workload; the text says why."""


def bind(kind: str, workload: Workload, direction: str, plain: Tensors) -> Callable[[], Tensors]:
    """A call without arguments that computes the direction's results from contiguous tensors `plain`.

    Raises `Unavailable`. Work that a way needs only once (laying out its inputs) is done here and is not counted.
    """
    if kind == "channels_last":
        there = {name: channels_last(t) for name, t in plain.items()}
        return lambda: call(workload, direction, there)
    if kind == "converted":
        def converted() -> Tensors:
            found = call(workload, direction, {name: channels_last(t) for name, t in plain.items()})
            return {name: t.contiguous() if t is not None else t for name, t in found.items()}
        return converted
    own = {name: channels_last(t) if workload.memory_format == "channels_last" else t for name, t in plain.items()}
    if kind.startswith(AUTOTUNED):
        inner = _call_of(kind.removeprefix(AUTOTUNED), workload, direction)
        return _compiled(inner, own, mode="max-autotune-no-cudagraphs")
    if kind == "compiled" or kind.startswith(COMPILED):
        return _compiled(_call_of(kind.removeprefix(COMPILED), workload, direction), own)
    inner = _call_of(kind, workload, direction)
    return lambda: inner(own)


@contextmanager
def switches(way: Way | None) -> Iterator[None]:
    """PyTorch's switches for one way (None: as they stand), put back afterwards. TF32 is allowed, or not, for products of
    matrices as well."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32
    if way is not None and way.tf32 is not None:
        cudnn.allow_tf32 = matmul.allow_tf32 = way.tf32
    if way is not None and way.benchmark is not None:
        cudnn.benchmark = way.benchmark
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32 = before


def _call_of(kind: str, workload: Workload, direction: str) -> Callable[[Tensors], Tensors]:
    if kind == "flipped":
        if set(workload.layer.stride) != {1}:
            raise Unavailable("Only a layer of stride 1 is a convolution with flipped weight.")
        return lambda tensors: as_convolution(workload, direction, tensors)
    if kind in FORMULATIONS:
        if why := FORMULATIONS[kind].why_not(workload):
            raise Unavailable(why)
        return lambda tensors: formulated(kind, workload, direction, tensors)
    return lambda tensors: call(workload, direction, tensors)


def _compiled(inner: Callable[[Tensors], Tensors], own: Tensors, **how: Any) -> Callable[[], Tensors]:
    torch._dynamo.reset()
    compiled = torch.compile(inner, dynamic=False, **how)
    try:
        compiled(own)
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:  # what dynamo and inductor raise derives from it
        said = " ".join(str(error).split())   # its first line names the backend alone
        raise Unavailable(f"torch.compile gave up: {said[:160]}") from error
    return lambda: compiled(own)
