"""gathered_mma: layers that no staged strip serves, in both precisions; its header says what its code does; and whatever
the layer, each direction has a fast variant whose default config runs on sm_80."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest

from workbench.core.candidate import EMULATED_SM, Candidate, derived_values, layer_fields, why_not
from workbench.core.layer import DIRECTIONS, ConvTranspose, Workload
from workbench.core.space import SearchSpace
from workbench.core.variants import TEMPLATES, discover, find
from workbench.measure import emulator

from .cases import CASES, label
from .harness import Library, build_emulated, run

BOTH, PRECISIONS = ("forward", "grad_input"), ("tf32", "tf32x3")
GENERAL = {"naive_gather", "shared_weight_tiling", "warp_per_output"}


def work(size: tuple[int, ...], batch: int, cin: int, cout: int, kernel: int | tuple[int, ...], **given: object) -> Workload:
    return Workload(ConvTranspose(len(size), cin, cout, kernel, **given), batch, size)


EXTREME = [
    work((3,), 3, 3, 5, 100, stride=100),
    work((40,), 3, 2, 2, 64, dilation=200, bias=False),                      # most taps fall off
    work((300,), 2, 2, 2, 64, dilation=20, padding=3),                       # several tiles, each with taps of its own
    work((5,), 3, 4, 4, 3, stride=64, groups=4),                             # residues without taps
    work((130,), 2, 3, 3, 255, padding=127, groups=3),
    work((2, 2), 2, 5, 7, 32, stride=32),
    work((2, 3, 3), 1, 4, 8, 3, dilation=200, padding=197, groups=2),
    work((2, 5), 3, 17, 9, (7, 3), stride=(32, 50), padding=(5, 40), output_padding=(3, 1), dilation=(1, 7)),
    work((150,), 2, 70, 35, 3, padding=1),                                   # parts of a tap; rows that go on in the next image
    work((2, 3, 10), 1, 33, 130, 2, stride=2, bias=False),                   # two channel tiles, or sums in series
    work((2,), 1, 1, 1, 1, stride=1000, output_padding=999),
    work((3, 5), 2, 3, 4, 2, stride=(6, 4), padding=(5, 11), output_padding=(0, 1), dilation=(4, 12)),
]

# Long strides along W, where grad_input's steps run along it.
ALONG = [
    work((7,), 3, 5, 3, 100, stride=100),
    work((3, 4), 2, 5, 7, 8, stride=8),
    work((2, 3), 2, 4, 4, 16, stride=16),
    work((2, 3), 2, 9, 5, (16, 20), stride=(16, 20)),                        # few positions: shares of the reduction
    work((2, 2), 1, 3, 33, 32, stride=32),                                   # many shares
    work((150,), 2, 4, 6, 9, stride=4, padding=2),                           # several tiles, runs of odd length
    work((40,), 2, 6, 10, 12, stride=5, padding=3, output_padding=2, groups=2),
    work((30,), 3, 33, 17, 12, stride=8, padding=4, groups=1),               # 16 bytes at a time, cropped
    work((30,), 3, 3, 5, 12, stride=8, padding=4, output_padding=3),         # rows that are no multiple of 16 bytes
    work((6,), 2, 12, 20, 40, stride=36, groups=4, bias=False),
    work((2, 3, 9), 2, 3, 5, (2, 3, 11), stride=(1, 1, 7), padding=(0, 1, 2), dilation=(1, 2, 1)),
    work((5, 6), 1, 70, 3, (3, 8), stride=(2, 4), padding=(2, 5), dilation=(3, 1)),
    work((6, 3), 2, 2, 3, (5, 8), stride=(1, 8), padding=(2, 0), dilation=(40, 1)),  # rows of taps that a tile leaves out
    work((3,), 1, 1, 1, 9, stride=4, padding=4),                             # one step, partly zeros
    work((9,), 1, 130, 2, 8, stride=6, bias=False),
]


def candidates(root: Path = TEMPLATES) -> list[tuple[Candidate, Workload]]:
    made = [(Candidate(find("gathered_mma", direction, root=root), one.layer, "float32", {}, precision=precision), one)
            for one in EXTREME for direction in BOTH for precision in PRECISIONS]
    made += [(Candidate(find("gathered_mma", "grad_input", root=root), one.layer, "float32", {}, precision=precision), one)
             for one in ALONG for precision in PRECISIONS]
    assert all(why_not(one, sm=sm) is None for one, _ in made for sm in (80, 86, EMULATED_SM))
    return made


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return build_emulated([one for one, _ in candidates()], tmp_path_factory.mktemp("gathered"))


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_extreme_layers(direction: str, precision: str, library: Library) -> None:
    for number, (one, given) in enumerate(candidates()):
        if (one.direction, one.precision) == (direction, precision):
            values = "floats" if precision == "tf32x3" or number % 3 else "integers"
            outcome = run(library, one, given, values=values, order=number + 1)
            assert outcome.status == "OK", f"{values} {label(given)}: {outcome.status} {outcome.text}"


def changed_copy(folder: Path, file: str, old: str, new: str) -> Path:
    root = folder / "templates"
    shutil.copytree(TEMPLATES, root)
    path = next(root.glob(f"families/gathered_mma/{file}"), root / file)
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{file} no longer contains {old!r} once: name another line to change"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return root


@pytest.mark.parametrize(("file", "old", "new", "right"), [
    ("contract/flat_grid.cuh", "1LL << 30", "7", True),                               # more blocks than a row of the grid holds
    ("plan.cuh", "return begin < stop ?", "return begin + 1 < stop ?", False),
    ("plan.cuh", "* INVERSE % TAP_STEP", "% TAP_STEP", False),
    ("tile.cuh", "h >= a.result_h || w >= a.result_w", "h >= a.result_h", False),
    ("steps.cuh", "P::CHUNK) - step + 1;", "P::CHUNK) - step;", False),
    ("block.cuh", "cp_async_wait<P::STAGES - 2>", "cp_async_wait<P::STAGES - 1>", False),
])
def test_a_changed_copy(file: str, old: str, new: str, right: bool, tmp_path: Path) -> None:
    """The layers above notice what breaks it."""
    few = [(one, given) for one, given in candidates(changed_copy(tmp_path, file, old, new))
           if one.precision == "tf32" and one.direction == "forward" and given is not EXTREME[9]]
    library = build_emulated([one for one, _ in few], tmp_path / "build")
    assert right == ({run(library, one, given).status for one, given in few} == {"OK"})


@pytest.mark.parametrize(("file", "old", "new", "right"), [
    ("shares.cuh", "BLOCKS = 264", "BLOCKS = 100000", True),
    ("shares.cuh", "BLOCKS = 264", "BLOCKS = 1", True),             # never split
    ("shares.cuh", "shares >= 16", "shares >= 2", True),
    ("along.cuh", "const bool aligned = ", "const bool aligned = false && ", True),
    ("along.cuh", "a.source_w % 4 == 0 && ", "", False),
    ("along_steps.cuh", "begin = row * ROW_PAIRS", "begin = (row + 1) * ROW_PAIRS", False),
    ("along_steps.cuh", "* (share + 1) / shares - from", "/ shares", False),
])
def test_a_changed_copy_along_w(file: str, old: str, new: str, right: bool, tmp_path: Path) -> None:
    few = [(one, given) for one, given in candidates(changed_copy(tmp_path, file, old, new))
           if one.precision == "tf32" and given in ALONG]
    library = build_emulated([one for one, _ in few], tmp_path / "build")
    assert right == ({run(library, one, given).status for one, given in few} == {"OK"})


def test_where_a_step_runs_along_w() -> None:
    """Neither kernels that are short along W nor taps that lie apart there."""
    draws = {work((5,), 1, 4, 4, 3, stride=5, dilation=2): False, work((5,), 1, 4, 4, 3, stride=2): False,
             work((5,), 1, 4, 4, 8, stride=4): True, work((5, 5), 1, 4, 4, (8, 3), stride=8): False}
    for given, expected in {**draws, **dict.fromkeys(ALONG, True)}.items():
        one = Candidate(find("gathered_mma", "grad_input"), given.layer, "float32", {}, precision="tf32")
        assert derived_values(one, sm=90)["along"] == expected, label(given)


# Derived value of the header -> the constant of the code. The last one is a bound in the header.
SAME = {"tile_m": "Plan::TILE_M", "tile_n": "Plan::TILE_N", "stages": "Plan::STAGES", "sets": "1 + Plan::LONG",
        "smem_bytes": "Plan::SHARED_BYTES"}


def test_header_and_code_agree(tmp_path: Path) -> None:
    draw = random.Random(3)
    layers = list(dict.fromkeys([w.layer for w in (*EXTREME, *ALONG, *CASES)]))
    tried = []
    for layer, direction, precision in product(layers, BOTH, PRECISIONS):
        variant = find("gathered_mma", direction)
        for config in ({}, {t.name: draw.choice(t.values) for t in variant.tune}):
            one = Candidate(variant, layer, "float32", config, precision=precision)
            if why_not(one, sm=90) is None:
                tried.append(one)
    parts, calls = ['#include "families/gathered_mma/plan.cuh"'], []
    for number, one in enumerate(tried):
        layer = "".join(f"static constexpr int {k} = {v};" for k, v in layer_fields(one.layer).items())
        tune = "".join(f"static constexpr int {k} = {v};" for k, v in one.config.items())
        parts.append(f"struct Layer{number} {{ {layer} }}; struct Tune{number} {{ {tune}\n"
                     f"static constexpr Precision precision = Precision::{one.precision}; }};")
        forward = "true" if one.direction == "forward" else "false"
        calls.append(f"fill<GatheredPlan<{forward}, Layer{number}, Tune{number}>>(out + {number * len(SAME)});")
    stores = "".join(f"out[{i}] = {text};" for i, text in enumerate(SAME.values()))
    parts.append(f"template <class Plan> void fill(long long* out) {{ {stores} }}\n"
                 f'extern "C" void fill_all(long long* out) {{ {"".join(calls)} }}')
    source, library = tmp_path / "plans.cpp", tmp_path / "plans.so"
    source.write_text(emulator.translate("\n".join(parts)), encoding="utf-8")
    includes = [f"-I{path}" for path in (*emulator.INCLUDE_DIRS, TEMPLATES)]
    made = subprocess.run(["g++", *emulator.COMPILE_FLAGS, "-O0", *includes, str(source), *emulator.LINK_FLAGS, "-o",
                           str(library)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[:6000]
    out = (ctypes.c_longlong * (len(SAME) * len(tried)))()
    ctypes.CDLL(str(library)).fill_all(out)
    for number, one in enumerate(tried):
        header = [int(derived_values(one, sm=90)[name]) for name in SAME]
        code = list(out[number * len(SAME):(number + 1) * len(SAME)])
        *same, most = zip(header, code, strict=True)
        assert all(a == b for a, b in same) and most[0] >= most[1], f"{one.layer} {one.config} {header} {code}"


def every_kind_of_layer() -> list[ConvTranspose]:
    shapes = [(1, 1, 1), (3, 1, 1), (4, 2, 1), (4, 4, 1), (9, 3, 2), (32, 32, 1), (100, 100, 1), (64, 1, 200), (3, 64, 1),
              (3, 50, 7), (7, 32, 1), (255, 1, 1), (1, 7, 1), (257, 1, 1), (257, 300, 1), (1025, 2, 3)]
    channels = [(1, 1, 1), (3, 3, 1), (1, 64, 1), (64, 3, 1), (32, 32, 1), (2048, 1024, 1), (64, 64, 64), (64, 128, 64),
                (64, 64, 16), (24, 40, 1), (96, 96, 3)]
    return [ConvTranspose(dims, cin, cout, kernel, stride, 0, 0, groups, False, dilation)
            for dims, (kernel, stride, dilation), (cin, cout, groups) in product((1, 2, 3), shapes, channels)
            if kernel ** dims <= 70_000]


@pytest.mark.parametrize("precisions", [("tf32", "tf32x3", "ieee"), ("tf32x3", "ieee")], ids="+".join)
def test_every_layer_has_a_fast_variant(precisions: tuple[str, ...]) -> None:
    """In every direction, at its default config, on sm_80 already: with TF32 allowed and without."""
    fast = {d: [v for v in discover(TEMPLATES) if v.direction == d and v.name not in GENERAL] for d in DIRECTIONS}
    left_out = [f"{direction} {layer}" for layer in every_kind_of_layer() for direction in DIRECTIONS
                if not any(SearchSpace(v, layer, "float32", 80, p).why_not(v.default_config) is None
                           for v in fast[direction] for p in precisions if p in v.precision)]
    assert not left_out, "\n".join(left_out)


def test_gathered_mma_leaves_no_layer_out() -> None:
    """Nor a GPU with 99 KB of shared memory a block."""
    for layer, direction, precision in product(every_kind_of_layer(), BOTH, PRECISIONS):
        one = Candidate(find("gathered_mma", direction), layer, "float32", {}, precision=precision)
        assert why_not(one, sm=86) is None, f"{direction} {precision} {layer}"
