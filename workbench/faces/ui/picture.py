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
from .picture_axis import MOST_OUTPUTS, PictureAxis, axes
from .picture_grid import grid
from .picture_row import row
from .picture_style import STYLE, WIDTH, legend

_ROW_CELLS = 26
_GRID_CELLS = (15, 22)
_GRID_EXTRA = 4      # inputs that are drawn beyond those that one output needs
_ROW_LINES = 900     # lines from inputs to outputs in one row: each is drawn again in the detail of its output
_HINT = "hover an output to see its formula"
_Drawn = tuple[str, str, float, str]         # legend and note, SVG inside, height, formula


@lru_cache(maxsize=8)
def _svg(shown: Workload | ConvTranspose, wanted: tuple[int, ...] | None) -> str:
    prefix = f"k{sha256(repr((shown, wanted)).encode()).hexdigest()[:8]}_"
    parts = [_drawn(group, wanted and tuple(wanted[i] for i in dimensions), prefix, name)
             for group, dimensions, name in _groups(shown)]
    return f'<figure class="kwp">{STYLE}{"".join(_figure(*part) for part in parts)}</figure>'


def layer_svg(shown: Workload | ConvTranspose, *, explain: int | Sequence[int] | None = None) -> str:
    """One `<figure>` of style, legend and SVG. `explain`: the output whose formula is shown while none is hovered; it is
    ignored if it is not drawn. A 3-D layer is drawn as height and width, with the depth below.
    """
    dims = (shown.layer if isinstance(shown, Workload) else shown).dims
    wanted = None if explain is None else (explain,) if isinstance(explain, int) else tuple(explain)
    if wanted is not None and len(wanted) != dims:
        wanted = None
    return _svg(shown, wanted)


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


def _drawn(group: list[PictureAxis], explain: tuple[int, ...] | None, prefix: str, name: str) -> _Drawn:
    above = legend(group, of_grid=len(group) == 2)
    if group[0].uncropped > MOST_OUTPUTS and len(group) == 1:
        text = (f"{name + ': ' if name else ''}not drawn: one input reaches {numbers.count(_span(group[0]))} "
                f"outputs; the picture has room for {MOST_OUTPUTS}.")
        return above, f'<text x="0" y="14" class="m">{text}</text>', 22, text
    above += f'<div class="note">{" · ".join(filter(None, [name, _HINT, _left_out(group)]))}</div>'
    if len(group) == 2:
        place = None if explain is None else (explain[0], explain[1])
        return above, *grid(group[0], group[1], prefix, explain=place)
    return above, *row(group[0], explain=explain[0] if explain else None)


def _span(axis: PictureAxis) -> int:
    return axis.dilation * (axis.kernel - 1) + 1


def _left_out(group: list[PictureAxis]) -> str:
    """`drawn with 8 inputs instead of 131 072`, where not all are drawn."""
    if not any(a.of and a.inputs < a.of for a in group):
        return ""
    drawn = " × ".join(numbers.count(a.inputs) for a in group)
    return f"drawn with {drawn} inputs instead of {' × '.join(numbers.count(a.of) for a in group)}"


def _figure(above: str, body: str, height: float, formula: str) -> str:
    label = f"Transposed convolution: which inputs and taps make an output. {' '.join(formula.split())}"
    return (f'{above}<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">{body}</svg>')
