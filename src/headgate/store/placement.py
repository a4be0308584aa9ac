"""The tick: grants free streams to nodes, and frees what nobody owns any more.

Any node may run it, one at a time: whoever gets the advisory lock is, for that one transaction, what other systems call
the leader. There is nothing to elect and nothing to lose: the next tick may run anywhere.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any
from uuid import UUID

from headgate.connectors.api import PUSH
from headgate.core import planner
from headgate.core.planner import Candidate, Free
from headgate.core.streams import Grant, Revoke
from headgate.ids import lock_key
from headgate.store.database import Database, sql
from headgate.store.streams import step_and_save, stream_of

MOST = 1000  # Streams granted in one transaction.
UNABLE = timedelta(minutes=10)  # How long a node that could not run a stream is left alone with it.

_LOCK = lock_key("tick")


class Placement:
    """Which node runs which stream."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def grant(self, silent: Collection[UUID]) -> dict[UUID, UUID]:
        """Give free streams to nodes, but to none that has fallen silent. Empty if another node is at it."""
        async with self._database.transaction() as connection:
            if not await connection.fetchval(sql("placement/lock"), _LOCK):
                return {}
            nodes = await connection.fetch(sql("placement/nodes"))
            rows = await connection.fetch(sql("placement/free"), PUSH, MOST, UNABLE)
            if not rows:
                return {}
            placed = planner.place([_free(row) for row in rows], await _candidates(connection, nodes, silent))
            granted = [stream_of(row) for row in rows if row["id"] in placed]
            await step_and_save(connection, granted, {s.id: Grant(placed[s.id]) for s in granted})
            return placed

    async def sweep(self) -> int:
        """Free the streams of owners that are gone. Returns how many there were."""
        async with self._database.transaction() as connection:
            if not await connection.fetchval(sql("placement/lock"), _LOCK):
                return 0
            orphans = [stream_of(row) for row in await connection.fetch(sql("placement/orphans"))]
            revocations = {stream.id: Revoke(stream.owner) for stream in orphans if stream.owner is not None}
            await step_and_save(connection, orphans, revocations)
            return len(orphans)


async def _candidates(connection: Any, nodes: list[Any], silent: Collection[UUID]) -> list[Candidate]:
    loads = {row["owner"]: row["streams"] for row in await connection.fetch(sql("placement/loads"))}
    return [
        Candidate(row["id"], loads.get(row["id"], 0), not row["draining"] and row["id"] not in silent) for row in nodes
    ]


def _free(row: Any) -> Free:
    return Free(row["id"], frozenset(row["unable"]), frozenset(row["unable_lately"]))
