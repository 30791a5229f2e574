"""Inspect's views of texts: a reader; an editor, whose Run button makes a fork; the diff of two texts; the ladder of variants.
"""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape
from typing import Any

import streamlit as st

from ...core import facts, numbers, source_parts
from ...core.candidate import Candidate
from ...core.errors import BadRequest
from ...core.trial import Status, Trial
from ...core.variants import Variant, discover
from ...drive.exporting.export import proof_workload
from ...drive.reporting import report
from ...drive.reporting.main_kernel import arch_of, main_numbers
from ...drive.running.request import Run, RunRequest
from ...drive.sessions import profiles
from ...drive.sessions.recorded import WHAT, Side, fork_of_trial, most_shared_bytes, source_of, template_of, text_of
from ...drive.sessions.session import Session, SessionFull
from . import address, machine_code_view, running, state, theme

_MOST_EMULATED_FLOPS = 4e9  # as on the Workbench
_MOST_ROWS = 3000            # the most rows of a diff; a browser cannot lay out more at once
_WORDS = {"source": "Source", "template": "Template", "config": "Config", "ptx": "PTX", "sass": "SASS"}
_SIDES, _UNIFIED = "Side by side", "Unified"
_VARIANT = "variant "        # the prefix of a variant's key in the list of things to compare with
_CLASS = {"ieee": "float32", "tf32x3": "float32"}   # other precisions are a class of their own
_TEMPLATE, _RENDERED = "Template", "Rendered source"
# Runs that this tab started: parent -> (run, key of the editor). Keys of the editors whose text became a trial. Refused texts:
# parent -> (text, sentence).
_EDITED, _RAN, _REFUSED = "edit run", "edit ran", "edit refused"


def follow() -> str:
    """Called before the page chooses its trial: if a run that this tab started here has ended, its fork becomes the shown
    trial. Returns how it ended, as a title of the browser's tab, or ""."""
    ended = ""
    for parent, (run, editor) in list(st.session_state.get(_EDITED, {}).items()):
        if run.active:
            continue
        del st.session_state[_EDITED][parent]
        ended = running.ended(run)
        forks = [t.trial_id for t in run.trials if t.forked_from]
        if forks:
            st.session_state.setdefault(_RAN, {})[editor] = True
        if forks and st.session_state.get("inspect_trial") == parent:
            st.session_state["inspect_session"], st.session_state["inspect_trial"] = run.session.name, forks[-1]
    return ended


def strip(trial: Trial, session: Session, *, editing: bool) -> bool:
    """Draw the status line while a fork of the trial runs, or after one was refused. False if there is neither."""
    refused = st.session_state.get(_REFUSED, {}).get(trial.trial_id)
    if (run := _under_way(trial, session)) is not None:
        running.live_strip(run)
    elif editing and refused:
        state.title(f"✕ not run, {trial.name} {trial.direction}, Inspect")
        theme.html(theme.strip("BAD INPUT", refused[1], "Nothing was run. Your text is kept below."))
    return run is not None or bool(editing and refused)


def read(text: str, key: str, *, title: str, marks: list[tuple[int, str]]) -> None:
    """A read-only text. It opens at its first mark (a line with a message), or else at its kernel."""
    with st.container(key="reader"):
        theme.code(f"reader {key}", {
            "key": key, "text": text, "marks": [{"line": line, "text": said} for line, said in marks], "note": "", "read": True,
            "line": source_parts.kernel_line(text), "title": title})


