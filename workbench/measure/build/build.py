"""CUDA source in; a library in the cache, or the first error with its line, out. Built with torch's load_inline for
`cuda`, and with the same call for `cpu`, where the emulator translates the source first."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.cache import Cache, build_key
from ...core.env import cache_dir, cxx_problem, find_toolchain, ninja_problem, nvcc_problem, torch_info
from ...core.toolchain import Toolchain
from ...core.trial import DEFAULT_ADVICE, Status
from .. import emulator
from .compiler_log import came_to_an_end, disk_full, first_error, headline, machine_failed
from .resources import NVCC_FLAGS, by_kernel, cubin_constants, parse_ptxas

if TYPE_CHECKING:
    from .load_inline import Flags, NinjaFailed

Emit = Callable[[dict[str, Any]], None]
# Kernels use none of the libraries load_inline links: without them any process can load the result.
_LINK_FLAGS = ("-Wl,--as-needed", "-Wl,-Bsymbolic")


@dataclass(frozen=True)
class _Unit:
    """One translation unit and all that decides what comes out of it."""

    source: str
    symbols: tuple[str, ...]
    device: str
    arch: str
    flags: tuple[str, ...]
    sanitize: str
    key: str
    log: Path | None


def build(request: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Worker operation "build". Request: source, symbols, device "cpu" | "cuda", arch, flags, key | None,
    sanitize "" | "address", cache, log, and for a batch members [{"symbol", "source", "key"?}], whose `source` holds
    that one member under the same symbol.

    Returns status, headline, advice, library, key, seconds, cached, compiler, first_error, resources; with members
    also "members": {symbol: the same for that member}. When a batch fails its members are built alone, so that only
    the culprits fail.
    """
    whole = _build_unit(request)
    members = request.get("members") or []
    if not members:
        return _told(whole)
    if whole["status"] not in (Status.BUILD_FAILED, Status.MACHINE_FAILED) or len(members) == 1 or whole["hopeless"]:
        results = {m["symbol"]: _told(whole) | {"resources": _of_member(whole, m["symbol"])} for m in members}
    else:
        results = {}
        for number, member in enumerate(members, 1):
            emit({"phase": "build", "text": f"the batch failed; building {number} of {len(members)} alone"})
            results[member["symbol"]] = _told(_build_unit({**request, **member, "symbols": [member["symbol"]],
                                                           "key": member.get("key")}))
    return _told(whole) | {"members": results}


def _build_unit(request: dict[str, Any]) -> dict[str, Any]:
    started = time.monotonic()
    cache = Cache(Path(request["cache"]) if request.get("cache") else cache_dir())
    tools = find_toolchain()
    cuda = request["device"] == "cuda"
    compiler = tools.nvcc_label if cuda else tools.cxx_label
    problem = missing(tools, cuda=cuda)
    if problem:
        return _result(Status.NO_COMPILER, problem, compiler=compiler, hopeless=True,
                       advice="" if cuda else "Install it and run again; nothing needs a restart.")
    unit = _unit(request, compiler)
    try:
        found = cache.find(unit.key) or _compile(unit, cache, tools, compiler)
        cached = "fresh" not in found
        if cached and unit.log:
            _append(unit.log, Path(found["path"]) / "log.txt")
    except _Stopped as stop:
        return {**stop.result, "key": unit.key, "compiler": compiler, "seconds": round(time.monotonic() - started, 3)}
    except OSError as error:
        return _result(Status.MACHINE_FAILED, **_unwritable(error, cache.root), compiler=compiler, hopeless=True)
    return _result(Status.OK, f"Built by {compiler} in {found['seconds']:.1f} s.",
                   library=f"{found['path']}/library.so", seconds=found["seconds"], cached=cached, compiler=compiler,
                   kernels=found["kernels"],
                   resources={arch: by_kernel(k) for arch, k in found["kernels"].items()}, key=unit.key)


class _Stopped(Exception):
    """No library: a compiler or the linker said no, or (MACHINE_FAILED) could not say anything."""

    def __init__(self, text: str, *, status: Status = Status.BUILD_FAILED, advice: str = "", **more: Any) -> None:
        super().__init__(text)
        self.result = _result(status, text, advice=advice, **more)


def missing(tools: Toolchain, *, cuda: bool) -> str | None:
    """The sentence for what must be there and is not."""
    torch = torch_info()
    if cuda and torch.cuda is None:
        return (f"PyTorch {torch.version} has no CUDA, so nothing can be built for cuda: install a CUDA build of "
                f"PyTorch.")
    return (nvcc_problem(tools, torch.cuda) if cuda else None) or cxx_problem(tools) or ninja_problem(tools)


def _unit(request: dict[str, Any], compiler: str) -> _Unit:
    device, sanitize = request["device"], request.get("sanitize") or ""
    arch, flags = request.get("arch") or "", tuple(request.get("flags") or ())
    extra = (sanitize, *((_emulator_digest(),) if device == "cpu" else NVCC_FLAGS))
    # A key from the caller stands for its source and flags; what is ours to know is always mixed in.
    named = request.get("key")
    key = build_key(named or request["source"], () if named else flags, device=device, arch=arch, compiler=compiler,
                    torch=torch_info().version, extra=extra)
    log = Path(request["log"]) if request.get("log") else None
    return _Unit(request["source"], tuple(request.get("symbols") or ()), device, arch, flags, sanitize, key, log)


