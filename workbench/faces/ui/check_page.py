"""Check: tests a foreign ModelNew, pasted or uploaded, in its own processes, and shows the questions and the results."""

from __future__ import annotations

import json
import re
import secrets
from html import escape
from typing import Any

import streamlit as st

from ...core import numbers
from ...core.answers import Answer, CheckReport, Question
from ...core.errors import BadRequest
from ...core.presets import PRESETS, SIZES, parse_preset
from ...drive.checking import check_times
from ...drive.checking.check import MOST_TEXT_BYTES, Check, CheckRequest, workload_reference
from ...drive.checking.check_text import default_text, kernelbench_reason, kernelbench_rows, left_out, report_text
from . import address, source_view, state, theme

OWN = "a file of my own"
_MOST_MB = MOST_TEXT_BYTES >> 20
_MOST_LOG = 6000  # the most characters on the page; the downloaded report has all
_WORDS = {Answer.WARNED: "WARN"}
_BOX = "check_box"               # the editor's key
_NAME = "model_new.py"           # of a text that was not uploaded
_LINE = re.compile(r"\bline (\d+)\b")
_SAMPLE = '''"""A wrong sample: taps are flipped, and the output has no gradient."""

import torch
from torch import nn
from torch.nn import functional as F


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, bias=False):
        super().__init__()
        self.conv1d_transpose = nn.ConvTranspose1d(in_channels, out_channels, kernel_size, stride=stride,
                                                   padding=padding, dilation=dilation, bias=bias)

    @torch.no_grad()
    def forward(self, x):
        layer = self.conv1d_transpose
        return F.conv_transpose1d(x, layer.weight.flip(2), layer.bias, layer.stride, layer.padding, 0, 1, layer.dilation)
'''
KEYS = ("check_id", "check_reference", "check_device", "check_size", "check_limit",
        "check_memory")  # the keys of the widgets here


def draw() -> None:
    check = _own()
    st.session_state["check_text"] = _typed()   # the editor's state is gone while another page is shown
    with st.sidebar:
        uploaded = _form(check)
    try:
        _shown(check, uploaded)
    finally:
        _editor(check, uploaded)


def _shown(check: Check | None, uploaded: str | None) -> None:
    """Draws the present state: nothing yet, the answers so far, or the report."""
    _elsewhere(check)
    if missing := st.session_state.get("check_missing"):
        theme.html(theme.strip("BAD INPUT", missing, "Nothing was started."))
    strip = st.container()
    if check is None:
        with strip:
            theme.html(theme.strip("READY", "Nothing checked yet", "Choose a reference, paste or upload a file that "
                                   "defines ModelNew, and press Check."))
        if theme.button("Fill in a wrong sample for KernelBench #74", key="check_sample"):
            st.session_state["check_put"] = {"id": secrets.token_hex(4), "text": _SAMPLE, "instead_of": _in_box()}
            st.session_state["check_text"] = _SAMPLE
            st.rerun()
        return
    if not check.done:
        with strip:
            _live_strip(check)
        return
    if check.report is None:
        state.title(f"{'– stopped' if check.stopped else '✕ failed'}, Check")
        with strip:
            theme.html(theme.strip("CANCELLED" if check.stopped else "FAILED",
                                   check.problem or "The check ended without a report.",
                                   "Correct the input on the left, then check again."))
        return
    report = check.report
    state.title(f"{report.badge}, Check")
    if changed := _changed(check.request):
        theme.html(theme.changed(changed, "This report", "Check"))
    with st.container(key="faded" if changed else None):
        passed = report.ran and not report.stopped
        theme.html(theme.strip("FAILED" if report.failed else "PASSED" if passed else "SKIPPED", report.headline,
                               report.evidence,
                               badge_text=report.badge))
        grid = st.grid(2, min_column_width=470, gap="medium")
        with grid.container():
            theme.html(_questions(report, check.request.text))
            _buttons(report)
        with grid.container():
            for card in (_smallest(report), _mistake(report), _kernelbench(report), _speed(report)):
                if card:
                    with st.container(border=True):
                        theme.html(card)
        if report.times:
            theme.html(_ladder(report))
        if (marks := _marks(report)) and not _in_editor(check, uploaded):
            theme.html(theme.heading(f"{check.request.name} as it was checked"))
            source_view.read(check.request.text, str(st.session_state["check_id"]), title="The file as it was checked",
                             marks=marks)


