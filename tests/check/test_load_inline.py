"""CUDA files without a GPU: built for the emulator, so that they are judged and not only read."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.answers import Answer
from workbench.core.candidate import Candidate
from workbench.core.check_parts import FirstError
from workbench.core.confinement import VARIABLE
from workbench.core.layer import DIRECTIONS
from workbench.core.presets import preset
from workbench.core.toolchain import find_toolchain
from workbench.core.variants import find
from workbench.drive.checking.check import workload_reference
from workbench.drive.exporting.export import export_text
from workbench.drive.exporting.recipe import Recipe
from workbench.measure.build.compiler_log import headline
from workbench.measure.check.foreign.process import Raised
from workbench.measure.check.foreign.replies import Context, InlineCall, Told
from workbench.measure.check.text import cuda_sources
from workbench.measure.check.text.build_question import build_question, in_the_file

from ..shared import require
from .broken_files import with_small_headers
from .conftest import BAD_MODELS, failed

pytestmark = pytest.mark.xdist_group("check_load_inline")


def _text(name: str) -> str:
    return (BAD_MODELS / f"{name}.py").read_text()


@pytest.fixture(autouse=True)
def compiler() -> None:
    require(shutil.which("g++") and shutil.which("ninja"), "g++ and ninja build what load_inline is given")


def _that_compiles() -> str:
    return _text("does_not_compile").replace("* weight[", "* w[")


def test_a_wrong_argument_of_load_inline_is_named_with_the_right_one(checked) -> None:
    text = _that_compiles().replace("verbose=False", 'extra_cuda_flags=["-O3"]')
    question = checked(text, like="kb74").question("builds")
    assert question.answer is Answer.FAILED and "'extra_cuda_flags'" in question.seen
    assert question.advice == "Write extra_cuda_cflags."


def test_a_compile_error_is_told_with_the_line_of_the_file(checked) -> None:
    text = with_small_headers(_text("does_not_compile"))
    question = checked(text, like="kb74").question("builds")
    line = next(n for n, words in enumerate(text.splitlines(), 1) if "* weight[" in words)
    assert question.status == "BUILD_FAILED" and f"line {line}: 'weight' was not declared" in question.seen


def test_a_declaration_without_its_definition_is_named(checked) -> None:
    text = _that_compiles().replace("torch::Tensor w, int dilation);", "torch::Tensor w, int stride, int dilation);")
    question = checked(with_small_headers(text), like="kb74").question("builds")
    assert question.answer is Answer.FAILED
    assert "conv_transpose1d(Tensor, Tensor, int, int) is declared in cpp_sources and defined nowhere" in question.seen


@pytest.mark.parametrize("small", [True, pytest.param(False, marks=pytest.mark.long)], ids=["small", "torch's own"])
def test_wrong_index_and_no_gradient(checked, small: bool) -> None:
    """Of #81 on few channels and positions: the emulator's code is not optimised here."""
    text, whole = _text("wrong_index_no_gradient"), preset("kb81").workload("small")
    few = replace(whole, layer=replace(whole.layer, in_channels=4, out_channels=6), batch=2, input_size=(5, 6))
    report = checked(with_small_headers(text, runs=True) if small else text, reference=workload_reference(few)[0], time=True)
    assert {"values": "MISMATCH", "gradients": "NO_GRADIENT"}.items() <= failed(report).items()
    assert report.mistake.found == "no divisibility test"
    assert report.question("builds").answer is Answer.PASSED and "emulator" in report.device
    assert report.question("times").answer is Answer.SKIPPED and "does not predict a GPU" in report.question("times").seen
    assert report.question("stream").answer is Answer.SKIPPED
    hints = report.question("text")
    assert hints.question == "Suspicious code?" and hints.answer is Answer.WARNED
    assert hints.seen == "1 of 1 launches name no stream: they go to the default stream. No launch is checked for an error."


