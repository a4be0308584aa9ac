"""What a dump is made of: the request, its tables, and what is found out about them before anything is written.

Everything that can be refused is refused here: a table that is not there, a target that has rows already or that
another dump has begun, two tables that would become one. Nothing has been created by then. A table that cannot be
copied, because it has no columns or may not be read, is no reason to refuse the others: it stays in the dump as it was
asked for, and is planned when the dump runs, and each time that it is resumed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from uuid import UUID

import msgspec

from headgate.connectors.api.bulk import By, Column, Job, Mode, Reader, StorageError, StorageGone, Table, Writer
from headgate.connectors.api.whole import Around, Wanted, WholeReader
from headgate.connectors.guard import OPEN, Guard
from headgate.connectors.plugins import open_reader, open_writer
from headgate.connectors.values.kinds import TEXT, Kind, Type, is_read_strictly, type_from_text
from headgate.core.chunks.outcome import Status
from headgate.errors import ConfigError, HeadgateError, NotFound, Refused
from headgate.ids import new_id
from headgate.runtime.dumps import choice
from headgate.runtime.dumps.addresses import Address, written
from headgate.runtime.dumps.naming import place_of, refuse_meeting, target_name
from headgate.store.dump_rows import DumpRow, NewDump, TableRow
from headgate.store.dumps import Dumps
from headgate.text import has_zero_byte

WORKERS = 2
SOURCE_TIMEOUT_S = 60.0
MOST_WORKERS = 64


@dataclass(frozen=True, slots=True)
class Options:
    """How a dump is done. Kept with it, so that it goes on the same way."""

    mode: Mode = Mode.APPEND
    workers: int = WORKERS
    processes: bool = False  # Each worker is a separate process.
    own: tuple[str, ...] = ()  # Factories of the user's own storages.
    source_timeout_s: float | None = None  # None: as the settings of the process that runs it say.
    is_bounded: bool = False  # Somebody who is no admin began it: it reaches only what is allowed.
    whole: Wanted | None = None  # A whole database, or the part of it that is wanted.
    one_by_one: str = ""  # Why all tables are copied without their database. What else it has is named at the end.
    bare: dict[str, bool] = field(default_factory=dict)  # Tables without a column to copy, and whether they have rows.
    around: Around | None = None  # What happens around the rows, where the target has the tables.


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody asks for."""

    source: str
    target: str
    tables: tuple[str, ...] = ()  # Empty: all. `name=target` renames.
    options: Options = Options()
    rows: int | None = None  # Of a chunk; None: as many as take about three seconds.
    rate: str | None = None
    key: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()  # What stays behind: tables and schemas, by patterns, or columns.
    include: tuple[str, ...] = ()  # Only these tables and schemas, by patterns.
    schema_only: bool = False
    data_only: bool = False
    owners: bool = True
    privileges: bool = True
    columns: Mapping[str, str] = field(default_factory=dict)  # Types: `price` → `decimal(12,2)`.
    since: tuple[str, ...] = ()  # Only what comes after this key.
    yes: bool = False  # Append to a table that has rows.
    spread: bool = False
    place: str = "here"
    actor: str = "someone"


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody asks of one table."""

    table: str
    target: str = ""  # Empty: called as at the source.
    mode: Mode = Mode.APPEND
    key: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    since: tuple[str, ...] = ()
    yes: bool = False


@dataclass(frozen=True, slots=True)
class Storages:
    """Where a dump reads and writes. Each worker opens its own sessions."""

    source: str
    target: str
    own: tuple[str, ...] = ()
    history: Callable[[], Reader] | None = None  # A datasource's own source, where that is what is read.
    source_timeout_s: float = SOURCE_TIMEOUT_S  # A source that sends nothing for this long is gone.
    source_guard: Guard = OPEN  # What each side may reach. A command in somebody's own process reaches what they may.
    target_guard: Guard = OPEN

    @classmethod
    def of(cls, source: Address, target: Address, own: tuple[str, ...]) -> Storages:
        """Those of two addresses."""
        return cls(source.url, target.url, own, source_guard=source.guard, target_guard=target.guard)

    def read(self, snapshot: str | None = None) -> Reader:
        """A session that reads."""
        if self.history is not None:
            return self.history()
        return open_reader(self.source, snapshot, self.own, self.source_guard)

    def write(self) -> Writer:
        """A session that writes."""
        return open_writer(self.target, self.own, self.target_guard)

    def read_target(self) -> Reader:
        """A session that reads what has been written."""
        return open_reader(self.target, None, self.own, self.target_guard)


@dataclass(frozen=True, slots=True)
class Plan:
    """One table of a dump, as it is kept: the job, the table that chunks go into, and where to begin."""

    job: Job
    into: Table | None = None
    since: tuple[str, ...] = ()
    had_rows: bool = False  # The target had rows before the dump.
    reads: Table | None = None  # What is read, where a mapping makes the job's columns of it.
    asked: Asked | None = None  # It could not be planned yet, and the job says no more than its names.

    @property
    def source(self) -> Table:
        """The table that is read."""
        return self.reads or self.job.source


def options_of(row: DumpRow) -> Options:
    """How a dump is done."""
    return msgspec.json.decode(row.options, type=Options)


def plan_of(row: TableRow) -> Plan:
    """The plan in a table's row."""
    return msgspec.json.decode(row.job, type=Plan)


