"""Inspect's view of the machine code: a summary in one sentence, what each loop issues, source and instructions side by side,
PTX, and the difference from another trial."""

from __future__ import annotations

import time
from collections import Counter
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
from ...drive.reporting import report
from ...drive.sessions.recorded import machine_code_of, source_of
from ...drive.sessions.session import Session
from . import address, state, theme

_Answer = tuple[MachineCode, list[sass.Kernel], str]
_ALL, _MAIN, _NOBODY = "all instructions", "main loop", "no other trial"
_MOST_KEPT = 12
_FOLLOWED = "compile followed"  # the compile whose progress this tab shows
_CONTROL_HELP = ("B: which of the six barriers the instruction waits for. R: the barrier that is set until its operands are "
                 "read. W: the barrier that is set until its result is written. Y: the scheduler may switch to another warp. "
                 "S: stall cycles after the instruction")


def machine_code(trial: Trial, session: Session) -> None:
    """Draw it."""
    answer = _answer(trial, session)
    if answer is None:
        return
    reply, kernels, arch = answer
    if reply.status is not Status.OK or not kernels:
        theme.html(f'<div class="foot">{escape(reply.headline)} {escape(reply.advice)}</div>')
        if reply.ptx:
            _ptx(reply, "", _ALL, trial, session)
        return
    kernel = _kernel(kernels, f"asm kernel {trial.trial_id}", "kernel", "Kernel")
    theme.html(f"<b>{escape(sass.sentence(kernel))}</b> <span class=mute>{numbers.count(len(kernel.code))} instructions for "
               f"{escape(arch)}.</span>")
    _kinds(kernel, trial)
    shown = _panes(kernel, trial, session)
    _ptx(reply, next((long for long, short in reply.names.items() if short == kernel.name), ""), shown, trial, session)
    _against(kernel, trial, session)


def choose_other(trial: Trial, session: Session, *, key: str, label: str) -> tuple[Trial, Session] | None:
    """The choice of another trial of any session, layer and direction; those of the same layer and direction are first. `key`:
    the beginning of the widgets' keys and of the names in the address. None if none is chosen."""
    paths = state.session_paths()
    left, right = st.columns([2, 3])
    state.seed(f"{key} session", paths, session.name, name=f"{key}_session")
    labels = state.session_labels(list(paths))
    place = left.selectbox(f"{label} a trial of", list(paths), key=f"{key} session", persist_state="session",
                           format_func=labels.get)
    address.note(f"{key}_session", place, session.name)
    there = {t.trial_id: t for t in state.trials_of(paths[place])
             if t.kind == "candidate" and (t.trial_id != trial.trial_id or place != session.name)}
    options = [_NOBODY, *nearest_first(trial, there)]
    chosen_key = f"{key} against {trial.trial_id}"
    state.seed(chosen_key, options, _NOBODY, name=f"{key}_against")
    names = state.distinct({i: told(t, trial) for i, t in there.items()})
    chosen = right.selectbox(label, options, key=chosen_key, persist_state="session", format_func=lambda i: names.get(i, i))
    address.note(f"{key}_against", chosen, _NOBODY)
    return (there[chosen], Session(paths[place])) if chosen in there else None


def nearest_first(trial: Trial, there: dict[str, Trial]) -> list[str]:
    """The ids: first of trials of the same layer and direction, then of the same layer."""
    return sorted(there, key=lambda i: (there[i].workload != trial.workload, there[i].direction != trial.direction))


def told(other: Trial, trial: Trial) -> str:
    """The label of a trial: its time or status, its name, then its distinguishing config."""
    time_or_status = numbers.time(other.kernel_ms.median_ms) if other.kernel_ms else str(other.status)
    mark = " *" if other.kernel_ms and report.is_emulated(other) else ""
    words = [f"{time_or_status}{mark} · {other.name}", other.precision,
             *([other.direction] if other.direction != trial.direction else []),
             *(f"{k}={v}" for k, v in other.config.items()),
             *([str(other.workload.layer)] if other.workload != trial.workload else [])]
    return " ".join(words)