_LOOKS = '''
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
float first(pybind11::object x) {
  const auto address = x.attr("data_ptr")().cast<unsigned long>();
  float value = 0;
  READ;
  return value;
}
__global__ void nothing() {}
"""
module = load_inline(name="looks", cpp_sources="float first(pybind11::object x);", cuda_sources=cuda_source,
                     functions=["first"])


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, bias=False):
        super().__init__()
        self.conv1d_transpose = nn.ConvTranspose1d(in_channels, out_channels, kernel_size, stride=stride,
                                                   padding=padding, dilation=dilation, bias=bias)

    def forward(self, x):
        assert module.first(x.detach()) == x.flatten()[2000]
        return self.conv1d_transpose(x)
'''


@pytest.mark.parametrize(("read", "status"), [
    pytest.param("cudaMemcpy(&value, reinterpret_cast<float*>(address) + 2000, 4, cudaMemcpyDeviceToHost)", None,
                 marks=pytest.mark.long),
    ("value = reinterpret_cast<float*>(address)[2000]", "WORKER_DIED")])
def test_host_code_cannot_read_the_memory_of_the_device(checked, read: str, status: str | None) -> None:
    report = checked(with_small_headers(_LOOKS.replace("READ", read)), like="kb74")
    question = report.question("values")
    assert question.status == (status or ""), failed(report)
    assert ("Host code read or wrote memory of the device" in question.seen) is bool(status)


@pytest.mark.long
def test_a_kernel_that_no_call_launches_is_a_warning(checked) -> None:
    text = with_small_headers(_LOOKS.replace("READ", ""))
    line = next(words for words in text.splitlines() if "assert module.first" in words)
    report = checked(text.replace(line, line.replace("assert ", "assert not x.is_cuda or ")), like="kb74")
    question = report.question("kernels_ran")
    assert failed(report) == {} and question.answer is Answer.WARNED, report.questions
    assert question.seen == "No. The CUDA code of looks launched nothing in this check. It is not judged."


def test_a_file_we_exported_is_checked_on_the_emulator(checked) -> None:
    layer = preset("kb74").layer
    recipe = Recipe(workload=preset("kb74").workload("small"),
                    **{d: Candidate(find("naive_gather", d), layer, "float32", {}) for d in DIRECTIONS})
    report = checked(export_text(recipe, constructor=preset("kb74")), like="kb74", time=True)
    assert failed(report) == {} and report.device == "cpu (emulator)"
    assert report.question("gradient_values").answer is Answer.PASSED and not report.times
    assert "It declares float32" in report.question("precision").seen and not report.declared


@pytest.mark.parametrize(("right", "broken"), [
    ("const int tile = ", "const int tile = = "), ("Tune::BLOCK, 0, stream>>>", "2048, 0, stream>>>")])
def test_an_export_whose_kernel_cannot_run_is_not_right_by_pytorch(checked, right: str, broken: str) -> None:
    """On a GPU it would go on with PyTorch and a warning; here its kernels are what is asked about."""
    recipe = Recipe(preset("kb74").workload("small"),
                    forward=Candidate(find("naive_gather", "forward"), preset("kb74").layer, "float32", {}))
    text = export_text(recipe, constructor=preset("kb74"))
    assert right in text
    report = checked(text.replace(right, broken), like="kb74")
    assert failed(report) and "forward/naive_gather" in str([q.seen for q in report.questions]), report.questions


def _call(source: str) -> InlineCall:
    return InlineCall("conv", (), (), (source,), ())


