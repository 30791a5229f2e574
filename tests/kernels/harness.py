"""Candidates -> one emulated library -> launcher calls between guard zones -> what came out against float64.

    library = build_emulated([Candidate(...), ...], folder)     # one g++ call, however many candidates
    outcome = run(library, candidate, workload)                 # .status is OK, or what went wrong, in one word

At the end: layers beyond those of workbench.core.awkward.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from pathlib import Path

import pytest
import torch

from workbench.core.candidate import Candidate, problem_fields
from workbench.core.layer import FORWARD, GRAD_INPUT, GRAD_WEIGHT, ConvTranspose, Workload
from workbench.core.template import render, render_batch, symbol
from workbench.core.variants import Variant
from workbench.measure import emulator

_CONV = {1: torch.nn.functional.conv_transpose1d, 2: torch.nn.functional.conv_transpose2d,
         3: torch.nn.functional.conv_transpose3d}
# The launcher's pointers, in order (core/template.py exports them so); results are what it writes.
ARGUMENTS = {FORWARD: ("input", "weight", "bias", "output"), GRAD_INPUT: ("grad_output", "weight", "grad_input"),
             GRAD_WEIGHT: ("input", "grad_output", "grad_weight", "grad_bias"),
             "backward": ("input", "weight", "grad_output", "grad_input", "grad_weight", "grad_bias")}
_RESULTS = ("output", "grad_input", "grad_weight", "grad_bias")
_ACTIVATIONS = ("input", "grad_output", "output", "grad_input")
_POISON = 0xFF   # all bytes one: a NaN in each of the four dtypes, and not the NaN that arithmetic makes
# Instead of the workbench's -O1: these kernels are many and small, and g++ takes a third of the time. What nobody needs here
# takes a tenth more: tables to unwind, and g++ looking for memory that it no longer needs.
# A misaligned access ends the process (SIGILL, and pytest names the test): a call that says where takes a third of the time.
QUICK = ("-O0", "-w", "-fno-exceptions", "-fno-asynchronous-unwind-tables", "-fsanitize-undefined-trap-on-error", "--param",
         "ggc-min-expand=100", "--param", "ggc-min-heapsize=500000")
# The emulator itself runs most of the time of a kernel, and is parsed for each library.
_EMULATOR = """#pragma GCC push_options
#pragma GCC optimize("O2")
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#pragma GCC pop_options
"""
_headers: list[Path] = []
_COMMAND = ("g++", *emulator.COMPILE_FLAGS, *QUICK, *(f"-I{path}" for path in emulator.INCLUDE_DIRS))
_GUARD = 1024    # bytes before and behind every result and the workspace
# Relative to the sum of magnitudes, by precision: one rounding of the result and the growth of a sum kept in float;
# tf32 rounds both operands to 11 bits (2 * 2^-11), tf32x3 drops the product of the two remainders.
_TOLERANCE = {"ieee": 2e-6, "tf32": 1e-3, "tf32x3": 3e-6, "fp64": 1e-14, "fp16": 1e-3, "bf16": 8e-3}


@dataclass(frozen=True)
class Library:
    """A built batch: which symbol belongs to which candidate."""

    path: Path
    handle: ctypes.CDLL
    symbols: dict[str, str]  # key(candidate) -> symbol


@dataclass(frozen=True)
class Outcome:
    """`status` is a word of the trial statuses; `text` says where."""

    status: str
    text: str = ""


def candidate(variant: Variant, workload: Workload, *, form: str = "runtime", **config: int) -> Candidate:
    """The variant for that workload's layer and dtype. In the runtime form all layers of a kind give one source."""
    layer = workload.layer if form == "constant" else ConvTranspose(1, 1, 1, 1)
    return Candidate(variant, layer, workload.dtype, config, form=form)


def build_emulated(candidates: Sequence[Candidate], folder: Path, *, flags: Sequence[str] = ()) -> Library:
    """All candidates in one translation unit for the emulator. Raises with the compiler's words."""
    rendered = [render(c) for c in candidates]
    folder.mkdir(parents=True, exist_ok=True)
    source, library = folder / "batch.cpp", folder / "batch.so"
    source.write_text(emulator.translate(render_batch(rendered)), encoding="utf-8")
    made = compile_quickly(source, library, flags)
    if made.returncode:
        raise AssertionError(f"g++ failed:\n{made.stderr[-6000:]}")
    return Library(library, ctypes.CDLL(str(library)), {item.candidate_id: symbol(item) for item in rendered})


