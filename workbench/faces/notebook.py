"""Notebook face: a layer, `run` with live progress, a result that displays itself, a DataFrame, a figure."""

from __future__ import annotations

import atexit
import html
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.candidate import Candidate
from ..core.command import layer_of
from ..core.errors import BadRequest
from ..core.layer import DIRECTIONS, LAUNCHES, ConvTranspose, Workload
from ..core.patching import FASTER_ONLY, LIVE, ModelSource, PatchReport
from ..core.presets import PRESETS, Preset, default_size, parse_preset, problem_of
from ..core.trial import Trial
from ..core.variants import Variant, discover
from ..core.verdict import Verdict
from ..core.wrong_values import WrongValues
from ..drive.machine.doctor import Finding, examine, resolve_device
from ..drive.patching.live import LiveModel
from ..drive.patching.patch import PatchRequest, PatchResult
from ..drive.patching.patch import patch as patch_model
from ..drive.patching.text import report_text
from ..drive.reporting import report, tables, tune_points
from ..drive.reporting.tune_points import Tried
from ..drive.running.candidate_selection import Given, Options, candidates, names_of
from ..drive.running.request import Run, RunRequest
from ..drive.running.runner import Runner
from ..drive.sessions import profiles
from ..drive.sessions.recorded import WHAT, text_of, wrong_values_of
from ..drive.sessions.session import Session
from ..drive.tuning import text as tuning_text
from ..drive.tuning.cluster import places_of
from ..drive.tuning.feed import TuneRequest
from ..drive.tuning.tune import TuneResult, asked, limited
from ..drive.tuning.tune import tune as tune_layer
from .arguments import (
    check_folder,
    fork_candidates,
    say_broken,
    session_from,
    sides_from,
    source_from,
    trial_from,
    write_whole,
)
from .notebook_display import (
    Compared,
    Difference,
    Profiled,
    ProgressBar,
    RunBar,
    StepBar,
    patch_html,
    register,
    samples_figure,
    tune_figures,
)

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects

register()


def ConvTranspose1d(*args: Any, **kwargs: Any) -> ConvTranspose:  # noqa: N802  PyTorch's name
    """A 1-D layer; parameters as `torch.nn.ConvTranspose1d`."""
    return layer_of(1, args, kwargs)


def ConvTranspose2d(*args: Any, **kwargs: Any) -> ConvTranspose:  # noqa: N802
    """A 2-D layer; parameters as `torch.nn.ConvTranspose2d`."""
    return layer_of(2, args, kwargs)


def ConvTranspose3d(*args: Any, **kwargs: Any) -> ConvTranspose:  # noqa: N802
    """A 3-D layer; parameters as `torch.nn.ConvTranspose3d`."""
    return layer_of(3, args, kwargs)


def preset(name: str, dtype: str = "float32") -> Workload:
    """A named layer with its sizes: `preset("kb74/small")`, `preset("models/sam-1")`. Raises `BadRequest`."""
    chosen, size = parse_preset(name)
    return chosen.workload(size, dtype)


def presets() -> dict[str, Preset]:
    """The named layers of both suites."""
    return dict(PRESETS)


def variants() -> list[Variant]:
    """The kernel templates. Invalid ones are left out, with a line on stderr."""
    say_broken(None)
    return discover()


def doctor() -> list[Finding]:
    """What this machine has and what works now."""
    return examine()


