"""The result table of the Workbench, and the doctor's table that is shown while nothing is measured."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

import streamlit as st

from ...core import numbers
from ...core.trial import Status, Trial
from ...drive.machine import doctor
from ...drive.reporting import report
from . import state, theme

if TYPE_CHECKING:
    import pandas

_SHOWN = ["status", "verdict", "variant", "direction", "precision", "median_ms", "speedup", "of_limit", "spread", "rel_l2",
          # Times come before long texts, because a narrow screen shows the first eight columns.
          "registers", "build_s", "config"]
NOT_TICKED = "not ticked"  # the word for a variant that serves the layer
_IN_SIGHT = 30           # rows of the table; a longer one scrolls in itself
_FILTERS = {"status": "Status", "variant": "Variant", "direction": "Direction", "precision": "Precision"}
KEYS = ("results only ",)  # the keys of the widgets here
_VERDICTS = (report.FASTER, report.SLOWER, report.SAME, report.UNSURE, report.EMULATED)


def result_table(trials: Sequence[Trial], known_by: Hashable, *, key: str = "results") -> list[str]:
    """The table, with the verdict as first column; above a long one, filters. Returns the trial ids of the selected rows.
    `known_by`: a key that is equal for equal trials."""
    table, shown, unit = _tables(known_by, trials)
    if len(table) > _IN_SIGHT:
        chosen = _filters(table)
        for name, values in chosen.items():
            kept = table[name].isin(values)
            table, shown = table[kept], shown[kept]
        key = f"{key} {chosen}" if chosen else key  # a row that was selected before the filter is another one now
    column = st.column_config
    event = st.dataframe(
        shown, hide_index=True, row_height=29, height=min((_IN_SIGHT + 1) * 29, 38 + 29 * max(1, len(shown))), key=key,
        on_select="rerun", selection_mode="multi-row", placeholder="–", alt="Trials, one row each, the verdict first",
        column_config={
            "status": chips("status", [str(s) for s in Status], 124),
            "verdict": chips("verdict", _VERDICTS, 94),
            "variant": column.TextColumn(width=146), "direction": column.TextColumn(width=80),
            "precision": column.TextColumn(width=60), "config": column.TextColumn(width=220),
            "median_ms": column.TextColumn(f"median, {unit}", width=76, alignment="right",
                                           help="Median of all samples with a cold L2. kernel_ms: only "
                                           "the kernels, with allocated outputs. ModelNew rows: module_ms. *: on the CPU "
                                           "emulator, which does not predict a GPU."),
            "spread": column.NumberColumn("± %", format="%.1f", width=42,
                                          help="Half the width of the middle 50 % of samples, divided by the median; "
                                          "– if there are fewer than 5 samples"),
            "speedup": column.TextColumn("vs PyTorch", width=74, alignment="right",
                                         help="Best PyTorch time (same or stricter "
                                         "precision, same device) divided by this median"),
            "of_limit": column.ProgressColumn("of limit", format="%d %%", min_value=0, max_value=100, width=82,
                                              color="primary", help="Floor (shortest time that the GPU allows) divided by "
                                              "the median"),
            "rel_l2": column.NumberColumn("rel. L2", format="%.1e", width=58,
                                          help="Worst relative L2 error against float64"),
            "registers": column.NumberColumn("regs", width=44, help="Registers per thread"),
            "build_s": column.NumberColumn("build, s", format="%.1f", width=54)})
    rows = event["selection"]["rows"] if event else []
    return [table["trial_id"].iloc[r] for r in rows if r < len(table)]


def _filters(table: pandas.DataFrame) -> dict[str, list[str]]:
    """Column -> the values whose rows are shown, for the columns that the user filters."""
    cells = st.columns(len(_FILTERS), gap="small")
    chosen = {}
    for cell, (name, label) in zip(cells, _FILTERS.items(), strict=True):
        with cell:
            chosen[name] = state.some(label, table[name], key=f"results only {name}", name=f"only_{name}")
    return {name: values for name, values in chosen.items() if values}


@st.cache_resource(max_entries=8, show_spinner=False)  # 10 000 trials take a second
def _tables(known_by: Hashable, _trials: Sequence[Trial]) -> tuple[pandas.DataFrame, pandas.DataFrame, str]:
    """All values, those of the table, and the unit of its times."""
    table = report.frame(_trials)
    return table, *_for_display(table)


def doctor_table(findings: Sequence[doctor.Finding]) -> str:
    """What was found, what works now, and for each missing part the command that installs it."""
    return theme.heading("This machine") + theme.table(
        ("", "part", "found", "used for", "command that installs it"),
        [(theme.badge("FOUND" if f.ok else "MISSING" if f.command else "NOTE", None if f.ok or f.command else "none"),
          f"<span class=nw>{escape(f.name)}</span>", escape(f.found or "–"),
          f"<span class=mute>{escape(f.works)}</span>",
          f"<span class=mono>{escape(f.command)}</span>" if f.command else "–") for f in findings])


def waiting_table(ticked: Mapping[str, Sequence[str]], absent: Mapping[str, Mapping[str, str]],
                  floors: Mapping[str, float]) -> str:
    """The table that is shown before there are bars: a row for each variant that serves the layer, and above them the floor of
    each direction. `absent`: direction -> name -> why Run would not use that variant."""
    serve = {d: [name for name, word in words.items() if word == NOT_TICKED] for d, words in absent.items()}
    directions = [d for d, found in serve.items() if found]
    names = list(dict.fromkeys(name for d in directions for name in serve[d]))
    rows = [(f"<span class='mono nw'>{escape(name)}</span>",
             *(f"<span class=mute>{escape('not run yet' if name in ticked[d] else absent[d].get(name, '–'))}</span>"
               for d in directions)) for name in names]
    heads = [f"{d}, floor {numbers.time(floors[d])}" if d in floors else d for d in directions]
    return theme.heading("Results appear here") + theme.table(("variant", *heads), rows)


def chips(label: str, words: Sequence[str], width: int):
    """A column of statuses or verdicts: glyph, word and colour."""
    return st.column_config.MultiselectColumn(
        label, width=width, options=[theme.chip(w) for w in words],
        color=[theme.CHIP_COLOURS[theme.mark(w)[1]] for w in words])


def _for_display(table: pandas.DataFrame) -> tuple[pandas.DataFrame, str]:
    import pandas as pd
    shown = table[_SHOWN].copy()
    shown["status"] = [[theme.chip(s)] for s in table["status"]]
    shown["verdict"] = [[theme.chip(v)] if v else [] for v in table["verdict"]]
    star = {report.EMULATED: " *"}
    times = [None if pd.isna(ms) else ms for ms in table["median_ms"]]
    unit, cells = numbers.times(times)
    shown["median_ms"] = [None if ms is None else cell + star.get(v, "")
                          for ms, cell, v in zip(times, cells, table["verdict"], strict=True)]
    shown["speedup"] = [None if pd.isna(s) else numbers.padded(numbers.ratio(s)) for s in table["speedup"]]
    for name in ("spread", "of_limit", "rel_l2", "registers", "build_s"):
        shown[name] = pd.to_numeric(shown[name])
    return shown, unit
