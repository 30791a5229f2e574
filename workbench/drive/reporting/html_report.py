"""Writes a comparison as one self-contained HTML file: it needs no network and no server. Its figures can be zoomed and show
values on hover.

The file holds plotly.js once, compressed; with the figures of a session it is about 2 MB.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from ...core import numbers
from ...core.presets import called
from ...core.trial import Trial
from ..running import resume
from . import compare_plots, report, tables
from .plots import CONFIG, DARK, LIGHT

MOST_ROWS = 2000      # the most rows of a table; the CSV and JSON files of the page have all
_MOST_DOTS = 60
_MOST_SAMPLED = 6
_FEW = 8              # a table with more rows has a field that filters them
_GOOD = {"OK": "good", report.FASTER: "good", report.SLOWER: "bad", "UNSURE": "uns"}
_ENVIRONMENT = ("system", "cpu", "driver", "cuda", "nvcc", "cxx", "torch", "python")


@dataclass(frozen=True)
class _Section:
    """A heading with a figure in both themes, or with HTML."""

    heading: str
    html: str = ""
    figures: tuple[go.Figure, go.Figure] | None = None
    foot: str = ""


def of_session(trials: Sequence[Trial], name: str) -> str:
    """The report of a session: its fastest right candidates beside PyTorch's, and all trials."""
    pairs = tables.in_order(report.against_pytorch(trials))
    found = report.headline(resume.standing(trials))
    strip = (found.badge, found.sentence, found.evidence) if found else ("NOTE", "No candidate was judged", "")
    if len({t.workload.key for t in trials}) > 1 and pairs:
        strip = (*tables.counted(pairs), "A is the fastest right candidate of each layer, direction and precision; B is the "
                 "fastest PyTorch of the same or a stricter precision. If B / A is above 1, A is faster.")
    return _document(f"Session {name}", strip, [*_compared(pairs, "PyTorch in the same session"), _trials(trials),
                                                _machines(trials)])


def of_pairs(pairs: Sequence[report.Pair], title: str, strip: tuple[str, str, str], *, every: bool = False) -> str:
    """The report of a comparison. `strip`: the badge, the sentence and the evidence at its top. `every`: the roofline shows all
    pairs."""
    trials = list({t.trial_id: t for pair in pairs for t in (pair.b, pair.a)}.values())
    return _document(title, strip, [*_compared(pairs, "B", every=every), _machines(trials)])


def _compared(pairs: Sequence[report.Pair], against: str, *, every: bool = False) -> list[_Section]:
    sections = []
    if pairs:
        sections.append(_pairs_table(pairs))
    shown = [p for p in pairs if p.ratio][:_MOST_DOTS]
    more = "" if len(shown) == sum(p.ratio is not None for p in pairs) else f"The first {_MOST_DOTS} rows of the table."
    names = [row_name(p) for p in shown]
    dots = _both(lambda mode: compare_plots.dots(shown, names, mode=mode))
    if dots:
        sections.append(_Section(f"Speed-up of A against {against}, with its 95 % interval", figures=dots, foot=more))
    marks = compare_plots.legend(pairs)
    if roof := _both(lambda mode: compare_plots.roofline(pairs, every=every, mode=mode)):
        sections.append(_Section(f"Roofline: {marks}; grey is B, blue is A", figures=roof))
    layers = _both(lambda mode: compare_plots.speedups(pairs, mode=mode))
    if layers and len({p.a.workload.key for p in pairs}) > 1:
        sections.append(_Section(f"Speed-up per layer, kernel_ms: {marks}; bar: distance to the physical limit",
                                 figures=layers))
    trials = list({t.trial_id: t for p in pairs for t in (p.b, p.a)}.values())
    if len(trials) <= _MOST_SAMPLED:
        names = [trial_name(t) for t in trials]
        if samples := _both(lambda mode: compare_plots.samples_over_time(trials, names, mode=mode)):
            words = ". ".join(f"{name}: {compare_plots.steadiness(t)}" for name, t in zip(names, trials, strict=True))
            sections.append(_Section("Samples in the order taken", figures=samples, foot=f"{words}."))
    return sections


def row_name(pair: report.Pair) -> str:
    """The label of a row of dots: layer, direction and A."""
    layer = called(pair.a.workload).removeprefix("KernelBench ")
    clock = " module_ms" if pair.clock == "module_ms" else ""
    return f"{layer} {pair.direction} {trial_name(pair.a)}{clock}"


def trial_name(trial: Trial) -> str:
    """`split_mma tf32`."""
    return " ".join(filter(None, (trial.name, trial.precision if trial.precision not in trial.name else "")))


def _both(draw: Any) -> tuple[go.Figure, go.Figure] | None:
    light = draw("light")
    return (light, draw("dark")) if light is not None else None


