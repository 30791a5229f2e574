"""Writes layers and candidates as words of a command line, and reads them. Every trial has the command that repeats it."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from .candidate import Candidate
from .errors import BadRequest
from .layer import ConvTranspose, Workload
from .variants import TEMPLATES

_POSITIONAL = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "output_padding", "groups", "bias",
               "dilation")
PROGRAM = "python -m workbench"


def parse_layer(text: str) -> ConvTranspose:
    """The layer of a text such as `ConvTranspose2d(32, 64, (3, 5), stride=2)`, as in PyTorch. Raises `BadRequest`."""
    example = "write it as in PyTorch: ConvTranspose1d(32, 64, 5, dilation=3)"
    module = re.match(r"\s*(?:torch\.)?(?:nn\.)?(?P<name>[A-Z]\w*)\s*\(", text)
    found = re.match(r"\s*(?:torch\.)?(?:nn\.)?ConvTranspose([123])d\s*(\(.*\))\s*\Z", text, re.S)
    if not found:
        if module and not re.fullmatch(r"ConvTranspose[123]d", module["name"]):
            raise BadRequest(f"The layer {text!r} is not served; choose ConvTranspose1d, ConvTranspose2d or ConvTranspose3d.",
                             field="layer")
        if text.count("(") > text.count(")"):
            raise BadRequest(f"In the layer {text!r} a bracket is not closed; {example}.", field="layer")
        raise BadRequest(f"The layer {text!r} cannot be read; {example}.", field="layer")
    try:
        call = ast.parse(f"f{found[2]}", mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError("not a call")
        values = [ast.literal_eval(arg) for arg in call.args]
        given: dict[str, Any] = {k.arg or "**": ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise BadRequest(f"The layer {text!r} cannot be read; {example}.", field="layer") from error
    return layer_of(int(found[1]), values, given)


def layer_of(dims: int, values: Sequence[Any], named: Mapping[str, Any]) -> ConvTranspose:
    """The layer from the arguments of a call of PyTorch's nn.ConvTranspose{dims}d. Raises `BadRequest`."""
    def refuse(what: str) -> BadRequest:
        return BadRequest(f"ConvTranspose{dims}d {what}; it takes {', '.join(_POSITIONAL)}.", field="layer")

    unknown = [name for name in named if name not in _POSITIONAL]
    if unknown:
        raise refuse(f"has no parameter {unknown[0]}")
    if len(values) > len(_POSITIONAL):
        raise refuse(f"is given too many values, {len(values)}, from {values[len(_POSITIONAL)]!r} on")
    placed = dict(zip(_POSITIONAL, values, strict=False))
    if twice := [name for name in named if name in placed]:
        raise refuse(f"is given {twice[0]} twice, {placed[twice[0]]!r} and {named[twice[0]]!r}")
    whole = {**placed, **named}
    if missing := [name for name in _POSITIONAL[:3] if name not in whole]:
        raise refuse(f"lacks {', '.join(missing)}")
    return ConvTranspose(dims, **whole)


def workload_arguments(workload: Workload) -> list[str]:
    """The arguments that describe this workload."""
    words = ["--preset", workload.preset] if workload.preset else [
        "--layer", str(workload.layer), "--batch", str(workload.batch),
        "--input-size", ",".join(map(str, workload.input_size))]
    words += ["--dtype", workload.dtype]
    if workload.memory_format != "contiguous":
        words += ["--memory-format", workload.memory_format]
    if workload.seed:
        words += ["--seed", str(workload.seed)]
    return words


def candidate_command(candidate: Candidate, workload: Workload, device: str, options: Sequence[str] = ()) -> str:
    """The command that judges this candidate again. `options`: the options of the run that concern judging."""
    words = ["run", *workload_arguments(workload), "--device", device, "--direction", candidate.direction,
             "--variant", candidate.variant.name, "--precision", candidate.precision, "--form", candidate.form]
    for name, value in candidate.config.items():
        words += ["--set", f"{candidate.variant.name}.{name}={value}"]
    words += [f"--flag={flag}" for flag in candidate.compile_flags]
    words += [*_templates(candidate), *options]
    return f"{PROGRAM} {shlex.join(words)}"


def fork_command(kept: str, device: str, options: Sequence[str] = ()) -> str:
    """The command that judges a fork again. `kept` is the SESSION:TRIAL that keeps its text."""
    return f"{PROGRAM} {shlex.join(['run', '--source', kept, '--device', device, *options])}"


def recipe_command(candidates: Sequence[Candidate], workload: Workload, device: str, options: Sequence[str] = ()) -> str:
    """The command that judges these candidates, one for each direction, and then their ModelNew."""
    words = ["run", *workload_arguments(workload), "--device", device]
    for candidate in candidates:
        key = candidate.variant.key
        words += ["--direction", candidate.direction, "--variant", key]
        for name, value in candidate.config.items():
            words += ["--set", f"{key}.{name}={value}"]
    # A variant without the run-time form is judged in its constant form.
    words += ["--form", "runtime" if any(c.form == "runtime" for c in candidates) else "constant"]
    precisions = {c.precision for c in candidates}
    words += ["--precision", *precisions] if len(precisions) == 1 else []
    words += [f"--flag={flag}" for flag in candidates[0].compile_flags]
    words += [*_templates(candidates[0]), *options]
    return f"{PROGRAM} {shlex.join([*words, '--modules'])}"


def baseline_command(workload: Workload, device: str, direction: str, options: Sequence[str] = ()) -> str:
    """The command that measures PyTorch alone on this workload."""
    words = ["run", *workload_arguments(workload), "--device", device, "--direction", direction, "--baselines-only", *options]
    return f"{PROGRAM} {shlex.join(words)}"


def _templates(candidate: Candidate) -> list[str]:
    root = candidate.variant.path.parent.parent
    return [] if root == TEMPLATES else ["--templates", str(root.resolve())]
