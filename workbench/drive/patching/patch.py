"""Patches a model; returns a `PatchReport` and the text of a patch file. The model runs in a measure worker, never in this
process, unless the caller holds the model itself (`ModelHost`)."""

from __future__ import annotations

import shlex
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ...core.candidate import Candidate
from ...core.command import PROGRAM
from ...core.env import require_torch
from ...core.errors import BadRequest
from ...core.gpu import sm_of
from ...core.layer import DIRECTIONS, Workload
from ...core.orders import InspectOrder, PatchOrder
from ...core.patching import (
    FASTER_ONLY,
    INFERENCE,
    KEEP,
    LIVE,
    TRAINING,
    Inspected,
    LayerCall,
    ModelSource,
    Patched,
    PatchedLayer,
    PatchReport,
)
from ...core.plain_text import plain
from ...core.replies import Event, ModuleJudged
from ...core.template import render
from ...core.trial import Status
from ..bench.prebuild import BuildAhead, build_workers
from ..exporting.best_recipe import arch_of
from ..exporting.export import export_text, module_order, note_lines, proof_workload, verify
from ..exporting.recipe import Recipe
from ..machine.background import Background
from ..machine.device_lock import held
from ..running.builds import BuildSettings
from ..running.request import EFFORTS, RunRequest
from ..running.runner import Runner
from ..running.worker_process import WorkerDied, WorkerFailed, WorkerProcess, WorkerTimeout
from ..sessions.recorded import recipe_from_trials
from ..sessions.session import Session
from ..tuning.feed import EFFORTS as TUNE_EFFORTS
from ..tuning.feed import TuneRequest
from ..tuning.store import tuned_here
from ..tuning.tune import every_gpu, tune
from .choose import Chosen, Distinct, Measured, choose, distinct
from .text import file_notes

LIMIT_S = 1800.0
_BUILD_LIMIT_S, _POLL_S = 300.0, 0.2
_PATCH = Path(__file__).with_name("patch_file.py.txt")  # takes the place of the class of an exported file
_CALLS = "# ---- Calls\n"      # the first line after the class of an exported file


@dataclass(frozen=True)
class PatchRequest:
    """The request of a user interface. `source.device` is already resolved to "cpu" or "cuda:N". Raises `BadRequest`."""

    source: ModelSource
    keep: str = FASTER_ONLY
    effort: str = "normal"
    limit_s: float = LIMIT_S
    tune: bool = False                   # first tune each layer
    tune_effort: str = "quick"           # of the tune of one layer; quick takes about a minute
    every_gpu: bool = False              # tune on all free GPUs of the same kind, not only on the one of `source`

    def __post_init__(self) -> None:
        for name, value, known in (("keep", self.keep, KEEP), ("effort", self.effort, EFFORTS),
                                   ("tune_effort", self.tune_effort, TUNE_EFFORTS)):
            if value not in known:
                raise BadRequest(f"{name} {value!r} is not known; choose {', '.join(known)}.", field=name)

    @property
    def command(self) -> str:
        """The command that repeats this request; empty for a model in the caller's process."""
        source = self.source
        if source.model == LIVE:
            return ""
        words = ["patch", source.model]
        for option, value, usual in (("--inputs", source.inputs, ""), ("--dtype", source.dtype, ""),
                                     ("--autocast", source.autocast, ""), ("--device", source.device, ""),
                                     ("--keep", self.keep, FASTER_ONLY), ("--effort", self.effort, "normal")):
            words += [option, value] if value != usual else []
        words += ["--train"] if source.train else []
        words += ["--tune"] if self.tune else []
        words += ["--tune-effort", self.tune_effort] if self.tune and self.tune_effort != "quick" else []
        words += ["--seed", str(source.seed)] if source.seed else []
        return f"{PROGRAM} {shlex.join(words)}"


class ModelHost(Protocol):
    """Where the model is: a worker process, or the caller's own process for a model that exists only there."""

    def inspect(self, order: InspectOrder, on_event: Callable[[Event], None]) -> Inspected: ...

    def patch(self, order: PatchOrder, on_event: Callable[[Event], None]) -> Patched: ...


@dataclass(frozen=True)
class PatchResult:
    """`text`: the patch file with the layers that stay replaced; empty if there are none."""

    report: PatchReport
    text: str


