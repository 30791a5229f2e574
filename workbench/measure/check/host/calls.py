"""Calls of a module inside the foreign process: single calls with gradients, calls at points near given inputs, calls that only
a GPU allows, and batches."""

from __future__ import annotations

import ctypes
import gc
import mmap
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from itertools import cycle
from time import perf_counter as _perf_counter
from typing import Any

import torch

from ....core.pytorch_ways import WAYS
from ...module.cases import laid_out
from ...pytorch.aten import is_channels_last
from ...pytorch.baselines import kernels
from ...pytorch.ways import Unavailable, switches
from ..clock.ladder import LADDER
from ..clock.timed_input import timed_input
from ..foreign.replies import (
    LEAVES_GRAD_MODE,
    Compiled,
    Done,
    Memory,
    NoTensor,
    Nothing,
    NoWay,
    Output,
    Prepared,
    ResultKind,
    Waits,
    Way,
)
from ..foreign.requests import (
    AskMemory,
    AskWaits,
    Call,
    Compile,
    Graph,
    OpenSlots,
    Prepare,
    PrepareWay,
    Reach,
    Renew,
    Run,
    SideStream,
    WarmUp,
)
from ..foreign.window import opened
from ..foreign.wire import Tensors
from . import ways
from .ways import in_tf32

# Taken before a foreign file is loaded, because it may replace them. Without a real synchronisation the process would answer
# before the device is done.
_cuda_synchronize: Any = getattr(torch._C, "_cuda_synchronize", None)  # not there without CUDA
_autocast = torch.autocast   # taken before a foreign file is loaded, as above
_libc = ctypes.CDLL(None)
_SMALL = 1 << 20
_MOST_GUARDED, _ALIGNED = 1 << 28, 16   # bytes of a tensor; of its address
_at_end = cycle((True, False))
_SLEEP_CYCLES = 100_000_000  # some 60 ms of a GPU


def call(module: torch.nn.Module, request: Call, tensors: Tensors, device: str) -> tuple[Output | NoTensor, Tensors]:
    """Inputs, then grad_output where `gradients` are asked for (with `expanded` one value, to be expanded). Returns the output,
    with `echo` the inputs as they are afterwards, and the gradients (the answer names them, with None for a missing one). If
    the output has another shape or device than grad_output, no gradients come back. `tf32`: how convolutions round their
    operands."""
    count, names = request.inputs, request.gradients
    alone, _, dtype = request.autocast.rpartition(" ")
    tensors = [_widened(t.to(device)) if request.wide else t.to(device) for t in tensors]
    at_end = next(_at_end)
    tensors = [guarded(t, at_end=at_end) for t in tensors]
    xs = [laid_out(t, request.layout).detach() for t in tensors[:count]]
    # Fresh memory then holds NaN. torch.use_deterministic_algorithms sets the same, and imports the compiler first: 2 s.
    torch.set_deterministic_debug_mode("warn" if request.poison else "default")
    threads = torch.get_num_threads()
    if sum(t.numel() for t in tensors) < _SMALL:  # on a busy machine threads wait for one another
        torch.set_num_threads(1)
    try:
        for x in xs:
            x.requires_grad_(bool(names) and x.is_floating_point())
        with torch.set_grad_enabled(records := bool(names) or not request.no_grad), in_tf32(request.tf32):
            try:
                with _under("" if alone else dtype, device):
                    output = module(*xs)
            except Exception as error:
                if torch.is_grad_enabled() != records:
                    error.add_note(LEAVES_GRAD_MODE)
                raise
        _wait(device)
        facts = _facts(output)
        if isinstance(facts, NoTensor):
            return facts, []
        after = [x.detach() for x in xs] if request.echo else []
        results = [output.detach(), *after]
        alike = names and (request.expanded or tensors[count].shape == output.shape) and tensors[count].device == output.device
        if alike and output.requires_grad:
            parameters = dict(module.named_parameters())
            wanted = [xs[int(n[6:])] if n.startswith("input ") else parameters.get(n) for n in names]
            grad_output = tensors[count].expand(output.shape) if request.expanded else tensors[count]
            asked = [w for w in wanted if w is not None and w.requires_grad]
            with _under(dtype if alone else "", device):
                given = iter(gradients_of(output, grad_output, asked))
            grads = [next(given) if w is not None and w.requires_grad else None for w in wanted]
            _wait(device)
            facts = replace(facts, by_hand=bool(alone) and _by_hand(output),
                            gradients=tuple(n if g is not None else None for n, g in zip(names, grads, strict=True)))
            results += [g for g in grads if g is not None]
        return facts, results
    finally:
        torch.set_deterministic_debug_mode("default")
        torch.set_num_threads(threads)


