"""What people and programs see of dumps: the same for the commands, the API and the console."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime

import msgspec

from headgate.core.chunks import Bound, outcome
from headgate.core.chunks.left import Excuse, is_complete
from headgate.core.chunks.locks import State
from headgate.core.chunks.outcome import RESUMABLE, Notice, Status, TableState
from headgate.runtime.dumps.plan import Options, plan_of, short
from headgate.runtime.dumps.processes import is_dead
from headgate.store.dump_rows import AttemptRow, ChunkRow, DumpRow, Pace, TableRow
from headgate.store.dumps import Dumps

NEARLY = 0.99  # The rows of a table are known roughly: until it is done, its share is less than one.


class _Dump(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a dump in short and at length."""

    id: str
    short: str
    source: str
    target: str
    status: Status
    error: str
    resume: str | None
    mode: str
    workers: int
    rate: str | None
    fuzzy: bool
    complete: bool
    place: str
    spread: bool
    process: str | None
    datasource: str | None
    actor: str
    created_at: str
    ended_at: str | None
    seconds: float
    tables_done: int
    rows: int
    bytes: int
    expected_rows: int | None
    expected_bytes: int | None
    chunks: int
    chunks_done: int
    chunks_failed: int
    share: float | None


class DumpSummary(_Dump, frozen=True, kw_only=True):
    """One dump in short; its tables are a number."""

    tables: int


class TableView(msgspec.Struct, frozen=True, kw_only=True):
    """One table of a dump."""

    name: str
    target: str
    state: TableState
    rows: int
    bytes: int
    expected_rows: int | None
    expected_bytes: int | None
    chunks: int
    chunks_done: int
    chunks_failed: int
    is_planned: bool
    seconds: float | None
    error: str
    share: float | None

    @property
    def label(self) -> str:
        """Its name, and what it is called at the target if that is another."""
        return self.name if self.name == self.target else f"{self.name} → {self.target}"


class LeftView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the source has and the target does not. The excuse says that it was `asked` for, or that the
    target is another `kind` of database."""

    kind: str
    name: str
    of: str
    why: str
    excuse: Excuse


class DumpView(_Dump, frozen=True, kw_only=True):
    """All about one dump."""

    tables: list[TableView]
    left_behind: list[LeftView]
    rows_per_s: float | None
    bytes_per_s: float | None
    eta_s: float | None


class ChunkView(msgspec.Struct, frozen=True, kw_only=True):
    """One chunk of the plan."""

    table: str
    target: str
    chunk: int
    state: State
    lo: Bound | None
    hi: Bound
    rows: int
    bytes: int
    attempts: int
    worker: str | None
    error: str


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a chunk."""

    id: int
    table: str
    chunk: int
    worker: str
    notification: Notice
    lo: Bound | None
    hi: Bound | None
    rows: int
    bytes: int
    seconds: float
    error: str
    at: str


class DumpList(msgspec.Struct, frozen=True):
    """Several dumps."""

    items: list[DumpSummary]


class ChunkList(msgspec.Struct, frozen=True):
    """Several chunks."""

    items: list[ChunkView]


class AttemptList(msgspec.Struct, frozen=True):
    """Several attempts."""

    items: list[AttemptView]


