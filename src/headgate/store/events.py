"""Events: append only, visible in the order of their ids, and forgotten when they are old."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from headgate.ids import lock_key
from headgate.store.database import Database, Row, Session, sql

_LOCK = lock_key("events")
_FORGETS = "; SET LOCAL headgate.forgets_events = 'on'"
AT_ONCE = 2000  # Events that are removed in one transaction: some milliseconds.


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a datasource, or to the registry."""

    datasource: UUID | None
    name: str | None  # The datasource's, as it was then.
    type: str
    payload: Mapping[str, object]
    actor: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event as it was recorded."""

    id: int  # Later events have higher ids.
    datasource: UUID | None
    name: str | None  # The datasource's, as it was then.
    type: str  # One of those that docs/reference/events.md lists.
    payload: dict[str, object]
    actor: str  # A token's name, or `headgate`.
    at: datetime


@dataclass(frozen=True, slots=True)
class Which:
    """Which events somebody wants to see. None: all."""

    name: str | None = None  # Of the datasource, as it was then. It may be gone.
    type: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """When they happened. None: at any time."""

    since: datetime | None = None
    until: datetime | None = None


async def append(connection: Session, events: Sequence[Event]) -> None:
    """Append as the last thing of a transaction.

    The lock is always the last one that a transaction takes, so nobody can wait for another in a circle; and as ids
    are drawn under it, a reader of "id > mine" misses none.
    """
    if not events:
        return
    await connection.execute(sql("events/lock"), _LOCK)
    await connection.execute(
        sql("events/append"),
        [event.datasource for event in events],
        [event.name for event in events],
        [event.type for event in events],
        [msgspec.json.encode(event.payload, enc_hook=str).decode() for event in events],
        [event.actor for event in events],
    )


class Events:
    """Record and read events."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, events: Sequence[Event]) -> None:
        """Append in its own transaction."""
        async with self._database.transaction() as connection:
            await append(connection, events)

    async def after(self, datasource: UUID | None, id: int, limit: int = 500) -> list[Recorded]:
        """Events after this id, oldest first; of one datasource or of all."""
        return [_recorded(row) for row in await self._database.fetch(sql("events/list"), datasource, id, limit)]

    async def following(self, which: Which, id: int, limit: int = 500) -> list[Recorded]:
        """Events after this id, oldest first."""
        rows = await self._database.fetch(sql("events/follow"), which.name, which.type, id, limit)
        return [_recorded(row) for row in rows]

    async def page(self, which: Which, span: Span, before: int, limit: int) -> list[Recorded]:
        """The latest before this id, latest first."""
        wanted = (which.name, which.type, before, span.since, span.until, limit)
        rows = await self._database.fetch(sql("events/page"), *wanted)
        return [_recorded(row) for row in rows]

    async def types(self) -> list[str]:
        """The types that there are events of, in the order of the alphabet."""
        return [row["type"] for row in await self._database.fetch(sql("events/types"))]

    async def forget(self, keep_s: float) -> int:
        """Remove some of those that are older than this; returns how many."""
        async with self._database.transaction(_FORGETS) as connection:
            done = await connection.execute(sql("events/forget"), timedelta(seconds=keep_s), AT_ONCE)
        return int(done.rpartition(" ")[2])

    async def last(self, datasource: UUID | None, limit: int = 100) -> list[Recorded]:
        """The latest events, oldest first."""
        return [_recorded(row) for row in await self._database.fetch(sql("events/list_last"), datasource, limit)]


def _recorded(row: Row) -> Recorded:
    payload = msgspec.json.decode(row["payload"], type=dict[str, object])
    return Recorded(row["id"], row["datasource"], row["name"], row["type"], payload, row["actor"], row["at"])
