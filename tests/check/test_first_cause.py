"""The first cause of a file that does not build or construct, by real compilers in the file's own process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.shared import require
from workbench.core.answers import Answer, Question
from workbench.core.toolchain import find_toolchain
from workbench.measure.check.foreign import confine
from workbench.measure.check.foreign.process import Limits, Raised
from workbench.measure.check.foreign.replies import Context, Told
from workbench.measure.check.party import Party
from workbench.measure.check.text.build_question import build_question
from workbench.measure.check.trialrun import problem_of

from . import models
from .broken_files import SMALL_HEADERS, Broken, broken, reference, with_small_headers
from .conftest import BAD_MODELS
from .forked import ForkedProcess

_BUILDS = pytest.mark.xdist_group("check_load_inline")
_EARLY = ("builds", "constructs", "state_dict")  # what ends a check at once
_EACH_BUILD = 8                                  # of the builds on a GPU `make test-long` does so many-th again
_EACH = 6                                        # of the others `make test` asks so many-th

# As on a GPU: load_inline is torch's own, with ninja and nvcc. A PyTorch without CUDA is told where the toolkit is.
_ON_A_GPU = """import os
os.environ["TORCH_CUDA_ARCH_LIST"] = "8.0"
from torch.utils import cpp_extension
cpp_extension.CUDA_HOME = {home!r}
cpp_extension.COMMON_NVCC_FLAGS[:] = ["-O0", "--expt-relaxed-constexpr"]
"""
# Libraries of a PyTorch with CUDA that load_inline links. Nothing of them is called: no kernel is launched.
_LIBRARIES = """import subprocess
for name in ("c10_cuda", "torch_cuda"):
    subprocess.run(["g++", "-shared", "-x", "c", "/dev/null", "-o", f"lib{name}.so"], check=True)
os.environ["LIBRARY_PATH"] = os.getcwd()
"""


@pytest.fixture
def built(tmp_path: Path) -> Iterator[Callable[[str], Question]]:
    """What the judge says of a file whose import fails, without the emulator."""
    for folder in (tmp_path, *tmp_path.parents[:2]):  # another user has to get through
        folder.chmod(0o755)
    process = ForkedProcess("candidate", device="cpu", limits=Limits(8 << 30), scratch=tmp_path)

    def build(text: str) -> Question:
        with pytest.raises(Raised) as raised:
            Party(process, text, class_name="ModelNew", emulate=False).load()
        return build_question(raised.value, text, emulated=False, printed=process.build_log())

    try:
        yield build
    finally:
        process.close()
        confine._libc.prctl(confine._PR_SET_CHILD_SUBREAPER, 0)


def _on_the_cpu() -> Iterator[ParameterSet]:
    """The corpus. In `make test`: what needs no compiler and ends at once, and a few of what ends later."""
    for number, file in enumerate(broken("cpu")):
        early = file.about in _EARLY or number % _EACH == 0
        yield pytest.param(file, id=file.name, marks=() if early and not file.compiles else pytest.mark.long)


@pytest.mark.parametrize("file", _on_the_cpu())
def test_a_broken_file_is_told_by_its_first_cause(checked, file: Broken) -> None:
    if file.compiles:
        require(find_toolchain().ninja and find_toolchain().cxx, "ninja and g++ build what load_inline is given")
    if "import triton" in file.text:
        require(find_spec("triton") is None, "Triton is installed: without a GPU its files are not refused at import")
    name = f"model_{os.getpid()}.py"                           # another process of pytest keeps its log beside it
    report = checked(file.text, name=name, reference=reference(), call_s=3.0 if file.status == "RUN_TIMEOUT" else 60.0)
    question = report.question(file.about)
    assert not file.differs(question), file.differs(question)
    failures = [q for q in report.questions if q.answer is Answer.FAILED]
    assert question in failures[:1] or not failures and question.answer is Answer.SKIPPED, failures
    if question.detail.log and question.answer is Answer.FAILED:
        assert question.detail.log_path and question.detail.log == Path(question.detail.log_path).read_text()


@pytest.mark.parametrize("file", [f for f in broken("cuda") if f.log], ids=lambda file: file.name)
def test_the_log_of_a_build_on_a_gpu_is_read(file: Broken) -> None:
    """What nvcc 13.0, g++ 12 and ld wrote (broken_files.toml has the lines that hold an error)."""
    question = build_question(file.raised, file.text, emulated=False)
    assert not file.differs(question), file.differs(question)
    assert question.detail.log


@pytest.mark.long
@pytest.mark.parametrize("name", [f.name for f in broken("cuda") if f.log][::_EACH_BUILD])
def test_a_broken_file_is_told_by_its_first_cause_as_on_a_gpu(built: Callable[[str], Question], name: str) -> None:
    """Built by torch's own load_inline with ninja, nvcc and g++. Nothing is launched."""
    tools = find_toolchain()
    require(tools.nvcc and tools.ninja and tools.cxx, "nvcc, ninja and g++ build what load_inline is given")
    file = next(f for f in broken("cuda", _ON_A_GPU.format(home=str(tools.cuda_home)) + _LIBRARIES) if f.name == name)
    question = built(file.text)
    assert not file.differs(question), file.differs(question)
    assert question.detail.log


