"""PyTorch's ways: each computes the same, the ladder names what there is, and the record says what really ran. A layer by other
operators: right on awkward layers in every direction, and what is wrong never counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings

from tests.shared import workloads
from workbench.core.layer import BACKWARD, DIRECTIONS, FORWARD, GRAD_INPUT, GRAD_WEIGHT, LAUNCHES, ConvTranspose, Workload
from workbench.core.orders import BaselineOrder
from workbench.core.pytorch_ways import COMPILED, FORMULATIONS, WAYS, ladder, module_ways
from workbench.core.replies import Baseline
from workbench.core.trial import FORMULATION
from workbench.measure.check.clock.ladder import LADDER
from workbench.measure.device import CHANNELS_LAST_LAYOUTS
from workbench.measure.kernel.inputs import shapes
from workbench.measure.kernel.validate import allowed_rel_l2
from workbench.measure.pytorch import baselines, formulations
from workbench.measure.pytorch.aten import Tensors, as_convolution, call, channels_last
from workbench.measure.pytorch.formulations import PRODUCTS, formulated, two_parts
from workbench.measure.pytorch.ways import Unavailable, bind, switches

EXACT = [kind for kind in FORMULATIONS if not kind.startswith("tf32x3")]   # in float64; the others split float32
AWKWARD = [
    Workload(ConvTranspose(1, 4, 6, 3, 3, padding=1, groups=2), 3, (5,)),                    # kernel = stride, cut off
    Workload(ConvTranspose(1, 2, 3, 16, 8, padding=4), 2, (7,)),                             # kernel = 2 * stride
    Workload(ConvTranspose(1, 3, 2, 2, 5, padding=3, output_padding=4, bias=False), 1, (4,)),  # gaps between the taps
    Workload(ConvTranspose(1, 2, 2, 3, 2, dilation=4, output_padding=3), 2, (3,)),           # output_padding above the stride
    Workload(ConvTranspose(2, 6, 4, 2, 2, groups=2), 2, (3, 4)),
    Workload(ConvTranspose(2, 4, 6, (3, 1), (3, 1), padding=(0, 1), dilation=(1, 3)), 2, (2, 5)),
    Workload(ConvTranspose(2, 6, 3, (3, 4), (2, 3), (1, 5), (1, 2), 3, True, (2, 1)), 1, (4, 6)),
    Workload(ConvTranspose(2, 3, 3, 5, 1, padding=6), 2, (9, 10)),                           # padding crops inputs away
    Workload(ConvTranspose(3, 4, 2, 2, 2, bias=False), 2, (2, 3, 1)),
    Workload(ConvTranspose(3, 4, 4, (3, 2, 1), (2, 1, 3), (1, 0, 0), (1, 0, 2), 2, True, (2, 1, 1)), 2, (3, 2, 4)),
    Workload(ConvTranspose(3, 2, 3, 3, 2, padding=1, output_padding=1), 1, (2, 3, 3)),
    Workload(ConvTranspose(1, 2, 2, 3, 2, padding=2, groups=2, bias=False), 1, (2,)),        # one cell
]
LAID = [(work, memory_format) for work in AWKWARD for memory_format in ("contiguous", "channels_last")
        if work.layer.dims > 1 or memory_format == "contiguous"]
KERNEL_IS_STRIDE = Workload(ConvTranspose(2, 4, 6, 2, 2), 2, (5, 6))
STRIDED = Workload(ConvTranspose(2, 4, 6, 3, 2, groups=2), 2, (5, 6))


def drawn(work: Workload) -> Tensors:
    torch.manual_seed(0)
    names = ("input", "weight", "grad_output", *(["bias"] if work.layer.bias else []))
    made = {name: torch.randn(shapes(work)[name], dtype=getattr(torch, work.dtype)) for name in names}
    return {name: channels_last(t) for name, t in made.items()} if work.memory_format == "channels_last" else made


def agree(kind: str, work: Workload, direction: str, tensors: Tensors) -> None:
    given = {name: tensor.clone() for name, tensor in tensors.items()}
    got, expected = formulated(kind, work, direction, tensors), call(work, direction, tensors)
    assert {name for name, value in expected.items() if value is not None} == set(got)
    for name, value in got.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-11, atol=1e-11)
        if work.memory_format == "contiguous" or value.dim() in CHANNELS_LAST_LAYOUTS:
            layout = CHANNELS_LAST_LAYOUTS[value.dim()] if work.memory_format == "channels_last" else torch.contiguous_format
            assert value.is_contiguous(memory_format=layout), f"{kind} {direction}: {name} lies otherwise"
    assert all(torch.equal(tensors[name], tensor) for name, tensor in given.items())


@pytest.mark.parametrize(("work", "memory_format"), LAID, ids=lambda v: str(v.layer) if isinstance(v, Workload) else v)
def test_every_formulation_that_serves_a_layer_gives_its_results(work: Workload, memory_format: str) -> None:
    work = replace(work, dtype="float64", memory_format=memory_format)
    tensors = drawn(work)
    for kind in [k for k in EXACT if not FORMULATIONS[k].why_not(work)]:
        for direction in LAUNCHES:
            agree(kind, work, direction, tensors)


@settings(max_examples=40, deadline=None)
@given(workloads())
def test_on_any_layer(work: Workload) -> None:
    work = replace(work, dtype="float64")
    tensors = drawn(work)
    for kind in [k for k in EXACT if not FORMULATIONS[k].why_not(work)]:
        agree(kind, work, BACKWARD, tensors)
        agree(kind, work, FORWARD, tensors)


def test_the_awkward_layers_reach_every_formulation_in_every_number_of_dimensions() -> None:
    for kind in EXACT:
        assert {w.layer.dims for w in AWKWARD if not FORMULATIONS[kind].why_not(w)} == {1, 2, 3}, kind
        assert any(FORMULATIONS[kind].why_not(w) for w in AWKWARD), kind


@pytest.mark.parametrize(("kind", "work", "why"), [
    ("matmul_permute", STRIDED, "kernel = stride"), ("shuffled", AWKWARD[7], "flipped weight"), ("fold", AWKWARD[3], "F.fold"),
    ("dense", KERNEL_IS_STRIDE, "no groups"), ("tf32x3", replace(STRIDED, dtype="float16"), "not float16"),
    ("dense", Workload(ConvTranspose(2, 4096, 4096, 9, groups=2), 64, (64, 64)), "multiply-adds")])
def test_a_layer_that_it_does_not_serve_is_refused_with_the_reason(kind: str, work: Workload, why: str) -> None:
    with pytest.raises(Unavailable, match=why):
        bind(kind, work, FORWARD, {})


def test_a_split_number_is_two_of_tf32() -> None:
    torch.manual_seed(0)
    x = torch.randn(10_000) * 2.0 ** torch.randint(-20, 20, (10_000,))
    big, small = two_parts(x)
    assert not (big.view(torch.int32) & 0x1FFF).any() and torch.equal(big + small, x)
    assert (small.abs() <= 2.0**-11 * x.abs()).all()


@pytest.mark.parametrize("direction", [FORWARD, GRAD_INPUT, GRAD_WEIGHT, BACKWARD])
@pytest.mark.parametrize("kind", ["tf32x3", "tf32x3_flipped", "tf32x3_matmul_permute"])
def test_three_products_in_tf32_are_nearly_float32(kind: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each product is given operands as a TF32 convolution rounds them; two of them, or one, are not enough."""
    work = {"tf32x3": STRIDED, "tf32x3_flipped": AWKWARD[7], "tf32x3_matmul_permute": KERNEL_IS_STRIDE}[kind]
    inner = {"tf32x3": formulations.eager, "tf32x3_flipped": formulations.flipped,
             "tf32x3_matmul_permute": PRODUCTS["matmul_permute"]}[kind]
    tensors = drawn(work)
    truth = call(work, direction, {name: t.double() for name, t in tensors.items()})

    def in_tf32(left_out: int | None = None) -> Callable[[Workload, str, Tensors], torch.Tensor]:
        calls = iter(range(100))

        def product(work: Workload, direction: str, given: Tensors) -> torch.Tensor:
            found = inner(work, direction, {
                name: t if t is None or name == "bias" else two_parts(t)[0] for name, t in given.items()})
            return found * 0 if left_out is not None and next(calls) % 3 == left_out else found
        return formulations.split(product)

    def error(product: Callable[[Workload, str, Tensors], torch.Tensor]) -> float:
        monkeypatch.setitem(PRODUCTS, kind, product)
        got = formulated(kind, work, direction, tensors)
        return max(float((got[n].double() - truth[n]).norm() / truth[n].norm()) for n in got)

    allowed = allowed_rel_l2("tf32x3", 100)
    assert error(in_tf32()) < allowed
    assert all(error(in_tf32(left_out)) > 10 * allowed for left_out in range(3))


