"""Loops that must not die: an unexpected error is logged, and the loop starts again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

AGAIN_S = 1.0

log = structlog.get_logger()


async def forever(loop: Callable[[], Awaitable[None]], name: str) -> None:
    """Run a loop until cancelled. A node with a dead loop that seems alive is worse than one that complains."""
    while True:
        try:
            await loop()
        except Exception:
            log.exception("a loop failed and starts again", loop=name)
        await asyncio.sleep(AGAIN_S)
