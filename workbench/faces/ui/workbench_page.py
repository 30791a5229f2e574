"""Workbench: choose a layer and candidates, run them, see what is right and how fast."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import plotly.graph_objects as go
import streamlit as st

from ...core import facts, numbers
from ...core.errors import BadRequest
from ...core.layer import LAUNCHES, Workload
from ...core.presets import called
from ...core.trial import Trial
from ...core.variants import Variant, broken, discover, texts_stamp
from ...drive.machine import doctor
from ...drive.reporting import plots, report
from ...drive.running.request import Run, RunRequest
from ...drive.sessions.recorded import has_changed
from ...drive.sessions.session import Session, list_sessions, unpack
from . import address, best_box, compare_page, layer_form, machine_page, pages, results, running, state, theme, variant_rows
from .layer_form import Choice, show
from .picture import layer_svg

_MOST_EMULATED_FLOPS = 4e9  # the emulator computes 0.2 to 1 GFLOP/s, and a check launches several times
KEYS = (*layer_form.KEYS, *variant_rows.KEYS, *results.KEYS, "explain")  # the keys of the widgets here
_BUTTON_PX = 185
_SENT_S = 0.03  # within this time Streamlit sends what was drawn
REFERENCE_GPU = "NVIDIA H200"  # its ceilings ship with the project; its floor is shown on a machine without a GPU


def draw() -> None:
    variants = discover()
    variant_rows.take_from_link(variants)
    line, elsewhere, strip = st.container(), st.container(), st.container()
    grid = st.grid(2, min_column_width=320, gap="medium")
    left, right = grid.container(), grid.container()
    now = layer_form.layer_of_fields()
    if now is not None:
        st.session_state["last workload"] = now
    workload: Workload | None = now or st.session_state.get("last workload")
    faded = now is None
    if workload is not None:
        with left:
            _layer_picture(workload, faded=faded)
    choice = layer_form.layer_form(variants)
    if workload is None:  # after a link or a reload with a wrong value no picture and no results of another layer are shown
        with strip:
            theme.html(theme.strip("BAD INPUT", choice.problems[0],
                                   "Correct the value on the left, or choose a layer there."))
        return
    variant_rows.note(variants, choice)
    path = state.session_paths().get(choice.session)
    trials = shown_trials(path, workload, choice)
    with line:
        theme.html(layer_line(workload, choice, gpu_name(choice, trials), faded=faded), faded=faded)
    last = state.latest_run(workload, choice.device, session=choice.session)
    run = last if last is not None and last.active else None
    if run is None:  # otherwise the status line sets the progress in the title
        state.title(f"{running.ended(last)}, {called(workload)}" if last is not None else called(workload))
    told = _told(path, trials, last, recorded=choice.session.startswith("recorded-"))
    with elsewhere:
        _elsewhere(run)
    with strip:
        _strip(choice, variants, trials, told, last)
    with right:
        _candidates(variants, choice, run)
    stale = faded or run is None and bool(told.changed)
    with st.container(key="faded results" if stale else None):
        _chart(variants, choice, workload, trials, told, run)
    if run is not None:
        running.live_rows(run)
    elif trials:
        with st.container(key="faded table" if stale else None):
            _table(trials, choice, told.notes)
    else:
        theme.html(results.doctor_table(state.findings()))
        _session_actions(choice, path, selected=[])


def layer_line(workload: Workload, choice: Choice, gpu: str, *, faded: bool) -> str:
    """The constructor call of the layer, and its facts. The floor is that of the GPU."""
    precision = choice.floor_precision(workload.dtype)
    limit = report.floor_of(workload, "forward", precision, gpu)
    floor = f"{numbers.time(limit.ms)}, {limit.limit}" if limit else "not known for this GPU"
    origin = called(workload) if workload.preset else "own layer"
    zero = facts.zero_share(workload)
    pairs = [("output", numbers.shape(workload.output_shape), "Batch, channels and positions of the output"),
             ("work", numbers.work(facts.flops(workload)), "Two operations for each multiply-add of the direct algorithm"),
             ("traffic, each tensor once", numbers.bytes_decimal(facts.bytes_moved(workload, "forward").total_bytes),
              "Bytes of memory that the forward must read and write, with each tensor moved once"),
             ("intensity", numbers.intensity(facts.intensity(workload)),
              "Work divided by traffic. Below about 12 FLOP/B in fp32, and 95 in TF32, the memory of an H200 is the limit."),
             (f"floor on {gpu.removeprefix('NVIDIA ')}, forward in {precision}", floor,
              "The shortest time that this GPU allows: for its traffic (bytes) or for its work (compute)"),
             ("outputs that no tap reaches", numbers.share(zero, decimals=0 if zero in (0, 1) else 1),
              "Outputs that no tap reaches hold the bias, or zero without a bias"),
             ("parameters", numbers.count(workload.layer.parameter_count), "Values of weight and bias")]
    note = " · this is the last valid layer" if faded else ""
    return (f'<div class="layer"><span class="mono">{escape(str(workload.layer))}</span>'
            f'<span class="mute">{escape(origin)} · {escape(workload.dtype)}{note}</span></div>' + theme.facts(pairs))


def gpu_name(choice: Choice, trials: Sequence[Trial] = ()) -> str:
    """The GPU whose floor is shown: the one on which these trials ran, else the chosen one."""
    if trials and trials[0].device.kind == "cuda":
        return trials[0].device.name
    return REFERENCE_GPU if choice.device == state.CPU else state.device_names().get(choice.device, REFERENCE_GPU)


def measured_elsewhere(trials: Sequence[Trial], choice: Choice) -> bool:
    """Whether these trials ran on another device than the chosen one."""
    first = trials[0].device if trials else None
    return first is not None and first.kind == "cuda" and first.name != state.device_names().get(choice.device)


def shown_trials(path: Path | None, workload: Workload, choice: Choice) -> list[Trial]:
    """The trials of this workload on one device: one of the chosen kind, else the one that was recorded last."""
    kind = "cpu" if (choice.linked or choice.device) == state.CPU else "cuda"
    return _shown_trials(str(path), state.stamp(path), workload, kind) if path is not None else []


@st.cache_resource(max_entries=16, show_spinner=False, hash_funcs={Workload: lambda w: str(w.to_json())})
def _shown_trials(path: str, stamp: tuple[int, int], workload: Workload, kind: str) -> list[Trial]:
    here = report.for_workload(state.trials_of(Path(path)), workload)
    mine = [t for t in here if t.device.kind == kind] or here
    key = mine[-1].device.key if mine else None
    return [t for t in mine if t.device.key == key]


def verdict_trials(trials: list[Trial], last: Run | None) -> list[Trial]:
    """The trials for the headline: the candidates of the newest run (including those that a resumed run had already), and all
    of PyTorch's times. Trials of earlier runs are only in the table. For a recorded session all trials count."""
    ours = [t for t in trials if not report.is_baseline(t)]
    if not ours:
        return trials
    newest = max(ours, key=lambda t: t.at).run_id
    kept = {t.trial_id for t in last.kept} if last is not None and last.run_id == newest else set()
    return [t for t in trials if report.is_baseline(t) or t.run_id == newest or t.trial_id in kept]


