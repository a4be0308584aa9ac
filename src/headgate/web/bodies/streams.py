"""Bodies about streams and nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from msgspec import UNSET, Meta, UnsetType

from headgate.web.bodies import Answer, Json, Request
from headgate.web.bodies.datasources import StreamState


class Stream(Answer):
    """Who has a stream, and where it stands."""

    id: UUID
    name: str
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
    position: Json
    version: int | None
    rests: bool  # Its source has ended.


class Streams(Answer):
    """Streams in the order of their names."""

    items: list[Stream]
    after: str | None = None  # For the next ones; null: there are no more.


class Unable(Answer):
    """A node that cannot run a stream."""

    node: str
    id: UUID
    reason: str
    at: datetime


class Wish(Answer):
    """Where a stream should be."""

    id: UUID
    node: str
    by: str  # operator or planner.


class StreamDetails(Stream):
    """A stream with its state, the nodes that cannot run it, and where it should be."""

    state: StreamState | None
    unable: list[Unable]
    wish: Wish | None


class HistoryLine(Answer):
    """Where a stream stood when it changed hands or was edited."""

    id: int
    at: datetime
    kind: str
    actor: str | None
    epoch: int
    generation: int  # Rises with an edit, and with another source or sink.
    commits: int  # The number of the stream's commits.
    position: Json
    before: Json | UnsetType = UNSET  # The position that an edit replaced; only edits have it.


class History(Answer):
    """What became of a stream, the latest first."""

    items: list[HistoryLine]


class Edit(Request):
    """Either another position, or one of the stream's history, or the undoing of the last edit."""

    position: Json | UnsetType = UNSET  # Null: from the beginning.
    history: Annotated[int, Meta(ge=1, le=2**63 - 1)] | UnsetType = UNSET  # The `id` of a line of its history.
    undo: bool | UnsetType = UNSET
    yes: bool = False  # Without, nothing is done, and the answer says what would be.


class Edited(Answer):
    """A stream after its position was edited."""

    id: UUID
    name: str
    before: Json
    position: Json
    generation: int  # Rises with an edit, and with another source or sink.


class Move(Request):
    """Where a stream should be: a node's name or id; null leaves it to the planner."""

    node: str | None


class Moved(Answer):
    """A stream, and where it should be now."""

    id: UUID
    name: str
    owner: UUID | None
    node: str | None
    wish: Wish | None
    is_new: bool  # False: it was wished there before.


class Node(Answer):
    """One incarnation of a node."""

    id: UUID
    name: str
    beat: int
    lease_s: float
    address: str | None
    version: str  # The release that it runs.
    started_at: datetime
    streams: int
    draining: bool
    status: str  # up, draining, silent or ended: found dead, and its lease is not over.
    silent_s: float  # For how long the answering node has seen no beat of it.
    is_this: bool  # It is the answering node.
    registry_problem: str | None = None  # What is wrong with its registry file.


class Nodes(Answer):
    """All nodes that beat."""

    items: list[Node]


class Drained(Answer):
    """A node that gives its streams back, or takes streams again."""

    id: UUID
    name: str
    streams: int
    draining: bool
    others: int  # How many nodes are left to take streams.


class Forgotten(Answer):
    """A node that is gone, and how many streams it had."""

    id: UUID
    name: str
    streams: int