def guarded(tensor: torch.Tensor, *, at_end: bool = True) -> torch.Tensor:
    """On the CPU, a copy with a page before it and one behind it that nobody may read or write: an index outside ends the
    process. The copy ends at such a page, or begins at it."""
    size = tensor.numel() * tensor.element_size()
    if tensor.device.type != "cpu" or not 0 < size <= _MOST_GUARDED or not tensor.is_contiguous():
        return tensor
    page = mmap.PAGESIZE
    room = -(-size // page) * page
    memory = mmap.mmap(-1, room + 2 * page)
    start = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    for address in (start, start + page + room):
        if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(page), 0):
            raise OSError("mprotect: a page beside a tensor cannot be closed")
    offset = page + (room - size) // _ALIGNED * _ALIGNED * at_end
    copy = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset).view(tensor.shape)
    return copy.copy_(tensor)


def _under(autocast: str, device: str) -> AbstractContextManager[object]:
    return _autocast(device.partition(":")[0], getattr(torch, autocast)) if autocast else nullcontext()


def gradients_of(output: torch.Tensor, grad_output: torch.Tensor, wanted: Tensors) -> tuple[torch.Tensor | None, ...]:
    """`torch.autograd.grad` for this grad_output, with None for what was not used."""
    return torch.autograd.grad(given_backward(output, grad_output), wanted, allow_unused=True)


def given_backward(output: torch.Tensor, grad_output: torch.Tensor) -> torch.Tensor:
    """A number whose backward gives the output this grad_output. Autograd itself, given a grad_output, imports sympy when it is
    first called, which takes longer than a small check."""
    number: torch.Tensor = _GivenBackward.apply(output, grad_output)  # type: ignore[no-untyped-call]  # torch does not type apply
    return number


def reach(module: torch.nn.Module, request: Reach, tensors: Tensors, device: str) -> tuple[Output | NoTensor, Tensors]:
    """The gradients at points near one, computed here so that tensors are sent only once. Inputs, then grad_output. All inputs
    and the whole state are multiplied by 1 + step * normal, in `draws` draws under `seed`. Returns the largest absolute change
    of each element of each gradient in `gradients`, then the largest L2 norm of the change of each gradient in one draw."""
    tensors = [t.to(device) for t in tensors]
    inputs = tensors[:request.inputs]
    once = Call(request.module, request.inputs, request.gradients)
    state = [v for v in module.state_dict().values() if isinstance(v, torch.Tensor) and v.is_floating_point()]
    kept = [v.clone() for v in state]
    generator = torch.Generator(device).manual_seed(request.seed)

    def moved(v: torch.Tensor) -> torch.Tensor:
        if not v.is_floating_point():
            return v
        return v * (1 + request.step * torch.randn(v.shape, generator=generator, dtype=v.dtype, device=v.device))

    facts, (_, *here) = call(module, once, tensors, device)
    farthest = [torch.zeros_like(g) for g in here]
    norms = [torch.zeros((), dtype=g.dtype, device=g.device) for g in here]
    try:
        for _ in range(request.draws):
            with torch.no_grad():
                for value, before in zip(state, kept, strict=True):
                    value.copy_(moved(before))
            _, (_, *there) = call(module, once, [*map(moved, inputs), *tensors[len(inputs):]], device)
            moves = [(a - b).abs() for a, b in zip(there, here, strict=True)]
            farthest = [torch.maximum(far, move) for far, move in zip(farthest, moves, strict=True)]
            norms = [torch.maximum(norm, move.norm()) for norm, move in zip(norms, moves, strict=True)]
    finally:
        with torch.no_grad():
            for value, before in zip(state, kept, strict=True):
                value.copy_(before)
    return facts, [*farthest, *norms]


