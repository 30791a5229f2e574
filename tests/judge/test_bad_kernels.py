"""Every bad kernel gets exactly its status; for each guard, a kernel that gets through once it is taken away; and where wrong
results are wrong."""

from __future__ import annotations

import shutil
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from workbench.core.candidate import Candidate
from workbench.core.errors import RenderError
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.orders import GUARDS, BuildOrder, ExplainOrder
from workbench.core.template import render
from workbench.core.variants import discover, find
from workbench.core.wrong_values import Tile, WrongValues, sentence
from workbench.drive.checking.attacks import attacks
from workbench.measure.build.build import build
from workbench.measure.kernel.explain import explain
from workbench.measure.kernel.inputs import INTEGERS, NORMAL
from workbench.measure.kernel.judge import judge

from .conftest import (
    CROPPED,
    IN_A_NEW_PROCESS,
    LATELY,
    NOT_BUILT,
    WANTED,
    WORKLOAD,
    Apart,
    Built,
    Ended,
    bad_candidate,
    build_batch,
    judge_apart,
    order,
)

pytestmark = pytest.mark.xdist_group("bad_kernels")  # one worker builds them once
ALL_GUARDS = {"poison", "guard_zone", "nan", "inputs", "recheck"}
# kernel -> status, and words that the headline must have
STATUS = {
    "too_many_threads": ("LAUNCH_FAILED", "2048"),
    "too_much_shared": ("LAUNCH_FAILED", "307200 bytes of dynamic shared memory"),
    "huge_workspace": ("OUT_OF_MEMORY", "024 TiB of memory; "),
    "skips_last_row": ("UNWRITTEN", "21 values of y were never written, the first at y[1, 3, 8, 0]"),
    "writes_only_once": ("UNWRITTEN", "No value of y"),
    "skips_unreached": ("UNWRITTEN", "the first at y[0, 0, 0]"),
    "no_tail_test": ("OUT_OF_BOUNDS", "behind the end of y"),
    "writes_before_start": ("OUT_OF_BOUNDS", "Wrote 4 bytes before the start of y"),
    "past_the_workspace": ("OUT_OF_BOUNDS", "Wrote 16 bytes behind the end of the workspace"),
    "makes_nan": ("NON_FINITE", "the first at y[0, 0, 0, 5]"),
    "reads_past_input": ("NON_FINITE", "1 value of y is NaN or infinite, the first at y[0, 0, 0, 7]"),
    "adds_to_output": ("NON_FINITE", "values of y are NaN"),
    "no_divisibility_test": ("MISMATCH", "of y is wrong; worst y["),
    "returns_zeros": ("MISMATCH", "got 0, expected"),
    "replays_first_answer": ("MISMATCH", "of y is wrong"),
    "half_the_bits": ("MISMATCH", "ieee allows"),
    "changes_input": ("INPUT_MODIFIED", "The kernel changed 1 value of x."),
    "low_bits_drift": ("NONDETERMINISTIC", "1 of 2 runs gave different bits, up to"),
    "no_barrier": ("NONDETERMINISTIC", "some of them NaN"),
    "divergent_barrier": ("KERNEL_FAULT", "__syncthreads"),
    "right_at_first": ("MISMATCH", " tim"),
    "prints_a_verdict": ("OK", "Right in all checks."),
    "writes_to_null": ("WORKER_DIED", "ended by signal 11 (SIGSEGV)"),
    "computes_on_the_host": ("WORKER_DIED", "read or wrote memory of the device"),
    "misaligned_vectors": ("KERNEL_FAULT", "needs a multiple of 16 bytes, this one is 4 beyond one"),
    "answers_for_the_judge": ("WORKER_DIED", "wrote into the pipe"),
    "orders_the_emulator": ("NONDETERMINISTIC", "some of them NaN"),
    "reaches_out": ("OK", "Right in all checks."),
    "adds_to_old": ("NON_FINITE", "of grad_weight are NaN"),
    "forgets_grad_bias": ("UNWRITTEN", "No value of grad_bias"),
    "input_gradient_lacks_a_tap": ("MISMATCH", "of grad_input is wrong"),
    "weight_gradient_doubled": ("MISMATCH", "of grad_weight is wrong"),
    "forgets_last_input": ("UNWRITTEN", "1 value of grad_input"),
    "reads_the_next_value": ("OUT_OF_BOUNDS", "Reads byte 1 behind the end of x"),
    "reads_the_value_before": ("OUT_OF_BOUNDS", "Reads byte 4 before the start of the weight"),
    "looks_for_the_guard": ("MISMATCH", "of y is wrong"),
    "one_factor_for_a_tensor": ("MISMATCH", "computes in float16"),
    "products_in_float16": ("NON_FINITE", "computes in float16"),
    "grid_of_the_first_launch": ("UNWRITTEN", "After a launch with another size (a batch of 1 and an input of 4 × 6), "),
    "two_blocks_add": ("NONDETERMINISTIC", "Two blocks of one launch write different values to y[0, 0, 0, "),
    "always_grad_bias": ("WORKER_DIED", "Where grad_bias is not wanted (its pointer is null): "),
    "aligns_down": ("NON_FINITE", "Where a tensor that it reads does not begin at a multiple of 16 bytes: "),
    "constant_weights": ("NONDETERMINISTIC", "Two calls copy different values to one __constant__ or __device__ symbol."),
    "fence_for_an_atomic": ("NONDETERMINISTIC", "Two blocks of one launch write different values to y[0, 0, 0, "),
    "last_block_no_fence": ("NON_FINITE", "values of grad_weight are NaN or infinite"),
    "one_thread_reads": ("NONDETERMINISTIC", "1 of 2 runs gave different bits"),
    "adds_in_shared": ("NONDETERMINISTIC", "threads 0 and 64 of block (0, 0, 0) change byte"),
    "plan_by_count": ("UNWRITTEN", "an input of 4 × 6), with a batch of 1 and an input of 6 × 4: "),
    "past_its_shared": ("KERNEL_FAULT", "an access to byte 1 behind the end of 512 bytes of shared memory"),
    "reads_past_its_shared": ("KERNEL_FAULT", "an access to byte 1 behind the end of 512 bytes of shared memory"),
    "vectors_of_weights": ("KERNEL_FAULT", "Where a tensor that it reads does not begin at a multiple of 16 bytes: "),
    "keeps_its_scratch": ("NONDETERMINISTIC", "The launcher keeps memory that it has allocated for later calls."),
    "never_frees": ("OUT_OF_MEMORY", "The launcher allocates memory in each call and does not free it."),
    "default_stream": ("MISMATCH", "The launcher works on another stream than the one that it is given."),
}
RACES = {"two_blocks_add", "fence_for_an_atomic"}  # with several threads such a race may show by chance, in other words
ENDED = {"never_ends": 0}
WHERE = {"skips_unreached": CROPPED, "changes_input": CROPPED}
TIMED = {"right_at_first"}
DIRECTION = {"adds_to_old": "grad_weight", "forgets_grad_bias": "grad_weight", "input_gradient_lacks_a_tap": "backward",
             "weight_gradient_doubled": "backward", "forgets_last_input": "backward", "always_grad_bias": "grad_weight",
             "last_block_no_fence": "grad_weight"}


