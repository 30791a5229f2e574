"""The display of a run: the status line, a row with four segments for each candidate, and the compiler's log as it is printed.
This module only reads the runner's `Run`. `Tuning` is a tune that this server carries out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path

import streamlit as st

from ...core import numbers
from ...core.errors import BadRequest
from ...core.presets import called
from ...core.trial import Status
from ...drive.bench.execute import Bench, BenchResult
from ...drive.bench.plan import BenchPlan
from ...drive.machine.background import Background
from ...drive.running.request import Row, Run
from ...drive.running.runner import Runner
from ...drive.running.worker_process import WorkerDied, WorkerFailed, WorkerTimeout
from ...drive.sessions.session import Session, SessionFull
from ...drive.tuning.feed import TuneRequest
from ...drive.tuning.space import Explained
from ...drive.tuning.tune import TuneResult, tune, used_s
from . import state, theme

_SEGMENTS = ("building", "checking", "timing", "rechecking")
_BUILD_ENDS = (Status.BUILD_FAILED, Status.BUILD_TIMEOUT, Status.NO_COMPILER, Status.MACHINE_FAILED, Status.RENDER_FAILED)
_LOG_BYTES = 12_000
_BUILT = ("built in", "cached")  # the text of a row between its build and its check


class Tuning(Background):
    """One tune, running or done. `run`: None until its space is known."""

    def __init__(self, request: TuneRequest, session: Session, runner: Runner, places: Sequence[str] = ()) -> None:
        super().__init__(f"tune {session.name}")
        self.request, self.session = request, session
        self.run: Run | None = None
        self.result: TuneResult | None = None
        self.finish = threading.Event()         # set: the search ends, and the finals follow
        self.candidates = 0                     # of all directions, in the space that is searched
        self.used_s = 0.0                       # by earlier tunes of the same work in this session
        self._runner, self._places = runner, places

    def stop(self) -> None:
        super().stop()
        if self.run is not None:
            self._runner.stop(self.run)

    def finish_now(self) -> None:
        """End the search, time the best so far again, and keep the winner. A tune that still waits for its device stops."""
        self.finish.set()
        if self.run is None or self.run.state == "waiting":
            self.stop()

    def _work(self) -> None:
        self._say("counting the configs of the search space")
        try:
            self.result = tune(self.request, self.session, self._runner, on_line=self._say, on_run=self._begun_run,
                               on_space=self._counted, places=self._places, finish=self.finish)
        except (BadRequest, SessionFull, WorkerDied, WorkerFailed, WorkerTimeout) as error:
            self.problem = str(error)

    def _counted(self, told: dict[str, Explained]) -> None:
        self.candidates = sum(space.points for space in told.values())

    def _begun_run(self, run: Run) -> None:
        self.used_s = used_s(self.session, self.request.workload, run.request.tune)
        self.run = run
        if self.stopped:
            run.stop()


class Benching(Background):
    """One bench, running or done."""

    def __init__(self, plan: BenchPlan, session: Session, runner: Runner, device: str) -> None:
        super().__init__(f"bench {session.name}")
        self.plan, self.session = plan, session
        self.result: BenchResult | None = None
        self._bench = Bench(plan, session, runner, device=device, on_line=self._say)

    def stop(self) -> None:
        super().stop()
        self._bench.stop()

    def _work(self) -> None:
        try:
            self.result = self._bench.run()
        except (BadRequest, SessionFull, WorkerDied, WorkerFailed, WorkerTimeout) as error:
            self.problem = str(error)


@st.cache_resource(show_spinner=False)
def benches() -> dict[str, Benching]:
    """Session -> the newest bench in it, the oldest first. They are kept in the server."""
    return {}


@st.cache_resource(show_spinner=False)
def tunings() -> dict[str, Tuning]:
    """Session -> the newest tune in it, the oldest first. They are kept in the server, because a tune continues when its tab is
    closed."""
    return {}


def tunes_under_way() -> list[Tuning]:
    return [one for one in tunings().values() if not one.done]


@st.fragment(run_every=1)
def live_tune(tuning: Tuning) -> None:
    """A line about a tune of another page, layer or session: its name and its current step."""
    if tuning.done:
        st.rerun()
    judged = tuning.run.done_rows if tuning.run is not None else 0
    of = escape(f"{called(tuning.request.workload)} is tuned on {tuning.request.device} in session "
                f"{state.session_label(tuning.session.name)}")
    theme.html(f'{theme.badge("RUNNING")} {of}: {numbers.count(judged)} judged')


@st.fragment(run_every=0.5)
def live_strip(run: Run) -> None:
    """Redraws the status line of the run twice a second, and the whole page once when the run has ended."""
    if not run.active:
        st.rerun()
    state.title(f"● {run.done_rows}/{len(run.rows)} {called(run.request.workload)}")
    theme.html(running_strip(run))


@st.fragment(run_every=0.5)
def live_rows(run: Run) -> None:
    """The candidates of the run, and below them the output of the compilers."""
    theme.html(rows_table(run))
    # An opened log stays open when the page is redrawn.
    log = st.expander("Compiler log, as it is printed", key="live-log-open", on_change="rerun")
    if not log.open:
        return
    rows = _rows_with_log(run)
    with log:
        if not rows:
            theme.html('<span class="foot">Nothing is being built yet.</span>')
        for row in rows:
            text = log_tail(row.log_path) or "The compiler has printed nothing yet."
            theme.html(f'<h4>{escape(row.label)}</h4><pre data-testid="live-log">{escape(text)}</pre>')


@st.fragment(run_every=1)
def live_line(run: Run) -> None:
    """A line about a run of another layer, session or device: its name and its progress, without results."""
    if not run.active:
        st.rerun()
    theme.html(f'{theme.badge("WAITING" if run.state == "waiting" else "RUNNING")} {escape(elsewhere(run))}')


def elsewhere(run: Run) -> str:
    """ "KernelBench #81 (small) runs on cpu in session 22 Nov 23:13: 3 of 12 candidates are done" """
    does = "waits for" if run.state == "waiting" else "runs on"
    session = state.session_label(run.session.name)
    return (f"{called(run.request.workload)} {does} {run.request.device} in session {session}: {run.done_rows} of "
            f"{len(run.rows)} candidates {'is' if run.done_rows == 1 else 'are'} done")


def running_strip(run: Run) -> str:
    """The status line of a run: RUNNING 3 of 8, the current step, the time since the start and an estimate of the remaining
    time."""
    elapsed = time.time() - run.started_at
    parts = [f"{elapsed:.0f} s since start"]
    if run.done_rows:
        parts.append(f"about {elapsed / run.done_rows * (len(run.rows) - run.done_rows):.0f} s left")
    parts.append("closing the browser does not stop the run")
    word = "WAITING" if run.state == "waiting" else "RUNNING"
    sentence = run.message[:1].upper() + run.message[1:]
    return theme.strip(word, sentence, " · ".join(parts), badge_text=f"{word} {run.done_rows} of {len(run.rows)}")


def ended(run: Run) -> str:
    """"✓ done", "✕ 1 of 3 not right", "✕ failed", "– stopped": how a run ended, as the title of the browser's tab."""
    if run.state in ("failed", "stopped"):
        return "✕ failed" if run.state == "failed" else "– stopped"
    judged = [row for row in run.rows if row.status not in (Status.SKIPPED, Status.CANCELLED)]
    bad = sum(row.status is not Status.OK for row in judged)
    return f"✕ {bad} of {len(judged)} not right" if bad else "✓ done"


