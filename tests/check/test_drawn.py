"""Inputs that are something: a right file is right for what get_inputs() draws, and is asked nothing that it does not draw."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from workbench.core.answers import Answer
from workbench.measure.check.clock.timed_input import factors_for, timed_input
from workbench.measure.check.foreign.replies import Left
from workbench.measure.check.party import other_resets
from workbench.measure.check.questions import kernelbench
from workbench.measure.check.questions.drawn import Drawn

from . import models
from .conftest import failed, trial_of

FORM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        LAYERS

    def forward(self, ARGUMENTS):
        return RESULT


def get_inputs():
    GIVEN


def get_init_inputs():
    return []
"""
SYMMETRIC = "a, b = torch.rand(12, 12), torch.rand(12, 12); return [a + a.T, b + b.T]"
TRIANGULAR = "return [torch.triu(torch.rand(12, 12)), torch.triu(torch.rand(12, 12))]"
POSITIVE = "a = torch.randn(9, 9); return [a @ a.T + 9 * torch.eye(9)]"
BAGS = "return [torch.randint(0, 20, (15,)), torch.cat([torch.zeros(1), torch.randint(1, 15, (5,)).sort().values]).long()]"
BAG = "self.bag = nn.EmbeddingBag(20, 6, mode='sum')"


def reference(arguments: str, result: str, given: str, layers: str = "pass") -> str:
    return FORM.replace("ARGUMENTS", arguments).replace("RESULT", result).replace("GIVEN", given).replace("LAYERS", layers)


def file(arguments: str, result: str, layers: str = "pass") -> str:
    return reference(arguments, result, "", layers).split("def get_inputs")[0].replace("class Model(", "class ModelNew(")


@pytest.mark.parametrize(("arguments", "expected", "given", "layers", "right", "wrong", "word"), [
    ("a, b", "a @ b", SYMMETRIC, "pass", "a.T @ b", "a @ b.triu()", "symmetric"),
    ("a, b", "torch.triu(a @ b)", TRIANGULAR, "pass", "a @ b", "a @ b.tril()", "triangular"),
    ("a", "torch.linalg.cholesky(a)", POSITIVE, "pass", "torch.linalg.cholesky(a.mT)", "torch.linalg.cholesky(a).mT",
     "symmetric"),
    ("words, starts", "self.bag(words, starts)", BAGS, BAG, "torch.stack([self.bag.weight[w].sum(0) for w in "
     "torch.tensor_split(words, starts[1:])])", "self.bag(words, 0 * starts)", "sorted"),
], ids=["symmetric", "triangular", "positive definite", "an embedding bag"])
def test_a_file_is_right_that_is_right_for_what_get_inputs_draws(
        checked, arguments: str, expected: str, given: str, layers: str, right: str, wrong: str, word: str) -> None:
    text = reference(arguments, expected, given, layers)
    report = checked(file(arguments, right, layers), reference=text)
    assert failed(report) == {}, report.questions
    theirs = report.kernelbench.values  # KernelBench casts whole numbers to float32, too: they are no indices any more
    assert theirs.strict is (layers != BAG) and (theirs.strict or theirs.why.startswith("The reference raises")), theirs
    for key in ("other_sizes", "batch_one", "empty_batch"):
        question = report.question(key)
        assert question.answer is Answer.SKIPPED and question.seen.startswith("Not asked: get_inputs() makes"), question
        assert word in question.seen
    found = checked(file(arguments, wrong, layers), reference=text)
    assert failed(found)["values"] in ("MISMATCH", "WRONG_SHAPE") and not found.kernelbench.values.strict


@pytest.mark.parametrize(("draw", "word"), [
    (lambda: torch.rand(8, 8), ""), (lambda: torch.randn(4, 8), ""), (lambda: torch.randint(0, 9, (40,)), ""),
    (lambda: torch.rand(3), ""), (lambda: torch.ones(()), ""), (lambda: torch.rand(4, 1), ""),
    (lambda: torch.rand(40).sort().values, "sorted"), (lambda: torch.randperm(30), "without repetition"),
    (lambda: torch.randint(2, (40,)).float() * 2 - 1, "of whole numbers"), (lambda: torch.zeros(4, 4), "of one value"),
    (lambda: torch.rand(5, 6).softmax(-1), "of rows that sum to 1"), (lambda: (a := torch.rand(2, 7, 7)) + a.mT, "symmetric"),
    (lambda: torch.rand(2, 7, 7).tril(), "triangular"),
    (lambda: torch.nn.functional.normalize(torch.randn(5, 6)), "of rows of norm 1"),
    (lambda: torch.randn(6, 6) * torch.eye(6).roll(1, 0), "with zeros in fixed places")])
