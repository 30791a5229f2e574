"""Why a file does not import or build, as one question with the first cause in a sentence."""

from __future__ import annotations

import difflib
import re
import shutil
import subprocess
from dataclasses import replace

from ....core.answers import Answer, Question
from ....core.check_parts import FirstError, Log
from ....core.trial import Status
from ...build.compiler_log import errors, first_warning, headline
from ..foreign.process import Ended, Raised
from ..foreign.replies import InlineCall
from .advice import advice_for
from .compile_advice import Place, compile_advice, line_of, plain_message

_QUESTION = "Imports and builds?"
_PUT_BEFORE = {"cuda.cu": 3, "main.cpp": 1}  # lines that load_inline writes above the sources
_OF_CUDA, _OF_CPP = ("cuda_sources", "cuda.cu"), ("cpp_sources", "main.cpp")
_UNDEFINED = re.compile(r"undefined (?:symbol: |reference to [`'\"])(?P<name>[^'`\"\n]+)")
_UNDECLARED = re.compile(r"was not declared|is undefined$|has not been declared|does not name a type")
_BUILDS = re.compile(r"Error building extension|Ninja is required|CUDA_HOME environment variable is not set|undefined symbol: |"
                     r"does not define module export function")
_SOURCES = '#line 1 "cuda_sources"\n#line 1 "cpp_sources"\n#line 1 "bindings"\n'
_OF_PTX = re.compile(r"^P(?:tx assembly aborted|arsing error)")
_LINES_OF_A_MACRO = 40
_PYBIND = re.compile(r"\bPYBIND11_MODULE\s*\(")
_NO_NINJA = "Ninja is required"
_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")
_MISSING = re.compile(r"missing a required argument: '(\w+)'")
_NO_CLASS = re.compile(r"the file defines no class (\w+);(?: it has (\w+)$)?")
_KNOWN = ("name", "cpp_sources", "cuda_sources", "functions", "extra_cflags", "extra_cuda_cflags", "extra_ldflags",
          "extra_include_paths", "build_directory", "verbose", "with_cuda", "is_python_module")


def build_question(error: Raised | Ended, text: str, *, emulated: bool, printed: str = "", lacks: str = "") -> Question:
    """FAILED, or SKIPPED if the cause is a missing part of this machine. `printed`: the output of the file's process. `lacks`:
    a sentence about the missing compiler."""
    if isinstance(error, Ended):
        return Question("builds", _QUESTION, Answer.FAILED, f"No. {error.headline}", error.advice, str(error.status),
                        Log(log=error.log))
    detail = Log(trace=error.trace, log=error.trace)
    if error.where == "load_inline arguments":
        return _wrong_argument(error, detail)
    if error.where == "load_inline" or _BUILDS.search(error.message):
        if lacks or _NO_NINJA in error.message:
            return no_compiler(lacks or "load_inline finds no ninja on PATH.")
        return _wrong_source(error, text, detail, printed)
    if error.type in ("ModuleNotFoundError", "ImportError") and re.search(r"\btriton\b", error.message) and emulated:
        return Question("builds", _QUESTION, Answer.SKIPPED, "Triton is not installed here, and needs a GPU.",
                        "Check the file on a machine with a GPU.", str(Status.SKIPPED), detail)
    if emulated and re.search(r"NVIDIA driver|CUDA (?:is not|driver)|not compiled with CUDA|cuda.*not available",
                              error.message):
        return Question("builds", _QUESTION, Answer.SKIPPED, f"It needs a GPU while it is imported: {error.sentence}.",
                        "Check the file on a machine with a GPU.", str(Status.SKIPPED), detail)
    seen = f"No. {error.sentence}."
    alone = "Run the file alone: python model_new.py."
    advice = advice_for(error, arguments=alone, otherwise=alone)
    if missing := _NO_CLASS.search(error.message):
        seen = f"No. The {error.message[4:]}."
        advice = f"Rename {missing[2]} to {missing[1]}." if missing[2] else f"Define class {missing[1]}(nn.Module)."
    elif error.type == "SyntaxError" and error.line and (wrong := line_of(text, error.line)):
        advice = _of_no_python(wrong, error.line) or advice
    return Question("builds", _QUESTION, Answer.FAILED, seen, advice, str(Status.BUILD_FAILED), detail)


def no_compiler(sentence: str) -> Question:
    return Question("builds", _QUESTION, Answer.SKIPPED, f"Not known. {sentence}", "Install it, or put it on PATH, and check "
                    "again.", str(Status.NO_COMPILER))


