"""What people see of each stream: status, version, rates, error. Written in bulk, by holders only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from headgate.core.figures import LastFailure, Reported
from headgate.core.records import NOTHING, Totals
from headgate.slices import made_of
from headgate.store.database import Database, Horizon, Row, Session, sql
from headgate.store.rows import totals_in

_ONE_MOMENT = "; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"

_decode_reported = msgspec.json.Decoder(Reported).decode
_decode_failure = msgspec.json.Decoder(LastFailure).decode


@dataclass(frozen=True, slots=True)
class State:
    """One stream's state, as its holder reports it."""

    stream: UUID
    epoch: int | None  # Of its grant; None: it never had one.
    worker_status: str
    detail: str
    version: int | None
    reported: Reported
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
    totals: Totals  # As of the stream's last checkpoint.
    reported: Reported
    error: LastFailure | None
    changed_at: datetime  # When the status or its detail last changed.


@dataclass(frozen=True, slots=True)
class Others:
    """The streams of a datasource that are not listed one by one: those of programs that have gone, and those that were
    dealt everything away."""

    totals: Totals = NOTHING
    last_record_at_s: float | None = None
    last_hour: int = 0  # As of when they came to rest.


NO_OTHERS = Others()


@dataclass(frozen=True, slots=True)
class Listing:
    """What all streams of some datasources have done, by datasource."""

    states: dict[UUID, list[StreamState]]
    others: dict[UUID, Others]

    def of(self, datasource: UUID) -> tuple[list[StreamState], Others]:
        """Those of one datasource."""
        return self.states.get(datasource, []), self.others.get(datasource, NO_OTHERS)


@dataclass(frozen=True, slots=True)
class Changes:
    """What has changed since an earlier look. It may be too much, if a transaction takes long, and never is too
    little."""

    mark: Horizon  # For the next look.
    changed: set[UUID] | None  # Datasources, deleted ones among them. None: all.
    listing: Listing  # Of these.


@dataclass(frozen=True, slots=True)
class Resting:
    """A stream that no node runs, as its last node left it."""

    stream: UUID
    datasource: str
    datasource_id: UUID
    part: str  # Its number, or the label of a stream that a program pushes.
    is_pushed: bool
    is_dealt: bool  # It reads a part of its source. One that was dealt everything away has no status.
    worker_status: str
    detail: str
    totals: Totals
    reported: Reported
    is_on: bool  # Its datasource is neither stopped nor paused.
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
            [msgspec.json.encode(state.reported).decode() for state in states],
            [None if state.error is None else msgspec.json.encode(state.error).decode() for state in states],
        )
        return {row["stream"] for row in rows}

    async def resting(self, node: UUID, most: int) -> list[Resting]:
        """Streams that no node runs and that this node should report: each is one node's."""
        return await made_of(await self._database.fetch(sql("states/resting"), node, most), _resting)

    async def taken(self, streams: Sequence[UUID]) -> set[UUID]:
        """Those of these that a node has by now."""
        return {row["id"] for row in await self._database.fetch(sql("states/taken"), list(streams))}

    async def pushed(self, node: UUID) -> dict[str, Totals]:
        """All that programs have ever pushed, by datasource. One node reports it: the oldest."""
        rows = await self._database.fetch(sql("states/pushed"), node)
        return {row["datasource"]: totals_in(row) for row in rows}

    async def all(self) -> Listing:
        """The states of all datasources, with their node's name and beat. Of the streams of programs that have gone
        there may be many: those are summed up."""
        return await self._list(None, is_whole=False)

    async def one(self, datasource: UUID) -> Listing:
        """The states of one datasource, each stream by itself."""
        return await self._list(datasource, is_whole=True)

    async def since(self, mark: Horizon | None) -> Changes:
        """The same, of those datasources of which something has changed since the mark. None, or a mark of another
        history: of all."""
        async with self._database.transaction(_ONE_MOMENT) as connection:
            (row,) = await connection.fetch(sql("database/mark"))
            now, changed = Horizon(**row), None
            if mark is not None and mark.lineage == now.lineage:
                changed = {row["datasource"] for row in await connection.fetch(sql("states/changed"), mark.xid)}
            return Changes(now, changed, await self._read(connection, changed, is_whole=False))

    async def _list(self, datasource: UUID | None, *, is_whole: bool) -> Listing:
        async with self._database.transaction(_ONE_MOMENT) as connection:
            return await self._read(connection, None if datasource is None else (datasource,), is_whole=is_whole)

    async def _read(self, connection: Session, which: Collection[UUID] | None, *, is_whole: bool) -> Listing:
        # Both are read at one moment: a stream that comes to rest in between must be in one of them, and not in both.
        datasources = None if which is None else list(which)
        listed = await connection.fetch(sql("states/list"), datasources, is_whole)
        summed = await connection.fetch(sql("states/others"), datasources, is_whole)
        states: dict[UUID, list[StreamState]] = {}
        for state in await made_of(listed, _state):
            states.setdefault(state.datasource, []).append(state)
        return Listing(states, {row["datasource"]: _others(row) for row in summed})


def reported_of(text: str | None) -> Reported | None:
    """What a node has said of a stream."""
    return None if text is None else _decode_reported(text)


def _others(row: Row) -> Others:
    return Others(totals_in(row), row["last_record_at_s"], row["last_hour"])


def _resting(row: Row) -> Resting:
    return Resting(
        row["stream"],
        row["datasource"],
        row["datasource_id"],
        row["part"],
        row["is_pushed"],
        row["is_dealt"],
        row["worker_status"],
        row["detail"],
        totals_in(row),
        reported_of(row["metrics"]) or Reported(),
        row["is_on"],
        row["is_quarantined"],
    )


def _state(row: Row) -> StreamState:
    is_stopping = row["is_stopping"]
    return StreamState(
        row["stream"],
        row["datasource"],
        row["index"],
        row["label"],
        "RUNNING" if is_stopping else row["worker_status"],
        "stopping" if is_stopping else row["detail"],
        row["node"],
        row["node_name"],
        row["heartbeat"],
        row["version"],
        row["epoch"],
        totals_in(row),
        _decode_reported(row["metrics"]),
        None if row["error"] is None else _decode_failure(row["error"]),
        row["changed_at"],
    )
