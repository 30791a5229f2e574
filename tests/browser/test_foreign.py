"""The server against websites: a foreign Host or Origin gets 403, and nobody outside this machine is asked anything."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from tests.browser.conftest import wider_than_the_window

pytestmark = pytest.mark.xdist_group("browser")

# Python runs this in the server's process before anything else: every name that is looked up and every address that is
# connected to goes into a file, unless it is this machine itself.
_SPY = '''
import sys
def spy(event, arguments, file={file!r}):
    if event == "socket.connect":
        address = arguments[1]
    elif event == "socket.getaddrinfo":
        address = arguments[:2]
    else:
        return
    if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost", None, b"localhost"):
        with open(file, "a") as out:
            out.write(f"{{event}} {{address}}\\n")
sys.addaudithook(spy)
'''
PATHS = ("/", "/inspect", "/_stcore/health", "/_stcore/metrics", "/_stcore/host-config", "/static/nothing.js", "/media/nothing",
         "/_stcore/upload_file/a/b")


RECORDED = Path(__file__).resolve().parents[2] / "sessions" / "recorded-h200-kernelbench.zip"
HOSTILE = "![](http://evil.example/x.png)"
# Page -> the names in its address that a link gives a hostile value.
NAMES = {"": "flags precision only device explain", "tune": "stride trials variants device", "inspect": "view file trial diff",
         "compare": "layer status device base", "bench": "gpu suite class sessions", "check": "reference limit check",
         "model": "reference folder device patch", "export": "class layer forward device", "machine": "device"}
SESSIONS = {"inspect": "inspect_session", "compare": "compare_a", "export": "export_session"}


@pytest.fixture(scope="module")
def _spied(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("spy") / "outside.txt"
    file.touch()
    (file.parent / "sitecustomize.py").write_text(_SPY.format(file=str(file)))
    return file


@pytest.fixture
def asked_outside(_spied, monkeypatch) -> Path:
    """The file of what the server asks of the outside; it must be made before the server, which the tests share."""
    monkeypatch.setenv("PYTHONPATH", str(_spied.parent))
    return _spied


@pytest.fixture
def another_program(tmp_path) -> Iterator[str]:
    """The address of a page of another program on this machine: another origin in the same browser."""
    (tmp_path / "website").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "website")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def answer(address: str, path: str, *, host: str | None = None, origin: str | None = None, upgrade: bool = False,
           method: str = "GET") -> str:
    """The first line of the answer to one request, written by hand: a browser would not lie about its Host."""
    there = urlsplit(address)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host or there.netloc}"]
    lines += [f"Origin: {origin}"] if origin else []
    lines += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
              "Sec-WebSocket-Key: AQIDBAUGBwgJCgsMDQ4PEA=="] if upgrade else ["Connection: close"]
    with socket.create_connection((there.hostname, there.port), timeout=200) as wire:
        wire.sendall("\r\n".join([*lines, "", ""]).encode())
        return wire.recv(4096).decode("latin-1").splitlines()[0]


def test_a_foreign_host_gets_403_on_every_path(asked_outside, serving):
    for host in ("evil.example", "evil.example:8501", "127.0.0.1.evil.example", "localhost@evil.example", "[::1", ""):
        for path in PATHS:
            assert " 403 " in answer(serving[0], path, host=host or " "), (host, path)
        assert " 403 " in answer(serving[0], "/_stcore/stream", host=host or " ", upgrade=True), host
    for host in ("localhost", "127.0.0.1:9", "[::1]:8501", "LOCALHOST:8501"):
        assert " 200 " in answer(serving[0], "/_stcore/health", host=host), host
    assert " 200 " in answer(serving[0], "/") and not asked_outside.read_text()


def test_a_foreign_origin_gets_403_and_nobody_outside_is_asked(asked_outside, serving):
    here = urlsplit(serving[0]).netloc
    for origin in ("http://evil.example", "https://evil.example:8501", "null", "http://127.0.0.1:1", f"http://{here}.evil.example",
                   "file://", "http://["):
        assert " 403 " in answer(serving[0], "/_stcore/stream", origin=origin, upgrade=True), origin
        assert not asked_outside.read_text(), origin
        assert " 403 " in answer(serving[0], "/_stcore/health", origin=origin), origin
    assert " 101 " in answer(serving[0], "/_stcore/stream", origin=f"http://{here}", upgrade=True)
    assert " 101 " in answer(serving[0], "/_stcore/stream", upgrade=True), "a client that is no browser names no Origin"
    assert " 403 " in answer(serving[0], "/_stcore/upload_file/a/b", method="PUT"), "a file needs the token of this page"


@pytest.mark.parametrize("options", [["--server.allowedHosts", "lab.example"], pytest.param(
    ["--server.allowedHosts", "*.example"], marks=pytest.mark.long)])
def test_a_name_that_the_user_allows_is_answered(serve, options):
    with serve(options) as (address, _):
        assert " 200 " in answer(address, "/", host="lab.example:8501")
        assert " 101 " in answer(address, "/_stcore/stream", host="lab.example", origin="https://lab.example", upgrade=True)
        assert " 403 " in answer(address, "/_stcore/stream", host="lab.example", origin="https://evil.com", upgrade=True)
        assert " 403 " in answer(address, "/", host="example.com")


def test_no_page_asks_anybody_outside_whatever_its_link_says_and_no_website_reaches_it(asked_outside, page, serving, tmp_path,
                                                                                       another_program):
    """On the way: on no page is anything wider than a small window."""
    shutil.copy(RECORDED, tmp_path / "sessions")
    for path, names in NAMES.items():
        words = urlencode({**{name: HOSTILE for name in names.split()}, SESSIONS.get(path, "session"): RECORDED.stem})
        page.goto(f"{serving[0]}/{path}?{words}")
        page.locator(".kw .strip").first.wait_for()
        page.locator('[data-test-script-state="notRunning"]').wait_for()
        for button in page.locator("[data-testid=stButton] [data-testid=stTooltipHoverTarget]:visible").all():
            button.hover(force=True)
        if not path:
            page.locator("[data-testid=stSidebar] .wrong", has_text="evil.example").wait_for()
        if path in ("", "tune"):  # the help of Run and Start says what is wrong, in the words of the link
            help_text = page.locator("[data-testid=stTooltipContent]", has_text="evil.example")
            for _ in range(20):  # a button that is drawn again under the mouse shows its help only when the mouse comes back
                page.mouse.move(1, 1)
                page.locator(".st-key-run button:visible, .st-key-tune_start button:visible").first.hover(force=True)
                page.wait_for_timeout(1000)
                if help_text.is_visible():
                    break
            assert help_text.is_visible(), path
        for width in (1024, 720):  # 720: as at 200 % on a screen of 1440
            page.set_viewport_size({"width": width, "height": 700})
            page.wait_for_timeout(150)
            assert not wider_than_the_window(page), (path, width)
        page.set_viewport_size({"width": 1440, "height": 1300})
        assert not page.foreign, (path, page.foreign)

    website = page.context.new_page()
    website.goto(another_program)
    told = website.evaluate("""address => new Promise(done => {
        const wire = new WebSocket(address);
        wire.onopen = () => done("open");
        wire.onclose = () => done("closed");
    })""", serving[0].replace("http", "ws") + "/_stcore/stream")
    assert told == "closed" and not asked_outside.read_text()
