"""Whatever the judge itself meets, a check ends with a report that says so, and not with a trace."""

from __future__ import annotations

import resource
from pathlib import Path

from workbench.drive.checking.check import CheckRequest, check, judge_process

from .conftest import failed

TEXT = """
import torch


class {name}(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(8, 1 << 20)]


def get_init_inputs():
    return []
"""
_LEFT = 4 << 20  # bytes: much, but less than one of the tensors


def test_a_judge_that_runs_out_of_memory_says_so_and_keeps_what_was_answered() -> None:
    with judge_process("cpu") as judge:
        def on_text(text: str) -> None:
            if text == "the given size":  # its own processes have been started: they do not inherit this
                pid = judge._process.pid
                used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
                resource.prlimit(pid, resource.RLIMIT_AS, (used + _LEFT, used + _LEFT))

        report = check(CheckRequest(TEXT.format(name="ModelNew"), TEXT.format(name="Model"), "cpu", time=False, nvcc=False,
                                    memory_gib=4.0), judge=judge, on_text=on_text)
    assert failed(report) == {"judge": "WORKER_DIED"}, report.questions
    told = report.question("judge")
    assert told.seen.startswith("No. It stopped at an unexpected reply: ") and told.advice == "Report this, with the file."
    assert "MemoryError" in told.seen or "can't allocate memory" in told.seen
    assert report.question("builds").answer == "PASSED" and not report.ran
