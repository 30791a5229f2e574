"""A GPU that is there and cannot be used: `auto` is then the cpu, and who names the GPU hears what to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.core.env import TorchInfo
from workbench.core.errors import BadRequest
from workbench.core.toolchain import Toolchain
from workbench.drive import doctor
from workbench.drive.devices import resolve_device
from workbench.faces.ui import state

WITH_CUDA, CPU_BUILD = TorchInfo("2.13.0", "13.0"), TorchInfo("2.13.0+cpu", None)
NVCC = Toolchain(cxx=Path("/usr/bin/g++"), nvcc=Path("/opt/cuda/bin/nvcc"), nvcc_version="13.0.88")
NO_NVCC = Toolchain(cxx=Path("/usr/bin/g++"))


@pytest.fixture
def machine(gpu: None, monkeypatch: pytest.MonkeyPatch):
    """Set what this machine has beside its GPU."""
    def has(torch: TorchInfo, tools: Toolchain) -> None:
        monkeypatch.setattr(doctor, "torch_info", lambda: torch)
        monkeypatch.setattr(doctor, "find_toolchain", lambda: tools)
        state.findings.clear()
        state.device_names.clear()
    yield has
    state.findings.clear()
    state.device_names.clear()


@pytest.mark.parametrize(("torch", "tools", "device"), [
    (WITH_CUDA, NVCC, "cuda:0"), (CPU_BUILD, NVCC, "cpu"), (WITH_CUDA, NO_NVCC, "cpu"), (TorchInfo(), NVCC, "cpu"),
    (WITH_CUDA, Toolchain(cxx=NVCC.cxx, nvcc=NVCC.nvcc, nvcc_version="12.4.131"), "cpu")])
def test_the_default_is_what_the_doctor_says_works(torch: TorchInfo, tools: Toolchain, device: str, machine) -> None:
    machine(torch, tools)
    assert resolve_device("auto") == device
    assert next(iter(state.device_names())) == device
    assert doctor.devices() == ([] if not torch.version else list(dict.fromkeys([device, "cpu"])))


@pytest.mark.parametrize(("torch", "words"), [
    (CPU_BUILD, "this torch is a CPU build: choose cpu, or install it with .* -m pip install --force-reinstall torch"),
    (TorchInfo(), "nothing can be judged without it: choose cpu, or install it with .* -m pip install torch")])
def test_a_gpu_that_torch_cannot_use_is_one_sentence(torch: TorchInfo, words: str, machine) -> None:
    machine(torch, NVCC)
    with pytest.raises(BadRequest, match=f"cuda:0 cannot be used, .*{words}"):
        resolve_device("cuda")


def test_without_nvcc_a_gpu_can_still_be_named(machine) -> None:
    machine(WITH_CUDA, NO_NVCC)
    assert resolve_device("cuda:0") == "cuda:0"
    with pytest.raises(BadRequest, match=r"'cuda:1' is not on this machine; choose cuda:0, cpu\."):
        resolve_device("cuda:1")

