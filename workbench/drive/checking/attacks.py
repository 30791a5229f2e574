"""The attacks: what attacks.toml names, and the folder of templates that its kernels are. Beside them the right files of
honest.toml: a judge that refuses everything catches every attack, too."""

from __future__ import annotations

import difflib
import shutil
import textwrap
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...core.errors import BadRequest
from ...core.layer import FORWARD

RED_TEAM = Path(__file__).resolve().parents[2] / "red_team"
_CONTROL = "a right kernel"
_SHORT = "short.toml"        # kernels of a line or two, in the frame below; modules of a few lines
_FRAME = """/* variant
name      = "@NAME@"
computes  = ["forward"]
idea      = "@IDEA@"
precision = ["ieee"]

[tune]
BLOCK = {values = [32, 128, 2048], default = @BLOCK@}
*/
#include "common/tricks.cuh"

template <class Layer, class Tune>
__global__ void @NAME@(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
@BODY@}

@HOST@
KW_LAUNCH_FORWARD(@NAME@, @CALL@)
"""


@dataclass(frozen=True)
class Attack:
    """`expected`: device kind -> status. `group`: which workload and limits it is run with."""

    name: str
    kind: str                    # "kernel" | "module" | "honest": a right file, which is no attack
    expected: dict[str, str]
    idea: str = ""
    direction: str = FORWARD
    group: str = "usual"


def attacks() -> list[Attack]:
    """A right kernel, then everything in attacks.toml: the right one shows that the judge does not refuse everything."""
    data = tomllib.loads((RED_TEAM / "attacks.toml").read_text(encoding="utf-8"))
    found = [Attack(_CONTROL, "control", {"cpu": "OK", "cuda": "OK"}, "Is right and hides nothing.")]
    found += [Attack(kind=kind, **entry) for kind in ("kernel", "module") for entry in data.get(kind, [])]
    return found


def honest() -> list[Attack]:
    """The right files: none of them may fail."""
    return [Attack(name, "honest", {"cpu": "OK", "cuda": "OK"}, "Is right.") for name in right_files()]


def total(device: str) -> int:
    """How many attacks there are for that device."""
    return sum(a.kind != "control" and device_kind(device) in a.expected for a in attacks())


def chosen(names: Sequence[str]) -> list[Attack]:
    """The attacks and right files of these names, and the control. Raises `BadRequest` for a name that there is not."""
    there = attacks() + honest()
    unknown = next((n for n in names if n not in {a.name for a in there}), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, [a.name for a in there], n=1)
        raise BadRequest(f"There is no attack {unknown!r}; " + (f"did you mean {near[0]}?" if near else "leave --only away to "
                         "see them all."), field="only")
    return [a for a in there if a.kind == "control" or a.name in names]


def kernels(folder: Path) -> Path:
    """A new folder of templates in `folder`: every bad kernel as a file of its own."""
    root = folder / "kernels"
    shutil.copytree(RED_TEAM / "kernels", root, ignore=shutil.ignore_patterns(_SHORT))
    for name, kernel in tomllib.loads((RED_TEAM / "kernels" / _SHORT).read_text(encoding="utf-8")).items():
        text = _FRAME.replace("@NAME@", name).replace("@IDEA@", kernel["idea"]).replace("@BODY@", kernel["body"])
        host = kernel.get("host", "")  # host code, with a function `meddle` that is called before each launch
        text = text.replace("@HOST@", host).replace("@CALL@", "meddle(layer, sizes, input, weight, output)" if host else "")
        (root / "forward" / f"{name}.cu").write_text(text.replace("@BLOCK@", str(kernel.get("block", 128))), encoding="utf-8")
    return root


def modules() -> dict[str, str]:
    """Name -> text of every module that attacks."""
    folder = RED_TEAM / "modules"
    long = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    return long | tomllib.loads((folder / _SHORT).read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def right_files() -> dict[str, tuple[str, str]]:
    """Name -> (text of the reference, text of the file) of every right file."""
    data = tomllib.loads((RED_TEAM / "honest.toml").read_text(encoding="utf-8"))
    copies: dict[str, dict[str, Any]] = data["copies"]
    files = {name: (entry, entry) for name, entry in copies.items()}
    files |= {name: (copies[entry["of"]], {**_without_steps(copies[entry["of"]]), **entry})
              for name, entry in data["rewrites"].items()}
    return {name: (_module("Model", of) + _inputs(of), _module("ModelNew", own)) for name, (of, own) in files.items()}


def device_kind(device: str) -> str:
    """ "cpu" for the emulator, "cuda" for a GPU."""
    return "cpu" if device == "cpu" else "cuda"


def _without_steps(entry: dict[str, Any]) -> dict[str, Any]:
    """A rewrite has a forward of its own, but the constructor if it gives no other."""
    return {key: value for key, value in entry.items() if key != "steps"}


def _module(name: str, entry: dict[str, Any]) -> str:
    declared = f"# precision: {entry['precision']}\n" if "precision" in entry else ""
    given = "".join(f", {argument}" for argument in entry.get("arguments", {}))
    layers, steps = (textwrap.indent(entry.get(part, "").strip(), " " * 8) for part in ("layers", "steps"))
    return (f"{declared}import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n{entry.get('before', '')}\n\n"
            f"class {name}(nn.Module):\n    def __init__(self{given}):\n        super().__init__()\n{layers}\n\n"
            f"    def forward(self, {entry.get('takes', 'x')}):\n{steps}\n        return {entry['result']}\n")


def _inputs(entry: dict[str, Any]) -> str:
    return (f"\n\ndef get_inputs():\n    return [{entry['inputs']}]\n\n\n"
            f"def get_init_inputs():\n    return {list(entry.get('arguments', {}).values())}\n")