class _Told(NamedTuple):
    """The sentences about trials. They are made once, because 10 000 trials take half a second."""

    headline: report.Headline | None
    earlier: int                        # number of trials of earlier runs, which are not in the headline
    described: str
    precisions: dict[str, set[str]]     # precisions of right candidates, by direction
    notes: list[str]                    # of the trials that are not right
    changed: list[str]                  # candidates whose template has changed since their trial, the fastest first


def _told(path: Path | None, trials: list[Trial], last: Run | None, *, recorded: bool) -> _Told:
    newest = (last.run_id, tuple(t.trial_id for t in last.kept)) if last is not None and not recorded else ()
    texts = () if recorded else texts_stamp()  # a test ensures that the shipped templates still give the recorded sources
    return _tell((_known_by(path, trials), texts), newest, recorded, trials, last)


@st.cache_resource(max_entries=16, show_spinner=False)
def _tell(known_by: tuple, newest: tuple, recorded: bool, _trials: list[Trial], _last: Run | None) -> _Told:
    spoken_of = _trials if recorded else verdict_trials(_trials, _last)
    right: dict[str, set[str]] = {}
    for t in _trials:
        if t.kind == "candidate" and t.ok:
            right.setdefault(t.direction, set()).add(t.precision)
    notes = dict.fromkeys(f"{t.name} {t.direction}: {t.headline} {t.advice}" for t in _trials
                          if not t.ok and not report.is_baseline(t))
    changed = [] if recorded else _changed(_trials)
    return _Told(report.headline(spoken_of), len(_trials) - len(spoken_of), plots.describe(_trials), right, list(notes),
                 changed)


