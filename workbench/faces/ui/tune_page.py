"""Tune: choose a layer, start the search, see the best time so far, stop at any time. The panels are in tune_panels. The page
reads all results from the session, so a reload, another tab, and a session opened from the list show the same.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

import streamlit as st

from ...core import numbers
from ...core.errors import BadRequest
from ...core.layer import DIRECTIONS, Workload
from ...core.presets import called
from ...core.variants import Variant, discover
from ...drive.reporting import report, tune_points
from ...drive.reporting.tune_points import Tried
from ...drive.sessions.session import Session
from ...drive.tuning import text
from ...drive.tuning.feed import EFFORTS, EVENT, TuneRequest
from ...drive.tuning.seen import tuned_now
from ...drive.tuning.space import Explained
from ...drive.tuning.tune import every_gpu, explain
from . import address, best_box, layer_form, pages, running, state, theme, tune_panels, variant_rows, workbench_page
from .layer_form import Choice
from .running import Tuning

_USUAL = "normal"
_MOST_KEPT = 20  # tunes that have ended
_OWN = ("tune_directions", "tune_effort", "tune_trials", "tune_minutes", "tune_variants", "tune_gpus")
KEYS = (*layer_form.KEYS, *_OWN, *tune_panels.KEYS)  # the keys of the widgets here


def draw() -> None:
    variants = discover()
    _open_tune()
    own_choices = st.sidebar.container()   # above the layer, so that Start and Stop are on the first screen
    choice = layer_form.layer_form(variants, tuning=True)
    path = state.session_paths().get(choice.session)
    own = running.tunings().get(choice.session)
    with own_choices:
        request = _form(choice, variants)
        mine = own if own is not None and choice.workload == own.request.workload else None
        _button(choice, request, mine, path)
    if choice.workload is not None:
        st.session_state["last workload"] = choice.workload
    workload: Workload | None = st.session_state.get("last workload")
    if workload is None:
        theme.html(theme.strip("BAD INPUT", choice.problems[0], "Correct the value on the left, or choose a layer there."))
        return
    active = mine if mine is not None and not mine.done else None
    if active is None:  # otherwise the status line sets the progress in the title
        how = "" if mine is None else "✕ failed, " if mine.problem else "– stopped, " if mine.stopped else "✓ tuned, "
        state.title(f"{how}{called(workload)}, Tune")
    faded = choice.workload is None
    theme.html(workbench_page.layer_line(workload, choice, workbench_page.gpu_name(choice), faded=faded), faded=faded)
    for other in running.tunes_under_way():
        if other is not active:
            _elsewhere(other)
    for run in state.active_runs():
        with st.container(key=f"tune elsewhere {run.run_id}"):
            running.live_line(run)
    if state.dead_link():
        return
    asked = tune_panels.asked_of(path, workload)
    if active is not None:
        st.session_state["tune followed"] = choice.session
        live_strip(active)
        tune_panels.panels(path, workload, active.request, live=True)
        return
    if mine is not None and st.session_state.pop("tune followed", "") == choice.session:
        st.toast(theme.markdown(f"The tune has ended: {mine.result.message if mine.result else mine.problem}."))
    if asked is None:
        _ready(choice, request, mine)
        return
    if mine is None and _elsewhere_now(path, workload):
        _follow(path, workload, asked)
        tune_panels.panels(path, workload, asked, live=True)
        return
    found = [tune_panels.tried_of(path, workload, d) for d in asked.directions]
    theme.html(_ended(path, found, workload, mine))
    _to_export(path, found)
    tune_panels.panels(path, workload, asked, live=False)


def show(tuning: Tuning) -> None:
    """Fill the form with that tune; used by callbacks of buttons."""
    request = tuning.request
    layer_form.show(request.workload, request.device, tuning.session.name)
    _fill(request)
    st.session_state["tune session before"] = tuning.session.name


@st.fragment(run_every=1)
def live_strip(tuning: Tuning) -> None:
    if tuning.done:
        st.rerun()
    most = _most(tuning)
    state.title(f"● tuning {_judged(tuning)}{f'/{most}' if most else ''}, {called(tuning.request.workload)}")
    theme.html(running_strip(tuning))


def _elsewhere_now(path: Path, workload: Workload) -> bool:
    """Whether another process tunes this layer in this session."""
    return not tune_panels.ended(path, workload)[0] and tuned_now(path)


@st.fragment(run_every=1)
def _follow(path: Path, workload: Workload, asked: TuneRequest) -> None:
    """The status line of a tune in another process, such as the command line."""
    if not _elsewhere_now(path, workload):
        st.rerun()
    found = [tune_panels.tried_of(path, workload, d) for d in asked.directions]
    best = "; ".join(tune_points.sentence(one) for one in found if one.best)
    theme.html(theme.strip("RUNNING", f"Best so far: {best}" if best else f"{called(workload)}: no right candidate yet",
                           "Another process tunes in this session. Stop it there, with Ctrl-C.",
                           badge_text=f"RUNNING {numbers.count(sum(len(one.points) for one in found))}",
                           more_badges=[report.EMULATED] if any(one.emulated for one in found) else []))


def running_strip(tuning: Tuning) -> str:
    """The status line of a tune: RUNNING 37 of 400, the best so far, the current step, the remaining time, and the next step.
    """
    request, run, judged = tuning.request, tuning.run, _judged(tuning)
    found = [tune_panels.tried_of(tuning.session.path, request.workload, d) for d in request.directions]
    best = "; ".join(tune_points.sentence(one) for one in found if one.best)
    happens = (run.message if run is not None else tuning.text).removesuffix(".")
    word = "WAITING" if run is not None and run.state == "waiting" else "RUNNING"
    since = [f"{len(one.points) - one.steps[-1].number} {one.direction} trials without a better one"
             for one in found if one.steps]
    parts = [happens[:1].upper() + happens[1:], *since, f"{tuning.elapsed_s:.0f} s since start", _left(tuning, judged),
             "closing the browser does not stop it"]
    of = f" of {numbers.count(most)}" if (most := _most(tuning)) else ""
    return theme.strip(word, f"Best so far: {best}" if best else f"{called(request.workload)}: no right candidate yet",
                       " · ".join(filter(None, parts)), badge_text=f"{word} {numbers.count(judged)}{of}",
                       more_badges=[report.EMULATED] if any(one.emulated for one in found) else [])


def _left(tuning: Tuning, judged: int) -> str:
    """"about 40 s left, the finals included"; "" if it is not known."""
    request, run = tuning.request, tuning.run
    if tuning.finish.is_set():
        return "the search has ended; in the finals the best are timed again alternately"
    if request.seconds is not None:
        left = request.seconds - tuning.used_s - tuning.elapsed_s
        return (f"about {left:.0f} s left, including the finals" if left > 0 else
                "the finals: the best are timed again alternately")
    own, most = run.done_rows if run is not None else 0, _most(tuning)
    if own and judged < most:
        return f"about {_span(tuning.elapsed_s / own * (most - judged))} left, then the finals"
    return "then the finals: the best are timed again alternately" if judged else ""


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 300 else f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _most(tuning: Tuning) -> int:
    """How many candidates the tune judges at most, if that is its limit: the given number, or all of the space. Otherwise 0."""
    request = tuning.request
    if request.seconds is not None:
        return request.trials or 0
    return min(request.trials or tuning.candidates, tuning.candidates or request.trials or 0)


def _judged(tuning: Tuning) -> int:
    path, work = tuning.session.path, tuning.request.workload
    return sum(len(tune_panels.tried_of(path, work, d).points) for d in tuning.request.directions)


def _form(choice: Choice, variants: list[Variant]) -> TuneRequest | None:
    """What to tune and for how long; None while something is wrong with it."""
    asked = [d for d in address.wants("directions").split(",") if d in DIRECTIONS]
    st.session_state.setdefault("tune_directions", asked or list(DIRECTIONS))
    directions = st.pills("Directions", DIRECTIONS, selection_mode="multi", key="tune_directions", persist_state="session")
    state.seed("tune_effort", EFFORTS, _USUAL, name="effort")
    effort = st.segmented_control("Effort", list(EFFORTS), key="tune_effort", required=True, width="stretch",
                                  persist_state="session",
                                  help="quick: about a minute. normal: about ten minutes. full: until every candidate has been "
                                       "tried, hours on a large space.") or _USUAL
    for name in ("trials", "minutes"):
        st.session_state.setdefault(f"tune_{name}", address.wants(name))
    cells = st.columns(2, gap="small")
    words = [cell.text_input(name, key=f"tune_{name}", persist_state="session", placeholder="by effort",
                             help=f"{meaning} Replaces the limit of the effort.") for cell, name, meaning in
             zip(cells, ("trials", "minutes"), ("Candidates, over all directions.", "Limit in minutes."), strict=True)]
    names = list(dict.fromkeys(v.name for v in variants if v.direction in (directions or DIRECTIONS)))
    linked = [v for v in address.wants("variants").split(",") if v in names]
    st.session_state["tune_variants"] = [v for v in st.session_state.get("tune_variants", linked) if v in names]
    chosen = st.multiselect("Variants", names, key="tune_variants", persist_state="session", placeholder="all that serve the "
                                                                                                         "layer",
                            help="Search only these. General variants (their names begin with naive) are searched on a GPU "
                                 "only if they are named here.")
    alone = True
    if choice.device != state.CPU and len(every_gpu(choice.device)) > 1:
        st.session_state.setdefault("tune_gpus", address.wants("gpus") != "one")
        alone = not st.checkbox("on every GPU of this kind", key="tune_gpus", persist_state="session",
                                help="One measuring process for each free GPU of the same name.")
        address.note("gpus", "one" if alone else "")
    for name, shown, usual in (("directions", ",".join(directions), ",".join(DIRECTIONS)), ("effort", effort, _USUAL),
                               ("trials", words[0], ""), ("minutes", words[1], ""), ("variants", ",".join(chosen), "")):
        address.note(name, shown, usual)
    try:
        limits = [_number(word, name) for word, name in zip(words, ("trials", "minutes"), strict=True)]
        if choice.workload is None:
            return None
        if not directions:
            raise BadRequest("No direction is chosen; choose one or more.", field="directions")
        return TuneRequest(choice.workload, tuple(d for d in DIRECTIONS if d in directions), choice.precision, choice.device,
                           effort, int(limits[0]) if limits[0] else None, limits[1], tuple(chosen))
    except BadRequest as error:
        st.html(f'<div class="kw wrong" role="alert">{escape(str(error))}</div>')
        return None


def _number(word: str, name: str) -> float | None:
    if not word.strip():
        return None
    try:
        value = float(word) if name == "minutes" else int(word)
    except ValueError:
        raise BadRequest(f"{name} {word.strip()!r} cannot be read; give a number, or leave it empty.", field=name) from None
    if not value > 0:
        raise BadRequest(f"{name} is {word.strip()}; give a number above 0.", field=name)
    return value


def _button(choice: Choice, request: TuneRequest | None, mine: Tuning | None, path: Path | None) -> None:
    if mine is not None and not mine.done:
        keep, stop = st.columns((3, 2), gap="small")
        keep.button("Finish and keep", key="tune_finish", width="stretch", on_click=mine.finish_now, type="primary",
                    disabled=mine.finish.is_set(),
                    help="Ends the search now. The best so far are timed again, and the winner is kept.")
        stop.button("Stop", key="tune_stop", width="stretch", on_click=mine.stop, shortcut=theme.STOP_KEY,
                    help="Ends the compilers and kernels of this tune at once, without finals. Finished trials are kept; "
                         f"Resume continues. Key: {theme.STOP_KEY}")
        return
    goes_on = path is not None and not _recorded(choice) and choice.workload is not None \
        and tune_panels.asked_of(path, choice.workload) is not None
    does = ("Continues the tune of this session, within the limits above. Nothing is judged twice." if goes_on else
            "Searches for the fastest right kernel of each direction.")
    later, all_gpus = theme.later(), bool(st.session_state.get("tune_gpus"))
    if theme.button("Resume" if goes_on else "Start", key="tune_start", type="primary", width="stretch", shortcut=theme.RUN_KEY,
                    disabled=request is None or bool(choice.problems),
                    help=theme.markdown(choice.problems[0] if choice.problems else f"{does} Key: {theme.RUN_KEY}")) \
            and request is not None:
        if session := _begin(choice, request, all_gpus=all_gpus):
            later |= {"session": session, "tune session before": session}
        st.rerun()


def _begin(choice: Choice, request: TuneRequest, *, all_gpus: bool) -> str:
    """Start a tune after a click on the button; returns the name of its session, "" if another tab was faster. It never writes
    to a recorded session; the tune then gets a new one."""
    path = state.session_paths().get(choice.session)
    session = Session.open(path) if path is not None and not _recorded(choice) else Session.create()
    tunings = running.tunings()
    if (there := tunings.get(session.name)) is not None and not there.done:
        return ""
    places = every_gpu(request.device) if all_gpus else ()
    tunings[session.name] = Tuning(request, session, state.runner(), places).start()
    for old in [name for name, one in tunings.items() if one.done][:-_MOST_KEPT]:
        del tunings[old]
    return session.name


def _recorded(choice: Choice) -> bool:
    return choice.session.startswith("recorded-")


def _open_tune() -> None:
    """If another session is chosen from the list, or if a link names only a session, show its tune in the form."""
    now = st.session_state.get("session") or address.wants("session")
    if request := _chosen_tune(now):
        devices = list(state.device_names())
        device = request.device if request.device in devices else st.session_state.get("device", devices[0])
        layer_form.show(request.workload, device, now)
        _fill(request)
    st.session_state["tune session before"] = now  # set last, so that after an interruption the next drawing fills the form


def _chosen_tune(now: str) -> TuneRequest | None:
    """The last tune of the session that was just chosen. None if this session already has a tune of the form's layer."""
    before = st.session_state.get("tune session before")
    if not now or now in (before, state.NEW) or before is None and address.wants("preset"):
        return None
    path = state.session_paths().get(now)
    event = next((e for e in reversed(tune_panels.events_of(path)) if e.get("event") == EVENT), None) if path else None
    request = tune_panels.read_request(event) if event else None
    last = st.session_state.get("last workload")
    return None if last is not None and tune_panels.asked_of(path, last) is not None else request


