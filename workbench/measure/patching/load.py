"""A model and its inputs from `module:callable`. The user's code runs here, in a worker, with the user's rights."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ...core.errors import BadRequest
from ...core.patching import ModelSource
from .step import seeded, tree_map

_PACKAGE = str(Path(__file__).parents[2])
_TORCH = str(Path(torch.__file__).parent)


@dataclass
class Loaded:
    """A model on its device, and the arguments of one call of it."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: ModelSource
    name: str


def load(source: ModelSource) -> Loaded:
    """Call the user's functions under the seed. Raises `BadRequest` with the user's own error."""
    for path in (str(source.folder.absolute()),):
        if path not in sys.path:
            sys.path.insert(0, path)
    importlib.invalidate_caches()
    module = source.model.rpartition(":")[0]
    build = _found(source.model, "model")
    with seeded(source.seed):
        model = build if isinstance(build, nn.Module) else guarded(build, f"{source.model} fails")
        if not isinstance(model, nn.Module):
            raise BadRequest(f"{source.model} gives {type(model).__name__}, not a torch.nn.Module; return the model.",
                             field="model")
        given = _inputs(source, model, module)
    return prepared(model, given, source)


def prepared(model: nn.Module, given: Any, source: ModelSource) -> Loaded:
    """The model in its mode on its device in its dtype, and the inputs beside it."""
    dtype = getattr(torch, source.dtype) if source.dtype else None

    def there(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(source.device, dtype if value.is_floating_point() else None)

    if lazy := [name for name, t in (*model.named_parameters(), *model.named_buffers()) if is_lazy(t)]:
        raise BadRequest(f"{lazy[0]} of the model has no shape yet, because its layer is lazy; call the model once with inputs "
                         "before you give it.", field="model")
    if source.train and not any(p.requires_grad for p in model.parameters()):
        raise BadRequest("No parameter of the model requires a gradient, so it has no training step; leave out train, or "
                         "unfreeze some.", field="train")
    guarded(lambda: model.to(source.device, dtype) if dtype else model.to(source.device), "The model cannot be moved")
    if any(module.training != source.train for module in model.modules()):
        model.train(source.train)
    args, kwargs = arguments(given)
    return Loaded(model, tuple(tree_map(there, a) for a in args), {k: tree_map(there, v) for k, v in kwargs.items()}, source,
                  type(model).__name__)


def arguments(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A dict is keyword arguments, a tuple or list positional ones, anything else the one argument."""
    if isinstance(given, Mapping):
        return (), dict(given)
    return (tuple(given), {}) if isinstance(given, (tuple, list)) else ((given,), {})


def guarded(call: Callable[[], Any], what: str) -> Any:
    """Run the user's code. Raises `BadRequest` with its error and the line of its file."""
    try:
        return call()
    except Exception as error:  # whatever it raises is the user's to read
        raise BadRequest(f"{what}: {told(error)}.", field="model") from error


def told(error: Exception) -> str:
    """Its class, its first line and the line of the user's file."""
    lines = str(error).strip().splitlines()
    return (f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__) + _where(error)


def _found(reference: str, field: str) -> Any:
    module, _, attribute = reference.rpartition(":")
    found = guarded(lambda: _imported(module), f"{module} cannot be imported")
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise BadRequest(f"{module} has no {attribute}; name a function of it that makes the "
                             f"{'model' if field == 'model' else 'inputs'}.", field=field)
        found = getattr(found, name)
    if not callable(found):
        raise BadRequest(f"{reference} is {type(found).__name__}; name a function.", field=field)
    return found


def _imported(module: str) -> Any:
    if not module.endswith(".py"):
        return importlib.import_module(module)
    spec = importlib.util.spec_from_file_location(Path(module).stem, Path(module))
    if spec is None or spec.loader is None or not Path(module).is_file():
        raise ModuleNotFoundError(f"there is no file {module}")
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def _inputs(source: ModelSource, model: nn.Module, module: str) -> Any:
    if source.inputs:
        return guarded(_found(source.inputs, "inputs"), f"{source.inputs} fails")
    there = getattr(sys.modules.get(module if not module.endswith(".py") else Path(module).stem), "inputs", None)
    if callable(there):
        return guarded(there, f"{module}:inputs fails")
    for name in ("example_input_array", "dummy_inputs"):  # Lightning's and transformers' names
        if (example := getattr(model, name, None)) is not None and not callable(example):
            return example
    raise BadRequest(f"{module} has no function inputs, and the model brings no example; give --inputs MODULE:CALLABLE, which "
                     f"returns a tensor, a tuple of arguments or a dict of named arguments.", field="inputs")


def _where(error: BaseException) -> str:
    """The last line of the trace that is neither ours nor PyTorch's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((_PACKAGE, _TORCH, "<")) and "importlib" not in frame.filename:
            return f" ({Path(frame.filename).name}, line {frame.lineno})"
    return ""
