"""A recipe with `backward`: which kernels an exported module launches for which gradients, and that they are right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from workbench.core.errors import BadRequest
from workbench.core.layer import ConvTranspose, Workload
from workbench.drive.exporting.export import export_text, module_order
from workbench.drive.exporting.recipe import Recipe, fastest
from workbench.measure.module.subject import Subject

from .recipes import candidate, run_fresh
from .test_calls import counted, pair, replace_launcher

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
