"""Two tabs of one server in a real browser: neither is shown what belongs to the other."""

from __future__ import annotations

import re

import pytest

from tests.ticked import ticked

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


def test_two_tabs_two_layers(waiting_compiler, page):
    page.get_by_role("button", name=f"Run {len(ticked())}").click()
    page.locator(".strip", has_text=re.compile("RUNNING|WAITING")).first.wait_for()

    other = open_tab(page, "/?preset=kb79&size=small")
    assert "ConvTranspose1d(32, 64, 3, stride=2" in other.locator(".layer").inner_text()
    other.get_by_text(re.compile(r"KernelBench #74 \(small\) runs on cpu in session")).wait_for()
    assert "build · check · time" not in text(other) and "Nothing measured yet for this layer" in text(other)
    assert other.get_by_role("button", name=re.compile(r"^Run \d")).is_enabled()

    other.get_by_role("button", name="Go to it").click()
    other.locator(".layer", has_text="ConvTranspose1d(32, 64, 5").wait_for()
    other.locator(".strip", has_text=re.compile("RUNNING|WAITING")).first.wait_for()
    other.get_by_text("build · check · time").wait_for()

    third = open_tab(page, "/?preset=kb79&size=small")
    third.get_by_role("button", name="Stop it").click()
    page.locator(".strip", has_text="Stopped by you after").wait_for()
    third.get_by_text("runs on cpu in session").wait_for(state="detached")
    assert "Stopped by you" not in text(third) and "Nothing measured yet for this layer" in text(third)


def test_a_self_test_in_one_tab_is_not_in_the_other_tabs_workbench(page):
    machine = open_tab(page, "/machine")
    machine.get_by_role("button", name="Run the self-test").click()
    machine.locator(".strip", has_text="kernels of this group").wait_for()  # its kernels are with the runner
    page.reload()
    settled(page)
    page.get_by_text("The self-test runs on cpu").wait_for()
    assert "returns_zeros" not in text(page) and "build · check · time" not in text(page)
    assert "Nothing measured yet for this layer" in text(page)
    machine.get_by_role("button", name="Cancel the self-test").click()
    machine.locator(".strip", has_text="Stopped by you").wait_for()
    page.get_by_text("The self-test runs on cpu").wait_for(state="detached")


def test_a_report_is_shown_to_the_tab_that_asked(page):
    mine = open_tab(page, "/check")
    mine.get_by_label("Candidate: paste a file").fill(WRONG)
    mine.get_by_role("button", name="Check", exact=True).click()  # the very first click after the paste
    mine.locator(".strip", has_text="s since start").wait_for()
    fresh = open_tab(page, "/check")
    fresh.get_by_text("Another tab checks model_new.py against KernelBench #74 (small) on cpu").wait_for()
    assert "Nothing checked yet" in text(fresh)
    mine.get_by_text(SMALLEST).wait_for()
    fresh.get_by_text("Another tab checks").wait_for(state="detached")
    assert "taps flipped" in text(mine)
    assert "Nothing checked yet" in text(fresh) and "taps flipped" not in text(fresh)
    mine.reload()
    mine.get_by_text(SMALLEST).wait_for()


def test_a_wrong_link_says_so(page):
    for path, sentence in (("/?session=gone", "The session 'gone' in the link was not found."),
                           ("/?device=cuda:7", "The device 'cuda:7' in the link was not found."),
                           ("/inspect?inspect_session=gone&trial=zzzz", "The session 'gone' in the link was not found."),
                           ("/compare?compare_a=gone", "The session 'gone' in the link was not found."),
                           ("/check?check=zzzz", "The report 'zzzz' in the link was not found.")):
        tab = open_tab(page, path)
        tab.get_by_text(sentence).wait_for()
        assert "could not be drawn" not in text(tab), path


def test_a_link_to_a_trial_that_is_not_here_offers_those_that_are(monkeypatch, request):
    from tests.browser.conftest import ROOT
    monkeypatch.setenv("KERNEL_WORKBENCH_SESSIONS", str(ROOT / "sessions"))
    page = request.getfixturevalue("page")
    tab = open_tab(page, "/inspect?inspect_session=recorded-h200-kernelbench&trial=zzzz")
    tab.get_by_text("The trial 'zzzz' in the link was not found.").wait_for()
    assert "Choose one on the left: KernelBench #" in text(tab) and "Resources" not in text(tab)
    tab.goto(tab.url.replace("zzzz", ""))
    tab.get_by_text("Resources of").wait_for()
