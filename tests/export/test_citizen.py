"""An exported file among PyTorch's own tools: torch.compile, autocast, torch.func, fake tensors, copies. On the emulator."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from workbench.core.layer import ConvTranspose, Workload
from workbench.core.presets import PRESETS
from workbench.drive.exporting.export import constructor_arguments, export_text, module_order
from workbench.measure.module.subject import Subject

from .recipes import SMALL, TWO_D, naive
from .test_calls import counted, pair

HALF = Workload(ConvTranspose(1, 3, 4, 3, stride=2), 2, 9, dtype="bfloat16")


def loaded(folder: Path, workload: Workload) -> Subject:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNEL_WORKBENCH_CACHE", str(folder / "cache"))
        subject = Subject(module_order(export_text(naive(workload)), workload, device="cpu", scratch=folder))
        subject.build_all(lambda event: None)
    return subject


@pytest.fixture(scope="module")
def one_d(folder: Path) -> Subject:
    return loaded(folder, SMALL)


@pytest.fixture(scope="module")
def two_d(folder: Path) -> Subject:
    return loaded(folder, TWO_D)


def test_without_a_gradient_there_is_no_autograd(one_d: Subject) -> None:
    ours, theirs = pair(one_d, 3, 4, 3, 2)
    launched, applied = counted(one_d), []
    function = one_d.namespace["_ConvTranspose"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function, "apply", lambda *a, f=function.apply: applied.append(1) or f(*a))
        x = torch.randn(2, 3, 9)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                torch.testing.assert_close(ours(x), theirs(x))
        ours.requires_grad_(False)
        assert not ours(x).requires_grad and applied == [] and launched == ["forward"] * 3
        assert ours(x.requires_grad_()).requires_grad and applied == [1]


def test_the_next_call_of_a_shape_finds_its_plan_and_a_new_length_builds_nothing(one_d: Subject) -> None:
    ours, theirs = pair(one_d, 3, 4, 3, 2)
    counted(one_d)
    plans, built = one_d.namespace["_plans"], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(one_d.namespace, "_build", lambda *a: built.append(a))
        for length in (9, 9, 12, 31, 9):
            x = torch.randn(2, 3, length, requires_grad=True)
            torch.testing.assert_close(ours(x), theirs(x))
            ours(x).sum().backward()
        assert len(plans) == 3 and built == []
        patch.setitem(one_d.namespace, "_MOST_PLANS", 4)
        for length in range(9, 16):
            ours(torch.randn(2, 3, length))
            assert len(plans) <= 4


def test_an_expanded_gradient_is_copied_once(one_d: Subject) -> None:
    ours, theirs = pair(one_d, 3, 4, 3, 2)
    launched = counted(one_d)
    x = torch.randn(2, 3, 9, requires_grad=True)
    output = ours(x)
    copies: list[int] = []
    taken = torch.Tensor.contiguous
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "contiguous",
                      lambda t, **more: (copies.append(1) if not t.is_contiguous() else None) or taken(t, **more))
        output.backward(torch.ones(()).expand(output.shape))
    assert launched == ["forward", "grad_input", "grad_weight"] and len(copies) == 1
    theirs(x.detach()).sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


def test_autocast_runs_the_kernels_of_its_type(folder: Path) -> None:
    subject = loaded(folder, HALF)
    ours, theirs = pair(subject, 3, 4, 3, 2)
    launched = counted(subject)
    x = torch.randn(2, 3, 9)
    assert torch.equal(ours(x), theirs(x)) and launched == []    # float32: not of this file
    results = []
    for module in (ours, theirs):
        with torch.autocast("cpu", torch.bfloat16):
            output = module(x)
        assert output.dtype == torch.bfloat16
        output.float().square().sum().backward()
        assert module.weight.grad.dtype == torch.float32
        results.append((output.float(), module.weight.grad, module.bias.grad))
    assert launched == ["forward", "grad_weight"]
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=2e-2, atol=2e-2)
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(ours(x), theirs(x)) and len(launched) == 2
    with torch.autocast("cpu", torch.bfloat16):
        assert ours.double()(x.double()).dtype == torch.float64 and len(launched) == 2


def test_autocast_casts_what_a_parameter_is_at_each_call(folder: Path) -> None:
    """Also after writes that PyTorch does not see, and for a layer that is called several times."""
    subject = loaded(folder, HALF)
    ours, theirs = pair(subject, 3, 4, 3, 2)
    x = torch.randn(2, 3, 9)

    def agree() -> None:
        torch.testing.assert_close(ours(x), theirs(x), rtol=2e-2, atol=2e-2)

    with torch.autocast("cpu", torch.bfloat16):
        agree()
        for one in (ours, theirs):
            (one(x) + one(x)).float().sum().backward()
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=2e-2, atol=2e-2)
        for one in (ours, theirs):
            one.weight.data.mul_(-2)
            torch.clear_autocast_cache()
        agree()
        with torch.no_grad():
            agree()
    for one in (ours, theirs):
        one.weight.data.add_(1)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        agree()


def test_a_view_that_only_notes_its_sign_is_read_with_it(one_d: Subject) -> None:
    ours, theirs = pair(one_d, 3, 4, 3, 2)
    launched = counted(one_d)
    x, weight, bias, grad = (torch._neg_view(torch.randn(*shape)) for shape in ((2, 3, 9), (3, 4, 3), (4,), (2, 4, 19)))
    assert all(t.is_neg() and t.is_contiguous() for t in (x, weight, bias, grad))
    found = []
    for call in (one_d.namespace["conv_transpose"], nn.functional.conv_transpose1d):
        given = [t.detach().requires_grad_() for t in (x, weight, bias)]
        assert given[0].is_neg()
        output = call(*given, (2,), (0,), (0,), 1, (1,))
        found.append((output, *torch.autograd.grad(output, given, grad)))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)
    assert launched == ["forward", "grad_input", "grad_weight"]


@pytest.mark.parametrize("what", ["traced", "counted", "fake", "forward-mode", "batched gradients", "compiled backward"])
def test_what_follows_pytorchs_operators_sees_them(one_d: Subject, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch would be hidden from them: results of a trace are then whatever memory held, a fake tensor has no memory."""
    ours, theirs = pair(one_d, 3, 4, 3, 2)
    x = torch.randn(2, 3, 9)
    if what == "traced":
        with torch.no_grad():
            traced, other = torch.jit.trace(ours, (x,), check_trace=False), torch.randn(2, 3, 9)
            torch.testing.assert_close(traced(other), theirs(other))
    elif what == "counted":
        found = []
        for module in (ours, theirs):
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                module(x)
            found.append(counter.get_total_flops())
        assert found[0] == found[1] > 0
    elif what == "fake":
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
            assert ours(x).shape == (2, 4, 19)
    elif what == "forward-mode":
        with forward_ad.dual_level(), torch.no_grad():
            one, two = (forward_ad.unpack_dual(m(forward_ad.make_dual(x, torch.ones_like(x)))).tangent for m in (ours, theirs))
        torch.testing.assert_close(one, two)
    elif what == "batched gradients":
        x.requires_grad_()
        many = torch.randn(5, 2, 4, 19)
        one, two = (torch.autograd.grad(m(x), x, many, is_grads_batched=True)[0] for m in (ours, theirs))
        torch.testing.assert_close(one, two)
    else:
        monkeypatch.setitem(sys.modules, "exported", one_d.module)
        x.requires_grad_()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            ours(x).square().sum().backward()
        torch.testing.assert_close(x.grad, torch.autograd.grad(theirs(x).square().sum(), x)[0])


