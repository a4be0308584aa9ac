"""Nodes: one row per incarnation."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from headgate import __version__
from headgate.core.lease import Expired, NodeBeat
from headgate.core.streams import Revoke
from headgate.store.database import Database, sql
from headgate.store.streams import step_owned


class Nodes:
    """Join, beat, observe, end."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def join(self, node: UUID, name: str, lease_s: float, address: str | None) -> None:
        """Write a new incarnation."""
        await self._database.execute(sql("nodes/insert"), node, name, lease_s, address, __version__)

    async def set_address(self, node: UUID, address: str) -> None:
        """Say where this node can be reached."""
        await self._database.execute(sql("nodes/set_address"), node, address)

    async def beat(self, node: UUID) -> bool:
        """One more beat. False: this incarnation has been ended."""
        return await self._database.fetchval(sql("nodes/beat"), node) is not None

    async def observe(self) -> list[NodeBeat]:
        """Everyone's beat."""
        rows = await self._database.fetch(sql("nodes/observe"))
        return [NodeBeat(row["id"], row["beat"], row["lease_s"]) for row in rows]

    async def all(self) -> list[Any]:
        """All nodes, for people."""
        return await self._database.fetch(sql("nodes/list"))

    async def expire(self, expired: Expired) -> list[UUID] | None:
        """End an incarnation that fell silent at this beat, and take its streams. None: it beat again, or is gone."""
        async with self._database.transaction() as connection:
            if await connection.fetchval(sql("nodes/expire"), expired.node, expired.beat) is None:
                return None
            return await _take_streams(connection, expired.node)

    async def leave(self, node: UUID) -> None:
        """End our own incarnation. What it still held is revoked."""
        async with self._database.transaction() as connection:
            if await connection.fetchval(sql("nodes/delete"), node) is not None:
                await _take_streams(connection, node)


async def _take_streams(connection: Any, node: UUID) -> list[UUID]:
    steps = await step_owned(connection, node, Revoke(node))
    return list(steps)
