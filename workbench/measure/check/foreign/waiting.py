"""How long a call waited for a core: this part of its time may be due to other processes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STEAL = 8                      # of /proc/stat's first line, name included
_LEAST_SHARE = 0.02             # the least share of a time that remains, whatever is subtracted


class Took(NamedTuple):
    """Seconds by the clock, and for how many of them a ready thread had no core."""

    clock_s: float
    waited_s: float = 0.0


def waited_s(pids: Iterable[int]) -> float:
    """Seconds so far that threads of these processes were ready and had no core, and that a hypervisor took from this machine.
    0 if the Linux kernel does not count them."""
    return sum(map(_without_a_core_s, pids)) + _stolen_s()


def alone(took: Took, empty: Took) -> tuple[float, float]:
    """(least, most) seconds that the call would have taken without other processes, minus the `empty` call (request, change and
    copy). It is not known how much of the waiting time prolonged the call, so there are two bounds."""
    least = took.clock_s - took.waited_s - empty.clock_s
    most = took.clock_s - max(0.0, empty.clock_s - empty.waited_s)
    return max(least, _LEAST_SHARE * took.clock_s), max(most, _LEAST_SHARE * took.clock_s)


def middle(took: Took, empty: Took) -> float:
    """The seconds of the call by the clock, including waiting."""
    return max(took.clock_s - empty.clock_s, _LEAST_SHARE * took.clock_s)


def _without_a_core_s(pid: int) -> float:
    total = 0
    with suppress(OSError):  # it has ended
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError, IndexError):
                with open(f"/proc/{pid}/task/{task}/schedstat", "rb", buffering=0) as file:
                    total += int(file.read().split()[1])
    return total / 1e9


def _stolen_s() -> float:
    try:
        with open("/proc/stat", encoding="ascii") as file:
            words = file.readline().split()
        return int(words[_STEAL]) / _TICKS_PER_S
    except (OSError, IndexError):
        return 0.0
