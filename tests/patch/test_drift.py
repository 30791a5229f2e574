"""Whether a patched model gives the results of the original. Here its forward is replaced by hand, so that they are others."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from workbench.core.errors import BadRequest
from workbench.core.orders import PatchOrder
from workbench.core.patching import INFERENCE, RIGHT, TRAINING, LayerCall, ModelSource, Patched
from workbench.measure.patching.compare import compared
from workbench.measure.patching.drift import Results, differs, farthest
from workbench.measure.patching.load import prepared

from .test_replace import file_for

CALL = LayerCall((2, 3, 7), "float32", "float32", "contiguous", True, 1)
X = torch.linspace(-1, 1, 42).reshape(2, 3, 7)


def patched(up: nn.Module, change: Callable[[torch.Tensor], torch.Tensor], *, tail: nn.Module | None = None,
            train: bool = False) -> tuple[nn.Module, Patched]:
    """The model, compared; its patched layer gives what `change` makes of the right output."""
    torch.manual_seed(0)
    model = nn.Sequential(up, tail or nn.Identity())
    file = file_for(up)
    forward = file.namespace["_Forward"]
    right = forward.__call__
    file.namespace["_Forward"].__call__ = lambda self, x, output_size=None: change(right(self, x, output_size))
    source = ModelSource("live:model", train=train)
    return model, compared(prepared(model, X, source), file, PatchOrder(source, "", {"0": CALL}, RIGHT), lambda event: None)


def layer() -> nn.ConvTranspose1d:
    torch.manual_seed(0)
    return nn.ConvTranspose1d(3, 4, 3, 2)


def test_a_right_model_stays_patched() -> None:
    model, result = patched(layer(), lambda y: y)
    assert result.layers[0].kept and not result.differs and 0 <= result.drift[INFERENCE].outputs < 1e-5
    assert "forward" not in vars(model[0])


@pytest.mark.parametrize(("change", "said"), [
    (lambda y: torch.cat([y, y], -1),
     r"with the kernels output 1 has the shape \(2, 4, 30\), without them \(2, 4, 15\)$"),
    (lambda y: 1.5 * y, r"with the kernels output 1 differs by 5.0e-01 in relative L2, and 2.0e-02 is allowed$"),
    (lambda y: y / (y != y[0, 0, 0]), "with the kernels output 1 is infinite or NaN in other places$")],
    ids=["shape", "drift", "infinite"])
def test_other_results_undo_all_and_say_what_differs(change, said: str) -> None:
    _, result = patched(layer(), change)
    assert not result.layers[0].kept and result.layers[0].reason.startswith("The whole model gave other results")
    assert re.match(said, result.differs), result.differs


def test_a_patched_model_that_fails_is_undone() -> None:
    _, result = patched(layer(), lambda y: y[:, :9], tail=nn.Conv1d(4, 2, 3))
    assert not result.differs and result.layers[0].kept
    _, result = patched(layer(), lambda y: y[:, :2], tail=nn.Conv1d(4, 2, 3))
    assert result.differs.startswith("with the kernels the model fails: RuntimeError: ") and not result.layers[0].kept


def test_a_gradient_that_is_only_rounding_undoes_nothing() -> None:
    """The bias before a batch norm: its gradient is zero but for rounding."""
    _, result = patched(layer(), lambda y: y + 1e-6 * torch.arange(15), tail=nn.Sequential(
        nn.BatchNorm1d(4), nn.Tanh(), nn.Conv1d(4, 2, 3)), train=True)
    assert 0 < result.drift[TRAINING].gradients < 2e-2 and not result.differs and result.layers[0].kept


class Selects(nn.Module):
    """As many numbers as are above a limit."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > self.limit]


def test_a_shape_is_excused_only_where_the_original_also_changes_it() -> None:
    up = layer()
    nearest = float(up(X).detach().flatten()[17])
    model, result = patched(up, lambda y: y + 1e-6, tail=Selects(nearest))
    assert not result.differs and result.layers[0].kept
    assert result.flags == ("output 1: not compared, because the shape depends on values. It also changes in the original.",)
    _, result = patched(layer(), lambda y: y + 1.0, tail=Selects(5.0))
    assert not result.differs   # nothing is above
    _, result = patched(layer(), lambda y: y + 9.0, tail=Selects(5.0))
    assert "has the shape (120,), without them (0,)" in result.differs


def test_a_parameter_that_cannot_be_written_to_is_compared_as_it_is() -> None:
    up = layer()
    up.bias = nn.Parameter(torch.ones(1).expand(4), requires_grad=False)
    _, result = patched(up, lambda y: y)
    assert result.layers[0].kept and not result.differs


def test_what_is_there_only_once_and_what_the_original_does_itself() -> None:
    def said(theirs: Results, ours: Results, *own: Results) -> str:
        return differs(theirs, ours, own=own, limit=0.02, said=[])

    a = {"output 1": torch.tensor([3.0, 4.0]), "gradient of w": torch.ones(2)}
    only = {"output 1": a["output 1"]}
    assert said(a, only, a) == "gradient of w is there only without the kernels"
    assert said(only, a, only) == "gradient of w is there only with the kernels"
    tiny = a | {"gradient of v": torch.full((2,), 1e-9)}
    assert not said(tiny, tiny | {"gradient of v": torch.full((2,), 9e-9)}, tiny)   # rounding beside the other
    off = a | {"gradient of w": 1.3 * torch.ones(2)}
    assert said(a, off, a) and not said(a, off, a, a | {"gradient of w": 1.1 * torch.ones(2)})
    lost = {"output 1": torch.tensor([3.0, float("nan")])}
    assert said(a, a | lost, a | lost) and not said(lost, lost, lost)
    assert said({"output 1": torch.tensor([1 / 3, float("inf")])}, {"output 1": torch.tensor([1 / 3, -float("inf")])})
    assert farthest(a, off) == (0.0, pytest.approx(0.3)) and farthest({}, {}) == (None, None)


def test_a_model_that_fails_when_it_is_called_again_is_a_bad_request() -> None:
    class Once(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls > 1:
                raise ValueError("called twice")
            return x

    with pytest.raises(BadRequest, match="The unchanged model fails when it is called again: ValueError"):
        patched(layer(), lambda y: y, tail=Once())
