"""An executor whose threads end with the process, and items that several threads share. With `ThreadPoolExecutor` Python waits
for its threads, so after Ctrl-C it would wait for the running compilers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_POLL_S = 0.05


class DaemonThreads(Executor):
    """An executor of `size` threads. Results, errors and the order of work are as in `ThreadPoolExecutor`."""

    def __init__(self, size: int) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(size)]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._jobs.put(partial(_carry_out, future, partial(call, *args, **named)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class Shared(Generic[T]):
    """Items that several threads take from one source. A thread that cannot finish its item gives it back to the others. Only
    one thread at a time reads `items`. If it gives None, no item is available at the moment."""

    def __init__(self, items: Iterator[T | None]) -> None:
        self._items = items
        self._asking = threading.Lock()
        self._counting = threading.Lock()
        self._returned: list[T] = []
        self._out = 0            # number of items that were taken and are neither done nor given back
        self._ended = False

    def take(self) -> T | None:
        """The next item; None if there will be no more. It waits while other threads hold items, because they may give them
        back."""
        while True:
            with self._asking:
                item = self._next()
                if item is not None:
                    return item
                if self.over:
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

    @property
    def over(self) -> bool:
        """Whether no item is left and no thread holds one."""
        with self._counting:
            return self._ended and not self._out and not self._returned

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


def _carry_out(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # whoever asks for the result gets it
        future.set_exception(error)
