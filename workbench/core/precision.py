"""Precisions: those of each dtype, the class in which a candidate competes, the precisions of PyTorch that it competes with,
and the precision that a foreign file declares. The tolerance of each precision is in measure/kernel/validate.py."""

from __future__ import annotations

import re

PRECISIONS_OF = {"float32": ("ieee", "tf32", "tf32x3"), "float16": ("fp16",), "bfloat16": ("bf16",),
                 "float64": ("fp64",)}
PRECISIONS = tuple(p for found in PRECISIONS_OF.values() for p in found)
FROM_STRICTEST = ("fp64", "ieee", "tf32", "fp16", "bf16")   # the precisions in which PyTorch computes
# The precisions of PyTorch that a candidate of a precision competes with: PyTorch may be more accurate, not less.
QUALIFIES = {"tf32": ("tf32", "tf32x3", "ieee", "fp64"), "tf32x3": ("tf32x3", "ieee", "fp64"), "ieee": ("ieee", "fp64"),
             "fp16": ("fp16", "tf32", "ieee", "fp64"), "bf16": ("bf16", "tf32", "ieee", "fp64"), "fp64": ("fp64",)}
# Precision class -> the precisions in which a candidate of that class may compute.
CLASSES = {"tf32": ("tf32", "tf32x3", "ieee"), "ieee": ("tf32x3", "ieee"), "fp16": ("fp16",), "bf16": ("bf16",)}
CLASSED = {precision for admitted in CLASSES.values() for precision in admitted}
CLASSES_OF = {"float32": ("tf32", "ieee"), "float16": ("fp16",), "bfloat16": ("bf16",)}  # the first one allows all of PyTorch
# The precisions that a file may declare for float32, the most exact first, each with the name that texts show.
DECLARED = {"ieee": "float32", "tf32x3": "tf32x3", "tf32": "TF32", "fp16": "float16", "bf16": "bfloat16"}
_WORDS = {**{key: key for key in DECLARED}, "float32": "ieee", "fp32": "ieee", "float16": "fp16", "half": "fp16",
          "bfloat16": "bf16"}
_DECLARATION = re.compile(r"[#\s]*precision:\s+(\w+)|\s+computes in (\w+): ")  # the second form is that of exported files


def declared(text: str) -> tuple[str, str]:
    """The precision that the head of a Python file declares in a line such as "# precision: bfloat16", and the first word of
    such a line that is not a known precision. The head is the comments and the docstring above the first statement. The file is
    not run. A file that this project exported has a line "computes in" for each direction. If several precisions are declared,
    the least exact counts."""
    words = [(found[1] or found[2]).lower() for line in _head(text) if (found := _DECLARATION.match(line))]
    known = [_WORDS[word] for word in words if word in _WORDS]
    order = list(DECLARED)
    return max(known, key=order.index, default=""), next((word for word in words if word not in _WORDS), "")


def less_exact(one: str, other: str) -> bool:
    """Whether a precision of float32 is less exact than another one."""
    order = list(DECLARED)
    return order.index(one) > order.index(other)


def precision_of(dtype: str, *, of_float32: str = "ieee") -> str:
    """The precision in which a dtype is computed. float32 has several, so `of_float32` names it. A dtype that no kernel has
    counts as float32."""
    return of_float32 if dtype == "float32" or dtype not in PRECISIONS_OF else PRECISIONS_OF[dtype][0]


def pytorchs_own(dtype: str, sm: int) -> str:
    """The precision of PyTorch's convolutions on that GPU by default. For float32 it is TF32 if the GPU's tensor cores have
    TF32."""
    return precision_of(dtype, of_float32="tf32" if sm >= 80 else "ieee")


def _head(text: str) -> list[str]:
    """Lines of comments and docstring above the first statement."""
    lines = text.splitlines()
    found: list[str] = []
    quotes = ""
    for line in lines:
        if not quotes and line.strip() and not line.lstrip().startswith("#"):
            begin = re.match(r"[rRuU]?(\"{3}|'{3})", line)
            if begin is None or any(not one.startswith("#") for one in found if one.strip()):
                break
            quotes, line = begin[1], line[begin.end():]
        found.append(line)
        if quotes and quotes in line:
            break
    return found
