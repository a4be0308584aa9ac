"""A storage that is one small class: any object with `query`, or with `write`.

    class Orders:
        name = "orders"                                   # optional
        columns = {"id": "int64", "price": "decimal(12,2)"}  # optional: else from the first records
        size = 1000                                       # optional; or a method

        def query(self, offset, limit):                   # or `async def`
            return [{"id": 1, "price": Decimal("9.90")}, ...]

Rows are numbered, and the same number must always mean the same row. Without `size` chunks are planned until a query
returns nothing.

    class Archive:
        def write(self, rows): ...                        # or write(self, rows, chunk)
        def normalize(self, rows): return rows            # optional: before each write
        def undo(self, chunk): ...                        # optional: remove what a broken chunk left
        def done(self): return [chunk, ...]               # optional: chunks that are there, or {chunk: rows}
        def finish(self): ...                             # optional
        modes = ("append", "upsert")                      # optional: what `write` does with rows that are there

`write` is called several times for one chunk, and nothing binds these calls together: without `undo` and `done` a chunk
that broke may be written twice. Methods that are not `async` run in a thread. `close` is called at the end, if it is
there.

A package offers such a class as a connector, `ReaderKind(open=lambda url, snapshot: Orders(url))`. Without a package,
`--storage MODULE:FACTORY` or `--storage path/to/file.py:FACTORY` names what is called with the URL.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast
from urllib.parse import quote
from uuid import UUID

import msgspec

from headgate.connectors.api import Connector, ReaderKind, WriterKind
from headgate.connectors.api.bulk import (
    PLAIN,
    Bound,
    By,
    Column,
    Csv,
    Job,
    Language,
    Mode,
    Piece,
    Pieces,
    Range,
    Reader,
    StorageError,
    StorageGone,
    Table,
    Writer,
)
from headgate.connectors.guard import OPEN, Guard
from headgate.connectors.sql import ledger
from headgate.connectors.values.convert import ROWS, Normalizes
from headgate.connectors.values.infer import inferred
from headgate.connectors.values.kinds import JSON_NULL, Kind, canonical, type_from_text
from headgate.errors import ConfigError, HeadgateError, NotFound, Refused
from headgate.hidden import error_said
from headgate.text import counted

FAMILY = "own"
SAMPLED = 1000
ENDLESS = 2**63 - 1  # The last row of a storage without a size.


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a user's `write`, `undo` and `done` know of a chunk. It is the same in every attempt."""

    dump: str
    table: str
    key: str  # Stands for the range.
    lo: Bound | None
    hi: Bound


async def call(made: Any, method: str, *args: Any) -> Any:
    """Call a user's method, sync or async. An error fails the chunk; a lost connection, the dump."""
    work = getattr(made, method)
    try:
        result = work(*args) if inspect.iscoroutinefunction(work) else await asyncio.to_thread(work, *args)
        return await result if inspect.isawaitable(result) else result
    except HeadgateError:
        raise
    except (ConnectionError, TimeoutError) as error:
        raise StorageGone(f"{_name(made)}.{method}: {error_said(error, 300)}") from error
    except Exception as error:
        raise StorageError(f"{_name(made)}.{method}: {error_said(error, 300)}") from error


def _name(made: Any) -> str:
    return type(made).__name__


