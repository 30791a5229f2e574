"""Inspect: one trial with its source, build log, resources, errors and timing samples."""

from __future__ import annotations

import json
from html import escape

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from ...core import numbers, source_parts
from ...core.answers import joined
from ...core.errors import BadRequest
from ...core.gpu import gpu_limits, sm_of
from ...core.layer import CONTIGUOUS
from ...core.occupancy import REGISTERS_PER_THREAD_MAX
from ...core.presets import called
from ...core.trial import Errors, Status, Trial
from ...core.wrong_values import INTEGERS, SHORT, SmallestWrong, WrongValues, case_rows, sentence
from ...drive.reporting import plots, report
from ...drive.reporting.main_kernel import arch_of, main_kernel
from ...drive.sessions.files import clocks_of
from ...drive.sessions.recorded import has_changed, most_shared_bytes, occupancy_of, resolved_of, source_of, wrong_values_of
from ...drive.sessions.session import Session
from . import address, machine_code_view, pages, profile_view, source_view, state, theme
from .picture import case_svg

_FASTEST = 8  # the most configs of a cell in the list beside the source
_WHOLE = "all, as it was compiled"
_ASM, _PROFILE = "Machine code", "Profile"
_DIFF = "Diff"
_EDIT, _LADDER = "Edit", "Ladder"
_WIDE = (_EDIT, _DIFF, _LADDER, _ASM)  # views in the full width of the page, with the numbers below them
_VIEWS = ("Source", _EDIT, _DIFF, _LADDER, _ASM, _PROFILE, "Build log")
_NOT_BUILT = (Status.SKIPPED, Status.CANCELLED, Status.RENDER_FAILED, Status.NO_COMPILER, Status.BUILD_FAILED,
              Status.BUILD_TIMEOUT)
KEYS = ("inspect_session", "inspect_trial", "inspect_layer", "inspect_view", "part ", "asm ", "profile ", "diff ",
        "inspect_edit", "ladder ")  # of the widgets here


def draw() -> None:
    ended = source_view.follow()
    with st.sidebar:
        name = state.choose_session("Session", key="inspect_session", default=st.session_state.get("session"))
        path = state.session_paths().get(name)
        trials = [t for t in state.trials_of(path) if not report.is_baseline(t)]
        trial = _choose(trials)
    if path is None or trial is None:
        if state.dead_link():
            return
        theme.html(theme.strip("READY", "No trial yet",
                               "Run candidates on the Workbench, or open a session."))
        return
    session = Session(path)
    everything = report.for_workload(state.trials_of(path), trial.workload)
    with st.sidebar:
        _about(trial, everything, next((t for t in trials if t.candidate_id and t.candidate_id == trial.forked_from), None))
    state.title(f"{f'{ended},' if ended else theme.mark(str(trial.status))[0]} {trial.name} {trial.direction}, Inspect")
    strip = st.container()
    view = _view(trial)
    with strip:
        if not source_view.strip(trial, session, editing=view == _EDIT):
            theme.html(_strip(trial, everything, name))
    if view in _WIDE:
        _view_of_two(view, trial, session, everything)
    grid = st.grid(2, min_column_width=470, gap="medium")
    if view in _WIDE:
        _facts(trial, session, grid.container(), grid.container())
        return
    with grid.container():
        _text(view, trial, session)
    right = grid.container()
    _facts(trial, session, right, right)


def _facts(trial: Trial, session: Session, place: DeltaGenerator, more: DeltaGenerator) -> None:
    with place:
        if trial.errors and not trial.ok:
            theme.html(_errors(trial))
        _where_wrong(trial)
        if trial.ok:
            theme.html(_resources(trial))
        if trial.kernel_ms:
            _samples(trial, session)
        if trial.errors and trial.ok:
            theme.html(_errors(trial))
    with more:
        if not trial.ok:  # in the column beside the errors
            theme.html(_resources(trial))
        theme.html(theme.heading("The command that repeats this trial"))
        st.code(trial.command, language="bash", wrap_lines=True)
        if trial.ok and trial.kind == "candidate" and theme.button("Export", key="inspect_export",
                                                                   help="Choose this candidate on the page Export"):
            st.session_state["export_session"], st.session_state["export_rows"] = session.name, [trial.trial_id]
            st.switch_page(pages.page("export"))


