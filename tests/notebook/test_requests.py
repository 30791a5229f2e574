"""The notebook is executed as a reader would; interrupting a cell stops the run. What a person gets wrong in a cell: one
sentence that names the value and what to do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import workbench as wb
from workbench.core.variants import TEMPLATES
from workbench.drive.running.runner import Runner

from ..drive.conftest import until

ROOT = Path(__file__).resolve().parents[2]
LAYER = wb.ConvTranspose1d(3, 5, 3, stride=2)


@pytest.fixture(autouse=True)
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(("args", "named", "sentence"), [
    ((3, 5, 3, 1, 0, 0, 1, True, 1, "zeros"), {}, "too many values, 10, from 'zeros' on; it takes in_channels,"),
    ((3, 5, 3), {"padding_mode": "zeros"}, "has no parameter padding_mode; it takes in_channels,"),
    ((3, 5), {}, "lacks kernel_size; it takes"),
    ((3, 5, 3), {"kernel_size": 4}, "is given kernel_size twice, 3 and 4"),
    ((3, 5, "3"), {}, "kernel_size is '3'; give a whole number"),
    (("3", 5, 3), {}, "in_channels is '3'; give a whole number"),
    ((3, 5, None), {}, "kernel_size is None; give a whole number"),
    ((3, 5, 3), {"bias": "no"}, "bias is 'no'; choose True or False"),
    ((3, 5, 3), {"bias": 2}, "bias is 2; choose True or False"),
])
def test_a_layer_that_pytorch_would_refuse(args: tuple, named: dict[str, Any], sentence: str) -> None:
    with pytest.raises(wb.BadRequest) as error:
        wb.ConvTranspose2d(*args, **named)
    assert sentence in str(error.value)


def test_bias_as_pytorch_takes_it() -> None:
    assert wb.ConvTranspose1d(3, 5, 3, bias=0) == wb.ConvTranspose1d(3, 5, 3, bias=False)


@pytest.mark.parametrize(("more", "sentence"), [
    ({"input_size": None}, "input_size is not given; give the spatial size of the input, a whole number: input_size=64"),
    ({"input_size": 20.5}, "input_size is 20.5; give"),
    ({"input_size": "20"}, "input_size is '20'; give"),
    ({"effort": "quik"}, "effort 'quik' is not known; choose quick, normal, full"),
    ({"settings": {"naive_gather": {"BLOCK": "64"}}}, "settings['naive_gather']['BLOCK'] is '64'; give whole numbers"),
    ({"settings": {"naive_gather": {"BLOCK": []}}}, "settings['naive_gather']['BLOCK'] is []; give whole numbers"),
    ({"settings": {"BLOCK": [64]}}, "settings['BLOCK'] is [64]; write {'naive_gather'"),
    ({"settings": [64]}, "settings is [64]; write"),
    ({"directions": "forwards"}, "direction 'forwards' is not known; choose forward"),
    ({"form": "x"}, "form 'x' is not known; choose constant or runtime"),
    ({"compile_flags": ["-DX", " "]}, "A compile flag is empty; write it like"),
    ({"directions": []}, "No direction is chosen; choose from forward"),
    ({"source": "nowhere.cu"}, "nowhere.cu cannot be read"),
    ({"source": TEMPLATES / "forward" / "naive_gather.cu", "modules": True}, "Leave out variants and modules"),
    ({"directions": 3}, "directions is 3; give a name or a list of names"),
    ({"variants": "naive"}, "There is no variant 'naive'; did you mean naive_gather?"),
    ({"variants": "nope"}, "There is no variant 'nope'; 'python -m workbench variants' lists them."),
    ({"variants": [None]}, "variants is [None]; give a name"),
])
def test_a_run_that_cannot_be(more: dict[str, Any], sentence: str, sessions: Path) -> None:
    with pytest.raises(wb.BadRequest) as error:
        wb.run(LAYER, **{"input_size": 20, "device": "cpu", "progress": False, **more})
    assert sentence in str(error.value)
    assert not list(sessions.iterdir())  # nothing was begun


@pytest.mark.parametrize("more", [{"batch": 3}, {"input_size": 4}])
def test_a_preset_has_its_own_sizes(more: dict[str, int]) -> None:
    with pytest.raises(wb.BadRequest, match="'kb81/small' already sets it; leave"):
        wb.run("kb81/small", device="cpu", progress=False, **more)


def test_something_that_is_no_layer() -> None:
    with pytest.raises(wb.BadRequest, match="work is 3; give a layer"):
        wb.run(3)


def test_one_name_and_one_value_stand_for_a_list(tmp_path: Path) -> None:
    result = wb.run(LAYER, input_size=20, device="cpu", progress=False, effort="quick", baselines=False,
                    directions="forward", variants="naive_gather", settings={"naive_gather": {"BLOCK": 64}})
    assert [(t.name, t.direction, t.config["BLOCK"]) for t in result.trials] == [("naive_gather", "forward", 64)]
    assert result.message == "" and result.trials[0].ok
    wrong = result.source(result.trials[0].trial_id).replace("Sum sum[CO] = {};", "Sum sum[CO] = {Sum(1)};")
    of = f"{result.session.name}:{result.trials[0].trial_id}"
    fork = wb.run(source=wrong, fork_of=of, device="cpu", progress=False, effort="quick", baselines=False).trials[0]
    assert (fork.status, fork.forked_from) == ("MISMATCH", result.trials[0].candidate_id)
    there = wb.diff(of, fork)
    assert "+  Sum sum[CO] = {Sum(1)};" in str(there) and "Sum sum[CO] = {Sum(1)};</div>" in there._repr_html_()
    assert [(r.left_text, r.right_text) for r in there.rows if "Sum(1)" in r.right_text] == [
        ("  Sum sum[CO] = {};", "  Sum sum[CO] = {Sum(1)};")]
    assert str(wb.diff(fork, fork, "template")) == "The two are equal."
    both = wb.compare(result, fork.kept_in)
    assert len(both.regressions) == 1 and "naive_gather forward" in both.regressions[0]
    assert both.regressions[0] in repr(both) and "1 regression in B" in both._repr_html_()
    assert list(both.frame["variant"]) == [row.variant for row in both.rows]
    (tmp_path / "forward").mkdir()
    text = (TEMPLATES / "forward/naive_gather.cu").read_text()
    (tmp_path / "forward/mine.cu").write_text(text.replace('"naive_gather"', '"mine"'))
    for runs in (1, 0):  # the second time nothing is lacking
        resumed = wb.run(LAYER, input_size=20, device="cpu", progress=False, effort="quick", baselines=False,
                         directions="forward", variants="mine", templates=tmp_path, session=result.session.name, resume=True)
        assert [t.name for t in resumed.trials] == ["mine"] and len(resumed.run.trials) == runs
    assert not wb.compare(result, result).regressions and "No regression in B" in wb.compare(result, result)._repr_html_()


def test_a_result_says_why_its_run_failed() -> None:
    result = wb.run(LAYER, input_size=20, device="cpu", progress=False, effort="quick", baselines=False,
                    directions="forward", variants="naive_gather")
    result.run.state, result.run.message = "failed", "the device <gone>"
    assert repr(result).startswith("The run failed: the device <gone>\n")
    assert "The run failed: the device &lt;gone&gt;" in result._repr_html_()


def test_a_broken_template_is_said_and_the_rest_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    root = shutil.copytree(TEMPLATES, tmp_path / "templates")
    (root / "forward" / "broken.cu").write_text("int main() {}")
    monkeypatch.setenv("KERNEL_WORKBENCH_TEMPLATES", str(root))
    result = wb.run(LAYER, input_size=20, device="cpu", progress=False, effort="quick", baselines=False,
                    directions="forward", variants="naive_gather")
    assert result.trials[0].ok and "broken.cu does not begin with a comment" in capsys.readouterr().err


def test_quickstart_runs(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    NotebookClient(notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = {i: str(c.get("outputs")) for i, c in enumerate(notebook.cells)}
    assert "right in all checks" in outputs[1] and "naive_gather" in outputs[2]
    assert "application/vnd.plotly" in outputs[3]
    assert "kw_forward" in outputs[5]
    assert "python -m workbench run" in outputs[7]
    assert "ConvTranspose1d(32, 64, 5" in outputs[9] and "computed by CUDA kernels" in outputs[9]


def test_interrupting_stops_the_run_and_keeps_what_is_finished(tmp_path: Path) -> None:
    script = """
