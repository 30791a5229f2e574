"""The compilers and tools of this machine with their versions; for a missing one, the sentence that says what to install."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

# A variable that names a program. If it is set, nothing is searched. Of several variables the first one that is set counts.
CXX_VARIABLES = ("KERNEL_WORKBENCH_CXX", "CXX")
NINJA_VARIABLES = ("KERNEL_WORKBENCH_NINJA",)
CXX_NAMES = ("g++", "c++", "clang++")
_WRAPPERS = {"ccache", "sccache", "distcc"}  # compiler wrappers in $CXX, which are skipped: the workbench has its own cache
_PROBE_LIMIT_S = 10
# Compile flags are flags of nvcc. For the emulator, g++ gets those that have the same meaning in both compilers. If nvcc is
# installed, it checks all flags, so that a flag that nvcc does not accept is refused on the emulator too.
_SHARED_FLAGS = ("-D", "-U", "-I", "-O0", "-O1", "-O2", "-O3", "-std=")


@dataclass(frozen=True)
class Toolchain:
    """Paths of the programs (None: not found). The version of a missing program is ""."""

    cxx: Path | None = None
    cxx_version: str = ""
    nvcc: Path | None = None
    nvcc_version: str = ""
    cuda_home: Path | None = None
    ninja: Path | None = None
    compute_sanitizer: Path | None = None
    nvdisasm: Path | None = None
    ncu: Path | None = None

    @property
    def cxx_label(self) -> str:
        """The compiler's name and version as trials record them: `g++ 12.2.0`; "" without a compiler."""
        return f"{self.cxx.name} {self.cxx_version}" if self.cxx else ""

    @property
    def nvcc_label(self) -> str:
        return f"nvcc {self.nvcc_version}" if self.nvcc else ""


def find_toolchain(torch_cuda: str | None = None, *, cache: Path | None = None) -> Toolchain:
    """The installed programs. nvcc is searched in $CUDA_HOME, else in PATH, /usr/local/cuda and the nvidia wheels. Of these
    three, the first one whose major version is that of `torch_cuda` is taken, else the first one. `cache`: the folder in which
    a toolkit from wheels is arranged."""
    cxx = _find_cxx()
    home, nvcc = _find_nvcc(torch_cuda, cache)
    return Toolchain(
        cxx=cxx, cxx_version=_version(cxx, r"(\d+\.\d+(?:\.\d+)*)\s*(?:\(.*\))?$") if cxx else "",
        nvcc=nvcc, nvcc_version=nvcc_version(nvcc) if nvcc else "", cuda_home=home, ninja=_find_ninja(),
        compute_sanitizer=_find_tool("compute-sanitizer", home),
        nvdisasm=_find_tool("nvdisasm", home) or _of_a_package("nvdisasm"), ncu=_find_tool("ncu", home) or _of_nsight())


def cxx_problem(toolchain: Toolchain) -> str | None:
    """The sentence that says what to do without a C++ compiler; None if there is one."""
    if toolchain.cxx:
        return None
    wrong = _named(CXX_VARIABLES)
    if wrong:
        return f"{wrong[0]} is {wrong[1]!r}, which is not a program here: correct or unset {wrong[0]}."
    return "No C++ compiler was found, so nothing can be built: install g++."


def ninja_problem(toolchain: Toolchain) -> str | None:
    """The sentence that says what to do without ninja; None if there is one."""
    if toolchain.ninja:
        return None
    wrong = _named(NINJA_VARIABLES)
    if wrong:
        return f"{wrong[0]} is {wrong[1]!r}, which is not a program here: correct or unset {wrong[0]}."
    return "No ninja was found, so nothing can be built: pip install ninja."


def nvcc_problem(toolchain: Toolchain, torch_cuda: str | None) -> str | None:
    """None if nvcc is installed and has the major version of `torch_cuda`, such as "13.0" (None: any version); else the
    sentence that says what to do."""
    if not toolchain.nvcc:
        return "No nvcc was found, so nothing can be built for cuda: install the CUDA toolkit."
    if torch_cuda and _major(toolchain.nvcc_version) != _major(torch_cuda):
        return (f"nvcc {toolchain.nvcc_version} cannot build for this PyTorch, which has CUDA {torch_cuda}: install "
                f"the CUDA toolkit {_major(torch_cuda)} and set CUDA_HOME to it.")
    return None


