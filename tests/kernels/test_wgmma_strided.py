"""What the awkward layers do not reach in wgmma_strided: long walks, rows that go on into the next, tiles beside each
other, results that begin anywhere; and that a warp stores whole sectors."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from workbench.core.candidate import EMULATED_SM, Candidate, why_not
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.variants import TEMPLATES, find

from .harness import Library, build_emulated, label, run

pytestmark = pytest.mark.xdist_group("wgmma_strided")  # one worker builds each library, once

LAYERS = [  # input size, in channels, out channels, parameters
    ((2, 5, 128), 32, 32, {"kernel": 3, "padding": 1}),                       # as #73
    ((3, 4, 30), 8, 16, {"kernel": 3, "output_padding": 1}),                  # rows of even length
    ((9, 70), 16, 40, {"kernel": 3, "padding": 1}),                           # channels that fill no tile
    ((7, 33), 16, 12, {"kernel": (4, 5), "padding": 2}),
    ((5, 9), 8, 8, {"kernel": 3, "padding": 1}),                              # 17 results a row, a part of a part
    ((11, 8), 8, 7, {"kernel": 3, "padding": 1}),                             # 15: too short to go on
    ((2, 3, 150), 8, 40, {"kernel": 3, "padding": 1}),                        # two tiles beside each other
    ((6, 20), 3, 5, {"kernel": (5, 4), "stride": (3, 2), "dilation": (2, 3), "padding": (3, 7)}),
    ((4, 6, 12), 16, 16, {"kernel": (2, 3, 3), "stride": (3, 2, 2), "groups": 2}),    # a residue without a tap
    ((3, 5, 21), 4, 6, {"kernel": (3, 2, 1), "stride": (1, 4, 2), "dilation": (2, 1, 1), "output_padding": (0, 3, 1)}),
    ((300,), 33, 17, {"kernel": 4, "padding": 1}),
]
CONFIGS = ({}, {"TILE": 64, "STAGES": 4})


def workload(size: tuple[int, ...], cin: int, cout: int, given: dict) -> Workload:
    rest = {"stride": 2, **{name: value for name, value in given.items() if name != "kernel"}}
    return Workload(ConvTranspose(len(size), cin, cout, given["kernel"], bias=cout % 4 == 0, **rest), 2, size, "float32")


def candidates(config: dict, root: Path = TEMPLATES, layers: list[tuple] = LAYERS) -> list[tuple[Candidate, Workload]]:
    variant = find("wgmma_strided", "forward", root=root)
    made = [(Candidate(variant, work.layer, "float32", config, form="constant"), work)
            for work in (workload(*one) for one in layers)]
    assert all(why_not(one, sm=EMULATED_SM) is None for one, _ in made)
    return made


@pytest.fixture(scope="module", params=CONFIGS, ids=str)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Library, list]:
    made = candidates(request.param, layers=LAYERS[::2] if request.param else LAYERS)
    return build_emulated([one for one, _ in made], tmp_path_factory.mktemp("strided")), made


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["some", "every"])
@pytest.mark.parametrize(("place", "shift"), enumerate((0, 4, 24)))
def test_every_element_is_right(built: tuple[Library, list], place: int, shift: int, every: bool) -> None:
    """Wherever the result begins: `shift` bytes behind a sector's first. Each layer runs at one of the places, with `every` at
    each. The second config has half of the layers."""
    library, made = built
    for number, (one, work) in list(enumerate(made))[0 if every else place::1 if every else 3]:
        outcome = run(library, one, work, order=number + shift, shift=shift)
        assert outcome.status == "OK", f"{label(work)}: {outcome.status} {outcome.text}"


def changed_copy(folder: Path, *changes: tuple[str, str]) -> Path:
    root = folder / "templates"
    shutil.copytree(TEMPLATES, root)
    for old, new in changes:
        family = (root / "forward" / "wgmma_strided.cu", *(root / "families" / "wgmma_strided").glob("*.cuh"))
        files = [f for f in family if f.read_text(encoding="utf-8").count(old) == 1]
        assert len(files) == 1, f"no single line contains {old!r}: name another one to change"
        files[0].write_text(files[0].read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    return root


STORE = "__stcs(to[c] + NUMBER * PART, value[c]);"
SEVEN = LAYERS[:7]  # one of two tiles beside each other among them
# Instead of a result: in which part it left, and of which row of outputs.
WHO = (STORE, "__stcs(to[c] + NUMBER * PART, float(int((out - 8 * volume) - (float*)0) % 1021 * 16 + NUMBER));")


def sectors_in_parts(folder: Path, *changes: tuple[str, str]) -> list[tuple[int, int]]:
    """For each layer how many sectors of 32 bytes left in parts, and how many rows of results there are."""
    made = candidates({}, changed_copy(folder, WHO, *changes), SEVEN)
    library = build_emulated([one for one, _ in made], folder / "build")
    counts = []
    for one, work in made:
        stored: dict[str, torch.Tensor] = {}
        assert run(library, one, work, take=stored).status == "OK"
        flat, place = stored["output"].reshape(-1), torch.arange(stored["output"].numel())
        split = (flat[1:] != flat[:-1]) & (place[1:] % 8 != 0)
        counts.append((int(split.sum()), flat.numel() // stored["output"].shape[-1]))
    return counts


@pytest.mark.long
def test_a_sector_leaves_whole_but_where_a_walk_or_a_tile_ends(tmp_path: Path) -> None:
    alone = sectors_in_parts(tmp_path / "a", ("run.goes_on = a.chunks == 1 &&", "run.goes_on = false && a.chunks == 1 &&"))
    found = sectors_in_parts(tmp_path / "b")
    for (split, rows), (one_row_each, _), (size, *_) in zip(found, alone, SEVEN, strict=True):
        assert one_row_each <= 2 * rows if size[-1] == 150 else one_row_each <= rows
        assert split <= one_row_each
    assert sum(split for split, _ in found[:4]) < 0.7 * sum(split for split, _ in alone[:4])


def test_without_the_rule_sectors_leave_in_parts(tmp_path: Path) -> None:
    """So the count above finds them."""
    counts = sectors_in_parts(tmp_path,
                              ("at = lane - int(reinterpret_cast<size_t>(out) / 4 % 8);", "at = lane;"),
                              ("lane + part * PART - int(first % 8);", "lane + part * PART;"),
                              ("run.goes_on = a.chunks == 1 &&", "run.goes_on = false && a.chunks == 1 &&"))
    assert sum(split > 2 * rows for split, rows in counts) >= 3


@pytest.mark.parametrize(("old", "new", "status"), [
    ("int((first + run.end) % 8)", "int((first + run.end) % 8) + 8", "UNWRITTEN"),
    ("(P::H::REACH - P::H::shift(kh(i))) * P::PLANES", "P::H::shift(kh(i)) * P::PLANES", "MISMATCH"),
    *(pytest.param(*slip, marks=pytest.mark.long) for slip in (
        ("run.continues = run.goes_on;", "run.continues = false;", "UNWRITTEN"),
        ("value_at(place_of(4 * i + lane / 8, lane % 8 - 8)) = value[i];", "(void)value;", "MISMATCH"),
        ("rh >= P::H::LAST_OF_FIRST", "rh >= 0", "OK"))),  # right wherever the first residue is that one
])
def test_a_broken_copy_is_caught(old: str, new: str, status: str, tmp_path: Path) -> None:
    made = candidates({}, changed_copy(tmp_path, (old, new)))[:4:3]
    library = build_emulated([one for one, _ in made], tmp_path / "build")
    assert status in {run(library, one, work).status for one, work in made}
