"""Model: a whole model, named by module and function; which of its transposed convolutions are replaced, and the effect."""

from __future__ import annotations

import json
import os
from html import escape
from pathlib import Path

import streamlit as st

from ...core import numbers
from ...core.errors import BadRequest
from ...core.patching import AUTOCAST_DTYPES, FASTER_ONLY, MODEL_DTYPES, RIGHT, ModelSource, PatchReport
from ...drive.patching import plots
from ...drive.patching import text as told
from ...drive.patching.patch import Patch, PatchRequest
from ...drive.tuning.feed import EFFORTS as TUNE_EFFORTS
from ...drive.tuning.tune import every_gpu
from . import address, state, theme

_AS_IT_IS, _NO_AUTOCAST = "as it is", "none"
_KEPT = {FASTER_ONLY: "faster here", RIGHT: "right"}
_REPLACE = "Replace layers that are"
KEYS = ("model_id", "model_reference", "model_inputs", "model_folder", "model_device", "model_dtype", "model_autocast",
        "model_train", "model_keep", "model_tune", "model_tune_effort", "model_gpus")  # the keys of the widgets here


def draw() -> None:
    own = _own()
    with st.sidebar:
        _form(own)
    if missing := st.session_state.get("model_missing"):
        theme.html(theme.strip("BAD INPUT", missing, "Nothing was started."))
    if own is None:
        theme.html(theme.strip("READY", "No model yet", "Name a function that returns your model, as my_module:build_model, "
                               "and press Patch."))
        return
    if not own.done:
        _live(own)
        return
    state.title(f"{'✓ done' if own.result is not None else '– stopped' if own.stopped else '✕ failed'}, Model")
    if own.result is None:
        theme.html(theme.strip("CANCELLED" if own.stopped else "FAILED", own.problem or "The work ended without a report.",
                               "Correct the input on the left, then patch again."))
        return
    if changed := _changed(own.request):
        theme.html(theme.changed(changed, "This report", "Patch"))
    with st.container(key="faded" if changed else None):
        _report(own.result.report, own.result.text)


def _form(own: Patch | None) -> None:
    for name, usual in (("reference", ""), ("inputs", ""), ("folder", str(Path.cwd()))):
        st.session_state.setdefault(f"model_{name}", address.wants(name) or usual)
    for name in ("train", "tune"):
        st.session_state.setdefault(f"model_{name}", address.wants(name) == "yes")
    st.session_state.setdefault("model_gpus", address.wants("gpus") != "one")
    devices = list(state.device_names())
    for name, options in (("device", devices), ("dtype", [_AS_IT_IS, *MODEL_DTYPES]),
                          ("autocast", [_NO_AUTOCAST, *AUTOCAST_DTYPES]), ("keep", [FASTER_ONLY, RIGHT]),
                          ("tune_effort", list(TUNE_EFFORTS))):
        state.seed(f"model_{name}", options, options[0], name=name)
    st.text_input("Model", key="model_reference", placeholder="my_module:build_model", persist_state="session")
    st.text_input("Inputs", key="model_inputs", placeholder="my_module:inputs", persist_state="session",
                  help="A function that returns a tensor, a tuple of arguments or a dict of named arguments. If empty: the "
                       "function inputs of the same module, or the model's own example.")
    st.text_input("Folder", key="model_folder", persist_state="session",
                  help="Python looks for your module in this folder first.")
    st.selectbox("Device", devices, format_func=state.device_label, key="model_device", persist_state="session")
    cells = st.columns(2, gap="small")
    cells[0].selectbox("dtype", [_AS_IT_IS, *MODEL_DTYPES], key="model_dtype", persist_state="session")
    cells[1].selectbox("autocast", [_NO_AUTOCAST, *AUTOCAST_DTYPES], key="model_autocast", persist_state="session")
    st.checkbox("with a training step", key="model_train", persist_state="session")
    st.segmented_control(_REPLACE, list(_KEPT), format_func=lambda k: _KEPT[k], required=True,
                         key="model_keep", persist_state="session",
                         help="On the CPU the kernels are emulated and not timed, so layers are replaced only with 'right'.")
    if st.session_state["model_device"] == state.CPU and st.session_state["model_keep"] == FASTER_ONLY:
        theme.html(f'<div class="foot">On the CPU nothing is timed, so “{_KEPT[FASTER_ONLY]}” replaces no layer.</div>')
    st.checkbox("Tune each layer first", key="model_tune", persist_state="session",
                help="Searches the fastest kernels of each layer on this GPU and stores them. Layers that were tuned here "
                     "before are not tuned again. On the CPU nothing is tuned.")
    if st.session_state["model_tune"]:
        st.segmented_control("Effort of a tune", list(TUNE_EFFORTS), key="model_tune_effort", required=True,
                             persist_state="session", help="For each layer. quick: about a minute. normal: about ten minutes. "
                                                           "full: until every candidate has been tried.")
        if len(every_gpu(st.session_state["model_device"])) > 1:
            st.checkbox("on every GPU of this kind", key="model_gpus", persist_state="session",
                        help="One measuring process for each free GPU of the same name.")
    for name, usual in (("reference", ""), ("inputs", ""), ("folder", str(Path.cwd())), ("device", devices[0]),
                        ("dtype", _AS_IT_IS), ("autocast", _NO_AUTOCAST), ("keep", FASTER_ONLY), ("tune_effort", "quick")):
        address.note(name, st.session_state[f"model_{name}"], usual)
    for name in ("train", "tune"):
        address.note(name, "yes" if st.session_state[f"model_{name}"] else "")
    address.note("gpus", "" if st.session_state["model_gpus"] else "one")
    if own is not None and not own.done:
        st.button("Stop", width="stretch", key="model_stop", on_click=own.stop, shortcut=theme.STOP_KEY,
                  help=f"Ends the processes of this patch. Key: {theme.STOP_KEY}")
    else:
        later, asked = theme.later(), _asked()
        if theme.button("Patch", type="primary", width="stretch", key="model_run", shortcut=theme.RUN_KEY,
                        help=f"Runs the model, judges kernels for its layers and times each of them. Key: {theme.RUN_KEY}"):
            later |= {"model_missing": asked} if isinstance(asked, str) else {
                "model_missing": "", "model_id": state.kept(_patches(), Patch(asked).start())}
            st.rerun()
    theme.html('<div class="mute">Your model runs in its own process, with your rights and without a sandbox, as a training '
               'script does. Name only code that you trust.</div>')


