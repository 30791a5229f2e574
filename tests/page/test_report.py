"""What trials mean: who may be compared with whom, the verdicts, the table and the charts."""

from __future__ import annotations

import time
from dataclasses import replace

import pandas as pd
import pytest

from workbench.core.presets import preset
from workbench.core.trial import DEFAULT_ADVICE, Errors, Status, Timing, Trial
from workbench.core.trial_parts import KernelNumbers, TrialDevice
from workbench.core.variants import find
from workbench.drive.reporting import plots, report, tables

WORK = preset("kb74").workload("full")
H200 = TrialDevice("cuda", 0, "NVIDIA H200", "sm_90", 90, "NVIDIA H200")
A100 = TrialDevice("cuda", 0, "NVIDIA A100", "sm_80", 80, "NVIDIA A100")
CPU = TrialDevice("cpu", 0, "some CPU", "x86_64", 90, "cpu some CPU")
_count = iter(range(10_000))


def timing(ms: float, *, share: float = 0.01, samples: int = 50) -> Timing:
    return Timing(ms, ms * (1 - share), ms * (1 + share), ms * (1 - 2 * share), samples, "noise", True)


def trial(name: str, ms: float | None, precision: str = "ieee", *, kind: str = "candidate", direction: str = "forward",
          status: Status = Status.OK, device: TrialDevice = H200, **more) -> Trial:
    errors = {"output": Errors(1e-6, 1e-5, 2.4e-7, 1e-6, (0, 0, 0), 1.0, 1.0, 0, 10)}
    return Trial(f"t{next(_count)}", "run", "2026-11-20T00:00:00Z", kind, name, direction, precision, WORK,
                 device, status, more.pop("headline", "Right in all checks."), DEFAULT_ADVICE[status],
                 kernel_ms=timing(ms, samples=more.pop("samples", 50)) if ms else None, errors=errors,
                 config=more.pop("config", {"BLOCK": 128} if kind == "candidate" else {}), **more)


def pytorch(**more) -> list[Trial]:
    return [trial("eager, TF32 on", 1.65, "tf32", kind="baseline", **more),
            trial("eager, TF32 off", 4.29, "ieee", kind="baseline", **more)]


@pytest.mark.parametrize(("precision", "name"), [
    ("ieee", "eager, TF32 off"), ("tf32x3", "eager, TF32 off"), ("tf32", "eager, TF32 on")])
def test_a_baseline_qualifies_by_its_precision(precision, name):
    assert report.best_baseline(pytorch(), trial("mine", 1.0, precision)).name == name


def test_a_stricter_baseline_that_is_faster_is_the_one_for_tf32():
    there = [trial("eager, TF32 on", 1.62, "tf32", kind="baseline"), trial("eager, TF32 off", 1.22, kind="baseline")]
    mine = trial("mine", 0.26, "tf32")
    ratio = report.speedup(mine, report.best_baseline(there, mine))
    assert ratio.value == pytest.approx(1.22 / 0.26) and ratio.verdict == report.FASTER


def test_no_baseline_of_another_device_workload_or_direction():
    mine = trial("mine", 1.0)
    other = replace(mine, workload=preset("kb81").workload("full"))
    assert report.best_baseline(pytorch(device=A100), mine) is None
    assert report.best_baseline(pytorch(), other) is None
    assert report.best_baseline(pytorch(direction="grad_input"), mine) is None
    assert report.speedup(mine, pytorch(device=A100)[0]) is None


def test_a_baseline_that_was_wrong_does_not_count():
    wrong = trial("eager, TF32 off", 0.5, kind="baseline", status=Status.MISMATCH)
    assert report.best_baseline([wrong, *pytorch()], trial("mine", 1.0)).kernel_ms.median_ms == 4.29


@pytest.mark.parametrize(("ours", "theirs", "share", "samples", "verdict"), [
    (1.0, 2.0, 0.01, 50, report.FASTER), (2.0, 1.0, 0.01, 50, report.SLOWER), (1.0, 1.0, 0.005, 200, report.SAME),
    (1.0, 1.015, 0.1, 20, report.UNSURE), (1.0, 2.0, 0.01, 4, report.UNSURE)])
def test_verdicts(ours, theirs, share, samples, verdict):
    ratio = report.ratio_of(timing(ours, share=share, samples=samples), timing(theirs, share=share, samples=samples))
    assert ratio.verdict == verdict
    assert (ratio.low is None) == (samples < 5)
    if ratio.low is not None:
        assert ratio.low < ratio.value < ratio.high


