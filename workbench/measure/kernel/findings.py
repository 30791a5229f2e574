"""What the judge found, as status, headline and advice: what happened, with numbers, then one next step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ...core import numbers
from ...core.trial import DEFAULT_ADVICE, Errors, Status
from ...core.trial_parts import Detail
from .launch import OUT_OF_MEMORY_CODE, STICKY_CODES
from .validate import Comparison

R = TypeVar("R")
# Names of tensors as sentences use them.
SHORT = {"input": "x", "output": "y", "weight": "the weight", "bias": "the bias", "workspace": "the workspace"}
_FEW = 0.01               # below this share, a count says more than a percentage
_LONE = 20                # an error of so many times the root mean square of all errors is not rounding
_PRECISION_ONLY = 2e-2    # if the integers are exact, a smaller relative error is rounding, not a wrong index


@dataclass(eq=False)
class Finding(Exception):
    """Raised inside the judge, returned by it as data. `restart`: the CUDA context is lost."""

    status: Status
    headline: str
    advice: str = ""
    detail: dict[str, Any] = field(default_factory=dict)   # goes into the session as it is
    errors: dict[str, Errors] = field(default_factory=dict)
    restart: bool = False

    def told(self, kind: Callable[..., R]) -> R:
        """As a reply of that type."""
        return kind(status=self.status, headline=self.headline, advice=self.advice or DEFAULT_ADVICE[self.status],
                    detail=Detail(shown=self.detail), restart=self.restart)


def launch_error(code: int, text: str, *, cuda: bool) -> Finding:
    """The launcher returned an error, or the device reported one when the host waited for it (code 719 or so)."""
    text = text.strip().rstrip(".")
    detail = {"cuda_error": code}
    if code in STICKY_CODES:
        after = "; its process was replaced" if cuda else ""
        return Finding(Status.KERNEL_FAULT, f"The kernel failed: {text}{after}.",
                       DEFAULT_ADVICE[Status.KERNEL_FAULT] if cuda else "Correct the kernel at the place where it stopped (see "
                                                                        "the sentence above).", detail, restart=cuda)
    if code == OUT_OF_MEMORY_CODE:
        return Finding(Status.OUT_OF_MEMORY, f"The launch failed: {text}.", detail=detail)
    return Finding(Status.LAUNCH_FAILED, f"The launch failed: {text}.", detail=detail)


def out_of_memory(needed: int, free: int, device: str, *, workspace: int) -> Finding:
    most = workspace > needed / 2
    headline = f"The check needs {numbers.memory(needed)} of memory; {numbers.memory(free)} are free on {device}."
    return Finding(Status.OUT_OF_MEMORY, headline,
                   f"Use less workspace: the kernel asks for {numbers.memory(workspace)}." if most else "",
                   {"needed_bytes": needed, "free_bytes": free, "workspace_bytes": workspace})


def overrun(name: str, before: int, behind: int) -> Finding:
    short = SHORT.get(name, name)
    size, where = (behind, "behind the end of") if behind else (before, "before the start of")
    advice = ("Test the index before the store, also in the last block." if behind
              else "Look for a negative index: test it before the store.")
    return Finding(Status.OUT_OF_BOUNDS, f"Wrote {numbers.count(size)} bytes {where} {short}.", advice,
                   {"tensor": name, "bytes_before": before, "bytes_behind": behind})


def outside(name: str, before: int, behind: int, verb: str) -> Finding:
    """The access ended the launch, whether or not its value is used."""
    short = SHORT.get(name, name or "all tensors")
    size, where = (behind, "behind the end of") if behind else (before, "before the start of")
    return Finding(Status.OUT_OF_BOUNDS, f"{verb} byte {numbers.count(size)} {where} {short}.",
                   "Test the index before the access, also if the value is not used then.",
                   {"tensor": name, "bytes_before": before, "bytes_behind": behind})


def two_blocks(name: str, place: tuple[int, ...] | None) -> Finding:
    short = SHORT.get(name, name)
    what = f"a value of {short}" if place is None else numbers.index(short, place)
    return Finding(Status.NONDETERMINISTIC, f"Two blocks of one launch write different values to {what}, and no atomic "
                   "orders them. On a GPU one of them may be lost.",
                   "Let one block compute each value, or add with atomicAdd.", {"tensor": name, "first": list(place or ())})


def two_threads(text: str) -> Finding:
    """`text`: which threads and what they change; "" if the launcher does not return its error."""
    return Finding(Status.NONDETERMINISTIC, "Two threads of a block write different values to one place of shared memory, and "
                   f"no barrier, warp operation or atomic orders them{f': {text}' if text else ''}. On a GPU one of them may "
                   "be lost.", "Add with atomicAdd, or put __syncthreads() between the two writes.")


def shared_symbol() -> Finding:
    return Finding(Status.NONDETERMINISTIC, "Two calls copy different values to one __constant__ or __device__ symbol. The "
                   "symbol is one for the process: on two streams a kernel may read the values of the other call.",
                   "Pass the values as arguments, or put them into the workspace.")


def not_given_stream() -> Finding:
    return Finding(Status.MISMATCH, "The launcher works on another stream than the one that it is given. On a GPU that work "
                   "may begin too early and end too late.",
                   "Give the stream to each launch, cudaMemsetAsync and cudaMemcpyAsync.")


def kept_memory(*, grows: bool) -> Finding:
    """Memory of cudaMalloc. If a launcher keeps it, all calls share it, also calls on two streams."""
    if grows:
        return Finding(Status.OUT_OF_MEMORY, "The launcher allocates memory in each call and does not free it.",
                       "Use the workspace, or free the memory on the given stream.")
    return Finding(Status.NONDETERMINISTIC, "The launcher keeps memory that it has allocated for later calls. On two streams a "
                   "kernel may read there what the other call wrote.", "Use the workspace instead.")


def elsewhere(finding: Finding, where: str) -> Finding:
    """The same finding, with the remark where it shows: only there."""
    return Finding(finding.status, f"{where}: {finding.headline}", finding.advice, {**finding.detail, "where": where},
                   finding.errors, finding.restart)


def input_modified(name: str, count: int, first: tuple[int, ...]) -> Finding:
    short = SHORT.get(name, name)
    return Finding(Status.INPUT_MODIFIED, f"The kernel changed {_values(count)} of {short}.",
                   f"Declare {short} const and write only to the result.",
                   {"tensor": name, "changed": count, "first": list(first)})


def wrong_result(name: str, comparison: Comparison, *, kind: str, precision: str) -> Finding:
    """UNWRITTEN, NON_FINITE or MISMATCH, whichever explains the others."""
    short = SHORT.get(name, name)
    detail: dict[str, Any] = {"tensor": name, "inputs": kind}
    errors = {name: comparison.errors()}
    if comparison.unwritten:
        first, last = comparison.first_unwritten or (), comparison.last_unwritten or ()
        detail |= {"unwritten": comparison.unwritten, "first": list(first), "last": list(last)}
        if comparison.unwritten == comparison.count:
            headline = f"No value of {short} was written."
            return Finding(Status.UNWRITTEN, headline, "Check the grid size, and look for a condition that makes every thread "
                           "return early.", detail, errors)
        be = "was" if comparison.unwritten == 1 else "were"
        where = f", the first at {numbers.index(short, first)}, the last at {numbers.index(short, last)}" \
            if comparison.unwritten > 1 else f": {numbers.index(short, first)}"
        headline = f"{_values(comparison.unwritten)} of {short} {be} never written{where}."
        return Finding(Status.UNWRITTEN, headline, "", detail, errors)
    if comparison.not_finite:
        first = comparison.first_not_finite or ()
        detail |= {"not_finite": comparison.not_finite, "first": list(first)}
        be = "is" if comparison.not_finite == 1 else "are"
        headline = f"{_values(comparison.not_finite)} of {short} {be} NaN or infinite, the first at " \
                   f"{numbers.index(short, first)}."
        return Finding(Status.NON_FINITE, headline, f"{DEFAULT_ADVICE[Status.NON_FINITE]} On device cpu, --sanitize address "
                       "names the line of such a read.", detail, errors)
    return _mismatch(short, comparison, kind=kind, precision=precision, detail=detail, errors=errors)


def nondeterministic(others: int, runs: int, apart: float, *, finite: bool,
                     errors: dict[str, Errors]) -> Finding:
    how = f", up to {numbers.error(apart)} apart" if finite and apart else "" if finite else ", some of them NaN"
    advice = "" if finite else "Look for a missing __syncthreads() between a write and a read."
    return Finding(Status.NONDETERMINISTIC, f"{others} of {runs} runs gave different bits{how}.", advice,
                   {"runs": runs, "others": others, "apart": apart}, errors)


def implausible(median_ms: float, floor_ms: float) -> Finding:
    return Finding(Status.IMPLAUSIBLE, f"{numbers.time(median_ms)} is below the floor of {numbers.time(floor_ms)}, "
                   "which is not possible. The time does not count.", detail={"median_ms": median_ms, "floor_ms": floor_ms})


def after_timing(finding: Finding) -> Finding:
    """The same finding, with the remark that it showed only after the kernel had run many times."""
    return Finding(finding.status, f"After the timing: {finding.headline}",
                   "Look for data that one launch leaves for the next: every launch must do all of its work.",
                   {**finding.detail, "after_timing": True}, finding.errors, finding.restart)


def float16_inside(finding: Finding) -> Finding:
    """The finding for numbers beyond float16's range, where others drawn at the same moment are right."""
    return Finding(finding.status, "The kernel computes in float16 or another format with a small range. Values near 1 are "
                   f"right. With some channels or samples 2^17 times larger and others 2^17 times smaller: {finding.headline}",
                   "Compute in float32 or TF32, which have the range for these values.", finding.detail, finding.errors,
                   finding.restart)


