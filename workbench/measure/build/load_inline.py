"""One call of torch's load_inline in a private folder: source and flags become a library and a live log.

load_inline does not run the compilers directly. It finds small shell scripts of the same names on PATH, which run them:
- ninja holds a job's output back until the job ends, so they write command lines and messages straight to the log;
- a compiler that was killed says nothing, so they write the exit code of each that failed: `ended_as` reads it;
- ninja gives each job a process group of its own, which outlives a kill of the worker's group, so they watch a pipe
  that the worker holds open, and end their group when it is gone;
- after linking they keep the library and give load_inline an empty one to load. So no static initialiser of foreign code
  runs in the build worker. It can also build libraries with AddressSanitizer, although it could not load them.
"""

from __future__ import annotations

import inspect
import os
import secrets
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch.utils import cpp_extension

from ...core.toolchain import Toolchain

_SCRIPT = """#!/bin/sh
# Run {real}, its messages going to the live log as they are printed.
out= ; before= ; compile=
for word in "$@"; do
  [ "$before" = -o ] && out=$word
  [ "$word" = -c ] && compile=yes
  before=$word
done
printf '$ %s %s\\n' {name} "$*" >> {log}
( read -r gone < {lifeline}; kill -KILL 0 ) < /dev/null > /dev/null 2>&1 &
{real} "$@" >> {log} 2>&1
code=$?
kill $!
if [ $code != 0 ]; then
  printf '# %s ended with code %s\n' {name} $code >> {log}
  exit $code
fi
if [ -z "$compile" ] && [ -n "$out" ]; then
  mv "$out" {library} && {cxx} -shared -nostdlib -x c /dev/null -o "$out" >> {log} 2>&1
fi
"""

_LIFELINE = "alive"


class NinjaFailed(Exception):
    """No library was made; the log has the reason. `str(error)`: the message of load_inline."""


@dataclass(frozen=True)
class Flags:
    """The flags of each stage beyond those of load_inline. They are quoted here, not by the caller."""

    cxx: Sequence[str] = ()
    nvcc: Sequence[str] = ()
    link: Sequence[str] = ()
    include: Sequence[Path] = ()


def compile_library(source: str, folder: Path, *, log: Path, flags: Flags, tools: Toolchain, cuda: bool) -> Path:
    """Build `source` as C++, or as CUDA, in `folder`, which must be new. Raises `NinjaFailed`.

    One at a time per process: the compilers are chosen through the environment.
    """
    library = folder / "library.so"
    _write_scripts(folder, library, log, tools, cuda=cuda)
    with _environment(folder, tools, cuda=cuda), _lifeline(folder):
        if cuda:
            cpp_extension.CUDA_HOME = str(tools.cuda_home)  # at import it searched by its own rules
        # Kernels need no torch header: with the implicit ones a build takes 20 to 40 times as long.
        lean = "no_implicit_headers" in inspect.signature(cpp_extension.load_inline).parameters
        try:
            cpp_extension.load_inline(
                # A new name each time: load_inline does not build a name again that it has built before.
                f"kw_{secrets.token_hex(8)}", cpp_sources="" if cuda else source, cuda_sources=source if cuda else None,
                functions=None, extra_cflags=_quoted(flags.cxx), extra_cuda_cflags=_quoted(flags.nvcc),
                extra_ldflags=_quoted(flags.link), extra_include_paths=[_for_ninja(str(p)) for p in flags.include],
                build_directory=str(folder), with_cuda=cuda, is_python_module=False,
                **({"no_implicit_headers": True} if lean else {}))
        except RuntimeError as error:
            raise NinjaFailed(str(error)) from error
    return library


def _write_scripts(folder: Path, library: Path, log: Path, tools: Toolchain, *, cuda: bool) -> None:
    (folder / "bin").mkdir()
    (folder / "tmp").mkdir()
    (folder / "bin/ninja").symlink_to(tools.ninja)
    for real in (tools.cxx, tools.nvcc) if cuda else (tools.cxx,):
        script = folder / "bin" / real.name
        words = {"real": real, "name": real.name, "log": log, "library": library, "cxx": tools.cxx,
                 "lifeline": folder / _LIFELINE}
        script.write_text(_SCRIPT.format(**{k: shlex.quote(str(v)) for k, v in words.items()}), encoding="utf-8")
        script.chmod(0o755)


@contextmanager
def _lifeline(folder: Path) -> Iterator[None]:
    """A pipe with this process as its only writer. Its readers see the end of the file when this process ends in any way."""
    os.mkfifo(folder / _LIFELINE)
    held = os.open(folder / _LIFELINE, os.O_RDWR)  # for reading too, else the open would wait for a reader
    try:
        yield
    finally:
        os.close(held)


@contextmanager
def _environment(folder: Path, tools: Toolchain, *, cuda: bool) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update({
        "PATH": f"{folder / 'bin'}{os.pathsep}{before.get('PATH', os.defpath)}",
        "CXX": tools.cxx.name,
        "TMPDIR": str(folder / "tmp"),           # files of a killed compiler are removed with the folder
        "LC_ALL": "C",                           # messages that can be read by a program
        "TORCH_NO_COMPILER_WRAPPER": "1",        # no ccache in front of the scripts: the workbench has its own cache
        "TORCH_DONT_CHECK_COMPILER_ABI": "1",    # no torch header is compiled, so its ABI does not matter
    })
    os.environ.pop("CC", None)                   # load_inline would make it a second -ccbin
    if cuda:
        os.environ.update({"CUDA_HOME": str(tools.cuda_home), "PYTORCH_NVCC": tools.nvcc.name})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _quoted(flags: Sequence[str]) -> list[str]:
    """load_inline joins flags with spaces into a line that ninja reads first and a shell second."""
    return [_for_ninja(shlex.quote(flag)) for flag in flags]


def _for_ninja(text: str) -> str:
    return text.replace("$", "$$").replace("\n", " ")
