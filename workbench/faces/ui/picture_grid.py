"""The picture of two dimensions: input grid, tap grid, output grid; the colour shows which tap an output gets.

Hue is the phase of the row, lightness the phase of the column, and a tap has the colour of the outputs it reaches.
"""

from __future__ import annotations

from functools import cached_property
from itertools import product

from .picture_axis import Hit, PictureAxis
from .picture_style import OUTSIDE, WIDTH, Element, colour_of, outline, terms

_LEFT, _TOP = 160, 20        # where the output grid begins
_EDGE = 2                    # where the small grids begin: room for the outline of their first column
_GRID_HEIGHT = 264
_NAMED = 4                   # so many pairs of input and tap are also named in their cells


def grid(down: PictureAxis, across: PictureAxis, prefix: str, *, explain: tuple[int, int] | None = None,
         element: Element | None = None) -> tuple[str, float, str]:
    """SVG of two dimensions; its height; the formula explained at first. `prefix` makes ids unique in a document. `explain`:
    the output to explain; if it is not drawn, none is. `element`: the element whose products are drawn with their numbers."""
    drawn = _Grid(down, across, prefix, element)
    if element and element.tensor != "output":
        return drawn.gradient(element)
    at = (element.at[0], element.at[1]) if element else explain
    pin = (down.middle, across.middle) if at is None else at if _inside(down, across, at) and (
        not element or drawn.products is not None) else None
    return drawn.draw(pin)


def _inside(down: PictureAxis, across: PictureAxis, place: tuple[int, int]) -> bool:
    return down.has(place[0]) and across.has(place[1])