def _changed(trials: list[Trial]) -> list[str]:
    """For each variant, direction and precision only the fastest trial is examined, because only it is drawn."""
    best: dict[tuple[str, str, str], Trial] = {}
    for t in sorted((t for t in trials if t.kind == "candidate"), key=lambda t: t.kernel_median_ms):
        best.setdefault((t.name, t.direction, t.precision), t)
    return list(dict.fromkeys(f"{t.name} {t.direction}" for t in best.values() if has_changed(t)))


def _elsewhere(own: Run | None) -> None:
    """One line for each run that is not of this layer, session and device, for each tune, and for a self-test."""
    for run in state.active_runs():
        if run is not own:
            with st.container(horizontal=True, vertical_alignment="center", key=f"elsewhere {run.run_id}"):
                running.live_line(run)
                st.button("Go to it", key=f"go {run.run_id}", on_click=show,
                          args=(run.request.workload, run.request.device, run.session.name))
                st.button("Stop it", key=f"stop {run.run_id}", on_click=_stop, args=(run,))
    for tuning in running.tunes_under_way():
        with st.container(horizontal=True, vertical_alignment="center", key=f"elsewhere tune {tuning.session.name}"):
            running.live_tune(tuning)
            if theme.button("Go to it", key=f"go tune {tuning.session.name}", on_click=show,
                            args=(tuning.request.workload, tuning.request.device, tuning.session.name)):
                st.switch_page(pages.page("tune"))
            st.button("Stop it", key=f"stop tune {tuning.session.name}", on_click=tuning.stop)
    if (test := machine_page.under_way()) is not None:
        with st.container(horizontal=True, vertical_alignment="center", key="elsewhere self-test"):
            machine_page.live_line(test)
            if theme.button("Go to it", key="go self-test"):
                st.switch_page(pages.page("machine"))


def _strip(choice: Choice, variants: list[Variant], trials: list[Trial], told: _Told, last: Run | None) -> None:
    if last is not None and last.active:
        st.session_state["followed"] = last.run_id
        running.live_strip(last)
        return
    if last is not None and st.session_state.get("followed") == last.run_id:
        st.session_state["followed"] = None
        st.toast(theme.markdown(f"The run has ended: {last.message}."))
    if choice.workload is None:
        theme.html(theme.strip("BAD INPUT", choice.problems[0], "Run is disabled until this is fixed. The picture shows "
                               "the last valid layer."))
        return
    ended = running.ended_strip(last, len(state.trials_of(last.session))) if last is not None else None
    recorded = choice.session.startswith("recorded-") or measured_elsewhere(trials, choice)
    linked = f"This machine has no {choice.linked}; Run uses {choice.device}." if choice.linked else ""
    found, earlier = told.headline, told.earlier
    if ended:
        theme.html(ended)
    elif found and told.changed:
        theme.html(theme.strip("CHANGED", f"{', '.join(told.changed[:3])}{' and others' if told.changed[3:] else ''}: the "
                               "template has changed since its trial", "The results below are of the earlier text: "
                               f"{found.sentence}. Press Run to judge it again."))
    elif found:
        where = next((t.device.name for t in trials), "")
        more = f"The table also shows {earlier} trial{'' if earlier == 1 else 's'} of earlier runs." if earlier else ""
        left_out = state.left_out(state.session_paths().get(choice.session))
        evidence = " ".join(filter(None, (found.evidence, more, left_out, linked)))
        theme.html(theme.strip(found.badge, found.sentence, evidence,
                               more_badges=[f"RECORDED on {where}"] if recorded else []))
    else:
        count = len(variant_rows.chosen_candidates(variants, choice.workload, choice))
        theme.html(theme.strip("READY", "Nothing measured yet for this layer",
                               f"{count} candidate{'' if count == 1 else 's'} selected. "
                               f"{_too_much(choice) or doctor.summary(state.findings())} {linked}".rstrip()))


