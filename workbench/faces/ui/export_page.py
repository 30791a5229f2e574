"""Export: writes right candidates of a session as one self-contained file. The file can be downloaded after a fresh process has
verified it."""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import streamlit as st

from ...core import numbers
from ...core.command import workload_arguments
from ...core.errors import BadRequest
from ...core.layer import BACKWARD, DIRECTIONS, GRAD_INPUT, GRAD_WEIGHT, LAUNCHES, Workload
from ...core.presets import PRESETS, Preset, called, parse_preset
from ...core.replies import ModuleJudged
from ...core.trial import Trial
from ...core.variants import texts_stamp
from ...drive.exporting.best_recipe import arch_of
from ...drive.exporting.export import export_text, module_order, verify
from ...drive.exporting.recipe import fastest
from ...drive.machine.daemon_threads import DaemonThreads
from ...drive.reporting import report
from ...drive.sessions.recorded import (
    fallen,
    first_choice,
    found_wrong,
    judged_candidate,
    kernel_of,
    measured_arch,
    recipe_of,
    trial_notes,
    unbeaten,
)
from . import address, state, theme, tune_panels

PYTORCH, APART = "PyTorch", "a launch for each gradient"
_PROOF_LIMIT_S = 600
_MOST_OFFERED = 40  # the most candidates of a direction that are offered
_MOST_RENDERED = 400  # of these, the fastest ones are searched for candidates that can be exported


@dataclass(frozen=True)
class _File:
    """The file to export. `preset`: the preset whose constructor it has."""

    name: str
    text: str
    workload: Workload
    preset: Preset | None
    class_name: str


KEYS = ("export_session", "export_workload", "export_class", "export_device", "export recipe ",
        "export form ")  # the keys of the widgets here


def draw() -> None:
    with st.sidebar:
        name = state.choose_session("Session", key="export_session", default=st.session_state.get("session"))
        path = state.session_paths().get(name)
        trials = state.trials_of(path)
        workload = _workload(trials)
        if workload is None:
            theme.html(theme.strip("READY", "This session has no right candidate"))
        else:
            class_name, preset, device = _options(workload)
    if workload is None:
        theme.html(theme.strip("READY", "Nothing to export yet",
                               "Run candidates on the Workbench. Candidates that are right in all checks can be exported."))
        return
    known_by = (path, state.stamp(path), str(workload))
    here = _here(*known_by, workload)
    strip = st.container()
    grid = st.grid(2, min_column_width=470, gap="medium")
    left, right = grid.container(), grid.container()
    top = left.container()
    with left:
        chosen, automatic = _recipe_choice(here, known_by, fallen(trials), tune_panels.events_of(path))
        top.html(f'<div class="kw">{_recipe_table(here, chosen, name)}</div>')
    if not any(chosen.values()):
        with strip:
            theme.html(theme.strip("READY", "No candidate is chosen yet", "Choose a candidate for at least one direction."))
        return
    try:
        text = _text({d: t for d, t in chosen.items() if t}, automatic, here, workload, preset, class_name)
    except BadRequest as error:
        with strip:
            theme.html(theme.strip("BAD INPUT", str(error), "Change the recipe or the fields on the left."))
        return
    named = parse_preset(workload.preset)[0] if workload.preset else preset
    file = _File(f"model_new_{named.name.rpartition('/')[2].replace('-', '_')}.py" if named else "model_new.py", text, workload,
                 preset, class_name)
    under_way = _proofs().get(_digest(text, device))
    if under_way is not None and not under_way.done():
        with strip:
            _live_strip(under_way, file.name, _digest(text, device))
        proof = None
    else:
        proof = under_way.result() if under_way else None
        if proof is not None:
            state.title(f"{'✓ verified' if proof.status == 'OK' else '✕ failed'}, Export")
        with strip:
            theme.html(_strip(file.name, text, device, proof))
    with left:
        if proof is not None:
            theme.html(_proof_table(proof))
        _buttons(file, device, proof, busy=under_way is not None and not under_way.done())
    with right:
        st.code(text, language="python", line_numbers=True, height=640)


