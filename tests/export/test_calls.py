"""How an exported module is called: as nn.ConvTranspose is; and which kernels it launches for which gradients. Its build is
directed to the emulator, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from workbench.core.errors import BadRequest
from workbench.core.layer import ConvTranspose, Workload
from workbench.drive.exporting.export import constructor_arguments, export_text, module_order
from workbench.drive.exporting.recipe import Recipe, fastest
from workbench.measure.module.subject import Subject

from .recipes import SMALL, TWO_D, candidate, naive, run_fresh

LAYER, CPU = SMALL.layer, torch.device("cpu")


@pytest.fixture(scope="module")
def exported(folder: Path) -> Subject:
    """A 1-D layer; kernels in the run-time form serve whatever the tests ask for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNEL_WORKBENCH_CACHE", str(folder / "cache"))
        subject = Subject(module_order(export_text(naive(SMALL, form="runtime")), SMALL, device="cpu",
                                         scratch=folder))
        subject.build_all(lambda event: None)
    return subject


@pytest.fixture(scope="module")
def flat(folder: Path) -> Subject:
    """A 2-D layer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNEL_WORKBENCH_CACHE", str(folder / "cache"))
        subject = Subject(module_order(export_text(naive(TWO_D, "forward", form="runtime")), TWO_D, device="cpu",
                                         scratch=folder))
        subject.build_all(lambda event: None)
    return subject


def constant(folder: Path) -> Subject:
    """The same layer, its kernels made for it alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNEL_WORKBENCH_CACHE", str(folder / "cache"))
        subject = Subject(module_order(export_text(naive(SMALL)), SMALL, device="cpu", scratch=folder))
        subject.build_all(lambda event: None)
    return subject


def pair(exported: Subject, *arguments, **more) -> tuple[nn.Module, nn.ConvTranspose1d]:
    """ModelNew and nn.ConvTranspose1d, drawn under the same seed."""
    torch.manual_seed(7)
    theirs = nn.ConvTranspose1d(*arguments, **more)
    torch.manual_seed(7)
    return exported.cls(*arguments, **more), theirs


def kernel_of(exported: Subject, direction: str):
    return next(k for k in exported.namespace["_KERNELS"] if k.direction == direction)


def replace_launcher(exported: Subject, direction: str, make) -> None:
    """From now on `make(launch, query)` is what the kernel launches."""
    kernel = kernel_of(exported, direction)
    kernel.launchers = {key: make(*pair) for key, pair in kernel.launchers.items()}
    exported.namespace["_plans"].clear()


def counted(exported: Subject) -> list[str]:
    """Directions of the kernels launched from now on."""
    launched: list[str] = []
    for kernel in exported.namespace["_KERNELS"]:
        kernel.launchers.clear()
        kernel.load(kernel.layer, CPU)
        for key, (launch, query) in kernel.launchers.items():
            kernel.launchers[key] = (lambda *a, d=kernel.direction, f=launch: launched.append(d) or f(*a)), query
    exported.namespace["_plans"].clear()
    return launched


def test_output_size_and_calls_without_a_batch(exported):
    ours, theirs = pair(exported, 3, 4, 3, stride=3, padding=1)
    launched = counted(exported)
    x = torch.randn(2, 3, 6)
    for size in ([16], [17], [18], (2, 4, 17)):
        torch.testing.assert_close(ours(x, output_size=size), theirs(x, output_size=size))
    with pytest.raises(ValueError, match="requested an output size"):
        ours(x, output_size=[19])
    torch.testing.assert_close(ours(x[0]), theirs(x[0]))
    assert launched == ["forward"] * 5


def test_training_gives_the_same_parameters(exported):
    ours, theirs = pair(exported, 3, 4, 3, 2)
    x, wanted = torch.randn(4, 3, 8), torch.randn(4, 4, 17)
    for module in (ours, theirs):
        step = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            step.zero_grad()
            (module(x) - wanted).square().mean().backward()
            step.step()
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)


def test_only_the_gradients_that_are_needed_are_computed(exported):
    ours, _ = pair(exported, 3, 4, 3, 2)
    launched = counted(exported)
    x = torch.randn(1, 3, 5)
    ours(x).sum().backward()
    assert launched == ["forward", "grad_weight"]
    launched.clear()
    ours.requires_grad_(False)
    x.requires_grad_()
    ours(x).sum().backward()
    assert launched == ["forward", "grad_input"] and ours.weight.grad is not None
    with torch.no_grad():
        assert not ours(x).requires_grad


