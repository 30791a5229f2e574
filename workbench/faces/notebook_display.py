"""The displays of a notebook: the progress of a run or a tune; layers, trials, sessions, verdicts and wrong values as pictures
and tables. In a terminal the progress is a bar of one line."""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from ..core import facts, numbers, sass
from ..core.errors import BadRequest
from ..core.layer import LAUNCHES, ConvTranspose, Workload
from ..core.patching import PatchReport
from ..core.presets import called
from ..core.source_parts import DiffRow, side_by_side
from ..core.trial import Trial
from ..core.typed import keys_of
from ..core.verdict import SAME, UNSURE, Verdict
from ..core.wrong_values import WrongValues, case_rows, sentence
from ..drive.patching import text as patching_text
from ..drive.reporting import report, tables, tune_points
from ..drive.reporting.tune_points import Tried
from ..drive.running.request import Run
from ..drive.sessions import profiles
from ..drive.sessions.files import clocks_of, samples_of
from ..drive.sessions.recorded import wrong_values_of
from ..drive.sessions.session import Session
from .arguments import unified_text

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go

_STEP = re.compile(r"layer (\d+) of (\d+)")
_COLOURS = {"OK": "#0B7A5E", report.FASTER: "#0B7A5E", report.SLOWER: "#B3420C", UNSURE: "#6B4FC0",
            SAME: "#5B6472", report.EMULATED: "#5B6472"}


class _Line:
    """A line that is redrawn in a notebook or a terminal. In other outputs, such as a file, it is not redrawn."""

    def __init__(self) -> None:
        self._handle: Any = None
        self.redrawn = _in_notebook() or sys.stderr.isatty()
        self._open = False

    def draw(self, share: float | None, text: str) -> None:
        """ "[#####     ] text"; without a share there is no bar."""
        if _in_notebook():
            value = "" if share is None else f' value="{share:.3f}"'
            self._handle = _show(self._handle, f"<progress max=1{value}></progress> <code>{escape(text)}</code>")
        elif self.redrawn:
            bar = "" if share is None else f"[{'#' * round(20 * share):<20}] "
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{(bar + text)[:width]:<{width}}", end="", file=sys.stderr, flush=True)
            self._open = True
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._open:
            print(file=sys.stderr, flush=True)
        self._open = False


class ProgressBar:
    """The progress of a tune in one line. In an output without redrawing, it is one line for each new best."""

    def __init__(self, trials: int | None, seconds: float | None) -> None:
        self._trials, self._seconds, self._begun, self._said = trials, seconds, time.monotonic(), "starting"
        self._line = _Line()
        self._thread = threading.Thread()

    def say(self, text: str) -> None:
        """A message of the tune: a new best, or its current step."""
        self._said = text.partition("] ")[2] if text.startswith("[") else text
        if not self._line.redrawn:
            print(text, file=sys.stderr, flush=True)

    def follow(self, run: Run) -> None:
        """Draw until the run ends."""
        def draw() -> None:
            while not run.wait(0.3):
                self._draw(run.done_rows)
            self._draw(run.done_rows)
        if self._line.redrawn:
            self._thread = threading.Thread(target=draw, daemon=True)
            self._thread.start()

    def close(self) -> None:
        if self._thread.ident is not None:
            self._thread.join(2)
        self._line.close()

    def _draw(self, done: int) -> None:
        """ "12 of 40 judged, 8 s: forward: 0.265 ms with naive_gather ieee" """
        done, spent = min(done, self._trials or done), time.monotonic() - self._begun   # the finals have rows, too
        share = done / self._trials if self._trials else min(1.0, spent / self._seconds) if self._seconds else None
        self._line.draw(share, f"{done}{f' of {self._trials}' if self._trials else ''} judged, "
                               f"{spent:.0f}{f' of {self._seconds:.0f}' if self._seconds else ''} s: {self._said}")


class StepBar:
    """The progress of a call with steps, such as a patch, in one line. In an output without redrawing, it is one line for each
    step. Without `progress` nothing is shown."""

    def __init__(self, progress: bool) -> None:
        self._line = _Line() if progress else None
        self._begun, self._share = time.monotonic(), 0.0

    def __enter__(self) -> StepBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            self._line.close()

    def say(self, text: str, share: float | None = None) -> None:
        """The present step. `share`: how much is done; default: the number in "layer 2 of 5", else as before."""
        if self._line is None:
            return
        if (found := _STEP.search(text)) is not None:
            share = (int(found[1]) - 1) / int(found[2])
        self._share = share if share is not None else self._share
        self._line.draw(self._share, f"{text}, {time.monotonic() - self._begun:.0f} s" if self._line.redrawn else text)


