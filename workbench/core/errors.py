"""Errors that a user can cause. The text of each is one sentence that names the value and says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BadRequest(ValueError):
    """A request that cannot be carried out. `str(error)` is the sentence that page, command line and notebook show."""

    def __init__(self, sentence: str, *, field: str | None = None) -> None:
        super().__init__(sentence)
        self.field = field


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: the work stops at once. Ctrl-C, in contrast, may first ask the work to finish."""


class RenderError(BadRequest):
    """A template that cannot be rendered: a wrong header, an undefined name, a wrong value for a tunable."""

    def __init__(self, sentence: str, *, advice: str = "", field: str | None = None) -> None:
        super().__init__(sentence, field=field)
        self.advice = advice


def or_nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of a sentence that refuses `name`: "did you mean naive_gather?". If no known name is similar or begins so, it is
    `otherwise`, or a list of all names."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.7) or [n for n in names if name and n.startswith(name)]
    return f"did you mean {near[0]}?" if near else otherwise or f"there are {', '.join(names) or 'none'}."
