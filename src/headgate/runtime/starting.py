"""Starting: what needs the database is tried until the database answers, and that it is waited for is said once.

A database that is away, starting, recovering, or only reads, because it is a standby or was told so, is normal at a
node's start: machines start in any order. What is wrong for good, such as a password, is raised at once. Of a registry
that is not what it was, `runtime.cluster.lineage` says what there is to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from headgate.errors import Displaced, StoreError
from headgate.runtime.cluster.lineage import LineageWatch
from headgate.store.database import POOL_SIZE, Database
from headgate.store.migrate import migrate

RETRY_S = 0.5

T = TypeVar("T")

log = structlog.get_logger()


class Start:
    """One node's start, and its waiting for the database."""

    def __init__(self, lineage: LineageWatch, on_wait: Callable[[str], None] = lambda reason: None) -> None:
        self._lineage = lineage
        self._on_wait = on_wait  # Told each time, and why.
        self._has_said = False

    async def until_done(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do this as soon as the database lets us. What was half done must be harmless."""
        while True:
            try:
                return await work()
            except StoreError as error:
                if not self._has_said and not isinstance(error, Displaced):
                    log.warning("waiting for the database", error=error.message)
                    self._has_said = True
                self._on_wait(error.message)
            await asyncio.sleep(RETRY_S)

    async def open(self, size: int = POOL_SIZE) -> Database:
        """Connect, and bring the schema up to date."""
        return await self.until_done(lambda: self._open(size))

    async def _open(self, size: int) -> Database:
        database = await self._lineage.open(size)
        try:
            await _check_writes(database)
            applied = await migrate(database)
        except BaseException:
            await database.close()
            raise
        if applied:
            log.info("database set up", migrations=applied)
        return database


async def _check_writes(database: Database) -> None:
    if await database.fetchval("SHOW transaction_read_only") == "on":
        raise StoreError("the database only reads: it is a standby, or was told so")
