"""Which points to try next, from what was seen."""

from __future__ import annotations

import random
from collections.abc import Sequence

from .points import Points, Seen


def propose(points: Points, seen: Sequence[Seen], pending: Sequence[int], count: int, *, seed: int) -> list[int]:
    """At most `count` points, none of them seen or pending; fewer where the space is used up.

    The same arguments give the same answer: the state of a search is what was seen.
    """
    done = {one.point for one in seen} | set(pending)
    chosen = [i for i in dict.fromkeys(points.order) if i not in done][:count]
    left = sorted(set(range(len(points))) - done - set(chosen))
    more = min(count - len(chosen), len(left))
    return chosen + random.Random(f"{seed} {len(done)}").sample(left, more)
