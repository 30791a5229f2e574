"""Take a picture of each page and state, in both themes and at two widths.   python tools/screenshots.py OUT [--only bench]

It serves the page from a folder of its own, with the recorded sessions and with sessions that it makes on the emulator: a tune
and an edited kernel that is wrong. Through the page it starts a check, patches a model, and begins a run, a tune and a bench.
Of these three it takes a picture while they go on. Look at the pictures: OUT/index.html shows all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import ROOT, chromium, wait_for

PORT = 8598
WIDTHS, THEMES = (1440, 1024), ("light", "dark")
FIRST_SCREEN, MOST_HIGH = 900, 3200
BASE = f"http://127.0.0.1:{PORT}"
MODEL = '''import torch
from torch import nn


def build_model():
    return nn.Sequential(nn.ConvTranspose1d(8, 4, 4, stride=2), nn.ReLU(), nn.ConvTranspose1d(4, 2, 3))


def inputs():
    return torch.randn(2, 8, 16)
'''


@dataclass(frozen=True)
class Shot:
    """A picture: its name, the address, and what is done there before it is taken, and after."""

    name: str
    address: str
    before: Callable[[Any], None] = lambda page: None
    after: Callable[[Any], None] = lambda page: None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT", help="only pictures whose name holds this")
    parser.add_argument("--width", type=int, choices=WIDTHS, action="append", help="default: both")
    parser.add_argument("--theme", choices=THEMES, action="append", help="default: both")
    parser.add_argument("--sessions", type=Path, metavar="DIR", help="keep the sessions made here; use those that are there")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server ends, too
    with contextlib.ExitStack() as stack:
        folder = args.sessions or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["KERNEL_WORKBENCH_SESSIONS"] = str(folder)
        made = sessions(folder)
        stack.enter_context(serving(folder))
        shots = [shot for shot in all_shots(made, folder) if args.only in shot.name]
        taken = [name for theme in args.theme or THEMES for width in args.width or WIDTHS
                 for name in take(shots, args.out, folder, width=width, theme=theme)]
    pictures = "".join(f'<h4>{name}</h4><img src="{name}.png" width="100%">' for name in sorted(taken))
    (args.out / "index.html").write_text(f"<!doctype html><meta charset=utf-8><title>Pages</title>{pictures}")
    print(f"{len(taken)} pictures in {args.out}")


def sessions(folder: Path) -> dict[str, str]:
    """Name -> id of a trial, of the sessions that are made here; the recorded ones are linked."""
    folder.mkdir(parents=True, exist_ok=True)
    for packed in (ROOT / "sessions").glob("recorded-*.zip"):
        if not (folder / packed.name).exists():
            (folder / packed.name).symlink_to(packed)
    if not (folder / "tuned").exists():
        cli("tune", "kb74/small", "--device", "cpu", "--direction", "forward", "--variant", "naive_gather", "--variant",
            "shared_weight_tiling", "--trials", "24", "--session", "tuned")
    if not (folder / "edited").exists():
        cli("run", "--preset", "kb74/small", "--direction", "forward", "--variant", "naive_gather", "--device", "cpu",
            "--session", "edited")
        right = trial(folder, "edited", "OK")
        text = subprocess.run([sys.executable, "-m", "workbench", "show", "edited", "--trial", right, "--source"], cwd=ROOT,
                              capture_output=True, text=True, check=True).stdout
        edited = folder / "edited.cu"
        edited.write_text(text.replace("sum +=", "sum -=", 1) if "sum +=" in text else text.replace("+=", "-=", 1))
        cli("run", "--source", str(edited), "--fork-of", f"edited:{right}", "--device", "cpu", "--session", "edited")
    (folder / "kw_screenshot_model.py").write_text(MODEL)
    return {"tuned": trial(folder, "tuned", "OK"), "right": trial(folder, "edited", "OK"),
            "wrong": trial(folder, "edited", "MISMATCH")}


def cli(*words: str) -> None:
    """A command of the workbench; a wrong kernel ends it with 1."""
    done = subprocess.run([sys.executable, "-m", "workbench", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(words)}: {done.stderr[-2000:]}")


def trial(folder: Path, session: str, status: str) -> str:
    """The first candidate with that status; "" where there is none."""
    lines = map(json.loads, (folder / session / "trials.jsonl").read_text().splitlines())
    return next((t["trial_id"] for t in lines if t["kind"] == "candidate" and t["status"] == status), "")


def all_shots(made: dict[str, str], folder: Path) -> list[Shot]:
    """Each page and state."""
    h200, strong = "recorded-h200-kernelbench", "recorded-h200-kernelbench-strong"
    fast, *pins = recorded_best(h200)
    inspect = f"inspect?inspect_session={h200}&trial={fast}"
    return [
        Shot("workbench-empty", "?preset=kb74"), Shot("workbench-recorded", f"?session={h200}&preset=kb81&size=full"),
        Shot("workbench-wrong-value", "?preset=kb74&stride=0"), Shot("workbench-gone", "?session=gone"),
        Shot("tune-empty", "tune?preset=kb74"), Shot("tune-done", "tune?session=tuned"),
        Shot("inspect-right", inspect), Shot("inspect-wrong", f"inspect?inspect_session=edited&trial={made['wrong']}"),
        Shot("inspect-edit", f"inspect?inspect_session=edited&trial={made['wrong']}&view=Edit"),
        Shot("inspect-diff", f"inspect?inspect_session=edited&trial={made['wrong']}&view=Diff&diff={made['right']}"),
        Shot("inspect-ladder", f"{inspect}&view=Ladder"), Shot("inspect-asm", f"{inspect}&view=Machine+code", listed),
        Shot("compare-pytorch", f"compare?compare_a={h200}"),
        Shot("compare-sessions", f"compare?compare_a={strong}&against=session+B&compare_b={h200}"),
        Shot("compare-pins", f"compare?compare_a={h200}&trials={','.join(pins)}"),
        Shot("compare-emulated", "compare?compare_a=tuned"),
        Shot("bench-kernelbench", "bench"), Shot("bench-models", "bench?suite=models&class=bf16"),
        Shot("bench-misses", "bench?class=ieee&missed=yes"), Shot("bench-nothing", "bench?missed=yes"),
        Shot("check-empty", "check"), Shot("check-done", "check", check), Shot("model-empty", "model"),
        Shot("model-done", "model", lambda page: patch(page, folder)), Shot("export", f"export?session={h200}"),
        Shot("machine", "machine"), Shot("workbench-running", "?preset=kb81&size=small", run, stop),
        Shot("tune-running", "tune?preset=kb74&size=small&directions=forward&precision=ieee&effort=full&variants=naive_gather,"
             "shared_weight_tiling", tune, stop),
        Shot("bench-running", "bench", bench, stop)]


def recorded_best(session: str) -> list[str]:
    """Of KernelBench #81 forward: the id of the fastest right candidate, then ids of PyTorch and of three candidates."""
    sys.path.insert(0, str(ROOT))
    from workbench.drive.reporting import report
    from workbench.drive.sessions.session import Session
    found = [t for t in Session.open(ROOT / "sessions" / f"{session}.zip").trials()
             if t.workload.preset == "kb81/full" and t.direction == "forward" and t.ok and t.kernel_ms]
    ours = sorted((t for t in found if t.kind == "candidate"), key=lambda t: t.kernel_median_ms)
    baseline = report.best_baseline(found, ours[0])
    return [ours[0].trial_id, *([baseline.trial_id] if baseline else []), *(t.trial_id for t in ours[:3])]