def refused_by_nvcc(toolchain: Toolchain, flags: Sequence[str]) -> str:
    """A sentence with nvcc's message about flags that it does not accept; "" if it accepts them or is not installed. Flags that
    nvcc passes on, such as those after -Xptxas, are not checked."""
    if not toolchain.nvcc:
        return ""
    with suppress(OSError, subprocess.TimeoutExpired):
        command = [str(toolchain.nvcc), "--dryrun", "-cubin", "-arch=sm_90", *flags, "-x", "cu", "/dev/null", "-o", "/dev/null"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_PROBE_LIMIT_S,
                              check=False)
        said = re.search(r"nvcc fatal\s*:\s*(.+)", done.stderr)
        return f"nvcc refuses the compile flags: {said[1].strip().rstrip('.')}." if done.returncode and said else ""
    return ""


def nvcc_version(nvcc: Path) -> str:
    """`13.0.88`, from `Cuda compilation tools, release 13.0, V13.0.88`."""
    return _version(nvcc, r"release [\d.]+, V([\d.]+)")


def _find_cxx() -> Path | None:
    named = _named(CXX_VARIABLES)
    if named:
        words = [w for w in shlex.split(named[1]) if Path(w).name not in _WRAPPERS]
        return _which(words[0]) if words else None
    return next((found for name in CXX_NAMES if (found := _which(name))), None)


def _find_nvcc(torch_cuda: str | None, cache: Path | None) -> tuple[Path | None, Path | None]:
    named = os.environ.get("CUDA_HOME")
    if named and (Path(named) / "bin/nvcc").is_file():
        return Path(named), Path(named) / "bin/nvcc"
    homes = list(_toolkit_homes(cache)) if torch_cuda else list(_first(_toolkit_homes(cache)))
    fitting = [h for h in homes if torch_cuda and _major(nvcc_version(h / "bin/nvcc")) == _major(torch_cuda)]
    home = next(iter(fitting or homes), None)
    return (home, home / "bin/nvcc") if home else (None, None)


def _toolkit_homes(cache: Path | None) -> Iterator[Path]:
    on_path = _which("nvcc")
    if on_path and (home := _home_of(on_path)):
        yield home
    if Path("/usr/local/cuda/bin/nvcc").is_file():
        yield Path("/usr/local/cuda")
    from_wheels = wheel_home(cache)
    if from_wheels:
        yield from_wheels


def _home_of(nvcc: Path) -> Path | None:
    """The toolkit to which an nvcc belongs. The program on PATH may be a link or a script; then nvcc is run to find the
    toolkit."""
    for beside in (nvcc.parent.parent, nvcc.resolve().parent.parent):
        if (beside / "bin/nvcc").is_file() and (beside / "include/cuda_runtime.h").is_file():
            return beside
    top = re.search(r"^#\$ TOP=(.+)$", _output(nvcc, "--dryrun", "-x", "cu", "-c", os.devnull), re.M)
    home = Path(os.path.normpath(top[1].strip())) if top else None
    return home if home and (home / "bin/nvcc").is_file() else None


def _first(homes: Iterator[Path]) -> Iterator[Path]:
    found = next(homes, None)
    if found:
        yield found


def _find_ninja() -> Path | None:
    named = _named(NINJA_VARIABLES)
    if named:
        return _which(named[1])
    if on_path := _which("ninja"):
        return on_path
    # pip puts ninja beside python, which is on PATH only in an activated environment.
    import importlib.metadata  # importing it here would cost every command 40 ms
    beside = [Path(sys.prefix) / "bin/ninja", Path(sysconfig.get_path("scripts")) / "ninja"]
    try:
        packed = [Path(str(f.locate())) for f in importlib.metadata.files("ninja") or () if f.name == "ninja"]
    except importlib.metadata.PackageNotFoundError:
        packed = []
    return next((p for p in (*beside, *packed) if os.access(p, os.X_OK) and p.is_file()), None)


def _find_tool(name: str, home: Path | None) -> Path | None:
    places = [home / "bin" / name, home / name / name] if home else []
    return _which(name) or next((p for p in places if p.is_file()), None)


