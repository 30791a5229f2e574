"""PyTorch's ways: each computes the same, the ladder names what there is, and the record says what really ran."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from workbench.core.layer import DIRECTIONS, ConvTranspose, Workload
from workbench.core.orders import BaselineOrder
from workbench.core.pytorch_ways import WAYS, ladder, module_ways
from workbench.measure.check.clock.ladder import LADDER
from workbench.measure.pytorch import baselines
from workbench.measure.pytorch.aten import as_convolution, call
from workbench.measure.pytorch.ways import Unavailable, bind, switches

DENSE = [Workload(ConvTranspose(2, 6, 4, (3, 2), padding=(1, 0), groups=2, dilation=(2, 1)), 2, (5, 7), "float64"),
         Workload(ConvTranspose(1, 4, 6, 3, padding=4, dilation=2, output_padding=1), 2, (19,), "float64"),
         Workload(ConvTranspose(3, 4, 6, (3, 2, 1), padding=(1, 1, 0), bias=False), 1, (4, 5, 6), "float64"),
         Workload(ConvTranspose(1, 2, 3, 1, padding=2), 1, (9,), "float64")]   # padding crops the input itself
STRIDED = Workload(ConvTranspose(2, 4, 6, 3, stride=2), 1, (5, 6))


@pytest.mark.parametrize("direction", [*DIRECTIONS, "backward"])
@pytest.mark.parametrize("work", DENSE, ids=lambda w: str(w.layer))
def test_stride_1_is_a_convolution_with_flipped_weight(work: Workload, direction: str) -> None:
    tensors = baselines.plain_tensors(work, direction, "cpu")
    theirs, ours = call(work, direction, tensors), as_convolution(work, direction, tensors)
    for name, value in theirs.items():
        if value is not None:
            torch.testing.assert_close(ours[name], value, rtol=1e-12, atol=1e-12)


def test_another_stride_is_not() -> None:
    with pytest.raises(Unavailable, match="stride 1"):
        bind("flipped", STRIDED, "forward", {})


@pytest.mark.parametrize("kind", ["eager", "channels_last", "converted"])
def test_layouts_change_no_value(kind: str) -> None:
    tensors = baselines.plain_tensors(STRIDED, "forward", "cpu")
    got = bind(kind, STRIDED, "forward", tensors)()["output"]
    torch.testing.assert_close(got, call(STRIDED, "forward", tensors)["output"])
    assert got.is_contiguous() == (kind != "channels_last")


def test_the_ladder() -> None:
    dense = Workload(ConvTranspose(2, 4, 6, 3), 1, (5, 6))
    assert ladder("quick", dense, "cpu") == ladder("default", dense, "cpu") == ladder("default", dense, "cuda:0") == ["default"]
    assert ladder("strong", dense, "cpu") == ["default", "as_convolution", "fold"]
    assert ladder("strong", STRIDED, "cpu") == ["default", "shuffled", "fold"]
    assert ladder("quick", STRIDED, "cuda:0") == ["tf32_on", "tf32_off"]
    assert ladder("quick", dense, "cuda:0") == ["tf32_on", "tf32_off", "as_convolution", "as_convolution_tf32_off"]
    half = replace(dense, dtype="float16")
    assert ladder("quick", half, "cuda:0") == ["default", "as_convolution"]
    assert not any(key.endswith("_tf32_off") or key.startswith("tf32x3") for key in ladder("strong", half, "cuda:0"))
    strong = ladder("strong", dense, "cuda:0")
    assert len(strong) == len(set(strong)) == 16 and set(strong) <= set(WAYS)
    plain = [key for key in strong if not WAYS[key].benchmark]
    assert plain == strong[-len(plain):]  # cuDNN keeps what it chose first: what may choose comes first
    assert "as_convolution" not in ladder("strong", STRIDED, "cuda:0")
    assert "channels_last" not in ladder("strong", Workload(ConvTranspose(1, 2, 2, 3), 1, (9,)), "cuda:0")
    assert [WAYS[key].name for key in strong if not WAYS[key].drop_in] == [
        "channels_last, conversion not counted", "channels_last, conversion not counted, TF32 off",
        "channels_last, conversion counted"]


def test_a_class_is_asked_what_may_be_the_strongest_in_it() -> None:
    patched = Workload(ConvTranspose(2, 4, 6, 2, 2, groups=2), 1, (5, 6))
    tf32, ieee = (ladder("strong", patched, "cuda:0", classes=(c,)) for c in ("tf32", "ieee"))
    assert {"tf32_on", "tf32_off", "channels_last_counted", "default", "host"} <= set(tf32) & set(ieee)
    assert [key for key in tf32 if WAYS[key].formulation] == [
        "matmul_permute", "shuffled", "fold", "dense", "dense_shuffled", "compiled:matmul_permute", "compiled:shuffled"]
    assert [key for key in ieee if WAYS[key].formulation] == ["tf32x3", "tf32x3_matmul_permute", *(
        f"{key}_tf32_off" for key in tf32 if WAYS[key].formulation)]
    assert "channels_last" in tf32 and "channels_last" not in ieee and "channels_last_tf32_off" in ieee
    tuned = set(ladder("strong", patched, "cuda:0", autotune=True)) - {*tf32, *ieee}
    kinds = ("eager", "matmul_permute", "shuffled")
    assert tuned == {f"max_autotune:{kind}{off}" for kind in kinds for off in ("", "_tf32_off")}


def test_modules_have_their_modes_from_the_same_table() -> None:
    assert list(LADDER) == ["default", "tf32_on", "tf32_off", "benchmark", "benchmark_tf32_off", "channels_last",
                            "channels_last_counted", "as_convolution", "as_convolution_tf32_off", "compile",
                            "compile_tf32_off", "graph", "graph_tf32_off"]
    assert all(way in WAYS.values() for way in LADDER.values())
    assert LADDER["tf32_on"].benchmark is None and WAYS["tf32_on"].benchmark  # there alone in its process
    half = replace(STRIDED, dtype="float16")
    assert module_ways(STRIDED, "cpu") == module_ways(half, "cuda:0") == ["module"]
    assert [(WAYS[k].name, WAYS[k].tf32) for k in module_ways(STRIDED, "cuda:0")] == [
        ("nn.ConvTranspose, TF32 on", True), ("nn.ConvTranspose, TF32 off", False)]


def test_switches_are_put_back() -> None:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32
    for key, tf32 in (("tf32_off", False), ("matmul_permute", True)):
        with switches(WAYS[key]):
            assert (cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32) == (tf32, True, tf32)
    assert (cudnn.allow_tf32, cudnn.benchmark, matmul.allow_tf32) == before


def test_the_record_says_what_ran(tmp_path: Path) -> None:
    work = Workload(ConvTranspose(2, 4, 6, 3), 1, (5, 6))
    answer = baselines.measure(BaselineOrder(work, "cpu", ("forward",), tuple(ladder("strong", work, "cpu")), effort="quick",
                                             scratch=tmp_path), lambda event: None)
    found = {b.name: b for b in answer.baselines}
    assert set(found) == {"eager", "as convolution, flipped weight", "matmul + fold"}
    for baseline in (found["eager"], found["as convolution, flipped weight"]):
        assert baseline.status == "OK" and baseline.precision == "ieee" and baseline.samples
        assert any("conv" in name for name in baseline.detail.kernels)
