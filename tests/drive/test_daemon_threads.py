"""An executor like Python's own, but for the end of the process."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from workbench.drive.machine.daemon_threads import DaemonThreads

ROOT = Path(__file__).resolve().parents[2]
_LEAVES = """
import time
from concurrent.futures import ThreadPoolExecutor
from workbench.drive.machine.daemon_threads import DaemonThreads
{executor}(1).submit(time.sleep, 600)
print("submitted", flush=True)
"""


def test_results_come_in_order_and_an_error_to_who_asks() -> None:
    with DaemonThreads(3) as pool:
        assert list(pool.map(lambda n: n * n, range(20))) == [n * n for n in range(20)]
        wrong = pool.submit(int, "no number")
        assert pool.submit(sum, [1, 2], start=3).result() == 6
    with pytest.raises(ValueError, match="no number"):
        wrong.result()


def test_it_works_side_by_side_and_waits_for_the_last() -> None:
    both, done = threading.Barrier(2, timeout=300), []
    with DaemonThreads(2) as pool:
        for name in "ab":
            pool.submit(lambda n=name: (both.wait(), done.append(n)))
    assert sorted(done) == ["a", "b"]


@pytest.mark.parametrize(("executor", "ends"), [(DaemonThreads, True), (ThreadPoolExecutor, False)])
def test_the_process_ends_while_it_works(executor: type, ends: bool) -> None:
    """And with Python's own it would not: otherwise this proves nothing."""
    process = subprocess.Popen([sys.executable, "-c", _LEAVES.format(executor=executor.__name__)], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "submitted\n"
        process.wait(300 if ends else 2)
        assert ends
    except subprocess.TimeoutExpired:
        assert not ends
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