def test_findings_in_the_text() -> None:
    call = _call("k<<<dim3((n + 1) / 2, 1), 256>>>(x); cudaDeviceSynchronize(); // atomicAdd(\n")
    found = {f.about for f in cuda_sources.findings("", [call])}
    assert found == {"stream", "waits", "errors"}
    right = _call("k<<<g, b, 0, at::cuda::getCurrentCUDAStream()>>>(x); C10_CUDA_KERNEL_LAUNCH_CHECK();")
    assert cuda_sources.findings("", [right]) == []
    for line, sums in (("atomicAdd(&y[f(i, 1)], v)", True), ("atomicAdd(&ready[blockIdx.x], 1u)", False),
                       ("atomicAdd(&n[f(i)], 1.0f)", False)):
        hints = cuda_sources.findings("", [_call(f"__global__ void k(float* y) {{ {line}; }}")])
        assert [f.about for f in hints] == ["bits"] * sums, line
    for lines, shared in (("static torch::Tensor kept;\nvoid f() { kept = torch::empty(8); }", True),
                          ("static float* kept = nullptr;\nvoid f() { cudaMalloc((void**)&kept, 8); }", True),
                          ("static torch::Tensor none;\nvoid f() { torch::Tensor kept; kept = none; }", False)):
        assert [f.about for f in cuda_sources.findings("", [_call(lines)])] == ["shared"] * shared, lines
    macro = "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800\n#define N 2\n#else\n#define N 8\n#endif\n"
    for lines, hinted in (("int blocks(int n) { return (n + N - 1) / N; }", True), ("int blocks(int n) { return n; }", False)):
        hints = cuda_sources.findings("", [_call(f"{macro}__global__ void k(float* y) {{ y[N] = 1; }}\n{lines}\n")])
        assert [f.about for f in hints] == ["arch"] * hinted, lines


# Code that needs PyTorch stands beside code that does not: in a namespace, in extern "C", behind a struct and a macro.
_KERNELS = """#include <torch/extension.h>
#include <cuda_fp16.h>
#define TWICE(x) \\
  { y[0] = 2 * (x); }
namespace {
struct Size { int n; };
constexpr int steps[] = {1, 2};   // }
HELPER int next(int i) { return i + '}' - '{' + 1; }
__global__ void k(float* y, Size size) {
#ifdef NEVER
  }
#endif
  float row[COUNT];
  row[0] = __half2float(__float2half(2.f));
  TWICE(row[0] + next(size.n));
}
extern "C" {
void on_the_host(at::Tensor y) { k<<<steps[0], 1>>>(y.data_ptr<float>(), Size{1}); }
}
}
int count(const torch::Tensor& y) { TORCH_CHECK(y.dim() == 1, "{"); return next(1); }
"""


@pytest.mark.parametrize(("helper", "count", "said"), [
    ("__device__", "4", ""), ("static inline", "4", "calling a __host__ function"), ("__device__", "size.n", "constant value"),
    ("__device__", "torch::MANY", "")], ids=["right", "a host function", "an array of variable length", "what needs PyTorch"])
def test_where_a_header_is_missing_nvcc_compiles_the_kernels(helper: str, count: str, said: str, tmp_path, monkeypatch) -> None:
    require(find_toolchain().nvcc, "nvcc")
    monkeypatch.setattr(cuda_sources.cpp_extension, "include_paths", list)
    source = _KERNELS.replace("HELPER", helper).replace("COUNT", count)
    found = cuda_sources.nvcc([_call(source)], f'CUDA = """\n{source}"""\n', tmp_path, memory_bytes=8 << 30, limit_s=120,
                              enough=threading.Event())
    assert found.answer is (Answer.FAILED if said else Answer.SKIPPED) and said in found.seen, found
    place = {"calling a __host__ function": 16, "constant value": 14}.get(said)
    assert not said or f"line {place}" in found.seen, found


@pytest.mark.parametrize(("line", "hint"), [
    ('TABLE[f"{n}{k}{s}"]', True), ('TABLE.get(str(n) + str(k))', True),
    ('TABLE.setdefault("".join(map(str, (n, k))), 1)', True),
    ('TABLE[f"{n}x{k}"]', False), ('TABLE[n, k]', False), ('TABLE.get(str((n, k)))', False), ('f"{n}{k}"', False),
    ('TABLE[f"{PREFIX}{n}"]', False), ('TABLE[f"{n:04d}{k:04d}"]', False), ('TABLE[f"{x.dtype}{n}"]', False),
    ('TABLE["-".join(map(str, (n, k)))]', False), ('TABLE[f"{x.shape}{n.shape}"]', False),
    ('TABLE[f"{int(n)}{bool(k)}"]', False), ('TABLE["".join(str(one) + "," for one in s)]', False),
    ('TABLE[str(x.dtype) + str(x.device)]', False), ('TABLE[f"{x.shape[0]}{x.size(1)}"]', True),
    ('OTHER.get(f"{n}{k}")', False)])