def _too_much(choice: Choice) -> str:
    """A sentence if the emulator would exceed the time limit of a kernel; otherwise ""."""
    work = facts.flops(choice.workload)
    if choice.device != state.CPU or work < _MOST_EMULATED_FLOPS:
        return ""
    return (f"{numbers.work(work)} per launch is too much for the emulator. It stops a kernel after a minute. Choose size "
            f"small, fewer channels or a smaller input size.")


def _candidates(variants: list[Variant], choice: Choice, run: Run | None) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        direction = variant_rows.direction_switch()
        button = st.container(width=_BUTTON_PX)  # st.empty would take the button away for a moment, and a click could miss it
    for error in broken().values():
        theme.html(f'<div class="foot">{escape(str(error))} This template was skipped.</div>')
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="picks"):
        variant_rows.picks(variants, direction)
        best_box.button(variants, choice)
    variant_rows.variant_rows(variants, direction, choice)
    if run is not None:
        button.button("Stop", key="stop", on_click=_stop, args=(run,), width=_BUTTON_PX, shortcut=theme.STOP_KEY,
                      help=f"Ends the compilers and kernels of this run. Finished trials are kept. Key: {theme.STOP_KEY}")
        return
    candidates = variant_rows.chosen_candidates(variants, choice.workload, choice) if choice.workload else []
    too_many = len(candidates) > variant_rows.MOST_CANDIDATES
    why = (choice.problems[0] if choice.problems else "Select a variant." if not candidates else
           f"{len(candidates)} candidates are too many for one run; choose fewer values." if too_many else
           f"Builds, checks and times the selected candidates of all directions. Key: {theme.RUN_KEY}")
    later = theme.later()
    with button:
        if theme.button(_run_label([c.direction for c in candidates]), key="run", type="primary", width=_BUTTON_PX,
                        help=theme.markdown(why), disabled=bool(choice.problems) or not candidates or too_many,
                        shortcut=theme.RUN_KEY):
            later |= _started(choice, tuple(candidates))
            st.rerun()


def _run_label(directions: Sequence[str]) -> str:
    """"Run 22 in 4 directions", "Run 9 forward": the switch beside the button chooses what is listed, not what runs."""
    if not directions:
        return "Run"
    different = set(directions)
    return f"Run {len(directions)} " + (f"in {len(different)} directions" if different != {directions[0]} else directions[0])


def _started(choice: Choice, candidates: tuple, resume: Run | None = None) -> dict[str, str]:
    """Start a run; returns what the next drawing sets. It never writes to a recorded session; the run then gets a new one."""
    path = state.session_paths().get(choice.session)
    session = (Session.open(path) if path is not None and not choice.session.startswith("recorded-")
               else Session.create())
    request = resume.request if resume else RunRequest(
        choice.workload, candidates, device=choice.device, modules=choice.modules, effort=choice.effort)
    state.runs().append(state.runner().start(request, session, resume=resume is not None))
    return {"session": session.name, "missing device": ""}  # from here on this device's results are shown


def _stop(run: Run) -> None:
    state.runner().stop(run)


def _chart(variants: list[Variant], choice: Choice, workload: Workload, trials: list[Trial], told: _Told,
           run: Run | None) -> None:
    path = state.session_paths().get(choice.session)
    floors = _floors(workload, told.precisions, choice, gpu_name(choice, trials))
    ticked, absent = variant_rows.ticked(variants, choice), variant_rows.absent(variants, choice)
    if run is not None:
        _live_chart(run, workload, choice, floors)
        return
    note = ""
    if not trials:
        recorded = _recorded_pytorch(workload, tuple(list_sessions()))
        if recorded:
            trials = recorded
            note = (f"PyTorch was recorded on {recorded[0].device.name}. It is never compared with a time "
                    f"of another device.")
    if not trials:  # nothing to draw yet: without this the browser would load the chart's library, which takes a second
        theme.html(results.waiting_table(ticked, absent, floors))
        return
    said = plots.describe(trials) if note else told.described
    _draw_chart(trials, ticked, _floors_for(trials, floors), "not run yet", _known_by(path, trials), absent=absent, said=said)
    module = plots.module_bars(trials, mode=theme.mode())
    if module is not None:
        theme.html(theme.heading("ModelNew against nn.ConvTranspose, with allocation and autograd"))
        theme.chart(module, key="modules-chart", alt="module_ms forward and backward of ModelNew and nn.ConvTranspose")
    if note:
        theme.html(f'<span class="foot">{escape(note)}</span>')


