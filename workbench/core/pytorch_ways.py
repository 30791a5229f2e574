"""PyTorch's ways of computing a layer, in one table `WAYS`. Runs, benches, `check` and module times use it.

A way is nn.ConvTranspose in one of its modes, or a *formulation*: other operators of PyTorch that give the same results.
`measure/pytorch` has the code for each `kind`. `check` and module times, which time whole modules, use the modes only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from .layer import Workload
from .precision import CLASSES_OF

MOST_PRODUCTS = 10**13                 # limit for a layer with groups made dense: half a minute in fp32


@dataclass(frozen=True)
class Formulation:
    """A way to compute the layer by other operators, in all directions. `why_not`: "" if it can compute the layer, else the
    reason."""

    name: str
    computes: str
    serves: str
    why_not: Callable[[Workload], str]


@dataclass(frozen=True)
class Way:
    """A way of PyTorch. `kind`: how it computes. `tf32` and `benchmark`: PyTorch's settings (None: PyTorch's default)."""

    name: str
    kind: str = "eager"
    tf32: bool | None = None
    benchmark: bool | None = None
    drop_in: bool = True      # it takes and returns tensors in the caller's memory format
    replayed: bool = True     # timed as a CUDA graph of the call, so that PyTorch's host time is not counted
    brief: bool = False       # fully sampled only if a few samples show that it may be the fastest

    @property
    def formulation(self) -> bool:
        """Whether it is a formulation by other operators, or torch.compile max-autotune. It then counts only for the strongest
        PyTorch."""
        return self.kind in FORMULATIONS or self.kind.startswith((COMPILED, AUTOTUNED))

    @property
    def compiled(self) -> bool:
        """Whether torch.compile makes it. The first compilation takes seconds; its result is kept on the disk."""
        return self.kind == "compiled" or self.kind.startswith((COMPILED, AUTOTUNED))


def _kernel_is_stride(workload: Workload) -> str:
    layer = workload.layer
    fits = all(k == s and (k == 1 or d == 1) for k, s, d in
               zip(layer.kernel_size, layer.stride, layer.dilation, strict=True))
    return "" if fits else "Taps overlap unless kernel = stride."


def _strided(workload: Workload) -> str:
    return "" if max(workload.layer.stride) > 1 else "At stride 1 it is a convolution with flipped weight."


def _stride_1(workload: Workload) -> str:
    return "Only a layer of stride 1 is a convolution with flipped weight." if max(workload.layer.stride) > 1 else ""


def _folds(workload: Workload) -> str:
    layer = workload.layer
    wide = any(extra >= s for extra, s in zip(layer.output_padding, layer.stride, strict=True))
    return "F.fold takes no output_padding of a stride or more." if wide else ""


def _grouped(workload: Workload) -> str:
    layer = workload.layer
    if layer.groups == 1:
        return "The layer has no groups."
    products = workload.batch * prod(workload.input_size) * layer.in_channels * layer.out_channels * prod(layer.kernel_size)
    return f"As a dense layer it would take {products:.0e} multiply-adds." if products > MOST_PRODUCTS else ""


def _single(workload: Workload) -> str:
    return "" if workload.dtype == "float32" else f"Only float32 is split into TF32 parts, not {workload.dtype}."


def _all(*asked: Callable[[Workload], str]) -> Callable[[Workload], str]:
    return lambda workload: next(filter(None, (why_not(workload) for why_not in asked)), "")


FORMULATIONS = {
    "matmul_permute": Formulation(
        "matmul + permute", "one matrix product for all taps, then a pixel shuffle; the gradients in reverse",
        "kernel = stride, dilation 1", _kernel_is_stride),
    "shuffled": Formulation(
        "convolution + pixel shuffle", "a convolution of stride 1 whose output has stride^d times as many channels, then a "
        "pixel shuffle (d: spatial dimensions)",
        "stride above 1", _strided),
    "fold": Formulation(
        "matmul + fold", "a matrix product, then F.fold; the gradients by F.unfold and a matrix product; in 3-D this is done "
        "for each tap along the depth", "output_padding below the stride", _folds),
    "dense": Formulation(
        "groups made dense", "nn.ConvTranspose with groups = 1 and a block-diagonal weight", "groups above 1", _grouped),
    "dense_shuffled": Formulation(
        "groups made dense, convolution + pixel shuffle", "nn.ConvTranspose is made dense as above, then computed as "
                                                          "convolution + pixel shuffle", "groups above 1, stride above 1",
        _all(_grouped, _strided)),
    "tf32x3": Formulation(
        "three TF32 convolutions", "each operand split into two TF32 numbers, three products of nn.ConvTranspose added",
        "float32", _single),
    "tf32x3_flipped": Formulation(
        "three TF32 convolutions, flipped weight", "the same by convolutions with flipped weight", "float32, stride 1",
        _all(_single, _stride_1)),
    "tf32x3_matmul_permute": Formulation(
        "three TF32 matmuls + permute", "the same by matmul + permute", "float32, kernel = stride, dilation 1",
        _all(_single, _kernel_is_stride)),
}
COMPILED, AUTOTUNED = "compiled:", "max_autotune:"            # the prefix of the kinds that torch.compile compiles
_FUSED = ("matmul_permute", "shuffled")                       # Inductor fuses pixel shuffle, bias and cropping
_TUNED = ("eager", "flipped", "matmul_permute", "shuffled")   # Inductor has templates for matrix products and convolutions
_SPLIT = ("tf32x3", "tf32x3_flipped", "tf32x3_matmul_permute")


def _formulated() -> dict[str, Way]:
    """A formulation with TF32 on and off. Those with split operands always use TF32."""
    found = {}
    for kind, formulation in FORMULATIONS.items():
        found[kind] = Way(formulation.name, kind, tf32=True, benchmark=True, brief=True)
        if kind not in _SPLIT:
            found[f"{kind}_tf32_off"] = Way(f"{formulation.name}, TF32 off", kind, tf32=False, benchmark=True, brief=True)
    return found


def _compiled() -> dict[str, Way]:
    """torch.compile of some formulations; with max-autotune of nn.ConvTranspose and the flipped convolution too."""
    names = {"eager": "nn.ConvTranspose", "flipped": "convolution, flipped weight"}
    found = {}
    for prefix, words, kinds in ((COMPILED, "torch.compile", _FUSED), (AUTOTUNED, "torch.compile max-autotune", _TUNED)):
        for kind in kinds:
            key, name = f"{prefix}{kind}", f"{words}, {names.get(kind) or FORMULATIONS[kind].name}"
            found[key] = Way(name, key, tf32=True, benchmark=True, brief=True)
            found[f"{key}_tf32_off"] = Way(f"{name}, TF32 off", key, tf32=False, benchmark=True, brief=True)
    return found


WAYS = {
    "default": Way("eager"),
    "tf32_on": Way("eager, TF32 on", tf32=True, benchmark=True),
    "tf32_off": Way("eager, TF32 off", tf32=False, benchmark=True),
    "tf32_off_plain": Way("eager, TF32 off, no cudnn.benchmark", tf32=False, benchmark=False, brief=True),
    "benchmark": Way("eager, cudnn.benchmark", benchmark=True),
    "host": Way("eager, called by the host", replayed=False, brief=True),
    "channels_last": Way("channels_last, conversion not counted", "channels_last", benchmark=True, drop_in=False),
    "channels_last_tf32_off": Way("channels_last, conversion not counted, TF32 off", "channels_last", tf32=False,
                                  benchmark=True, drop_in=False),
    "channels_last_counted": Way("channels_last, conversion counted", "converted", benchmark=True, drop_in=False, brief=True),
    "as_convolution": Way("as convolution, flipped weight", "flipped", benchmark=True),
    "as_convolution_tf32_off": Way("as convolution, flipped weight, TF32 off", "flipped", tf32=False, benchmark=True),
    "compile": Way("torch.compile", "compiled", benchmark=True, brief=True),
    "compile_tf32_off": Way("torch.compile, TF32 off", "compiled", tf32=False, benchmark=True, brief=True),
    **_formulated(),
    **_compiled(),
    # The modes of whole modules. There the settings without cudnn.benchmark are timed in a process that never used
    # cudnn.benchmark.
    "switched_tf32_on": Way("eager, TF32 on", tf32=True),
    "switched_tf32_off": Way("eager, TF32 off", tf32=False),
    "benchmark_tf32_off": Way("eager, TF32 off, cudnn.benchmark", tf32=False, benchmark=True),
    "graph": Way("CUDA graph of the eager call", "graphed", benchmark=True, drop_in=False),
    "graph_tf32_off": Way("CUDA graph of the eager call, TF32 off", "graphed", tf32=False, benchmark=True, drop_in=False),
    "module": Way("nn.ConvTranspose"),
    "module_tf32_on": Way("nn.ConvTranspose, TF32 on", tf32=True),
    "module_tf32_off": Way("nn.ConvTranspose, TF32 off", tf32=False),
}
UNCONVERTED = ("channels_last", "channels_last_tf32_off")   # the tensors are channels_last before and after the call


def module_ways(workload: Workload, device: str) -> list[str]:
    """Keys of nn.ConvTranspose's modes as module times have them."""
    return ["module"] if device == "cpu" or workload.dtype != "float32" else ["module_tf32_on", "module_tf32_off"]


