"""Layers with their recipes come in, the text of one Python file goes out: all kernels, `patch(model)` and `unpatch(model)`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import BadRequest
from ...core.layer import ConvTranspose, Workload
from ..exporting.recipe import Recipe

_FIXED = Path(__file__).with_name("patch_file.py.txt")
_WIDTH = 116


@dataclass(frozen=True)
class LayerText:
    """One layer of the model with its recipe and the text of its exported file."""

    workload: Workload
    recipe: Recipe
    text: str
    paths: tuple[str, ...]

    @property
    def parts(self) -> dict[str, str]:
        """Direction -> variant and precision."""
        return {d: f"{c.variant.name} in {c.precision}" for d, c in self.recipe.chosen.items()}


def patch_text(name: str, layers: Sequence[LayerText], *, notes: Sequence[str] = ()) -> str:
    """The file for a model of that name. `notes`: sentences for its reader. Raises `BadRequest` where there is no layer."""
    if not layers:
        raise BadRequest("No layer of the model is patched, so there is no file to write.")
    names = [f"_LAYER_{i}" for i in range(len(layers))]
    parts = {"DOCSTRING": _docstring(name, layers, notes),
             "LAYERS": "\n".join(f"    ({_numbers(one.workload.layer)!r}, torch.{one.workload.dtype}): {i},"
                                 for i, one in enumerate(layers)),
             "FILES": "\n\n".join(f"{n} = {_literal(one.text)}" for n, one in zip(names, layers, strict=True)),
             "NAMES": ", ".join(names)}
    return re.sub(r"@(DOCSTRING|LAYERS|FILES|NAMES)@", lambda m: parts[m[1]], _FIXED.read_text(encoding="utf-8"))


def _docstring(name: str, layers: Sequence[LayerText], notes: Sequence[str]) -> str:
    lines = [f'"""CUDA kernels for the transposed convolutions of {name}. This file needs torch and nothing else.', "",
             "    import this_file", "    this_file.patch(model)      # undo: this_file.unpatch(model)", "",
             "A layer is patched if it has the numbers of one of these layers; PyTorch computes all else:", ""]
    for one in layers:
        lines.append(f"    {one.workload.layer} in {one.workload.dtype}: {', '.join(one.paths)}")
        lines += [f"        {d:<12} {words}" for d, words in one.parts.items()]
    lines += ["", *(line for note in notes for line in textwrap.wrap(note, _WIDTH))] if notes else []
    return "\n".join([*lines, '"""'])


def _numbers(layer: ConvTranspose) -> tuple[object, ...]:
    return (layer.dims, layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding, layer.groups,
            layer.bias, layer.dilation)


def _literal(text: str) -> str:
    """A Python literal of exactly this text; the exported file has docstrings of its own."""
    return repr(text) if "'''" in text or text.endswith(("\\", "'")) else f"r'''{text}'''"
