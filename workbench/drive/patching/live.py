"""A model that exists only in the caller's process, for example in a notebook. It is run and patched there. Only here does code
of `measure` run outside a worker, because the model cannot be sent to another process. Its kernels are first built and judged
in workers, as always.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ...core.errors import BadRequest
from ...core.orders import InspectOrder, PatchOrder
from ...core.patching import Inspected, ModelSource, Patched
from ...core.replies import Event
from .patch import PatchResult

_MEASURE = f"{__package__.rpartition('.drive')[0]}.measure.patching"


class LiveModel:
    """The model with the inputs of one call, as a `ModelHost`. Raises `BadRequest` if it is not a torch.nn.Module."""

    def __init__(self, model: Any, inputs: Any) -> None:
        if isinstance(model, type):
            raise BadRequest(f"model is the class {model.__name__}; give an instance of it: {model.__name__}(...).",
                             field="model")
        if not callable(getattr(model, "named_modules", None)):
            raise BadRequest(f"model is {type(model).__name__}; give a torch.nn.Module, or the text 'my_module:build_model'.",
                             field="model")
        if inputs is None:
            raise BadRequest("inputs is not given; give a tensor, a tuple of arguments or a dict of named arguments.",
                             field="inputs")
        self._model, self._inputs = model, inputs
        self._file: Any = None

    @property
    def device(self) -> str:
        """Where its parameters are: "cpu" or "cuda:N"."""
        kind = str(next((p.device for p in self._model.parameters()), "cpu"))
        return "cuda:0" if kind == "cuda" else kind

    def inspect(self, order: InspectOrder, on_event: Callable[[Event], None]) -> Inspected:
        found: Inspected = self._in_its_mode(
            lambda: import_module(f"{_MEASURE}.find").found(self._loaded(order.source), on_event))
        return found

    def patch(self, order: PatchOrder, on_event: Callable[[Event], None]) -> Patched:
        file = import_module(f"{_MEASURE}.replace").PatchFile(order.text, order.source.device)
        patched: Patched = self._in_its_mode(
            lambda: import_module(f"{_MEASURE}.compare").compared(self._loaded(order.source), file, order, on_event))
        return patched

    def keep(self, result: PatchResult) -> None:
        """Patch the model itself: replace the layers that the report keeps."""
        if result.text:
            self._file = import_module(f"{_MEASURE}.replace").PatchFile(result.text, result.report.source.device)
            self._file.patch(self._model, [path for row in result.report.kept for path in row.found.paths])

    def unpatch(self) -> list[str]:
        """Undo `keep`. Returns the paths of the restored layers."""
        undone: list[str] = self._file.unpatch(self._model) if self._file else []
        return undone

    def _loaded(self, source: ModelSource) -> Any:
        return import_module(f"{_MEASURE}.load").prepared(self._model, self._inputs, source)

    def _in_its_mode(self, work: Callable[[], Any]) -> Any:
        modes = {module: module.training for module in self._model.modules()}
        try:
            return work()
        finally:
            for module, training in modes.items():  # parents come first
                if module.training != training:
                    module.train(training)          # a module's own train() may do more, for example merge weights
            for module, training in modes.items():
                module.training = training