def side_stream(module: torch.nn.Module, request: SideStream, tensors: Tensors, device: str) -> tuple[Nothing, Tensors]:
    """The input arrives late on a side stream: a launch on another stream reads what was there before."""
    xs = [torch.zeros_like(t, device=device) for t in tensors]
    real = [t.to(device) for t in tensors]
    module(*xs)
    _synchronize()
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        torch.cuda._sleep(_SLEEP_CYCLES)
        for x, value in zip(xs, real, strict=True):
            x.copy_(value)
        kept = module(*xs).clone()
        stream.synchronize()
    _synchronize()
    return Nothing(), [kept]


def waits(module: torch.nn.Module, request: AskWaits, tensors: Tensors, device: str) -> tuple[Waits, Tensors]:
    """(seconds until a call returned, seconds until the device was idle), while the device is kept busy."""
    xs = [t.to(device) for t in tensors]
    with torch.no_grad():
        module(*xs)
        _synchronize()
        begin = _perf_counter()
        torch.cuda._sleep(_SLEEP_CYCLES)
        module(*xs)
        called = _perf_counter() - begin
        _synchronize()
    return Waits(called, _perf_counter() - begin), []


def memory(module: torch.nn.Module, request: AskMemory, tensors: Tensors, device: str) -> tuple[Memory, Tensors]:
    """The peak of the bytes that torch's allocator used in addition to those before, for forward and backward."""
    xs = [t.to(device).requires_grad_(t.is_floating_point()) for t in tensors]
    _synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    output = module(*xs)
    if output.requires_grad:
        given_backward(output, torch.ones_like(output)).backward()
    _synchronize()
    return Memory(torch.cuda.max_memory_allocated() - before), []


def compiled(module: torch.nn.Module, request: Compile, tensors: Tensors, device: str) -> tuple[Compiled, Tensors]:
    xs = [t.to(device) for t in tensors]
    with torch.no_grad():
        explained = torch._dynamo.explain(module)(*xs)
        torch._dynamo.reset()
        output = torch.compile(module)(*xs)
    _synchronize()
    return Compiled(explained.graph_break_count), [output]


def graphed(module: torch.nn.Module, request: Graph, tensors: Tensors, device: str) -> tuple[Nothing, Tensors]:
    """Captured with zeros, replayed with the input."""
    xs = [torch.zeros_like(t, device=device) for t in tensors]
    stream = torch.cuda.Stream()
    with torch.no_grad():
        with torch.cuda.stream(stream):
            module(*xs)
        _synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = module(*xs)
    for x, value in zip(xs, tensors, strict=True):
        x.copy_(value)
    graph.replay()
    _synchronize()
    return Nothing(), [output]


ON_GPU = (side_stream, waits, memory, compiled, graphed)


def warm_up(module: torch.nn.Module, request: WarmUp, tensors: Tensors, device: str) -> tuple[Nothing, Tensors]:
    """Compile each way. A failure is ignored: it happens again when the way is prepared, and the report names it."""
    xs = [t.to(device) for t in tensors]
    for way in (LADDER[key] for key in request.ways):
        # Only calls with the way's setting of cudnn.benchmark, because cuDNN keeps its first choice.
        with suppress(Unavailable, RuntimeError, NotImplementedError), switches(way):
            output, = ways.bind(way, module, "forward", [], [x.clone() for x in xs]).results()
            ways.bind(way, module, "backward", xs, [torch.ones_like(output)]).results()
    _wait(device)
    if device != "cpu":
        torch.cuda.empty_cache()
    return Nothing(), []