def _of_no_python(wrong: str, line: int) -> str:
    """The advice for text around the code, such as that of a chat; "" if there is only code."""
    if wrong.startswith("```"):
        return f"Remove line {line}: it is a fence of Markdown. Keep only the code between the fences."
    words = wrong.rstrip(".:!").split()
    if len(words) > 2 and all(re.fullmatch(r"[A-Za-z][\w'-]*,?", w) for w in words):
        return f"Remove line {line}, or make it a comment: it is not Python."
    return ""


def _wrong_argument(error: Raised, detail: Log) -> Question:
    seen = f"No. load_inline is called wrongly in line {error.line}: {error.message.rstrip('.')}."
    advice = f"It takes {', '.join(_KNOWN)}."
    if wrong := _UNEXPECTED.search(error.message):
        near = difflib.get_close_matches(wrong[1], _KNOWN, n=1)
        seen = f"No. load_inline has no argument {wrong[1]!r}, in line {error.line}."
        advice = f"Write {near[0]}." if near else advice
    elif wrong := _MISSING.search(error.message):
        seen, advice = f"No. load_inline lacks {wrong[1]}, in line {error.line}.", f"Write {wrong[1]}=... in the call."
    elif "must be a list" in error.message:
        seen, advice = f"No. {error.message} (line {error.line}).", "Put the flags into a list: [\"-O3\"]."
    return _failed(seen, advice, detail)


def _wrong_source(error: Raised, text: str, detail: Log, printed: str) -> Question:
    """The error of a source, from the log in the exception. With load_inline(verbose=True) the exception has no log, so it is
    read from the output."""
    call = error.detail.calls[-1] if error.detail.calls else None
    log, found = error.message, list[FirstError]()
    undefined = None
    for said in (error.message, printed):
        undefined, found = _UNDEFINED.search(said), errors(said, _SOURCES)
        if undefined or found:
            log = said
            break
    detail = replace(detail, log=log if log is error.message else f"{error.message}\n\n{log}")
    if undefined:
        return _failed(*_undefined(_demangled(undefined["name"].strip()), text, call), detail)
    if "does not define module export function" in error.message:
        names = ", ".join(f'"{n}"' for n in _functions_of(call))
        return _failed(f"No. load_inline is called without functions, in line {error.line}, so Python cannot call any function "
                       "of the sources.",
                       f"Name the functions that Python calls: functions=[{names or '...'}].", detail)
    if not found:
        said = next((s.strip() for s in reversed(log.splitlines()) if "rror" in s), log.strip().splitlines()[0] if
                    log.strip() else "it said nothing")
        return _failed(f"No. The build stopped: {said[:300]}.", "Read its log.", detail)
    first = _cause(found)
    if first.file is None and _OF_PTX.search(first.message):
        first = first_warning(log, _SOURCES) or first
    if first.file is None:
        first = _by_its_name(replace(first, message=_demangled_in(first.message)), text)
    if (of_functions := _of_functions(first, text, call)) is not None:
        return _failed(*of_functions, detail)
    tool, cpp = _tool(first, log, error.detail.build == "emulator"), first.file in _OF_CPP
    first = _within_macro(in_the_file(replace(first, message=plain_message(first.message)), text, call), text)
    place = Place.of(first, text, cpp=cpp, with_cuda=bool(call and call.cuda_sources))
    return _failed(f"No. {headline(tool, first)}", compile_advice(first.message, place), replace(detail, first_error=first))


def _cause(found: list[FirstError]) -> FirstError:
    """The first error. Of several undeclared names it is the first in the source, because an unknown macro is reported after
    the names in its brackets."""
    first = found[0]
    if first.line is None or not _UNDECLARED.search(first.message):
        return first
    return min((e for e in found if e.file == first.file and e.line and _UNDECLARED.search(e.message)),
               key=lambda e: e.line or 0)


def _tool(first: FirstError, log: str, emulator: bool) -> str:
    if re.match("Entry function|P(?:tx|arsing)", first.message):
        return "ptxas"
    if re.match("multiple definition of|undefined reference to|cannot find -l", first.message):
        return "The linker"
    if emulator:
        return "g++ (for the CPU emulator)"
    if first.file in _OF_CUDA:
        return "nvcc"
    if first.file in _OF_CPP or first.file == "bindings":
        return "g++"
    said = next((line for line in log.splitlines() if re.split("['`]", first.message)[0] in line), "")
    named = re.match(r"(?:\S*/)?(?P<tool>nvcc|ptxas|nvlink|ld|[\w+.-]*[gc]\+\+|cc1plus)[\s:]", said)
    plain = {"ld": "The linker", "cc1plus": "g++", "c++": "The C++ compiler"}
    return "The compiler" if named is None else plain.get(named["tool"], named["tool"])


