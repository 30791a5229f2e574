"""What `test` tries at each effort.

The self-test: the fixtures are complete, what it runs is caught, a judge without a guard is found out, and it is kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from workbench.core.errors import BadRequest
from workbench.core.layer import DTYPES
from workbench.core.trial import Status
from workbench.core.variants import discover
from workbench.drive.checking import selftest
from workbench.drive.checking.attacks import attacks, chosen, kernels, modules
from workbench.drive.checking.selftest import Result, kept, summary
from workbench.drive.checking.variant_tests import planned
from workbench.drive.running.runner import Runner

KERNELS = [a for a in attacks() if a.kind == "kernel"]
MODULES = [a for a in attacks() if a.kind == "module"]


def test_every_fixture_is_an_attack(tmp_path: Path) -> None:
    there = {v.name for v in discover(kernels(tmp_path))}
    named = {a.name for a in KERNELS}
    assert named <= there
    assert set(modules()) == {a.name for a in MODULES}
    assert {kind for a in attacks() for kind in a.expected} <= {"cpu", "cuda"}
    assert {a.answer for a in KERNELS} == {"failed"} and {a.answer for a in MODULES} == {"failed", "warned"}
    assert {status for a in attacks() for either in a.expected.values() for status in either.split(" or ")} <= set(Status)


def test_attacks_are_caught(runner: Runner) -> None:
    found = selftest.selftest("cpu", runner=runner, wanted=chosen([
        "trusts_what_is_there", "lazy_when_repeated", "zeros_when_repeated", "knows_the_seeds", "replays_by_pointer",
        "works_in_float16", "exits_quietly", "prints_ok_and_is_wrong", "touches_sessions", "half", "float16_when_timed",
        "kb5_matrix_scalar"]))
    print(*found, sep="\n")
    assert len(found) == 15 and all(r.caught for r in found)
    assert summary(found) == "13 of 13 attacks caught; 0 of 1 right files called wrong"
    assert selftest.confinement(found).startswith("the file ") and "\n" not in selftest.confinement(found)


def test_what_is_not_as_expected_is_missed(runner: Runner) -> None:
    """An attack that is expected to get another status than it does; and one that only gets a warning."""
    wrong = [replace(a, expected={"cpu": "UNWRITTEN"}) if a.name == "returns_zeros" else replace(a, answer="failed")
             for a in chosen(["returns_zeros", "draws_random_numbers"])]
    found = {r.name: r for r in selftest.selftest("cpu", wanted=wrong, runner=runner)}
    assert not found["returns_zeros"].caught and found["returns_zeros"].status == "MISMATCH"
    only_warned = found["draws_random_numbers"]
    assert not only_warned.caught and only_warned.warned and only_warned.happened.startswith("Only a warning: ")
    assert summary(list(found.values())) == "0 of 2 attacks caught; not as expected: returns_zeros, draws_random_numbers"


def test_at_least_150_attacks_from_ten_sources() -> None:
    sources = Counter(a.source for a in attacks() if a.kind in ("kernel", "module"))
    assert sum(sources.values()) >= 150 and len(sources) >= 10, sources


def test_the_published_matrix_counts_the_attacks_of_each_source() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "red-team.md").read_text().partition("<!-- matrix of cpu -->")[2]
    lines = [line for line in text.partition("<!-- end -->")[0].splitlines() if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    there = [a for a in (*KERNELS, *MODULES) if "cpu" in a.expected]
    for source, count, *_, failed, warned, missed, recall in rows:
        here = [a for a in there if source in ("all", a.source)]
        fail = sum(a.answer == "failed" and a.expected["cpu"] != "OK" for a in here)
        warn = sum(a.answer == "warned" for a in here)
        assert (count, failed, warned) == (str(len(here)), str(fail or ""), str(warn or "")), source
        assert (missed, recall) == ("", "100 %"), source
    assert sorted(row[0] for row in rows) == sorted({"all", *(a.source for a in there)})


def test_the_matrix_counts_what_was_found_and_goes_into_a_file(tmp_path: Path) -> None:
    results = [Result("a", "control", "", "OK", "OK", "", True), Result("b", "kernel", "", "OK", "OK", "", True, "", "one"),
               Result("c", "module", "", "MISMATCH", "OK", "", False, "", "two"),
               Result("d", "module", "", "MISMATCH", "MISMATCH", "", True, "", "two", warned=True)]
    assert selftest.matrix(results).splitlines()[0].endswith("| failed | warned | missed | recall |")
    assert selftest.matrix(results).splitlines()[2:] == [
        "| two | 2 | 1 | 1 |  | 1 | 1 | 50 % |", "| one | 1 | 1 |  |  |  |  | 100 % |", "| all | 3 | 2 | 1 |  | 1 | 1 | 67 % |"]
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- matrix of cpu -->\nold\n<!-- end -->\nafter\n")
    selftest.publish(path, results, "cpu")
    assert path.read_text() == f"before\n<!-- matrix of cpu -->\n{selftest.matrix(results)}\n<!-- end -->\nafter\n"
    with pytest.raises(BadRequest, match="has no line <!-- matrix of cuda -->"):
        selftest.publish(path, results, "cuda")


def test_an_attack_that_there_is_not_is_a_bad_request() -> None:
    with pytest.raises(BadRequest, match="There is no attack 'return_zeros'; did you mean returns_zeros"):
        chosen(["return_zeros"])


def test_the_last_result_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path / "cache"))
    results = [Result("a", "kernel", "an idea", "OK", "OK", "Nothing.", True)]
    selftest.keep(results, "cpu")
    when, again = kept("cpu")
    assert when > 0 and again == results


def test_no_result_is_no_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(tmp_path))
    assert kept("cpu") is None
    selftest.keep([Result("a", "kernel", "", "OK", "OK", "", True)], "cpu")
    (tmp_path / "selftest" / "cpu.json").write_text("{")
    assert kept("cpu") is None


def test_full_tries_every_precision_dtype_and_form_of_every_variant() -> None:
    there = planned(discover(), "full", sm=90)
    assert ({(c.variant.key, c.precision, c.form) for c, _ in there}
            == {(v.key, p, form) for v in discover() for p in v.precision for form in v.forms})
    assert {w.dtype for c, w in there if "runtime" in c.variant.forms} == set(DTYPES)
    tried = Counter((c.variant.key, c.precision) for c, w in there if w.dtype == "float32" and c.variant.name == "split_mma")
    assert len(tried) > 1 and len(set(tried.values())) == 1, "each precision on all layers"


def test_quick_and_normal_build_a_variant_without_a_run_time_form_for_few_layers() -> None:
    for effort, most in (("quick", 1), ("normal", 8)):
        tried = Counter((c.variant.key, c.precision) for c, _ in planned(discover(), effort, sm=90)
                        if "runtime" not in c.variant.forms)
        assert max(tried.values()) <= most and {key for key, _ in tried} == {
            v.key for v in discover() if "runtime" not in v.forms}