class DifferenceView(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk, or a table as a whole, that is not the same at the target."""

    table: str
    chunk: int | None
    why: str
    repaired: bool


class VerifiedView(msgspec.Struct, frozen=True, kw_only=True):
    """What a comparison found."""

    tables: int
    chunks: int
    rows: int
    equal: bool
    repaired: int
    different: list[DifferenceView]


class VerifyRunning(msgspec.Struct, frozen=True, kw_only=True, tag_field="state", tag="running"):
    """A comparison under way."""

    repair: bool
    table: str | None = None
    chunks_done: int = 0
    chunks: int = 0


class VerifyDone(VerifiedView, frozen=True, kw_only=True, tag_field="state", tag="done"):
    """A comparison that has ended."""

    repair: bool


class VerifyFailed(msgspec.Struct, frozen=True, kw_only=True, tag_field="state", tag="failed"):
    """A comparison that could not be made."""

    repair: bool
    error: str
    hint: str


class Square(msgspec.Struct, frozen=True):
    """A square of the map of a table: one chunk, or several."""

    chunks: str
    state: State
    rows: int
    error: str


# From rows.


async def describe(dumps: Dumps, id: str) -> DumpView:
    """All about one dump."""
    row = await dumps.find(id)
    tables = [table_view(one) for one in await dumps.tables(row.id)]
    rows, size = _sum(one.expected_rows for one in tables), _sum(one.expected_bytes for one in tables)
    found = summary(replace(row, expected_rows=rows, expected_bytes=size))
    rows_s, bytes_s = _speed(await dumps.pace(row.id)) if found.status is Status.RUNNING else (None, None)
    known = ((row.rows, rows, rows_s), (row.bytes, size, bytes_s))
    left = [max(0, expected - done) / speed for done, expected, speed in known if expected and speed]
    more = {
        "tables": tables,
        "left_behind": [LeftView(**asdict(one)) for one in row.left_behind],
        "rows_per_s": rows_s,
        "bytes_per_s": bytes_s,
        "eta_s": round(left[0], 1) if left else None,
    }
    return DumpView(**{**msgspec.structs.asdict(found), **more})


async def listed(dumps: Dumps, most: int) -> list[DumpSummary]:
    """All dumps, newest first, each without its tables."""
    return [summary(row) for row in await dumps.all(most)]


def summary(row: DumpRow) -> DumpSummary:
    """One dump in short."""
    options, status = options_of(row), status_of(row)
    return DumpSummary(
        id=str(row.id),
        short=short(row.id),
        source=row.source,
        target=target_of(row),
        status=status,
        error=row.error,
        resume=f"headgate dumps resume {short(row.id)}" if status in RESUMABLE else None,
        mode=str(options.mode),
        workers=options.workers,
        rate=row.rate,
        fuzzy=row.fuzzy,
        complete=status is Status.COMPLETED and is_complete(row.left_behind),
        place=row.place,
        spread=row.spread,
        process=row.process if is_run(row) else None,
        datasource=row.datasource,
        actor=row.actor,
        created_at=row.created_at.isoformat(),
        ended_at=row.ended_at.isoformat() if row.ended_at else None,
        seconds=_seconds(row.created_at, row.ended_at),
        tables=row.tables,
        tables_done=row.finished,
        rows=row.rows,
        bytes=row.bytes,
        expected_rows=row.expected_rows,
        expected_bytes=row.expected_bytes,
        chunks=row.chunks,
        chunks_done=row.done,
        chunks_failed=row.failed,
        share=share(status is Status.COMPLETED, (row.rows, row.expected_rows), (row.bytes, row.expected_bytes)),
    )


def target_of(row: DumpRow) -> str:
    """Where a dump writes. A backfill's URL may be a secret, of which nothing is shown; the datasource says it all."""
    return row.target if row.datasource_id is None else f"sink:{row.datasource or row.datasource_id}"


def status_of(row: DumpRow) -> Status:
    """The word for where a dump is."""
    for_nodes = row.place == "nodes"
    return outcome.status(row.status, row.error, row.wanted, is_run=is_run(row), is_for_nodes=for_nodes)


def is_run(row: DumpRow) -> bool:
    """Whether a process that lives runs it, as far as can be seen from this host."""
    return row.is_run and not is_dead(row.process)


def options_of(row: DumpRow) -> Options:
    """How a dump is done."""
    return msgspec.json.decode(row.options, type=Options)


def table_view(row: TableRow) -> TableView:
    """One table."""
    plan = plan_of(row)
    is_done, is_part = row.state is TableState.DONE, bool(plan.since)
    expected_rows = row.rows if is_done else None if is_part else plan.job.source.rows
    expected_bytes = row.bytes if is_done else None if is_part else plan.job.source.size
    return TableView(
        name=row.name,
        target=row.target,
        state=row.state,
        rows=row.rows,
        bytes=row.bytes,
        expected_rows=expected_rows,
        expected_bytes=expected_bytes,
        chunks=row.chunks,
        chunks_done=row.done,
        chunks_failed=row.failed,
        is_planned=row.offsets.ended,
        seconds=_seconds(row.started_at, row.ended_at) if row.started_at else None,
        error=row.error,
        share=share(is_done, (row.rows, expected_rows), (row.bytes, expected_bytes)),
    )


def share(is_done: bool, *known: tuple[float, int | None]) -> float | None:
    """How much is done, of one: by rows, or by bytes where rows are not known before. None: it is not known."""
    if is_done:
        return 1.0
    for done, expected in known:
        if expected:
            return round(min(NEARLY, done / expected), 4)
    return None


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _speed(pace: Pace) -> tuple[float | None, float | None]:
    if not pace.span_s or not pace.rows:
        return None, None
    return round(pace.rows / pace.span_s, 1), round(pace.bytes / pace.span_s, 1)


def _seconds(began: datetime, ended: datetime | None) -> float:
    return round(((ended or datetime.now(UTC)) - began).total_seconds(), 3)


async def chunks(dumps: Dumps, id: str, table: str | None = None) -> list[ChunkView]:
    """Every chunk that is planned, in the order of the plan; of all tables, or of one."""
    row = await dumps.find(id)
    tables = {one.number: one for one in await dumps.tables(row.id) if table in (None, one.name)}
    return [_chunk(tables[one.table], one) for one in await dumps.chunks.all(row.id) if one.table in tables]


def _chunk(table: TableRow, row: ChunkRow) -> ChunkView:
    chunk = row.chunk
    return ChunkView(
        table=table.name,
        target=table.target,
        chunk=chunk.number,
        state=chunk.state,
        lo=chunk.range.lo,
        hi=chunk.range.hi,
        rows=chunk.rows,
        bytes=row.bytes,
        attempts=chunk.attempts,
        worker=chunk.worker,
        error=chunk.error,
    )


_WORST = (State.FAILED, State.LEASED, State.PLANNED, State.DONE)


def squares(found: Sequence[ChunkView], most: int) -> list[Square]:
    """The map of a table: a square for each chunk; for several, if there are too many. Each has the worst state of its
    chunks, so that one that failed is not lost among those that are done."""
    each = max(1, -(-len(found) // most))
    made = []
    for start in range(0, len(found), each):
        some = found[start : start + each]
        worst = min(some, key=lambda one: _WORST.index(one.state))
        numbers = f"{some[0].chunk}–{some[-1].chunk}" if len(some) > 1 else str(some[0].chunk)
        made.append(Square(numbers, worst.state, sum(one.rows for one in some), worst.error))
    return made


async def history(dumps: Dumps, id: str, after: int = 0, most: int = 1000) -> list[AttemptView]:
    """Attempts after this one, oldest first."""
    row = await dumps.find(id)
    return [attempt_view(one) for one in await dumps.chunks.history(row.id, after, most)]


def attempt_view(row: AttemptRow) -> AttemptView:
    """One attempt."""
    return AttemptView(
        id=row.id,
        table=row.name,
        chunk=row.chunk,
        worker=row.worker,
        notification=row.kind,
        lo=row.lo,
        hi=row.hi,
        rows=row.rows,
        bytes=row.bytes,
        seconds=round(row.seconds, 3),
        error=row.error,
        at=row.at.isoformat(),
    )