def _of_a_package(name: str) -> Path | None:
    """A tool from NVIDIA's wheel or from the package triton. No package is imported."""
    places = []
    for package, inside in (("nvidia", "cu*/bin"), ("triton", "backends/nvidia/bin")):
        spec = importlib.util.find_spec(package)
        roots = spec.submodule_search_locations or () if spec else ()
        places += [path for root in roots for path in Path(root).glob(f"{inside}/{name}")]
    return next((p for p in places if os.access(p, os.X_OK) and p.is_file()), None)


def _of_nsight() -> Path | None:
    """The newest Nsight Compute that is not part of a toolkit."""
    return max(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), default=None)


def _named(variables: tuple[str, ...]) -> tuple[str, str] | None:
    return next(((name, value) for name in variables if (value := os.environ.get(name, "").strip())), None)


def _which(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found).absolute() if found else None


def _version(program: Path, pattern: str) -> str:
    for line in _output(program, "--version").splitlines():
        if found := re.search(pattern, line):
            return found[1]
    return ""


def _output(program: Path, *arguments: str) -> str:
    try:
        stamp = program.stat()
    except OSError:
        return ""
    return _asked(program, arguments, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=64)
def _asked(program: Path, arguments: tuple[str, ...], _mtime_ns: int, _size: int) -> str:
    """The output of the program. It is run once for each file, because nvcc is slow."""
    try:
        done = subprocess.run([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=_PROBE_LIMIT_S, env={**os.environ, "LC_ALL": "C"}, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _major(version: str) -> str:
    return version.partition(".")[0]


def emulated(flags: Iterable[str]) -> tuple[str, ...]:
    """The compile flags that g++ takes too."""
    return tuple(f for f in flags if f.startswith(_SHARED_FLAGS))


# A CUDA toolkit from pip's nvidia wheels. `pip install "cuda-toolkit[nvcc,cudart,cccl]"` puts files into site-packages. They
# are linked in the cache into the layout that nvcc and PyTorch expect of a CUDA_HOME.


def wheel_home(cache: Path | None) -> Path | None:
    """A CUDA_HOME made from the newest wheels on sys.path that contain nvcc; None without such wheels or without a `cache`."""
    roots = [root for entry in sys.path for root in Path(entry or ".").glob("nvidia/cu*") if _is_toolkit(root)]
    if not roots or cache is None:
        return None
    return lay_out(max(roots, key=lambda r: int("".join(filter(str.isdigit, r.name)) or 0)), cache)


def lay_out(root: Path, cache: Path) -> Path | None:
    """Arrange the files of `root` (site-packages/nvidia/cu13) as a toolkit below `cache`. None if the cache cannot be written.

    The wheels have the folder `lib`, but nvcc and torch search in `lib64`. They also have no `libcudart.so` without a version
    in its name. nvcc finds its other programs relative to its own folder. So `bin` is a real folder of links, because a link to
    `bin` would resolve to the wheel.
    """
    stamp = (root / "bin/nvcc").stat()
    name = hashlib.sha256(f"{root.absolute()}\0{stamp.st_mtime_ns}\0{stamp.st_size}".encode()).hexdigest()[:12]
    home = cache / "toolkit" / name
    if home.is_dir():
        return home
    unfinished = home.with_name(f"{name}.{os.getpid()}")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        for folder, source in (("bin", "bin"), ("lib64", "lib")):
            (unfinished / folder).mkdir(parents=True)
            for item in sorted((root / source).iterdir()) if (root / source).is_dir() else ():
                (unfinished / folder / item.name).symlink_to(item.absolute())
        for library in sorted((unfinished / "lib64").glob("*.so.*")):
            plain = library.with_name(library.name.partition(".so")[0] + ".so")
            if not plain.exists():
                plain.symlink_to(library.name)
        for folder in ("include", "nvvm"):
            (unfinished / folder).symlink_to((root / folder).absolute())
        unfinished.rename(home)
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        return home if home.is_dir() else None  # another process may have finished it first
    return home


def _is_toolkit(root: Path) -> bool:
    return all((root / part).exists() for part in ("bin/nvcc", "include/cuda_runtime.h", "nvvm"))