def _fill(request: TuneRequest) -> None:
    """Write the limits and choices of a tune into the form."""
    st.session_state.update({
        "tune_directions": list(request.directions), "tune_effort": request.effort,
        "tune_trials": str(request.trials or ""), "tune_minutes": f"{request.minutes:g}" if request.minutes else "",
        "tune_variants": list(request.variants)})
    if request.precision:
        st.session_state["precision"] = request.precision


def _elsewhere(tuning: Tuning) -> None:
    with st.container(horizontal=True, vertical_alignment="center", key=f"elsewhere tune {tuning.session.name}"):
        running.live_tune(tuning)
        st.button("Go to it", key=f"go tune {tuning.session.name}", on_click=show, args=(tuning,))
        st.button("Stop it", key=f"stop tune {tuning.session.name}", on_click=tuning.stop)


def _ready(choice: Choice, request: TuneRequest | None, mine: Tuning | None) -> None:
    """The display without a tune of this layer in this session: what Start will do, and the space that would be searched."""
    if mine is not None and mine.problem:
        theme.html(theme.strip("FAILED", mine.problem, "Nothing was judged."))
    elif choice.problems:
        theme.html(theme.strip("BAD INPUT", choice.problems[0], "Start is disabled until this is fixed."))
    else:
        theme.html(theme.strip("READY", "Nothing tuned yet for this layer", _promise(request, choice)))
    if request is not None:
        known = best_box.entries_of(request.workload, choice.precision, variant_rows.arch(choice.device))
        lines = [best_box.line(entry) for direction, entry in known.items() if direction in request.directions]
        theme.html(theme.heading("Best known, where the search begins") + "".join(f"<div>{escape(one)}</div>" for one in lines)
                   if lines else "")
    if request is not None:
        st.session_state.setdefault("tune_explain", address.wants("space") == "yes")
        explain = st.toggle("Show what would be searched", key="tune_explain", persist_state="session")
        address.note("space", "yes" if explain else "")
        if explain:
            _space(request)