def _choose(trials: list[Trial]) -> Trial | None:
    """The choice of a layer, if there are several, and of one of its trials. The newest trial is first; modules are last,
    because they have no kernel of their own."""
    by_id = {t.trial_id: t for t in sorted(reversed(trials), key=lambda t: t.kind == "module")}
    if not by_id:
        st.selectbox("Candidate", ["none yet"], disabled=True, key="inspect_trial-none")
        return None
    layers = list(dict.fromkeys(called(t.workload) for t in by_id.values()))
    asked = by_id.get(st.session_state.get("inspect_trial") or address.wants("trial"))
    if asked is not None:
        st.session_state["inspect_layer"] = called(asked.workload)
    elif st.session_state.get("inspect_layer") not in layers:
        st.session_state["inspect_layer"] = layers[0]
    if layers[1:]:
        st.selectbox("Layer", layers, key="inspect_layer", persist_state="session", on_change=_another_layer)
    here = [i for i, t in by_id.items() if called(t.workload) == st.session_state["inspect_layer"]]
    if lost := address.seek("inspect_trial", here, here[0], asked=address.wants("trial")):
        state.not_here("trial", lost, [f"{called(t.workload)}: {_name(t)}" for t in by_id.values()])
    labels = state.distinct({i: _name(by_id[i]) for i in here})
    chosen = st.selectbox("Candidate", here, key="inspect_trial", persist_state="session", placeholder="Choose a trial",
                          format_func=labels.get)
    address.note("trial", chosen or lost)
    if chosen and here[1:]:
        at = here.index(chosen)
        with st.container(horizontal=True, key="inspect_steps"):
            for label, to, key in (("Previous", at - 1, theme.PREVIOUS_KEY), ("Next", at + 1, theme.NEXT_KEY)):
                there = 0 <= to < len(here)
                st.button(label, key=f"inspect {label}", width="stretch", disabled=not there, shortcut=key, on_click=_step,
                          args=(here[to] if there else chosen,),
                          help=f"The {label.lower()} candidate of the list above, which begins with the newest. Key: {key}")
    return by_id.get(chosen)


def _step(trial: str) -> None:
    """The callback of the buttons Previous and Next."""
    st.session_state["inspect_trial"] = trial


def _another_layer() -> None:
    """The callback of the layer's box: the trial of the previous layer is no longer selected."""
    st.session_state.pop("inspect_trial", None)


def _name(trial: Trial) -> str:
    """The label of a trial. The time or status is first, because a narrow list cuts off the end."""
    time = numbers.time(trial.kernel_ms.median_ms) if trial.kernel_ms else str(trial.status)
    mark = " *" if trial.kernel_ms and report.is_emulated(trial) else ""
    return f"{time}{mark} · {trial.name} · {trial.direction}"


def _config(trial: Trial) -> str:
    return " ".join(f"{name}={value}" for name, value in trial.config.items())


def _strip(trial: Trial, everything: list[Trial], session: str) -> str:
    marks = [state.recorded_on(session)] if session.startswith("recorded-") and not trial.forked_from else []
    changed = not session.startswith("recorded-") and has_changed(trial)
    baseline = report.best_baseline(everything, trial)
    ratio = report.speedup(trial, baseline)
    timing = trial.kernel_ms
    sentence, evidence = f"{trial.name}, {trial.direction}, {trial.precision}: {trial.headline}", trial.advice
    if trial.ok and trial.module_ms:
        evidence = ", ".join(f"{d} {numbers.time(t.median_ms)}" for d, t in trial.module_ms.items()) + " (module_ms)"
        if report.is_emulated(trial):
            marks.append(report.EMULATED)
            evidence += " on the CPU emulator, which does not predict a GPU."
    if trial.ok and timing:
        worst = numbers.error(max((e.rel_l2 for e in trial.errors.values()), default=None))
        evidence = (f"{numbers.time(timing.median_ms)}, spread {numbers.spread(timing.spread)} over {timing.samples} samples. "
                    f"Largest error {worst} relative L2.")
        if report.is_emulated(trial):
            marks.append(report.EMULATED)
            evidence = f"{numbers.time(timing.median_ms)} on the CPU emulator, which does not predict a GPU. " + \
                       f"Samples: {timing.samples}. Largest error {worst} relative L2."
        elif ratio:
            marks.append(ratio.verdict)
            sentence = report.verdict_sentence(f"{trial.name} {trial.direction} ({trial.precision})", ratio, baseline)
            evidence = f"Right in all checks. {evidence}{report.more_words(ratio, timing, baseline.kernel_ms)}"
    if changed:
        marks.append("CHANGED")
        evidence += " The template has changed since this trial. The source below is the one that was judged."
    return theme.strip(str(trial.status), sentence, evidence, more_badges=marks)


