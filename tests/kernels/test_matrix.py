"""Every variant, in both forms of Layer, over every awkward layer: really compiled, run on the emulator, judged."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.awkward import CASES, FEW
from workbench.core.candidate import EMULATED_SM, Candidate, problem_fields, why_not
from workbench.core.layer import Workload
from workbench.core.presets import MODELS
from workbench.core.template import render, render_batch
from workbench.core.variants import TEMPLATES, Variant, discover
from workbench.measure.emulator import translate

from .harness import Library, build_emulated, candidate, compile_quickly, label, macs, run

pytestmark = pytest.mark.xdist_group("matrix")  # one worker builds the libraries, once
VARIANTS = discover(TEMPLATES)
DIRECTIONS = sorted({v.direction for v in VARIANTS})
FORMS = [(v, form) for v in VARIANTS for form in v.forms]
TWO = [FEW[4], FEW[6]]  # for what is tried as constants too: each is one more instance to compile
# Layers of which each is an instance to compile. Of more, `make test` takes a part, `make test-long` the rest. A variant with a
# run-time form runs on every layer in that.
MANY, MANY_AGAIN = 5, 2


class Built:
    """The libraries by direction and form. One that does not compile fails the tests that ask for it, no others."""

    def __init__(self, folder: Path) -> None:
        jobs = {(d, form): [one for v in VARIANTS if v.direction == d and form in v.forms for one in instances(v, form)]
                for form in ("constant", "runtime") for d in DIRECTIONS}
        started = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            self._made = {name: pool.submit(build_emulated, members, folder / "_".join(name))
                          for name, members in jobs.items() if members}
        seconds = time.monotonic() - started
        print(f"\n{sum(map(len, jobs.values()))} candidates in {len(jobs)} libraries: {seconds:.1f} s")

    def __getitem__(self, name: tuple[str, str]) -> Library:
        return self._made[name].result()


def _id(value: object) -> str:
    return value.key if isinstance(value, Variant) else str(value)


def extreme_configs(variant: Variant) -> list[dict[str, int]]:
    """Each tunable at its lowest and at its highest value, alone and all together."""
    ends = [(t.name, min(t.values), max(t.values)) for t in variant.tune]
    chosen = [{name: value} for name, *both in ends for value in both]
    chosen += [{name: low for name, low, _ in ends}, {name: high for name, _, high in ends}]
    return [dict(c) for c in {tuple(sorted(variant.config(c).items())) for c in chosen}]


def half(variant: Variant, form: str) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """Of these what `make test` runs, and the rest. Where each is an instance to compile, `make test` has all tunables
    together, and of every other one alone in turn the lowest value or the highest."""
    found = extreme_configs(variant)
    if form == "runtime":
        return found, []
    ends = [(t.name, min(t.values), max(t.values)) for t in variant.tune]
    chosen = [{name: low for name, low, _ in ends}, {name: high for name, _, high in ends},
              *({name: both[number // 2 % 2]} for number, (name, *both) in enumerate(ends)
                if number % 2 == VARIANTS.index(variant) % 2)]
    now = [config for config in found if config in [variant.config(one) for one in chosen]]
    return now, [config for config in found if config not in now]


def runs(one: Candidate) -> bool:
    return why_not(one, sm=EMULATED_SM) is None


def some(variant: Variant, form: str) -> list[Workload]:
    """Two layers in the run-time form; else one that it serves, as each is an instance to compile."""
    if form == "runtime":
        return TWO
    if "runtime" in variant.forms:
        return [TWO[VARIANTS.index(variant) % 2]]
    first = variant.dtypes[0]
    return [w for w in (*TWO, *CASES[4:]) if runs(candidate(variant, replace(w, dtype=first), form=form))][:1]


def served(variant: Variant, form: str) -> list[tuple[int, Workload]]:
    """Every layer that the variant serves by its default config, in its first dtype, with its number in CASES."""
    works = [replace(w, dtype=variant.dtypes[0]) for w in CASES]
    return [(number, w) for number, w in enumerate(works) if runs(candidate(variant, w, form=form))]


def parts(variant: Variant, form: str) -> tuple[list[tuple[int, Workload]], list[tuple[int, Workload]]]:
    """Of these what `make test` runs, and the rest: of a variant that serves them all, others than of the one before it. One of
    them has a bias."""
    found = served(variant, form)
    step = 1 if form == "runtime" else -(-len(found) // (MANY_AGAIN if "runtime" in variant.forms else MANY))
    begins = [(VARIANTS.index(variant) + later) % step for later in range(step)]
    first = next(begin for begin in begins if any(w.layer.bias for _, w in found[begin::step]))
    return found[first::step], [one for number, one in enumerate(found) if number % step != first]


def instances(variant: Variant, form: str) -> list[Candidate]:
    """All that the tests below run of one variant in one form, but for those of `make test-long`."""
    first = variant.dtypes[0]
    found = [candidate(variant, w, form=form) for _, w in parts(variant, form)[0]]
    found += [candidate(variant, replace(w, dtype=d), form=form) for d in variant.dtypes for w in some(variant, form)]
    found += [candidate(variant, replace(w, dtype=first), form=form, **config) for config in half(variant, form)[0]
              for w in some(variant, form)]
    return [one for one in dict.fromkeys(found) if runs(one)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """One library per direction and form; two compilers at a time."""
    return Built(tmp_path_factory.mktemp("matrix"))


def test_layers_are_many_and_small() -> None:
    assert len({label(w) for w in CASES}) == len(CASES) >= 60
    assert max(macs(w) for w in CASES) <= 2.5e6
    assert {w.layer.dims for w in CASES} == {1, 2, 3}
    assert {s for w in CASES for s in w.layer.stride} >= {1, 2, 3, 4, 5}
    assert {d for w in CASES for d in w.layer.dilation} >= {1, 2, 3, 19, 33}
    assert {p for w in CASES for p in w.layer.padding} >= {0, 1, 2, 17, 61}
    assert any(1 < w.layer.groups < w.layer.in_channels for w in FEW), "in every dtype, groups of several channels"


@pytest.mark.parametrize(("variant", "form"), FORMS, ids=_id)
def test_every_layer(variant: Variant, form: str, built: Built) -> None:
    """Default config, integers: every result must be the truth, bit for bit, in whatever order threads run."""
    right(variant, form, parts(variant, form)[0], built[variant.direction, form])


@pytest.mark.long
@pytest.mark.parametrize(("variant", "form"), [both for both in FORMS if parts(*both)[1]], ids=_id)
def test_the_other_layers(variant: Variant, form: str, tmp_path: Path) -> None:
    rest = parts(variant, form)[1]
    right(variant, form, rest, build_emulated([candidate(variant, w, form=form) for _, w in rest], tmp_path))


def right(variant: Variant, form: str, works: list[tuple[int, Workload]], library: Library) -> None:
    started = time.monotonic()
    wrong = []
    for number, work in works:
        outcome = run(library, candidate(variant, work, form=form), work, order=number + 1)
        if outcome.status != "OK":
            wrong.append(f"{label(work)}: {outcome.status} {outcome.text}")
    print(f"\n{variant.key} {form}: {len(works)} layers, {time.monotonic() - started:.1f} s")
    assert not wrong, "\n".join(wrong)
    assert works


@pytest.mark.parametrize(("variant", "form"), FORMS, ids=_id)
def test_every_dtype(variant: Variant, form: str, built: Built) -> None:
    """Integers bit for bit, floats within the tolerance of the dtype."""
    layers = FEW if form == "runtime" else some(variant, form)
    for dtype in variant.dtypes:
        for number, layer in enumerate(layers):
            work = replace(layer, dtype=dtype)
            one = candidate(variant, work, form=form)
            for values in ("integers", "floats"):
                if runs(one):
                    outcome = run(built[variant.direction, form], one, work, values=values, order=number + 100)
                    assert outcome.status == "OK", f"{dtype} {values} {label(work)}: {outcome.status} {outcome.text}"


@pytest.mark.parametrize(("variant", "form"), FORMS, ids=_id)
def test_extreme_configs(variant: Variant, form: str, built: Built) -> None:
    layers = FEW if form == "runtime" else some(variant, form)
    assert right_by(variant, form, half(variant, form)[0], layers, built[variant.direction, form])


@pytest.mark.long
@pytest.mark.parametrize("variant", [v for v in VARIANTS if half(v, "constant")[1]], ids=_id)
def test_the_other_extreme_configs(variant: Variant, tmp_path: Path) -> None:
    configs, layers = half(variant, "constant")[1], some(variant, "constant")
    made = [candidate(variant, replace(w, dtype=variant.dtypes[0]), form="constant", **c) for c in configs for w in layers]
    if made := [one for one in made if runs(one)]:
        assert right_by(variant, "constant", configs, layers, build_emulated(made, tmp_path))


def right_by(variant: Variant, form: str, configs: list[dict[str, int]], layers: list[Workload], library: Library) -> int:
    """How many there were, each of them right."""
    tried = 0
    for config in configs:
        for number, layer in enumerate(layers):
            work = replace(layer, dtype=variant.dtypes[0])
            one = candidate(variant, work, form=form, **config)
            if runs(one):
                tried += 1
                outcome = run(library, one, work, order=number + 200)
                assert outcome.status == "OK", f"{config} {label(work)}: {outcome.status} {outcome.text}"
    return tried


@pytest.mark.parametrize("variant", [v for v in VARIANTS if "grad_weight" in v.computes], ids=_id)
def test_grad_bias_is_left_out_when_nobody_wants_it(variant: Variant, built: Built) -> None:
    form = variant.forms[-1]
    work = next(w for _, w in parts(variant, form)[0] if w.layer.bias)
    outcome = run(built[variant.direction, form], candidate(variant, work, form=form), work, want_grad_bias=False)
    assert outcome.status == "OK", outcome


def test_constant_library_refuses_another_layer(built: Built) -> None:
    variant = next(v for v in VARIANTS if {"constant", "runtime"} <= set(v.forms))  # a general one serves both layers
    own = replace(some(variant, "constant")[0], dtype=variant.dtypes[0])
    other = next(w for w in TWO if w.layer != own.layer)
    assert problem_fields(own) != problem_fields(other)
    outcome = run(built[variant.direction, "constant"], candidate(variant, own, form="constant"), other)
    assert outcome.status == "LAUNCH_FAILED"


def test_all_directions_share_one_unit(tmp_path: Path) -> None:
    """Headers of different variants stand side by side in a batch: none may define another's names."""
    work = TWO[0]
    members = [candidate(v, replace(work, dtype=d), form=v.forms[-1]) for v in VARIANTS for d in v.dtypes]
    rendered = [render(one) for one in members if runs(one)]
    source = tmp_path / "batch.cpp"
    source.write_text(translate(render_batch(rendered)), encoding="utf-8")
    made = compile_quickly(source, tmp_path / "none", ["-fsyntax-only"])
    assert made.returncode == 0 and len(rendered) > len(VARIANTS), made.stderr[:6000]


