"""The exit code of a resumed run speaks of the whole request, not only of what was run anew."""

from __future__ import annotations

from pathlib import Path

from workbench.core.variants import TEMPLATES

from .test_cli import SMALL, cli


def test_resuming_what_failed_to_build_is_not_right(tmp_path: Path) -> None:
    root = tmp_path / "templates"
    (root / "forward").mkdir(parents=True)
    text = (TEMPLATES / "forward" / "naive_gather.cu").read_text()
    (root / "forward" / "naive_gather.cu").write_text(text + "\nthis is no C++\n")
    words = ["run", *SMALL, "--templates", str(root), "--session", "one", "--no-baselines", "--direction", "forward"]
    assert cli(*words, sessions=tmp_path).returncode == 1
    again = cli(*words, "--resume", sessions=tmp_path)
    assert again.returncode == 1 and "BUILD_FAILED" in again.stdout, again.stdout + again.stderr
    assert (tmp_path / "one" / "trials.jsonl").read_text().count("\n") == 1  # it was not built again
