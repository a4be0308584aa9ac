"""Streams that nodes run, as people see them: groups whose members are the nodes, and what is wished of them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from headgate.connectors.api import PUSH
from headgate.ids import stream_name
from headgate.store.database import Database, sql

NAME = "workers"
"""What these groups are called."""


class WorkerGroups:
    """Who has which stream, who should, and who cannot."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self, stream: str | None = None, limit: int = 1000) -> list[dict[str, Any]]:
        """All of them, or the one of this stream. `unable` has the reasons by node."""
        datasource, _, index = (stream or "").partition(":")
        named = (None, None) if stream is None else (datasource, index)
        rows = await self._database.fetch(sql("placement/list_groups"), PUSH, *named, limit)
        return [
            {
                **dict(row),
                "stream": stream_name(row["datasource"], row["index"]),
                "unable": {UUID(node): reason for node, reason in msgspec.json.decode(row["unable"]).items()},
            }
            for row in rows
        ]

    async def wish(self, stream: UUID) -> dict[str, Any] | None:
        """Where a stream should be: the node, and whether an operator said so. None: nobody wishes anything."""
        rows = await self._database.fetch(sql("placement/read_wish"), stream)
        return dict(rows[0]) if rows else None

    async def moving(self) -> int:
        """How many streams are on the move."""
        return int(await self._database.fetchval(sql("placement/count_moves")))
