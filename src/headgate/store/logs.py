"""The last lines that each stream logged, readable on any node. Unlogged: lines are for people, and cheap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from headgate.store.database import Database, Row, sql

KEEP = 500  # Lines per stream.


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


class Logs:
    """Append and read lines."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, lines: Sequence[Line]) -> None:
        """Write many lines, and trim the streams they belong to."""
        await self._database.execute(
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


def _kept(row: Row) -> Kept:
    fields = msgspec.json.decode(row["fields"], type=dict[str, object])
    return Kept(row["id"], Line(row["stream"], row["at"], row["level"], row["text"], fields))


def _fields(line: Line) -> str:
    try:
        return msgspec.json.encode(line.fields, enc_hook=str).decode()
    except (TypeError, ValueError, OverflowError):  # A log line may hold anything.
        return msgspec.json.encode({"fields": ascii(line.fields)}).decode()