# more than seven: the options of the verb `run` as keywords; in a notebook each is typed by its name
def run(work: ConvTranspose | Workload | str | None = None, *, batch: int | None = None,
        input_size: int | Sequence[int] | None = None, dtype: str = "float32",
        directions: str | Iterable[str] = LAUNCHES, variants: str | Iterable[str] = (),
        settings: Given | None = None, precision: str = "", form: str = "constant",
        compile_flags: Sequence[str] = (), device: str = "auto", effort: str = "normal", session: str | None = None,
        resume: bool = False, baselines: bool = True, modules: bool = False, progress: bool = True,
        source: str | Path = "", fork_of: str = "", templates: str | Path | None = None) -> Result:
    """Build, judge and time candidates. The call blocks and shows its progress. An interrupt stops the run; finished trials are
    kept.

    `work` is a layer (then `input_size` is needed; `batch` is 1), a `Workload`, or a preset's name ("kb74/small"; without a
    size it is the small one on the cpu and the full one on a GPU). `settings`: variant name (or "*") -> tunable -> values to
    try. `source`: an edited template or rendering, as a text or a file. `fork_of`: its original, a variant or "SESSION:TRIAL";
    a trial also gives the layer. `resume`: run only the candidates that `session` lacks; the result has its trials of the
    others, too. `templates`: a folder of templates, instead of the shipped ones. Raises `BadRequest`.
    """
    device, folder_of_templates = resolve_device(device), Path(templates) if templates else None
    if resume and not session:
        raise BadRequest("resume needs session, the name of the session to resume.", field="session")
    if work is None and not (source and ":" in fork_of):
        raise BadRequest("work is not given; give a layer, a Workload, the name of a preset, or source with fork_of.",
                         field="layer")
    work = None if work is None else _workload(work, batch, input_size, dtype, device)
    options: Options = {"settings": settings, "precision": precision, "form": form, "compile_flags": compile_flags,
                        "templates": folder_of_templates}
    if source:
        text = source if isinstance(source, str) and "\n" in source else source_from(str(source))
        if isinstance(text, Candidate) or names_of(variants, "variants") or modules:
            raise BadRequest("source is the kernel to run: a text or a file. Leave out variants and modules.", field="source")
        given = () if directions == LAUNCHES else names_of(directions, "directions")
        work, chosen = fork_candidates(text, fork_of, work, {**options, "directions": given})
        directions = tuple(dict.fromkeys(c.direction for c in chosen))
    else:
        assert work is not None
        options["directions"] = directions = names_of(directions, "directions")
        chosen = candidates(work, variants=variants, **options)
        say_broken(folder_of_templates)
    request = RunRequest(work, tuple(chosen), device=device, directions=directions,
                         baselines=baselines, modules=modules, effort=effort)
    folder = Session.create(name=session)
    bar = RunBar() if progress else None
    try:
        return Result(folder, _runner().run(request, folder, resume=resume, on_change=bar))
    finally:
        if bar is not None:
            bar.close()


# more than seven: the options of the verb `tune` as keywords
def tune(work: ConvTranspose | Workload | str | None = None, *, batch: int | None = None,
         input_size: int | Sequence[int] | None = None, dtype: str = "float32", directions: str | Iterable[str] = DIRECTIONS,
         precision: str = "", variants: str | Iterable[str] = (), device: str = "auto", effort: str = "normal",
         trials: int | None = None, minutes: float | None = None, session: str | None = None, resume: str | None = None,
         baselines: bool = True, cluster: str = "", progress: bool = True) -> Tuned:
    """Find the fastest right kernels of a layer on this machine, and keep them. The call blocks and shows its progress.
    The first interrupt ends the search: the best so far are timed again, and the winner is kept. The second one stops the tune.

    `work` is the same as for `run`. With `resume`, the tune of a session is continued instead; `trials` or `minutes` set a new
    limit. `cluster`: address of a scheduler of dask.distributed, whose GPUs are used. Raises `BadRequest`.
    """
    known = session_from(resume) if resume is not None else None
    with places_of(cluster, _runner().workers, known, device) as there:
        if known is not None:
            request, folder = limited(asked(known), trials, minutes), known
        else:
            if work is None:
                raise BadRequest("work is not given; give a layer, a Workload, the name of a preset, or resume.", field="layer")
            where = there.device or resolve_device(device)
            request = TuneRequest(_workload(work, batch, input_size, dtype, where), names_of(directions, "directions"),
                                  precision, device, effort, trials, minutes, names_of(variants, "variants"),
                                  baselines=baselines)
            folder = Session.create(name=session)
        finish = threading.Event()
        if not progress:
            return Tuned(folder, tune_layer(request, folder, _runner(), places=there.places, finish=finish))
        bar = ProgressBar(request.trials, request.seconds)
        try:
            for note in there.notes:
                bar.say(note)
            return Tuned(folder, tune_layer(request, folder, _runner(), on_line=bar.say, on_run=bar.follow,
                                            places=there.places, finish=finish))
        finally:
            bar.close()