def _changed(request: CheckRequest) -> list[str]:
    """The fields whose values differ from those of the shown check."""
    now = _asked()
    if isinstance(now, str):  # for example without a text
        return []
    pairs = (("the file", "text"), ("the reference", "reference"), ("the device", "device"), ("the size", "size"),
             ("the time limit", "call_s"), ("the memory limit", "memory_gib"))
    return [words for words, name in pairs if getattr(now, name) != getattr(request, name)]


def _marks(report: CheckReport) -> list[tuple[int, str]]:
    """The lines of the file that failures name, with their messages."""
    found = {}
    for q in report.failed:
        if named := _LINE.search(f"{q.seen} {q.advice}"):
            found.setdefault(int(named[1]), q.seen)
    return list(found.items())


def _in_editor(check: Check | None, uploaded: str | None) -> bool:
    """Whether the editor holds the text that was checked, or an edited one."""
    return check is not None and (check.request.name == _NAME if uploaded is None else uploaded == check.request.text)


def _editor(check: Check | None, uploaded: str | None) -> None:
    """The editor of the file, in the full width of the page, with the lines that failures name. It is below the report if there
    is one. An uploaded file can only be read."""
    there = check is not None and _in_editor(check, uploaded)
    marks = _marks(check.report) if check is not None and check.report and there else []
    title = "Candidate: paste a file that defines ModelNew, or upload it on the left"
    theme.html(theme.heading(title if uploaded is None else "Candidate: the uploaded file"))
    data = {"marks": [{"line": line, "text": said} for line, said in marks], "note": "", "line": 1, "python": True,
            "title": title, "height": 520 if check is None else 360}
    with st.container(key="check editor"):
        if uploaded is not None:
            theme.code("check_uploaded", {**data, "key": "check uploaded", "text": uploaded, "read": True})
            return
        checked = check.request.text if check is not None and there else ""
        theme.code(_BOX, {**data, "key": "check", "text": checked, "form": True, "sent": st.session_state["check_text"],
                          "put": st.session_state.get("check_put")}, default={"text": None}, on_text_change=lambda: None)


def _in_box() -> str | None:
    """The text that the editor has sent; None if it has sent none."""
    box = st.session_state.get(_BOX) or {}
    text = box.get("text")
    return text if isinstance(text, str) else None


def _typed() -> str:
    """The text of the editor. The server keeps it while another page is shown. After a reload, the editor sends its draft;
    without one it shows the text that was checked."""
    put, sent = st.session_state.get("check_put") or {}, _in_box()
    if sent is not None and (not put or sent != put["instead_of"]):
        return sent
    kept: str | None = st.session_state.get("check_text")
    check = _checks().get(st.session_state.get("check_id", ""))
    return kept if kept is not None else check.request.text if check is not None and check.request.name == _NAME else ""


