"""A bench as a person starts it, on the emulator: killed, resumed, cut by its time limit; and what it records."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.core.orders import CompileOrder
from workbench.core.presets import preset
from workbench.core.replies import Device
from workbench.core.variants import TEMPLATES
from workbench.drive.bench.prebuild import compile_ahead
from workbench.drive.sessions.session import Session
from workbench.faces import cli

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--device", "cpu", "--size", "small", "--layers", "kb81", "--effort", "quick", "--variant", "naive_gather"]
WORDS = [*SMALL, "--directions", "forward,grad_input", "--variant", "shared_weight_tiling"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


def start(place: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "workbench", "bench", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "KERNEL_WORKBENCH_SESSIONS": str(place)})


@pytest.fixture
def bench(here, place: Path) -> Callable[..., tuple[int, str, str]]:
    def done(*words: str) -> tuple[int, str, str]:
        found = here("bench", *words, sessions=place)
        return found.returncode, found.stdout, found.stderr
    return done


def ids(session: Session) -> list[str]:
    return [t.candidate_id for t in session.trials() if t.kind == "candidate"]


def test_a_killed_bench_goes_on_where_it_was(bench, place: Path) -> None:
    process = start(place, *WORDS, "--session", "one")
    deadline = time.monotonic() + 400
    while not ((place / "one" / "trials.jsonl").is_file() and ids(Session(place / "one"))):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = ids(Session(place / "one"))
    assert before
    process = start(place, *WORDS, "--session", "one")
    out, err = process.communicate(timeout=500)
    code = process.returncode
    assert code == 0, err
    assert f"{4 - len(before)} of 4 candidates to run" in err
    after = ids(Session.open(place / "one"))
    assert after[:len(before)] == before and len(after) == len(set(after)) == 4
    baselines = [t for t in Session.open(place / "one").trials() if t.kind == "baseline"]
    asked = [(t.direction, t.name) for t in baselines]
    assert sorted(asked) == sorted((d, name) for d in ("forward", "grad_input") for name in (
        "eager", "convolution + pixel shuffle", "matmul + fold"))                  # PyTorch was not measured twice
    assert all(t.ok and t.kernel_ms and t.errors for t in baselines)
    assert out.count("EMULATED") == 2 and "No GPU times, so no geometric mean." in out and "Session" in out
    code, _, err = bench(*WORDS, "--session", "one")
    assert code == 0 and "0 of 4 candidates to run" in err and len(ids(Session.open(place / "one"))) == 4


def test_the_time_limit_ends_it_cleanly(bench, place: Path) -> None:
    code, out, err = bench(*WORDS, "--session", "cut", "--time-limit", "0.001")
    assert code == 0
    assert "Stopped by the time limit of 0.001 s after 0 of 4 candidates; to continue, give --session cut." in err
    assert "not measured yet" in out
    assert all(t.status in ("OK",) for t in Session.open(place / "cut").trials())


def test_a_wrong_or_unbuildable_variant_is_a_trial_and_the_rest_goes_on(bench, place: Path, tmp_path: Path) -> None:
    root = tmp_path / "templates"
    shutil.copytree(TEMPLATES, root)
    good = (root / "forward" / "naive_gather.cu").read_text()
    broken = good.replace('"naive_gather"', '"broken"', 1).replace(" naive_gather(", " broken(").replace(
        "naive_gather<", "broken<")
    (root / "forward" / "broken.cu").write_text(broken + "\nint there_is = no_such_name;\n")
    code, out, err = bench(*SMALL, "--directions", "forward", "--session", "broken", "--templates", str(root),
                           "--variant", "broken")
    assert code == 1, err
    status = {t.name: str(t.status) for t in Session.open(place / "broken").trials() if t.kind == "candidate"}
    assert status == {"broken": "BUILD_FAILED", "naive_gather": "OK"} and "naive_gather" in out


def test_the_defaults_are_pytorch_alone_each_layer_in_a_process_of_its_own(bench, place: Path) -> None:
    words = ["--device", "cpu", "--size", "small", "--layers", "kb81,kb74", "--directions", "forward,grad_weight",
             "--effort", "quick", "--baselines", "default", "--session", "defaults"]
    code, out, err = bench(*words)
    assert code == 0, err
    assert "4 of 4 PyTorch defaults to run" in err and "All 4 PyTorch defaults are measured" in err
    trials = Session.open(place / "defaults").trials()
    assert [(t.kind, t.name, t.workload.preset, t.direction, t.precision) for t in trials] == [
        ("baseline", "eager", f"{layer}/small", d, "ieee") for layer in ("kb81", "kb74") for d in ("forward", "grad_weight")]
    assert all(t.ok and t.kernel_ms and t.detail.fresh_process for t in trials)
    pids = [t.detail.shown["pid"] for t in trials]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert "kb81/small  grad_weight  ieee" in out
    code, _, err = bench(*words)
    assert code == 0 and "0 of 0" not in err and "0 of 4 PyTorch defaults to run" in err
    assert len(Session.open(place / "defaults").trials()) == 4


def test_a_bench_of_the_models_records_and_shows_like_the_other(
        bench, place: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    words = ["--suite", "models", "--device", "cpu", "--size", "small", "--layers", "dcgan-4,models/sam-2", "--directions",
             "forward", "--dtype", "bfloat16", "--effort", "quick", "--variant", "naive_gather", "--session", "models"]
    code, out, err = bench(*words)
    assert code == 0, err
    assert "2 of 2 candidates to run" in err and "models/dcgan-4/small: 1 candidates" in err
    trials = [t for t in Session.open(place / "models").trials() if t.kind == "candidate"]
    assert sorted((t.workload.preset, t.workload.dtype, t.precision, t.ok) for t in trials) == [
        ("models/dcgan-4/small", "bfloat16", "bf16", True), ("models/sam-2/small", "bfloat16", "bf16", True)]
    assert "models, precision class bf16, contiguous" in out and out.count("EMULATED") == 2
    code, out, err = bench(*words, "--memory-format", "channels_last")  # other cells, in the same session
    assert code == 0 and "2 of 2 candidates to run" in err and "models, precision class bf16, channels_last" in out
    assert "contiguous" not in out
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(place))
    assert cli.main(["bench", "--note", "models/sam-2/forward", "two conversions", "models", "--dtype", "bfloat16",
                     "--memory-format", "channels_last"]) == 0
    assert "Noted for models/sam-2 forward in models." in capsys.readouterr().out
    docs = tmp_path / "benchmark.md"
    docs.write_text("<!-- bench:begin -->\n<!-- bench:end -->\n")
    assert cli.main(["bench", "--table", "models", "--docs", str(docs)]) == 0
    assert [line for line in docs.read_text().splitlines() if line.startswith("#")] == [
        "### Layers of published models", "#### bfloat16", "#### bfloat16, channels_last"]
    assert docs.read_text().count("| models/dcgan-4 | forward |") == 2


@pytest.mark.long
def test_compiled_ways_are_prepared_in_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And found by the next process. An order that fails costs only itself."""
    cache = tmp_path / "inductor"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    works = [preset(name).workload("small") for name in ("models/sam-2", "models/dcgan-4")]
    orders = [CompileOrder(w, "cpu", {"forward": ("compile",)}) for w in works]
    wrong = CompileOrder(works[0], "cuda:99", {"forward": ("compile",)})
    device = Device("cpu", 0, "cpu", "", 0, "cpu", 1 << 33, 1 << 33, "", "", 0, "", 0)
    assert compile_ahead([*orders, wrong], device, tmp_path, workers=2, over=lambda: False) == 2
    assert len(list(tmp_path.glob("compile-*.log"))) == 2
    kept = {p: p.stat().st_mtime_ns for p in cache.rglob("*.so")}
    assert kept
    assert compile_ahead(orders[:1], device, tmp_path, workers=2, over=lambda: False) == 1
    assert {p: p.stat().st_mtime_ns for p in cache.rglob("*.so")} == kept
    assert compile_ahead(orders, device, tmp_path, workers=2, over=lambda: True) == 0


