"""What the suites share: a limit for every step, and a count of what is held."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

WAIT_S = 90.0  # No step of a healthy connector takes as long, on a busy machine either.


async def soon(waiting: Awaitable[T]) -> T:
    """The result, or a failed test instead of one that hangs."""
    return await asyncio.wait_for(waiting, WAIT_S)


async def until_no_more_than(before: tuple[int, int]) -> None:
    """Wait until everything is let go. The thread of a cancelled call, and a peer, may need a moment."""
    end_s = asyncio.get_running_loop().time() + WAIT_S
    while any(now > then for now, then in zip(held_resources(), before, strict=True)):
        assert asyncio.get_running_loop().time() < end_s, f"files and tasks: {held_resources()}, before: {before}"
        gc.collect()
        await asyncio.sleep(0.01)


def held_resources() -> tuple[int, int]:
    """How many files are open, where that can be known, and how many tasks there are."""
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    return files, len(asyncio.all_tasks())
