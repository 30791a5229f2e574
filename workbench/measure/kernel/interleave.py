"""Two contestants on the same inputs, timed in turns: a candidate against a way of PyTorch's, or against a candidate.

Both have been judged before. Candidates are watched while timed and checked again afterwards, as in a trial of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...core.pytorch_ways import WAYS
from ...core.trial import Status
from ..clock import timing
from ..device import out_of_memory
from ..pytorch.baselines import plain_tensors, timed_call
from ..pytorch.ways import switches
from .findings import Finding
from .inputs import NORMAL
from .judge import Request, bits_of, check, check_again, open_stage, threads_for, watched

Emit = Callable[[dict[str, Any]], None]


def compare(request: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Worker operation "compare". Request: `ours` (an order of `judge`), `theirs` (such an order, or {"way": key}), and
    optionally effort, limit_s. Returns status, headline, `ours` and `theirs` (ms, pair by pair), dropped, flags."""
    order = Request.from_json(request["ours"])
    effort, limit_s = request.get("effort") or order.effort, float(request.get("limit_s") or order.limit_s / 3)
    if order.device != "cpu":
        torch.cuda.set_device(order.device)
    try:
        with threads_for(order):
            found = _in_turns(order, request["theirs"], effort, limit_s, emit)
    except Finding as finding:
        result = finding.result()
        finding.__traceback__ = finding.__context__ = finding.__cause__ = None  # as in judge: they hold the tensors
        return {**result, "ours": [], "theirs": [], "dropped": 0, "flags": []}
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return {"status": str(Status.OUT_OF_MEMORY), "headline": "Both contestants together do not fit into memory.",
                "ours": [], "theirs": [], "dropped": 0, "flags": []}
    ours, theirs = found
    return {"status": str(Status.OK), "headline": f"{len(ours.samples)} pairs, taken in turns.", "ours": ours.samples,
            "theirs": theirs.samples, "dropped": ours.timing["dropped"], "stop": ours.timing["stop"],
            "flags": list(dict.fromkeys([*ours.flags, *theirs.flags]))}


def _in_turns(order: Request, theirs: dict[str, Any], effort: str, limit_s: float,
              emit: Emit) -> list[timing.Measurement]:
    emit({"phase": "time", "text": "in turns with " + (WAYS[theirs["way"]].name if "way" in theirs else "the other")})
    mine = _Contestant(order)
    if "way" not in theirs:
        other = _Contestant(Request.from_json(theirs))
        measured = timing.measure_in_turns([mine.run, other.run], device=order.device, effort=effort,
                                           cold_l2=order.cold_l2, limit_s=limit_s,
                                           watches=[mine.watch, other.watch])
        other.check_again()
    else:
        way, workload = WAYS[theirs["way"]], order.workload
        with switches(way):
            plain = plain_tensors(workload, order.direction, order.device)
            _, run, _ = timed_call(way, workload, order.direction, plain, order.device)
            measured = timing.measure_in_turns([mine.run, run], device=order.device, effort=effort,
                                               cold_l2=order.cold_l2, limit_s=limit_s,
                                               watches=[mine.watch, timing.Watch()])
    mine.check_again()
    return measured


class _Contestant:
    """A candidate on its stage, its answer to the inputs known to be right. Raises `Finding`."""

    def __init__(self, order: Request) -> None:
        self._order, self._stage = order, open_stage(order)
        check(order, self._stage, NORMAL)
        self.watch = watched(order, self._stage, bits_of(self._stage))
        self.run = self._stage.launch

    def check_again(self) -> None:
        check_again(self._order, self._stage, timed=True)