def _text(chosen: dict[str, Trial], automatic: dict[str, Trial | None], trials: list[Trial],
          workload: Workload, preset: Preset | None, class_name: str) -> str:
    """The file of the chosen trials. A candidate that the user chose instead of the first one runs on every GPU; another one
    only where it was measured to be faster."""
    named = [d for d, t in chosen.items() if (first := automatic.get(d)) is None or first.trial_id != t.trial_id]
    recipe = recipe_of(chosen, trials, workload=workload, named=named, arch=arch_of())
    words = [*workload_arguments(workload), *(w for t in chosen.values() if named for w in ("--trial", t.trial_id)),
             *(["--class-name", class_name] if class_name != "ModelNew" else [])]
    return export_text(recipe, constructor=preset, class_name=class_name, notes=trial_notes(chosen, trials, words),
                       arch=measured_arch(chosen) or arch_of())


def _workload(trials: list[Trial]) -> Workload | None:
    """The workload for the export: of those with a right candidate, the one that ran last, unless another one is chosen."""
    trials = [t for t in trials if t.kind == "candidate" and t.ok]
    there = {str(t.workload): t.workload for t in reversed(trials)}
    if not there:
        return None
    names = {key: " ".join([called(w), w.dtype, *([w.memory_format] if w.memory_format == "channels_last" else []),
                            *([] if w.preset else [f"batch {w.batch}"])]) for key, w in there.items()}
    asked, usual = address.wants("layer"), next(iter(there))
    if st.session_state.get("export_workload") not in there:
        st.session_state["export_workload"] = next((key for key, name in names.items() if name == asked), usual)
        if asked not in ("", *names.values()):
            state.not_known("layer", asked, f"The page shows {names[usual]}.")
    address.note("layer", names[st.session_state["export_workload"]], names[usual])
    chosen = st.selectbox("Layer", list(there), format_func=names.get, key="export_workload", persist_state="session")
    return there[chosen]


def _options(workload: Workload) -> tuple[str, Preset | None, str]:
    st.session_state.setdefault("export_class", address.wants("class") or "ModelNew")
    class_name = st.text_input("Class name", key="export_class", persist_state="session")
    fitting = [p for p in PRESETS.values() if p.constructor and p.layer == workload.layer]
    forms: dict[str, Preset | None] = {p.label: p for p in fitting}
    forms[f"nn.ConvTranspose{workload.layer.dims}d"] = None
    key = f"export form {workload.layer}"
    state.seed(key, forms, next(iter(forms)), name="constructor")
    form = st.selectbox("Constructor as in", list(forms), key=key, persist_state="session")
    address.note("constructor", form, next(iter(forms)))
    devices = list(state.device_names())
    state.seed("export_device", devices, devices[0], name="device")
    device = st.selectbox("Verify on", devices, format_func=state.device_label, key="export_device", persist_state="session")
    address.note("device", device, devices[0])
    address.note("class", class_name, "ModelNew")
    return class_name, forms[form], device


def _recipe_choice(trials: list[Trial], known_by: tuple, fell: dict[tuple[str, str, str], Trial], events: list[dict[str, Any]]
                   ) -> tuple[dict[str, Trial | None], dict[str, Trial | None]]:
    """The choice of one right candidate or PyTorch for each direction, and the first choice, before the user changes it: the
    winner of a tune, else the fastest candidate on a GPU. Both gradients in one launch are offered if that was right.
    Candidates in `fell` are not offered."""
    wanted = set(st.session_state.get("export_rows", []))
    chosen: dict[str, Trial | None] = {}
    named = wanted | {address.wants(d) for d in LAUNCHES}
    right_in = {d: sorted(found, key=lambda t: t.trial_id not in named) for d, found in _right(known_by, trials, fell).items()}
    # Of thousands of candidates from a search only the fastest are offered, because rendering each takes a millisecond.
    templates = texts_stamp()
    there = {d: _offered((*known_by, d, *sorted(named)), templates, found) for d, found in right_in.items()}
    directions = LAUNCHES if there[BACKWARD] else DIRECTIONS
    taken = {d: first_choice(unbeaten(found, events), arch_of(), trials) for d, found in there.items()}
    first = {d: trial for d, (trial, _) in taken.items()}
    used = fastest({d: _ms(trial) for d, trial in first.items() if trial})
    for direction, cell in zip(directions, st.columns(len(directions), gap="small"), strict=True):
        options = {t.trial_id: t for t in there[direction]}
        ids = [*options, PYTORCH]
        nothing = APART if direction == BACKWARD else PYTORCH
        given = ids.index(first[direction].trial_id) if direction in used else len(ids) - 1
        given = next((i for i, t in enumerate(ids) if t in wanted), given)
        key = f"export recipe {direction} {hash(tuple(ids))}"
        labels = state.distinct(_labels(there[direction])) | {PYTORCH: nothing}
        state.seed(key, ids, ids[given], name=direction, what=f"{direction} candidate", shown=labels[ids[given]])
        address.note(direction, st.session_state[key], ids[given])
        pick = cell.selectbox(direction, ids, key=key, persist_state="session", format_func=labels.get)
        if direction != BACKWARD or pick in options:
            chosen[direction] = options.get(pick)
    notes = [note for d, (taken_first, note) in taken.items() if note and chosen.get(d) is taken_first]
    once = {kernel_of(t) for t in trials if t.ok}
    notes += [found_wrong(bad) for kernel, bad in fell.items() if kernel in once]
    notes += [f"{d}: the {_MOST_OFFERED} fastest of {numbers.count(len(right_in[d]))} right candidates are offered."
              for d in directions if len(right_in[d]) > len(there[d]) == _MOST_OFFERED]
    if open_ := [d for d, found in there.items() if found and taken[d] == (None, "") and not chosen.get(d)]:
        notes.append(f"{', '.join(open_)}: no candidate has a GPU time. Choose one.")
    theme.html("".join(f'<div class="foot">{escape(note)}</div>' for note in notes))
    return chosen, first