def edit(trial: Trial, session: Session) -> None:
    """The editor for the template or the rendered source. Run judges the text as a fork of the trial."""
    if trial.kind != "candidate":
        theme.html('<span class="foot">A module cannot be edited here. Open one of its candidates.</span>')
        return
    state.seed("inspect_edit", (_TEMPLATE, _RENDERED), _TEMPLATE, name="edit")
    devices = list(state.device_names())
    left, right, last = st.columns([3, 2, 1], vertical_alignment="bottom")
    what = left.segmented_control("Edit", (_TEMPLATE, _RENDERED), key="inspect_edit", required=True, persist_state="session",
                                  help="The rendered source also holds the headers. Values of tunables are part of it.")
    address.note("edit", what, _TEMPLATE)
    usual = next((d for d in devices if d.startswith(trial.device.kind)), devices[0])
    state.seed("inspect_edit_device", devices, usual, name="run_on")
    device = right.selectbox("Run on", devices, key="inspect_edit_device", format_func=state.device_label,
                             persist_state="session")
    address.note("run_on", device, usual)
    try:
        text = template_of(trial, session) if what == _TEMPLATE else source_of(trial, session)
    except BadRequest as error:
        theme.html(f'<div class="wrong">{escape(str(error))}</div>')
        return
    running_now = _under_way(trial, session)
    refused = st.session_state.get(_REFUSED, {}).get(trial.trial_id)
    last.button("Stop", key="stop edit", disabled=running_now is None, width="stretch", shortcut=theme.STOP_KEY,
                on_click=running_now.stop if running_now else None)
    marks = [{"line": line, "text": said} for line, said in _marks(trial, session, text, refused)]
    kernel = source_parts.kernel_line(text)
    with st.container(key="editor"):
        theme.code(f"editor {trial.trial_id} {what}", {
            "key": f"{trial.trial_id} {what}", "text": text, "marks": marks, "line": kernel, "busy": running_now is not None,
            "ran": list(st.session_state.get(_RAN, ())),
            "label": "Run edit", "runnable": False, "title": f"{what} of {trial.name} {trial.direction}",
            "note": f"Run makes a fork of {trial.name}."}, on_run_change=_begin(trial, session, what, device))
    theme.html(f'<span class="foot">{escape(_on_what(trial, device)[1])} The fork is kept in session '
               f"{escape(state.session_label(session.name))}. "
               "Ctrl-Enter runs, Ctrl-F searches, Escape and then Tab leaves the text.</span>")


def _marks(trial: Trial, session: Session, text: str, refused: tuple[str, str] | None) -> list[tuple[int, str]]:
    """The compiler's errors in this text; for a refused text, the line that the sentence names."""
    if refused:
        line = re.search(r"\bline (\d+)", refused[1])
        return [(int(line[1]), refused[1])] if line else []
    if trial.status not in (Status.BUILD_FAILED, Status.RENDER_FAILED):
        return []
    try:
        log = session.blob(trial.blobs.get("log", "")).decode("utf-8", "replace")
    except BadRequest:
        log = ""
    if found := source_parts.error_lines(text, log, trial.headline):
        return found
    line = re.search(r"\bline (\d+)", trial.headline)
    return [(int(line[1]), trial.headline)] if line and not text.startswith("#line") else []


def _begin(trial: Trial, session: Session, what: str, device: str) -> Any:
    """The callback of the editor's Run button: it makes a candidate from the text and runs it."""
    # Streamlit may end a callback, too, wherever it uses st.session_state, so it does this only before the run.
    edits, ran, refusals = (st.session_state.setdefault(name, {}) for name in (_EDITED, _RAN, _REFUSED))
    editor = f"{trial.trial_id} {what}"

    def begin() -> None:
        sent = st.session_state[f"editor {editor}"].get("run")
        if not sent or _under_way(trial, session) is not None:
            return
        text = str(sent["text"])
        refusals.pop(trial.trial_id, None)
        ran.pop(editor, None)
        try:
            candidate = fork_of_trial(text, trial, session)
            workload, _ = _on_what(trial, device)
            target = Session.create(name=session.name) if session.path.suffix == ".zip" else session
            request = RunRequest(workload, (candidate,), device=device, baselines=device != state.CPU)
            run = state.runner().start(request, target)
        except (BadRequest, SessionFull) as error:
            refusals[trial.trial_id] = (text, str(error))
            return
        state.runs().append(run)
        edits[trial.trial_id] = run, editor
    return begin


def _under_way(trial: Trial, session: Session) -> Run | None:
    """The running run of a fork of this trial, from any tab."""
    of = trial.candidate_id or trial.trial_id
    return next((run for run in state.active_runs() if run.session.name == session.path.stem and any(
        row.candidate.variant.forked_from == of for row in run.rows)), None)


