"""Streams: rows are locked in the order of their ids, stepped by `core.streams`, and saved, many in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from headgate.core import streams as core
from headgate.core.streams import Command, Fenced, Held, Step, Stream
from headgate.store.database import Database, sql


class Streams:
    """The global registry of who owns what."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def apply(self, node: UUID, commands: Mapping[UUID, Command]) -> dict[UUID, Step]:
        """One command for each of these streams. A stream that is gone has no answer.

        The node's own row is held first: an incarnation that has been ended can claim nothing any more.
        """
        if not commands:
            return {}
        async with self._database.transaction() as connection:
            alive = await connection.fetchval(sql("nodes/hold"), node) is not None
            rows = await connection.fetch(sql("streams/lock"), list(commands))
            if not alive:
                return {row["id"]: Step(_stream(row), Fenced()) for row in rows}
            return await _step_and_save(connection, rows, commands)

    async def of_datasources(self, datasources: list[UUID]) -> dict[UUID, list[UUID]]:
        """The ids of each datasource's streams, by index."""
        found: dict[UUID, list[UUID]] = {}
        for row in await self._database.fetch(sql("streams/of_datasources"), datasources):
            found.setdefault(row["datasource"], []).append(row["id"])
        return found

    async def free(self, streams: list[UUID]) -> list[UUID]:
        """Which of these nobody owns."""
        rows = await self._database.fetch(sql("streams/free"), streams)
        return [row["id"] for row in rows]

    async def all(self) -> list[Any]:
        """All streams, for people."""
        return await self._database.fetch(sql("streams/list"))


async def step_owned(connection: Any, owner: UUID, command: Command) -> dict[UUID, Step]:
    """The same command for every stream that this node owns."""
    rows = await connection.fetch(sql("streams/lock_owned"), owner)
    return await _step_and_save(connection, rows, {row["id"]: command for row in rows})


async def _step_and_save(connection: Any, rows: list[Any], commands: Mapping[UUID, Command]) -> dict[UUID, Step]:
    steps: dict[UUID, Step] = {}
    changed: list[Stream] = []
    for row in rows:
        stream = _stream(row)
        step = steps[stream.id] = core.step(stream, commands[stream.id])
        if step.stream is not stream:
            changed.append(step.stream)
    if changed:
        await _save(connection, changed)
    return steps


async def _save(connection: Any, streams: list[Stream]) -> None:
    await connection.execute(
        sql("streams/save"),
        [s.id for s in streams],
        [s.owner for s in streams],
        [s.run for s in streams],
        [s.epoch for s in streams],
        [s.held.edits for s in streams],
        [s.held.n for s in streams],
        [msgspec.json.encode(s.held.position).decode() for s in streams],
        [s.version for s in streams],
        [s.source_identity for s in streams],
        [s.sink_identity for s in streams],
    )


def _stream(row: Any) -> Stream:
    position = msgspec.json.decode(row["position"]) if row["position"] is not None else None
    return Stream(
        id=row["id"],
        owner=row["owner"],
        run=row["run"],
        epoch=row["epoch"],
        held=Held(row["edits"], row["n"], position),
        version=row["version"],
        source_identity=row["source_identity"],
        sink_identity=row["sink_identity"],
    )
