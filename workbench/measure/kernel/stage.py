"""`Stage`: the tensors of one trial between guard zones. It fills and poisons them, launches, and looks for damage.

Some kernels take activations that are channels_last in memory, the others contiguous ones. Where the workload has the other
format, the caller's input and output have it, and the conversions are part of the launch: a timed launch pays for them, as
ModelNew would.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import torch

from ...core.layer import CHANNELS_LAST, Workload
from ..device import CHANNELS_LAST_LAYOUTS, free_bytes
from ..truth import Truth
from .apart import ACCESSES, OTHER_STREAM, SHARED_SYMBOL, TWO_BLOCKS, TWO_THREADS, LauncherApart
from .buffers import POISON, SHIFTED, START, Buffer, row_of
from .findings import (
    Finding,
    input_modified,
    launch_error,
    not_given_stream,
    off_stream,
    out_of_memory,
    outside,
    overrun,
    shared_symbol,
    two_blocks,
    two_threads,
)
from .inputs import changed, factors, fill, needed, of_part, results, shapes, torch_dtype
from .launch import FAULTS, UNKNOWN_FAULT, Launcher, problem_of
from .validate import Comparison, allowed_rel_l2

_SLICE = 16 * 1024         # elements that are poisoned at one place before a timed launch
_HOLD_CYCLES = 60_000_000  # about 30 ms of a GPU's clock: how long a stream is held
_HELD_LAUNCHES = 10
_LOOK = 1 << 22            # elements looked at from either end while the stream is held
_GIVEN = ("input", "grad_output", "weight", "bias")   # what a kernel reads: a caller may give a part of a larger tensor
_ACTIVATIONS = ("input", "grad_output", "output", "grad_input")  # what channels_last is about


class Stage:
    """Raises `Finding` (OUT_OF_MEMORY) when the tensors do not fit on the device. `edge`: see `Buffer`; with it a kernel of the
    emulator can touch nothing but the tensors, and no byte may be changed by two blocks. `unwanted`: results whose pointer is
    null."""

    def __init__(self, launcher: Launcher | LauncherApart, workload: Workload, *, device: str, guards: frozenset[str],
                 zones: bool = True, last: bool = False, edge: str = "") -> None:
        self.workload, self.device, self.guards = workload, device, guards
        self.direction = launcher.direction
        self._launcher, self._problem = launcher, problem_of(workload)
        self._converts = last != (workload.memory_format == CHANNELS_LAST)
        self.workspace_bytes = launcher.workspace_bytes(self._problem)
        if self.workspace_bytes < 0:
            raise launch_error(1, "the library was built for another layer", cuda=False)
        self._kind = ""
        self.notes: list[str] = []  # flags for the trial
        names = (*needed(workload, self.direction), *results(workload, self.direction))
        self._results = results(workload, self.direction)
        self.peak_bytes = self._check_memory(names)
        dtype, all_shapes = torch_dtype(workload), shapes(workload)
        allocate = launcher.allocate if isinstance(launcher, LauncherApart) else None
        self.buffers = {n: Buffer(n, all_shapes[n], dtype, device=device, zones=zones, allocate=allocate,
                                  last=last and n in _ACTIVATIONS, edge=START if edge == SHIFTED and n not in _GIVEN else edge)
                        for n in names}
        if self.workspace_bytes:
            self.buffers["workspace"] = Buffer("workspace", (self.workspace_bytes,), torch.uint8, device=device,
                                               zones=zones, allocate=allocate, edge=START if edge == SHIFTED else edge)
        self._pages = tuple(buffer.pages for buffer in self.buffers.values()) if edge else ()
        self.unwanted: frozenset[str] = frozenset()
        for name in self._results:
            self.buffers[name].tensor.zero_()
        self._callers: dict[str, torch.Tensor] = {}
        if self._converts:
            layout = torch.contiguous_format if last else CHANNELS_LAST_LAYOUTS[2 + workload.layer.dims]
            self._callers = {n: torch.zeros(all_shapes[n], dtype=dtype, device=device).to(memory_format=layout)
                             for n in names if n in _ACTIVATIONS}
        workspace = self.buffers.get("workspace")
        self._workspace = workspace.tensor if workspace else None
        self.tensors = {n: self.buffers[n].tensor for n in names}

    def fill(self, kind: str) -> None:
        """New values for every input, at the addresses they had."""
        self._kind = kind
        for name in needed(self.workload, self.direction):
            fill(self.tensors[name], name, self.workload, kind)
            if name in self._callers:
                self._callers[name].copy_(self.tensors[name])

    def poison(self) -> None:
        """Poison everything that the kernel has to write."""
        if "poison" not in self.guards:
            return
        for name in (*self._results, "workspace"):
            if name in self.buffers:
                self.buffers[name].poison()

    def surround(self) -> None:
        """From now on the guard zones hold ordinary numbers. A kernel may be right only where it finds NaN there."""
        if "guard_zone" in self.guards:
            for buffer in self.buffers.values():
                buffer.surround()

    def read(self) -> dict[str, torch.Tensor]:
        """The tensors that a launch reads, as the caller has them."""
        return {n: self._callers.get(n, self.tensors[n]) for n in needed(self.workload, self.direction)}

    def poison_some(self) -> list[tuple[str, slice]]:
        """Poison both ends and two random places of every result, so that a launch which leaves old results is found. Returns
        the places."""
        places = []
        for name in self._results:
            bits = self.bits(name)
            last = max(0, bits.numel() - _SLICE)
            for start in (0, last, random.randint(0, last), random.randint(0, last)):
                places.append((name, slice(start, start + _SLICE)))
                bits[places[-1][1]].fill_(POISON[self.tensors[name].dtype])
        return places

    def bits(self, name: str) -> torch.Tensor:
        """A result as a flat row of whole numbers."""
        return row_of(self.buffers[name].bits)

    def off_stream(self) -> Finding | None:
        """A finding if a launch works outside its stream, where no event of the stream times it.

        The stream is blocked for a moment; during this time nothing may be written. After the launches the stream itself
        poisons the results; after that nothing may be written. None on the CPU, where every launch has ended when it returns.
        """
        if self.device == "cpu" or "stream" not in self.guards:
            return None
        own, onlooker = torch.cuda.Stream(self.device), torch.cuda.Stream(self.device)
        self.poison()
        torch.cuda.synchronize(self.device)
        with device_errors(self.device), torch.cuda.stream(own):
            begin = time.perf_counter()
            torch.cuda._sleep(_HOLD_CYCLES)
            released = own.record_event()
            for _ in range(_HELD_LAUNCHES):
                self.launch()
            waited = time.perf_counter() - begin
            time.sleep(0.005)
            with torch.cuda.stream(onlooker):
                early = [name for name in self._results if not self._all_poison(name, _LOOK)]
            held = not released.query()
            self.poison()
            torch.cuda.synchronize(self.device)
            late = [name for name in self._results if not self._all_poison(name)]
        if early and held:
            return off_stream(early[0], "before its stream had reached the launch")
        if late:
            return off_stream(late[0], "after its stream had continued")
        if not held:
            self.notes.append("synchronises" if waited > 0.02 else "stream_not_checked")
        return None

    def _all_poison(self, name: str, most: int | None = None) -> bool:
        bits, value = self.bits(name), POISON[self.tensors[name].dtype]
        parts = (bits[:most], bits[-most:]) if most else bits.split(1 << 28)
        return all(bool((part == value).all()) for part in parts)

    def launch(self) -> int:
        """Enqueue one launch on the current stream (conversions included); returns the launcher's error."""
        for name in needed(self.workload, self.direction):
            if name in self._callers:
                self.tensors[name].copy_(self._callers[name])
        stream = torch.cuda.current_stream(self.device).cuda_stream if self.device != "cpu" else 0
        if isinstance(self._launcher, LauncherApart):
            self._launcher.pages, self._launcher.watched = self._pages, bool(self._pages)
        given = {n: None if n in self.unwanted else t for n, t in self.tensors.items()}
        code = self._launcher(self._problem, given, self._workspace, stream)
        for name in self._results:
            if name in self._callers:
                self._callers[name].copy_(self.tensors[name])
        return code

    def run(self) -> None:
        """Launch and wait. Raises `Finding` for any error the launcher, the runtime or the device reports."""
        with device_errors(self.device):
            code = self.launch()
            text = self._launcher.error_text(code) if code else ""
            if self.device != "cpu":
                torch.cuda.synchronize(self.device)
        # Always asked: an error that stays in the runtime would be counted against the next kernel.
        left = self._launcher.last_error()
        code = code or left
        if isinstance(self._launcher, LauncherApart) and self._launcher.fault:
            raise self._fault(self._launcher.fault, self._launcher.fault_at, text)
        if code:
            raise launch_error(code, text or self._launcher.error_text(code), cuda=self.device != "cpu")

    def _fault(self, kind: int, address: int, text: str) -> Finding:
        if kind == SHARED_SYMBOL:
            return shared_symbol()
        if kind == OTHER_STREAM:
            return not_given_stream()
        if kind == TWO_THREADS:
            return two_threads(text)
        name, before, behind = next(((n, *found) for n, b in self.buffers.items() if (found := b.beyond(address))), ("", 0, 0))
        if kind != TWO_BLOCKS:
            return outside(name, before, behind, ACCESSES.get(kind, ACCESSES[1]))
        buffer = self.buffers[name]
        flat = (address - buffer.tensor.data_ptr()) // buffer.tensor.itemsize
        return two_blocks(name, _unravel(flat, buffer.tensor.shape) if buffer.tensor.is_contiguous() else None)

    def damage(self) -> Finding | None:
        """What the last launch changed that it must not: guard zones first, then inputs."""
        if "guard_zone" in self.guards:
            for name, buffer in self.buffers.items():
                before, behind = buffer.overrun()
                if before or behind:
                    return overrun(name, before, behind)
        if "inputs" in self.guards:
            for name in needed(self.workload, self.direction):
                tensor = self.tensors[name]
                count, first = changed(tensor, name, self.workload, self._kind)
                if first is not None:
                    return input_modified(name, count, _unravel(first, tensor.shape))
        return None

    def compare(self, truth: Truth, *, precision: str, exact: bool) -> dict[str, Comparison]:
        """Every result of the last launch against the truth."""
        found = {}
        for name in (n for n in self._results if n not in self.unwanted):
            tensor = self.tensors[name]
            comparison = Comparison(tuple(tensor.shape), exact=exact, rms=truth.rms[name],
                                    least_norm=truth.least_norm[name],
                                    allowed=allowed_rel_l2(precision, truth.reduction[name]),
                                    poisoned="poison" in self.guards, nan_safe="nan" in self.guards)
            for index, expected in truth.blocks(name, self.tensors):
                comparison.add(index, self.result(name, index), expected)
            found[name] = comparison
        return found

    def result(self, name: str, index: tuple[slice, ...]) -> torch.Tensor:
        """A part of a result, divided by its factors, as the truth is."""
        part, by = self.tensors[name][index], factors(self.workload, name, self._kind)
        return part if by is None else part / of_part(by, index).to(part.device, part.dtype)

    def results(self) -> dict[str, torch.Tensor]:
        return {n: self.tensors[n] for n in self._results}

    def _check_memory(self, names: tuple[str, ...]) -> int:
        """Bytes of all tensors together; raises `Finding` when they and the judge's own work do not fit."""
        sizes = {n: prod(shapes(self.workload)[n]) * self.workload.element_bytes for n in names}
        copies = 2 if self._converts else 1
        total = sum(size * (copies if n in _ACTIVATIONS else 1) for n, size in sizes.items()) + self.workspace_bytes
        free = free_bytes(self.device)
        if total > free:
            raise out_of_memory(total, free, self.device, workspace=self.workspace_bytes)
        if self.device != "cpu":
            torch.cuda.empty_cache()  # the memory that earlier trials freed may be too fragmented
        return total


@contextmanager
def device_errors(device: str) -> Iterator[None]:
    """Turns the error with which torch reports a fault of the device into a `Finding`."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:  # torch.AcceleratorError, or plain RuntimeError before torch 2.8
        first = str(error).splitlines()[0]
        if device == "cpu" or not first.startswith("CUDA error: "):
            raise
        code = next((c for c, words in FAULTS.items() if words in first), UNKNOWN_FAULT)
        raise launch_error(code, first.removeprefix("CUDA error: "), cuda=True) from None


def _unravel(flat: int, shape: torch.Size) -> tuple[int, ...]:
    place = []
    for size in reversed(shape):
        flat, rest = divmod(flat, size)
        place.append(rest)
    return tuple(reversed(place))
