"""Makes candidates and recipes from recorded trials, if the present templates still give the same source."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from ...core import numbers
from ...core.best_known import BestKnown, best_config
from ...core.candidate import EMULATED_SM, Candidate, derived_values, resolved_values
from ...core.command import PROGRAM
from ...core.errors import BadRequest, RenderError
from ...core.fork import fork, forked, variant_of_text
from ...core.gpu import sm_of
from ...core.layer import LAUNCHES, Workload
from ...core.occupancy import Occupancy, candidate_occupancy
from ...core.precision import CLASSED, CLASSES
from ...core.replies import MachineCode
from ...core.sass import Kernel, read
from ...core.template import render
from ...core.trial import SHOWS_NOTHING, Status, Trial
from ...core.typed import Misfit
from ...core.typed import read as read_typed
from ...core.variants import find
from ...core.wrong_values import WrongValues
from ..exporting.best_recipe import DEFAULT_ARCH, measured_note
from ..exporting.recipe import Recipe, fastest
from ..reporting.main_kernel import arch_of, main_kernel, own_name
from ..reporting.report import SLOWER, best_baseline, is_emulated, speedup
from .files import TUNE_WON, name_of
from .session import Session, list_sessions

WHAT = ("source", "template", "config", "ptx", "sass")   # these parts of two candidates can be compared

def candidate_of(trial: Trial, *, templates: Path | None = None) -> Candidate:
    """The trial's candidate, with the template as it is now below `templates` (default: the shipped ones).

    For a fork, it has the text that its session keeps. Raises `BadRequest` if its variant no longer exists."""
    layer, dtype = trial.workload.layer, trial.workload.dtype
    if trial.forked_from:
        return _fork_again(trial, Session(Path(trial.kept_in)), templates)
    return Candidate(find(trial.name, trial.direction, root=templates), layer, dtype, trial.tunables,
                     trial.precision, trial.form or "constant", trial.compile_flags)


def fork_of_trial(text: str, trial: Trial, session: Session, *, templates: Path | None = None) -> Candidate:
    """The candidate of an edited text. Before the edit it was the template or the rendering of this trial. Raises `BadRequest`.
    """
    if trial.kind != "candidate":
        raise BadRequest(f"{trial.name} is not a candidate, so it has no kernel; name a trial of a kernel.", field="source")
    parent = _fork_again(trial, session, templates) if trial.forked_from else _kept(trial, session, templates)
    return fork(text, parent, trial.candidate_id or trial.trial_id)


def template_of(trial: Trial, session: Session, *, templates: Path | None = None) -> str:
    """The text of the template as it was judged, in the trial's direction. If the session does not have it, the present text,
    provided that it still gives the same source. Raises `BadRequest`."""
    try:
        return session.blob(trial.blobs.get("template", "")).decode("utf-8", "replace")
    except BadRequest:
        return judged_candidate(trial, templates=templates).variant.text


def _kept(trial: Trial, session: Session, templates: Path | None) -> Candidate:
    """The candidate with the template's text from the session."""
    variant = variant_of_text(template_of(trial, session, templates=templates), trial.variant, trial.direction, root=templates)
    return Candidate(variant, trial.workload.layer, trial.workload.dtype, trial.tunables, trial.precision,
                     trial.form or "constant", trial.compile_flags)


def _fork_again(trial: Trial, session: Session, templates: Path | None) -> Candidate:
    """The candidate of a fork, made from the template in the session, or from the source if a header was edited."""
    parent = _kept(trial, session, templates)
    made = forked(parent.variant.text, parent, trial.forked_from)
    with suppress(RenderError):
        if not trial.candidate_id or render(made).candidate_id == trial.candidate_id:
            return made
    return forked(session.blob(trial.blobs.get("source", "")).decode(), parent, trial.forked_from)


def occupancy_of(trial: Trial) -> dict[str, dict[str, Occupancy]]:
    """{arch: {main kernel: its occupancy}} of a candidate, for the architectures with nvcc's numbers. Empty if the template no
    longer exists or does not give the block size. Helper kernels are left out, because their blocks have other sizes."""
    found: dict[str, dict[str, Occupancy]] = {}
    candidate = _candidate_or_none(trial)
    if candidate is None:
        return found
    for arch, kernels in trial.resources.items():
        if kernels:
            name = main_kernel(trial, arch)
            if one := candidate_occupancy(candidate, kernels[name], sm=sm_of(arch)):
                found[arch] = {name: one}
    return found


