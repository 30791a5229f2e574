"""Recorded times to best known configs, and back to candidates: by export, run and the page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.shared import require, ticked
from tests.tuning.test_tune import H200
from workbench.core.best_known import DERIVED, BestKnown, best_config, load, save, slower
from workbench.core.candidate import Candidate
from workbench.core.command import parse_layer
from workbench.core.errors import BadRequest
from workbench.core.layer import BACKWARD, ConvTranspose, Workload
from workbench.core.presets import preset
from workbench.core.trial import Status, Trial
from workbench.core.trial_parts import Detail, KernelNumbers
from workbench.core.variants import TEMPLATES, find
from workbench.drive.bench.best import Nvcc, derive, slower_of, write_best
from workbench.drive.bench.cells import holds_bench
from workbench.drive.bench.defaults import default_configs, default_configs_table, default_precision
from workbench.drive.exporting.best_recipe import best_known, best_recipe, cautions, origin, shared
from workbench.drive.sessions.session import Session, list_sessions
from workbench.drive.tuning import store
from workbench.drive.tuning.space import TuneSpace, key_of_parts
from workbench.faces import cli

from .made import CPU, pytorch, recorded, trial

WORK = preset("kb74").workload()
DIRECTIONS = ("forward", "grad_input", "grad_weight")


def bench_of_kb74(root: Path) -> Session:
    """Three variants, two configs of one of them; a wrong one, an emulated one, a small one and a fork must not count."""
    trials = []
    for direction in DIRECTIONS:
        trials += [*pytorch("kb74", direction, 2.0, 4.0),
                   trial("kb74", direction, "shared_weight_tiling", 1.0, "ieee", config={"BLOCK": 64}, rel_l2=2.34e-7),
                   trial("kb74", direction, "shared_weight_tiling", 0.8, "ieee", config={"BLOCK": 128}),
                   trial("kb74", direction, "warp_per_output", 1.1, "ieee", config={"WARPS": 4}),
                   trial("kb74", direction, "naive_gather", 9.0, "ieee", config={"BLOCK": 64}),
                   trial("kb74", direction, "naive_gather", None, "ieee", status=Status.MISMATCH),
                   replace(trial("kb74", direction, "naive_gather-3f2a", 0.2, "ieee"), forked_from="0123456789abcdef"),
                   trial("kb74", direction, "naive_gather", 0.1, "ieee", device=CPU),
                   trial("kb74", direction, "naive_gather", 0.01, "ieee", size="small")]
    return recorded(root, trials, layers=("kb74",))


@pytest.fixture(scope="module")
def nvcc() -> Iterator[Nvcc]:
    with Nvcc() as asked:
        require(asked.problem is None, str(asked.problem))
        yield asked


@pytest.fixture
def known(tmp_path: Path, nvcc: Nvcc) -> Path:
    """A data file made from the bench above."""
    file = tmp_path / "best.json"
    write_best([bench_of_kb74(tmp_path)], file)
    return file


def test_the_best_config_of_each_variant_worth_knowing(tmp_path, nvcc):
    found = [e for e in derive([bench_of_kb74(tmp_path)], nvcc) if e.arch == "sm_90" and e.direction == "forward"]
    assert {(e.precision_class, e.variant, e.ms) for e in found} == {
        (c, v, ms) for c in ("tf32", "ieee") for v, ms in (("shared_weight_tiling", 0.8), ("warp_per_output", 1.1))}
    best = next(e for e in found if e.precision_class == "tf32" and e.ms == 0.8)
    assert best.config["BLOCK"] == 128 and best.layer == str(WORK.layer) and best.batch == 32
    assert (best.baseline, best.baseline_ms, best.pytorch_precision) == ("eager, TF32 on", 2.0, "")
    assert (best.session, best.gpu, best.note) == ("recorded-h200", "NVIDIA H200", "")
    exact = next(e for e in found if e.precision_class == "ieee" and e.ms == 0.8)
    assert (exact.baseline, exact.baseline_ms) == ("eager, TF32 off", 4.0)


def test_the_best_config_of_a_slower_variant_is_listed_apart(tmp_path, known):
    """naive_gather has one config in each direction, so nothing was chosen there. With others in forward the fastest of them is
    kept, beside the entries. A session of another cell leaves it there."""
    def one(block: int, ms: float) -> Trial:
        return trial("kb74", "forward", "naive_gather", ms, "ieee", config={"BLOCK": block})

    assert slower(known) == [] and "slower" not in known.read_text()
    entries = load(known)
    bench = bench_of_kb74(tmp_path / "again")
    by_default = recorded(tmp_path, [one(128, 8.0)], name="recorded-default", layers=("kb74",))
    assert slower_of([bench, by_default], entries) == [], "a tune tries the default anyway"
    chosen = recorded(tmp_path, [one(256, 7.0)], name="recorded-chosen", layers=("kb74",))
    write_best([bench, by_default, chosen], known)
    [kept] = slower(known)
    assert (kept.variant, kept.config, kept.ms, kept.session, kept.precision_class) == (
        "naive_gather", {"BLOCK": 256, "CO_PER_THREAD": 1}, 7.0, "recorded-chosen", "ieee")
    assert load(known) == entries
    write_best([recorded(tmp_path, [trial("kb64", "forward", "naive_gather", 1.0, "ieee", config={"BLOCK": 64})],
                         name="recorded-other", layers=("kb64",))], known)
    assert slower(known) == [kept] and len(load(known)) > len(entries)


def test_a_time_with_pytorch_beside_it_goes_before_a_faster_one_without(tmp_path, nvcc):
    faster = [trial("kb74", "forward", "shared_weight_tiling", 0.7, "ieee", config={"BLOCK": 128}),
              trial("kb74", "forward", "implicit_gemm_mma", 0.9, "tf32")]
    alone = recorded(tmp_path, faster, name="recorded-alone", layers=("kb74",))
    found = derive([bench_of_kb74(tmp_path), alone], nvcc)
    entries = {(e.arch, e.variant, e.ms, e.baseline_ms)
               for e in found if e.direction == "forward" and e.precision_class == "tf32"}
    assert {("sm_90", "shared_weight_tiling", 0.8, 2.0), ("sm_80", "shared_weight_tiling", 0.8, 2.0),
            ("sm_90", "implicit_gemm_mma", 0.9, None)} <= entries
    assert 0.7 not in {ms for _, _, ms, _ in entries}


def test_layers_of_the_models_in_other_dtypes_and_memory_formats_are_cells_of_their_own(tmp_path, nvcc):
    """hifigan-2 and stream-2 are one layer in two sizes: the larger tensors must not speak for the smaller ones."""
    def made(name: str, block: int, ms: float, **more) -> Trial:
        return trial(name, "forward", "naive_gather", ms, "bf16", config={"BLOCK": block}, dtype="bfloat16", **more)

    trials = [made("models/hifigan-2", 64, 0.2), made("models/stream-2", 256, 0.02), made("models/stream-2", 512, 0.03),
              made("models/stream-2", 32, 0.001, size="small"), made("models/sam-1", 128, 0.1),
              made("models/sam-1", 512, 0.2, memory_format="channels_last"),
              trial("models/sam-1", "forward", "eager", 0.3, "bf16", kind="baseline", dtype="bfloat16")]
    session = recorded(tmp_path, trials, layers=("models/hifigan-2", "models/stream-2", "models/sam-1"), precision="bf16")
    file = tmp_path / "best.json"
    entries = write_best([session], file)
    assert {(e.arch, e.dtype, e.precision_class) for e in entries} == {(a, "bfloat16", "bf16") for a in ("sm_80", "sm_90")}
    assert len(load(file)) == 8 == len({e.key for e in entries})
    def block(name: str, arch: str = "sm_90", **more) -> int:
        return best_known(preset(name).workload(dtype="bfloat16", **more), arch, file=file)["forward"].config["BLOCK"]
    for arch in ("sm_80", "sm_90"):
        assert (block("models/hifigan-2", arch), block("models/stream-2", arch)) == (64, 256)
        assert (block("sam-1", arch), block("sam-1", arch, memory_format="channels_last")) == (128, 512)
    assert best_known(preset("sam-1").workload(dtype="bfloat16"), "sm_90", file=file)["forward"].baseline_ms == 0.3
    write_best([recorded(tmp_path, [made("models/stream-2", 512, 0.01)], name="recorded-later", layers=("models/stream-2",),
                         precision="bf16")], file)
    assert (block("models/hifigan-2"), block("models/stream-2"), len(load(file))) == (64, 512, 8)


def default(direction: str, precision: str, **detail) -> Trial:
    return trial("kb74", direction, "eager", 3.0, precision, kind="baseline", detail=Detail(**detail))


def test_the_default_is_what_a_process_of_its_own_says_whatever_session_it_stands_in(tmp_path, nvcc):
    """Beside cudnn.benchmark the default inherits its algorithm, so that says nothing of the default."""
    bench = bench_of_kb74(tmp_path)
    beside = [default(d, "ieee") for d in DIRECTIONS]
    alone = [default(d, p, fresh_process=True) for d, p in zip(DIRECTIONS, ("tf32", "ieee", "tf32"), strict=True)]
    defaults = recorded(tmp_path, [*beside, *alone], name="recorded-h200-defaults", layers=("kb74",), strength="default")
    found = {(e.arch, e.direction): e for e in derive([bench, defaults], nvcc)}
    for arch in ("sm_80", "sm_90"):
        assert [found[arch, d].pytorch_precision for d in DIRECTIONS] == ["tf32", "ieee", "tf32"]
    assert all(e.session == bench.name and e.baseline_ms == 2.0 for e in found.values() if e.precision_class == "tf32")
    assert all(e.pytorch_precision == "" for e in derive([bench], nvcc))


def test_both_gradients_at_once_are_as_exact_as_the_more_exact_default():
    both = trial("kb74", BACKWARD, "fused_mma", 1.0, "tf32")
    def asked(first: str, second: str) -> str:
        return default_precision([default("grad_input", first), default("grad_weight", second)], both)
    assert (asked("tf32", "ieee"), asked("tf32", "tf32"), asked("tf32", "")) == ("ieee", "tf32", "")
    assert default_precision([default(BACKWARD, "tf32"), default("grad_input", "ieee")], both) == "tf32"


def test_the_sessions_of_defaults_are_taken_and_shipped(tmp_path, monkeypatch, capsys, nvcc):
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    bench_of_kb74(tmp_path)
    recorded(tmp_path, [default(d, "tf32", fresh_process=True) for d in DIRECTIONS], name="mine", layers=("kb74",),
             strength="default")
    assert cli.main(["bench", "--ship", "recorded-mine", "mine"]) == 0
    assert cli.main(["bench", "--write-best", str(tmp_path / "best.json")]) == 0, capsys.readouterr().err
    assert {e.pytorch_precision for e in load(tmp_path / "best.json")} == {"tf32"}
    capsys.readouterr()
    assert cli.main(["bench", "--table"]) == 0 and "not measured yet" not in capsys.readouterr().out


def test_sm_80_gets_the_best_that_is_legal_there_and_says_that_it_is_predicted(tmp_path, monkeypatch, nvcc):
    root = tmp_path / "templates"
    shutil.copytree(TEMPLATES, root)
    file = root / "forward" / "shared_weight_tiling.cu"
    file.write_text(file.read_text().replace("precision = ", "min_sm    = 90\nprecision = ", 1))
    monkeypatch.setenv("KERNEL_WORKBENCH_TEMPLATES", str(root))
    found = {e.direction: e for e in derive([bench_of_kb74(tmp_path)], nvcc)
             if e.arch == "sm_80" and e.precision_class == "ieee"}
    assert found["forward"].variant == "warp_per_output"            # the faster one needs sm_90 here
    assert found["grad_input"].variant == "shared_weight_tiling"
    assert all(e.note == DERIVED and e.gpu == "NVIDIA H200" for e in found.values())
    assert DERIVED in origin(found["forward"])


def test_a_config_that_spills_on_sm_80_is_not_predicted_for_it(tmp_path, nvcc):
    def bench(stored: int) -> list[BestKnown]:
        resources = {"sm_80": {"k": KernelNumbers(255, stored, 0, 0, 0, 0, 0)}}
        session = recorded(tmp_path / str(stored), [
            trial("kb74", "forward", "shared_weight_tiling", 0.8, "ieee", config={"BLOCK": 128}, resources=resources),
            trial("kb74", "forward", "naive_gather", 9.0, "ieee")])
        return [e for e in derive([session], nvcc) if e.arch == "sm_80" and e.precision_class == "ieee"]
    assert [e.variant for e in bench(64)] == ["naive_gather"]
    assert [e.variant for e in bench(0)] == ["shared_weight_tiling"]


def test_nvcc_is_asked_where_the_trial_does_not_know(tmp_path, nvcc):
    """Three blocks a multiprocessor leave 168 registers, too few for this layer on both architectures."""
    crowded = find("implicit_gemm_mma", "forward").config({"BLOCKS": 3})
    spilled = {"sm_90": {"k": KernelNumbers(168, 172, 0, 0, 0, 0, 0)}}
    session = recorded(tmp_path, [
        trial("kb78", "forward", "implicit_gemm_mma", 0.9, "tf32", config=crowded, resources=spilled),
        trial("kb78", "forward", "naive_gather", 9.0, "ieee")])
    found: dict[tuple[str, str], str] = {}
    for one in derive([session], nvcc):
        found.setdefault((one.arch, one.precision_class), one.variant)
    assert found.pop(("sm_90", "tf32")) == "implicit_gemm_mma"  # it was measured, and is the fastest
    assert found == dict.fromkeys([("sm_80", "tf32"), ("sm_80", "ieee"), ("sm_90", "ieee")], "naive_gather")
    candidate = Candidate(find("implicit_gemm_mma", "forward"), preset("kb78").workload().layer, "float32", crowded, "tf32")
    assert nvcc.spills(candidate, "sm_80") > 0


def test_what_is_asked_for_decides(known):
    def best(direction: str, workload: Workload, precision: str, arch: str, **more) -> BestKnown | None:
        return best_config(direction, workload, precision, arch, file=known, **more)

    entry = best("forward", WORK, "tf32", "sm_90")
    assert entry.variant == "shared_weight_tiling" and entry.candidate(WORK).config["BLOCK"] == 128
    assert best("forward", WORK, "tf32", "sm_90", variant="warp_per_output").variant == "warp_per_output"
    assert best("forward", WORK, "tf32", "sm_90", exact=True) is None       # nothing here computes in tf32
    assert best("forward", WORK, "ieee", "sm_90", exact=True).variant == "shared_weight_tiling"
    small = preset("kb74").workload("small")
    assert best("forward", small, "tf32", "sm_90") == entry                 # tensors do not matter
    with_bias = replace(small, layer=replace(WORK.layer, bias=True))
    assert best("forward", with_bias, "tf32", "sm_90") == entry
    other = replace(small, layer=replace(WORK.layer, dilation=(2,)))
    assert best("forward", other, "tf32", "sm_90") is None
    assert best("forward", WORK, "tf32", "sm_80").derived
    assert best("forward", WORK, "tf32", "sm_100").arch == "sm_90"
    with pytest.raises(BadRequest, match="not for fp64"):
        best("forward", WORK, "fp64", "sm_90")


def test_an_entry_whose_template_changed_gives_way_to_the_next(known):
    entries = load(known)
    broken = [replace(e, config={"GONE": 1}) if e.variant == "shared_weight_tiling" else e for e in entries]
    save(broken, known)
    assert best_config("forward", WORK, "tf32", "sm_90", file=known).variant == "warp_per_output"


def test_writing_again_keeps_what_the_sessions_say_nothing_about(known, tmp_path):
    other = recorded(tmp_path / "later", [trial("kb81", "forward", "naive_gather", 2.0, "ieee")], layers=("kb81",))
    a100 = replace(load(known)[0], arch="sm_80", note="", gpu="NVIDIA A100", ms=1.7, direction="forward",
                   precision_class="ieee")
    save([a100, *(e for e in load(known) if e.key != a100.key)], known)
    before = load(known)
    write_best([other], known)
    assert [e for e in load(known) if e.layer == str(WORK.layer)] == [e for e in before if e.layer == str(WORK.layer)]
    assert {e.arch for e in load(known) if "2d" in e.layer} == {"sm_80", "sm_90"}
    write_best([bench_of_kb74(tmp_path / "again")], known)                          # measured beats predicted
    assert [e for e in load(known) if e.key == a100.key] == [a100]


def test_a_session_without_gpu_times_is_refused(tmp_path):
    empty = recorded(tmp_path, [], layers=("kb74",))
    with pytest.raises(BadRequest, match="There is no GPU time of a right candidate in recorded-h200"):
        write_best([empty], tmp_path / "best.json")


def test_the_recipe_takes_the_class_that_pytorch_computes_in(known):
    recipe, entries = best_recipe(WORK, "sm_90", file=known)
    assert recipe.precision == dict.fromkeys(DIRECTIONS, "ieee") and len(entries) == 3
    fast = [replace(e, variant="mma", precision="tf32", ms=0.1) for e in load(known) if e.precision_class == "tf32"]
    exact = [e for e in load(known) if e.precision_class == "ieee"]
    save([*(replace(e, pytorch_precision="ieee") for e in fast), *exact], known)
    recipe, _ = best_recipe(WORK, "sm_90", file=known)                              # there is no template mma
    assert recipe.precision == dict.fromkeys(DIRECTIONS, "ieee")
    free = Workload(ConvTranspose(1, 4, 4, 3), 1, (8,))
    with pytest.raises(BadRequest, match="choose variants instead"):
        best_recipe(free, "sm_90", file=known)


def test_one_launch_for_both_gradients_is_as_exact_as_each_of_them(known):
    """Where PyTorch computes one gradient in fp32, a launch in TF32 does not stand in for both."""
    work = preset("kb79").workload()
    assert BACKWARD in best_known(work, "sm_90")  # the shipped file: PyTorch computes both in TF32
    save([replace(e, pytorch_precision="ieee") if e.direction == "grad_input" else e for e in load()], known)
    assert BACKWARD in best_known(work, "sm_90", precision="tf32", file=known)
    found = best_known(work, "sm_90", file=known)
    assert found["grad_input"].precision == "tf32x3" and BACKWARD not in found


@pytest.mark.parametrize(("slower", "shares"), [(1.05, True), (1.07, False)])
def test_forward_and_grad_input_share_a_template_if_that_costs_little(known, slower: float, shares: bool):
    """warp_per_output is the fastest in forward, shared_weight_tiling in grad_input; both are known in each."""
    times = {("forward", "warp_per_output"): 0.8, ("forward", "shared_weight_tiling"): 0.8 * slower,
             ("grad_input", "warp_per_output"): 1.1, ("grad_input", "shared_weight_tiling"): 0.8}
    save([replace(e, ms=times.get((e.direction, e.variant), e.ms)) for e in load(known) if e.variant != "naive_gather"], known)
    recipe, entries = best_recipe(WORK, "sm_90", file=known)
    chosen = {e.direction: e.variant for e in entries}
    assert chosen["grad_input"] == "shared_weight_tiling"
    assert chosen["forward"] == ("shared_weight_tiling" if shares else "warp_per_output"), chosen
    told = shared(entries, WORK, "sm_90", file=known)
    assert len(told) == shares and all(line.startswith("forward: warp_per_output was measured at 0.800 ms against ") and
                                       line.endswith("run --best runs warp_per_output.") for line in told), told


def test_what_was_no_faster_than_pytorch_is_left_to_pytorch(known):
    slow = [replace(e, baseline_ms=e.ms / 2) if e.direction == "forward" else e for e in load(known)]
    save(slow, known)
    recipe, entries = best_recipe(WORK, "sm_90", file=known)
    assert recipe.forward is None and {e.direction for e in entries} == {"grad_input", "grad_weight"}
    save([replace(e, baseline_ms=e.ms / 2) for e in slow], known)
    with pytest.raises(BadRequest, match="was faster than PyTorch"):
        best_recipe(WORK, "sm_90", file=known)


def test_a_prediction_says_so_where_it_comes_from(known):
    _, entries = best_recipe(WORK, "sm_80", file=known)
    assert [e.direction for e in entries] == list(DIRECTIONS)
    assert all(DERIVED in origin(e) and "session recorded-h200" in origin(e) for e in entries)


def test_the_default_of_the_fastest_variant_is_compared_with_its_best_config(tmp_path):
    def one(layer: str, block: int, ms: float, **more) -> Trial:
        return trial(layer, "forward", "naive_gather", ms, "ieee", config={"BLOCK": block}, **more)

    default = find("naive_gather", "forward").default_config["BLOCK"]
    session = recorded(tmp_path, [
        one("kb74", default, 1.2), one("kb74", 64, 1.0), one("kb74", 32, 0.1, device=CPU),
        trial("kb74", "forward", "warp_per_output", 1.1, "ieee"),
        one("kb81", default, 2.0), one("kb81", 64, 3.0), one("kb64", 64, 4.0),
        trial("kb57", "forward", "gone", 1.0, "ieee")], layers=("kb74", "kb81", "kb64"))
    found = {c.best.workload.preset: c for c in default_configs([session])}
    assert {name: c.ratio for name, c in found.items()} == {"kb74/full": 1.2, "kb81/full": 1.0, "kb64/full": None}
    said = default_configs_table(found.values())
    assert "1.200 times" in said and "BLOCK=64" in said and "kb81" not in said
    assert said.endswith("3 cells. In 1 the default is the fastest config that was measured, or the only one; in 0 it takes at "
                         "most 1.15 times as long; in 1 it takes longer; in 1 it was not measured.")
    best_alone = recorded(tmp_path, [one("kb74", 64, 0.98), one("kb64", 64, 3.9), one("kb64", 32, 5.0),
                                     one("kb81", 64, 1.9)], name="recorded-again", layers=("kb74", "kb64", "kb81"))
    for both in ([session, best_alone], [best_alone, session]):
        found = {c.best.workload.preset: (c.ratio, c.best.kernel_median_ms) for c in default_configs(both)}
        assert found == {"kb74/full": (1.2, 1.0), "kb81/full": (None, 1.9), "kb64/full": (None, 3.9)}, "5 % is more than noise"


def test_the_page_on_kernels_names_the_recorded_defaults_that_are_slower_by_more_than_15_percent():
    page = (Path(__file__).resolve().parents[2] / "docs" / "kernels.md").read_text(encoding="utf-8")
    there = [Session(path) for path in list_sessions() if path.name.startswith("recorded-")]
    found = default_configs([session for session in there if holds_bench(session)])
    slow = [one for one in found if (one.ratio or 0) > 1.15]
    assert len(found) >= 170 and slow
    for one in slow:
        name = one.best.workload.preset.removesuffix("/full").removeprefix("models/").replace("kb", "#")
        assert f"| {name} {one.best.direction} | {one.ratio:.2f} |" in page


# From here on with the file that ships: what a user of the command line and of the page gets.

def shipped(workload: Workload = WORK, arch: str = "sm_90") -> dict[str, BestKnown]:
    return best_known(workload, arch)


def test_export_best_writes_the_file_and_says_where_it_comes_from(tmp_path, capsys):
    out = tmp_path / "model_new.py"
    assert cli.main(["export", "--preset", "kb74", "--best", "--arch", "sm_80", "--out", str(out)]) == 0
    there = shipped(arch="sm_80").values()
    assert capsys.readouterr().err.splitlines() == [*map(origin, there), *cautions(there, "sm_80")]
    for direction, entry in shipped(arch="sm_80").items():
        config = " ".join(f"{k}={v}" for k, v in entry.candidate(WORK).config.items())
        assert f"{direction:<12} {entry.variant} {config}" in out.read_text()
    assert cli.main(["export", "--layer", "ConvTranspose1d(3, 5, 3)", "--input-size", "9", "--best"]) == 2
    assert capsys.readouterr().err.startswith("No best known config for ConvTranspose1d(3, 5, 3)")
    assert cli.main(["export", "--preset", "kb74", "--best", "--forward", "naive_gather"]) == 2
    assert "leave out" in capsys.readouterr().err


def test_variants_says_of_a_layer_what_can_run_on_a_gpu_and_what_is_best_there(capsys):
    def said(*words: str) -> list[str]:
        assert cli.main(["variants", *words]) == 0
        return capsys.readouterr().out.splitlines()

    lines = said("--preset", "models/pose", "--arch", "sm_86", "--precision", "tf32")
    assert "grad_weight of ConvTranspose2d(256, 256, 4, stride=2, padding=1, bias=False) on sm_86" in lines
    assert "  persistent_wgmma in tf32: does not run: persistent_wgmma needs sm_90, this GPU is sm_86." in lines
    assert "  split_mma in tf32: runs, with N_TILES=1 SHARED_KB=72 because otherwise it does not fit this GPU" in lines
    best = [line for line in lines if line.startswith("  best known, derived: ")]
    assert len(best) == 3 and all("for sm_86 derived: " in line for line in best)
    lines = said("--preset", "kb74", "--arch", "sm_90", "--dtype", "float32", "--precision", "tf32")
    assert sum(line.startswith("  best known, measured: ") for line in lines) == 4
    lines = said("--layer", "ConvTranspose1d(3, 5, 3)", "--input-size", "9", "--arch", "sm_120")
    assert lines[0].startswith("No best known config for ConvTranspose1d(3, 5, 3)") and "  naive_gather in ieee: runs" in lines
    assert cli.main(["variants", "--arch", "sm_86"]) == 2 and "need --preset or --layer" in capsys.readouterr().err


def test_run_best_judges_just_those(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path / "runs"))
    assert cli.main(["run", "--preset", "kb74/small", "--best", "--device", "cpu", "--direction", "grad_input",
                     "--effort", "quick", "--no-baselines", "--no-time", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    best = shipped()["grad_input"].candidate(WORK)
    assert [(t["name"], t["config"], t["status"]) for t in lines] == [(best.variant.name, best.config, "OK")]
    assert cli.main(["run", "--preset", "kb74/small", "--best", "--variant", "naive_gather"]) == 2


def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AppTest:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path / "sessions"))
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path / "cache"))
    page = AppTest.from_file(str(Path(__file__).resolve().parents[2] / "app.py"), default_timeout=300).run()
    assert not page.exception
    return page


def test_the_page_ticks_the_best_known_and_says_where_it_comes_from(tmp_path, monkeypatch):
    page, best = opened(monkeypatch, tmp_path), shipped()
    page.selectbox(key="precision").select("tf32").run()
    said = page.button(key="best known").help.replace("\\", "")    # written as markdown
    assert all(f"{d}: {e.variant}, " in said and e.gpu in said for d, e in best.items())
    page.button(key="best known").click().run()
    assert not page.exception
    others = [v for d, v in ticked("tf32") if d not in best]  # a direction that nobody measured is left as it is
    assert next(b for b in page.button if b.label.startswith("Run")).label == f"Run {len(best) + len(others)} in 4 directions"
    for direction, entry in best.items():
        page.segmented_control(key="direction").select(direction).run()
        chosen = [box.key for box in page.checkbox if box.key.startswith(f"tick {direction} ") and box.value]
        assert chosen == [f"tick {direction} {entry.variant}"]
        for name, value in entry.candidate(WORK).config.items():
            assert page.session_state[f"set {direction} {entry.variant} {name}"] == [value]


def test_the_page_says_when_nothing_is_known(tmp_path, monkeypatch):
    page = opened(monkeypatch, tmp_path)
    page.selectbox(key="precision").select("tf32").run()
    assert not page.button(key="best known").disabled
    page.text_input(key="dilation").set_value("4").run()
    button = page.button(key="best known")
    assert button.disabled and button.help.startswith("No best known config for ConvTranspose1d(32, 64, 5")


def test_a_tune_begins_with_the_best_of_each_variant_although_another_one_is_faster(tmp_path: Path,
                                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """packed_wgmma is the fastest variant of no 1-D layer, and one config of it was measured on a 1-D layer and is listed as
    slower. Without that list, one of another number of dimensions is taken. A variant has one such config, not its default. It
    has none if configs of similar layers are known."""
    layer = replace(preset("kb74").layer, in_channels=40, out_channels=56)
    space = TuneSpace(Workload(layer, 16, (100_000,)), "grad_weight", "tf32", H200, variants=("packed_wgmma", "strip_wgmma"))

    def of(name: str) -> list[BestKnown]:
        keys = [key for key in store.near(space, H200) if key.startswith(f"grad_weight/{name} tf32 ")]
        listed = [*slower(), *load()]
        return [next(e for e in listed if key == key_of_parts(e.variant, e.direction, e.precision, e.form, e.config))
                for key in keys]

    [one] = of("packed_wgmma")
    assert parse_layer(one.layer).dims == 1 and one in slower()
    known, strips = load(), of("strip_wgmma")
    assert all(parse_layer(e.layer).dims == 1 for e in strips) and strips
    file = tmp_path / "known.json"
    monkeypatch.setattr("workbench.core.best_known.FILE", file)
    save(known, file)
    [other] = of("packed_wgmma")
    assert parse_layer(other.layer).dims > 1
    assert of("strip_wgmma") == strips
    default = find("packed_wgmma", "grad_weight").config({})
    save([e for e in known if e.variant != "packed_wgmma" or e.config == default], file)
    assert of("packed_wgmma") == [] and any(e.variant == "packed_wgmma" for e in load()), "only the default is known"