def is_planned(row: TableRow) -> bool:
    """Whether a table has been planned. Of one that has not, the target has nothing."""
    return plan_of(row).asked is None


def as_json(plan: Plan) -> object:
    """The plan as it is kept. With a zero byte in it, PostgreSQL could not list any dump any more."""
    if has_zero_byte(msgspec.json.encode(plan)):
        name = plan.job.source.name.replace("\0", "\\0")
        raise Refused(
            f"a name in table {name} has a zero byte", code="zero_byte", hint="rename the column, or leave it out"
        )
    return msgspec.to_builtins(plan)


async def create(dumps: Dumps, request: Request, source: Address | None = None, target: Address | None = None) -> UUID:
    """Look at everything, refuse what cannot be, and write the dump down. Nothing is copied yet. `source` and `target`:
    what the URLs stand for, if not only for themselves."""
    source, target = source or written(request.source), target or written(request.target)
    request = replace(request, source=source.url, target=target.url)
    _check(request)
    storages = Storages.of(source, target, request.options.own)
    dump = new_id()
    reader, writer = storages.read(), storages.write()
    async with aclosing(_Closing(reader)), aclosing(_Closing(writer)):
        refuse = partial(_refuse_unfinished, dumps, target.shown)
        request, names = await choice.chosen(request, reader, writer, refuse)
        if not names and request.options.whole is None:
            raise NotFound(f"{source.shown} has no tables")
        asked = await _asked(names, request, reader)
        request, found = await _all_found(asked, request, reader, writer)
        refuse_meeting((one.asked.table, one.target, one.place) for one in found if one.error is None)
        await refuse([one.target for one in found])
        plans = [await _plan_or_ask_later(dumps, dump, one, writer, request.options) for one in found]
    errors = [error for _, error in plans if error is not None]
    if errors and (len(errors) == len(plans) or request.options.whole is not None):
        raise errors[0]
    await dumps.create(
        NewDump(
            id=dump,
            source=source.shown,
            target=target.shown,
            urls={"source": source.kept, "target": target.kept},
            options=msgspec.to_builtins(request.options),
            tables=[(plan.job.source.name, plan.job.target, as_json(plan)) for plan, _ in plans],
            rows=request.rows,
            rate=request.rate,
            place=request.place,
            spread=request.spread,
            actor=request.actor,
        )
    )
    return dump


class _Closing:
    """Closes a storage, whatever happens."""

    def __init__(self, storage: Reader | Writer) -> None:
        self._storage = storage

    async def aclose(self) -> None:
        await self._storage.close()