class OwnReader:
    """A user's `query` as a storage that is read."""

    languages: Sequence[Language] = (Language.ROWS,)

    def __init__(self, made: Any) -> None:
        if not callable(getattr(made, "query", None)):
            raise ConfigError(f"{_name(made)} has no method query(offset, limit)", hint="it cannot be read")
        self._made = made
        self._table = str(getattr(made, "name", None) or "records")

    async def tables(self) -> list[str]:
        """The one table."""
        return [self._table]

    async def name_of(self, target: str) -> str:
        """The one table, whatever it was called when it was written."""
        return self._table

    async def describe(self, table: str) -> Table:
        """The columns that the user names, or those of the first records."""
        if table != self._table:
            raise NotFound(f"{_name(self._made)} has no table {table!r}", hint=f"it is called {self._table}")
        named = getattr(self._made, "columns", None)
        named = await call(self._made, "columns") if callable(named) else named
        if named:
            columns = tuple(_column(name, type) for name, type in dict(named).items())
        else:
            columns = inferred(await self._rows(0, SAMPLED))
        rows = await self._size()
        details = {"fields": [column.name for column in columns]}
        return Table(table, columns, by=By.OFFSET, rows=rows, family=FAMILY, details=details, sampled=not named)

    async def _size(self) -> int | None:
        size = getattr(self._made, "size", None)
        size = await call(self._made, "size") if callable(size) else size
        if size is not None and (not isinstance(size, int) or size < 0):
            raise StorageError(f"{_name(self._made)}.size must be a number of rows, not {size!r}")
        return size

    async def _rows(self, offset: int, limit: int) -> list[dict[str, Any]]:
        found = await call(self._made, "query", offset, limit)
        rows = list(found or [])
        if len(rows) > limit:
            raise StorageError(f"{_name(self._made)}.query({offset}, {limit}) returned {counted(len(rows), 'row')}")
        if not all(isinstance(row, dict) for row in rows):
            raise StorageError(f"{_name(self._made)}.query({offset}, {limit}) returned a row that is not a dict")
        return rows

    async def begin(self) -> str | None:
        """There is no snapshot: each chunk is read as it is at that moment."""
        return None

    async def top(self, table: Table) -> Bound | None:
        """The number of rows, or the greatest there may be."""
        size = await self._size()
        return None if size == 0 else (str(ENDLESS if size is None else size),)

    async def cut(self, table: Table, after: Bound | None, top: Bound, rows: int) -> Bound:
        """The number of the row that ends the chunk."""
        return (str(min(int(top[0]), int(after[0] if after else 0) + max(1, rows))),)

    async def query(self, table: Table, range: Range, language: Language, csv: Csv) -> Pieces:
        """The rows with these numbers. A query may return fewer than were asked for; one that returns none is the
        end."""
        at, end = int(range.lo[0]) if range.lo else 0, int(range.hi[0])
        names = [column.name for column in table.columns]
        is_all = set(names) == set(table.details["fields"])
        while at < end:
            rows = await self._rows(at, min(ROWS, end - at))
            if not rows:
                return
            at += len(rows)
            if not is_all:
                rows = [{name: row[name] for name in names if name in row} for row in rows]
            yield Piece(rows, _size_of(rows[0]) * len(rows), len(rows))

    async def close(self) -> None:
        """End the session."""
        if callable(getattr(self._made, "close", None)):
            await call(self._made, "close")


def _column(name: str, type: str) -> Column:
    try:
        return Column(name, type_from_text(str(type)))
    except ValueError as error:
        raise ConfigError(f"column {name!r}: {error}") from None


def _size_of(row: dict[str, Any]) -> int:
    """About how many bytes a row has; for progress and the memory budget."""
    return len(msgspec.json.encode(row, enc_hook=canonical))


