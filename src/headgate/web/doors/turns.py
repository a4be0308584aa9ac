"""Turns: of all connections that have something to do, one works at a time, and the loop does everything else between.

A connection that was idle comes before those that have just had a turn, so that a beat or a batch is not delayed by
however many senders that always have more. Those that wait again get every second turn at least.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """The connections of one node that wait for their turn."""

    def __init__(self) -> None:
        self._fresh: deque[asyncio.Future[None]] = deque()
        self._again: deque[asyncio.Future[None]] = deque()
        self._was_fresh = False
        self._is_scheduled = False

    async def take(self, *, is_fresh: bool) -> None:
        """Wait for a turn. It lasts until the caller waits for something."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        (self._fresh if is_fresh else self._again).append(turn)
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._give, loop)
        await turn

    def _give(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give the next turn, and come back in the next round of the loop."""
        while self._fresh or self._again:
            self._was_fresh = bool(self._fresh) and not (self._was_fresh and self._again)
            turn = (self._fresh if self._was_fresh else self._again).popleft()
            if not turn.done():  # Its connection may have ended while it waited.
                turn.set_result(None)
                loop.call_soon(self._give, loop)
                return
        self._is_scheduled = False
