"""Examines a file's CUDA sources without running them: hints from the text, also from that in Python, KernelBench's rules for
the text, and a compilation by nvcc."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sysconfig
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from torch.utils import cpp_extension

from ....core.answers import Answer
from ....core.env import cxx_problem, find_toolchain
from ...build.compiler_log import errors, first_error, headline
from ..foreign import confine
from ..foreign.replies import InlineCall
from .build_question import in_the_file
from .compile_advice import Place, compile_advice

# The rest of an atomicAdd that counts: its order does not matter.
_COUNTS = re.compile(r"(?:[^;()]|\([^;()]*\))*,\s*(?:\d+[uUlL]*|1\.0?f?)\s*\)")
# A variable of the process for device memory. It counts if a call stores something there.
_SHARED = re.compile(r"^(?:[ \t]*static[ \t]+)?(?:(?:torch|at)::Tensor[ \t]+|(?:float|double|half|__half|char|void)[ \t]*"
                     r"\*[ \t]*)(?P<name>\w+)[ \t]*(?:;|=(?!=)|\{[^;{}]*\}[ \t]*;)", re.M)
_NO_NUMBERS = {"dtype", "device", "name", "type", "kind", "mode", "prefix", "suffix", "key", "cls", "op"}   # in a key
KEYS, _NAMED = "keys", (ast.Name, ast.Attribute)
_LAUNCH = re.compile(r"<<<(?P<config>.*?)>>>\s*\(", re.S)
_ARCH = "sm_80"
MOST_WAIT_S, WAIT_IF_WRONG_S = 60.0, 10.0   # for nvcc, after the last other answer
_POLL_S, _MOST_ENDING_S = 0.2, 10.0
_NO_HEADER = re.compile(r"No such file or directory|cannot open source file")
_MOST_READ = 200_000  # characters
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_TOKEN = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.)*|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)'|[{};]", re.M | re.S)
_WRAPS = re.compile(r"\s*(?:inline\s+)?namespace\b[\w\s:]*|\s*extern\s+\"C\"\s*")
_GOES_ON = re.compile(r"\s*(?:;|\w+\s*[;=])")
# Text that needs headers of PyTorch, or that launches kernels; and headers that are left out with it.
_OF_HOST = re.compile(r"\b(?:torch|at|c10|pybind11|py)::|<<<|\b(?:TORCH_|AT_|C10_|PYBIND11_|cudaStream)\w*|"
                      r"#\s*include\s*[<\"](?:torch|ATen|c10|pybind11|cu(?!da)\w+)[/.\w]*")
# Errors of device code for which text that is left out cannot be the reason.
_OF_DEVICE = re.compile(r"calling a __host__ function|expression must have a constant value|(?:in|from) device code|"
                        r"variable.length array|is not allowed in (?:a )?__(?:global|device)__")
_OF_ARCH = re.compile(r"^[ \t]*#[ \t]*(?:el)?if(?:n?def)?\b[^\n]*__CUDA_ARCH__.*?^[ \t]*#[ \t]*endif", re.M | re.S)
_DEVICE_MACRO = re.compile(r"#[ \t]*define[ \t]+(\w+)[^\n]*\b__(?:global|device)__")
_KERNELBENCH_REJECTS = (
    ("'pass'", r"\bpass\b"), ("'try:'", r"\btry\s*:"), ("'except'", r"\bexcept(?:\s*:|\s+\w)"),
    ("a thread or process", r"import\s+(?:threading|multiprocessing)|from\s+threading\s+import|threading\.Thread\s*\(|"
                            r"multiprocessing\.(?:Process|Pool|Manager|Queue|Pipe)|concurrent\.futures|(?:Thread|Process)PoolExecutor"),
    ("a subclass of Tensor", r"_make_subclass|class\s+\w+.*\((?:torch\.)?Tensor\)|torch\.Tensor\.__new__"),
    ("another clock", r"torch\.cuda\.(?:Event(?:\.record|\.elapsed_time)?|synchronize)\s*=|time\.(?:perf_counter|time)\s*="))


@dataclass(frozen=True)
class Hint:
    """`about`: key of a question. If this question is asked, the hint is left out."""

    about: str
    seen: str
    advice: str


@dataclass(frozen=True)
class Nvcc:
    """Whether the sources compile: PASSED, FAILED, or SKIPPED if that is not known."""

    answer: Answer
    seen: str
    advice: str = ""


def findings(text: str, calls: Sequence[InlineCall]) -> list[Hint]:
    """Hints that are found only from the text. They are not proofs."""
    found = []
    code = "\n".join(line.split("//")[0] for call in calls for line in "\n".join(call.cuda_sources).splitlines())
    code = (code or text)[:_MOST_READ]
    streams = [c["config"].count(",") >= 3 for c in _LAUNCH.finditer(_flat(code))]
    if streams and not all(streams):
        found.append(Hint("stream", f"{streams.count(False)} of {len(streams)} launches name no stream: they go to the default "
                          "stream.", "Launch on at::cuda::getCurrentCUDAStream()."))
    if re.search(r"\bcudaDeviceSynchronize\s*\(|torch\.cuda\.synchronize\s*\(", code + text):
        found.append(Hint("waits", "It waits for the whole device in each call.",
                          "Remove the synchronisation: PyTorch waits when it has to."))
    if streams and not re.search(r"cudaGetLastError|cudaPeekAtLastError|KERNEL_LAUNCH_CHECK", code):
        found.append(Hint("errors", "No launch is checked for an error.",
                          "Write C10_CUDA_KERNEL_LAUNCH_CHECK(); after each launch."))
    if shared := [one["name"] for one in _SHARED.finditer(code) if re.search(
            rf"\bcudaMalloc\w*\s*\([^;]*&\s*{one['name']}\b|[;{{}})]\s*{one['name']}\s*=(?!=)", code[one.end():])]:
        found.append(Hint("shared", f"All threads and streams share the memory of {', '.join(dict.fromkeys(shared))}. If "
                          "kernels write there, two calls at once give wrong results.",
                          "Allocate it in each call: PyTorch's allocator is fast."))
    if of_arch := dict.fromkeys(n for block in _OF_ARCH.findall(code) for n in re.findall(r"#[ \t]*define[ \t]+(\w+)", block)):
        marks = "|".join(["__global__", "__device__", *_DEVICE_MACRO.findall(code)])
        host = "".join(part for part in _parts(code) if not re.match(rf"\s*#|.*\b(?:{marks})\b", part, re.S))
        found += [Hint("arch", f"{name} depends on __CUDA_ARCH__, which host code does not have. There it may have another "
                       "value than in the kernels.", "Choose the value on the host, and pass it to the kernel.")
                  for name in of_arch if re.search(rf"\b{name}\b", host)]
    if any(not _COUNTS.match(code, one.end()) for one in re.finditer(r"\batomicAdd\s*\(", code)):
        found.append(Hint("bits", "atomicAdd sums in another order each time.",
                          "Replace atomicAdd by a two-step sum if the same bits are needed in each run."))
    return found


def of_python(text: str) -> list[Hint]:
    """A hint if numbers are written one behind the other, with nothing between them, and the text is the key of a table."""
    return [Hint(KEYS, f"In line {line} numbers without a separator are the key of a table: 1 and 23 give the key of 12 and "
                 "3.", "Take a tuple as the key.") for line in _joined_keys(text)[:1]]


def _joined_keys(text: str) -> list[int]:
    """The lines of such keys, each in the function or module that uses it."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    tables = {_last(target) for one in ast.walk(tree) if isinstance(one, ast.Assign | ast.AnnAssign) and _is_empty(one.value)
              for target in (one.targets if isinstance(one, ast.Assign) else [one.target])}
    lines = []
    for place in (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.Module)):
        own = list(_of_place(place))
        names = {target.id: one.value for one in own if isinstance(one, ast.Assign) and _joins(one.value)
                 for target in one.targets if isinstance(target, ast.Name)}
        keys = [one.slice for one in own if isinstance(one, ast.Subscript)]
        keys += [one.args[0] for one in own if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.args
                 and one.func.attr in ("get", "setdefault", "pop") and _last(one.func.value) in tables]
        lines += [one.lineno for key in keys if _joins(one := names.get(key.id, key) if isinstance(key, ast.Name) else key)]
    return sorted(lines)


