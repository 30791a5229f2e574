"""What a model is made of: its layers with their calls, functional calls with file and line, and errors of the model itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from workbench.core.errors import BadRequest
from workbench.core.layer import ConvTranspose
from workbench.core.orders import InspectOrder
from workbench.core.patching import FoundLayer, Inspected, ModelSource
from workbench.core.typed import Misfit, read, to_json
from workbench.drive.patching.live import LiveModel
from workbench.measure.patching.find import found, inspect
from workbench.measure.patching.load import Loaded, load, prepared

from .models import OwnPadding

HERE = Path(__file__).parent


def source(name: str = "odd", **options) -> ModelSource:
    return ModelSource(f"models:build_{name}", f"models:{name}_inputs", HERE, **options)


def inspected(name: str, **options) -> Inspected:
    return inspect(InspectOrder(source(name, **options)), lambda event: None)


def by_path(seen: Inspected) -> dict[str, FoundLayer]:
    return {layer.paths[0]: layer for layer in seen.layers}


def test_each_layer_with_its_calls_and_its_share_of_a_training_step() -> None:
    seen = inspected("hifigan", train=True)
    first, second = seen.layers
    assert first.paths == ("ups.0",) and first.layer == ConvTranspose(1, 8, 4, 8, stride=4, padding=2)
    call, = first.calls
    assert (call.shape, call.dtype, call.memory_format, call.requires_grad, call.count) == (
        (2, 8, 10), "float32", "contiguous", True, 1)
    assert second.calls[0].shape == (2, 4, 40) and not second.why_not
    assert 0 < first.share < 1 and seen.step_ms > 0 and not seen.functional


def test_under_autocast_the_layer_computes_in_the_lower_dtype() -> None:
    layers = by_path(inspected("decoder", autocast="bfloat16"))
    call, = layers["output_upscaling.0"].calls
    assert (call.input_dtype, call.dtype) == ("float32", "bfloat16")
    assert layers["multimask"].calls == () and layers["multimask"].why_not == "The model never called it in this step."


def test_a_layer_that_is_called_twice_and_another_dtype() -> None:
    up, = inspected("unet", dtype="bfloat16").layers
    assert up.calls[0].count == 2 and up.largest.dtype == "bfloat16" and not up.largest.requires_grad


def test_what_cannot_be_replaced_says_why() -> None:
    seen = inspected("odd")
    layers = by_path(seen)
    assert layers["left.0"].paths == ("left.0", "right.0") and layers["left.0"].calls[0].count == 2
    assert layers["own"].why_not == "Its class OwnForward has a forward of its own."
    assert layers["unused"].why_not == "The model never called it in this step."
    call, = seen.functional
    line = 1 + (HERE / "models.py").read_text().splitlines().index(
        "        return Pair(self.own(self.left(x)), F.conv_transpose1d(self.right(x), self.weight))")
    assert (call.function, call.file, call.line, call.count) == ("F.conv_transpose1d", "models.py", line, 1)


def test_a_class_with_an_output_padding_of_its_own_says_so_and_a_pickled_forward_is_no_replacement() -> None:
    model = nn.Sequential(OwnPadding(3, 3, 3, 2), nn.ConvTranspose1d(3, 3, 3), nn.ConvTranspose1d(3, 3, 3))
    model[1].forward, model[2].forward = model[1].forward, model[1].forward
    seen = found(prepared(model, torch.randn(2, 3, 7), ModelSource("live:model")), lambda event: None)
    assert [layer.why_not for layer in seen.layers] == [
        "Its class OwnPadding has a _output_padding of its own.", "", "Its forward has been replaced already."]


@pytest.mark.parametrize(("model", "inputs", "said"), [
    ("models:build_broken", "", r"unchanged model fails: RuntimeError: shape .* \(models.py, line \d+\)\."),
    ("models:nothing", "", "models has no nothing; name a function"),
    ("no_such_module:build", "", "no_such_module cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
    ("models:inputs", "", "models:inputs gives Tensor, not a torch.nn.Module"),
    ("models:F", "", "models:F is module; name a function"),
    ("models:build_hifigan", "models:build_broken", "unchanged model fails"),
    ("torch.nn:Identity", "", "torch.nn has no function inputs, and the model brings no example; give --inputs"),
    ("torch.nn:Identity", "models:inputs", "Identity has no nn.ConvTranspose1d, 2d or 3d and calls no F.conv_transpose"),
    ("torch.nn:Linear", "models:inputs", "torch.nn:Linear fails: TypeError: .*missing 2 required positional arguments")])
def test_a_model_that_cannot_be_patched_is_told_in_one_sentence(model: str, inputs: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        inspect(InspectOrder(ModelSource(model, inputs, HERE)), lambda event: None)


@pytest.mark.parametrize(("options", "said"), [
    ({"model": "build_model"}, "model is 'build_model'; write MODULE:CALLABLE"),
    ({"model": "a:b", "inputs": "c:"}, "inputs is 'c:'; write MODULE:CALLABLE"),
    ({"model": "a:b", "dtype": "float64"}, "dtype is 'float64'; choose float32 or float16 or bfloat16"),
    ({"model": "a:b", "autocast": "float32"}, "autocast is 'float32'; choose float16 or bfloat16")])
def test_a_wrong_word_is_refused_with_the_words_there_are(options: dict[str, str], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        ModelSource(**options)


def test_looking_changes_nothing_of_the_model() -> None:
    """A training step with batch norm, dropout and Adam is made, and parameters, statistics, gradients and mode come back."""
    model = nn.Sequential(nn.ConvTranspose1d(3, 4, 3), nn.BatchNorm1d(4), nn.Dropout())
    model[0].weight.grad = torch.ones_like(model[0].weight)
    model[2].eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    wanted = ModelSource("live:model", train=True)
    loaded = prepared(model, torch.randn(2, 3, 6), wanted)
    model[2].eval()
    torch.manual_seed(5)
    found(loaded, lambda event: None)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight)) and not model[2].training
    assert not model[0]._forward_hooks and not model[0]._forward_pre_hooks


def test_a_mode_of_its_own_is_put_back_by_its_own_way() -> None:
    class Merges(nn.ConvTranspose1d):
        """Adds to its weight while it is not trained."""

        calls = 0

        def train(self, mode: bool = True) -> nn.Module:
            self.calls += 1
            if mode != self.training:
                self.weight.data.add_(-1 if mode else 1)
            return super().train(mode)

    model = nn.Sequential(Merges(3, 4, 3), nn.Dropout()).train()
    model[1].eval()
    weight = model[0].weight.detach().clone()
    order = InspectOrder(ModelSource("live:model"))
    LiveModel(model, torch.randn(2, 3, 6)).inspect(order, lambda event: None)
    assert model.training and model[0].training and not model[1].training
    torch.testing.assert_close(model[0].weight.detach(), weight)
    model.eval()
    calls = model[0].calls
    LiveModel(model, torch.randn(2, 3, 6)).inspect(order, lambda event: None)
    assert model[0].calls == calls  # it is in that mode already


def test_an_input_that_the_model_changes_comes_back() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose1d(3, 4, 3)

        def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return self.up(x.mul_(2)) * scale

    x, scale = torch.ones(2, 3, 6), torch.ones(1, 1, 1, requires_grad=True).expand(2, 4, 8)
    found(prepared(Careless(), (x, scale), ModelSource("live:model", train=True)), lambda event: None)
    assert torch.equal(x, torch.ones(2, 3, 6))


def test_an_expanded_input_with_nan_is_left_alone() -> None:
    x = torch.full((1, 3, 1), float("nan")).expand(2, 3, 6)
    seen = found(prepared(nn.Sequential(nn.ConvTranspose1d(3, 4, 3)), x, ModelSource("live:model")), lambda event: None)
    assert seen.layers[0].calls[0].shape == (2, 3, 6) and x.isnan().all()


class FailsAtSecond(nn.Sequential):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 2:
            raise ValueError("only once")
        return super().forward(x)


@pytest.mark.parametrize(("model", "options", "said"), [
    (nn.Sequential(nn.LazyConvTranspose1d(4, 3)), {}, "0.weight of the model has no shape yet, because its layer is lazy"),
    (nn.ConvTranspose1d(3, 4, 3).requires_grad_(False), {"train": True},
     "No parameter of the model requires a gradient, so it has no training step; leave out train"),
    (FailsAtSecond(nn.ConvTranspose1d(3, 4, 3)), {},
     r"unchanged model fails when it is called again: ValueError: only once \(test_find.py, line \d+\)")],
    ids=["lazy", "frozen", "second call"])
def test_a_model_that_cannot_be_run_so_is_a_bad_request(model: nn.Module, options: dict[str, bool], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        found(prepared(model, torch.randn(2, 3, 6), ModelSource("live:model", **options)), lambda event: None)


def test_the_same_seed_makes_the_same_model_and_inputs() -> None:
    first, second = load(source("unet", seed=3)), load(source("unet", seed=3))
    assert torch.equal(first.args[0], second.args[0]) and isinstance(first, Loaded)
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))


def test_what_was_found_crosses_the_border_and_an_unknown_key_is_refused() -> None:
    import json
    seen = inspected("odd")
    data = json.loads(to_json(seen))
    assert read(Inspected, data) == seen
    with pytest.raises(Misfit, match=r"layers\[0\].colour is not known"):
        read(Inspected, {**data, "layers": [{**data["layers"][0], "colour": 1}]})