class Batches:
    """Timed calls. Results are written into slots that belong to the judge, which reads them when it has the answer."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self.bound: dict[str, ways.Bound] = {}
        self.fixed: list[torch.Tensor] = []
        self.factors: list[torch.Tensor] = []
        self.plain: list[torch.Tensor] = []
        self.dummy: list[torch.Tensor] = []
        self.sets: list[list[torch.Tensor]] = []
        self.slots = torch.empty(0, dtype=torch.uint8)

    def open(self, request: OpenSlots, tensors: Tensors, device: str) -> tuple[Nothing, Tensors]:
        """A file that both map, or the tensor is a pickled handle of the judge's GPU memory."""
        self.device = device
        if request.path is not None:
            with open(request.path, "r+b") as file:
                self.slots = torch.frombuffer(mmap.mmap(file.fileno(), request.bytes), dtype=torch.uint8)
        else:
            self.slots = opened(tensors[0])
        return Nothing(), []

    def prepare(self, module: torch.nn.Module, request: Prepare, tensors: Tensors, device: str) -> tuple[Prepared, Tensors]:
        """In this order: `fixed` inputs (of a backward), a row of factors for each of `inputs` tensors, and several sets of
        those: inputs, or one grad_output."""
        self.module, self.direction = module, request.direction
        self.parameters = dict(module.named_parameters())   # found here, and not when they are written
        for name, one in self.parameters.items():
            if type(one).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
                raise TypeError(f"the parameter {name} is a {type(one).__name__}, which can run code when it is written")
        there, fixed, size = [t.to(device) for t in tensors], request.fixed, request.inputs
        self.fixed, self.factors, sets = there[:fixed], there[fixed:fixed + size], there[fixed + size:]
        self.sets = [sets[i:i + size] for i in range(0, len(sets), size)]
        self.plain = [x.clone() for x in self.sets[0]]
        self.eager = WAYS["benchmark" if request.benchmark else "default"]
        with switches(self.eager):
            plain = ways.bind(self.eager, module, self.direction, self.fixed, self.plain)
            self.dummy = [r.detach() for r in plain.results()]
        self.bound = {"": plain}
        _wait(device)
        return Prepared(sum(t.numel() * t.itemsize for t in self.dummy), _kinds(self.dummy)), []

    def renew(self, request: Renew, tensors: Tensors) -> tuple[Nothing, Tensors]:
        """A new version of each parameter, and other inputs instead of the first set, or of a backward; then the graph of that
        way is built anew. Writing a parameter runs no code of its class: work that belongs to a call would not be timed."""
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            for name, parameter in self.parameters.items():
                parameter.mul_(-1 if name in request.negated else 1)
        there = [t.to(self.device) for t in tensors]
        if not request.fixed:
            self.sets[0] = there or self.sets[0]
            _wait(self.device)
            return Nothing(), []
        self.fixed, way = there, LADDER[request.way] if request.way else self.eager
        self.bound.pop(request.way, None)  # its graph holds memory
        try:
            with switches(way):
                self.bound[request.way] = ways.bind(way, self.module, self.direction, self.fixed, self.plain)
            _wait(self.device)
        except (RuntimeError, MemoryError) as error:
            if not request.way or not ways.of_memory(error):
                raise
            self.bound.pop(request.way, None)   # `timed` then answers that the memory does not suffice
        return Nothing(), []

    def prepare_way(self, request: PrepareWay) -> tuple[Way | NoWay, Tensors]:
        """Bind one of PyTorch's ways to the prepared module and run it until its choices are made; with `profile` also tell
        which kernels ran."""
        try:
            return self._prepared(request), []
        except (Unavailable, RuntimeError, NotImplementedError, MemoryError) as error:
            starved = ways.of_memory(error)
            # Other errors than Unavailable come from what compiles or captures only when it is called.
            why = str(error) if isinstance(error, Unavailable) else \
                f"it gave up: {(str(error).strip().splitlines() or ['?'])[0][:160]}"
        return self._starved(request.way) if starved else NoWay(why), []

    def _prepared(self, request: PrepareWay) -> Way:
        way = LADDER[request.way]
        with switches(way):
            bound = ways.bind(way, self.module, self.direction, self.fixed, self.plain)
            for _ in range(3):
                found = [r.detach() for r in bound.results()]
            _wait(self.device)
            names = kernels(bound.results, self.device) if request.profile else []
        self.bound[request.way] = bound
        return Way(_kinds(found), tuple(map(_strides, found)) if way.kind == "channels_last" else None, tuple(names))

    def _starved(self, way: str) -> NoWay:
        """Release what the way holds. Call it after the `except` block: the frames of the exception hold tensors."""
        self.bound.pop(way, None)
        gc.collect()
        if self.device != "cpu":
            torch.cuda.empty_cache()
        return NoWay(f"it needs more memory than {self.device} has left", starved=True)

    def drop_ways(self, way: str, device: str) -> tuple[Nothing, Tensors]:
        """Release one way, or all with their inputs and slots, and what earlier questions left in the cache. All processes of a
        check share the memory of one GPU, and the next direction needs it."""
        if way:
            self._starved(way)
            return Nothing(), []
        self._forget()
        if device != "cpu":
            torch.cuda.empty_cache()
        return Nothing(), []

    def timed(self, request: Run) -> tuple[Done | NoWay, Tensors]:
        """`run`. If the memory does not suffice for one of PyTorch's ways, only this way ends."""
        if request.way and request.way not in self.bound:
            return self._starved(request.way), []
        try:
            self.run(request)
            return Done(True), []
        except (RuntimeError, MemoryError) as error:
            if not request.way or not ways.of_memory(error):
                raise
        return self._starved(request.way), []

    def run(self, request: Run) -> None:
        """Calls in order: make the input that the order names, call, put the results into the next slot."""
        key = request.way
        bound = self.bound[key]
        own_format = key and LADDER[key].kind == "channels_last"
        with switches(LADDER.get(key)):
            order = request.order
            for number, (which, first, second) in enumerate(zip(order[::3], order[1::3], order[2::3], strict=True)):
                for x, factors, into in zip(self.sets[which], self.factors, bound.inputs, strict=True):
                    timed_input(x, factors, (first, second), into.detach())
                start = number * request.stride
                for result in self.dummy if request.only_copy else bound.results():
                    size = result.numel() * result.itemsize
                    room = self.slots[start:start + size].view(result.dtype).view(result.shape)
                    if own_format:  # in its own memory order, because a conversion must not be counted
                        room = room.as_strided(result.shape, _strides(result), room.storage_offset())
                    room.copy_(result.detach())
                    start += -(-size // 256) * 256
            _wait(self.device)


class _GivenBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, grad_output: torch.Tensor) -> torch.Tensor:
        ctx.grad_output = grad_output
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, one: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.grad_output, None


