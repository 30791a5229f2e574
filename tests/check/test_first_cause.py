"""The first cause of a file that does not build or construct, by real compilers in the file's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.require import require
from workbench.core.answers import Answer, Question
from workbench.core.toolchain import find_toolchain
from workbench.measure.check.build_question import build_question
from workbench.measure.check.foreign import confine
from workbench.measure.check.foreign.process import ForeignProcess, Limits, Raised
from workbench.measure.check.party import Party

from . import models
from .conftest import BAD_MODELS
from .small_headers import SMALL_HEADERS, with_small_headers

pytestmark = pytest.mark.xdist_group("check_load_inline")

# As on a GPU: load_inline is torch's own, with ninja and nvcc. A PyTorch without CUDA is told where the toolkit is.
_ON_A_GPU = """import os
os.environ["TORCH_CUDA_ARCH_LIST"] = "8.0"
from torch.utils import cpp_extension
cpp_extension.CUDA_HOME = {home!r}
cpp_extension.COMMON_NVCC_FLAGS[:] = ["-O0", "--expt-relaxed-constexpr"]
"""


@pytest.fixture
def built(tmp_path: Path) -> Iterator[Callable[[str], Question]]:
    """What the judge says of a file whose import fails, without the emulator."""
    for folder in (tmp_path, *tmp_path.parents[:2]):  # another user has to get through
        folder.chmod(0o755)
    process = ForeignProcess("candidate", device="cpu", limits=Limits(8 << 30), scratch=tmp_path)

    def build(text: str) -> Question:
        with pytest.raises(Raised) as raised:
            Party(process, text, class_name="ModelNew", emulate=False).load()
        return build_question(raised.value, text, emulated=False, printed=process.build_log())

    try:
        yield build
    finally:
        process.close()
        confine._libc.prctl(confine._PR_SET_CHILD_SUBREAPER, 0)


@pytest.mark.parametrize(("verbose", "headers"), [
    (False, "small"), (True, "small"), pytest.param(False, "torch's own", marks=pytest.mark.long)])
def test_an_error_of_nvcc_is_told_with_the_line_of_the_file(built: Callable[[str], Question], verbose: bool,
                                                            headers: str) -> None:
    """With verbose=True the exception says no more than that the build failed: nvcc's words were printed."""
    tools = find_toolchain()
    require(tools.nvcc and tools.ninja and tools.cxx, "nvcc, ninja and g++ build what load_inline is given")
    text = (BAD_MODELS / "does_not_compile.py").read_text().replace("verbose=False", f"verbose={verbose}")
    text = _ON_A_GPU.format(home=str(tools.cuda_home)) + (with_small_headers(text) if headers == "small" else text)
    assert f"verbose={verbose}" in text
    question = built(text)
    line = next(n for n, words in enumerate(text.splitlines(), 1) if "* weight[" in words)
    assert question.answer is Answer.FAILED and question.status == "BUILD_FAILED"
    assert question.seen == f'No. The compiler stopped at the file, line {line}: identifier "weight" is undefined.'
    assert question.advice == f"Open line {line}."
    assert "ninja: build stopped" in question.detail.log and "error: identifier" in question.detail.log


def test_a_symbol_of_a_library_that_is_not_linked_is_no_wrong_declaration(built: Callable[[str], Question]) -> None:
    """It shows when the library is loaded: nothing in the log has a line."""
    tools = find_toolchain()
    require(tools.ninja and tools.cxx, "ninja and g++ build what load_inline is given")
    source = 'extern "C" int a_librarys_own(int);\\nint run(int x) { return a_librarys_own(x); }'
    question = built(f"{SMALL_HEADERS}from torch.utils.cpp_extension import load_inline\n"
                     f"load_inline('x', cpp_sources=\"\"\"{source.replace('a_librarys_own', 'a_librarys_' + 'own')}\"\"\", "
                     "functions=['run'], extra_include_paths=[str(pathlib.Path.cwd())])\n")
    assert "a_librarys_own is " in question.seen and question.status == "BUILD_FAILED", question


@pytest.mark.parametrize(("line", "words", "advice"), [
    ("self.r = math.sqrt(2)", "name 'math' is not defined", "Write 'import math' at the top of the file."),
    ("self.r = np.sqrt(2)", "name 'np' is not defined", "Write 'import numpy as np' at the top of the file."),
    ("self.r = weigth", "name 'weigth' is not defined", "Define weigth before line "),
    ("import a_package_of_nobody", "No module named 'a_package_of_nobody'", "Install a_package_of_nobody here"),
    ("from math import sqroot", "cannot import name 'sqroot'", "Correct sqroot in line "),
    ("self.r = torch.sqroot(2)", "module 'torch' has no attribute 'sqroot'", "Correct sqroot in line "),
    ("self.r = self.widht", "object has no attribute 'widht'", "Set widht on the ModelNew before line "),
    ("self.r = 1 // 0", "ZeroDivisionError in line", "Look at line "),
    ("self.r = nn.Linear(1)", "missing 1 required positional argument", "Look at line "),
])
def test_the_advice_for_a_constructor_is_that_of_its_exception(checked, line: str, words: str, advice: str) -> None:
    text = models.RIGHT.replace("self.scale = scale", f"self.scale = scale\n        {line}")
    question = checked(text).question("constructs")
    assert question.answer is Answer.FAILED and words in question.seen and question.advice.startswith(advice), question
    assert "order" not in question.advice


def test_arguments_that_do_not_fit_are_a_matter_of_their_order(checked) -> None:
    question = checked(models.RIGHT.replace("features, scale=1", "scale, features, more")).question("constructs")
    assert question.answer is Answer.FAILED and "missing 2 required" in question.seen
    assert question.advice == "Take the arguments of the reference's Model, in its order."


def test_parameters_that_cannot_be_made_equal_are_no_constructor_that_fails(checked) -> None:
    more = "self.scale = scale\n        self.more = nn.Parameter(torch.ones(1))"
    report = checked(models.RIGHT.replace("self.scale = scale", more))
    keys = [q.key for q in report.questions]
    assert len(keys) == len(set(keys)) and report.question("constructs").answer is Answer.PASSED, keys
    assert "neither by state_dict nor by seed" in report.question("values").seen
