"""One file that computes forward and grad_input: two variants, each with its own header, text and launcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.core.candidate import Candidate, derived_values
from workbench.core.errors import RenderError
from workbench.core.presets import preset
from workbench.core.template import render
from workbench.core.variants import TEMPLATES, broken, discover, find, parse, refuse_broken

FOLDER = "forward_and_grad_input"
LAYER = preset("kb74").layer
TEXT = """/* variant
name      = "both"
computes  = ["forward", "grad_input"]
idea      = "Nothing."
precision = ["ieee"]

[tune]
BLOCK  = {values = [32, 64, 128], default = 128}
UNROLL = {values = [1, 2], default = 2}

[derived]
channels = "layer.out_channels if direction == 'forward' else layer.in_channels"
twice    = "2 * channels"

[grad_input.tune]
UNROLL = {values = [1, 2], default = 1}
PLANES = {values = [0, 1], default = 0}

[grad_input.derived]
twice = "3 * channels"
*/
#include "contract/problem.cuh"
#ifndef KW_FORWARD
#include "contract/taps.cuh"
#endif

#ifdef __CUDACPU__
int emulated;
#endif

#ifdef KW_FORWARD
int forward_launcher;
#ifdef __CUDACPU__
int inner;
#else
int outer;
#endif
#else
int grad_input_launcher;
#endif
int last = Tune::BLOCK;
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "both.cu").write_text(TEXT)
    return tmp_path


def test_one_file_makes_a_variant_for_each_direction(root: Path) -> None:
    forward, grad_input = discover(root)
    assert [forward.key, grad_input.key] == ["forward/both", "grad_input/both"]
    assert (forward.computes, grad_input.computes) == (("forward",), ("grad_input",))
    assert forward.default_config == {"BLOCK": 128, "UNROLL": 2}
    assert grad_input.default_config == {"BLOCK": 128, "UNROLL": 1, "PLANES": 0}
    for variant, channels, twice in ((forward, LAYER.out_channels, 2), (grad_input, LAYER.in_channels, 3)):
        derived = derived_values(Candidate(variant, LAYER, "float32", {}), sm=90)
        assert derived == {"channels": channels, "twice": twice * channels}


def test_a_source_has_the_lines_of_its_own_direction(root: Path) -> None:
    sources = {v.direction: render(Candidate(v, LAYER, "float32", {})) for v in discover(root)}
    for direction, ours, theirs in (("forward", "forward_launcher", "grad_input_launcher"),
                                    ("grad_input", "grad_input_launcher", "forward_launcher")):
        body = sources[direction].body
        assert f"int {ours};" in body and theirs not in body and "KW_FORWARD" not in body
        assert ("int inner;" in body, "int outer;" in body) == (direction == "forward",) * 2
        assert "#ifdef __CUDACPU__\nint emulated;\n#endif\n" in body  # other conditions stay
        assert ("contract/taps.cuh" in dict(sources[direction].headers)) == (direction == "grad_input")
        assert body.split("\n").index("int last = Tune::BLOCK;") == TEXT.split("\n").index("int last = Tune::BLOCK;")
        assert f'#line 1 "{FOLDER}/both.cu"' in sources[direction].source
        assert f"(kw_{direction}, Layer, Tune)" in sources[direction].source
    assert sources["forward"].candidate_id != sources["grad_input"].candidate_id


@pytest.mark.parametrize("folder", ["forward", "grad_input", "grad_weight"])
def test_such_a_file_lies_in_its_own_folder(root: Path, folder: str) -> None:
    (root / folder).mkdir()
    (root / FOLDER / "both.cu").rename(root / folder / "both.cu")
    with pytest.raises(RenderError, match=f"both.cu lies in {folder}/ but computes forward, grad_input") as caught:
        find("both", folder, root=root)
    assert caught.value.advice == f"Move it to {FOLDER}/."


def test_a_file_of_one_direction_does_not_lie_there(root: Path) -> None:
    (root / FOLDER / "naive_gather.cu").write_text((TEMPLATES / "forward" / "naive_gather.cu").read_text())
    assert "lies in forward_and_grad_input/ but computes forward." in str(broken(root)[f"{FOLDER}/naive_gather"])
    assert broken(root)[f"{FOLDER}/naive_gather"].advice == "Move it to forward/."


@pytest.mark.parametrize(("old", "new", "sentence"), [
    ('["forward", "grad_input"]', '["forward"]', "key grad_input is not known"),
    ("name      =", "name", "The header of both.cu is not TOML"),
    ("[grad_input.tune]", "[grad_input.tuning]", "key tuning is not known"),
    ("[tune]", "forward = 3\n[tune]", "forward is 3; write it as a table [forward]"),
    ("#ifndef KW_FORWARD", "#if !defined(KW_FORWARD)", "Line 23 of both.cu is '#if !defined(KW_FORWARD)'; write #ifdef"),
    ("#endif\nint last", "int last", "line 31 of both.cu has no #endif"),
])
def test_what_is_wrong_is_said_once_and_for_both_directions(root: Path, old: str, new: str, sentence: str) -> None:
    assert old in TEXT
    (root / FOLDER / "both.cu").write_text(TEXT.replace(old, new))
    assert discover(root) == [] and list(broken(root)) == [f"{FOLDER}/both"]
    for direction in ("forward", "grad_input"):
        with pytest.raises(RenderError) as caught:
            refuse_broken([f"{direction}/both"], [direction], root)
        assert sentence in str(caught.value)
    refuse_broken(["both"], ["grad_weight"], root)


def test_two_files_cannot_be_the_same_variant(root: Path) -> None:
    (root / "forward").mkdir()
    text = (TEMPLATES / "forward" / "naive_gather.cu").read_text()
    (root / "forward" / "both.cu").write_text(text.replace('"naive_gather"', '"both"'))
    assert [v.key for v in discover(root)] == ["forward/both"]
    assert "are both forward/both" in str(broken(root)[f"{FOLDER}/both"])


def test_the_direction_must_be_named(root: Path) -> None:
    with pytest.raises(RenderError, match="both.cu computes forward and grad_input; name one of them"):
        parse(TEXT, root / FOLDER / "both.cu")
    assert parse(TEXT, root / FOLDER / "both.cu", "grad_input").key == "grad_input/both"
