"""The ways of PyTorch that `check` times beside a foreign file, and for each the reason why it cannot be tried with a reference
on a device. `host/ways.py` binds them inside the reference's process."""

from __future__ import annotations

from ...pytorch.ways import Way
from ..questions.cases import Case

# `benchmark` ways run in a process of their own: cuDNN keeps the algorithm that it chose first for a problem. In one
# process the first way would decide for the others.
LADDER = {
    "default": Way("eager"),
    "tf32_on": Way("eager, TF32 on", tf32=True),
    "tf32_off": Way("eager, TF32 off", tf32=False),
    "benchmark": Way("eager, cudnn.benchmark", benchmark=True),
    "benchmark_tf32_off": Way("eager, TF32 off, cudnn.benchmark", tf32=False, benchmark=True),
    "channels_last": Way("channels_last, conversion not counted", "channels_last", benchmark=True, drop_in=False),
    "channels_last_counted": Way("channels_last, conversion counted", "converted", benchmark=True, drop_in=False),
    "as_convolution": Way("as convolution, flipped weight", "flipped", benchmark=True),
    "as_convolution_tf32_off": Way("as convolution, flipped weight, TF32 off", "flipped", tf32=False, benchmark=True),
    "compile": Way("torch.compile", "compiled", benchmark=True),
    "compile_tf32_off": Way("torch.compile, TF32 off", "compiled", tf32=False, benchmark=True),
    "graph": Way("CUDA graph of the eager call", "graphed", benchmark=True, drop_in=False),
    "graph_tf32_off": Way("CUDA graph of the eager call, TF32 off", "graphed", tf32=False, benchmark=True, drop_in=False),
}
NOT_DROP_IN = {"channels_last": "another memory format", "converted": "another memory format inside",
               "graphed": "each call overwrites the last result"}


def why_left_out(key: str, case: Case, *, device: str, dtype: str, effort: str) -> str:
    """"" when the way can be tried."""
    way, layer = LADDER[key], case.setting.layer
    cpu = device == "cpu"
    if way.kind == "graphed" and cpu:
        return "CUDA graphs need a GPU"
    if way.tf32 is not None and cpu:
        return "this CPU has no TF32"
    if way.kind == "eager" and way.benchmark and cpu:
        return "cuDNN needs a GPU"
    if way.tf32 is not None and dtype != "float32":
        return f"TF32 is a way of float32, not of {dtype}"
    if way.kind in ("channels_last", "converted") and not any(len(s) in (4, 5) for s in case.shapes):
        return "only tensors of 4 or 5 dimensions have that memory format"
    if way.kind == "flipped" and layer is None:
        return "the reference is not one transposed convolution"
    if way.kind == "flipped" and set(layer.stride) != {1}:
        return "only at stride 1 is it a convolution"
    if way.kind == "compiled" and effort == "quick":
        return "compiling takes too long for effort quick"
    return ""
