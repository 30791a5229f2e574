"""tools/kernelbench_eval.py, as far as it goes without a GPU and without a checkout of KernelBench."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
