"""What the parts of the layer picture share: width, colours, style sheet, the text of a formula."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .picture_axis import COLOURS, PictureAxis

WIDTH = 620
OUTSIDE = "every tap falls outside the input"  # why an output of a phase with taps can still be zero
BEYOND = "needs inputs that are not drawn"
_CHARACTERS = 76     # 13 px monospace in WIDTH
# light-dark() follows the colour scheme of the page around the picture; there is no script and no theme to pass.
STYLE = """<style>
.kwp{--ink:light-dark(#1B2028,#E3E7ED);--mute:light-dark(#5B6472,#9AA4B2);--line:light-dark(#E1E4EA,#2A313B);
--bg:light-dark(#FFFFFF,#0F1318);--bg2:light-dark(#F5F6F8,#171C23);--c0:light-dark(#2F6FD0,#6FA3F5);
--c1:light-dark(#E39A00,#F0B23E);--c2:light-dark(#12917A,#35BFA3);--c3:light-dark(#B0559B,#D884C4);
--c4:light-dark(#57B7E6,#8AD3F7);--c5:light-dark(#7A6A4F,#B8A684);--c6:light-dark(#9AA3B1,#717C8B);
margin:0;max-width:760px;color:var(--ink);font-family:"Source Sans","Source Sans Pro",system-ui,sans-serif}
.kwp svg{display:block;width:100%;height:auto;font-size:11px;font-variant-numeric:tabular-nums}
.kwp text{fill:var(--ink)} .kwp .m{fill:var(--mute)} .kwp .c{text-anchor:middle} .kwp .e{text-anchor:end}
.kwp .code{font-family:"Source Code Pro",ui-monospace,monospace;white-space:pre} .kwp .k{font-weight:600}
.kwp .big{font-size:13px;font-weight:600} .kwp .in{fill:var(--bg2);stroke:var(--mute)}
.kwp .zero{fill:var(--bg);stroke:var(--line)}
.kwp .crop{fill:none;stroke:var(--mute);stroke-dasharray:2 2;opacity:.55}
.kwp .part{fill:var(--bg2)} .kwp .gap{fill:var(--mute);opacity:.4} .kwp .wire{stroke-width:1.2;fill:none}
.kwp .d{opacity:0} .kwp .d,.kwp .out text{pointer-events:none} .kwp .out{cursor:default;outline:none}
.kwp .hot{fill:none;stroke:var(--ink);stroke-width:2;opacity:0;pointer-events:none} .kwp .w{stroke-width:2.2;fill:none}
.kwp .sel{fill:none;stroke:var(--ink);stroke-width:2;stroke-linejoin:round} .kwp .thin{stroke-width:1.4}
.kwp .tagbox{fill:var(--bg)} .kwp .wrong{fill:light-dark(#B3420C,#FF8A5C)}
.kwp .tag{font:600 11px "Source Code Pro",ui-monospace,monospace;text-anchor:middle;letter-spacing:-.5px}
.kwp .tag.s{font-size:9.5px}
.kwp .out:hover .d,.kwp .out:focus .d,.kwp .pin .d,.kwp .out:hover .hot,.kwp .out:focus .hot,.kwp .pin .hot{opacity:1}
.kwp svg:has(.out:hover) .pin:not(:hover) .d,.kwp svg:has(.out:hover) .pin:not(:hover) .hot,
.kwp svg:has(.out:focus) .pin:not(:focus) .d,.kwp svg:has(.out:focus) .pin:not(:focus) .hot,
.kwp svg:has(.out:hover) .out:focus:not(:hover) .d,.kwp svg:has(.out:hover) .out:focus:not(:hover) .hot{opacity:0}
.kwp .legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:12px;color:var(--mute);margin:0 0 4px}
.kwp .legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px;vertical-align:-1px;
box-sizing:border-box} .kwp .legend i.z{border:1px solid var(--line);background:var(--bg)}
.kwp .note{font-size:12px;color:var(--mute);margin:0 0 6px} .kwp svg+.legend{margin-top:14px}
.kwp .legend i.x{border:1px dashed var(--mute)}
</style>"""


@dataclass(frozen=True)
class Element:
    """One element of "output", "grad_input" or "grad_weight", of the dimensions that are drawn together. `values`: (tap, input)
    -> the number that this product adds; empty if the numbers are not shown."""

    tensor: str
    at: tuple[int, ...]
    values: Mapping[tuple[tuple[int, ...], tuple[int, ...]], float] = field(default_factory=dict)

    def label(self, tap: Sequence[int], reads: Sequence[int]) -> str:
        """The number that one product adds, or "" without numbers."""
        value = self.values.get((tuple(tap), tuple(reads)))
        return "" if value is None else number(value)

    @property
    def rows(self) -> tuple[str, str]:
        """What the upper and the lower row of cells are."""
        of_gradients = {"grad_input": ("grad_x", "grad_y"), "grad_weight": ("input x", "grad_y")}
        return of_gradients.get(self.tensor, ("input x", "output y"))


def number(value: float) -> str:
    """`-4` as `−4`, at most four digits."""
    return f"{value:.4g}".replace("-", "−")


def colour_of(axis: PictureAxis, phase: int) -> str:
    """The CSS colour of a phase that some tap reaches."""
    return f"var(--c{axis.colour(phase)})"


def outline(x: float, y: float, width: float, height: float) -> str:
    """Path data of a rectangle, its corners round where that can be seen."""
    if width < 12:
        return f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h{-width:.1f}z"
    w, h = width - 6, height - 6
    return (f"M{x + 3:.1f} {y:.1f}h{w:.1f}q3 0 3 3v{h:.1f}q0 3-3 3h{-w:.1f}q-3 0-3-3v{-h:.1f}q0-3 3-3z")


def terms(name: str, products: Iterable[str], count: int) -> str:
    """`y[7] = x[4]·w[0] + x[3]·w[2]`: as many of the `count` products as fit in the picture, then how many are left."""
    text = f"{name} ="
    for n, product in enumerate(products):
        rest = count - n
        joint = " " if n == 0 else " + "
        if n and len(text) + len(joint + product) + (len(f" + {rest - 1} more") if rest > 1 else 0) > _CHARACTERS:
            return f"{text} + {rest} more"
        text += joint + product
    return text


def legend(axes: Sequence[PictureAxis], *, of_grid: bool) -> str:
    """Which taps each phase uses, how many phases are always zero, what is cropped. Phases are those of axes[0]."""
    first = axes[0]
    live = list(first.phases.taps.items())
    shown = live if len(live) <= COLOURS else live[:COLOURS]
    items = [_entry(i, _sentence(phase, taps, of_grid), shaded=of_grid and len(axes[1].phases.taps) > 1)
             for i, (phase, taps) in enumerate(shown)]
    if len(live) > len(shown):
        rest = f"other {'row ' if of_grid else ''}phases: {len(live) - len(shown)}"
        items.append(_entry(COLOURS, rest, shaded=False))
    count, reached = 1, 1
    for axis in axes:
        count *= axis.stride
        reached *= len(axis.phases.taps)
    if reached < count:
        items.append(f'<span><i class="z"></i>always zero: {count - reached} of {count} phases</span>')
    cropped = [a.padding for a in axes]
    if any(cropped):
        amount = str(cropped[0]) if len(set(cropped)) == 1 else ", ".join(map(str, cropped))
        items.append(f'<span><i class="x"></i>cropped by padding {amount}</span>')
    return f'<div class="legend">{"".join(items)}</div>'


def _entry(colour: int, text: str, *, shaded: bool) -> str:
    base = f"var(--c{colour})"
    fill = (f"linear-gradient(90deg,color-mix(in srgb,{base} 95%,var(--bg)),color-mix(in srgb,{base} 33%,var(--bg)))"
            if shaded else base)
    return f'<span><i style="background:{fill}"></i>{text}</span>'


def _sentence(phase: int, taps: tuple[int, ...], of_grid: bool) -> str:
    shown = ", ".join(str(t) if of_grid else f"w{t}" for t in taps[:6]) + (", …" if len(taps) > 6 else "")
    if of_grid:
        return f"row phase {phase}: tap row{'s' if len(taps) > 1 else ''} {shown}"
    return f"phase {phase}: tap{'s' if len(taps) > 1 else ''} {shown}"
