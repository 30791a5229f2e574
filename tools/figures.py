"""Measure latency and size on this machine and print each figure beside its limit.   python tools/figures.py [--gpu | --page]

    import workbench                                  under 0.2 s, without torch
    Run to verdict, warm worker, emulator             under 6 s built, under 1.5 s from the cache
    test --effort quick, cold cache, emulator         under 45 s on 2 cores
    with a GPU: building one variant                  at most 1/20 of the same kernel with torch/extension.h in its .cu
    with a GPU: Run to first verdict                  under 10 s

With `--page` it measures the page in a real browser. The page is served from a folder of its own, with the recorded sessions
and a session of 10 000 trials. A page is settled when its script has ended and no part of it is a skeleton. A rerun is the time
from the browser's request to the end of the script. The figure is the median where the largest one stands beside it. A page
"from its address" is opened by a browser that has seen the page before, as its user's has; the first visit is printed, too,
without a limit.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="the figures that need a GPU, instead of those that do not")
    parser.add_argument("--page", nargs="?", const="", metavar="TEXT", help=f"only the page; only one of {', '.join(FIGURES)}")
    args = parser.parse_args()
    if args.page is not None:
        page_figures(args.page)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"KERNEL_WORKBENCH_CACHE": f"{folder}/cache", "KERNEL_WORKBENCH_SESSIONS": f"{folder}/sessions"}
        if args.gpu:
            verdict_seconds("cuda:0", Path(folder))
            builds_side_by_side(Path(folder))
        else:
            import_seconds()
            verdict_seconds("cpu", Path(folder))
            quick_seconds(Path(folder))
    end()


def import_seconds() -> None:
    """Median of five fresh interpreters, the bare interpreter taken off."""
    def run(code: str) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
            times.append(time.perf_counter() - start)
        return sorted(times)[2]

    subprocess.run([sys.executable, "-c", "import sys, workbench; assert 'torch' not in sys.modules"], cwd=ROOT, check=True)
    beside("import workbench", run("import workbench") - run(""), 0.2)


def verdict_seconds(device: str, folder: Path) -> None:
    """Run to verdict of one small forward candidate: cold workers, warm and built, warm and from the cache."""
    from workbench.core.candidate import Candidate
    from workbench.core.presets import preset
    from workbench.core.variants import find
    from workbench.drive.running.request import RunRequest
    from workbench.drive.running.runner import Runner
    from workbench.drive.sessions.session import Session
    workload = preset("kb74").workload("small")

    with Runner() as runner:
        def run(block: int) -> float:
            candidate = Candidate(find("shared_weight_tiling", "forward"), workload.layer, "float32", {"BLOCK": block})
            start = time.perf_counter()
            done = runner.run(RunRequest(workload, (candidate,), device=device, baselines=False),
                              Session.create(folder / "sessions"))
            assert all(t.ok for t in done.trials), [t.headline for t in done.trials]
            return time.perf_counter() - start

        beside(f"Run to first verdict on {device}, everything cold", run(32), 10 if device != "cpu" else None)
        built, cached = (None, None) if device != "cpu" else (6, 1.5)  # the limits on the emulator
        beside(f"Run to verdict on {device}, warm worker, built", run(64), built)
        beside(f"Run to verdict on {device}, warm worker, cached", run(64), cached)


def quick_seconds(folder: Path) -> None:
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "workbench", "test", "--effort", "quick", "--device", "cpu"], cwd=ROOT,
                          env={**os.environ, "KERNEL_WORKBENCH_CACHE": f"{folder}/cold"}, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:].decode()
    beside("test --effort quick, cold cache", time.perf_counter() - start, 45)


def builds_side_by_side(folder: Path) -> None:
    """The same kernel, built as the project does, and with torch/extension.h in its .cu and a pybind function, as most
    load_inline examples do."""
    import torch
    from torch.utils.cpp_extension import load_inline

    from workbench.core.candidate import Candidate
    from workbench.core.orders import BuildOrder
    from workbench.core.presets import preset
    from workbench.core.template import render
    from workbench.core.variants import find
    from workbench.measure.build.build import build
    source = render(Candidate(find("naive_gather", "forward"), preset("kb74").layer, "float32", {})).source
    arch = "".join(map(str, torch.cuda.get_device_capability()))
    order = BuildOrder(source, "cuda", folder / "cache", ("kw_forward",), f"sm_{arch}", log=folder / "build.log")
    build(replace(order, source=f"{source}\n// warm-up of nvcc itself\n"), lambda event: None)
    start = time.perf_counter()
    result = build(order, lambda event: None)
    ours = time.perf_counter() - start
    assert result.status == "OK" and not result.cached, result
    start = time.perf_counter()
    with_headers = f"#include <torch/extension.h>\n{source}\nint nothing() {{ return 0; }}\n"
    load_inline("with_torch_headers", cpp_sources="int nothing();", cuda_sources=with_headers,
                functions=["nothing"], build_directory=str(folder),
                extra_cuda_cflags=[f"-gencode=arch=compute_{arch},code=sm_{arch}"])
    theirs = time.perf_counter() - start
    beside("build of one variant", ours, theirs / 20)
    beside("the same kernel with torch/extension.h", theirs, None)


def wait_for(address: str) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(address, timeout=1)
            return
        except OSError:
            time.sleep(0.02)
    raise TimeoutError(address)


def chromium() -> str:
    import shutil
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if not found:
        sys.exit("The page is measured in Chromium, and none was found; install chromium.")
    return found


PORT = 8597
BASE = f"http://127.0.0.1:{PORT}"
TRIALS = 10_000
RECORDED, LONG = "recorded-h200-kernelbench", "long"
PAGES = ("workbench", "tune", "inspect", "compare", "bench", "check", "model", "export", "machine")
REPEATS = 5
MEASURED = "kb81/full", "forward"  # of which layer and direction the long session is

# When the script of the page last began and ended, as Streamlit tells it, and the longest pause between two frames.
WATCH = """(() => {
  const seen = window.kwSeen = {began: 0, ended: 0, runs: 0, frame: 0, longest: 0};
  let before = '';
  const look = () => {
    const now = document.querySelector('[data-test-script-state]')?.dataset.testScriptState ?? '';
    if (now !== before && before === 'notRunning') { seen.began = performance.now(); seen.runs++ }
    if (now !== before && now === 'notRunning') seen.ended = performance.now();
    before = now;
  };
  new MutationObserver(look).observe(document, {subtree: true, childList: true, attributes: true,
                                                attributeFilter: ['data-test-script-state']});
  const frame = at => {
    if (seen.frame) seen.longest = Math.max(seen.longest, at - seen.frame);
    seen.frame = at;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})()"""
SETTLED = """() => document.querySelector('[data-test-script-state=notRunning]')
  && document.querySelector('[data-testid=stMainBlockContainer] .kw')
  && !document.querySelector('[data-testid=stSkeleton]') && !document.querySelector('[data-stale=true]')"""
missed: list[str] = []


def end() -> None:
    """Exits 1 if a figure is over its limit."""
    print("All figures are within their limits." if not missed else f"Over the limit: {'; '.join(missed)}.")
    sys.exit(bool(missed))


def page_figures(only: str) -> None:
    from playwright.sync_api import sync_playwright
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        os.environ |= {"KERNEL_WORKBENCH_CACHE": f"{folder}/cache", "KERNEL_WORKBENCH_SESSIONS": f"{folder}/sessions"}
        sessions(Path(folder) / "sessions")
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        with serving() as server:
            for name, figure in FIGURES.items():
                if only in name:
                    figure(browser)
            beside("memory of the page's process", resident_mb(server.pid), 400, "MB")
        browser.close()
    end()


def sessions(folder: Path) -> None:
    """The recorded sessions, and one as a long tune would leave it: the candidates of a layer, with other configs and times."""
    folder.mkdir(parents=True)
    for packed in (ROOT / "sessions").glob("recorded-*.zip"):
        (folder / packed.name).symlink_to(packed)
    preset, direction = MEASURED
    with zipfile.ZipFile(ROOT / "sessions" / f"{RECORDED}.zip") as archive:
        name = next(n for n in archive.namelist() if n.endswith("trials.jsonl"))
        found = [json.loads(line) for line in archive.read(name).decode().splitlines()]
    there = [t for t in found if t["workload"].get("preset") == preset and t["direction"] == direction]
    ours = [t for t in there if t["kind"] == "candidate" and t["status"] == "OK" and t["kernel_ms"]]
    lines = [t for t in there if t["kind"] == "baseline"]
    for number in range(TRIALS - len(lines)):
        one = copy.deepcopy(ours[number % len(ours)])
        one["trial_id"], one["candidate_id"] = f"{number:08x}", f"{number:016x}"
        one["config"] = {**one["config"], "TILE": 8 * (1 + number % 40), "WARPS": 1 + number // 40 % 16}
        one["at"] = f"2026-11-20T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}.000+00:00"
        for key in ("median_ms", "low_ms", "high_ms"):
            if key in one["kernel_ms"]:
                one["kernel_ms"][key] *= 1 + (number * 7919 % 1000) / 500
        lines.append(one)
    (folder / LONG).mkdir()
    (folder / LONG / "trials.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    request = {"workload": lines[0]["workload"], "directions": [direction], "precision": "tf32", "device": "cuda:0",
               "effort": "normal", "trials": None, "minutes": None, "variants": []}
    (folder / LONG / "events.jsonl").write_text(json.dumps({"at": lines[0]["at"], "event": "tune", "request": request}) + "\n")


def first_paint(browser: Any) -> None:
    """From the address to the Run button and the picture of the layer."""
    with opened(browser) as page:
        beside("first paint, cold: first visitor of a new server", arrival(page, "/", ready), 3)
    times = []
    for _ in range(REPEATS):
        with opened(browser) as page:
            times.append(arrival(page, "/", ready))
    beside("first paint, warm: new browser, no cache", times, 2)


def parameter(browser: Any) -> None:
    """From Enter to the changed picture."""
    for name, link in (("", "/?preset=kb74"), (", recorded session open", f"/?preset=kb81&size=full&session={RECORDED}"),
                       (", 10 000 trials open", f"/?preset=kb81&size=full&session={LONG}")):
        with opened(browser) as page:
            arrival(page, link, SETTLED)
            times = []
            for value in ("2", "3", "4", "2", "3", "4", "2"):
                page.get_by_label("stride", exact=True).fill(value)
                before = page.evaluate("document.querySelector('.kwsvg').dataset.changes")
                times.append(taking(page, lambda: page.get_by_label("stride", exact=True).press("Enter"),
                                    "before => document.querySelector('.kwsvg').dataset.changes !== before", before))
                page.wait_for_function(SETTLED)
            beside(f"parameter to picture{name}", times[1:], 0.3)


def switch(browser: Any) -> None:
    """From the click in the navigation to the settled page, in the second round."""
    with opened(browser) as page:
        arrival(page, "/", SETTLED)
        for round_ in range(3):
            for name in (*PAGES[1:], PAGES[0]):
                link = page.get_by_role("link", name=name.capitalize(), exact=True)
                path = "/" if name == PAGES[0] else f"/{name}"
                seconds = taking(page, link.click, "path => location.pathname === path && (" + SETTLED + ")()", path)
                if round_:
                    switched.setdefault(name, []).append(seconds)
        for name, times in switched.items():
            beside(f"page switch to {name.capitalize()}, settled", times, 0.8)


switched: dict[str, list[float]] = {}


def long_session(browser: Any) -> None:
    """Each page with 10 000 trials: from its address, and a scroll and a click there."""
    links = {"workbench": f"/?preset=kb81&size=full&session={LONG}", "tune": f"/tune?session={LONG}",
             "inspect": f"/inspect?inspect_session={LONG}", "compare": f"/compare?compare_a={LONG}&against=pinned+trials",
             "bench": "/bench", "check": "/check", "model": "/model", "export": f"/export?export_session={LONG}",
             "machine": "/machine"}
    for name, link in links.items():
        with opened(browser) as page:
            beside(f"10 000 trials: {name.capitalize()}, first visit", arrival(page, link, SETTLED), None)
            beside(f"10 000 trials: {name.capitalize()} from its address", [arrival(page, link, SETTLED) for _ in range(3)], 2)
    for name in ("workbench", "compare", "tune"):
        with opened(browser) as page:
            arrival(page, links[name], SETTLED)
            time.sleep(3)
            table(page, name)
    with opened(browser) as page:
        arrival(page, links["tune"], SETTLED)
        page.locator(".st-key-tune_progress .js-plotly-plot .nsewdrag").first.wait_for()
        time.sleep(2)
        point = page.evaluate("""() => {
          const plot = document.querySelector('.st-key-tune_progress .js-plotly-plot'), box = plot.getBoundingClientRect();
          const {xaxis, yaxis} = plot._fullLayout, trace = plot._fullData.find(t => t.customdata && t.x.length > 20);
          return [box.x + xaxis._offset + xaxis.d2p(trace.x[10]), box.y + yaxis._offset + yaxis.d2p(trace.y[10])]
        }""")
        page.mouse.move(*point)
        time.sleep(0.5)
        beside("10 000 trials: a point of Tune's chart selected, rerun", rerun(page, lambda: page.mouse.click(*point)), 0.3)


def table(page: Any, name: str) -> None:
    """Scroll the table, which must not rerun the script, and select a row."""
    canvas = page.locator('[data-testid="stDataFrame"]').first
    canvas.scroll_into_view_if_needed()
    page.wait_for_function(SETTLED)
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 100)
    page.evaluate("Object.assign(kwSeen, {runs: 0, longest: 0})")
    for _ in range(20):
        page.mouse.wheel(0, 400)
        time.sleep(0.03)
    time.sleep(0.3)
    seen = page.evaluate("kwSeen")
    assert not seen["runs"], "the script runs because the table was scrolled"
    beside(f"10 000 trials: {name.capitalize()}, table scrolled, longest frame", seen["longest"] / 1000, 0.3)
    times = [rerun(page, lambda at=row: page.mouse.click(box["x"] + 15, box["y"] + 60 + 29 * at)) for row in (1, 3, 2)]
    beside(f"10 000 trials: {name.capitalize()}, row selected, rerun", times, 0.3)


FIGURES: dict[str, Callable[[Any], None]] = {"first": first_paint, "parameter": parameter, "switch": switch,
                                             "long": long_session}


def ready() -> str:
    """The Run button and the picture are there."""
    return ("() => [...document.querySelectorAll('button')].some(b => b.innerText.startsWith('Run '))"
            " && document.querySelector('.kwsvg svg')")


def arrival(page: Any, link: str, until: str | Callable[[], str]) -> float:
    """Seconds from the address to the condition, by the browser's own clock."""
    page.goto(BASE + link, wait_until="commit")
    return _met(page, until() if callable(until) else until, None) / 1000


def taking(page: Any, act: Callable[[], Any], until: str, argument: Any) -> float:
    """Seconds from the key or click to the condition, by the browser's own clock."""
    page.evaluate("""() => { window.kwActed = 0; for (const kind of ['keydown', 'pointerdown'])
      addEventListener(kind, () => { window.kwActed = window.kwActed || performance.now() }, {capture: true, once: true}) }""")
    act()
    return (_met(page, until, argument) - page.evaluate("window.kwActed")) / 1000


def _met(page: Any, until: str, argument: Any) -> float:
    """When the condition was met, in ms: the browser says it, because its answer may wait for this process."""
    return page.wait_for_function(f"argument => ({until})(argument) && performance.now()", arg=argument,
                                  timeout=90_000).json_value()


def rerun(page: Any, act: Callable[[], Any]) -> float:
    """Seconds from the request, which follows a click, to the end of the script."""
    taking(page, act, f"() => kwSeen.began > kwActed && kwSeen.ended > kwSeen.began && ({SETTLED})()", None)
    return page.evaluate("kwSeen.ended - kwSeen.began") / 1000


@contextlib.contextmanager
def opened(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    context.add_init_script(WATCH)
    try:
        yield context.new_page()
    finally:
        context.close()


@contextlib.contextmanager
def serving() -> Iterator[subprocess.Popen]:
    server = subprocess.Popen([sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(PORT)], cwd=ROOT,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_for(f"{BASE}/_stcore/health")
        yield server
    finally:
        server.terminate()
        server.wait(60)


def resident_mb(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1000


def beside(what: str, value: float | list[float], limit: float | None, unit: str = "s") -> None:
    """The figure, the limit beside it, and a mark where it is over the limit."""
    values = value if isinstance(value, list) else [value]
    middle, digits = median(values), 0 if unit == "MB" else 2
    most = f" (most {max(values):.{digits}f})" if values[1:] else ""
    over = limit is not None and middle > limit
    if over:
        missed.append(what)
    limited = f"   under {limit:g}{'  OVER' if over else '':<6}" if limit is not None else ""
    print(f"{what:<66}{middle:8.{digits}f} {unit}{limited}{most}", flush=True)


if __name__ == "__main__":
    main()
