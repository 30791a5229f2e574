"""Every known mistake is recognised from its own output, and the right formula is none of them."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
import torch.nn.functional as F

from workbench.core.layer import ConvTranspose
from workbench.measure.mistakes import MISTAKES, evaluate, guess

LAYER = ConvTranspose(2, 4, 6, (3, 2), (2, 3), (1, 1), (1, 2), 2, True, (2, 1))
ONE_GROUP = ConvTranspose(1, 3, 5, 3, 2, 1, 1, 1, True, 1)


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
