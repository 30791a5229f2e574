"""Explains a wrong result: where its values are wrong, the smallest case, and a known mistake that gives the same output."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, prod

import numpy as np
import torch

from ...core.check_parts import LooksLike
from ...core.errors import BadRequest
from ...core.layer import ConvTranspose, Workload
from ...core.orders import Emit, ExplainOrder, JudgeOrder
from ...core.replies import Event, Explained
from ...core.wrong_values import ALL, SmallestWrong, Term, Tile, WrongValues
from .. import mistakes
from ..truth import Truth
from .findings import Finding
from .inputs import INTEGERS
from .judge import launch_and_compare, open_stage, threads_for
from .stage import Stage
from .validate import allowed_rel_l2, element_limit

_CELLS = {1: (256,), 2: (64, 64), 3: (8, 32, 32)}   # of the map, at most
_PARTS = 512          # of channels or images whose shares are kept
_WARP = 32
_OF_POSITION = {"grad_weight": "input position", "grad_bias": "output position"}
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)   # of an input that are tried
_MOST_TRIES, _LIMIT_S = 40, 8.0
_MOST_TERMS, _MOST_FACTORS = 64, 4
_MOST_POSITIONS = 1 << 12   # whose products are added up for an element of a parameter's gradient
_SMALLEST_RATIO, _LARGEST_RATIO = 1e-4, 1e12
_LARGE = 1 << 22      # values of a result: above, no formulas are compared


@dataclass
class _Wrong:
    """The workload on which it was found, its truth, and the stage after the launch."""

    order: JudgeOrder
    stage: Stage
    truth: Truth
    name: str
    kind: str

    @property
    def got(self) -> torch.Tensor:
        return self.stage.tensors[self.name]

    def limit(self, expected: torch.Tensor) -> torch.Tensor:
        """The largest allowed error of each element, for random inputs."""
        allowed = allowed_rel_l2(self.order.precision, self.truth.reduction[self.name])
        return element_limit(expected, allowed, self.truth.rms[self.name])

    def blocks(self) -> Iterator[tuple[tuple[slice, ...], torch.Tensor, torch.Tensor, torch.Tensor]]:
        """(where, got, expected, wrong) for all of the result."""
        for index, expected in self.truth.blocks(self.name, self.stage.tensors):
            got = self.stage.result(self.name, index)
            right = got == expected.to(got.dtype) if self.kind == INTEGERS else \
                (got.double() - expected).abs() <= self.limit(expected)
            yield index, got, expected, ~right


def explain(order: ExplainOrder, emit: Emit) -> Explained:
    """What a report shows of the wrong result."""
    emit(Event("check", "where it is wrong"))
    with threads_for(order.of):
        try:
            found = _launched(order.of, order.tensor, order.inputs)
            values = None if found is None else located(found, order.tiles)
            if found is None or values is None or values.wrong == 0:
                return Explained()
            values = replace(values, looks_like=_looks_like(found))
        except Finding as finding:
            return Explained(restart=finding.restart)
        if order.inputs != INTEGERS or not order.shrink:
            return Explained(values)
        emit(Event("check", "looking for the smallest case that is still wrong"))
        try:
            case = _shrunk(order)
        except Finding as finding:   # the device is lost, and with it the case
            return Explained(values, restart=finding.restart)
        if case is None:
            return Explained(values)
        return Explained(replace(values, smallest=described(case), looks_like=values.looks_like or _looks_like(case)))


def located(found: _Wrong, tiles: tuple[Tile, ...] = ()) -> WrongValues | None:
    """The shares of wrong values, by place. `tiles`: those of the config, as in `ExplainOrder`."""
    shape = tuple(found.got.shape)
    two = shape if len(shape) > 1 else (1, *shape)
    positions = two[2:] or (1,)
    device = found.got.device
    rows, columns = torch.zeros(two[0], dtype=torch.int64, device=device), torch.zeros(two[1], dtype=torch.int64, device=device)
    places = torch.zeros(positions, dtype=torch.int64, device=device)
    ratios: dict[int, int] = {}
    not_finite = 0
    for index, got, expected, wrong in found.blocks():
        flat = wrong.reshape(1, -1, 1) if len(shape) == 1 else wrong.reshape(*wrong.shape[:2], *(wrong.shape[2:] or (1,)))
        at = (slice(None), *index) if len(shape) == 1 else (*index, *(slice(None),) * (len(shape) - len(index)))
        rows[at[0]] += flat.flatten(1).sum(1)
        columns[at[1]] += flat.transpose(0, 1).flatten(1).sum(1)
        places[at[2:] if len(shape) > 2 else (slice(None),)] += flat.sum((0, 1))
        off = (got.double() - expected).abs()
        not_finite += int((~off[wrong].isfinite()).sum())
        some = off.isfinite() & (off > 0)
        relative = (off / found.limit(expected).clamp_min(1e-300))[some].clamp(_SMALLEST_RATIO, _LARGEST_RATIO)
        steps, counts = torch.unique((2 * relative.log10()).floor().to(torch.int64), return_counts=True)
        for step_of, count in zip(steps, counts, strict=True):
            ratios[int(step_of)] = ratios.get(int(step_of), 0) + int(count)
    wrong_values, each = int(rows.sum()), prod(two[:2])
    cells, step, shares = _map(places.cpu().numpy(), each)
    along = _along(found, rows, columns, places.cpu().numpy(), two)
    along |= _in_tiles(found.name, tiles, columns.cpu().numpy(), rows.cpu().numpy(), places.cpu().numpy())
    return WrongValues(found.name, found.kind, shape, wrong_values, not_finite, cells, step, shares, along,
                       ratios=tuple(sorted(ratios.items())))


def _map(places: np.ndarray, each: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(cells, positions of a cell, shares): positions are taken together until the map is small enough."""
    step = tuple(ceil(size / most) for size, most in zip(places.shape, _CELLS[places.ndim], strict=True))
    cells = tuple(ceil(size / width) for size, width in zip(places.shape, step, strict=True))
    of_all = np.full(places.shape, each)
    sums = [np.pad(counts, [(0, c * w - n) for c, w, n in zip(cells, step, places.shape, strict=True)]).reshape(
        [part for c, w in zip(cells, step, strict=True) for part in (c, w)]).sum(tuple(range(1, 2 * len(cells), 2)))
        for counts in (places, of_all)]
    return cells, step, tuple(int(share) for share in np.ceil(ALL * sums[0] / np.maximum(sums[1], 1)).ravel())