@pytest.mark.parametrize(("said", "status", "advice"), [
    ("invalid configuration argument", "LAUNCH_FAILED", "Launch 1 to 1024 threads in a block"),
    ("too many resources requested for launch", "LAUNCH_FAILED", "The block needs more registers"),
    ("invalid argument", "LAUNCH_FAILED", "Launch at least 1 block. Above 48 KiB of dynamic shared memory call"),
    ("no kernel image is available for execution on the device", "LAUNCH_FAILED", "It is built for another GPU"),
    ("out of memory", "OUT_OF_MEMORY", "Allocate less"),
    ("an illegal memory access was encountered", "KERNEL_FAULT", "Test each index"),
    ("misaligned address", "KERNEL_FAULT", "Load a float4 only"),
    ("device-side assert triggered", "KERNEL_FAULT", "Look at the assert"),
    ("unspecified launch failure", "KERNEL_FAULT", "Run it under compute-sanitizer"),
])
def test_an_error_that_cuda_reports_has_its_own_status_and_advice(said: str, status: str, advice: str) -> None:
    """As PyTorch on a GPU says it."""
    message = f"CUDA error: {said}\nCUDA kernel errors might be asynchronously reported, not an invalid argument."
    problem = problem_of(Raised(Told("AcceleratorError", message, 39, "", "", Context())))
    assert problem.seen == f"The module raised AcceleratorError in line 39: CUDA error: {said}."
    assert problem.status == status and problem.advice.startswith(advice), problem


def test_an_error_of_tritons_compiler_is_told_with_the_line_of_the_kernel(checked) -> None:
    """Its message shows the kernel down to the line, and says last what is wrong."""
    shown = "def kernel(x, BLOCK):\n    at = arange(0, BLOCK)\n"
    text = models.RIGHT.replace("        return torch.relu", "        compile_it()\n        return torch.relu")
    text = f"""{shown}
class CompilationError(Exception):
    pass


def compile_it():
    raise CompilationError("at 2:9:\\n" + {shown!r} + "         ^\\narange's arguments must be of type tl.constexpr")

{text}"""
    question = checked(text).question("values")
    assert question.seen == "No. The module raised CompilationError in line 2: arange's arguments must be of type tl.constexpr."
    assert question.advice.startswith("Declare the parameter as tl.constexpr")


@_BUILDS
@pytest.mark.parametrize(("verbose", "headers"), [
    (True, "small"), *(pytest.param(False, headers, marks=pytest.mark.long) for headers in ("small", "torch's own"))])
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
    assert question.seen == f'No. nvcc stopped at the file, line {line}: identifier "weight" is undefined.'
    assert question.advice == f"Declare weight before line {line}, or correct its name."
    assert "ninja: build stopped" in question.detail.log and "error: identifier" in question.detail.log


@_BUILDS
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
    ("from math import sqroot", "cannot import name 'sqroot'", "Write sqrt in line "),
    ("self.r = torch.sqroot(2)", "module 'torch' has no attribute 'sqroot'", "Write sqrt in line "),
    ("self.r = torch.nobodys_function(2)", "has no attribute 'nobodys_function'", "Correct nobodys_function in line "),
    ("self.r = self.widht", "object has no attribute 'widht'", "Set widht on the ModelNew before line "),
    ("self.r = 1 // 0", "ZeroDivisionError in line", "Look at line "),
    ("self.r = nn.Linear(1)", "missing 1 required positional argument", "Call Linear.__init__ in line "),
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
    assert "its parameters cannot be made equal to the reference's" in report.question("values").seen