def listed(page: Any) -> None:
    """Until the compiler has answered."""
    page.get_by_test_id("stDataFrame").first.wait_for(timeout=120_000)


def check(page: Any) -> None:
    """The wrong sample, to its report."""
    page.get_by_role("button", name="Fill in a wrong sample").click()
    settled(page)
    page.get_by_role("button", name="Check", exact=True).click()
    page.locator(".strip", has_text="FAILED").first.wait_for(timeout=240_000)


def patch(page: Any, folder: Path) -> None:
    """A small model, to its report."""
    for label, text in (("Model", "kw_screenshot_model:build_model"), ("Folder", str(folder))):
        page.get_by_label(label, exact=True).fill(text)
        page.get_by_label(label, exact=True).press("Enter")
        settled(page)
    page.get_by_text("right", exact=True).click()
    settled(page)
    page.get_by_role("button", name="Patch", exact=True).click()
    page.get_by_role("button", name="Download report").wait_for(timeout=240_000)


def run(page: Any) -> None:
    """Until the first candidates are judged."""
    page.get_by_role("button", name=re.compile(r"^Run \d+")).click()
    page.locator(".strip", has_text=re.compile("RUNNING [2-9]")).first.wait_for(timeout=240_000)


def tune(page: Any) -> None:
    """Until there are a few points."""
    page.get_by_role("button", name="Start", exact=True).click()
    page.locator(".strip", has_text=re.compile("RUNNING.*Best so far", re.DOTALL)).first.wait_for(timeout=240_000)
    page.wait_for_function("document.querySelectorAll('.st-key-tune_progress .point').length > 5", timeout=240_000)


