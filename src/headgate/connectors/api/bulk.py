"""What a storage is: the public contract between a dump and the code that speaks to one kind of database or file.

A dump copies tables (collections, files) in chunks. A `Reader` describes its tables, says where chunks end, and
answers `query` for one range. A `Writer` prepares a table, tells which chunks it has, and writes one chunk so
that it is there wholly or not at all. Each object is one session: a worker builds its own from the URL, and uses it
for one thing at a time.

**Ranges.** A range is the rows after `lo` up to and including `hi`. A bound is the source's own text, one for each
column of the key, and only the source compares bounds: it knows its collations. Where there is no key a bound is a
number: of a block, of a row, of a byte.

**Languages.** Data travels in pieces, in the fastest language that both sides speak:

    COPY    the source's own bytes, passed on untouched: PostgreSQL's binary COPY, MongoDB's BSON. Only between two
            storages of one kind, and columns of equal types
    CSV     bytes of comma-separated text. Every value is in the canonical text of its kind (`values.kinds`)
    ARROW   `pyarrow.RecordBatch`, with the types that `arrow.arrow_type` gives for the columns
    ROWS    lists of dicts, with Python values

A storage names what it speaks, best first; `values.convert` translates. CSV has no header. NULL is an
empty field without quotes and the empty string is a pair of quotes, unless the writer asks for another `Csv`. A piece
may end anywhere, also inside a value.

**Once only.** A transactional target keeps a ledger, the table `headgate_dump_chunk`, and writes a chunk's line in
the transaction of its rows, as its last statement; the line is unique, so a chunk that two workers write is written
by one of them, and the other gets `AlreadyWritten`. Files are written under another name and renamed. A target with
neither compensates: `undo` removes what a broken chunk left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, runtime_checkable
from uuid import UUID

from headgate.connectors.values.kinds import Type
from headgate.core.chunks import Bound, Range
from headgate.core.chunks.left import Excuse, Left
from headgate.errors import HeadgateError, Refused
from headgate.text import counted

__all__ = [
    "MASK",
    "PLAIN",
    "AlreadyWritten",
    "Bound",
    "Builds",
    "By",
    "Cleans",
    "Column",
    "Csv",
    "Digest",
    "DigestsInServer",
    "Excuse",
    "Foreign",
    "Index",
    "Indexes",
    "Inventory",
    "Job",
    "Language",
    "Left",
    "Links",
    "Mode",
    "Named",
    "NamesTables",
    "Ordered",
    "Piece",
    "Pieces",
    "Range",
    "Reader",
    "Row",
    "SnapshotGone",
    "StorageError",
    "StorageGone",
    "Table",
    "Writer",
    "bad_name",
    "target_of",
]


MASK = (1 << 64) - 1  # Sums of hashes wrap, as in a machine word.


class Language(StrEnum):
    """How data travels."""

    COPY = "copy"
    CSV = "csv"
    ARROW = "arrow"
    ROWS = "rows"


class Mode(StrEnum):
    """What happens with rows that the target has."""

    APPEND = "append"  # They stay.
    REPLACE = "replace"  # A new table is built apart, and takes the place of the old one at once.
    UPSERT = "upsert"  # A row with the same key is overwritten.
    ABSENT = "absent"  # A row with the same key stays as it is: for a backfill while the live stream runs.


class By(StrEnum):
    """What a table is cut by."""

    KEY = "key"
    BLOCK = "block"  # PostgreSQL's ctid: only within one snapshot.
    OFFSET = "offset"  # Numbers of rows from 0, where there is nothing else; the first `lo` rows are skipped.
    BYTES = "bytes"  # A place in a file.


@dataclass(frozen=True, slots=True)
class Csv:
    """How a writer wants its CSV."""

    null: str = ""  # A word for NULL, without quotes.
    delimiter: str = ","
    native: str = ""  # A family whose own text is welcome, in place of the canonical one.
    alike: bool = False  # Equal values must have equal text in every storage, so that texts can be compared.


PLAIN = Csv()


@dataclass(frozen=True, slots=True)
class Column:
    """One column, as both sides understand it."""

    name: str
    type: Type
    nullable: bool = True
    native: str = ""  # What its own storage calls the type, such as `varchar(20)` or `inet`.


@dataclass(frozen=True, slots=True)
class Index:
    """An index that every database can have: of whole columns, over all rows."""

    name: str
    columns: tuple[str, ...]
    unique: bool = False


@dataclass(frozen=True, slots=True)
class Foreign:
    """A foreign key."""

    name: str
    columns: tuple[str, ...]
    refers: str  # The table, as the source knows it.
    to: tuple[str, ...]  # Its columns.
    on_delete: str = "NO ACTION"
    on_update: str = "NO ACTION"


@dataclass(frozen=True, slots=True)
class Table:
    """One table, collection or file."""

    name: str  # As its storage knows it, such as `public.orders`.
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()  # Unique and NOT NULL.
    by: By = By.KEY
    rows: int | None = None  # About how many, for the progress bar.
    size: int | None = None  # About how many bytes.
    family: str = ""  # `postgresql`, `mysql`, …: who understands `native` and `details`.
    details: dict[str, Any] = field(default_factory=dict)  # JSON: indexes, sequences, what a file was when it was read.
    sampled: bool = False  # The columns are a guess from the first records.
    counts: str = ""  # The column that the database numbers by itself.
    indexes: tuple[Index, ...] = ()  # Besides the key: those that any database can have; `details` may know of more.
    unlike: tuple[
        tuple[str, str], ...
    ] = ()  # Indexes that no other kind of database can have: names, and what they are.
    foreign: tuple[Foreign, ...] = ()
    exact: bool = False  # A chunk has exactly as many rows as are asked for, wherever rows can be counted.
    plain: str = ""  # What it is called where there are no schemas, if that is not its name.
    generated: tuple[str, ...] = ()  # Columns that a target of the same family computes by itself.

    def named(self, columns: Sequence[str]) -> tuple[Column, ...]:
        """The columns of these names, in this order."""
        found = {column.name: column for column in self.columns}
        return tuple(found[name] for name in columns)

    def with_columns(self, columns: Sequence[Column]) -> Table:
        """The same table with other columns."""
        return replace(self, columns=tuple(columns))


@dataclass(frozen=True, slots=True)
class Job:
    """One table's part of a dump: what a writer needs to know."""

    dump: UUID
    source: Table  # Only the columns that are copied.
    target: str  # The target's name for the table.
    mode: Mode = Mode.APPEND
    aside: bool = False  # Build `<target>__hg_<dump>` and put it in place at the end; `replace` always does.
    key: tuple[str, ...] = ()  # By which `upsert` and `absent` find a row. Default: the source's key.
    created: bool = False  # The dump made the table: indexes, constraints and sequences are its business, too.
    whole: bool = False  # A definition of the whole database makes the table, and others what belongs to it.
    quiet: bool = False  # Triggers of the target do not see the rows.

    @property
    def is_apart(self) -> bool:
        """Whether the table is built apart from the target, and put in its place at the end."""
        return self.aside or self.mode is Mode.REPLACE

    @property
    def apart_name(self) -> str:
        """The name of the table that is built apart."""
        return f"{self.target}__hg_{self.dump.hex[:8]}"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of a chunk's data."""

    data: Any  # Bytes, a RecordBatch, or a list of dicts.
    size: int  # In bytes; for progress, the rate and the memory budget.
    rows: int = 0  # As far as known. A reader that learns the number only at the end puts it into the last piece.