def compile_quickly(source: Path, library: Path, flags: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """The emulator's header comes precompiled; with other flags g++ reads it as text."""
    command = [*_COMMAND, *flags, "-include", str(_emulator(library.parent)), str(source), *emulator.LINK_FLAGS]
    return subprocess.run([*command, "-o", str(library)], capture_output=True, text=True, check=False)


def run(library: Library, one: Candidate, workload: Workload, *, order: int | str = 1, values: str = "integers",
        want_grad_bias: bool = True, shift: int = 0, take: dict[str, torch.Tensor] | None = None) -> Outcome:
    """One launch, threads in that order; results poisoned and guarded; compared with the float64 truth.

    `values`: "integers" (sums are exact: the result is the truth rounded once, bit for bit) or "floats".
    `shift`: bytes by which every tensor begins behind a multiple of 64, as a slice of a larger one may.
    `take`: results are put there by name instead of being compared.
    """
    inputs, truth, magnitude = tensors(replace(workload, memory_format="contiguous"), values)
    names = ARGUMENTS[one.direction]
    problem = _problem(workload)
    entry = getattr(library.handle, library.symbols[key(one)])
    query = getattr(library.handle, library.symbols[key(one)] + "_workspace")
    entry.restype, query.restype = ctypes.c_int, ctypes.c_longlong
    workspace_bytes = query(ctypes.byref(problem))
    if workspace_bytes < 0:
        return Outcome("LAUNCH_FAILED", "the library refuses this layer")
    skipped = {"bias"} if not workload.layer.bias else set()
    if not (workload.layer.bias and want_grad_bias):
        skipped.add("grad_bias")
    dtype = getattr(torch, workload.dtype)
    guarded = {n: _Guarded(truth[n].numel() * dtype.itemsize, shift)
               for n in names if n in _RESULTS and n not in skipped}
    workspace = _Guarded(workspace_bytes)
    given = {n: _moved(_laid(inputs[n], n, one), shift) for n in names if n not in _RESULTS and n not in skipped}

    def pointer(name: str) -> ctypes.c_void_p:
        if name in skipped:
            return ctypes.c_void_p(None)
        return ctypes.c_void_p(guarded[name].address if name in guarded else given[name].data_ptr())

    with _environment(CUDACPU_ORDER=str(order)):
        error = entry(ctypes.byref(problem), *map(pointer, names),
                      ctypes.c_void_p(workspace.address if workspace_bytes else None), ctypes.c_void_p(None))
    if error:
        return Outcome("LAUNCH_FAILED", f"cudaError_t {error}: {_last_error(library)}")
    for name, tensor in given.items():
        if not torch.equal(tensor, _laid(inputs[name], name, one)):
            return Outcome("INPUT_MODIFIED", name)
    for name, zone in (*guarded.items(), ("workspace", workspace)):
        if not zone.guards_whole():
            return Outcome("OUT_OF_BOUNDS", f"a byte beside {name} was written")
    if take is not None:
        take.update({name: _logical(zone.elements(dtype), truth[name].shape, name, one) for name, zone in guarded.items()})
        return Outcome("OK")
    for name, zone in guarded.items():
        outcome = _compare(name, zone, _laid(truth[name], name, one), _laid(magnitude[name], name, one), workload.dtype, values,
                           one.precision)
        if outcome.status != "OK":
            return outcome
    return Outcome("OK")


@lru_cache(maxsize=512)
def tensors(workload: Workload, values: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor],
                                                      dict[str, torch.Tensor]]:
    """Inputs in the workload's dtype; the truth in float64; and the same sums over magnitudes (for tolerances)."""
    layer, dtype = workload.layer, getattr(torch, workload.dtype)
    generator = torch.Generator().manual_seed(workload.seed)

    def draw(shape: tuple[int, ...]) -> torch.Tensor:
        if values == "integers":  # no zeros: a term left out always shows
            signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
            return (torch.randint(1, 4, shape, generator=generator) * signs).to(dtype)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    inputs = {"input": draw(workload.input_shape), "weight": draw(layer.weight_shape),
              "bias": draw((layer.out_channels,)), "grad_output": draw(workload.output_shape)}
    return inputs, _truth(layer, inputs), _truth(layer, {name: value.abs() for name, value in inputs.items()})


