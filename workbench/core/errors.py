"""Errors that a user can cause. The text of each is one sentence that names the value and says what to do."""

from __future__ import annotations


class BadRequest(ValueError):
    """A request that cannot be carried out; `str(error)` is the sentence every face shows."""

    def __init__(self, sentence: str, *, field: str | None = None) -> None:
        super().__init__(sentence)
        self.field = field


class RenderError(BadRequest):
    """A template that cannot be rendered: a wrong header, an undefined name, a wrong value for a tunable."""

    def __init__(self, sentence: str, *, advice: str = "", field: str | None = None) -> None:
        super().__init__(sentence, field=field)
        self.advice = advice