Pieces: TypeAlias = AsyncIterator[Piece]
Row: TypeAlias = dict[str, Any]  # Of a piece in ROWS.


def target_of(refers: str, targets: Mapping[str, str]) -> str:
    """The target's name for a table of the source. One that was not copied may be there by its own name."""
    last = refers.rpartition(".")[2]
    alike = [target for name, target in targets.items() if name.rpartition(".")[2] == last]
    return targets.get(refers) or (alike[0] if len(alike) == 1 else last.strip('"'))


def bad_name(name: str, what: str) -> Refused:
    """The error for a table whose name the target cannot have."""
    return Refused(f"{name!r} cannot be the name of {what}", code="name", hint="rename it: --table name=target")


class StorageError(HeadgateError):
    """This chunk, or this table, cannot be copied. Others can."""

    code = "storage"


class StorageGone(StorageError):
    """The storage no longer answers: nothing can be copied until it is back."""

    code = "storage_gone"


class SnapshotGone(StorageError):
    """The session that held the snapshot has ended. What was read in it stays good."""

    code = "snapshot_gone"


class AlreadyWritten(StorageError):
    """The ledger has this chunk: another worker was faster, or this one wrote it before a crash."""

    code = "already_written"


@dataclass(slots=True)
class Digest:
    """What a range holds, in a few numbers: its rows, the NULLs of each column, and a sum of the hashes of all rows."""

    rows: int = 0
    nulls: dict[str, int] = field(default_factory=dict)
    sum: int = 0
    hashes: Counter[int] | None = None  # Of each row, if they were asked for.

    def difference(self, other: Digest) -> str:
        """How two ranges differ, in words. Empty: they do not."""
        if self.rows != other.rows:
            return f"{counted(self.rows, 'row')} in the source, {other.rows:,} in the target"
        for name, nulls in self.nulls.items():
            if nulls != other.nulls.get(name, 0):
                return f"{name}: {counted(nulls, 'NULL')} in the source, {other.nulls.get(name, 0)} in the target"
        return "" if self.sum == other.sum else "values differ"

    def add(self, other: Digest) -> None:
        """This range and another one, as one."""
        self.rows += other.rows
        self.sum = (self.sum + other.sum) & MASK
        for name, nulls in other.nulls.items():
            self.nulls[name] = self.nulls.get(name, 0) + nulls
        if other.hashes is not None:
            self.hashes = other.hashes + (self.hashes or Counter())

    def missing(self, other: Digest) -> int:
        """How many of these rows the other does not have."""
        return ((self.hashes or Counter()) - (other.hashes or Counter())).total()


