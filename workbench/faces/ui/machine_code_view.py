"""Inspect's view of the machine code: a summary in one sentence, the loops, the instructions with their source lines, PTX, and
the difference from another trial."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from html import escape
from typing import Any

import streamlit as st

from ...core import numbers, sass, source_parts
from ...core.errors import BadRequest
from ...core.replies import MachineCode
from ...core.trial import Status, Trial
from ...drive.machine.daemon_threads import DaemonThreads
from ...drive.sessions.recorded import machine_code_of, source_of
from ...drive.sessions.session import Session
from . import address, state, theme

_Answer = tuple[MachineCode, list[sass.Kernel], str]
_ALL, _MAIN, _NOBODY = "all instructions", "main loop", "no other trial"
_MOST_KEPT, _MOST_LOOPS = 12, 5
_CONTROL_HELP = ("B: which of the six barriers the instruction waits for. R: the barrier that is set until its operands are "
                 "read. W: the barrier that is set until its result is written. Y: the scheduler may switch to another warp. "
                 "S: stall cycles after the instruction")


def machine_code(trial: Trial, session: Session, others: list[Trial]) -> None:
    """Draw it. `others`: the trials that it can be compared with."""
    answer = _answer(trial, session)
    if answer is None:
        return
    reply, kernels, arch = answer
    if reply.status is not Status.OK or not kernels:
        theme.html(f'<div class="foot">{escape(reply.headline)} {escape(reply.advice)}</div>')
        if reply.ptx:
            _ptx(reply, "", _ALL, trial, session)
        return
    names = [k.name for k in kernels]
    state.seed(f"asm kernel {trial.trial_id}", names, names[0], name="kernel")
    name = names[0]
    if names[1:]:
        name = st.selectbox("Kernel", names, key=f"asm kernel {trial.trial_id}", persist_state="session")
    address.note("kernel", name, names[0])
    kernel = kernels[names.index(name)]
    theme.html(f"<b>{escape(sass.sentence(kernel))}</b> <span class=mute>{numbers.count(len(kernel.code))} instructions for "
               f"{escape(arch)}.</span>")
    if rows := sass.loop_rows(kernel):
        theme.html(theme.heading("Loops, the one with the most products first") + theme.table(
            ("loop", "depth", "source", "instructions", "their kinds"),
            [[escape(cell).replace("/", "/<wbr>") for cell in row] for row in rows[:_MOST_LOOPS]], right=(0, 1, 3)))
    shown = _listing(kernel, trial, session)
    _ptx(reply, next((long for long, short in reply.names.items() if short == name), ""), shown, trial, session)
    _against(kernel, trial, session, others)


def _listing(kernel: sass.Kernel, trial: Trial, session: Session) -> str:
    """The instructions. The box above selects those of a source line; a click on an instruction shows its source line. Returns
    the selection: the main loop, all, or a source line."""
    import pandas as pd  # imported here, because it takes half a second that the first view does not need
    lines = dict.fromkeys(f"{i.file}:{i.line}" for i in kernel.code if i.file)
    count = {place: sum(f"{i.file}:{i.line}" == place for i in kernel.code) for place in lines} if len(lines) < 500 else {}
    options = [*([_MAIN] if kernel.main_loop else []), _ALL, *lines]
    key = f"asm part {trial.trial_id} {kernel.name}"
    state.seed(key, options, options[0], name="instructions")
    shown = st.selectbox("Instructions of", options, key=key, persist_state="session", format_func=lambda o: (
        f"{o}, {count[o]} instructions" if o in count else o), help="The main loop, all, or those of one source line")
    address.note("instructions", shown, options[0])
    code = kernel.main_loop.own if shown == _MAIN and kernel.main_loop else [
        i for i in kernel.code if shown == _ALL or f"{i.file}:{i.line}" == shown]
    column = st.column_config
    table = pd.DataFrame([{"address": f"{i.address:05x}", "control": i.control.text if i.control else "", "live": i.live,
                           "instruction": i.text, "source": f"{i.file}:{i.line}" if i.file else ""} for i in code])
    event = st.dataframe(
        table, hide_index=True, row_height=24, height=360, key=f"asm code {trial.trial_id} {kernel.name} {shown}",
        on_select="rerun", selection_mode="single-row", placeholder="–", alt="Machine code, one instruction per row",
        column_config={
            "address": column.TextColumn(width=56), "control": column.TextColumn(width=140, help=_CONTROL_HELP),
            "live": column.NumberColumn("live", width=44, help="General registers in use there"),
            "instruction": column.TextColumn(width=270), "source": column.TextColumn(width=190)})
    rows = event["selection"]["rows"] if event else []
    place = f"{code[rows[0]].file}:{code[rows[0]].line}" if rows and rows[0] < len(code) else shown if shown in lines else ""
    _source_line(place, trial, session)
    return shown


def _source_line(place: str, trial: Trial, session: Session) -> None:
    file, _, line = place.rpartition(":")
    if file:
        theme.html(theme.excerpt(source_parts.parts(source_of(trial, session)).get(file, ""), int(line), name=file))


def _against(kernel: sass.Kernel, trial: Trial, session: Session, others: list[Trial]) -> None:
    by_id = {t.trial_id: t for t in others if t.trial_id != trial.trial_id}
    if not by_id:
        return
    key = f"asm against {trial.trial_id}"
    state.seed(key, [_NOBODY, *by_id], _NOBODY, name="asm_against")
    names = {i: " ".join([t.name, t.precision, *(f"{k}={v}" for k, v in t.config.items())]) for i, t in by_id.items()}
    chosen = st.selectbox("Compare with", [_NOBODY, *by_id], key=key, persist_state="session",
                          format_func=lambda i: names.get(i, i))
    address.note("asm_against", chosen, _NOBODY)
    if chosen == _NOBODY or (answer := _answer(by_id[chosen], session)) is None:
        return
    if not answer[1]:
        theme.html(f'<div class="foot">{escape(answer[0].headline)}</div>')
        return
    rows = sass.differences(kernel, answer[1][0])
    cells = [tuple(escape(str(cell)) for cell in row) for row in rows]
    theme.html(theme.table(("loop", "what", "here", "there"), cells, right=(2, 3)) if rows else
               '<div class="foot">Both have the same instructions.</div>')


def _ptx(reply: MachineCode, mangled: str, shown: str, trial: Trial, session: Session) -> None:
    """The kernel's PTX, or that of the source line `shown`. A click on a row shows its source line."""
    with st.expander("PTX", key="asm ptx", on_change="rerun") as box:
        if not box.open:
            return
        import pandas as pd
        lines = [(text, place) for text, place in sass.ptx_lines(reply.ptx, mangled) if shown in (_ALL, _MAIN, place)]
        table = pd.DataFrame(lines, columns=["PTX", "source"])
        column = st.column_config
        event = st.dataframe(
            table, hide_index=True, row_height=24, height=360, key=f"asm ptx {trial.trial_id} {mangled} {shown}",
            on_select="rerun", selection_mode="single-row", placeholder="–", alt="PTX, one line per row",
            column_config={"PTX": column.TextColumn(width=420), "source": column.TextColumn(width=190)})
        rows = event["selection"]["rows"] if event else []
        _source_line(lines[rows[0]][1] if rows and rows[0] < len(lines) else "", trial, session)


