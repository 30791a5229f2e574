"""Where a result is wrong: the map, the shares by place, the errors, and the smallest case drawn with its numbers."""

from __future__ import annotations

from html import escape

from ...core import numbers
from ...core.answers import joined
from ...core.trial import Trial
from ...core.wrong_values import INTEGERS, SHORT, SmallestWrong, WrongValues, case_rows, sentence
from ...drive.reporting import plots
from ...drive.sessions.recorded import wrong_values_of
from . import theme
from .picture import case_svg


def draw(trial: Trial) -> None:
    """Draw where the trial is wrong. Nothing for a right trial, or for one that was not examined."""
    found = wrong_values_of(trial)
    if found is None:
        return
    said = sentence(found)
    advice = f" {found.looks_like.advice}" if found.looks_like else ""
    theme.html(theme.heading("Where it is wrong") + f"<p>{escape(said + advice)}</p>")
    step = " × ".join(map(str, found.step))
    cell = f". A cell of the map has {step} positions" if max(found.step) > 1 else ""
    theme.html(f'<span class="foot">{escape(_what(found))} Inputs: {escape(found.inputs)}{cell}.</span>')
    theme.chart(plots.wrong_map(found, mode=theme.mode()), key="wrong map", alt=said)
    if (shares := plots.wrong_shares(found, mode=theme.mode())) is not None:
        theme.html(theme.heading(f"Share of wrong values by {joined(list(found.along))}"))
        theme.chart(shares, key="wrong shares", alt=said)
    if (errors := plots.wrong_errors(found, mode=theme.mode())) is not None:
        theme.html(theme.heading("How large the errors are"))
        theme.chart(errors, key="wrong errors", alt="How far off the values are")
        if found.ratios and found.inputs == INTEGERS:
            theme.html('<span class="foot">The sums of exact integers have no rounding error, so a right kernel has no errors '
                       "here. The line marks the error that is allowed for random inputs.</span>")
    if found.not_finite:
        theme.html(f'<span class="foot">{numbers.count(found.not_finite)} values are NaN, infinite or never written.'
                   "</span>")
    if found.smallest is not None:
        _smallest(trial, found, found.smallest)


def _what(found: WrongValues) -> str:
    places = "tap" if found.tensor == "grad_weight" else "position"
    return (f"Share of wrong values of {found.tensor} by {places}: {numbers.count(found.wrong)} of "
            f"{numbers.count(found.count)} are wrong.")


def _smallest(trial: Trial, found: WrongValues, case: SmallestWrong) -> None:
    """The picture of the layer at that size, with the sum of the wrong element in numbers; then each summand."""
    theme.html(theme.heading("The smallest case that is still wrong"))
    element = numbers.index(SHORT.get(found.tensor, found.tensor), case.index)
    what = f"{element}, batch {case.batch}, input size {numbers.shape(case.input_size)}"
    theme.html(f"<p>{escape(what)}{escape(f': {case.said}.' if case.said else '')}</p>")
    if found.tensor != "grad_bias":
        theme.svg(case_svg(trial.workload, case, found.tensor), key="smallest picture")
    if rows := case_rows(case, found.tensor):
        summed = "the batch" if found.tensor in ("grad_weight", "grad_bias") else "channels"
        head = ("tap", "reads", "products", f"summed over {summed}")
        shown = [at for at in range(len(head)) if at != 2 or any(row[at] for row in rows)]  # of many channels only the sum
        cells = [tuple(f"<span class=mono>{escape(row[at])}</span>" for at in shown) for row in rows]
        theme.html(theme.table([head[at] for at in shown], cells, right=(len(shown) - 1,)))
