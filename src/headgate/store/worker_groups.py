"""Streams that nodes run, as people see them: groups whose members are the nodes, and what is wished of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from headgate.core.push import PUSH
from headgate.ids import stream_name
from headgate.store.database import Database, Row, sql

NAME = "workers"
"""What these groups are called."""


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """One stream that nodes run, as a group: who has it, who should, who cannot."""

    id: UUID  # The stream's.
    stream: str  # Its name.
    datasource: str
    index: int
    owner: UUID | None
    run: UUID | None  # None: the owner has not begun to run it.
    epoch: int
    enabled: bool  # As its datasource is,
    paused: bool
    quarantine: str | None
    published_version: int | None
    dealing: bool  # whose streams may be stopping, so that there can be more or fewer.
    is_surplus: bool  # Nothing of the source is dealt to it.
    rests: bool  # Its source has ended.
    preferred: UUID | None  # The node that should have it.
    pinned: bool  # An operator said so.
    stepping: bool  # Its owner was told to step down.
    is_modulo: bool  # It is placed by its number.
    since: datetime | None  # When it was last granted.
    unable: dict[UUID, str]  # Why which node cannot run it.


@dataclass(frozen=True, slots=True)
class Wish:
    """Where a stream should be."""

    id: UUID  # The node's.
    node: str  # Its name.
    pinned: bool  # An operator said so, and not the planner.


class WorkerGroups:
    """Who has which stream, who should, and who cannot."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self, stream: str | None = None, limit: int = 1000) -> list[WorkerGroup]:
        """All of them, or the one of this stream. `unable` has the reasons by node."""
        datasource, _, index = (stream or "").partition(":")
        named = (None, None) if stream is None else (datasource, index)
        rows = await self._database.fetch(sql("placement/list_groups"), PUSH, *named, limit)
        return [_group(row) for row in rows]

    async def wish(self, stream: UUID) -> Wish | None:
        """Where a stream should be: the node, and whether an operator said so. None: nobody wishes anything."""
        rows = await self._database.fetch(sql("placement/read_wish"), stream)
        return Wish(rows[0]["id"], rows[0]["node"], rows[0]["pinned"]) if rows else None

    async def moving(self) -> int:
        """How many streams are on the move."""
        return int(await self._database.fetchval(sql("placement/count_moves")))


def _group(row: Row) -> WorkerGroup:
    plain = {name: row[name] for name in WorkerGroup.__slots__ if name not in ("stream", "unable")}
    unable = msgspec.json.decode(row["unable"], type=dict[UUID, str])
    return WorkerGroup(stream=stream_name(row["datasource"], row["index"]), unable=unable, **plain)
