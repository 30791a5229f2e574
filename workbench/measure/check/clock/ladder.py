"""The ways of PyTorch that `check` times beside a foreign file. It has the reason for which a way cannot be tried with a
reference on a device, and decides which ways are timed again if the file was faster. `host/ways.py` binds them in the process
of the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from ....core.precision import QUALIFIES
from ....core.pytorch_ways import WAYS
from ....core.replies import CheckTimes
from ....core.verdict import FASTER, from_samples, widened
from ..questions.cases import Case

# `benchmark` ways run in a process of their own: cuDNN keeps the algorithm that it chose first for a problem. In one
# process the first way would decide for the others.
_OF_WAYS = {"tf32_on": "switched_tf32_on", "tf32_off": "switched_tf32_off"}   # without cudnn.benchmark here
LADDER = {key: WAYS[_OF_WAYS.get(key, key)] for key in (
    "default", "tf32_on", "tf32_off", "benchmark", "benchmark_tf32_off", "channels_last", "channels_last_counted",
    "as_convolution", "as_convolution_tf32_off", "compile", "compile_tf32_off", "graph", "graph_tf32_off")}
_CLEAR = 1.05      # if the ratio is farther from 1 than this, further turns would not change the verdict
_HOPELESS = 1.25   # a way whose time is surely more than this multiple of the fastest one is not timed further
WHY_NOT_DROP_IN = {"channels_last": "another memory format", "converted": "another memory format inside",
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
        return f"TF32 applies to float32, not to {dtype}"
    if way.kind in ("channels_last", "converted") and not any(len(s) in (4, 5) for s in case.shapes):
        return "only tensors of 4 or 5 dimensions have that memory format"
    if way.kind == "flipped" and layer is None:
        return "the reference is not one transposed convolution"
    if way.kind == "flipped" and set(layer.stride) != {1}:
        return "it is a convolution only at stride 1"
    if way.kind == "compiled" and effort == "quick":
        return "compiling takes too long for effort quick"
    if not way.drop_in and effort == "quick":
        return "effort quick leaves out what cannot replace the layer"
    return ""


def in_the_running(samples: Mapping[str, Sequence[float]], precisions: Mapping[str, str], precision: str) -> list[str]:
    """Of the ways in `precisions`, those that can still be the fastest drop-in way of at least that precision. The others are
    surely slower, or do not qualify."""
    count, best = _that_count(samples, precisions, precision)
    return [key for key in count
            if (from_samples(samples[best], samples[key], paired=True).low or 0.0) <= _HOPELESS]


def settled(samples: Mapping[str, Sequence[float]], bounds: Mapping[str, Sequence[Sequence[float]]],
            precisions: Mapping[str, str], precision: str) -> bool:
    """Whether the file (its samples have the key "") is clearly faster or clearly slower than the fastest qualifying way, for
    all times within `bounds`."""
    _, best = _that_count(samples, precisions, precision)
    if not best:
        return False
    found = widened(from_samples(samples[""][:len(samples[best])], samples[best], paired=True),
                    bounds[""][:len(bounds[best])], bounds[best])
    return found.low is not None and found.high is not None and (found.low > _CLEAR or found.high < 1 / _CLEAR)


def doubted_ways(found: CheckTimes) -> tuple[str, ...]:
    """The ways that are timed again if the candidate is faster than the fastest drop-in way: that way, and the ways without
    enough memory. Ways of torch.compile are not timed again, because compiling is slow."""
    ways = [b for b in found.baselines if b.drop_in and b.precision in QUALIFIES[found.precision]
            and LADDER[b.key].kind != "compiled"]
    best = min(ways, key=lambda b: b.timing.median_ms, default=None)
    if best is None or from_samples(found.samples[:len(best.samples)], best.samples, paired=True).verdict != FASTER:
        return ()
    return best.key, *(key for key in found.starved if LADDER[key].drop_in and LADDER[key].kind != "compiled")


def _that_count(samples: Mapping[str, Sequence[float]], precisions: Mapping[str, str], precision: str) -> tuple[list[str], str]:
    """The drop-in ways of at least that precision, and the fastest of them."""
    count = [key for key in precisions if LADDER[key].drop_in and precisions[key] in QUALIFIES.get(precision, ())]
    return count, min(count, key=lambda key: median(samples[key]), default="")