@pytest.mark.parametrize(("words", "sentence"), [
    (["--dtype", "bfloat16", "--precision", "tf32"], "The class tf32 is for float32; for bfloat16 choose bf16"),
    (["--suite", "models", "--layers", "hifigan-1", "--memory-format", "channels_last"], "for 2-D and 3-D only"),
    (["--device", "cpu"], "give --size small"), ([*WORDS, "--time-limit", "0"], "--time-limit is 0"),
    ([*WORDS, "--configs", "sweep"], "--configs sweep 16"), (["--check"], "--check needs the file"),
    ([*WORDS, "--baselines", "quick", "--max-autotune"], "give --baselines strong"),
    (["someone"], "--session"), (["--note", "kb74/forward", "why"], "--note takes one session; got 0")])
def test_a_bad_request_is_one_sentence(bench, place: Path, words: list[str], sentence: str) -> None:
    code, _, err = bench(*words)
    assert code == 2 and sentence in err and len(err.strip().splitlines()) == 1


@pytest.mark.long
def test_a_bench_of_modules_judges_each_layer_once(bench, place: Path) -> None:
    words = ("--modules", "--device", "cpu", "--size", "small", "--layers", "kb81", "--effort", "quick", "--session", "modules")
    code, out, said = bench(*words)
    assert code == 0 and "kb81" in out and "backward ModelNew" in said, said
    session = Session(place / "modules")
    assert [t.kind for t in session.trials() if "module" in t.kind] == ["module", "module_baseline"]
    assert not [t for t in session.trials() if t.kind == "baseline"], "PyTorch's single directions are not measured"
    code, out, said = bench(*words)
    assert code == 0 and "0 of 4 candidates to run" in said
    assert len(session.trials()) == len(Session(place / "modules").trials())
