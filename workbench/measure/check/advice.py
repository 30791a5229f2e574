"""What to do about an exception of the foreign file: by its kind, and by the line it came from."""

from __future__ import annotations

import re
import sys

from .foreign.process import Ended, Raised

_NAME = re.compile(r"name '(\w{1,60})' is not defined")
_NO_MODULE = re.compile(r"No module named '([\w.]{1,80})'")
_NOT_IN_MODULE = re.compile(r"cannot import name '(\w{1,60})' from '([\w.]{1,80})'")
_NO_ATTRIBUTE = re.compile(r"'(\w{1,60})' object has no attribute '(\w{1,60})'")
_NOT_OF_MODULE = re.compile(r"module '([\w.]{1,80})' has no attribute '(\w{1,60})'")
_ARGUMENTS = re.compile(r"\(\) (?:missing \d+ |takes |got an unexpected keyword |got multiple values |got some positional)")
_MODULES = sys.stdlib_module_names | {"torch", "numpy", "triton"}
_USUAL = {
    "nn": "from torch import nn", "F": "import torch.nn.functional as F", "np": "import numpy as np",
    "Tensor": "from torch import Tensor", "load_inline": "from torch.utils.cpp_extension import load_inline",
    "tl": "import triton.language as tl", "Path": "from pathlib import Path", "partial": "from functools import partial",
    "lru_cache": "from functools import lru_cache", "dataclass": "from dataclasses import dataclass",
    "Function": "from torch.autograd import Function",
    **{name: f"from typing import {name}" for name in ("Any", "Callable", "Dict", "List", "Optional", "Tuple", "Union")},
    **{name: f"from math import {name}" for name in ("ceil", "floor", "prod", "sqrt")}}


def advice_for_construction(error: Raised | Ended) -> str:
    if isinstance(error, Ended):
        return error.advice
    return advice_for(error, arguments="Take the arguments of the reference's Model, in its order.",
                      otherwise="Run the file alone, and construct the class with the reference's arguments.")


def advice_for(error: Raised, *, arguments: str, otherwise: str) -> str:
    """`arguments`: for a call from outside that does not fit; `otherwise`: for what no line of the file raised."""
    message, here = error.message, f"line {error.line}" if error.line else "the file"
    if found := _NAME.search(message):
        name = found[1]
        missing = f"import {name}" if name in _MODULES else _USUAL.get(name)
        return f"Write '{missing}' at the top of the file." if missing else \
            f"Define {name} before {here} uses it, or correct its name."
    if found := _NO_MODULE.search(message):
        return f"Install {found[1].partition('.')[0]} here, or remove the import."
    if found := _NOT_IN_MODULE.search(message):
        return f"Correct {found[1]} in {here}, or install a version of {found[2].partition('.')[0]} that has it."
    if found := _NOT_OF_MODULE.search(message):
        return f"Correct {found[2]} in {here}, or install a version of {found[1].partition('.')[0]} that has it."
    if error.type == "AttributeError" and (found := _NO_ATTRIBUTE.search(message)):
        return f"Set {found[2]} on the {found[1]} before {here} reads it, or correct the name."
    if error.type == "TypeError" and error.line is None and _ARGUMENTS.search(message):
        return arguments
    return f"Look at {here}." if error.line else otherwise
