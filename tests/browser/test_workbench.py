"""The whole job in a real browser: run three variants, look at one, prove the export, take the file."""

from __future__ import annotations

import ast
import re
import zipfile

import pytest

from tests.ticked import ticked

pytestmark = pytest.mark.xdist_group("browser")  # one browser and one page at a time on a small machine
LONG_MS = 100_000
GENERAL = ("naive_gather", "shared_weight_tiling", "warp_per_output")


def strip(page):
    return page.locator(".kw .strip").first


def forward_only(page) -> None:
    """Untick all but the three general forward variants."""
    left, shown = len(ticked()), "forward"
    for direction, variant in ticked():
        if direction == "forward" and variant in GENERAL:
            continue
        if direction != shown:
            page.locator(".st-key-direction").get_by_text(direction, exact=True).click()
            shown = direction
        page.locator(f".st-key-tick-{direction}-{variant} label").first.click()
        left -= 1
        page.get_by_role("button", name=f"Run {left}").wait_for()
    page.get_by_role("button", name="Run 3").wait_for()


def run_to_the_end(page) -> None:
    page.get_by_role("button", name="Run 3").click()
    page.locator(".strip", has_text=re.compile("RUNNING|WAITING")).first.wait_for()
    page.locator(".strip", has_text="3 of 3 candidates are right in all checks").first.wait_for(timeout=LONG_MS)


def test_run_inspect_export_download(page, tmp_path):
    assert "ConvTranspose1d(32, 64, 5" in page.locator(".layer").inner_text()
    forward_only(page)
    run_to_the_end(page)
    assert "EMULATED" in strip(page).inner_text()
    assert "says nothing about a GPU" in strip(page).inner_text()

    page.locator('[data-testid="stDataFrame"]').wait_for()
    page.locator(".js-plotly-plot").first.wait_for()
    assert page.locator(".js-plotly-plot .bars .point").count() >= 3
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save", exact=True).click()
    saved.value.save_as(tmp_path / "session.zip")
    with zipfile.ZipFile(tmp_path / "session.zip") as archive:
        trials = next(n for n in archive.namelist() if n.endswith("trials.jsonl"))
        assert archive.read(trials).decode().count('"status":"OK"') >= 3

    page.get_by_role("link", name="Inspect").click()
    code = page.locator('[data-testid="stCode"]').first
    code.wait_for()
    assert "__global__" in code.inner_text()
    page.get_by_text("Resources", exact=False).first.wait_for()

    page.get_by_role("link", name="Export").click()
    download = page.get_by_role("button", name="Download", exact=True)
    download.wait_for()
    assert download.is_disabled()
    page.get_by_role("button", name="Prove", exact=True).click()
    page.locator(".strip", has_text="✓ PROVED").first.wait_for(timeout=LONG_MS)
    with page.expect_download() as taken:
        page.get_by_role("button", name="Download", exact=True).click()
    taken.value.save_as(tmp_path / "model_new.py")
    text = (tmp_path / "model_new.py").read_text()
    assert "ModelNew" in [n.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ClassDef)]
    assert "grad_weight  left to PyTorch" in text
    assert not page.foreign, page.foreign


def test_a_reload_during_a_run_keeps_it(page):
    forward_only(page)
    page.get_by_role("button", name="Run 3").click()
    page.locator(".strip", has_text=re.compile("RUNNING|WAITING")).first.wait_for()
    page.reload()
    page.locator(".strip", has_text=re.compile("RUNNING|WAITING|3 of 3 candidates")).first.wait_for()
    page.locator(".strip", has_text="3 of 3 candidates are right in all checks").first.wait_for(timeout=LONG_MS)


def test_stop_ends_the_run_and_keeps_what_is_finished(page):
    page.get_by_role("button", name=f"Run {len(ticked())}").click()
    page.get_by_role("button", name="Stop").click()
    page.locator(".strip", has_text="Stopped by you after").first.wait_for(timeout=60_000)
    page.get_by_role("button", name="Resume").wait_for()


def test_the_compilers_log_is_on_the_page_while_it_builds(page):
    """A flag of its own makes every build a fresh one; the line is looked for while the run is still going."""
    page.get_by_text("Compile flags and effort").click()
    flags = page.get_by_role("textbox", name="compile flags")
    flags.fill("-O3 -DKW_FRESH=1")
    flags.press("Enter")
    forward_only(page)
    page.get_by_role("button", name="Run 3").click()
    page.get_by_text("Compiler log, as it is printed").click(timeout=30_000)
    page.get_by_test_id("live-log").filter(has_text="$ g++").first.wait_for(timeout=30_000)
    assert page.get_by_role("button", name="Stop").count(), "the log was there only after the run"