def patch(request: PatchRequest, runner: Runner, *, on_text: Callable[[str], None] = lambda text: None,
          stopped: threading.Event | None = None, host: ModelHost | None = None) -> PatchResult:
    """Find the layers, judge kernels for them, time them, and keep the replacements that are faster. Raises `BadRequest` if the
    model cannot be loaded or fails unpatched."""
    require_torch()
    begun, source = time.monotonic(), request.source
    emulated = source.device == "cpu"

    def on_event(event: Event) -> None:
        on_text(event.text)

    with _in_worker(request, stopped) if host is None else _given(host) as there:
        with held(source.device, on_text, stopped):
            inspected = there.inspect(InspectOrder(source), on_event)
        right, rows = _judged(inspected, request, runner, on_text, stopped)
        patched = Patched(())
        if right:
            order = PatchOrder(source, patch_text(inspected.name, right), _calls(inspected, right), request.keep,
                               request.effort)
            with held(source.device, on_text, stopped):
                patched = there.patch(order, on_event)
    timed = {row.path: row for row in patched.layers}
    wanted = TRAINING if source.train else INFERENCE
    for path, row in list(rows.items()):
        if (found := timed.get(path)) is not None:
            rows[path] = replace(row, kept=found.kept, reason=found.reason, times=found.times,
                                 verdict=found.times[wanted].verdict if wanted in found.times else "")
    report = PatchReport(
        plain(inspected.name), source, request.keep, inspected.device, emulated,
        tuple(rows[layer.paths[0]] for layer in inspected.layers), inspected.functional, patched.times, patched.drift,
        patched.peak_bytes, patched.undone, tuple(patched.flags), time.monotonic() - begun, request.command, patched.differs)
    kept = {row.found.paths[0] for row in report.kept}
    stay = [replace(one, recipe=_proven_here(one.recipe, source.device), paths=paths) for one in right
            if (paths := tuple(p for p in one.paths if p in kept))]
    return PatchResult(report, patch_text(inspected.name, stay, notes=file_notes(report)) if stay else "")


class Patch(Background):
    """One patch, running or done. `result` is set when it is `done`. It has its own runner."""

    def __init__(self, request: PatchRequest) -> None:
        super().__init__("patch")
        self.request = request
        self.result: PatchResult | None = None
        self.defect: WorkerFailed | None = None   # a defect of the workbench
        self._runner = Runner()

    def stop(self) -> None:
        super().stop()
        self._runner.close()

    def _work(self) -> None:
        try:
            with self._runner as runner:
                self.result = patch(self.request, runner, on_text=self._say, stopped=self._stopped)
        except BadRequest as error:
            self.problem = plain(str(error))
        except WorkerFailed as error:
            self.defect, self.problem = error, plain(str(error))
        except WorkerDied as error:
            self.problem = plain(f"The process of the model ended by {error.how}.")
        except WorkerTimeout as error:
            self.problem = plain(f"The model was stopped: it gave no answer within {error.limit_s:g} s.")
        except RuntimeError as error:
            self.problem = "Stopped by you." if self._stopped.is_set() else plain(str(error))


class _Worker:
    """A separate measure worker, because the user's code may change the state of its process."""

    def __init__(self, process: WorkerProcess, request: PatchRequest, stopped: threading.Event | None) -> None:
        self._process, self._limit_s, self._stopped = process, request.limit_s, stopped

    def inspect(self, order: InspectOrder, on_event: Callable[[Event], None]) -> Inspected:
        try:
            return self._process.call(order, limit_s=self._limit_s, on_event=on_event, stop=self._stopped)
        except WorkerFailed as error:
            raise _told(error) from error

    def patch(self, order: PatchOrder, on_event: Callable[[Event], None]) -> Patched:
        try:
            return self._process.call(order, limit_s=self._limit_s, on_event=on_event, stop=self._stopped)
        except WorkerFailed as error:
            raise _told(error) from error


@contextmanager
def _in_worker(request: PatchRequest, stopped: threading.Event | None) -> Iterator[ModelHost]:
    with tempfile.TemporaryDirectory(prefix="kernel-workbench-", ignore_cleanup_errors=True) as folder:
        process = WorkerProcess("measure", log_path=Path(folder) / "model.log", device=request.source.device)
        try:
            yield _Worker(process, request, stopped)
        finally:
            process.close()


@contextmanager
def _given(host: ModelHost) -> Iterator[ModelHost]:
    yield host


def _told(error: WorkerFailed) -> Exception:
    return BadRequest(plain(str(error))) if error.bad_request else error