@lru_cache(maxsize=4096)
def key(one: Candidate) -> str:
    """Names a candidate within a library."""
    return render(one).candidate_id


def _emulator(folder: Path) -> Path:
    """The header that the first library of this process has left beside it."""
    if not (_headers and _headers[0].exists()):
        header = folder / "emulator.h"
        header.write_text(_EMULATOR, encoding="utf-8")
        subprocess.run([*_COMMAND, "-x", "c++-header", str(header), "-o", f"{header}.gch"], check=True)
        _headers[:] = [header]
    return _headers[0]


def _truth(layer: ConvTranspose, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    x, w, b = (inputs[n].to(torch.float64, copy=True).requires_grad_() for n in ("input", "weight", "bias"))
    output = _CONV[layer.dims](x, w, b if layer.bias else None, layer.stride, layer.padding, layer.output_padding,
                               layer.groups, layer.dilation)
    assert output.shape == inputs["grad_output"].shape
    (output * inputs["grad_output"].double()).sum().backward()  # given a gradient, backward imports sympy
    grad_bias = b.grad if layer.bias else torch.zeros_like(b)
    return {"output": output.detach(), "grad_input": x.grad, "grad_weight": w.grad, "grad_bias": grad_bias}


def _laid(tensor: torch.Tensor, name: str, one: Candidate) -> torch.Tensor:
    """The tensor with its dimensions in the order of the memory that the candidate's launcher takes."""
    return tensor.movedim(1, -1).contiguous() if one.takes_channels_last and name in _ACTIVATIONS else tensor


def _moved(tensor: torch.Tensor, shift: int) -> torch.Tensor:
    """A copy whose first element lies `shift` bytes behind a multiple of 64."""
    raw = torch.empty(tensor.nbytes + 128, dtype=torch.uint8)
    start = -raw.data_ptr() % 64 + shift
    return raw[start:start + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _logical(row: torch.Tensor, shape: torch.Size, name: str, one: Candidate) -> torch.Tensor:
    """A result from the order of memory."""
    if one.takes_channels_last and name in _ACTIVATIONS:
        return row.reshape(shape[0], *shape[2:], shape[1]).movedim(-1, 1)
    return row.reshape(shape)


class _Guarded:
    """`size` poisoned bytes between two guard zones of another NaN."""

    def __init__(self, size: int, shift: int = 0) -> None:
        self.size, self.front = size, _GUARD + shift
        # A signalling NaN in float32: what a kernel makes of poison and writes there is a quiet one, and shows.
        self._zone = torch.tensor([0x7FA5C0DE], dtype=torch.int32).repeat(self.front // 4 + 1).view(torch.uint8)[:self.front]
        self.bytes = torch.full((size + 2 * self.front,), _POISON, dtype=torch.uint8)
        self.bytes[:self.front] = self._zone
        self.bytes[self.front + size:] = self._zone
        self.address = self.bytes.data_ptr() + self.front

    def guards_whole(self) -> bool:
        return bool((self.bytes[:self.front] == self._zone).all() and (self.bytes[self.front + self.size:] == self._zone).all())

    def elements(self, dtype: torch.dtype) -> torch.Tensor:
        return self.bytes[self.front:self.front + self.size].view(dtype)

    def unwritten(self, itemsize: int) -> torch.Tensor:
        return (self.bytes[self.front:self.front + self.size].view(-1, itemsize) == _POISON).all(1)


def _compare(name: str, zone: _Guarded, truth: torch.Tensor, magnitude: torch.Tensor, dtype_name: str,
             values: str, precision: str) -> Outcome:
    dtype = getattr(torch, dtype_name)
    got, unwritten = zone.elements(dtype), zone.unwritten(dtype.itemsize)
    if unwritten.any():
        return Outcome("UNWRITTEN", f"{int(unwritten.sum())} of {got.numel()} elements of {name}")
    if not got.isfinite().all():
        return Outcome("NON_FINITE", f"{int((~got.isfinite()).sum())} of {got.numel()} elements of {name}")
    want = truth.reshape(-1)
    if values == "integers":
        right = got == want.to(dtype)
    else:
        right = (got.double() - want).abs() <= _TOLERANCE[precision] * (magnitude.reshape(-1) + 1)
    if right.all():
        return Outcome("OK")
    at = int((~right).nonzero()[0])
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), truth.shape))
    return Outcome("MISMATCH", f"{int((~right).sum())} of {got.numel()} elements of {name}; first at {index}: "
                   f"{got[at].item()} instead of {want[at].item()}")


