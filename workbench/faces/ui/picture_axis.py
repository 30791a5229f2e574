"""One dimension of the layer picture: how much of it is drawn, and which taps reach an output of what is drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from ...core.facts import Phases, phases
from ...core.layer import ConvTranspose, Workload

COLOURS = 6                  # phases beyond the sixth share one colour, "other"
MOST_OUTPUTS = 400
_MOST_INPUTS = 20            # inputs that are drawn so that one complete sum is visible
_LEAST_OUTPUTS = 8           # drawn, where the layer has as many


@dataclass(frozen=True)
class Hit:
    """A tap that reaches an output, and the input it comes from."""

    tap: int
    input: int


@dataclass(frozen=True)
class PictureAxis:
    """One dimension of the picture. `inputs`: how many of its `of` inputs are drawn (None: the layer has no size yet). The
    first of them is `start`. At 0 the picture is that of a layer with so few inputs; above 0 it is a window into the whole
    layer. Inputs and outputs have their numbers in the layer; a cell is a place in the drawn row of outputs."""

    inputs: int
    of: int | None
    kernel: int
    stride: int
    padding: int
    output_padding: int
    dilation: int
    phases: Phases
    start: int = 0

    @property
    def uncropped(self) -> int:
        """Cells of the output row before padding takes `padding` off either end."""
        return (self.inputs - 1) * self.stride + self.dilation * (self.kernel - 1) + 1 + self.output_padding

    @property
    def outputs(self) -> int:
        """How many outputs there are, of what is drawn or, in a window, of the layer."""
        return self._width(self.of or self.inputs) if self.start else self._width(self.inputs)

    @property
    def last(self) -> int:
        """The last drawn input."""
        return self.start + self.inputs - 1

    def output_at(self, cell: int) -> int:
        return cell + self.start * self.stride - self.padding

    def cell_of(self, output: int) -> int:
        return output + self.padding - self.start * self.stride

    def cell_under(self, input_: int) -> int:
        """The cell that tap 0 of an input reaches; the input is drawn above it."""
        return (input_ - self.start) * self.stride

    def cropped(self, cell: int) -> bool:
        """Whether padding takes this cell off."""
        return not 0 <= self.output_at(cell) < self.outputs

    def has(self, output: int) -> bool:
        """Whether the output is drawn with all inputs that it needs."""
        return output in self._hits

    @property
    def shown(self) -> list[int]:
        """The outputs that are drawn with all inputs that they need."""
        return list(self._hits)

    def hits(self, output: int) -> list[Hit]:
        """Taps that reach an output of `shown`, in order of the tap."""
        return self._hits[output]

    def pairs(self, tensor: str, at: int) -> list[Hit] | None:
        """The pairs of tap and input whose products give element `at` of "output", "grad_input" or "grad_weight" in this
        dimension. None if the element, or something that it needs, is not drawn."""
        found = self._pairs(tensor, at)
        there = {"output": self.has(at), "grad_input": self.start <= at <= self.last,
                 "grad_weight": 0 <= at < self.kernel}[tensor]
        drawn = there and all(self.start <= hit.input <= self.last and 0 <= self.cell_of(o) < self.uncropped
                              and o < self.outputs for hit, o in found)
        return [hit for hit, _ in found] if drawn else None

    def around(self, tensor: str, at: int) -> PictureAxis:
        """The same dimension, or if element `at` is not drawn, a window in which it is. If there is none: unchanged."""
        if self.of is None or self.pairs(tensor, at) is not None:
            return self
        needed = [hit.input for hit, _ in self._pairs(tensor, at)] or [(at + self.padding) // self.stride]
        middle = (min(needed) + max(needed) + 1) // 2
        window = replace(self, start=max(0, min(middle - self.inputs // 2, self.of - self.inputs)))
        return self if window.pairs(tensor, at) is None else window

    def phase(self, output: int) -> int:
        return (output + self.padding) % self.stride

    def colour(self, phase: int) -> int | None:
        """0 to 5, `COLOURS` for "other", None for a phase no tap reaches."""
        place = self._places.get(phase)
        return None if place is None else min(place, COLOURS)

    def place(self, phase: int) -> float:
        """The place of a phase among the phases with taps, from 0 to 1."""
        return self._places[phase] / max(1, len(self._places) - 1)

    @property
    def middle(self) -> int:
        """The output to explain first: of those with the most taps the one nearest to the middle."""
        return max(self.shown, key=lambda o: (len(self.hits(o)), -abs(2 * o - self.outputs + 1), -o))

    def _width(self, inputs: int) -> int:
        """The outputs of a layer with so many inputs."""
        return (inputs - 1) * self.stride + self.dilation * (self.kernel - 1) + 1 + self.output_padding - 2 * self.padding

    def _pairs(self, tensor: str, at: int) -> list[tuple[Hit, int]]:
        """The pairs of the element in the whole layer, each with the output that it is part of."""
        inputs = self.of or self.inputs
        if tensor == "output":
            return [(Hit(k, v // self.stride), at) for k in range(self.kernel)
                    if not (v := at + self.padding - k * self.dilation) % self.stride and 0 <= v // self.stride < inputs]
        products = [(k, at) for k in range(self.kernel)] if tensor == "grad_input" else [(at, i) for i in range(inputs)]
        return [(Hit(k, i), o) for k, i in products
                if 0 <= (o := i * self.stride - self.padding + k * self.dilation) < self._width(inputs)]

    @cached_property
    def _hits(self) -> dict[int, list[Hit]]:
        most = self.of if self.start and self.of else self.inputs  # a window leaves out outputs that need more than is drawn
        found = {o: [Hit(k, v // self.stride) for k in self.phases.taps.get(self.phase(o), ())
                     if 0 <= (v := o + self.padding - k * self.dilation) and v // self.stride < most]
                 for o in map(self.output_at, range(self.uncropped)) if 0 <= o < self.outputs}
        return {o: hits for o, hits in found.items() if all(self.start <= hit.input <= self.last for hit in hits)}

    @cached_property
    def _places(self) -> dict[int, int]:
        return {phase: i for i, phase in enumerate(self.phases.taps)}


def axes(shown: Workload | ConvTranspose, cells: tuple[int, ...], *, extra: int = 64) -> list[PictureAxis]:
    """The layer's dimensions. `cells`: about how many output cells are drawn for each. At most `extra` more inputs are drawn
    than one output with all its taps needs.
    """
    layer = shown.layer if isinstance(shown, Workload) else shown
    sizes = shown.input_size if isinstance(shown, Workload) else (None,) * layer.dims
    return [_axis(*values, extra=extra) for values in zip(sizes, layer.kernel_size, layer.stride, layer.padding,
                                             layer.output_padding, layer.dilation, phases(layer), cells,
                                             strict=True)]


# more than seven: the parameters of one dimension of a layer
def _axis(size: int | None, k: int, s: int, p: int, op: int, d: int, found: Phases, cells: int, *,
          extra: int) -> PictureAxis:
    span = d * (k - 1) + 1 + op
    fitting = max(1, (cells - span) // s + 1)
    whole_reduction = -(-d * (k - 1) // s) + 1       # so that one output sees all of its taps
    visible = -(-(_LEAST_OUTPUTS + 2 * p - span) // s) + 1  # so that something is left after cropping
    inputs = max(min(fitting, whole_reduction + extra), min(whole_reduction, _MOST_INPUTS), visible)
    return PictureAxis(min(inputs, size) if size else inputs, size, k, s, p, op, d, found)
