"""Inspect's view of a profile: the sentence, the metrics with their meaning on hover, the button that counts, and beside it
another trial's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from html import escape

import streamlit as st

from ...core import sass
from ...core.errors import BadRequest
from ...core.profile import METRICS
from ...core.trial import Trial
from ...drive.machine.daemon_threads import DaemonThreads
from ...drive.sessions import profiles
from ...drive.sessions.profiles import Reading
from ...drive.sessions.session import Session
from . import machine_code_view, state, theme

_MOST_KEPT = 12
_FOLLOWED = "profile followed"  # the profile whose progress this tab shows
_BUTTON_HELP = ("Runs this candidate once more under Nsight Compute (ncu), in a process of its own, and keeps what it counts "
                "in the session. It takes up to a minute")


def profile(trial: Trial, session: Session) -> None:
    """Draw it."""
    found = [one for one in (_shown(trial, session),) if one]
    if other := machine_code_view.choose_other(trial, session, key="profile", label="Beside"):
        found += [one for one in (_shown(*other),) if one]
    if not found:
        return
    if rows := profiles.table(found):
        cells = [(f"<span{theme.hint(meaning)}>{escape(label)}</span>",
                  *(f"<span class=nw>{escape(value)}</span>" for value in values)) for label, meaning, values in rows]
        theme.html(theme.heading("The main kernel") + theme.table(("", *(_name(one.trial) for one in found)), cells,
                                                                  right=tuple(range(1, 1 + len(found)))))
    for one in found:
        _more(one)
    _differences(found)


def _shown(trial: Trial, session: Session) -> Reading | None:
    """The sentence of a trial, with the button where its GPU is here. None while it is being counted or compiled."""
    futures = _futures()
    key = f"{session.path} {trial.trial_id}"
    device, why_not = profiles.place_of(trial)
    if key in futures and not futures[key][1].done():
        st.session_state[_FOLLOWED] = key
        _live(*futures[key])
        return None
    counted = _counted(key, trial, session)
    if st.session_state.get(_FOLLOWED) == key:
        del st.session_state[_FOLLOWED]
        state.title(f"{'✓ profiled' if counted and counted.profile else '✕ not profiled'}, {trial.name}, Inspect")
    kept = profiles.kept(trial, session)
    if device and theme.button("Profile again" if kept else "Profile", key=f"profile {trial.trial_id}", help=_BUTTON_HELP):
        for old in list(futures)[:-_MOST_KEPT]:
            del futures[old]
        futures[key] = (time.time(), _counter().submit(profiles.counted, trial, session, state.runner(), device))
        st.rerun()
    note = counted.note if counted and counted.profile else counted.why_not if counted else ""
    profile = kept or (counted.profile if counted else None)
    if profile:
        return _told(Reading(trial, session, profile, note=note))
    if device and counted is None:
        theme.html(f'<div class="foot">{escape(_name(trial))} has no profile yet. The button has ncu count on {escape(device)}.'
                   '</div>')
        return None
    static = machine_code_view.answered(f"static {key}", _static, trial, session)
    return _told(Reading(trial, session, None, why_not or note, static)) if static else None


def _told(one: Reading) -> Reading:
    when = f" Counted on {one.trial.device.name}, {one.profile.at[:10]}, ncu {one.profile.ncu}." if one.profile else ""
    theme.html(f"<b>{escape(one.sentence)}</b> <span class=mute>{escape(_name(one.trial))}.{escape(when)}</span>"
               + (f'<div class="foot">{escape(one.note)}</div>' if one.note else ""))
    return one


def _static(trial: Trial, session: Session, _asm: object) -> profiles.StaticReading:
    return profiles.static(trial, session, state.runner())


def _counted(key: str, trial: Trial, session: Session) -> Reading | None:
    """What the button has brought, once it has."""
    if key not in _futures():
        return None
    try:
        found: Reading = _futures()[key][1].result()
    except (BadRequest, RuntimeError, OSError) as error:
        return Reading(trial, session, None, str(error))
    return found


def _more(one: Reading) -> None:
    """The other kernels of the launch; the loops of a static reading."""
    if one.kernels[1:]:
        head, *cells = profiles.other_kernels(one)
        theme.html(theme.heading(f"Other kernels of {_name(one.trial)}") + theme.table(
            head, [[escape(cell) for cell in row] for row in cells], right=(1, 2, 3, 4, 5)))
    if one.static and one.static.kernel and (loops := sass.loop_rows(one.static.kernel)):
        theme.html(theme.heading(f"Loops of {_name(one.trial)}") + theme.table(
            ("loop", "depth", "source", "instructions", "their kinds"),
            [[escape(cell).replace("/", "/<wbr>") for cell in row] for row in loops], right=(0, 1, 3)))


def _differences(found: Sequence[Reading]) -> None:
    kernels = [one.static.kernel for one in found if one.static and one.static.kernel]
    if len(kernels) == 2 and (rows := sass.differences(*kernels)):
        theme.html(theme.heading("Where their machine code differs") + theme.table(
            ("loop", "what", "here", "there"), [tuple(escape(str(cell)) for cell in row) for row in rows], right=(2, 3)))


def _name(trial: Trial) -> str:
    return " ".join([trial.name, trial.precision, *(f"{k}={v}" for k, v in trial.config.items())])


@st.fragment(run_every=0.5)
def _live(started: float, future: Future) -> None:
    if future.done():
        st.rerun()
    state.title("● profiling, Inspect")
    theme.html(f'{theme.badge("RUNNING")} ncu is counting {len(METRICS)} metrics, since {time.time() - started:.0f} s. It is '
               f'stopped after {profiles.LIMIT_S:.0f} s.')


@st.cache_resource(show_spinner=False)
def _futures() -> dict[str, tuple[float, Future]]:
    """(session, trial) -> (start, future result). They are kept in the server, so that a reload finds them."""
    return {}


@st.cache_resource(show_spinner=False)
def _counter() -> DaemonThreads:
    return DaemonThreads(1)
