"""What the awkward layers do not reach in persistent_wgmma and the variants that share its items: items split along K,
rings that are filled again, residues side by side in one product, phases packed into units, rows that begin anywhere, and
channels_last."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import pytest

from workbench.core.candidate import EMULATED_SM, Candidate, why_not
from workbench.core.layer import Workload
from workbench.core.variants import TEMPLATES, find

from .harness import Library, build_emulated, label, run, work

pytestmark = pytest.mark.xdist_group("persistent_wgmma")  # one worker builds each library, once

LONG = {"forward": work((10,), 1, 256, 24, 16, stride=8, padding=4),     # few items, much to sum: parts
        "grad_input": work((10,), 1, 24, 256, 16, stride=8, padding=4)}
LAYERS = [
    *LONG.values(),
    work((9, 33), 1, 40, 24, 4, stride=2, padding=1),                   # tiles of many rows; two shifts a residue
    work((2, 5, 6), 3, 40, 17, 2, stride=2),                            # all residues are columns of one product
    work((2, 5, 6), 2, 12, 9, 3, stride=2, padding=1, output_padding=1),  # residues along D and H with 1, 2 or 4 segments
    work((70,), 2, 24, 136, 8, stride=4, padding=2),                    # units of 2 channels in 2 phases
    work((70,), 2, 24, 20, 8, stride=4, padding=2, output_padding=1),   # odd rows: no wide loads or stores
    work((130,), 2, 20, 40, 10, stride=5),                              # five planes; stores through shared memory
    work((5, 9), 2, 20, 9, 3, stride=3),                                # the same, residues along H side by side
    work((7, 20), 1, 24, 70, (4, 3), stride=4, groups=2),               # two groups, tiles of channels; a residue without taps
    work((6, 40), 1, 17, 264, 3, padding=1),                            # stride 1
    work((30,), 2, 33, 17, 12, stride=8, padding=4),                    # rows of 236: not all allow stores of 8 results
]
STORED = (
    (work((3, 16), 2, 20, 72, 2, stride=2), {}),
    (work((3, 2, 8), 2, 40, 9, 2, stride=2), {"ROWS": 128}),
    (work((5, 14), 1, 24, 136, 2, stride=2), {"ROWS": 64}),
    (work((2, 64), 2, 20, 24, 2, stride=2), {}),
    (work((3, 32), 1, 20, 40, 2, stride=2), {"UNITS": 2}),
    (work((5, 12), 1, 17, 24, 2, stride=2), {"ROWS": 64}),
    (work((7, 6), 2, 17, 24, (3, 4), stride=(2, 4), padding=1, output_padding=(1, 2)), {}),
    (work((33,), 3, 16, 40, 4, stride=2, padding=1), {}),
    (work((3, 16), 1, 8, 24, (2, 3), stride=(2, 1), padding=(0, 1)), {}),
)
# Three, seven or nine rows side by side: some threads have no vector to store. And layers without pieces: they would be too
# large, or DIRECT is 1.
ODD_ROWS = (
    (work((4, 7), 1, 20, 72, (3, 2), stride=(3, 2)), {}),
    (work((3, 6), 2, 12, 40, (7, 2), stride=(7, 2)), {}),
    (work((2, 3, 10), 1, 8, 24, (3, 3, 1), stride=(3, 3, 1)), {}),
    (work((3, 4), 1, 32, 16, 4, stride=4), {}),
    (work((5, 14), 1, 24, 136, 2, stride=2), {"DIRECT": 1}),
)
LAST = {"CHANNELS_LAST": 1, "COLUMNS": 64}
CONFIGS = ({}, {"ROWS": 128, "COLUMNS": 32, "UNITS": 4}, LAST)
NAMES = ("persistent_wgmma", "persistent_packed", "channels_last_wgmma", "register_wgmma")
DTYPES = ("float32", "bfloat16")


def candidates(name: str, direction: str, config: dict, dtype: str, root: Path = TEMPLATES) -> list[tuple[Candidate, Workload]]:
    variant = find(name, direction, root=root)
    layers = [LONG[direction], *LAYERS[2 + (dtype == "float32")::2]] if config == LAST else [
        *LAYERS[2:-1:2], LAYERS[-1]] if dtype != "float32" else LAYERS[direction == "forward"::2] if config else [
        *LONG.values(), *LAYERS[2 + (direction == "grad_input")::2]]  # one engine computes both directions
    works = [Workload(one.layer, one.batch, one.input_size, dtype) for one in layers]
    made = [(Candidate(variant, one.layer, dtype, config, form="constant"), one) for one in works]
    return [(one, its) for one, its in made if why_not(one, sm=EMULATED_SM) is None]


def tried(name: str, config: dict, dtype: str) -> bool:
    if name == "channels_last_wgmma":
        return dtype != "float32" and config != CONFIGS[1]
    if config == LAST:
        return name == "persistent_packed"
    return not config or (name, dtype) == ("persistent_wgmma", "float32")


def later(rule: tuple[str, str, dict, str]) -> bool:
    """Whether only `make test-long` runs the rule. register_wgmma has one precision in each direction in `make test`."""
    return rule[2] == CONFIGS[1] or (rule[0], rule[1] == "forward", rule[3]) in (
        ("register_wgmma", True, "float32"), ("register_wgmma", False, "bfloat16"))


RULES = [(n, d, c, t) for n in NAMES for d in ("forward", "grad_input") for c in CONFIGS for t in DTYPES if tried(n, c, t)]


def shared(rule: tuple[str, str, dict, str], rest: bool) -> list[tuple[Candidate, Workload]]:
    """Every other layer of a rule; or the rest. Each layer is one more instance to compile. The layer whose items are split is
    not in the rest, but for persistent_packed's default config: there the other layers come first."""
    made, longest = candidates(*rule), LONG[rule[1]].layer
    first = next((number for number, (_, its) in enumerate(made) if its.layer == longest), RULES.index(rule))
    return made[(first + rest + (rule[0] == "persistent_packed" and not rule[2])) % 2::2]