def off_stream(name: str, when: str) -> Finding:
    """Work that no event on the stream sees: its results are not finished when the stream says so."""
    return Finding(Status.MISMATCH, f"The kernel wrote {SHORT.get(name, name)} {when}: it runs on another stream.",
                   "Launch on the stream that is passed in. If you use other streams, make it wait for them.", {"tensor": name})


def while_timed(name: str, unwritten: int) -> Finding:
    """Timed launches that do not do what the checked ones did."""
    short = SHORT.get(name, name)
    detail = {"tensor": name, "while_timed": True}
    advice = "Look for data that one launch leaves for the next: every launch must do all of its work."
    if unwritten:
        be = "was" if unwritten == 1 else "were"
        return Finding(Status.UNWRITTEN, f"While timed: {_values(unwritten)} of {short} {be} not written. The checked "
                       "launches wrote them.", advice, {**detail, "unwritten": unwritten})
    return Finding(Status.MISMATCH, f"While timed: {short} differs from the checked launches, whose inputs differ only in "
                   "signs of channels.",
                   advice, detail)


def _mismatch(short: str, comparison: Comparison, *, kind: str, precision: str, detail: dict[str, Any],
              errors: dict[str, Errors]) -> Finding:
    worst = next(iter(errors.values()))
    detail |= {"wrong": comparison.wrong, "count": comparison.count}
    lone = worst.rel_l2 <= worst.allowed or worst.max_abs > _LONE * comparison.rms_error
    rounding = worst.rel_l2 < _PRECISION_ONLY and not lone
    if not comparison.exact and (rounding or not comparison.wrong):
        headline = f"The error of {short} is {numbers.error(worst.rel_l2)}; {precision} allows " \
                   f"{numbers.error(worst.allowed)} for this length of sum."
        return Finding(Status.MISMATCH, headline, "Indices are right: sum in a wider type, or declare another "
                       "precision." if rounding else "", detail, errors)
    wrong = comparison.wrong / comparison.count
    if wrong >= _FEW:
        amount = f"{numbers.share(wrong)} of {short} is wrong"
    else:
        be = "is" if comparison.wrong == 1 else "are"
        amount = f"{numbers.count(comparison.wrong)} of {numbers.count(comparison.count)} values of {short} {be} wrong"
    got, expected = _told_apart(worst.got, worst.expected)
    headline = f"{amount}; worst {numbers.index(short, worst.worst_index)}: got {got}, expected {expected}."
    return Finding(Status.MISMATCH, headline, "", detail, errors)


def _told_apart(a: float, b: float) -> tuple[str, str]:
    """Both numbers with as many digits as it takes to see that they differ."""
    for digits in range(3, 18):
        texts = f"{a:.{digits}g}", f"{b:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts


def _values(count: int) -> str:
    return f"{numbers.count(count)} value{'' if count == 1 else 's'}"
