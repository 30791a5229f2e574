"""Worker operation "patch": put the kernels into the model, time each layer in place, keep those that are faster, and compare
the whole model with the original: times, outputs, gradients, memory."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil

import torch
from torch import nn

from ...core.layer import CHANNELS_LAST
from ...core.orders import Emit, PatchOrder
from ...core.patching import FASTER_ONLY, INFERENCE, TRAINING, LayerCall, Pairs, Patched, TimedLayer
from ...core.replies import Event
from ...core.verdict import FASTER, SLOWER, from_samples
from ..clock.timing import Watch, measure_in_turns
from ..pytorch.aten import channels_last
from .drift import compare
from .load import Loaded, guarded, load
from .replace import PatchFile
from .step import Stepper, optimizer_of, synchronize

_EMULATED = "Right on the emulator; not timed there."
_WARM_UP = 3
_SAMPLE_MS = 2.0        # short calls are repeated within a sample until it takes this long
_MOST_REPEATS = 200
_LIMITS = {"quick": (10, 30, 1.0), "normal": (20, 200, 4.0), "full": (40, 1000, 15.0)}  # pairs at least, at most; seconds


def patch(order: PatchOrder, emit: Emit) -> Patched:
    emit(Event("load", f"loading {order.source.model} again"))
    loaded = load(order.source)
    return compared(loaded, PatchFile(order.text, order.source.device), order, emit)


def compared(loaded: Loaded, file: PatchFile, order: PatchOrder, emit: Emit) -> Patched:
    """The same for a model that is there already. Afterwards it is as it was: nothing is patched, no parameter has moved."""
    model, source = loaded.model, order.source
    said: list[str] = []
    with _Warned(said), Stepper(model, loaded.args, loaded.kwargs, autocast=source.autocast, seed=source.seed) as stepper:
        try:
            layers = _with_those_behind_the_host(_layers(loaded, file, order, emit), stepper, file, order, emit)
            kept = [row.path for row in layers if row.kept]
            both = Both(model, file, kept)
            emit(Event("compare", "comparing outputs and gradients with the original"))
            drift, differs = compare(both, stepper, said, train=source.train, dtypes=[
                order.calls[path].dtype for path in kept]) if kept else ({}, "")
            timed = bool(kept) and not differs and source.device != "cpu"
            times = guarded(lambda: whole(both, stepper, order, emit), "The model fails while it is timed") if timed else {}
            peak = guarded(lambda: _peaks(both, stepper, train=source.train), "The model fails while its memory is "
                           "measured") if timed else {}
        finally:
            file.unpatch(model)
    undone = must_undo(times, order.keep)
    if undone or differs:
        cause = "The whole model gave other results" if differs else "The whole step got slower"
        why = f"{cause}, so all layers were left to PyTorch."
        layers = [replace(row, kept=False, reason=why) if row.kept else row for row in layers]
    return Patched(tuple(layers), times, drift, peak, undone, tuple(dict.fromkeys(said)), differs)


class Both:
    """One model in two states. `kept`: the paths that are patched in the second; `before`: those that are in the first."""

    def __init__(self, model: nn.Module, file: PatchFile, kept: Sequence[str], before: Sequence[str] = ()) -> None:
        self.model, self._file, self._kept, self._before = model, file, kept, before
        self.layers = [model.get_submodule(path) for path in kept]

    def original(self) -> None:
        self._file.unpatch(self.model)
        if self._before:
            self._file.patch(self.model, self._before)

    def patched(self) -> None:
        self._file.patch(self.model, self._kept)


def _layers(loaded: Loaded, file: PatchFile, order: PatchOrder, emit: Emit) -> list[TimedLayer]:
    paths = list(order.calls)
    if order.source.device == "cpu":
        told = file.patch(loaded.model, paths)
        file.unpatch(loaded.model)
        return [TimedLayer(path, order.keep != FASTER_ONLY and told[path].startswith("patched"), _EMULATED) for path in paths]
    rows = []
    for number, path in enumerate(paths, 1):
        emit(Event("time", f"timing layer {number} of {len(paths)}: {path or 'the model itself'}"))
        one = partial(timed_layer, loaded.model.get_submodule(path), order.calls[path], Both(loaded.model, file, [path]), order)
        alone, on_gpu = guarded(one, f"The layer {path or 'that is the model'} fails when it is called alone")
        file.unpatch(loaded.model)
        rows.append(decided(path, alone, order.keep, on_gpu))
    return rows


def _with_those_behind_the_host(layers: list[TimedLayer], stepper: Stepper, file: PatchFile, order: PatchOrder, emit: Emit
                                ) -> list[TimedLayer]:
    """A call of such a layer, alone, waits for the host. In a model the host may be ahead of the GPU. So the whole model is
    timed with all of them beside those that stay anyway."""
    kept, more = [row.path for row in layers if row.kept], [row.path for row in layers if row.behind_host]
    if not more:
        return layers
    both = Both(stepper.model, file, [*kept, *more], before=kept)
    times = guarded(lambda: whole(both, stepper, order, emit), "The model fails while it is timed")
    file.unpatch(stepper.model)
    return [joined(row, times) if row.behind_host else row for row in layers]


def wins(times: dict[str, Pairs]) -> bool:
    """FASTER in the requested step (the training step, if there is one) and SLOWER in none."""
    wanted = times.get(TRAINING) or times[INFERENCE]
    return wanted.verdict == FASTER and all(pairs.verdict != SLOWER for pairs in times.values())


def decided(path: str, times: dict[str, Pairs], keep: str, on_gpu: dict[str, Pairs] | None = None) -> TimedLayer:
    """Whether the layer stays replaced, from its times alone. `on_gpu`: those without the host, where they matter."""
    won, behind = wins(times), on_gpu is not None and keep == FASTER_ONLY and wins(on_gpu)
    reason = f"In the model: {_words(times)}." if won else f"Not faster in the model: {_words(times)}."
    if on_gpu is not None and not won:
        reason = f"Not faster if the host's time counts: {_words(times)}. On the GPU alone: {_words(on_gpu)}."
    return TimedLayer(path, won or keep != FASTER_ONLY, reason, times, behind_host=behind and not won)


def joined(row: TimedLayer, times: dict[str, Pairs]) -> TimedLayer:
    """The same layer after the whole model was timed with all layers that are `behind_host` and without them."""
    won = wins(times)
    told = "The whole model with all such layers" if won else "The whole model with all such layers is not faster"
    return replace(row, kept=won, reason=f"{row.reason} {told}: {_words(times)}.")


def _words(times: dict[str, Pairs]) -> str:
    return ", ".join(f"{name} {pairs.verdict} ({pairs.ratio:.2f}x)" for name, pairs in times.items())


def must_undo(times: dict[str, Pairs], keep: str) -> bool:
    """Whether the original layers are restored, because the whole model got slower."""
    return keep == FASTER_ONLY and any(pairs.verdict == SLOWER for pairs in times.values())


def timed_layer(module: nn.Module, call: LayerCall, both: Both, order: PatchOrder
                ) -> tuple[dict[str, Pairs], dict[str, Pairs] | None]:
    """One layer alone on random inputs of its own shape, with its hooks. The second times are those of the GPU alone, where
    they matter."""
    device = torch.device(order.source.device)
    x = torch.randn(call.shape, dtype=getattr(torch, call.input_dtype), device=device)
    if call.memory_format == CHANNELS_LAST:
        x = channels_last(x)

    def forward() -> torch.Tensor:
        with torch.autocast(device.type, getattr(torch, order.source.autocast or "bfloat16"),
                            enabled=bool(order.source.autocast)):
            output: torch.Tensor = module(x)
            return output

    def inference() -> None:
        with torch.no_grad():
            forward()

    def training() -> None:
        output = forward()
        torch.autograd.grad(output, [t for t in (x, *module.parameters()) if t.requires_grad], torch.ones_like(output),
                            allow_unused=True)

    between = (both.original, both.patched)
    times = {INFERENCE: in_turns(inference, inference, device=device, effort=order.effort, between=between)}
    runs = {INFERENCE: inference}
    if order.source.train:
        x.requires_grad_(call.requires_grad)
        if any(t.requires_grad for t in (x, *module.parameters())):
            runs[TRAINING] = training
            times[TRAINING] = in_turns(training, training, device=device, effort=order.effort, between=between)
        else:
            times[TRAINING] = times[INFERENCE]
    if device.type == "cpu" or wins(times) or order.keep != FASTER_ONLY:
        return times, None
    return times, {name: on_gpu_in_turns(run, device=device, effort=order.effort, between=between)
                   for name, run in runs.items()}


def whole(both: Both, stepper: Stepper, order: PatchOrder, emit: Emit) -> dict[str, Pairs]:
    """The whole step in turns: inference, and one training step with Adam."""
    runs: dict[str, Callable[[], object]] = {INFERENCE: stepper.inference}
    if order.source.train:
        optimizer = optimizer_of(stepper.model)
        runs[TRAINING] = lambda: stepper.training(optimizer)
    times = {}
    for name, run in runs.items():
        emit(Event("time", f"timing the whole model: {name}"))
        times[name] = in_turns(run, run, device=stepper.device, effort=order.effort, between=(both.original, both.patched))
    return times


def _peaks(both: Both, stepper: Stepper, *, train: bool) -> dict[str, int]:
    """Bytes that one step allocates at its peak, beyond what is allocated before it."""
    device = stepper.device
    peak = {}
    for name, prepare in (("original", both.original), ("patched", both.patched)):
        prepare()
        stepper.model.zero_grad(set_to_none=True)
        synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        kept = stepper.gradients() if train else stepper.inference()
        synchronize(device)
        peak[name] = torch.cuda.max_memory_allocated(device) - before
        del kept
    return peak


class _Warned:
    """Collects the warnings of a kernel that is not used."""

    def __init__(self, said: list[str]) -> None:
        self._said, self._catch = said, warnings.catch_warnings(record=True)

    def __enter__(self) -> None:
        self._taken = self._catch.__enter__()
        warnings.simplefilter("always")

    def __exit__(self, *error: object) -> None:
        self._catch.__exit__(*error)
        self._said += [str(w.message) for w in self._taken or () if "is not used" in str(w.message)]


def in_turns(original: Callable[[], object], patched: Callable[[], object], *, device: torch.device, effort: str,
             between: tuple[Callable[[], object], Callable[[], object]]) -> Pairs:
    """Times two calls alternately by the clock of the host, as a user would: host and device together. One sample of each in
    every turn; who is first changes from turn to turn. `between`: done, untimed, before each."""
    least, most, limit_s = _LIMITS[effort]
    runs = tuple(zip(between, (original, patched), strict=True))
    repeats = 1
    for prepare, run in runs:
        prepare()
        for _ in range(_WARM_UP):
            ms = _timed(run, 1, device)
        repeats = max(repeats, min(_MOST_REPEATS, ceil(_SAMPLE_MS / max(ms, 1e-6))))
    samples: tuple[list[float], list[float]] = ([], [])
    begun = time.perf_counter()
    while len(samples[0]) < most and (len(samples[0]) < least or time.perf_counter() - begun < limit_s):
        for which in (0, 1) if len(samples[0]) % 2 else (1, 0):
            runs[which][0]()
            samples[which].append(_timed(runs[which][1], repeats, device))
    verdict = from_samples(samples[1], samples[0], paired=True)
    theirs, ours = (sorted(taken)[len(taken) // 2] for taken in samples)
    return Pairs(theirs, ours, verdict.value, verdict.low, verdict.high, str(verdict.verdict), len(samples[0]))


def on_gpu_in_turns(run: Callable[[], None], *, device: torch.device, effort: str,
                    between: tuple[Callable[[], object], Callable[[], object]]) -> Pairs:
    """The same without the host: a call is queued before the GPU begins it."""
    watches = [Watch(before=prepare) for prepare in between]
    theirs, ours = measure_in_turns([run, run], device=str(device), effort=effort, cold_l2=False, watches=watches)
    verdict = from_samples(ours.samples, theirs.samples, paired=True)
    return Pairs(theirs.timing.median_ms, ours.timing.median_ms, verdict.value, verdict.low, verdict.high, str(verdict.verdict),
                 len(ours.samples))


def _timed(run: Callable[[], object], repeats: int, device: torch.device) -> float:
    """ms of one of so many calls."""
    synchronize(device)
    begun = time.perf_counter()
    for _ in range(repeats):
        run()
    synchronize(device)
    return max((time.perf_counter() - begun) * 1e3 / repeats, 1e-9)
