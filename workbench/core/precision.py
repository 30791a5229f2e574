"""Precisions: which a dtype has, in which class a candidate competes, and with which of PyTorch's precisions. What a foreign
file declares. The tolerance of each precision is in measure/kernel/validate.py."""

from __future__ import annotations

import re

PRECISIONS_OF = {"float32": ("ieee", "tf32", "tf32x3"), "float16": ("fp16",), "bfloat16": ("bf16",),
                 "float64": ("fp64",)}
PRECISIONS = tuple(p for found in PRECISIONS_OF.values() for p in found)
FROM_STRICTEST = ("fp64", "ieee", "tf32", "fp16", "bf16")   # those of PyTorch's own ways
# The precisions of PyTorch that a candidate of a precision competes with: PyTorch may be more accurate, not less.
QUALIFIES = {"tf32": ("tf32", "tf32x3", "ieee", "fp64"), "tf32x3": ("tf32x3", "ieee", "fp64"), "ieee": ("ieee", "fp64"),
             "fp16": ("fp16", "tf32", "ieee", "fp64"), "bf16": ("bf16", "tf32", "ieee", "fp64"), "fp64": ("fp64",)}
# Precision class -> the precisions in which a candidate of that class may compute.
CLASSES = {"tf32": ("tf32", "tf32x3", "ieee"), "ieee": ("tf32x3", "ieee"), "fp16": ("fp16",), "bf16": ("bf16",)}
CLASSED = {precision for admitted in CLASSES.values() for precision in admitted}
CLASSES_OF = {"float32": ("tf32", "ieee"), "float16": ("fp16",), "bfloat16": ("bf16",)}  # first: where any PyTorch competes
# What a file may declare for float32, from the strictest, and the name by which a reader knows it.
DECLARED = {"ieee": "float32", "tf32x3": "tf32x3", "tf32": "TF32", "fp16": "float16", "bf16": "bfloat16"}
_WORDS = {**{key: key for key in DECLARED}, "float32": "ieee", "fp32": "ieee", "float16": "fp16", "half": "fp16",
          "bfloat16": "bf16"}
_DECLARATION = re.compile(r"[#\s]*precision:\s+(\w+)|\s+computes in (\w+): ")  # the second is that of an exported file


def declared(text: str) -> tuple[str, str]:
    """The precision that the head of a Python file declares in a line "# precision: bfloat16", and a word there that is not
    known. The head is the comments and the docstring above the first statement; it is not run. A file that this project
    exported says "computes in" of each direction. Of several precisions the least exact counts."""
    words = [(found[1] or found[2]).lower() for line in _head(text) if (found := _DECLARATION.match(line))]
    known = [_WORDS[word] for word in words if word in _WORDS]
    order = list(DECLARED)
    return max(known, key=order.index, default=""), next((word for word in words if word not in _WORDS), "")


def less_exact(one: str, other: str) -> bool:
    """Whether a precision of float32 is less exact than another one."""
    order = list(DECLARED)
    return order.index(one) > order.index(other)


def precision_of(dtype: str, *, of_float32: str = "ieee") -> str:
    """The precision in which a dtype is computed. float32 has several, so the caller names it; dtypes that no kernel has count
    as float32."""
    return of_float32 if dtype == "float32" or dtype not in PRECISIONS_OF else PRECISIONS_OF[dtype][0]


def pytorchs_own(dtype: str, sm: int) -> str:
    """The precision in which PyTorch convolves on that GPU by default: TF32 for float32 where tensor cores have it."""
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