def _compile(unit: _Unit, cache: Cache, tools: Toolchain, compiler: str) -> dict[str, Any]:
    """Build in a private folder and publish. Raises `_Stopped`, or OSError when something cannot be written."""
    from .load_inline import NinjaFailed, compile_library  # and torch: what lies in the cache does without it
    with cache.building(unit.key) as folder:
        entry, work = folder / "entry", folder / "work"
        entry.mkdir()
        work.mkdir()
        (entry / "source.cu").write_text(unit.source, encoding="utf-8")
        log = unit.log or folder / "log.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stream:
            begin = stream.tell()
            stream.write(f"# {compiler} for {unit.arch or unit.device}\n".encode())
        started = time.monotonic()
        cuda = unit.device == "cuda"
        text = unit.source if cuda else emulator.translate(unit.source)
        try:
            library = compile_library(text, work, log=log, flags=_flags(unit, work, tools), tools=tools, cuda=cuda)
        except NinjaFailed as error:
            raise _why(error, _tail(log, begin), unit, work, compiler.partition(" ")[0]) from error
        said = _tail(log, begin)
        exported = library.read_bytes()
        missing = [s for s in unit.symbols if s.encode() + b"\0" not in exported]
        if missing:
            raise _Stopped(f"The library does not export {missing[0]}.",
                           advice="Keep the exporting line of the source.")
        library.rename(entry / "library.so")
        (entry / "log.txt").write_text(said, encoding="utf-8")
        meta = {"seconds": round(time.monotonic() - started, 3), "compiler": compiler, "device": unit.device,
                "arch": unit.arch, "flags": unit.flags, "symbols": unit.symbols,
                "kernels": _kernels(said, work) if cuda else {}}
        return {**cache.publish(unit.key, entry, meta), "fresh": True}


def _flags(unit: _Unit, work: Path, tools: Toolchain) -> Flags:
    from .load_inline import Flags
    if unit.device == "cuda":
        (work / "keep").mkdir()  # the cubin, for what ptxas does not tell
        number = unit.arch.removeprefix("sm_")
        return Flags(nvcc=(f"-gencode=arch=compute_{number},code=sm_{number}", *NVCC_FLAGS,
                           "-Xcompiler=-fno-gnu-unique", "-ccbin", str(tools.cxx), "-keep", "-keep-dir",
                           str(work / "keep"), *unit.flags), link=_LINK_FLAGS)
    sanitizer = emulator.ASAN_FLAGS if unit.sanitize == "address" else []
    return Flags(cxx=(*emulator.COMPILE_FLAGS, *sanitizer, *unit.flags), include=emulator.INCLUDE_DIRS,
                 link=(*_LINK_FLAGS, *emulator.LINK_FLAGS, *sanitizer))


def _why(error: NinjaFailed, log: str, unit: _Unit, work: Path, tool: str) -> _Stopped:
    """What the log, or load_inline when the log is silent, says of a failed build."""
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
        return _Stopped(f"The build was broken off before {tool} came to its end: {last.strip()[:200]}",
                        status=Status.MACHINE_FAILED)
    first = first_error(log, unit.source) or first_error(str(error), unit.source)
    if first is None:
        last = next((line for text in texts for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
        return _Stopped(f"{tool} stopped: {last.strip()[:200]}")
    advice = f"Open line {first.line}." if first.line else "Correct the compile flags." if unit.flags else ""
    return _Stopped(headline(tool, first), advice=advice, first_error=first.to_json())


def _kernels(log: str, work: Path) -> dict[str, dict[str, dict[str, int]]]:
    """{arch: {mangled kernel: numbers}} of a CUDA build."""
    found = parse_ptxas(log)
    constants = {k: v for cubin in (work / "keep").glob("*.cubin") for k, v in cubin_constants(cubin).items()}
    for kernels in found.values():
        for name, numbers in kernels.items():
            numbers["constant_bytes"] = constants.get(name, numbers["constant_bytes"])
    return found


def _of_member(whole: dict[str, Any], symbol: str) -> dict[str, Any]:
    """A batch's member lives in the namespace c_<candidate id>, and its symbol ends in that id."""
    only = f"c_{symbol.rpartition('_')[2]}::"
    return {arch: by_kernel(kernels, only=only) for arch, kernels in whole["kernels"].items()}


@lru_cache(maxsize=1)
def _emulator_digest() -> str:
    """Changes with the emulator's headers, translator or flags: libraries of an older one are not used."""
    root = Path(emulator.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(f for f in root.rglob("*") if f.suffix in (".h", ".py", ".cuh", ".hpp", "") and f.is_file()):
        digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()


def _told(result: dict[str, Any]) -> dict[str, Any]:
    """Without what only this module needs: whether members are worth a try, and the kernels by their mangled names."""
    return {k: v for k, v in result.items() if k not in ("hopeless", "kernels")}


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
            "advice": "Make it writable, or set KERNEL_WORKBENCH_CACHE to a folder that is."}


def _result(status: Status, text: str, *, advice: str = "", **more: Any) -> dict[str, Any]:
    return {"status": str(status), "headline": text, "library": None, "key": "", "seconds": 0.0, "cached": False,
            "advice": advice or ("" if status is Status.OK else DEFAULT_ADVICE[status]), "compiler": "",
            "first_error": None, "resources": {}, "kernels": {}, "hopeless": False, **more}