class RunBar:
    """The progress of a run in one line. In an output without redrawing, it is one line for each change."""

    def __init__(self) -> None:
        self._last = ""
        self._line = _Line()

    def __call__(self, run: Run) -> None:
        text = f"{run.done_rows} of {len(run.rows)} candidates: {run.message}"
        if text != self._last:
            self._last = text
            self._line.draw(run.done_rows / max(1, len(run.rows)), text)

    def close(self) -> None:
        self._line.close()


def register() -> None:
    """Tell IPython how to display the workbench's objects, which have no display code of their own."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return
    shapes: dict[type, Callable[[Any], str]] = {
        ConvTranspose: layer_html, Workload: layer_html, Verdict: verdict_html, Session: session_html}
    for kind, markup in shapes.items():
        shell.display_formatter.formatters["text/html"].for_type(kind, markup)
    if _in_notebook():
        for kind, show in ((Trial, _show_trial), (WrongValues, _show_wrong)):
            shell.display_formatter.ipython_display_formatter.for_type(kind, show)


def layer_html(shown: ConvTranspose | Workload) -> str:
    """The constructor call of the layer, the facts of a workload, and the picture."""
    from .ui.picture import layer_svg
    if isinstance(shown, ConvTranspose):
        return f"<code>{escape(str(shown))}</code>{layer_svg(shown)}"
    told = (f"output {numbers.shape(shown.output_shape)}, {numbers.work(facts.flops(shown))}, "
            f"{numbers.bytes_decimal(facts.bytes_moved(shown, 'forward').total_bytes)} of traffic in the forward")
    return (f"<code>{escape(str(shown.layer))}</code> {escape(called(shown))}, batch {shown.batch}, input size "
            f"{numbers.shape(shown.input_size)}, {escape(shown.dtype)}<br>{escape(told)}{layer_svg(shown)}")


def trial_html(trial: Trial) -> str:
    """The verdict first, then the time and the error, then what to do next."""
    table = "".join(f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(value)}</td></tr>"
                    for name, value in tables.trial_rows(trial))
    advice = "" if trial.ok else f" {escape(trial.advice)}"
    return (f"<p>{_word(str(trial.status))} <b>{escape(trial.name)}</b>: {escape(trial.headline)}{advice}</p>"
            f"<table>{table}</table>")


def session_html(session: Session) -> str:
    """The number of trials, their layers, and the best results."""
    trials = session.trials()
    layers = list(dict.fromkeys(called(t.workload) for t in trials))
    right = sum(t.ok for t in trials)
    found = report.headline(trials)
    best = f"<p><b>{escape(found.sentence)}</b><br>{escape(found.evidence)}</p>" if found and not layers[1:] else ""
    return (f"<p><b>{escape(session.name)}</b>: {numbers.count(len(trials))} trials, {numbers.count(right)} of them right; "
            f"{escape('; '.join(layers[:8]))}{f'; and {len(layers) - 8} more' if layers[8:] else ''}</p>{best}")


def verdict_html(verdict: Verdict) -> str:
    """"FASTER 4.69×, 95 % interval 4.69 – 4.70": the other time divided by ours."""
    interval = report.interval_words(verdict)
    return f"{_word(verdict.verdict)} <b>{numbers.ratio(verdict.value)}</b>{f', {escape(interval)}' if interval else ''}"


def _show_trial(trial: Trial) -> None:
    from IPython.display import HTML, display

    from ..drive.reporting import plots
    display(HTML(trial_html(trial)))
    if trial.ok and trial.kernel_ms and (values := samples_of(trial.kernel_ms)):
        floor = None if report.is_emulated(trial) else report.floor_ms(trial)
        display(plots.samples(values, median_ms=trial.kernel_ms.median_ms, floor_ms=floor, clocks_mhz=clocks_of(trial)))
    if (found := wrong_values_of(trial)) is not None:
        _show_wrong(found, trial.workload)


def _show_wrong(found: WrongValues, work: Workload | None = None) -> None:
    """`work`: the workload of the trial; without it, the smallest case has no picture."""
    from IPython.display import HTML, display

    from ..drive.reporting import plots
    advice = f" {found.looks_like.advice}" if found.looks_like else ""
    display(HTML(f"<p>{escape(sentence(found) + advice)}</p>"))
    for figure in (plots.wrong_map(found), plots.wrong_shares(found), plots.wrong_errors(found)):
        if figure is not None:
            display(figure)
    if found.smallest is not None:
        display(HTML(case_html(found, work)))


def case_html(found: WrongValues, work: Workload | None) -> str:
    """The smallest case: the picture of the layer with the numbers of the wrong element, and a table of its summands."""
    from .ui.picture import case_svg
    case = found.smallest
    assert case is not None
    picture = case_svg(work, case, found.tensor) if work and found.tensor != "grad_bias" else ""
    said = f": {case.said}" if case.said else ""
    rows = [[escape(cell) for cell in row] for row in case_rows(case, found.tensor)]
    return (f"<p>The smallest case that is still wrong: batch {case.batch}, input size {numbers.shape(case.input_size)}"
            f"{escape(said)}.</p>{picture}{_table(('tap', 'reads', 'products', 'sum'), rows) if rows else ''}")


def samples_figure(trials: Sequence[Trial], chosen: Sequence[Trial] = ()) -> go.Figure | None:
    """The samples of the chosen trials over time. Default, for trials of one layer: those of the fastest right candidate of
    each direction on a GPU, and of the best PyTorch beside it."""
    from ..drive.reporting import compare_plots
    chosen = list(chosen)
    if not chosen and len({t.place for t in trials}) == 1:
        for direction in LAUNCHES:
            best = report.best_candidate(trials, direction)
            against = report.best_baseline(trials, best) if best else None
            chosen += [one for one in (best, against) if one]
    names = [f"{t.name} {t.direction} {t.precision}" for t in chosen]
    return compare_plots.samples_over_time(chosen, names)


def tune_figures(found: Tried, variant: str) -> dict[str, go.Figure]:
    """The figures of a tune, by name: those for which there are enough trials. Raises `BadRequest` for a variant without a
    right trial."""
    from ..drive.reporting import tune_plots
    families = [p.family for p in sorted(found.right, key=lambda p: p.ms or 0.0)]
    if variant and variant not in families:
        raise BadRequest(f"variant {variant!r} has no right trial here; choose {', '.join(dict.fromkeys(families))}.",
                         field="variant")
    drawn: dict[str, go.Figure | None] = {"progress": tune_plots.progress(found)}
    if families:
        family = variant or families[0]
        order = tune_points.matters(found, family)
        names = [m.tunable for m in order] or tune_points.tunables(p for p in found.points if p.family == family)
        drawn |= {"importance": tune_plots.importance(order),
                  "heat map": tune_plots.heat_map(found, family, *names[:2]) if names[1:] else None,
                  "slices": tune_plots.slices(found, family, order), "parallel coordinates": tune_plots.parallel(found, family)}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def patch_html(patched: PatchReport) -> str:
    """The verdict, a table with a row for each layer, why each is patched or not, and the whole model."""
    rows = [(_word("OK") + " patched" if row.kept else "left to PyTorch", *map(escape, patching_text.cells(row, patched)),
             escape(row.reason)) for row in patched.layers]
    head = ("", "layer", "what it is", "calls", "share", *patching_text.times_head(patched), "kernels", "why")
    calls = [f"{c.function}, {c.file}, line {c.line}" for c in patched.functional]
    notes = [*patching_text.end_to_end(patched), *patched.notes,
             *([f"Not patched, because they are not calls of a module: {'; '.join(calls)}"] if calls else []),
             *([f"Repeat it: {patched.command}"] if patched.command else [])]
    evidence = patching_text.evidence(patched, "give keep='right'")
    said = f"{patching_text.headline(patched)} {evidence}"
    return (f"<p>{_word(patching_text.verdict(patched))} <b>{escape(patched.name)}</b>: {escape(said)}</p>"
            + (_table(head, rows) if rows else "") + "".join(f"<div>{escape(note)}</div>" for note in notes))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table; the cells are HTML already."""
    body = "".join(f"<tr>{''.join(f'<td style=text-align:left>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th style=text-align:left>{escape(name)}</th>' for name in head)}</tr>{body}</table>"


@dataclass(frozen=True)
class Difference:
    """The difference of two texts. A notebook displays it as a diff."""

    a: str
    b: str
    text_a: str
    text_b: str

    @property
    def rows(self) -> list[DiffRow]:
        """The lines side by side."""
        return side_by_side(self.text_a, self.text_b)

    def __str__(self) -> str:
        return unified_text(self.a, self.b, self.text_a, self.text_b) or "The two are equal."

    __repr__ = __str__

    def _repr_html_(self) -> str:
        shade = {"+": "#0B7A5E22", "-": "#C8501A22", "@": "#7B849422"}
        lines = [f'<div style="background:{shade.get(line[:1], "none")}">{escape(line) or " "}</div>'
                 for line in str(self).splitlines()]
        return f'<pre style="line-height:1.35">{"".join(lines)}</pre>'


@dataclass(frozen=True)
class Profiled:
    """The profiles of one or two trials, or static analyses if there is no profile. A notebook displays them as sentences and
    tables."""

    readings: tuple[profiles.Reading, ...]

    @property
    def sentence(self) -> str:
        """What limits the first one's main kernel."""
        return self.readings[0].sentence

    @property
    def values(self) -> list[dict[str, float]]:
        """The counters of each main kernel, by their keys in `core.profile.METRICS`; empty where there are none."""
        return [dict(one.kernels[0].values) if one.kernels else {} for one in self.readings]

    def __repr__(self) -> str:
        return profiles.text(self.readings)

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{escape(one.sentence)}</b><br>{escape(f'{one.name}, {one.trial.device.name}. {one.note}')}</p>"
                 for one in self.readings]
        rows = profiles.table(self.readings)
        names = [one.kernels[0].name if one.kernels else numbers.MISSING for one in self.readings]
        parts += [_table(("main kernel", *names), [
            (f'<span title="{escape(meaning, quote=True)}">{escape(label)}</span>', *map(escape, values))
            for label, meaning, values in rows])] if rows else []
        for one in self.readings:
            if one.kernels[1:]:
                head, *cells = profiles.other_kernels(one)
                rows_of = [[escape(cell) for cell in row] for row in cells]
                parts.append(f"<p>Other kernels of {escape(one.name)}</p>" + _table(head, rows_of))
            if one.static and one.static.kernel and (kinds := sass.kinds_by_loop(one.static.kernel)):
                parts.append(f"<p>Instructions of {escape(one.name)} by kind and loop</p>" + _table(
                    list(kinds[0]), [[escape(str(value)) for value in row.values()] for row in kinds]))
        return "".join(parts)


