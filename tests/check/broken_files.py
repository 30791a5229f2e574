"""The corpus of broken files (broken_files.toml): each entry's text, and what a check has to say of it."""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from workbench.core.answers import Answer, Question
from workbench.measure.check.foreign.process import Raised
from workbench.measure.check.foreign.replies import Context, InlineCall, Told

_CORPUS = Path(__file__).with_name("broken_files.toml")
_TINY = r"""#pragma once
#include <initializer_list>
#include <pybind11/pybind11.h>
namespace at {
struct Tensor {
  int size(int) const { return 1; }
  int options() const { return 0; }
  template <class T> T* data_ptr() const { return nullptr; }
};
}  // namespace at
namespace torch {
using at::Tensor;
inline Tensor empty(std::initializer_list<int>, int) { return {}; }
template <class F> F* wrap_pybind_function(F* f) { return f; }
}  // namespace torch
"""
# In place of torch/extension.h, which takes half a minute a build. For a file that runs: torch's own Tensor and bindings,
# without all else. For one that does not build: the compilers read no more of Tensor than its declaration.
_RUNS = """#pragma once
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
namespace torch { using namespace at; template <class F> F* wrap_pybind_function(F* f) { return f; } }
#ifndef __CUDACC__
#include <torch/csrc/utils/pybind.h>
#endif
"""
_BREAKS = """#pragma once
#include <initializer_list>
#include <ATen/Dispatch.h>
#include <ATen/core/TensorAccessor.h>
namespace at {
class DeprecatedTypeProperties;
class Tensor {
 public:
  int64_t size(int) const { return 1; }
  int64_t dim() const { return 1; }
  int64_t numel() const { return 1; }
  bool is_cuda() const { return true; }
  bool is_cpu() const { return true; }
  bool is_contiguous() const { return true; }
  int options() const { return 0; }
  c10::ScalarType scalar_type() const { return c10::ScalarType::Float; }
  const DeprecatedTypeProperties& type() const;
  Tensor contiguous() const { return *this; }
  template <class T> T* data_ptr() const { return nullptr; }
  template <class T, size_t N, template <class> class Traits>
  GenericPackedTensorAccessor<T, N, Traits, int> packed_accessor32();
};
inline Tensor empty(std::initializer_list<int64_t>, int) { return {}; }
inline Tensor empty_like(const Tensor& x) { return x; }
}
namespace torch {
using namespace at;
template <class F> F* wrap_pybind_function(F* f) { return f; }
}
#ifndef __CUDACC__
#include <pybind11/pybind11.h>
#endif
"""


def _headers(text: str) -> str:
    return f"""import pathlib
pathlib.Path("torch").mkdir(exist_ok=True)
pathlib.Path("torch/extension.h").write_text({text!r})
pathlib.Path("torch/types.h").write_text("#include <torch/extension.h>")
"""


SMALL_HEADERS = _headers(_TINY)
_FOUND = "extra_include_paths=[str(pathlib.Path.cwd())], "


@dataclass(frozen=True)
class Broken:
    """`about`: the key of the question that has to say it. `says`, `advice`: * stands for anything."""

    name: str
    text: str
    about: str
    status: str
    says: str
    advice: str
    log: str                 # of a build on a GPU, where it has one

    @property
    def compiles(self) -> bool:
        return "load_inline(" in self.text

    @property
    def raised(self) -> Raised:
        """What the file's process tells of a build on a GPU that ended with `log`."""
        names = {node.targets[0].id: node.value for node in ast.parse(self.text).body if isinstance(node, ast.Assign)
                 and isinstance(node.targets[0], ast.Name)}
        call = next(node for node in names.values() if isinstance(node, ast.Call) and "load_inline" in ast.unparse(node.func))
        given = {k.arg: ast.literal_eval(names[k.value.id] if isinstance(k.value, ast.Name) else k.value) for k in call.keywords
                 if k.arg in ("cpp_sources", "cuda_sources", "functions")}
        cpp, cuda = (tuple(filter(None, [given.get(key)])) for key in ("cpp_sources", "cuda_sources"))
        told = InlineCall("x", tuple(given.get("functions", ())), cpp, cuda, ())
        return Raised(Told("RuntimeError", self.log, call.lineno, "load_inline", "", Context("", (told,))))

    def differs(self, question: Question | None) -> str:
        """What a question says otherwise; "" where it says what is expected."""
        if question is None:
            return f"The question {self.about!r} was not asked."
        answer = Answer.SKIPPED if self.status == "SKIPPED" else Answer.FAILED
        pairs = ((answer, question.answer), (self.status, question.status), (self.says, question.seen),
                 (self.advice, question.advice))
        return "\n".join(f"expected {expected}\n     got {got}" for expected, got in pairs if not _fits(expected, got))


def with_small_headers(text: str, *, runs: bool = False) -> str:
    """A file that calls load_inline once, built with them. Its lines move down. `runs`: what is built can be called."""
    found = text.replace("load_inline(name=", f"load_inline({_FOUND}name=")
    assert found.count(_FOUND) == 1
    return (_headers(_RUNS) if runs else SMALL_HEADERS) + found


@cache
def reference() -> str:
    return str(_corpus()["base"]["reference"]).lstrip()


@cache
def broken(device: str, before: str = "") -> tuple[Broken, ...]:
    """The files of the corpus for "cpu" or "cuda". `before`: lines to put above each."""
    return tuple(_entry(found, device, before) for found in _corpus()["file"] if found.get("only", device) == device)


@cache
def _corpus() -> dict[str, Any]:
    return tomllib.loads(_CORPUS.read_text(encoding="utf-8"))


def _entry(found: dict[str, Any], device: str, before: str) -> Broken:
    text = _corpus()["base"][found["base"]].lstrip()
    for old, new in found["change"]:
        assert text.count(old) == 1, (found["name"], old)
        text = text.replace(old, new)
    if "load_inline(" in text and "import load_inline\n" in text and device not in found.get("with_torch_headers", ()):
        text = _headers(_BREAKS if found["about"] == "builds" else _RUNS) + re.sub(r"(load_inline\(\s*)", rf"\1{_FOUND}", text,
                                                                                   count=1)
    text = before + text
    expected = {"status": "BUILD_FAILED", "says": "", "advice": "", **found, **(found.get(device, {}))}
    for key in ("line", "other"):
        if key in expected:
            words = text.splitlines()
            lines = [n for n, w in enumerate(words, 1) if w.strip() == expected[key].strip()] or [
                n for n, w in enumerate(words, 1) if expected[key] in w]
            assert len(lines) == 1, (found["name"], lines)
            for said in ("says", "advice"):
                expected[said] = expected[said].replace(f"{{{key}}}", str(lines[0]))
    return Broken(found["name"], text, *(expected.get(k, "") for k in ("about", "status", "says", "advice", "log")))


def _fits(expected: str, got: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, expected.split("*"))), got, re.S) is not None