class Reader(Protocol):
    """The side that is read. One object is one session."""

    languages: Sequence[Language]

    async def tables(self) -> list[str]:
        """The names of all tables that can be copied."""
        ...

    async def describe(self, table: str) -> Table:
        """What the table looks like. Raises `NotFound`."""
        ...

    async def begin(self) -> str | None:
        """Hold the present state, as long as this session lives. Others read it when they are opened with this name.
        None: this storage cannot, and each chunk is read as it is at that moment."""
        ...

    async def top(self, table: Table) -> Bound | None:
        """The greatest bound there is now. None: the table is empty."""
        ...

    async def cut(self, table: Table, after: Bound | None, top: Bound, rows: int) -> Bound:
        """The bound that ends a chunk of about this many rows; `top` if fewer are left."""
        ...

    def query(self, table: Table, range: Range, language: Language, csv: Csv) -> Pieces:
        """The rows of one range, with the columns of `table` in their order."""
        ...

    async def close(self) -> None:
        """End the session. May be called at any time, and more than once."""
        ...


@runtime_checkable
class Ordered(Protocol):
    """What a `Reader` may have besides: an order of keys that other storages share. Verify compares chunks there,
    and whole tables elsewhere."""

    async def order(self, table: Table) -> str | None:
        """A name for the order of the table's key. Two storages that give the same name select the same rows by the
        same bounds. None: no other storage has this order."""
        ...


@runtime_checkable
class Inventory(Protocol):
    """What a `Reader` may have besides: it knows what else hangs on its tables, so a copy can say what it lacks."""

    async def inventory(self, tables: Sequence[str], *, is_whole: bool) -> list[Left]:
        """What belongs to these tables; with `is_whole`, also to the database. What is the same at both sides has
        the same kind and name, and `of` is the table's name as it was given."""
        ...


@runtime_checkable
class DigestsInServer(Protocol):
    """What a `Reader` may have besides: the server itself hashes rows, so that only a few numbers travel."""

    async def forms(self, table: Table) -> tuple[str, ...] | None:
        """How the server hashes each column. Two storages that give the same forms give equal numbers for equal rows,
        and for others only by chance. None: this server cannot."""
        ...

    async def digest(self, table: Table, range: Range) -> Digest:
        """What a range holds."""
        ...


