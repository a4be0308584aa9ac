"""Nodes: one row per incarnation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from headgate import __version__
from headgate.core import lease
from headgate.core.lease import Expired, NodeBeat, Quiet
from headgate.core.streams import Done, Revoke, TakeOver
from headgate.errors import NotFound, Refused
from headgate.store.beats import lock_of
from headgate.store.database import Database, Row, Session, sql
from headgate.store.rows import step_owned


@dataclass(frozen=True, slots=True)
class Node:
    """One incarnation of a node, as it is listed."""

    id: UUID
    name: str  # Names may repeat; ids do not.
    beat: int  # How often it has beaten.
    lease_s: float
    address: str | None  # Where programs reach it; None until its port is known.
    version: str  # The release that it runs.
    started_at: datetime
    draining: bool
    process: UUID | None  # Which process of a machine, where `up` starts several.
    streams: int  # How many it has.
    registry_problem: str | None  # What is wrong with its registry file.
    ended: bool  # Found dead before its lease was over. Until then it keeps what only its trust protects.


@dataclass(frozen=True, slots=True)
class Load:
    """What a node's streams do."""

    failed: int  # Streams that fail.
    last_hour: int  # Records that they wrote.


class Nodes:
    """Join, observe, drain, end. Beats have their own session (`store.beats`)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def join(
        self,
        node: UUID,
        name: str,
        lease_s: float,
        address: str | None,
        *,
        draining: bool = False,
        process: UUID | None = None,
    ) -> None:
        """Write a new incarnation. One that follows another in the same process is drained if that was."""
        await self._database.execute(sql("nodes/insert"), node, name, lease_s, address, __version__, draining, process)

    async def set_address(self, node: UUID, address: str) -> None:
        """Say where this node can be reached."""
        await self._database.execute(sql("nodes/set_address"), node, address)

    async def set_registry_problem(self, node: UUID, problem: str | None) -> None:
        """Say what is wrong with the registry file of this node; None: nothing."""
        await self._database.execute(sql("nodes/set_registry_problem"), node, problem)

    async def observe(self) -> tuple[list[NodeBeat], set[UUID]]:
        """Everyone's beat, and who is draining."""
        rows = await self._database.fetch(sql("nodes/observe"))
        beats = [_beat(row) for row in rows]
        return beats, {row["id"] for row in rows if row["draining"]}

    async def all(self) -> list[Node]:
        """All nodes, for people."""
        return [_node(row) for row in await self._database.fetch(sql("nodes/list"))]

    async def loads(self) -> dict[UUID, Load]:
        """What the streams of each node do, as their holders said last."""
        rows = await self._database.fetch(sql("nodes/loads"))
        return {row["id"]: Load(row["failed"], row["last_hour"]) for row in rows}

    async def find(self, name: str) -> Node:
        """One node by its name, its id or the beginning of its id. Names may repeat; a command means one."""
        rows = await self._database.fetch(sql("nodes/find"), name)
        if not rows:
            raise NotFound(f"node {name!r} does not exist", hint="headgate nodes list")
        rows = [row for row in rows if not row["ended"]] or rows  # One that was started again has its name.
        if len(rows) > 1:
            ids = " and ".join(str(row["id"]) for row in rows)
            raise Refused(
                f"node {name!r} is ambiguous: {len(rows)} have this name",
                code="ambiguous",
                hint=f"name one by its id: {ids}",
            )
        return _node(rows[0])

    async def set_draining(self, node: UUID, draining: bool) -> bool:
        """Whether it should give its streams back and get no more. False: it is gone."""
        return await self._database.fetchval(sql("nodes/set_draining"), node, draining) is not None

    async def expire(self, expired: Expired) -> list[UUID] | None:
        """End an incarnation that fell silent at this beat, and take its streams. None: it beat again, or is gone."""
        await self._database.execute(sql("database/end_stopped"))
        async with self._database.transaction() as connection:
            if await connection.fetchval(sql("nodes/expire"), expired.node, expired.beat) is None:
                return None
            return await _take_streams(connection, expired.node)

    async def end_early(self, found: Quiet) -> list[UUID] | None:
        """End an incarnation whose beat is late if its lock is free, and take the streams that need not wait for its
        lease. None: it lives, or somebody is at its row; we look again."""
        async with self._database.transaction() as connection:
            row = await connection.fetchrow(sql("nodes/lock_quiet"), found.node)
            is_free = row is not None and await connection.fetchval(sql("nodes/try_lock"), lock_of(found.node))
            if not lease.is_gone(None if row is None else _beat(row), found, is_free):
                return None
            await connection.execute(sql("nodes/mark_ended"), found.node)
            steps = await step_owned(connection, found.node, TakeOver(found.node))
            return [stream for stream, step in steps.items() if isinstance(step.reply, Done)]

    async def end(self, node: UUID) -> list[UUID] | None:
        """End an incarnation, our own or one that an operator knows to be dead. What it still held is revoked."""
        async with self._database.transaction() as connection:
            if await connection.fetchval(sql("nodes/delete"), node) is None:
                return None
            return await _take_streams(connection, node)

    async def end_process(self, process: UUID) -> list[UUID]:
        """End every incarnation of a process that is known to have ended. What they still held is revoked."""
        async with self._database.transaction() as connection:
            ended = await connection.fetch(sql("nodes/delete_process"), process)
            return [stream for row in ended for stream in await _take_streams(connection, row["id"])]


def _beat(row: Row) -> NodeBeat:
    return NodeBeat(row["id"], row["beat"], row["lease_s"], row["locked"], row["ended"])


def _node(row: Row) -> Node:
    # The doctor looks into older schemas, too, which lack some of it.
    return Node(**{name: row.get(name) for name in Node.__slots__})


async def _take_streams(connection: Session, node: UUID) -> list[UUID]:
    steps = await step_owned(connection, node, Revoke(node))
    return list(steps)
