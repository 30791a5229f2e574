"""tf32x3: right where sums leave the tensor cores in mid-sum, and they leave so often that the error stays small.
implicit_gemm_mma in 16-bit types: awkward layers, alternately in float16 and bfloat16, and its tunables. (test_matrix.py runs
the fast variants in their first dtype only, float32.)"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from workbench.core.awkward import CASES
from workbench.core.candidate import EMULATED_SM, Candidate, why_not
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.variants import TEMPLATES, Variant, discover

from .harness import build_emulated, candidate, label, run
from .test_matrix import extreme_configs, runs

THREE = [v for v in discover(TEMPLATES) if "tf32x3" in v.precision]
QUICK = ("forward/gathered_mma", "grad_input/implicit_gemm_mma", "grad_weight/split_mma", "backward/fused_mma")
# A row of more taps than one series holds; many chunks of channels; several rows of taps; many chunks where each output
# meets one tap.
LONG = [Workload(ConvTranspose(1, 5, 9, (35,), dilation=(2,)), 2, (70,)),
        Workload(ConvTranspose(1, 70, 12, (3,), padding=(1,), bias=True), 2, (300,)),
        Workload(ConvTranspose(2, 20, 66, (3, 5), padding=(1, 1)), 1, (9, 33)),
        Workload(ConvTranspose(1, 70, 12, (2,), stride=(3,), bias=True), 2, (50,))]


@pytest.mark.parametrize("variant", [pytest.param(v, marks=() if v.key in QUICK else pytest.mark.long, id=v.key)
                                     for v in THREE])
def test_sums_in_several_series(variant: Variant, tmp_path: Path) -> None:
    served = [(w, one) for w in (*LONG, *CASES)
              if why_not(one := Candidate(variant, w.layer, w.dtype, {}, form="constant",
                                              precision="tf32x3"),
                         sm=EMULATED_SM) is None and w.dtype == "float32"][:6]
    assert sum(w in LONG for w, _ in served) >= 1
    library = build_emulated(list(dict.fromkeys(one for _, one in served)), tmp_path)
    for number, (work, one) in enumerate(served):
        for values in ("integers", "floats"):
            outcome = run(library, one, work, values=values, order=number + 1)
            assert outcome.status == "OK", f"{values} {label(work)}: {outcome.status} {outcome.text}"


def nearest_tf32(x: np.ndarray) -> np.ndarray:
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def tensor_core(sums: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """sums + the products of 8 neighbours, all cut off at 2 bits below the last place of the largest, and again at the
    end. With these 2 bits the model gives what an H200 showed: 4.0e-6 after 576 terms, 2.1e-5 after 3360."""
    terms = np.concatenate([sums[:, None].astype(np.float64), a.astype(np.float64) * b], 1)

    def cut(x: np.ndarray, largest: np.ndarray, bits: int) -> np.ndarray:
        unit = np.ldexp(1.0, np.frexp(largest)[1] - bits)
        return np.trunc(x / unit) * unit

    whole = cut(terms, np.abs(terms).max(1, keepdims=True), 26).sum(1)
    return cut(whole, np.abs(whole), 24).astype(np.float32)


def error_of(length: int, series: int) -> float:
    rng = np.random.default_rng(0)
    x, w = rng.random((64, length), np.float32), rng.random((64, length), np.float32)
    x_high, w_high = nearest_tf32(x), nearest_tf32(w)
    sums, total = np.zeros(64, np.float32), np.zeros(64, np.float32)
    for k in range(0, length, 8):
        at = slice(k, k + 8)
        for a, b in ((x - x_high, w_high), (x_high, w - w_high), (x_high, w_high)):
            sums = tensor_core(sums, a[:, at], b[:, at])
        if (k + 8) % series == 0:
            total, sums = total + sums, np.zeros(64, np.float32)
    truth = (x.astype(np.float64) * w).sum(1)
    return float(np.linalg.norm(total + sums - truth) / np.linalg.norm(truth))


def test_series_are_short_enough() -> None:
    """What the templates ask of a tensor core at once keeps the error of positive sums below a half of 3e-6."""
    found = {}
    for file, name, unit in (("wgmma_packed/layer", r"TAPS_KEPT = (\d+)", 8),
                             ("implicit_gemm_mma/config", r"ROWS_KEPT = (\d+) / W", 8),
                             ("strip_wgmma/plan", r"PROMOTE = \(SPLIT \? (\d+)", 1),
                             ("gathered_mma/plan", r"SERIES = THREE \? (\d+)", 1)):
        number = re.search(name, (TEMPLATES / "families" / f"{file}.cuh").read_text(encoding="utf-8"))
        assert number, f"{file}.cuh no longer says how long a series is"
        found[file] = int(number[1]) * unit
    assert set(found.values()) == {128}
    assert error_of(2048, 128) < 1.5e-6
    assert error_of(2048, 2048) > 1e-5  # left alone they would miss the bound


VARIANTS = [v for v in discover(TEMPLATES) if v.name == "implicit_gemm_mma"]
HALVES = ("float16", "bfloat16")


def served(variant: Variant) -> list[tuple[Candidate, Workload]]:
    """Every second awkward layer, forward and grad_input (one engine) others; then extreme tunables on a layer with a slab of
    16 channels and on one with 8."""
    works = [replace(w, dtype=HALVES[number // 2 % 2]) for number, w in enumerate(CASES)]
    found = [(candidate(variant, w, form="constant"), w) for w in works]
    found = [(one, w) for one, w in found if runs(one)]
    wide = next(w for one, w in found if 16 < min(w.layer.in_channels, w.layer.out_channels) / w.layer.groups < 48)
    narrow = next(w for one, w in found if w.layer.dims == 2 and w.layer.stride[1] == 2)
    more = [(candidate(variant, w, form="constant", **c), w) for c in extreme_configs(variant) for w in (wide, narrow)]
    more += [(candidate(variant, w, form="constant", PAD=0), w) for _, w in found if w.input_size[-1] % 2
             or w.output_shape[-1] % 2][::3]
    return found[variant.direction == "forward"::2] + [(one, w) for one, w in more if runs(one)]


# `make test` has one direction: one engine computes both, and test_matrix.py has each dtype of both.
@pytest.mark.parametrize(("variant", "every"), [
    pytest.param(v, every, id=f"{v.key}-{'every' if every else 'some'}",
                 marks=pytest.mark.long if every or v.direction != "forward" else ())
    for every in (False, True) for v in VARIANTS])
def test_sixteen_bits(variant: Variant, every: bool, tmp_path: Path) -> None:
    """Integers: the truth rounded once, bit for bit, in whatever order threads run; floats within the tolerance."""
    assert set(HALVES) <= set(variant.dtypes)
    tried = served(variant) if every else served(variant)[variant.direction == "forward"::5]
    library = build_emulated(list(dict.fromkeys(one for one, _ in tried)), tmp_path)
    wrong = []
    for number, (one, work) in enumerate(tried):
        for values in ("integers", "floats"):
            outcome = run(library, one, work, order=number + 1, values=values)
            if outcome.status != "OK":
                wrong.append(f"{work.dtype} {label(work)} {one.config} {values}: {outcome.status} {outcome.text}")
    print(f"\n{variant.key}: {len(tried)} candidates")
    assert not wrong, "\n".join(wrong)
    assert len(tried) > (40 if every else 8)
