"""Two tabs of one server in a real browser: neither is shown what belongs to the other. Editing a kernel until it is right."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest

from tests.browser.conftest import ROOT, inside
from tests.drive.conftest import until
from tests.page.test_page import with_a_template_that_does_not_compile
from tests.page.test_report import CPU, trial
from tests.shared import ticked
from workbench.core.candidate import Candidate
from workbench.core.env import find_toolchain
from workbench.core.fork import fork
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.template import render
from workbench.core.trial import Status
from workbench.core.variants import find
from workbench.drive.running.request import RunRequest
from workbench.drive.sessions.session import Session

pytestmark = pytest.mark.xdist_group("browser")
SMALLEST = re.compile("^The smallest case that still fails")  # as long as it is looked for, the strip says so in lower case
WRONG = '''
import torch
from torch import nn
from torch.nn import functional as F


class ModelNew(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, bias=False):
        super().__init__()
        self.conv1d_transpose = nn.ConvTranspose1d(in_channels, out_channels, kernel_size, stride=stride,
                                                   padding=padding, dilation=dilation, bias=bias)

    def forward(self, x):
        layer = self.conv1d_transpose
        return F.conv_transpose1d(x, layer.weight.flip(2), layer.bias, layer.stride, layer.padding, 0, 1, layer.dilation)
'''
MODEL = '''
import torch
from torch import nn


def build_model():
    return nn.Sequential(nn.ConvTranspose1d(8, 4, 4, stride=2), nn.ReLU(), nn.ConvTranspose1d(4, 2, 3))


def inputs():
    return torch.randn(2, 8, 16)
'''


def open_tab(page, path: str):
    """Another tab of the same browser, at that path, drawn to its end."""
    tab = page.context.new_page()
    tab.set_default_timeout(200_000)
    tab.goto(page.url.split("?")[0].rstrip("/") + path)
    settled(tab)
    return tab


def settled(tab) -> None:
    tab.locator(".kw .strip").first.wait_for()
    tab.locator('[data-test-script-state="notRunning"]').wait_for()


def text(tab) -> str:
    return tab.get_by_test_id("stMainBlockContainer").inner_text()


def test_two_tabs_two_layers(waiting_compiler, page, tmp_path):
    page.get_by_role("button", name=f"Run {len(ticked())}").click()
    page.locator(".strip", has_text=re.compile("RUNNING|WAITING")).first.wait_for()

    other = open_tab(page, "/?preset=kb79&size=small")
    assert "ConvTranspose1d(32, 64, 3, stride=2" in other.locator(".layer").inner_text()
    inside(other).get_by_text(re.compile(r"KernelBench #74 \(small\) runs on cpu in session")).wait_for()
    assert "build · check · time" not in text(other) and "Nothing measured yet for this layer" in text(other)
    assert other.get_by_role("button", name=re.compile(r"^Run \d")).is_enabled()

    other.get_by_role("button", name="Go to it").click()
    other.locator(".layer", has_text="ConvTranspose1d(32, 64, 5").wait_for()
    other.locator(".strip", has_text=re.compile("RUNNING|WAITING")).first.wait_for()
    other.get_by_text("build · check · time").wait_for()

    third = open_tab(page, "/?preset=kb79&size=small")
    third.get_by_role("button", name="Stop it").click()
    page.locator(".strip", has_text="Stopped by you after").wait_for()
    inside(third).get_by_text("runs on cpu in session").wait_for(state="detached")
    assert "Stopped by you" not in text(third) and "Nothing measured yet for this layer" in text(third)

    session = Session.create(tmp_path / "sessions", "long")
    for _ in range(8):
        session.append(trial("mine", 1.0, device=CPU))
    page.goto(page.url.split("?")[0] + "?preset=kb74&size=small&precision=ieee&session=long&only=forward/naive_gather")
    page.get_by_role("button", name="Run 1").click()
    page.locator(".strip", has_text=re.compile("RUNNING|WAITING")).first.wait_for()
    page.get_by_test_id("stMainBlockContainer").get_by_role("button", name="Stop", exact=True).click()
    page.locator(".strip", has_text="8 finished trials are kept in the session").wait_for()


def test_a_self_test_in_one_tab_is_not_in_the_other_tabs_workbench(page):
    machine = open_tab(page, "/machine")
    machine.get_by_role("button", name="Run the self-test").click()
    machine.locator(".strip", has_text="kernels of this group").wait_for()  # its kernels are with the runner
    page.reload()
    settled(page)
    inside(page).get_by_text("The self-test runs on cpu").wait_for()
    assert "returns_zeros" not in text(page) and "build · check · time" not in text(page)
    assert "Nothing measured yet for this layer" in text(page)
    machine.get_by_role("button", name="Cancel the self-test").click()
    machine.locator(".strip", has_text="Stopped by you").wait_for()
    inside(page).get_by_text("The self-test runs on cpu").wait_for(state="detached")


def test_a_report_is_shown_to_the_tab_that_asked(page):
    mine = open_tab(page, "/check")
    mine.locator(".kwed .body").click(position={"x": 300, "y": 400})   # below its only line
    mine.keyboard.insert_text(WRONG)
    mine.get_by_role("button", name="Check", exact=True).click()  # the very first click after the paste
    mine.locator(".strip", has_text="s since start").wait_for()
    fresh = open_tab(page, "/check")
    inside(fresh).get_by_text("Another tab checks model_new.py against KernelBench #74 (small) on cpu").wait_for()
    assert "Nothing checked yet" in text(fresh)
    inside(mine).get_by_text(SMALLEST).wait_for()
    inside(fresh).get_by_text("Another tab checks").wait_for(state="detached")
    assert "taps flipped" in text(mine)
    assert "Nothing checked yet" in text(fresh) and "taps flipped" not in text(fresh)
    mine.reload()
    inside(mine).get_by_text(SMALLEST).wait_for()


def test_the_line_of_a_files_error_is_shown_with_its_neighbours(page):
    tab = open_tab(page, "/check")
    broken = WRONG.replace("layer = self.conv1d_transpose", "layer = self.conv1d_transposed")
    source = tab.get_by_label("Candidate: paste a file")
    source.fill(broken)
    settled(tab)
    tab.reload()
    until(lambda: source.input_value() == broken)   # what was typed is still there, and counts
    tab.get_by_role("button", name="Check", exact=True).click()
    line = 1 + broken.splitlines().index("        layer = self.conv1d_transposed")
    tab.locator(".strip", has_text="FAILED").wait_for()
    tab.get_by_text("The file", exact=False).first.wait_for()
    shown = text(tab)
    assert f"line {line}" in shown and "no attribute 'conv1d_transposed'" in shown
    assert "layer = self.conv1d_transposed" in shown and "def forward(self, x):" in shown, "the line and the one before it"
    mark = tab.locator(".kwed .errors button", has_text=f"line {line}: ").first
    mark.click()
    assert source.evaluate("e => e.value.slice(e.selectionStart).split('\\n')[0].trim()") == "layer = self.conv1d_transposed"
    source.press("Control+Home")
    source.type("# once more\n")
    mark.filter(has_text=f"line {line + 1}: ").wait_for()
    source.press("Control+Enter")   # with the text as it is now, although the editor has not lost the focus
    tab.locator(".strip", has_text="s since start").wait_for()
    tab.locator(".kwed .errors button", has_text=f"line {line + 1}: ").first.wait_for()
    tab.locator(".strip", has_text="FAILED").wait_for()
    assert "Changed since" not in text(tab)


@pytest.mark.long
def test_a_model_is_patched_and_its_file_downloaded(page, tmp_path):
    (tmp_path / "kw_tiny_model.py").write_text(MODEL)
    tab = open_tab(page, "/model")
    for label, value in (("Model", "kw_tiny_model:build_model"), ("Folder", str(tmp_path))):
        tab.get_by_label(label, exact=True).fill(value)
        tab.keyboard.press("Enter")
        settled(tab)
    tab.get_by_test_id("stSidebar").get_by_text("right", exact=True).click()
    settled(tab)
    tab.get_by_role("button", name="Patch", exact=True).click()
    tab.locator(".strip", has_text="2 of 2 layers").wait_for()
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Download the kernels").click()
    download.value.save_as(tmp_path / "patched.py")
    assert "def unpatch(model" in (tmp_path / "patched.py").read_text()
    link = tab.url
    again = open_tab(page, link[link.index("/model"):])
    again.locator(".strip", has_text="2 of 2 layers").wait_for()


def test_what_was_wrong_on_the_screen_is_told_as_it_is(page, tmp_path):
    """Defects that a day's use found, each where it was seen, in one browser."""
    folder = tmp_path / "sessions"
    shutil.copy(ROOT / "sessions" / "recorded-h200-kernelbench.zip", folder)
    recorded = Session.open(folder / "recorded-h200-kernelbench.zip").trials()
    here = Session.create(folder, "here")
    wrong = trial("a", None, status=Status.MISMATCH, device=CPU)
    for run, at, one in (("old", "2026-01-01", wrong), ("old", "2026-01-01", trial("b", 1.0, device=CPU)),
                         ("new", "2026-01-02", trial("a", 2.0, device=CPU, compile_flags=("-O2",)))):
        here.append(replace(one, run_id=run, at=at))

    # The main kernel's resources, and not those of a kernel beside it.
    packed = next(t for t in recorded if t.name == "implicit_gemm_mma" and t.ok and any(
        "pack_fragments" in name for there in t.resources.values() for name in there))
    main = next(r for name, r in packed.resources["sm_90"].items() if name.startswith("implicit_gemm_mma"))
    tab = open_tab(page, f"/inspect?inspect_session=recorded-h200-kernelbench&trial={packed.trial_id}")
    tab.get_by_text("Resources of implicit_gemm_mma, sm_90").wait_for()
    assert f"{main.registers} per thread" in text(tab) and re.search(r"pack_fragments: \d+ registers", text(tab))
    shared = next(t for t in recorded if t.name == "split_mma" and t.ok and t.config.get("SHARED_KB", 0) > 48)
    tab.goto(tab.url.replace(packed.trial_id, shared.trial_id))
    row = tab.locator(".kw tr", has_text="shared memory").first
    row.filter(has_text=re.compile(r"\d\d(\.\d+)? KiB")).wait_for()

    # A link with two wrong values shows no other layer, and a sentence for each.
    for again in (False, True):
        if again:
            tab.reload()
        else:
            tab.goto(tab.url.split("/inspect")[0] + "/?preset=kb74&stride=0&groups=0")
        tab.locator(".strip", has_text="BAD INPUT").wait_for()
        settled(tab)
        assert "stride is 0" in text_of_sidebar(tab) and "groups is 0" in text_of_sidebar(tab)
        assert not tab.locator(".kwsvg svg").count() and "ConvTranspose1d(" not in text(tab)

    # An earlier run's failure is in the table, not in the strip.
    tab.goto(tab.url.split("/?")[0] + "/?preset=kb74&size=full&session=here&device=cpu")
    strip = tab.locator(".strip", has_text="1 of 1 candidates is right in all checks")
    strip.filter(has_text="The table also shows 2 trials of earlier runs.").wait_for()
    assert "wrong" not in strip.inner_text()

    # What nobody selected is not said to be of no use; a checkbox is called by its variant's name.
    tab.goto(tab.url.split("/?")[0] + "/?preset=kb74&size=small&precision=ieee&direction=grad_input")
    box = tab.locator(".st-key-tick-grad_input-naive_gather").get_by_role("checkbox", name="naive_gather", exact=True)
    box.wait_for(state="attached")
    settled(tab)
    tab.locator(".st-key-tick-grad_input-naive_gather label").first.click()
    tab.wait_for_function("location.search.includes('without=grad_input%2Fnaive_gather')")
    unticked = tab.locator(".kw tr", has_text="naive_gather").filter(has_text="not ticked")
    unticked.wait_for()
    assert "does not apply" not in unticked.inner_text()
    tab.reload()
    unticked.wait_for()
    assert tab.get_by_role("combobox", name=re.compile("precision")).input_value() == "ieee" and "precision=ieee" in tab.url

    # Compile flags are read at once.
    tab.get_by_text("Compile flags and effort").click()
    flags = tab.get_by_label("compile flags", exact=True)
    flags.fill("O3")
    flags.press("Enter")
    tab.get_by_text("'O3' is not a compile flag; a flag begins with -.").wait_for()
    settled(tab)
    assert tab.get_by_role("button", name=re.compile(r"^Run \d+")).is_disabled()

    # Two selected rows may be inspected, and are compared with each other.
    tab.goto(tab.url.split("/?")[0] + "/?preset=kb81&size=full&session=recorded-h200-kernelbench")
    grid = tab.locator('[data-testid="stDataFrame"]').first
    grid.locator("canvas").first.wait_for()
    settled(tab)
    for row in (0, 1):
        grid.click(position={"x": 15, "y": 50 + 29 * row})
        settled(tab)
    tab.get_by_role("button", name="Compare 2").wait_for()
    assert tab.get_by_role("button", name="Inspect", exact=True).is_enabled()
    tab.get_by_role("button", name="Compare 2").click()
    tab.wait_for_function("location.pathname === '/compare' && location.search.includes('against=pinned')")

    # The editor of Check is as wide as the page, and memory is counted in GiB.
    tab.goto(tab.url.split("/compare")[0] + "/check?memory=8")
    editor = tab.get_by_label("Candidate: paste a file")
    editor.wait_for()
    assert editor.bounding_box()["width"] > 900 and tab.get_by_label("memory, GiB").input_value() == "8"
    assert not page.foreign, page.foreign