def _pairs_table(pairs: Sequence[report.Pair]) -> _Section:
    records = tables.pair_records(pairs[:MOST_ROWS])
    unit, times = numbers.times([r[name] for name in ("a_ms", "b_ms") for r in records])
    head = ("verdict", "layer", "direction", "B / A", "95 % interval", "A", f"A, {unit}", "B", f"B, {unit}", "of floor", "note",
            "config of A")
    rows = []
    for r, of_a, of_b in zip(records, times[:len(records)], times[len(records):], strict=True):
        share = r["floor_ms"] / r["a_ms"] if r["floor_ms"] and r["a_ms"] else None
        clock = "module_ms" if r["clock"] == "module_ms" else ""
        rows.append((_badge(r["verdict"]), escape(r["layer"]), r["direction"], (r["ratio"], numbers.ratio(r["ratio"])),
                     (r["low"], numbers.interval(r["low"], r["high"], r["ratio"])), escape(f"{r['a']} {r['a_precision']}"),
                     (r["a_ms"], of_a.strip()), escape(f"{r['b']} {r['b_precision']}"),
                     (r["b_ms"], of_b.strip()), (share, numbers.share(share)),
                     escape(" ".join(filter(None, (clock, r["note"])))), f"<code>{escape(r['a_config'])}</code>"))
    return _Section(_count("Comparisons", len(pairs)), _table(head, rows))


def _trials(trials: Sequence[Trial]) -> _Section:
    frame = report.frame(trials)
    records = frame.head(MOST_ROWS).to_dict("records")
    unit, times = numbers.times([None if r["median_ms"] is None or r["median_ms"] != r["median_ms"] else r["median_ms"]
                                 for r in records])
    head = ("status", "variant", "layer", "direction", "precision", f"median, {unit}", "vs PyTorch", "of floor", "rel. L2",
            "what", "config")
    layers = {t.trial_id: called(t.workload) for t in trials}
    rows = []
    for r, time in zip(records, times, strict=True):
        ms, speedup, limit, error = (None if r[k] is None or r[k] != r[k] else float(r[k])
                                     for k in ("median_ms", "speedup", "of_limit", "rel_l2"))
        star = " *" if r["verdict"] == report.EMULATED else ""
        rows.append((_badge(r["status"]), escape(r["variant"]), escape(layers[r["trial_id"]]), r["direction"], r["precision"],
                     (ms, time.strip() + (star if ms else "")), (speedup, numbers.ratio(speedup)),
                     (limit, numbers.share(limit / 100 if limit is not None else None)), (error, numbers.error(error)),
                     escape(r["headline"] if r["status"] != "OK" else ""), f"<code>{escape(r['config'])}</code>"))
    star = "* on the CPU emulator, which does not predict a GPU." if any(map(report.is_emulated, trials)) else ""
    return _Section(_count("Trials", len(frame)), _table(head, rows), foot=star)


def _count(word: str, total: int) -> str:
    return f"{word}: {numbers.count(total)}" if total <= MOST_ROWS else (
        f"{word}: the first {numbers.count(MOST_ROWS)} of {numbers.count(total)}")


def _machines(trials: Sequence[Trial]) -> _Section:
    """The machines on which the times were measured, each once."""
    there: dict[str, list[str]] = {}
    for t in trials:
        words = [f"{k} {t.environment[k]}" for k in _ENVIRONMENT if t.environment.get(k)]
        there.setdefault(" · ".join([t.device.name, *words]), []).append(t.at[:10])
    rows = [(f"<span class=wrap>{escape(name)}</span>", numbers.count(len(days)),
             escape(" to ".join(sorted({min(days), max(days)}))))
            for name, days in there.items()]
    return _Section("Machines", _table(("machine", "trials", "day, UTC"), rows))


def _badge(word: str | None) -> str:
    return f'<span class="b {_GOOD.get(word, "neu" if word.isupper() and word in _NEUTRAL else "bad")}">{escape(word)}</span>' \
        if word else ""


