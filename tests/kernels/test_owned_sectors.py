"""A sector of 32 bytes in a row of the result is stored by one warp alone where a kernel promises it, and nothing is left
out: rows of even and odd length, several tiles and rows, results that begin anywhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from workbench.core.candidate import EMULATED_SM, Candidate, why_not
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.variants import TEMPLATES, find

from .harness import Library, build_emulated, label, run

pytestmark = pytest.mark.xdist_group("owned_sectors")  # one worker builds each library, once

STRIPS = [  # input size, in channels, out channels, parameters
    ((301,), 5, 7, {"kernel": 5, "dilation": 3, "padding": 1}),
    ((512,), 5, 8, {"kernel": 3}),                                            # rows of even length: pairs of results
    ((263,), 5, 7, {"kernel": 3, "stride": 2, "dilation": 2, "padding": 1}),
    ((101,), 5, 7, {"kernel": 5, "stride": 3, "padding": 2}),
    ((5, 61), 8, 9, {"kernel": 3}),                                           # tiles run over rows
    ((4, 64), 8, 9, {"kernel": 3, "stride": 5, "dilation": 2, "padding": 1}),
    ((3, 144), 8, 9, {"kernel": 3, "padding": 1}),                            # rows of whole sectors: no overlap
    ((6, 150), 8, 9, {"kernel": 3, "stride": 2}),                             # a row of two blocks of columns
    ((3, 4, 37), 8, 9, {"kernel": 3, "stride": 2, "padding": 1}),
]
DISJOINT = [
    ((150,), 5, 7, {"kernel": 2, "stride": 2}),
    ((201,), 33, 20, {"kernel": 2, "stride": 3, "dilation": 2, "padding": 1, "output_padding": 1}),
    ((333,), 8, 8, {"kernel": 1}),
    ((60,), 70, 17, {"kernel": 2, "stride": 2, "output_padding": 1}),         # more channels than a lane holds at once
    ((40,), 3, 5, {"kernel": 3, "stride": 17, "dilation": 5, "padding": 20, "output_padding": 3}),
    ((5, 131), 6, 4, {"kernel": 2, "stride": 2, "groups": 2}),
    ((4, 65), 5, 7, {"kernel": 3, "stride": 5, "dilation": 2, "padding": 1}),
    ((2, 50), 96, 40, {"kernel": 3, "stride": 3}),                            # weights that do not fit beside the images
    ((3, 2, 45), 9, 17, {"kernel": (2, 1, 2), "stride": (2, 1, 3), "dilation": (1, 1, 2), "padding": (1, 0, 1)}),
]
RESIDUES = [*STRIPS[:4],
    ((150,), 9, 70, {"kernel": 3, "stride": 2, "dilation": 2, "padding": 1}),  # two tiles of channels
    ((131,), 40, 16, {"kernel": 2, "stride": 4, "padding": 1}),                # inputs in two chunks; residues without taps
    ((3, 77), 8, 7, {"kernel": (1, 3), "stride": (1, 5), "dilation": (1, 2), "padding": (0, 1)}),
]
# variant, config, layers, directions, dtypes
RULES = {"strips": ("implicit_gemm_mma", {"OWNED": 32}, STRIPS, ("forward",), ("float32",)),
         "strips of gradients": ("implicit_gemm_mma", {"OWNED": 32}, STRIPS[1::2], ("grad_input",), ("float32",)),
         "half strips": ("implicit_gemm_mma", {"OWNED": 32}, STRIPS[::4], ("forward",), ("float16",)),
         "disjoint": ("disjoint_mma", {"WARPS": 1}, DISJOINT, ("forward",), ("float32",)),
         "residues": ("wgmma_residues", {"CELLS": 32}, RESIDUES, ("forward",), ("float32",)),
         "two images": ("disjoint_mma", {"WARPS": 1, "IMAGES": 2}, DISJOINT[1::2], ("forward",), ("float32",))}


def workload(size: tuple[int, ...], cin: int, cout: int, given: dict, dtype: str) -> Workload:
    rest = {name: value for name, value in given.items() if name != "kernel"}
    return Workload(ConvTranspose(len(size), cin, cout, given["kernel"], bias=cout == 7, **rest), 2, size, dtype)


def candidates(rule: str, root: Path = TEMPLATES) -> list[tuple[Candidate, Workload]]:
    name, config, layers, directions, dtypes = RULES[rule]
    made = [(Candidate(find(name, direction, root=root), work.layer, dtype, config, form="constant"), work)
            for dtype in dtypes for direction in directions for work in (workload(*one, dtype) for one in layers)]
    assert all(why_not(one, sm=EMULATED_SM) is None for one, _ in made)
    return made


def build(rule: str, folder: Path, root: Path = TEMPLATES, most: int | None = None) -> tuple[Library, list]:
    made = candidates(rule, root)[:most]
    return build_emulated([one for one, _ in made], folder), made


@pytest.fixture(scope="module", params=RULES)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Library, list]:
    return build(request.param, tmp_path_factory.mktemp(request.param.replace(" ", "_")))


@pytest.mark.parametrize("shift", [0, 4, 24])
def test_every_element_is_right(built: tuple[Library, list], shift: int) -> None:
    """Wherever the result begins: `shift` bytes behind a sector's first."""
    library, made = built
    for number, (one, work) in enumerate(made):
        outcome = run(library, one, work, order=number + shift, shift=shift)
        assert outcome.status == "OK", f"{one.direction} {label(work)} {work.dtype}: {outcome.status} {outcome.text}"


