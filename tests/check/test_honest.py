"""No right file is called wrong, and a file that declares its precision is judged by that: no more, and no less."""

from __future__ import annotations

import pytest

from workbench.core.answers import Answer
from workbench.core.precision import declared
from workbench.drive.checking import selftest
from workbench.drive.checking.attacks import chosen, honest, right_files
from workbench.drive.checking.check_text import report_text

from .conftest import failed

FILES = right_files()
SAMPLE = ("diagonal_by_diag", "kb5_matrix_scalar", "kb33_batch_norm", "gru_by_hand", "transposed_by_zeros_between",
          "conv_channels_last", "relu_scripted", "conv_in_float16", "selective_scan",
          "transposed_by_fft", "instance_norm_of_rows")
BFLOAT16 = FILES["transposed_in_bfloat16"]
GELU = FILES["kb26_gelu"]


def test_the_corpus_is_large_and_has_all_of_level_1() -> None:
    assert {f"kb{number}" for number in range(1, 101)} == {name.split("_")[0] for name in FILES if name.startswith("kb")}
    rewritten = [name for name, (reference, text) in FILES.items() if text.replace("class ModelNew(", "class Model(").rstrip()
                 != reference.split("def get_inputs")[0].rstrip()]
    assert len(FILES) == len(honest()) >= 200 and len(rewritten) >= 70, (len(FILES), len(rewritten))


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in SAMPLE else pytest.mark.long) for n in FILES])
def test_a_right_file_is_not_called_wrong(checked, name: str) -> None:
    reference, text = FILES[name]
    report = checked(text, reference=reference, seed=300)
    assert failed(report) == {} and report.ran, report_text(report)
    assert bool(report.declared) == ("precision" in text), report.declared


def test_the_self_test_counts_right_files_and_names_what_is_called_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with_a_wrong_one = {**FILES, "kb19_relu": (FILES["kb19_relu"][0], FILES["kb22_tanh"][1])}
    monkeypatch.setattr(selftest, "right_files", lambda: with_a_wrong_one)
    found = selftest.selftest("cpu", wanted=[a for a in chosen(["kb19_relu"]) if a.kind == "honest"])
    assert [(r.name, r.status, r.caught) for r in found] == [("kb19_relu", "MISMATCH", False)]
    assert selftest.summary(found) == "1 of 1 right files called wrong; not as expected: kb19_relu"
    attack = selftest.Result("a", "module", "an idea", "MISMATCH", "MISMATCH", "Wrong.", True)
    assert selftest.matrix(found) == "" and selftest.matrix([attack, *found]).endswith("Right files called wrong: 1 of 1.")


@pytest.mark.parametrize(("text", "known", "unknown"), [
    ("# precision: bfloat16\nimport torch\n", "bf16", ""), ("\n# precision: half\n", "fp16", ""),
    ('"""A file.\n\n    forward  x\n             computes in tf32x3: three products\n    grad_input y\n'
     '             computes in tf32: TF32\n"""\n# precision: ieee\n', "tf32", ""),
    ("# precision: fp8\nimport torch\n", "", "fp8"), ('"""Computes in bfloat16 and returns float32."""\n', "", ""),
    ("import torch\n# precision: bfloat16\n", "", ""), ('TEXT = """\nprecision: bfloat16\n"""\n', "", ""), ("", "", ""),
    ('x = 1\n"""\nprecision: bfloat16\n"""\n', "", "")],
    ids=["a comment", "half", "of an export", "not known", "a sentence", "below the head", "a string", "nothing", "not first"])
def test_only_the_head_of_a_file_declares(text: str, known: str, unknown: str) -> None:
    assert declared(text) == (known, unknown)


def test_a_declared_precision_is_in_the_headline_and_names_the_competitors(checked) -> None:
    report = checked(BFLOAT16[1], reference=BFLOAT16[0], time=True, effort="quick")
    assert {t.precision for t in report.times.values()} == {"bf16"}, report.times
    assert failed(report) == {} and "is right in bfloat16, which it declares, but not in the precision of" in report.headline
    assert report.question("precision").answer is Answer.WARNED
    undeclared = failed(checked(BFLOAT16[1].replace("# precision: bfloat16\n", ""), reference=BFLOAT16[0]))
    assert undeclared["values"] == undeclared["gradient_values"] == "MISMATCH"


@pytest.mark.parametrize(("text", "key"), [
    (GELU[1].replace("F.gelu(x)", "1.03 * F.gelu(x)"), "values"), (GELU[1].replace("F.gelu(x)", "F.relu(x)"), "values"),
    (GELU[1].replace("F.gelu(x)", "F.gelu(x).round(decimals=1)"), "values"),
    (GELU[1].replace("F.gelu(x)", "F.gelu(x).detach() + 1.05 * (F.gelu(x) - F.gelu(x).detach())"), "gradient_values")],
    ids=["a factor", "another function", "few digits", "a factor in backward"])
def test_a_declaration_lets_no_wrong_file_pass(checked, text: str, key: str) -> None:
    report = checked(f"# precision: bfloat16\n{text}", reference=GELU[0])
    assert failed(report)[key] == "MISMATCH" and " 0 of " not in report.question(key).seen, report.question(key)


def test_a_file_that_declares_more_than_it_computes_is_wrong(checked) -> None:
    text = BFLOAT16[1].replace("precision: bfloat16", "precision: tf32")
    assert failed(checked(text, reference=BFLOAT16[0]))["values"] == "MISMATCH"
    right = checked(f"# precision: ieee\n{GELU[1]}", reference=GELU[0])
    assert failed(right) == {} and right.declared == "" and right.question("precision").answer is Answer.PASSED


def test_another_dtype_is_wrong_for_kernelbench_too(checked) -> None:
    report = checked(GELU[1].replace("F.gelu(x)", "F.gelu(x).half()"), reference=GELU[0])
    theirs = report.kernelbench.values
    assert failed(report)["kind"] == "WRONG_DTYPE" and (theirs.strict, theirs.loose, theirs.why) == (
        False, False, "The dtypes differ."), theirs
