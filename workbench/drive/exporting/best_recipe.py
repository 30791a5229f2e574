"""The best known candidates of a workload, as a `Recipe` or as entries."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf, log2, prod
from pathlib import Path
from typing import Any

from ...core import numbers
from ...core.best_known import BestKnown, class_of, load, ranked
from ...core.candidate import Candidate, layer_fields
from ...core.command import PROGRAM, parse_layer, workload_arguments
from ...core.derived_best import best_or_derived
from ...core.env import gpus
from ...core.errors import BadRequest
from ...core.gpu import sm_of
from ...core.layer import BACKWARD, CONTIGUOUS, DIRECTIONS, FORWARD, GRAD_INPUT, GRAD_WEIGHT, LAUNCHES, Workload
from ...core.precision import CLASSED, CLASSES_OF
from ...core.presets import parse_preset
from .recipe import Recipe, fastest

Row = tuple[tuple[int, ...], int, float, dict[str, int]]
_MOST_ROWS = 12            # the most rows of evidence; the nearest are kept
_FASTER, _NEAR = 1.2, 2.0  # as in model_new.py.txt
_MOST_SLOWER = 1.06        # so much slower may forward or grad_input be, if both then share a template
DEFAULT_ARCH = "sm_90"     # on a machine without a GPU


def arch_of(device: str = "auto") -> str:
    """The architecture of that GPU, such as `sm_90` ("auto": the first GPU). Without a GPU it is `DEFAULT_ARCH`, on which the
    shipped configs were measured."""
    cards = gpus()
    index = int(device.partition(":")[2] or 0)
    card = next((g for g in cards if g.index == index), None) if device != "cpu" else None
    return f"sm_{card.sm}" if card else DEFAULT_ARCH


def best_known(workload: Workload, arch: str, *, precision: str = "", directions: Iterable[str] = LAUNCHES,
               file: Path | None = None) -> dict[str, BestKnown]:
    """Direction -> its entry of `file` (default: the shipped one); directions without one are absent.

    Without `precision`, each direction has the class in which PyTorch computes it by default. So the result is at least as
    exact as that of PyTorch. Raises `BadRequest` if there is no entry.
    """
    found = {d: e for d in directions if (e := _of_direction(d, workload, precision, arch, file))}
    if not found:
        raise BadRequest(nothing_known(workload, arch, precision), field="best")
    both, alone = found.get(BACKWARD), [found[d] for d in (GRAD_INPUT, GRAD_WEIGHT) if d in found]
    if both and any(e.precision_class != both.precision_class for e in alone):
        del found[BACKWARD]  # for one of the gradients it is not exact enough
    return found


def nothing_known(workload: Workload, arch: str, precision: str) -> str:
    """The sentence for a layer without a best known config."""
    in_class = f" in {precision}" if precision else ""
    words = [f"--layers {parse_preset(workload.preset)[0].name}"] if workload.preset else []
    words += [f"--dtype {workload.dtype}"] if workload.dtype != "float32" else []
    words += [f"--memory-format {workload.memory_format}"] if workload.memory_format != CONTIGUOUS else []
    how = ("to measure one, run 'python -m workbench bench "
           f"{' '.join(words)}'" if workload.preset and workload.dtype in CLASSES_OF
           else "choose variants instead: 'python -m workbench variants' lists them")
    return f"No best known config for {workload.layer} in {workload.dtype}{in_class} on {arch}; {how}."


def best_recipe(workload: Workload, arch: str, *, precision: str = "", file: Path | None = None
                ) -> tuple[Recipe, list[BestKnown]]:
    """The recipe, and the entries from which it is made. Both gradients come from one launch if that is known to be faster. A
    direction is left to PyTorch if PyTorch was measured to be at least as fast. For derived entries PyTorch's time is not
    known, so they are kept. Raises `BadRequest` if no entry is left."""
    known = best_known(workload, arch, precision=precision, file=file)
    entries = {d: e for d, e in known.items() if e.derived or not e.baseline_ms or not e.ms or e.ms < e.baseline_ms}
    if not entries:
        raise BadRequest(f"No known config for {workload.layer} on {arch} was faster than PyTorch; choose variants instead: "
                         "'python -m workbench variants' lists them.", field="best")
    if any(d in entries and entries[d].ms is None for d in (GRAD_INPUT, GRAD_WEIGHT, BACKWARD)):
        entries.pop(BACKWARD, None)  # it is not known to be faster than the two gradients
    entries = _sharing(entries, workload, arch, file)
    used = [entries[d] for d in fastest({d: e.ms or 0.0 for d, e in entries.items()})]
    chosen = {e.direction: e.candidate(workload) for e in used}
    return Recipe.of(workload, chosen, proven={e.direction: e.proven for e in used}), used


def _sharing(entries: dict[str, BestKnown], workload: Workload, arch: str, file: Path | None) -> dict[str, BestKnown]:
    """The entries. Forward or grad_input takes the variant of the other one if that was measured to be at most `_MOST_SLOWER`
    times as slow: both have one template, so the file is shorter. What a tune has found stays."""
    for direction, other in ((FORWARD, GRAD_INPUT), (GRAD_INPUT, FORWARD)):
        if direction not in entries or other not in entries:
            break
        own, wanted = entries[direction], entries[other].variant
        if own.variant == wanted or own.tuned or own.derived or not own.ms:
            continue
        for e in ranked(direction, workload, own.precision_class, arch, variant=wanted, file=file):
            alike = (e.precision, e.gpu, e.batch, e.input_size) == (own.precision, own.gpu, own.batch, own.input_size)
            if alike and not e.derived and e.ms and e.ms <= _MOST_SLOWER * own.ms and e.ms < (e.baseline_ms or inf):
                return {**entries, direction: e}
    return entries


def shared(entries: Iterable[BestKnown], workload: Workload, arch: str, precision: str = "", *, file: Path | None = None
           ) -> list[str]:
    """A sentence for each entry of a best recipe that is not the fastest one, because it has the template of the other one."""
    known = best_known(workload, arch, precision=precision, file=file)
    return [f"{e.direction}: {fastest.variant} was measured at {numbers.time(fastest.ms)} against "
            f"{numbers.time(fastest.baseline_ms)}, session {fastest.session}. {e.variant} takes {e.ms / fastest.ms:.3g} times "
            "as long and is taken because the other direction has its template, so the file is shorter. run --best runs "
            f"{fastest.variant}." for e in entries if (fastest := known[e.direction]).ms and e.ms and fastest.baseline_ms
            and e.variant != fastest.variant]


def other_dtypes(workload: Workload, arch: str, *, file: Path | None = None) -> list[Recipe]:
    """The best recipes of the layer in its other dtypes, for the same file. Only recipes with a kernel that was measured to be
    faster than PyTorch on that GPU count."""
    found = []
    for dtype in (d for d in CLASSES_OF if d != workload.dtype):
        with suppress(BadRequest):
            found.append(best_recipe(replace(workload, dtype=dtype), arch, file=file)[0])
    return [recipe for recipe in found if any(recipe.proven.values())]


def cautions(entries: Iterable[BestKnown], arch: str, precision: str = "") -> list[str]:
    """Warnings about a best recipe: directions that were not measured on that GPU, and directions in which PyTorch's default
    precision was not measured. `precision`: the requested class; without one each direction has that of PyTorch's default."""
    entries = list(entries)
    derived = [e.direction for e in entries if e.derived]
    unknown = [e.direction for e in entries if not precision and not e.pytorch_precision and e.dtype == "float32"]
    lines = [f"{', '.join(derived)}: derived, not measured on {arch}. The file leaves them to PyTorch until "
             "prepare(x, measure=True) has measured them."] if derived else []
    if unknown:
        lines.append(f"{', '.join(unknown)}: the default precision of PyTorch was not measured. TF32 is assumed, as in "
                     "PyTorch's documentation.")
    return lines