def test_numbers_without_a_separator_are_no_key(line: str, hint: bool) -> None:
    text = f"TABLE = {{{{}}}}\nclass A:\n    def forward(self, x, n, k, s):\n        {'{}'}\n"
    assert [one.about for one in cuda_sources.of_python(text.format(f"return {line}"))] == [cuda_sources.KEYS] * hint
    assert [one.about for one in cuda_sources.of_python(text.format(f"key = {line}; return TABLE[key]"))] == [
        cuda_sources.KEYS] * (hint or line == 'f"{n}{k}"')
    assert cuda_sources.of_python("def f(:") == []


# A right file that works on a stream of its own, between events, and measures how long.
_ON_A_STREAM = """
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CODE = load_inline(name="twice", cpp_sources="torch::Tensor twice(torch::Tensor x);", functions=["twice"], cuda_sources='''
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

__global__ void twice_of(const float* x, float* y, long n) {
  long i = blockIdx.x * 128l + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}

torch::Tensor twice(torch::Tensor x) {
  torch::Tensor y = torch::empty_like(x);
  auto side = c10::cuda::getStreamFromPool(), here = at::cuda::getCurrentCUDAStream();
  at::cuda::CUDAEvent begin, end;
  begin.record(here);
  begin.block(side);
  twice_of<<<x.numel() / 128 + 1, 128, 0, side>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  end.record(side);
  end.block(here);
  cudaStream_t own;
  cudaEvent_t first, last;
  float ms = -1;
  cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), cudaEventCreate(&first), cudaEventCreate(&last);
  cudaEventRecord(first, own), cudaEventRecord(last, own), cudaStreamWaitEvent(own, last, 0), cudaEventSynchronize(last);
  cudaEventElapsedTime(&ms, first, last);
  TORCH_CHECK(ms >= 0 && ms < 1000, "the clock of the events");
  cudaEventDestroy(first), cudaEventDestroy(last), cudaStreamDestroy(own);
  return y;
}
''')


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return CODE.twice(x.contiguous()) if x.dtype == torch.float32 else 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class ModelNew(nn.Module):
    def forward(self, x):
        return Twice.apply(x)
"""
_DOUBLES = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return 2 * x

def get_inputs():
    return [torch.randn(4, 40)]

def get_init_inputs():
    return []
"""


def test_a_file_may_use_streams_and_events(checked) -> None:
    report = checked(with_small_headers(_ON_A_STREAM, runs=True), reference=_DOUBLES)
    assert not failed(report) and report.question("values").answer is Answer.PASSED, report.questions


def _running(word: str) -> list[str]:
    """The processes with this word among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # ended meanwhile
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [words for words in found if word in words]