def _along(found: _Wrong, rows: torch.Tensor, columns: torch.Tensor, places: np.ndarray, two: tuple[int, ...]
           ) -> dict[str, tuple[int, ...]]:
    """Shares by image, channel, phase of the stride and place in a warp of neighbouring positions."""
    values = int(np.prod(places.shape))
    names = {"grad_weight": ("input channel", "output channel")}.get(found.name, ("image", "channel"))
    along = {}
    for name, counts, others in ((names[0], rows, two[1]), (names[1], columns, two[0])):
        if 1 < len(counts) <= _PARTS:
            along[name] = tuple(int(share) for share in (ALL * counts.double() / (others * values)).ceil().tolist())
    if found.name not in ("output", "grad_input"):
        return along
    each = two[0] * two[1]
    layer, letters = found.order.workload.layer, "DHW"[-places.ndim:]
    for axis, (letter, stride) in enumerate(zip(letters, layer.stride, strict=True)):
        if found.name == "output" and 1 < stride <= places.shape[axis]:
            along[f"phase of {letter} (position mod {stride})"] = _by_remainder(places, axis, stride, each)
    if places.shape[-1] > _WARP:
        along[f"W mod {_WARP}"] = _by_remainder(places, places.ndim - 1, _WARP, each)
    return along


def _in_tiles(name: str, tiles: tuple[Tile, ...], columns: np.ndarray, rows: np.ndarray, places: np.ndarray
              ) -> dict[str, tuple[int, ...]]:
    """Shares by the place in a tile: an error at the edge of a tile shows there."""
    values, found = int(places.size), {}
    of_result = {"output": ("C", "CO"), "grad_input": ("C", "CI"), "grad_weight": ("CO",)}.get(name, ())
    for tile in tiles:
        axis, extent = tile.axis, tile.extent
        if axis == "W" and name in ("output", "grad_input"):
            counts, word, each = places, "W", len(rows) * len(columns)
        elif axis in of_result:
            counts, word, each = columns, "output channel" if name == "grad_weight" else "channel", len(rows) * values
        elif axis == "CI" and name == "grad_weight":
            counts, word, each = rows, "input channel", len(columns) * values
        else:
            continue
        if 1 < extent < counts.shape[-1] and extent <= _PARTS:
            found[f"{word} mod {extent} ({tile.name})"] = _by_remainder(counts, counts.ndim - 1, extent, each)
    return found


