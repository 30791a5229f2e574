"""Templates -> one emulated library -> the real judge in a process of its own, which may crash or hang. Built once per worker
process of pytest: the bad kernels, and the naive variants in every direction and dtype."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from workbench.core.candidate import Candidate
from workbench.core.layer import DIRECTIONS, DTYPES, ConvTranspose, Workload
from workbench.core.orders import BuildOrder, JudgeOrder
from workbench.core.replies import Event, Judged
from workbench.core.template import render, render_batch, symbol
from workbench.core.variants import discover, find
from workbench.drive.checking.attacks import attacks, kernels
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


NOT_BUILT = {"undefined_identifier", "undefined_tunable", "builds_for_minutes"}
WANTED = {"remembers_the_answer", "one_thread_reads", "past_its_shared", "reads_past_its_shared"}
IN_A_NEW_PROCESS = ["reads_the_next_value", "reads_the_value_before", "grid_of_the_first_launch", "two_blocks_add",
                    "always_grad_bias", "aligns_down", "constant_weights", "fence_for_an_atomic", "last_block_no_fence",
                    "adds_in_shared", "plan_by_count", "vectors_of_weights", "keeps_its_scratch", "never_frees",
                    "default_stream"]
LATELY = ["looks_for_the_guard", "one_factor_for_a_tensor", "products_in_float16"]   # found by the last comparison


@pytest.fixture(scope="session")
def bad_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kernels(tmp_path_factory.mktemp("attacks"))


@pytest.fixture(scope="session")
def bad(bad_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Bad kernels that can be built; the self-test has more."""
    of_others = {a.name for a in attacks() if a.kind == "kernel" and a.source != "findings"}
    left = NOT_BUILT | of_others - {*WANTED, *IN_A_NEW_PROCESS, *LATELY}
    candidates = [bad_candidate(bad_root, v.name, direction=v.direction) for v in discover(bad_root) if v.name not in left]
    candidates += [bad_candidate(bad_root, "many_defects", FIRST=first) for first in range(1, 5)]
    return build_batch(candidates, tmp_path_factory.mktemp("bad"))


@pytest.fixture(scope="session")
def naive(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """naive_gather in three directions and four dtypes, for any layer."""
    candidates = [Candidate(find("naive_gather", direction), LAYER, dtype, {}, form="runtime")
                  for direction in DIRECTIONS for dtype in DTYPES]
    return build_batch(candidates, tmp_path_factory.mktemp("naive"))


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("truth")