def _on_what(trial: Trial, device: str) -> tuple[Any, str]:
    """The workload for the fork, and a sentence about it: the trial's workload, or one with a small input if the emulator would
    need minutes."""
    work = trial.workload
    if device != state.CPU or facts.flops(work) < _MOST_EMULATED_FLOPS:
        return work, ""
    small = replace(proof_workload(work, device), preset="")
    size = " × ".join(map(str, (small.batch, work.layer.in_channels, *small.input_size)))
    return small, (f"{numbers.work(facts.flops(work))} per launch is too much for the emulator. The fork is judged on a small "
                   f"input of the same layer, {size}.")


def diff(trial: Trial, session: Session, name: str) -> None:
    """The diff of this trial and another one of any session, or a variant. `name`: the name of the session."""
    paths = state.session_paths()
    left, right = st.columns([2, 3])
    state.seed("diff session", paths, name, name="diff_session")
    with left:
        place = st.selectbox("Against a trial of", list(paths), key="diff session", persist_state="session",
                             format_func=state.session_labels(list(paths)).get)
    address.note("diff_session", place, name)
    there = {t.trial_id: t for t in state.trials_of(paths[place]) if t.kind == "candidate" and t.trial_id != trial.trial_id}
    options = _others(trial, there)
    usual = next((i for i, t in there.items() if t.candidate_id and t.candidate_id == trial.forked_from), options[0])
    key = f"diff {trial.trial_id} {place}"
    labels = state.distinct({i: f"{i.removeprefix(_VARIANT)}, as it is now" if i.startswith(_VARIANT) else
                             machine_code_view.told(there[i], trial) for i in options})
    state.seed(key, options, usual, name="diff", what="trial", shown=labels[usual])
    chosen = right.selectbox("Against", options, key=key, persist_state="session", format_func=labels.get)
    address.note("diff", chosen, usual)
    other = _of_variant(chosen, trial) if chosen.startswith(_VARIANT) else Side.of(there[chosen])
    what, shape, only = _how()
    if what == "config" and other.trial is not None:
        _what_it_took(other.trial, trial)
    before = _text(other, what)
    after = None if before is None else _text(Side.of(trial), what)
    if before is not None and after is not None:
        _draw(before, after, other.name, f"this, {trial.name}", shape=shape, only=only)


def ladder(trial: Trial, session: Session, everything: list[Trial]) -> None:
    """The variants of the direction in their reading order, as a list that one clicks through: what each one took here, what it
    changes, and its speed-up. Only times of one precision class are compared. `everything`: the trials of the layer."""
    variants = [v for v in discover() if v.direction == trial.direction]
    names = [v.name for v in variants]
    state.seed("ladder step", names, trial.variant if trial.variant in names else names[0], name="step")
    clicked = st.session_state.get(f"ladder list {st.session_state['ladder step']}", {}).get("selection", {}).get("cells")
    if clicked and clicked[0][0] < len(names):   # in the list below
        st.session_state["ladder step"] = names[clicked[0][0]]
    at = names.index(st.session_state["ladder step"])
    with st.container(horizontal=True, vertical_alignment="bottom"):
        for label, to in (("Back", at - 1), ("Next", at + 1)):
            st.button(label, key=f"ladder {label}", disabled=not 0 <= to < len(names), on_click=_step,
                      args=(names[to] if 0 <= to < len(names) else "",))
        best = _best(everything, trial, _precision_class(everything, trial))
        step = st.selectbox("Step", names, key="ladder step", persist_state="session",
                            format_func=lambda n: f"{names.index(n) + 1} of {len(names)}: {n}")
    address.note("step", step, trial.variant)
    variant = variants[names.index(step)]
    before = next((v for v in variants if v.name == variant.after and v is not variant), None)
    traffic = profiles.traffic_of(session)
    _steps(variants, best, traffic, step)
    notes = [] if step in best else [f"The session has no right trial of {step} on this layer in this precision."]
    notes += ["* emulated: does not predict a GPU."] if any(map(report.is_emulated, best.values())) else []
    notes += [] if _has_traffic(best, traffic) else ["The bytes that it moved are shown for a trial with a profile."]
    least = numbers.bytes_decimal(facts.bytes_moved(trial.workload, trial.direction).total_bytes)
    theme.html(f'<span class="foot">A click on a row shows its step. {trial.direction} must move at least {least}. '
               f'{escape(" ".join(notes))}</span>')
    after = f"Read after {before.name}. {_bought(variant, before, best, traffic)}" if before else ""
    theme.html(f"<b>{escape(variant.name)}</b>: {escape(variant.idea)} <span class=mute>{escape(after)}</span>")
    if before is None:
        theme.html(theme.heading("The first variant: read all of its source"))
        st.code(variant.text, language="cpp", line_numbers=True, height=520)
        return
    _, shape, only = _how(texts=False)
    _draw(before.text, variant.text, before.name, variant.name, shape=shape, only=only)