@pytest.mark.filterwarnings("ignore:Input #0 requires gradient and is not a double precision")
def test_gradients_agree_with_finite_differences(exported):
    ours, _ = pair(exported, 2, 2, 3, 2, 1, bias=True)
    x = torch.randn(1, 2, 4, requires_grad=True)
    assert torch.autograd.gradcheck(ours, (x,), eps=1e-2, atol=1e-2, rtol=1e-2)


def test_a_second_derivative_is_pytorchs(exported):
    ours, theirs = pair(exported, 3, 4, 3)
    results = []
    for module in (ours, theirs):
        x = torch.linspace(-1, 1, 15).reshape(1, 3, 5).requires_grad_()
        gradients = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()], create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in gradients), [x, *module.parameters()]))
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


def test_what_the_kernels_do_not_take_is_pytorchs(exported):
    ours, theirs = pair(exported, 3, 4, 3, 2)
    launched = counted(exported)
    x = torch.randn(2, 3, 5)
    torch.testing.assert_close(ours.double()(x.double()), theirs.double()(x.double()))
    ours.float(), theirs.float()
    empty = torch.randn(0, 3, 5)
    assert ours(empty).shape == theirs(empty).shape == (0, 4, 11)
    for wrong in (torch.randn(2, 5, 5), torch.randn(2, 3, 5, 5), x.double()):
        with pytest.raises(RuntimeError) as error:
            theirs(wrong)
        with pytest.raises(RuntimeError) as ours_error:
            ours(wrong)
        assert (type(ours_error.value), str(ours_error.value)) == (type(error.value), str(error.value))
    ours, theirs = pair(exported, 3, 4, 3, 2, padding=50)  # the output size would be negative
    errors = []
    for module in (theirs, ours):
        with pytest.raises(RuntimeError) as error:
            module(x)
        errors.append(str(error.value))
    assert errors[0] == errors[1]
    ours, theirs = pair(exported, 3, 4, 3, 2)
    assert ours(x.to("meta")).device == theirs(x.to("meta")).device     # the CPU's weight and another device's input
    assert ours.to("meta")(x).shape == theirs.to("meta")(x).shape
    ours, theirs = pair(exported, 3, 4, 3, 2)
    with torch.autocast("cpu", torch.bfloat16):             # no kernel of the file computes bfloat16
        assert torch.equal(ours(x), theirs(x)) and ours(x).dtype == torch.bfloat16
    assert launched == []


def test_a_launch_that_is_refused_goes_to_pytorch_with_one_warning(exported):
    ours, theirs = pair(exported, 3, 4, 3)
    launched = counted(exported)
    kernel, tried = kernel_of(exported, "forward"), []
    before = dict(kernel.launchers)
    replace_launcher(exported, "forward", lambda launch, query: (lambda *a: tried.append(1) or 9, query))
    exported.namespace["_told"].clear()
    x = torch.randn(1, 3, 5)
    with pytest.warns(RuntimeWarning, match=r"forward/naive_gather .* is not used: its launch gives CUDA error 9. PyTorch "
                                            "computes it instead") as warned:
        for _ in range(3):
            torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)
    assert len(warned) == 1 and len(tried) == 1 and not launched
    ours(torch.randn(1, 3, 6))                              # another size is another question; the reason was told
    assert len(tried) == 2 and len(kernel.refused) == 2
    kernel.launchers = before
    ours(x).sum().backward()
    assert launched == ["grad_weight"]                   # nobody asks for the refused problem again
    kernel.refused.clear()
    exported.namespace["_plans"].clear()
    ours(x)
    assert launched[1:] == ["forward"]


def test_sizes_that_a_launcher_does_not_take_are_pytorchs(exported):
    launched = counted(exported)
    replace_launcher(exported, "forward", lambda launch, query: (launch, lambda numbers: -1))
    with pytest.warns(RuntimeWarning, match="it does not support these sizes"):
        exported.cls(3, 4, 3)(torch.randn(1, 3, 5))
    assert launched == []
    kernel_of(exported, "forward").refused.clear()