def _judged(bad: Built, root: Path, scratch: Path, name: str, **more: Any) -> Apart | Ended:
    candidate = bad_candidate(root, name, direction=DIRECTION.get(name, "forward"))
    workload: Workload = more.pop("workload", WHERE.get(name, WORKLOAD))
    limit_s = 4.0 if ENDED.get(name) == 0 else 400.0
    return judge_apart(order(bad, candidate, workload, scratch, **{"time": name in TIMED, **more}), limit_s=limit_s)


@pytest.mark.parametrize("name", STATUS)
def test_status(bad: Built, bad_root: Path, scratch: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in RACES:
        monkeypatch.setenv("CUDACPU_THREADS", "1")
    result = _judged(bad, bad_root, scratch, name)
    assert isinstance(result, Apart), f"the process ended: {result}"
    status, words = STATUS[name]
    assert (result.status, words in result.headline) == (status, True), result.headline
    assert result.advice
    assert result.kernel_ms is None
    assert "emulated" in result.flags


@pytest.mark.parametrize("name", ENDED)
def test_ends_its_process(bad: Built, bad_root: Path, scratch: Path, name: str) -> None:
    assert _judged(bad, bad_root, scratch, name) == Ended(ENDED[name])


def test_every_bad_kernel_has_its_status(bad_root: Path) -> None:
    here = {*STATUS, *ENDED, *NOT_BUILT, *WANTED, "many_defects"}
    there = {v.name for v in discover(bad_root)}
    assert here <= there and there - here <= {a.name for a in attacks()}


def test_does_not_render(bad_root: Path) -> None:
    with pytest.raises(RenderError, match=r"undefined_tunable.cu uses Tune::TILE_M in line \d+, which is not defined"):
        render(bad_candidate(bad_root, "undefined_tunable"))


def test_an_include_that_does_not_exist_is_told_where_headers_are(tmp_path: Path) -> None:
    shipped = find("naive_gather", "forward")
    own = replace(shipped, path=tmp_path / "forward" / "naive_gather.cu")
    for variant, folders in ((shipped, "the shipped templates"), (own, f"{tmp_path.name}/ or of the shipped templates")):
        wrong = replace(variant, text=variant.text.replace("contract/flat_grid", "contract/flatgrid"))
        with pytest.raises(RenderError, match="which does not exist") as raised:
            render(Candidate(wrong, WORKLOAD.layer, "float32", {}))
        assert raised.value.advice == f"Name a header of {folders}, such as contract/problem.cuh."


def test_does_not_compile(bad_root: Path, tmp_path: Path) -> None:
    rendered = render(bad_candidate(bad_root, "undefined_identifier"))
    result = build(BuildOrder(rendered.source, "cpu", tmp_path / "cache", ("kw_forward",)), lambda event: None)
    text = rendered.candidate.variant.text.splitlines()
    line = next(i for i, words in enumerate(text, 1) if "smem_w" in words)
    assert result.status == "BUILD_FAILED"
    assert "smem_w" in result.headline
    assert result.first_error.line == line


@pytest.mark.parametrize(("guard", "name"), [
    ("poison", "skips_unreached"), ("guard_zone", "no_tail_test"), ("nan", "makes_nan"), ("inputs", "changes_input"),
    ("recheck", "right_at_first"), *(("recheck", name) for name in LATELY),
    *(("new_process", name) for name in IN_A_NEW_PROCESS)])
def test_without_its_guard_it_gets_through(bad: Built, bad_root: Path, scratch: Path, guard: str, name: str,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    if name in RACES:
        monkeypatch.setenv("CUDACPU_THREADS", "1")
    caught = _judged(bad, bad_root, scratch, name)
    missed = _judged(bad, bad_root, scratch, name, guards=ALL_GUARDS - {guard})
    assert isinstance(caught, Apart) and isinstance(missed, Apart)
    assert caught.status == STATUS[name][0] != "OK", caught.headline
    assert missed.status == "OK", missed.headline


def test_without_the_watch_a_stored_answer_gets_through(bad: Built, bad_root: Path, scratch: Path) -> None:
    caught, missed = (_judged(bad, bad_root, scratch, "remembers_the_answer", guards=GUARDS - without, time=True)
                      for without in (set(), {"watch", "new_process"}))
    assert isinstance(caught, Apart) and isinstance(missed, Apart)
    assert caught.status == "MISMATCH" and "signs of channels" in caught.headline
    assert missed.status == "OK", missed.headline


def test_values_may_be_shared_by_atomics_or_by_a_fence_and_an_atomic(bad_root: Path, tmp_path: Path, scratch: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDACPU_THREADS", "1")
    root = tmp_path / "kernels"
    shutil.copytree(bad_root / "common", root / "common")
    for direction, bad, name, plain, instead in (
            ("forward", "two_blocks_add", "with_atomics", "output[item] += narrow<Scalar>(", "atomicAdd(output + item, "),
            ("forward", "adds_in_shared", "adds_there_by_atomics", "sum[value] += narrow<Scalar>(", "atomicAdd(sum + value, "),
            ("grad_weight", "last_block_no_fence", "with_a_fence", "// here __threadfence() is missing", "__threadfence();")):
        text = (bad_root / direction / f"{bad}.cu").read_text()
        assert plain in text
        (root / direction).mkdir(exist_ok=True)
        (root / direction / f"{name}.cu").write_text(text.replace(bad, name).replace(plain, instead))
    candidates = [bad_candidate(root, "with_atomics"), bad_candidate(root, "adds_there_by_atomics"),
                  bad_candidate(root, "with_a_fence", direction="grad_weight")]
    built = build_batch(candidates, tmp_path)
    for candidate in candidates:
        result = judge_apart(order(built, candidate, WORKLOAD, scratch))
        assert isinstance(result, Apart) and result.status == "OK", result


@pytest.mark.parametrize(("first", "status"), enumerate(
    ["OUT_OF_BOUNDS", "INPUT_MODIFIED", "UNWRITTEN", "NON_FINITE", "MISMATCH"]))
def test_of_many_defects_the_most_telling_is_named(bad: Built, bad_root: Path, scratch: Path, first: int,
                                                   status: str) -> None:
    candidate = bad_candidate(bad_root, "many_defects", FIRST=first)
    result = judge_apart(order(bad, candidate, WORKLOAD, scratch))
    assert isinstance(result, Apart)
    assert result.status == status, result.headline


def test_a_wrong_value_is_described(bad: Built, bad_root: Path, scratch: Path) -> None:
    result = _judged(bad, bad_root, scratch, "returns_zeros")
    assert isinstance(result, Apart)
    errors = result.errors["output"]
    assert errors.got == 0.0
    assert abs(errors.expected) == errors.max_abs > 0
    assert 0 < errors.wrong <= errors.count == prod(WORKLOAD.output_shape)
    assert errors.rel_l2 == pytest.approx(1.0)
    assert not errors.kernelbench_ok


# A map of more positions than it has cells.
LONG = Workload(ConvTranspose(1, 3, 5, 3, stride=2, padding=1, bias=True), batch=3, input_size=(300,))


TILES = (Tile("TILE", "W", 4), Tile("CO_PER_THREAD", "CO", 2), Tile("CI_PER_THREAD", "CI", 2))


def explained(bad: Built, bad_root: Path, scratch: Path, name: str, work: Workload, direction: str = "forward") -> WrongValues:
    asked = order(bad, bad_candidate(bad_root, name, direction=direction), work, scratch)
    found = judge(asked, lambda event: None)
    where = explain(ExplainOrder(asked, found.detail.shown["tensor"], found.detail.shown["inputs"], TILES),
                    lambda event: None).values
    assert where is not None
    return where


def test_no_divisibility_test(bad: Built, bad_root: Path, scratch: Path) -> None:
    found = explained(bad, bad_root, scratch, "no_divisibility_test", WORKLOAD)
    assert (found.tensor, found.inputs, found.shape) == ("output", INTEGERS, WORKLOAD.output_shape)
    assert found.looks_like is not None and found.looks_like.found.startswith("no divisibility test")
    assert found.cells == WORKLOAD.output_size and len(found.shares) == found.cells[0] * found.cells[1]
    phases = found.along["phase of W (position mod 3)"]
    assert max(phases) > min(phases) and set(found.along) >= {"image", "channel", "phase of H (position mod 2)"}
    case = found.smallest
    assert case is not None and case.batch == 1 and case.input_size == (1, 1), case
    total = sum(term.value for term in case.terms) + (case.bias or 0)
    assert case.expected == total != case.got, "the terms add up to the truth"
    assert case.complete and all(sum(a * b for a, b in term.factors) == term.value for term in case.terms)
    assert len(found.along["W mod 4 (TILE)"]) == 4 and len(found.along["channel mod 2 (CO_PER_THREAD)"]) == 2
    assert not any("CI_PER" in name for name in found.along), "a tile of the input is none of the output"
    off = sum(count for _, count in found.ratios)
    assert off + found.not_finite >= found.wrong > 0 and max(step for step, _ in found.ratios) >= 0
    assert "Looks like: no divisibility test" in sentence(found) and "Smallest case: a batch of 1" in sentence(found)


def test_a_row_that_is_never_written(bad: Built, bad_root: Path, scratch: Path) -> None:
    found = explained(bad, bad_root, scratch, "skips_last_row", WORKLOAD)
    rows, columns = found.cells
    wrong = [n // columns for n, share in enumerate(found.shares) if share]
    assert set(wrong) == {rows - 1} and len(wrong) == columns and found.not_finite == found.wrong
    assert found.along["image"] == (0, 28) and found.along["channel"] == (0, 0, 0, 56), "21 of 756, and of 378"
    said = sentence(found)
    assert said.startswith("Smallest case: a batch of ") and (
        "Wrong values are only in image 1 (2.8 % of it); only in channel 3 (5.6 % of it)" in said), said


def test_a_tap_that_is_left_out_is_named(bad: Built, bad_root: Path, scratch: Path) -> None:
    found = explained(bad, bad_root, scratch, "input_gradient_lacks_a_tap", WORKLOAD, "backward")
    assert found.tensor == "grad_input" and found.looks_like is None and found.smallest is not None
    assert found.smallest.said.startswith("the term of tap (") and found.smallest.said.endswith("is missing")
    assert found.smallest.expected == sum(term.value for term in found.smallest.terms)


def test_gradients_of_parameters_and_a_map_with_cells_of_several_positions(bad: Built, bad_root: Path, scratch: Path) -> None:
    found = explained(bad, bad_root, scratch, "weight_gradient_doubled", WORKLOAD, "backward")
    assert found.tensor == "grad_weight" and found.cells == WORKLOAD.layer.kernel_size and min(found.shares) > 900
    assert set(found.along) >= {"input channel", "output channel"} and "No place is worse than" in sentence(found)
    case = found.smallest
    assert case is not None and case.complete and case.got == 2 * case.expected, case
    bias = explained(bad, bad_root, scratch, "forgets_grad_bias", WORKLOAD, "grad_weight")
    assert bias.tensor == "grad_bias" and bias.cells == (1,) and bias.wrong == bias.count == 4
    assert bias.smallest is not None and bias.smallest.complete and len(bias.smallest.terms) == prod(
        replace(WORKLOAD, batch=1, input_size=bias.smallest.input_size).output_size)
    long = explained(bad, bad_root, scratch, "no_divisibility_test", LONG)
    assert long.step == (3,) and long.cells == (200,) and "W mod 32" in long.along and len(long.along["W mod 32"]) == 32


def test_what_is_right_again_has_nothing_to_explain(naive: Built, scratch: Path) -> None:
    candidate = next(c for c in naive.symbols if c.direction == "forward" and c.dtype == "float32")
    asked = order(naive, candidate, WORKLOAD, scratch)
    assert explain(ExplainOrder(asked, "output", NORMAL), lambda event: None).values is None
    gone = replace(asked, library=scratch / "gone.so")
    assert explain(ExplainOrder(gone, "output", NORMAL), lambda event: None).values is None