@pytest.fixture(scope="module", params=[
    pytest.param((rule, rest), id=f"{rule}{'-rest' * rest}", marks=[pytest.mark.long] * (rest or later(rule)))
    for rule in RULES for rest in (False, True)])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Library, list]:
    made = shared(*request.param)
    assert len(made) > 2
    return build_emulated([one for one, _ in made], tmp_path_factory.mktemp("persistent")), made


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_layer_is_among_them(dtype: str) -> None:
    """Of what `make test` builds, in one direction or the other."""
    mine = [rule for rule in RULES if rule[3] == dtype and not later(rule)]
    there = {its.layer for rule in mine for _, its in shared(rule, rest=False)}
    assert there == {its.layer for rule in mine for _, its in candidates(*rule)}
    assert len(there) == (len(LAYERS) if dtype == "float32" else 8)


def test_every_element_is_right(built: tuple[Library, list]) -> None:
    """Tensors begin 0, 4 or 8 bytes behind a sector's first, with or without channels side by side."""
    library, made = built
    for number, (one, its) in enumerate(made):
        outcome = run(library, one, its, order=number, shift=number % 3 * 4)
        assert outcome.status == "OK", f"{label(its)}: {outcome.status} {outcome.text}"


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.long), "bfloat16"])
@pytest.mark.parametrize(("direction", "layers"), [
    ("forward", STORED), ("forward", ODD_ROWS), ("grad_input", STORED)],
    ids=["forward", "forward-odd", "grad_input"])
def test_register_wgmma_stores_rows_of_any_length(direction: str, layers: tuple, dtype: str, tmp_path: Path) -> None:
    """Boxes of 128, 64 and 32 bytes; rows aligned to 16, 8 or 4 bytes, and others; tiles that are not full; all residues side
    by side; pieces of 8 and more channels; no pieces."""
    variant, made = find("register_wgmma", direction, root=TEMPLATES), []
    for one, config in layers:
        its = Workload(one.layer, one.batch, one.input_size, dtype)
        made.append((Candidate(variant, its.layer, dtype, config, form="constant"), its))
    for begin in range(0, len(made), 3):  # g++ takes more than twice the time for twice the layers
        some = made[begin:begin + 3]
        library = build_emulated([one for one, _ in some], tmp_path / str(begin))
        for (one, its), order in product(some, range(2)):
            outcome = run(library, one, its, order=order, shift=order * 8)
            assert outcome.status == "OK", f"{label(its)}: {outcome.status} {outcome.text}"


@pytest.mark.parametrize(("name", "direction", "old", "new"), [
    ("persistent_wgmma", "forward", "item.part == 0, sum", "true, sum"),     # the bias is added once
    ("register_wgmma", "grad_input", "fragment_wait<1>();", ""),             # products still read the fragment
    *(pytest.param(*slip, marks=pytest.mark.long) for slip in (
        ("persistent_wgmma", "forward", "item.number - a.unsplit, item.part,", "item.number - a.unsplit, 0,"),
        ("persistent_wgmma", "grad_input", "first = a.splits.quotient(stages * part)", "first = 0"),
        ("register_wgmma", "forward", "box_byte(WIDTH, channel, here % PER_BOX * P::OF_POSITION)",  # results out of order
         "here % PER_BOX * P::OF_POSITION"),
        ("register_wgmma", "forward", "constexpr (P::crosses(OFFSET))", "constexpr (false)"))),  # a neighbouring row is met
])
def test_a_broken_part_is_noticed(name: str, direction: str, old: str, new: str, tmp_path: Path) -> None:
    root = tmp_path / "templates"
    shutil.copytree(TEMPLATES, root)
    files = [f for f in (*(root / "families" / name).glob("*.cuh"), root / "forward_and_grad_input" / f"{name}.cu")
             if old in f.read_text(encoding="utf-8")]
    assert len(files) == 1, f"{old!r} is not in one file: name another line to change"
    files[0].write_text(files[0].read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    made = [(one, its) for one, its in candidates(name, direction, {}, "float32", root)
            if its.layer in (LONG[direction].layer, LAYERS[2].layer)]
    library = build_emulated([one for one, _ in made], tmp_path / "build")
    assert {run(library, one, its).status for one, its in made} - {"OK"}
