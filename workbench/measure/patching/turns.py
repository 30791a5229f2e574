"""Times two calls alternately by the clock of the host, as a user would: host and device together."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil

import torch

from ...core.patching import Pairs
from ...core.verdict import from_samples
from .step import synchronize

_WARM_UP = 3
_SAMPLE_MS = 2.0        # short calls are repeated within a sample until it takes this long
_MOST_REPEATS = 200
_LIMITS = {"quick": (10, 30, 1.0), "normal": (20, 200, 4.0), "full": (40, 1000, 15.0)}  # pairs at least, at most; seconds


def in_turns(original: Callable[[], object], patched: Callable[[], object], *, device: torch.device, effort: str,
             between: tuple[Callable[[], object], Callable[[], object]]) -> Pairs:
    """One sample of each in every turn; who is first changes from turn to turn. `between`: done, untimed, before each."""
    least, most, limit_s = _LIMITS[effort]
    runs = tuple(zip(between, (original, patched), strict=True))
    repeats = 1
    for prepare, run in runs:
        prepare()
        for _ in range(_WARM_UP):
            ms = _timed(run, 1, device)
        repeats = max(repeats, min(_MOST_REPEATS, ceil(_SAMPLE_MS / max(ms, 1e-6))))
    samples: tuple[list[float], list[float]] = ([], [])
    begun = time.perf_counter()
    while len(samples[0]) < most and (len(samples[0]) < least or time.perf_counter() - begun < limit_s):
        for which in (0, 1) if len(samples[0]) % 2 else (1, 0):
            runs[which][0]()
            samples[which].append(_timed(runs[which][1], repeats, device))
    verdict = from_samples(samples[1], samples[0], paired=True)
    theirs, ours = (sorted(taken)[len(taken) // 2] for taken in samples)
    return Pairs(theirs, ours, verdict.value, verdict.low, verdict.high, str(verdict.verdict), len(samples[0]))


def _timed(run: Callable[[], object], repeats: int, device: torch.device) -> float:
    """ms of one of so many calls."""
    synchronize(device)
    begun = time.perf_counter()
    for _ in range(repeats):
        run()
    synchronize(device)
    return max((time.perf_counter() - begun) * 1e3 / repeats, 1e-9)
