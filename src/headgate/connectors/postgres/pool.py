"""The sessions of a node's streams with one server, handed from write to write.

A stream borrows a session for a write and holds none at rest. The driver's pool keeps them, but to take one out of it
and put it back costs as much as a small write does. So a session that was given back stays at hand for a moment, and
the next write has it at once. What nobody has wanted since goes back into the pool, which closes what it does not need.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from asyncpg import Connection, Pool

from headgate.connectors.postgres.session import CONNECT_S

AT_HAND_S = 2.0


class Sessions:
    """Those with one server, as one user."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._at_hand: list[Connection] = []  # The last one that was given back is taken first.
        self._unused = 0  # How many of them, from the first on, nobody has taken since the last look.
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._giving_back: set[asyncio.Task[None]] = set()

    async def take(self) -> Connection:
        """A session for one user, until it is given back."""
        while self._at_hand:
            session = self._at_hand.pop()
            self._unused = min(self._unused, len(self._at_hand))
            if not session.is_closed():
                return session
            await self._pool.release(session)
        self._waiting += 1
        try:
            return await self._pool.acquire(timeout=CONNECT_S)
        finally:
            self._waiting -= 1

    async def give_back(self, session: Connection) -> None:
        """It may be used again, unless it is broken. Whatever transaction it was in has ended."""
        if self._waiting or session.is_closed() or self._pool.is_closing():
            await self._pool.release(session)
            return
        self._at_hand.append(session)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(AT_HAND_S, self._look)

    def _look(self) -> None:
        """Give back what nobody has wanted since the last look."""
        unused, self._at_hand = self._at_hand[: self._unused], self._at_hand[self._unused :]
        self._unused = len(self._at_hand)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(AT_HAND_S, self._look) if self._at_hand else None
        for session in unused:
            task = loop.create_task(self._release(session), name="give a session back")
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    async def _release(self, session: Connection) -> None:
        with suppress(Exception):  # Of a session that is broken, or a pool that has ended.
            await self._pool.release(session)

    async def close(self) -> None:
        """End all of them, when those that are in use have been given back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at_hand, self._at_hand = self._at_hand, []
        await asyncio.gather(*map(self._release, at_hand), *self._giving_back)
        await self._pool.close()

    def terminate(self) -> None:
        """End all of them now."""
        self._pool.terminate()
