"""What a compiler's or linker's message means in plain words, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from ....core.check_parts import FirstError
from .advice import rule

_CUDA_ONLY = re.compile(r"__global__|__device__|__shared__|<<<|>>>|\b(?:threadIdx|blockIdx|blockDim)\b")
_LONG_NAME = re.compile(r'function\("([^"]{100,})"\)')
_HEADERS = (  # patterns for an undeclared name; the first match is used
    (r"__float2half|__half2?float|__half2?\b|__h\w+2?\b|__hfma2?", "<cuda_fp16.h>"),
    (r"(?:__nv_)?bfloat16|__float2bfloat16", "<cuda_bf16.h>"),
    (r"FLT_\w+|DBL_\w+", "<cfloat>"), (r"INFINITY|NAN|M_PI", "<cmath>"), (r"INT_M\w+|UINT_MAX|LONG_\w+", "<climits>"),
    (r"wmma|nvcuda", "<mma.h>"), (r"cooperative_groups|cg", "<cooperative_groups.h>"),
    (r"cublas\w+|CUBLAS\w+", "<cublas_v2.h>"), (r"cudnn\w+|CUDNN\w+", "<cudnn.h>"), (r"curand\w+", "<curand_kernel.h>"),
    (r"getCurrentCUDAStream", "<ATen/cuda/CUDAContext.h>"),
    (r"C10_CUDA_\w+", "<c10/cuda/CUDAException.h>"), (r"OptionalCUDAGuard|CUDAGuard", "<c10/cuda/CUDAGuard.h>"),
    (r"vector", "<vector>"), (r"optional", "<optional>"), (r"tuple", "<tuple>"), (r"cuda_?std|cub", "<cub/cub.cuh>"))


@dataclass(frozen=True)
class Place:
    """The place that the message names. `text`: that line of the file, "" if it is not known. `cpp`: whether it is in
    cpp_sources."""

    here: str
    text: str = ""
    cpp: bool = False
    with_cuda: bool = False

    def __str__(self) -> str:
        return self.here or "the source"

    @classmethod
    def of(cls, error: FirstError, text: str, *, cpp: bool = False, with_cuda: bool = False) -> Place:
        """`text`: the file's."""
        if not error.line or error.file == "the file":
            return cls(f"line {error.line}" if error.line else "", line_of(text, error.line), cpp, with_cuda)
        return cls(f"line {error.line} of {PurePosixPath(error.file or '').name}", "", cpp, with_cuda)


def plain_message(message: str) -> str:
    """The message without names of the emulator's internal parts."""
    for pattern, instead in _EMULATORS:
        if found := pattern.search(message):
            return instead(found)
    message = _LONG_NAME.sub(lambda found: f'function("{found[1].rpartition("::")[2].strip()}")', message)
    message = _ELSEWHERE.sub("", message)
    return re.sub(r" \[-f?[\w-]+\]$", "", message)


def compile_advice(message: str, place: Place) -> str:
    """What to do about a compiler's error."""
    if place.cpp and _CUDA_ONLY.search(place.text):
        more = "Put CUDA code into cuda_sources" if not place.with_cuda else "Move this line to cuda_sources"
        return f"{more}: g++ compiles cpp_sources, and it cannot compile kernels and launches."
    for pattern, advice in _RULES:
        if found := pattern.search(message):
            said = advice(found, place)
            if said:
                return said
    return f"Correct {place.here}." if place.here else "Read its log."


def line_of(text: str, line: int | None) -> str:
    """That line of the file; "" if there is none."""
    lines = text.splitlines()
    return lines[line - 1].strip() if line and line <= len(lines) else ""


def _types(words: str) -> str:
    return words.replace("at::Tensor", "Tensor").replace("&", "")


def _launch(found: re.Match[str]) -> str:
    return f"the kernel takes ({_types(found['takes'])}) and is launched with ({_types(found['given'])})"


_EMULATORS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"no match for call to '\(cuda_on_cpu::Launch<(?P<takes>.*)>\) \((?P<given>.*)\)'"), _launch),
    (re.compile(r"no matching function for call to 'allocate_shared<(?P<type>[^']*)>\(\)'"),
     lambda found: f"a __shared__ array needs a constant size, and {found['type']} has none"),
)
_ELSEWHERE = re.compile(r" \((?:previous definition|declared) at line \d+[^)]*\)")  # a line that is in none of the user's files


def _undeclared(found: re.Match[str], place: Place) -> str:
    name, near = found["name"], found["near"] if "near" in found.re.groupindex else None
    header = next((h for words, h in _HEADERS if re.fullmatch(words, name)), None)
    if name.startswith("AT_DISPATCH_"):
        return f"Write AT_DISPATCH_FLOATING_TYPES in {place.here}: PyTorch has no {name}."
    if header:
        return f"Write #include {header} at the top of the source."
    if near:
        return f"Write {near} in {place.here}, or declare {name} before."
    return f"Declare {name} before {place.here}, or correct its name."