_NEUTRAL = ("SAME", report.EMULATED, "SKIPPED", "CANCELLED", "NOTE", "READY")


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table. A cell is HTML, or a pair of the number to sort by and its text."""
    def cell(value: Any) -> str:
        if isinstance(value, tuple):
            sort, text = value
            return f'<td class=n data-v="{"" if sort is None else repr(float(sort))}">{text}</td>'
        return f"<td>{value}</td>"
    top = "".join(f'<th tabindex=0 role=button title="sort">{escape(h)}</th>' for h in head)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    search = '<input type=search placeholder="filter rows" aria-label="filter rows">' if len(rows) > _FEW else ""
    return f"{search}<div class=scroll><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


def _document(title: str, strip: tuple[str, str, str], sections: Sequence[_Section]) -> str:
    figures: list[dict[str, Any]] = []
    body = []
    for section in sections:
        body.append(f"<h2>{escape(section.heading)}</h2>{section.html}")
        if section.figures:
            body.append(f'<div class=figure id="figure-{len(figures)}"></div>')
            figures.append({mode: json.loads(f.to_json()) for mode, f in zip(("light", "dark"), section.figures, strict=True)})
            for one in figures[-1].values():
                one["layout"].pop("template", None)
        if section.foot:
            body.append(f"<p class=foot>{escape(section.foot)}</p>")
    badge, sentence, evidence = strip
    # So that no text contains the end of the script.
    data = json.dumps({"figures": figures, "config": CONFIG}).replace("<", "\\u003c")
    return (f"<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; script-src 'unsafe-inline'; style-src "
            f"'unsafe-inline'; img-src data: blob:\"><title>{escape(title)} · Kernel Workbench</title><style>{_style()}</style>"
            f"</head><body><h1>{escape(title)}</h1><div class=strip>{_badge(badge)}<div><b>{escape(sentence)}</b>"
            f"<p>{escape(evidence)}</p></div></div><p id=old class=foot hidden>This browser is too old for the figures; the "
            f"tables hold all numbers.</p>{''.join(body)}<script type=text/plain id=plotly>{_plotly()}</script>"
            f"<script type=application/json id=data>{data}</script><script>{_SCRIPT}</script></body></html>")


@cache
def _plotly() -> str:
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()


def _style() -> str:
    def variables(palette: dict[str, str], good: str, uns: str) -> str:
        names = ("ink", "mute", "line", "bg", "bg2", "bad")
        return "".join(f"--{n}:{palette[n]};" for n in names) + f"--good:{good};--uns:{uns};"

    return (f":root{{{variables(LIGHT, '#0B7A5E', '#6B4FC0')}color-scheme:light dark}}@media(prefers-color-scheme:dark)"
            f"{{:root{{{variables(DARK, '#4CC9A4', '#A995F5')}}}}}" + _CSS)


_CSS = """body{font:14px/1.45 "Source Sans 3","Source Sans",system-ui,sans-serif;color:var(--ink);background:var(--bg);
margin:24px auto;max-width:1280px;padding:0 24px;font-variant-numeric:tabular-nums}
h1{font-size:18px}h2{font-size:13px;color:var(--mute);margin:26px 0 6px}
.strip{display:flex;gap:12px;align-items:baseline;border-left:3px solid var(--line);background:var(--bg2);padding:9px 14px}
.strip b{font-size:15.5px}.strip p{margin:2px 0 0;color:var(--mute);font-size:13px}.foot{font-size:12px;color:var(--mute)}
.b{font-size:11.5px;font-weight:600;white-space:nowrap;color:var(--mute)}.b.good{color:var(--good)}.b.bad{color:var(--bad)}
.b.uns{color:var(--uns)}.scroll{overflow:auto;max-height:560px;border:1px solid var(--line);border-radius:6px}
table{border-collapse:collapse;width:100%;font-size:12.5px}
th{position:sticky;top:0;background:var(--bg2);text-align:left;padding:5px 10px;white-space:nowrap;cursor:pointer;
color:var(--mute);font-weight:600}td{padding:4px 10px;border-top:1px solid var(--line);white-space:nowrap}
td.n{text-align:right}code{font:11.5px "Source Code Pro",ui-monospace,monospace;color:var(--mute)}
.wrap{white-space:normal}
input{font:inherit;color:inherit;background:var(--bg2);border:1px solid var(--line);border-radius:6px;padding:4px 9px;
margin:0 0 6px;width:220px}.figure{min-height:120px}"""

_SCRIPT = """(async () => {
for (const table of document.querySelectorAll('table')) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const sort = () => {
      const down = head.dataset.down = head.dataset.down === '1' ? '' : '1';
      const key = row => { const cell = row.cells[column]; return 'v' in cell.dataset ?
        (cell.dataset.v === '' ? null : +cell.dataset.v) : cell.textContent; };
      const rows = [...body.rows].sort((a, b) => { const x = key(a), y = key(b);
        if (x === null || y === null) return (x === null) - (y === null);
        return (typeof x === 'number' ? x - y : x.localeCompare(y)) * (down ? -1 : 1); });
      body.append(...rows);
    };
    head.addEventListener('click', sort);
    head.addEventListener('keydown', event => { if (event.key === 'Enter') sort(); });
  });
  const search = table.parentNode.previousElementSibling;
  if (search?.type === 'search') search.addEventListener('input', event => {
    const word = event.target.value.toLowerCase();
    for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(word);
  });
}
const text = id => document.getElementById(id).textContent;
const {figures, config} = JSON.parse(text('data'));
if (!figures.length) return;
try {
  const bytes = Uint8Array.from(atob(text('plotly')), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  const script = document.createElement('script');
  script.textContent = await new Response(stream).text();
  document.head.append(script);
} catch (error) { document.getElementById('old').hidden = false; return; }
const dark = matchMedia('(prefers-color-scheme: dark)');
const draw = () => figures.forEach((figure, i) => { const {data, layout} = figure[dark.matches ? 'dark' : 'light'];
  Plotly.react('figure-' + i, data, {...layout, autosize: true}, {...config, responsive: true}); });
draw();
dark.addEventListener('change', draw);
})();"""