def most_shared_bytes(trial: Trial, arch: str) -> int | None:
    """The shared memory of a block of the main kernel, static and dynamic. None if the template no longer exists, or if the
    kernel uses dynamic shared memory and the template does not say how much."""
    static = trial.resources[arch][main_kernel(trial, arch)].shared_bytes
    candidate = _candidate_or_none(trial)
    if candidate is None:
        return None
    declared = derived_values(candidate, sm=sm_of(arch)).get("smem_bytes")
    if declared is not None:
        return max(static, int(declared))
    return None if "extern __shared__" in render(candidate).source else static


def resolved_of(trial: Trial) -> dict[str, int]:
    """The values that were used for tunables that are 0 ("automatic"), as the present template derives them. Empty if it no
    longer exists."""
    candidate = _candidate_or_none(trial)
    try:
        return resolved_values(candidate, sm=trial.device.sm or EMULATED_SM) if candidate else {}
    except BadRequest:  # the template has changed since
        return {}


def wrong_values_of(trial: Trial) -> WrongValues | None:
    """Where the results of a trial are wrong, if that was examined and its session has it."""
    if "wrong" not in trial.blobs or not trial.kept_in:
        return None
    try:
        return read_typed(WrongValues, json.loads(Session(Path(trial.kept_in)).blob(trial.blobs["wrong"])))
    except (BadRequest, Misfit, ValueError):
        return None


def judged_candidate(trial: Trial, *, templates: Path | None = None) -> Candidate:
    """The same as `candidate_of`, but its source must be the one that was judged, because only judged sources are exported.
    Raises `BadRequest`."""
    candidate = candidate_of(trial, templates=templates)
    if render(candidate).candidate_id != trial.candidate_id:
        raise BadRequest(f"The template {candidate.variant.key} has changed since trial {trial.trial_id} was judged; "
                         f"run it again: {trial.command}")
    return candidate


def has_changed(trial: Trial) -> bool:
    """Whether its template still exists but gives another source than the judged one."""
    if trial.kind != "candidate" or trial.forked_from or not trial.candidate_id:
        return False
    try:
        return render(candidate_of(trial)).candidate_id != trial.candidate_id
    except BadRequest:
        return False


def source_of(trial: Trial, session: Session) -> str:
    """The translation unit that was compiled. A shipped session may lack it. Then it is rendered from the present template, if
    that still gives the same source. Raises `BadRequest`."""
    try:
        return session.blob(trial.blobs["source"]).decode("utf-8", "replace")
    except BadRequest:
        if trial.kind != "candidate":
            raise
        return render(judged_candidate(trial)).source


