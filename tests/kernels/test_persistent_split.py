"""grad_weight of persistent_wgmma: every way through its copying warps, and grad_bias in the same read."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.candidate import Candidate, why_not
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.variants import TEMPLATES, Variant, discover, find

from .harness import Outcome, build_emulated, candidate, run

KEY = "grad_weight/persistent_wgmma"
# Kernel = 2 x stride in whole and in short rows; residues 8 and 5; a wide and a narrow product; kernel = stride with
# several tap rows in a tile; rows that no tap meets; stride and dilation with and without a common factor; odd channels;
# so many stages that tables come in batches.
WORK = [Workload(ConvTranspose(1, 70, 24, 4, stride=2, padding=1), 2, 200),
        Workload(ConvTranspose(2, 40, 20, 4, stride=2, padding=1), 3, (3, 6)),
        Workload(ConvTranspose(1, 64, 24, 16, stride=8, padding=4), 2, 24),
        Workload(ConvTranspose(1, 20, 24, 10, stride=5), 2, 33),
        Workload(ConvTranspose(2, 33, 40, 3, stride=2, padding=1, output_padding=1), 1, (5, 64)),
        Workload(ConvTranspose(3, 64, 32, 2, stride=2), 2, (2, 3, 12)),
        Workload(ConvTranspose(2, 130, 17, 2, stride=2), 2, (4, 14)),
        Workload(ConvTranspose(2, 9, 8, (2, 3), stride=(3, 4), padding=1, output_padding=1), 2, (4, 9)),
        Workload(ConvTranspose(1, 12, 10, 5, stride=3, dilation=2, padding=2), 2, 40),
        Workload(ConvTranspose(2, 12, 10, 3, stride=2, dilation=2, padding=(1, 6)), 2, (5, 16)),
        Workload(ConvTranspose(1, 24, 9, 7, padding=3), 3, 50),
        Workload(ConvTranspose(2, 16, 8, 2, stride=2), 6, (16, 16))]
CONFIGS = [{"CONSUMERS": 3, "COPY_WARPS": 4, "COLUMNS": 128}, {"STRIP": 4, "CHUNKS": 4}, {"STRIP": 8, "STAGES": 2},
           {"COPY_WARPS": 4, "AHEAD": 1}, {"COLUMNS": 192, "GRID": 264, "AHEAD": 3}]


def _members(variant: Variant, every: bool) -> list[tuple[Candidate, Workload]]:
    """Every layer as it comes, and every other one (`every`: each, with two) with one of the configs, in turn in 16 bits."""
    found = []
    for number, work in enumerate(WORK):
        more = [CONFIGS[number % 5], CONFIGS[(number + 2) % 5]] if every else [CONFIGS[number // 2 % 5]] * (number % 2)
        for turn, config in enumerate(({}, *more)):
            dtype = ("float32", "bfloat16", "float16")[(number + turn) % 3] if turn else "float32"
            other = replace(work, dtype=dtype)
            found.append((candidate(variant, other, form="constant", **config), other))
    return [(one, work) for one, work in dict.fromkeys(found) if why_not(one, sm=90) is None]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["some", "every"])
def test_every_way_is_right(every: bool, tmp_path: Path) -> None:
    members = _members(find("persistent_wgmma", "grad_weight", root=TEMPLATES), every)
    assert len(members) >= (25 if every else 18) and {work.layer for _, work in members} == {work.layer for work in WORK}
    for dtype in ("float32", "bfloat16", "float16"):
        own = [(one, work) for one, work in members if work.dtype == dtype]
        library = build_emulated(list(dict.fromkeys(one for one, _ in own)), tmp_path / dtype)
        for number, (one, work) in enumerate(own):
            outcome = run(library, one, work, order=number + 1, values="integers")
            assert outcome.status == "OK", f"{work.layer} {one.config} {dtype}: {outcome.status} {outcome.text}"


PACKED_CONFIGS = [{"CONSUMERS": 3, "POSITIONS": 32, "COLUMNS": 128}, {"POSITIONS": 128, "GRID": 264}, {"CHANNELS_LAST": 1}]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["some", "every"])
def test_packed_tensors_give_the_same(every: bool, tmp_path: Path) -> None:
    """persistent_packed: operands that hold channels contiguously, every other layer in each of the 16-bit types; some layers
    with activations that are channels_last. Each layer with one config (`every`: with two)."""
    variant, members = find("persistent_packed", "grad_weight", root=TEMPLATES), []
    for number, work in enumerate(WORK):
        other = replace(work, dtype=("bfloat16", "float16")[number % 2])
        configs = (({}, PACKED_CONFIGS[1]), (PACKED_CONFIGS[2], PACKED_CONFIGS[0]))[number // 2 % 2]
        found = [(candidate(variant, other, form="constant", **config), other) for config in configs[::-1 if number > 3 else 1]]
        members += found if every else found[:1]
    refused = {str(why_not(one, sm=90)) for one, _ in members} - {"None"}
    members = [(one, work) for one, work in members if why_not(one, sm=90) is None]
    assert {work.layer for _, work in members} == {work.layer for work in WORK}, refused
    for dtype in ("bfloat16", "float16"):
        own = [(one, work) for one, work in members if work.dtype == dtype]
        library = build_emulated([one for one, _ in own], tmp_path / dtype)
        for number, (one, work) in enumerate(own):
            outcome = run(library, one, work, order=number + 1, values="integers")
            assert outcome.status == "OK", f"{work.layer} {one.config} {dtype}: {outcome.status} {outcome.text}"


# How a run of stride_w neighbours begins: at an odd element, at an even one, in whole loads of 4 and 8, before the row; runs of
# 3 and of 12; residues along D and H; a grad_output that reaches beyond all taps, so that packing does not meet it.
PACK_WORK = [Workload(ConvTranspose(2, 24, 20, (4, 6), stride=2, padding=(0, 3)), 3, (5, 70)),
             Workload(ConvTranspose(2, 9, 12, 3, stride=2, padding=1, output_padding=1), 2, (4, 40)),
             Workload(ConvTranspose(2, 8, 17, 2, stride=2), 2, (3, 21)),
             Workload(ConvTranspose(1, 16, 10, 16, stride=8, padding=4), 2, 40),
             Workload(ConvTranspose(1, 16, 9, 12, stride=12, padding=4), 2, 30),
             Workload(ConvTranspose(1, 8, 24, 5, stride=3, padding=1), 4, 90),
             Workload(ConvTranspose(3, 8, 8, 3, stride=(2, 3, 2), padding=1, output_padding=(1, 2, 1)), 2, (3, 4, 6)),
             Workload(ConvTranspose(1, 8, 8, 1, stride=4, output_padding=3), 2, 24)]


def test_grad_output_is_packed_and_summed(tmp_path: Path) -> None:
    """persistent_packed: with tensors that are aligned to 64 bytes, and to 2."""
    variant = find("persistent_packed", "grad_weight", root=TEMPLATES)
    works = [replace(work, dtype="bfloat16") for work in PACK_WORK]
    members = [(candidate(variant, work, form="constant"), work) for work in works]
    assert {str(why_not(one, sm=90)) for one, _ in members} == {"None"}
    library = build_emulated([one for one, _ in members], tmp_path)
    for one, work in members:
        for shift in (0, 2):
            outcome = run(library, one, work, values="integers", shift=shift)
            assert outcome.status == "OK", f"{work.layer} {shift}: {outcome.status} {outcome.text}"


# Rows that are no whole 16 bytes; residues that share a panel; a panel that only some taps meet; two warpgroups on one block of
# channels; several tiles along both; four shifts; and so many positions that blocks share them.
ROW_WORK = [*WORK[1:2], *WORK[4:10], WORK[11],
            Workload(ConvTranspose(2, 200, 96, (4, 4), stride=2, padding=1), 2, (3, 6)),
            Workload(ConvTranspose(2, 64, 40, (1, 4), padding=(0, 3)), 2, (7, 20)),
            Workload(ConvTranspose(3, 136, 16, (1, 2, 2), stride=(1, 2, 2), padding=(0, 1, 0)), 2, (3, 20, 24))]
ROW_CONFIGS = [{}, {"POSITIONS": 32, "GRID": 264, "TEAMS": 4}, {"COLUMNS": 128, "POSITIONS": 128, "TEAMS": 1}]


@pytest.mark.parametrize(("dtype", "every"), [("bfloat16", False), *(
    pytest.param(dtype, True, marks=pytest.mark.long) for dtype in ("bfloat16", "float16"))])
def test_channels_last_rows_give_the_same(dtype: str, every: bool, tmp_path: Path) -> None:
    """channels_last_wgmma: every layer with one of the configs (`every`: two)."""
    variant, members = find("channels_last_wgmma", "grad_weight", root=TEMPLATES), []
    for number, work in enumerate(ROW_WORK):
        other = replace(work, dtype=dtype)
        for turn in range(2):
            config = ROW_CONFIGS[(number + turn + (dtype == "float16")) % 3]
            members.append((candidate(variant, other, form="constant", **config), other))
    served = [(one, work) for one, work in members if why_not(one, sm=90) is None]
    refused = {str(why_not(one, sm=90)) for one, _ in members} - {"None"}
    assert {work.layer for _, work in served} == {work.layer for work in ROW_WORK}, refused
    if not every:
        served = list({work.layer: (one, work) for one, work in served}.values())
    library = build_emulated([one for one, _ in served], tmp_path)
    for number, (one, work) in enumerate(served):
        outcome = run(library, one, work, order=number + 1, values="integers")
        assert outcome.status == "OK", f"{work.layer} {one.config} {dtype}: {outcome.status} {outcome.text}"


# Both halves of words; overlapping kernels, whose first and last words lie beyond a row; 16 and 32 channels of gy, so that
# warps have different taps; chunks of taps, channels of gy, tap rows or channels of x for each warpgroup; rows that are aligned
# to 32, 16, 8, 4 and 2 bytes; grad_bias beside the products and after them.
RAW_WORK = [Workload(ConvTranspose(2, 70, 24, 2, stride=2), 2, (6, 16)),
            Workload(ConvTranspose(2, 40, 130, 4, stride=2, padding=1), 1, (3, 24)),
            Workload(ConvTranspose(3, 33, 40, 3, stride=2, padding=1, output_padding=1), 1, (2, 3, 10)),
            Workload(ConvTranspose(1, 70, 24, 4, stride=2, padding=1), 2, 100),
            Workload(ConvTranspose(2, 130, 12, 3, stride=(1, 2), padding=(1, 0)), 1, (4, 15)),
            Workload(ConvTranspose(1, 20, 72, 5, stride=2, padding=1), 2, 41),
            Workload(ConvTranspose(2, 40, 72, 2, stride=2), 3, (3, 14)),
            Workload(ConvTranspose(1, 300, 100, 1, stride=2), 2, 40),
            Workload(ConvTranspose(2, 100, 136, (3, 6), stride=2, padding=2, bias=False), 1, (4, 24)),
            Workload(ConvTranspose(1, 20, 12, 6, stride=2, padding=2, output_padding=1), 3, 21),
            Workload(ConvTranspose(2, 16, 8, 2, stride=2), 6, (16, 16))]
# Input channels in float32: others would make a tile whose copies spill registers.
IN_FLOAT32 = {70: 60, 130: 250, 300: 380, 100: 124, 40: 44, 20: 30, 33: 45}
RAW_CONFIGS = [{}, {"COLUMNS": 64, "GRID": 264, "POSITIONS": 64}, {"COLUMNS": 192, "POSITIONS": 128}]


def in_float32(work: Workload) -> Workload:
    channels = work.layer.in_channels
    return replace(work, dtype="float32", layer=replace(work.layer, in_channels=IN_FLOAT32.get(channels, channels)))


@pytest.mark.parametrize(("dtype", "every"), [("bfloat16", False), ("float32", False), *(
    pytest.param(dtype, True, marks=pytest.mark.long) for dtype in ("bfloat16", "float16", "float32"))])
def test_rows_as_they_lie_give_the_same(dtype: str, every: bool, tmp_path: Path) -> None:
    """register_wgmma: half of the layers (`every`: all), each with one of the configs."""
    variant, members = find("register_wgmma", "grad_weight", root=TEMPLATES), []
    first = {"bfloat16": 0, "float16": 1, "float32": 2}[dtype]
    for number, work in enumerate(RAW_WORK if every else RAW_WORK[5:] if dtype == "float32" else RAW_WORK[:6]):
        other, config = replace(work, dtype=dtype), RAW_CONFIGS[(number + first) % 3]
        if dtype == "float32":
            other = in_float32(work)
            config = {"GRID": 264, "POSITIONS": 32} if config else {}
        members.append((candidate(variant, other, form="constant", **config), other))
    refused = {str(why_not(one, sm=90)) for one, _ in members} - {"None"}
    assert not refused, refused
    library = build_emulated([one for one, _ in members], tmp_path)
    for number, (one, work) in enumerate(members):
        outcome = run(library, one, work, order=number + 1, values="integers")
        assert outcome.status == "OK", f"{work.layer} {one.config} {dtype}: {outcome.status} {outcome.text}"


def test_a_stage_has_whole_panels_of_x() -> None:
    """A row of x takes 128 or 256 bytes of a stage in every dtype."""
    variant, work = find("register_wgmma", "grad_weight", root=TEMPLATES), replace(
        RAW_WORK[6], layer=replace(RAW_WORK[6].layer, in_channels=64))
    for dtype, size in (("float32", 4), ("bfloat16", 2), ("float16", 2)):
        for positions in (32, 64, 128):
            one = candidate(variant, replace(work, dtype=dtype), form="constant", POSITIONS=positions)
            assert (why_not(one, sm=90) is None) == (size * positions in (128, 256)), (dtype, positions)
    for channels, served in ((64, True), (60, True), (250, True), (48, True), (72, False), (200, False)):
        one = candidate(variant, replace(work, layer=replace(work.layer, in_channels=channels)), form="constant")
        assert (why_not(one, sm=90) is None) == served, channels


KERNEL = "grad_weight/register_wgmma.cu"
PLAN, WORDS = "families/register_wgmma/split_plan.cuh", "families/register_wgmma/split_words.cuh"
RAW_SLIPS = {  # number of the work, dtype, file, what is taken out, what is put there, what is wrong then
    "words of another row": (1, "bfloat16", WORDS, "if (before) word[0] = 0;", "", "grad_weight"),
    "words of the next row": (1, "bfloat16", WORDS, "if (behind) word[Plan::WORDS - 1] = 0;", "", "grad_weight"),
    "elements of another row": (1, "float32", WORDS, "beyond ? 0u : ", "", "grad_weight"),
    "a warp without taps counts elements": (4, "float32", WORDS, "exists ? offset : 2", "offset", "grad_bias"),
    "a row counts for each tap row": (0, "bfloat16", KERNEL, "sums_bias ? Plan::counted(tap_row) : -1", "sums_bias ? 0 : -1",
                                      "grad_bias"),
    "products still read the fragment": (1, "bfloat16", KERNEL, "          swizzled_fragments_wait<1>();\n", "", ""),
    "sums of earlier stages are forgotten": (10, "bfloat16", KERNEL, "      if (!first) {", "      if (false) {",
                                             "grad_weight")}


@pytest.mark.parametrize("slip", [pytest.param(slip, marks=() if slip.endswith("of another row") else pytest.mark.long)
                                  for slip in RAW_SLIPS])
def test_a_slip_in_rows_as_they_lie_is_caught(slip: str, tmp_path: Path) -> None:
    number, dtype, name, old, new, told = RAW_SLIPS[slip]
    root = tmp_path / "templates"
    shutil.copytree(TEMPLATES, root)
    file, plan = root / name, root / PLAN
    text, planned = file.read_text(encoding="utf-8"), plan.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")
    for given, less in (("PROMOTE = 4096 / POSITIONS", "PROMOTE = 2"),  # sums of two stages, all in one share
                        ("MORE_SHARES * Tune::GRID / Plan::TILES", "1")):
        assert planned.count(given) == 1
        planned = planned.replace(given, less)
    plan.write_text(planned, encoding="utf-8")
    work = replace(RAW_WORK[number], dtype=dtype)
    if dtype == "float32":
        work = in_float32(work)
    one = candidate(next(v for v in discover(root) if v.key == "grad_weight/register_wgmma"), work, form="constant")
    outcome = run(build_emulated([one], tmp_path / "build"), one, work, order=3)
    assert outcome.status != "OK" and told in outcome.text, outcome


SLIPS = {  # number of the work, file, what is taken out, what is put there, what is wrong then
    "a row counts for each tap row": (1, "tables", "(kh < Layer::stride_h || from.h + 1 >= sizes.in_h)", "true",
                                      "grad_bias"),
    "rows of the last taps left out": (1, "tables", "(kh < Layer::stride_h || from.h + 1 >= sizes.in_h)",
                                       "kh < Layer::stride_h", "grad_bias"),
    "strips of another row taken as neighbours": (5, "tables", "inside && tensors.gy_width == 4 && one_row && to.first >= 0 &&",
                                                  "inside && to.first >= 0 ||", "grad_weight"),
    "a stage's elements beside the core left out": (0, "async", "        for (int turn = 0; turn < Plan::EDGE_TURNS; ++turn)\n"
                                                    "          store_edge", "        for (int turn = 0; turn < 0; ++turn)\n"
                                                    "          store_edge", "grad_weight"),
    "a strip's elements beside the core left out": (0, "async", "linked >> own.h >> 1", "0u", "grad_weight"),
    "a row's first strip begins with the end of another row": (0, "async", "column != 0 && column != work.strips.in_w", "true",
                                                               "grad_weight"),
    "places of another batch of tables": (11, "tables", "    at.n += step.n + over;\n", "", "grad_weight"),
    "sums that were taken out are forgotten": (5, "products", "        add_to_memory(place, own);", "        *place = own;",
                                               "grad_weight"),
}


@pytest.mark.parametrize("number", (5, 11))
def test_sums_are_taken_out_in_series(number: int, tmp_path: Path) -> None:
    outcome = _outcome(_series(tmp_path, {}), number, tmp_path)
    assert outcome.status == "OK", outcome


SOON = {"a row counts for each tap row", "a strip's elements beside the core left out",
        "sums that were taken out are forgotten"}  # one of each file


@pytest.mark.parametrize("slip", [pytest.param(slip, marks=() if slip in SOON else pytest.mark.long) for slip in SLIPS])
def test_a_slip_is_caught(slip: str, tmp_path: Path) -> None:
    number, name, old, new, told = SLIPS[slip]
    outcome = _outcome(_series(tmp_path, {name: (old, new)}), number, tmp_path)
    assert outcome.status != "OK", outcome
    assert told in outcome.text, outcome


def _series(folder: Path, changes: dict[str, tuple[str, str]]) -> Variant:
    """The variant with a series of one stage, and one share where there are many tiles; and with these changes."""
    root = folder / "templates"
    shutil.copytree(TEMPLATES, root)
    for name, (old, new) in {"plan": ("ceil_div(4096, STRIPS * STRIP)", "1"), **changes}.items():
        file = root / f"families/persistent_wgmma/split_{name}.cuh"
        text = file.read_text(encoding="utf-8")
        assert text.count(old) == 1, old
        text = text.replace(old, new)
        if name == "plan":
            assert text.count("    shares = 1;\n") == 1 and text.count("MORE_SHARES * Tune::GRID / Plan::TILES") == 1
            text = text.replace("    shares = 1;\n", "    shares = share_count(2, stages);\n")
            text = text.replace("MORE_SHARES * Tune::GRID / Plan::TILES", "1")
        file.write_text(text, encoding="utf-8")
    return next(v for v in discover(root) if v.key == KEY)


def _outcome(variant: Variant, number: int, folder: Path) -> Outcome:
    one = candidate(variant, WORK[number], form="constant")
    return run(build_emulated([one], folder / "build"), one, WORK[number], order=3)