def _about(trial: Trial, everything: list[Trial], parent: Trial | None) -> None:
    same = sorted((t for t in everything if t.kind == "candidate" and t.direction == trial.direction and t.ok
                   and t.kernel_ms and report.same_place(t, trial)), key=lambda t: t.kernel_ms.median_ms)
    work = trial.workload
    sizes = [f"batch {work.batch}", f"input size {numbers.shape(work.input_size)}", work.dtype,
             *([work.memory_format] if work.memory_format != CONTIGUOUS else [])]
    origin = [called(work)] if work.preset else []
    parts = [theme.heading("Layer") + f"<div class='mono'>{escape(str(work.layer))}</div>"
             f"<span class=mute>{escape(', '.join([*origin, *sizes]))}</span>"]
    if same:
        shown = [t for i, t in enumerate(same) if i < _FASTEST or t.trial_id == trial.trial_id]
        rows = [(f"<{tag}{theme.hint(_config(t))} style='overflow-wrap:anywhere'>"
                 f"{escape(t.name).replace('_', '_<wbr>')}</{tag}>",
                 f"<span class=mute>{escape(t.precision)}</span>",
                 f"<span class=mute>{numbers.time(t.kernel_ms.median_ms)}"
                 f"{' *' if report.is_emulated(t) else ''}</span>")
                for t in shown for tag in ("b" if t.trial_id == trial.trial_id else "span",)]
        most = f", {len(shown)} of {len(same)}" if len(shown) < len(same) else ""
        parts.append(theme.heading(f"Right in {trial.direction}{most}") + theme.table(("", "", ""), rows, right=(2,)))
        if any(report.is_emulated(t) for t in same):
            parts.append('<span class="foot">* emulated: does not predict a GPU</span>')
    automatic = resolved_of(trial)
    config = [*(f"{k} = {v}{f' (auto {automatic[k]})' if k in automatic else ''}" for k, v in trial.config.items()),
              f"precision = {trial.precision}"]
    if trial.form:
        config.append(f"form = {trial.form}")
    config += trial.compile_flags
    parts.append(theme.heading("Config") + f"<div class='mono'>{'<br>'.join(map(escape, config))}</div>")
    environment = trial.environment
    names = (("torch", "torch "), ("cuda", "CUDA "
                                           ""), ("nvcc", ""), ("cxx", ""))  # the texts of compilers contain their name already
    versions = ", ".join(f"{name}{environment[k]}" for k, name in names if environment.get(k))
    parts.append(theme.heading("Where it ran") + f"{escape(trial.device.name)}, "
                 f"{escape(trial.device.arch)}<br><span class=mute>{escape(versions)}</span>")
    if trial.flags:
        parts.append(theme.heading("Notes") + ", ".join(map(theme.meaning, trial.flags)))
    if trial.forked_from:
        told = f"<br>{escape(_name(parent))}" if parent else ""
        parts.append(theme.heading("Forked from") + f"<span class=mono>{escape(trial.forked_from)}</span>{told}")
    parts.append(theme.heading("Candidate id") + f"<span class=mono>{escape(trial.candidate_id or '–')}</span>")
    theme.html("<div style='height:8px'></div>".join(parts))