def _answer(trial: Trial, session: Session) -> _Answer | None:
    """The machine code; None while it is compiled, or if that failed."""
    found: _Answer | None = answered(f"{session.path} {trial.trial_id}", machine_code_of, trial, session)
    return found


def answered(key: str, job: Callable[..., Any], *of: Any) -> Any:
    """The result of `job` for these arguments and this compiler; None while it runs, or if it failed."""
    futures = _futures()
    if key not in futures:
        for old in list(futures)[:-_MOST_KEPT]:
            del futures[old]
        futures[key] = (time.time(), _compiler().submit(job, *of, state.runner().machine_code))
    started, future = futures[key]
    if not future.done():
        _live(started, future)
        return None
    try:
        return future.result()
    except BadRequest as error:
        theme.html(f'<div class="wrong">{escape(str(error))}</div>')
        return None


@st.fragment(run_every=0.5)
def _live(started: float, future: Future) -> None:
    if future.done():
        st.rerun()
    theme.html(f'{theme.badge("RUNNING")} nvcc is compiling the source, since {time.time() - started:.0f} s. '
               'A large kernel takes half a minute.')


@st.cache_resource(show_spinner=False)
def _futures() -> dict[str, tuple[float, Future]]:
    """(session, trial) -> (start, future result). They are kept in the server, so that a reload finds them."""
    return {}


@st.cache_resource(show_spinner=False)
def _compiler() -> DaemonThreads:
    return DaemonThreads(1)
