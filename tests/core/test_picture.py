"""The layer picture: well-formed, small, and every formula in it true."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shared import workloads
from workbench.core.facts import phases
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.presets import PRESETS, preset
from workbench.core.wrong_values import SmallestWrong, Term
from workbench.faces.ui.picture import layer_svg

SVG = "{http://www.w3.org/2000/svg}"
TERM = re.compile(r"x\[([\d,]+)\]·w\[([\d,]+)\]")


def parsed(picture: str) -> ElementTree.Element:
    """As XML; the namespace is the one an HTML parser gives to svg."""
    return ElementTree.fromstring(picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" '))


def outputs(figure: ElementTree.Element) -> list[list[ElementTree.Element]]:
    """For each SVG its groups that are an output."""
    return [[g for g in svg.iter(f"{SVG}g") if g.get("class", "").startswith("out")]
            for svg in figure.iter(f"{SVG}svg")]


def formula(group: ElementTree.Element) -> str:
    return next(t.text for t in group.iter(f"{SVG}text") if t.get("class") == "code big")


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(v) for v in text.split(","))


def output_of(text: str) -> tuple[int, ...]:
    return numbers(re.match(r"y\[([\d,]+)\]", text)[1])


def drawn_sizes(texts: list[list[str]], planes: list[tuple[int, ...]]) -> list[int]:
    """How many outputs are drawn, dimension by dimension: one more than the last index in a formula."""
    last = {d: max(output_of(text)[at] for text in formulas)
            for plane, formulas in zip(planes, texts, strict=True) for at, d in enumerate(plane)}
    return [last[d] + 1 for d in sorted(last)]


def check(text: str, layer: ConvTranspose, first: int) -> int:
    """Re-evaluate one formula by the definition, o = i * stride - padding + k * dilation; the count of its terms."""
    output = output_of(text)
    found = TERM.findall(text)
    at = range(first, first + len(output))
    for inputs, taps in found:
        for o, i, k, d in zip(output, numbers(inputs), numbers(taps), at, strict=True):
            assert 0 <= k < layer.kernel_size[d]
            assert o == i * layer.stride[d] - layer.padding[d] + k * layer.dilation[d], text
    assert len(set(found)) == len(found)
    more = re.search(r"\+ (\d+) more$", text)
    return len(found) + (int(more[1]) if more else 0)


@settings(max_examples=40, deadline=None)
@given(workloads(longest=5))
def test_every_formula_is_true_and_whole(work: Workload) -> None:
    """All inputs fit into the picture here, so the number of terms is that of the real layer."""
    layer = work.layer
    figure = parsed(layer_svg(work))
    dims = layer.dims
    groups = outputs(figure)
    planes = [(1, 2), (0,)] if dims == 3 else [tuple(range(dims))]
    if len(groups) != len(planes):
        planes = [(d,) for d in ((1, 2, 0) if dims == 3 else range(dims))]
    texts = [[formula(group) for group in members] for members in groups]
    drawn = drawn_sizes(texts, planes)
    inputs = [1 + (o + 2 * p - op - 1 - d * (k - 1)) // s for o, p, op, d, k, s in zip(
        drawn, layer.padding, layer.output_padding, layer.dilation, layer.kernel_size, layer.stride, strict=True)]
    for plane, formulas in zip(planes, texts, strict=True):
        seen = set()
        for text in formulas:
            output = output_of(text)
            expected = 1
            for o, d in zip(output, plane, strict=True):
                expected *= sum(i * layer.stride[d] - layer.padding[d] + k * layer.dilation[d] == o
                                for i in range(inputs[d]) for k in range(layer.kernel_size[d]))
            assert check(text, layer, plane[0]) == expected, text
            assert (expected == 0) == (" = 0 " in text)
            seen.add(output)
        area = 1
        for d in plane:
            area *= drawn[d]
        assert len(seen) == len(formulas) == area <= 400


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_in_full_size_is_small_to_send(name: str) -> None:
    work = preset(name).workload()
    picture = layer_svg(work)
    figure = parsed(picture)
    assert len(picture.encode()) < 400_000
    assert "<script" not in picture and "http" not in picture
    for svg in figure.iter(f"{SVG}svg"):
        assert svg.get("role") == "img" and "y[" in svg.get("aria-label")
        pins = [g for g in svg.iter(f"{SVG}g") if g.get("class") == "out pin"]
        assert len(pins) == 1
        pinned = formula(pins[0])
        assert " ".join(pinned.split()) in svg.get("aria-label")
        assert check(pinned, work.layer, 0 if work.layer.dims < 3 else 1 if "," in pinned else 0) > 0
    known = {e.get("id") for e in figure.iter() if e.get("id")}
    for use in figure.iter(f"{SVG}use"):
        assert use.get("href")[1:] in known
    size = " × ".join(f"{n:,}".replace(",", "\u202f") for n in work.input_size[-2:])
    assert (f"inputs instead of {size}<" in picture) == (max(work.input_size[-2:]) > 4)  # a 4 × 4 input is drawn whole


def test_the_pinned_output_of_a_row_shows_all_of_its_taps() -> None:
    """#74: five taps three apart, so 13 inputs are needed before one output sees all of them."""
    group = next(g for g in outputs(parsed(layer_svg(preset("kb74").workload())))[0] if "pin" in g.get("class"))
    assert formula(group) == "y[12] = x[12]·w[0] + x[9]·w[1] + x[6]·w[2] + x[3]·w[3] + x[0]·w[4]"
    assert "(12 + 0 − 4·3) / 1 = 0 → x[0]" in "".join(group.itertext())