def _of_place(place: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions in it."""
    for one in ast.iter_child_nodes(place):
        yield one
        if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _of_place(one)


def _last(one: ast.AST) -> str:
    """The last name of a.b.c."""
    return one.id if isinstance(one, ast.Name) else one.attr if isinstance(one, ast.Attribute) else ""


def _is_empty(value: ast.AST | None) -> bool:
    """{} or dict()."""
    return isinstance(value, ast.Dict) and not value.keys or isinstance(value, ast.Call) and _last(value.func) in (
        "dict", "OrderedDict") and not value.args


def _joins(value: ast.AST) -> bool:
    """Whether it is a text with two numbers one behind the other: an f-string, str() + str(), or "".join(map(str, ...)).
    What has the name of something else, or of a constant, is no number."""
    if isinstance(value, ast.JoinedStr):
        return any(_may_be_number(a) and _may_be_number(b) for a, b in pairwise(value.values))
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        left = value.left.right if isinstance(value.left, ast.BinOp) else value.left
        return _is_str(left) and _is_str(value.right) or _joins(value.left)
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "join" and isinstance(
            value.func.value, ast.Constant) and value.func.value.value == "" and len(value.args) == 1):
        return False
    given = value.args[0]
    return isinstance(given, ast.GeneratorExp | ast.ListComp) and _is_str(given.elt) or isinstance(
        given, ast.Call) and _last(given.func) == "map" and bool(given.args) and _last(given.args[0]) == "str"


def _is_str(one: ast.AST) -> bool:
    return isinstance(one, ast.Call) and _last(one.func) == "str" and len(one.args) == 1 and _is_number(one.args[0])


def _may_be_number(one: ast.AST) -> bool:
    return isinstance(one, ast.FormattedValue) and one.format_spec is None and one.conversion == -1 and _is_number(one.value)


def _is_number(value: ast.AST) -> bool:
    """Not, if it has the name of something else or of a constant; brackets or one digit end a shape or a truth."""
    if isinstance(value, ast.Call) and _last(value.func) in ("tuple", "list", "Size", "size", "bool", "int"):
        return _last(value.func) == "size" and bool(value.args)
    names = [_last(n) for n in ast.walk(value) if isinstance(n, _NAMED)]
    return not _last(value) == "shape" and not any(name in _NO_NUMBERS or name.isupper() for name in names)


def kernelbench_text(text: str) -> list[str]:
    """Why KernelBench's static check would reject the text; it reads everything outside comments."""
    code = "\n".join(line.split("#")[0].split("//")[0] for line in text.splitlines())
    reasons = [f"it contains {word}" for word, pattern in _KERNELBENCH_REJECTS if re.search(pattern, code)]
    if not re.search(r"^\s*(?:import|from)\s+triton\b", text, re.M):  # its rules for Triton are others
        reasons += ["it lacks __global__"] if "__global__" not in code else []
        reasons += ["it lacks load_inline"] if "load_inline" not in code and "cpp_extension" not in code else []
    return reasons


def nvcc(calls: Sequence[InlineCall], text: str, scratch: Path, *, memory_bytes: int, limit_s: float, enough: threading.Event
         ) -> Nvcc:
    """Compile every CUDA source as load_inline would, for one architecture, without linking. `text`: the file's. `enough`: set
    if its answer is no longer waited for."""
    tools = find_toolchain()
    if tools.nvcc is None:
        return Nvcc(Answer.SKIPPED, "There is no nvcc here: nothing was compiled for a GPU.")
    if problem := cxx_problem(tools):
        return Nvcc(Answer.SKIPPED, f"nvcc could not run. {problem}")
    scratch.mkdir(parents=True, exist_ok=True)
    begin, lacks = time.monotonic(), ""
    for number, call in enumerate(calls):
        if not call.cuda_sources:
            continue
        source = "\n".join(["#include <torch/types.h>", "#include <cuda.h>", "#include <cuda_runtime.h>",
                            '#line 1 "cuda_sources"', *call.cuda_sources])
        path = scratch / f"cuda_{number}.cu"
        path.write_text(source, encoding="utf-8", errors="replace")
        path.chmod(0o644)  # nvcc may run as another user
        includes = [w for p in (*cpp_extension.include_paths(), sysconfig.get_paths()["include"]) for w in ("-isystem", p)]
        words = [str(tools.nvcc), "-c", str(path), "-o", str(path.with_suffix(".o")), f"-arch={_ARCH}", "-std=c++20",
                 "-O1", "--expt-relaxed-constexpr", "-Xcompiler=-fPIC", *includes, *_harmless(call.cuda_flags),
                 "-ccbin", str(tools.cxx)]
        with confine.start(words, scratch, device="cpu", memory_bytes=4 * memory_bytes, data_limit=False) as how:
            done = _ended(how, time.monotonic() + limit_s, enough)
        if done is None:
            return Nvcc(Answer.SKIPPED, "nvcc was stopped: it had not ended soon after the last other answer. "
                        "--no-nvcc leaves this question out." if enough.is_set() else f"nvcc was stopped after {limit_s:g} s.")
        if done.returncode:
            first = in_the_file(first_error(done.stdout + done.stderr, source), text, call)
            if first is not None and _NO_HEADER.search(first.message):  # the file's own include folders are not searched here
                if wrong := _kernels_alone(call, text, path, [w for w in words if w not in includes], memory_bytes, enough):
                    return wrong
                lacks = lacks or first.message
                continue
            if first is None or "torch/" in (first.file or ""):
                last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:200]
                return Nvcc(Answer.SKIPPED, f"nvcc could not run: {last}")
            return Nvcc(Answer.FAILED, headline("nvcc", first), compile_advice(first.message, Place.of(first, text)))
    if lacks:
        return Nvcc(Answer.SKIPPED, f"nvcc could not run: {lacks}.")
    return Nvcc(Answer.PASSED, f"nvcc compiles it for {_ARCH} in {time.monotonic() - begin:.0f} s; it was not linked.")