def _floors(workload: Workload, right: dict[str, set[str]], choice: Choice, gpu: str) -> dict[str, float]:
    """Direction -> floor of that GPU in ms, for the fastest of the precisions `right`, so that no bar of a right trial is
    shorter."""
    floors = {}
    for direction in LAUNCHES:
        precisions = right.get(direction) or {choice.floor_precision(workload.dtype)}
        found = [report.floor_of(workload, direction, p, gpu) for p in precisions]
        if any(found):
            floors[direction] = min(limit.ms for limit in found if limit)
    return floors


@st.fragment(run_every=2)
def _live_chart(run: Run, workload: Workload, choice: Choice, floors: dict) -> None:
    trials = shown_trials(run.session, workload, choice)
    asked = {d: list(dict.fromkeys(r.variant for r in run.rows if r.direction == d)) for d in LAUNCHES}
    figure = _bars(_known_by(run.session, trials), trials, asked, {}, _floors_for(trials, floors), "queued", theme.mode())
    theme.chart(figure, key="live-bars", alt=plots.describe(trials))


def _known_by(path: Path | None, trials: list[Trial]) -> tuple:
    """A key that is equal for equal trials: the file and its stamp, the layer, the device, and the number of trials."""
    first = trials[0].place if trials else ()
    return str(path), state.stamp(path) if path else (), first, len(trials)


@st.cache_resource(max_entries=8, show_spinner=False)
def _bars(known_by: tuple, _trials: list[Trial], expected: dict, absent: dict | None, floors: dict, waiting: str,
          mode: str) -> go.Figure:
    return plots.bars(_trials, expected=expected, absent=absent, floors=floors, waiting=waiting, mode=mode)


def _draw_chart(trials: list[Trial], expected: dict, floors: dict, waiting: str, known_by: tuple, *, said: str,
                absent: dict | None = None) -> None:
    figure = _bars(known_by, trials, expected, absent, floors, waiting, theme.mode())
    event = theme.chart(figure, key="bars", alt=said, on_select="rerun", selection_mode="points")
    points = event["selection"]["points"] if event else []
    clicked = points[0].get("customdata", [None])[0] if points else None
    if clicked and clicked != st.session_state.get("clicked bar"):
        st.session_state["clicked bar"] = clicked
        _inspect(st.session_state["session"], clicked)


def _floors_for(trials: list[Trial], floors: dict) -> dict:
    """No floor is shown beside emulated times, because a GPU's limit does not apply to them."""
    return {} if any(report.is_emulated(t) for t in trials) else floors


@st.cache_data(ttl=30, show_spinner=False, hash_funcs={Workload: lambda w: str(w.to_json())})
def _recorded_pytorch(workload: Workload, of: tuple[Path, ...]) -> list[Trial]:
    """PyTorch's times of this workload from the shipped sessions, for comparison. `of`: all sessions; others are read anew."""
    for path in of:
        if path.name.startswith("recorded-"):
            found = [t for t in report.for_workload(state.trials_of(path), workload) if t.kind == "baseline" and t.ok]
            if found:
                return found
    return []


@st.fragment
def _table(trials: list[Trial], choice: Choice, notes: list[str]) -> None:
    """The table. Selecting a row or a filter redraws only the table."""
    path = state.session_paths().get(choice.session)
    selected = results.result_table(trials, _known_by(path, trials))
    address.again(state.FRONT, "results", default=True)
    if notes:
        theme.html("".join(f'<div class="foot">{escape(n)}</div>' for n in notes[:6])
                   + (f'<div class="foot">and {len(notes) - 6} more</div>' if len(notes) > 6 else ""))
    _session_actions(choice, path, selected=selected)


