"""Measure how stable the verdicts of the judge are on this GPU, and print each figure beside its limit.

    python tools/judge_figures.py [PART ...] [--layer NUMBER ...]

    pairs   #74, #64, #81: ten processes judge the same pair; all agree, and the ratio spreads by less than 1 %
    self    a kernel against itself: never FASTER or SLOWER in 50 tries
    bench   kernels of 0.2 ms and more: our medians within 2 % of triton.testing.do_bench(return_mode="median")
    short   the same for kernels of about 0.2, 0.3 and 0.5 ms: the layers with as small a batch as that takes

Without PART all four, without --layer #74, #64 and #81. On the CPU (--device cpu) it rehearses on the emulator, with small
layers and without do_bench, which needs a GPU: that shows that the tool works, and no figure. Exits 1 when a limit is
exceeded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from workbench.core.orders import BuildOrder, DeviceOrder, InterleaveOrder, JudgeOrder  # noqa: E402
from workbench.core.typed import read, to_json  # noqa: E402
from workbench.drive.tuning.seen import locked  # noqa: E402

NUMBERS = (74, 64, 81)
PROCESSES, TRIES = 10, 50
SHORT_MS = (0.22, 0.32, 0.52)   # a whole number of samples is a little more or less
VARIANT, WAY = "shared_weight_tiling", "tf32_off"


@dataclass(frozen=True)
class Orders:
    """What the children are given to compare."""

    orders: tuple[JudgeOrder, ...]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", choices=["pairs", "self", "bench", "short", []], help="default: all four")
    parser.add_argument("--layer", nargs="+", type=int, choices=NUMBERS, default=NUMBERS, metavar="NUMBER",
                        help=f"of {', '.join(map(str, NUMBERS))}; default: all")
    parser.add_argument("--device", default="cuda:0", help="cuda:0, or cpu for a rehearsal")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child)
    with tempfile.TemporaryDirectory() as folder:
        orders = built(Path(folder), args.layer, args.device)
        (Path(folder) / "orders.json").write_text(to_json(Orders(tuple(orders))))
        parts = {"pairs": lambda: pairs(Path(folder), args.layer), "self": lambda: against_itself(orders),
                 "bench": lambda: against_do_bench(orders), "short": lambda: against_do_bench(orders, SHORT_MS)}
        return 0 if all([parts[name]() for name in (args.part or parts)]) else 1


def built(folder: Path, numbers: list[int], device: str) -> list[JudgeOrder]:
    """One `judge` order a layer, its library built."""
    from workbench.core.candidate import Candidate
    from workbench.core.presets import preset
    from workbench.core.template import render, render_batch, symbol
    from workbench.core.variants import find
    from workbench.measure.build.build import build
    from workbench.measure.device import describe
    on_cpu = device == "cpu"
    where = {"device": "cpu"} if on_cpu else {"device": "cuda", "arch": describe(DeviceOrder(device)).arch}

    def one(number: int) -> JudgeOrder:
        workload = preset(f"kb{number}").workload("small" if on_cpu else "full")
        rendered = render(Candidate(find(VARIANT, "forward"), workload.layer, "float32", {}))
        made = build(BuildOrder(render_batch([rendered]), cache=folder / "cache", symbols=(symbol(rendered),), **where),
                     lambda event: None)
        assert made.status == "OK", made.headline
        return JudgeOrder(Path(made.library), symbol(rendered), "forward", workload, device, "ieee",
                          effort="quick" if on_cpu else "normal", scratch=folder / "truth", limit_s=120.0)

    return [one(number) for number in numbers]


def pairs(folder: Path, numbers: list[int]) -> bool:
    """The processes start together and take the GPU in turns."""
    children = [subprocess.Popen([sys.executable, __file__, "--child", str(folder)], stdout=subprocess.PIPE, text=True)
                for _ in range(PROCESSES)]
    answers = [json.loads(process.communicate()[0].splitlines()[-1]) for process in children]
    kept = True
    print(f"\n{VARIANT} forward against PyTorch (TF32 off), {PROCESSES} processes")
    for i, number in enumerate(numbers):
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
    from workbench.measure.kernel.interleave import interleave
    found = []
    for order in read(Orders, json.loads((folder / "orders.json").read_text())).orders:
        with locked(folder / "gpu.lock"):
            result = interleave(InterleaveOrder(order, way_on(order.device), limit_s=2.0), lambda event: None)
        assert result.status == "OK", result.headline
        verdict = from_samples(result.ours, result.theirs, paired=True)
        found.append({"value": verdict.value, "verdict": verdict.verdict, "pairs": len(result.ours),
                      "dropped": result.dropped})
    print(json.dumps(found))
    return 0


def against_itself(orders: list[JudgeOrder]) -> bool:
    """Two stages with buffers of their own, the same library."""
    from workbench.core.verdict import from_samples
    from workbench.measure.clock import timing
    from workbench.measure.kernel.inputs import NORMAL
    from workbench.measure.kernel.judge import open_stage
    kept = True
    print(f"\n{VARIANT} forward against itself, {TRIES} tries")
    for order in orders:
        stages = [open_stage(order) for _ in range(2)]
        for stage in stages:
            stage.fill(NORMAL)
        words: dict[str, int] = {}
        farthest = 0.0
        for _ in range(TRIES):
            a, b = timing.measure_in_turns([s.launch for s in stages], device=order.device, effort="quick", limit_s=0.4)
            verdict = from_samples(a.samples, b.samples, paired=True)
            words[verdict.verdict] = words.get(verdict.verdict, 0) + 1
            farthest = max(farthest, abs(verdict.value - 1))
        good = not words.keys() & {"FASTER", "SLOWER"}
        kept = kept and good
        print(f"  {named(order)}: {words}, farthest from 1: {100 * farthest:.2f} %   {'kept' if good else 'NOT KEPT'}",
              flush=True)
        del stages, stage
    return kept


def against_do_bench(orders: list[JudgeOrder], targets_ms: tuple[float, ...] = ()) -> bool:
    """At the full batch, or at those that take about so long."""
    kept = True
    print("\nour median and do_bench's, ms")
    for order in orders:
        for whose in (VARIANT, "PyTorch"):
            if not targets_ms:
                kept = agree(order, whose) and kept
                continue
            with ready(order, whose) as run:
                full_ms = median_ms(order, run)
            shorter = {one.workload.batch: one for one in (with_batch(order, ms / full_ms) for ms in targets_ms)}
            for one in shorter.values():
                kept = agree(one, whose) and kept
    return kept


def agree(order: JudgeOrder, whose: str) -> bool:
    with ready(order, whose) as run:
        ours, theirs = median_ms(order, run), do_bench_ms(order, run)
    if theirs is None:
        print(f"  {named(order)} {whose:<22}{ours:8.4f}   not compared: do_bench needs a GPU", flush=True)
        return True
    good = ours < 0.2 or abs(ours / theirs - 1) < 0.02
    print(f"  {named(order)} {whose:<22}{ours:8.4f} {theirs:8.4f}   {100 * (ours / theirs - 1):+.2f} %   "
          f"{'below 0.2 ms' if ours < 0.2 else 'kept' if good else 'NOT KEPT'}", flush=True)
    return good


@contextmanager
def ready(order: JudgeOrder, whose: str) -> Iterator[Callable[[], Any]]:
    """The kernel on a stage of its own, or PyTorch's call as the judge replays it; their memory is free again afterwards."""
    from workbench.core.pytorch_ways import WAYS
    from workbench.measure.kernel.inputs import NORMAL
    from workbench.measure.kernel.judge import open_stage
    from workbench.measure.pytorch.baselines import plain_tensors, timed_call
    from workbench.measure.pytorch.ways import switches
    if whose == VARIANT:
        stage = open_stage(order)
        stage.fill(NORMAL)
        yield stage.launch
        return
    workload, device = order.workload, order.device
    way = WAYS[way_on(device)]
    plain = plain_tensors(workload, "forward", device)  # a replayed graph reads them where they are: they live until it is done
    with switches(way):
        _, run, _ = timed_call(way, workload, "forward", plain, device)
        yield run
    del plain


def median_ms(order: JudgeOrder, run: Callable[[], Any]) -> float:
    from workbench.measure.clock import timing
    return timing.measure(run, device=order.device, effort=order.effort, host_pays=False).timing.median_ms


def do_bench_ms(order: JudgeOrder, run: Callable[[], Any]) -> float | None:
    if order.device == "cpu":
        return None
    from triton.testing import do_bench
    return do_bench(run, warmup=100, rep=600, return_mode="median")


def with_batch(order: JudgeOrder, share: float) -> JudgeOrder:
    """The same with that share of the batch, at least one. The library serves every batch."""
    batch = max(1, ceil(share * order.workload.batch - 0.1))
    return replace(order, workload=replace(order.workload, batch=batch, preset=""))


def way_on(device: str) -> str:
    return "default" if device == "cpu" else WAY


def named(order: JudgeOrder) -> str:
    """kb81/full, or the layer with batch 5."""
    return order.workload.preset or f"{order.workload.layer} with batch {order.workload.batch}"


if __name__ == "__main__":
    sys.exit(main())