@pytest.mark.long
def test_a_template_that_nobody_chose_is_in_no_exported_file(tmp_path, monkeypatch, request):
    """The first template in reading order does not compile. The file is verified and downloaded without it."""
    with_a_template_that_does_not_compile(tmp_path, monkeypatch)
    page = request.getfixturevalue("page")  # its server reads these templates
    tab = open_tab(page, "/export?session=own")
    assert "model_new_kb74.py is not verified yet" in tab.locator(".strip").first.inner_text()
    boxes = {d: tab.get_by_role("combobox", name=re.compile(f"{d}$")).input_value()
             for d in ("forward", "grad_input", "grad_weight")}
    assert boxes["forward"].startswith("naive_gather") and boxes["grad_input"] == boxes["grad_weight"] == "PyTorch"
    assert "aaa_broken" not in text(tab)
    tab.get_by_role("button", name="Verify", exact=True).click()
    tab.locator(".strip", has_text=re.compile("[✓✕!] [A-Z_]+")).first.wait_for()
    assert "✓ VERIFIED" in tab.locator(".strip").first.inner_text()
    with tab.expect_download() as taken:
        tab.get_by_role("button", name="Download", exact=True).click()
    taken.value.save_as(tmp_path / "model_new.py")
    assert "naive_gather" in (tmp_path / "model_new.py").read_text()
    assert "aaa_broken" not in (tmp_path / "model_new.py").read_text()