def _session_actions(choice: Choice, path: Path | None, *, selected: list[str]) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        if path is not None:
            if theme.button("Inspect", key="inspect rows", disabled=not selected,
                            help="The first of the selected rows" if selected[1:] else "Select a row in the table"):
                _inspect(choice.session, selected[0])
            if theme.button(f"Compare {len(selected)}" if selected[1:] else "Compare", key="compare rows",
                            help="Compare the selected rows with the first of them" if selected[1:] else
                            "Compare this session with PyTorch or with another session; select two rows to compare these"):
                compare_page.show(choice.session, selected if selected[1:] else [])
                st.switch_page(pages.page("compare"))
            if theme.button("Export ModelNew", key="export rows",
                            help="Write the fastest right candidates of this session into one file"):
                st.session_state["export_session"] = choice.session
                st.session_state["export_rows"] = selected
                st.switch_page(pages.page("export"))
            last = state.latest_run(choice.workload, choice.device, session=choice.session) if choice.workload else None
            if last is not None and last.state in ("stopped", "failed"):
                later = theme.later()
                if theme.button("Resume", key="resume", help="Runs only the missing candidates"):
                    later |= _started(choice, (), last)
                    st.rerun()
            st.download_button("Save", data=lambda: packed(path), file_name=f"{choice.session}.zip",
                               mime="application/zip", on_click="ignore", help="Save the whole session as one zip")
        with st.popover("Reopen"):
            _reopen()
        if path is not None:
            theme.html('<span class="foot">Select a row to inspect it, two or more to compare them.</span>')


def packed(path: Path) -> bytes:
    """The session's zip."""
    with tempfile.TemporaryDirectory() as folder:
        return Session(path).pack(Path(folder) / "session.zip").read_bytes()


def _reopen() -> None:
    file = st.file_uploader("A saved session (.zip)", type="zip", key="reopen")
    if file is None or st.session_state.get("reopened") == file.file_id:
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / (Path(file.name).name or "session.zip")  # messages about it contain its own name
        archive.write_bytes(file.getvalue())
        try:
            session = unpack(archive)
        except BadRequest as error:
            theme.html(f'<div class="wrong" role="alert">{escape(str(error))}</div>')
            return
    st.session_state["reopened"] = file.file_id
    theme.later()["session"] = session.name
    st.rerun()


def _inspect(session: str, trial_id: str) -> None:
    st.session_state["inspect_session"] = session
    st.session_state["inspect_trial"] = trial_id
    st.switch_page(pages.page("inspect"))


def _layer_picture(workload: Workload, *, faded: bool) -> None:
    """Draw the picture; `faded` if the fields are not a valid layer. A changed picture is sent before the rest of the page is
    drawn, because the browser needs a quarter of a second for the whole page."""
    st.session_state.setdefault("explain", address.wants("explain"))
    output, problem = _output_of(st.session_state["explain"], workload)
    before = st.session_state.get("pictured", (workload, output))
    if problem and before[0] != workload:  # it was an output of another layer
        st.session_state["explain"], problem = "", ""
    with st.container(key="faded" if faded else "picture"):
        theme.svg(layer_svg(workload, explain=output), key="layer-picture")
    if (workload, output) != before:
        time.sleep(_SENT_S)
    st.session_state["pictured"] = workload, output
    with st.container(horizontal=True, vertical_alignment="center", key="explain row"):
        with st.container(width=88):
            theme.html('<span class="foot">Explain output</span>')
        text = st.text_input("Explain output", key="explain", persist_state="session", label_visibility="collapsed", width=130,
                             placeholder=f"such as {', '.join(['0'] * workload.layer.dims)}")
        theme.html(f'<div class="wrong" role="alert">{escape(problem)}</div>' if problem else "")
    address.note("explain", text.strip())


def _output_of(text: str, workload: Workload) -> tuple[tuple[int, ...] | None, str]:
    """(the output that a text such as `12, 0` names, or None; what is wrong with the text, or "")."""
    words, sizes = text.replace(",", " ").split(), workload.output_shape[2:]
    if not words:
        return None, ""
    if len(words) != len(sizes) or not all(word.isdecimal() for word in words):
        return None, f"Write {len(sizes)} number{'s' if sizes[1:] else ''}, such as {', '.join(['0'] * len(sizes))}."
    output = tuple(map(int, words))
    if any(at >= size for at, size in zip(output, sizes, strict=True)):
        return None, f"{numbers.index('y', output)} is no output; there are {numbers.shape(sizes)}."
    return output, ""
