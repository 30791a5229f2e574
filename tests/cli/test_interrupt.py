"""Ctrl-C while a compiler runs: it ends with what it had started, at once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ..drive.conftest import until

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("words", [
    ["test", "--effort", "normal", "--device", "cpu"], ["run", "--preset", "kb74/small", "--device", "cpu"],
    ["export", "--layer", "ConvTranspose1d(2, 3, 3)", "--input-size", "9", "--forward", "naive_gather", "--verify",
     "--device", "cpu"]], ids=lambda words: words[0])
def test_no_verb_waits_for_the_compiler(words: list[str], tmp_path: Path) -> None:
    compiler, begun = tmp_path / "g++", tmp_path / "begun"
    compiler.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*|*" -shared "*) echo $$ >> {begun}; sleep 600;; esac\n'
                        f'exec {shutil.which("g++")} "$@"\n')
    compiler.chmod(0o755)
    process = subprocess.Popen([sys.executable, "-m", "workbench", *words], cwd=tmp_path, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env={**os.environ, "KERNEL_WORKBENCH_CXX": str(compiler),
                                                            "KERNEL_WORKBENCH_CACHE": str(tmp_path / "cache"),
                                                            "PYTHONPATH": str(ROOT)})
    try:
        until(begun.exists)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and "Stopped" in said.splitlines()[-1], said
    until(lambda: not any(runs(pid) for pid in begun.read_text().split()), 30)


def runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