def _kernel(kernels: list[sass.Kernel], key: str, name: str, label: str, like: str = "") -> sass.Kernel:
    """The choice of a kernel, if there are several. `like`: the name of the usual one, if it is there; else the first."""
    names = [k.name for k in kernels]
    usual = like if like in names else names[0]
    state.seed(key, names, usual, name=name)
    chosen = usual
    if names[1:]:
        chosen = st.selectbox(label, names, key=key, persist_state="session")
    address.note(name, chosen, usual)
    return kernels[names.index(chosen)]


def _kinds(kernel: sass.Kernel, trial: Trial) -> None:
    """How many instructions of each kind every loop has, and the code outside of loops."""
    import pandas as pd  # imported here, because it takes half a second that the first view does not need
    theme.html(theme.heading("Instructions by kind and loop, the loop with the most products first"))
    table = pd.DataFrame(sass.kinds_by_loop(kernel))
    st.dataframe(table, hide_index=True, row_height=26, key=f"asm kinds {trial.trial_id} {kernel.name}", width="stretch",
                 alt="Instructions by kind and loop, one loop per row", column_config={
                     "loop": st.column_config.TextColumn(width=120, pinned=True),
                     "source": st.column_config.TextColumn(width=230),
                     "instructions": st.column_config.NumberColumn("all kinds", width="small"),
                     "other": st.column_config.NumberColumn(width="small", help="No product, load, store or wait")})


def _panes(kernel: sass.Kernel, trial: Trial, session: Session) -> str:
    """Source and instructions side by side. A click on a source line shows its instructions, a click on an instruction shades
    its source line. Returns what the instructions are of: the main loop, all, or a source line."""
    places = Counter(f"{i.file}:{i.line}" for i in kernel.code if i.file)
    options = [*([_MAIN] if kernel.main_loop else []), _ALL, *places]
    key = f"asm part {trial.trial_id} {kernel.name}"
    state.seed(key, options, options[0], name="instructions")
    left, right = st.columns(2, gap="medium")
    with right:
        shown = st.selectbox("Instructions of", options, key=key, persist_state="session", format_func=lambda o: (
            f"{o}, {places[o]} instructions" if o in places else o), help="The main loop, all, or those of one source line")
        address.note("instructions", shown, options[0])
        code = kernel.main_loop.own if shown == _MAIN and kernel.main_loop else [
            i for i in kernel.code if shown == _ALL or f"{i.file}:{i.line}" == shown]
        row = _listing(code, f"asm code {trial.trial_id} {kernel.name} {shown}")
    place = f"{code[row].file}:{code[row].line}" if row is not None and code[row].file else shown if shown in places else ""
    with left:
        _source(kernel, places, place, key, source_parts.parts(source_of(trial, session)))
    return shown


def _listing(code: list[sass.Instruction] | tuple[sass.Instruction, ...], key: str) -> int | None:
    """The instructions as a table. Returns the chosen row."""
    import pandas as pd
    column = st.column_config
    table = pd.DataFrame([{"address": f"{i.address:05x}", "control": i.control.text if i.control else "", "live": i.live,
                           "instruction": i.text, "source": f"{i.file}:{i.line}" if i.file else ""} for i in code])
    event = st.dataframe(
        table, hide_index=True, row_height=24, height=604, key=key, on_select="rerun", selection_mode="single-row",
        placeholder="–", alt="Machine code, one instruction per row", column_config={
            "address": column.TextColumn(width=56), "control": column.TextColumn(width=140, help=_CONTROL_HELP),
            "live": column.NumberColumn("live", width=44, help="General registers in use there"),
            "instruction": column.TextColumn(width=270), "source": column.TextColumn(width=190)})
    rows = event["selection"]["rows"] if event else []
    return rows[0] if rows and rows[0] < len(code) else None


