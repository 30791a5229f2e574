"""Writes the reference file of a layer or preset in KernelBench's form (Model, get_inputs, get_init_inputs)."""

from __future__ import annotations

from ...core.layer import Workload
from ...core.presets import Preset
from ..exporting.export import constructor_arguments

_DEFAULTS = {"stride": "1", "padding": "0", "output_padding": "0", "groups": "1", "bias": "False", "dilation": "1"}
_INPUTS = '''

def get_inputs():
    return [torch.rand({shape}, dtype=torch.{dtype})]


def get_init_inputs():
    return {arguments}
'''


def reference_text(workload: Workload, preset: Preset | None = None) -> str:
    """With the preset's own constructor, else with that of nn.ConvTransposeNd. The text is ours, not KernelBench's."""
    kind = f"ConvTranspose{workload.layer.dims}d"
    if preset is None:
        body = f"class Model(nn.{kind}):\n    pass\n"
    else:
        signature = ", ".join(f"{n}={_DEFAULTS[n]}" if n in _DEFAULTS else n for n in preset.constructor)
        given = ", ".join(f"{n}={n}" for n in preset.constructor if n not in preset.ignored)
        body = (f"class Model(nn.Module):\n    def __init__(self, {signature}):\n        super().__init__()\n"
                f"        self.{preset.attribute} = nn.{kind}({given})\n\n"
                f"    def forward(self, x):\n        return self.{preset.attribute}(x)\n")
    inputs = _INPUTS.format(shape=workload.input_shape, dtype=workload.dtype,
                            arguments=constructor_arguments(workload.layer, preset))
    return f"import torch\nfrom torch import nn\n\n\n{body}{inputs}"