def machine_code_of(trial: Trial, session: Session, ask: Callable[[str, str, tuple[str, ...]], MachineCode]
                    ) -> tuple[MachineCode, list[Kernel], str]:
    """The machine code of a trial from `ask` (source, target, flags); its kernels with short names, the main kernel first; and
    the target. The target is the one whose resources are shown, else that of the variant, else sm_90. Raises `BadRequest` if
    the source is not available."""
    candidate = _candidate_or_none(trial)
    own = candidate.variant.arch if candidate else ""
    arch = arch_of(trial) or own or f"sm_{EMULATED_SM}"
    answer = ask(source_of(trial, session), arch, trial.compile_flags)
    kernels = [replace(k, name=answer.names.get(k.name, k.name)) for k in read(answer.sass, answer.live)]
    wanted = own_name(trial.variant, trial.direction)
    main = main_kernel(trial, arch) if trial.resources.get(arch) else ""  # the instance of the kernel whose resources are shown
    return answer, sorted(kernels, key=lambda k: (k.name != main, k.name.partition("<")[0] != wanted, -len(k.code))), arch


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a trial, a candidate that need not have run, or the text of a file."""

    name: str
    trial: Trial | None = None
    session: Session | None = None
    candidate: Candidate | None = None
    text: str | None = None

    @classmethod
    def of(cls, trial: Trial) -> Side:
        session = Session(Path(trial.kept_in))
        return cls(f"{session.name}:{trial.trial_id} {trial.name} {trial.direction}", trial, session)


def text_of(side: Side, what: str, ask: Callable[[str, str, tuple[str, ...]], MachineCode]) -> str:
    """The template, source, config, PTX or SASS of a side, as text. `ask` is that of `machine_code_of`. Raises `BadRequest`
    with the reason if the side does not have it."""
    if side.text is not None:
        if what not in ("template", "source"):
            raise BadRequest(f"{side.name} is a file; only its template or source can be compared.", field="what")
        return side.text
    if side.candidate is None and side.trial is not None and side.session is not None:
        trial, session = side.trial, side.session
        if trial.kind != "candidate" and what != "source":
            raise BadRequest(f"{side.name} is not a candidate; it has no {what}.", field="what")
        if what == "template":
            return template_of(trial, session)
        if what == "source":
            return source_of(trial, session)
        if what == "config":
            return _config_text(trial.name, trial.direction, trial.precision, trial.form, trial.compile_flags, trial.tunables)
        return _assembly(*machine_code_of(trial, session, ask)[:2], what)
    candidate = side.candidate
    assert candidate is not None
    variant = candidate.variant
    if what == "template":
        return variant.text
    if what == "source":
        return render(candidate).source
    if what == "config":
        return _config_text(variant.name, variant.direction, candidate.precision, candidate.form, candidate.compile_flags,
                            candidate.config)
    answer = ask(render(candidate).source, variant.arch or f"sm_{EMULATED_SM}", candidate.compile_flags)
    return _assembly(answer, [replace(k, name=answer.names.get(k.name, k.name)) for k in read(answer.sass, answer.live)], what)


def _config_text(name: str, direction: str, precision: str, form: str, flags: Sequence[str], config: Mapping[str, int]) -> str:
    lines = [f"variant = {name}", f"direction = {direction}", f"precision = {precision}", f"form = {form or 'constant'}",
             f"flags = {' '.join(flags) or 'none'}", *(f"{k} = {v}" for k, v in config.items())]
    return "\n".join(lines)


def _assembly(answer: MachineCode, kernels: Sequence[Kernel], what: str) -> str:
    """PTX without comments and line information, or SASS without addresses, so that code that only moved to other lines is
    equal."""
    if what == "ptx" and answer.ptx:
        kept = (line.partition("//")[0].rstrip() for line in answer.ptx.splitlines())
        return "\n".join(line for line in kept if line and not line.lstrip().startswith((".loc", ".file")))
    if answer.status is not Status.OK or not kernels:
        raise BadRequest(f"{answer.headline or 'It has no kernel.'} {answer.advice}".strip(), field="what")
    return "\n".join(line for kernel in kernels for line in (f"{kernel.name}:", *(f"    {i.text}" for i in kernel.code)))


# A trial with one of these does not show that its kernel is wrong.
_SAYS_NOTHING = SHOWS_NOTHING | {Status.OK, Status.RENDER_FAILED, Status.BUILD_FAILED, Status.BUILD_TIMEOUT}


def fallen(trials: Iterable[Trial]) -> dict[tuple[str, str, str], Trial]:
    """The candidates that were found wrong, with any inputs or sizes of their layer: `kernel_of` a trial -> the trial that
    found it wrong. `trials`: all of a session, because the finals of a tune also judge odd sizes."""
    return {kernel_of(t): t for t in trials if t.kind == "candidate" and t.candidate_id and t.status not in _SAYS_NOTHING}


def kernel_of(trial: Trial) -> tuple[str, str, str]:
    """The key of a kernel on one kind of device. It does not depend on the trial's inputs and sizes."""
    return trial.direction, trial.candidate_id, trial.device.key


def unbeaten(trials: Iterable[Trial], events: Iterable[Mapping[str, Any]]) -> list[Trial]:
    """The trials without the candidates that lost to the winner of a tune: the finals compared it with the best of all that
    were judged before. Their order, unlike that of single medians, was found in alternating timings. `events`: those of the
    session."""
    trials = list(trials)
    there = {t.trial_id: t for t in trials if t.ok}
    won: dict[tuple[object, ...], tuple[str, Trial, Sequence[str]]] = {}
    for event in events:
        winner = there.get(str(event.get("trial_id"))) if event.get("event") == TUNE_WON else None
        if winner is not None:
            name = str(event.get("precision_class"))
            won[(winner.workload, winner.direction, winner.device.key, name)] = (
                str(event.get("at")), winner, CLASSES.get(name, (name,)))

    def lost(trial: Trial) -> bool:
        return any(trial is not winner and trial.at <= at and trial.precision in admitted and trial.workload == winner.workload
                   and (trial.direction, trial.device.key) == (winner.direction, winner.device.key)
                   for at, winner, admitted in won.values())

    return [t for t in trials if t.kind != "candidate" or t.forked_from or t.compile_flags or not lost(t)]


