"""Storages of the user's own: a `query`, or a `write`, and nothing else that must be there."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headgate.connectors.api.bulk import (
    PLAIN,
    By,
    Column,
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
from headgate.connectors.own import ENDLESS, Chunk, OwnReader, OwnWriter
from headgate.connectors.plugins import open_reader, open_writer
from headgate.connectors.values.kinds import TEXT, Kind, Type
from headgate.errors import ConfigError, NotFound, Refused

DUMP = UUID("11111111-2222-3333-4444-555555555555")
COLUMNS = (Column("n", Type(Kind.INT64)), Column("s", TEXT))


class Numbers:
    """The least that can be read."""

    def __init__(self, count: int = 25, most: int = 1000) -> None:
        self.count, self.most = count, most

    def query(self, offset: int, limit: int) -> list[dict[str, Any]]:
        end = min(self.count, offset + min(limit, self.most))
        return [{"n": number, "s": str(number)} for number in range(offset, end)]


class Patient(Numbers):
    """All that a reader may have, awaited."""

    name = "numbers"
    columns = {"n": "decimal(12,2)", "s": "text(20)"}  # noqa: RUF012 - as a user would write it
    closed = False

    async def query(self, offset: int, limit: int) -> list[dict[str, Any]]:  # type: ignore[override]
        return super().query(offset, limit)

    async def size(self) -> int:
        return self.count

    async def close(self) -> None:
        self.closed = True


async def rows_in(reader: OwnReader, table: Table, lo: int | None, hi: int) -> list[Any]:
    range = Range(None if lo is None else (str(lo),), (str(hi),))
    return [row["n"] async for piece in reader.query(table, range, Language.ROWS, PLAIN) for row in piece.data]


async def test_a_query_is_enough_to_be_read() -> None:
    reader = OwnReader(Numbers())
    assert await reader.tables() == ["records"]
    table = await reader.describe("records")
    assert [(one.name, one.type.kind) for one in table.columns] == [("n", Kind.INT64), ("s", Kind.TEXT)]
    assert (table.by, table.rows, table.sampled) == (By.OFFSET, None, True)
    assert await reader.top(table) == (str(ENDLESS),)
    assert await reader.cut(table, ("10",), (str(ENDLESS),), 10) == ("20",)
    assert await rows_in(reader, table, None, 10) == list(range(10))
    assert await rows_in(reader, table, 20, 30) == list(range(20, 25))
    assert await rows_in(reader, table, 30, 40) == []
    assert await reader.begin() is None
    await reader.close()


async def test_a_reader_may_be_async_and_say_more_of_itself() -> None:
    made = Patient(most=4)
    reader = OwnReader(made)
    table = await reader.describe("numbers")
    assert [one.type for one in table.columns] == [Type(Kind.DECIMAL, 12, 2), Type(Kind.TEXT, length=20)]
    assert (table.rows, table.sampled) == (25, False)
    assert await reader.top(table) == ("25",)
    assert await reader.cut(table, ("20",), ("25",), 10) == ("25",)
    assert await rows_in(reader, table, 3, 25) == list(range(3, 25)), "a query may return fewer than asked for"
    made.count = 0
    assert await reader.top(table) is None
    with pytest.raises(NotFound):
        await reader.describe("other")
    await reader.close()
    assert made.closed


async def test_only_the_columns_that_are_asked_for_are_passed_on() -> None:
    reader = OwnReader(Numbers(1))
    table = await reader.describe("records")
    some = table.with_columns(table.named(["s"]))
    pieces = [piece async for piece in reader.query(some, Range(None, ("1",)), Language.ROWS, PLAIN)]
    assert pieces[0].data == [{"s": "0"}]
    assert pieces[0].size > 0


@pytest.mark.parametrize(
    ("result", "told"),
    [([{"n": 1}] * 11, "returned 11 rows"), ([(1, 2)], "not a dict")],
    ids=["too many", "no dicts"],
)
async def test_a_query_that_breaks_its_word_is_told(result: list[Any], told: str) -> None:
    class Wrong(Numbers):
        columns = {"n": "int64"}  # noqa: RUF012

        def query(self, offset: int, limit: int) -> list[Any]:
            return result

    reader = OwnReader(Wrong())
    with pytest.raises(StorageError, match=told):
        await rows_in(reader, await reader.describe("records"), None, 10)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("no such page"), StorageError),
        (ConnectionResetError("gone"), StorageGone),
        (TimeoutError(), StorageGone),
    ],
    ids=["error", "connection", "timeout"],
)
async def test_errors_of_a_user_are_those_of_a_storage(error: Exception, kind: type[Exception]) -> None:
    class Failing:
        def query(self, offset: int, limit: int) -> list[Any]:
            raise error

    with pytest.raises(kind, match=rf"Failing\.query: {type(error).__name__}") as caught:
        await OwnReader(Failing()).describe("records")
    assert type(caught.value) is kind


async def test_what_cannot_be_understood_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="no method query"):
        OwnReader(object())
    with pytest.raises(ConfigError, match="no method write"):
        OwnWriter(object())

    class Odd(Numbers):
        columns = {"n": "integer"}  # noqa: RUF012

    with pytest.raises(ConfigError, match="column 'n': 'integer' is not a type"):
        await OwnReader(Odd()).describe("records")

    class Lying(Numbers):
        size = "many"

    with pytest.raises(StorageError, match="size must be a number"):
        await OwnReader(Lying()).describe("records")


async def as_pieces(*data: list[dict[str, Any]]) -> Pieces:
    for one in data:
        yield Piece(one, len(one), len(one))


def job_for(**changes: Any) -> Job:
    return Job(DUMP, Table("t", COLUMNS), "t", **changes)


FIRST = Range(None, ("2",))


async def test_a_write_is_enough_to_be_written() -> None:
    class Least:
        def __init__(self) -> None:
            self.rows: list[Any] = []

        def write(self, rows: list[Any]) -> None:
            self.rows += rows

    made = Least()
    writer = OwnWriter(made)
    table = await writer.prepare(job_for())
    assert await writer.look("t") is None
    assert await writer.write(job_for(), table, FIRST, Language.ROWS, as_pieces([{"n": 1}], [{"n": 2}])) == 2
    assert made.rows == [{"n": 1}, {"n": 2}]
    assert not writer.transactional
    assert await writer.done(job_for()) == {}
    assert await writer.unfinished("t") == []
    await writer.undo(job_for(), table, FIRST)
    await writer.finish(job_for())
    await writer.drop(job_for())
    await writer.close()
    with pytest.raises(Refused, match="no undo"):
        await writer.write(job_for(), table, FIRST, Language.ROWS, as_pieces(), again=True)
    for changes in ({"mode": Mode.REPLACE}, {"mode": Mode.UPSERT}, {"aside": True}):
        with pytest.raises(Refused, match="cannot"):
            await writer.prepare(job_for(**changes))


class Whole:
    """All that a writer may have."""

    modes = ("append", "upsert")

    def __init__(self) -> None:
        self.chunks: dict[Chunk, list[Any]] = {}
        self.ended: list[str] = []

    async def write(self, rows: list[Any], chunk: Chunk) -> None:
        self.chunks.setdefault(chunk, []).extend(rows)

    def normalize(self, rows: list[dict[str, Any]]) -> list[Any]:
        return [row["n"] for row in rows]

    async def undo(self, chunk: Chunk) -> None:
        self.chunks.pop(chunk, None)

    def done(self) -> dict[Chunk, int]:
        return {chunk: len(rows) for chunk, rows in self.chunks.items()}

    def finish(self) -> None:
        self.ended.append("finish")

    def close(self) -> None:
        self.ended.append("close")


async def test_a_writer_may_compensate_and_know_its_chunks() -> None:
    made = Whole()
    writer, job = OwnWriter(made), job_for(mode=Mode.UPSERT)
    table = await writer.prepare(job)
    await writer.write(job, table, FIRST, Language.ROWS, as_pieces([{"n": 1}, {"n": 2}]))
    assert await writer.done(job) == {FIRST: 2}
    await writer.write(job, table, FIRST, Language.ROWS, as_pieces([{"n": 3}]), again=True)
    assert list(made.chunks.values()) == [[3]]
    assert await writer.done(Job(UUID(int=1), job.source, "t")) == {}
    await writer.undo(job, table, FIRST)
    assert await writer.done(job) == {}
    await writer.finish(job)
    await writer.close()
    assert made.ended == ["finish", "close"]


async def test_whatever_language_comes_a_user_sees_rows() -> None:
    made = Whole()
    writer, job = OwnWriter(made), job_for()

    async def text() -> Pieces:
        yield Piece(b"1,x\n", 4, 1)
        yield Piece(b"2,\n", 3, 1)

    language, pieces = writer.normalize(text(), Language.CSV, COLUMNS)
    assert await writer.write(job, await writer.prepare(job), FIRST, language, pieces) == 2
    assert list(made.chunks.values()) == [[1, 2]]


async def test_a_storage_is_found_by_the_name_of_its_factory(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "class Both:\n"
        "    def __init__(self, url): self.url = url\n"
        "    def query(self, offset, limit): return [{'url': self.url}][offset:]\n"
        "    def write(self, rows): pass\n"
    )
    reader = open_reader("shop://orders", factories=[f"{file}:Both"])
    table = await reader.describe("records")
    pieces = [piece async for piece in reader.query(table, Range(None, ("5",)), Language.ROWS, PLAIN)]
    assert pieces[0].data == [{"url": "shop://orders"}]
    assert isinstance(open_writer("shop://orders", factories=[f"shop={file}:Both"]), OwnWriter)


async def test_numbers_of_several_sorts_get_a_type_that_holds_them() -> None:
    class Mixed:
        def query(self, offset: int, limit: int) -> list[dict[str, Any]]:
            rows = [{"a": 1, "b": 1, "c": 1.5}, {"a": 1.5, "b": Decimal("1.50"), "c": Decimal("0.1")}]
            return rows[offset : offset + limit]

    table = await OwnReader(Mixed()).describe("records")
    assert [one.type.kind for one in table.columns] == [Kind.FLOAT64, Kind.NUMERIC, Kind.NUMERIC]