def _step(name: str) -> None:
    st.session_state["ladder step"] = name


def _precision_class(everything: list[Trial], trial: Trial) -> str:
    """The choice of a precision class, if the layer has right trials in several."""
    there = dict.fromkeys(_CLASS.get(t.precision, t.precision) for t in [trial, *everything]
                          if t.kind == "candidate" and t.ok and t.direction == trial.direction)
    usual = _CLASS.get(trial.precision, trial.precision)
    options = list(dict.fromkeys([usual, *there]))
    state.seed("ladder class", options, usual, name="class")
    chosen = usual
    if options[1:]:
        chosen = st.segmented_control("Precision", options, key="ladder class", required=True, persist_state="session",
                                      help="Only times of one class are compared. float32 holds ieee and tf32x3.") or usual
    address.note("class", chosen, usual)
    return chosen


def _best(everything: list[Trial], trial: Trial, precision: str) -> dict[str, Trial]:
    """Variant -> its fastest right trial in this direction and precision class, on the same device and workload. Forks do not
    count."""
    found: dict[str, Trial] = {}
    for one in everything:
        if one.kind == "candidate" and one.ok and not one.forked_from and one.direction == trial.direction \
                and _CLASS.get(one.precision, one.precision) == precision and report.same_place(one, trial) \
                and one.kernel_median_ms < found.get(one.name, one).kernel_median_ms + 1e-12:
            found[one.name] = one
    return found


def _has_traffic(best: dict[str, Trial], traffic: dict[str, float]) -> bool:
    return any(trial.trial_id in traffic for trial in best.values())


def _steps(variants: list[Variant], best: dict[str, Trial], traffic: dict[str, float], step: str) -> None:
    """The list of all steps. A click on a row shows its step."""
    import pandas as pd
    table = pd.DataFrame([{"": "▸" if v.name == step else "", "step": f"{n}. {v.name}", **_row_of(v, best, traffic)}
                          for n, v in enumerate(variants, 1)])
    if not _has_traffic(best, traffic):
        table = table.drop(columns="DRAM traffic")
    column = st.column_config
    # The key changes with the step, so that no click remains selected, and a further click on the same cell counts.
    st.dataframe(
        table, hide_index=True, row_height=26, height=40 + 26 * len(table), key=f"ladder list {step}",
        on_select="rerun", selection_mode="single-cell", placeholder="–",
        alt="The variants in their reading order, one row each", column_config={
            "": column.TextColumn(width=24), "step": column.TextColumn(width=210), "after": column.TextColumn(width=160),
            "precision": column.TextColumn(width=70), "median": column.TextColumn(width=90),
            "gain": column.TextColumn(width=70, help="The time of the variant before it (after), divided by its own"),
            "of limit": column.TextColumn(width=64, help="Floor (shortest time that the GPU allows) divided by the median"),
            "registers": column.NumberColumn(width=70, help="Registers per thread of the main kernel"),
            "shared memory": column.TextColumn(width=100), "workspace": column.TextColumn(width=90),
            "DRAM traffic": column.TextColumn(width=100, help="Bytes read and written, where the trial has a profile")})


def _row_of(variant: Variant, best: dict[str, Trial], traffic: dict[str, float]) -> dict[str, str | int | None]:
    trial = best.get(variant.name)
    found: dict[str, str | int | None] = dict.fromkeys(
        ("after", "precision", "median", "gain", "of limit", "registers", "shared memory", "workspace", "DRAM traffic"))
    found["after"] = variant.after if variant.after != variant.name else None
    if trial is None:
        return found
    registers, shared = _used(trial)
    gain, mark = _gain(trial, best.get(variant.after)), " *" if report.is_emulated(trial) else ""
    return {**found, "precision": trial.precision, "registers": registers,
            "median": f"{numbers.time(trial.kernel_ms.median_ms)}{mark}" if trial.kernel_ms else None,
            "gain": numbers.ratio(gain) if gain else None, "of limit": _of_limit(trial),
            "shared memory": None if shared is None else numbers.memory(shared),
            "workspace": numbers.memory(trial.memory["workspace_bytes"]) if "workspace_bytes" in trial.memory else None,
            "DRAM traffic": numbers.bytes_decimal(traffic[trial.trial_id]) if trial.trial_id in traffic else None}


