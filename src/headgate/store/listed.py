"""Streams as people see them: frozen rows, with a name in place of a number or a label."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from headgate.core.streams import Position
from headgate.ids import stream_name
from headgate.store.database import Row
from headgate.store.rows import decode


@dataclass(frozen=True, slots=True)
class Listed:
    """A stream as people see it."""

    id: UUID
    name: str  # `orders:0`.
    datasource: str
    datasource_id: UUID
    index: int | None  # Of a stream that nodes run;
    label: str | None  # or of one that a program pushes.
    owner: UUID | None
    node: str | None  # The owner's name.
    run: UUID | None
    epoch: int
    generation: int  # Rises with an edit, and with another source or sink.
    commits: int  # The number of the stream's commits.
    position: Position
    version: int | None  # Under which it was last acquired.
    rests: bool  # Its source has ended.


@dataclass(frozen=True, slots=True)
class Edited:
    """A stream after an operator's edit."""

    stream: Listed
    before: Position  # The position that the edit replaced.


@dataclass(frozen=True, slots=True)
class Unable:
    """A node that cannot run a stream as it is wished now."""

    datasource: UUID
    stream: UUID
    id: UUID  # The node's.
    node: str  # Its name.
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """Where a stream stood when it changed hands, was edited, or was dealt other parts."""

    id: int
    at: datetime
    kind: str  # granted, acquired, released, revoked, edited or dealt.
    actor: str | None  # A node's name or a token's.
    epoch: int
    generation: int  # Rises with an edit, and with another source or sink.
    commits: int  # The number of the stream's commits.
    position: Position
    before: Position  # The position that an edit replaced.


def listed(row: Row) -> Listed:
    """A row of `streams/list` or `streams/find`."""
    return Listed(
        id=row["id"],
        name=stream_name(row["name"], row["index"] if row["label"] is None else row["label"]),
        datasource=row["name"],
        datasource_id=row["datasource"],
        index=row["index"],
        label=row["label"],
        owner=row["owner"],
        node=row["node"],
        run=row["run"],
        epoch=row["epoch"],
        generation=row["generation"],
        commits=row["commits"],
        position=decode(row["position"]),
        version=row["version"],
        rests=row["rests"] is not None,
    )


def history_line(row: Row) -> HistoryLine:
    """A row of `streams/history`."""
    return HistoryLine(
        id=row["id"],
        at=row["at"],
        kind=row["kind"],
        actor=row["actor"],
        epoch=row["epoch"],
        generation=row["generation"],
        commits=row["commits"],
        position=decode(row["position"]),
        before=decode(row["before"]),
    )
