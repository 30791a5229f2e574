"""The attacks in the TOML files of workbench/red_team, and the folder of templates with their kernels. honest.toml has right
files, because a judge that rejects everything would also catch every attack."""

from __future__ import annotations

import shutil
import textwrap
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...core.errors import BadRequest, or_nearest
from ...core.layer import FORWARD

RED_TEAM = Path(__file__).resolve().parents[2] / "red_team"
_CONTROL = "a right kernel"
_SHORT = "short.toml"        # kernels of a line or two, in the frame below
_WHOLE = "whole.toml"        # kernels with their own launcher or frame; modules that are whole files
_BODY = """
const Place p = my_place(layer, sizes);
if (p.item >= outputs(layer, sizes)) return;
output[p.item] = narrow<Scalar>(gather(layer, sizes, p, input, weight, bias));
"""
_REFERENCES = "references.toml"
_MISMATCH = {"cpu": "MISMATCH", "cuda": "MISMATCH"}
_FRAME = """/* variant
name      = "@NAME@"
computes  = ["forward"]
idea      = "@IDEA@"
precision = ["@PRECISION@"]

[tune]
BLOCK = {values = [32, 128, 2048], default = @BLOCK@}
*/
#include "common/tricks.cuh"
@DEVICE@
template <class Layer, class Tune>
__global__ void @NAME@(
    Layer layer, Sizes sizes, const typename Layer::scalar* input, const typename Layer::scalar* weight,
    const typename Layer::scalar* bias, typename Layer::scalar* output) {
  using Scalar = typename Layer::scalar;
@BODY@}

@LAUNCH@
"""
_HOST = """KW_NO_WORKSPACE

template <class Layer, class Tune>
cudaError_t forward(Layer layer, Sizes sizes, const typename Layer::scalar* input,
                    const typename Layer::scalar* weight, const typename Layer::scalar* bias,
                    typename Layer::scalar* output, void*, cudaStream_t stream) {
  int blocks = blocks_of(layer, sizes, Tune::BLOCK);
  @HOST@
  @NAME@<Layer, Tune><<<blocks, Tune::BLOCK, @SHARED@, stream>>>(layer, sizes, input, weight, bias, output);
  return cudaGetLastError();
}
"""
# The frames of the files: a reference, and an attacking module, which is the reference with some parts replaced.
_REFERENCE = """import time

import torch
from torch import nn


class Model(@BASE@):
@BODY@

def get_inputs():
    return [@INPUTS@]


def get_init_inputs():
    return @ARGUMENTS@
"""
_MODULE = """import time

import torch
from torch import nn
from torch.nn import functional as F

@BEFORE@

class Right(@BASE@):
@BODY@

class ModelNew(Right):
    def right(self, x, *more):
        return Right.forward(self, x, *more)

"""


@dataclass(frozen=True)
class Attack:
    """`expected`: device kind -> status; of a kernel also "one or another". `source`: who described it first. `group`: the
    workload and the limits of its run. `reference`: the name of a module's reference; "" is a transposed convolution.
    `question`: the key of the question that must fail with the expected status; "" is any. `answer`: "warned" if that question
    only warns, because such a file may be right for its user."""

    name: str
    kind: str                    # "kernel" | "module" | "control" (a right kernel) | "honest" (a right file)
    expected: dict[str, str]
    idea: str = ""
    direction: str = FORWARD
    group: str = "usual"
    source: str = "findings"
    reference: str = ""
    question: str = ""
    answer: str = "failed"


def attacks() -> list[Attack]:
    """A right kernel (the control), then all attacks of the TOML files. The control shows that the judge does not reject
    everything."""
    data = tomllib.loads((RED_TEAM / "attacks.toml").read_text(encoding="utf-8"))
    found = [Attack(_CONTROL, "control", {"cpu": "OK", "cuda": "OK"}, "Is right and hides nothing.")]
    found += [Attack(kind="kernel", **entry) for entry in data.get("kernel", [])]
    found += [_attack("kernel", name, entry) for name, entry in _short_kernels().items() if "source" in entry]
    found += [Attack(kind="module", **entry) for entry in data.get("module", [])]
    return found + [_attack("module", name, entry) for name, entry in _parts().items()]


def honest() -> list[Attack]:
    """The right files: none of them may fail."""
    return [Attack(name, "honest", {"cpu": "OK", "cuda": "OK"}, "Is right.") for name in right_files()]


def total(device: str) -> int:
    """How many attacks there are for that device."""
    return sum(a.kind != "control" and device_kind(device) in a.expected for a in attacks())


def chosen(names: Sequence[str]) -> list[Attack]:
    """The attacks and right files of these names, and the control. Raises `BadRequest` for an unknown name."""
    there = attacks() + honest()
    unknown = next((n for n in names if n not in {a.name for a in there}), None)
    if unknown is not None:
        hint = or_nearest(unknown, (a.name for a in there), "leave out --only to run all of them.")
        raise BadRequest(f"There is no attack {unknown!r}; {hint}", field="only")
    return [a for a in there if a.kind == "control" or a.name in names]