def test_a_tap_that_misses_says_why() -> None:
    picture = layer_svg(ConvTranspose(1, 1, 1, 4, stride=2, padding=1), explain=7)
    group = next(g for g in outputs(parsed(picture))[0] if "pin" in g.get("class"))
    assert formula(group) == "y[7] = x[4]·w[0] + x[3]·w[2]"
    assert "(7 + 1 − 1·1) / 2 = 7/2, not whole" in "".join(group.itertext())
    text = "".join("".join(g.itertext()) for g in outputs(parsed(picture))[0])
    assert "= −1, outside the input" in text


def test_explain_chooses_the_output_and_one_that_is_not_drawn_is_replaced_by_none() -> None:
    work = preset("kb81").workload()
    for wanted in [(9, 9), (0, 0), (12, 17)]:
        label = parsed(layer_svg(work, explain=wanted)).find(f"{SVG}svg").get("aria-label")
        assert f"y[{wanted[0]},{wanted[1]}] = " in label
    usual = parsed(layer_svg(work)).find(f"{SVG}svg").get("aria-label")
    for wrong in [(3,), 4]:
        assert parsed(layer_svg(work, explain=wrong)).find(f"{SVG}svg").get("aria-label") == usual
    for missing in [(318, 0), (-1, 2)]:
        picture = layer_svg(work, explain=missing)
        assert f"y[{missing[0]},{missing[1]}] is beyond what is drawn" in picture and 'class="out pin"' not in picture


@pytest.mark.parametrize(("name", "wanted", "inputs"), [
    ("kb81", (200, 637), "39 to 41 × 124 to 127 of 64 × 128"), ("kb81", (317, 0), "61 to 63 × 0 to 3 of 64 × 128"),
    ("kb74", (100_000,), "99 987 to 100 000 of 131 072"), ("kb74", (131_083,), "131 058 to 131 071 of 131 072")])
