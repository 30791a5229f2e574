"""This machine, as core/env sees it: in which order compilers are found, GPUs, PyTorch without importing it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.build.sources import ROOT
from tests.shared import require
from workbench.core import env, toolchain
from workbench.core.toolchain import find_toolchain

SMI = """0, NVIDIA H200, GPU-aaaa1111, 9.0, 143771, 580.159.03
1, NVIDIA A100-SXM4-80GB, GPU-bbbb2222, 8.0, 81920, 580.159.03
2, Broken, GPU-cccc3333, [N/A], [N/A], 580.159.03
"""


def toolkit(root: Path, version: str) -> Path:
    """A CUDA_HOME whose nvcc answers with a version."""
    (root / "bin").mkdir(parents=True)
    (root / "include").mkdir()
    (root / "include/cuda_runtime.h").touch()
    nvcc = root / "bin/nvcc"
    nvcc.write_text(f'#!/bin/sh\necho "Cuda compilation tools, release {version[:4]}, V{version}"\n')
    nvcc.chmod(0o755)
    return root


def test_cuda_home_wins_over_path_and_path_over_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, on_path = toolkit(tmp_path / "named", "12.4.1"), toolkit(tmp_path / "path", "12.6.2")
    monkeypatch.setenv("PATH", f"{on_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_HOME", str(named))
    found = find_toolchain("13.0")
    assert (found.cuda_home, found.nvcc, found.nvcc_version) == (named, named / "bin/nvcc", "12.4.1")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nothing"))
    assert find_toolchain(None).cuda_home == on_path


def test_an_nvcc_that_fits_torch_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    on_path, wheel = toolkit(tmp_path / "path", "98.1.0"), toolkit(tmp_path / "site/nvidia/cu99", "99.2.0")
    (wheel / "nvvm").mkdir()
    (wheel / "lib").mkdir()
    (wheel / "lib/libcudart.so.99").touch()
    monkeypatch.setenv("PATH", f"{on_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert find_toolchain("98.0", cache=tmp_path).cuda_home == on_path
    fitting = find_toolchain("99.0", cache=tmp_path)
    assert fitting.nvcc_version == "99.2.0" and env.nvcc_problem(fitting, "99.0") is None
    assert fitting.cuda_home and fitting.cuda_home.parent == tmp_path / "toolkit"
    assert (fitting.cuda_home / "lib64/libcudart.so").exists()
    assert find_toolchain("97.0", cache=tmp_path).cuda_home == on_path, "none fits: the first, and a sentence about it"


def test_an_nvcc_that_is_a_script_is_asked_where_it_belongs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = env.find_toolchain()
    require(real.nvcc, "nvcc")
    script = tmp_path / "bin/nvcc"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {real.nvcc} "$@"\n')
    script.chmod(0o755)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    found = find_toolchain(None)
    assert found.cuda_home and found.cuda_home != tmp_path
    assert (found.cuda_home / "include/cuda_runtime.h").exists() and found.nvcc_version == real.nvcc_version


def test_nvcc_works_from_the_layout_of_the_wheels(tmp_path: Path) -> None:
    """site-packages/nvidia/cu13 has no lib64 and no libcudart.so; laid out as a toolkit, nvcc compiles and links."""
    real = env.find_toolchain()
    require(real.nvcc and real.cxx, "nvcc and a C++ compiler")
    home, wheel = real.cuda_home or Path(), tmp_path / "nvidia/cu13"
    for folder in ("include", "nvvm"):
        wheel.mkdir(parents=True, exist_ok=True)
        (wheel / folder).symlink_to(home / folder)
    for folder, source in (("bin", "bin"), ("lib", "lib64")):
        (wheel / folder).mkdir()
        for item in (home / source).iterdir():
            if item.name != "libcudart.so":
                (wheel / folder / item.name).symlink_to(item)
    made = toolchain.lay_out(wheel, tmp_path / "cache")
    assert made and toolchain.lay_out(wheel, tmp_path / "cache") == made, "the second time it is there"
    assert (made / "lib64/libcudart.so").exists()
    source = tmp_path / "a.cu"
    source.write_text("__global__ void k(float* a) { a[0] = 1; }\nint main() { k<<<1, 1>>>(nullptr); }\n")
    done = subprocess.run([made / "bin/nvcc", "-arch=sm_80", "-cudart", "shared", "-ccbin", str(real.cxx), source, "-o",
                           tmp_path / "a"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_gpus_are_counted_as_cuda_counts_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ncat <<'END'\n{SMI}END\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert env.gpus()[0] == env.Gpu(0, "NVIDIA H200", "GPU-aaaa1111", "9.0", 143771 * 2**20, "580.159.03")
    assert [g.sm for g in env.gpus()] == [90, 80]
    for chosen, names in (("1,0", ["GPU-bbbb2222", "GPU-aaaa1111"]), ("GPU-bb", ["GPU-bbbb2222"]), ("", []),
                          ("1,7,0", ["GPU-bbbb2222"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        assert [(g.index, g.uuid) for g in env.gpus()] == list(enumerate(names)), chosen


def test_a_driver_that_fails_means_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho \"NVIDIA-SMI has failed\"\nexit 9\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert env.gpus() == []


def test_torch_is_known_without_importing_it() -> None:
    program = ("import json, sys; from workbench.core import env; i = env.torch_info(); e = env.environment(); "
               "print(json.dumps([i.version, i.cuda, 'torch' in sys.modules, e]))")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    version, cuda, imported, environment = json.loads(done.stdout)
    assert (version, cuda, imported) == (torch.__version__, torch.version.cuda, False)
    assert environment["torch"] == version and environment["python"].count(".") == 2
    assert len(done.stdout) < 1000, "it is in every trial"


def test_the_platform_is_supported_or_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.platform_problem() is None
    monkeypatch.setattr("platform.system", lambda: "Windows")
    assert env.platform_problem() == ("Kernel Workbench runs on Linux x86-64 and aarch64, this is Windows on "
                                      f"{os.uname().machine}: use a Linux machine, WSL or a container.")