def bench(page: Any) -> None:
    """Until a few cells have a result."""
    page.get_by_text("Measure a suite here").click()
    page.get_by_role("button", name="Start", exact=True).click()
    page.locator(".strip", has_text=re.compile("RUNNING [3-9]")).first.wait_for(timeout=400_000)


def stop(page: Any) -> None:
    """What was begun for the picture; the button of ours, because while a script runs Streamlit shows one of its own."""
    button = page.locator('[class*="st-key"]').get_by_role("button", name="Stop", exact=True).first
    button.click()
    button.wait_for(state="detached", timeout=120_000)


def take(shots: list[Shot], out: Path, folder: Path, *, width: int, theme: str) -> Iterator[str]:
    """One browser for each width and theme, so that no state of another picture is left; nor are the sessions made in it."""
    from playwright.sync_api import sync_playwright
    there = set(folder.iterdir())
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        for shot in shots:
            context = browser.new_context(viewport={"width": width, "height": FIRST_SCREEN}, color_scheme=theme,
                                          reduced_motion="reduce")
            page = context.new_page()
            name = f"{shot.name}-{theme}-{width}"
            try:
                page.goto(f"{BASE}/{shot.address}")
                settled(page)
                shot.before(page)
                settled(page)
                high = page.get_by_test_id("stMain").evaluate("main => main.scrollHeight")
                page.mouse.move(720, 4)  # no help of what was clicked
                page.set_viewport_size({"width": width, "height": max(FIRST_SCREEN, min(high, MOST_HIGH))})
                settled(page)
                page.screenshot(path=out / f"{name}.png")
                shot.after(page)
                yield name
            except Exception as error:  # the other pictures are still wanted
                print(f"{name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            context.close()
        browser.close()
    for made in set(folder.iterdir()) - there:
        if made.is_dir():
            shutil.rmtree(made)


def settled(page: Any) -> None:
    """The script has ended, nothing is a skeleton any more, and charts are drawn."""
    page.get_by_test_id("stMainBlockContainer").wait_for(timeout=60_000)
    page.locator('[data-test-script-state="notRunning"]').wait_for(timeout=60_000, state="attached")
    page.wait_for_function("!document.querySelector('[data-testid=stSkeleton]')", timeout=60_000)
    time.sleep(0.8)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[None]:
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen([sys.executable, "-m", "streamlit", "run", "app.py", "--server.port", str(PORT)], cwd=ROOT,
                                  stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            wait_for(f"{BASE}/_stcore/health")
            yield
        finally:
            server.terminate()
            server.wait(60)


if __name__ == "__main__":
    main()
