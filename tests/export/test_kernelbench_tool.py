"""tools/kernelbench_eval.py, as far as it goes without a GPU and without a checkout of KernelBench."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from workbench.core.presets import KERNELBENCH, preset
from workbench.drive.checking.check import workload_reference
from workbench.drive.exporting.best_recipe import best_recipe
from workbench.drive.exporting.export import Recipe, export_text, module_order
from workbench.measure.module.subject import Subject

ROOT = Path(__file__).resolve().parents[2]


def tool(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(ROOT / "tools/kernelbench_eval.py"), *words], capture_output=True, text=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The layout of one, with a static check that looks for one word, and one problem."""
    (tmp_path / "src/kernelbench").mkdir(parents=True)
    (tmp_path / "KernelBench/level1").mkdir(parents=True)
    (tmp_path / "src/kernelbench/eval.py").write_text("")
    (tmp_path / "src/kernelbench/kernel_static_checker.py").write_text(
        "def validate_kernel_static(code, backend, precision):\n"
        "    bad = ['no kernel'] if 'candidate' not in code or '__global__' not in code else []\n"
        "    return not bad, bad, []\n")
    (tmp_path / "KernelBench/level1/74_conv.py").write_text("")
    return tmp_path


def test_a_bad_request_is_one_sentence(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for words, sentence in (((str(tmp_path_factory.mktemp("empty")),), "is no checkout of KernelBench"),
                            ((str(checkout), "--only", "kb1"), "There is no preset 'kb1'"),
                            ((str(checkout), "--only", "kb81"), "has 0 files for problem 81")):
        done = tool(*words)
        assert done.returncode == 2 and sentence in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_it_exports_and_asks_and_says_who_disagrees(checkout: Path) -> None:
    out = checkout / "said.json"
    done = tool(str(checkout), "--only", "kb74", "--static", "--arch", "sm_90", "--out", str(out))
    assert done.returncode == 0 and "kb74  AGREES   static check ok" in done.stdout, done.stdout + done.stderr
    assert '"valid": true' in out.read_text()
    (checkout / "src/kernelbench/kernel_static_checker.py").write_text(
        "def validate_kernel_static(code, backend, precision):\n    return False, ['a word it does not like'], []\n")
    done = tool(str(checkout), "--only", "kb74", "--static", "--arch", "sm_90")
    assert done.returncode == 1 and "kb74  DIFFERS  static check: a word it does not like" in done.stdout
    assert "0 of 1 agree" in done.stdout


@pytest.mark.parametrize("name", ["kb64", "kb71", "kb77"])
def test_the_protocol_of_kernelbench_on_the_emulator(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its evaluation goes: the text is executed behind a line of its own, both models are drawn under one seed, without
    gradients, 5 trials with new inputs each, float32 within 1e-4. Small inputs; the forward that is best known in ieee."""
    workload = preset(name).workload("small")
    recipe, _ = best_recipe(preset(name).workload(), "sm_90", precision="ieee")
    text = export_text(Recipe(workload, forward=recipe.forward), constructor=KERNELBENCH[name])
    problem, answer = {"__name__": "problem"}, {"__name__": "answer"}
    exec(compile(workload_reference(workload)[0], "problem", "exec"), problem)
    exec(compile("import os\nos.environ['TORCH_EXTENSIONS_DIR'] = '/none'\n" + text, "answer", "exec"), answer)
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(folder / "cache"))
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR")      # what the line above set
    subject = Subject(module_order(text, workload, device="cpu", scratch=folder, preset=KERNELBENCH[name]))
    answer.update(_DEVICE_TYPE="cpu", _build=subject._build_for_host)
    launched: list[str] = []
    call = answer["_Launch"].__call__
    monkeypatch.setattr(answer["_Launch"], "__call__",
                        lambda launch, *t: launched.append(launch.kernel.direction) or call(launch, *t))
    torch.manual_seed(42)
    arguments = problem["get_init_inputs"]()
    with torch.no_grad():
        models = []
        for cls in (problem["Model"], answer["ModelNew"]):
            torch.manual_seed(42)
            models.append(cls(*arguments))
        torch.manual_seed(42)
        for seed in torch.randint(0, 2**31, (5,)).tolist():
            results = []
            for model in models:
                torch.manual_seed(seed)
                results.append(model.to(dtype=torch.float32)(*(x.float() for x in problem["get_inputs"]())))
            assert results[0].shape == results[1].shape
            assert torch.allclose(*results, atol=1e-4, rtol=1e-4), (results[0] - results[1]).abs().max()
    assert launched == ["forward"] * 5