def _by_remainder(places: np.ndarray, axis: int, divisor: int, each: int) -> tuple[int, ...]:
    lines = np.moveaxis(places, axis, 0)
    parts = [lines[remainder::divisor] for remainder in range(divisor)]
    return tuple(int(np.ceil(ALL * part.sum() / (each * part.size))) for part in parts)


def described(found: _Wrong) -> SmallestWrong | None:
    """The first wrong element, and its summands."""
    for index, got, expected, wrong in found.blocks():
        if not bool(wrong.any()):
            continue
        at = tuple(int(i) for i in torch.unravel_index(wrong.contiguous().view(-1).to(torch.uint8).argmax(), wrong.shape))
        whole = (*index, *(slice(None),) * (len(at) - len(index)))
        place = tuple(i + (part.start or 0) for i, part in zip(at, whole, strict=True))
        work, mine, truth = found.order.workload, float(got[at]), float(expected[at])
        terms, bias = _terms(found, place)
        return SmallestWrong(work.batch, work.input_size, place, mine, truth, terms[:_MOST_TERMS], bias,
                             _said(mine, truth, terms, bias, _OF_POSITION.get(found.name, "")))
    return None


def _said(got: float, expected: float, terms: tuple[Term, ...], bias: float | None, of_position: str) -> str:
    """A sentence about the difference: which summands it equals. It is exact for integers. `of_position`: a word for what each
    summand is of, where that is not a tap."""
    off = got - expected
    if off != off or abs(off) == float("inf"):
        return ""
    if bias is not None and off == -bias:
        return "the bias is missing"
    alike = [term for term in terms if term.value and off in (-term.value, term.value)]
    if alike and not (of_position and alike[1:]):   # of many positions several may add the same number
        how = "missing" if off == -alike[0].value else "added twice"
        place = f"{of_position} {_shown(alike[0].reads)}" if of_position else f"tap {_shown(alike[0].tap)}"
        return f"the term of {place} is {how}"
    return "nothing was added up" if got == 0 else ""


def _shown(place: tuple[int, ...]) -> str:
    return str(place[0]) if len(place) == 1 else f"({', '.join(map(str, place))})"


