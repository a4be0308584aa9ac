"""The session of one incarnation's beats, and the lock that says that it lives.

The lock belongs to the session, so the server lets go of it as soon as the session ends: milliseconds after the process
has died, because the kernel closes its sockets, and not while the process is merely stopped. Each beat writes whether
its session has the lock. It may not have it, for one beat or for many: while another node is about to end this
incarnation, while the server has not noticed the end of an earlier session of ours, and behind a pooler, which hands
out another server's session for each transaction. Then nobody may take a free lock for a sign.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from uuid import UUID

import asyncpg

from headgate.ids import lock_key
from headgate.store.database import Check, Session, connect, split_url, sql, store_errors

_NOTICE = ("SET client_connection_check_interval = 250", "SET tcp_user_timeout = 3000")


def lock_of(incarnation: UUID) -> int:
    """The key of the lock that an incarnation holds while it lives."""
    return lock_key("incarnation", incarnation)


async def _notice_soon(session: Session) -> None:
    """Have the server notice soon that we are gone: while it works on a statement, and if our machine falls silent."""
    for setting in _NOTICE:
        with suppress(asyncpg.PostgresError):  # Not every system can.
            await session.execute(setting)


class BeatSession:
    """One session, outside any pool. After an error it is of no more use; `broken` says that it has ended by itself."""

    def __init__(self, session: Session, check: Check, incarnation: UUID, *, is_pooled: bool) -> None:
        self.broken = asyncio.Event()
        self._session = session
        self._check = check
        self._incarnation = incarnation
        self._is_pooled = is_pooled
        self._locked_by: int | None = None  # The server's process that took the lock for us.
        session.add_termination_listener(lambda _: self.broken.set())

    @classmethod
    async def open(cls, url: str, check: Check, incarnation: UUID) -> BeatSession:
        """Connect, if this is the registry that it should be."""
        session = await connect(url)
        is_pooled = split_url(url)[1]
        try:
            with store_errors():
                if not is_pooled:
                    await check(session)
                    await _notice_soon(session)
        except BaseException:
            session.terminate()
            raise
        return cls(session, check, incarnation, is_pooled=is_pooled)

    async def beat(self) -> bool:
        """One more beat, with the lock if we can get it. False: this incarnation has been ended."""
        with store_errors():
            if self._is_pooled:
                return await self._beat_in_transaction()
            if self._locked_by is None:
                self._locked_by = await self._session.fetchval(sql("nodes/take_lock"), lock_of(self._incarnation))
            return await self._beat()

    async def _beat(self) -> bool:
        found = await self._session.fetchval(sql("nodes/beat"), self._incarnation, self._locked_by)
        return found is not None

    async def _beat_in_transaction(self) -> bool:
        """The driver prepares a statement before it sends it, and a pooler may lead the two to different sessions. And
        it may have connected to another server meanwhile."""
        await self._session.execute("BEGIN")
        await self._check(self._session)
        is_alive = await self._beat()
        await self._session.execute("COMMIT")
        return is_alive

    def close(self) -> None:
        """End the session at once; the lock is free."""
        self._session.terminate()
