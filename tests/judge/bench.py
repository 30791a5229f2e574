"""Templates -> one emulated library -> the real judge in a process of its own, which may crash or hang."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.core.candidate import Candidate
from workbench.core.layer import ConvTranspose, Workload
from workbench.core.orders import BuildOrder, JudgeOrder
from workbench.core.replies import Event, Judged
from workbench.core.template import render, render_batch, symbol
from workbench.core.variants import find
from workbench.measure.build.build import build

# Two spatial dimensions, a stride that leaves holes, padding, groups, a tail that fills no block.
LAYER = ConvTranspose(2, 6, 4, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(0, 1), groups=2)
WORKLOAD = Workload(LAYER, batch=2, input_size=(5, 7))
# Kernel 1 and padding 1: the border of the input meets no output. Stride 3 without bias: some outputs are just zero.
CROPPED = Workload(ConvTranspose(1, 2, 3, 1, stride=3, padding=1, bias=False), batch=2, input_size=(8,))


@dataclass(frozen=True)
class Ended:
    """The process did not answer: `signal` ended it, or 0 and it still ran when its time was over."""

    signal: int


@dataclass(frozen=True, kw_only=True)
class Apart(Judged):
    """A reply, and what was told before it."""

    events: tuple[Event, ...]


@dataclass(frozen=True)
class Built:
    library: Path
    symbols: dict[Candidate, str]  # keys: by value, config included


def bad_candidate(root: Path, name: str, *, direction: str = "forward", **config: int) -> Candidate:
    """In the run-time form, so that one build serves every layer."""
    return Candidate(find(name, direction, root=root), LAYER, "float32", config, form="runtime")


def build_batch(candidates: Sequence[Candidate], folder: Path) -> Built:
    """All of them in one library for the emulator."""
    rendered = [render(c) for c in candidates]
    result = build(BuildOrder(render_batch(rendered), "cpu", folder / "cache", tuple(symbol(r) for r in rendered),
                              log=folder / "build.log"), lambda event: None)
    assert result.status == "OK", result.headline + (folder / "build.log").read_text()[-3000:]
    return Built(Path(result.library), {r.candidate: symbol(r) for r in rendered})


def order(built: Built, candidate: Candidate, workload: Workload, scratch: Path, **more: Any) -> JudgeOrder:
    """Without times, where nothing else is asked for."""
    return JudgeOrder(built.library, built.symbols[candidate], candidate.direction, workload, "cpu", candidate.precision,
                      **{"effort": "quick", "time": False, "scratch": scratch,
                         "channels_last": candidate.takes_channels_last, **more})


def judge_apart(request: JudgeOrder, *, limit_s: float = 400.0) -> Apart | Ended:
    """Judge in a forked process. What a kernel keeps in static variables ends with it."""
    forked = multiprocessing.get_context("fork")
    receive, send = forked.Pipe(duplex=False)
    child = forked.Process(target=_child, args=(send, request))
    child.start()
    send.close()
    try:
        answer = receive.recv() if receive.poll(limit_s) else None
    except EOFError:
        answer = None
    if answer is not None:
        child.join(200)
        return answer
    hung = child.is_alive() and not receive.poll(0)
    if hung:
        child.kill()
    child.join(200)
    return Ended(0 if hung else -(child.exitcode or 0))


def _child(send: Any, request: JudgeOrder) -> None:
    import torch

    from workbench.measure.kernel.judge import judge
    faulthandler.disable()    # a crash is expected here; its trace would only fill the log
    torch.set_num_threads(1)  # threads of an OpenMP pool do not survive a fork
    events: list[Event] = []
    result = judge(request, events.append)
    send.send(Apart(**vars(result), events=tuple(events)))
    send.close()
    os._exit(0)
