"""One step of a model: inference, or forward, backward and the optimizer. Nothing of it stays in the model afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn

Gradients = dict[str, torch.Tensor]


class Stepper:
    """Runs steps of one model with the same inputs. Use as a context manager: it puts parameters, buffers, inputs, gradients,
    mode and random state back."""

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, autocast: str = "",
                 seed: int = 0) -> None:
        self.model, self.args, self.kwargs, self.autocast, self.seed = model, args, kwargs, autocast, seed
        self.device = _device_of(model, args, kwargs)
        self._state: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._grads: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._training: dict[nn.Module, bool] = {}
        self._random = contextlib.ExitStack()

    def __enter__(self) -> Stepper:
        inputs: list[torch.Tensor] = []
        tree_map(inputs.append, (self.args, self.kwargs), tensors_only=True)
        self._state = [(t, t.detach().clone()) for t in (*self.model.parameters(), *self.model.buffers(), *inputs)]
        self._grads = [(t, t.grad) for t, _ in self._state if t.is_leaf]
        self._training = {m: m.training for m in self.model.modules()}
        self._random.enter_context(seeded(self.seed))
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()
        for tensor, grad in self._grads:
            tensor.grad = grad
        for module, training in self._training.items():
            module.training = training
        self._random.close()

    def restore(self) -> None:
        """Parameters, buffers and inputs as they were at the beginning."""
        with torch.no_grad():
            for tensor, was in self._state:
                if not _same(tensor, was):  # an expanded input cannot be written to
                    tensor.copy_(was)

    def forward(self, *, seed: bool = True) -> Any:
        """One call of the model, under its seed: noise and dropout are drawn alike."""
        if seed:
            torch.manual_seed(self.seed)
        kind = self.device.type
        with torch.autocast(kind, getattr(torch, self.autocast)) if self.autocast else contextlib.nullcontext():
            return self.model(*self.args, **self.kwargs)

    def inference(self) -> Any:
        with torch.no_grad():
            return self.forward()

    def gradients(self) -> tuple[list[torch.Tensor], Gradients]:
        """Outputs, and the gradient of each parameter that gets one. The loss is the mean square of all outputs."""
        self.model.zero_grad(set_to_none=True)
        output = self.forward()
        loss_of(output).backward()
        return ([t.detach() for t in tensors_of(output)],
                {n: p.grad.detach().clone() for n, p in self.model.named_parameters() if p.grad is not None})

    def training(self, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """One step with that optimizer; its loss."""
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(self.forward())
        loss.backward()
        optimizer.step()
        return loss.detach()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Adam with so small a step that the parameters stay where they are while they are timed."""
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-12)


def tensors_of(output: Any) -> list[torch.Tensor]:
    """The floating tensors in a tensor, dict, tuple, list or dataclass, in their order."""
    found: list[torch.Tensor] = []

    def visit(value: torch.Tensor) -> torch.Tensor:
        if value.is_floating_point() or value.is_complex():
            found.append(value)
        return value

    tree_map(visit, output, tensors_only=True)
    return found


def loss_of(output: Any) -> torch.Tensor:
    """The mean square of each output that has a gradient, summed. Raises RuntimeError where none has."""
    parts = [t.float().square().mean() for t in tensors_of(output) if t.requires_grad and t.numel() and not t.is_complex()]
    if not parts:
        raise RuntimeError("no output of the model has a gradient, so it cannot be trained")
    return torch.stack(parts).sum()


def tree_map(function: Callable[[Any], Any], value: Any, *, tensors_only: bool = False) -> Any:
    """`function` of each leaf. Dicts, lists and tuples are made anew, a dataclass is only walked through."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        made = {k: tree_map(function, v, tensors_only=tensors_only) for k, v in value.items()}
        return made if type(value) is dict else value if tensors_only else _like(value, made)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(tree_map(function, v, tensors_only=tensors_only) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(tree_map(function, v, tensors_only=tensors_only) for v in value)
    if is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            tree_map(function, getattr(value, one.name, None), tensors_only=tensors_only)
        return value
    return value if tensors_only else function(value)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers from the seed; afterwards they go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        torch.manual_seed(seed)
        yield


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _same(tensor: torch.Tensor, was: torch.Tensor) -> bool:
    """With NaN in the same places, too."""
    return torch.equal(tensor, was) or bool(((tensor == was) | ((tensor != tensor) & (was != was))).all())


def _like(value: Mapping[Any, Any], made: dict[Any, Any]) -> Any:
    """A dict of another class (a tokenizer's batch, say): the class, where it takes a dict."""
    try:
        return type(value)(made)  # type: ignore[call-arg]
    except TypeError:
        return made


def _device_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    tensors = [*model.parameters(), *model.buffers(), *tensors_of(args), *tensors_of(kwargs)]
    return tensors[0].device if tensors else torch.device("cpu")