def _kernels_alone(call: InlineCall, text: str, path: Path, words: Sequence[str], memory_bytes: int, enough: threading.Event
                   ) -> Nvcc | None:
    """Where a header is missing, nvcc compiles what needs no header of PyTorch. A failure if each error is one of device
    code."""
    kernels = "".join(_blank(part) if _OF_HOST.search(part) else part for part in _parts("\n".join(call.cuda_sources)))
    source = f'#include <cuda_runtime.h>\n#line 1 "cuda_sources"\n{kernels}\n'
    path.write_text(source, encoding="utf-8", errors="replace")
    with confine.start([w if w != "-c" else "-ptx" for w in words], path.parent, device="cpu", memory_bytes=4 * memory_bytes,
                       data_limit=False) as how:
        done = _ended(how, time.monotonic() + MOST_WAIT_S, enough)
    found = errors(done.stdout + done.stderr, source) if done and done.returncode else []
    if not found or not all(_OF_DEVICE.search(one.message) for one in found):
        return None
    first = in_the_file(found[0], text, call) or found[0]
    return Nvcc(Answer.FAILED, headline("nvcc", first), compile_advice(first.message, Place.of(first, text)))


def _parts(code: str) -> list[str]:
    """The text without comments, as parts: directives, and declarations and definitions that are in no other one. A namespace
    does not count. The lines keep their numbers."""
    code = _COMMENT.sub(lambda one: _blank(one[0]), code)
    parts, begin, depth = list[str](), 0, 0
    for one in _TOKEN.finditer(code):
        before = code[begin:one.start()]
        if one[0] == "{" and (depth or not _WRAPS.fullmatch(before)):
            depth += 1
            continue
        kind, goes_on = one[0].lstrip()[0], one[0] == "}" and _GOES_ON.match(code, one.end())   # as behind a struct
        depth -= kind == "}" and depth > 0
        if not depth and kind in "#{};" and not goes_on:
            end = one.start() if kind == "#" else one.end()
            parts += [code[begin:end], code[end:one.end()]]
            begin = one.end()
    return [*parts, code[begin:]]


