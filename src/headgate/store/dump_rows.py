"""Rows of dumps as the rest of Headgate sees them: frozen, with a field for each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from headgate.core.chunks import Bound
from headgate.core.chunks.left import Left
from headgate.core.chunks.locks import Chunk
from headgate.core.chunks.offsets import Offsets
from headgate.core.chunks.outcome import DumpWanted, Notice, Status, TableState


@dataclass(frozen=True, slots=True)
class NewDump:
    """What a dump is made of."""

    id: UUID
    source: str
    target: str
    urls: Mapping[str, str]  # With passwords: sealed, or not kept.
    options: Mapping[str, object]
    tables: Sequence[tuple[str, str, object]]  # Source, target, job.
    rows: int | None  # A size of chunks, if one was chosen.
    rate: str | None
    place: str
    spread: bool
    actor: str
    datasource: UUID | None = None


@dataclass(frozen=True, slots=True)
class Urls:
    """Where a dump reads and writes, with passwords."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class DumpRow:
    """One dump, with what it has done."""

    id: UUID
    source: str  # Without passwords, as the target is.
    target: str
    options: str  # JSON.
    status: Status  # As it is kept: `outcome.status` says what it is now.
    wanted: DumpWanted
    rate: str | None
    place: str
    spread: bool
    epoch: int  # Rises with every process that takes it.
    process: str | None
    fuzzy: bool
    error: str
    left_behind: tuple[Left, ...]  # What the target does not have.
    actor: str
    created_at: datetime
    ended_at: datetime | None
    datasource_id: UUID | None  # Of a backfill.
    datasource: str | None
    is_run: bool  # Its process has renewed its claim lately.
    tables: int
    finished: int
    expected_rows: int | None
    expected_bytes: int | None
    rows: int
    bytes: int
    chunks: int
    done: int
    failed: int


@dataclass(frozen=True, slots=True)
class OpenDump:
    """A dump that nodes should work on."""

    id: UUID
    spread: bool
    options: str  # JSON.
    is_run: bool
    datasource: UUID | None


@dataclass(frozen=True, slots=True)
class DumpState:
    """What is wanted of a dump now."""

    status: Status
    wanted: DumpWanted
    rate: str | None
    pools: tuple[str, ...]  # Pools of workers at work: they share the rate.
    snapshot: str | None  # "": the source has none. None: the process that runs it has not begun to read.
    is_run: bool


@dataclass(frozen=True, slots=True)
class TableRow:
    """One table of a dump, with what is done of it."""

    number: int
    name: str
    target: str
    state: TableState
    job: str  # JSON.
    offsets: Offsets
    listed: tuple[int, ...] | None  # The chunks that a retry is for; None: all.
    error: str
    started_at: datetime | None
    ended_at: datetime | None
    rows: int
    bytes: int
    chunks: int
    done: int
    failed: int
    leased: int
    waiting: int  # Chunks that a worker could take now.


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """One chunk of a table."""

    table: int
    chunk: Chunk
    bytes: int


@dataclass(frozen=True, slots=True)
class Leased:
    """A chunk that a worker has."""

    table: int
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of a chunk, as it is reported."""

    table: int
    chunk: int  # Negative: it was about the table as a whole.
    worker: str
    kind: Notice
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    error: str = ""
    lo: Bound | None = None
    hi: Bound | None = None


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One line of the history."""

    id: int
    table: int
    name: str
    chunk: int
    worker: str
    kind: Notice
    rows: int
    bytes: int
    seconds: float
    error: str
    at: datetime
    lo: Bound | None
    hi: Bound | None


@dataclass(frozen=True, slots=True)
class Pace:
    """How much was copied lately, and in how many seconds."""

    rows: int
    bytes: int
    span_s: float | None


def bound_of(text: str | None) -> Bound | None:
    """A bound from JSON."""
    return None if text is None else msgspec.json.decode(text, type=tuple[str, ...])


def bound_json(bound: Bound | None) -> str | None:
    """A bound as JSON."""
    return None if bound is None else as_json(bound)


def as_json(value: object) -> str:
    """A value as the database keeps it."""
    return msgspec.json.encode(value).decode()
