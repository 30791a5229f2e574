"""Why a file does not import or build, as one question with the first cause in a sentence."""

from __future__ import annotations

import difflib
import re
import shutil
import subprocess
from dataclasses import replace

from ...core.answers import Answer, Question
from ...core.check_parts import FirstError, Log
from ...core.trial import Status
from ..build.compiler_log import first_error, headline
from .advice import advice_for
from .foreign.process import Ended, Raised
from .foreign.replies import InlineCall

_QUESTION = "Imports and builds?"
_PUT_BEFORE = {"cuda.cu": 3, "main.cpp": 1}  # lines that load_inline writes above the sources
_UNDEFINED = re.compile(r"undefined (?:symbol: |reference to [`'\"])(?P<name>[^'`\"\n]+)")
_BUILDS = re.compile(r"Error building extension|Ninja is required|CUDA_HOME environment variable is not set|undefined symbol: ")
_NO_NINJA = "Ninja is required"
_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")
_NO_CLASS = re.compile(r"the file defines no class (\w+);")
_KNOWN = ("name", "cpp_sources", "cuda_sources", "functions", "extra_cflags", "extra_cuda_cflags", "extra_ldflags",
          "extra_include_paths", "build_directory", "verbose", "with_cuda", "is_python_module")


def build_question(error: Raised | Ended, text: str, *, emulated: bool, printed: str = "", lacks: str = "") -> Question:
    """FAILED, or SKIPPED where it is this machine that lacks something. `printed`: what the file's process has printed;
    `lacks`: the compiler that is not here, as a sentence."""
    if isinstance(error, Ended):
        return Question("builds", _QUESTION, Answer.FAILED, f"No. {error.headline}", error.advice, str(error.status),
                        Log(log=error.log))
    detail = Log(trace=error.trace)
    if error.where == "load_inline arguments":
        return _wrong_argument(error, detail)
    if error.where == "load_inline" or _BUILDS.search(error.message):
        if lacks or _NO_NINJA in error.message:
            return no_compiler(lacks or "load_inline finds no ninja on PATH.")
        return _wrong_source(error, text, detail, printed)
    if error.type in ("ModuleNotFoundError", "ImportError") and "triton" in error.message and emulated:
        return Question("builds", _QUESTION, Answer.SKIPPED, "Triton is not installed here, and needs a GPU.",
                        "Check the file on a machine with a GPU.", str(Status.SKIPPED), detail)
    if emulated and re.search(r"NVIDIA driver|CUDA (?:is not|driver)|not compiled with CUDA|cuda.*not available",
                              error.message):
        return Question("builds", _QUESTION, Answer.SKIPPED, f"It asks for a GPU while it is imported: {error.sentence}.",
                        "Check the file on a machine with a GPU.", str(Status.SKIPPED), detail)
    alone = "Run the file alone: python model_new.py."
    advice = advice_for(error, arguments=alone, otherwise=alone)
    if missing := _NO_CLASS.search(error.message):
        advice = f"Name the module's class {missing[1]}."
    return Question("builds", _QUESTION, Answer.FAILED, f"No. {error.sentence}.", advice, str(Status.BUILD_FAILED), detail)


def no_compiler(sentence: str) -> Question:
    return Question("builds", _QUESTION, Answer.SKIPPED, f"Not known. {sentence}", "Install it, or put it on PATH, and check "
                    "again.", str(Status.NO_COMPILER))


def _wrong_argument(error: Raised, detail: Log) -> Question:
    wrong = _UNEXPECTED.search(error.message)
    if wrong:
        near = difflib.get_close_matches(wrong[1], _KNOWN, n=1)
        return Question("builds", _QUESTION, Answer.FAILED, f"No. load_inline has no argument {wrong[1]!r}, in line "
                        f"{error.line}.", f"Write {near[0]}." if near else f"It takes {', '.join(_KNOWN)}.",
                        str(Status.BUILD_FAILED), detail)
    return Question("builds", _QUESTION, Answer.FAILED, f"No. load_inline is called wrongly in line {error.line}: "
                    f"{error.message.rstrip('.')}.", f"It takes {', '.join(_KNOWN)}.", str(Status.BUILD_FAILED), detail)


def _wrong_source(error: Raised, text: str, detail: Log, printed: str) -> Question:
    """From the exception's log; of load_inline(verbose=True), which has none, from what was printed."""
    call = error.detail.calls[-1] if error.detail.calls else None
    log, first = error.message, None
    for found in (error.message, printed):
        undefined, first = _UNDEFINED.search(found), first_error(found, '#line 1 "cuda_sources"\n#line 1 "cpp_sources"\n')
        if undefined or first:
            log = found
            break
    detail = replace(detail, log=log if log is error.message else f"{error.message}\n\n{log}")
    if undefined:
        return _failed(*_undefined(_demangled(undefined["name"].strip()), call), detail)
    tool = "g++ (for the CPU emulator)" if error.detail.build == "emulator" else "The compiler"
    first = in_the_file(first, text, call)
    if first is None:
        said = next((s.strip() for s in reversed(log.splitlines()) if "rror" in s), log.strip().splitlines()[0] if
                    log.strip() else "it said nothing")
        return _failed(f"No. The build stopped: {said[:300]}.", "Read its log.", detail)
    return _failed(f"No. {headline(tool, first)}", f"Open line {first.line}." if first.line else "",
                   replace(detail, first_error=first))


def _undefined(name: str, call: InlineCall | None) -> tuple[str, str]:
    """What was seen, and the advice. A name that the file does not declare belongs to a library."""
    short = name.partition("(")[0].rpartition("::")[2]
    if call and (any(re.search(rf"\b{re.escape(short)}\b", source) for source in call.cpp_sources) or short in call.functions):
        return (f"No. {name} is declared in cpp_sources and defined nowhere with these arguments.",
                "Make declaration and definition agree, argument by argument.")
    return (f"No. {name} is used and defined nowhere.",
            "Define it, or name its library in extra_ldflags (-lcublas for cuBLAS, say).")


def _failed(seen: str, advice: str, detail: Log) -> Question:
    return Question("builds", _QUESTION, Answer.FAILED, seen, advice, str(Status.BUILD_FAILED), detail)


def in_the_file(first: FirstError | None, text: str, call: InlineCall | None) -> FirstError | None:
    """The place of an error inside a source string, as a line of the Python file that holds the string. `call`: the
    sources of one load_inline."""
    if first is None or first.line is None or first.file not in ("cuda_sources", "cpp_sources", "cuda.cu", "main.cpp"):
        return first
    sources = () if call is None else call.cpp_sources if first.file in ("cpp_sources", "main.cpp") else call.cuda_sources
    start = text.find(sources[0]) if len(sources) == 1 else -1
    line = first.line - _PUT_BEFORE.get(first.file, 0)
    if start < 0 or not 0 < line <= sources[0].count("\n") + 1:
        return first
    return FirstError("the file", text[:start].count("\n") + line, first.message)


def _demangled(name: str) -> str:
    if not re.fullmatch(r"_Z\w{1,2000}", name, re.ASCII) or shutil.which("c++filt") is None:
        return name
    try:
        done = subprocess.run(["c++filt", name], capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return name
    return (done.stdout.strip() or name).replace("at::Tensor", "Tensor")