def test_the_table_has_the_verdict_first_and_no_time_for_a_wrong_result():
    table = report.frame([*pytorch(), trial("slow", 9.7), trial("fast", 2.2),
                          trial("wrong", 0.1, status=Status.MISMATCH)])
    assert list(table.columns[:2]) == ["status", "verdict"]
    assert list(table["variant"]) == ["fast", "slow", "wrong", "eager, TF32 on", "eager, TF32 off"]
    wrong = table[table["variant"] == "wrong"].iloc[0]
    assert pd.isna(wrong["median_ms"]) and pd.isna(wrong["speedup"]) and wrong["verdict"] == ""
    assert table.iloc[0]["speedup"] == pytest.approx(4.29 / 2.2)


def test_emulated_times_have_no_speedup_floor_or_gpu_verdict():
    trials = [trial("eager", 0.33, kind="baseline", device=CPU), trial("naive_gather", 42.0, device=CPU)]
    row = report.frame(trials).iloc[0]
    assert row["verdict"] == report.EMULATED and row["median_ms"] == 42.0
    assert row["speedup"] is None and row["of_limit"] is None and row["floor_ms"] is None
    head = report.headline(trials)
    assert head.badge == report.EMULATED
    assert head.evidence.startswith("A time of the CPU emulator does not predict a GPU. ") and "42.0" not in head.evidence


def test_headline_names_the_best_ratio_and_what_is_left():
    head = report.headline([*pytorch(), trial("strip_mma", 0.647, "tf32"), trial("naive_gather", 9.7)])
    assert head.sentence == "strip_mma forward is 2.55× as fast as the best PyTorch (eager, TF32 on)"
    assert "of the physical limit" in head.evidence


def test_module_times_are_the_headline_where_they_exist():
    ours = replace(trial("ModelNew", None, "ieee", kind="module", direction="backward"),
                   module_ms={"forward": timing(2.0), "backward": timing(5.0)})
    theirs = replace(trial("nn.ConvTranspose1d", None, "ieee", kind="module_baseline", direction="backward"),
                     module_ms={"forward": timing(4.0), "backward": timing(6.0)})
    head = report.headline([*pytorch(), trial("fast", 0.5), ours, theirs])
    assert head.sentence == "ModelNew forward is 2.00× as fast as the best PyTorch (nn.ConvTranspose1d)"
    assert "module_ms" in head.evidence


def test_all_wrong_says_so_with_the_advice():
    head = report.headline([trial("naive_gather", None, status=Status.MISMATCH, headline="58 % of outputs are wrong.")])
    assert head.badge == "MISMATCH" and "58 %" in head.sentence and DEFAULT_ADVICE[Status.MISMATCH] in head.evidence


def test_pairs_of_two_sessions():
    here = [trial("naive_gather", 2.0), trial("other", 1.0)]
    there = [trial("naive_gather", 4.0), trial("naive_gather", 4.0, config={"BLOCK": 64})]
    found = report.pairs(here, there)
    assert [(p.a.name, p.verdict) for p in found] == [("naive_gather", report.FASTER)]
    assert report.pairs([trial("v", 1.0)], [trial("v", 2.0, device=A100)])[0].ratio is None
    assert report.pairs([trial("v", 1.0, device=CPU)], [trial("v", 2.0, device=CPU)])[0].verdict == report.EMULATED


def test_a_module_is_not_one_more_candidate():
    ours = replace(trial("ModelNew", None, kind="module", direction="backward", device=CPU),
                   module_ms={"forward": timing(2.0), "backward": timing(5.0)})
    wrong = trial("b", None, status=Status.MISMATCH, device=CPU)
    assert report.headline([trial("a", 1.0, device=CPU), ours]).sentence == (
        "1 of 1 candidates and ModelNew are right in all checks")
    assert report.headline([trial("a", 1.0, device=CPU), wrong, ours]).sentence == (
        "1 of 2 candidates is wrong: b, forward")


def test_what_does_not_apply_to_the_layer_is_not_counted_as_wrong():
    skipped = trial("c", None, status=Status.SKIPPED, headline="Not run: c needs layer.stride_w == 2.", device=CPU)
    found = [trial("a", 1.0, device=CPU), trial("b", 1.0, device=CPU), skipped]
    assert report.headline(found).sentence == "2 of 2 candidates are right in all checks"
    lines = tables.text_table(found).splitlines()
    assert lines[-1] == f"SKIPPED  c forward ({skipped.trial_id}): {skipped.headline}", "without advice and command"


def test_the_table_shows_what_differs_from_the_default_and_in_the_table():
    known = find("naive_gather", "forward").default_config
    other = trial("naive_gather", 2.0, config={**known, "BLOCK": 64})
    rows = tables.text_table([trial("naive_gather", 1.0, config=known), other, trial("gone", 3.0, config={"TILE": 8})])
    rows = rows.splitlines()
    assert [any(f"  {words}  " in row for row in rows) for words in ("BLOCK=128", "BLOCK=64", "TILE=8")] == [True] * 3
    assert "  default  " in tables.text_table([trial("naive_gather", 1.0, config=known)])