@st.cache_resource(max_entries=8, show_spinner=False)
def _here(path: Path, stamp: tuple[int, int], workload: str, _workload: Workload) -> list[Trial]:
    return report.for_workload(state.trials_of(path), _workload)


@st.cache_resource(max_entries=8, show_spinner=False)
def _right(known_by: tuple, _trials: list[Trial], _fell: dict[tuple[str, str, str], Trial]) -> dict[str, list[Trial]]:
    """Direction -> its right candidates that are not in `fell`, the fastest first."""
    right: dict[str, list[Trial]] = {d: [] for d in LAUNCHES}
    for trial in _trials:
        if trial.kind == "candidate" and trial.ok and kernel_of(trial) not in _fell:
            right[trial.direction].append(trial)
    return {d: sorted(found, key=_ms) for d, found in right.items()}


@st.cache_resource(max_entries=32, show_spinner=False)
def _offered(known_by: tuple, templates: tuple, _found: list[Trial]) -> list[Trial]:
    """The first of these that can still be exported. All of them if there are no times to rank them."""
    if not (_found and _ms(_found[0]) < inf):
        return list(filter(_still_there, _found))
    return list(islice(filter(_still_there, _found[:_MOST_RENDERED]), _MOST_OFFERED))


def _ms(trial: Trial) -> float:
    """The time for ranking; infinite for emulated times."""
    return trial.kernel_ms.median_ms if trial.kernel_ms and not report.is_emulated(trial) else float("inf")


def _labels(trials: list[Trial]) -> dict[str, str]:
    """Trial id -> its variant, and those tunables in which the configs of this variant differ."""
    configs: dict[str, dict[str, set[int | str]]] = {}
    for trial in trials:
        of_variant = configs.setdefault(trial.name, {})
        for name, value in trial.config.items():
            of_variant.setdefault(name, set()).add(value)
    return {t.trial_id: " ".join([t.name, *(f"{k}={v}" for k, v in t.config.items() if len(configs[t.name][k]) > 1)])
            for t in trials}


def _still_there(trial: Trial) -> bool:
    """Whether the candidate can still be exported: the template must still render to exactly the source that was judged."""
    try:
        judged_candidate(trial)
    except BadRequest:
        return False
    return True


def _recipe_table(trials: list[Trial], chosen: dict[str, Trial | None], session: str) -> str:
    recorded = f" {theme.badge(state.recorded_on(session))}" if session.startswith("recorded-") else ""
    rows = []
    for direction, trial in chosen.items():
        if trial is None and chosen.get(BACKWARD) and direction in (GRAD_INPUT, GRAD_WEIGHT):
            rows.append((escape(direction), "computed by backward", "–", "–", theme.badge("OK")))
            continue
        if trial is None:
            rows.append((escape(direction), PYTORCH, "–", "–", theme.badge("NOTE", "left to PyTorch")))
            continue
        ratio = report.speedup(trial, report.best_baseline(trials, trial))
        emulated = report.is_emulated(trial)
        time = numbers.time(trial.kernel_ms.median_ms) if trial.kernel_ms else "–"
        config = " ".join(f"{name}={value}" for name, value in trial.config.items())
        rows.append((escape(direction), f"<span{theme.hint(config)}>{escape(trial.name)}</span>", time,
                     numbers.ratio(ratio.value) if ratio and not emulated else "–",
                     theme.badge("OK") + (" " + theme.badge(report.EMULATED) if emulated else "") + recorded))
    return theme.heading("Recipe: one candidate per direction") + theme.table(
        ("direction", "candidate", "median", "vs PyTorch", "status"), rows, right=(2, 3))