def _widened(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


def _kinds(results: Tensors) -> tuple[ResultKind, ...]:
    return tuple(ResultKind(str(r.dtype).removeprefix("torch."), tuple(r.shape)) for r in results)


def _strides(result: torch.Tensor) -> tuple[int, ...]:
    """The strides of a result in its slot: channels_last if the tensor has this format, else contiguous; without gaps or
    overlaps."""
    if is_channels_last(result):
        return result.stride()
    return torch.empty(result.shape, device="meta").stride()


def _synchronize() -> None:
    """Until the current CUDA device is idle."""
    _cuda_synchronize()


def _facts(output: Any) -> Output | NoTensor:
    if type(output) not in (torch.Tensor, torch.nn.Parameter):  # a subclass may compute when it is looked at
        return NoTensor(f"tensor of the subclass {type(output).__name__}" if isinstance(output, torch.Tensor) else
                        type(output).__name__)
    if output.layout is not torch.strided:
        return NoTensor(f"{str(output.layout).removeprefix('torch.')} tensor")
    return Output("Tensor", str(output.dtype).removeprefix("torch."), tuple(output.shape), str(output.device),
                  output.requires_grad)


def _by_hand(output: torch.Tensor) -> bool:
    """Whether a torch.autograd.Function of Python's is in its graph."""
    seen, left = set[Any](), [output.grad_fn]
    while left:
        if (node := left.pop()) is not None and node not in seen:
            if isinstance(node, torch.autograd.function.BackwardCFunction):
                return True
            seen.add(node)
            left += [one for one, _ in node.next_functions]
    return False


def _wait(device: str) -> None:
    """Wait until the device is idle. A failed launch whose error was not checked is raised here, by the check of the next
    launch."""
    if device != "cpu":
        _synchronize()
        torch.zeros(1, device=device).add_(1)