def _view(trial: Trial) -> str:
    """The chosen view of the trial. Initially it is the most useful one for its status."""
    not_built = str(trial.status).startswith(("BUILD", "NO_COMPILER", "MACHINE_FAILED"))
    usual = "Build log" if not_built else "Source" if trial.ok or trial.kind != "candidate" else _EDIT
    state.seed("inspect_view", _VIEWS, usual, name="view")  # it stays when another trial is chosen
    view = st.segmented_control("View", _VIEWS, key="inspect_view", required=True, persist_state="session",
                                label_visibility="collapsed", width="stretch") or usual
    address.note("view", view, usual)
    return view


def _text(view: str, trial: Trial, session: Session) -> None:
    if view == _PROFILE and trial.kind == "candidate":
        profile_view.profile(trial, session)
        return
    if view == _PROFILE:
        theme.html(f'<span class="foot">{escape(trial.name)} has no kernel of its own. Open one of the candidates.</span>')
        return
    blob = "log" if view == "Build log" else "source"
    if blob not in trial.blobs:
        theme.html(f'<span class="foot">This trial has no {view.lower()}: {escape(trial.headline)}</span>')
        return
    try:
        text = source_of(trial, session) if blob == "source" else session.blob(trial.blobs["log"]).decode("utf-8", "replace")
    except BadRequest as error:
        theme.html(f'<div class="wrong">{escape(str(error))}</div>')
        return
    if view == "Build log":
        st.code(text or "The compiler printed nothing.", language=None, line_numbers=True, height=560, wrap_lines=True)
        return
    if trial.kind == "module":
        st.code(text, language="python", line_numbers=True, height=560)
    else:
        _source(text, trial)


def _view_of_two(view: str, trial: Trial, session: Session, everything: list[Trial]) -> None:
    if trial.kind != "candidate":
        theme.html(f'<span class="foot">{escape(trial.name)} has no kernel of its own. Open one of the candidates.</span>')
    elif view == _EDIT:
        source_view.edit(trial, session)
    elif view == _ASM:
        machine_code_view.machine_code(trial, session)
    elif view == _DIFF:
        source_view.diff(trial, session, session.name)
    else:
        source_view.ladder(trial, session, everything)


def _source(source: str, trial: Trial) -> None:
    """One file of the translation unit. Initially it is the file that an error names, or that of the variant."""
    there = source_parts.parts(source)
    names, place = [*there, _WHOLE], source_parts.error_place(trial.headline, list(there))
    usual = place[0] if place else source_parts.own_part(list(there), trial.name)
    state.seed(f"part {trial.trial_id}", names, usual, name="file")
    name = st.selectbox("File", names, key=f"part {trial.trial_id}", persist_state="session",
                        help="The files that the translation unit was made of. An error names a line of one of them.")
    address.note("file", name, usual)
    marks = [(place[1], trial.headline)] if place and place[0] == name else []
    text = source if name == _WHOLE else there[name]
    source_view.read(text, f"{trial.trial_id} {name}", title=f"Source: {name}", marks=marks)


def _resources(trial: Trial) -> str:
    arch = arch_of(trial)
    if not arch:
        return theme.heading("Resources") + f'<span class="foot">{escape(_why_no_resources(trial))}</span>'
    kernels, name = trial.resources[arch], main_kernel(trial, arch)
    kernel = kernels[name]
    rows = [_occupancy_row(trial, arch, name),
            _gauge("registers", f"{kernel.registers} per thread",
                   kernel.registers / REGISTERS_PER_THREAD_MAX, f"of {REGISTERS_PER_THREAD_MAX}"),
            _shared_row(trial, arch, kernel.shared_bytes),
            _gauge("spills", f"{kernel.spill_store_bytes + kernel.spill_load_bytes} B", 0, ""),
            _gauge("constant memory", numbers.memory(kernel.constant_bytes), 0, "")]
    parts = [theme.heading(f"Resources of {_plain(name)}, {arch}") + theme.table(("",) * 4, rows, right=(1,))]
    parts += [f'<div class="foot">{escape(_plain(other))}: {k.registers} registers, '
              f'{numbers.memory(k.shared_bytes)} static shared memory</div>'
              for other, k in kernels.items() if other != name]
    others = [a for a, there in trial.resources.items() if a != arch and there]
    if others:
        words = [f"{a}: {trial.resources[a][main_kernel(trial, a)].registers} registers" for a in others]
        parts.append(f'<div class="foot">The main kernel for other targets: {escape("; ".join(words))}</div>')
    if trial.memory:
        memory = ", ".join(f"{k.removesuffix('_bytes')} {numbers.memory(v)}" for k, v in trial.memory.items())
        parts.append(f'<div class="foot">memory: {escape(memory)}</div>')
    return "".join(parts)


