"""The exported file's own `_build`: what it asks of load_inline, of any version, and that nobody waits for the dead. And a
machine that fails it: no compiler, a wrong one, no folder to write to, a full disk, locks, two processes at once."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from workbench.drive.exporting.export import export_text

from .recipes import SMALL, naive


class LoadInline:
    """Stands for torch's: notes what it is asked, and leaves an empty library where a build would."""

    def __init__(self, library: Path) -> None:
        self.library, self.calls = library, []

    def __call__(self, name, cpp_sources, cuda_sources=None, functions=None, extra_cuda_cflags=None, extra_ldflags=None,
                 build_directory=None, with_cuda=None, is_python_module=True):
        self.calls.append({"name": name, "source": cuda_sources, "flags": extra_cuda_cflags,
                           "is_python_module": is_python_module, "functions": functions})
        assert not any(Path(build_directory).iterdir()), "load_inline would find the leftovers of another build"
        shutil.copy(self.library, Path(build_directory) / f"{name}.so")


class NewLoadInline(LoadInline):
    def __call__(self, *args, no_implicit_headers=False, **options):
        super().__call__(*args, **options)
        self.calls[-1]["no_implicit_headers"] = no_implicit_headers


@pytest.fixture(scope="module")
def empty_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("empty") / "empty.so"
    subprocess.run(["g++", "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", str(path)], check=True)
    return path


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_library: Path) -> dict:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    namespace: dict = {"__name__": "exported"}
    exec(export_text(naive(SMALL)), namespace)
    namespace["load_inline"] = NewLoadInline(empty_library)
    return namespace


def build(exported: dict, source: str = "int x;", flags: tuple[str, ...] = (), min_sm: int = 80) -> ctypes.CDLL:
    return exported["_build"](source, flags, min_sm, torch.device("cpu"))


def test_it_compiles_the_exact_source_once(exported, empty_library):
    exported["load_inline"] = inline = NewLoadInline(empty_library)
    assert isinstance(build(exported, flags=("-DX=1",)), ctypes.CDLL)
    build(exported, flags=("-DX=1",))
    assert len(inline.calls) == 1
    call = inline.calls[0]
    assert call["source"] == "int x;" and call["functions"] is None and call["is_python_module"] is False
    assert "-gencode=arch=compute_90,code=sm_90" in call["flags"] and call["flags"][-1] == "-DX=1"
    assert call["no_implicit_headers"] is True
    build(exported, flags=("-DX=2",))
    build(exported, source="int y;", flags=("-DX=1",))
    assert len(inline.calls) == 3 and len({c["name"] for c in inline.calls}) == 3


@pytest.mark.parametrize("damage", ["cut off", "empty", "overwritten"])
def test_a_damaged_library_is_built_again(exported, empty_library, tmp_path, damage):
    exported["load_inline"] = inline = NewLoadInline(empty_library)
    build(exported)
    library = next((tmp_path / "extensions").glob("kw_*.so"))
    data = library.read_bytes()
    library.unlink()             # this process has loaded it: a file that is written over would change under it
    library.write_bytes({"cut off": data[:-100], "empty": b"", "overwritten": data[:64] + bytes(64) + data[128:]}[damage])
    assert isinstance(build(exported), ctypes.CDLL)
    assert len(inline.calls) == 2 and library.stat().st_size == len(data)
    build(exported)
    assert len(inline.calls) == 2


def test_a_kernel_of_one_generation_is_built_for_it(exported, empty_library):
    exported["load_inline"] = inline = NewLoadInline(empty_library)
    build(exported, min_sm=90)
    assert "-gencode=arch=compute_90a,code=sm_90a" in inline.calls[0]["flags"]


def test_an_older_torch_is_not_asked_for_what_it_lacks(exported, empty_library):
    exported["load_inline"] = inline = LoadInline(empty_library)
    build(exported)
    assert "no_implicit_headers" not in inline.calls[0]


@pytest.mark.timeout(200)
def test_a_build_that_was_killed_half_way_is_not_waited_for(exported, empty_library, tmp_path):
    exported["load_inline"] = inline = NewLoadInline(empty_library)
    build(exported)
    library = next((tmp_path / "extensions").glob("kw_*.so"))
    library.unlink()
    part = library.with_name(library.name + ".part")
    part.mkdir()
    (part / "lock").touch()          # torch's own lock, which it would wait for without end
    (part / "half.so").write_bytes(b"\x7fELF")
    assert library.with_name(library.name + ".lock").exists()
    build(exported)
    assert len(inline.calls) == 2 and library.exists() and not part.exists()


def test_a_failed_build_can_be_tried_again(exported, empty_library):
    def refuses(*args, **options):
        raise RuntimeError("Error building extension")

    exported["load_inline"] = refuses
    with pytest.raises(RuntimeError, match="Error building extension"):
        build(exported)
    exported["load_inline"] = inline = NewLoadInline(empty_library)
    build(exported)
    assert len(inline.calls) == 1