def _form(check: Check | None) -> str | None:
    """The sidebar. Returns the text of an uploaded candidate."""
    names = {p.name: p.listed for p in PRESETS.values()}
    devices = list(state.device_names())
    for key, there, usual in (("check_reference", [*names, OWN], "kb74"), ("check_device", devices, devices[0])):
        name = key.removeprefix("check_")
        state.seed(key, there, usual, name=name)
        address.note(name, st.session_state[key], usual)
    chosen = st.selectbox("Reference", [*names, OWN], format_func=lambda n: names.get(n, n), key="check_reference",
                          persist_state="session")
    if chosen == OWN:
        st.file_uploader("Reference: Model, get_inputs, get_init_inputs", type="py", key="check_reference_file",
                         max_upload_size=_MOST_MB)
    uploaded = st.file_uploader("Candidate: a file with ModelNew", type="py", key="check_file", max_upload_size=_MOST_MB)
    device = st.selectbox("Device", devices, format_func=state.device_label, key="check_device", persist_state="session")
    if chosen != OWN:
        usual = "small" if device == state.CPU else "full"
        state.seed("check_size", SIZES, usual, name="size")
        st.segmented_control("Size", SIZES, key="check_size", required=True, width="stretch", persist_state="session")
        address.note("size", st.session_state["check_size"], usual)
    for cell, key, label, most, usual_limit in zip(st.columns(2, gap="small"), ("check_limit", "check_memory"),
                                                   ("time limit, s", "memory, GiB"), (3600, 1024), (120, 16), strict=True):
        asked = address.wants(key.removeprefix("check_"))
        st.session_state.setdefault(key, int(asked) if asked.isdecimal() and 1 <= int(asked) <= most else usual_limit)
        address.note(key.removeprefix("check_"), str(cell.number_input(label, 1, most, key=key, persist_state="session")),
                     str(usual_limit))
    if check is not None and not check.done:
        st.button("Stop", width="stretch", key="check_stop", on_click=check.stop, shortcut=theme.STOP_KEY,
                  help=f"Ends the processes of this check. Key: {theme.STOP_KEY}")
    else:  # never disabled, because the text of a paste arrives with the next click, which would be lost
        _button("Check", "check_run", type="primary", width="stretch", shortcut=theme.RUN_KEY,
                help=f"Runs the file in its own process and judges it. Key: {theme.RUN_KEY}")
    theme.html(theme.badge("WARN", "FOREIGN CODE") + '<div class="mute" style="margin-top:4px">A check runs the file. It '
               "runs in its own process, without your environment variables and with these limits. With bwrap it has no "
               "network and can write only to its scratch folder. Without bwrap, Landlock or a separate user account limits "
               "where it can write. The report names the sandbox.</div>")
    return None if uploaded is None else _decoded(uploaded)


def _button(label: str, key: str, **options: Any) -> None:
    """A button that starts the check of the form's values, or shows what is missing."""
    later, asked = theme.later(), _asked()
    if theme.button(label, key=key, **options):
        later |= {"check_missing": asked} if isinstance(asked, str) else {
            "check_missing": "", "check_id": state.kept(_checks(), Check(asked).start())}
        st.rerun()


def _asked() -> CheckRequest | str:
    """The request from the form's values, or the sentence that names what is missing."""
    form = st.session_state
    uploaded, own, chosen = form.get("check_file"), form.get("check_reference_file"), form["check_reference"]
    text = _decoded(uploaded) if uploaded is not None else _typed()
    if not text.strip():
        return "There is no candidate yet; paste or upload a file that defines ModelNew."
    if chosen != OWN:
        size = form.get("check_size") or "small"
        reference, name = workload_reference(parse_preset(chosen)[0].workload(size))
    elif own is not None:
        reference, name, size = _decoded(own), own.name, ""
    else:
        return "There is no reference yet; upload a file with Model, get_inputs and get_init_inputs."
    try:
        return CheckRequest(text, reference, form["check_device"], reference_name=name, size=size,
                            name=uploaded.name if uploaded is not None else _NAME,
                            memory_gib=float(form["check_memory"]), call_s=float(form["check_limit"]))
    except BadRequest as error:
        return str(error)


def _own() -> Check | None:
    """The check that this tab started, running or done. Its name is in the address, so that a reload finds it."""
    name = st.session_state.setdefault("check_id", address.wants("check"))
    if not name:
        return None
    address.note("check", name)
    if name not in _checks():
        theme.html(theme.strip("NOT FOUND", f"The report {name[:60]!r} in the link was not found.",
                               "The server keeps reports only while it runs. Check the file again."))
        return None
    return _checks()[name]


def _elsewhere(own: Check | None) -> None:
    """One line for each running check of another tab."""
    for name, check in list(_checks().items()):
        if check is not own and not check.done:
            with st.container(horizontal=True, vertical_alignment="center", key=f"elsewhere {name}"):
                _live_line(check)
                st.button("Go to it", key=f"go {name}", on_click=st.session_state.__setitem__, args=("check_id", name))
                st.button("Stop it", key=f"stop {name}", on_click=check.stop)


@st.cache_resource(show_spinner=False)
def _checks() -> dict[str, Check]:
    """Name -> check, the oldest first. They are kept in the server, because a check continues when its tab is closed. A tab
    shows the check that it started."""
    return {}


