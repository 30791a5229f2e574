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
# Headers of torch that a file needs which calls load_inline: its own Tensor and its own bindings, without all else. The whole
# of torch/extension.h takes four times as long.
_EXTENSION = """#pragma once
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
namespace torch { using namespace at; template <class F> F* wrap_pybind_function(F* f) { return f; } }
#ifndef __CUDACC__
#include <torch/csrc/utils/pybind.h>
#endif
"""
_HEADERS = f"""import pathlib
pathlib.Path("torch").mkdir(exist_ok=True)
pathlib.Path("torch/extension.h").write_text({_EXTENSION!r})
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
    run: bool                # it builds: the call breaks

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
        text = _HEADERS + re.sub(r"(load_inline\(\s*)", rf"\1{_FOUND}", text, count=1)
    expected = {"status": "BUILD_FAILED", "says": "", "advice": "", **found, **(found.get("cuda", {}) if device == "cuda" else {})}
    if "line" in expected:
        lines = [n for n, words in enumerate(text.splitlines(), 1) if expected["line"] in words]
        assert len(lines) == 1, (found["name"], lines)
        for key in ("says", "advice"):
            expected[key] = expected[key].replace("{line}", str(lines[0]))
    return Broken(found["name"], found["base"], text, expected["about"], expected["status"], expected["says"],
                  expected["advice"], expected.get("run", False))