def asked(work: Workload, tmp_path: Path, modes: list[str], **more: object) -> dict[str, Baseline]:
    order = replace(BaselineOrder(work, "cpu", (FORWARD,), tuple(modes), effort="quick", scratch=tmp_path), **more)
    return {b.name: b for b in baselines.measure(order, lambda event: None).baselines}


def shifted(work: Workload, direction: str, tensors: Tensors) -> torch.Tensor:
    return PRODUCTS["fold"](work, direction, {**tensors, "weight": tensors["weight"].flip(-1)})


def without_bias(work: Workload, direction: str, tensors: Tensors) -> torch.Tensor:
    return PRODUCTS["fold"](work, direction, {**tensors, "bias": None})


def in_bfloat16(work: Workload, direction: str, tensors: Tensors) -> torch.Tensor:
    return PRODUCTS["fold"](work, direction, tensors).bfloat16().float()


def one_element(work: Workload, direction: str, tensors: Tensors) -> torch.Tensor:
    found = PRODUCTS["fold"](work, direction, tensors)
    found.view(-1)[7] += 0.1
    return found


def another_shape(work: Workload, direction: str, tensors: Tensors) -> torch.Tensor:
    return torch.nn.functional.pad(PRODUCTS["fold"](work, direction, tensors), (0, 1))