def ended_strip(run: Run, kept_trials: int) -> str | None:
    """The status line of a run that ended early; None for a complete run. `kept_trials`: how many trials its session has."""
    kept = f"{numbers.count(kept_trials)} finished {'trial is' if kept_trials == 1 else 'trials are'} kept in the session."
    if run.state == "failed":
        sentence = run.message[:1].upper() + run.message[1:]
        return theme.strip("FAILED", sentence if sentence.endswith(".") else f"{sentence}.", kept)
    if run.state == "stopped":
        done = sum(row.status is not Status.CANCELLED for row in run.rows)
        left = len(run.rows) - done
        return theme.strip("CANCELLED", f"Stopped by you after {done} of {len(run.rows)} candidates.",
                           f"Resume runs the other {left}. {kept}")
    return None


def rows_table(run: Run) -> str:
    return theme.table(
        ("candidate", "direction", "build · check · time · recheck", "now"),
        [(f"<span{theme.hint(_config(row))}>{escape(row.variant)}</span>", escape(row.direction), segments(row),
          f"<span class=mute>{_now(row)}</span>") for row in run.rows])


def segments(row: Row) -> str:
    """Four segments: teal for done, blue for the current step, orange for failed. A label describes them for screen readers."""
    if row.phase == "done":
        failed_at = None if row.status is Status.OK else _failed_segment(row)
        marks = ["d"] * 4 if failed_at is None else ["d"] * failed_at + ["f"] + [""] * (3 - failed_at)
        if row.status in (Status.SKIPPED, Status.CANCELLED):
            marks = [""] * 4
    else:
        at = _SEGMENTS.index(row.phase) if row.phase in _SEGMENTS else -1
        marks = ["d"] * max(0, at) + (["r"] if at >= 0 else []) + [""] * (3 - at if at >= 0 else 4)
    label = str(row.status) if row.phase == "done" else row.phase
    return (f'<span class="stage" role="img" aria-label="{escape(label)}">'
            + "".join(f'<i class="{m}"></i>' for m in marks) + "</span>")


def log_tail(path: Path | None) -> str:
    """The end of a log file that may still grow."""
    if path is None or not path.is_file():
        return ""
    with path.open("rb") as file:
        start = file.seek(max(0, path.stat().st_size - _LOG_BYTES))
        text = file.read().decode("utf-8", "replace")
    return text.partition("\n")[2] or text if start else text  # from the start of a line


def _now(row: Row) -> str:
    if row.phase == "done" and row.status is not None:
        return f"{theme.badge(str(row.status))} {escape(row.text)}"
    if row.text.startswith(_BUILT):
        return escape(f"{row.text}, waiting for check")
    return escape(row.phase if row.phase == row.text else f"{row.phase}: {row.text}")


def _failed_segment(row: Row) -> int:
    return 0 if row.status in _BUILD_ENDS else 2 if row.status is Status.IMPLAUSIBLE else 1


def _rows_with_log(run: Run) -> list[Row]:
    """The rows whose compilers are running; one row for all that are built together. Without these, the last row with output.
    """
    building = [r for r in run.rows if r.phase == "building" and r.text == "compiling"]
    return [r for r in building if _has_log(r)] or building[:1] or [r for r in run.rows if _has_log(r)][-1:]


def _has_log(row: Row) -> bool:
    return row.log_path is not None and row.log_path.is_file() and row.log_path.stat().st_size > 0


def _config(row: Row) -> str:
    return " ".join(f"{k}={v}" for k, v in row.config.items())