def _judged(inspected: Inspected, request: PatchRequest, runner: Runner, on_text: Callable[[str], None],
            stopped: threading.Event | None) -> tuple[list[LayerRecipe], dict[str, PatchedLayer]]:
    """The recipes that were judged right, and a row for each instance; the key is its first path."""
    right: list[LayerRecipe] = []
    rows = {layer.paths[0]: PatchedLayer(layer, False, layer.why_not) for layer in inspected.layers}
    groups = distinct(inspected.layers)
    with _built_ahead(groups, request, runner) as ahead:
        for number, group in enumerate(groups, 1):
            if stopped is not None and stopped.is_set():
                raise RuntimeError("Stopped.")
            on_text(f"layer {number} of {len(groups)}: {group.workload.layer}")
            if request.tune:
                _tune(group.workload, request, runner, on_text, stopped)
            chosen = _chosen(group.workload, request, lambda work, there: _measured(
                work, there, ahead, request, runner, on_text, stopped))
            if chosen.recipe is None:
                rows |= {p: replace(rows[p], reason=chosen.origin) for p in group.paths}
                continue
            one = LayerRecipe(group.workload, chosen.recipe, group.paths)
            judged = _prove(one, request, runner, on_text)
            rows |= {p: _row(rows[p], one, chosen, judged) for p in group.paths}
            if judged.status == Status.OK:
                right.append(one)
    if stopped is not None and stopped.is_set():
        raise RuntimeError("Stopped.")
    return right, rows


def _chosen(workload: Workload, request: PatchRequest, measured: Measured) -> Chosen:
    return choose(workload, arch=arch_of(request.source.device), emulated=request.source.device == "cpu",
                  train=request.source.train, measured=measured)


def _built_ahead(groups: Sequence[Distinct], request: PatchRequest, runner: Runner) -> BuildAhead:
    """Builds what is to be measured of all layers, while the first ones are measured. A tune builds by itself."""
    arch = arch_of(request.source.device)
    wanted: list[Candidate] = []
    for group in groups if not request.tune else ():
        _chosen(group.workload, request, lambda work, there: wanted.extend(there))
    return BuildAhead([[render(one)] for one in wanted], BuildSettings("cuda", arch, "", _BUILD_LIMIT_S), runner.work_dir,
                      workers=build_workers())


def _tune(workload: Workload, request: PatchRequest, runner: Runner, on_text: Callable[[str], None],
          stopped: threading.Event | None) -> None:
    """Tune a layer. The result is kept in the local store, which `choose` reads. Directions that were tuned here before are not
    tuned again."""
    if request.source.device == "cpu":
        on_text("Nothing is tuned on the CPU: its times do not predict a GPU.")
        return
    arch = arch_of(request.source.device)
    left = [d for d in (DIRECTIONS if request.source.train else DIRECTIONS[:1]) if not tuned_here(workload, d, arch)]
    if not left:
        return
    device = request.source.device
    search(TuneRequest(workload, tuple(left), device=device, effort=request.tune_effort), Session.create(), runner, on_text,
           stopped, every_gpu(device) if request.every_gpu else (device,))


def search(request: TuneRequest, session: Session, runner: Runner, on_text: Callable[[str], None],
           stopped: threading.Event | None = None, places: Sequence[str] = ()) -> None:
    """Tune one layer on these places, by default on the requested device. After a stop or an interrupt, the command to continue
    is printed and the exception is raised again, because the caller must end too."""
    try:
        found = tune(request, session, runner, on_line=on_text, places=places)
    except BadRequest as error:
        on_text(str(error))   # no fast variant serves the layer, so PyTorch computes it
        return
    asked = stopped is not None and stopped.is_set()
    if found.state == "stopped" or asked:
        on_text("Stopped. The layers that were tuned before are kept. To go on with this one, run: "
                f"{PROGRAM} tune --resume {shlex.quote(session.name)}")
        if asked:
            raise RuntimeError("Stopped.")
        raise KeyboardInterrupt   # the interrupt has ended the tune; it must end the patch too


def _prove(one: LayerRecipe, request: PatchRequest, runner: Runner, on_text: Callable[[str], None]) -> ModuleJudged:
    """Judge the recipe as an exported file, in a fresh worker. On the CPU with a small input: the emulator is slow."""
    device = request.source.device
    order = module_order(export_text(one.recipe), proof_workload(one.workload, device), device=device, scratch=runner.work_dir)
    return verify(lambda asked: runner.prove(asked, on_text=on_text), order)