class OwnWriter(Normalizes):
    """A user's `write` as a storage that is written. Without `done` only the plan knows what is written."""

    languages: Sequence[Language] = (Language.ROWS,)
    csv = PLAIN
    transactional = False
    family = FAMILY

    def __init__(self, made: Any) -> None:
        if not callable(getattr(made, "write", None)):
            raise ConfigError(f"{_name(made)} has no method write(rows)", hint="it cannot be written")
        self._made = made
        self.keeps_ledger = callable(getattr(made, "done", None))
        self._takes_chunk = _takes(made.write, 2)

    def _has(self, method: str) -> bool:
        return callable(getattr(self._made, method, None))

    async def look(self, table: str) -> Table | None:
        """None: a user's storage does not describe its tables."""
        return None

    async def prepare(self, job: Job) -> Table:
        """There is nothing to prepare."""
        modes = tuple(getattr(self._made, "modes", None) or (Mode.APPEND,))
        if job.mode not in modes or job.mode is Mode.REPLACE or job.aside:
            wanted = "replace" if job.aside else job.mode
            raise Refused(f"{_name(self._made)} cannot {wanted}", hint=f"it can: {', '.join(modes)}")
        return Table(job.target, job.source.columns, job.source.key, family=FAMILY)

    async def done(self, job: Job) -> dict[Range, int]:
        """The chunks that the user's storage says it has; none, if it does not say."""
        if not self._has("done"):
            return {}
        found = await call(self._made, "done")
        chunks = found if isinstance(found, Mapping) else dict.fromkeys(found or (), 0)
        own = (str(job.dump), job.target)
        return {Range(one.lo, one.hi): rows for one, rows in chunks.items() if (one.dump, one.table) == own}

    async def unfinished(self, target: str) -> list[UUID]:
        """None: a user's storage does not list its dumps."""
        return []

    def accepts(self, table: Table, job: Job) -> Sequence[Language]:
        """Rows."""
        return self.languages

    async def write(
        self, job: Job, table: Table, range: Range, language: Language, pieces: Pieces, *, again: bool = False
    ) -> int:
        """Piece by piece."""
        chunk = _chunk(job, range)
        if again:
            if not self._has("undo"):
                raise Refused(f"{_name(self._made)} has no undo(chunk): a chunk cannot be written again")
            await call(self._made, "undo", chunk)
        count, has_json = 0, any(column.type.kind is Kind.JSON for column in job.source.columns)
        async for piece in pieces:
            count += len(piece.data)
            rows = piece.data
            if has_json:
                rows = [{name: None if one is JSON_NULL else one for name, one in row.items()} for row in rows]
            rows = await call(self._made, "normalize", rows) if self._has("normalize") else rows
            await call(self._made, "write", rows, *([chunk] if self._takes_chunk else []))
        return count

    async def undo(self, job: Job, table: Table, range: Range) -> None:
        """Let the user's storage remove what a broken chunk left."""
        if self._has("undo"):
            await call(self._made, "undo", _chunk(job, range))

    async def finish(self, job: Job) -> None:
        """Everything is written."""
        if self._has("finish"):
            await call(self._made, "finish")

    async def drop(self, job: Job) -> None:
        """Nothing is ever built apart."""

    async def close(self) -> None:
        """End the session."""
        if self._has("close"):
            await call(self._made, "close")


def _chunk(job: Job, range: Range) -> Chunk:
    return Chunk(str(job.dump), job.target, ledger.key_of(range), range.lo, range.hi)


def _takes(method: Any, count: int) -> bool:
    """Whether a method takes this many arguments."""
    try:
        inspect.signature(method).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # It is not written in Python, and has no signature.
        return False
    return True


def reader_of(made: object) -> Reader:
    """A whole reader: what was made, if it is one, or one around its `query`."""
    return cast("Reader", made) if hasattr(made, "describe") else OwnReader(made)


def writer_of(made: object) -> Writer:
    """A whole writer: what was made, if it is one, or one around its `write`."""
    return cast("Writer", made) if hasattr(made, "prepare") else OwnWriter(made)


def connector_of(scheme: str, factories: Sequence[str], known: Sequence[str], guard: Guard = OPEN) -> Connector:
    """The factory named for this scheme, `MODULE:FACTORY` or `scheme=MODULE:FACTORY`, as a connector."""
    if not factories:
        hint = f"one of {', '.join(known)}, or --storage MODULE:FACTORY"
        raise ConfigError(f"scheme {scheme!r} belongs to no connector", hint=hint)
    named = dict(one.split("=", 1) for one in factories if "=" in one)
    unnamed = [one for one in factories if "=" not in one]
    if scheme not in named and not unnamed:
        raise ConfigError(f"scheme {scheme!r} has no factory", hint=f"--storage {scheme}=MODULE:FACTORY")
    make = factory(named.get(scheme) or unnamed[0], guard)
    return Connector(
        name=scheme,
        summary="",
        reader=ReaderKind(lambda url, snapshot: make(url)),
        writer=WriterKind(make),
        schemes=(scheme,),
    )


def factory(name: str, guard: Guard = OPEN) -> Any:
    """The factory that `module:factory` names; the module may be a file. Nothing of it runs unless it is allowed."""
    where, colon, what = name.rpartition(":")
    if not colon or not where:
        raise ConfigError(f"{name!r} is not MODULE:FACTORY", hint="such as mypackage.storages:Orders")
    guard.module(where)
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except FileNotFoundError:
        raise ConfigError(f"file {where} does not exist") from None
    except Exception as error:
        raise ConfigError(f"{where} cannot be imported: {error}") from None
    made = getattr(module, what, None)
    if not callable(made):
        raise ConfigError(f"{where} has no factory {what!r}")
    return made


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"headgate_own_{quote(path.stem, safe='')}", path)
    if spec is None or spec.loader is None or not path.exists():
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
