"""Shared state of the pages: the runner, the sessions, the doctor's findings, and the selections. The runner is kept in the
server, not in a browser's session, so that runs are still there after a reload or after a tab was closed.
"""

from __future__ import annotations

import atexit
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TypeVar

import streamlit as st

from ...core.candidate import EMULATED_SM
from ...core.env import gpus
from ...core.errors import BadRequest
from ...core.layer import Workload
from ...core.presets import called
from ...core.trial import Trial
from ...drive.machine import doctor
from ...drive.machine.background import Background
from ...drive.running.request import Run
from ...drive.running.runner import Runner
from ...drive.sessions.files import TRIALS, name_of, stamp
from ...drive.sessions.session import Session, SessionFull, list_sessions
from . import address, theme

Work = TypeVar("Work", bound=Background)
_WARM_AFTER_S = 3.0
_MOST_ENDED = 20   # checks, and patches, whose reports are kept
_MOST_OFFERED = 4  # the most alternatives that are listed if a link names something that does not exist
_BY_TIME = re.compile(r"(\d{8}-\d{6})(.*)")  # the form of the names of unnamed sessions; the time is in UTC
_MONTHS = ("", "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
NEW = "new session"
CPU = "cpu"
FRONT = "workbench"  # the page at the bare address


@st.cache_resource(on_release=lambda runner: runner.close(), show_spinner=False)
def runner() -> Runner:
    """The runner of the server, which is closed with it. Its workers import torch in the background; this process never imports
    torch."""
    made = Runner()
    warm = threading.Timer(_WARM_AFTER_S, made.warm)  # the page is drawn first
    warm.daemon = True
    warm.start()
    atexit.register(made.close)
    return made


@st.cache_data(ttl=120, show_spinner=False)
def findings() -> list[doctor.Finding]:
    return doctor.examine()


@st.cache_data(ttl=60, show_spinner=False)
def device_names() -> dict[str, str]:
    """Device -> its name on the page, GPUs first. Only devices on which kernels can run now."""
    works = doctor.devices(findings())
    return {**{name: gpu.name for gpu in gpus() if (name := f"cuda:{gpu.index}") in works}, CPU: "emulated"}


def device_label(device: str) -> str:
    return f"{device} · {device_names().get(device, '')}"


def sm(device: str) -> int:
    """The sm number of that GPU, such as 90; on the emulator, that of the emulated GPU."""
    return _sms().get(device, EMULATED_SM)


@st.cache_data(ttl=60, show_spinner=False)
def _sms() -> dict[str, int]:
    return {f"cuda:{gpu.index}": gpu.sm for gpu in gpus()}


def session_paths() -> dict[str, Path]:
    return {name_of(path): path for path in list_sessions()}


def session_label(name: str) -> str:
    """The label of a session: `h200-kb74 · recorded`; `22 Nov 23:13`, in local time, for a session named by its time;
    otherwise its name."""
    if (named := _BY_TIME.fullmatch(name)) and (at := _time_of(named[1])):
        return f"{at.day:02d} {_MONTHS[at.month]} {at:%H:%M}{named[2]}"
    return f"{name.removeprefix('recorded-')} · recorded" if name.startswith("recorded-") else name


def _time_of(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y%m%d-%H%M%S").replace(tzinfo=UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def distinct(labels: dict[str, str]) -> dict[str, str]:
    """The labels of a list, by id. A label that occurs twice is extended by its id, because the browser sends back only the
    label."""
    there = Counter(labels.values())
    return {i: label if there[label] == 1 else f"{label} · {i[:8]}" for i, label in labels.items()}


def session_labels(names: Sequence[str]) -> dict[str, str]:
    """Name -> label of a session in a list. The label of a session named by its time also has the layer."""
    labels = {name: session_label(name) + _about(name) for name in names}
    there = Counter(labels.values())  # two sessions of one minute; the browser sends back only the label
    return {name: label if there[label] == 1 else f"{label} · {name}" for name, label in labels.items()}


def _about(name: str) -> str:
    """" · KernelBench #74 (small) +1": the layers of an unnamed session."""
    if not _BY_TIME.fullmatch(name):
        return ""
    from .running import tunings
    begun = [r.request.workload for r in runs() if r.session.name == name]
    begun += [tunings()[name].request.workload] if name in tunings() else []
    layers = list(dict.fromkeys(called(w) for w in (*(t.workload for t in trials_of(session_paths()[name])), *begun)))
    return f" · {layers[0]}{f' +{len(layers) - 1}' if layers[1:] else ''}" if layers else " · empty"


def recorded_on(name: str) -> str:
    """RECORDED on the GPU that the session's trials name."""
    path = session_paths().get(name)
    devices = dict.fromkeys(t.device.name for t in trials_of(path) if not t.forked_from) if path else {}
    return f"RECORDED on {', '.join(d for d in devices if d)}" if any(devices) else "RECORDED"


def trials_of(path: Path | None) -> list[Trial]:
    """The session's trials, read again only when its file has changed."""
    if path is None:
        return []
    return list(_read(str(path), stamp(path))[0])


def left_out(path: Path | None) -> str:
    """ "1 of 412 lines could not be read and was left out", or ""."""
    if path is None:
        return ""
    trials, unreadable = _read(str(path), stamp(path))
    if not unreadable:
        return ""
    count, total = len(unreadable), len(unreadable) + len(trials)
    return (f"{count} of {total} lines could not be read and {'was' if count == 1 else 'were'} left out: "
            f"{unreadable[0]}")


def choose_session(label: str, *, key: str, new: bool = False, default: str | None = None) -> str:
    """A select box for sessions, with `new session` first if `new`. The choice is in the address. "" if there is no session, or
    if a link names one that does not exist; the page then reports it."""
    names = list(session_paths())
    options = [NEW, *names] if new else names
    shared = "session" if key.endswith("_session") else key  # a link to the Workbench's session works on every page
    usual = default if default in options else NEW if new else _with_candidates(names)
    lost = address.seek(key, options, usual, asked=address.wants(key) or address.wants(shared))
    if lost:
        not_here("session", lost, [session_label(n) for n in names])
    address.note(key, st.session_state[key] or lost, NEW)
    if not options:
        st.selectbox(label, ["none yet"], disabled=True, key=f"{key}-none")
        return ""
    labels = session_labels(names)
    return st.selectbox(label, options, key=key, format_func=lambda n: n if n == NEW else labels[n],
                        persist_state="session", placeholder="Choose a session") or ""


def _with_candidates(names: Sequence[str]) -> str | None:
    """The first session with a candidate. Sessions with only PyTorch's times have little to show."""
    paths = session_paths()
    there = (name for name in names if any(t.kind == "candidate" for t in trials_of(paths[name])))
    return next(there, names[0] if names else None)


def not_here(what: str, asked: str, there: Sequence[str]) -> None:
    """Called if the address names a session, a trial or a device that does not exist: the page reports it at its top."""
    some = "; ".join(there[:_MOST_OFFERED]) + (f"; and {len(there) - _MOST_OFFERED} more" if len(there) > _MOST_OFFERED else "")
    offered = f"Choose one on the left: {some}." if there else f"There is no {what} yet."
    _missing().append((f"The {what} {asked[:60]!r} in the link was not found.", offered, True))


def not_known(what: str, asked: str, shown: str) -> None:
    """The same as `not_here` for a choice with a usual value, which the page shows instead."""
    _missing().append((f"The {what} {asked[:60]!r} in the link is not known.", shown, False))


def seed(key: str, options: Iterable[str], usual: str, *, name: str = "", what: str = "", shown: str = "") -> None:
    """The same as `address.seed`, but a value of the link that is not one of the options is reported. `what`: the word for the
    value (default: the name of the parameter). `shown`: the page's word for the usual value."""
    if lost := address.seed(key, options, usual, name=name):
        not_known(what or (name or key).replace("_", " "), lost, f"The page shows {shown or usual}.")


def some(label: str, values: Iterable[str], *, key: str, name: str, alone: bool = False) -> list[str]:
    """The choice of a filter: some of these values; nothing chosen means all. It is not drawn if there is one value, unless
    `alone`. `name`: that in the address. A value in the link that is not among them is reported."""
    there = list(dict.fromkeys(values))
    linked = [value for value in address.wants_all(name) if value]
    for gone in (value for value in linked if value not in there):
        not_known(name.removeprefix("only_"), gone, "The page shows the others.")
    st.session_state[key] = [n for n in st.session_state.get(key, linked) if n in there]
    chosen: list[str] = st.session_state[key]
    if alone or there[1:]:
        chosen = st.multiselect(label, there, key=key, persist_state="session", placeholder="all")
    address.note(name, chosen)
    return chosen


def kept(there: dict[str, Work], begun: Work) -> str:
    """Keep a check or a patch that was begun, beside the others of this server; of the ended ones only the latest stay.
    Returns its name."""
    name = secrets.token_hex(4)
    there[name] = begun
    for old in [n for n, one in there.items() if one.done and n != name][:-_MOST_ENDED]:
        del there[old]
    return name


@st.cache_resource(show_spinner=False)
def runs() -> list[Run]:
    """The runs that were started on the Workbench since the server began, from all tabs, the oldest first. The self-test uses
    the same runner, but its runs are not listed."""
    return []


def latest_run(workload: Workload, device: str, *, session: str | None = None) -> Run | None:
    """The newest run of that workload on that device; if a session is given, only of that session."""
    return next((r for r in reversed(runs()) if r.request.workload == workload
                 and r.request.device == device and session in (None, r.session.name)), None)


def active_runs() -> list[Run]:
    return [r for r in runs() if r.active]


def title(words: str) -> None:
    """The title of the browser's tab: the layer or the page, and whether something runs."""
    st.set_page_config(page_title=f"{words} · Kernel Workbench")


def guarded(draw: Callable[[], None], name: str = "", own: Sequence[str] = ()) -> Callable[[], None]:
    """Draws one page. A bad request or a defect of the workbench becomes a status line, not a red box. `own`: the keys of its
    widgets, whose values are in its address."""
    @wraps(draw)
    def page() -> None:
        theme.take_over()
        _missing().clear()
        if name:
            address.begin(name, own)
            title(name.capitalize())
        links = st.empty()
        try:
            draw()
        except (BadRequest, SessionFull) as error:
            theme.html(theme.strip("BAD INPUT", str(error), "The other pages still work."))
        except Exception as error:  # defects are caught only here, because the page must say what still works
            theme.html(theme.strip("FAILED", f"This page could not be drawn: {type(error).__name__}.",
                                   "Runs continue, nothing recorded is lost, and the other pages still work."))
            with st.expander("Details for a bug report"):
                st.code("".join(_trace(error)), language=None)
        if _missing():
            with links:
                theme.html("<div style='height:8px'></div>".join(
                    theme.strip("NOT FOUND", sentence, offered) for sentence, offered, _ in _missing()))
        if name:
            address.finish(name, default=name == FRONT)
        theme.whole()
    return page


def dead_link() -> bool:
    """Whether the link of this drawing names something that does not exist and that nothing replaces."""
    return any(nothing for _, _, nothing in _missing())


def _missing() -> list[tuple[str, str, bool]]:
    """(sentence, alternatives, whether nothing replaces it) of each missing thing that the link names."""
    return st.session_state.setdefault("dead links", [])


def _trace(error: Exception) -> list[str]:
    import traceback
    return traceback.format_exception(error)


class _Known:
    """The trials of a session's file. When the file grows, only the added lines are read."""

    def __init__(self, path: str) -> None:
        self._session = Session(Path(path))
        self._lock = threading.Lock()
        self._stamp = (0, 0)
        self._trials: list[Trial] = []

    def read(self, stamp: tuple[int, int]) -> tuple[list[Trial], list[str]]:
        with self._lock:
            if stamp != self._stamp and not self._added(stamp):
                self._trials = self._session.trials()
            self._stamp = stamp
            return self._trials, self._session.unreadable

    def _added(self, stamp: tuple[int, int]) -> bool:
        """Reads the added lines. False if other parts of the file changed or a line is incomplete or unreadable."""
        before, size = self._stamp[1], stamp[1]
        if self._session.path.suffix == ".zip" or not 0 < before < size or self._session.unreadable:
            return False
        with (self._session.path / TRIALS).open("rb") as file:
            file.seek(before - 1)
            data = file.read(size - before + 1)
        if not (data.startswith(b"\n") and data.endswith(b"\n")):
            return False
        try:
            self._trials = [*self._trials, *(self._session.read_trial(line) for line in data.decode().splitlines() if line)]
        except ValueError:
            return False
        return True


@st.cache_resource(max_entries=32, show_spinner=False)  # not copied: trials do not change, and copying 10 000 takes a second
def _known(path: str) -> _Known:
    return _Known(path)


def _read(path: str, stamp: tuple[int, int]) -> tuple[list[Trial], list[str]]:
    return _known(path).read(stamp)
