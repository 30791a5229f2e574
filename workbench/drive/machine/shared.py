"""Items that several threads take from one source. A thread that cannot finish its item gives it back to the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
_POLL_S = 0.05


class Shared(Generic[T]):
    """`items` is asked by one thread at a time; None from it means that there is nothing just now."""

    def __init__(self, items: Iterator[T | None]) -> None:
        self._items = items
        self._asking = threading.Lock()
        self._counting = threading.Lock()
        self._returned: list[T] = []
        self._out = 0            # taken, neither done nor given back
        self._ended = False

    def take(self) -> T | None:
        """The next item; None when there will be none. While others hold items it waits: they may give them back."""
        while True:
            with self._asking:
                item = self._next()
                if item is not None:
                    return item
                with self._counting:
                    if self._ended and not self._out and not self._returned:
                        return None
            time.sleep(_POLL_S)

    def done(self) -> None:
        with self._counting:
            self._out -= 1

    def give_back(self, item: T) -> None:
        with self._counting:
            self._returned.append(item)
            self._out -= 1

    def end(self) -> None:
        """Nothing more is given out."""
        with self._counting:
            self._ended, self._returned, self._out = True, [], 0

    def _next(self) -> T | None:
        with self._counting:
            if self._returned:
                self._out += 1
                return self._returned.pop()
        item = None
        if not self._ended:
            try:
                item = next(self._items)
            except StopIteration:
                self._ended = True
        if item is not None:
            with self._counting:
                self._out += 1
        return item
