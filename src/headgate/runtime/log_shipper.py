"""Log lines of streams on their way into the database. Shipping never blocks or fails the code that logs."""

from __future__ import annotations

import asyncio
from collections import deque

from headgate.errors import StoreError
from headgate.store.logs import Line, Logs
from headgate.store.wake import Waker

SHIP_S = 1.0
MOST_WAITING = 5000  # Beyond this the oldest lines are dropped: logs must not eat the node's memory.


class LogShipper:
    """Keeps lines until the database has them."""

    def __init__(self) -> None:
        self._waiting: deque[Line] = deque(maxlen=MOST_WAITING)

    def keep(self, line: Line) -> None:
        """Ship this line with the others."""
        self._waiting.append(line)

    async def run(self, logs: Logs, waker: Waker) -> None:
        """Write the waiting lines every second, until cancelled."""
        while True:
            await asyncio.sleep(SHIP_S)
            await self.ship(logs, waker)

    async def ship(self, logs: Logs, waker: Waker) -> None:
        """Write what waits. Lines for a database that is away are kept, up to a limit."""
        lines = list(self._waiting)
        if not lines:
            return
        self._waiting.clear()
        try:
            await logs.append(lines)
        except StoreError:
            room = MOST_WAITING - len(self._waiting)  # Lines that came meanwhile are newer.
            self._waiting.extendleft(reversed(lines[len(lines) - min(room, len(lines)) :]))
            return
        waker.wake("logs")