# Runs the file with its own `_build`, on the CPU; prints every warning.
CALL = """
import os, resource, runpy, sys, warnings, torch
from torch.utils import cpp_extension
cpp_extension.CUDA_HOME = os.environ.get("CUDA_HOME")       # a torch without CUDA does not look for it
if {limit}:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
names = runpy.run_path(sys.argv[1], run_name="exported")
module = names["ModelNew"](3, 4, 3, 2)
names["conv_transpose"].__globals__["_DEVICE_TYPE"] = "cpu"
x = torch.randn(2, 3, 9, requires_grad=True)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(2):
        output = module(x)
        output.sum().backward()
assert torch.equal(output, torch.conv_transpose1d(x, module.weight, module.bias, 2))
for w in said:
    if issubclass(w.category, RuntimeWarning):
        print(str(w.message))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model_new.py"
    path.write_text(export_text(naive(SMALL)))
    return path


def warnings_of(file: Path, limit: int = 0, **environment: str) -> list[str]:
    """What the file says in a process of its own in which no build can succeed."""
    settings = {"PATH": "/usr/bin:/bin", "HOME": str(file.parent), "TORCH_EXTENSIONS_DIR": str(file.parent / "extensions"),
                "PYTHONDONTWRITEBYTECODE": "1", **environment}
    done = subprocess.run([sys.executable, "-c", CALL.format(limit=limit), str(file)], capture_output=True, text=True,
                          env=settings)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_without_a_compiler_pytorch_computes_and_one_warning_says_why(file: Path) -> None:
    said = warnings_of(file)
    assert len(said) == 1 and "is not used: its build fails: " in said[0] and said[0].endswith("PyTorch computes it instead.")
    assert "CUDA_HOME environment variable is not set" in said[0], said


def test_an_nvcc_that_fails_is_named_by_its_own_words(file: Path) -> None:
    (file.parent / "cuda/bin").mkdir(parents=True)
    (file.parent / "cuda/include").mkdir()
    nvcc = file.parent / "cuda/bin/nvcc"
    nvcc.write_text("#!/bin/sh\necho 'nvcc fatal error: this compiler is another one' >&2\nexit 1\n")
    nvcc.chmod(0o755)
    said = warnings_of(file, CUDA_HOME=str(file.parent / "cuda"), PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    assert len(said) == 1 and "its build fails: " in said[0], said
    assert "this compiler is another one" in said[0], said


def test_without_a_folder_to_write_to_the_warning_says_what_to_set(file: Path) -> None:
    (file.parent / "no_folder").write_text("")
    said = warnings_of(file, TORCH_EXTENSIONS_DIR=str(file.parent / "no_folder/extensions"))
    assert len(said) == 1 and "set TORCH_EXTENSIONS_DIR to a folder that can be written" in said[0], said


def test_a_full_disk_is_pytorchs_with_a_warning(file: Path) -> None:
    said = warnings_of(file, limit=2000)
    assert len(said) == 1 and "File too large" in said[0], said
    assert not list((file.parent / "extensions").glob("kw_*.so"))


@pytest.mark.timeout(200)
def test_a_lock_that_nobody_frees_is_not_waited_for_without_end(exported: dict, tmp_path: Path) -> None:
    build(exported)
    library = next((tmp_path / "extensions").glob("kw_*.so"))
    library.unlink()
    exported["_WAIT_S"] = 0.3
    with open(str(library) + ".lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        start = time.monotonic()
        build(exported)
    assert library.exists() and time.monotonic() - start >= 0.3 and not list(library.parent.glob("*.part"))
    library.unlink()
    exported["_WAIT_S"] = 100_000
    build(exported)                             # the lock file of a process that is gone
    assert library.exists()


TOGETHER = """
import runpy, shutil, sys, time, torch
names = runpy.run_path(sys.argv[1], run_name="exported")["_build"].__globals__
def load_inline(name, build_directory, no_implicit_headers=False, **options):
    open(sys.argv[3], "a").write("built\\n")
    time.sleep(1)
    shutil.copy(sys.argv[2], build_directory + "/" + name + ".so")
names["load_inline"] = load_inline
print(names["_build"]("int x;", (), 80, torch.device("cpu")))
"""


def test_two_processes_at_once_build_once(file: Path, empty_library: Path) -> None:
    log = file.parent / "log"
    words = [sys.executable, "-c", TOGETHER, str(file), str(empty_library), str(log)]
    started = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True,
                                env={**os.environ, "TORCH_EXTENSIONS_DIR": str(file.parent / "extensions")}) for _ in range(2)]
    assert all("CDLL" in process.communicate(timeout=400)[0] for process in started)
    assert log.read_text() == "built\n"


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_built_in_the_background_is_waited_for_and_what_fails_there_is_tried_again(
        exported: dict, tmp_path: Path, empty_library: Path, fails: bool) -> None:
    copies = f"time.sleep(0.5); shutil.copy({str(empty_library)!r}, build_directory + '/a.so')"
    work = "raise SystemExit(1)" if fails else copies
    exported["_BUILD_ALONE"] = exported["_BUILD_ALONE"].replace(
        "from torch.utils.cpp_extension import load_inline",
        f"import time\ndef load_inline(build_directory, **options):\n    {work}")
    device = torch.device("cuda", 0)
    exported["_gpu"] = lambda device: (90, 227 * 1024)
    kernels = exported["_KERNELS"]
    exported["_build_together"](kernels, device)
    assert len(exported["_children"]) == 2      # the first is for this process
    for kernel in kernels:
        exported["_build"](kernel.source(), kernel.flags, kernel.min_sm, device)
    assert len(exported["load_inline"].calls) == (3 if fails else 1)
    assert len(list((tmp_path / "extensions").glob("kw_*.so"))) == 3
    exported["_build_together"](kernels, device)
    assert len(exported["_children"]) == 2
    for child in exported["_children"]:
        child.wait()


def test_a_build_that_breaks_off_leaves_no_library(exported: dict, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "extensions", ignore_errors=True)

    def breaks(name, build_directory, no_implicit_headers=False, **options):
        (Path(build_directory) / "half.o").write_bytes(b"\x7fELF")
        raise OSError(28, "No space left on device")

    exported["load_inline"] = breaks
    exported["_DEVICE_TYPE"] = "cpu"
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        exported["ModelNew"](3, 4, 3, 2)(torch.randn(2, 3, 9))
    assert not list((tmp_path / "extensions").glob("kw_*.so"))