@dataclass(frozen=True)
class Tuned:
    """The result of a tune. A notebook displays the best trials of each direction, and a figure of all trials."""

    session: Session
    result: TuneResult

    @property
    def frame(self) -> pandas.DataFrame:
        """One row per trial."""
        return report.frame(self.session.trials())

    def __repr__(self) -> str:
        failed = f"The tune failed: {self.result.message}\n" if self.result.state == "failed" else ""
        return failed + tuning_text.result(self.result)

    @property
    def tried(self) -> dict[str, Tried]:
        """Direction -> its trials, as the figures of `drive.reporting.tune_plots` take them."""
        trials, events, request = self.session.trials(), self.session.events(), asked(self.session)
        return {d: tune_points.tried(trials, events, request.workload, d) for d in request.directions}

    def table(self, direction: str = "", *, most: int = 10) -> pandas.DataFrame:
        """The fastest right trials of `direction` (default: the first direction)."""
        return tune_points.best_table(self._of(direction), most=most)

    def figure(self, direction: str = "", **options: Any) -> plotly.graph_objects.Figure:
        """Every trial and the best so far. `x`: "trials" or "time"; `colour`: "variant" or the name of a tunable."""
        from ..drive.reporting import tune_plots
        return tune_plots.progress(self._of(direction), **options)

    def figures(self, direction: str = "", variant: str = "") -> dict[str, plotly.graph_objects.Figure]:
        """The figures of the page Tune for which there are enough trials: progress, importance of the tunables, heat map of the
        two most important ones, slices, parallel coordinates. `variant`: whose tunables (default: those of the fastest)."""
        return tune_figures(self._of(direction), variant)

    def _of(self, direction: str) -> Tried:
        tried = self.tried
        if direction and direction not in tried:
            raise BadRequest(f"direction {direction!r} was not tuned; choose {', '.join(tried)}.", field="direction")
        return tried[direction or next(iter(tried))]

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>" + "".join(
            f"<b>{html.escape(direction)}</b>{tune_points.best_table(found).to_html(index=False)}"
            for direction, found in self.tried.items() if found.right)

    def _ipython_display_(self) -> None:
        from IPython.display import HTML, display
        display(HTML(self._repr_html_()))
        for direction, found in self.tried.items():
            for figure in self.figures(direction).values() if found.points else ():
                display(figure)


def diff(a: Any, b: Any, what: str = "source") -> Difference:
    """Compare two candidates. `what` is one of WHAT. Each side is a trial, "SESSION:TRIAL", a variant or a file. Raises
    `BadRequest`."""
    if what not in WHAT:
        raise BadRequest(f"what is {what!r}; choose {', '.join(WHAT)}.", field="what")
    left, right = sides_from(a if isinstance(a, Trial) else str(a), b if isinstance(b, Trial) else str(b))
    return Difference(left.name, right.name, *(text_of(side, what, _runner().machine_code) for side in (left, right)))


def profile(a: Any, b: Any = None, *, again: bool = False, progress: bool = True) -> Profiled:
    """What limits a trial's kernels on its GPU, from Nsight Compute's counters. With `b`, two trials side by side. Each is a
    trial or "SESSION:TRIAL". The call blocks and shows its progress. Raises `BadRequest`."""
    pairs = [(one, Session(Path(one.kept_in))) if isinstance(one, Trial) else trial_from(str(one))
             for one in (a, b) if one is not None]
    with StepBar(progress) as bar:
        found = []
        for number, (trial, session) in enumerate(pairs):
            bar.say(f"the counters of {trial.name} {trial.direction}", number / len(pairs))
            found.append(profiles.reading(trial, session, _runner(), again=again, on_text=bar.say))
    return Profiled(tuple(found))


def compare(a: Any, b: Any) -> Compared:
    """Compare two sessions, each a name, a path or a `Result`: each candidate and each PyTorch baseline that both hold. The
    ratio is A / B; above 1, B is faster. Raises `BadRequest`."""
    return Compared(*(one.session if isinstance(one, Result) else session_from(one) for one in (a, b)))


def open_session(name: str | Path) -> Result:
    """A recorded session, by name or path. Raises `BadRequest`."""
    return Result(session_from(name), None)