def test_a_lost_gpu_and_a_full_memory_are_raised(exported):
    counted(exported)
    replace_launcher(exported, "forward", lambda launch, query: (lambda *a: 700, query))
    with pytest.raises(RuntimeError, match=r"forward/naive_gather .* could not be launched: CUDA error 700"):
        exported.cls(3, 4, 3)(torch.randn(1, 3, 5))
    replace_launcher(exported, "forward", lambda launch, query: (launch, lambda numbers: 1 << 60))
    with pytest.raises(RuntimeError, match="memory"):
        exported.cls(3, 4, 3)(torch.randn(1, 3, 5))
    assert not kernel_of(exported, "forward").refused
    counted(exported)


def test_a_kernel_that_does_not_build_is_pytorchs_with_one_warning():
    namespace: dict = {}
    exec(export_text(naive(SMALL)), namespace)
    builds = []

    def build(*order):
        builds.append(order)
        raise RuntimeError("\nError building extension 'kw'\nand a long log")

    namespace.update(_DEVICE_TYPE="cpu", _build=build)
    theirs = nn.ConvTranspose1d(*constructor_arguments(LAYER))
    ours = namespace["ModelNew"](*constructor_arguments(LAYER))
    ours.load_state_dict(theirs.state_dict())
    with pytest.warns(RuntimeWarning, match="its build fails: Error building extension 'kw'. PyTorch") as warned:
        for length in (9, 9, 11):
            x = torch.randn(2, 3, length, requires_grad=True)
            torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)
            gradients = [torch.autograd.grad(m(x).square().sum(), [x, *m.parameters()]) for m in (ours, theirs)]
            for one, other in zip(*gradients, strict=True):
                torch.testing.assert_close(one, other)
    assert len(warned) == 1 and len(builds) == 3            # each kernel is tried once, the reason is told once
    assert "Function" not in type(ours(x).grad_fn).__name__ and type(ours(x).grad_fn) is type(theirs(x).grad_fn)


@pytest.mark.parametrize("other", [{"dilation": 3}, {"stride": 1}, {"bias": False}, {"groups": 1, "kernel_size": 5}])
def test_other_constructor_arguments_are_pytorchs_own_op(folder, other):
    """Kernels made for one layer: any other is nn.ConvTranspose, without a Function of ours around it."""
    subject = constant(folder)
    launched = counted(subject)
    arguments = {"in_channels": 3, "out_channels": 4, "kernel_size": 3, "stride": 2}
    ours, theirs = pair(subject, **{**arguments, **other})
    x = torch.randn(2, 3, 9, requires_grad=True)
    one, two = ours(x), theirs(x)
    assert torch.equal(one, two) and type(one.grad_fn) is type(two.grad_fn) and launched == []
    one.sum().backward()
    assert launched == []
    assert torch.equal(ours(x[0]), theirs(x[0])) and launched == []
    ours, theirs = pair(subject, **arguments)               # and the layer they were made for is theirs
    torch.testing.assert_close(ours(x), theirs(x))
    ours(x).sum().backward()
    assert launched == ["forward", "forward", "grad_input", "grad_weight"]


def test_a_gpu_without_the_shared_memory_or_the_instructions_is_not_asked(folder):
    subject = constant(folder)
    kernels = {kernel.direction: kernel for kernel in subject.namespace["_KERNELS"]}
    ours, theirs = pair(subject, 3, 4, 3, 2)
    launched, x = counted(subject), torch.randn(2, 3, 9)
    torch.testing.assert_close(ours(x), theirs(x))
    assert launched == ["forward"]
    limit = subject.namespace["_gpu"](CPU)[1]
    for name, kernel in kernels.items():
        kernel.shared_bytes, kernel.min_sm = (limit + 1, 80) if name == "forward" else (limit, 100)
    subject.namespace["_plans"].clear()
    x.requires_grad_()
    with pytest.warns(RuntimeWarning) as warned:
        one, two = ours(x), theirs(x)
        one.sum().backward()
        ours(x[0]), ours(torch.randn(1, 3, 5))
    assert [str(w.message) for w in warned] == [
        f"PyTorch computes forward, grad_input, grad_weight on cpu. {kernels['forward'].name} was made for this layer, but it "
        f"needs {limit + 1} bytes of shared memory, this GPU has {limit}."]
    assert torch.equal(one, two) and type(one.grad_fn) is type(two.grad_fn) and launched == ["forward"]
    assert not any(kernel.refused for kernel in kernels.values())