def kernels(folder: Path) -> Path:
    """A new folder of templates in `folder`, with one file for each bad kernel."""
    root = folder / "kernels"
    shutil.copytree(RED_TEAM / "kernels" / "common", root / "common")
    for place, kernel in tomllib.loads((RED_TEAM / "kernels" / _WHOLE).read_text(encoding="utf-8")).items():
        (root / place).parent.mkdir(exist_ok=True)
        (root / f"{place}.cu").write_text(kernel["text"], encoding="utf-8")
    for name, kernel in _short_kernels().items():
        text = _FRAME.replace("@LAUNCH@", _launch(name, kernel)).replace("@NAME@", name)
        text = text.replace("@DEVICE@", f"\n{kernel['device']}\n" if "device" in kernel else "")
        text = text.replace("@PRECISION@", kernel.get("precision", "ieee"))
        text = text.replace("@IDEA@", kernel["idea"]).replace("@BODY@", kernel.get("body", _BODY))
        (root / "forward" / f"{name}.cu").write_text(text.replace("@BLOCK@", str(kernel.get("block", 128))), encoding="utf-8")
    return root


def modules() -> dict[str, str]:
    """Name -> text of every module that attacks."""
    there = _parts()
    whole: dict[str, str] = tomllib.loads((RED_TEAM / "modules" / _WHOLE).read_text(encoding="utf-8"))
    return whole | {name: _text(entry, there) for name, entry in there.items()}


def reference(name: str) -> str:
    """The text of a reference."""
    parts = _references()[name]
    return _filled(_REFERENCE, parts).replace("@INPUTS@", parts["inputs"]).replace("@ARGUMENTS@", parts.get("arguments", "[]"))


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


def _launch(name: str, kernel: dict[str, Any]) -> str:
    """`meddle`: a function of the host, called before each launch. `host`: what the launcher does before its launch. `shared`:
    the bytes of its dynamic shared memory."""
    if "meddle" in kernel:
        return f"{kernel['meddle']}\nKW_LAUNCH_FORWARD({name}, meddle(layer, sizes, input, weight, output))"
    if "host" not in kernel and "shared" not in kernel:
        return f"KW_LAUNCH_FORWARD({name}, )"
    return _HOST.replace("@HOST@", kernel.get("host", "")).replace("@SHARED@", kernel.get("shared", "0"))


def _short_kernels() -> dict[str, dict[str, Any]]:
    return tomllib.loads((RED_TEAM / "kernels" / _SHORT).read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def _parts() -> dict[str, dict[str, Any]]:
    """Name -> the parts in which a module differs from its reference, from all files with such parts."""
    folder = RED_TEAM / "modules"
    files = [path for path in sorted(folder.glob("*.toml")) if path.name not in (_WHOLE, _REFERENCES)]
    return {name: entry for path in files for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items()}


@lru_cache(maxsize=1)
def _references() -> dict[str, dict[str, str]]:
    return tomllib.loads((RED_TEAM / "modules" / _REFERENCES).read_text(encoding="utf-8"))


def _attack(kind: str, name: str, entry: dict[str, Any]) -> Attack:
    told = {key: entry[key] for key in ("idea", "source", "group", "reference", "question", "answer") if key in entry}
    return Attack(name, kind, entry.get("expected", _MISMATCH), **told)


def _text(entry: dict[str, Any], there: dict[str, dict[str, Any]]) -> str:
    """The text of a module: the layers of its reference as class `Right`, and the parts of the entry. `like` names another
    entry, whose parts it also has."""
    entry = {**there[entry["like"]], **entry, "methods": there[entry["like"]]["methods"] + entry["methods"]} \
        if "like" in entry else entry
    text = _filled(_MODULE, _references()[entry["reference"]]).replace("@BEFORE@", entry.get("before", "").strip("\n") + "\n")
    parts = []
    if "init" in entry:
        parts.append("def __init__(self, *args, **named):\n    super().__init__(*args, **named)\n" +
                     textwrap.indent(entry["init"], "    "))
    if "methods" in entry:
        parts.append(entry["methods"].strip("\n"))
    if "forward" in entry:
        parts.append("def forward(self, x, *more):\n" + textwrap.indent(entry["forward"].strip("\n"), "    "))
    return text + textwrap.indent("\n\n".join(parts), "    ") + "\n"


def _filled(frame: str, parts: dict[str, str]) -> str:
    """Base class, constructor and forward of a reference."""
    names = [f"{'x' if not place else ('other', 'third')[place - 1]}" for place in range(1 + _more(parts["inputs"]))]
    body = ""
    if "layers" in parts:
        body += f"    def __init__(self{', ' * ('parameters' in parts)}{parts.get('parameters', '')}):\n" \
                f"        super().__init__()\n        {parts['layers']}\n"
        body += "        self.scale = scale\n" * ("scale" in parts.get("parameters", ""))
        body += "\n"
    if "forward" in parts:
        names += [parts["options"]] if "options" in parts else []
        body += f"    def forward(self, {', '.join(names)}):\n        {parts['forward']}\n"
    return frame.replace("@BASE@", parts.get("base", "nn.Module")).replace("@BODY@", body or "    pass\n")


def _more(inputs: str) -> int:
    """How many inputs come after the first."""
    return inputs.count("torch.") - 1


def _without_steps(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry without its `steps`. A rewrite has its own forward. It keeps the constructor unless it gives another one."""
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
