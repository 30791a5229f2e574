"""Worker operation "inspect": run a model once, and record each nn.ConvTranspose and each functional call."""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ...core.errors import BadRequest
from ...core.layer import CHANNELS_LAST, CONTIGUOUS, DTYPES, ConvTranspose
from ...core.orders import DeviceOrder, Emit, InspectOrder
from ...core.patching import FoundLayer, FunctionalCall, Inspected, LayerCall
from ...core.replies import Event
from ..device import describe
from ..pytorch.aten import is_channels_last
from .load import Loaded, guarded, load
from .step import Stepper, optimizer_of, synchronize

KINDS = {nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3}
_FUNCTIONS = {f"conv_transpose{dims}d" for dims in (1, 2, 3)}
_TORCH = str(Path(torch.__file__).parent)
_NEVER_CALLED = "The model never called it in this step."


def inspect(order: InspectOrder, emit: Emit) -> Inspected:
    """Inspect a model. Raises `BadRequest` if the unchanged model fails."""
    emit(Event("load", f"loading {order.source.model}"))
    inspected = found(load(order.source), emit)
    if torch.cuda.is_initialized():  # the judge's processes need the memory
        gc.collect()
        torch.cuda.empty_cache()
    return inspected


def found(loaded: Loaded, emit: Emit) -> Inspected:
    """The same of a model that is there already."""
    source = loaded.source
    emit(Event("inspect", "running the model once as it is"))
    with Stepper(loaded.model, loaded.args, loaded.kwargs, autocast=source.autocast, seed=source.seed) as stepper:
        optimizer = optimizer_of(loaded.model) if source.train else None

        def step() -> None:
            _step(stepper, optimizer)

        guarded(step, "The unchanged model fails")   # the first step also warms up
        with _Recorder(loaded.model, stepper) as recorder:
            synchronize(stepper.device)
            begun = time.perf_counter()
            with _Functional() as functional:
                guarded(step, "The unchanged model fails when it is called again")
            synchronize(stepper.device)
            step_ms = (time.perf_counter() - begun) * 1e3
        layers = tuple(recorder.layer(module, paths, step_ms) for module, paths in layers_of(loaded.model).items())
    if not layers and not functional.calls:
        raise BadRequest(f"{loaded.name} has no nn.ConvTranspose1d, 2d or 3d and calls no F.conv_transpose: there is nothing "
                         "to patch.", field="model")
    return Inspected(loaded.name, describe(DeviceOrder(source.device)).name, layers, functional.told(source.folder), step_ms)


def layers_of(model: nn.Module) -> dict[nn.Module, tuple[str, ...]]:
    """Each instance with all its paths, in the model's order. A layer that two parents share is one instance."""
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, tuple(KINDS)):
            paths.setdefault(module, []).append(path)
    return {module: tuple(there) for module, there in paths.items()}


def layer_of(module: nn.Module) -> ConvTranspose:
    dims = next(d for kind, d in KINDS.items() if isinstance(module, kind))
    return ConvTranspose(dims, module.in_channels, module.out_channels, tuple(module.kernel_size), tuple(module.stride),
                         tuple(module.padding), tuple(module.output_padding), module.groups, module.bias is not None,
                         tuple(module.dilation))


def _step(stepper: Stepper, optimizer: torch.optim.Optimizer | None) -> None:
    if optimizer is None:
        stepper.inference()
    else:
        stepper.training(optimizer)


@dataclass
class _Seen:
    calls: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    spans: list[tuple[Any, Any]] = field(default_factory=list)
    open: list[Any] = field(default_factory=list)


