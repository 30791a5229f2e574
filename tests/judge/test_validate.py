"""Tolerances and comparisons: NaN fails, TF32 is never taken for fp32, the worst element is found and named. Every
known mistake is recognised from its own output, and the right formula is none of them."""

from __future__ import annotations

from itertools import combinations
from math import inf, nan

import pytest
import torch
import torch.nn.functional as F

from workbench.core.layer import ConvTranspose
from workbench.core.trial import DEFAULT_ADVICE, Status
from workbench.measure.kernel.buffers import POISON, Buffer, count_poison
from workbench.measure.kernel.findings import wrong_result
from workbench.measure.kernel.validate import BOUNDS, Comparison, allowed_rel_l2
from workbench.measure.mistakes import MISTAKES, evaluate, guess

SHAPE = (2, 3, 8, 8)
WHOLE = tuple(slice(0, n) for n in SHAPE)
TF32_NEAREST, TF32_CUT_OFF = 2.9e-4, 7.7e-4  # relative L2 errors measured on an H200
LAYER = ConvTranspose(2, 4, 6, (3, 2), (2, 3), (1, 1), (1, 2), 2, True, (2, 1))
ONE_GROUP = ConvTranspose(1, 3, 5, 3, 2, 1, 1, 1, True, 1)


def _compared(got: torch.Tensor, expected: torch.Tensor, *, allowed: float = 1e-6, exact: bool = False,
              nan_safe: bool = True, poisoned: bool = True) -> Comparison:
    comparison = Comparison(SHAPE, allowed=allowed, rms=1.0, exact=exact, nan_safe=nan_safe, poisoned=poisoned)
    for n in range(SHAPE[0]):  # in two blocks, as the truth comes
        index = (slice(n, n + 1), slice(0, SHAPE[1]))
        comparison.add(index, got[index], expected[index])
    return comparison