import workbench as wb
try:
    wb.run("kb74/small", device="cpu", directions=["forward", "grad_input", "grad_weight"], session="cut", effort="full")
except KeyboardInterrupt:
    print("INTERRUPTED", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": str(ROOT), "KERNEL_WORKBENCH_SESSIONS": str(tmp_path)})
    trials = tmp_path / "cut" / "trials.jsonl"
    until(lambda: trials.is_file() and trials.read_text().count("\n") >= 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert "INTERRUPTED" in out, err[-2000:]
    lines = trials.read_text().splitlines()
    assert 1 <= len(lines) < 12
    assert '"run_stopped"' in (tmp_path / "cut" / "events.jsonl").read_text()


def test_a_tune_shows_its_best_and_its_figure_and_a_bar_tells_how_far_it_is(sessions: Path, monkeypatch: pytest.MonkeyPatch,
                                                                            capsys: pytest.CaptureFixture) -> None:
    from IPython.core.formatters import DisplayFormatter
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    found = wb.tune(LAYER, batch=2, input_size=17, directions="forward", variants="naive_gather", device="cpu", trials=3,
                    baselines=False)
    bar = capsys.readouterr().err
    assert "\r[####################] 3 of 3 judged, " in bar and bar.endswith("\n") and bar.count("\n") == 1
    table = found.table()
    assert len(table) == 3 and table["median_ms"].is_monotonic_increasing and list(table["finals"]).count("winner") == 1
    figure = found.figure(x="time")
    points = {point for trace in figure.data if trace.customdata is not None for point in trace.customdata}
    assert figure.layout.xaxis.title.text == "time of the tune, s" and len(points) == 3, "also what is above the top"
    shown = found._repr_html_()
    assert "naive_gather" in shown and "<table" in shown and "forward: " in shown
    displayed = []
    monkeypatch.setattr("IPython.display.display", displayed.append)
    assert DisplayFormatter().format(found) == ({}, {}), "it has displayed itself"
    figures = found.figures()
    assert {"progress", "slices", "parallel coordinates"} <= set(figures) and len(displayed) == 1 + len(figures)
    assert displayed[1].layout.yaxis.title.text.startswith("median, ms") and figures["slices"].data[0].x is not None
    assert [d.label for d in figures["parallel coordinates"].data[0].dimensions][-1] == "median, ms"
    with pytest.raises(wb.BadRequest, match="variant 'x' has no right trial here; choose naive_gather."):
        found.figures(variant="x")
    with pytest.raises(wb.BadRequest, match="direction 'grad_input' was not tuned; choose forward."):
        found.figure("grad_input")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[object], list[str]]]:
    """What a notebook displays of an object: HTML, and the title of the x axis of each figure."""
    import IPython
    from IPython.core.interactiveshell import InteractiveShell

    from workbench.faces import notebook_display
    shell = InteractiveShell.instance()
    shell.kernel = object()  # as in a notebook
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    notebook_display.register()
    found: list[object] = []
    monkeypatch.setattr("IPython.display.display", lambda one, **_: found.append(one))

    def show(one: object) -> list[str]:
        found.clear()
        data, _ = shell.display_formatter.format(one)
        return [data["text/html"]] if "text/html" in data else [
            f.data if hasattr(f, "data") and isinstance(f.data, str) else f"figure {f.data[0].type}" for f in found]
    yield show
    del shell.kernel
    InteractiveShell.clear_instance()


