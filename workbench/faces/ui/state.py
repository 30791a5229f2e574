"""What the pages share besides looks: the one runner, the sessions, the doctor's findings, and who is selected.

The runner lives in the server, not in a browser's session: a reload or a closed tab finds its runs again.
"""

from __future__ import annotations

import atexit
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path

import streamlit as st

from ...core.candidate import EMULATED_SM
from ...core.env import gpus
from ...core.errors import BadRequest
from ...core.layer import Workload
from ...core.presets import called
from ...core.trial import Trial
from ...drive.machine import doctor
from ...drive.running.request import Run
from ...drive.running.runner import Runner
from ...drive.sessions.files import TRIALS, name_of, stamp
from ...drive.sessions.session import Session, SessionFull, list_sessions
from . import address, theme

_WARM_AFTER_S = 3.0
_MOST_OFFERED = 4  # of what there is, where a link asks for something that is not
_BY_TIME = re.compile(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)\d\d(.*)")  # as a session is called that nobody has named
_MONTHS = ("", "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
NEW = "new session"
CPU = "cpu"
FRONT = "workbench"  # the page at the bare address


@st.cache_resource(on_release=lambda runner: runner.close(), show_spinner=False)
def runner() -> Runner:
    """One runner for the server, closed with it; its workers import torch in the background, this process never does."""
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
    """Device -> how it is called on the page; GPUs first, and only those on which kernels run now."""
    works = doctor.devices(findings())
    return {**{name: gpu.name for gpu in gpus() if (name := f"cuda:{gpu.index}") in works}, CPU: "emulated"}


def device_label(device: str) -> str:
    return f"{device} · {device_names().get(device, '')}"


def sm(device: str) -> int:
    """90: of that GPU; on the emulator of the one whose limits it has."""
    return _sms().get(device, EMULATED_SM)


@st.cache_data(ttl=60, show_spinner=False)
def _sms() -> dict[str, int]:
    return {f"cuda:{gpu.index}": gpu.sm for gpu in gpus()}


def session_paths() -> dict[str, Path]:
    return {name_of(path): path for path in list_sessions()}


def session_label(name: str) -> str:
    """`h200-kb74 · recorded`, `22 Nov 23:13` for one that is called by its time (in UTC), others by their name."""
    if at := _BY_TIME.fullmatch(name):
        return f"{at[3]} {_MONTHS[int(at[2]) % 13]} {at[4]}:{at[5]}{at[6]}"
    return f"{name.removeprefix('recorded-')} · recorded" if name.startswith("recorded-") else name


def distinct(labels: dict[str, str]) -> dict[str, str]:
    """The labels of a list by id; one that occurs twice gets its id, because a browser answers with the label."""
    there = Counter(labels.values())
    return {i: label if there[label] == 1 else f"{label} · {i[:8]}" for i, label in labels.items()}


def session_labels(names: Sequence[str]) -> dict[str, str]:
    """Name -> how a list shows it: one that is called by its time also says which layer it is of."""
    return {name: session_label(name) + _about(name) for name in names}


def _about(name: str) -> str:
    """ " · KernelBench #74 (small) +1": the layers of a session that nobody has named."""
    if not _BY_TIME.fullmatch(name):
        return ""
    runs_here = [r.request.workload for r in runs() if r.session.name == name]
    layers = list(dict.fromkeys(called(w) for w in (*(t.workload for t in trials_of(session_paths()[name])), *runs_here)))
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
    """A select box over sessions, `new session` first where `new`; the choice stands in the address. "" where there is none,
    or a link asks for one that is not here: the page then says so."""
    names = list(session_paths())
    options = [NEW, *names] if new else names
    shared = "session" if key.endswith("_session") else key  # a link to the Workbench's session holds on every page
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
    """The first session that holds a candidate: one of PyTorch alone has little to show."""
    paths = session_paths()
    there = (name for name in names if any(t.kind == "candidate" for t in trials_of(paths[name])))
    return next(there, names[0] if names else None)


def not_here(what: str, asked: str, there: Sequence[str]) -> None:
    """The address asks for a session, a trial or a device that is not here: the page says so above all else."""
    some = "; ".join(there[:_MOST_OFFERED]) + (f"; and {len(there) - _MOST_OFFERED} more" if len(there) > _MOST_OFFERED else "")
    offered = f"Choose one on the left: {some}." if there else f"There is no {what} yet."
    _missing().append((f"The {what} {asked[:60]!r} in the link was not found.", offered, True))


def not_known(what: str, asked: str, shown: str) -> None:
    """As `not_here`, of a choice that has a stand-in, which the page shows."""
    _missing().append((f"The {what} {asked[:60]!r} in the link is not known.", shown, False))


def seed(key: str, options: Iterable[str], usual: str, *, name: str = "", what: str = "", shown: str = "") -> None:
    """As `address.seed`; a value of the link that is none of the options is told. `what`: its word (default: the name of the
    parameter); `shown`: how the page calls the usual one."""
    if lost := address.seed(key, options, usual, name=name):
        not_known(what or (name or key).replace("_", " "), lost, f"The page shows {shown or usual}.")


@st.cache_resource(show_spinner=False)
def runs() -> list[Run]:
    """What was started on the Workbench since the server began, oldest first, whichever tab asked. The self-test uses the
    same runner; its runs are not here."""
    return []


def latest_run(workload: Workload, device: str, *, session: str | None = None) -> Run | None:
    """The newest run of that work on that device, of that session where one is named."""
    return next((r for r in reversed(runs()) if r.request.workload == workload
                 and r.request.device == device and session in (None, r.session.name)), None)


def active_runs() -> list[Run]:
    return [r for r in runs() if r.active]


def title(words: str) -> None:
    """What the browser's tab says: which layer or page, and whether something runs."""
    st.set_page_config(page_title=f"{words} · Kernel Workbench")


def guarded(draw: Callable[[], None], name: str = "", own: Sequence[str] = ()) -> Callable[[], None]:
    """One page, so that a bad request or a defect of ours becomes a strip and never a red box. `own`: the keys of its widgets,
    whose values stand in its address."""
    @wraps(draw)
    def page() -> None:
        _missing().clear()
        if name:
            address.begin(name, own)
            title(name.capitalize())
        links = st.empty()
        try:
            draw()
        except (BadRequest, SessionFull) as error:
            theme.html(theme.strip("BAD INPUT", str(error), "The other pages still work."))
        except Exception as error:  # the one place where a defect is caught: the page must say what still works
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
    return page


def dead_link() -> bool:
    """Whether this drawing has met a link to what is not here: nothing else is drawn in its place."""
    return any(nothing for _, _, nothing in _missing())


def _missing() -> list[tuple[str, str, bool]]:
    """(sentence, what there is instead, whether nothing is drawn in its place) of each dead link of this drawing."""
    return st.session_state.setdefault("dead links", [])


def _trace(error: Exception) -> list[str]:
    import traceback
    return traceback.format_exception(error)


class _Known:
    """The trials of a session's file as it grows: what is there stays as it is, and what was added is read."""

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
        """Whether only whole, readable lines were added; they are read then."""
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


@st.cache_resource(max_entries=32, show_spinner=False)  # as they are: trials do not change, and a copy of 10 000 takes a second
def _known(path: str) -> _Known:
    return _Known(path)


def _read(path: str, stamp: tuple[int, int]) -> tuple[list[Trial], list[str]]:
    return _known(path).read(stamp)