def _source(kernel: sass.Kernel, places: Counter[str], place: str, key: str, parts: dict[str, str]) -> None:
    """One file of the source, with the number of instructions beside each line that has some. `place`: the line to shade.
    `key`: of the box that holds the place whose instructions are shown."""
    files = [f for f in dict.fromkeys(p.rpartition(":")[0] for p in places) if f in parts]
    if not files:
        theme.html('<span class="foot">The instructions name no line of the source.</span>')
        return
    main = kernel.main_loop.place[0] if kernel.main_loop else ""
    file_key, followed = f"{key} file", f"{key} followed"
    state.seed(file_key, files, main if main in files else files[0], name="asm_file")
    there, _, line = place.rpartition(":")
    if place != st.session_state.get(followed, "") and there in files:
        st.session_state[file_key] = there
    st.session_state[followed] = place
    file = st.selectbox("Source: a click on a line shows its instructions", files, key=file_key, persist_state="session")
    address.note("asm_file", file, main if main in files else files[0])
    text, code_key = parts[file], f"{key} source"

    def picked() -> None:
        sent = st.session_state[code_key].get("picked")
        if sent and f"{sent['key']}:{sent['line']}" in places:
            st.session_state[key] = f"{sent['key']}:{sent['line']}"

    chosen = int(line) if there == file else None
    loop = kernel.main_loop.place if kernel.main_loop else ("", 0, 0)
    with st.container(key="sass source"):
        theme.code(code_key, {
            "key": file, "text": text, "marks": [], "note": "", "read": True, "title": f"Source: {file}", "chosen": chosen,
            "line": loop[1] if loop[0] == file else source_parts.kernel_line(text),
            "counts": {p.rpartition(":")[2]: n for p, n in places.items() if p.rpartition(":")[0] == file}},
            on_picked_change=picked)


def _source_line(place: str, trial: Trial, session: Session) -> None:
    file, _, line = place.rpartition(":")
    if file:
        theme.html(theme.excerpt(source_parts.parts(source_of(trial, session)).get(file, ""), int(line), name=file))


def _against(kernel: sass.Kernel, trial: Trial, session: Session) -> None:
    theme.html(theme.heading("Difference by loop from another trial"))
    other = choose_other(trial, session, key="asm", label="Compare with")
    if other is None or (answer := _answer(*other)) is None:
        return
    if not answer[1]:
        theme.html(f'<div class="foot">{escape(answer[0].headline)}</div>')
        return
    theirs = _kernel(answer[1], f"asm theirs {other[0].trial_id}", "asm_kernel", "Its kernel", like=kernel.name)
    rows = sass.differences(kernel, theirs)
    cells = [tuple(escape(str(cell)) for cell in row) for row in rows]
    head = ("loop", "what", f"here, {escape(kernel.name)}", f"there, {escape(theirs.name)}")
    theme.html(theme.table(head, cells, right=(2, 3)) if rows else
               '<div class="foot">Both have the same instructions.</div>')


def _ptx(reply: MachineCode, mangled: str, shown: str, trial: Trial, session: Session) -> None:
    """The kernel's PTX, or that of the source line `shown`. A click on a row shows its source line."""
    st.session_state.setdefault("asm ptx", address.wants("ptx") == "open")
    with st.expander("PTX", key="asm ptx", on_change="rerun") as box:
        address.note("ptx", "open" if box.open else "")
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
        st.session_state[_FOLLOWED] = key
        _live(started, future)
        return None
    try:
        answer, why_not = future.result(), ""
    except BadRequest as error:
        answer, why_not = None, str(error)
        theme.html(f'<div class="wrong">{escape(why_not)}</div>')
    if st.session_state.get(_FOLLOWED) == key:
        del st.session_state[_FOLLOWED]
        state.title(f"{'✕ not compiled' if why_not else '✓ compiled'}, Inspect")
    return answer


@st.fragment(run_every=0.5)
def _live(started: float, future: Future) -> None:
    if future.done():
        st.rerun()
    state.title("● compiling, Inspect")
    theme.html(f'{theme.badge("RUNNING")} nvcc is compiling the source, since {time.time() - started:.0f} s. '
               'A large kernel takes half a minute.')


@st.cache_resource(show_spinner=False)
def _futures() -> dict[str, tuple[float, Future]]:
    """(session, trial) -> (start, future result). They are kept in the server, so that a reload finds them."""
    return {}


@st.cache_resource(show_spinner=False)
def _compiler() -> DaemonThreads:
    return DaemonThreads(1)