class _Recorder:
    """Hooks around the forward of each layer and around its node of the autograd graph. All are gone after the block."""

    def __init__(self, model: nn.Module, stepper: Stepper) -> None:
        self._stepper = stepper
        self._seen = {module: _Seen() for module in layers_of(model)}
        self._handles: list[Any] = []

    def __enter__(self) -> _Recorder:
        for module, seen in self._seen.items():
            self._handles.append(module.register_forward_pre_hook(self._before(seen), with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._after(seen), with_kwargs=True))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def layer(self, module: nn.Module, paths: tuple[str, ...], step_ms: float) -> FoundLayer:
        seen = self._seen[module]
        ms = sum(_elapsed(*span) for span in seen.spans)
        calls = tuple(LayerCall(*kind, count) for kind, count in seen.calls.items())
        return FoundLayer(paths, layer_of(module), calls, min(1.0, ms / step_ms) if calls and step_ms else None,
                          _why_not(module, calls))

    def _before(self, seen: _Seen) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen.open.append(_now(self._stepper.device))
        return hook

    def _after(self, seen: _Seen) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            device = self._stepper.device
            seen.spans.append((seen.open.pop(), _now(device)))
            x = args[0] if args else kwargs.get("input")
            if not isinstance(x, torch.Tensor) or not isinstance(output, torch.Tensor):
                return
            dtypes = (str(t.dtype).removeprefix("torch.") for t in (x, output))
            seen.calls[tuple(x.shape), *dtypes, _format_of(x), x.requires_grad] += 1
            if output.grad_fn is not None:
                begun: list[Any] = []
                self._handles.append(output.grad_fn.register_prehook(lambda grads: begun.append(_now(device))))
                self._handles.append(output.grad_fn.register_hook(
                    lambda into, outof: seen.spans.append((begun.pop(), _now(device))) if begun else None))
        return hook


class _Functional(TorchFunctionMode):
    """Counts the calls of F.conv_transpose1d, 2d and 3d that come from no nn.ConvTranspose, by file and line."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[str, str, int]] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _FUNCTIONS and (place := _caller(sys._getframe(1))):
            self.calls[name, *place] += 1
        return func(*args, **(kwargs or {}))

    def told(self, folder: Path) -> tuple[FunctionalCall, ...]:
        root = folder.absolute()
        return tuple(FunctionalCall(f"F.{name}", str(Path(file).relative_to(root) if Path(file).is_relative_to(root) else file),
                                    line, count) for (name, file, line), count in self.calls.items())


def _caller(frame: FrameType | None) -> tuple[str, int] | None:
    """File and line outside torch; None where an nn.ConvTranspose makes the call."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_TORCH) and frame.f_code.co_name == "forward" and isinstance(
                frame.f_locals.get("self"), tuple(KINDS)):
            return None
        if not file.startswith(_TORCH) and file != __file__:
            return file, frame.f_lineno
        frame = frame.f_back
    return None


def _why_not(module: nn.Module, calls: tuple[LayerCall, ...]) -> str:
    """One sentence; empty when it can be replaced."""
    kind = type(module)
    for name in ("forward", "_output_padding"):
        if not any(getattr(kind, name) is getattr(plain, name) for plain in KINDS):
            return f"Its class {kind.__name__} has a {name} of its own."
        own = vars(module).get(name)
        is_of_class = getattr(own, "__self__", None) is module and getattr(own, "__func__", None) is getattr(kind, name)
        if own is not None and not is_of_class:  # a model that was pickled while it was patched brings that of its class
            return f"Its {name} has been replaced already."
    if not calls:
        return _NEVER_CALLED
    known = [call for call in calls if call.dtype in DTYPES]
    if not known:
        return f"It computes in {calls[0].dtype}, for which there is no kernel."
    if not any(0 not in call.shape for call in known):
        return "All its inputs are empty."
    return ""


def _format_of(x: torch.Tensor) -> str:
    return CHANNELS_LAST if is_channels_last(x) and not x.is_contiguous() else CONTIGUOUS


def _now(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _elapsed(first: Any, last: Any) -> float:
    """The elapsed ms."""
    return float(first.elapsed_time(last)) if isinstance(first, torch.cuda.Event) else (last - first) * 1e3