@pytest.mark.parametrize(("capability", "kilobytes", "served"), [
    (75, 64, set()), (80, 163, {"forward", "grad_input"}), (86, 99, {"forward"}), (89, 99, {"forward"}),
    (90, 227, {"forward", "grad_input", "grad_weight"}), (100, 227, {"forward", "grad_input"}), (120, 99, {"forward"})])
@pytest.mark.filterwarnings("ignore:PyTorch computes")
def test_on_any_gpu_the_kernels_that_fit_run_and_nothing_is_raised(folder, capability, kilobytes, served):
    """forward needs sm_80, grad_input 160 KB of shared memory, grad_weight sm_90a."""
    subject = constant(folder)
    subject.namespace["_gpu"] = lambda device: (capability, 1024 * kilobytes)
    kernel_of(subject, "grad_input").shared_bytes, kernel_of(subject, "grad_weight").min_sm = 160 * 1024, 90
    ours, theirs = pair(subject, 3, 4, 3, 2)
    launched, x = counted(subject), torch.randn(2, 3, 9, requires_grad=True)
    for one, two in zip(*(torch.autograd.grad(m(x).square().sum(), [x, *m.parameters()]) for m in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, two)
    assert set(launched) == served


def test_a_kernel_for_any_layer_is_not_chosen_where_nobody_measured_it(exported):
    """On a GPU a general kernel would be many times slower than PyTorch."""
    launched = counted(exported)
    ours, theirs = pair(exported, 3, 4, 5, 1)
    x = torch.randn(2, 3, 9)
    exported.namespace["_ANY_LAYER"] = False
    assert torch.equal(ours(x), theirs(x)) and launched == []
    exported.namespace["_ANY_LAYER"] = True
    exported.namespace["_plans"].clear()
    torch.testing.assert_close(ours(x), theirs(x))
    assert launched == ["forward"]


def test_the_class_is_an_nn_convtranspose(exported):
    ours = exported.cls(*constructor_arguments(LAYER), device="meta", dtype=torch.bfloat16)
    assert isinstance(ours, nn.ConvTranspose1d) and ours.weight.is_meta and ours.weight.dtype == torch.bfloat16
    assert ours(torch.empty(2, 3, 9, device="meta", dtype=torch.bfloat16)).shape == (2, 4, 19)


def test_without_the_redirected_build_the_cpu_is_pytorchs():
    namespace: dict = {}
    exec(export_text(naive(TWO_D)), namespace)
    torch.manual_seed(3)
    ours = namespace["ModelNew"](*constructor_arguments(TWO_D.layer))
    torch.manual_seed(3)
    theirs = nn.ConvTranspose2d(*constructor_arguments(TWO_D.layer))
    x = torch.randn(2, 6, 5, 6)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)


@pytest.mark.parametrize("size", [(1, 3, 1, 1), (2, 1, 4, 5), (1, 3, 1, 4), (2, 3, 4, 5)])
@pytest.mark.parametrize("strides", ["contiguous", "channels_last"])
def test_sizes_of_1_leave_the_memory_format_to_the_strides(flat: Subject, size, strides):
    """Both formats are contiguous there: what the strides say decides, in PyTorch and here."""
    n, c, h, w = size
    by_strides = {"contiguous": (c * h * w, h * w, w, 1), "channels_last": (c * h * w, 1, w * c, c)}[strides]
    x = torch.empty_strided(size, by_strides).normal_()
    ours, theirs = flat.cls(c, 4, 3, 2), nn.ConvTranspose2d(c, 4, 3, 2)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x), theirs(x))
    assert ours(x).stride() == theirs(x).stride()


FUSED = Workload(ConvTranspose(1, 9, 10, 3, stride=2, padding=1), 2, 20)


def subject_of(recipe: Recipe, folder: Path) -> Subject:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNEL_WORKBENCH_CACHE", str(folder / "cache"))
        subject = Subject(module_order(export_text(recipe), FUSED, device="cpu", scratch=folder))
        subject.build_all(lambda event: None)
    return subject


def fused(**others) -> Recipe:
    return Recipe(FUSED, backward=candidate(FUSED, "backward", "fused_mma"), **others)


@pytest.fixture(scope="module")
def alone(folder: Path) -> Subject:
    """`backward` and nothing else."""
    return subject_of(fused(), folder)


