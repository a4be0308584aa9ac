"""Events: append only, and visible in the order of their ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from headgate.ids import lock_key
from headgate.store.database import Database, sql

_LOCK = lock_key("events")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a datasource, or to the registry."""

    datasource: UUID | None
    name: str | None  # The datasource's, as it was then.
    type: str
    payload: dict[str, Any]
    actor: str


async def append(connection: Any, events: Sequence[Event]) -> None:
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

    async def after(self, datasource: UUID | None, id: int, limit: int = 500) -> list[Any]:
        """Events after this id, oldest first; of one datasource or of all."""
        return await self._database.fetch(sql("events/list"), datasource, id, limit)

    async def last(self, datasource: UUID | None, limit: int = 100) -> list[Any]:
        """The latest events, oldest first."""
        return await self._database.fetch(sql("events/list_last"), datasource, limit)