@pytest.mark.parametrize("arguments", [{"output_padding": -1}, {"output_padding": 2}, {"padding": -1}, {"dilation": 0}])
def test_arguments_that_pytorch_refuses_raise_its_error(one_d: Subject, arguments: dict[str, int]) -> None:
    given = {"stride": 2, "padding": 0, "output_padding": 0, "dilation": 1} | arguments
    x, weight, bias = torch.randn(2, 3, 9), torch.randn(3, 4, 3), torch.randn(4)
    with pytest.raises(RuntimeError) as theirs:
        nn.functional.conv_transpose1d(x, weight, bias, **given)
    with pytest.raises(RuntimeError) as ours:
        one_d.namespace["conv_transpose"](x, weight, bias, (given["stride"],), (given["padding"],),
                                          (given["output_padding"],), 1, (given["dilation"],))
    assert str(ours.value) == str(theirs.value)


def test_hooks_of_the_layer_inside_kernelbenchs_class_are_called(folder: Path) -> None:
    preset = PRESETS["kb74"]
    work = Workload(preset.layer, 1, 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNEL_WORKBENCH_CACHE", str(folder / "cache"))
        subject = Subject(module_order(export_text(naive(work, "forward", form="runtime"), constructor=preset), work,
                                       device="cpu", scratch=folder, preset=preset))
        subject.build_all(lambda event: None)
    module = subject.namespace["ModelNew"](*constructor_arguments(preset.layer, preset))
    layer, x, seen = getattr(module, preset.attribute), torch.randn(1, 32, 20), []
    layer.register_forward_hook(lambda *a: seen.append(1))
    before = module(x)
    assert seen == [1] and str(layer).startswith("ConvTranspose1d(32, 64")
    nn.utils.parametrizations.weight_norm(layer)
    with torch.no_grad():
        layer.parametrizations.weight.original0.mul_(2)
    torch.testing.assert_close(module(x), 2 * before)


def operator(subject: Subject, name: str):
    return getattr(subject.namespace["_OPERATORS"], name).default


def test_the_operators_are_clean(one_d: Subject, two_d: Subject) -> None:
    counted(one_d), counted(two_d)
    torch.manual_seed(1)
    x, weight, bias = torch.randn(2, 3, 9), torch.randn(3, 4, 3), torch.randn(4)
    settings = ([2], [0], [0], 1, [1])
    torch.library.opcheck(operator(one_d, "conv_transpose"), (x.clone().requires_grad_(), weight.clone().requires_grad_(),
                                                               bias.clone().requires_grad_(), *settings))
    torch.library.opcheck(operator(one_d, "conv_transpose"), (x, weight, None, *settings))   # by PyTorch: it has a bias
    torch.library.opcheck(operator(one_d, "conv_transpose_backward"),
                          (torch.randn(2, 4, 19), x, weight, True, *settings, [True, True, False]))
    flat = torch.randn(2, 6, 5, 6).to(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(6, 2, 3, 2, requires_grad=True)
    torch.library.opcheck(operator(two_d, "conv_transpose"),
                          (flat, weight, torch.randn(4), [2, 3], [1, 0], [1, 2], 2, [1, 2]))


@pytest.mark.parametrize("dynamic", [None, True])
def test_it_compiles_whole_and_lengths_may_change(one_d: Subject, dynamic: bool | None,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "exported", one_d.module)
    ours, theirs = pair(one_d, 3, 4, 3, 2)
    launched, graphs = counted(one_d), []

    def count(graph, inputs):
        graphs.append(str(graph.graph))
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(nn.Sequential(ours, nn.ReLU()), backend=count if not dynamic else "aot_eager", fullgraph=True,
                             dynamic=dynamic)
    for length in (9, 12, 15):
        if dynamic:
            x = torch.randn(2, 3, length, requires_grad=True)
            (compiled(x) * 2).sum().backward()
            mine, x.grad = x.grad, None
            (theirs(x).relu() * 2).sum().backward()
            torch.testing.assert_close(mine, x.grad)
        else:
            x = torch.randn(2, 3, length)
            torch.testing.assert_close(compiled(x), theirs(x).relu())
    assert launched[:3] == (["forward", "grad_input", "grad_weight"] if dynamic else ["forward"] * 3)
    assert all("conv_transpose" in graph for graph in graphs) and len(graphs) <= 2
    torch.testing.assert_close(compiled(x[0]), theirs(x[0]).relu())


def test_compiled_under_autocast_it_is_of_its_type(folder: Path) -> None:
    subject = loaded(folder, HALF)
    ours, theirs = pair(subject, 3, 4, 3, 2)
    launched = counted(subject)
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 3, 9)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), theirs(x), rtol=2e-2, atol=2e-2)
    assert launched == ["forward"]