RESIDUE_STORE = "families/wgmma_residues/store.cuh"
# What stores a result -> the same, storing who it was.
WHO = {"implicit_gemm_mma": [("families/implicit_gemm_mma/store.cuh", "if (stored) store_strip(out + place[i], v[turn][i]);",
                              "for (float& one : v[turn][i].value) one = float(tile.item % 100 * 8 + warp_n);\n"
                              "if (stored) store_strip(out + place[i], v[turn][i]);")],
       "disjoint_mma": [("forward/disjoint_mma.cu", "return *reinterpret_cast<const Pack<float, VECTOR>*>(row + w);",
                         "Pack<float, VECTOR> who = {};\nfor (float& one : who.value) one = float(chunk);\nreturn who;"),
                        ("forward/disjoint_mma.cu", "same.value[e] = bias_of(m)", "same.value[e] = float(chunk)")],
       "wgmma_residues": [(RESIDUE_STORE, "= sum[C][i * 4 + HALF * 2] + added;", "= float(tile);"),
                          (RESIDUE_STORE, "= sum[C][i * 4 + HALF * 2 + 1] + added;", "= float(tile);"),
                          (RESIDUE_STORE, "const bool other = ", "const bool other = true || "),
                          (RESIDUE_STORE, "bias[HALF * 8 + i / (P::PITCH / 4)] : 0.0f", "float(tile) : float(tile)")]}


def broken_copy(folder: Path, *changes: tuple[str, str, str]) -> Path:
    root = folder / "templates"
    shutil.copytree(TEMPLATES, root)
    for file, old, new in changes:
        text = (root / file).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} no longer contains {old!r} once: name another line to change"
        (root / file).write_text(text.replace(old, new), encoding="utf-8")
    return root


def shared_sectors(rule: str, folder: Path, *changes: tuple[str, str, str]) -> list[int]:
    """For each candidate how many sectors of a row were stored in parts by two."""
    root = broken_copy(folder, *WHO[RULES[rule][0]], *changes)
    library, made = build(rule, folder / "build", root)
    counts = []
    for one, work in made:
        stored: dict[str, torch.Tensor] = {}
        assert run(library, one, work, take=stored).status == "OK"
        (result,) = stored.values()
        assert result.data_ptr() % 32 == 0
        place, unit, row, flat = torch.arange(result.numel()), 32 // result.element_size(), result.shape[-1], result.reshape(-1)
        inside = (place[1:] % unit != 0) & (place[1:] // row == place[:-1] // row)
        counts.append(int(((flat[1:] != flat[:-1]) & inside).sum()))
    return counts


@pytest.mark.parametrize("rule", ["strips", "disjoint", "residues", *(
    pytest.param(rule, marks=pytest.mark.long) for rule in ("strips of gradients", "half strips"))])
def test_no_sector_is_stored_by_two(rule: str, tmp_path: Path) -> None:
    counts = shared_sectors(rule, tmp_path)
    for count, (one, work) in zip(counts, candidates(rule), strict=True):
        if rule.startswith("strips") and work.input_size == (6, 150):
            continue  # a block of columns ends where it must
        assert count == 0, f"{one.direction} {label(work)} {work.dtype}"


@pytest.mark.parametrize(("rule", "file", "old", "new"), [  # something must stay unwritten
    ("strips", "families/implicit_gemm_mma/store.cuh", "alone = first <= 0 ||", "alone = first < 0 ||"),
    ("residues", RESIDUE_STORE, "end = last ? a.out_w : up(", "end = last ? a.out_w : -8 + up("),
    *(pytest.param(*slip, marks=pytest.mark.long) for slip in (
        ("strips", "families/implicit_gemm_mma/store.cuh", "max(w - end + 1, 0)", "max(w - end + 2, 0)"),
        ("disjoint", "forward/disjoint_mma.cu", "from = chunk == 0 ? 0 : sector(origin)", "from = sector(origin + 8)"))),
])
def test_a_broken_rule_is_caught(rule: str, file: str, old: str, new: str, tmp_path: Path) -> None:
    root = broken_copy(tmp_path, (file, old, new))
    library, made = build(rule, tmp_path / "build", root, 4)
    assert "UNWRITTEN" in {run(library, one, work).status for one, work in made}


@pytest.mark.parametrize(("rule", "file", "old", "new"), [
    ("disjoint", "forward/disjoint_mma.cu", "from = chunk == 0 ? 0 : sector(origin)", "from = chunk == 0 ? 0 : origin"),
    pytest.param("strips", "forward_and_grad_input/implicit_gemm_mma.cu", "unit == C::SECTOR ? 0 : C::OVERLAP;", "0;",
                 marks=pytest.mark.long),
])
def test_without_the_rule_sectors_are_shared(rule: str, file: str, old: str, new: str, tmp_path: Path) -> None:
    """So the count above finds them."""
    assert sum(count > 0 for count in shared_sectors(rule, tmp_path, (file, old, new))) >= 3