def _why_no_resources(trial: Trial) -> str:
    if trial.kind == "module":
        return "Each kernel of the module is also a candidate. Open that candidate to see its resources."
    if "shortened" in trial.flags:
        return "Not stored, because a trial record is limited to 4 KB. Run the command below to get them again."
    if trial.status in _NOT_BUILT:
        return f"Not known: the trial ended with {trial.status} before a kernel was built."
    if trial.environment.get("nvcc"):
        return "Not known: nvcc gave no numbers for this trial."
    return "Not known: they need nvcc, which was not installed when the trial ran (see Machine)."


def _occupancy_row(trial: Trial, arch: str, name: str) -> tuple[str, ...]:
    found = occupancy_of(trial).get(arch, {}).get(name)
    if found is None:
        return _gauge("occupancy", "not known", 0, "the template does not give its block size")
    warps, most = found.warps_per_sm, found.max_warps
    return _gauge("occupancy", f"{warps} warps of {most}", warps / most, f"limited by {found.limiter}")


def _shared_row(trial: Trial, arch: str, static: int) -> tuple[str, ...]:
    """Static and dynamic shared memory. The compiler knows the static part; the template's header gives the total."""
    limit, most = gpu_limits(sm_of(arch))["shared_per_block"], most_shared_bytes(trial, arch)
    if most is None:
        return _gauge("shared memory", f"{numbers.memory(static)} static", static / limit,
                      "the size of dynamic memory is not recorded")
    dynamic = f"{numbers.memory(static)} static, {numbers.memory(most - static)} dynamic at most"
    parts = "all static" if most == static else dynamic
    return _gauge("shared memory", f"{numbers.memory(most)} per block", most / limit, f"of {numbers.memory(limit)}: {parts}")


def _plain(kernel: str) -> str:
    """A kernel's short name without the types of its layer: `pack<Plan<true, c_0123::Layer>>` -> `pack`. Arguments that
    distinguish two instances stay: `strip_wgmma<4>`."""
    name, _, arguments = kernel.partition("<")
    return name if "::" in arguments else kernel


def _gauge(name: str, value: str, share: float, limit: str) -> tuple[str, ...]:
    return (f"<span class=nw>{theme.meaning(name)}</span>", escape(value),
            f"<div class=bar><i style='width:{min(100, round(100 * share))}%'></i></div>",
            f"<span class='mute nw'>{escape(limit)}</span>")


def _samples(trial: Trial, session: Session) -> None:
    timing = trial.kernel_ms
    blob = trial.blobs.get("samples")
    emulated = report.is_emulated(trial)
    words = [f"stopped by {timing.stop}", "L2 cold" if timing.cold_l2 else "L2 hot"]
    words += [f for f in trial.flags if f in ("throttled", "launch_bound", "too_small")]
    theme.html(theme.heading(f"Timing samples{', emulated' if emulated else ''} · {', '.join(words)}"))
    if not blob:
        return
    values = json.loads(session.blob(blob))
    limit = None if emulated else report.floor_ms(trial)
    theme.chart(plots.samples(values, median_ms=timing.median_ms, floor_ms=limit, clocks_mhz=clocks_of(trial),
                              mode=theme.mode()), key="samples",
                alt=f"{len(values)} timing samples, median {numbers.time(timing.median_ms)}")


