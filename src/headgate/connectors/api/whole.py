"""What storages may have besides: the schema of a whole database, in the source's own words.

A reader that has it is a `WholeReader`, and a writer of the same family that can make it is a `WholeWriter`. Rows
travel in chunks as always; what surrounds them are *definitions*, which `core.chunks.definitions` explains.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable
from uuid import UUID

from headgate.connectors.api.bulk import Table
from headgate.core.chunks.definitions import Definition, Moment
from headgate.core.chunks.left import Left

__all__ = ["Around", "Definition", "Left", "Moment", "Wanted", "WholeReader", "WholeWriter"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which part of a database is copied. Without patterns: all of it."""

    schema: bool = True  # The definitions. If not, the target has the tables.
    data: bool = True  # The rows.
    include: tuple[str, ...] = ()  # Patterns of schemas and tables (`connectors.sql.patterns`).
    exclude: tuple[str, ...] = ()
    owners: bool = True
    privileges: bool = True


@dataclass(frozen=True, slots=True)
class Around:
    """How rows come into tables that are there."""

    tables: tuple[str, ...]  # In the order of their foreign keys.
    after: dict[str, tuple[str, ...]]  # The tables that one is filled after; none if no foreign key looks at rows.
    definitions: tuple[Definition, ...]  # What is done before and after.
    quiet: bool  # No trigger sees the rows.

    @property
    def made_again(self) -> list[Definition]:
        """What is dropped before the rows and made again after them."""
        return [one for one in self.definitions if one.alone]


@runtime_checkable
class WholeReader(Protocol):
    """A `Reader` that knows its database's definitions."""

    async def why_not_whole(self) -> str:
        """Why it cannot tell its definitions here. Empty: it can."""
        ...

    async def has(self, pattern: str) -> bool:
        """Whether a pattern means anything: a schema, a table, a view."""
        ...

    async def whole_tables(self, wanted: Wanted) -> list[str]:
        """The tables that have rows to copy, each by a name that is the same at the target. Partitions are tables."""
        ...

    async def describe_rows(self, table: str) -> Table:
        """What is needed to copy the rows of a table whose definitions are copied, too: less than `describe` says."""
        ...

    async def definitions(self, wanted: Wanted) -> tuple[list[Definition], list[Left]]:
        """All definitions, in an order in which they can be made, as of the snapshot that this session holds. And what
        is left out because it needs something that was excluded."""
        ...

    def statements(self, definition: Definition) -> AsyncIterator[str]:
        """The statements of a definition that has too many to be held at once."""
        ...

    async def last_definitions(self, wanted: Wanted, after: int) -> list[Definition]:
        """What follows everything else, with numbers greater than `after`: how far sequences have counted."""
        ...


@runtime_checkable
class WholeWriter(Protocol):
    """A `Writer` that can make definitions."""

    async def made(self, dump: UUID) -> set[str]:
        """The keys of the definitions that the ledger has."""
        ...

    async def make(
        self, dump: UUID, definition: Definition, statements: AsyncIterator[str] | None = None
    ) -> Sequence[Left]:
        """Make one, and its line in the ledger, in one transaction. Returns what of it could not be made, which has no
        line. What the ledger has is not made again."""
        ...

    async def existing(self, tables: Collection[str]) -> list[str]:
        """Which of these tables the target has."""
        ...

    async def around(self, tables: Sequence[str]) -> Around:
        """How rows come into these tables, which are there. Raises `Refused` if triggers would see them."""
        ...

    async def tidy_up(self, dump: UUID) -> None:
        """The whole dump is complete: forget its lines, and the ledger if no other dump has any."""
        ...