def _asked() -> PatchRequest | str:
    """The request from the form's values, or the sentence that names what is missing."""
    form = st.session_state
    try:
        folder = Path(os.path.expanduser(form["model_folder"]))
        if not os.path.isdir(folder):   # unlike Path's, it answers for whatever was typed
            raise BadRequest(f"There is no folder {folder}; name the folder of your module.", field="folder")
        chosen = {name: "" if form[f"model_{name}"] == usual else form[f"model_{name}"]
                  for name, usual in (("dtype", _AS_IT_IS), ("autocast", _NO_AUTOCAST))}
        source = ModelSource(form["model_reference"].strip(), form["model_inputs"].strip(), folder, form["model_device"],
                             chosen["dtype"], chosen["autocast"], form["model_train"])
        return PatchRequest(source, form["model_keep"] or FASTER_ONLY, tune=form["model_tune"],
                            tune_effort=form["model_tune_effort"] or "quick", every_gpu=form["model_gpus"])
    except BadRequest as error:
        return str(error)


def _changed(request: PatchRequest) -> list[str]:
    """The fields whose values differ from those of the shown patch."""
    now = _asked()
    if isinstance(now, str):
        return []
    pairs = (("the model", "model"), ("the inputs", "inputs"), ("the folder", "folder"), ("the device", "device"),
             ("the dtype", "dtype"), ("autocast", "autocast"), ("the training step", "train"))
    found = [words for words, name in pairs if getattr(now.source, name) != getattr(request.source, name)]
    found += ["which layers are replaced"] if now.keep != request.keep else []
    told = [(r.tune, r.tune and (r.tune_effort, r.every_gpu)) for r in (now, request)]
    return found + (["whether layers are tuned first"] if told[0] != told[1] else [])


def _own() -> Patch | None:
    """The patch that this tab started, running or done. Its name is in the address, so that a reload finds it."""
    name = st.session_state.setdefault("model_id", address.wants("patch"))
    if not name:
        return None
    address.note("patch", name)
    if name not in _patches():
        theme.html(theme.strip("NOT FOUND", f"The report {name[:60]!r} in the link was not found.",
                               "The server keeps reports only while it runs. Patch the model again."))
        return None
    return _patches()[name]


@st.cache_resource(show_spinner=False)
def _patches() -> dict[str, Patch]:
    """Name -> patch, the oldest first. They are kept in the server, because a patch continues when its tab is closed."""
    return {}


@st.fragment(run_every=0.5)
def _live(patch: Patch) -> None:
    if patch.done:
        st.rerun()
    state.title(f"● patching {patch.request.source.model}")
    theme.html(theme.strip("RUNNING", f"{patch.request.source.model}: {patch.text}",
                           f"{patch.elapsed_s:.0f} s since start. It finds the layers, judges kernels for each, then times the "
                           "model. Closing the browser does not stop it."))


def _report(report: PatchReport, text: str) -> None:
    theme.html(theme.strip(told.verdict(report), f"{report.name}: {told.headline(report)}",
                           told.evidence(report, f"choose “{_KEPT[RIGHT]}” in “{_REPLACE}”")))
    head = ("", "layer", "arguments", "calls", "share", *told.times_head(report), "kernels", "why")
    theme.html(theme.table(head, [
        (theme.badge("OK" if row.kept else "SKIPPED", "patched" if row.kept else "left"),
         *(escape(cell) for cell in told.cells(row, report)), f'<span class="mute">{escape(row.reason)}</span>')
        for row in report.layers], right=(3, 4)))
    if report.functional:
        theme.html(theme.heading("Functional calls, which cannot be patched") + theme.table(
            ("function", "file", "line", "calls"),
            [(escape(c.function), escape(c.file), str(c.line), str(c.count)) for c in report.functional], right=(2, 3)))
    if report.layers:
        theme.chart(plots.figure(report, mode=theme.mode()), key="model_figure", alt=plots.described(report))
    theme.html("".join(f'<div class="foot">{escape(line)}</div>' for line in [
        *told.end_to_end(report), *report.notes, f"On {report.device}, {numbers.seconds(report.seconds)}. {report.command}"]))
    with st.container(horizontal=True):
        if text:
            st.download_button("Download the kernels", text, key="model_file", file_name="model_kernels.py",
                               mime="text/x-python", on_click="ignore")
        st.download_button("Download report", json.dumps(report.to_json(), indent=1), key="model_json", file_name="patch.json",
                           mime="application/json", on_click="ignore")
        st.download_button("Download as text", told.report_text(report), key="model_text", file_name="patch.txt",
                           on_click="ignore")