def _row(row: PatchedLayer, one: LayerRecipe, chosen: Chosen, judged: ModuleJudged) -> PatchedLayer:
    reason = f"Right ({chosen.origin})." if judged.status == Status.OK else f"{judged.status}: {judged.headline}"
    return replace(row, kept=False, reason=reason, recipe=one.parts, status=str(judged.status))


def _measured(workload: Workload, there: Sequence[Candidate], ahead: BuildAhead, request: PatchRequest, runner: Runner,
              on_text: Callable[[str], None], stopped: threading.Event | None) -> Recipe | None:
    """The recipe of the fastest right candidates on this GPU, without directions in which PyTorch is faster."""
    arch, ids = arch_of(request.source.device), [render(one).candidate_id for one in there]
    on_text(f"{workload.layer}: building {len(there)} candidates")
    while (built := ahead.take(ids, timeout_s=_POLL_S)) is None:
        if stopped is not None and stopped.is_set():
            raise RuntimeError("Stopped.")
    with tempfile.TemporaryDirectory(prefix="kernel-workbench-") as folder:
        session = Session.create(Path(folder), "likely")
        asked = RunRequest(workload, tuple(there), device=request.source.device, effort="quick", built=built)
        run = runner.run(asked, session, on_change=lambda run: on_text(
            f"{workload.layer}: {run.done_rows} of {len(run.rows)} candidates"))
        try:
            return recipe_from_trials(run.trials, workload, arch=arch)[0]
        except BadRequest:
            return None


def _calls(inspected: Inspected, right: list[LayerRecipe]) -> dict[str, LayerCall]:
    wanted = {path for one in right for path in one.paths}
    return {layer.paths[0]: layer.largest for layer in inspected.layers if layer.paths[0] in wanted and layer.largest}


def _proven_here(recipe: Recipe, device: str) -> Recipe:
    """The recipe of a layer that stays replaced. On a GPU it was timed in its model, so its file runs it on such GPUs."""
    if device == "cpu":
        return recipe
    return replace(recipe, proven=dict.fromkeys(recipe.chosen, sm_of(arch_of(device))))


@dataclass(frozen=True)
class LayerRecipe:
    """One distinct layer of the model with its recipe. `paths`: the first path of each instance."""

    workload: Workload
    recipe: Recipe
    paths: tuple[str, ...]

    @property
    def parts(self) -> dict[str, str]:
        """Direction -> variant and precision."""
        return {d: f"{c.variant.name} in {c.precision}" for d, c in self.recipe.chosen.items()}


def patch_text(name: str, layers: Sequence[LayerRecipe], *, notes: Sequence[str] = ()) -> str:
    """One Python file: all kernels, `patch(model)` and `unpatch(model)`, for a model of that name.

    `notes`: sentences for its docstring. Raises `BadRequest` if there is no layer.
    """
    if not layers:
        raise BadRequest("No layer of the model is patched, so there is no file to write.")
    text = export_text([one.recipe for one in layers], class_name="")
    exported = text[text.index('"""', 3) + 3:]  # the exported file without its docstring
    if exported.count(_CALLS) != 1:
        raise RuntimeError(f"An exported file has {exported.count(_CALLS)} lines {_CALLS.strip()!r}; one was expected.")
    exported = exported.replace(_CALLS, _PATCH.read_text(encoding="utf-8") + _CALLS)
    return _docstring(name, layers, notes) + exported


def _docstring(name: str, layers: Sequence[LayerRecipe], notes: Sequence[str]) -> str:
    lines = [f'"""CUDA kernels for the transposed convolutions of {name}.', "",
             "    import this_file", "    this_file.patch(model)      # undo: this_file.unpatch(model)", "",
             "A layer is patched if it has the parameters of one of these layers; PyTorch computes everything else:", ""]
    for one in layers:
        names = ", ".join(path or "the model itself" for path in one.paths)
        lines.append(f"    {one.workload.layer} in {one.workload.dtype}: {names}")
        for direction, candidate in one.recipe.chosen.items():
            config = "".join(f" {name}={value}" for name, value in candidate.config.items())
            lines += [f"        {direction:<12} {candidate.variant.name}{config} in {candidate.precision} "
                      f"(candidate {render(candidate).candidate_id})"]
    lines += ["", *note_lines(notes)] if notes else []
    return "\n".join([*lines, "", "`layer.forward.kernels(x)` says what computes a patched layer, and why.",
                      "`python FILE --check` compares and times each layer against PyTorch here.",
                      "Needs torch, nvcc and ninja, but not the workbench. A kernel is compiled at its first use.", '"""'])
