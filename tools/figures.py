"""Measure latency and size figures on this machine and print them beside their limits.   python tools/figures.py [--gpu]

    import workbench                                  under 0.2 s, without torch
    Run to verdict, warm worker, emulator             under 6 s built, under 1.5 s from the cache
    test --effort quick, cold cache, emulator         under 45 s on 2 cores
    with a GPU: building one variant                  at most 1/20 of the same kernel with torch/extension.h in its .cu
    with a GPU: Run to first verdict                  under 10 s

`page_figures.py` measures the page.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="the figures that need a GPU, instead of those that do not")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"KERNEL_WORKBENCH_CACHE": f"{folder}/cache", "KERNEL_WORKBENCH_SESSIONS": f"{folder}/sessions"}
        if args.gpu:
            verdict_seconds("cuda:0", Path(folder))
            builds_side_by_side(Path(folder))
        else:
            import_seconds()
            verdict_seconds("cpu", Path(folder))
            quick_seconds(Path(folder))


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
    show("import workbench", run("import workbench") - run(""), "0.2")


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

        show(f"Run to first verdict on {device}, everything cold", run(32), "10" if device != "cpu" else "")
        built, cached = ("", "") if device != "cpu" else ("6", "1.5")  # the limits on the emulator
        show(f"Run to verdict on {device}, warm worker, built", run(64), built)
        show(f"Run to verdict on {device}, warm worker, cached", run(64), cached)


def quick_seconds(folder: Path) -> None:
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "workbench", "test", "--effort", "quick", "--device", "cpu"], cwd=ROOT,
                          env={**os.environ, "KERNEL_WORKBENCH_CACHE": f"{folder}/cold"}, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:].decode()
    show("test --effort quick, cold cache", time.perf_counter() - start, "45")


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
    show("build of one variant", ours, "")
    show("the same kernel with torch/extension.h", theirs, "")
    print(f"{'ratio':<58}{theirs / ours:8.1f} x   at least 20")


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


def show(what: str, seconds: float, limit: str) -> None:
    print(f"{what:<58}{seconds:8.2f} s{f'   under {limit}' if limit else ''}", flush=True)


if __name__ == "__main__":
    main()
