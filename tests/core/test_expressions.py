"""The language of headers: what it computes, and what it keeps out."""

from __future__ import annotations

import pytest

from workbench.core.errors import RenderError
from workbench.core.expressions import evaluate, names_in

NAMES = {"TILE": 64, "layer": {"groups": 4, "stride_w": 2}, "dtype": "float32"}


@pytest.mark.parametrize(("text", "value"), [
    ("4 * TILE + 1", 257), ("TILE % 3 == 1", True), ("TILE // layer.groups", 16), ("-TILE", -64), ("2 ** 5", 32),
    ("ceil_div(TILE, 60)", 2), ("max(TILE, 100) - min(1, 2) + abs(-3)", 102), ("TILE << 2 >> 1", 128),
    ("1 < layer.stride_w <= 2", True), ("TILE in [32, 64] and not layer.groups == 1", True),
    ("8 if dtype == 'float64' else 4", 4), ("dtype not in ['float16']", True)])
def test_value(text: str, value: object) -> None:
    assert evaluate(text, NAMES) == value


@pytest.mark.parametrize(("text", "words"), [
    ("TILLE + 1", ["TILLE", "which is not defined", "TILE"]), ("layer.strides", ["layer.strides", "stride_w"]),
    ("TILE.real", ["TILE.real"]), ("__import__('os')", ["__import__"]), ("(lambda: 1)()", ["lambda"]),
    ("[x for x in [1]]", ["for x in"]), ("TILE / 2", ["TILE / 2"]), ("f'{TILE}'", ["f'{TILE}'"]), ("1.5", ["1.5"]),
    ("layer['groups']", ["layer['groups']"]), ("4 +", ["cannot be read"]), ("TILE // 0", ["no value", "zero"]),
    ("dtype + 1", ["no value"]), ("min(TILE, key=1)", ["key=1"])])
def test_what_is_not_in_the_grammar_is_named(text: str, words: list[str]) -> None:
    with pytest.raises(RenderError) as caught:
        evaluate(text, NAMES)
    for word in (repr(text), *words):
        assert word in str(caught.value)


def test_names_of_an_expression() -> None:
    assert names_in("4 * TILE + layer.groups") >= {"TILE", "layer.groups"}
