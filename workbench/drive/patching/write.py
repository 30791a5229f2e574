"""Writes layers with their recipes as one Python file: all kernels, `patch(model)` and `unpatch(model)`.

It is an exported file in which `patch_file.py.txt` takes the place of the class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import BadRequest
from ...core.layer import Workload
from ...core.template import render
from ..exporting.export import export_text, note_lines
from ..exporting.recipe import Recipe

_PATCH = Path(__file__).with_name("patch_file.py.txt")
_CALLS = "# ---- Calls\n"      # the first line after the class of an exported file


@dataclass(frozen=True)
class LayerRecipe:
    """One distinct layer of the model with its recipe. `paths`: the first path of each instance."""

    workload: Workload
    recipe: Recipe
    paths: tuple[str, ...]

    @property
    def parts(self) -> dict[str, str]:
        """Direction -> variant and precision."""
        return {d: f"{c.variant.name} in {c.precision}" for d, c in self.recipe.chosen.items()}


def patch_text(name: str, layers: Sequence[LayerRecipe], *, notes: Sequence[str] = ()) -> str:
    """The text of the file for a model of that name. `notes`: sentences for its docstring. Raises `BadRequest` if there is no
    layer."""
    if not layers:
        raise BadRequest("No layer of the model is patched, so there is no file to write.")
    text = export_text([one.recipe for one in layers], class_name="")
    exported = text[text.index('"""', 3) + 3:]  # the exported file without its docstring
    if exported.count(_CALLS) != 1:
        raise RuntimeError(f"An exported file has {exported.count(_CALLS)} lines {_CALLS.strip()!r}; one was expected.")
    exported = exported.replace(_CALLS, _PATCH.read_text(encoding="utf-8") + _CALLS)
    return _docstring(name, layers, notes) + exported


def _docstring(name: str, layers: Sequence[LayerRecipe], notes: Sequence[str]) -> str:
    lines = [f'"""CUDA kernels for the transposed convolutions of {name}.', "",
             "    import this_file", "    this_file.patch(model)      # undo: this_file.unpatch(model)", "",
             "A layer is patched if it has the parameters of one of these layers; PyTorch computes everything else:", ""]
    for one in layers:
        names = ", ".join(path or "the model itself" for path in one.paths)
        lines.append(f"    {one.workload.layer} in {one.workload.dtype}: {names}")
        for direction, candidate in one.recipe.chosen.items():
            config = "".join(f" {name}={value}" for name, value in candidate.config.items())
            lines += [f"        {direction:<12} {candidate.variant.name}{config} in {candidate.precision} "
                      f"(candidate {render(candidate).candidate_id})"]
    lines += ["", *note_lines(notes)] if notes else []
    return "\n".join([*lines, "", "`layer.forward.kernels(x)` says what computes a patched layer, and why.",
                      "`python FILE --check` compares and times each layer against PyTorch here.",
                      "Needs torch, nvcc and ninja, but not the workbench. A kernel is compiled at its first use.", '"""'])