@pytest.fixture
def expected() -> torch.Tensor:
    return torch.randn(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_rounding_is_allowed_and_more_is_not(expected: torch.Tensor) -> None:
    right = _compared(expected.float(), expected)
    assert not right.failed and right.wrong == 0 and right.rel_l2 < 1e-7
    assert right.errors().kernelbench_ok
    wrong = expected.float()
    wrong[1, 2, 3, 4] += 0.125
    compared = _compared(wrong, expected)
    assert compared.failed and compared.wrong == 1
    errors = compared.errors()
    assert errors.worst_index == (1, 2, 3, 4)
    assert errors.max_abs == pytest.approx(0.125, rel=1e-5)
    assert errors.got == float(wrong[1, 2, 3, 4]) and errors.expected == float(expected[1, 2, 3, 4])
    assert not errors.kernelbench_ok


@pytest.mark.parametrize("value", [nan, inf, -inf])
@pytest.mark.parametrize("exact", [False, True])
def test_not_finite_fails(expected: torch.Tensor, value: float, exact: bool) -> None:
    expected = expected.round() if exact else expected
    got = expected.float()
    got[0, 1, 2, 3] = value
    compared = _compared(got, expected, exact=exact)
    assert compared.failed and compared.not_finite == 1 and compared.first_not_finite == (0, 1, 2, 3)
    assert all(abs(v) < inf for v in vars(compared.errors()).values() if isinstance(v, float))
    if value != value:  # `err > tol`, as most harnesses write it, lets NaN through
        assert not _compared(got, expected, exact=exact, nan_safe=False).failed


def test_one_unwritten_value_has_one_place(expected: torch.Tensor) -> None:
    got = expected.float()
    got.view(torch.int32)[0, 1, 2, 3] = POISON[torch.float32]
    one = wrong_result("output", _compared(got, expected), kind="random floats", precision="ieee")
    assert one.status is Status.UNWRITTEN and one.headline == "1 value of y was never written: y[0, 1, 2, 3]."
    got.view(torch.int32)[1, 0, 0, 0] = POISON[torch.float32]
    two = wrong_result("output", _compared(got, expected), kind="random floats", precision="ieee")
    assert two.headline == "2 values of y were never written, the first at y[0, 1, 2, 3], the last at y[1, 0, 0, 0]."


def test_the_advice_for_nan_names_reads_of_the_guard_zones() -> None:
    assert "read outside of a tensor" in DEFAULT_ADVICE[Status.NON_FINITE]


def test_all_nan_fails(expected: torch.Tensor) -> None:
    compared = _compared(torch.full(SHAPE, nan), expected)
    assert compared.failed
    assert (errors := compared.errors()).without_distance and errors.expected == float(expected[0, 0, 0, 0]) != 0
    some = expected.float()
    some[0, 1, 2, 3] = nan
    errors = _compared(some, some.double().nan_to_num(7.0)).errors()
    assert errors.without_distance and (errors.worst_index, errors.expected) == ((0, 1, 2, 3), 7.0)


def test_poison_is_told_from_other_nans(expected: torch.Tensor) -> None:
    buffer = Buffer("output", SHAPE, torch.float32, device="cpu")
    buffer.poison()
    buffer.tensor[0] = expected[0].float()
    compared = _compared(buffer.tensor, expected)
    assert compared.unwritten == compared.count // 2 == compared.not_finite
    assert (compared.first_unwritten, compared.last_unwritten) == ((1, 0, 0, 0), (1, 2, 7, 7))
    buffer.tensor[1] += 1.0  # arithmetic on the poison is another NaN
    assert not bool(count_poison(buffer.tensor).any())
    assert _compared(buffer.tensor, expected).unwritten == 0


@pytest.mark.parametrize(("value", "got", "right"), [
    (1e-204, 0.0, True), (1e-204, 1e-40, True), (1e-204, 1e-30, False), (3e-38, 0.0, False), (1e-30, 0.0, False)])
def test_what_float32_cannot_hold_may_be_zero(value: float, got: float, right: bool) -> None:
    comparison = Comparison((8,), allowed=1e-6, rms=value, exact=False)
    comparison.add((slice(0, 8),), torch.full((8,), got), torch.full((8,), value, dtype=torch.float64))
    assert comparison.failed is not right and (comparison.rel_l2 == 0.0) is right


def test_exact_means_rounded_once() -> None:
    expected = torch.full(SHAPE, 2049.0, dtype=torch.float64)  # float16 holds 2048 and 2050: 2048 is even
    right = torch.full(SHAPE, 2048.0, dtype=torch.float16)
    assert not _compared(right, expected, exact=True, allowed=1e-2).failed
    wrong = right.clone()
    wrong[0, 0, 0, 1] = 2050.0
    compared = _compared(wrong, expected, exact=True, allowed=1e-2)
    assert compared.failed and compared.wrong == 1 and compared.errors().worst_index == (0, 0, 0, 1)


def test_tf32_is_never_taken_for_fp32_nor_bfloat16_for_tf32() -> None:
    for reduction in (1, 160, 2**21, 2**31):
        assert allowed_rel_l2("ieee", reduction) < TF32_NEAREST
        assert allowed_rel_l2("tf32x3", reduction) < TF32_NEAREST
        assert TF32_CUT_OFF < allowed_rel_l2("tf32", reduction) < 2.3e-3
    assert allowed_rel_l2("ieee", 160) == pytest.approx(1.57e-6, rel=0.01)


@pytest.mark.parametrize("precision", BOUNDS)
def test_longer_sums_may_err_more(precision: str) -> None:
    lengths = [allowed_rel_l2(precision, 4**k) for k in range(12)]
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]


@pytest.mark.parametrize("length", [16, 1000, 20_000])
def test_one_running_fp32_sum_is_allowed(length: int) -> None:
    """The naive kernel's sum, in numpy's float32 one after the other, stays inside with room to spare."""
    g = torch.Generator().manual_seed(1)
    products = torch.randn((384, length), generator=g) * torch.randn((384, length), generator=g)
    running = torch.zeros(384)
    for k in range(length):
        running += products[:, k]
    exact = products.double().sum(1)
    rel_l2 = float((running.double() - exact).norm() / exact.norm())
    assert rel_l2 < 0.7 * allowed_rel_l2("ieee", length)


@pytest.mark.parametrize("dtype", POISON)
@pytest.mark.parametrize("count", [1, 3, 4099])
def test_zones_see_every_byte(dtype: torch.dtype, count: int) -> None:
    buffer = Buffer("output", (count,), dtype, device="cpu")
    assert buffer.tensor.data_ptr() % 256 == 0
    buffer.poison()
    assert bool(count_poison(buffer.tensor).all()) and bool(buffer.tensor.isnan().all())
    buffer.tensor.zero_()
    assert buffer.overrun() == (0, 0)
    memory = buffer._raw
    memory[buffer._end + 5] ^= 1
    assert buffer.overrun() == (0, 6)
    memory[buffer._start - 1] ^= 1
    assert buffer.overrun() == (1, 6)