def test_where_the_verdict_is_unsure_nobody_is_as_fast_as_anybody():
    mine = trial("mine", 20.0, samples=4)
    ratio = report.speedup(mine, pytorch()[1])
    said = report.verdict_sentence("mine forward", ratio, pytorch()[1])
    assert said == ("No clear winner: mine forward 0.21× the best PyTorch (eager, TF32 off), fewer than 5 samples, so no "
                    "interval")


def test_the_cpu_has_no_spread_and_tiny_times_have_their_unit():
    there = [trial("eager", 0.33, kind="baseline", device=CPU), trial("eager, TF32 off", 4.29, kind="baseline")]
    table = report.frame(there).set_index("variant")
    assert pd.isna(table.loc["eager", "spread"]) and table.loc["eager, TF32 off", "spread"] == pytest.approx(1.0)
    figure = plots.bars([trial("tiny", 0.00481, "tf32"), trial("eager, TF32 on", 0.012, "tf32", kind="baseline")],
                        floors={"forward": 0.000402})
    texts = [note.text for note in figure.layout.annotations]
    assert "floor 0.402 µs" in texts and "best PyTorch 0.0120" in texts
    assert any(text.startswith("4.81 µs") for text in texts)


def test_bars_show_right_results_only_and_cut_long_ones():
    wrong = trial("wrong", 0.1, status=Status.MISMATCH)
    trials = [*pytorch(), trial("fast", 0.647, "tf32"), trial("slow", 99.0), wrong]
    figure = plots.bars(trials, expected={"grad_input": ["fast"]}, floors={"forward": 0.378},
                        absent={"grad_input": {"slow": "does not apply"}, "grad_weight": {"fast": "only in tf32"}})
    names = {bar.customdata[0][1] for bar in figure.data}
    texts = [note.text for note in figure.layout.annotations]
    assert names == {"fast tf32", "slow", "eager, TF32 on", "eager, TF32 off"}
    assert any("▸" in text and "99.0" in text for text in texts)
    assert "✕ MISMATCH" in texts and "floor 0.378" in texts and "best PyTorch 4.29" in texts
    assert any("<b>2.55×</b>" in text for text in texts)
    assert texts.count("not run yet") == texts.count("does not apply") == texts.count("only in tf32") == 1
    assert texts.count("–") == 3 and "not run" not in texts, "the others do not compute that direction"
    widths = [axis.domain[1] - axis.domain[0] for axis in (figure.layout.xaxis, figure.layout.xaxis2, figure.layout.xaxis3)]
    assert widths[0] > 2 * widths[1] and figure.layout.xaxis2.showticklabels is False, "directions without a bar are narrow"
    assert "not run" in [note.text for note in plots.bars(trials).layout.annotations], "nobody says why"


def test_emulated_bars_say_so_and_have_no_ratio():
    figure = plots.bars([trial("eager", 0.33, kind="baseline", device=CPU), trial("naive_gather", 42.0, device=CPU)])
    assert figure.layout.xaxis.title.text == "<b>forward</b>, ms, emulated"
    assert not any("×" in note.text for note in figure.layout.annotations)


def test_of_several_configs_the_fastest_is_drawn_and_compared_and_of_a_repeated_one_the_newest():
    times = [("a", 4.0, 128), ("b", 15.0, 64), ("a", 12.0, 128)]   # a was judged twice
    for device in (H200, CPU):
        trials = [trial("v", ms, device=device, candidate_id=name, config={"BLOCK": block}) for name, ms, block in times]
        bar, = plots.bars(report.for_workload(trials, WORK)).data
        assert bar.x == (12.0,) and "BLOCK=128, the fastest of 2 configs" in bar.hovertemplate
        pair, = report.against_pytorch([*trials, *pytorch(device=device)])
        assert (pair.a.kernel_ms.median_ms, pair.a.config) == (12.0, {"BLOCK": 128})


def test_many_trials_are_told_in_a_time_that_grows_with_their_number():
    """Each trial looks its baseline up. To search all trials for it takes minutes of 2 000, and hours of 10 000. The
    template is asked once for the name of its main kernel."""
    kernels = {"sm_90": {name: KernelNumbers(40, 0, 0, 0, 0, 0, 0)
                         for name in ("naive_gather<float>", *(f"helper_{i}" for i in range(9)))}}
    others = [replace(b, workload=replace(WORK, batch=n)) for n in range(100, 160) for b in pytorch()]
    many = [*pytorch(), *others, *(trial("naive_gather", 1.0 + i / 2000, config={"BLOCK": i}, samples=4, resources=kernels)
                                   for i in range(2000))]
    before = time.process_time()
    assert tables.text_table(many).count("2.15×") > 10  # 4.29 ms against 2.0 ms
    report.against_pytorch(many)
    report.for_workload(many, WORK)
    assert time.process_time() - before < 3