class _Grid:
    def __init__(self, down: PictureAxis, across: PictureAxis, prefix: str, element: Element | None = None) -> None:
        self.element = element
        self.down, self.across, self.prefix = down, across, prefix
        self.cell = min(19.0, _GRID_HEIGHT / down.uncropped, (WIDTH - _LEFT - 2) / across.uncropped)
        # Both small grids stand one above the other, beside the output.
        self.small = min(26.0, (_LEFT - 24) / max(across.inputs, across.kernel),
                         (_GRID_HEIGHT - 26) / (down.inputs + down.kernel))
        self.round = min(3.0, self.small / 5)
        self.taps_top = _TOP + down.inputs * self.small + 26
        self.height = max(down.uncropped * self.cell + 14, self.taps_top - _TOP + down.kernel * self.small)
        self.shapes: dict[object, tuple[str, str]] = {}  # pattern of cells -> id and path, drawn once

    @cached_property
    def products(self) -> tuple[list[Hit], list[Hit]] | None:
        """The pairs of tap and input that give the element, by row and by column; None if not all are drawn."""
        assert self.element is not None
        rows, columns = (axis.pairs(self.element.tensor, at) for axis, at in
                         zip((self.down, self.across), self.element.at, strict=True))
        return None if rows is None or columns is None else (rows, columns)

    def draw(self, pin: tuple[int, int] | None) -> tuple[str, float, str]:
        outputs = [self._place(i, j, pin) for i in range(self.down.uncropped) for j in range(self.across.uncropped)]
        return self._whole(outputs), _TOP + self.height + 66, self._formula(pin) if pin else ""

    def gradient(self, element: Element) -> tuple[str, float, str]:
        """The cells that one element of a gradient needs are outlined, and each tap or input has the number that it adds."""
        cells = [self._cell((i, j), whole=False) for i in range(self.down.uncropped) for j in range(self.across.uncropped)]
        if self.products is not None:
            rows, columns = self.products
            at = element.at[0], element.at[1]
            taps = ([at[0]], [at[1]]) if element.tensor == "grad_weight" else ([h.tap for h in rows], [h.tap for h in columns])
            inputs = self._drawn(*(([at[0]], [at[1]]) if element.tensor == "grad_input" else (
                [h.input for h in rows], [h.input for h in columns])))
            for pattern, top in ((inputs, _TOP), (taps, self.taps_top)):
                cells += [self._outlined(*pattern, top)] if all(pattern) else []
            places = [(axis.cell_under(h.input) + h.tap * axis.dilation for h in hits)
                      for axis, hits in ((self.down, rows), (self.across, columns))]
            size = self.cell - 1.4
            cells += ['<path class="sel thin" d="{}"/>'.format("".join(
                outline(_LEFT + j * self.cell, _TOP + i * self.cell, size, size) for i, j in product(*map(list, places))))]
            cells += self._named(rows, columns, element)
        return self._whole(cells), _TOP + self.height + 20, ""

    def _whole(self, outputs: list[str]) -> str:
        shapes = "".join(f'<path id="{key}" d="{d}"/>' for key, d in self.shapes.values())
        above, below = self.element.rows if self.element else ("input x", "output y")
        return "".join([f"<defs>{shapes}</defs>", f'<text x="0" y="12" class="m">{above}</text>',
                        f'<text x="{_LEFT}" y="12" class="m">{below}</text>', self._inputs(), self._taps(), self._indices(),
                        *outputs])

    def _named(self, rows: list[Hit], columns: list[Hit], element: Element) -> list[str]:
        """In the cell of each tap, or for grad_weight of each input, the number that its product adds."""
        of_input, parts = element.tensor == "grad_weight", []
        top = _TOP if of_input else self.taps_top
        for a, b in product(rows, columns):
            text = element.label((a.tap, b.tap), (a.input, b.input))
            i, j = (a.input - self.down.start, b.input - self.across.start) if of_input else (a.tap, b.tap)
            if text and 5.4 * len(text) + 1 <= self.small:
                parts.append(f'<text class="tag s" x="{_EDGE + (j + .5) * self.small:.1f}" '
                             f'y="{top + (i + .5) * self.small + 3:.1f}">{text}</text>')
        return parts

    def _inputs(self) -> str:
        size = self.small
        return "".join(f'<rect class="in" x="{_EDGE + j * size + 1:.1f}" y="{_TOP + i * size:.1f}" '
                       f'width="{size - 2:.1f}" height="{size - 2:.1f}" rx="{self.round:.1f}"/>'
                       for i in range(self.down.inputs) for j in range(self.across.inputs))

    def _taps(self) -> str:
        size = self.small
        parts = [f'<text x="0" y="{self.taps_top - 7:.1f}" class="m">taps w, {self.down.kernel}×{self.across.kernel}'
                 '</text>']
        for a in range(self.down.kernel):
            for b in range(self.across.kernel):
                fill = self._fill(a * self.down.dilation % self.down.stride,
                                  b * self.across.dilation % self.across.stride)
                parts.append(f'<rect x="{_EDGE + b * size + 1:.1f}" y="{self.taps_top + a * size:.1f}" '
                             f'width="{size - 2:.1f}" height="{size - 2:.1f}" rx="{self.round:.1f}" {fill}/>')
        return "".join(parts)

    def _indices(self) -> str:
        """Every fifth row and column of the output has its number."""
        bottom = _TOP + self.down.uncropped * self.cell + 11
        step = next(n for n in (5, 10, 50) if n * self.cell > 24 or n == 50)
        columns = [f'<text x="{_LEFT + (self.across.cell_of(j) + .5) * self.cell - .7:.1f}" y="{bottom:.1f}" '
                   f'class="c m">{j}</text>' for j in self.across.shown if j % step == 0]
        rows = [f'<text x="{_LEFT - 4}" y="{_TOP + (self.down.cell_of(i) + .5) * self.cell + 3:.1f}" class="e m">{i}'
                '</text>' for i in self.down.shown if i % step == 0]
        return "".join(columns + rows)

    def _fill(self, row_phase: int, column_phase: int, hit: bool = True) -> str:
        lightness = .95 - .62 * self.across.place(column_phase) if len(self.across.phases.taps) > 1 else .85
        return f'fill="{colour_of(self.down, row_phase)}" fill-opacity="{lightness if hit else .12:.2f}"'

    def _cell(self, place: tuple[int, int], *, whole: bool = True) -> str:
        """One cell of the output grid, before padding takes the edge off. `whole`: grey if not all of its inputs are drawn."""
        x, y, size = _LEFT + place[1] * self.cell, _TOP + place[0] * self.cell, self.cell - 1.4
        box = f'x="{x:.1f}" y="{y:.1f}" width="{size:.1f}" height="{size:.1f}" rx="2"'
        output = self.down.output_at(place[0]), self.across.output_at(place[1])
        if self.down.cropped(place[0]) or self.across.cropped(place[1]):
            return f'<rect class="crop" {box}/>'
        if self._dead(output):
            return f'<rect class="zero" {box}/>'
        inside = _inside(self.down, self.across, output)
        if whole and not inside:
            return f'<rect class="part" {box}/>'
        fill = self._fill(self.down.phase(output[0]), self.across.phase(output[1]),
                          not inside or bool(self.down.hits(output[0]) and self.across.hits(output[1])))
        return f"<rect {box} {fill}/>"

    def _place(self, i: int, j: int, pin: tuple[int, int] | None) -> str:
        x, y, size = _LEFT + j * self.cell, _TOP + i * self.cell, self.cell - 1.4
        output = self.down.output_at(i), self.across.output_at(j)
        body = self._cell((i, j))
        if not _inside(self.down, self.across, output):
            return body
        element = self.element if output == pin else None
        detail = self._detail(output, self.down.hits(output[0]), self.across.hits(output[1]), element)
        return (f'<g class="out{" pin" if output == pin else ""}" tabindex="-1">{body}'
                f'<rect class="hot" x="{x - 1.2:.1f}" y="{y - 1.2:.1f}" width="{size + 2.4:.1f}" '
                f'height="{size + 2.4:.1f}" rx="3"/><g class="d">{detail}</g></g>')

    def _dead(self, output: tuple[int, int]) -> bool:
        return (self.down.colour(self.down.phase(output[0])) is None
                or self.across.colour(self.across.phase(output[1])) is None)

    def _detail(self, output: tuple[int, int], rows: list[Hit], columns: list[Hit], element: Element | None) -> str:
        size = self.small
        parts = []
        if rows and columns:
            parts.append(self._outlined(*self._drawn([h.input for h in rows], [h.input for h in columns]), _TOP))
            parts.append(self._outlined([h.tap for h in rows], [h.tap for h in columns], self.taps_top))
        if element and element.values:
            parts += self._named(rows, columns, element)
        elif len(rows) * len(columns) <= _NAMED:
            for a, b in product(rows, columns):
                for i, j, top, row, column in ((a.input, b.input, _TOP, self.down.start, self.across.start),
                                               (a.tap, b.tap, self.taps_top, 0, 0)):
                    if 5.4 * len(f"{i},{j}") + 3 <= size:
                        parts.append(f'<text class="tag s" x="{_EDGE + (j - column + .5) * size:.1f}" '
                                     f'y="{top + (i - row + .5) * size + 3:.1f}">{i},{j}</text>')
        base = _TOP + self.height + 26
        parts.append(f'<text class="code big" x="0" y="{base:.0f}">{self._formula(output)}</text>'
                     f'<text class="code m" x="0" y="{base + 18:.0f}">{self._row_reasons[output[0]]}</text>'
                     f'<text class="code m" x="0" y="{base + 34:.0f}">{self._column_reasons[output[1]]}</text>')
        return "".join(parts)

    @cached_property
    def _row_reasons(self) -> dict[int, str]:
        return {o: f"row    {_why(self.down, o)}" for o in self.down.shown}

    @cached_property
    def _column_reasons(self) -> dict[int, str]:
        return {o: f"column {_why(self.across, o)}" for o in self.across.shown}

    def _drawn(self, rows: list[int], columns: list[int]) -> tuple[list[int], list[int]]:
        """The places of these inputs in the input grid."""
        return [i - self.down.start for i in rows], [j - self.across.start for j in columns]

    def _outlined(self, rows: list[int], columns: list[int], top: float) -> str:
        """The outline of some cells, as one shape that all outputs with the same pattern share."""
        size = self.small
        i0, j0 = min(rows), min(columns)
        pattern = (tuple(i - i0 for i in rows), tuple(j - j0 for j in columns))
        if pattern not in self.shapes:
            d = "".join(outline(j * size, i * size - 1, size, size) for i, j in product(*pattern))
            self.shapes[pattern] = (f"{self.prefix}{len(self.shapes)}", d)
        style = "sel" if size >= 14 else "sel thin"
        return (f'<use class="{style}" href="#{self.shapes[pattern][0]}" x="{_EDGE + j0 * size:.1f}" '
                f'y="{top + i0 * size:.1f}"/>')

    def _formula(self, output: tuple[int, int]) -> str:
        name = f"y[{output[0]},{output[1]}]"
        rows, columns = self.down.hits(output[0]), self.across.hits(output[1])
        if rows and columns:
            return terms(name, (f"x[{a.input},{b.input}]·w[{a.tap},{b.tap}]" for a, b in product(rows, columns)),
                         len(rows) * len(columns))
        return f"{name} = 0   ({'no tap reaches this output' if self._dead(output) else OUTSIDE})"


def _why(axis: PictureAxis, output: int) -> str:
    """Which taps reach an output along one dimension: `(9 + 1 − 0·2) / 5 = 2`."""
    hits = axis.hits(output)
    if len(hits) == 1:
        return f"({output} + {axis.padding} − {hits[0].tap}·{axis.dilation}) / {axis.stride} = {hits[0].input}"
    general = f"({output} + {axis.padding} − k·{axis.dilation}) / {axis.stride}"
    if hits:
        more = ", …" if len(hits) > 5 else ""
        return (f"{general} = {', '.join(str(h.input) for h in hits[:5])}{more} "
                f"for k = {', '.join(str(h.tap) for h in hits[:5])}{more}")
    return f"{general} is {'never whole' if axis.colour(axis.phase(output)) is None else 'outside the input'}"
