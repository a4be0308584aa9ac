"""The part of a PostgreSQL writer that makes the definitions of a whole database, and asks what is there.

What it does that with is imported when it is asked for: most dumps make no definitions, and all wait for imports.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from uuid import UUID

from asyncpg import Connection

from headgate.connectors.api.whole import Around, Definition, Left
from headgate.connectors.postgres.errors import Fault, error_text, fault_of, translate_errors
from headgate.connectors.postgres.session import where_is
from headgate.connectors.sql import ledger
from headgate.hidden import hide

TRIES = 5  # For a definition that meets a deadlock, or a lock that it does not get.


class MakesDefinitions:
    """A `WholeWriter`, on a writer's own session."""

    url: str

    @abstractmethod
    async def session(self) -> Connection:
        """The connection."""

    @abstractmethod
    async def make_ledger(self, connection: Connection) -> None:
        """Have the ledger."""

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        """One transaction."""

    async def made(self, dump: UUID) -> set[str]:
        """The definitions that the ledger has."""
        from headgate.connectors.postgres import making

        connection = await self.session()
        with translate_errors(where_is(self.url), ledger.TABLE):
            return await making.made(connection, dump)

    async def make(
        self, dump: UUID, definition: Definition, statements: AsyncIterator[str] | None = None
    ) -> Sequence[Left]:
        """Make one of the source's definitions."""
        from headgate.connectors.postgres import making

        for tried in range(1, TRIES + 1):
            try:
                async with self.transaction() as connection:
                    if not (place := connection.ledger):
                        await self.make_ledger(connection)
                        place = await making.place_of_ledger(connection)
                    left = await making.make(connection, place, dump, definition, statements)
                connection.ledger = place  # It has a line of this dump now, so it stays.
                return left
            except Exception as error:
                fault = fault_of(error)
                if fault is None or fault is Fault.GONE:
                    with translate_errors(where_is(self.url), definition.name):
                        raise
                if making.is_retried(error) and statements is None and tried < TRIES:
                    continue
                if await making.has_line(await self.session(), dump, definition):
                    return []
                return [definition.left(hide(error_text(error)))]
        raise AssertionError("the last try returns")

    async def existing(self, tables: Collection[str]) -> list[str]:
        """Which of these tables are there."""
        from headgate.connectors.postgres import making

        connection = await self.session()
        with translate_errors(where_is(self.url), "look for tables"):
            return await making.existing(connection, tables)

    async def around(self, tables: Sequence[str]) -> Around:
        """How rows come into these tables, which are there."""
        from headgate.connectors.postgres import rows_only

        connection = await self.session()
        with translate_errors(where_is(self.url), "look for foreign keys"):
            return await rows_only.around(connection, tables)

    async def tidy_up(self, dump: UUID) -> None:
        """Leave nothing of the dump but what it copied."""
        from headgate.connectors.postgres import making

        with translate_errors(where_is(self.url), ledger.TABLE):
            async with self.transaction() as connection:
                await making.tidy_up(connection, dump)
