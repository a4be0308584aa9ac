"""The sessions that a node's streams share, a few for each URL.

A stream borrows one for each write and has none at rest. asyncpg's own pool makes a task, a proxy and a survey of all
its sessions for every loan, which for a single record is a third of the whole write. This one hands sessions out as
they are: its borrower ends its transaction or the session itself before it comes back, so nothing has to be
reset or looked after.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from asyncpg import Connection

SIZE = 8
WAIT_S = 10.0  # For a session, while all of them are lent.
IDLE_S = 60.0  # A session that was idle for this long is closed.
MOST_LOANS = 50_000  # Then a session is closed, because what a server's process keeps of the tables it met only grows.


class Pool:
    """Sessions that are lent, one to each borrower at a time."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        self._connect = connect
        self._free = asyncio.Semaphore(SIZE)
        self._idle: deque[tuple[float, Connection]] = deque()  # Since when. Used last, lent first: the others may end.
        self._loans: dict[Connection, int] = {}  # Of every session that is open, how often it was lent.
        self._tidying: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def acquire(self) -> Connection:
        """An open session. Raises TimeoutError if none comes back in time, or what connecting raises."""
        if self._free.locked():
            async with asyncio.timeout(WAIT_S):
                await self._free.acquire()
        else:
            await self._free.acquire()
        try:
            while self._idle:
                connection = self._idle.pop()[1]
                if not connection.is_closed():
                    self._loans[connection] += 1
                    return connection
                del self._loans[connection]
            connection = await self._connect()
        except BaseException:
            self._free.release()
            raise
        self._loans[connection] = 1
        return connection

    def release(self, connection: Connection) -> None:
        """Take a session back. One that is in a transaction, or has ended, is lent no more."""
        is_good = not connection.is_closed() and not connection.is_in_transaction()
        if not is_good or self._is_closed or self._loans[connection] >= MOST_LOANS:
            self._end(connection)
        else:
            loop = asyncio.get_running_loop()
            self._idle.append((loop.time(), connection))
            if self._tidying is None:
                self._tidying = loop.call_later(IDLE_S, self._tidy)
        self._free.release()

    async def close(self) -> None:
        """End all sessions: those that are idle in good order, those that are lent when they come back."""
        self._is_closed = True
        if self._tidying is not None:
            self._tidying.cancel()
        while self._idle:
            connection = self._idle.pop()[1]
            with suppress(Exception):
                await connection.close()
            del self._loans[connection]

    def terminate(self) -> None:
        """End all sessions at once."""
        self._is_closed = True
        for connection in self._loans:
            connection.terminate()

    def _tidy(self) -> None:
        """End those that nobody has needed for long, and look again when the next one may be due."""
        loop = asyncio.get_running_loop()
        while self._idle and self._idle[0][0] + IDLE_S <= loop.time():
            self._end(self._idle.popleft()[1])
        self._tidying = loop.call_at(self._idle[0][0] + IDLE_S, self._tidy) if self._idle else None

    def _end(self, connection: Connection) -> None:
        del self._loans[connection]
        connection.terminate()
