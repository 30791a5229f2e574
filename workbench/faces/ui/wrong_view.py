"""Where a result is wrong: the map, the shares by place, the errors, and the smallest case drawn with its numbers."""

from __future__ import annotations

from dataclasses import replace
from html import escape

import streamlit as st

from ...core import numbers
from ...core.trial import Trial
from ...core.wrong_values import SHORT, SmallestWrong, WrongValues, sentence
from ...drive.reporting import plots
from ...drive.sessions.recorded import wrong_values_of
from . import theme
from .picture import layer_svg


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
    shares, errors = plots.wrong_shares(found, mode=theme.mode()), plots.wrong_errors(found, mode=theme.mode())
    with st.expander("Shares by image, channel, phase and place in a warp; sizes of the errors"):
        if shares is not None:
            theme.chart(shares, key="wrong shares", alt=said)
        if errors is not None:
            theme.chart(errors, key="wrong errors", alt="How far off the wrong values are")
        if found.not_finite:
            theme.html(f'<span class="foot">{numbers.count(found.not_finite)} are NaN, infinite or never written.</span>')
    if found.smallest is not None:
        _smallest(trial, found, found.smallest)


def _what(found: WrongValues) -> str:
    places = "tap" if found.tensor == "grad_weight" else "position"
    return (f"Share of wrong values of {found.tensor} by {places}: {numbers.count(found.wrong)} of "
            f"{numbers.count(found.count)} are wrong.")


def _smallest(trial: Trial, found: WrongValues, case: SmallestWrong) -> None:
    """The picture of the layer at that size, with the wrong output's formula; then the numbers of the sum."""
    theme.html(theme.heading("The smallest case that is still wrong"))
    if found.tensor == "output":
        work = replace(trial.workload, batch=case.batch, input_size=case.input_size, preset="")
        theme.svg(layer_svg(work, explain=case.index[2:]), key="smallest picture")
    rows = [(f"<span class=mono>{escape(numbers.index('w', term.tap))}</span>",
             f"<span class=mono>{escape(numbers.index('grad_y' if found.tensor == 'grad_input' else 'x', term.reads))}</span>",
             f"{term.value:g}") for term in case.terms]
    rows += [("bias", "", f"{case.bias:g}")] if case.bias is not None else []
    got = f"{case.got:g}" if case.got == case.got else "NaN or never written"
    rows += [("<b>sum, expected</b>", "", f"<b>{case.expected:g}</b>"), ("<b>got</b>", "", f"<b>{got}</b>")]
    element = numbers.index(SHORT.get(found.tensor, found.tensor), case.index)
    what = f"{element}, batch {case.batch}, input size {numbers.shape(case.input_size)}"
    theme.html(f"<p>{escape(what)}{escape(f': {case.said}.' if case.said else '')}</p>"
               + theme.table(("tap", "reads", "term, summed over channels"), rows, right=(2,)))