def _used(trial: Trial) -> tuple[int | None, int | None]:
    """(registers, shared memory in bytes) of the main kernel."""
    own, arch = main_numbers(trial), arch_of(trial)
    return own.registers if own else None, most_shared_bytes(trial, arch) if arch else None


def _of_limit(trial: Trial) -> str | None:
    limit = None if report.is_emulated(trial) else report.floor_ms(trial)
    return numbers.of_limit(limit, trial.kernel_median_ms) if limit and trial.kernel_ms else None


def _gain(trial: Trial, before: Trial | None) -> float | None:
    """The time of the step before, divided by this one's. Emulated times are not compared."""
    if before is None or before is trial or not before.kernel_ms or not trial.kernel_ms or report.is_emulated(trial):
        return None
    return before.kernel_median_ms / trial.kernel_median_ms


def _bought(variant: Variant, before: Variant, best: dict[str, Trial], traffic: dict[str, float]) -> str:
    """`1.84× as fast, 8 registers fewer, 12.0 KiB shared memory more.`: what the step changes here."""
    mine, theirs = best.get(variant.name), best.get(before.name)
    if mine is None or theirs is None:
        return ""
    gain = _gain(mine, theirs)
    words = [f"{numbers.ratio(gain)} as fast"] if gain else []
    spaces = tuple(t.memory.get("workspace_bytes") for t in (mine, theirs))
    moved = tuple(traffic.get(t.trial_id) for t in (mine, theirs))
    pairs = (*zip(_used(mine), _used(theirs), strict=True), spaces, moved)
    for (now, then), shown, what in zip(pairs, (str, numbers.memory, numbers.memory, numbers.bytes_decimal),
                                        ("registers", "shared memory", "workspace", "DRAM traffic"), strict=True):
        if now is not None and then is not None and now != then:
            words.append(f"{shown(abs(now - then))} {what} {'more' if now > then else 'fewer' if shown is str else 'less'}")
    return f"{', '.join(words)}." if words else ""


def _how(*, texts: bool = True) -> tuple[str, str, bool]:
    """The choices of the diff: what is compared, the layout, and whether only changed lines are shown."""
    with st.container(horizontal=True, vertical_alignment="center"):
        what = "template"
        if texts:
            state.seed("diff what", WHAT, WHAT[0], name="what")
            what = st.segmented_control("What", WHAT, key="diff what", required=True, persist_state="session",
                                        format_func=_WORDS.get, label_visibility="collapsed") or WHAT[0]
            address.note("what", what, WHAT[0])
        state.seed("diff shape", (_SIDES, _UNIFIED), _SIDES, name="shape")
        shape = st.segmented_control("Shape", (_SIDES, _UNIFIED), key="diff shape", required=True, persist_state="session",
                                     label_visibility="collapsed") or _SIDES
        address.note("shape", shape, _SIDES)
        st.session_state.setdefault("diff only", address.wants("whole") != "1")
        only = st.toggle("Only changes", key="diff only", persist_state="session")
        address.note("whole", "" if only else "1")
    return what, shape, only


def _others(trial: Trial, there: dict[str, Trial]) -> list[str]:
    """The things to compare with: first trials, the nearest first, last the variants of the direction."""
    return [*machine_code_view.nearest_first(trial, there),
            *(f"{_VARIANT}{v.key}" for v in discover() if v.direction == trial.direction)]


def _of_variant(chosen: str, trial: Trial) -> Side:
    """A candidate of the present variant, with the values of the trial's config that it has."""
    key = chosen.removeprefix(_VARIANT)
    variant = next(v for v in discover() if v.key == key)
    config = {t.name: trial.tunables[t.name] for t in variant.tune if trial.tunables.get(t.name) in t.values}
    precision = trial.precision if trial.precision in variant.precision else ""
    form = trial.form if trial.form in variant.forms else variant.forms[0]
    work = trial.workload
    return Side(key, candidate=Candidate(variant, work.layer, work.dtype, config, precision, form, trial.compile_flags))