def text_of_sidebar(tab) -> str:
    return tab.get_by_test_id("stSidebar").inner_text()


@pytest.mark.long  # tests/page/test_belongs.py asks each page without a browser
def test_a_wrong_link_says_so(page):
    for path, sentence in (("/?session=gone", "The session 'gone' in the link was not found."),
                           ("/?device=cuda:7", "This machine has no cuda:7; Run uses cpu."),
                           ("/inspect?inspect_session=gone&trial=zzzz", "The session 'gone' in the link was not found."),
                           ("/compare?compare_a=gone", "The session 'gone' in the link was not found."),
                           ("/check?check=zzzz", "The report 'zzzz' in the link was not found.")):
        tab = open_tab(page, path)
        inside(tab).get_by_text(sentence).wait_for()
        assert "could not be drawn" not in text(tab), path


@pytest.mark.long  # as above
def test_a_link_to_a_trial_that_is_not_here_offers_those_that_are(monkeypatch, request):
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(ROOT / "sessions"))
    page = request.getfixturevalue("page")
    tab = open_tab(page, "/inspect?inspect_session=recorded-h200-kernelbench&trial=zzzz")
    inside(tab).get_by_text("The trial 'zzzz' in the link was not found.").wait_for()
    assert "Choose one on the left: KernelBench #" in text(tab) and "Resources" not in text(tab)
    tab.goto(tab.url.replace("zzzz", ""))
    tab.get_by_text("Resources of").wait_for()