def evidence(candidate: Candidate, arch: str) -> list[Row]:
    """Rows (layer's numbers, positions of the batch, speed-up over PyTorch, tunables that differ from the default) of the
    measured cells of that GPU in the candidate's direction, dtype and precision class, the nearest first. The speed-up is 0 if
    another variant, precision or form was the fastest, or if PyTorch's time is not known. 0 is evidence against the candidate.
    It is left out if no layer is near both to it and to a layer on which the candidate was faster.
    """
    direction, variant = candidate.direction, candidate.variant
    if candidate.precision not in CLASSED:
        return []
    cells: dict[tuple[Any, ...], Any] = {}
    for entry in load():
        if (entry.direction == direction and entry.dtype == candidate.dtype and not entry.derived
                and sm_of(entry.arch) == sm_of(arch) and entry.precision_class == class_of(candidate.precision)):
            cell = (tuple(layer_fields(parse_layer(entry.layer)).values()), entry.batch * prod(entry.input_size))
            if cell not in cells or entry.ms < cells[cell].ms:
                cells[cell] = entry
    default = variant.config({})
    rows: list[Row] = []
    for (layer, positions), entry in cells.items():
        ours = entry.variant == variant.name and entry.precision == candidate.precision and entry.form == candidate.form
        ratio = round(entry.baseline_ms / entry.ms, 2) if ours and entry.baseline_ms else 0.0
        tune = {k: v for k, v in entry.config.items() if default.get(k) != v} if ratio else {}
        rows.append((layer, positions, ratio, tune))
    own = tuple(layer_fields(candidate.layer).values())
    rows = sorted(rows, key=lambda row: _apart(row[0], own))[:_MOST_ROWS]
    faster = [row[0] for row in rows if row[2] >= _FASTER]
    return [row for row in rows if row[2] or any(_may_both_be_near(row[0], other) for other in faster)]


