"""Each fixture file is translated and built once a run; `kernels("blocks")` is its library."""

import ctypes
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.measure.emulator import COMPILE_FLAGS, INCLUDE_DIRS, LINK_FLAGS, translate

FIXTURES = Path(__file__).parent / "fixtures"
TEMPLATES = Path(__file__).parents[2] / "kernel_templates"

Kernels = Callable[..., "Library"]


class Library:
    """A built fixture: its functions take numpy arrays, numbers and None."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = ctypes.CDLL(str(path))

    def __call__(self, function: str, *arguments: object) -> int:
        return int(getattr(self.handle, function)(*(_argument(a) for a in arguments)))

    def text(self, function: str, *arguments: object) -> str:
        entry = getattr(self.handle, function)
        entry.restype = ctypes.c_char_p
        return entry(*(_argument(a) for a in arguments)).decode()

    def last_error(self) -> str:
        return self.text("cuda_on_cpu_last_error")


def build(name: str, folder: Path, *, flags: tuple[str, ...] = (), source: str | None = None) -> Path:
    """The library of fixtures/<name>.cu, or of `source`; messages name the fixture's own lines."""
    text = (FIXTURES / f"{name}.cu").read_text() if source is None else source
    cpp, library = folder / f"{name}.cpp", folder / f"lib{name}.so"
    cpp.write_text(translate(f'#line 1 "{name}.cu"\n{text}'))
    includes = [f"-I{path}" for path in (*INCLUDE_DIRS, TEMPLATES)]
    command = ["g++", *COMPILE_FLAGS, *flags, *includes, str(cpp), *LINK_FLAGS, "-o", str(library)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, f"{' '.join(command)}\n{made.stderr}"
    assert not made.stderr, f"warnings from {name}.cu or the headers:\n{made.stderr}"
    return library


def line_of(name: str, mark: str) -> str:
    """`file:line` of the line that ends in `// here: <mark>`."""
    lines = (FIXTURES / f"{name}.cu").read_text().splitlines()
    found = [i for i, line in enumerate(lines, start=1) if line.endswith(f"// here: {mark}")]
    assert len(found) == 1, f"{name}.cu marks {mark} {len(found)} times"
    return f"{name}.cu:{found[0]}"


def skip_or_fail(reason: str) -> None:
    """Where everything is required, what is missing is a failure."""
    if os.environ.get("KW_REQUIRE_ALL") == "1":
        pytest.fail(f"KW_REQUIRE_ALL=1, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    built: dict[tuple[str, tuple[str, ...]], Library] = {}

    def get(name: str, *flags: str) -> Library:
        if (name, flags) not in built:
            built[name, flags] = Library(build(name, tmp_path_factory.mktemp(name), flags=flags))
        return built[name, flags]

    return get


def _argument(value: object) -> object:
    if value is None or isinstance(value, int):
        return value
    return ctypes.c_void_p(value.ctypes.data)  # type: ignore[attr-defined]
