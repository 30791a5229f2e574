"""What a bench runs: the right precisions, configs that can run, the same sample for the same seed. And the two ratios of every
table: against nn.ConvTranspose in its modes, and against any formulation in PyTorch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.best_known import BestKnown, best_config, load, save
from workbench.core.candidate import why_not
from workbench.core.errors import BadRequest
from workbench.core.facts import tensor_bytes
from workbench.core.orders import InterleaveOrder, JudgeOrder
from workbench.core.presets import MODELS, preset
from workbench.core.replies import Interleaved
from workbench.core.space import SearchSpace
from workbench.core.template import render
from workbench.core.trial import FORMULATION, NOT_DROP_IN, Status, Trial
from workbench.core.trial_parts import Detail
from workbench.core.variants import discover, find
from workbench.drive.bench import markdown, text
from workbench.drive.bench.cells import cells_of, groups_of, summary
from workbench.drive.bench.execute import worth_building
from workbench.drive.bench.plan import BenchPlan, precisions, suite_layers
from workbench.drive.bench.prebuild import units_of
from workbench.drive.reporting import report
from workbench.drive.running.against_pytorch import against_best
from workbench.drive.sessions.session import Session

from .made import pytorch, recorded, strong, trial


@pytest.mark.parametrize(("offered", "precision_class", "expected"), [
    (("tf32", "tf32x3", "ieee"), "tf32", ["tf32"]), (("ieee", "fp16"), "tf32", ["ieee"]),
    (("tf32", "tf32x3", "ieee"), "ieee", ["tf32x3", "ieee"]), (("tf32",), "ieee", []), (("fp16",), "tf32", [])])
def test_what_a_variant_computes_in_follows_from_the_class(offered, precision_class, expected):
    assert list(precisions(replace(find("naive_gather", "forward"), precision=offered), precision_class)) == expected


def test_all_layers_and_directions_are_served_and_every_candidate_can_run():
    jobs = BenchPlan().jobs(sm=80, arch="sm_80")
    assert [j.workload.preset for j in jobs] == [f"{p}/full" for p in BenchPlan().layers] and len(jobs) == 17
    for job in jobs:
        assert {c.direction for c in job.candidates} >= {"forward", "grad_input", "grad_weight"}
        assert all(why_not(c, sm=80) is None for c in job.candidates)


def test_a_sweep_is_bounded_seeded_and_comes_after_every_layer_had_its_first():
    plan = BenchPlan(layers=("kb74", "kb81"), directions=("forward",), configs="sweep", sweep=5)
    jobs = plan.jobs(sm=90, arch="sm_90")
    assert [j.workload.preset for j in jobs[:2]] == ["kb74/full", "kb81/full"]
    first, sampled = jobs[0].candidates, [c for j in jobs[2:] if j.workload.preset == "kb74/full" for c in j.candidates]
    known = {c.variant.name: best_config("forward", jobs[0].workload, "tf32", "sm_90", variant=c.variant.name) for c in first}
    assert any(known.values()), "the shipped best known configs have this layer"
    assert [c.config for c in first] == [c.variant.config(known[c.variant.name].config) if known[c.variant.name]
                                         else c.variant.default_config for c in first]
    for one in first:
        configs = [c.config for c in sampled if c.variant == one.variant]
        assert 0 < len(configs) <= 5 and one.config not in configs
        assert len({tuple(sorted(c.items())) for c in configs}) == len(configs)
    again = replace(plan).jobs(sm=90, arch="sm_90")
    other = replace(plan, seed=1).jobs(sm=90, arch="sm_90")
    assert [c.config for j in again for c in j.candidates] == [c.config for j in jobs for c in j.candidates]
    assert [c.config for j in other for c in j.candidates] != [c.config for j in jobs for c in j.candidates]


def test_best_takes_the_best_known_config_of_each_variant(tmp_path: Path):
    work = preset("kb74").workload()
    entry = BestKnown("sm_90", str(work.layer), "forward", "float32", "tf32", "naive_gather", {"BLOCK": 512}, "ieee",
                      "constant", 1.0, 32, (131072,), "NVIDIA H200", "s")
    save([entry], tmp_path / "best.json")
    def block(configs: str) -> int:
        plan = BenchPlan(layers=("kb74",), directions=("forward",), configs=configs, variants=("naive_gather",),
                         known=tmp_path / "best.json")
        return plan.jobs(sm=90, arch="sm_90")[0].candidates[0].config["BLOCK"]
    assert (block("default"), block("best")) == (128, 512)


def test_a_layer_of_the_models_gets_every_default_config_and_then_the_known_ones(tmp_path: Path):
    """No entry by hand: what serves the layer is asked, and what is known of the cell stands beside it."""
    work = preset("models/stream-2").workload(dtype="bfloat16")
    def known(block: int, ms: float, batch: int, size: int) -> BestKnown:
        return BestKnown("sm_90", str(work.layer), "forward", "bfloat16", "bf16", "naive_gather", {"BLOCK": block}, "bf16",
                         "constant", ms, batch, (size,), "NVIDIA H200", "s")
    save([known(512, 3.0, 1, 64), known(256, 9.0, 16, 256), known(128, 1.0, 1, 64)], tmp_path / "best.json")
    plan = BenchPlan(layers=("stream-2",), directions=("forward",), precision="bf16", known=tmp_path / "best.json")
    jobs = plan.jobs(sm=90, arch="sm_90")
    assert {(j.workload.preset, j.workload.dtype) for j in jobs} == {("models/stream-2/full", "bfloat16")}
    assert [c.config for c in jobs[0].candidates] == [c.variant.default_config for c in jobs[0].candidates]
    spaces = [SearchSpace(v, work.layer, "bfloat16", 90, "bf16") for v in discover() if v.direction == "forward"
              and "bf16" in v.precision]
    serving = {s.variant.name for s in spaces if s.why_not(s.variant.default_config) is None}
    assert {c.variant.name for c in jobs[0].candidates} == serving >= {"naive_gather", "implicit_gemm_mma"}
    assert [(c.variant.name, c.config["BLOCK"]) for j in jobs[1:] for c in j.candidates] == [
        ("naive_gather", 512), ("naive_gather", 256)]     # that of its own length first; 128 is the default
    assert [j.candidates for j in replace(plan, configs="default").jobs(sm=90, arch="sm_90")] == [jobs[0].candidates]


def test_the_entry_nearest_in_batch_and_length_speaks_for_a_layer(tmp_path: Path):
    """hifigan-2 and stream-2 are one layer in two sizes; channels_last and contiguous are two cells."""
    def known(name: str, block: int, memory_format: str = "contiguous") -> BestKnown:
        work = preset(name).workload(memory_format=memory_format)
        return BestKnown("sm_90", str(work.layer), "forward", "float32", "tf32", "naive_gather", {"BLOCK": block}, "ieee",
                         "constant", 1 / block, work.batch, work.input_size, "NVIDIA H200", "s", memory_format=memory_format)
    file = tmp_path / "best.json"
    save([known("hifigan-2", 512), known("stream-2", 64), known("sam-1", 512), known("sam-1", 64, "channels_last")], file)
    assert len({e.key for e in load(file)}) == 4 and {e.memory_format for e in load(file)} == {"contiguous", "channels_last"}
    def block(name: str, **more) -> int:
        return best_config("forward", preset(name).workload(**more), "tf32", "sm_90", file=file).config["BLOCK"]
    assert (block("hifigan-2"), block("stream-2"), block("stream-2", size="small")) == (512, 64, 64)
    assert (block("sam-1"), block("sam-1", memory_format="channels_last")) == (512, 64)
    assert best_config("forward", preset("unet-2").workload(), "tf32", "sm_90", file=file) is None


def test_a_suite_in_channels_last_has_its_layers_of_two_and_three_dimensions():
    assert suite_layers("models") == tuple(MODELS) and len(suite_layers("models", "channels_last")) == 13
    for precision, dtype in (("tf32", "float32"), ("ieee", "float32"), ("fp16", "float16"), ("bf16", "bfloat16")):
        plan = BenchPlan(layers=suite_layers("models", "channels_last"), precision=precision, memory_format="channels_last")
        assert {(w.dtype, w.memory_format) for w in plan.workloads} == {(dtype, "channels_last")}
    assert (BenchPlan().configs, BenchPlan(layers=("sam-1",)).configs, BenchPlan(layers=("kb74", "sam-1")).configs) == (
        "default", "known", "known")


def test_top_takes_the_fastest_known_candidates_of_a_cell_and_no_other(tmp_path: Path):
    work = preset("kb74").workload()
    def known(variant: str, block: int, ms: float) -> BestKnown:
        return BestKnown("sm_90", str(work.layer), "forward", "float32", "tf32", variant, {"BLOCK": block}, "ieee",
                         "constant", ms, 32, (131072,), "NVIDIA H200", "s")
    save([known("naive_gather", 512, 3.0), known("shared_weight_tiling", 128, 2.0), known("naive_gather", 64, 4.0)],
         tmp_path / "best.json")
    def chosen(top: int, arch: str = "sm_90", **more) -> list[tuple[str, int]]:
        plan = BenchPlan(layers=("kb74",), configs="top", top=top, known=tmp_path / "best.json", **more)
        return [(c.variant.name, c.config["BLOCK"]) for j in plan.jobs(sm=90, arch=arch) for c in j.candidates]
    assert chosen(1) == [("shared_weight_tiling", 128)] == chosen(1, arch="cpu")
    assert chosen(5) == [("shared_weight_tiling", 128), ("naive_gather", 512), ("naive_gather", 64)]
    assert chosen(5, without=("shared_weight_tiling",)) == [("naive_gather", 512), ("naive_gather", 64)]


def test_pytorch_alone_is_no_cell(tmp_path: Path):
    """Both gradients from one launch are asked of PyTorch only where a variant computes them."""
    plan = BenchPlan(layers=("kb57", "kb74"), directions=("forward", "backward"), configs="top", top=1)
    assert {j.workload.preset: j.directions for j in plan.jobs(sm=90, arch="sm_90")} == {
        "kb57/full": ("forward",), "kb74/full": ("forward", "backward")}


def test_a_bench_of_modules_runs_the_best_known_recipe_of_each_layer():
    jobs = BenchPlan(layers=("kb74", "kb81"), modules=True).jobs(sm=90, arch="sm_90")
    assert {j.workload.preset: j.directions for j in jobs} == {
        "kb74/full": ("forward", "grad_input", "grad_weight"),
        "kb81/full": ("forward", "grad_input", "grad_weight", "backward")}
    assert all(len(j.candidates) == len(j.directions) for j in jobs)


def test_variants_can_be_chosen_and_left_out():
    def names(**chosen) -> set[str]:
        plan = BenchPlan(layers=("kb74",), **chosen)
        return {c.variant.key for j in plan.jobs(sm=90, arch="sm_90") for c in j.candidates}
    assert names(variants=("naive_gather",)) == {f"{d}/naive_gather" for d in BenchPlan().directions}
    assert names() - names(without=("naive_gather", "forward/warp_per_output")) == {
        "forward/warp_per_output", *names(variants=("naive_gather",))}


def test_what_does_not_fit_into_the_gpus_memory_is_not_built():
    job = BenchPlan(layers=("models/nnunet-4",), variants=("naive_gather",)).jobs(sm=90, arch="sm_90")[0]
    needed = tensor_bytes(job.workload, "forward")
    assert needed > 1_250_000_000
    assert len(worth_building(job, needed)) == 3 and not worth_building(job, needed - 1)


def test_units_are_small_on_a_gpu_and_one_on_the_emulator():
    plan = BenchPlan(layers=("kb81",), configs="sweep", sweep=8, variants=("naive_gather",))
    items = [render(c) for job in plan.jobs(sm=90, arch="sm_90") for c in job.candidates]
    units = units_of(items, emulated=False)
    assert sorted(i.candidate_id for u in units for i in u) == sorted(i.candidate_id for i in items)
    assert all(len({i.candidate.variant.key for i in unit}) == 1 and len(unit) <= 6 for unit in units)
    assert [len(u) for u in units_of(items, emulated=True)] == [len(items)] and units_of([], emulated=True) == []


@pytest.mark.parametrize(("wrong", "sentence"), [
    ({"precision": "fp8"}, "precision 'fp8' is not known; choose tf32, ieee, fp16, bf16"),
    ({"layers": ("kb74",), "memory_format": "channels_last"}, "channels_last for 2-D and 3-D only"),
    ({"layers": ("kb75", "kb99")}, "There is no preset 'kb99'"),
    ({"directions": ("sideways",)}, "direction 'sideways'"),
    ({"modules": True, "configs": "best"}, "leave out --configs"), ({"modules": True, "precision": "ieee"}, "any mode"),
    ({"configs": "sweep"}, "--configs sweep 16"), ({"configs": "top"}, "--configs top 1"),
    ({"known": Path("nowhere.json")}, "nowhere.json does not exist"), ({"layers": ()}, "at least one layer"),
    ({"variants": ("nobody",)}, "There is no variant 'nobody'")])
def test_a_wrong_word_is_named(wrong, sentence):
    with pytest.raises(BadRequest, match=sentence):
        BenchPlan(**wrong)


CELL = {"layers": ("kb74",), "directions": ("forward",)}


def asked(root: Path, *more: Trial, ours: Trial | None = None, **plan) -> Session:
    return recorded(root, [*pytorch("kb74", "forward", 2.0, 4.0), *strong("kb74", "forward", tf32_ms=1.0, unconverted_ms=0.4),
                           *more, ours or trial("kb74", "forward", "mma", 0.5, "tf32")], **{**CELL, **plan})


def test_times_of_two_gpus_are_in_two_tables_and_a_cell_left_to_pytorch_counts_as_one(tmp_path: Path) -> None:
    other = replace(trial("kb74", "forward", "mma", 1.0, "tf32").device, name="Other GPU")
    slower = [replace(t, device=other) for t in (*pytorch("kb74", "forward", 2.0, 4.0),
                                                 trial("kb74", "forward", "mma", 4.0, "tf32"))]
    first, second = cells_of([recorded(tmp_path, slower, name="other", **CELL), asked(tmp_path)])
    assert {(c.gpu, round(c.ratio or 0, 6)) for c in (first, second)} == {("Other GPU", 0.5), ("NVIDIA H200", 4.0)}
    assert len(groups_of([first, second])) == 2 and markdown.long([first, second]).count("\n### ") == 1
    one, both = summary([c for c in (first, second) if c.gpu == "Other GPU"], "tf32"), summary([first, second], "tf32")
    assert (one.left, one.with_left, both.left, both.with_left) == (1, pytest.approx(1.0), 1, pytest.approx(2.0))
    assert "1.000× if the ratio below 1 counts as 1." in text.means(one)[0]


@pytest.fixture
def older(tmp_path: Path) -> Session:
    return recorded(tmp_path / "older", [*pytorch("kb81", "forward", 2.0, 4.0), trial("kb81", "forward", "mma", 0.4, "tf32")],
                    layers=("kb81",), directions=("forward",))


def test_a_formulation_counts_against_the_strongest_and_not_against_the_modes(tmp_path: Path) -> None:
    cell = cells_of([asked(tmp_path)])[0]
    assert (cell.baseline.name, cell.ratio) == ("eager, TF32 on", pytest.approx(4.0))
    assert (cell.strongest.name, cell.strongest_ratio) == ("matmul + permute", pytest.approx(2.0))
    assert cell.unconverted.kernel_median_ms == 0.4   # shown; nobody's ratio


def test_what_was_wrong_is_nobodys_time(tmp_path: Path) -> None:
    trials = asked(tmp_path).trials()
    wrong, ours = next(t for t in trials if t.name == "matmul + fold"), next(t for t in trials if t.kind == "candidate")
    assert report.strongest_baseline(trials, ours).name == "matmul + permute"
    timed = replace(wrong, precision="tf32", kernel_ms=replace(ours.kernel_ms, median_ms=0.1))
    assert report.strongest_baseline([*trials, timed], ours).name == "matmul + permute"
    assert report.strongest_baseline([*trials, replace(timed, status=Status.OK)], ours).name == "matmul + fold"


def test_the_modes_are_the_strongest_where_no_formulation_is_faster(tmp_path: Path) -> None:
    faster = trial("kb74", "forward", "eager, TF32 on", 0.9, "tf32", kind="baseline")
    cell = cells_of([asked(tmp_path, faster)])[0]
    assert cell.strongest is cell.baseline and cell.strongest_ratio == cell.ratio


@pytest.mark.parametrize(("ours", "against"), [("tf32x3", "three TF32 convolutions"), ("ieee", "eager, TF32 off")])
def test_three_tf32_products_are_compared_with_three_of_ours_not_with_fp32(tmp_path: Path, ours: str, against: str) -> None:
    split = trial("kb74", "forward", "three TF32 convolutions", 1.5, "tf32x3", kind="baseline", flags=(FORMULATION,))
    cell = cells_of([asked(tmp_path, split, ours=trial("kb74", "forward", "mma", 0.5, ours), precision="ieee")])[0]
    assert cell.strongest.name == against and cell.baseline.name == "eager, TF32 off"


def test_every_table_has_both_ratios_and_channels_last_beside(tmp_path: Path) -> None:
    cells = cells_of([asked(tmp_path)])
    said = text.table(cells)
    assert "strongest, ms" in said and "matmul + permute" in said and "4.00×" in said and "2.00×" in said and "0.400" in said
    assert "4.00×, 2.00× against the strongest PyTorch, " in said
    long, short = (make(cells) for make in (markdown.long, markdown.short))
    row = next(line for line in long.splitlines() if line.startswith("| KernelBench #74"))
    heads = next(line for line in long.splitlines() if line.startswith("| layer"))
    assert dict(list(zip(heads.split(" | "), row.split(" | "), strict=True))[8:12]) == {
        "strongest, ms": "1.00", "its name": "matmul + permute", "ratio": "2.00×", "channels_last, ms": "0.400"}
    assert "| **4.00×** (2.00×) 0.500 ms |" in short
    assert not any("not measured" in table for table in (said, long, short))
    assert summary(cells, "tf32").strongest == pytest.approx(2.0)


def test_an_older_session_has_one_line_that_says_why(tmp_path: Path, older: Session) -> None:
    alone, both = cells_of([older]), cells_of([asked(tmp_path / "new"), older])
    for cells, said in ((alone, "in this session."), (both, "for 1 of the 2 cells.")):
        for table in (text.table(cells), markdown.long(cells)):
            assert table.count(f"Other formulations in PyTorch were not measured {said}") == 1
    assert "not measured" not in markdown.short(alone) and "| **5.00×** " in markdown.short(alone)   # the README has no notes
    assert alone[0].strongest is None and alone[0].ratio == pytest.approx(5.0)
    assert "against the strongest PyTorch" not in text.means(summary(alone, "tf32"))[0]
    assert "2.00× against the strongest PyTorch (1 of them)" in text.means(summary(both, "tf32"))[0]
    assert summary([*both, *alone], "tf32").strongest is None   # a mean of few cells says nothing of the others


def test_the_tables_of_each_suite_and_dtype_have_both_ratios(tmp_path: Path, older: Session) -> None:
    def made(name: str, ms: float, **more) -> Trial:
        return trial("models/sam-1", "forward", name, ms, "bf16", dtype="bfloat16", **more)

    of_models = recorded(tmp_path / "models", [
        made("eager", 0.3, kind="baseline"), made("matmul + permute", 0.15, kind="baseline", flags=(FORMULATION,)),
        made("channels_last, conversion not counted", 0.2, kind="baseline", flags=(NOT_DROP_IN,),
             detail=Detail(way="channels_last")), made("mma", 0.1)],
        layers=("models/sam-1",), directions=("forward",), precision="bf16")
    cells = cells_of([older, of_models])
    for table in (text.table(cells), markdown.long(cells)):
        assert table.count("were not measured") == 1 and table.index("were not measured") < table.index("1.50×")
        assert "3.00×" in table and "0.200" in table
    assert "| **3.00×** (1.50×) 0.100 ms |" in markdown.short(cells)
    assert cells[1].strongest_ratio == pytest.approx(1.5) and cells[1].ratio == pytest.approx(3.0)


def test_the_headline_names_the_strongest_where_it_is_another(tmp_path: Path) -> None:
    said = report.headline(asked(tmp_path).trials())
    assert "the best PyTorch (eager, TF32 on)" in said.sentence
    assert "Against the strongest PyTorch (matmul + permute): 2.00×." in said.evidence
    modes = [t for t in asked(tmp_path / "quick").trials() if FORMULATION not in t.flags]
    assert "strongest" not in report.headline(modes).evidence


@pytest.mark.parametrize(("strongest_ms", "turns"), [(0.55, 2), (0.8, 1), (0.3, 1)])
def test_a_near_strongest_is_timed_in_turns_as_well(tmp_path: Path, strongest_ms: float, turns: int) -> None:
    session = Session.create(tmp_path, "s")
    modes = [replace(t, detail=Detail(way=way)) for t, way in zip(
        pytorch("kb74", "forward", 0.9, 4.0), ("tf32_on", "tf32_off"), strict=True)]
    other = trial("kb74", "forward", "matmul + permute", strongest_ms, "tf32", kind="baseline", flags=(FORMULATION,),
                  detail=Detail(way="matmul_permute"))
    called = []

    def call(order: InterleaveOrder) -> Interleaved:
        called.append(order.theirs)
        return Interleaved(status=Status.OK, headline="", ours=(0.5,) * 20, theirs=(0.9 if len(called) == 1 else 0.6,) * 20,
                        stop="noise")

    ours = JudgeOrder(tmp_path / "library", "symbol", "forward", preset("kb74").workload(), "cuda:0", "tf32")
    judged = against_best(call, session, ours, trial("kb74", "forward", "mma", 0.5, "tf32"), [*modes, other])
    assert called == ["tf32_on", "matmul_permute"][:turns]
    assert report.speedup(judged, modes[0]).value == pytest.approx(1.8)
    expected = 1.2 if turns == 2 else strongest_ms / 0.5
    assert report.speedup(judged, other).value == pytest.approx(expected)
    assert len(json.dumps(judged.to_json())) < 4096
