"""Whether a patched model still gives the results of the original: shapes, infinities, and a distance within a limit.

Kernels round differently from PyTorch, and a model may amplify the difference, for example in a gradient that is zero except
for rounding. So the original is also run with its layers' weights changed by about a rounding error. The resulting difference
is its own drift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import hypot, inf
from typing import Protocol

import torch
from torch import nn

from ...core.patching import INFERENCE, TRAINING, Drift
from .load import guarded, told
from .step import Stepper, tensors_of

_LIMIT, _LIMIT_16_BIT = 2e-2, 1e-1   # relative L2 of one output or gradient; float32 may be TF32
_TIMES_OWN = 4                       # beyond the limit, so many times the original's own drift is allowed
_ROUNDING, _ROUNDING_16_BIT = 2.0 ** -11, 2.0 ** -8
_NUDGES = 2
_LEAST = 1e-3                        # a gradient is compared with at least this part of all: smaller ones are mostly rounding
Results = dict[str, torch.Tensor]    # "output 1", "gradient of up.weight"


class States(Protocol):
    """One model in two states; `layers` are those that differ in them."""

    layers: list[nn.Module]

    def original(self) -> None: ...

    def patched(self) -> None: ...


def compare(both: States, stepper: Stepper, said: list[str], *, train: bool, dtypes: Sequence[str]
            ) -> tuple[dict[str, Drift], str]:
    """Original and patched with the same parameters, inputs and random numbers. The text says why the results are others; it is
    empty where they are not. What cannot be compared is added to `said`. Raises `BadRequest` where the original fails."""
    def results() -> Results:
        if not train:
            there = _numbered(tensors_of(stepper.inference()))
        else:
            outputs, gradients = stepper.gradients()
            there = _numbered(outputs) | {f"gradient of {name}": t for name, t in gradients.items()}
        stepper.restore()  # running statistics moved
        return there

    def again() -> Results:
        there: Results = guarded(results, "The unchanged model fails when it is called again")
        return there

    narrow = any(dtype in ("float16", "bfloat16") for dtype in dtypes)
    both.original()
    theirs = again()
    own = [again()]
    for seed in range(_NUDGES):
        with _nudged(both.layers, seed, _ROUNDING_16_BIT if narrow else _ROUNDING):
            own.append(again())
    tf32 = _tf32(again) if stepper.device.type == "cuda" else []
    without = _without_autocast(again, stepper) if stepper.autocast else {}
    both.patched()
    try:
        ours = results()
    except Exception as error:  # ours or the user's: the original is asked
        failed = told(error)
        stepper.restore()
        both.original()
        again()
        return {}, f"with the kernels the model fails: {failed}"
    its_own = farthest(without, theirs) if without else farthest(*tf32) if tf32 else (None, None)
    drift = Drift(*farthest(theirs, ours), *its_own)
    limit = _LIMIT_16_BIT if narrow else _LIMIT
    return {TRAINING if train else INFERENCE: drift}, differs(theirs, ours, own=[*own, *tf32], limit=limit,
                                                                     said=said)


def differs(theirs: Results, ours: Results, *, own: Sequence[Results], limit: float, said: list[str]) -> str:
    """Why `ours` are other results than `theirs`; empty where they are not. `own`: the original's at other runs."""
    least = _least(theirs)
    for name in theirs | ours:
        if name not in theirs or name not in ours:
            if all((name in run) is (name in theirs) for run in own):
                return f"{name} is there only {'without' if name in theirs else 'with'} the kernels"
        elif theirs[name].shape != ours[name].shape:
            if all(name in run and run[name].shape == theirs[name].shape for run in own):
                return (f"with the kernels {name} has the shape {tuple(ours[name].shape)}, without them "
                        f"{tuple(theirs[name].shape)}")
        else:
            distance = _distance(theirs[name], ours[name], least[name])
            its = [_distance(theirs[name], run[name], least[name]) for run in own
                   if name in run and run[name].shape == theirs[name].shape]
            allowed = max(limit, _TIMES_OWN * max((d for d in its if d < inf), default=0.0))
            if distance == inf:
                return f"with the kernels {name} is infinite or NaN in other places"
            if not distance <= allowed:
                return f"with the kernels {name} differs by {distance:.1e} in relative L2, and {allowed:.1e} is allowed"
    lost = [name for name in theirs | ours
            if name not in theirs or name not in ours or theirs[name].shape != ours[name].shape]
    if lost:
        said.append(f"{', '.join(lost)}: not compared, because the shape depends on values. It also changes in the original.")
    return ""


def farthest(expected: Results, got: Results) -> tuple[float | None, float | None]:
    """The largest relative L2 distance of outputs, and of gradients; None where none can be compared."""
    least = _least(expected)

    def of(kind: str) -> float | None:
        return max((_distance(a, got[name], least[name]) for name, a in expected.items() if name.startswith(kind) and a.numel()
                    and name in got and got[name].shape == a.shape), default=None)
    return of("output"), of("gradient")


def _least(results: Results) -> dict[str, float]:
    """The norm with which each is compared at least."""
    gradients = hypot(*(_norm(t) for name, t in results.items() if name.startswith("gradient")))
    return {name: _LEAST * gradients if name.startswith("gradient") else 0.0 for name in results}


def _numbered(outputs: Sequence[torch.Tensor]) -> Results:
    return {f"output {number}": t.clone() for number, t in enumerate(outputs, 1)}


def _tf32(run: Callable[[], Results]) -> list[Results]:
    """PyTorch's own results in float32 and in TF32."""
    benchmark = torch.backends.cudnn.benchmark
    found = []
    for allowed in (False, True):
        with torch.backends.cudnn.flags(enabled=True, benchmark=benchmark, allow_tf32=allowed):
            found.append(run())
    return found


def _without_autocast(run: Callable[[], Results], stepper: Stepper) -> Results:
    """PyTorch's own results in the dtype of the model, without TF32."""
    benchmark, autocast = torch.backends.cudnn.benchmark, stepper.autocast
    stepper.autocast = ""
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=benchmark, allow_tf32=False):
            return run()
    finally:
        stepper.autocast = autocast


@contextmanager
def _nudged(layers: Sequence[nn.Module], seed: int, by: float) -> Iterator[None]:
    """The parameters of these layers, each element changed by at most that part of it. Those that cannot be written to (made in
    inference mode, expanded) stay."""
    parameters = dict.fromkeys(p for layer in layers for p in layer.parameters()
                               if p.is_floating_point() and not p.is_inference() and 0 not in p.stride())
    was = [(p, p.detach().clone()) for p in parameters]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p, _ in was:
            p.mul_((1 + by * (2 * torch.rand(p.shape, generator=generator) - 1)).to(p.device, torch.float32))
    try:
        yield
    finally:
        with torch.no_grad():
            for p, value in was:
                p.copy_(value)


def _norm(tensor: torch.Tensor) -> float:
    return float(tensor[tensor.isfinite()].to(torch.complex128 if tensor.is_complex() else torch.float64).norm())


def _distance(expected: torch.Tensor, got: torch.Tensor, least: float = 0.0) -> float:
    """Relative to the norm of `expected`, or to `least` if that is more."""
    wide = torch.complex128 if expected.is_complex() else torch.float64
    a, b = expected.to(wide), got.to(wide)
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()) or not torch.allclose(a[~finite], b[~finite], equal_nan=True):
        return inf
    norm, away = max(least, _norm(a)), _norm((a - b)[finite])
    return away / norm if norm else away