def _check(request: Request) -> None:
    if not 1 <= request.options.workers <= MOST_WORKERS:
        raise ConfigError(f"workers must be between 1 and {MOST_WORKERS}")
    if request.rows is not None and request.rows < 1:
        raise ConfigError("a chunk has at least one row")
    if request.options.source_timeout_s is not None and request.options.source_timeout_s <= 0:
        raise ConfigError("the source's timeout must be more than 0 seconds")
    for name, text in request.columns.items():
        column_type(name, text)
    if request.source == request.target:
        raise ConfigError("source and target are the same")
    if request.since and len(request.tables) != 1:
        raise ConfigError("a point to begin from is a key of one table", hint="name it with --table")
    if request.spread and any(name.rpartition(":")[0].endswith(".py") for name in request.options.own):
        raise ConfigError(
            "a storage from a file is on this machine only", hint="make it a module that nodes can import"
        )
    choice.check(request)
    parse_rate(request.rate)


@dataclass(frozen=True, slots=True)
class _Found:
    """A table that was asked for, and what it turned out to be."""

    asked: Asked
    target: str
    place: str = ""
    table: Table | None = None
    error: HeadgateError | None = None  # Why it is no table that can be copied.


class _NoColumns(Refused):
    """A table has no column that is copied."""

    def __init__(self, table: Table) -> None:
        super().__init__(f"{table.name} has no columns", code="no_columns", hint="there is nothing to copy")
        self.table = table


async def _asked(names: Sequence[str], request: Request, reader: Reader) -> list[Asked]:
    """The tables that are meant. A name with an equals sign in it is a table's if there is such a table."""
    pairs = [(name, "") for name in names]
    if request.tables and any("=" in name for name in names):
        there = await reader.tables()
        pairs = [(name, "") if name in there else _renamed(name) for name in names]
    of_all = Asked(
        "",
        mode=request.options.mode,
        key=request.key,
        exclude=request.exclude,
        columns=request.columns,
        since=request.since,
        yes=request.yes,
    )
    return [replace(of_all, table=name, target=target) for name, target in pairs]


def _renamed(text: str) -> tuple[str, str]:
    name, _, target = text.partition("=")
    return name, target


def _is_of_one_table(error: HeadgateError) -> bool:
    """Whether an error is no reason to refuse the other tables. Where something must be decided, or was mistyped,
    nothing is begun."""
    if isinstance(error, Refused):
        return error.code not in ("unfinished", "not_empty")
    return isinstance(error, StorageError) and not isinstance(error, StorageGone)


async def _all_found(
    asked: Sequence[Asked], request: Request, reader: Reader, writer: Writer
) -> tuple[Request, list[_Found]]:
    """The tables. Those of a whole database that have nothing to copy are remembered apart."""
    is_whole = request.options.whole is not None
    found = [await _found(one, reader, writer, is_whole=is_whole) for one in asked]
    if not is_whole:
        return request, found
    empty = [one.error.table for one in found if isinstance(one.error, _NoColumns)]
    options = replace(request.options, bare={table.name: bool(table.rows) for table in empty})
    return replace(request, options=options), [one for one in found if not isinstance(one.error, _NoColumns)]


async def _found(asked: Asked, reader: Reader, writer: Writer, *, is_whole: bool = False) -> _Found:
    target = asked.target or asked.table
    try:
        if is_whole and isinstance(reader, WholeReader):
            described = await reader.describe_rows(asked.table)
        else:
            described = await reader.describe(asked.table)
        table = _with_columns(described, asked, writer.family)
        target = asked.target or target_name(table, writer)
        return _Found(asked, target, await place_of(writer, target), table)
    except HeadgateError as error:
        if not _is_of_one_table(error):
            raise
        return _Found(asked, target, error=error)