@pytest.mark.parametrize("dtype", POISON)
def test_zones_hold_nan_of_random_bits_then_numbers(dtype: torch.dtype) -> None:
    one, other = (Buffer("output", (5,), dtype, device="cpu") for _ in range(2))
    assert not torch.equal(one._raw[:one._start], other._raw[:one._start])
    for zone in one._zones():
        assert bool(zone[:len(zone) // 8 * 8].view(dtype).isnan().all())
    one.surround()
    for zone in one._zones():
        assert bool(zone[:len(zone) // 8 * 8].view(dtype).isfinite().all())
    assert one.overrun() == (0, 0)
    one._raw[one._end] ^= 1
    assert one.overrun() == (0, 1)


@pytest.mark.parametrize("size", [1, 17, 4096])
def test_workspace_of_any_size(size: int) -> None:
    buffer = Buffer("workspace", (size,), torch.uint8, device="cpu")
    buffer.poison()
    assert buffer.overrun() == (0, 0)
    if size >= 4:
        assert bool(buffer.tensor[:size // 4 * 4].view(torch.float32).isnan().all())


def test_without_zones_nothing_lies_beyond() -> None:
    buffer = Buffer("output", (5,), torch.float32, device="cpu", zones=False)
    assert buffer.tensor.untyped_storage().nbytes() == 20
    assert buffer.overrun() == (0, 0)


def _tensors(layer: ConvTranspose) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    size = (2, layer.in_channels, *(5, 4)[:layer.dims])
    return (torch.randn(size, generator=generator).double(), torch.randn(layer.weight_shape, generator=generator).double(),
            torch.randn(layer.out_channels, generator=generator).double())


def _made(layer: ConvTranspose, *keys: str) -> torch.Tensor:
    x, w, b = _tensors(layer)
    lead = (1,) * (3 - layer.dims)
    right = _right(layer)
    made = evaluate(layer.in_three_dimensions(), x.reshape(*x.shape[:2], *lead, *x.shape[2:]),
                    w.reshape(*w.shape[:2], *lead, *w.shape[2:]), b, (*right.shape[:2], *lead, *right.shape[2:]),
                    tuple((key, tuple(range(3 - layer.dims, 3))) for key in keys))
    return made.reshape(right.shape)


def _right(layer: ConvTranspose) -> torch.Tensor:
    x, w, b = _tensors(layer)
    call = {1: F.conv_transpose1d, 2: F.conv_transpose2d}[layer.dims]
    return call(x, w, b, layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation)


@pytest.mark.parametrize("layer", [LAYER, ONE_GROUP], ids=str)
def test_the_formula_without_a_mistake_is_pytorchs(layer: ConvTranspose) -> None:
    torch.testing.assert_close(_made(layer), _right(layer))
    assert guess(layer, *_tensors(layer), _right(layer)) is None


@pytest.mark.parametrize("key", [k for k in MISTAKES if k != "channels"])
def test_each_mistake_is_named(key: str) -> None:
    assert guess(LAYER, *_tensors(LAYER), _made(LAYER, key)).found == MISTAKES[key].name


def test_swapped_channels_are_named() -> None:
    assert guess(ONE_GROUP, *_tensors(ONE_GROUP), _made(ONE_GROUP, "channels")).found == MISTAKES["channels"].name


@pytest.mark.parametrize("pair", [("no_test", "flipped"), ("padding_sign", "bias"), ("flipped", "bias")])
def test_two_mistakes_together_are_named(pair: tuple[str, str]) -> None:
    found = guess(LAYER, *_tensors(LAYER), _made(LAYER, *pair))
    assert found.found == f"{MISTAKES[pair[0]].name} and {MISTAKES[pair[1]].name}"


def test_any_two_mistakes_are_told_by_themselves_or_by_what_comes_to_the_same() -> None:
    keys = [key for key in MISTAKES if key not in ("groups", "first_group")]
    same = [(a, b) for a, b in combinations(keys, 2) if torch.equal(_made(ONE_GROUP, a, b), _made(ONE_GROUP))]
    assert same == [("padding_late", "output_padding")]  # here each undoes the other
    for pair in combinations(keys, 2):
        if pair not in same:
            assert guess(ONE_GROUP, *_tensors(ONE_GROUP), _made(ONE_GROUP, *pair)) is not None, pair


def test_a_mistake_in_one_dimension_is_named_with_it() -> None:
    x, w, b = _tensors(LAYER)
    right = _right(LAYER)
    wrong = evaluate(LAYER.in_three_dimensions(), x[:, :, None], w[:, :, None], b, (*right.shape[:2], 1, *right.shape[2:]),
                     (("no_test", (1,)),))[:, :, 0]
    assert guess(LAYER, x, w, b, wrong).found == "no divisibility test, rows only"


def test_noise_looks_like_nothing() -> None:
    assert guess(LAYER, *_tensors(LAYER), torch.randn(_right(LAYER).shape).double()) is None