def test_an_output_far_from_the_first_is_shown_in_a_window(name: str, wanted: tuple[int, ...], inputs: str) -> None:
    work = preset(name).workload()
    picture = layer_svg(work, explain=wanted)
    group, = (g for g in outputs(parsed(picture))[0] if "pin" in g.get("class"))
    assert output_of(formula(group)) == wanted
    assert f"drawn: inputs {inputs};" in picture.replace("\u202f", " ")
    low = [min(output_of(formula(g))[d] for g in outputs(parsed(picture))[0]) for d in range(len(wanted))]
    assert max(low) > 20 and len(outputs(parsed(picture))[0]) > 1
    for one in outputs(parsed(picture))[0]:   # what is left to hover is whole, as in the layer itself
        at = output_of(formula(one))
        reached = [[(i, k) for k in range(work.layer.kernel_size[d]) for i in range(o // work.layer.stride[d] + 2)
                    if i < work.input_size[d] and i * work.layer.stride[d] - work.layer.padding[d]
                    + k * work.layer.dilation[d] == o] for d, o in enumerate(at)]
        assert check(formula(one), work.layer, 0) == prod(map(len, reached)), formula(one)


_ROW = Workload(ConvTranspose(1, 2, 3, 3, stride=2, padding=1), batch=1, input_size=(5,))
_PLANE = Workload(ConvTranspose(2, 2, 3, 3, stride=2, padding=1), batch=1, input_size=(3, 4))
_TINY = replace(_PLANE, input_size=(1, 2))
_CUBE = Workload(ConvTranspose(3, 2, 3, 2, stride=2), batch=1, input_size=(2, 2, 2))


@pytest.mark.parametrize(("work", "tensor", "at", "terms", "drawn", "total"), [
    (_ROW, "output", (3,), [((0,), (2,)), ((2,), (1,))], ["11", "−2"], "y[0, 1, 3] = 11 − 2 = 9"),
    (_ROW, "grad_input", (2,), [((0,), (3,)), ((1,), (4,)), ((2,), (5,))], ["11", "−2", "3"],
     "grad_input[0, 1, 2] = 11 − 2 + 3 = 12"),
    (_ROW, "grad_weight", (2,), [((2,), (i,)) for i in range(4)], ["11", "−2", "3", "−4"],
     "grad_weight[0, 1, 2] = 11 − 2 + 3 − 4 = 8"),
    (_PLANE, "output", (1, 3), [((0, 0), (1, 2)), ((0, 2), (1, 1)), ((2, 0), (0, 2)), ((2, 2), (0, 1))],
     ["11", "−2", "3", "−4"], "y[0, 1, 1, 3] = 11 − 2 + 3 − 4 = 8"),
    (_PLANE, "grad_input", (0, 0), [((1, 1), (0, 0)), ((1, 2), (0, 1)), ((2, 1), (1, 0)), ((2, 2), (1, 1))],
     ["11", "−2", "3", "−4"], "grad_input[0, 1, 0, 0] = 11 − 2 + 3 − 4 = 8"),
    (_TINY, "grad_weight", (1, 0), [((1, 0), (0, 1))], ["11"], "grad_weight[0, 1, 1, 0] = 11"),
    (_CUBE, "output", (1, 2, 3), [((1, 0, 1), (0, 1, 1))], ["11", "11"], "y[0, 1, 1, 2, 3] = 11")])
def test_a_wrong_element_is_drawn_with_its_numbers(work, tensor, at, terms, drawn, total) -> None:
    values = [11.0, -2.0, 3.0, -4.0][:len(terms)]
    terms = tuple(Term(tap, reads, value) for (tap, reads), value in zip(terms, values, strict=True))
    case = SmallestWrong(1, work.input_size, (0, 1, *at), 5.0, sum(values), terms)
    figure = parsed(layer_svg(work, case=case, tensor=tensor))
    texts = ["".join(text.itertext()) for text in figure.iter(f"{SVG}text")]
    assert total in texts and "the kernel gave 5" in texts
    pinned = [g for g in figure.iter(f"{SVG}g") if g.get("class") == "out pin"]
    shown = [t for g in pinned or [figure] for t in g.iter(f"{SVG}text") if t.get("class") in ("tag", "tag s")]
    assert sorted(t.text for t in shown) == sorted(drawn), "each product has its number, and nothing else has one"
    assert len(pinned) == (0 if tensor != "output" else 2 if work is _CUBE else 1)
    assert ("grad_y" in texts) == (tensor != "output")
    selected = sum(p.get("d").count("M") for p in figure.iter(f"{SVG}path") if p.get("class") == "sel")
    if (work, tensor) == (_ROW, "grad_input"):
        assert selected == 4, "the element and the three values that it needs"


def test_a_wrong_element_far_from_the_first_is_drawn_in_a_window_with_its_numbers() -> None:
    far, wide = replace(_ROW, input_size=(500,)), replace(_PLANE, input_size=(40, 60))
    for tensor, at, terms, drawn in (
            ("output", (901,), (Term((0,), (451,), 2.0), Term((2,), (450,), -6.0)), "445 to 456 of 500"),
            ("grad_input", (450,), (Term((0,), (899,), 2.0), Term((1,), (900,), -6.0), Term((2,), (901,), 3.0)),
             "444 to 455 of 500"),
            ("output", (77, 9), (Term((0, 0), (39, 5), 2.0), Term((2, 2), (38, 4), -6.0)), "34 to 39 × 0 to 5 of 40 × 60"),
            ("grad_input", (39, 59), (Term((0, 0), (77, 117), 2.0), Term((1, 1), (78, 118), -6.0)),
             "34 to 39 × 54 to 59 of 40 × 60")):
        work = wide if at[1:] else far
        picture = layer_svg(work, case=SmallestWrong(1, work.input_size, (0, 2, *at), 7.0, sum(t.value for t in terms), terms),
                            tensor=tensor)
        assert "is beyond what is drawn" not in picture and drawn in picture
        figure = parsed(picture)
        pinned = [g for g in figure.iter(f"{SVG}g") if g.get("class") == "out pin"]
        assert len(pinned) == (tensor == "output") and "2 − 6" in picture
        tags = [e.text for g in pinned or [figure] for e in g.iter(f"{SVG}text") if e.get("class") in ("tag", "tag s")]
        assert {"2", "−6"} <= set(tags), (tensor, at)
        box = [float(v) for v in figure.find(f"{SVG}svg").get("viewBox").split()]
        places = [float(e.get(side)) for e in figure.iter() for side in ("x", "y") if e.get(side)]
        assert min(places) >= 0 and max(places) <= max(box), "nothing is drawn outside of the picture"


def test_a_wrong_element_that_no_picture_has_room_for_is_told_in_numbers() -> None:
    far, terms = replace(_ROW, input_size=(500,)), (Term((2,), (450,), 2.0), Term((2,), (451,), -6.0))
    picture = layer_svg(far, case=SmallestWrong(1, (500,), (0, 2, 2), 7.0, -4.0, terms), tensor="grad_weight")
    assert "[2] is beyond what is drawn" in picture and "2 − 6 = −4" in picture and 'class="out pin"' not in picture
    incomplete = layer_svg(_ROW, case=SmallestWrong(1, (5,), (0, 1, 3), 7.0, 4.0, (Term((0,), (2,), 2.0),)))
    assert "y[0, 1, 3] = … = 4" in incomplete, "a sum of which a term is missing is not shown as one"


def test_zero_phases_are_named_and_drawn_as_zero() -> None:
    work = preset("kb81").workload()
    picture = layer_svg(work)
    assert "always zero: 16 of 25 phases" in picture and "cropped by padding 1" in picture
    members = outputs(parsed(picture))[0]
    rows, columns = phases(work.layer)
    dead = sum((i + 1) % 5 not in rows.taps or (j + 1) % 5 not in columns.taps for i in range(13) for j in range(18))
    assert sum(g[0].get("class") == "zero" for g in members) == dead
    assert sum("no tap reaches this output" in formula(g) for g in members) == dead


def test_two_pictures_in_one_document_share_no_id() -> None:
    first, second = (parsed(layer_svg(preset(n).workload())) for n in ("kb72", "kb75"))
    ids = [{e.get("id") for e in f.iter() if e.get("id")} for f in (first, second)]
    assert ids[0] and ids[1] and not ids[0] & ids[1]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 400), st.integers(1, 60), st.integers(0, 300), st.integers(1, 40))
def test_extreme_layers_stay_small(dims: int, kernel: int, stride: int, padding: int, dilation: int) -> None:
    picture = layer_svg(ConvTranspose(dims, 1, 1, kernel, stride=stride, padding=padding, dilation=dilation))
    parsed(picture)
    assert sum(map(len, outputs(parsed(picture)))) <= 3 * 400
    assert len(picture.encode()) < 1_500_000


def test_a_layer_that_does_not_fit_is_said_in_words() -> None:
    assert "one input reaches 601 outputs" in layer_svg(ConvTranspose(1, 1, 1, 301, dilation=2))
    big = parsed(layer_svg(ConvTranspose(2, 1, 1, 21, dilation=2)))
    assert len(list(big.iter(f"{SVG}svg"))) == 2  # height and width each as a row