@pytest.fixture
def wrong_fork(runner, tmp_path, monkeypatch):
    """A session "edit" with naive_gather and a fork of it without the divisibility test."""
    root = tmp_path / "sessions"
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(root))
    work = Workload(ConvTranspose(1, 3, 5, (3,), (2,)), 1, (17,))
    parent = Candidate(find("naive_gather", "forward"), work.layer, work.dtype, {})
    text = parent.variant.text.replace("tw % layer.stride_w != 0", "tw % 1 != 0")
    session = Session.create(root, "edit")
    both = (parent, fork(text, parent, render(parent).candidate_id))
    runner.run(RunRequest(work, both, device="cpu", baselines=False, effort="quick"), session)
    return session


def test_a_wrong_kernel_is_edited_until_it_is_right_compared_and_exported(wrong_fork, page, tmp_path):
    wrong = wrong_fork.trials()[-1]
    assert wrong.status == "MISMATCH"
    tab = open_tab(page, f"/inspect?session=edit&trial={wrong.trial_id}")
    source = tab.get_by_label("Template of naive_gather-")
    source.wait_for()
    assert tab.locator(".kwed .run").is_disabled(), "nothing was edited yet"
    inside(tab).get_by_text("Looks like: no divisibility test.").wait_for()
    for chart, mark in (("map", ".heatmaplayer image"), ("shares", ".bars .point:visible"), ("errors", ".bars .point:visible")):
        tab.locator(f".st-key-wrong-{chart} {mark}").first.wait_for()
    assert "phase of W" in tab.locator(".st-key-wrong-shares").inner_text(), "in sight, without a click"
    tab.locator(".kwp .wrong", has_text="the kernel gave ").wait_for()
    tab.locator(".kwed .jump").select_option(label=next(
        o for o in tab.locator(".kwed .jump option").all_inner_texts() if o.startswith("launcher forward")))
    assert "cudaError_t forward" in source.evaluate("e => e.value.slice(e.selectionStart)").split("(")[0]
    tab.locator(".kwed .find").fill("tw % 1")
    tab.get_by_text("1 of 1", exact=True).wait_for()
    broken = source.input_value().replace("tw % 1 != 0", "tw % 2 != 0 || smem_w")
    line = next(n for n, text in enumerate(broken.splitlines(), 1) if "smem_w" in text)

    source.fill(broken)
    tab.get_by_text(f"Edited: line {line}").wait_for()
    tab.reload()
    tab.get_by_text(f"Edited: line {line}").wait_for()
    assert source.input_value() == broken, "what was typed is still there"
    source.press("Control+Enter")
    mark = tab.locator(".kwed .errors button").first
    mark.wait_for()
    assert f"line {line}:" in mark.inner_text() and "smem_w" in mark.inner_text()
    assert "smem_w" in tab.locator(".kwed .mark span").first.inner_text()
    size, other = (tab.locator(f".kwed {part}").first.evaluate("e => getComputedStyle(e).fontSize")
                   for part in (".mark span", "textarea"))
    assert size == other, "a mark begins so many of its own characters from the left: smaller ones would cover the line"
    assert tab.locator(".strip").first.inner_text().startswith("! BUILD_FAILED")
    tab.get_by_text("Not known: the trial ended with BUILD_FAILED before a kernel was built.").wait_for()  # no word of nvcc
    settled(tab)  # until then the editor of the trial before stands beside the new one
    for button, status in (("Next", "MISMATCH"), ("Previous", "BUILD_FAILED")):   # to the trial that was edited, and back
        assert tab.get_by_text("Edited: line").count() == 0
        tab.get_by_role("button", name=button, exact=True).click()
        tab.locator(".strip", has_text=status).first.wait_for()
        settled(tab)
        assert ("smem_w" in source.input_value()) is (button == "Previous"), "what was run is no draft of its parent"
    source.fill(broken.replace(" || smem_w", ""))
    tab.locator(".kwed .run").click()
    tab.locator(".strip", has_text="Right in all checks").first.wait_for()
    right = wrong_fork.trials()[-1]
    failed = wrong_fork.trials()[-2]
    assert (right.status, right.forked_from) == ("OK", failed.candidate_id) and failed.forked_from == wrong.candidate_id
    tab.wait_for_function("id => location.search.includes(id)", arg=right.trial_id)

    tab.get_by_text("Diff", exact=True).click()
    tab.locator(".diff .gone", has_text="smem_w").wait_for()
    against = tab.get_by_role("combobox", name=re.compile("Against$"))
    against.click()
    tab.get_by_role("option", name=re.compile("MISMATCH")).click()
    tab.locator(".diff .gone em", has_text=re.compile("^1$")).wait_for()
    assert "2" in tab.locator(".diff .came em").all_inner_texts()
    settled(tab)
    if find_toolchain().nvcc:
        tab.get_by_text("Machine code", exact=True).click()
        beside = tab.locator(".st-key-sass-source .numbers u").nth(1)
        count, line = beside.inner_text(), beside.evaluate("e => e.nextSibling.textContent.trim().split('\\n')[0]")
        beside.click()
        tab.get_by_role("combobox", name=re.compile("Instructions of$")).and_(tab.locator(
            f'[value$="naive_gather-{right.name[-4:]}.cu:{line}, {count} instructions"]')).wait_for()
        tab.locator(".st-key-sass-source .chosen").wait_for()
        settled(tab)

    tab.get_by_role("button", name="Export", exact=True).click()
    inside(tab).get_by_text("is not verified yet").wait_for()
    settled(tab)
    tab.get_by_role("button", name="Verify", exact=True).click()
    tab.locator(".strip", has_text="✓ VERIFIED").first.wait_for()
    with tab.expect_download() as taken:
        tab.get_by_role("button", name="Download", exact=True).click()
    taken.value.save_as(tmp_path / "model_new.py")
    text = (tmp_path / "model_new.py").read_text()
    assert "tw % 2 != 0" in text and f'"forward/{right.name}"' in text and right.candidate_id in text
    assert not page.foreign, page.foreign
