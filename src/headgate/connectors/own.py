"""A storage of the user's own: any object with `query`, or with `write`.

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
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

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
    StorageError,
    StorageGone,
    Table,
)
from headgate.connectors.files.jsonl import inferred
from headgate.connectors.sql import ledger
from headgate.connectors.values.convert import ROWS, Normalizes
from headgate.connectors.values.kinds import canonical, type_from_text
from headgate.errors import ConfigError, HeadgateError, NotFound, Refused

FAMILY = "own"
SAMPLED = 1000
ENDLESS = 2**63 - 1  # The last row, where nobody knows how many there are.


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a user's `write`, `undo` and `done` know of a chunk. It is the same in every attempt."""

    dump: str
    table: str
    key: str  # Stands for the range.
    lo: Bound | None
    hi: Bound


async def call(made: Any, method: str, *args: Any) -> Any:
    """Call a method of the user's, sync or async. Its errors are the chunk's; a lost connection is the storage's."""
    work = getattr(made, method)
    try:
        result = work(*args) if inspect.iscoroutinefunction(work) else await asyncio.to_thread(work, *args)
        return await result if inspect.isawaitable(result) else result
    except HeadgateError:
        raise
    except (ConnectionError, TimeoutError) as error:
        raise StorageGone(f"{_name(made)}.{method}: {_told(error)}") from error
    except Exception as error:
        raise StorageError(f"{_name(made)}.{method}: {_told(error)}") from error


def _name(made: Any) -> str:
    return type(made).__name__


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".removesuffix(": ")


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
            raise StorageError(f"{_name(self._made)}.size is a number of rows, and not {size!r}")
        return size

    async def _rows(self, offset: int, limit: int) -> list[dict[str, Any]]:
        found = await call(self._made, "query", offset, limit)
        rows = list(found or [])
        if len(rows) > limit:
            raise StorageError(f"{_name(self._made)}.query({offset}, {limit}) returned {len(rows)} rows")
        if not all(isinstance(row, dict) for row in rows):
            raise StorageError(f"{_name(self._made)}.query({offset}, {limit}) returned what is not a dict")
        return rows

    async def begin(self) -> str | None:
        """Each chunk is read as it is at its time."""
        return None

    async def top(self, table: Table) -> Bound | None:
        """The number of rows, or the greatest there may be."""
        size = await self._size()
        return None if size == 0 else (str(ENDLESS if size is None else size),)

    async def cut(self, table: Table, after: Bound | None, top: Bound, rows: int) -> Bound:
        """So many rows further."""
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
        """Nobody knows."""
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
        """Nobody knows."""
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
                raise Refused(f"{_name(self._made)} has no undo(chunk): a chunk cannot be written anew")
            await call(self._made, "undo", chunk)
        count = 0
        async for piece in pieces:
            count += len(piece.data)
            rows = await call(self._made, "normalize", piece.data) if self._has("normalize") else piece.data
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
        """Nothing was built beside."""

    async def close(self) -> None:
        """End the session."""
        if self._has("close"):
            await call(self._made, "close")


def _chunk(job: Job, range: Range) -> Chunk:
    return Chunk(str(job.dump), job.target, ledger.key_of(range), range.lo, range.hi)


def _takes(method: Any, count: int) -> bool:
    """Whether a method takes so many arguments."""
    try:
        inspect.signature(method).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # It is not written in Python, and does not tell.
        return False
    return True
