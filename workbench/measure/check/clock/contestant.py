"""`Contestant`: who is timed in turns; and the errors that end the timing."""

from __future__ import annotations

from dataclasses import dataclass


class NotVaried(Exception):
    """No input can be changed between calls, so all calls would get the same inputs."""


class Wrong(Exception):
    """A timed call gave a wrong result, or the file did something else meanwhile."""

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