def _problem(workload: Workload) -> ctypes.Structure:
    fields = problem_fields(workload)
    kind = type("Problem", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_longlong) for name in fields]})
    return kind(**fields)


def _last_error(library: Library) -> str:
    entry = library.handle.cuda_on_cpu_last_error
    entry.restype = ctypes.c_char_p
    return (entry() or b"").decode()


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def macs(workload: Workload) -> int:
    """Upper bound of the multiply-adds: each input element meets each tap of its group's output channels."""
    one = workload.layer
    return prod(workload.input_shape) * prod(one.kernel_size) * (one.out_channels // one.groups)


def label(workload: Workload) -> str:
    return f"{workload.layer} {workload.batch}x{'x'.join(map(str, workload.input_size))}"


def work(size: tuple[int, ...], batch: int, cin: int, cout: int, kernel: int | tuple[int, ...], **given: object) -> Workload:
    return Workload(ConvTranspose(len(size), cin, cout, kernel, **given), batch, size)


EXTREME = [
    work((3,), 3, 3, 5, 100, stride=100),
    work((40,), 3, 2, 2, 64, dilation=200, bias=False),                      # most taps fall off
    work((300,), 2, 2, 2, 64, dilation=20, padding=3),                       # several tiles, each with taps of its own
    work((5,), 3, 4, 4, 3, stride=64, groups=4),                             # residues without taps
    work((130,), 2, 3, 3, 255, padding=127, groups=3),
    work((2, 2), 2, 5, 7, 32, stride=32),
    work((2, 3, 3), 1, 4, 8, 3, dilation=200, padding=197, groups=2),
    work((2, 5), 3, 17, 9, (7, 3), stride=(32, 50), padding=(5, 40), output_padding=(3, 1), dilation=(1, 7)),
    work((150,), 2, 70, 35, 3, padding=1),                                   # parts of a tap; rows that go on in the next image
    work((2, 3, 10), 1, 33, 130, 2, stride=2, bias=False),                   # two channel tiles, or sums in series
    work((2,), 1, 1, 1, 1, stride=1000, output_padding=999),
    work((3, 5), 2, 3, 4, 2, stride=(6, 4), padding=(5, 11), output_padding=(0, 1), dilation=(4, 12)),
]

# Long strides along W, where grad_input's steps run along it.
ALONG = [
    work((7,), 3, 5, 3, 100, stride=100),
    work((3, 4), 2, 5, 7, 8, stride=8),
    work((2, 3), 2, 4, 4, 16, stride=16),
    work((2, 3), 2, 9, 5, (16, 20), stride=(16, 20)),                        # few positions: shares of the reduction
    work((2, 2), 1, 3, 33, 32, stride=32),                                   # many shares
    work((150,), 2, 4, 6, 9, stride=4, padding=2),                           # several tiles, runs of odd length
    work((40,), 2, 6, 10, 12, stride=5, padding=3, output_padding=2, groups=2),
    work((30,), 3, 33, 17, 12, stride=8, padding=4, groups=1),               # 16 bytes at a time, cropped
    work((30,), 3, 3, 5, 12, stride=8, padding=4, output_padding=3),         # rows that are no multiple of 16 bytes
    work((6,), 2, 12, 20, 40, stride=36, groups=4, bias=False),
    work((2, 3, 9), 2, 3, 5, (2, 3, 11), stride=(1, 1, 7), padding=(0, 1, 2), dilation=(1, 2, 1)),
    work((5, 6), 1, 70, 3, (3, 8), stride=(2, 4), padding=(2, 5), dilation=(3, 1)),
    work((6, 3), 2, 2, 3, (5, 8), stride=(1, 8), padding=(2, 0), dilation=(40, 1)),  # rows of taps that a tile leaves out
    work((3,), 1, 1, 1, 9, stride=4, padding=4),                             # one step, partly zeros
    work((9,), 1, 130, 2, 8, stride=6, bias=False),
]


SOON = ("a tap row lost", "no barrier", "the last halo left out", "sums of a dirty start", "the oldest row is another one",
        "neighbours of a row count", "steps without a barrier")


def soon(slips: dict[str, tuple]) -> list:
    """Those that `make test` tries, and the rest for `make test-long`."""
    return [pytest.param(slip, marks=() if slip in SOON else pytest.mark.long) for slip in slips]