def _of_functions(first: FirstError, text: str, call: InlineCall | None) -> tuple[str, str] | None:
    """The finding and the advice for an error in the lines that load_inline adds after cpp_sources for `functions`."""
    if call is None or first.line is None:
        return None
    lines = "\n".join(call.cpp_sources).split("\n")
    behind = first.file == "main.cpp" and first.line - _PUT_BEFORE["main.cpp"] > len(lines)
    if not (behind or first.file == "bindings" or "PyInit_" in first.message):
        return None
    cpp, cuda = "\n".join(call.cpp_sources), "\n".join(call.cuda_sources)
    if _PYBIND.search(cpp + cuda) and call.functions:
        where = next((n for n, words in enumerate(text.splitlines(), 1) if _PYBIND.search(words)), 0)
        return (f"No. PYBIND11_MODULE{f' in line {where}' if where else ''} and functions both bind the sources.",
                "Remove PYBIND11_MODULE: load_inline writes it for the names in functions.")
    place = first.line - 2 - (_PUT_BEFORE["main.cpp"] + len(lines) if behind else 0)  # the first of the lines opens the module
    undeclared = _UNDECLARED.search(first.message)
    name = next((n for n in call.functions if re.search(rf"['\"]{re.escape(n)}['\"] (?:was|is|has)", first.message)),
                call.functions[place] if 0 <= place < len(call.functions) and not undeclared else "")
    if not name:
        return _unfinished(first, text, lines)
    quoted = re.search(rf"\bfunctions\s*=\s*[^\])]*?[\"']{re.escape(name)}[\"']", text)
    where = f"line {text.count(chr(10), 0, quoted.end()) + 1}" if quoted else "its functions"
    seen = f"No. functions names {name}, which cpp_sources does not declare ({where})."
    if not undeclared:
        return (f"No. functions names {name} ({where}), whose arguments or result Python cannot pass: "
                f"{first.message.rstrip('.')}.", "Bind a function of tensors, numbers and texts.")
    if re.search(rf"__global__[^;{{]*\b{re.escape(name)}\s*\(", cuda):
        return seen, f"Name the C++ function that launches it: {name} is a kernel, which Python cannot call."
    if defined := re.search(rf"^[ \t]*((?:static |inline )*[\w:<>,*& ]+?\b{re.escape(name)}\s*\([^){{]*\))\s*\{{", cuda, re.M):
        return seen, f"Write its declaration into cpp_sources: {' '.join(defined[1].split())};"
    near = difflib.get_close_matches(name, _functions_of(call), n=1, cutoff=0.5)
    return seen, f"Write {near[0]} in functions, or declare and define {name}." if near else f"Declare {name} in cpp_sources."


def _unfinished(first: FirstError, text: str, lines: list[str]) -> tuple[str, str] | None:
    """The finding if cpp_sources ends in the middle of a declaration; otherwise None."""
    last = next((words.strip() for words in reversed(lines) if words.strip()), "")
    if last.endswith((";", "}")) or not last or not first.message.startswith("expected "):
        return None
    where = next((f"line {n}" for n, words in enumerate(text.splitlines(), 1) if words.strip().strip("\"'") == last), "its end")
    return f"No. cpp_sources ends in the middle of a declaration, in {where}.", f"Write a semicolon at the end of {where}."


def _functions_of(call: InlineCall | None) -> list[str]:
    """Names of the functions that the sources declare or define on the host."""
    found = re.findall(r"^[ \t]*(?!.*__(?:global|device)__)(?:[\w:<>,*&]+[ \t]+)+[*&]?(\w+)\s*\(", "\n".join(
        (*call.cpp_sources, *call.cuda_sources)) if call else "", re.M)
    return list(dict.fromkeys(n for n in found if n not in ("if", "for", "while", "return", "switch", "TORCH_CHECK")))