@dataclass(frozen=True)
class Compared:
    """Two sessions, compared. A notebook displays the regressions, a table and figures."""

    a: Session
    b: Session

    @cached_property
    def rows(self) -> list[tables.Row]:
        """One row for each candidate and baseline; `ratio` is A / B."""
        return tables.compare_sessions(self.a.trials(), self.b.trials())

    @property
    def regressions(self) -> list[str]:
        """A sentence for each candidate that is worse in B."""
        return tables.regressions(self.rows)

    @property
    def frame(self) -> pandas.DataFrame:
        """The rows; the column names have the units."""
        import pandas
        return pandas.DataFrame([keys_of(row) for row in self.rows])

    def figures(self) -> dict[str, go.Figure]:
        """The figures of the page Compare for which there are times. In them the ratio is B / A: above 1, A is faster."""
        from ..drive.reporting import compare_plots, html_report
        pairs = tables.in_order(report.pairs(self.a.trials(), self.b.trials()))
        drawn = {"dots": compare_plots.dots(pairs, [html_report.row_name(p) for p in pairs]),
                 "speedups": compare_plots.speedups(pairs)}
        return {name: figure for name, figure in drawn.items() if figure is not None}

    def __repr__(self) -> str:
        return "\n".join([tables.compare_text(self.rows), *(f"REGRESSION  {sentence}" for sentence in self.regressions)])

    def _repr_html_(self) -> str:
        said = self.regressions
        word = f"{_word(report.SLOWER)} {len(said)} regression{'s' if said[1:] else ''} in B" if said else "No regression in B"
        unit, times = numbers.times([ms for r in self.rows for ms in (r.a_ms, r.b_ms)])
        cells = [tuple(map(escape, (
            r.workload, r.direction, r.variant, a.strip(), b.strip(), numbers.ratio(r.ratio),
            numbers.interval(r.low, r.high, r.ratio)))) for r, a, b in zip(self.rows, times[::2], times[1::2], strict=True)]
        table = _table(("workload", "direction", "variant", f"A, {unit}", f"B, {unit}", "A / B", "interval", "verdict", ""), [
            (*cell, _word(r.verdict) if r.verdict else "", escape(r.why)) for cell, r in zip(cells, self.rows, strict=True)])
        return (f"<p>{word}. A is {escape(self.a.name)}; B is {escape(self.b.name)}. Above 1, B is faster.</p>"
                + "".join(f"<div>{escape(sentence)}</div>" for sentence in said) + table)

    def _ipython_display_(self) -> None:
        from IPython.display import HTML, display
        display(HTML(self._repr_html_()))
        for figure in self.figures().values():
            display(figure)


def _word(word: str) -> str:
    return f"<b style='color:{_COLOURS.get(word, '#B3420C')}'>{escape(word)}</b>"


def _in_notebook() -> bool:
    """Whether IPython runs in a notebook (it then has a Jupyter kernel). IPython in a terminal shows no HTML."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


def _show(handle: Any, markup: str) -> Any:
    """Display it, in place of what `handle` displays if there is a handle. Returns the handle."""
    from IPython.display import HTML, display
    if handle is None:
        return display(HTML(markup), display_id=True)
    handle.update(HTML(markup))
    return handle
