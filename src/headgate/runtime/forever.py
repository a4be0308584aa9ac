"""Loops that must not die: an error that nobody thought of is logged, and the loop begins again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

AGAIN_S = 1.0

log = structlog.get_logger()


async def forever(loop: Callable[[], Awaitable[None]], name: str) -> None:
    """Run a loop until cancelled. Half a node that seems alive is worse than one that complains."""
    while True:
        try:
            await loop()
        except Exception:
            log.exception("a loop failed and begins again", loop=name)
        await asyncio.sleep(AGAIN_S)