def first_choice(trials: Iterable[Trial], arch: str, everyone: Sequence[Trial] = (), *, named: bool = False
                 ) -> tuple[Trial | None, str]:
    """Choose one of the right candidates of one direction; with a sentence about the choice, or "". It is the fastest on a GPU.
    Without GPU times it is the only candidate, or the best known one for `arch`. None with a sentence if PyTorch (from the
    trials `everyone`) is faster. None without a sentence if there is no basis for a choice. `named`: a person named the trials.
    """
    different = {(t.name, t.precision, t.form, t.compile_flags, str(sorted(t.config.items()))): t for t in trials}
    if best := min((t for t in different.values() if _ms(t) < inf), key=_ms, default=None):
        baseline = best_baseline(everyone, best)
        ratio = speedup(best, baseline)
        if baseline and ratio and ratio.verdict == SLOWER:
            return None, (f"{best.direction}: left to PyTorch, which takes {numbers.time(_ms(baseline))} against "
                          f"{numbers.time(_ms(best))} of {best.name}, the fastest candidate.")
        return best, ""
    if len(different) == 1:
        only = next(iter(different.values()))
        why = "you named it" if named else "no other candidate was right"
        return only, f"{only.direction}: {only.name} is taken because {why}. It has no GPU time."
    for trial in different.values():
        if known := _best_known(trial, arch):
            return trial, (f"{trial.direction}: {trial.name} is taken because it is the best known for {known.arch}. The "
                           "session has no GPU times.")
    return None, ""


def recipe_from_trials(trials: Iterable[Trial], workload: Workload | None = None, *, templates: Path | None = None,
                       arch: str = DEFAULT_ARCH, events: Iterable[Mapping[str, Any]] = ()) -> tuple[Recipe, list[str]]:
    """The recipe of `chosen_trials`, and the sentences about the choices. Raises `BadRequest`."""
    trials = list(trials)
    best, notes = chosen_trials(trials, workload, arch=arch, events=events)
    return recipe_of(best, trials, workload=workload, templates=templates, arch=arch), notes


def chosen_trials(trials: Sequence[Trial], workload: Workload | None = None, *, arch: str = DEFAULT_ARCH,
                  events: Iterable[Mapping[str, Any]] = (), named: bool = False) -> tuple[dict[str, Trial], list[str]]:
    """Direction -> its `first_choice`, for the directions of the fastest recipe; and the sentences about the choices. They are
    for `workload`, or for the only workload of the trials. Candidates that were right once and wrong once are left out; with
    the `events` of the session also those that lost in the finals of a tune. Raises `BadRequest` if no candidate was right, if
    there are several workloads, or if there is no basis for a choice."""
    fell = fallen(trials)
    once = [t for t in trials if t.kind == "candidate" and t.ok]
    right = unbeaten([t for t in once if kernel_of(t) not in fell], events)
    if once and not right:
        raise BadRequest(f"Nothing to export: {found_wrong(fell[kernel_of(once[0])])}", field="session")
    works = {(t.workload, t.workload.preset): t.workload for t in right}
    if workload is None:
        if len(works) != 1:
            names = ", ".join(w.preset or str(w.layer) for w in works.values())
            raise BadRequest(f"The session holds right candidates for {names}; choose one with --preset or --layer."
                             if works else "No candidate was right, so there is nothing to export.", field="session")
        workload = next(iter(works.values()))
    elif not any(t.workload == workload for t in right):  # of a session with another seed
        workload = next((t.workload for t in right if replace(t.workload, seed=workload.seed) == workload), workload)
    there: dict[str, list[Trial]] = {}
    for trial in right:
        if trial.workload == workload and trial.direction in LAUNCHES:
            there.setdefault(trial.direction, []).append(trial)
    if not there:
        raise BadRequest(f"No candidate was right for {workload.layer}, so there is nothing to export.", field="session")
    best = {}
    before = {kernel_of(t) for t in once if t.workload == workload}
    notes = [found_wrong(bad) for kernel, bad in fell.items() if kernel in before]
    for direction, some in there.items():
        chosen, note = first_choice(some, arch, trials, named=named)
        notes += [note] if note else []
        if chosen:
            best[direction] = chosen
        elif not note:
            names = ", ".join(dict.fromkeys(t.name for t in some))
            raise BadRequest(f"No {direction} candidate of the session has a GPU time, so the fastest of {names} is not "
                             f"known; choose one with --trial ID (in a notebook: variants=NAME).", field="session")
    if not best:
        raise BadRequest(f"Nothing to export. {' '.join(notes)}", field="session")
    used = fastest({direction: _ms(trial) for direction, trial in best.items()})
    return {d: best[d] for d in used}, notes


