"""Shrinks a failing case of a transposed convolution to the smallest one that fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from ....core.check_parts import Element, SmallestCase
from ..trialrun import NotForReference, Outcome, TrialRun
from .cases import Case, changed, resized

_MOST_TRIES = 60
_MOST_SHOWN = 8


def shrink(trial: TrialRun, failing: Outcome, about: tuple[str, ...], *, limit_s: float) -> Outcome:
    """Makes each parameter and size as small as possible while one of `about` is still wrong; stops at the time limit."""
    best, end, tries = failing, time.monotonic() + limit_s, 0
    status = failing.problem(*about).status
    again = True
    while again:
        again = False
        for case in _smaller(best.case):
            tries += 1
            if tries > _MOST_TRIES or time.monotonic() > end or trial.candidate.process.deaths > 2:
                return best
            try:
                outcome = trial.run(case, gradients="gradient_values" in about, values=_ladder(case))
            except NotForReference:
                continue
            problem = outcome.problem(*about)
            if problem is not None and problem.status == status:
                best, again = outcome, True
                break
    return best


def described(outcome: Outcome) -> SmallestCase:
    """What a report shows of the smallest case: the layer, the input, expected beside got."""
    case, name = outcome.case, "output"
    if outcome.problem("values") is None:
        name = next((n for n in outcome.got if n != "output" and n in outcome.expected
                     and n in outcome.errors and outcome.errors[n].wrong), "output")
    found = SmallestCase(str(case.setting.layer), dict(case.setting.keywords), tuple(case.shapes[0]), case.dtypes[0], name,
                         outcome.problems[0].seen, case.expanded)
    got, expected = outcome.got.get(name), outcome.expected.get(name)
    if got is not None and expected is not None and got.shape == expected.shape:
        wrong = ((got.double() - expected).abs() > 1e-4 * expected.abs().max().clamp(min=1e-30)) | ~got.isfinite()
        first = int(wrong.reshape(-1).to(torch.uint8).argmax())
        start = max(0, min(first - _MOST_SHOWN // 2, got.numel() - _MOST_SHOWN))
        flat = range(start, min(got.numel(), start + _MOST_SHOWN))
        values = tuple(Element(_place(i, tuple(got.shape)), float(expected.reshape(-1)[i]), float(got.reshape(-1)[i]),
                               bool(wrong.reshape(-1)[i])) for i in flat)
        weight = _shown(outcome.state[1][0]) if outcome.state and outcome.state[1] else None
        found = replace(found, values=values, x=_shown(outcome.inputs[0]), weight=weight)
    return found


def _smaller(case: Case) -> Iterator[Case]:
    """Cases one step smaller, the greatest steps first."""
    layer, names = case.setting.layer, dict(case.setting.keywords)
    batch, size = case.shapes[0][0], case.shapes[0][2:]
    dims = range(layer.dims)

    def with_layer(**change: Any) -> Iterator[Case]:
        if not set(change) <= set(names):
            return
        found = changed(case, change)
        if found is not None and found.setting.layer != layer:
            same = resized(found, batch, size)
            if same is not None:
                yield same

    if batch > 1 and (found := resized(case, 1, size)) is not None:
        yield found
    if layer.in_channels > 1 or layer.out_channels > 1:
        yield from with_layer(in_channels=1, out_channels=1, groups=1)
        if "groups" not in names and layer.groups == 1:
            yield from with_layer(in_channels=1, out_channels=1)
        yield from with_layer(in_channels=2, out_channels=2, groups=min(2, layer.groups))
    if layer.bias:
        yield from with_layer(bias=False)
    yield from _plain_parameters(layer, with_layer)
    for d in dims:
        for n in (1, 2, 3):
            if n < size[d] and (found := resized(case, batch, (*size[:d], n, *size[d + 1:]))) is not None:
                yield found


def _plain_parameters(layer: Any, with_layer: Any) -> Iterator[Case]:
    """Each parameter to its least value, in all dimensions and in one."""
    for key, values in (("output_padding", (0,)), ("dilation", (1,)), ("padding", (0, 1)), ("kernel_size", (1, 2, 3)),
                        ("stride", (1, 2, 3))):
        now = getattr(layer, key)
        for value in values:
            if any(v > value for v in now):
                yield from with_layer(**{key: tuple(min(v, value) for v in now)})
                for d in range(layer.dims):
                    if layer.dims > 1 and now[d] > value:
                        yield from with_layer(**{key: (*now[:d], value, *now[d + 1:])})


def _ladder(case: Case) -> list[torch.Tensor]:
    """1, 2, 3, ...: an output that took the wrong input shows which."""
    shape = case.shapes[0]
    total = 1
    for n in shape:
        total *= n
    return [(torch.arange(total) % 7 + 1).reshape(shape).to(getattr(torch, case.dtypes[0]))]


def _shown(tensor: torch.Tensor) -> tuple[float, ...]:
    return tuple(float(v) for v in tensor.reshape(-1)[:_MOST_SHOWN])


def _place(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    place = []
    for size in reversed(shape):
        flat, rest = divmod(flat, size)
        place.append(rest)
    return tuple(place[::-1])
