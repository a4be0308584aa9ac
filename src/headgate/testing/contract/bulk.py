"""The acceptance suite of readers and writers: what a dump relies on.

Derive a class from `ReaderContract` or `WriterContract`, say how to make a session and what is there, and pytest finds
the tests:

    class TestSqliteReader(ReaderContract):
        table = "items"

        def make_reader(self): return SqliteReader(self.url)

        def expected(self): return [{"id": 1, "name": "one"}, ...]

A writer is checked through the reader of the same system, so that one must pass first. Rows have an `id`, the key,
and a `name`, which may be None. Run the suite against the real service.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import pytest

from headgate.connectors.api.bulk import (
    PLAIN,
    AlreadyWritten,
    Bound,
    By,
    Column,
    Job,
    Language,
    Mode,
    Piece,
    Pieces,
    Range,
    Reader,
    StorageError,
    Table,
    Writer,
)
from headgate.connectors.values.convert import translated
from headgate.connectors.values.kinds import TEXT, Kind, Type
from headgate.errors import NotFound, Refused
from headgate.testing.contract.patience import held_resources, soon, until_no_more_than

Rows: TypeAlias = list[dict[str, Any]]
S = TypeVar("S", Reader, Writer)

DUMP = UUID("0d5c1b7f-8e21-4d6e-9a53-6f1c2c0e2f0b")
COLUMNS = (Column("id", Type(Kind.INT64), nullable=False), Column("name", TEXT))


class ReaderContract(ABC):
    """What every reader does."""

    pytestmark = pytest.mark.asyncio
    table: str  # A table with a dozen rows or more.
    empty_table: str | None = None  # One without rows, if there can be one.

    @abstractmethod
    def make_reader(self) -> Reader:
        """A new session on the data of this test."""

    @abstractmethod
    def expected(self) -> Rows:
        """All rows of the table, in any order."""

    async def test_lists_its_tables(self) -> None:
        async with _session(self.make_reader()) as reader:
            assert self.table in await soon(reader.tables())

    async def test_describes_a_table_by_its_columns(self) -> None:
        async with _session(self.make_reader()) as reader:
            table = await soon(reader.describe(self.table))
        assert {column.name for column in table.columns} == set(self.expected()[0])
        assert table.name == self.table

    async def test_a_table_that_is_not_there_is_not_found(self) -> None:
        async with _session(self.make_reader()) as reader:
            with pytest.raises(NotFound):
                await soon(reader.describe("no_such_table"))

    @pytest.mark.parametrize("size", [1, 3, 7, 100_000])
    async def test_chunks_of_any_size_are_all_rows_once(self, size: int) -> None:
        async with _session(self.make_reader()) as reader:
            table = await soon(reader.describe(self.table))
            found = [row for range in await _cuts(reader, table, size) for row in await _read(reader, table, range)]
        assert _sorted(found) == _sorted(self.expected())

    async def test_a_chunk_is_the_same_whenever_it_is_read(self) -> None:
        async with _session(self.make_reader()) as reader:
            table = await soon(reader.describe(self.table))
            ranges = await _cuts(reader, table, 4)
            first = [await _read(reader, table, range) for range in ranges]
        for range, rows in reversed(list(zip(ranges, first, strict=True))):
            async with _session(self.make_reader()) as other:
                assert await _read(other, table, range) == rows

    async def test_says_the_same_in_every_language_that_it_names(self) -> None:
        async with _session(self.make_reader()) as reader:
            table = await soon(reader.describe(self.table))
            [range] = await _cuts(reader, table, 100_000)
            for language in reader.languages:
                if language is not Language.COPY:  # Only a writer of the same system understands that.
                    assert _sorted(await _read(reader, table, range, language)) == _sorted(self.expected()), language

    async def test_an_empty_table_has_no_top(self) -> None:
        if self.empty_table is None:
            pytest.skip("this storage has no empty tables")
        async with _session(self.make_reader()) as reader:
            assert await soon(reader.top(await soon(reader.describe(self.empty_table)))) is None

    async def test_a_query_that_is_left_half_way_harms_nothing(self) -> None:
        async with _session(self.make_reader()) as reader:
            table = await soon(reader.describe(self.table))
            [range] = await _cuts(reader, table, 100_000)
            async with aclosing(_generator(reader.query(table, range, reader.languages[-1], PLAIN))) as pieces:
                async for _ in pieces:
                    break
        async with _session(self.make_reader()) as other:
            assert _sorted(await _read(other, table, range)) == _sorted(self.expected())

    async def test_may_be_closed_twice_and_without_being_used(self) -> None:
        await soon(self.make_reader().close())
        async with _session(self.make_reader()) as reader:
            await soon(reader.describe(self.table))
            await soon(reader.close())

    async def test_leaks_no_files_and_no_tasks(self) -> None:
        await self._read_all()  # Whatever the client library keeps for good is there from now on.
        before = held_resources()
        for _ in range(3):
            await self._read_all()
        await until_no_more_than(before)

    async def _read_all(self) -> None:
        async with _session(self.make_reader()) as reader:
            table = await soon(reader.describe(self.table))
            for range in await _cuts(reader, table, 5):
                await _read(reader, table, range)


class WriterContract(ABC):
    """What every writer does."""

    pytestmark = pytest.mark.asyncio
    target = "items"  # The table that is written. It is not there at the start of a test.
    modes: frozenset[Mode] = frozenset(Mode)  # Those that the writer knows; it refuses the others.

    @abstractmethod
    def make_writer(self) -> Writer:
        """A new session on the place of this test."""

    @abstractmethod
    async def read_back(self, target: str) -> Rows | None:
        """All rows that a table has for those who look at it now, in any order. None: there is no such table."""

    def job(self, mode: Mode = Mode.APPEND, dump: UUID = DUMP, *, created: bool = True) -> Job:
        """A job that copies the table of the suite."""
        return make_job(self.target, mode, dump, created=created)

    async def test_nothing_is_there_at_first(self) -> None:
        async with _session(self.make_writer()) as writer:
            assert await soon(writer.look(self.target)) is None
            assert await soon(writer.unfinished(self.target)) == []

    async def test_chunks_are_there_once_the_dump_has_finished(self) -> None:
        job = self.job()
        async with _session(self.make_writer()) as writer:
            table = await soon(writer.prepare(job))
            assert await _write(writer, job, table, 0, 5) == 5
            assert await _write(writer, job, table, 5, 12) == 7
            await soon(writer.finish(job))
        await self._has(_rows(0, 12))

    async def test_the_ledger_knows_each_chunk_and_whether_the_dump_is_finished(self) -> None:
        job = self.job()
        async with _session(self.make_writer()) as writer:
            if not writer.keeps_ledger:
                pytest.skip("this writer keeps no ledger")
            table = await soon(writer.prepare(job))
            assert await soon(writer.done(job)) == {}
            await _write(writer, job, table, 0, 5)
        async with _session(self.make_writer()) as other:
            assert await soon(other.done(job)) == {_range(0, 5): 5}
            assert await soon(other.unfinished(self.target)) == [job.dump]
            await soon(other.finish(job))
            assert await soon(other.unfinished(self.target)) == []

    async def test_a_chunk_that_is_written_again_changes_nothing(self) -> None:
        job = self.job()
        async with _session(self.make_writer()) as writer, _session(self.make_writer()) as other:
            if not writer.keeps_ledger:
                pytest.skip("this writer keeps no ledger")
            table = await soon(writer.prepare(job))
            await _write(writer, job, table, 0, 5)
            with pytest.raises(AlreadyWritten):
                await _write(other, job, table, 0, 5)
            await soon(writer.finish(job))
        await self._has(_rows(0, 5))

    async def test_a_chunk_that_breaks_leaves_nothing(self) -> None:
        job = self.job()
        async with _session(self.make_writer()) as writer:
            table = await soon(writer.prepare(job))
            with pytest.raises(StorageError, match="the source broke"):
                await _write(writer, job, table, 0, 8, breaks=True)
        async with _session(self.make_writer()) as writer:
            if not writer.transactional:
                await soon(writer.undo(job, table, _range(0, 8)))
            assert await _write(writer, job, table, 0, 8) == 8
            await soon(writer.finish(job))
        await self._has(_rows(0, 8))

    async def test_preparing_and_finishing_twice_changes_nothing(self) -> None:
        job = self.job()
        async with _session(self.make_writer()) as writer:
            table = await soon(writer.prepare(job))
            await _write(writer, job, table, 0, 5)
            assert [c.name for c in (await soon(writer.prepare(job))).columns] == [c.name for c in table.columns]
            await soon(writer.finish(job))
            await soon(writer.finish(job))
        await self._has(_rows(0, 5))

    async def test_a_repair_puts_a_chunk_in_the_place_of_the_old_one(self) -> None:
        job = self.job()
        async with _session(self.make_writer()) as writer:
            table = await soon(writer.prepare(job))
            await _write(writer, job, table, 0, 5)
            with suppress(Refused):  # A target that cannot, says so.
                assert await _write(writer, job, table, 0, 5, again=True) == 5
            await soon(writer.finish(job))
        await self._has(_rows(0, 5))

    async def test_replace_puts_the_new_table_in_place_at_the_end_and_not_before(self) -> None:
        await self._filled(3)
        job = self.job(Mode.REPLACE, UUID(int=2))
        async with _session(self.make_writer()) as writer:
            if Mode.REPLACE not in self.modes:
                with pytest.raises(Refused):
                    await soon(writer.prepare(job))
                return
            table = await soon(writer.prepare(job))
            await _write(writer, job, table, 100, 104)
            await self._has(_rows(0, 3))
            await soon(writer.finish(job))
        await self._has(_rows(100, 104))

    async def test_a_replace_that_is_dropped_leaves_the_old_table(self) -> None:
        if Mode.REPLACE not in self.modes:
            pytest.skip("this writer does not replace")
        await self._filled(3)
        job = self.job(Mode.REPLACE, UUID(int=2))
        async with _session(self.make_writer()) as writer:
            table = await soon(writer.prepare(job))
            await _write(writer, job, table, 100, 104)
            await soon(writer.drop(job))
            assert await soon(writer.unfinished(self.target)) == []
        await self._has(_rows(0, 3))

    @pytest.mark.parametrize(("mode", "winner"), [(Mode.UPSERT, "new"), (Mode.ABSENT, "old")], ids=["upsert", "absent"])
    async def test_rows_with_the_same_key_are_one_row(self, mode: Mode, winner: str) -> None:
        await self._filled(3)
        job = self.job(mode, UUID(int=2), created=False)
        async with _session(self.make_writer()) as writer:
            if mode not in self.modes:
                with pytest.raises(Refused):
                    await soon(writer.prepare(job))
                return
            table = await soon(writer.prepare(job))
            await _write(writer, job, table, 1, 5, rows=[{"id": id, "name": "new"} for id in (1, 2, 3, 4)])
            await soon(writer.finish(job))
        old = _rows(0, 3)
        kept = old if winner == "old" else [old[0], *({"id": id, "name": "new"} for id in (1, 2))]
        await self._has([*kept, {"id": 3, "name": "new"}, {"id": 4, "name": "new"}])

    async def test_may_be_closed_twice_and_without_being_used(self) -> None:
        await soon(self.make_writer().close())
        async with _session(self.make_writer()) as writer:
            await soon(writer.look(self.target))
            await soon(writer.close())

    async def test_leaks_no_files_and_no_tasks(self) -> None:
        await self._filled(3)  # Whatever the client library keeps for good is there from now on.
        before = held_resources()
        for number in (2, 3, 4):
            await self._filled(3, 10 * number, UUID(int=number))
        await until_no_more_than(before)

    async def _filled(self, count: int, first: int = 0, dump: UUID = DUMP) -> None:
        await fill(self.make_writer(), self.job(dump=dump, created=dump == DUMP), _rows(first, first + count))

    async def _has(self, rows: Rows) -> None:
        assert _sorted(await self.read_back(self.target) or []) == _sorted(rows)


def make_job(target: str, mode: Mode = Mode.APPEND, dump: UUID = DUMP, *, created: bool = True) -> Job:
    """A job that copies a table of `id` and `name`."""
    source = Table(target, COLUMNS, ("id",), By.KEY)
    return Job(dump, source, target, mode, key=("id",), created=created, aside=mode is Mode.REPLACE)


async def fill(writer: Writer, job: Job, rows: Rows) -> None:
    """A dump of one chunk, from beginning to end; also to make a table for a `ReaderContract`."""
    async with _session(writer) as session:
        table = await soon(session.prepare(job))
        if rows:
            await _write(session, job, table, rows[0]["id"], rows[-1]["id"] + 1, rows=rows)
        await soon(session.finish(job))


async def rows_of(reader: Reader, table: str) -> Rows | None:
    """All rows of a table, through its reader; for `read_back`."""
    async with _session(reader) as session:
        try:
            found = await soon(session.describe(table))
        except NotFound:
            return None
        found = found.with_columns([column for column in found.columns if column.name in ("id", "name")])
        return [row for range in await _cuts(session, found, 1000) for row in await _read(session, found, range)]


@asynccontextmanager
async def _session(made: S) -> AsyncIterator[S]:
    try:
        yield made
    finally:
        await soon(made.close())


async def _cuts(reader: Reader, table: Table, rows: int) -> list[Range]:
    """The chunks that a plan would have."""
    top = await soon(reader.top(table))
    found: list[Range] = []
    at: Bound | None = None
    while top is not None and at != top:
        end = await soon(reader.cut(table, at, top, rows))
        assert end != at, "a chunk ends behind its beginning"
        assert len(found) < 1000, "the table of the suite is small; a storage of unknown size has no end to plan to"
        found.append(Range(at, end))
        at = end
    return found


async def _read(reader: Reader, table: Table, range: Range, language: Language | None = None) -> Rows:
    """The rows of one chunk, by way of a language that anybody can translate."""
    spoken = language or next(one for one in reader.languages if one is not Language.COPY)
    pieces = reader.query(table, range, spoken, PLAIN)
    return [row async for piece in translated(pieces, spoken, Language.ROWS, table.columns) for row in piece.data]


async def _generator(pieces: Pieces) -> AsyncGenerator[Piece]:
    async for piece in pieces:
        yield piece


async def _write(
    writer: Writer,
    job: Job,
    table: Table,
    first: int,
    end: int,
    *,
    rows: Rows | None = None,
    breaks: bool = False,
    again: bool = False,
) -> int:
    """One chunk in two pieces; the second of which may be an error."""

    async def pieces() -> Pieces:
        found = _rows(first, end) if rows is None else rows
        half = len(found) // 2
        yield Piece(found[:half], 100, half)
        if breaks:
            raise StorageError("the source broke")
        yield Piece(found[half:], 100, len(found) - half)

    language, normalized = writer.normalize(pieces(), Language.ROWS, COLUMNS)
    return await soon(writer.write(job, table, _range(first, end), language, normalized, again=again))


def _range(first: int, end: int) -> Range:
    return Range((str(first - 1),) if first else None, (str(end - 1),))


def _rows(first: int, end: int) -> Rows:
    return [{"id": id, "name": None if id % 3 == 0 else f'row, "{id}"\n'} for id in range(first, end)]


def _sorted(rows: Iterable[dict[str, Any]]) -> Rows:
    return sorted(({name: row.get(name) for name in sorted(row)} for row in rows), key=lambda row: repr(row.get("id")))
