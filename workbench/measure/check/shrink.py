"""What explains a wrong transposed convolution: the smallest case that fails in the same way, and a known mistake that gives
the same output. Also which further cases a file with wrong values still runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod
from typing import Any

import torch

from ...core.answers import Answer
from ...core.check_parts import Element, LooksLike, SmallestCase
from ...core.replies import Event
from ...core.trial import Status
from .. import mistakes
from .progress import Progress
from .questions.cases import Case, changed, few_channels, resized, small_case
from .trialrun import NotForReference, Outcome, TrialRun

_LIMIT_S = 20.0
_MOST_TRIES = 60
_MOST_SHOWN = 8
_OF_WRONG = 6   # so many further cases of a kind show which argument or size matters
_OF_VALUES = ("values", "other_sizes", "other_arguments")   # questions that one mistake fails together


def few_cases(tried: Iterable[Case], given: Case) -> tuple[list[Case], list[Case]]:
    """Of further cases those that a file with wrong values still runs, and the others: on the emulator all of them can take
    minutes, and they would say the same. Those that run have no more values and no larger parameter than the given one."""
    tried = list(tried)
    few = [case for case in tried if _no_larger(case, given)][:_OF_WRONG]
    return few, [case for case in tried if case not in few]


def _no_larger(case: Case, given: Case) -> bool:
    ours, theirs = case.setting.layer, given.setting.layer
    if sum(map(prod, case.shapes)) > sum(map(prod, given.shapes)):
        return False
    if ours is None or theirs is None:
        return True
    return ours.bias <= theirs.bias and all(
        getattr(ours, n) <= getattr(theirs, n) for n in ("in_channels", "out_channels", "groups")) and all(
        a <= b for n in ("kernel_size", "stride", "padding", "output_padding", "dilation")
        for a, b in zip(getattr(ours, n), getattr(theirs, n), strict=True))


def advice_of(mistake: LooksLike | None, key: str) -> str:
    """The advice for a failed question that a known mistake explains, else ""."""
    if mistake is None or not mistake.found or key not in _OF_VALUES:
        return ""
    return f"Same output as \u201c{mistake.found}\u201d. {mistake.advice}"


def explain(trial: TrialRun, given: Case, wrong: Outcome, progress: Progress) -> None:
    """Explain the first wrong outcome of a check of this layer. The findings are added to `progress`."""
    about = wrong.problem("call", "kind", "values", "gradient_values")
    if about is None:
        return
    if about.about == "values":
        _look_alike(trial, given, wrong, progress)
    if about.status in (Status.WORKER_DIED, Status.RUN_TIMEOUT, Status.OUT_OF_MEMORY):
        return
    progress.emit(Event("check", "looking for the smallest case that still fails"))
    try:
        start = wrong if wrong.case.integers else trial.run(replace(small_case(wrong.case), integers=True))
    except NotForReference:
        start = wrong
    if start.problem(about.about) is None:
        start = wrong
    if not trial.candidate.given_up:
        smallest = shrink(trial, start, (about.about,), limit_s=_LIMIT_S)
        progress.known = replace(progress.known, smallest=described(smallest))
        progress.tell()


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


def _look_alike(trial: TrialRun, given: Case, wrong: Outcome, progress: Progress) -> None:
    guess = _guess(wrong)
    if guess is None and (few := _few_channels(trial, given)) is not None:
        wrong, guess = few, _guess(few)  # so little work that all pairs of mistakes can be tried
    layer = str(wrong.case.setting.layer)
    if guess is None:
        progress.known = replace(progress.known, mistake=LooksLike(layer, "", "", 0, ()))
        return
    looks = LooksLike(layer, guess.found, guess.advice, guess.tried, tuple(guess.differs))
    progress.known = replace(progress.known, mistake=looks)
    for place, q in enumerate(progress.questions):
        if q.answer is Answer.FAILED and (advice := advice_of(looks, q.key)):
            progress.questions[place] = replace(q, advice=advice)


def _few_channels(trial: TrialRun, given: Case) -> Outcome | None:
    """A wrong output of the given layer with few channels, where the constructor takes them."""
    case = few_channels(given)
    if case is None or trial.candidate.given_up:
        return None
    try:
        outcome = trial.run(case, gradients=False)
    except NotForReference:
        return None
    return outcome if outcome.problem("values") and outcome.got else None


def _guess(wrong: Outcome) -> mistakes.Guess | None:
    names, values = wrong.state
    weight = next(v for n, v in zip(names, values, strict=True) if n.endswith("weight"))
    bias = next((v for n, v in zip(names, values, strict=True) if n.endswith("bias")), None)
    return mistakes.guess(wrong.case.setting.layer, *(None if t is None else t.cpu() for t in (
        wrong.inputs[0], weight, bias, wrong.got["output"])))


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
    """Inputs 1, 2, 3, ..., so that an output shows which input it used."""
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
