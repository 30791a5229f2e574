"""Who takes part in the turns of timed calls, and what ends them."""

from __future__ import annotations

from dataclasses import dataclass


class NotVaried(Exception):
    """All calls would be given the same."""


class Wrong(Exception):
    """A timed call did not give what it should have given, or the file did something beside."""

    def __init__(self, sentence: str, advice: str = "Compute the result of each call within that call."
                 ) -> None:
        super().__init__(sentence)
        self.advice = advice


@dataclass
class Contestant:
    """The candidate, or one of PyTorch's ways in the process of the reference that it needs."""

    process: str                # a key of _Bench.parties
    way: str = ""               # a key of LADDER; "" is the module as it is called
    strides: list[list[int]] | None = None
    precision: str = ""