async def _plan_or_ask_later(
    dumps: Dumps, dump: UUID, found: _Found, writer: Writer, options: Options
) -> tuple[Plan, HeadgateError | None]:
    error = found.error
    if error is None:
        try:
            return await _plan(dumps, dump, found, writer, options), None
        except HeadgateError as raised:
            if not _is_of_one_table(raised):
                raise
            error = raised
    job = Job(dump, Table(found.asked.table, ()), found.target, found.asked.mode)
    return Plan(job, asked=found.asked), error


async def planned_now(dumps: Dumps, dump: UUID, asked: Asked, reader: Reader, writer: Writer) -> Plan:
    """The plan of a table that had none when its dump began. Raises what is wrong with it."""
    found = await _found(asked, reader, writer)
    if found.error is not None:
        raise found.error
    others = [row for row in await dumps.tables(dump) if is_planned(row)]
    places = [(row.name, row.target, await place_of(writer, row.target)) for row in others]
    refuse_meeting([*places, (asked.table, found.target, found.place)])
    return await _plan(dumps, dump, found, writer, Options())


async def _plan(dumps: Dumps, dump: UUID, found: _Found, writer: Writer, options: Options) -> Plan:
    asked, table, target = found.asked, found.table, found.target
    assert table is not None, "it was found"
    whole, around = options.whole, options.around
    is_made = whole is not None and whole.schema  # Then it is known that the target has none of the tables.
    there = None if is_made else await _looked_at(dumps, dump, target, writer)
    table = _unguessed(table, asked, there)
    read, table = table, _retyped(table, asked, there, writer.family)
    mode = asked.mode
    if mode is Mode.APPEND and there is not None and there.rows != 0 and not asked.yes:
        raise Refused(
            f"{target} has rows already", code="not_empty", hint="--yes appends; or --mode replace, --mode upsert"
        )
    key = asked.key or table.key
    if mode is Mode.UPSERT and not key:
        raise Refused(f"{table.name} has no key to find rows by", code="no_key", hint="name it with --key")
    job = Job(
        dump,
        table,
        target,
        mode,
        aside=table.by is By.BLOCK and not is_made,
        key=key,
        created=there is None and not is_made,
        whole=is_made,
        quiet=around is not None and around.quiet,
    )
    reads = None if table == read else read
    had_rows = there is not None and there.rows != 0 and mode is not Mode.REPLACE
    return Plan(job, since=asked.since, had_rows=had_rows, reads=reads)


async def _looked_at(dumps: Dumps, dump: UUID, target: str, writer: Writer) -> Table | None:
    """The table at the target. Refuses one that another dump has begun."""
    for other in await writer.unfinished(target):
        if other != dump and not await _is_given_up(dumps, other):
            raise Refused(
                f"{target} belongs to another dump", code="unfinished", hint=f"headgate dumps resume {short(other)}"
            )
    return await writer.look(target)


async def _is_given_up(dumps: Dumps, dump: UUID) -> bool:
    """Whether a dump was cancelled; its lines stay in the ledger with the rows that it appended."""
    with suppress(NotFound):
        return (await dumps.find(str(dump))).status is Status.CANCELLED
    return False


async def _refuse_unfinished(dumps: Dumps, shown: str, targets: Sequence[str]) -> None:
    for other in await dumps.unfinished(shown, targets):
        raise Refused(
            f"a dump into {shown} is not finished",
            code="unfinished",
            hint=f"headgate dumps resume {short(other)}, or headgate dumps cancel {short(other)}",
        )


