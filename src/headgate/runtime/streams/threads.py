"""A few threads for work that nobody can vouch for, such as a mapping's own function in Python.

They are few, because each of them takes turns with the event loop. They are daemons: one that never ends does not keep
the process from ending. And one that has been busy for long counts no more: another takes its place, so that work which
never ends holds up only what waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

STUCK_S = 10.0


class Threads:
    """Runs work in threads, at most `most` at once that are not stuck."""

    def __init__(self, most: int, name: str, stuck_s: float = STUCK_S) -> None:
        self._most, self._name, self._stuck_s = most, name, stuck_s
        self._calls: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._busy_since_s: dict[threading.Thread, float | None] = {}
        self._lock = threading.Lock()

    async def run(self, work: Callable[[], T]) -> T:
        """Do this in one of the threads."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((future, work))
        try:
            while not future.done():
                self._staff()
                await asyncio.wait({future}, timeout=self._stuck_s)
        finally:
            future.cancel()  # What nobody waits for is not begun. If it is done, this does nothing.
        return future.result()

    def _staff(self) -> None:
        """Start a thread if there are too few."""
        with self._lock:
            counted = sum(not self._is_stuck(since_s) for since_s in self._busy_since_s.values())
            if counted < self._most:
                thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._busy_since_s[thread] = None
                thread.start()

    def _is_stuck(self, since_s: float | None) -> bool:
        return since_s is not None and time.monotonic() - since_s >= self._stuck_s

    def _serve(self) -> None:
        me = threading.current_thread()
        while True:
            future, work = self._calls.get()
            began_s = time.monotonic()
            with self._lock:
                self._busy_since_s[me] = began_s
            if not future.cancelled():
                _answer(future, work)
            with self._lock:
                if self._is_stuck(began_s):  # Another has taken its place.
                    del self._busy_since_s[me]
                    return
                self._busy_since_s[me] = None


def _answer(future: asyncio.Future[Any], work: Callable[[], Any]) -> None:
    try:
        result, error = work(), None
    except BaseException as caught:
        result, error = None, caught

    def give() -> None:
        if not future.done():
            future.set_result(result) if error is None else future.set_exception(error)

    with contextlib.suppress(RuntimeError):  # The loop has closed: nobody waits for the answer.
        future.get_loop().call_soon_threadsafe(give)
