"""The inbox: payloads that webhooks brought, durable and in order until their datasource has handled them.

Ids are drawn under the datasource's advisory lock, so they become visible in the order of their values, and a reader
of "id > mine" misses none. The append is one statement that calls one function: it takes the locks, refuses what is
full, drops replays, and commits, without waiting for us in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from headgate.connectors.api import Options, Received, identity_of
from headgate.store.database import Database, sql

CLEAN_ROWS = 5000  # Per datasource and round, so that cleaning never takes long.
READ_BYTES = 8 * 1024 * 1024  # Of bodies in one read: a thousand large ones must not fill the memory.

_WEBHOOK = identity_of("webhook", Options())  # No option of a webhook says which data these are: the inbox does.


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


class InboxTable:
    """Append, read, clean."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
            _WEBHOOK,
        )
        return set(full)

    async def after(self, datasource: UUID, id: int, limit: int) -> list[Received]:
        """The oldest payloads after `id`."""
        rows = await self._database.fetch(sql("inbox/read"), datasource, id, limit, READ_BYTES)
        decode = msgspec.json.decode
        return [Received(row["id"], row["received_at_s"], decode(row["headers"]), row["body"]) for row in rows]

    async def news(self, positions: dict[UUID, int]) -> set[UUID]:
        """Which datasources have payloads after these ids."""
        rows = await self._database.fetch(sql("inbox/news"), list(positions), list(positions.values()))
        return {row["datasource"] for row in rows}

    async def clean(self, keep_s: float) -> int:
        """Remove what the registry's positions have passed and what has been kept long enough."""
        removed = 0
        for row in await self._database.fetch(sql("inbox/list")):
            # One transaction each: an append waits for its own inbox only, and not for long.
            args = (row["datasource"], _WEBHOOK, keep_s, CLEAN_ROWS)
            removed += int(await self._database.fetchval(sql("inbox/clean"), *args))
        return removed

    async def size(self, datasource: UUID) -> tuple[int, int]:
        """Rows and bytes."""
        row = await self._database.fetchrow(sql("inbox/size"), datasource)
        return (row["rows"], row["bytes"]) if row else (0, 0)