def test_a_notebook_shows_layer_trial_session_verdict_and_where_a_result_is_wrong(sessions: Path, shown) -> None:
    assert "<svg" in shown(LAYER)[0] and "output " in shown(wb.preset("kb74/small"))[0]
    source = (TEMPLATES / "forward" / "naive_gather.cu").read_text().replace("sum[c] +=", "sum[c] -=", 1)
    assert source != (TEMPLATES / "forward" / "naive_gather.cu").read_text()
    result = wb.run(LAYER, input_size=20, device="cpu", progress=False, effort="quick", baselines=False, source=source,
                    fork_of="forward/naive_gather")
    trial = result.trials[0]
    markup, where, *figures, case = shown(trial)
    assert "MISMATCH" in markup and trial.headline in markup.replace("&gt;", ">") and "figure heatmap" in figures
    assert "<svg" in case and "the kernel gave" in case and "smallest case" in case
    again = shown(result.wrong(trial.trial_id))
    assert again[:-1] == [where, *figures] and "smallest case" in again[-1] and result.verdict(trial.trial_id) is None
    assert f"<b>{result.session.name}</b>: 1 trials, 0 of them right" in shown(result.session)[0]
    h200 = wb.open_session(ROOT / "sessions" / "recorded-h200-kernelbench.zip")
    best = next(t for t in h200.trials if t.name == "disjoint_mma" and t.precision == "tf32" and t.direction == "forward")
    assert "FASTER" in shown(h200.verdict(best.trial_id))[0] and "4.69" in shown(h200.verdict(best.trial_id))[0]
    assert "0.265 ms" in shown(best)[0] and len(shown(best)) == 2
    assert h200.samples(best.trial_id).data[0].name == "disjoint_mma forward tf32"
    versus = shown(wb.compare(*[ROOT / "sessions" / "recorded-h200-tunes-1.zip"] * 2))
    assert "No regression in B" in versus[0] and len(versus) == 3 and "SAME" in versus[0]
    assert set(h200.figures()) == {"dots", "roofline", "speedups"} and h200.wrong(best.trial_id) is None


def test_the_progress_of_a_run_is_one_line_of_a_terminal(sessions: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    result = wb.run(LAYER, input_size=20, device="cpu", effort="quick", directions="forward", variants="naive_gather")
    bar = capsys.readouterr().err
    emulated, = [t for t in result.trials if t.kind == "candidate"]
    assert len(result.trials) > 1 and result.verdict(emulated.trial_id) is None and result.figures() == {}, "of the emulator"
    assert emulated.advice == "Run it on a GPU to see how fast it is."
    assert "\r[####################] 1 of 1 candidates: " in bar and bar.endswith("\n") and bar.count("\n") == 1


def test_a_tune_goes_on(monkeypatch: pytest.MonkeyPatch, runner: Runner) -> None:
    monkeypatch.setattr("workbench.faces.notebook._runner", lambda: runner)
    found = wb.tune(LAYER, input_size=17, directions="forward", variants="naive_gather", device="cpu", trials=3, session="one",
                    baselines=False, progress=False)
    assert len(found.frame) == 4 and "3 candidates were judged." in repr(found)
    more = wb.tune(resume="one", trials=4, progress=False)
    assert more.session.name == "one" and more.result.trials == 4
    assert more.result.winners["forward"].trial.ok and more.result.winners["forward"].trial.name == "naive_gather"