@st.fragment(run_every=0.5)
def _live_strip(check: Check) -> None:
    if check.done:
        st.rerun()
    state.title(f"● {len(check.answers)} answers, checking {check.request.name}")
    theme.html(theme.strip("RUNNING", f"{check.request.name}: {check.text}",
                           f"{check.elapsed_s:.0f} s since start. A first build with torch's headers "
                           "takes a minute. Closing the browser does not stop the check."))
    known = {q.key: (seconds, q) for seconds, q in check.answers}  # a later answer to the same question replaces an earlier one
    if known:
        theme.html(theme.table(("answer", "question", "what was seen", "after"), [
            (*_row(q), f'<span class="nw">{seconds:.1f} s</span>') for seconds, q in known.values()]))


@st.fragment(run_every=1)
def _live_line(check: Check) -> None:
    if check.done:
        st.rerun()
    asked = check.request
    against = f"{asked.reference_name} ({asked.size})" if asked.size else asked.reference_name
    theme.html(f'{theme.badge("RUNNING")} Another tab checks {escape(asked.name)} against {escape(against)} on '
               f"{escape(asked.device)}")


def _questions(report: CheckReport, text: str) -> str:
    return theme.table(("answer", "question", "what was seen"), [_row(*alike, text=text) for alike in report.rows]) + (
        f'<div class="foot" style="margin-top:6px">Against {escape(report.against)}, on {escape(report.device)}, '
        f'seed {report.seed}, {report.seconds:.0f} s; {escape(report.confined.sentence)}. Not asked: '
        f'{escape(", ".join(report.not_asked))}.</div>')


def _row(q: Question, *alike: Question, text: str = "") -> tuple[str, str, str]:
    """One row of the report. `alike`: further questions that were skipped for the same reason. `text`: the file; if a failure
    names a line, that line is shown with the lines around it."""
    word = _WORDS.get(q.answer, str(q.answer))
    status = f'<div class="foot mono">{escape(q.status)}</div>' if q.answer is Answer.FAILED and q.status else ""
    advice = f'<div class="mute">{escape(q.advice)}</div>' if q.advice and q.answer is not Answer.PASSED else ""
    log = theme.last_lines(q.detail.log or "", _MOST_LOG) if q.answer is Answer.FAILED else ""
    log = f"<pre>{escape(log)}</pre>" if log else ""
    named = _LINE.search(f"{q.seen} {q.advice}") if q.answer is Answer.FAILED else None
    lines = theme.excerpt(text, int(named[1]), name="The file") if named else ""
    asked = f"{1 + len(alike)} questions" if alike else q.question
    names = f'<div class="foot">{escape(" ".join(one.question for one in (q, *alike)))}</div>' if alike else ""
    return theme.badge(word), f"<b>{escape(asked)}</b>{status}", f"{theme.quoted(q.seen)}{names}{advice}{lines}{log}"


def _buttons(report: CheckReport) -> None:
    with st.container(horizontal=True):
        _button("Check again", "check_again")
        st.download_button("Download report", json.dumps(report.to_json(), indent=1), key="check_json",
                           file_name="check.json", mime="application/json", on_click="ignore")
        st.download_button("Download as text", report_text(report), file_name="check.txt", key="check_txt", on_click="ignore")


def _smallest(report: CheckReport) -> str:
    found = report.smallest
    if not found:
        return ""
    head = (theme.heading("The smallest case that still fails") +
            f'<div class="mono">{escape(found.layer)}<br>x = {numbers.shape(found.input)}, '
            f'{escape(found.dtype)}{", grad_output 1, expanded" if found.expanded else ""}</div>')
    if not found.values:
        return head + f"<div>{escape(found.problem)}</div>"
    short = {"output": "y"}.get(found.tensor, found.tensor)
    bad = 'style="color:var(--bad);font-weight:600"'
    return head + theme.table(("", "expected", "got"), [
        (f'<span class="mono">{escape(numbers.index(short, v.index))}</span>', f"{v.expected:.6g}",
         f"<span {bad if v.wrong else ''}>{v.got:.6g}</span>") for v in found.values], right=(1, 2))


