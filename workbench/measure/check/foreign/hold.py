"""Stops processes while another one is timed, because they would slow it down. It also measures how long a call waited for a
core: this part of its time may be due to other processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from .confine import stat_words

_LIMIT_S = 10.0
_POLL_S = 0.001
# A thread that waits in the Linux kernel stops before it returns from the system call.
_STOPPED, _RESTING = frozenset("TtZX"), frozenset("TtZXD")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_FREE_S, _FREE_SHARE = 0.05, 0.05
_STEAL = 8                      # of /proc/stat's first line, name included
_LEAST_SHARE = 0.02             # the least share of a time that remains, whatever is subtracted


class StillRunning(OSError):
    """Processes could not be stopped."""


class Hold:
    """Some processes, stopped from `begin` to `end`. `pids` lists them again at each call, including zombies whose threads may
    still live."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self._pids = pids
        self._stopped_at: float | None = None
        self._spent_s = 0.0

    def begin(self) -> None:
        """Stop them, until two consecutive checks find the same processes, all stopped. So processes that were forked meanwhile
        are stopped, too. Raises `StillRunning`."""
        deadline = time.monotonic() + _LIMIT_S
        before: list[int] | None = None
        while True:
            there = sorted(self._pids())
            states = {pid: _states(pid) for pid in there}
            for pid, now in states.items():
                if not now <= _STOPPED:
                    _signal(pid, signal.SIGSTOP)
            at_rest = all(now <= _RESTING for now in states.values())
            if at_rest and there == before:
                break
            before = there if at_rest else None
            if time.monotonic() > deadline:
                raise StillRunning("processes of the file could not be stopped")
            time.sleep(_POLL_S)
        self._stopped_at, self._spent_s = time.monotonic(), _spent_s(there)

    def end(self) -> bool:
        """Continue the processes. Returns whether they had run although they were stopped (a timer can send SIGCONT). One clock
        tick does not count."""
        there = self._pids()
        spent_s = _spent_s(there) - self._spent_s
        for pid in there:
            _signal(pid, signal.SIGCONT)
        if self._stopped_at is None:
            return False
        return spent_s > _FREE_S + _FREE_SHARE * (time.monotonic() - self._stopped_at)


class Took(NamedTuple):
    """Seconds by the clock, and for how many of them a ready thread had no core."""

    clock_s: float
    waited_s: float = 0.0


def waited_s(pids: Iterable[int]) -> float:
    """Seconds so far in which threads of these processes were ready and had no core, plus those that a hypervisor took from
    this machine. 0 if the Linux kernel does not count them."""
    return sum(waits_s(pids).values()) + _stolen_s()


def alone(took: Took, empty: Took) -> tuple[float, float]:
    """(least, most) seconds that the call would have taken without other processes, minus the `empty` call (request, change and
    copy). It is not known how much of the waiting time prolonged the call, so there are two bounds."""
    least = took.clock_s - took.waited_s - empty.clock_s
    most = took.clock_s - max(0.0, empty.clock_s - empty.waited_s)
    return max(least, _LEAST_SHARE * took.clock_s), max(most, _LEAST_SHARE * took.clock_s)


def middle(took: Took, empty: Took) -> float:
    """The seconds of the call by the clock, including waiting."""
    return max(took.clock_s - empty.clock_s, _LEAST_SHARE * took.clock_s)


def _states(pid: int) -> frozenset[str]:
    """The states of a process's threads, as letters; empty if the process has ended."""
    found = set()
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            if words := stat_words(f"/proc/{pid}/task/{task}"):
                found.add(words[0])
    return frozenset(found)


def _spent_s(pids: list[int]) -> float:
    """The CPU time of all of them and of their ended children."""
    return sum(sum(map(int, words[11:15])) for pid in pids if (words := stat_words(f"/proc/{pid}"))) / _TICKS_PER_S


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def waits_s(pids: Iterable[int]) -> dict[str, float]:
    """For each thread of these processes, how many seconds so far it was ready and had no core."""
    found = {}
    for pid in pids:
        with suppress(OSError):  # it has ended
            for task in os.listdir(f"/proc/{pid}/task"):
                with suppress(OSError, IndexError):
                    with open(f"/proc/{pid}/task/{task}/schedstat", "rb", buffering=0) as file:
                        found[task] = int(file.read().split()[1]) / 1e9
    return found


def _stolen_s() -> float:
    try:
        with open("/proc/stat", encoding="ascii") as file:
            words = file.readline().split()
        return int(words[_STEAL]) / _TICKS_PER_S
    except (OSError, IndexError):
        return 0.0
