"""CUDA source becomes a library in the cache, or the first error with its line. torch's load_inline builds it. For `cpu` the
emulator translates the source first."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.cache import Cache, Entry, build_key
from ...core.check_parts import FirstError
from ...core.env import cxx_problem, find_toolchain, ninja_problem, nvcc_problem, torch_info
from ...core.orders import BuildOrder, Emit
from ...core.replies import Built, Event
from ...core.toolchain import Toolchain
from ...core.trial import DEFAULT_ADVICE, Status
from ...core.trial_parts import Kernels
from .. import emulator
from .compiler_log import came_to_an_end, disk_full, first_error, headline, machine_failed
from .resources import NVCC_FLAGS, Numbers, by_kernel, cubin_constants, parse_ptxas

if TYPE_CHECKING:
    from .load_inline import Flags, NinjaFailed

# Kernels use none of the libraries load_inline links: without them any process can load the result.
_LINK_FLAGS = ("-Wl,--as-needed", "-Wl,-Bsymbolic")


@dataclass(frozen=True)
class _Meta:
    """What the cache keeps of a build. `kernels`: the numbers of each kernel, by architecture and mangled name."""

    seconds: float
    compiler: str
    device: str
    arch: str
    flags: tuple[str, ...]
    symbols: tuple[str, ...]
    kernels: dict[str, dict[str, Numbers]]


@dataclass(frozen=True)
class _Unit:
    """The result of building one translation unit. `hopeless`: building its members one by one would fail too."""

    built: Built
    kernels: dict[str, dict[str, Numbers]] = field(default_factory=dict)   # architecture -> mangled name -> numbers
    hopeless: bool = False

    def of_member(self, symbol: str) -> Kernels:
        """A batch's member lives in the namespace c_<candidate id>, and its symbol ends in that id."""
        only = f"c_{symbol.rpartition('_')[2]}::"
        return {arch: by_kernel(kernels, only=only) for arch, kernels in self.kernels.items()}


def build(order: BuildOrder, emit: Emit) -> Built:
    """Worker operation "build"."""
    whole = _build_unit(order)
    members = order.members
    if not members:
        return whole.built
    if whole.built.status not in (Status.BUILD_FAILED, Status.MACHINE_FAILED) or len(members) == 1 or whole.hopeless:
        results = {m.symbol: replace(whole.built, resources=whole.of_member(m.symbol)) for m in members}
    else:
        results = {}
        for number, member in enumerate(members, 1):
            emit(Event("build", f"the batch failed; building {number} of {len(members)} alone"))
            results[member.symbol] = _build_unit(replace(order, source=member.source, symbols=(member.symbol,))).built
    return replace(whole.built, members=results)


def _build_unit(order: BuildOrder) -> _Unit:
    started = time.monotonic()
    cache = Cache(order.cache)
    tools = find_toolchain()
    cuda = order.device == "cuda"
    compiler = tools.nvcc_label if cuda else tools.cxx_label
    problem = missing(tools, cuda=cuda)
    if problem:
        return _Unit(_built(Status.NO_COMPILER, problem, compiler=compiler,
                            advice="" if cuda else "Install it and run again; nothing needs a restart."), hopeless=True)
    key = build_key(order.source, order.flags, device=order.device, arch=order.arch, compiler=compiler,
                    torch=torch_info().version, extra=(order.sanitize, *(NVCC_FLAGS if cuda else (_emulator_digest(),))))
    try:
        found = cache.find(key, _Meta)
        cached = found is not None
        if found is None:
            found = _compile(order, key, cache, tools, compiler)
        elif order.log:
            _append(order.log, found.path / "log.txt")
    except _Stopped as stop:
        return _Unit(replace(stop.built, key=key, compiler=compiler, seconds=round(time.monotonic() - started, 3)),
                     hopeless=stop.hopeless)
    except OSError as error:
        return _Unit(_built(Status.MACHINE_FAILED, **_unwritable(error, cache.root), compiler=compiler), hopeless=True)
    meta = found.value
    made = _built(Status.OK, f"Built by {compiler} in {meta.seconds:.1f} s.", library=f"{found.path}/library.so",
                  digest=found.digests["library.so"], seconds=meta.seconds, cached=cached, compiler=compiler, key=key,
                  resources={arch: by_kernel(k) for arch, k in meta.kernels.items()})
    return _Unit(made, meta.kernels)


class _Stopped(Exception):
    """There is no library: a compiler or the linker reported an error in the source, or (MACHINE_FAILED) the machine failed."""

    def __init__(self, text: str, *, status: Status = Status.BUILD_FAILED, advice: str = "", hopeless: bool = False,
                 first_error: FirstError | None = None) -> None:
        super().__init__(text)
        self.hopeless = hopeless
        self.built = _built(status, text, advice=advice, first_error=first_error)


def missing(tools: Toolchain, *, cuda: bool) -> str | None:
    """The sentence about a needed tool that is missing, or None."""
    torch = torch_info()
    if cuda and torch.cuda is None:
        return (f"PyTorch {torch.version} has no CUDA, so nothing can be built for cuda: install a CUDA build of "
                f"PyTorch.")
    return (nvcc_problem(tools, torch.cuda) if cuda else None) or cxx_problem(tools) or ninja_problem(tools)


