"""`Progress`: what a check knows so far, and where its time goes. Each answer is sent as soon as it is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Self, SupportsIndex

from ...core.answers import Question
from ...core.check_parts import Phase
from ...core.orders import Emit
from ...core.replies import Checked, Event
from .foreign.process import ForeignProcess

_PLAIN = ("build", "check", "time")  # phases of events that are named by their text


class Answers(list[Question]):
    """The questions in the order asked. `changed` is called after each change; a new one gets its `seconds`."""

    def __init__(self, seconds: Callable[[], float], changed: Callable[[], None]) -> None:
        super().__init__()
        self._seconds, self._changed = seconds, changed

    def append(self, question: Question) -> None:
        super().append(replace(question, seconds=round(self._seconds(), 1)))
        self._changed()

    def extend(self, questions: Iterable[Question]) -> None:
        """One by one: an answer of a generator is shown before its next question is asked."""
        for question in questions:
            self.append(question)

    def __iadd__(self, questions: Iterable[Question]) -> Self:  # type: ignore[misc, override]  # only Questions are added
        self.extend(questions)
        return self

    def __setitem__(self, place: SupportsIndex, question: Question) -> None:  # type: ignore[override]  # no slices here
        super().__setitem__(place, question)
        self._changed()

    def drop(self, key: str) -> None:
        """Remove an answer, because another one replaces it."""
        self[:] = [q for q in self if q.key != key]


class Progress:
    """`emit` begins a phase; `known` holds what is found beside the answers. `processes`: reference, candidate, others."""

    def __init__(self, emit: Emit, known: Checked, processes: tuple[ForeignProcess, ...]) -> None:
        self._emit, self.known, self._processes = emit, known, processes
        self._begun = time.monotonic()
        self._phases: dict[str, Phase] = {}
        self._now, self._since = "starting", self._spent()
        self.questions = Answers(lambda: time.monotonic() - self._begun, self.tell)
        self.tell()

    def emit(self, event: Event) -> None:
        """What is done from now on. Texts of one phase count together, and so do all turns of one direction."""
        self._count()
        self._now = event.text.partition(", turn ")[0] if event.phase in _PLAIN else event.phase
        self._emit(event)

    @property
    def so_far(self) -> Checked:
        self._count()
        return replace(self.known, questions=tuple(self.questions), phases=tuple(self._phases.values()),
                       seconds=round(time.monotonic() - self._begun, 1))

    def tell(self) -> None:
        """Send all that is known now."""
        self._emit(Event("answer", self._now, self.so_far))

    def _count(self) -> None:
        """Add the time since the last count to the current phase."""
        spent = self._spent()
        before = self._phases.get(self._now, Phase(self._now, 0.0))
        self._phases[self._now] = replace(before, **{
            f.name: getattr(before, f.name) + getattr(spent, f.name) - getattr(self._since, f.name)
            for f in fields(Phase) if f.name != "name"})
        self._since = spent

    def _spent(self) -> Phase:
        """Since the start of the check."""
        reference, candidate, *_ = parts = [process.spent for process in self._processes]
        return Phase("", time.monotonic() - self._begun, reference.seconds + sum(p.seconds for p in parts[2:]),
                     candidate.seconds, **{name: sum(getattr(p, name) for p in parts) for name in (
                         "truth_s", "moved_s", "sent_bytes", "received_bytes", "requests", "starts")})