def test_more_blocks_than_one_row_of_the_grid_holds(tmp_path: Path) -> None:
    """2^30 blocks cannot run here, so a copy of the templates has rows of 7."""
    root = tmp_path / "templates"
    shutil.copytree(TEMPLATES, root)
    _replace(root / "contract/flat_grid.cuh", "1LL << 30", "7")
    variants = [v for v in discover(root) if "flat_grid.cuh" in v.text and "runtime" in v.forms]
    assert len(variants) >= 6
    library = build_emulated([candidate(v, FEW[0], form="runtime") for v in variants], tmp_path)
    for variant in variants:
        for work in FEW:
            outcome = run(library, candidate(variant, work, form="runtime"), work)
            assert outcome.status == "OK", f"{variant.key} {label(work)}: {outcome.status} {outcome.text}"


DILATED = next(w for w in CASES if w.layer.dims == 1 and w.layer.dilation == (3,) and w.layer.stride == (1,))
STRIDED = next(w for w in CASES if w.layer.dims == 1 and w.layer.stride == (3,) and w.input_size[0] > 10)
BROKEN = [  # variant, the file that is broken, what is taken out, what is put there, the layer, what must come out
    ("forward/naive_gather", "", " || tw % layer.stride_w != 0", "", STRIDED, "MISMATCH"),
    ("forward/naive_gather", "", "if (co0 + c < co_per_group)\n", "if (co0 + c + 1 < co_per_group)\n", STRIDED,
     "UNWRITTEN"),
    ("forward/naive_gather", "", "if (item >= ", "if (item > ", STRIDED, "OUT_OF_BOUNDS"),
    ("forward/shared_weight_tiling", "contract/taps.cuh", "while (remainder != 0 &&", "while (false &&", STRIDED,
     "MISMATCH"),
    ("forward/warp_per_output", "contract/taps.cuh", "-(dilation / divisor)", "-1", DILATED, "MISMATCH"),
    ("grad_input/naive_gather", "", "kw * layer.dilation_w", "kw", DILATED, "MISMATCH"),
    ("grad_input/shared_weight_tiling", "contract/taps.cuh", "i * stride - padding, dilation}", "i - padding, dilation}",
     STRIDED, "MISMATCH"),
    ("grad_weight/naive_gather", "contract/positions.cuh", "1LL * kw * layer.dilation_w", "1LL * kw", DILATED,
     "MISMATCH"),
]