def ladder(strength: str, workload: Workload, device: str, *, classes: Sequence[str] = CLASSES_OF["float32"],
           autotune: bool = False) -> list[str]:
    """The keys of WAYS for "quick", "strong" or "default" (only PyTorch with its default settings), in the order in which they
    are measured. Ways that cannot compute this layer are left out and not reported. `classes`: the precision classes of the
    candidates. At stride 1 both "quick" and "strong" have the convolution with flipped weight, because it is drop-in and often
    faster (H200, #74 forward).

    The ways with cudnn.benchmark come first, because a process keeps the algorithm that cuDNN chose first for a problem.
    Kernels are compared with the faster algorithm (H200, torch 2.11, 3 x 7 taps in fp32: 7.50 ms if benchmark is first, 8.62 ms
    after the default).

    For float32, the modes of "quick" are measured with TF32 on and off. The other ways are measured only in the classes of the
    candidates, because a formulation is not faster in fp32 than in TF32.
    """
    if strength == "default":
        return ["default"]
    flat = ["as_convolution"] if set(workload.layer.stride) == {1} else []
    strong = strength == "strong"
    if device == "cpu":
        return ["default", *([*flat, *(k for k in _served(workload) if k not in _SPLIT)] if strong else [])]
    single = workload.dtype == "float32"
    quick = [*(["tf32_on", "tf32_off"] if single else ["default"]), *flat,
             *([f"{key}_tf32_off" for key in flat] if single else [])]
    if not strong:
        return quick
    asked = tuple(classes) if single else ("tf32",)
    layouts = [*(["channels_last"] if "tf32" in asked else []), *(["channels_last_tf32_off"] if "ieee" in asked else []),
               "channels_last_counted"] if workload.layer.dims > 1 and workload.memory_format == "contiguous" else []
    served = _served(workload)
    whole = [kind for kind in served if kind not in _SPLIT]
    fused = [COMPILED + kind for kind in _FUSED if kind in served]
    tuned = [AUTOTUNED + kind for kind in _TUNED if kind in ("eager", *served, *(["flipped"] if flat else []))]
    formulations = [*whole, *fused, *(tuned if autotune else [])]
    if not single:
        return ["benchmark", *flat, *layouts, "compile", *formulations, "default", "host"]
    found = [*quick, *layouts]
    if "tf32" in asked:
        found += ["compile", *formulations]
    if "ieee" in asked:
        found += ["compile_tf32_off", *(k for k in served if k in _SPLIT), *(f"{k}_tf32_off" for k in formulations)]
    return [*found, "default", *(["tf32_off_plain"] if "ieee" in asked else []), "host"]


def _served(workload: Workload) -> list[str]:
    return [kind for kind, formulation in FORMULATIONS.items() if not formulation.why_not(workload)]
