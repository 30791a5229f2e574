"""What a machine may lack: compilers, ninja, disk. One sentence each, and the next build works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.build.sources import ANSWER, PROGRAM, ROOT, request
from tests.shared import require
from workbench.core.env import ninja_problem, nvcc_problem, torch_info
from workbench.core.replies import Built
from workbench.core.toolchain import Toolchain
from workbench.core.typed import read, to_json
from workbench.measure.build.build import build


def built(cache: Path, **more: object) -> dict[str, object]:
    return build(request(ANSWER, cache, symbols=["answer"], **more), lambda event: None)


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH."""
    for name in ("CXX", "KERNEL_WORKBENCH_CXX", "KERNEL_WORKBENCH_NINJA"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "only"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_no_compiler(only: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = built(cache)
    assert result.status == "NO_COMPILER"
    assert result.headline == "No C++ compiler was found, so nothing can be built: install g++."
    monkeypatch.undo()
    assert built(cache).status == "OK"


def test_a_compiler_that_is_named_and_not_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++-99")
    result = built(cache)
    assert (result.status, result.headline) == (
        "NO_COMPILER", "CXX is 'g++-99', which is not a program here: correct or unset CXX.")


def test_the_named_compiler_is_the_one_that_runs(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "my-g++"
    mine.symlink_to(shutil.which("g++") or "")
    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setenv("KERNEL_WORKBENCH_CXX", f"ccache {mine}")
    log = tmp_path / "log"
    result = built(cache, log=str(log))
    assert result.status == "OK" and str(result.compiler).startswith("my-g++ ")
    assert "$ my-g++ " in log.read_text()


def test_no_ninja(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ninja_problem(Toolchain()) == "No ninja was found, so nothing can be built: pip install ninja."
    monkeypatch.setenv("KERNEL_WORKBENCH_NINJA", "/nowhere/ninja")
    result = built(cache)
    assert (result.status, result.headline) == ("NO_COMPILER", "KERNEL_WORKBENCH_NINJA is '/nowhere/ninja', "
                                                      "which is not a program here: correct or unset "
                                                      "KERNEL_WORKBENCH_NINJA.")
    monkeypatch.undo()
    assert built(cache).status == "OK"


def test_ninja_beside_python_serves_when_path_has_none(only: Path, cache: Path) -> None:
    require((Path(sys.prefix) / "bin/ninja").exists(), "pip's ninja")
    for tool in ("g++", "as", "ld", "sh", "mv"):
        (only / tool).symlink_to(shutil.which(tool, path="/usr/bin:/bin") or "")
    result = built(cache)
    assert result.status == "OK", result


def test_nvcc_of_another_major_version() -> None:
    tools = Toolchain(nvcc=Path("/opt/cuda/bin/nvcc"), nvcc_version="12.4.131")
    assert nvcc_problem(tools, "13.0") == ("nvcc 12.4.131 cannot build for this PyTorch, which has CUDA 13.0: install "
                                           "the CUDA toolkit 13 and set CUDA_HOME to it.")
    assert nvcc_problem(tools, "12.8") is None and nvcc_problem(tools, None) is None
    assert nvcc_problem(Toolchain(), "13.0") == (
        "No nvcc was found, so nothing can be built for cuda: install the CUDA toolkit.")


def test_a_torch_without_cuda_cannot_build_for_cuda(cache: Path) -> None:
    if torch_info().cuda:
        pytest.skip(f"this PyTorch has CUDA {torch_info().cuda}")
    result = built(cache, device="cuda", arch="sm_90")
    assert result.status == "NO_COMPILER" and "has no CUDA" in str(result.headline)


def test_a_full_disk_where_the_log_is_written(cache: Path) -> None:
    result = built(cache, log="/dev/full")
    assert result.status == "MACHINE_FAILED"
    assert str(result.headline).startswith("The disk is full: ")
    assert built(cache).status == "OK"


def test_a_full_disk_where_the_compiler_writes(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=64k none "$0" && exec "$@"', str(small)]
    allowed = subprocess.run([*mount, "true"], capture_output=True, check=False).returncode == 0
    if not allowed:
        pytest.skip("this container may not mount a small file system")
    many = "".join(f'extern "C" int f{i}() {{ return {i}; }}\n' for i in range(3000))
    source = tmp_path / "order.json"
    source.write_text(to_json(request(many, small)))
    program = PROGRAM.replace("sys.argv[1]", "open(sys.argv[1]).read()")
    done = subprocess.run([*mount, sys.executable, "-c", program, str(source)], cwd=ROOT, text=True,
                          capture_output=True, env={**os.environ}, check=False)
    result = read(Built, json.loads(done.stdout.splitlines()[-1]))
    assert result.status == "MACHINE_FAILED" and result.headline.startswith("The disk is full: "), result


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    result = built(tmp_path / "file" / "cache")
    assert result.status == "MACHINE_FAILED"
    assert "cannot be written: Not a directory." in str(result.headline)
