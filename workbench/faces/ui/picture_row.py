"""The picture of one dimension: a row of inputs, a row of outputs, every tap a straight line between them.

Inputs stand at i * stride and outputs at their place before cropping, so tap k is the line i * s -> i * s + k * d.
"""

from __future__ import annotations

from .picture_axis import Hit, PictureAxis
from .picture_style import BEYOND, OUTSIDE, WIDTH, Element, colour_of, outline, terms

_LEFT, _TOP, _BOTTOM, _CELL = 52, 4, 102, 26
_LISTED = 8          # taps explained one by one below the formula
_TAG_AT = 0.27       # how far down its line a tap's tag sits


def row(axis: PictureAxis, *, explain: int | None = None, element: Element | None = None) -> tuple[str, float, str]:
    """SVG of one dimension; its height in pixels; the formula of the output that is explained at first. `explain`: that output;
    if it is not drawn, none is. `element`: the element whose products are drawn with their numbers."""
    cell = min(32.0, (WIDTH - _LEFT - 4) / axis.uncropped)
    above, below = element.rows if element else ("input x", "output y")
    parts = [f'<text x="0" y="{_TOP + 17}" class="m">{above}</text>'
             f'<text x="0" y="{_BOTTOM + 17}" class="m">{below}</text>', *_inputs(axis, cell), *_wires(axis, cell)]
    if element and element.tensor != "output":
        parts += [_cropped(axis, place, cell) if axis.cropped(place) else f'<rect class="in" {_box(place, _BOTTOM, cell)}/>'
                  for place in range(axis.uncropped)]
        return "".join([*parts, _of_gradient(axis, element, cell)]), _BOTTOM + _CELL + 24, ""
    at = element.at[0] if element else explain
    pin = axis.middle if at is None else at if axis.has(at) and (
        not element or axis.pairs("output", at) is not None) else None
    rows = -(-_listed(axis) // 2) + (axis.kernel > _listed(axis))
    for place in range(axis.uncropped):
        output = axis.output_at(place)
        parts.append(_output(axis, output, cell, pinned=output == pin, element=element if output == pin else None)
                     if axis.has(output) else _cropped(axis, place, cell))
    return "".join(parts), _BOTTOM + _CELL + 52 + rows * 16, "" if pin is None else _formula(axis, pin)


def _cropped(axis: PictureAxis, place: int, cell: float) -> str:
    """A cell that is no output, because padding takes it off, or an output that needs more inputs than are drawn."""
    why, style = ((f"cropped by padding {axis.padding}: never computed", "crop") if axis.cropped(place) else
                  (f"y[{axis.output_at(place)}] {BEYOND}", "part"))
    return f'<g><title>{why}</title><rect class="{style}" {_box(place, _BOTTOM, cell)}/></g>'


def _of_gradient(axis: PictureAxis, element: Element, cell: float) -> str:
    """The products that give one element of a gradient: thick lines with their numbers. "" if not all of them are drawn."""
    pairs = axis.pairs(element.tensor, element.at[0])
    if pairs is None:
        return ""
    parts, gap = [], cell * .08
    places = [(h, axis.cell_under(h.input), axis.cell_under(h.input) + h.tap * axis.dilation) for h in pairs]
    for _, top, bottom in places:
        parts.append(f'<path class="w" stroke="{colour_of(axis, bottom % axis.stride)}" '
                     f'd="M{_middle(top, cell)},{_TOP + _CELL}L{_middle(bottom, cell)},{_BOTTOM}"/>')
    cells = {(_TOP, top) for _, top, _ in places} | {(_BOTTOM, bottom) for *_, bottom in places}
    cells |= {(_TOP, axis.cell_under(element.at[0]))} if element.tensor == "grad_input" else set()
    parts.append('<path class="sel" d="{}"/>'.format("".join(
        outline(_x(place, cell) + gap - 1, top - 1, cell - 2 * gap + 2, _CELL + 2) for top, place in sorted(cells))))
    # The lines of grad_input part downwards and those of grad_weight are parallel: in the middle there is room.
    tags = [(_x(top, cell) + cell / 2 + (bottom - top) * cell * .6,
             _TOP + _CELL + (_BOTTOM - _TOP - _CELL) * (.6 + .16 * (n % 2)),
             element.label((hit.tap,), (hit.input,)) or f"w{hit.tap}",
             colour_of(axis, bottom % axis.stride)) for n, (hit, top, bottom) in enumerate(places)]
    return "".join([*parts, *_apart(tags)])


def _apart(tags: list[tuple[float, float, str, str]]) -> list[str]:
    """The tags, which stand in two rows by turns; none where neighbours in a row would collide."""
    by_row = [sorted((x, 9 + 7 * len(text)) for x, _, text, _ in tags[row::2]) for row in (0, 1)]
    crowded = any(b[0] - a[0] < (a[1] + b[1]) / 2 for row in by_row for a, b in zip(row, row[1:], strict=False))
    return [] if crowded else [_tag(*one) for one in tags]


def _tag(x: float, y: float, text: str, colour: str) -> str:
    width = 9 + 7 * len(text)
    return (f'<rect x="{x - width / 2:.1f}" y="{y - 9:.1f}" width="{width:.1f}" height="16" rx="3" class="tagbox" '
            f'stroke="{colour}"/><text class="tag" x="{x:.1f}" y="{y + 3:.1f}">{text}</text>')


def _listed(axis: PictureAxis) -> int:
    """How many taps are explained one by one; fewer where there are very many outputs to explain."""
    outputs = len(axis.shown)
    return min(axis.kernel, _LISTED // (1 if outputs <= 100 else 2 if outputs <= 200 else 4))


def _x(place: int, cell: float) -> float:
    return _LEFT + place * cell


def _middle(place: int, cell: float) -> str:
    return f"{_x(place, cell) + cell / 2:.1f}"


def _box(place: int, top: float, cell: float) -> str:
    gap = cell * .08
    return (f'x="{_x(place, cell) + gap:.1f}" y="{top}" width="{cell - 2 * gap:.1f}" height="{_CELL}" '
            f'rx="{min(3.0, cell / 5):.1f}"')


def _step(count: int, cell: float) -> int:
    """Every how many cells there is room to write an index."""
    return next(n for n in (1, 5, 10, 50, 100) if n * cell >= 5 + 7 * len(str(count - 1)) or n == 100)


def _inputs(axis: PictureAxis, cell: float) -> list[str]:
    parts = []
    for i in range(axis.start, axis.last + 1):
        place = axis.cell_under(i)
        parts.append(f'<rect class="in" {_box(place, _TOP, cell)}/>')
        if i % _step(axis.last + 1, cell) == 0 and cell >= 7 * len(str(i)) + 2:
            parts.append(f'<text x="{_middle(place, cell)}" y="{_TOP + 17}" class="c">{i}</text>')
    if cell >= 6:
        parts += [f'<circle cx="{_middle(j, cell)}" cy="{_TOP + _CELL / 2}" r="1.8" class="gap"/>'
                  for j in range((axis.inputs - 1) * axis.stride) if j % axis.stride]
    return parts


def _wires(axis: PictureAxis, cell: float) -> list[str]:
    """All lines of one colour are one path."""
    lines: dict[str, list[str]] = {}
    for i in range(axis.inputs):
        for k in range(axis.kernel):
            place = i * axis.stride + k * axis.dilation
            if not axis.cropped(place):
                lines.setdefault(colour_of(axis, place % axis.stride), []).append(
                    f"M{_middle(i * axis.stride, cell)},{_TOP + _CELL}L{_middle(place, cell)},{_BOTTOM}")
    faint = .32 if axis.inputs * axis.kernel < 40 else .16
    return [f'<path class="wire" style="opacity:{faint}" stroke="{colour}" d="{"".join(d)}"/>'
            for colour, d in lines.items()]


def _output(axis: PictureAxis, output: int, cell: float, *, pinned: bool, element: Element | None) -> str:
    place = axis.cell_of(output)
    hits = axis.hits(output)
    phase = axis.phase(output)
    middle = _middle(place, cell)
    if axis.colour(phase) is None:
        body = f'<rect class="zero" {_box(place, _BOTTOM, cell)}/>'
        if cell >= 10:
            body += f'<text x="{middle}" y="{_BOTTOM + 17}" class="c m" opacity=".6">0</text>'
    else:
        body = (f'<rect {_box(place, _BOTTOM, cell)} fill="{colour_of(axis, phase)}" '
                f'fill-opacity="{.85 if hits else .22}"/>')
    gap = cell * .08
    body += (f'<rect class="hot" x="{_x(place, cell) + gap - 1.5:.1f}" y="{_BOTTOM - 1.5}" '
             f'width="{cell - 2 * gap + 3:.1f}" height="{_CELL + 3}" rx="4"/>')
    if output % _step(max(axis.shown) + 1, cell) == 0:
        body += f'<text x="{middle}" y="{_BOTTOM + _CELL + 13}" class="c m">{output}</text>'
    return (f'<g class="out{" pin" if pinned else ""}" tabindex="-1">{body}'
            f'<g class="d">{_detail(axis, output, hits, cell, element)}</g></g>')


def _detail(axis: PictureAxis, output: int, hits: list[Hit], cell: float, element: Element | None) -> str:
    """Thick lines, their tags, the formula, and for each tap why it reaches or misses."""
    colour = colour_of(axis, axis.phase(output))
    end = _x(axis.cell_of(output), cell) + cell / 2
    starts = [_x(axis.cell_under(h.input), cell) + cell / 2 for h in hits]
    parts = []
    if hits:
        lines = "".join(f"M{x:.1f},{_TOP + _CELL}L{end:.1f},{_BOTTOM}" for x in starts)
        gap = cell * .08
        chosen = "".join(outline(x - cell / 2 + gap - 1, _TOP - 1, cell - 2 * gap + 2, _CELL + 2) for x in starts)
        parts.append(f'<path class="w" stroke="{colour}" d="{lines}"/><path class="sel" d="{chosen}"/>')
        parts += (_numbers(hits, starts, end, colour, element) if element and element.values else
                  _tags(hits, starts, end, colour))
    below = _BOTTOM + _CELL
    parts.append(f'<text class="code big" x="0" y="{below + 42}">{_formula(axis, output)}</text>')
    reached = {h.tap: h.input for h in hits}
    listed = _listed(axis)
    order = list(range(axis.kernel))
    if axis.kernel > listed:
        order.sort(key=lambda k: k not in reached)
    for q, tap in enumerate(order[:listed]):
        fill, quiet = (colour, "") if tap in reached else ("var(--mute)", ' class="m"')
        parts.append(f'<text class="code" x="{q % 2 * WIDTH / 2:.0f}" y="{below + 62 + q // 2 * 16}">'
                     f'<tspan class="k" style="fill:{fill}">w{tap}</tspan>'
                     f'<tspan dx="8"{quiet}>{_why(axis, output, tap, reached.get(tap))}</tspan></text>')
    if axis.kernel > listed:
        missing = sum(h.tap in order[listed:] for h in hits)
        rest = axis.kernel - listed
        text = (f"{rest} more reach it" if missing == rest else
                f"{rest} more, {missing} of them reach it" if missing else f"{rest} more do not reach it")
        parts.append(f'<text class="code m" x="0" y="{below + 62 + listed // 2 * 16}">{text}</text>')
    return "".join(parts)


def _numbers(hits: list[Hit], starts: list[float], end: float, colour: str, element: Element) -> list[str]:
    """On every line the number that it adds; every second one is lower, so that they have room."""
    tags = []
    for n, (hit, start) in enumerate(zip(hits, starts, strict=True)):
        share = _TAG_AT + .3 * (n % 2)
        tags.append((start + (end - start) * share, _TOP + _CELL + (_BOTTOM - _TOP - _CELL) * share,
                     element.label((hit.tap,), (hit.input,)), colour))
    return _apart(tags)


def _tags(hits: list[Hit], starts: list[float], end: float, colour: str) -> list[str]:
    """A tag on every line; narrower where lines are close, none where they would collide."""
    room = min((abs(a - b) for a, b in zip(starts, starts[1:], strict=False)), default=99.0) * (1 - _TAG_AT)
    longest = len(str(hits[-1].tap))
    width = min(room - 1, 9.0 + 7 * longest)
    prefix = "w" if width >= 8 + 7 * longest else ""
    if width < 3 + 6.6 * longest:
        return []
    y = _TOP + _CELL + (_BOTTOM - _TOP - _CELL) * _TAG_AT
    parts = []
    for hit, start in zip(hits, starts, strict=True):
        x = start + (end - start) * _TAG_AT
        parts.append(f'<rect x="{x - width / 2:.1f}" y="{y - 9:.1f}" width="{width:.1f}" height="16" rx="3" '
                     f'class="tagbox" stroke="{colour}"/>'
                     f'<text class="tag" x="{x:.1f}" y="{y + 3:.1f}">{prefix}{hit.tap}</text>')
    return parts


def _formula(axis: PictureAxis, output: int) -> str:
    hits = axis.hits(output)
    if hits:
        return terms(f"y[{output}]", (f"x[{h.input}]·w[{h.tap}]" for h in hits), len(hits))
    why = "no tap reaches this output" if axis.colour(axis.phase(output)) is None else OUTSIDE
    return f"y[{output}] = 0   ({why})"


def _why(axis: PictureAxis, output: int, tap: int, reached: int | None) -> str:
    above = output + axis.padding - tap * axis.dilation
    text = f"({output} + {axis.padding} − {tap}·{axis.dilation}) / {axis.stride}"
    if reached is not None:
        return f"{text} = {reached} → x[{reached}]"
    if above % axis.stride:
        return f"{text} = {str(above).replace('-', '−')}/{axis.stride}, not whole"
    return f"{text} = {str(above // axis.stride).replace('-', '−')}, outside the input"