@pytest.mark.parametrize(("key", "file", "old", "new", "work", "status"), BROKEN,
                         ids=[f"{b[0]}-{b[5]}-{n}" for n, b in enumerate(BROKEN)])
def test_a_broken_copy_is_caught(key: str, file: str, old: str, new: str, work: Workload, status: str,
                                 tmp_path: Path, built: Built) -> None:
    root = tmp_path / "templates"
    shutil.copytree(TEMPLATES, root)
    _replace(root / (file or f"{key}.cu"), old, new)
    variant = next(v for v in discover(root) if v.key == key)
    one = candidate(variant, work)
    assert run(build_emulated([one], tmp_path / "build"), one, work).status == status
    intact = candidate(next(v for v in VARIANTS if v.key == key), work)
    assert run(built[variant.direction, "runtime"], intact, work).status == "OK"


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text, f"{file.name} no longer contains {old!r}: name another line to change"
    file.write_text(text.replace(old, new), encoding="utf-8")


LADDER = [variant for variant in VARIANTS if variant.name == "naive_gather"]


@pytest.fixture(scope="module")
def models_library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    any_layer = MODELS["models/sam-1"].workload("small")
    return build_emulated([candidate(v, any_layer) for v in LADDER], tmp_path_factory.mktemp("models"), flags=["-O2"])


@pytest.mark.parametrize("name", MODELS)
def test_a_small_form_of_the_suite_models_is_computed_exactly(models_library: Library, name: str) -> None:
    workload = MODELS[name].workload("small")
    for variant in LADDER:
        outcome = run(models_library, candidate(variant, workload), workload)
        assert outcome.status == "OK", f"{variant.key}: {outcome.text}"