def _promise(request: TuneRequest | None, choice: Choice) -> str:
    if request is None:
        return "Correct the value on the left."
    seconds = request.seconds or 0.0
    limit = (f"{numbers.count(request.trials)} candidates" if request.trials else "every candidate of the search space"
             if not seconds else f"about {seconds / 60:g} minutes" if seconds > 90 else f"about {seconds:.0f} seconds")
    emulated = " The kernels are emulated: their times do not predict a GPU." if choice.device == state.CPU else ""
    linked = f" This machine has no {choice.linked}; Start uses {choice.device}." if choice.linked else ""
    return f"Start searches {', '.join(request.directions)} on {choice.device}: {limit}.{emulated}{linked}"


def _space(request: TuneRequest) -> None:
    """The search space as a subtraction: all configs, minus those that each constraint excludes."""
    with st.spinner("Counts the configs", show_time=True):
        told = _explained(str(request.to_json()), request)
    for direction, space in told.items():
        if not space.points:
            theme.html(theme.heading(direction) + f'<span class="foot">Nothing can be tried. '
                       f"{escape(text.explained({direction: space}))}</span>")
            continue
        theme.html(theme.heading(text.explained({direction: space}, short=True).rstrip(".")) + theme.table(
            ("variant", "configs", "removed by constraints", "legal", "can be tried", "values that no legal config has"),
            [(f"<span class='mono nw'>{escape(f.name)} {escape(f.precision)}</span>", numbers.count(f.size),
              f"<span class=mute>{escape('; '.join(f'{r.why}: {numbers.count(r.configs)}' for r in f.removed) or '–')}</span>",
              ("" if f.whole else "about ") + numbers.count(f.legal), numbers.count(f.points),
              f"<span class=mute>{escape(text.gaps(f) or '–')}</span>") for f in space.families], right=(1, 3, 4)))
        if space.left_out:
            theme.html(theme.table(("left out", "why"), [(f"<span class='mono nw'>{escape(name)}</span>", escape(why))
                                                         for name, why in space.left_out.items()]))


