"""Print what the judge promises of its own verdicts, measured on this GPU now.   python tools/judge_figures.py [PART ...]

    pairs   #74, #64, #81: ten processes judge the same pair; all agree, and the ratio spreads by less than 1 %
    self    a kernel against itself: never FASTER or SLOWER in 50 tries
    bench   kernels of 0.2 ms and more: our medians within 2 % of triton.testing.do_bench(return_mode="median")

Exits 1 when a promise is not kept.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

NUMBERS = (74, 64, 81)
PROCESSES, TRIES = 10, 50
VARIANT, WAY = "shared_weight_tiling", "tf32_off"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", choices=["pairs", "self", "bench", []], help="default: all three")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child)
    with tempfile.TemporaryDirectory() as folder:
        orders = built(Path(folder))
        (Path(folder) / "orders.json").write_text(json.dumps(orders))
        parts = {"pairs": lambda: pairs(Path(folder)), "self": lambda: against_itself(orders),
                 "bench": lambda: against_do_bench(orders)}
        return 0 if all([parts[name]() for name in (args.part or parts)]) else 1


def built(folder: Path) -> list[dict[str, Any]]:
    """One `judge` order a layer, its library built."""
    from workbench.core.candidate import Candidate
    from workbench.core.presets import preset
    from workbench.core.template import render, render_batch, symbol
    from workbench.core.variants import find
    from workbench.measure.build import build
    from workbench.measure.device import describe
    arch = describe({"device": "cuda:0"})["arch"]

    def one(number: int) -> dict[str, Any]:
        workload = preset(f"kb{number}").workload("full")
        rendered = render(Candidate(find(VARIANT, "forward"), workload.layer, "float32", {}))
        made = build({"source": render_batch([rendered]), "symbols": [symbol(rendered)], "device": "cuda", "arch": arch,
                      "log": str(folder / f"{number}.log"), "cache": str(folder / "cache")}, lambda event: None)
        assert made["status"] == "OK", made["headline"]
        return {"library": made["library"], "symbol": symbol(rendered), "direction": "forward",
                "workload": workload.to_json(), "device": "cuda:0", "precision": "ieee", "effort": "normal",
                "scratch": str(folder / "truth"), "limit_s": 120.0}

    return [one(number) for number in NUMBERS]


def pairs(folder: Path) -> bool:
    """The processes start together and take the GPU in turns."""
    children = [subprocess.Popen([sys.executable, __file__, "--child", str(folder)], stdout=subprocess.PIPE, text=True)
                for _ in range(PROCESSES)]
    answers = [json.loads(process.communicate()[0].splitlines()[-1]) for process in children]
    kept = True
    print(f"\n{VARIANT} forward against PyTorch (TF32 off), {PROCESSES} processes")
    for i, number in enumerate(NUMBERS):
        found = [answer[i] for answer in answers]
        ratios, words = [f["value"] for f in found], {f["verdict"] for f in found}
        spread = (max(ratios) - min(ratios)) / sorted(ratios)[len(ratios) // 2]
        good = len(words) == 1 and spread < 0.01
        kept = kept and good
        print(f"  #{number}: {', '.join(sorted(words)):<14} ratio {min(ratios):.4f} - {max(ratios):.4f}, spread "
              f"{100 * spread:.2f} %, {min(f['pairs'] for f in found)} - {max(f['pairs'] for f in found)} pairs, "
              f"dropped {sum(f['dropped'] for f in found)}   {'kept' if good else 'NOT KEPT'}", flush=True)
    return kept


def child(folder: Path) -> int:
    from workbench.core.verdict import from_samples
    from workbench.measure.compare import compare
    found = []
    for order in json.loads((folder / "orders.json").read_text()):
        with locked(folder / "gpu.lock"):
            result = compare({"ours": order, "theirs": {"way": WAY}, "limit_s": 2.0}, lambda event: None)
        assert result["status"] == "OK", result["headline"]
        verdict = from_samples(result["ours"], result["theirs"], paired=True)
        found.append({"value": verdict.value, "verdict": verdict.verdict, "pairs": len(result["ours"]),
                      "dropped": result["dropped"]})
    print(json.dumps(found))
    return 0


def against_itself(orders: list[dict[str, Any]]) -> bool:
    """Two stages with buffers of their own, the same library."""
    from workbench.core.verdict import from_samples
    from workbench.measure import timing
    from workbench.measure.inputs import NORMAL
    from workbench.measure.judge import Request, open_stage
    kept = True
    print(f"\n{VARIANT} forward against itself, {TRIES} tries")
    for number, order in zip(NUMBERS, orders, strict=True):
        stages = [open_stage(Request.from_json(order)) for _ in range(2)]
        for stage in stages:
            stage.fill(NORMAL)
        words: dict[str, int] = {}
        farthest = 0.0
        for _ in range(TRIES):
            a, b = timing.measure_in_turns([s.launch for s in stages], device="cuda:0", effort="quick", limit_s=0.4)
            verdict = from_samples(a.samples, b.samples, paired=True)
            words[verdict.verdict] = words.get(verdict.verdict, 0) + 1
            farthest = max(farthest, abs(verdict.value - 1))
        good = not words.keys() & {"FASTER", "SLOWER"}
        kept = kept and good
        print(f"  #{number}: {words}, farthest from 1: {100 * farthest:.2f} %   {'kept' if good else 'NOT KEPT'}", flush=True)
        del stages, stage
    return kept


def against_do_bench(orders: list[dict[str, Any]]) -> bool:
    from triton.testing import do_bench

    from workbench.core.layer import Workload
    from workbench.measure import timing
    from workbench.measure.baselines import plain_tensors, timed_call
    from workbench.measure.inputs import NORMAL
    from workbench.measure.judge import Request, open_stage
    from workbench.measure.ways import WAYS, switches
    kept = True
    print("\nour median and do_bench's, ms")
    for number, order in zip(NUMBERS, orders, strict=True):
        stage = open_stage(Request.from_json(order))
        stage.fill(NORMAL)
        workload = Workload.from_json(order["workload"])
        plain = plain_tensors(workload, "forward", "cuda:0")
        with switches(WAYS[WAY]):
            _, replay, _ = timed_call(WAYS[WAY], workload, "forward", plain, "cuda:0")
            for name, run in ((VARIANT, stage.launch), ("PyTorch", replay)):
                ours = timing.measure(run, device="cuda:0", effort="normal", host_pays=False).timing["median_ms"]
                theirs = do_bench(run, warmup=100, rep=600, return_mode="median")
                good = ours < 0.2 or abs(ours / theirs - 1) < 0.02
                kept = kept and good
                print(f"  #{number} {name:<22}{ours:8.4f} {theirs:8.4f}   {100 * (ours / theirs - 1):+.2f} %   "
                      f"{'below 0.2 ms' if ours < 0.2 else 'kept' if good else 'NOT KEPT'}", flush=True)
        del stage, plain, replay, run
    return kept


@contextmanager
def locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