def _text(side: Side, what: str) -> str | None:
    """The text of a side. None while it is compiled, or if it does not exist; then a message is shown."""
    if what in ("ptx", "sass"):
        key = f"{what} {side.name} {side.candidate.config if side.candidate else ''}"
        return machine_code_view.answered(key, text_of, side, what)
    try:
        return text_of(side, what, state.runner().machine_code)
    except BadRequest as error:
        theme.html(f'<div class="wrong">{escape(str(error))}</div>')
        return None


def _what_it_took(before: Trial, trial: Trial) -> None:
    """Status, time, registers and shared memory of both."""
    def row(one: Trial) -> tuple[str, ...]:
        own, arch = main_numbers(one), arch_of(one)
        shared = most_shared_bytes(one, arch) if arch else None
        return (escape(one.name), theme.badge(str(one.status)), numbers.time(one.kernel_ms.median_ms) if one.kernel_ms else "–",
                str(own.registers) if own else "–", numbers.memory(shared) if shared is not None else "–")
    theme.html(theme.table(("", "status", "median", "registers", "shared memory"), [row(before), row(trial)], right=(2, 3, 4)))


def _draw(before: str, after: str, name: str, other: str, *, shape: str, only: bool) -> None:
    rows = source_parts.side_by_side(before, after, context=3 if only else None)
    changed = sum(not row.same and not row.skipped for row in rows)
    if not changed:
        theme.html('<span class="foot">The two are equal.</span>')
        if only:
            return
    if shape == _UNIFIED:
        rows = source_parts.unified(rows)
    cut = f" The first {_MOST_ROWS} rows are shown." if len(rows) > _MOST_ROWS else ""
    cells = "".join(_diff_row(row, shape) for row in rows[:_MOST_ROWS])
    head = (f"<th colspan=2>{escape(name)}</th><th colspan=2>{escape(other)}</th>" if shape == _SIDES else
            f"<th colspan=3>{escape(name)} → {escape(other)}</th>")
    number, kind = "<col style='width:3.6em'>", "two" if shape == _SIDES else "one"
    columns = f"{number}<col>" * 2 if shape == _SIDES else f"{number}{number}<col>"
    theme.html(f'<span class="foot">{numbers.count(changed)} changed lines.{cut}</span>'
               f'<div class="diff" tabindex=0 role=region aria-label="Diff"><table class="{kind}">'
               f"<colgroup>{columns}</colgroup><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table></div>")


def _diff_row(row: source_parts.DiffRow, shape: str) -> str:
    if row.skipped:
        return f"<tr class=gap><td colspan={4 if shape == _SIDES else 3}>{numbers.count(row.skipped)} equal lines</td></tr>"
    left, right = _marked(row.left_text, row.right_text) if row.left and row.right and not row.same else (
        escape(row.left_text), escape(row.right_text))
    gone = "" if row.same else " class=gone" if row.left else " class=none"
    came = "" if row.same else " class=came" if row.right else " class=none"
    if shape == _SIDES:
        return f"<tr><th>{row.left or ''}</th><td{gone}>{left}</td><th>{row.right or ''}</th><td{came}>{right}</td></tr>"
    sign, mark, text = (" ", "", left) if row.same else ("−", " class=gone", left) if row.left else ("+", " class=came", right)
    return f"<tr><th>{row.left or ''}</th><th>{row.right or ''}</th><td{mark}><s>{sign}</s>{text}</td></tr>"


def _marked(left: str, right: str) -> tuple[str, str]:
    """Both lines as HTML. The part between their common beginning and their common end is marked."""
    head = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    most = min(len(left), len(right)) - head
    tail = next((i for i in range(most) if left[-1 - i] != right[-1 - i]), most)
    if head + tail <= min(len(left), len(right)) // 3:  # the lines have little in common
        return escape(left), escape(right)
    ends = len(left) - tail, len(right) - tail
    return (f"{escape(left[:head])}<em>{escape(left[head:ends[0]])}</em>{escape(left[ends[0]:])}",
            f"{escape(right[:head])}<em>{escape(right[head:ends[1]])}</em>{escape(right[ends[1]:])}")
