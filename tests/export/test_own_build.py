"""The exported file's own `_build`: what it asks of load_inline, of any version, and that nobody waits for the dead."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
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
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    namespace: dict = {}
    exec(export_text(naive(SMALL, "forward")), namespace)
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


def test_a_kernel_of_one_generation_is_built_for_it(exported, empty_library):
    exported["load_inline"] = inline = NewLoadInline(empty_library)
    build(exported, min_sm=90)
    assert "-gencode=arch=compute_90a,code=sm_90a" in inline.calls[0]["flags"]


def test_an_older_torch_is_not_asked_for_what_it_lacks(exported, empty_library):
    exported["load_inline"] = inline = LoadInline(empty_library)
    build(exported)
    assert "no_implicit_headers" not in inline.calls[0]


@pytest.mark.timeout(20)
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
