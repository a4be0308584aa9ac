"""The inbox: payloads that webhooks brought, durable and in order until their datasource has handled them.

Ids are drawn under the datasource's advisory lock, so they become visible in the order of their values, and a reader
of "id > mine" misses none. The append is one statement that calls one function: it takes the locks, refuses what is
full, drops replays, and commits, without waiting for us in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from headgate.core.figures import InboxBacklog
from headgate.store.database import Database, sql

CLEAN_ROWS = 5000  # Per datasource and round, so that cleaning never takes long.
COUNTED_ROWS = 1000  # Payloads of one inbox that are counted; the number of more of them is estimated.
READ_BYTES = 8 * 1024 * 1024  # Of bodies in one read: a thousand large ones must not fill the memory.


@dataclass(frozen=True, slots=True)
class Payload:
    """One payload to be made durable."""

    datasource: UUID
    headers: str  # As JSON.
    body: bytes
    replay_key: str | None = None  # A second payload with the same key is the same payload.


@dataclass(frozen=True, slots=True)
class Limit:
    """How much one inbox may hold."""

    rows: int = 1_000_000
    bytes: int = 4 * 1024**3


_headers = msgspec.json.Decoder(dict[str, str]).decode


@dataclass(frozen=True, slots=True)
class Stored:
    """One payload that is durable."""

    id: int  # Its place in the inbox.
    received_at_s: float  # Unix time.
    headers: dict[str, str]  # Names in lower case.
    body: bytes


class InboxTable:
    """Append, read, clean. `source_identity` is that of every webhook: a position of another source is none here."""

    def __init__(self, database: Database, source_identity: str) -> None:
        self._database = database
        self._source_identity = source_identity

    async def append(self, payloads: Sequence[Payload], limits: dict[UUID, Limit]) -> set[UUID]:
        """Make all durable. Returns the datasources whose inbox is full, and which got nothing."""
        datasources = sorted({payload.datasource for payload in payloads})
        full = await self._database.fetchval(
            sql("inbox/append"),
            datasources,
            [limits[datasource].rows for datasource in datasources],
            [limits[datasource].bytes for datasource in datasources],
            [payload.datasource for payload in payloads],
            [payload.headers for payload in payloads],
            [payload.body for payload in payloads],
            [payload.replay_key for payload in payloads],
            self._source_identity,
        )
        return set(full)

    async def after(self, datasource: UUID, id: int, limit: int) -> list[Stored]:
        """The oldest payloads after `id`."""
        rows = await self._database.fetch(sql("inbox/read"), datasource, id, limit, READ_BYTES)
        return [Stored(row["id"], row["received_at_s"], _headers(row["headers"]), row["body"]) for row in rows]

    async def last(self, datasource: UUID, limit: int) -> list[Stored]:
        """The newest payloads, oldest first; those that have been handled too, while they are kept."""
        rows = await self._database.fetch(sql("inbox/last"), datasource, limit, READ_BYTES)
        return [Stored(row["id"], row["received_at_s"], _headers(row["headers"]), row["body"]) for row in rows]

    async def news(self, positions: dict[UUID, int]) -> set[UUID]:
        """Which datasources have payloads after these ids."""
        rows = await self._database.fetch(sql("inbox/news"), list(positions), list(positions.values()))
        return {row["datasource"] for row in rows}

    async def clean(self, keep_s: float, acked: Mapping[UUID, int]) -> int:
        """Remove what the registry's positions, or what sources have acknowledged here, have passed and what has been
        kept long enough."""
        removed = 0
        for row in await self._database.fetch(sql("inbox/list")):
            # One transaction each: an append waits for its own inbox only, and not for long.
            args = (row["datasource"], self._source_identity, keep_s, CLEAN_ROWS)
            removed += int(await self._database.fetchval(sql("inbox/clean"), *args))
            if row["datasource"] in acked:
                removed += await self._drop_acked(row["datasource"], acked[row["datasource"]], keep_s)
        return removed

    async def _drop_acked(self, datasource: UUID, id: int, keep_s: float) -> int:
        async with self._database.transaction() as connection:
            await connection.fetchval(sql("inbox/lock"), datasource)
            return int(await connection.fetchval(sql("inbox/drop_acked"), datasource, id, keep_s, CLEAN_ROWS))

    async def unread(self, acked: Mapping[UUID, int], datasource: UUID | None = None) -> dict[UUID, InboxBacklog]:
        """What waits in each inbox that has ever had anything; `acked` is what sources have acknowledged here."""
        args = (datasource, self._source_identity, list(acked), list(acked.values()), COUNTED_ROWS)
        rows = await self._database.fetch(sql("inbox/unread"), *args)
        return {row["datasource"]: InboxBacklog(row["records"], row["bytes"], row["oldest_at_s"]) for row in rows}

    async def between(self, datasource: UUID, after: int, up_to: int) -> int:
        """How many payloads it still has after the first id, up to the second."""
        return int(await self._database.fetchval(sql("inbox/between"), datasource, after, up_to))

    async def size(self, datasource: UUID) -> tuple[int, int]:
        """Rows and bytes."""
        row = await self._database.fetchrow(sql("inbox/size"), datasource)
        return (row["rows"], row["bytes"]) if row else (0, 0)