def gradients(module: nn.Module, wanted: set[str]) -> dict[str, torch.Tensor]:
    """By name, of those that are wanted: "x", "weight", "bias"."""
    torch.manual_seed(3)
    x = torch.randn(2, 9, 20, requires_grad="x" in wanted)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in wanted)
        parameter.grad = None
    output = module(x)
    output.backward(torch.randn(output.shape))
    found = {"x": x.grad, **{name: p.grad for name, p in module.named_parameters()}}
    return {name: g for name, g in found.items() if g is not None}


def agree(module: nn.Module, original: nn.Module, wanted: set[str]) -> None:
    ours, theirs = gradients(module, wanted), gradients(original, wanted)
    assert set(ours) == set(theirs) == wanted
    for name, gradient in theirs.items():
        assert (ours[name] - gradient).norm() <= 1e-3 * gradient.norm(), name


WANTED = [({"x", "weight", "bias"}, "backward"), ({"x", "weight"}, "backward"), ({"x"}, "grad_input"),
          ({"x", "bias"}, "grad_input"), ({"weight", "bias"}, "grad_weight"), ({"weight"}, "grad_weight")]


@pytest.mark.parametrize(("wanted", "single"), WANTED)
def test_without_single_kernels_the_other_result_is_dropped(alone: Subject, wanted: set[str], single: str) -> None:
    ours, theirs = pair(alone, 9, 10, 3, 2, 1)
    launched = counted(alone)
    agree(ours, theirs, wanted)
    assert launched == ["backward"]


@pytest.mark.parametrize(("wanted", "single"), WANTED)
def test_a_single_gradient_by_its_own_kernel_where_the_recipe_has_one(folder: Path, wanted: set[str],
                                                                     single: str) -> None:
    subject = subject_of(fused(grad_input=candidate(FUSED, "grad_input"),
                               grad_weight=candidate(FUSED, "grad_weight")), folder)
    ours, theirs = pair(subject, 9, 10, 3, 2, 1)
    launched = counted(subject)
    agree(ours, theirs, wanted)
    assert launched == [single]


def test_bias_alone_needs_no_kernel(alone: Subject) -> None:
    ours, theirs = pair(alone, 9, 10, 3, 2, 1)
    launched = counted(alone)
    agree(ours, theirs, {"bias"})
    assert launched == []


def test_another_layer_goes_to_pytorch(alone: Subject) -> None:
    ours, theirs = pair(alone, 9, 10, 2, 3)
    launched = counted(alone)
    agree(ours, theirs, {"x", "weight", "bias"})
    assert launched == []


def test_where_both_at_once_are_refused_each_goes_its_own_way(folder: Path) -> None:
    subject = subject_of(fused(grad_weight=candidate(FUSED, "grad_weight")), folder)
    ours, theirs = pair(subject, 9, 10, 3, 2, 1)
    launched = counted(subject)
    replace_launcher(subject, "backward", lambda launch, query: (lambda *a: 1, query))
    with pytest.warns(RuntimeWarning, match="backward/fused_mma .* CUDA error 1"):
        agree(ours, theirs, {"x", "weight", "bias"})
    assert launched == ["grad_weight"]


def test_the_file_proves_itself(folder: Path) -> None:
    text = export_text(fused())
    assert "grad_input   by backward; its other result is not used" in text
    result = run_fresh(text, FUSED, folder)
    assert result.status == "OK", result
    assert result.detail.left_to_pytorch == ("forward",)


def test_a_recipe_takes_each_candidate_for_what_it_launches() -> None:
    both = candidate(FUSED, "backward", "fused_mma")
    assert Recipe.from_json(fused().to_json()) == fused()
    with pytest.raises(BadRequest, match="give it as backward"):
        Recipe(FUSED, grad_input=both)
    with pytest.raises(BadRequest, match="choose another variant for backward"):
        Recipe(FUSED, backward=candidate(FUSED, "grad_input"))


def test_two_launches_where_they_are_faster_than_one() -> None:
    apart = {"forward": 1.0, "grad_input": 2.0, "grad_weight": 3.0}
    assert fastest({**apart, "backward": 4.0}) == ("forward", "grad_input", "grad_weight", "backward")
    assert fastest({**apart, "backward": 6.0}) == ("forward", "grad_input", "grad_weight")
    assert fastest({"grad_input": 2.0, "backward": 9.0}) == ("grad_input", "backward")