def test_what_inputs_are_is_seen_in_two_draws(draw, word: str) -> None:
    def under(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return [draw()]

    with torch.random.fork_rng():
        for seed in range(5):
            found = Drawn(under(seed), under, torch.Generator().manual_seed(seed)).structures[0]
            assert (found.word if found else "") == word


def test_other_sizes_are_cut_out_of_what_is_drawn() -> None:
    def under(seed: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        rows = torch.rand(6, 4, generator=generator)
        return [rows, rows.sum(1) + torch.arange(6)]  # rows belong together

    drawn = Drawn(under(1), under, torch.Generator().manual_seed(3))
    for batch in (1, 3, 6, 9):
        rows, sums = drawn.inputs(((batch, 4), (batch,)))
        assert rows.shape == (batch, 4) and bool((rows.sum(1) <= sums + 1e-6).all())
        assert bool(((sums - rows.sum(1)).round() - (sums - rows.sum(1))).abs().max() < 1e-5)
    assert not torch.equal(drawn.inputs(((6, 4), (6,)))[0], drawn.inputs(((6, 4), (6,)))[0])


def test_one_row_becomes_several_different_rows_that_are_what_it_was() -> None:
    """As a mask that is broadcast. A bound stays a bound, and what is sorted stays sorted."""
    def under(seed: int) -> list[torch.Tensor]:
        how = {"generator": torch.Generator().manual_seed(seed)}
        low = torch.rand(1, 6, **how)
        return [low, low + torch.rand(1, 6, **how), torch.rand(1, 6, **how).sort(-1).values, torch.rand(1, 0, **how)]

    drawn = Drawn(under(1), under, torch.Generator().manual_seed(3))
    low, high, rising, nothing = drawn.inputs(((9, 6), (9, 6), (9, 6), (9, 0)))
    assert bool((low <= high).all()) and bool((rising.diff(dim=-1) >= 0).all()) and nothing.shape == (9, 0)
    assert len(low.unique(dim=0)) > 1 and len(low.sort(-1).values.unique(dim=0)) == 1


def test_what_every_seed_gives_is_drawn_in_another_order() -> None:
    given = torch.linspace(1, 2, 20)[torch.randperm(20, generator=torch.Generator().manual_seed(1))].view(4, 5)
    fixed = Drawn([given], lambda seed: [given.clone()], torch.Generator().manual_seed(3))
    one, other = fixed.inputs(((4, 5),)), fixed.inputs(((4, 5),))
    assert not torch.equal(one[0], other[0]) and torch.equal(one[0].view(-1).sort()[0], other[0].view(-1).sort()[0])


def test_values_that_are_always_the_same_are_told(checked) -> None:
    given = models.REFERENCE.replace("torch.randn(4, 8)", "torch.arange(32.).view(4, 8)")
    report = checked(models.RIGHT, reference=given)
    assert failed(report) == {} and report.question("fresh_inputs").answer is Answer.WARNED
    assert "gives the same values with every seed" in report.question("fresh_inputs").seen


def test_kernelbench_s_own_verdict_is_for_kernelbench_s_own_inputs(tmp_path) -> None:
    """Those of its trials: get_inputs() under the seeds that it draws under 42; the modules are made once."""
    torch.manual_seed(42)
    seeds = [torch.randint(0, 2**32 - 1, (1,)).item() for _ in range(5)]
    text = models.RIGHT.replace("        return torch.relu",
                                "        if WRONG(x):\n            return 0 * x\n        return torch.relu")
    with torch.random.fork_rng():
        torch.manual_seed(seeds[3])
        fourth = float(torch.randn(4, 8)[0, 0])
    for wrong, trials in ((f"lambda x: abs(float(x[0, 0]) - {fourth}) < 1e-7", 4), ("lambda x: False", 5)):
        with trial_of(f"WRONG = {wrong}\n{text}", models.REFERENCE, tmp_path) as (trial, case):
            found = kernelbench.verdict(trial, case)
            assert found.strict is (trials == 5) and found.trials == trials, found


@pytest.mark.parametrize(("ours", "words"), [
    ((0.29, 0.5, 0.25, 0.49), ""), ((0.29, 0.5, 0.6, 1.2), ""), ((0.29, 0.5, 0.0, 0.0), "root mean square of bias is 0,"),
    ((0.5, 0.9, 0.29, 0.5), "root mean square of weight is 0.5, in the reference 0.29."),
    ((0.29, 0.9, 0.29, 0.5), "largest value of weight is 0.9,"), ((0.29, 0.7, 0.29, 0.5), "")])
def test_other_numbers_of_the_same_distribution_are_right(ours: tuple[float, ...], words: str) -> None:
    """A bias of six values differs by chance."""
    theirs = Left((), (), (), draws=False, seeds=(), hooks=True, strides=(), settings=(), redrawn=("weight", "bias"),
                  sizes=(0.29, 0.5, 0.29, 0.48))
    said = other_resets(replace(theirs, sizes=ours), theirs, {"weight": torch.empty(64, 64), "bias": torch.empty(6)})
    assert bool(said) == bool(words) and words in said, said


def test_a_matrix_that_is_symmetric_stays_so_when_it_is_timed() -> None:
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(3, 7, 7, generator=generator)
    a = a @ a.mT + torch.eye(7)
    factors = factors_for(a, generator, "matrix")
    seen = [timed_input(a, factors, begins) for begins in ((0, 8), (8, 0), (16, 80), (16, 88))]
    assert all(torch.equal(x, x.mT) == torch.equal(a, a.mT) and bool((torch.linalg.eigvalsh(x) > 0).all()) for x in seen)
    assert torch.equal(seen[0], seen[1]) and not bool((seen[2] == seen[3]).any())
