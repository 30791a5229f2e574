"""A real server on a free port and a real headless Chromium."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.shared import require, ticked

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def _driver() -> Iterator[tuple]:
    """Of Chromium, what each start of it is given, and what it raises."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    require(path, "no Chromium was found; install chromium to drive the page")
    require(importlib.util.find_spec("playwright"), "playwright is not installed")
    from playwright import sync_api
    with sync_api.sync_playwright() as driver:
        yield driver.chromium, {"executable_path": path, "args": ["--no-sandbox", "--disable-gpu"]}, sync_api.Error


@pytest.fixture(scope="session")
def chromium(_driver) -> Iterator:
    """For contexts of a test's own."""
    browser = _driver[0].launch(**_driver[1])
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def _window(_driver, tmp_path_factory) -> Iterator:
    """A context with a folder, where Chromium keeps the page's compiled scripts: to load a page again takes two thirds of the
    time."""
    context = _driver[0].launch_persistent_context(
        tmp_path_factory.mktemp("profile"), **_driver[1], viewport={"width": 1440, "height": 1300}, accept_downloads=True,
        reduced_motion="reduce")
    context.set_default_timeout(200_000)
    yield context
    with suppress(_driver[2]):     # a test of Ctrl-C has ended the driver: nothing is open then
        context.close()


_OF_EACH_TEST = ("KERNEL_WORKBENCH_SESSIONS", "KERNEL_WORKBENCH_STORE", "PYTEST_CURRENT_TEST")  # the server need not know them


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OF_EACH_TEST}


class _Shared:
    """A server for many tests, with warm workers. Its folder of sessions is a link, which leads to that of the test."""

    def __init__(self, folder: Path) -> None:
        self.environment, self._folder, self._stack = _environment(), folder, ExitStack()
        self._there: tuple[str, subprocess.Popen] | None = None

    def serving(self, sessions: Path) -> tuple[str, subprocess.Popen]:
        sessions.mkdir(exist_ok=True)
        (self._folder / "next").symlink_to(sessions)
        (self._folder / "next").replace(self._folder / "sessions")
        if self._there is None or self._there[1].poll() is not None:
            self._there = self._stack.enter_context(_started([], self._folder / "sessions", self._folder / "server.log"))
        return self._there

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory) -> Iterator[Callable[[], _Shared]]:
    """The server for the environment as it is now: that of the usual one is kept, and of the others the latest."""
    there = [_Shared(tmp_path_factory.mktemp("server"))]

    def one() -> _Shared:
        found = next((shared for shared in there if shared.environment == _environment()), None)
        if found is None:
            while len(there) > 1:
                there.pop().close()
            there.append(found := _Shared(tmp_path_factory.mktemp("server")))
        return found

    yield one
    for shared in there:
        shared.close()


@pytest.fixture
def serving(shared_server, tmp_path) -> tuple[str, subprocess.Popen]:
    """(address, process) of a server with an empty folder of sessions. It has the environment of the test."""
    return shared_server().serving(_sessions(tmp_path))


@pytest.fixture
def serve(tmp_path) -> Callable[[list[str]], AbstractContextManager[tuple[str, subprocess.Popen]]]:
    """Starts `streamlit run app.py` with more options: (address, process)."""
    return lambda options: _started(options, _sessions(tmp_path), tmp_path / "server.log")


def _sessions(tmp_path: Path) -> Path:
    return Path(os.environ.get("KERNEL_WORKBENCH_SESSIONS") or tmp_path / "sessions")


@contextmanager
def _started(options: list[str], sessions: Path, log_path: Path) -> Iterator[tuple[str, subprocess.Popen]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(port), *options], cwd=ROOT,
            stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "KERNEL_WORKBENCH_SESSIONS": str(sessions)})
        try:
            _wait_for(f"http://127.0.0.1:{port}/_stcore/health", process)
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.terminate()
            process.wait(200)


@pytest.fixture(scope="session")
def _compiles_nothing(tmp_path_factory) -> Path:
    script = tmp_path_factory.mktemp("waiting") / "g++"
    script.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*) sleep 3600;; esac\nexec {shutil.which("g++")} "$@"\n')
    script.chmod(0o755)
    return script


@pytest.fixture
def waiting_compiler(_compiles_nothing, monkeypatch) -> None:
    """One that compiles nothing for an hour: a run goes on until it is stopped, and leaves the processor to the page."""
    monkeypatch.setenv("KERNEL_WORKBENCH_CXX", str(_compiles_nothing))
    monkeypatch.setenv("KERNEL_WORKBENCH_CACHE", str(_compiles_nothing.parent / "cache"))


@pytest.fixture
def page(_window, serving) -> Iterator:
    page = _window.new_page()
    page.foreign = []
    page.on("request", lambda request: page.foreign.append(request.url) if _foreign(request.url) else None)
    page.goto(f"{serving[0]}/_stcore/health")
    page.evaluate("localStorage.clear()")  # of the test before
    page.goto(serving[0])
    page.get_by_role("button", name=f"Run {len(ticked())}").wait_for()
    page.locator('[data-test-script-state="notRunning"]').wait_for()  # a click while the page is drawn may be lost
    yield page
    for tab in _window.pages[1:]:  # the first is Chromium's own: without a page it ends
        tab.close()


def click_while_drawn(page, name: str) -> None:
    """Click a button of the Workbench while the script runs."""
    before = page.locator(".st-key-direction").get_by_text("grad_input", exact=True).element_handle()
    page.evaluate("""([before, button]) => new Promise((done, failed) => {
        const looks = new MutationObserver(() => {  // sees each change: a timer may come after the script has ended
            if (!document.querySelector('[data-test-script-state="running"]')) return;
            looks.disconnect();
            button.click();
            done();
        });
        looks.observe(document.body, {attributes: true, attributeFilter: ['data-test-script-state'], subtree: true});
        setTimeout(() => failed(new Error('the script did not run')), 100000);
        before.click();
    })""", [before, page.get_by_role("button", name=name, exact=True).element_handle()])


def wider_than_the_window(page) -> bool:
    """And stays so: tables and charts take a moment to follow the window."""
    for _ in range(50):
        if not page.evaluate("""() => [document.documentElement, ...document.querySelectorAll(
                '[data-testid=stMain], [data-testid=stMainBlockContainer]')].some(e => e.scrollWidth > e.clientWidth)"""):
            return False
        page.wait_for_timeout(100)
    return True


def inside(page):
    """The page without the region for screen readers, which repeats what the strip says."""
    return page.get_by_test_id("stMainBlockContainer")


def _foreign(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:"))


def _wait_for(url: str, process: subprocess.Popen) -> None:
    end = time.monotonic() + 200
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, "the server ended at once"
        time.sleep(0.1)
    raise AssertionError("the server did not answer within 200 s")