def _undefined(name: str, text: str, call: InlineCall | None) -> tuple[str, str]:
    """The finding and the advice for an undefined name. A name that the file does not declare, or that is not mangled, belongs
    to a library."""
    short = name.partition("(")[0].rpartition("::")[2]
    cpp, cuda = ("\n".join(call.cpp_sources), "\n".join(call.cuda_sources)) if call else ("", "")
    declared = re.search(rf"\b{re.escape(short)}\b", cpp)
    if call and (short in call.functions or declared and "(" in name):
        wrong = f"No. {name} is declared in cpp_sources and defined nowhere"
        if not re.search(rf"\b{re.escape(short)}\s*\([^;]*\{{", cuda + cpp):
            return f"{wrong}.", f"Define {short} in cuda_sources, or remove it from cpp_sources and functions."
        begins = re.compile(rf"^\s*[\w:\"].*\b{re.escape(short)}\s*\(")
        places = [n for n, words in enumerate(text.splitlines(), 1)
                  if begins.search(words) and "::" in words and "=" not in words]
        place = f" from line {places[0]}" if len(places) == 2 else ""
        if not_seen := re.search(rf"\b(static|extern \"C\") [^;{{}}()]*\b{re.escape(short)}\s*\(", cuda):
            if not_seen[1] == "static":
                return f"No. {name} is declared in cpp_sources, and its definition is static.", f"Remove static{place}."
            return (f"No. {name} is declared in cpp_sources, and its definition is extern \"C\".",
                    f"Remove extern \"C\"{place}, or write it in cpp_sources too.")
        which = f"lines {places[0]} and {places[1]}" if len(places) == 2 else "declaration and definition"
        return f"{wrong} with these arguments.", f"Make {which} agree, argument by argument."
    return (f"No. {name} is used and defined nowhere.",
            "Define it, or name its library in extra_ldflags (for example -lcublas for cuBLAS).")


def _failed(seen: str, advice: str, detail: Log) -> Question:
    return Question("builds", _QUESTION, Answer.FAILED, seen, advice, str(Status.BUILD_FAILED), detail)


def in_the_file(first: FirstError | None, text: str, call: InlineCall | None) -> FirstError | None:
    """The place of an error inside a source string, as a line of the Python file that holds the string. `call`: the
    sources of one load_inline."""
    if first is None or first.line is None or call is None or first.file not in (*_OF_CUDA, *_OF_CPP):
        return first
    line = first.line - _PUT_BEFORE.get(first.file, 0)
    for source in call.cpp_sources if first.file in _OF_CPP else call.cuda_sources:
        height = source.count("\n") + 1
        if 0 < line <= height:
            break
        line -= height
    else:
        return first
    if (start := text.find(source)) >= 0:
        return FirstError("the file", text[:start].count("\n") + line, first.message)
    wrong = source.split("\n")[line - 1].strip()  # the string was formatted, but this line of it may be unchanged
    there = [n for n, words in enumerate(text.splitlines(), 1) if wrong and words.strip() in (wrong, _formatted(wrong))]
    return FirstError("the file", there[0], first.message) if len(there) == 1 else first


def _formatted(words: str) -> str:
    """The line as it is written in an f-string."""
    return words.replace("{", "{{").replace("}", "}}")


def _within_macro(first: FirstError, text: str) -> FirstError:
    """For an error inside a macro's brackets nvcc names the macro's first line. This returns the line within the brackets that
    has the name."""
    if first.file != "the file" or not first.line or "AT_DISPATCH" not in line_of(text, first.line):
        return first
    inside = text.splitlines()[first.line - 1:first.line + _LINES_OF_A_MACRO]
    name = re.search(r"[\"'](\w+)[\"']", first.message)
    end = next((n for n, words in enumerate(inside) if re.search(r"\}\s*\)+;", words)), 0)
    below = next((n for n, words in enumerate(inside[:end]) if name and re.search(rf"\b{name[1]}\b", words)), 0)
    return replace(first, line=first.line + below)


def _by_its_name(first: FirstError, text: str) -> FirstError:
    """The line for a message without a place: the start of the kernel that it names, or the line with the flag that it names.
    """
    found = None
    if kernel := re.search(r"\bfunction '(?:void )?(\w+)", first.message):
        found = re.search(rf"__global__[^;{{]*?\b{kernel[1]}\s*\(", text)
    elif twice := re.match(r"multiple definition of [`'](\w+)", first.message):
        found = re.search(rf"^[ \t]*[\w:][\w:<>*& \t]*\b{twice[1]}\s*\([^;{{]*\{{", text, re.M)
    elif flag := re.search(r"'(-{0,2}[\w=-]{3,60})'|find (-l\w{1,60})", first.message):
        found = re.search(rf"[\"'][^\"'\n]*{re.escape(flag[1] or flag[2])}", text)
    return replace(first, file="the file", line=text.count("\n", 0, found.start()) + 1) if found else first


def _demangled_in(message: str) -> str:
    return re.sub(r"\b_Z\w{1,2000}", lambda found: _demangled(found[0]).partition("(")[0].removeprefix("void "), message)


def _demangled(name: str) -> str:
    if not re.fullmatch(r"_Z\w{1,2000}", name, re.ASCII) or shutil.which("c++filt") is None:
        return name
    try:
        done = subprocess.run(["c++filt", name], capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return name
    return (done.stdout.strip() or name).replace("at::Tensor", "Tensor")
