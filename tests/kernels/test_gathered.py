"""gathered_mma: layers that no staged strip serves, in both precisions; and whatever the layer, each
direction has a fast variant that runs on sm_80."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import pytest

from workbench.core.candidate import EMULATED_SM, Candidate, derived_values, why_not
from workbench.core.layer import DIRECTIONS, ConvTranspose, Workload
from workbench.core.space import SearchSpace
from workbench.core.variants import TEMPLATES, discover, find

from .harness import ALONG, EXTREME, Library, build_emulated, label, run, work

pytestmark = pytest.mark.xdist_group("gathered")  # one worker builds the library, once

CU = "forward_and_grad_input/gathered_mma.cu"
BOTH, PRECISIONS = ("forward", "grad_input"), ("tf32", "tf32x3")
GENERAL = {"naive_gather", "shared_weight_tiling", "warp_per_output"}


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


@pytest.mark.parametrize(("file", "old", "new", "shown"), [
    ("contract/flat_grid.cuh", "1LL << 30", "7", None),                               # more blocks than a row of the grid holds
    ("plan.cuh", "return begin < stop ?", "return begin + 1 < stop ?", 0),
    ("steps.cuh", "h >= a.result_h || w >= a.result_w", "h >= a.result_h", 3),
    *(pytest.param(*slip, marks=pytest.mark.long) for slip in (
        ("plan.cuh", "* INVERSE % TAP_STEP", "% TAP_STEP", 7),
        ("steps.cuh", "P::CHUNK) - step + 1;", "P::CHUNK) - step;", 0),
        (CU, "cp_async_wait<P::STAGES - 2>", "cp_async_wait<P::STAGES - 1>", 0))),
])
def test_a_changed_copy(file: str, old: str, new: str, shown: int | None, tmp_path: Path) -> None:
    """The layers above notice what breaks it; `shown` is the number of one that does, or nothing is broken."""
    few = [(one, given) for one, given in candidates(changed_copy(tmp_path, file, old, new))
           if one.precision == "tf32" and one.direction == "forward"
           and (given in EXTREME[::2] if shown is None else given is EXTREME[shown])]
    library = build_emulated([one for one, _ in few], tmp_path / "build")
    assert (shown is None) == ({run(library, one, given).status for one, given in few} == {"OK"})


@pytest.mark.parametrize(("file", "old", "new", "shown"), [
    *(pytest.param(CU, *one, None, marks=pytest.mark.long) for one in (
        ("BLOCKS = 264", "BLOCKS = 100000"), ("BLOCKS = 264", "BLOCKS = 1"),   # never split
        ("shares >= 16", "shares >= 2"))),
    (CU, "return aligned ? gathered_along<P, 4>", "return false ? gathered_along<P, 4>", None),
    (CU, "a.source_w % 4 == 0 && ", "", 8),
    *(pytest.param(*slip, marks=pytest.mark.long) for slip in (
        ("steps.cuh", "begin = row * ROW_PAIRS", "begin = (row + 1) * ROW_PAIRS", 0),
        ("steps.cuh", "* (share + 1) / shares - from", "/ shares", 3))),
])
def test_a_changed_copy_along_w(file: str, old: str, new: str, shown: int | None, tmp_path: Path) -> None:
    few = [(one, given) for one, given in candidates(changed_copy(tmp_path, file, old, new))
           if one.precision == "tf32" and given in (ALONG[::2] if shown is None else [ALONG[shown]])]
    library = build_emulated([one for one, _ in few], tmp_path / "build")
    assert (shown is None) == ({run(library, one, given).status for one, given in few} == {"OK"})


def test_where_a_step_runs_along_w() -> None:
    """Neither kernels that are short along W nor taps that lie apart there."""
    draws = {work((5,), 1, 4, 4, 3, stride=5, dilation=2): False, work((5,), 1, 4, 4, 3, stride=2): False,
             work((5,), 1, 4, 4, 8, stride=4): True, work((5, 5), 1, 4, 4, (8, 3), stride=8): False}
    for given, expected in {**draws, **dict.fromkeys(ALONG, True)}.items():
        one = Candidate(find("gathered_mma", "grad_input"), given.layer, "float32", {}, precision="tf32")
        assert derived_values(one, sm=90)["along"] == expected, label(given)


def every_kind_of_layer() -> list[ConvTranspose]:
    shapes = [(1, 1, 1), (3, 1, 1), (4, 2, 1), (4, 4, 1), (9, 3, 2), (32, 32, 1), (100, 100, 1), (64, 1, 200), (3, 64, 1),
              (3, 50, 7), (7, 32, 1), (255, 1, 1), (1, 7, 1), (257, 1, 1), (257, 300, 1), (1025, 2, 3)]
    channels = [(1, 1, 1), (3, 3, 1), (1, 64, 1), (64, 3, 1), (32, 32, 1), (2048, 1024, 1), (64, 64, 64), (64, 128, 64),
                (64, 64, 16), (24, 40, 1), (96, 96, 3)]
    return [ConvTranspose(dims, cin, cout, kernel, stride, 0, 0, groups, False, dilation)
            for dims, (kernel, stride, dilation), (cin, cout, groups) in product((1, 2, 3), shapes, channels)
            if kernel ** dims <= 70_000]


LONG = {("grad_weight", 257, 300), ("grad_weight", 100, 100)}


def test_every_layer_has_a_fast_variant() -> None:
    """In every direction, on sm_80 already, without TF32, and so with it: at its default config, but for long kernels with long
    strides, whose taps fit in the shared memory of other configs of split_mma and register_blocked alone."""
    fast = {d: [v for v in discover(TEMPLATES) if v.direction == d and v.name not in GENERAL] for d in DIRECTIONS}
    left_out, allowed = [], ("tf32x3", "ieee")
    for layer, direction in product(every_kind_of_layer(), DIRECTIONS):
        spaces = [SearchSpace(v, layer, "float32", 80, p) for v in fast[direction] for p in allowed if p in v.precision]
        if not any(space.why_not(space.variant.default_config) is None for space in spaces):
            assert (direction, layer.kernel_size[-1], layer.stride[-1]) in LONG, layer
            left_out += [] if any(space.sample(1, seed=1) for space in spaces) else [f"{direction} {layer}"]
    assert not left_out, "\n".join(left_out)


def test_gathered_mma_leaves_no_layer_out() -> None:
    """Nor a GPU with 99 KB of shared memory a block."""
    for layer, direction, precision in product(every_kind_of_layer(), BOTH, PRECISIONS):
        one = Candidate(find("gathered_mma", direction), layer, "float32", {}, precision=precision)
        assert why_not(one, sm=86) is None, f"{direction} {precision} {layer}"
