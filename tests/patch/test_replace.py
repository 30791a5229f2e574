"""`patch(model)` and `unpatch(model)` of a patch file, on the emulator: only the instances' forward changes."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn.utils import weight_norm
from torch.nn.utils.parametrizations import weight_norm as weight_norm_parametrised

from workbench.core.layer import Workload
from workbench.drive.patching.choose import choose
from workbench.drive.patching.patch import LayerRecipe, patch_text
from workbench.measure.patching.find import layer_of
from workbench.measure.patching.replace import PatchFile

from . import models

FORWARD = "forward float32"
SIZE = {1: (9,), 2: (4, 5), 3: (2, 3, 3)}


def file_for(model: nn.Module, *dtypes: str) -> PatchFile:
    """A patch file with the general kernels for each layer of the model."""
    layers: dict[Any, LayerRecipe] = {}
    for path, module in model.named_modules():
        if isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
            for dtype in dtypes or ("float32",):
                layers.setdefault((layer_of(module), dtype), recipe_for(module, dtype, path))
    return PatchFile(patch_text("a model", list(layers.values())), "cpu")


def recipe_for(module: nn.Module, dtype: str, path: str) -> LayerRecipe:
    layer = layer_of(module)
    workload = Workload(layer, 1, SIZE[layer.dims], dtype)
    recipe = choose(workload, arch="sm_90", emulated=True, train=True, measured=lambda work, derived: None).recipe
    return LayerRecipe(workload, recipe, (path,))


@pytest.fixture(scope="module")
def small() -> PatchFile:
    """For ConvTranspose1d(3, 4, 3, stride=2), in two dtypes."""
    return file_for(nn.ConvTranspose1d(3, 4, 3, 2), "float32", "bfloat16")


@pytest.fixture
def layer() -> nn.ConvTranspose1d:
    torch.manual_seed(0)
    return nn.ConvTranspose1d(3, 4, 3, 2)


@pytest.fixture
def launches(small: PatchFile, monkeypatch) -> list[str]:
    """Each kernel that a test launches, by direction and dtype."""
    seen: list[str] = []
    launch = small.namespace["_Launch"]
    call = launch.__call__

    def counting(self: Any, *tensors: Any) -> bool:
        seen.append(f"{self.kernel.direction} {str(self.kernel.dtype).removeprefix('torch.')}")
        return call(self, *tensors)

    monkeypatch.setattr(launch, "__call__", counting)
    return seen


def all_of(file: PatchFile, model: nn.Module) -> dict[str, str]:
    return file.patch(model, [path for path, _ in model.named_modules(remove_duplicate=False)])


def test_only_the_forward_of_the_instance_changes_and_unpatch_takes_it_back(small, layer, launches) -> None:
    x = torch.randn(2, 3, 7)
    before, state, kind = layer(x), {k: v.clone() for k, v in layer.state_dict().items()}, type(layer)
    other = nn.ConvTranspose1d(3, 4, 3, 2)
    assert all_of(small, layer) == {"": "patched for float32, bfloat16"}
    assert type(layer) is kind and isinstance(layer, nn.ConvTranspose1d) and nn.ConvTranspose1d.forward is kind.forward
    assert list(layer.state_dict()) == list(state) and all(torch.equal(v, state[k]) for k, v in layer.state_dict().items())
    assert "forward" not in vars(other)
    torch.testing.assert_close(layer(x), before)
    torch.testing.assert_close(layer(x, output_size=[16]), kind.forward(layer, x, [16]))
    assert launches == [FORWARD] * 2
    assert all_of(small, layer) == {"": "already patched"}
    assert small.unpatch(layer) == [""] and "forward" not in vars(layer) and small.unpatch(layer) == []
    assert torch.equal(layer(x), before) and len(launches) == 2


def test_what_the_file_has_no_kernels_for_is_left(small) -> None:
    model = models.Odd()
    model.left[0].forward = lambda x: x
    told = all_of(small, model)
    assert told["left.0"] == told["right.0"] == "left: its forward has been replaced already"
    assert told["own"] == "left: its class OwnForward has a forward of its own"
    assert told["unused"] == "left: this file has no kernels for this layer"
    assert small.unpatch(model) == [] and "forward" in vars(model.left[0])


def test_a_class_with_an_output_padding_of_its_own_is_left(small) -> None:
    model = nn.Sequential(models.OwnPadding(3, 4, 3, 2), nn.ConvTranspose1d(3, 4, 3, 2))
    model[1]._output_padding = model[0]._output_padding
    assert all_of(small, model) == {"0": "left: its class OwnPadding has a _output_padding of its own",
                                    "1": "left: its _output_padding has been replaced already"}


def test_a_layer_that_two_parents_share_is_patched_once() -> None:
    model = models.Odd()
    file = file_for(model.left)
    x = torch.randn(2, 3, 7)
    before = model(x)
    told = all_of(file, model)
    assert (told["left.0"], told["right.0"]) == ("patched for float32", "already patched")
    for got, expected in zip(model(x), before, strict=True):
        torch.testing.assert_close(got, expected)
    assert file.unpatch(model) == ["left.0", "right.0"] and "forward" not in vars(model.left[0])


def test_hooks_run_and_errors_of_wrong_input_are_pytorchs(small, layer) -> None:
    all_of(small, layer)
    seen = []
    layer.register_forward_hook(lambda module, args, output: seen.append("forward") or output * 2)
    layer.register_full_backward_hook(lambda module, into, outof: seen.append("backward"))
    x = torch.randn(2, 3, 7)
    torch.testing.assert_close(layer(x), 2 * type(layer).forward(layer, x))
    layer(x.requires_grad_()).sum().backward()
    assert seen == ["forward", "forward", "backward"]
    plain = nn.ConvTranspose1d(3, 4, 3, 2)
    for wrong in (torch.randn(2, 4, 7), torch.randn(2, 3), torch.randn(2, 3, 7, dtype=torch.float64)):
        with pytest.raises(RuntimeError) as theirs:
            plain(wrong)
        with pytest.raises(RuntimeError) as ours:
            layer(wrong)
        assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("norm", [weight_norm, weight_norm_parametrised], ids=["weight_norm", "parametrisation"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_a_weight_that_is_computed_at_each_call_stays_so(small, launches, norm) -> None:
    torch.manual_seed(1)
    ours = norm(nn.ConvTranspose1d(3, 4, 3, 2))
    torch.manual_seed(1)
    theirs = norm(nn.ConvTranspose1d(3, 4, 3, 2))
    assert all_of(small, ours)[""].startswith("patched")
    x = torch.randn(2, 3, 7)
    for module in (ours, theirs):
        step = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            step.zero_grad()
            module(x).square().mean().backward()
            step.step()
    assert launches == [FORWARD, "grad_weight float32"] * 2
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)


def test_a_hook_that_replaces_the_weight_is_obeyed(small, layer, launches) -> None:
    def halve(module: nn.Module, args: Any) -> None:
        module.weight = nn.Parameter(module.weight.detach() / 2)

    x = torch.randn(2, 3, 7)
    expected = type(layer).forward(layer, x)
    all_of(small, layer)
    layer.bias.data.zero_()
    expected = torch.nn.functional.conv_transpose1d(x, layer.weight, None, 2) / 2
    layer.register_forward_pre_hook(halve)
    torch.testing.assert_close(layer(x), expected)
    assert launches == [FORWARD]


def test_inference_mode_and_no_grad(small, layer, launches) -> None:
    x = torch.randn(2, 3, 7)
    expected = layer(x).detach()
    all_of(small, layer)
    with torch.inference_mode():
        output = layer(x)
    assert output.is_inference()
    torch.testing.assert_close(output.clone(), expected)
    with torch.no_grad():
        assert not layer(x).requires_grad
    assert len(launches) == 2


def test_under_autocast_the_kernels_of_the_lower_dtype_run(small, layer, launches) -> None:
    x = torch.randn(2, 3, 7, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        expected = layer(x)
    expected.float().sum().backward()
    theirs = [x.grad.clone(), layer.weight.grad.clone()]
    x.grad = layer.weight.grad = None
    all_of(small, layer)
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(x)
    assert output.dtype == torch.bfloat16 and launches == ["forward bfloat16"]
    torch.testing.assert_close(output, expected, rtol=2e-2, atol=2e-2)
    output.float().sum().backward()
    assert x.grad.dtype == layer.weight.grad.dtype == torch.float32
    torch.testing.assert_close(x.grad, theirs[0], rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(layer.weight.grad, theirs[1], rtol=2e-2, atol=2e-2)
    layer.half()
    assert launches == [f"{direction} bfloat16" for direction in ("forward", "grad_input", "grad_weight")]
    assert layer(x.half()).dtype == torch.float16 and len(launches) == 3  # no kernel: PyTorch's


def test_a_deep_copy_is_patched_too_and_uses_its_own_weight(small, layer, launches) -> None:
    model = nn.Sequential(layer, nn.ReLU())
    all_of(small, model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight.zero_()
        twin[0].bias.fill_(3)
    x = torch.randn(2, 3, 7)
    assert bool((twin(x) == 3).all()) and not bool((model(x) == 3).all())
    assert launches == [FORWARD] * 2
    small.unpatch(model)
    assert "forward" in vars(twin[0]) and "forward" not in vars(model[0])


def test_a_pickled_model_is_loaded_without_the_file_and_says_so_once(small, layer, launches) -> None:
    model, x = nn.Sequential(layer), torch.randn(2, 3, 7)
    expected = model(x)
    all_of(small, model)
    small.namespace["_warn_of_pickle"].cache_clear()
    with pytest.warns(RuntimeWarning, match="A pickled model is not patched") as said:
        text = pickle.dumps(model)
        pickle.dumps(model)
    assert len(said) == 1
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for loaded in (pickle.loads(text), torch.load(buffer, weights_only=False)):
        assert torch.equal(loaded(x), expected)
        assert all_of(small, loaded)["0"].startswith("patched") and small.unpatch(loaded) == ["0"]
        with torch.no_grad():
            loaded[0].weight.zero_()
        assert not torch.equal(loaded(x), expected)  # its own weight
    assert not launches


def test_torch_compile_keeps_one_whole_graph_with_the_kernels(small, layer, launches) -> None:
    model = nn.Sequential(layer, nn.ReLU())
    x = torch.randn(2, 3, 7)
    model(x).sum().backward()
    expected, gradient = model(x).detach(), layer.weight.grad.clone()
    layer.zero_grad()
    all_of(small, model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    output = compiled(x)
    output.sum().backward()
    torch.testing.assert_close(output.detach(), expected)
    torch.testing.assert_close(layer.weight.grad, gradient)
    assert launches == [FORWARD, "grad_weight float32"]
    torch._dynamo.reset()


def test_turns_of_a_compiled_model_compile_each_state_once(small, layer) -> None:
    model, x = nn.Sequential(layer, nn.ReLU()), torch.randn(2, 3, 7)
    graphs = []
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=lambda graph, inputs: graphs.append(graph) or graph.forward)
    with torch.no_grad():
        for _ in range(4):
            compiled(x)
            all_of(small, model)
            compiled(x)
            small.unpatch(model)
    torch._dynamo.reset()
    assert len(graphs) == 2


def test_other_ways_to_run_a_module_give_the_same(small, layer) -> None:
    model = nn.Sequential(layer, nn.ReLU())
    x = torch.randn(2, 3, 7)
    expected = model(x).detach()
    all_of(small, model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, x)
    again = x.clone().requires_grad_()
    for got in (traced(x), torch.fx.symbolic_trace(model)(x), torch.export.export(model, (x,)).module()(x),
                torch.func.functional_call(model, dict(model.named_parameters()), (x,)), torch.func.vmap(model)(x[None])[0],
                torch.utils.checkpoint.checkpoint(model, again, use_reentrant=False)):
        torch.testing.assert_close(got.detach(), expected)


def test_distributed_data_parallel_wraps_a_patched_model(small, layer, launches, tmp_path) -> None:
    x = torch.randn(2, 3, 7)
    layer(x).square().mean().backward()
    expected = layer.weight.grad.clone()
    layer.zero_grad()
    all_of(small, layer)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(layer)
        wrapped(x).square().mean().backward()
    finally:
        torch.distributed.destroy_process_group()
    torch.testing.assert_close(layer.weight.grad, expected)
    assert launches == [FORWARD, "grad_weight float32"]


def trained(model: nn.Module, x: torch.Tensor) -> tuple[list[float], dict[str, torch.Tensor]]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = (model(x).logits - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, {k: v.clone() for k, v in model.state_dict().items()}


def test_fifty_training_steps_stay_with_the_original_and_repeat_bit_for_bit() -> None:
    runs = []
    for patched in (False, True, True):
        torch.manual_seed(4)
        model, x = models.UNet3d(), torch.randn(1, 1, 4, 4, 4)
        if patched:
            file = file_for(model)
            assert set(all_of(file, model).values()) == {"patched for float32"}
        runs.append(trained(model, x))
    (theirs, weights), (ours, first), (again, second) = runs
    assert ours == again and all(torch.equal(first[name], second[name]) for name in first)
    assert theirs[-1] < 0.9 * theirs[0] and ours != theirs
    assert max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True)) < 1e-4
    for name, value in weights.items():
        assert (first[name] - value).norm() <= 1e-3 * value.norm() + 1e-4, name


def test_the_file_stands_alone(tmp_path) -> None:
    """Imported as a user does, without a GPU and without the workbench, it patches, and PyTorch computes what no kernel can."""
    import subprocess
    import sys
    layer = nn.ConvTranspose1d(3, 4, 3, 2)
    text = patch_text("a model", [recipe_for(layer, "float32", "0"), recipe_for(layer, "bfloat16", "0")], notes=("A note.",))
    (tmp_path / "kernels_of_mine.py").write_text(text)
    code = ("import sys, torch, kernels_of_mine as k\nm = torch.nn.Sequential(torch.nn.ConvTranspose1d(3, 4, 3, 2))\n"
            "x = torch.randn(2, 3, 7); y = m(x)\nprint(k.patch(m)); assert torch.equal(m(x), y)\nprint(k.unpatch(m))\n"
            "assert not any(name.startswith('workbench') for name in sys.modules)")
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True,
                          check=False)
    assert done.stdout.splitlines() == ["{'0': 'patched for float32, bfloat16'}", "['0']"], done.stderr
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile(text, "file", "exec")
    assert "ConvTranspose1d(3, 4, 3, stride=2) in float32: 0" in text and "A note." in text
