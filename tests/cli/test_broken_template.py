"""A template with a wrong header, as a person meets it on the command line: it costs itself, and is always said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from workbench.core.variants import TEMPLATES

from .test_cli import SMALL

SENTENCE = "The header of broken.cu is not TOML: Invalid value (at line 2, column 8)."


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("one_is_broken") / "templates"
    (root / "forward").mkdir(parents=True)
    shutil.copy(TEMPLATES / "forward" / "naive_gather.cu", root / "forward")
    (root / "forward" / "broken.cu").write_text('/* variant\nname = broken"\n*/\n')
    return root


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_variants_lists_the_others_and_says_which_is_broken(here, templates: Path, more: list[str]) -> None:
    done = here("variants", "--templates", str(templates), *more)
    assert done.returncode == 1 and "naive_gather" in done.stdout
    assert done.stderr == f"{SENTENCE} This template was skipped.\n"


def test_run_goes_on_without_it(here, templates: Path, tmp_path: Path) -> None:
    words = ["run", *SMALL, "--templates", str(templates), "--effort", "quick", "--no-baselines"]
    done = here(*words, sessions=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{SENTENCE} This template was skipped.\n" in done.stderr and "naive_gather" in done.stdout


@pytest.mark.parametrize("verb", ["run", "test", "bench"])
def test_naming_it_is_refused_with_its_sentence(here, verb: str, templates: Path, tmp_path: Path) -> None:
    small = [] if verb == "bench" else SMALL
    done = here(verb, *small, "--templates", str(templates), "--variant", "broken", sessions=tmp_path)
    assert done.returncode == 2 and done.stderr == SENTENCE + "\n"


def test_a_validation_of_everything_does_not_pass_without_it(here, templates: Path) -> None:
    words = ["test", *SMALL, "--templates", str(templates), "--effort", "quick"]
    done = here(*words)
    assert done.returncode == 1 and SENTENCE in done.stderr and "1 of 1 cases are right" in done.stdout, done.stderr
    assert here(*words, "--variant", "naive_gather").returncode == 0


def test_export_takes_a_variant_from_the_folder(here, templates: Path, tmp_path: Path) -> None:
    own = tmp_path / "templates" / "forward" / "own.cu"
    own.parent.mkdir(parents=True)
    own.write_text((templates / "forward" / "naive_gather.cu").read_text().replace('"naive_gather"', '"own"'))
    done = here("export", *SMALL, "--templates", str(own.parent.parent), "--forward", "own", "--out", str(tmp_path / "own.py"))
    assert done.returncode == 0, done.stderr
    assert "forward/own" in (tmp_path / "own.py").read_text()
    refused = here("export", *SMALL, "--templates", str(own.parent.parent), "--best")
    assert refused.returncode == 2 and "leave out --session, --set, --templates" in refused.stderr


@pytest.mark.parametrize("verb", ["run", "variants", "test", "bench"])
def test_a_folder_that_is_not_there_is_said(here, verb: str, tmp_path: Path) -> None:
    small = SMALL if verb in ("run", "test") else []
    done = here(verb, *small, "--templates", "/nonexist", sessions=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("The folder of templates /nonexist does not exist;") and done.stderr.count("\n") == 1