def _with_columns(table: Table, asked: Asked, family: str) -> Table:
    """The columns that are copied."""
    names = {column.name for column in table.columns}
    excluded = {_column_of(name, table) for name in asked.exclude}
    typed = {_column_of(name, table) for name in asked.columns}
    for name in (*typed, *excluded, *asked.key):
        if name is not None and name not in names:
            raise NotFound(f"{table.name} has no column {name!r}", hint=f"it has {', '.join(sorted(names))}")
    generated = set(table.generated) if table.family == family else set()
    kept = tuple(one for one in table.columns if one.name not in excluded and one.name not in generated)
    if not kept and not any(column.name in excluded for column in table.columns):
        raise _NoColumns(table)
    if not kept:
        raise ConfigError(f"{table.name} has no columns left", hint="exclude fewer columns")
    dropped = [{"name": column.name, "native": column.native} for column in table.columns if column.name in generated]
    details = {**table.details, "dropped": dropped} if dropped else table.details
    return replace(table, columns=kept, details=details)


def _column_of(name: str, table: Table) -> str | None:
    """The column that is meant in this table, if it is this table's."""
    before, dot, column = name.rpartition(".")
    if not dot or any(one.name == name for one in table.columns):
        return name
    return column if before in (table.name, table.name.rpartition(".")[2]) else None


def _unguessed(table: Table, asked: Asked, there: Table | None) -> Table:
    """A type that is a guess gives way to one that was given, and to the column that is there: it is text to those."""
    guesses: Sequence[str] = table.details.get("guessed", ())
    given = {_column_of(name, table) for name in asked.columns}
    known = given | ({column.name for column in there.columns} if there is not None else set())
    if known.isdisjoint(guesses):
        return table
    columns = tuple(
        replace(one, type=TEXT) if one.name in guesses and one.name in known else one for one in table.columns
    )
    details = {**table.details, "guessed": [name for name in guesses if name not in known]}
    return replace(table, columns=columns, details=details)


def _retyped(table: Table, asked: Asked, there: Table | None, family: str) -> Table:
    """The columns as they are written. Types that were given count. Text, or a number of any size, that goes into a
    column where the database would round or cut it is read by us as what the column is, and refused if it must be."""
    given = {_column_of(name, table): column_type(name, text) for name, text in asked.columns.items()}
    types = {column.name: column.type for column in there.columns} if there is not None else {}
    columns: list[Column] = []
    strict: list[str] = []
    for column in table.columns:
        type = given.get(column.name)
        if type is None and column.name in types and is_read_strictly(column.type, types[column.name]):
            type = types[column.name]
        if type is None or type == column.type:
            columns.append(column)
            continue
        strict.append(column.name)
        columns.append(replace(column, type=type, native="" if table.family == family else column.native))
    if not strict:
        return table
    return replace(table, columns=tuple(columns), details={**table.details, "strict": strict})


def column_type(name: str, text: str) -> Type:
    """The type that was given for a column."""
    try:
        return type_from_text(text)
    except ValueError as error:
        near = get_close_matches(text.lower().partition("(")[0], list(Kind), n=1)
        raise ConfigError(f"column {name}: {error}", hint=f"did you mean {near[0]}?" if near else "") from None


def short(dump: UUID) -> str:
    """As much of a dump's id as a person types."""
    return str(dump)[:13]


# The rate.

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "kb": 10**3, "mb": 10**6, "gb": 10**9, "b": 1}


@dataclass(frozen=True, slots=True)
class Rate:
    """How much may go in a second."""

    rows: float | None = None
    bytes: float | None = None


def parse_rate(text: str | None) -> Rate:
    """`5000` and `20k` are rows, `20MB` is bytes, each in a second; `max` is as fast as it goes."""
    if text is None or text.lower() in ("max", "none", ""):
        return Rate()
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*?)(?:/s)?", text.strip().lower())
    if not found or found[2] not in _UNITS or float(found[1]) <= 0:
        raise ConfigError(f"{text!r} is not a rate", hint="5000 (rows a second), 20k, 20MB (bytes a second), or max")
    amount = float(found[1]) * _UNITS[found[2]]
    return Rate(bytes=amount) if found[2].endswith("b") else Rate(rows=amount)


def file_of(home: Path, dump: UUID) -> Path:
    """Where a dump's history is saved when it fails."""
    return home / "dumps" / f"{dump}.json"
