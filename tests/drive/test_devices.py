"""A GPU that is there and cannot be used: `auto` is then the cpu, and who names the GPU hears what to install.

Each case is a process that sees another machine: the driver lists a GPU, torch and nvcc are others or hidden. At the
end: an executor like Python's own, but for the end of the process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.shared import require
from workbench.core.confinement import bwrap_problem
from workbench.core.toolchain import find_toolchain
from workbench.drive.machine.daemon_threads import DaemonThreads

ROOT = Path(__file__).resolve().parents[2]
CUDA_TORCH = "__version__ = '2.13.0'\ncuda = '13.0'\n"
CPU_TORCH = "__version__ = '2.13.0+cpu'\ncuda = None\n"
NO_TORCH = ""
_ASK = """
import json
from workbench.core.errors import BadRequest
from workbench.drive.machine import doctor
from workbench.drive.machine.doctor import resolve_device
try:
    print(json.dumps({}))
except BadRequest as error:
    print(json.dumps({{"refused": str(error)}}))
"""


@pytest.fixture
def machine(gpu: None, tmp_path: Path) -> Callable[..., Any]:
    """Ask for an expression's value on a machine with that torch/version.py and that nvcc ("" for none)."""
    def ask(expression: str, version: str, nvcc: str) -> Any:
        torch = tmp_path / "packages/torch"
        torch.mkdir(parents=True)
        (torch / "__init__.py").touch()
        (torch / "version.py").write_text(version)
        variables = {**os.environ, "PYTHONPATH": f"{torch.parent}{os.pathsep}{ROOT}"}
        if nvcc:
            variables["CUDA_HOME"] = str(tmp_path / "cuda")
            program = tmp_path / "cuda/bin/nvcc"
            program.parent.mkdir(parents=True)
            program.write_text(f'#!/bin/sh\necho "Cuda compilation tools, release {nvcc[:4]}, V{nvcc}"\n')
            program.chmod(0o755)
        done = subprocess.run([*([] if nvcc else hidden_nvcc()), sys.executable, "-c", _ASK.format(expression)], env=variables,
                              capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    return ask


def hidden_nvcc() -> list[str]:
    """Before a command: it sees this machine without any nvcc."""
    require(not bwrap_problem(), bwrap_problem())
    words = ["bwrap", "--dev-bind", "/", "/"]
    homes = {Path("/usr/local/cuda"), *Path(sys.prefix).glob("lib/python*/site-packages/nvidia")}
    if found := find_toolchain().nvcc:
        homes.add(found.parent)
    for home in sorted({str(h.resolve()) for h in homes if h.exists()}):
        words += ["--tmpfs", home]
    if on_path := shutil.which("nvcc"):
        words += ["--bind", os.devnull, str(Path(on_path).resolve())] if Path(on_path).is_file() else []
    return words


@pytest.mark.parametrize(("torch", "nvcc", "device"), [
    (CUDA_TORCH, "13.0.88", "cuda:0"), (CPU_TORCH, "13.0.88", "cpu"), (CUDA_TORCH, "", "cpu"), (NO_TORCH, "13.0.88", "cpu"),
    (CUDA_TORCH, "12.4.131", "cpu")])
def test_the_default_is_what_the_doctor_says_works(torch: str, nvcc: str, device: str, machine) -> None:
    chosen, works = machine('[resolve_device("auto"), doctor.devices()]', torch, nvcc)
    assert chosen == device
    assert works == ([] if not torch else list(dict.fromkeys([device, "cpu"])))


@pytest.mark.parametrize(("torch", "first"), [(CUDA_TORCH, "cuda:0"), (CPU_TORCH, "cpu")])
def test_the_page_offers_what_works_first(torch: str, first: str, machine) -> None:
    assert machine('list(__import__("workbench.faces.ui.state").faces.ui.state.device_names())', torch, "13.0.88")[0] == first


@pytest.mark.parametrize(("torch", "words"), [
    (CPU_TORCH, ("torch for the GPU: there is a GPU, but this torch is a CPU build. Choose cpu, or install it: ",
                 " -m pip install --force-reinstall torch")),
    (NO_TORCH, ("torch: needed for every check. Choose cpu, or install it: ", " -m pip install torch"))])
def test_a_gpu_that_torch_cannot_use_is_one_sentence(torch: str, words: tuple[str, str], machine) -> None:
    said = machine('resolve_device("cuda")', torch, "13.0.88")["refused"]
    assert said.startswith("cuda:0 cannot be used. ") and all(w in said for w in words), said


def test_without_nvcc_a_gpu_can_still_be_named(machine) -> None:
    assert machine('resolve_device("cuda:0")', CUDA_TORCH, "") == "cuda:0"


def test_a_gpu_that_is_not_there_cannot(machine) -> None:
    assert machine('resolve_device("cuda:1")', CUDA_TORCH, "13.0.88") == {
        "refused": "Device 'cuda:1' is not on this machine; choose cuda:0, cpu."}


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