def _terms(found: _Wrong, place: tuple[int, ...]) -> tuple[tuple[Term, ...], float | None]:
    """The summands of an element: for output and grad_input those of each tap that meets a position inside; for gradients of
    parameters those of each position."""
    layer, tensors, work = found.order.workload.layer, found.stage.tensors, found.order.workload
    if found.name in ("grad_weight", "grad_bias"):
        return _terms_of_parameter(found, place), None
    weight = tensors["weight"].double()
    n, channel, *position = place
    terms = []
    of_output = layer.out_channels // layer.groups, layer.in_channels // layer.groups
    mine, theirs = of_output if found.name == "output" else reversed(of_output)
    many = slice(channel // mine * theirs, channel // mine * theirs + theirs)   # the channels of the group
    read = tensors["input" if found.name == "output" else "grad_output"].double()
    for tap in np.ndindex(*layer.kernel_size):
        reads = _read(layer, found.name, tuple(position), tap, work)
        if reads is None:
            continue
        of_tap = weight[(many, channel % mine, *tap)] if found.name == "output" else weight[(channel, slice(None), *tap)]
        terms.append(_term(tap, reads, read[(n, many, *reads)], of_tap))
    bias = float(tensors["bias"].double()[channel]) if found.name == "output" and layer.bias else None
    return tuple(terms), bias


def _terms_of_parameter(found: _Wrong, place: tuple[int, ...]) -> tuple[Term, ...]:
    """The summands of an element of grad_weight or grad_bias, for each position; none where there are very many positions."""
    work, tensors = found.order.workload, found.stage.tensors
    layer, above = work.layer, tensors["grad_output"].double()
    if prod(work.output_size) > _MOST_POSITIONS:
        return ()
    if found.name == "grad_bias":
        return tuple(Term((), at, float(above[(slice(None), place[0], *at)].sum())) for at in np.ndindex(*work.output_size))
    given, terms = tensors["input"].double(), []
    channel, of_group, *tap = place
    each = layer.out_channels // layer.groups
    other = channel // (layer.in_channels // layer.groups) * each + of_group
    for at in np.ndindex(*work.input_size):
        reads = _read(layer, "grad_input", at, tuple(tap), work)
        if reads is not None:
            terms.append(_term(tuple(tap), at, given[(slice(None), channel, *at)], above[(slice(None), other, *reads)]))
    return tuple(terms)


def _term(tap: tuple[int, ...], reads: tuple[int, ...], left: torch.Tensor, right: torch.Tensor) -> Term:
    pairs = zip(left.tolist(), right.tolist(), strict=True) if len(left) <= _MOST_FACTORS else ()
    return Term(tuple(map(int, tap)), tuple(map(int, reads)), float(left @ right), tuple(pairs))


def _read(layer: ConvTranspose, name: str, position: tuple[int, ...], tap: tuple[int, ...], work: Workload
          ) -> tuple[int, ...] | None:
    """The position that a tap reads; None where it reads none."""
    reads = []
    for d, (at, k) in enumerate(zip(position, tap, strict=True)):
        if name == "output":
            at, rest = divmod(at + layer.padding[d] - k * layer.dilation[d], layer.stride[d])
            inside = rest == 0 and 0 <= at < work.input_size[d]
        else:
            at = at * layer.stride[d] - layer.padding[d] + k * layer.dilation[d]
            inside = 0 <= at < work.output_size[d]
        if not inside:
            return None
        reads.append(at)
    return tuple(reads)


def _launched(order: JudgeOrder, name: str, kind: str) -> _Wrong | None:
    """The tensors after a launch; None where its result is right. Raises `Finding` where the launch fails."""
    stage = open_stage(order)
    try:
        launch_and_compare(order, stage, kind)
    except Finding as finding:
        if not finding.errors or finding.restart:
            raise
        truth = Truth(order.workload, order.direction, kind, device=order.device, scratch=order.scratch)
        truth.prepare(stage.tensors)
        return _Wrong(order, stage, truth, name if name in finding.errors else next(iter(finding.errors)), kind)
    return None


def _shrunk(order: ExplainOrder) -> _Wrong | None:
    """The least batch and input size that are still wrong, one after the other; None where there is none below the given.
    Raises `Finding` where a launch has cost the device."""
    best, end, tries = None, time.monotonic() + min(_LIMIT_S, order.of.limit_s / 4), 0
    work = order.of.workload
    for axis in range(-1, work.layer.dims):
        for size in _SIZES:
            now = work.batch if axis < 0 else work.input_size[axis]
            if size >= now and best is not None or size > now:
                break
            sizes = tuple(size if d == axis else n for d, n in enumerate(work.input_size))
            try:
                smaller = replace(work, batch=size if axis < 0 else work.batch, input_size=sizes, preset="")
            except BadRequest:   # no output of that size
                continue
            tries += 1
            if tries > _MOST_TRIES or time.monotonic() > end:
                return best
            try:
                found = _launched(replace(order.of, workload=smaller), order.tensor, INTEGERS)
            except Finding as finding:   # a fault that is not the one to explain
                if finding.restart:
                    raise
                continue
            if found is not None:
                best, work = found, smaller
                break
    return best


def _looks_like(found: _Wrong) -> LooksLike | None:
    """A known mistake that gives the same output. None: not asked, as the result is large or no output."""
    if found.name != "output" or found.got.numel() > _LARGE:
        return None
    tensors = {name: tensor.cpu() for name, tensor in found.stage.tensors.items()}
    layer = found.order.workload.layer
    guess = mistakes.guess(layer, tensors["input"], tensors["weight"], tensors.get("bias"), tensors["output"])
    if guess is None:
        return None
    return LooksLike(str(layer), guess.found, guess.advice, guess.tried, guess.differs)

