"""The attacks: what attacks.toml names, and the folder of templates that its kernels are."""

from __future__ import annotations

import difflib
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    kind: str                    # "kernel" | "module"
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


def total(device: str) -> int:
    """How many attacks there are for that device."""
    return sum(a.kind != "control" and device_kind(device) in a.expected for a in attacks())


def chosen(names: Sequence[str]) -> list[Attack]:
    """The attacks of these names and the control. Raises `BadRequest` for a name that there is not."""
    there = attacks()
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


def device_kind(device: str) -> str:
    """ "cpu" for the emulator, "cuda" for a GPU."""
    return "cpu" if device == "cpu" else "cuda"
