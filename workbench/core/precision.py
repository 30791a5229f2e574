"""Precisions: which a dtype has, in which class a candidate competes, and with which of PyTorch's precisions."""

from __future__ import annotations

PRECISIONS_OF = {"float32": ("ieee", "tf32", "tf32x3"), "float16": ("fp16",), "bfloat16": ("bf16",),
                 "float64": ("fp64",)}
FROM_STRICTEST = ("fp64", "ieee", "tf32", "fp16", "bf16")   # those of PyTorch's own ways
# The precisions of PyTorch that a candidate of a precision competes with: PyTorch may be more accurate, not less.
QUALIFIES = {"tf32": ("tf32", "tf32x3", "ieee", "fp64"), "tf32x3": ("tf32x3", "ieee", "fp64"), "ieee": ("ieee", "fp64"),
             "fp16": ("fp16", "tf32", "ieee", "fp64"), "bf16": ("bf16", "tf32", "ieee", "fp64"), "fp64": ("fp64",)}
# Precision class -> the precisions in which a candidate of that class may compute.
CLASSES = {"tf32": ("tf32", "tf32x3", "ieee"), "ieee": ("tf32x3", "ieee"), "fp16": ("fp16",), "bf16": ("bf16",)}
CLASSED = {precision for admitted in CLASSES.values() for precision in admitted}
CLASSES_OF = {"float32": ("tf32", "ieee"), "float16": ("fp16",), "bfloat16": ("bf16",)}  # first: where any PyTorch competes


def precision_of(dtype: str, *, of_float32: str = "ieee") -> str:
    """The precision in which a dtype is computed. float32 has several, so the caller names it; dtypes that no kernel has count
    as float32."""
    return of_float32 if dtype == "float32" or dtype not in PRECISIONS_OF else PRECISIONS_OF[dtype][0]
