"""The notebook is executed as a reader would, and interrupting a cell stops the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from ..drive.conftest import until

ROOT = Path(__file__).resolve().parents[2]


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