@runtime_checkable
class NamesTables(Protocol):
    """What a `Reader` may have besides: it calls a table by another name than the one it was written under."""

    async def name_of(self, target: str) -> str:
        """The reader's name for what a `Writer` with the same URL was given as `target`."""
        ...


class Writer(Protocol):
    """The side that is written. One object is one session."""

    languages: Sequence[Language]
    csv: Csv
    attempt: int  # How often the next chunk has been leased. A later attempt may end the sessions of earlier ones.
    transactional: bool  # Rows and ledger commit together. If not, `undo` is called before a chunk is tried again.
    keeps_ledger: bool  # `done` tells what is written. If not, only the plan knows.
    family: str

    async def look(self, table: str) -> Table | None:
        """The table as it is now; None if it does not exist. `rows` is 0 only if it is empty."""
        ...

    async def prepare(self, job: Job) -> Table:
        """Create what is missing: the table, its ledger, the table that is built apart. Returns the table that chunks
        go into. Idempotent."""
        ...

    async def done(self, job: Job) -> dict[Range, int]:
        """The chunks that the ledger has, with their rows."""
        ...

    async def unfinished(self, target: str) -> list[UUID]:
        """Dumps that have lines in the ledger for this table and are not finished."""
        ...

    def accepts(self, table: Table, job: Job) -> Sequence[Language]:
        """The languages in which this job's source may write into this table: COPY only if the types are equal."""
        ...

    def normalize(self, pieces: Pieces, language: Language, columns: Sequence[Column]) -> tuple[Language, Pieces]:
        """The same data in a language that this writer speaks."""
        ...

    async def write(
        self, job: Job, table: Table, range: Range, language: Language, pieces: Pieces, *, again: bool = False
    ) -> int:
        """Write one chunk, whole or not at all. Returns its rows. Raises `AlreadyWritten`.

        `again`: what the range has, rows and line, goes first, in the same transaction; for a repair."""
        ...

    async def undo(self, job: Job, table: Table, range: Range) -> None:
        """Remove what a broken write of this chunk left."""
        ...

    async def finish(self, job: Job) -> None:
        """Everything is written: make indexes, constraints and sequences, put what was built apart in its place, and
        mark the job as finished in the ledger. Idempotent."""
        ...

    async def drop(self, job: Job) -> None:
        """Remove what was built apart, and its lines in the ledger: the dump is cancelled, or starts over."""
        ...

    async def close(self) -> None:
        """End the session. May be called at any time, and more than once."""
        ...


@runtime_checkable
class Named(Protocol):
    """What a `Writer` may have besides: rules for the names of tables. Without them any name will do."""

    def name_for(self, plain: str) -> str:
        """How this storage writes the name of a table that is called `plain` elsewhere, letter by letter."""
        ...

    async def place_of(self, table: str) -> str:
        """What tells tables apart: two names with one place mean one table. Raises `Refused` for a name that no table
        can have, or that would be changed."""
        ...


@runtime_checkable
class Builds(Protocol):
    """What a `Writer` may have besides: it can tell how far another session is with the indexes of a table."""

    async def building(self, job: Job) -> str:
        """What is built now, and how much of it is done, in words. Empty: nothing, as far as is known."""
        ...


@runtime_checkable
class Cleans(Protocol):
    """What a `Writer` may have besides: it removes what a dump that is over has left for itself."""

    async def clean(self, dump: UUID, targets: Sequence[str]) -> None:
        """Remove the dump's lines of the ledger, and the ledger, if it has no others. What was copied stays."""
        ...


@runtime_checkable
class Indexes(Protocol):
    """What a `Writer` may have besides: it makes indexes that a table of another kind of database had."""

    async def index(self, job: Job) -> list[Left]:
        """Make them, for a table that the dump made. Returns what cannot be made."""
        ...


@runtime_checkable
class Links(Protocol):
    """What a `Writer` may have besides: it makes foreign keys once all tables are there."""

    async def link(self, job: Job, targets: Mapping[str, str]) -> list[Left]:
        """Make them, for a table that the dump made. `targets`: the target's name for each table of the source.
        Returns those that cannot be made."""
        ...
