"""What people see of each stream: status, version, rates, error. Written in bulk, by holders only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from headgate.store.database import Database, sql


@dataclass(frozen=True, slots=True)
class State:
    """One stream's state, as its holder reports it."""

    stream: UUID
    epoch: int | None  # Of its grant; None: it never had one.
    worker_status: str
    detail: str
    version: int | None
    metrics: dict[str, Any]
    error: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Resting:
    """A stream that no node runs, as its last node left it."""

    datasource: str
    part: str  # Its number, or the label of a stream that a program pushes.
    worker_status: str
    detail: str
    metrics: dict[str, Any]
    enabled: bool  # Of its datasource.
    is_quarantined: bool  # Its datasource, on all nodes.


class States:
    """Save and read states."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, node: UUID, states: Sequence[State]) -> set[UUID]:
        """Write many in one statement. A stale holder's are dropped; returns the streams of those that were not."""
        rows = await self._database.fetch(
            sql("states/save"),
            node,
            [state.stream for state in states],
            [state.epoch for state in states],
            [state.worker_status for state in states],
            [state.detail for state in states],
            [state.version for state in states],
            [msgspec.json.encode(state.metrics).decode() for state in states],
            [None if state.error is None else msgspec.json.encode(state.error).decode() for state in states],
        )
        return {row["stream"] for row in rows}

    async def resting(self, node: UUID, most: int) -> list[Resting]:
        """Streams that no node runs and that this node should report: each is one node's."""
        rows = await self._database.fetch(sql("states/resting"), node, most)
        plain = [{name: row[name] for name in Resting.__slots__} for row in rows]
        return [Resting(**{**one, "metrics": msgspec.json.decode(one["metrics"])}) for one in plain]

    async def all(self, datasource: UUID | None = None) -> list[dict[str, Any]]:
        """The states of one datasource, or of all, with their node's name and beat."""
        found = []
        for row in await self._database.fetch(sql("states/list"), datasource):
            state = dict(row)
            state["metrics"] = msgspec.json.decode(row["metrics"])
            state["error"] = None if row["error"] is None else msgspec.json.decode(row["error"])
            found.append(state)
        return found
