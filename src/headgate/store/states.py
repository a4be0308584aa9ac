"""What people see of each stream: status, version, rates, error. Written in bulk, by holders only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from headgate.core.figures import Figures, LastFailure
from headgate.store.database import Database, Row, sql


@dataclass(frozen=True, slots=True)
class State:
    """One stream's state, as its holder reports it."""

    stream: UUID
    epoch: int | None  # Of its grant; None: it never had one.
    worker_status: str
    detail: str
    version: int | None
    metrics: Figures
    error: LastFailure | None


@dataclass(frozen=True, slots=True)
class StreamState:
    """One stream's state as it was last saved, with what is known of its node."""

    stream: UUID
    datasource: UUID
    index: int | None  # Of a stream that nodes run;
    label: str | None  # or of one that a program pushes.
    worker_status: str
    detail: str
    node: UUID | None
    node_name: str | None  # None: the node is gone.
    heartbeat: int | None  # How often its node has beaten; None: the node is gone.
    version: int | None
    epoch: int
    metrics: Figures
    error: LastFailure | None
    changed_at: datetime  # When the status or its detail last changed.


@dataclass(frozen=True, slots=True)
class Resting:
    """A stream that no node runs, as its last node left it."""

    datasource: str
    part: str  # Its number, or the label of a stream that a program pushes.
    worker_status: str
    detail: str
    metrics: Figures
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
        return [_resting(row) for row in await self._database.fetch(sql("states/resting"), node, most)]

    async def all(self, datasource: UUID | None = None) -> list[StreamState]:
        """The states of one datasource, or of all, with their node's name and beat."""
        return [_state(row) for row in await self._database.fetch(sql("states/list"), datasource)]


def _resting(row: Row) -> Resting:
    plain = {name: row[name] for name in Resting.__slots__}
    plain["metrics"] = msgspec.json.decode(row["metrics"], type=Figures)
    return Resting(**plain)


def _state(row: Row) -> StreamState:
    plain = {name: row[name] for name in StreamState.__slots__}
    plain["metrics"] = msgspec.json.decode(row["metrics"], type=Figures)
    plain["error"] = None if row["error"] is None else msgspec.json.decode(row["error"], type=LastFailure)
    if row["is_stopping"]:
        plain |= {"worker_status": "RUNNING", "detail": "stopping"}
    return StreamState(**plain)