@pytest.mark.parametrize("broken", [shifted, without_bias, in_bfloat16, one_element, another_shape])
def test_a_wrong_formulation_is_listed_with_its_reason_and_has_no_time(broken: Callable[..., torch.Tensor], tmp_path: Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRODUCTS, "shuffled", broken)
    found = asked(STRIDED, tmp_path, ["default", "shuffled", "dense"])
    wrong = found["convolution + pixel shuffle"]
    assert wrong.status == "MISMATCH" and wrong.kernel_ms is None and not wrong.samples and not wrong.precision
    assert "This formulation is wrong: output has" in wrong.headline and wrong.headline.endswith("It does not count.")
    assert wrong.flags == (FORMULATION,)
    for name in ("eager", "groups made dense"):
        assert found[name].status == "OK" and found[name].precision == "ieee" and found[name].samples


def test_half_numbers_are_judged_in_their_own_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = replace(KERNEL_IS_STRIDE, dtype="bfloat16", memory_format="channels_last")
    found = asked(work, tmp_path, ["default", "matmul_permute", "shuffled", "fold"])
    assert {b.status for b in found.values()} == {"OK"} and {b.precision for b in found.values()} == {"bf16"}
    monkeypatch.setitem(PRODUCTS, "fold", shifted_by_hand)
    assert asked(work, tmp_path, ["fold"])["matmul + fold"].status == "MISMATCH"


def shifted_by_hand(work: Workload, direction: str, tensors: Tensors) -> torch.Tensor:
    return PRODUCTS["shuffled"](work, direction, {**tensors, "weight": tensors["weight"].flip(-1)})


def test_what_pytorch_refuses_is_skipped_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(work: Workload, direction: str, tensors: Tensors) -> torch.Tensor:
        return tensors["input"] @ tensors["weight"]

    monkeypatch.setitem(PRODUCTS, "shuffled", refuses)
    refused = asked(STRIDED, tmp_path, ["default", "shuffled"])["convolution + pixel shuffle"]
    assert refused.status == "SKIPPED" and refused.headline.startswith("PyTorch cannot compute it: ")
    assert refused.kernel_ms is None and refused.flags == (FORMULATION,)


def test_the_search_ends_with_its_time_and_the_modes_are_measured_all_the_same(tmp_path: Path) -> None:
    found = asked(STRIDED, tmp_path, ["default", "shuffled", "dense", "benchmark"], search_s=0.0)
    assert [b.status for b in found.values()] == ["OK", "SKIPPED", "SKIPPED", "OK"]
    assert "time limit for the strongest PyTorch" in found["groups made dense"].headline
    slow = asked(STRIDED, tmp_path, ["default", "shuffled", "dense"], search_s=1e-6)   # the first is begun
    assert [b.status for b in slow.values()] == ["OK", "OK", "SKIPPED"]


