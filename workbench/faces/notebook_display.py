"""The displays of a notebook: the progress of a run or a tune; layers, trials, sessions, verdicts and wrong values as pictures
and tables. In a terminal the progress is a bar of one line."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from html import escape
from typing import Any

from ..core import facts, numbers
from ..core.layer import ConvTranspose, Workload
from ..core.presets import called
from ..core.trial import Trial
from ..core.verdict import SAME, UNSURE, Verdict
from ..core.wrong_values import WrongValues, case_rows, sentence
from ..drive.reporting import report
from ..drive.running.request import Run
from ..drive.sessions.files import clocks_of, samples_of
from ..drive.sessions.recorded import wrong_values_of
from ..drive.sessions.session import Session

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
    rows = [("layer", called(trial.workload)), ("direction", f"{trial.direction}, {trial.precision}"),
            ("config", " ".join(f"{k}={v}" for k, v in trial.config.items()) or numbers.MISSING)]
    if trial.ok and trial.kernel_ms:
        emulated = " on the CPU emulator, which does not predict a GPU" if report.is_emulated(trial) else ""
        rows.append(("median", f"{numbers.time(trial.kernel_ms.median_ms)}{emulated}"))
    rows += [(f"error of {name}", f"{numbers.error(e.rel_l2)} relative L2, {numbers.error(e.allowed)} allowed, "
              f"{numbers.count(e.wrong)} of {numbers.count(e.count)} wrong") for name, e in trial.errors.items()]
    rows.append(("command", trial.command))
    table = "".join(f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(value)}</td></tr>"
                    for name, value in rows)
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
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in case_rows(case, found.tensor))
    return (f"<p>The smallest case that is still wrong: batch {case.batch}, input size {numbers.shape(case.input_size)}"
            f"{escape(said)}.</p>{picture}<table><tr><th>tap</th><th>reads</th><th>products</th><th>sum</th></tr>{rows}</table>")


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