@dataclass(frozen=True)
class Result:
    """The trials of one run, or of an opened session. A notebook displays them as a table."""

    session: Session
    run: Run | None

    @property
    def trials(self) -> list[Trial]:
        return [*self.run.kept, *self.run.trials] if self.run else self.session.trials()

    @property
    def frame(self) -> pandas.DataFrame:
        """One row per trial, verdict first; the column names have the units."""
        return report.frame(self.trials)

    def figure(self, **options: Any) -> plotly.graph_objects.Figure:
        """Grouped bars: forward, grad_input, grad_weight, with spread, floor and the best PyTorch."""
        from ..drive.reporting import plots
        return plots.bars(self.trials, **options)

    def figures(self) -> dict[str, plotly.graph_objects.Figure]:
        """The figures of the page Compare for which there are times of a GPU. They compare each trial with the best PyTorch.
        Empty for a run on the emulator."""
        from ..drive.reporting import compare_plots, html_report
        pairs = report.against_pytorch(self.trials)
        drawn = {"dots": compare_plots.dots(pairs, [html_report.row_name(p) for p in pairs]),
                 "roofline": compare_plots.roofline(pairs), "speedups": compare_plots.speedups(pairs),
                 "samples": samples_figure(self.trials)}
        return {name: figure for name, figure in drawn.items() if figure is not None}

    def samples(self, *trial_ids: str) -> plotly.graph_objects.Figure | None:
        """The samples of these trials in the order in which they were taken, above the GPU's clock; None if there are none.
        Without ids, if all trials are of one layer: those of the fastest right candidate of each direction, and of the best
        PyTorch."""
        return samples_figure(self.trials, [self.trial(i) for i in trial_ids])

    def trial(self, trial_id: str) -> Trial:
        """The trial of that id. A notebook displays its errors, its samples and where it is wrong. Raises `BadRequest`."""
        for trial in self.trials:
            if trial.trial_id == trial_id:
                return trial
        raise BadRequest(f"No trial {trial_id!r} exists; choose one of the column trial_id of the frame.", field="trial_id")

    def verdict(self, trial_id: str) -> Verdict | None:
        """The time of the best PyTorch divided by that of this trial; None if they cannot be compared, as for a trial of the
        emulator."""
        trial = self.trial(trial_id)
        comparable = trial.ok and not report.is_emulated(trial)
        return report.speedup(trial, report.best_baseline(self.trials, trial)) if comparable else None

    def wrong(self, trial_id: str) -> WrongValues | None:
        """Where the results of this trial are wrong; None if they are right. A notebook displays it as a map."""
        return wrong_values_of(self.trial(trial_id))

    def source(self, trial_id: str) -> str:
        """The CUDA source that this trial ran."""
        trial = self.trial(trial_id)
        if "source" not in trial.blobs:
            raise BadRequest(f"The trial {trial_id!r} has no source: {trial.headline}", field="trial_id")
        return self.session.blob(trial.blobs["source"]).decode()

    def export(self, path: str | Path, *, class_name: str = "ModelNew", variants: str | Iterable[str] = ()) -> Path:
        """Write the fastest right candidates on a GPU as a ModelNew file. With `variants`, only candidates of these variants
        are used. Raises `BadRequest` if none is right, or if there is no GPU time to choose by."""
        from ..drive.exporting.best_recipe import arch_of
        from ..drive.exporting.export import export_text
        from ..drive.sessions.recorded import chosen_trials, measured_arch, recipe_of, trial_notes
        check_folder(Path(path))
        names = names_of(variants, "variants")
        there = [t for t in self.trials if not names or t.name in names or report.is_baseline(t)]
        chosen, notes = chosen_trials(there, arch=arch_of(), events=self.session.events(), named=bool(names))
        recipe = recipe_of(chosen, self.trials, named=chosen if names else (), arch=arch_of())
        words = [w for t in chosen.values() for w in ("--trial", t.trial_id)] if names else []
        words += ["--class-name", class_name] if class_name != "ModelNew" else []
        write_whole(Path(path), export_text(recipe, constructor=problem_of(recipe.workload), class_name=class_name,
                                            notes=[*notes, *trial_notes(chosen, self.trials, words)],
                                            arch=measured_arch(chosen) or arch_of()))
        return Path(path)

    @property
    def message(self) -> str:
        """How the run ended, if it was stopped or failed; otherwise empty."""
        return f"The run {self.run.state}: {self.run.message}" if self.run and self.run.state in ("failed", "stopped") else ""

    def _repr_html_(self) -> str:
        found = report.headline(self.trials)
        said = f"<p><b>{html.escape(found.sentence)}</b><br>{html.escape(found.evidence)}</p>" if found else ""
        if self.message:
            said = f"<p><b>{html.escape(self.message)}</b></p>{said}"
        return said + str(self.frame.to_html(max_rows=60))

    def __repr__(self) -> str:
        return "\n".join(filter(None, (self.message, tables.text_table(self.trials))))


def export(result: Result, path: str | Path, **options: Any) -> Path:
    return result.export(path, **options)


@lru_cache(maxsize=1)
def _runner() -> Runner:
    runner = Runner()
    atexit.register(runner.close)
    return runner