def _blank(text: str) -> str:
    """Its lines, without what they say."""
    return "\n" * text.count("\n") or " "


def _ended(how: confine.Start, end: float, enough: threading.Event) -> subprocess.CompletedProcess[str] | None:
    """What the command gave; None if it and its children were stopped at that time, or when `enough` was set."""
    with subprocess.Popen(**how, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        while True:
            try:
                said, complained = process.communicate(timeout=_POLL_S)
                return subprocess.CompletedProcess(process.args, process.returncode, said, complained)
            except subprocess.TimeoutExpired:
                if enough.is_set() or time.monotonic() > end:
                    _stop((process.pid, *confine.descendants(process.pid)))
                    return None


def _stop(pids: Sequence[int]) -> None:
    """Kill them, and wait until they have ended: they would be counted as processes that the file has left."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + _MOST_ENDING_S
    while {*pids} & {*confine.descendants(os.getpid())} and time.monotonic() < end:
        time.sleep(_POLL_S)


def _harmless(flags: Sequence[str]) -> list[str]:
    """Flags of the file that change the language or the code, none that name files or programs."""
    return [f for f in flags if re.fullmatch(r"-O[0-3]|--?use_fast_math|-std=c\+\+\d\d|-D\w+(=\w+)?|"
                                             r"--expt-extended-lambda|--extended-lambda|-U\w+", f)]


def _flat(code: str) -> str:
    """Without commas inside brackets, so that those between launch arguments can be counted."""
    depth, kept = 0, []
    inside = False
    for place, char in enumerate(code):
        if code.startswith("<<<", place):
            inside, depth = True, 0
        elif code.startswith(">>>", place):
            inside = False
        if inside and char in "([{":
            depth += 1
        elif inside and char in ")]}":
            depth -= 1
        kept.append(" " if inside and depth > 0 and char == "," else char)
    return "".join(kept)