def header_notes(entries: Iterable[BestKnown], workload: Workload, arch: str, precision: str, *,
                 options: Sequence[str] = ()) -> list[str]:
    """Sentences for the header of a file: the cautions; the error and the times of each direction with their GPU; the command
    that writes the file again, with these other `options`."""
    entries = list(entries)
    told = [measured_note(e.direction, (e.ms, e.baseline_ms, e.baseline), e.rel_l2, e.gpu, e.batch, e.input_size)
            for e in entries if e.ms is not None]
    repeat = command([*workload_arguments(workload), *options], arch, precision)
    return [*cautions(entries, arch, precision), *told, *shared(entries, workload, arch, precision), f"Written by: {repeat}"]


def measured_note(direction: str, times: tuple[float, float | None, str], rel_l2: float | None, gpu: str, batch: int,
                  input_size: Sequence[int]) -> str:
    """A direction's line of measurements in the header of a file. `times`: the kernel's ms, PyTorch's ms or None, and the name
    of the way in which PyTorch computed it."""
    ms, baseline_ms, baseline = times
    against = f", PyTorch {numbers.time(baseline_ms)} ({baseline})" if baseline_ms else ""
    error = f", relative error {rel_l2:.1e}" if rel_l2 is not None else ""
    return (f"{direction}: {numbers.time(ms)}{against}{error}, measured on {gpu} with batch {batch} and input size "
            f"{' x '.join(map(str, input_size))}.")


def command(words: Sequence[str], arch: str, precision: str) -> str:
    """The command that repeats an export of the best known kernels."""
    words = ["export", *words, *([] if "--suite" in words else ["--best"]), "--arch", arch]
    return f"{PROGRAM} {shlex.join([*words, *(['--precision', precision] if precision else [])])}"


def left_to_pytorch(recipe: Recipe, arch: str) -> str:
    """The directions that a best recipe does not compute, as a sentence; empty when there are none."""
    left = [d for d in DIRECTIONS if d not in recipe.precision]
    return (f"Left to PyTorch: {', '.join(left)}; no known kernel for {recipe.layer} on {arch} was faster."
            if left else "")


def origin(entry: BestKnown) -> str:
    """Where an entry comes from, as one line."""
    config = " ".join(f"{k}={v}" for k, v in entry.config.items())
    time = f", {numbers.time(entry.ms)}" if entry.ms else ""
    time += f" against {numbers.time(entry.baseline_ms)} ({entry.baseline})" if entry.baseline_ms else ""
    where = f", {'tuned here' if entry.tuned else 'measured'} on {entry.gpu}, session {entry.session}" if entry.gpu else ""
    return (f"{entry.direction}: {entry.variant} {config} in {entry.precision}{time}{where}"
            + (f"; for {entry.arch} {entry.note}" if entry.note else "") + ".")


def _of_direction(direction: str, workload: Workload, precision: str, arch: str, file: Path | None) -> BestKnown | None:
    if precision:
        return best_or_derived(direction, workload, precision, arch, file=file)
    if workload.dtype not in CLASSES_OF:
        return None
    found = best_or_derived(direction, workload, CLASSES_OF[workload.dtype][0], arch, file=file)
    if found and found.pytorch_precision == "ieee" and found.precision == "tf32":
        return best_or_derived(direction, workload, "ieee", arch, file=file)
    return found


def _may_both_be_near(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """False only if the file finds no layer near to both: `_distance` in model_new.py.txt is at least `_apart`, and infinite
    for layers of different rank."""
    another_rank = one[3:5] != other[3:5] and 1 in (*one[3:5], *other[3:5])
    return not another_rank and _apart(one[:15], other[:15]) <= 2 * _NEAR


def _apart(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    return sum(abs(log2((a + 1) / (b + 1))) for a, b in zip(one, other, strict=True))