def test_compiled_torch_func_is_pytorchs(one_d: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "exported", one_d.module)
    ours, theirs = (m.requires_grad_(False) for m in pair(one_d, 3, 4, 3, 2))
    launched = counted(one_d)
    x = torch.randn(2, 3, 9)

    def each(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def loss(y: torch.Tensor) -> torch.Tensor:
            return module(y).square().sum()
        return torch.func.grad(loss)(x), torch.func.jvp(loss, (x,), (x,))[1]

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: each(ours, x), backend="eager", fullgraph=True)
    for one, two in zip(compiled(x), each(theirs, x), strict=True):
        torch.testing.assert_close(one, two)
    assert launched == []


def test_two_copies_of_a_file_have_operators_of_their_own(folder: Path) -> None:
    names = {str(loaded(folder, SMALL).namespace["_OPERATORS"]) for _ in range(2)}
    assert len(names) == 2


def test_torch_func_fake_tensors_and_forward_mode_are_pytorchs(one_d: Subject) -> None:
    ours, theirs = pair(one_d, 3, 4, 3, 2)
    launched = counted(one_d)
    x = torch.randn(5, 2, 3, 9)
    torch.testing.assert_close(torch.func.vmap(ours)(x), torch.func.vmap(theirs)(x))
    parameters = dict(ours.named_parameters())
    for module in (ours, theirs):
        torch.func.grad(lambda p, m=module: torch.func.functional_call(m, p, x[0]).sum())(parameters)
    torch.testing.assert_close(torch.func.jvp(ours, (x[0],), (x[1],))[1], torch.func.jvp(theirs, (x[0],), (x[1],))[1])
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        assert ours(fake.from_tensor(x[0])).shape == (2, 4, 19)
    assert launched == []


def test_a_module_is_copied_and_pickled(one_d: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "exported", one_d.module)
    ours, _ = pair(one_d, 3, 4, 3, 2)
    x = torch.randn(2, 3, 9)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(other(x), ours(x)) and list(other.state_dict()) == list(ours.state_dict())
