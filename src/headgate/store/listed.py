"""Streams as people see them: frozen rows, with a name in place of a number or a label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias
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


Kind: TypeAlias = Literal["owned", "free", "moving", "pinned", "failed"]
LAST_INDEX = 2**31 - 1  # Streams with a label come after those with a number.


@dataclass(frozen=True, slots=True)
class WhichStreams:
    """Which streams somebody wants to see. None: all."""

    datasources: Sequence[UUID] | None = None
    search: str | None = None  # A part of the name.
    node: str | None = None  # The owner's name or id.
    kind: Kind | None = None

    def arguments(self) -> tuple[object, ...]:
        """As the query takes them."""
        datasources = None if self.datasources is None else list(self.datasources)
        return (datasources, self.search, self.node, self.kind)


@dataclass(frozen=True, slots=True)
class StreamLine:
    """A stream in one line, with how it does."""

    stream: Listed
    enabled: bool  # As its datasource is.
    paused: bool
    is_ended: bool  # Its owner was found dead.
    worker_status: str | None  # As its holder said last; None: nobody has.
    detail: str
    error: str | None
    is_told: bool  # What was said is of the present grant.
    last_record_at_s: float | None
    wished: UUID | None  # The node where it should be,
    wished_name: str | None
    is_pinned: bool  # because an operator said so.

    def place(self) -> tuple[str, int, str]:
        """Where it stands in the order of all."""
        found = self.stream
        return found.datasource, LAST_INDEX if found.index is None else found.index, found.label or ""


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


def stream_line(row: Row) -> StreamLine:
    """A row of `streams/page`."""
    return StreamLine(
        stream=listed(row),
        enabled=row["enabled"],
        paused=row["paused"],
        is_ended=bool(row["is_ended"]),
        worker_status=row["worker_status"],
        detail=row["detail"] or "",
        error=row["error"],
        is_told=bool(row["is_told"]),
        last_record_at_s=row["last_record_at_s"],
        wished=row["wished"],
        wished_name=row["wished_name"],
        is_pinned=bool(row["pinned"]),
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
