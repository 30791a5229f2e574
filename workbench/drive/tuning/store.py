"""The local store of best known configs, which were found by tunes on this machine's GPUs. It is a file with the same format as
the shipped one. A tune begins with the configs of similar layers from both files."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from math import log2, prod
from pathlib import Path

from ...core import best_known
from ...core.best_known import BestKnown, tuned_file
from ...core.candidate import layer_fields
from ...core.command import parse_layer
from ...core.errors import BadRequest, RenderError
from ...core.gpu import sm_of
from ...core.layer import ConvTranspose, Workload
from ...core.precision import CLASSES
from ...core.replies import Device
from ...core.template import render
from ...core.trial import Trial
from ..reporting.report import Baselines, best_baseline, is_emulated
from ..sessions.session import Session
from .seen import locked
from .space import TuneSpace, class_for, key_of_parts

_NEAR = 6            # number of entries of similar layers with which a search begins


def must_be_writable() -> None:
    """Raises `BadRequest` if the file cannot be read or written, so that no winner could be kept."""
    file = tuned_file()
    try:
        best_known.load(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        with _locked(file):
            pass
    except (BadRequest, OSError) as error:
        raise BadRequest(f"Winners cannot be kept in {file}: {_why(error)} Repair or move it, or name another file in "
                         "$KERNEL_WORKBENCH_STORE.", field="store") from error


def keep(trial: Trial, session: Session, baselines: Iterable[Trial], *, precision_class: str, driver: str = ""
         ) -> tuple[Path | None, str]:
    """Put a winner into the store; it replaces the entry for that GPU and workload. Returns the file, or None and the reason. A
    faster entry is not replaced if the present template can still render it. Winners on the emulator are not kept, because
    their times do not predict a GPU."""
    if is_emulated(trial) or trial.device.kind != "cuda" or trial.kernel_ms is None or precision_class not in CLASSES:
        return None, ""
    file, entry = tuned_file(), _entry(trial, session, list(baselines), precision_class, driver)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _locked(file):
            there = best_known.load(file)
            kept = [e for e in there if (e.gpu, *e.key) != (entry.gpu, *entry.key)]
            for old in there:
                if old not in kept and old.ms and entry.ms and old.ms < entry.ms and _renders(old, trial.workload):
                    return None, (f"{file} has a faster one: {old.ms:.4g} ms with {old.variant}, session {old.session}.")
            best_known.save([*kept, entry], file)
    except (BadRequest, OSError) as error:
        return None, f"{file} cannot be written: {_why(error)}"
    return file, ""


def tuned_here(workload: Workload, direction: str, arch: str) -> bool:
    """Whether the best known entry of exactly this workload, in the class of PyTorch's default, comes from a tune on this
    machine."""
    precision_class = class_for(workload, direction, arch)
    if precision_class not in CLASSES:
        return False
    first = next(best_known.ranked(direction, workload, precision_class, arch), None)
    return bool(first and first.tuned and (first.batch, first.input_size) == (workload.batch, tuple(workload.input_size)))


def near(space: TuneSpace, device: Device) -> list[str]:
    """The keys in the space of the best known configs of similar layers. These have the same number of dimensions, precision
    class and GPU family. The layers most similar in channels, sizes, kernel and stride come first.

    A variant that has no config among these and those of the cell itself gets one: its best config on the most similar layer,
    although another variant may be faster there. Layers with the same number of dimensions come first, then those in the same
    precision, then those on the same GPU family. Its default is not taken, because a tune tries that anyway."""
    if space.precision_class not in CLASSES:
        return []
    entries = [e for e in (*best_known.stored(), *best_known.load()) if e.direction == space.direction and not e.derived]
    similar = [e for e in entries if e.precision_class == space.precision_class and not any(_differs(e, space, device))]
    found: dict[str, None] = {}
    for entry in sorted(similar, key=lambda e: apart(e, space.workload)):
        key = key_of_parts(entry.variant, entry.direction, entry.precision, entry.form, entry.config)
        if key in space.place_of:
            found[key] = None
        if len(found) == _NEAR:
            break
    has = {space.label(space.place_of[key]) for key in (*space.known, *found) if key in space.place_of}
    entries += [e for e in best_known.slower() if e.direction == space.direction]
    for name, precision in space.families:
        if f"{name} {precision}" not in has:
            keys = {key_of_parts(name, e.direction, precision, e.form, e.config): None for e in sorted(
                (e for e in entries if e.variant == name),
                key=lambda e: (_differs(e, space, device)[0], e.precision != precision, *_differs(e, space, device)[1:],
                               apart(e, space.workload)))}
            found |= dict.fromkeys([key for key in keys if key in space.place_of and key not in space.starts][:1])
    return list(found)


def apart(entry: BestKnown, work: Workload) -> float:
    """How far the layer and sizes of an entry are from those of a workload: the sum of the differences of the logarithms."""
    pairs = zip(_numbers(parse_layer(entry.layer), entry.batch, entry.input_size),
                _numbers(work.layer, work.batch, tuple(work.input_size)), strict=True)
    return sum(abs(log2((a + 1) / (b + 1))) for a, b in pairs)


def _differs(entry: BestKnown, space: TuneSpace, device: Device) -> tuple[bool, bool]:
    """Whether an entry has another number of dimensions, and whether it was measured on another GPU family."""
    return parse_layer(entry.layer).dims != space.workload.layer.dims, sm_of(entry.arch) // 10 != device.sm // 10


def _locked(file: Path) -> AbstractContextManager[None]:
    """Only one process at a time reads and writes the store."""
    return locked(file.with_name(f".{file.name}.lock"))


def _why(error: Exception) -> str:
    return f"{error.strerror or type(error).__name__}." if isinstance(error, OSError) else str(error)


def _renders(entry: BestKnown, workload: Workload) -> bool:
    """Whether the present template still gives the kernel that was kept."""
    try:
        return render(entry.candidate(workload)).candidate_id == entry.candidate_id
    except (BadRequest, RenderError):
        return False


def _entry(trial: Trial, session: Session, baselines: list[Trial], precision_class: str, driver: str) -> BestKnown:
    work = trial.workload
    baseline = best_baseline(Baselines(baselines), replace(trial, precision=precision_class))
    return BestKnown(
        arch=trial.device.arch, layer=str(work.layer), direction=trial.direction, dtype=work.dtype,
        precision_class=precision_class, variant=trial.name, config=trial.tunables, precision=trial.precision,
        form=trial.form or "constant", ms=round(trial.kernel_median_ms, 6), batch=work.batch, input_size=tuple(work.input_size),
        gpu=trial.device.name, session=session.name, rel_l2=max((e.rel_l2 for e in trial.errors.values()), default=None),
        baseline=baseline.name if baseline else "",
        baseline_ms=round(baseline.kernel_median_ms, 6) if baseline and baseline.kernel_ms else None,
        compile_flags=trial.compile_flags, memory_format=work.memory_format, candidate_id=trial.candidate_id, driver=driver,
        at=trial.at, pytorch_precision=next((
            e.pytorch_precision for e in best_known.load() if e.pytorch_precision and e.layer == str(work.layer)
            and (e.direction, e.dtype) == (trial.direction, work.dtype)), ""))


def _numbers(layer: ConvTranspose, batch: int, input_size: tuple[int, ...]) -> list[float]:
    return [float(v) for k, v in layer_fields(layer).items() if k != "has_bias"] + [float(batch * prod(input_size))]