def _strip(file_name: str, text: str, device: str, proof: ModuleJudged | None) -> str:
    lines = f"{numbers.count(text.count(chr(10)))} lines, {numbers.bytes_decimal(len(text.encode()))}."
    if proof is None:
        return theme.strip("READY", f"{file_name} is not verified yet",
                           f"Verify runs this exact file in a fresh process. {lines}")
    if proof.status != "OK":
        return theme.strip(proof.status, proof.headline, f"{proof.advice} {lines}")
    return theme.strip("VERIFIED", f"{file_name} is ready",
                       f"A fresh process on {device} ran this exact file: {proof.headline} {lines}")


def _buttons(file: _File, device: str, proof: ModuleJudged | None, *, busy: bool) -> None:
    proved = proof is not None and proof.status == "OK"
    with st.container(horizontal=True):
        st.download_button("Download", file.text, file_name=file.name, mime="text/x-python", on_click="ignore",
                           type="primary" if proved else "secondary", disabled=not proved,
                           help="Download the verified file" if proved else "Verify the file first")
        # The click may bring a class name that was just typed. `file` has it, because this drawing made it after the click.
        if theme.button("Verify again" if proof else "Verify", type="secondary" if proved else "primary", key="prove",
                        disabled=busy, shortcut=theme.RUN_KEY,
                        help=f"Runs this exact file in a fresh process. Key: {theme.RUN_KEY}"):
            _begin_proof(file, device)
            st.rerun()


@st.fragment(run_every=0.5)
def _live_strip(proof: Future, file_name: str, key: str) -> None:
    if proof.done():
        st.rerun()
    state.title(f"● verifying {file_name}")
    said = _said().get(key, "")
    theme.html(theme.strip("RUNNING", f"A fresh process builds and checks {file_name}",
                           f"{said}{'. ' if said else ''}{time.monotonic() - _begun()[key]:.0f} s since start. It builds the "
                           "kernels and checks the outputs and gradients. Then you can download the file. Closing the browser "
                           "does not stop it."))


def _begin_proof(file: _File, device: str) -> None:
    key = _digest(file.text, device)
    _said().pop(key, None)
    _begun()[key] = time.monotonic()
    runner = state.runner()
    order = module_order(file.text, file.workload, device=device, scratch=runner.work_dir, preset=file.preset,
                         class_name=file.class_name)
    prove = partial(runner.prove, limit_s=_PROOF_LIMIT_S, on_text=partial(_said().__setitem__, key))
    _proofs()[key] = _prover().submit(verify, prove, order)


@st.cache_resource(show_spinner=False)
def _proofs() -> dict[str, Future]:
    """(text, device) -> the verification, running or done. They are kept in the server, so that a reload finds them."""
    return {}


@st.cache_resource(show_spinner=False)
def _said() -> dict[str, str]:
    """The same key -> the process for which the verification waits, if any."""
    return {}


@st.cache_resource(show_spinner=False)
def _begun() -> dict[str, float]:
    """The same key -> the start of the verification."""
    return {}


@st.cache_resource(show_spinner=False)
def _prover() -> DaemonThreads:
    return DaemonThreads(1)


def _proof_table(proof: ModuleJudged) -> str:
    rows = []
    for name, e in proof.errors.items():
        rows.append((theme.badge("PASSED" if not e.wrong else "FAILED"), escape(name),
                     f"{numbers.error(e.rel_l2)} relative L2, {numbers.error(e.allowed)} allowed"))
    detail = proof.detail
    rows += [(theme.badge("PASSED"), escape(str(what)), "") for what in detail.checked or ()]
    if detail.left_to_pytorch:
        rows.append((theme.badge("NOTE"), "left to PyTorch", escape(", ".join(detail.left_to_pytorch))))
    if detail.log_tail:
        rows.append((theme.badge("NOTE"), "log", f"<pre>{escape(detail.log_tail)}</pre>"))
    return theme.heading("Verification in a fresh process") + theme.table(("", "", ""), rows) if rows else ""


def _digest(text: str, device: str) -> str:
    return hashlib.sha256(f"{device}\0{text}".encode()).hexdigest()
