"""The layer picture: which inputs and taps give which output. From a layer or a workload it makes SVG and CSS, without scripts.
Page, notebook and report use the same string. Hovering an output shows its formula by CSS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from html import escape

from ...core import numbers
from ...core.layer import ConvTranspose, Workload
from ...core.wrong_values import SHORT, SmallestWrong
from .picture_axis import MOST_OUTPUTS, PictureAxis, axes
from .picture_grid import grid
from .picture_row import row
from .picture_style import BEYOND, STYLE, WIDTH, Element, legend, number

_ROW_CELLS = 26
_GRID_CELLS = (15, 22)
_GRID_EXTRA = 4      # inputs that are drawn beyond those that one output needs
_ROW_LINES = 900     # lines from inputs to outputs in one row: each is drawn again in the detail of its output
_HINT = "hover an output to see its formula"
_LINE = 76           # characters of a line of numbers
_OF_ELEMENT = ("output", "grad_input", "grad_weight")   # the tensors whose elements can be drawn
_Drawn = tuple[str, str, float, str]         # legend and note, SVG inside, height, formula


@lru_cache(maxsize=8)
def _svg(shown: Workload | ConvTranspose, wanted: tuple[int, ...] | None, case: SmallestWrong | None, tensor: str) -> str:
    prefix = f"k{sha256(repr((shown, wanted, case, tensor)).encode()).hexdigest()[:8]}_"
    parts = []
    for group, dimensions, name in _groups(shown):
        place = wanted and tuple(wanted[i] for i in dimensions)
        element = _element(case, tensor, dimensions) if case else None
        if element or place:
            asked, at = (element.tensor, element.at) if element else ("output", place or ())
            group = [axis.around(asked, i) for axis, i in zip(group, at, strict=True)]
        parts.append(_drawn(group, place, prefix, name, element))
    if case:
        parts[-1] = _with_numbers(parts[-1], case, tensor)
    return f'<figure class="kwp">{STYLE}{"".join(_figure(*part) for part in parts)}</figure>'


def layer_svg(shown: Workload | ConvTranspose, *, explain: int | Sequence[int] | None = None, case: SmallestWrong | None = None,
              tensor: str = "output") -> str:
    """One `<figure>` of style, legend and SVG. `explain`: the output whose formula is shown while none is hovered. The part of
    the layer around it is drawn. If it is no output, the picture says so and shows no other one instead. `case`: a wrong
    element of `tensor`, whose sum is drawn with its numbers; `shown` then has the size of the case. A 3-D layer is drawn as
    height and width, with the depth below.
    """
    dims = (shown.layer if isinstance(shown, Workload) else shown).dims
    wanted = None if explain is None else (explain,) if isinstance(explain, int) else tuple(explain)
    if wanted is not None and len(wanted) != dims:
        wanted = None
    if case is not None and (tensor not in _OF_ELEMENT or len(case.index) != dims + 2):
        case = None
    return _svg(shown, wanted, case, tensor)


def case_svg(work: Workload, case: SmallestWrong, tensor: str) -> str:
    """The picture of the layer at the size of the smallest case, with the numbers of the wrong element of `tensor`."""
    return layer_svg(replace(work, batch=case.batch, input_size=case.input_size, preset=""), case=case, tensor=tensor)


def _element(case: SmallestWrong, tensor: str, dimensions: tuple[int, ...]) -> Element:
    """The element as these dimensions see it: products that differ only in others are added up."""
    values: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    place = case.index[2:]
    for term in case.terms if case.complete else ():
        tap, reads = term.tap, place if tensor == "grad_input" else term.reads
        key = tuple(tap[d] for d in dimensions), tuple(reads[d] for d in dimensions)
        values[key] = values.get(key, 0.0) + term.value
    return Element(tensor, tuple(place[d] for d in dimensions), values)


def _with_numbers(part: _Drawn, case: SmallestWrong, tensor: str) -> _Drawn:
    """The last picture, with the sum of the wrong element in numbers below it."""
    above, body, height, formula = part
    added = [*(term.value for term in case.terms), *([case.bias] if case.bias is not None else [])]
    signed = [number(added[0]), *(f"{'−' if value < 0 else '+'} {number(abs(value))}" for value in added[1:])] if added else []
    words = [f"{numbers.index(SHORT.get(tensor, tensor), case.index)} =", *(signed if case.complete else ["…"] * bool(signed)),
             *(["="] if signed and (added[1:] or not case.complete) else []),
             *([number(case.expected)] if added[1:] or not signed or not case.complete else [])]
    got = number(case.got) if case.got == case.got else "NaN or a value that was never written"
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) >= _LINE:
            lines.append("   ")
        lines[-1] += f"{' ' if lines[-1] else ''}{word}"
    texts = [f'<text class="code big" x="0" y="{height + 14 + 18 * n:.0f}">{line}</text>' for n, line in enumerate(lines)]
    texts.append(f'<text class="code big wrong" x="0" y="{height + 14 + 18 * len(lines):.0f}">the kernel gave {got}</text>')
    return (above, body + "".join(texts), height + 18 * len(texts) + 12, f"{formula} {' '.join(lines)}; the kernel gave {got}")


def _groups(shown: Workload | ConvTranspose) -> list[tuple[list[PictureAxis], tuple[int, ...], str]]:
    """What is drawn together: (axes, which dimensions they are, a word for it)."""
    dims = (shown.layer if isinstance(shown, Workload) else shown).dims
    if dims == 1:
        return [([_light(a) for a in axes(shown, (_ROW_CELLS,))], (0,), "")]
    plane = _fitted(axes(shown, (_ROW_CELLS, *_GRID_CELLS)[-dims:], extra=_GRID_EXTRA)[-2:])
    rows = [_light(a) for a in axes(shown, (_ROW_CELLS,) * dims)]
    if plane is None:  # too large for a grid: one row for each dimension
        names = ("depth", "height", "width")[-dims:]
        order = (*range(dims - 2, dims), *range(dims - 2))
        return [([rows[d]], (d,), names[d]) for d in order]
    last = (dims - 2, dims - 1)
    if dims == 2:
        return [(plane, last, "")]
    return [(plane, last, "height and width"), ([rows[0]], (0,), "depth")]


def _light(axis: PictureAxis) -> PictureAxis:
    """The row, with the number of inputs reduced until it has few enough lines, as long as outputs are left."""
    while axis.inputs * axis.kernel > _ROW_LINES and axis.inputs > 1 and axis.outputs > axis.stride:
        axis = replace(axis, inputs=axis.inputs - 1)
    return axis


def _fitted(plane: list[PictureAxis]) -> list[PictureAxis] | None:
    """The plane, with the number of inputs reduced until it has few enough cells; None if even one input has too many."""
    down, across = plane
    while down.uncropped * across.uncropped > MOST_OUTPUTS:
        candidates = [a for a in (down, across) if a.inputs > 1 and a.outputs > a.stride]
        if not candidates:
            return None
        widest = max(candidates, key=lambda a: a.uncropped)
        smaller = replace(widest, inputs=widest.inputs - 1)
        down, across = (smaller, across) if widest is down else (down, smaller)
    return [down, across]


def _drawn(group: list[PictureAxis], explain: tuple[int, ...] | None, prefix: str, name: str, element: Element | None
           ) -> _Drawn:
    above = legend(group, of_grid=len(group) == 2)
    if group[0].uncropped > MOST_OUTPUTS and len(group) == 1:
        text = (f"{name + ': ' if name else ''}not drawn: one input reaches {numbers.count(_span(group[0]))} "
                f"outputs; the picture has room for {MOST_OUTPUTS}.")
        return above, f'<text x="0" y="14" class="m">{text}</text>', 22, text
    hint = _HINT if element is None or element.tensor == "output" else ""
    missing = _missing(group, explain, element)
    above += f'<div class="note">{" · ".join(filter(None, [name, hint, _left_out(group), missing]))}</div>'
    if len(group) == 2:
        place = None if explain is None else (explain[0], explain[1])
        body, height, formula = grid(group[0], group[1], prefix, explain=place, element=element)
    else:
        body, height, formula = row(group[0], explain=explain[0] if explain else None, element=element)
    return above, body, height, formula or missing


def _missing(group: list[PictureAxis], explain: tuple[int, ...] | None, element: Element | None) -> str:
    """`y[41] is beyond what is drawn`, where that is so: no other output is explained instead."""
    tensor, place = (element.tensor, element.at) if element else ("output", explain)
    if place is None or all(axis.pairs(tensor, at) is not None if element else axis.has(at)
                            for axis, at in zip(group, place, strict=True)):
        return ""
    return f"{SHORT.get(tensor, tensor)}[{','.join(map(str, place))}] is beyond what is drawn"


def _span(axis: PictureAxis) -> int:
    return axis.dilation * (axis.kernel - 1) + 1


def _left_out(group: list[PictureAxis]) -> str:
    """`drawn with 8 inputs instead of 131 072`, or in a window `drawn: inputs 93 to 100 of 131 072`; "" if all are drawn."""
    if not any(a.of and a.inputs < a.of for a in group):
        return ""
    if any(a.start for a in group):
        parts = " × ".join(f"{numbers.count(a.start)} to {numbers.count(a.last)}" for a in group)
        return f"drawn: inputs {parts} of {' × '.join(numbers.count(a.of) for a in group)}; a grey output {BEYOND}"
    drawn = " × ".join(numbers.count(a.inputs) for a in group)
    return f"drawn with {drawn} inputs instead of {' × '.join(numbers.count(a.of) for a in group)}"


def _figure(above: str, body: str, height: float, formula: str) -> str:
    label = f"Transposed convolution: which inputs and taps make an output. {' '.join(formula.split())}"
    return (f'{above}<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">{body}</svg>')
