"""`Plan`: what is timed. `Contestant`: who is timed in turns. What ends the timing: errors, and `NotTimed`."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..party import Party
from ..questions.cases import Case
from ..trialrun import ResultErrors


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
    strides: tuple[tuple[int, ...], ...] | None = None
    precision: str = ""


@dataclass(frozen=True)
class Plan:
    """What is timed. `benchmark`: the reference in another process, for the ways with cudnn.benchmark. `errors`: what the
    check found and allowed for each result of this case. `factor`: of all values that are drawn for the timed
    calls."""

    case: Case
    effort: str
    benchmark: Party | None = None
    errors: dict[str, ResultErrors] = field(default_factory=dict)
    factor: float = 1.0


@dataclass(frozen=True)
class NotTimed:
    """Why there are no times. `wrong`: a result was wrong when it was timed."""

    why: str
    wrong: bool = False
    advice: str = ""