def test_a_far_slower_way_gets_a_short_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = PRODUCTS["dense"]

    def slow(work: Workload, direction: str, tensors: Tensors) -> torch.Tensor:
        time.sleep(0.03)
        return right(work, direction, tensors)

    monkeypatch.setitem(PRODUCTS, "dense", slow)
    found = asked(STRIDED, tmp_path, ["default", "dense"], effort="normal")
    assert "brief_look" in found["groups made dense"].flags and len(found["groups made dense"].samples) <= 10
    assert found["eager"].flags == () and len(found["eager"].samples) > 10
    alone = asked(STRIDED, tmp_path, ["dense"], effort="quick")["groups made dense"]
    assert alone.flags == (FORMULATION,)      # nothing to be slower than


def test_a_compiled_formulation_gives_the_same(tmp_path: Path) -> None:
    found = asked(KERNEL_IS_STRIDE, tmp_path, ["default", COMPILED + "matmul_permute"])
    one = found["torch.compile, matmul + permute"]
    assert one.status == "OK" and one.precision == "ieee" and FORMULATION in one.flags, one.headline


def test_every_formulation_has_its_product_and_its_ways() -> None:
    assert set(PRODUCTS) == set(FORMULATIONS)
    for kind, formulation in FORMULATIONS.items():
        assert WAYS[kind].formulation and WAYS[kind].drop_in and WAYS[kind].name == formulation.name
    assert not any(WAYS[key].formulation for key in ("default", "tf32_on", "as_convolution", "compile", "channels_last"))
    names = [way.name for key, way in WAYS.items() if not key.startswith("switched_")]
    assert len(names) == len(set(names))   # a session tells them apart by name


DENSE = [Workload(ConvTranspose(2, 6, 4, (3, 2), padding=(1, 0), groups=2, dilation=(2, 1)), 2, (5, 7), "float64"),
         Workload(ConvTranspose(1, 4, 6, 3, padding=4, dilation=2, output_padding=1), 2, (19,), "float64"),
         Workload(ConvTranspose(3, 4, 6, (3, 2, 1), padding=(1, 1, 0), bias=False), 1, (4, 5, 6), "float64"),
         Workload(ConvTranspose(1, 2, 3, 1, padding=2), 1, (9,), "float64")]   # padding crops the input itself
ALONE = Workload(ConvTranspose(2, 4, 6, 3, stride=2), 1, (5, 6))


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
        bind("flipped", ALONE, "forward", {})


@pytest.mark.parametrize("kind", ["eager", "channels_last", "converted"])
def test_layouts_change_no_value(kind: str) -> None:
    tensors = baselines.plain_tensors(ALONE, "forward", "cpu")
    got = bind(kind, ALONE, "forward", tensors)()["output"]
    torch.testing.assert_close(got, call(ALONE, "forward", tensors)["output"])
    assert got.is_contiguous() == (kind != "channels_last")


def test_the_ladder() -> None:
    dense = Workload(ConvTranspose(2, 4, 6, 3), 1, (5, 6))
    assert ladder("quick", dense, "cpu") == ladder("default", dense, "cpu") == ladder("default", dense, "cuda:0") == ["default"]
    assert ladder("strong", dense, "cpu") == ["default", "as_convolution", "fold"]
    assert ladder("strong", ALONE, "cpu") == ["default", "shuffled", "fold"]
    assert ladder("quick", ALONE, "cuda:0") == ["tf32_on", "tf32_off"]
    assert ladder("quick", dense, "cuda:0") == ["tf32_on", "tf32_off", "as_convolution", "as_convolution_tf32_off"]
    half = replace(dense, dtype="float16")
    assert ladder("quick", half, "cuda:0") == ["default", "as_convolution"]
    assert not any(key.endswith("_tf32_off") or key.startswith("tf32x3") for key in ladder("strong", half, "cuda:0"))
    strong = ladder("strong", dense, "cuda:0")
    assert len(strong) == len(set(strong)) == 16 and set(strong) <= set(WAYS)
    plain = [key for key in strong if not WAYS[key].benchmark]
    assert plain == strong[-len(plain):]  # cuDNN keeps what it chose first: what may choose comes first
    assert "as_convolution" not in ladder("strong", ALONE, "cuda:0")
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
    half = replace(ALONE, dtype="float16")
    assert module_ways(ALONE, "cpu") == module_ways(half, "cuda:0") == ["module"]
    assert [(WAYS[k].name, WAYS[k].tf32) for k in module_ways(ALONE, "cuda:0")] == [
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