def _compile(order: BuildOrder, key: str, cache: Cache, tools: Toolchain, compiler: str) -> Entry[_Meta]:
    """Build in a private folder and publish the result. Returns the entry of the cache. Raises `_Stopped`, or OSError if
    something cannot be written."""
    from .load_inline import NinjaFailed, compile_library  # imports torch, which a build in the cache does not need
    with cache.building(key) as folder:
        entry, work = folder / "entry", folder / "work"
        entry.mkdir()
        work.mkdir()
        (entry / "source.cu").write_text(order.source, encoding="utf-8")
        log = order.log or folder / "log.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stream:
            begin = stream.tell()
            stream.write(f"# {compiler} for {order.arch or order.device}\n".encode())
        started = time.monotonic()
        cuda = order.device == "cuda"
        text = order.source if cuda else emulator.translate(order.source)
        try:
            library = compile_library(text, work, log=log, flags=_flags(order, work, tools), tools=tools, cuda=cuda)
        except NinjaFailed as error:
            raise _why(error, _tail(log, begin), order, work, compiler.partition(" ")[0]) from error
        said = _tail(log, begin)
        exported = library.read_bytes()
        missing = [s for s in order.symbols if s.encode() + b"\0" not in exported]
        if missing:
            raise _Stopped(f"The library does not export {missing[0]}.",
                           advice="Keep the exporting line of the source.")
        library.rename(entry / "library.so")
        (entry / "log.txt").write_text(said, encoding="utf-8")
        return cache.publish(key, entry, _Meta(round(time.monotonic() - started, 3), compiler, order.device, order.arch,
                                               order.flags, order.symbols, _kernels(said, work) if cuda else {}))


def _flags(order: BuildOrder, work: Path, tools: Toolchain) -> Flags:
    from .load_inline import Flags
    if order.device == "cuda":
        (work / "keep").mkdir()  # the cubin, for the numbers that ptxas does not print
        number = order.arch.removeprefix("sm_")
        return Flags(nvcc=(f"-gencode=arch=compute_{number},code=sm_{number}", *NVCC_FLAGS,
                           "-Xcompiler=-fno-gnu-unique", "-ccbin", str(tools.cxx), "-keep", "-keep-dir",
                           str(work / "keep"), *order.flags), link=_LINK_FLAGS)
    sanitizer = emulator.ASAN_FLAGS if order.sanitize == "address" else []
    return Flags(cxx=(*emulator.COMPILE_FLAGS, *sanitizer, *order.flags), include=emulator.INCLUDE_DIRS,
                 link=(*_LINK_FLAGS, *emulator.LINK_FLAGS, *sanitizer))


def _why(error: NinjaFailed, log: str, order: BuildOrder, work: Path, tool: str) -> _Stopped:
    """The headline and the advice for a failed build, from the log, or from load_inline's exception if the log is empty."""
    texts = (log, str(error))
    if disk_full(texts):
        return _Stopped("The disk is full: the compiler could not write its output.", status=Status.MACHINE_FAILED,
                        hopeless=True, advice="Free some space, or empty the cache: python -m workbench cache --clear.")
    if not work.is_dir():
        return _Stopped(f"{work.parents[2]} was removed while {tool} worked there.", status=Status.MACHINE_FAILED)
    if text := machine_failed(tool, log):
        return _Stopped(text, status=Status.MACHINE_FAILED)
    if not came_to_an_end(log):
        said = [line for text in texts for line in text.splitlines() if line.strip()]
        last = said[-1] if said else "it said nothing"
        return _Stopped(f"The build was interrupted before {tool} ended: {last.strip()[:200]}",
                        status=Status.MACHINE_FAILED)
    first = first_error(log, order.source) or first_error(str(error), order.source)
    if first is None:
        last = next((line for text in texts for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
        return _Stopped(f"{tool} stopped: {last.strip()[:200]}")
    advice = f"Correct line {first.line}." if first.line else "Correct the compile flags." if order.flags else ""
    return _Stopped(headline(tool, first), advice=advice, first_error=first)


def _kernels(log: str, work: Path) -> dict[str, dict[str, Numbers]]:
    """{arch: {mangled kernel: numbers}} of a CUDA build."""
    found = parse_ptxas(log)
    constants = {k: v for cubin in (work / "keep").glob("*.cubin") for k, v in cubin_constants(cubin).items()}
    for kernels in found.values():
        for name, numbers in kernels.items():
            numbers["constant_bytes"] = constants.get(name, numbers["constant_bytes"])
    return found


@lru_cache(maxsize=1)
def _emulator_digest() -> str:
    """A digest of the emulator's headers, translator and flags, so that libraries of an older emulator are not used."""
    root = Path(emulator.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(f for f in root.rglob("*") if f.suffix in (".h", ".py", ".cuh", ".hpp", "") and f.is_file()):
        digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()


def _tail(log: Path, begin: int) -> str:
    with log.open("rb") as stream:
        stream.seek(begin)
        return stream.read().decode(errors="replace")


def _append(log: Path, old: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream, old.open("rb") as kept:
        stream.write(b"# from the cache; when it was built the compiler said:\n")
        shutil.copyfileobj(kept, stream)


def _unwritable(error: OSError, root: Path) -> dict[str, str]:
    where = error.filename or root
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return {"text": f"The disk is full: {where} cannot be written.",
                "advice": "Free some space, or empty the cache: python -m workbench cache --clear."}
    return {"text": f"{where} cannot be written: {os.strerror(error.errno or 0)}.",
            "advice": "Make it writable, or set KERNEL_WORKBENCH_CACHE to a writable folder."}


def _built(status: Status, text: str, *, advice: str = "", **more: Any) -> Built:
    return Built(status=status, headline=text, advice=advice or ("" if status is Status.OK else DEFAULT_ADVICE[status]), **more)