def _errors(trial: Trial) -> str:
    rows = [(escape(name), *(numbers.error(None if e.without_distance else of) for of in (e.max_abs, e.rel_l2)),
             numbers.error(e.allowed), f"{numbers.count(e.wrong)} of {numbers.count(e.count)}", _worst(name, e, trial.status))
            for name, e in trial.errors.items()]
    looks = trial.detail.log_tail
    return (theme.heading("Errors against float64")
            + theme.table(("tensor", "max abs", "rel. L2", "allowed", "wrong", "worst"), rows, right=(1, 2, 3, 4))
            + (f"<pre>{escape(looks)}</pre>" if looks else ""))


def _worst(name: str, error: Errors, status: Status) -> str:
    short = {"output": "y", "grad_input": "grad_x", "grad_weight": "grad_w", "grad_bias": "grad_b"}.get(name, name)
    got = f"got {error.got:.4g}" if not error.without_distance else \
        "never written" if status is Status.UNWRITTEN else "NaN or infinite"
    return (f"<span class=mono>{escape(numbers.index(short, error.worst_index))}</span>: {got}, "
            f"expected {error.expected:.4g}")


def _where_wrong(trial: Trial) -> None:
    """Draw where the trial is wrong: the map, the shares by place, the errors, and the smallest case with its numbers.

    Draw nothing for a right trial, or for one that was not examined.
    """
    found = wrong_values_of(trial)
    if found is None:
        return
    said = sentence(found)
    advice = f" {found.looks_like.advice}" if found.looks_like else ""
    theme.html(theme.heading("Where it is wrong") + f"<p>{escape(said + advice)}</p>")
    step = " × ".join(map(str, found.step))
    cell = f". A cell of the map has {step} positions" if max(found.step) > 1 else ""
    theme.html(f'<span class="foot">{escape(_where_text(found))} Inputs: {escape(found.inputs)}{cell}.</span>')
    theme.chart(plots.wrong_map(found, mode=theme.mode()), key="wrong map", alt=said)
    if (shares := plots.wrong_shares(found, mode=theme.mode())) is not None:
        theme.html(theme.heading(f"Share of wrong values by {joined(list(found.along))}"))
        theme.chart(shares, key="wrong shares", alt=said)
    if (errors := plots.wrong_errors(found, mode=theme.mode())) is not None:
        theme.html(theme.heading("How large the errors are"))
        theme.chart(errors, key="wrong errors", alt="How far off the values are")
        if found.ratios and found.inputs == INTEGERS:
            theme.html('<span class="foot">The sums of exact integers have no rounding error, so a right kernel has no errors '
                       "here. The line marks the error that is allowed for random inputs.</span>")
    if found.not_finite:
        theme.html(f'<span class="foot">{numbers.count(found.not_finite)} values are NaN, infinite or never written.'
                   "</span>")
    if found.smallest is not None:
        _smallest_case(trial, found, found.smallest)


def _where_text(found: WrongValues) -> str:
    places = "tap" if found.tensor == "grad_weight" else "position"
    return (f"Share of wrong values of {found.tensor} by {places}: {numbers.count(found.wrong)} of "
            f"{numbers.count(found.count)} are wrong.")


def _smallest_case(trial: Trial, found: WrongValues, case: SmallestWrong) -> None:
    """The picture of the layer at that size, with the sum of the wrong element in numbers; then each summand."""
    theme.html(theme.heading("The smallest case that is still wrong"))
    element = numbers.index(SHORT.get(found.tensor, found.tensor), case.index)
    what = f"{element}, batch {case.batch}, input size {numbers.shape(case.input_size)}"
    theme.html(f"<p>{escape(what)}{escape(f': {case.said}.' if case.said else '')}</p>")
    if found.tensor != "grad_bias":
        theme.svg(case_svg(trial.workload, case, found.tensor), key="smallest picture")
    if rows := case_rows(case, found.tensor):
        summed = "the batch" if found.tensor in ("grad_weight", "grad_bias") else "channels"
        head = ("tap", "reads", "products", f"summed over {summed}")
        shown = [at for at in range(len(head)) if at != 2 or any(row[at] for row in rows)]  # of many channels only the sum
        cells = [tuple(f"<span class=mono>{escape(row[at])}</span>" for at in shown) for row in rows]
        theme.html(theme.table([head[at] for at in shown], cells, right=(len(shown) - 1,)))
