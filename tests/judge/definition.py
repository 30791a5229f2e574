"""The definition of all three directions in numpy, for any number of dimensions. Tests compare reference.py with it."""

from __future__ import annotations

from itertools import product

import numpy as np

from workbench.core.layer import Workload


def define(workload: Workload, x: np.ndarray, w: np.ndarray, b: np.ndarray | None,
           gy: np.ndarray) -> dict[str, np.ndarray]:
    """output, grad_input, grad_weight, grad_bias. Element by element, for tiny layers only."""
    layer, g = workload.layer, workload.layer.groups
    ci_g, co_g = layer.in_channels // g, layer.out_channels // g
    y, gx, gw = np.zeros(workload.output_shape), np.zeros_like(x), np.zeros_like(w)
    if b is not None:
        y += b.reshape(1, -1, *[1] * layer.dims)
    for n, ci, co in product(range(workload.batch), range(layer.in_channels), range(co_g)):
        c_out = ci // ci_g * co_g + co
        for i, k in product(np.ndindex(workload.input_size), np.ndindex(layer.kernel_size)):
            o = tuple(i[d] * layer.stride[d] - layer.padding[d] + k[d] * layer.dilation[d] for d in range(layer.dims))
            if all(0 <= o[d] < workload.output_size[d] for d in range(layer.dims)):
                y[n, c_out, *o] += x[n, ci, *i] * w[ci, co, *k]
                gx[n, ci, *i] += gy[n, c_out, *o] * w[ci, co, *k]
                gw[ci, co, *k] += gy[n, c_out, *o] * x[n, ci, *i]
    return {"output": y, "grad_input": gx, "grad_weight": gw, "grad_bias": gy.sum(axis=(0, *range(2, gy.ndim)))}