def _mistake(report: CheckReport) -> str:
    found = report.mistake
    if not found:
        return ""
    if not found.found:
        return theme.heading("Similar known mistake") + "No known mistake gives this output."
    rows = [(theme.badge("FAILED", "same output"), f"<b>{escape(found.found)}</b>")]
    rows += [(theme.badge("NOTE", "differs"), escape(name)) for name in found.differs]
    return (theme.heading("Similar known mistake") + theme.table(("", ""), rows, narrow=(0,))
            + f"<pre>{escape(found.advice)}</pre>")


def _kernelbench(report: CheckReport) -> str:
    def word(good: bool | None) -> str:
        return "–" if good is None else theme.badge("PASSED" if good else "FAILED")

    rows = [(escape(who), word(good), f"<span class=mute>{escape(rule)}</span>")
            for who, good, rule in kernelbench_rows(report)]
    if not rows:
        return ""
    return (theme.heading("KernelBench's verdict and ours") + theme.table(("", "", ""), rows)
            + f'<div class="mute">{escape(kernelbench_reason(report))}</div>')


def _speed(report: CheckReport) -> str:
    """The right column: the verdicts and the floor, or why there is no time."""
    if not report.times:
        asked = report.question("times")
        return theme.heading("How fast?") + theme.badge("SKIPPED", "NOT TIMED") + f" {escape(asked.seen)}" if asked else ""
    parts = [theme.heading("How fast? module_ms")]
    for direction, t in report.times.items():
        said = check_times.sentence(direction, t)
        verdict = theme.badge("IMPLAUSIBLE" if t.implausible else t.verdict or "NOTE")
        floor = f"<div class=mute>Floor: {escape(check_times.floor_text(t))}.</div>"
        parts.append(f"<div style='margin-bottom:6px'>{verdict} <b>{numbers.time(t.median_ms)}</b> "
                     f"{escape(said[0].upper() + said[1:])}.{floor}</div>")
    parts += [f"<div>{theme.badge('SKIPPED', 'NOT TIMED')} {escape(said[0].upper() + said[1:])}.</div>"
              for said in check_times.without_times(report.untimed)]
    return "".join(parts)


def _ladder(report: CheckReport) -> str:
    """The times of all PyTorch modes in each direction, in the full width: the evidence for the verdict."""
    parts = []
    for direction, t in report.times.items():
        rows = [(f"<b>{escape(report.name)}</b>", f"<b>{numbers.time(t.median_ms)}</b>", "", "", "",
                 escape(t.precision), f"<span class=mute>{t.samples} samples of {t.calls} calls, {t.checked} "
                 "compared with float64</span>")]
        for b in t.baselines:
            note = "the fastest mode that can replace the layer" if b.name == t.against else b.why_not
            kernel = f"<div class='foot mono'>{escape(b.kernels[0])}</div>" if b.kernels else ""
            between = f"<span class=nw>{numbers.interval(b.low, b.high, b.ratio)}</span>"
            rows.append((escape(b.name) + kernel, numbers.time(b.median_ms), numbers.ratio(b.ratio),
                         between, theme.badge(b.verdict), escape(b.precision), f"<span class=mute>{escape(note)}</span>"))
        if t.floor_ms:
            rows.append(("floor, the physical limit", numbers.time(t.floor_ms), "", "", "", "",
                         f"<span class=mute>{escape(t.floor_limit)}</span>"))
        words = [default_text(t), *t.notes]
        parts.append(theme.heading(f"PyTorch modes · module_ms {direction}") + theme.table(
            ("", "median", "PyTorch / ours", "95 % interval", "verdict", "precision", ""), rows, right=(1, 2))
            + f'<div class="foot">{escape(" ".join(filter(None, words)))}</div>')
    out = left_out(report)
    tail = f'<div class="foot" style="margin-top:6px">Not timed: {escape("; ".join(out))}.</div>' if out else ""
    return "<div style='height:12px'></div>".join(parts) + tail


def _decoded(uploaded: Any) -> str:
    return uploaded.getvalue().decode("utf-8", "replace")
