"""Which layers stay patched, from their times; and what a report with times says. The times here are made up or of the CPU."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from workbench.core import best_known
from workbench.core.candidate import why_not
from workbench.core.gpu import sm_of
from workbench.core.layer import DIRECTIONS, ConvTranspose, Workload
from workbench.core.orders import PatchOrder
from workbench.core.patching import (
    FASTER_ONLY,
    INFERENCE,
    RIGHT,
    TRAINING,
    Drift,
    FoundLayer,
    FunctionalCall,
    LayerCall,
    ModelSource,
    Pairs,
    PatchedLayer,
    PatchReport,
)
from workbench.core.presets import preset
from workbench.drive.exporting.recipe import Recipe
from workbench.drive.patching import plots, text
from workbench.drive.patching.choose import MOST_LIKELY, choose, distinct, likely
from workbench.measure.patching.compare import Both, decided, in_turns, joined, must_undo, timed_layer, whole
from workbench.measure.patching.step import Stepper

from .test_replace import file_for

CPU = torch.device("cpu")
LAYER = ConvTranspose(2, 8, 4, 2, stride=2)


def pairs(verdict: str, ratio: float) -> Pairs:
    return Pairs(2.0, 2.0 / ratio, ratio, 0.98 * ratio, 1.02 * ratio, verdict, 40)


@pytest.mark.parametrize(("times", "keep", "kept"), [
    ({INFERENCE: pairs("FASTER", 2.0)}, FASTER_ONLY, True),
    ({INFERENCE: pairs("SAME", 1.0)}, FASTER_ONLY, False),
    ({INFERENCE: pairs("UNSURE", 1.1)}, FASTER_ONLY, False),
    ({INFERENCE: pairs("SLOWER", 0.5)}, FASTER_ONLY, False),
    ({INFERENCE: pairs("SLOWER", 0.5)}, RIGHT, True),
    ({INFERENCE: pairs("SAME", 1.0), TRAINING: pairs("FASTER", 1.5)}, FASTER_ONLY, True),
    ({INFERENCE: pairs("FASTER", 3.0), TRAINING: pairs("SAME", 1.0)}, FASTER_ONLY, False),
    ({INFERENCE: pairs("SLOWER", 0.9), TRAINING: pairs("FASTER", 1.5)}, FASTER_ONLY, False)])
def test_a_layer_stays_where_it_is_faster_and_in_no_step_slower(times: dict[str, Pairs], keep: str, kept: bool) -> None:
    row = decided("up", times, keep)
    assert row.kept is kept and all(name in row.reason and p.verdict in row.reason for name, p in times.items())
    assert row.reason.startswith("In the model: ") or not kept or keep == RIGHT


def test_a_layer_that_only_the_host_slows_down_is_decided_by_the_whole_model() -> None:
    slow, fast = pairs("SLOWER", 0.8), pairs("FASTER", 1.6)
    row = decided("up", {INFERENCE: fast, TRAINING: slow}, FASTER_ONLY, {INFERENCE: fast, TRAINING: fast})
    assert row.behind_host and not row.kept and "SLOWER (0.80x)" in row.reason and "On the GPU alone" in row.reason
    assert joined(row, {INFERENCE: pairs("SAME", 1.0), TRAINING: pairs("FASTER", 1.03)}).kept
    for verdict, ratio in (("SAME", 1.0), ("UNSURE", 1.02), ("SLOWER", 0.98)):
        left = joined(row, {INFERENCE: fast, TRAINING: pairs(verdict, ratio)})
        assert not left.kept and f"{verdict} ({ratio:.2f}x)" in left.reason
    for on_gpu in ({INFERENCE: fast, TRAINING: slow}, {INFERENCE: slow, TRAINING: fast}):
        assert not decided("up", {INFERENCE: slow, TRAINING: slow}, FASTER_ONLY, on_gpu).behind_host
    assert not decided("up", {INFERENCE: slow}, RIGHT, {INFERENCE: fast}).behind_host       # it is kept anyway


def test_two_sets_of_layers_can_be_compared() -> None:
    """The first state has some layers replaced, the second those and more."""
    model = nn.Sequential(nn.ConvTranspose1d(3, 4, 3, 2), nn.ConvTranspose1d(4, 4, 3, 2))
    both = Both(model, file_for(model), ["0", "1"], before=["0"])
    for state, expected in ((both.patched, (True, True)), (both.original, (True, False)), (both.patched, (True, True))):
        state()
        assert tuple("forward" in vars(one) for one in model) == expected


def test_all_is_undone_where_the_whole_step_is_slower() -> None:
    assert must_undo({INFERENCE: pairs("FASTER", 1.2), TRAINING: pairs("SLOWER", 0.9)}, FASTER_ONLY)
    assert not must_undo({INFERENCE: pairs("UNSURE", 0.99)}, FASTER_ONLY)
    assert not must_undo({INFERENCE: pairs("SLOWER", 0.9)}, RIGHT)


def test_two_ways_are_timed_in_turns() -> None:
    state: list[str] = []
    taken: list[str] = []

    def run() -> None:
        taken.append(state[-1])
        time.sleep(0.04 if state[-1] == "slow" else 0.001)

    found = in_turns(run, run, device=CPU, effort="quick",
                     between=(lambda: state.append("slow"), lambda: state.append("fast")))
    assert found.verdict in ("FASTER", "UNSURE") and found.ratio > 1 and found.samples >= 10  # a busy machine makes it unsure
    assert found.original_ms > found.patched_ms
    assert state[2:8] == ["fast", "slow", "slow", "fast", "fast", "slow"]  # who is first changes


def test_a_layer_and_a_whole_model_are_timed_with_the_kernels_and_without() -> None:
    """As on a GPU, here with emulated kernels. Their times say nothing, so only the order of things is looked at."""
    model = nn.Sequential(nn.ConvTranspose1d(3, 4, 3, 2), nn.ReLU())
    file = file_for(model[0])
    used: list[bool] = []
    model[0].register_forward_hook(lambda module, args, output: used.append("forward" in vars(module)))
    order = PatchOrder(ModelSource("a:b", train=True), "", {}, effort="quick")
    both = Both(model, file, ["0"])
    x = torch.randn(2, 3, 7)
    times, on_gpu = timed_layer(model[0], LayerCall((2, 3, 7), "float32", "float32", "contiguous", True, 1), both, order)
    assert on_gpu is None
    assert set(times) == {INFERENCE, TRAINING} and used.count(True) > 20 and used.count(False) > 20
    used.clear()
    before = model[0].weight.detach().clone()
    with Stepper(model, (x,), {}) as stepper:
        whole_times = whole(both, stepper, order, lambda event: None)
    assert set(whole_times) == {INFERENCE, TRAINING} and used.count(True) > 20 and used.count(False) > 20
    assert torch.equal(model[0].weight, before) and model[0].weight.grad is None


def found(path: str, layer: ConvTranspose, *calls: LayerCall, why_not: str = "") -> FoundLayer:
    return FoundLayer((path,), layer, calls, 0.2 if calls else None, why_not)


CALL = LayerCall((2, 8, 5, 6), "float32", "float32", "contiguous", True, 1)


def test_equal_layers_share_one_recipe_for_the_largest_of_their_inputs() -> None:
    groups = distinct((found("a", LAYER, CALL), found("b", replace(LAYER, bias=False), CALL),
                       found("c", LAYER, replace(CALL, shape=(2, 8, 50, 60))),
                       found("d", LAYER, replace(CALL, dtype="bfloat16")), found("e", LAYER),
                       found("f", LAYER, CALL, why_not="x")))
    assert [group.paths for group in groups] == [("a", "c"), ("b",), ("d",)]
    assert groups[0].workload.input_size == (50, 60) and groups[2].workload.dtype == "bfloat16"


def test_the_best_known_recipe_comes_first_and_a_gpu_never_gets_a_general_kernel() -> None:
    known, = distinct((found("a", ConvTranspose(2, 256, 64, 2, stride=2), replace(CALL, shape=(4, 256, 64, 64))),))
    asked = []
    for train in (False, True):
        chosen = choose(known.workload, arch="sm_90", emulated=False, train=train, measured=lambda *given: asked.append(given))
        assert chosen.origin.startswith("best known") and "naive" not in str(chosen.recipe) and not asked
        assert ("grad_weight" in chosen.recipe.precision) is train
    call = replace(CALL, shape=(4, 128, 900), dtype="float16")
    near, = distinct((found("a", ConvTranspose(1, 128, 64, 4, stride=2, padding=1), call),))
    chosen = choose(near.workload, arch="sm_90", emulated=False, train=False, measured=lambda work, there: Recipe.of(
        work, {"forward": there[0]}, proven={"forward": 90}))
    assert chosen.recipe.forward and chosen.origin == "the fastest of those that were measured here"
    unknown, = distinct((found("a", LAYER, CALL),))
    chosen = choose(unknown.workload, arch="sm_90", emulated=False, train=True, measured=lambda *given: asked.append(given))
    assert chosen.recipe is None and [work for work, _ in asked] == [unknown.workload]
    assert chosen.origin == "No kernel was right and faster than PyTorch here."


def test_for_an_unknown_layer_a_few_variants_are_measured_the_winners_of_similar_layers_first() -> None:
    """The layer is that of models/hifigan-1 with a few more channels; the variant that is the fastest there comes first."""
    work = Workload(ConvTranspose(1, 520, 264, (16,), stride=(8,), padding=(4,)), 8, (32,))
    winner = best_known.best_config("forward", preset("models/hifigan-1").workload(), "tf32", "sm_90")
    for arch in ("sm_90", "sm_80"):
        for direction in DIRECTIONS:
            there = likely(work, direction, arch)
            names = [one.variant.name for one in there]
            assert 2 <= len(there) <= MOST_LIKELY and len(set(names)) == len(names), names
            assert not set(names) & {"naive_gather", "shared_weight_tiling", "warp_per_output"}
            assert all(why_not(one, sm=sm_of(arch)) is None and one.layer == work.layer for one in there)
    first = likely(work, "forward", "sm_90")[0]
    assert (first.variant.name, first.precision) == (winner.variant, winner.precision)


REPORT = PatchReport(
    "UNet", ModelSource("m:build", train=True, device="cuda:0"), FASTER_ONLY, "NVIDIA H200", False,
    (PatchedLayer(found("up.0", LAYER, CALL), True, "In the model: FASTER.", {"forward": "strip in tf32"}, "OK",
                  {INFERENCE: pairs("FASTER", 2.0), TRAINING: pairs("FASTER", 1.5)}, "FASTER"),
     PatchedLayer(found("up.1", LAYER), False, "The model never called it in this step.")),
    (FunctionalCall("F.conv_transpose2d", "net.py", 7, 2),), {INFERENCE: pairs("FASTER", 1.25), TRAINING: pairs("SAME", 1.0)},
    {TRAINING: Drift(1e-4, 2e-4, 3e-4, 4e-4)}, {"original": 2 << 30, "patched": 1 << 30}, seconds=12.0, command="again")


def test_a_report_with_times_tells_verdict_interval_drift_and_memory() -> None:
    words = text.report_text(REPORT)
    assert words.startswith("SAME  UNet: 1 of 2 layers is patched; inference 1.25× as fast (1.23 – 1.27), training step")
    for said in ("FASTER 2.00× (1.96 – 2.04)", "F.conv_transpose2d  net.py, line 7  (2 calls a step)",
                 "outputs differ by 1.0e-4 (PyTorch's own TF32 against float32: 3.0e-4)", "gradients differ by 2.0e-4",
                 "2 GiB with PyTorch, 1 GiB patched", "up.1: The model never called it in this step."):
        assert said in words, said
    undone = replace(REPORT, undone=True)
    assert text.report_text(undone).startswith("SLOWER  UNet: Nothing is patched: with the kernels the whole model was slower.")
    other = replace(REPORT, differs="with the kernels output 1 differs")
    assert text.report_text(other).startswith("MISMATCH  UNet: Nothing is patched: with the kernels output 1 differs.")


def test_a_report_about_nothing_says_so() -> None:
    itself = replace(REPORT, layers=(PatchedLayer(found("", LAYER, CALL), True, "Right."),), times={},
                     drift={INFERENCE: Drift(None, None)})
    words = text.report_text(itself)
    assert "  the model itself: Right." in words and "Drift of the inference: there is nothing to compare." in words
    assert "the model itself" in plots.described(itself)
    on_cpu = replace(itself, emulated=True, drift={})
    assert text.evidence(replace(on_cpu, layers=())).startswith("The model has no nn.ConvTranspose; its functional calls")
    left = PatchedLayer(found("up", LAYER), False, "The model never called it in this step.")
    assert text.evidence(replace(on_cpu, layers=(left,))) == ""


def test_the_figure_of_a_timed_report_has_shares_and_ratios_with_intervals() -> None:
    figure = plots.figure(REPORT, mode="dark")
    bars, dots = ([t for t in figure.data if t.type == kind] for kind in ("bar", "scatter"))
    assert [t.x[0] for t in bars] == [20.0, 0.0]
    assert {(t.customdata[0][0], t.customdata[0][1], t.x[0]) for t in dots} == {
        ("up.0", INFERENCE, 2.0), ("up.0", TRAINING, 1.5), ("the whole model", INFERENCE, 1.25),
        ("the whole model", TRAINING, 1.0)}
    assert all(t.error_x.array[0] > 0 for t in dots)
