"""Two ratios in every table: against nn.ConvTranspose in its modes, and against any formulation in PyTorch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.orders import InterleaveOrder, JudgeOrder
from workbench.core.presets import preset
from workbench.core.replies import Interleaved
from workbench.core.trial import FORMULATION, NOT_DROP_IN, Status, Trial
from workbench.core.trial_parts import Detail
from workbench.drive.bench import markdown, text
from workbench.drive.bench.cells import cells_of, groups_of, summary
from workbench.drive.reporting import report
from workbench.drive.running.against_pytorch import against_best
from workbench.drive.sessions.session import Session

from .made import pytorch, recorded, strong, trial

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
