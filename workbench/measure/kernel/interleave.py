"""Times two contestants in turns on the same inputs: a candidate against a way of PyTorch, or against another candidate.

Both have been judged before. Candidates are watched while timed and checked again afterwards, as in a trial of their own.
"""

from __future__ import annotations

import torch

from ...core.orders import Emit, InterleaveOrder, JudgeOrder
from ...core.pytorch_ways import WAYS
from ...core.replies import Event, Interleaved
from ...core.trial import Status
from ..clock import timing
from ..device import out_of_memory
from ..pytorch.baselines import plain_tensors, timed_call
from ..pytorch.ways import switches
from .findings import Finding
from .inputs import NORMAL
from .judge import bits_of, compare_again, launch_and_compare, open_stage, threads_for, watched


def interleave(asked: InterleaveOrder, emit: Emit) -> Interleaved:
    """Worker operation "interleave"."""
    order = asked.ours
    if order.device != "cpu":
        torch.cuda.set_device(order.device)
    try:
        with threads_for(order):
            ours, theirs = _in_turns(asked, emit)
    except Finding as finding:
        result = finding.told(Interleaved)
        finding.__traceback__ = finding.__context__ = finding.__cause__ = None  # as in judge: they hold the tensors
        return result
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return Interleaved(status=Status.OUT_OF_MEMORY, headline="Both contestants together do not fit into memory.")
    return Interleaved(status=Status.OK, headline=f"{len(ours.samples)} pairs, taken in turns.", ours=tuple(ours.samples),
                       theirs=tuple(theirs.samples), dropped=ours.timing.dropped, stop=ours.timing.stop,
                       flags=tuple(dict.fromkeys([*ours.flags, *theirs.flags])))


def _in_turns(asked: InterleaveOrder, emit: Emit) -> list[timing.Measurement]:
    order, theirs = asked.ours, asked.theirs
    effort, limit_s = asked.effort or order.effort, asked.limit_s or order.limit_s / 3
    emit(Event("time", "in turns with " + (WAYS[theirs].name if isinstance(theirs, str) else "the other")))
    mine = _Contestant(order)
    if isinstance(theirs, JudgeOrder):
        other = _Contestant(theirs)
        measured = timing.measure_in_turns([mine.run, other.run], device=order.device, effort=effort,
                                           cold_l2=order.cold_l2, limit_s=limit_s,
                                           watches=[mine.watch, other.watch])
        other.compare_again()
    else:
        way, workload = WAYS[theirs], order.workload
        with switches(way):
            plain = plain_tensors(workload, order.direction, order.device)
            _, run, _ = timed_call(way, workload, order.direction, plain, order.device)
            measured = timing.measure_in_turns([mine.run, run], device=order.device, effort=effort,
                                               cold_l2=order.cold_l2, limit_s=limit_s,
                                               watches=[mine.watch, timing.Watch()])
    mine.compare_again()
    return measured


class _Contestant:
    """A candidate on its stage, after its results for the inputs have been checked. Raises `Finding`."""

    def __init__(self, order: JudgeOrder) -> None:
        self._order, self._stage = order, open_stage(order)
        launch_and_compare(order, self._stage, NORMAL)
        self.watch = watched(order, self._stage, bits_of(self._stage))
        self.run = self._stage.launch

    def compare_again(self) -> None:
        compare_again(self._order, self._stage, timed=True)
