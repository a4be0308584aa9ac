"""Waiting for what a test asserts: one deadline for all, and one way to look again and again."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

LONG_S = 180.0  # For what must happen, on a machine that may be busy. Only a test that fails waits for so long.
LOOK_S = 0.02
SELDOM_S = 0.1


def less_often(pause_s: float) -> float:
    """The next pause: the longer something takes, the less often one looks, or looking is what keeps a machine busy."""
    return min(pause_s * 1.25, max(pause_s, SELDOM_S))


async def until(is_so: Callable[[], Any], what: str = "", timeout_s: float = LONG_S, look_s: float = LOOK_S) -> Any:
    """Until this, which may be a coroutine function, returns something true; returns that."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = is_so()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"it did not become so: {what or inspect.getsource(is_so)}"
        await asyncio.sleep(look_s)
        look_s = less_often(look_s)


def wait_until(is_so: Callable[[], Any], what: str = "", timeout_s: float = LONG_S, look_s: float = LOOK_S) -> Any:
    """The same where there is no event loop."""
    deadline = time.monotonic() + timeout_s
    while not (found := is_so()):
        assert time.monotonic() < deadline, f"it did not become so: {what or inspect.getsource(is_so)}"
        time.sleep(look_s)
        look_s = less_often(look_s)
    return found
