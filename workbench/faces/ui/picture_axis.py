"""One dimension of the layer picture: how much of it is drawn, and which taps reach an output of what is drawn."""

from __future__ import annotations

from dataclasses import dataclass
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
    """One dimension of the picture. `inputs`: how many of its `of` inputs are drawn (None: the layer has no size yet)."""

    inputs: int
    of: int | None
    kernel: int
    stride: int
    padding: int
    output_padding: int
    dilation: int
    phases: Phases

    @property
    def uncropped(self) -> int:
        """Cells of the output row before padding takes `padding` off either end."""
        return (self.inputs - 1) * self.stride + self.dilation * (self.kernel - 1) + 1 + self.output_padding

    @property
    def outputs(self) -> int:
        return self.uncropped - 2 * self.padding

    def hits(self, output: int) -> list[Hit]:
        """Taps that reach an output, in order of the tap."""
        return self._hits[output]

    def pairs(self, tensor: str, at: int) -> list[Hit] | None:
        """The pairs of tap and input whose products give element `at` of "output", "grad_input" or "grad_weight" in this
        dimension. None if the element, or something that it needs, is not drawn."""
        inputs = self.of or self.inputs
        last = self.outputs + (inputs - self.inputs) * self.stride
        taps = range(self.kernel) if tensor != "grad_weight" else (at,)
        found = [(Hit(k, i), o) for k in taps for i in ((at,) if tensor == "grad_input" else range(inputs))
                 if 0 <= (o := i * self.stride - self.padding + k * self.dilation) < last and (tensor != "output" or o == at)]
        there = {"output": self.outputs, "grad_input": self.inputs, "grad_weight": self.kernel}[tensor]
        drawn = 0 <= at < there and all(hit.input < self.inputs and o < self.outputs for hit, o in found)
        return [hit for hit, _ in found] if drawn else None

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
        return max(range(self.outputs), key=lambda o: (len(self.hits(o)), -abs(2 * o - self.outputs + 1), -o))

    @cached_property
    def _hits(self) -> list[list[Hit]]:
        return [[Hit(k, v // self.stride) for k in self.phases.taps.get(self.phase(o), ())
                 if 0 <= (v := o + self.padding - k * self.dilation) and v // self.stride < self.inputs]
                for o in range(self.outputs)]

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
