"""What is to be removed from the sinks of deleted datasources. Any node takes what is due; doing it twice is harmless.

A row is one stream and one sink, named by a version of its datasource. It is written when the stream is purged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from uuid import UUID

from headgate.store.database import Database, sql
from headgate.store.events import Event, append

AT_ONCE = 500  # Streams: a datasource that programs push to may have thousands.
TAKEN = timedelta(minutes=2)  # How long somebody who takes some has for it.


@dataclass(frozen=True, slots=True)
class Removal:
    """Streams of one deleted datasource that have left something in one sink."""

    datasource: UUID
    name: str  # The datasource's, as it was.
    version: int  # Whose sink it is.
    streams: Sequence[UUID]
    attempts: int  # This one included.
    age_s: float  # Since the datasource was purged.


@dataclass(frozen=True, slots=True)
class WaitingRemoval:
    """The same, as people see it."""

    name: str
    version: int
    streams: int
    attempts: int
    reason: str | None  # Why the last try failed.


class Removals:
    """Take what is due, and say what came of it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self) -> list[Removal]:
        """Some that are due. They are due again later, unless they are ended or put off."""
        rows = await self._database.fetch(sql("removals/take"), AT_ONCE, TAKEN)
        found = []
        for (datasource, name, version), some in groupby(
            sorted(rows, key=lambda row: (row["datasource"], row["version"], row["stream"])),
            key=lambda row: (row["datasource"], row["name"], row["version"]),
        ):
            members = list(some)
            attempts, age_s = max(row["attempts"] for row in members), max(row["age_s"] for row in members)
            streams = [row["stream"] for row in members]
            found.append(Removal(datasource, name, version, streams, attempts, age_s))
        return found

    async def end(self, removal: Removal, event: Event | None) -> None:
        """There is nothing left to do: it was done, or is given up."""
        async with self._database.transaction() as connection:
            await connection.execute(sql("removals/end"), *_key(removal))
            await append(connection, [event] if event is not None else [])

    async def put_off(self, removal: Removal, wait_s: float, reason: str) -> None:
        """It could not be done now, for this reason."""
        await self._database.execute(sql("removals/put_off"), *_key(removal), wait_s, reason)

    async def waiting(self) -> list[WaitingRemoval]:
        """Everything that is yet to be removed."""
        rows = await self._database.fetch(sql("removals/list"))
        return [
            WaitingRemoval(row["name"], row["version"], row["streams"], row["attempts"], row["reason"]) for row in rows
        ]


def _key(removal: Removal) -> tuple[UUID, int, list[UUID]]:
    return removal.datasource, removal.version, list(removal.streams)
