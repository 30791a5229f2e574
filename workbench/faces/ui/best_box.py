"""A button that selects the best known variants with their configs. Its help says where these were measured."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from ...core import numbers
from ...core.best_known import BestKnown
from ...core.derived_best import best_or_derived
from ...core.layer import LAUNCHES, Workload
from ...core.precision import CLASSED, CLASSES_OF, PRECISIONS_OF
from ...core.variants import Variant
from ...drive.exporting.best_recipe import nothing_known
from . import theme, variant_rows
from .layer_form import EACH_ITS_OWN, Choice


def button(variants: Sequence[Variant], choice: Choice) -> None:
    """Draw the button. It offers only entries in exactly the chosen precision, because Run uses this precision."""
    workload = choice.workload
    if workload is None:
        return
    arch = variant_rows.arch(choice.device)
    entries = entries_of(workload, choice.precision, arch)
    lines = [line(e) for e in entries.values()] if entries else [missing_sentence(workload, choice.precision, arch)]
    st.button("Best known", key="best known", type="tertiary", disabled=not entries, on_click=_tick, args=(variants, entries),
              help="  \n".join(theme.markdown(line) for line in lines))


def entries_of(workload: Workload, precision: str, arch: str) -> dict[str, BestKnown]:
    """Direction -> the best known entry in that precision; directions without one are absent. If each variant's default
    precision is chosen: for float32 the best entry in tf32, else in ieee."""
    if precision == EACH_ITS_OWN:
        classes = CLASSES_OF.get(workload.dtype, ())
        return {d: e for precision in reversed(classes) for d, e in entries_of(workload, precision, arch).items()}
    if precision not in CLASSED:
        return {}
    found = {d: best_or_derived(d, workload, precision, arch, exact=True) for d in LAUNCHES}
    return {d: e for d, e in found.items() if e is not None}


def line(entry: BestKnown) -> str:
    """The variant, and its time or its origin."""
    against = f", PyTorch {numbers.time(entry.baseline_ms)}" if entry.baseline_ms else ""
    known = f"{numbers.time(entry.ms)}{against} on {entry.gpu}" if entry.ms else entry.source
    return f"{entry.direction}: {entry.variant}, {known}" + (" (derived)" if entry.ms and entry.derived else "")


def missing_sentence(workload: Workload, precision: str, arch: str) -> str:
    """The sentence that no config is known. It names other precisions that have one."""
    others = [p for p in PRECISIONS_OF[workload.dtype] if p != precision and entries_of(workload, p, arch)]
    if precision == EACH_ITS_OWN:
        return nothing_known(workload, arch, CLASSES_OF.get(workload.dtype, ("",))[0])
    hint = f" A config is known in {' and in '.join(others)}; choose that precision." if others else ""
    return nothing_known(workload, arch, precision) + hint


def _tick(variants: Sequence[Variant], entries: dict[str, BestKnown]) -> None:
    variant_rows.tick_only(variants, {d: (e.variant, e.config) for d, e in entries.items()})
