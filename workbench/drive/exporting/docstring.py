"""The header of an exported file: what computes each direction, what was measured, and what its reader should know."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ...core.candidate import Candidate
from ...core.layer import BACKWARD, FORWARD, LAUNCHES
from ...core.presets import Preset
from ...core.template import Rendered
from .recipe import Recipe

_PRECISION = {
    "ieee": "float32, every product and sum rounded as IEEE says",
    "tf32": "TF32: operands rounded to 10 bits of fraction, sums in float32",
    "tf32x3": "three TF32 products each, about as exact as float32",
    "fp16": "float16, sums in float32", "bf16": "bfloat16, sums in float32", "fp64": "float64",
}
_ABOUT_TF32 = (
    "PyTorch computes a float32 convolution in TF32 if torch.backends.cudnn.allow_tf32 is True, which is the default.",
    "A kernel in ieee or tf32x3 is then more exact than PyTorch. The results may differ by 1e-3.")
_ABOUT_PARAMETERS = ("Parameters are initialised as in PyTorch with the same seed. PyTorch's state_dict can be loaded.",)
_ABOUT_CALLS = (
    "The kernels compute the layer above, with every input size. A layer with other arguments is computed by PyTorch's own",
    "op, unless this file knows of measurements near it (see `choose`). `kernels(x)` says what computes an input and why;",
    "`prepare(x, measure=True)` measures it once on this machine and keeps the fastest. PyTorch also computes tensors that",
    "are not {dtype}, are not on a CUDA device, or are empty. It gets calls with wrong arguments, so that they raise its",
    "error. It computes the layer if the GPU lacks the instructions or the shared memory for a kernel. If a kernel cannot be",
    "built or launched, there is one warning and PyTorch computes the layer.",
    "Gradients of gradients are PyTorch's. torch.autocast casts as it does for PyTorch's op. torch.compile keeps a call as",
    "one operator. The kernels always give the same bits for the same input; PyTorch's gradients may not.",
    "",
    "Kernels run on the current stream without synchronization. With KW_DEBUG_SYNC=1 in the environment each launch is",
    "synchronized, and the error names the kernel that failed.",
    "",
    "Needs torch >= 2.1 for CUDA (2.4 for torch.compile), nvcc and ninja. A kernel is compiled at its first use, once per",
    "machine. `python FILE --check` compares and times this file against PyTorch here.")
_WIDTH = 116         # of a line of the docstring


def docstring(recipes: Sequence[Recipe], kernels: Sequence[Sequence[tuple[Candidate, Rendered]]], preset: Preset | None,
              notes: Sequence[str]) -> str:
    """The file's docstring, quotes included; `kernels`: those of each recipe."""
    layer, dtypes = recipes[0].layer, list(dict.fromkeys(r.workload.dtype for r in recipes))
    titles = list(dict.fromkeys(str(r.layer) for r in recipes))
    title = titles[0] if len(titles) == 1 else f"{len(titles)} layers"
    lines = [f'"""{title} in {" and ".join(dtypes)}, computed by CUDA kernels instead of PyTorch\'s.']
    for recipe, found in zip(recipes, kernels, strict=True):
        lines += ["", *([f"{recipe.layer} in {recipe.workload.dtype}:", ""] if len(recipes) > 1 else []),
                  *_directions(recipe, {c.direction: r for c, r in found})]
    lines += ["", *(line for note in notes for line in textwrap.wrap(note, _WIDTH))] if notes else []
    lines += ["", *_ABOUT_TF32, ""] if "float32" in dtypes else [""]
    kind = f"nn.ConvTranspose{layer.dims}d"
    original = f"KernelBench's problem {preset.number} (level 1)" if preset else f"{kind}, with its output_size"
    lines.append(f"Constructor, parameter names and forward are those of {original}.")
    return "\n".join([*lines, *_ABOUT_PARAMETERS, *(line.format(dtype=" or ".join(dtypes)) for line in _ABOUT_CALLS), '"""'])


def _directions(recipe: Recipe, rendered: dict[str, Rendered]) -> list[str]:
    lines = []
    for direction in LAUNCHES:
        candidate = getattr(recipe, direction)
        if candidate is None and direction == BACKWARD:
            continue
        if candidate is None and direction != FORWARD and recipe.backward:
            lines.append(f"    {direction:<12} by backward; its other result is not used")
            continue
        if candidate is None:
            own = (f"torch.conv_transpose{recipe.layer.dims}d" if direction == FORWARD
                   else "torch.ops.aten.convolution_backward")
            lines.append(f"    {direction:<12} by PyTorch: {own}, with PyTorch's TF32 setting")
            continue
        config = " ".join(f"{k}={v}" for k, v in candidate.config.items())
        lines.append(f"    {direction:<12} {candidate.variant.name} {config} (candidate {rendered[direction].candidate_id})")
        lines.append(f"    {'':<12} computes in {candidate.precision}: {_PRECISION[candidate.precision]}")
        if direction == BACKWARD:
            lines.append(f"    {'':<12} both gradients from one launch, if both are needed")
    return lines