@st.cache_resource(max_entries=8, show_spinner=False)
def _explained(known_by: str, _request: TuneRequest) -> dict[str, Explained]:
    return explain(_request, state.runner())


def _ended(path: Path | None, found: list[Tried], workload: Workload, mine: Tuning | None) -> str:
    """The status line of a tune that has ended: its result."""
    how, message = tune_panels.ended(path, workload)
    judged = sum(len(one.points) for one in found)
    marks = [report.EMULATED] if any(one.emulated for one in found) else []
    if path is not None and path.name.startswith("recorded-"):
        marks.append(state.recorded_on(path.stem))
    count = f"{numbers.count(judged)} candidate{' was' if judged == 1 else 's were'} judged."
    right = [one for one in found if one.best]
    sentence = "; ".join(tune_points.sentence(one) for one in found)
    not_right = "; ".join(f"{one.direction}: {one.reasons}" for one in found if one.reasons)
    evidence = [count, f"Not right: {not_right}." if not_right else ""]
    if mine is not None and mine.problem:
        return theme.strip("FAILED", mine.problem, " ".join(filter(None, evidence)), more_badges=marks)
    if how == "run_failed":
        return theme.strip("FAILED", message[:1].upper() + message[1:], " ".join(filter(None, evidence)), more_badges=marks)
    if how != "run_finished":
        word = "Stopped" if how == "run_stopped" else "Cut short"
        return theme.strip("STOPPED", f"{word}. Best so far: {sentence}" if right else f"{word} before a candidate was right",
                           " ".join(filter(None, [*evidence, "Resume continues; nothing is judged twice."])), more_badges=marks)
    if not right:
        return theme.strip("FAILED", f"No candidate is right: {sentence}", " ".join(filter(None, evidence)),
                           badge_text="NOTHING RIGHT", more_badges=marks)
    kept = tune_panels.kept(path, found)
    won = [f"{one.direction}: {one.best.family} {one.best.config}, found at trial {one.best.number} with "
           f"{numbers.time(one.best.ms)}" + (", then judged again on new inputs and odd sizes" if one.winner else "")
           for one in right if one.best]
    told = [*(f"{w}." for w in won), *tune_panels.beside_winner(path, found), *kept, *evidence]
    return theme.strip("OK", sentence, " ".join(filter(None, told)), badge_text="TUNED", more_badges=marks)


def _to_export(path: Path | None, found: list[Tried]) -> None:
    if path is None or not any(one.best for one in found):
        return
    if theme.button("Export ModelNew", key="tune_export", help="Write the best of each direction into one file"):
        st.session_state["export_session"] = Session(path).name
        st.session_state["export_rows"] = [one.final.trial_id for one in found if one.final is not None]
        st.switch_page(pages.page("export"))
