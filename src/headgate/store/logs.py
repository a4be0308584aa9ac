"""The last lines that each stream logged, readable on any node. Unlogged: lines are for people, and cheap.

Ids are drawn under a lock, so they become visible in their order, whichever nodes write: who asks for what comes after
the last id misses no line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from headgate.ids import lock_key
from headgate.store.database import Database, Row, sql

KEEP = 500  # Lines per stream.
_LOCK = lock_key("logs")


@dataclass(frozen=True, slots=True)
class Line:
    """One log line of a stream."""

    stream: UUID
    at: datetime
    level: str
    text: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Kept:
    """A line as it was kept."""

    id: int  # Later lines have higher ids.
    line: Line


@dataclass(frozen=True, slots=True)
class Named:
    """A line as it was kept, with the name of its datasource."""

    id: int
    name: str
    line: Line


class Logs:
    """Append and read lines."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, lines: Sequence[Line]) -> None:
        """Write many lines, and trim the streams they belong to."""
        async with self._database.transaction() as connection:
            await connection.execute(sql("logs/lock"), _LOCK)
            await connection.execute(
                sql("logs/append"),
                [line.stream for line in lines],
                [line.at for line in lines],
                [line.level for line in lines],
                [line.text for line in lines],
                [_fields(line) for line in lines],
            )
        await self._database.execute(sql("logs/trim"), list({line.stream for line in lines}), KEEP)

    async def after(self, datasource: UUID, id: int, limit: int = KEEP) -> list[Kept]:
        """The latest lines of a datasource after this id, oldest first."""
        rows = await self._database.fetch(sql("logs/list"), datasource, id, limit)
        return [_kept(row) for row in rows]

    async def page(self, name: str | None, before: int, limit: int) -> list[Named]:
        """The latest lines before this id, latest first; of one datasource or of all."""
        return [_named(row) for row in await self._database.fetch(sql("logs/page"), before, name, limit)]

    async def following(self, name: str | None, after: int, limit: int = KEEP) -> list[Named]:
        """Lines after this id, oldest first; of one datasource or of all."""
        return [_named(row) for row in await self._database.fetch(sql("logs/follow"), after, name, limit)]

    async def last(self) -> int:
        """The id of the latest line; 0 if there is none."""
        return int(await self._database.fetchval(sql("logs/last")))


def _named(row: Row) -> Named:
    kept = _kept(row)
    return Named(kept.id, row["name"], kept.line)


def _kept(row: Row) -> Kept:
    fields = msgspec.json.decode(row["fields"], type=dict[str, object])
    return Kept(row["id"], Line(row["stream"], row["at"], row["level"], row["text"], fields))


def _fields(line: Line) -> str:
    try:
        return msgspec.json.encode(line.fields, enc_hook=str).decode()
    except (TypeError, ValueError, OverflowError):  # A log line may hold anything.
        return msgspec.json.encode({"fields": ascii(line.fields)}).decode()