def recipe_of(chosen: Mapping[str, Trial], trials: Iterable[Trial], *, workload: Workload | None = None,
              templates: Path | None = None, named: Iterable[str] = (), arch: str = DEFAULT_ARCH) -> Recipe:
    """The recipe of these trials, direction -> trial. `trials` has PyTorch's: they say on which GPU a kernel was measured to be
    faster (`Recipe.proven`). A kernel that was not is used on no GPU, unless a person chose it: `named` has the directions of
    such kernels. Raises `BadRequest` if a template has changed since."""
    trials, named = list(trials), set(named)
    proven = {d: found for d, t in chosen.items() if (found := _proven(t, trials, arch)) or d not in named}
    return Recipe.of(workload or next(iter(chosen.values())).workload,
                     {d: judged_candidate(t, templates=templates) for d, t in chosen.items()}, proven=proven)


def trial_notes(chosen: Mapping[str, Trial], trials: Iterable[Trial], options: Sequence[str] = ()) -> list[str]:
    """Sentences for the header of a file: each direction's trial, time, PyTorch's time, error and GPU; the command that writes
    the file again, with these `options`."""
    trials, notes = list(trials), []
    for direction, trial in chosen.items():
        error = max((e.rel_l2 for e in trial.errors.values()), default=None)
        notes.append(f"{direction}: trial {trial.trial_id}.")
        if trial.kernel_ms is None or is_emulated(trial):
            said = f", relative error {error:.1e}" if error is not None else ""
            where = f"the CPU emulator ({trial.device.name})" if is_emulated(trial) else trial.device.name
            notes[-1] += f" Judged on {where}{said}, without a time of a GPU."
            continue
        baseline = best_baseline(trials, trial)
        times = (trial.kernel_ms.median_ms, _ms(baseline), baseline.name) if baseline else (trial.kernel_ms.median_ms, None, "")
        notes.append(measured_note(direction, times, error, trial.device.name, trial.workload.batch,
                                   trial.workload.input_size))
    session = Path(next(iter(chosen.values())).kept_in)
    listed = session.resolve() in [path.resolve() for path in list_sessions()]
    words = ["export", "--session", name_of(session) if listed else str(session), *options]
    return [*notes, f"Written by: {PROGRAM} {shlex.join(words)}"]


def measured_arch(chosen: Mapping[str, Trial]) -> str:
    """The GPU of these trials, such as sm_90; empty if they ran on the emulator."""
    return next((f"sm_{t.device.sm}" for t in chosen.values() if t.device.sm and not is_emulated(t)), "")


def _proven(trial: Trial, trials: Sequence[Trial], arch: str) -> int:
    """The GPU generation on which it was faster than PyTorch; 0 if that is not known. For an emulated trial it is that of the
    recorded measurement, if the candidate is the best known one."""
    if is_emulated(trial):
        known = _best_known(trial, arch)
        return known.proven if known else 0
    ratio = speedup(trial, best_baseline(trials, trial))
    return trial.device.sm if ratio and ratio.value > 1 and ratio.verdict != SLOWER else 0


def _best_known(trial: Trial, arch: str) -> BestKnown | None:
    """The best known entry of the trial's cell, if that is this candidate."""
    known = best_config(trial.direction, trial.workload, trial.precision, arch) if trial.precision in CLASSED else None
    same = known and (known.variant, known.precision, known.candidate(trial.workload).config) == (
        trial.name, trial.precision, trial.config)
    return known if same else None


def found_wrong(trial: Trial) -> str:
    """A sentence about a candidate that was found wrong, from the trial that found it."""
    work = trial.workload
    return (f"{trial.name} was wrong ({trial.status}) with batch {work.batch}, input size "
            f"{' x '.join(map(str, work.input_size))}, seed {work.seed}, so it is not exported.")


def _ms(trial: Trial) -> float:
    """The time for the choice; infinite for emulated times, which do not predict a GPU."""
    return inf if is_emulated(trial) else trial.kernel_median_ms


def _candidate_or_none(trial: Trial) -> Candidate | None:
    try:
        return candidate_of(trial) if trial.kind == "candidate" else None
    except BadRequest:
        return None