def _arguments(found: re.Match[str], place: Place) -> str:
    if "Tensor" in found.string:
        return f"Pass x.data_ptr<...>() in {place.here}, not the tensor x: a kernel takes pointers and numbers."
    return f"Give the call in {place.here} the arguments that are declared, by number, order and type."


# Patterns for messages of g++, nvcc, ptxas and ld.
_RULES = (
    rule(r"DeprecatedTypeProperties", "Write .scalar_type() instead of .type() in {here}."),
    rule(r"a __shared__ array needs a constant size|constant value|variable length array|"
          r"not usable in a constant expression",
          "Use a constant or a template argument as the size, or extern __shared__ memory with its bytes in the launch."),
    rule(r"template argument (?:(\w+) )?cannot be deduced", "Write all template arguments of the call in {here}."),
    rule(r"the kernel takes \(|no instance of (?:overloaded )?function|no matching function|too (?:few|many) arguments|"
          r"argument of type .* is incompatible with parameter|cannot convert .* in argument|could not be converted|"
          r"no suitable c\w+ function|cannot bind", _arguments),
    rule(r"^(?:could not open|cannot open) source file \"([^\"]+)\"|^([^:\s]+): No such file",
          "Put the folder of {0}{1} into extra_include_paths, or remove the #include."),
    rule(r"\[with .*\]$", ""),
    rule(r"calling a __device__ function", "Do what {here} does in a kernel: host code can read no memory of the GPU."),
    rule(r"calling a __host__ function|is undefined in device code|identifier .* is undefined in device",
          "Write __device__ before the function that {here} calls; functions of std:: do not run in a kernel."),
    rule(r"must have a void return type|__global__.* must return void|^non-void function .*should return a value",
          "Declare the kernel as void; it returns its results through pointers."),
    rule(r"uses too much shared data", "Use a smaller __shared__ array. Above 48 KiB use extern __shared__ memory and "
          "cudaFuncSetAttribute."),
    rule(r"unterminated #|#endif for this directive is missing", "Write the #endif that belongs to {here}."),
    rule(r"closing brace of .* not found", "Write the closing brace of what begins in {here}."),
    rule(r"function-definition is not allowed here|expected '}'|expected a \"}\"|at end of input|"
          r"expected unqualified-id before '}'|linkage specification is not allowed",
          "Close the brace that is open above {here}."),
    rule(r"'static'|\"static\"", "Remove static from {here}: Python's bindings are in another file."),
    rule(r"conflicting declaration|linkage specification is incompatible|different linkage",
          "Write extern \"C\" in both cpp_sources and cuda_sources, or in neither."),
    rule(r"redefinition of|has already been defined|multiple definition", "Remove one of the two definitions."),
    rule(r"Value '([\w-]+)' is not defined for option 'gpu-architecture'|[Uu]nsupported gpu architecture '([\w-]+)'",
          "Remove {0}{1} from extra_cuda_cflags: load_inline compiles for the installed GPU."),
    rule(r"[Uu]nknown option '([^']+)'|unrecognized (?:command[- ]line )?option '([^']+)'",
          "Remove {0}{1}. extra_cflags are for g++, extra_cuda_cflags for nvcc; nvcc passes flags after -Xcompiler to g++."),
    rule(r"cannot find -l(\S+?):?(?:\s|$)",
          "Correct -l{0} in extra_ldflags, or install the library and name its folder by -L."),
    rule(r"(?:identifier \"|')(?P<name>\w+)[\"'](?: is undefined| was not declared)(?:.*did you mean '(?P<near>\w+)')?",
          _undeclared),
    rule(r"'(?P<name>\w+)' does not name a type|'(?P<n>\w+)' has not been declared", lambda found, place: ""),
    rule(r"there are no arguments to '(?P<name>\w+)'", _undeclared),
    rule(r"name followed by \"::\" must be|'(\w+)' has not been declared|is not a (?:class, )?namespace",
          "Correct the namespace in {here}: torch::, at:: or std::."),
    rule(r"has no member (?:named )?[\"'](\w+)[\"'](?:.*did you mean '(\w+)')?",
          lambda found, place: f"Write {found[2]} in {place.here}." if found[2] else f"Correct {found[1]} in {place.here}."),
    rule(r"'(\w+)' is not a member of '(\w+)'", "Correct {0} in {here}: {1}:: has no such name, or its #include is missing."),
    rule(r"no operator \"\[\]\"|invalid types '.*' for array subscript|must have pointer-to-object",
          "Use as many [ ] in {here} as the accessor or array has dimensions."),
    rule(r"expected (?:a \";\"|',' or ';'|';'|initializer|'\)'|a \"\)\"|an expression|primary-expression)",
          "Look for a missing semicolon or bracket in {here} or in the line above it."),
    rule(r"return-statement with no value|return value type does not match|control reaches end|missing return",
          "Return a value of the declared type in {here}."),
    rule(r"cannot convert|cannot be used to initialize|cannot be assigned|invalid conversion|incompatible types",
          "Make both sides of {here} the same type."),
    rule(r"was declared but never referenced|unused variable|all warnings being treated as errors",
          "Remove what is not used, or take the option that makes warnings errors out of the flags."),
)
