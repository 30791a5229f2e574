"""The corpus of broken files (broken_files.toml): each entry's text, and what a check has to say of it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from workbench.core.answers import CheckReport, Question

_CORPUS = Path(__file__).with_name("broken_files.toml")
# In place of torch/extension.h, which takes half a minute a build. For a file that runs: torch's own Tensor and bindings, without
# all else. For one that does not build: the compilers read no more of Tensor than its declaration.
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
  template <class T, size_t N, template <class> class Traits> GenericPackedTensorAccessor<T, N, Traits, int> packed_accessor32();
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


_FOUND = "extra_include_paths=[str(pathlib.Path.cwd())], "


@dataclass(frozen=True)
class Broken:
    name: str
    base: str
    text: str
    about: str
    status: str
    says: str
    advice: str


    @property
    def compiles(self) -> bool:
        return "load_inline(" in self.text


@cache
def reference() -> str:
    return _corpus()["base"]["reference"].lstrip()


@cache
def broken(device: str) -> tuple[Broken, ...]:
    """The files of the corpus for "cpu" or "cuda"."""
    return tuple(_entry(found, device) for found in _corpus()["file"] if found.get("only", device) == device)


@cache
def _corpus() -> dict[str, Any]:
    return tomllib.loads(_CORPUS.read_text(encoding="utf-8"))


def _entry(found: dict[str, Any], device: str) -> Broken:
    text = _corpus()["base"][found["base"]].lstrip()
    for old, new in found["change"]:
        assert text.count(old) == 1, (found["name"], old)
        text = text.replace(old, new)
    if "load_inline(" in text and "import load_inline\n" in text:
        text = _headers(_BREAKS if found["about"] == "builds" else _RUNS) + re.sub(r"(load_inline\(\s*)", rf"\1{_FOUND}", text, count=1)
    expected = {"status": "BUILD_FAILED", "says": "", "advice": "", **found, **(found.get("cuda", {}) if device == "cuda" else {})}
    if "line" in expected:
        lines = [n for n, words in enumerate(text.splitlines(), 1) if expected["line"] in words]
        assert len(lines) == 1, (found["name"], lines)
        for key in ("says", "advice"):
            expected[key] = expected[key].replace("{line}", str(lines[0]))
    return Broken(found["name"], found["base"], text, expected["about"], expected["status"], expected["says"],
                  expected["advice"])
