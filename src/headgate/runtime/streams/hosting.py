"""Connectors whose methods block: each source or sink gets its own thread, so that it cannot stop the node."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import queue
import threading
from collections.abc import Callable
from typing import Any


class Threaded:
    """An object with blocking methods, seen as one with awaitable methods. Calls run one after another.

    The thread is a daemon: one that hangs forever is left behind when its run is abandoned, and does not keep the
    process from ending.
    """

    def __init__(self, inner: Any, name: str) -> None:
        self._inner = inner
        self._calls: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any], bool] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        async def call(*args: Any) -> Any:
            future = asyncio.get_running_loop().create_future()
            self._calls.put((future, lambda: getattr(self._inner, method)(*args), method == "close"))
            try:
                return await future
            finally:
                if method == "close":
                    self._calls.put(None)

        return call

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            future, work, is_last = call
            if future.cancelled() and not is_last:
                continue
            try:
                result, error = work(), None
            except BaseException as caught:
                result, error = None, caught
            with contextlib.suppress(RuntimeError):  # The loop has closed: nobody waits for the answer.
                future.get_loop().call_soon_threadsafe(_answer, future, result, error)


def awaitable(built: Any, name: str) -> Any:
    """A source or a sink whose methods can be awaited, whether or not they are plain ones that block."""
    return built if inspect.iscoroutinefunction(built.check) else Threaded(built, name)


def _answer(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