def test_nvcc_and_its_children_end_if_nobody_waits_for_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without bwrap, whose processes end with it."""
    require(find_toolchain().nvcc, "nvcc compiles the source")
    monkeypatch.setenv(VARIABLE, "none")
    enough = threading.Event()
    threading.Timer(1.0, enough.set).start()
    found = cuda_sources.nvcc([_call("#include <torch/extension.h>\n")], "", tmp_path, memory_bytes=4 << 30, limit_s=100,
                              enough=enough)
    assert found.answer is Answer.SKIPPED and "soon after the last other answer" in found.seen and "--no-nvcc" in found.seen
    end = time.monotonic() + 10   # a killed process takes a moment
    while (left := _running(str(tmp_path))) and time.monotonic() < end:
        time.sleep(0.05)
    assert left == []


def test_kernelbenchs_own_text_rules() -> None:
    kernel = 'load_inline("__global__ void k() {}")\n'
    assert cuda_sources.kernelbench_text(kernel + "try:\n    pass\n") == ["it contains 'pass'", "it contains 'try:'"]
    assert cuda_sources.kernelbench_text(kernel + "x = 1  # pass\n") == []
    assert cuda_sources.kernelbench_text("import torch\n") == ["it lacks __global__", "it lacks load_inline"]
    assert cuda_sources.kernelbench_text("import triton\n") == []  # there other rules hold
    assert cuda_sources.kernelbench_text(kernel + "// pass\n") == []
    for line, word in (("import threading", "a thread"), ("class Lazy(torch.Tensor):", "a subclass"),
                       ("time.time = f", "another clock")):
        assert [said for said in cuda_sources.kernelbench_text(f"{kernel}{line}\n") if word in said], line


def test_a_line_of_nvcc_is_told_as_the_line_of_the_file() -> None:
    """As on a GPU, where load_inline writes cuda.cu with three lines of its own above the source."""
    text = _text("does_not_compile")
    line = next(n for n, words in enumerate(text.splitlines(), 1) if "* weight[" in words)
    source = text.split('cuda_source = r"""')[1].split('"""')[0]
    in_cuda = 3 + next(n for n, words in enumerate(source.splitlines(), 1) if "* weight[" in words)
    call = _call(source)
    error = Raised(Told("RuntimeError", f'/tmp/x/cuda.cu({in_cuda}): error: identifier "weight" is undefined\n', None,
                        "load_inline", "", Context(calls=(call,))))
    question = build_question(error, text, emulated=False)
    assert f"line {line}: identifier" in question.seen and question.advice.startswith("Declare weight before line")
    beside = in_the_file(FirstError("cuda_sources", in_cuda - 3, "m"), text, call)  # without a GPU
    assert beside == FirstError("the file", line, "m")
    asked = FirstError("the file", 7, "'wieght' was not declared; did you mean 'weight'?")
    assert headline("g++", asked) == f"g++ stopped at the file, line 7: {asked.message}"
    assert headline("nvcc", FirstError(None, None, "out of registers.")) == "nvcc stopped: out of registers."


_WITH_BRANCHES = '''
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
__global__ void twice(const float* x, float* y, int n, int row) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float value = x[i];
  if (i == 999999) value += 1;
  if (row == 777) {
    value *= 1.01f;
    value += 1;
  }
  y[i] = 2 * value;
}
torch::Tensor twice_all(torch::Tensor x) {
  x = x.contiguous();
  auto y = torch::empty_like(x);
  int n = x.numel();
  twice<<<(n + 64) / 64, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), n, x.size(-1));
  if (cudaGetLastError() != cudaSuccess) throw 1;
  return y;
}
"""
module = load_inline(name="twice", cpp_sources="torch::Tensor twice_all(torch::Tensor x);", cuda_sources=cuda_source,
                     functions=["twice_all"])


class ModelNew(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return 2 * y if torch.is_grad_enabled() or y.dtype != torch.float32 else module.twice_all(y)
'''


def test_branches_of_cuda_that_no_question_runs_are_named(checked) -> None:
    """A line that runs only in part, a block, and what the preprocessor leaves out without a GPU. Lines that only report errors
    are not named."""
    reference = ("import torch\nfrom torch import nn\nclass Model(nn.Linear):\n    def forward(self, x):\n"
                 "        return 2 * super().forward(x)\ndef get_inputs():\n    return [torch.randn(3, 5)]\n"
                 "def get_init_inputs():\n    return [5, 7]\n")
    text = with_small_headers(_WITH_BRANCHES, runs=True).replace("  int n = x.numel();", """  int n = x.numel();
  int* pinned = nullptr;
  if (cudaMallocHost(&pinned, 4) != cudaSuccess) throw 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  n = 0;
#else
  *pinned = n;
#endif
  n = *pinned;
  cudaFreeHost(pinned);""")
    report = checked(text, reference=reference)
    assert failed(report) == {}, report.questions
    line = {words.strip(): number for number, words in enumerate(text.splitlines(), 1)}
    first, block = line["if (i == 999999) value += 1;"], line["if (row == 777) {"]
    assert report.question("reached").seen == (
        "No. No question ran 3 parts of its Python text and its CUDA, so nothing is known of them: "
        f"line {line['n = 0;']} (`#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800` is compiled for a GPU only); "
        f"line {first} (one side of `if (i == 999999) value += 1;` never runs); "
        f"lines {block}–{block + 2} (one side of `if (row == 777) {{` never runs).")
    assert report.question("reached").seen.removeprefix("No. ") in report.evidence