# more than seven: the options of the verb `patch` as keywords
def patch(model: Any, inputs: Any = None, *, train: bool = False, dtype: str = "", autocast: str = "", device: str = "auto",
          keep: str = FASTER_ONLY, effort: str = "normal", seed: int = 0, tune: bool = False,
          tune_effort: str = "quick", progress: bool = True) -> PatchedModel:
    """Replace the transposed convolutions of a model for which a kernel is right and FASTER. `model` is a torch.nn.Module,
    which is patched in place; `inputs` is then a tensor, a tuple or a dict. Or `model` is the text "my_module:build_model", and
    `inputs` is a text of the same form. Then a worker process makes and runs the model, and nothing in this process changes.
    Raises `BadRequest`.
    """
    host = None
    if isinstance(model, str):
        if not isinstance(inputs, str | None):
            raise BadRequest(f"inputs is {type(inputs).__name__}; if model is a text, give inputs as a text too: "
                             "'my_module:inputs'.", field="inputs")
        source = ModelSource(model, inputs or "", Path.cwd(), resolve_device(device), dtype, autocast, train, seed)
    else:
        host = LiveModel(model, inputs)
        if dtype or device not in ("auto", host.device):
            raise BadRequest(f"The model is on {host.device} already; move and convert it yourself and leave out device and "
                             "dtype.", field="device")
        source = ModelSource(LIVE, "", Path.cwd(), host.device, "", autocast, train, seed)
    request = PatchRequest(source, keep, effort, tune=tune, tune_effort=tune_effort, every_gpu=device == "auto")
    with StepBar(progress) as bar:
        result = patch_model(request, _runner(), on_text=bar.say, host=host)
    if host is not None:
        host.keep(result)
    return PatchedModel(result, host)


@dataclass(frozen=True)
class PatchedModel:
    """A patched model: its report, its figure, the file with its kernels."""

    result: PatchResult
    host: LiveModel | None = None

    @property
    def report(self) -> PatchReport:
        return self.result.report

    def figure(self, **options: Any) -> plotly.graph_objects.Figure:
        """A figure of the share of each layer in the step's time, and of its speed-up."""
        from ..drive.patching import plots
        return plots.figure(self.report, **options)

    def save(self, path: str | Path) -> Path:
        """Write the file with `patch(model)` and `unpatch(model)`. Raises `BadRequest` where nothing is patched."""
        if not self.result.text:
            raise BadRequest("No layer is patched, so there is no file to write.")
        check_folder(Path(path))
        write_whole(Path(path), self.result.text)
        return Path(path)

    def unpatch(self) -> list[str]:
        """Restore the model of this process; returns the paths of its layers."""
        return self.host.unpatch() if self.host else []

    def __repr__(self) -> str:
        return report_text(self.report)

    def _repr_html_(self) -> str:
        return patch_html(self.report)

    def _ipython_display_(self) -> None:
        from IPython.display import HTML, display
        display(HTML(self._repr_html_()))
        if self.report.layers:
            display(self.figure())


def _workload(work: ConvTranspose | Workload | str, batch: int | None, input_size: int | Sequence[int] | None, dtype: str,
              device: str) -> Workload:
    """The workload for the argument `work` of `run` and `tune`."""
    if not isinstance(work, ConvTranspose) and (batch is not None or input_size is not None):
        name, value = ("batch", batch) if batch is not None else ("input_size", input_size)
        raise BadRequest(f"{name} is {value!r}, but {work!r} already sets it; leave {name} out, or give a layer.", field=name)
    if isinstance(work, str):
        chosen_preset, size = parse_preset(work, default_size=default_size(device))
        work = chosen_preset.workload(size, dtype)
    elif isinstance(work, ConvTranspose):
        work = Workload(work, 1 if batch is None else batch, _size(input_size, work.dims), dtype)
    elif not isinstance(work, Workload):
        raise BadRequest(f"work is {work!r}; give a layer such as ConvTranspose1d(32, 64, 5), a Workload, or the name of "
                         f"a preset.", field="layer")
    return work


def _size(given: object, dims: int) -> tuple[int, ...]:
    example = f"give the spatial size of the input, a whole number{f' or {dims} of them' if dims > 1 else ''}: input_size=64"
    if given is None:
        raise BadRequest(f"input_size is not given; {example}.", field="input_size")
    values = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,) * dims
    size = tuple(v for v in values if isinstance(v, int) and not isinstance(v, bool))
    if len(size) != len(values):
        raise BadRequest(f"input_size is {given!r}; {example}.", field="input_size")
    return size
