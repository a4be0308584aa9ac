"""SQLite as a source and as a target."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headgate.connectors.api.bulk import (
    PLAIN,
    AlreadyWritten,
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
from headgate.connectors.plugins import open_reader, open_writer
from headgate.connectors.sql import ledger
from headgate.connectors.sqlite import writer as writer_module
from headgate.connectors.sqlite.ranges import text_of, value_of
from headgate.connectors.sqlite.types import affinity, declared_type
from headgate.connectors.sqlite.writer import SqliteWriter
from headgate.connectors.values.convert import translated
from headgate.connectors.values.kinds import TEXT, Kind, Type
from headgate.errors import NotFound, Refused

DUMP = UUID("11111111-2222-3333-4444-555555555555")
OTHER = UUID("99999999-2222-3333-4444-555555555555")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "it's a test?.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


async def as_pieces(*data: Any) -> Pieces:
    for one in data:
        yield Piece(one, len(one), len(one))


def job_for(columns: tuple[Column, ...], target: str = "t", **changes: Any) -> Job:
    key = changes.pop("key", ())
    dump = changes.pop("dump", DUMP)
    return Job(dump, Table("t", columns, key), target, key=key, created=changes.pop("created", True), **changes)


def span(lo: int | None, hi: int) -> Range:
    return Range(None if lo is None else (str(lo),), (str(hi),))


async def put(path: Path, job: Job, rows: list[dict[str, Any]], range: Range, **changes: Any) -> int:
    target = open_writer(f"sqlite:{path}")
    try:
        table = await target.prepare(job)
        language, pieces = target.normalize(as_pieces(rows), Language.ROWS, job.source.columns)
        return await target.write(job, table, range, language, pieces, **changes)
    finally:
        await target.close()


async def finish(path: Path, job: Job) -> None:
    target = open_writer(f"sqlite:{path}")
    await target.finish(job)
    await target.close()


async def ranges_of(reader: Any, table: Table, rows: int) -> list[Range]:
    top = await reader.top(table)
    found: list[Range] = []
    at = None
    while top is not None and at != top:
        hi = await reader.cut(table, at, top, rows)
        assert hi != at, "no progress"
        found.append(Range(at, hi))
        at = hi
    return found


async def read_rows(path: Path, name: str = "t", rows: int = 2) -> list[dict[str, Any]]:
    reader = open_reader(f"sqlite:{path}")
    try:
        table = await reader.describe(name)
        result: list[dict[str, Any]] = []
        for one in await ranges_of(reader, table, rows):
            pieces = reader.query(table, one, Language.ARROW, PLAIN)
            async for piece in translated(pieces, Language.ARROW, Language.ROWS, table.columns):
                result += piece.data
        return result
    finally:
        await reader.close()


EDGES = (
    Column("id", Type(Kind.INT64), nullable=False),
    Column("small", Type(Kind.INT16)),
    Column("middle", Type(Kind.INT32)),
    Column("flag", Type(Kind.BOOL)),
    Column("price", Type(Kind.DECIMAL, 30, 10)),
    Column("huge", Type(Kind.NUMERIC)),
    Column("ratio", Type(Kind.FLOAT64)),
    Column("short", Type(Kind.FLOAT32)),
    Column("name", TEXT),
    Column("raw", Type(Kind.BYTES)),
    Column("day", Type(Kind.DATE)),
    Column("hour", Type(Kind.TIME)),
    Column("wall", Type(Kind.TIMESTAMP)),
    Column("instant", Type(Kind.TIMESTAMPTZ)),
    Column("uid", Type(Kind.UUID)),
    Column("doc", Type(Kind.JSON)),
)
EDGE_ROWS: list[dict[str, Any]] = [
    {
        "id": -(2**63),
        "small": -(2**15),
        "middle": 2**31 - 1,
        "flag": True,
        "price": Decimal("-12345678901234567890.0123456789"),
        "huge": Decimal("1234567890123456789012345678901234567890.12345678901234567890"),
        "ratio": 0.1,
        "short": 0.10000000149011612,
        "name": "a\0b \u20ac \U0001f600 '\" 007",
        "raw": bytes(range(256)),
        "day": date(1, 1, 1),
        "hour": time(23, 59, 59, 999999),
        "wall": datetime(1, 1, 1),
        "instant": datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
        "uid": UUID(int=1),
        "doc": {"a": [1, "x", None], "b": Decimal("0.12345678901234567890123")},
    },
    {
        "id": 0,
        "small": 0,
        "middle": 0,
        "flag": False,
        "price": Decimal("0.0000000001"),
        "huge": Decimal("007"),
        "ratio": float("inf"),
        "short": 0.0,
        "name": "007",
        "raw": b"",
        "day": date(9999, 12, 31),
        "hour": time(0),
        "wall": datetime(9999, 12, 31, 23, 59, 59, 999999),
        "instant": datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
        "uid": UUID(int=2**128 - 1),
        "doc": 12345678901234567890123,
    },
    {**{column.name: None for column in EDGES}, "id": 1},
    {**{column.name: None for column in EDGES}, "id": 2**63 - 1, "name": "", "doc": "text"},
]


async def test_values_at_the_edges_come_back(path: Path) -> None:
    job = job_for(EDGES, key=("id",))
    assert await put(path, job, EDGE_ROWS, span(None, 5)) == 4
    await finish(path, job)
    assert await read_rows(path) == EDGE_ROWS
    reader = open_reader(f"sqlite:{path}")
    table = await reader.describe("t")
    assert [(one.name, one.type) for one in table.columns] == [(one.name, one.type) for one in EDGES]
    assert (table.key, table.rows) == (("id",), 4)
    assert await reader.tables() == ["t"]
    with pytest.raises(NotFound):
        await reader.describe("nothing")
    await reader.close()
    with pytest.raises(NotFound):
        await open_reader(f"sqlite:{path}.not").tables()


async def test_a_copy_within_the_family_keeps_definitions_and_indexes(path: Path, db: sqlite3.Connection) -> None:
    db.executescript("""
        CREATE TABLE t (
            name TEXT COLLATE NOCASE, n INT, price NUMERIC, at DATETIME, extra UNIQUE, PRIMARY KEY (name, n)
        ) WITHOUT ROWID;
        CREATE INDEX t_n ON t (n DESC);
        CREATE INDEX t_some ON t (price) WHERE n > 0;
        INSERT INTO t VALUES ('b', 1, 1.5, '2026-11-16', x'00'), ('B', 2, 12345678901234567890, NULL, NULL);
    """)
    reader = open_reader(f"sqlite:{path}")
    source = await reader.describe("t")
    other = path.with_name("other.db")
    job = Job(DUMP, source, "t", created=True)
    target = open_writer(f"sqlite:{other}")
    table = await target.prepare(job)
    for one in await ranges_of(reader, source, 1):
        await target.write(job, table, one, Language.ARROW, reader.query(source, one, Language.ARROW, PLAIN))
    await target.finish(job)
    await target.finish(job)
    await target.close()
    await reader.close()
    with closing(sqlite3.connect(other)) as copy:
        assert copy.execute("SELECT * FROM t").fetchall() == db.execute("SELECT * FROM t").fetchall()
        names = [name for (name,) in copy.execute("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql > ''")]
        assert sorted(names) == ["t_extra", "t_n", "t_some"]
        with pytest.raises(sqlite3.IntegrityError):
            copy.execute("INSERT INTO t (name, n) VALUES ('b', 1)")


KEYS = [
    pytest.param("CREATE TABLE t (k INTEGER PRIMARY KEY, v)", "k", ("k",), id="integer"),
    pytest.param("CREATE TABLE t (k TEXT PRIMARY KEY NOT NULL, v)", "k", ("k",), id="text"),
    pytest.param("CREATE TABLE t (k TEXT COLLATE NOCASE PRIMARY KEY, v) WITHOUT ROWID", "k", ("k",), id="nocase"),
    pytest.param("CREATE TABLE t (k BLOB PRIMARY KEY, v) WITHOUT ROWID", "k", ("k",), id="any"),
    pytest.param("CREATE TABLE t (k TEXT PRIMARY KEY, v)", "rowid", (), id="nullable, so by rowid"),
    pytest.param("CREATE TABLE t (k, v)", "rowid", (), id="rowid"),
    pytest.param("CREATE TABLE t (k, v, rowid)", "_rowid_", (), id="rowid is a column"),
]


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
@pytest.mark.parametrize(("sql", "cut", "key"), KEYS)
async def test_chunks_cover_a_table(
    path: Path, db: sqlite3.Connection, sql: str, cut: str, key: tuple[str, ...], rows: int
) -> None:
    db.execute(sql)
    values: list[Any] = list(range(-3, 5)) if "INTEGER" in sql else ["", "a", "B", "b'", "Z", "é", "a\0", "10", "9"]
    if "BLOB" in sql:
        values = [b"", b"a\0", b"\xff", b"b"]
    db.executemany("INSERT INTO t (k, v) VALUES (?, ?)", [(value, "x") for value in values])
    reader = open_reader(f"sqlite:{path}")
    table = await reader.describe("t")
    assert (table.details["cut"], table.key) == ([cut], key)
    await reader.close()
    found = await read_rows(path, rows=rows)
    assert [row["k"] for row in found] == [k for (k,) in db.execute(f"SELECT k FROM t ORDER BY {cut}")]
    assert len(found) == len(values)


@pytest.mark.parametrize("rows", [1, 2, 5])
async def test_chunks_cover_a_table_with_a_compound_key(path: Path, db: sqlite3.Connection, rows: int) -> None:
    db.execute("CREATE TABLE t (a TEXT NOT NULL, b REAL NOT NULL, c INT NOT NULL, PRIMARY KEY (a, b DESC, c))")
    values = [(a, b, c) for a in ("x", "y", "z") for b in (0.5, 1.0, 1e300) for c in (1, 2)]
    db.executemany("INSERT INTO t VALUES (?, ?, ?)", values)
    assert [tuple(row.values()) for row in await read_rows(path, rows=rows)] == values


async def test_an_empty_table_has_no_top_and_later_rows_belong_to_nobody(path: Path, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE t (k INTEGER PRIMARY KEY)")
    reader = open_reader(f"sqlite:{path}")
    table = await reader.describe("t")
    assert await reader.top(table) is None
    db.execute("INSERT INTO t VALUES (1), (2)")
    top = await reader.top(table)
    assert top == ("2",)
    db.execute("INSERT INTO t VALUES (3)")
    assert await reader.cut(table, ("1",), top, 100) == top
    await reader.close()


@pytest.mark.parametrize("value", [1, -5, 0.5, 1e300, float("inf"), "", "x'", "'", "12", b"", b"\0"], ids=repr)
def test_a_value_of_a_key_is_the_same_after_it_was_text(value: Any) -> None:
    assert value_of(text_of(value)) == value
    assert type(value_of(text_of(value))) is type(value)


@pytest.mark.parametrize(
    ("declared", "type"),
    [
        ("INTEGER", Type(Kind.INT64)),
        ("unsigned big int", Type(Kind.INT64)),
        ("VARCHAR(20)", TEXT),
        ("clob", TEXT),
        ("DOUBLE PRECISION", Type(Kind.FLOAT64)),
        ("FLOAT", Type(Kind.FLOAT64)),
        ("BLOB", Type(Kind.BYTES)),
        ("BOOLEAN", Type(Kind.BOOL)),
        ("DECIMAL(12,2)", Type(Kind.DECIMAL, 12, 2)),
        ("decimal( 12 , 2 )", Type(Kind.DECIMAL, 12, 2)),
        ("NUMERIC", Type(Kind.NUMERIC)),
        ("DECIMAL TEXT(12,2)", Type(Kind.DECIMAL, 12, 2)),
        ("UUID", Type(Kind.UUID)),
        ("JSON", Type(Kind.JSON)),
        ("DATETIME", None),
        ("STRING", None),
        ("", None),
    ],
)
def test_a_declared_type_tells_a_kind(declared: str, type: Type | None) -> None:
    assert declared_type(declared) == type


@pytest.mark.parametrize(
    ("declared", "wanted"),
    [("INT", "INTEGER"), ("CHARINT", "INTEGER"), ("FLOATING POINT", "INTEGER"), ("TEXT", "TEXT"), ("", "BLOB")],
)
def test_affinity_follows_the_rules_of_sqlite(declared: str, wanted: str) -> None:
    assert affinity(declared) == wanted


@pytest.mark.parametrize(
    ("values", "type"),
    [
        (["x", None], TEXT),
        ([1, 2], Type(Kind.INT64)),
        ([1.5], Type(Kind.FLOAT64)),
        ([1, 1.5], Type(Kind.NUMERIC)),
        ([b"x"], Type(Kind.BYTES)),
        ([], TEXT),
    ],
    ids=["text", "whole", "float", "numbers", "bytes", "nothing"],
)
@pytest.mark.parametrize("declared", ["", "DATETIME"], ids=["untyped", "datetime"])
async def test_where_the_declaration_says_nothing_the_values_do(
    path: Path, db: sqlite3.Connection, declared: str, values: list[Any], type: Type
) -> None:
    db.execute(f"CREATE TABLE t (v {declared})")
    db.executemany("INSERT INTO t VALUES (?)", [(value,) for value in values])
    reader = open_reader(f"sqlite:{path}")
    assert (await reader.describe("t")).columns[0].type == type
    await reader.close()
    assert [row["v"] for row in await read_rows(path)] == [
        Decimal(str(value)) if type.kind is Kind.NUMERIC else value for value in values
    ]


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("INTEGER", "x"),
        ("INTEGER", 1.5),
        ("INT32", 2**40),
        ("REAL", "x"),
        ("TEXT", b"x"),
        ("BLOB", "x"),
        ("BOOLEAN", 2),
        ("DECIMAL(5,2)", 1.234),
        ("NUMERIC", "x"),
        ("NUMERIC", b"1"),
        ("UUID", "x"),
        ("JSON", "{"),
        ("DATE TEXT", "yesterday"),
        ("TIMESTAMP TEXT", "2026-01-01 00:00:00Z"),
        ("TIMESTAMPTZ TEXT", "2026-01-01 00:00:00"),
        ("TIMESTAMPTZ TEXT", "2026-01-01 00:00:00.1234567Z"),
        ("TIME TEXT", "00:00:00.1234567"),
        ("TIME TEXT", "00:00:00Z"),
    ],
    ids=str,
)
async def test_a_value_that_is_not_of_its_kind_is_refused_with_its_row(
    path: Path, db: sqlite3.Connection, declared: str, value: Any
) -> None:
    db.execute(f"CREATE TABLE t (v {declared})")
    db.execute("INSERT INTO t (rowid, v) VALUES (7, NULL)")
    db.execute("INSERT INTO t (rowid, v) VALUES (42, ?)", (value,))
    with pytest.raises(StorageError, match="t, rowid 42: column 'v'"):
        await read_rows(path, rows=100)


async def test_a_nan_is_refused_for_it_would_be_null(path: Path) -> None:
    columns = (Column("v", Type(Kind.FLOAT64)),)
    with pytest.raises(StorageError, match="NaN"):
        await put(path, job_for(columns), [{"v": float("nan")}], span(None, 1))
    assert await read_rows(path) == []


# Writing.

N = (Column("n", Type(Kind.INT64), nullable=False), Column("s", TEXT))


def rows_of(*numbers: int, text: str = "new") -> list[dict[str, Any]]:
    return [{"n": number, "s": text} for number in numbers]


async def test_a_chunk_and_its_line_are_there_together_or_not_at_all(path: Path) -> None:
    job = job_for(N, key=("n",))
    target = open_writer(f"sqlite:{path}")
    assert await target.look("t") is None
    assert await target.unfinished("t") == []
    await put(path, job, rows_of(1, 2), span(None, 2))
    with pytest.raises(AlreadyWritten):
        await put(path, job, rows_of(9), span(None, 2))
    with pytest.raises(StorageError, match="UNIQUE"):
        await put(path, job, rows_of(3, 1), span(2, 3))
    assert await target.done(job) == {span(None, 2): 2}
    assert await target.unfinished("t") == [DUMP]
    await put(path, job, [], span(2, 3))
    for _ in range(2):
        await target.finish(job)
        assert await target.unfinished("t") == []
    assert await target.done(job) == {span(None, 2): 2, span(2, 3): 0}
    looked = await target.look("t")
    assert looked is not None
    assert (looked.rows, looked.key) == (2, ("n",))
    await target.close()


async def test_a_source_that_fails_in_the_middle_leaves_nothing_and_no_lock(path: Path) -> None:
    job = job_for(N)
    target = open_writer(f"sqlite:{path}")
    table = await target.prepare(job)

    async def failing() -> AsyncIterator[Piece]:
        yield Piece(rows_of(1), 1, 1)
        raise StorageError("the source broke")

    language, pieces = target.normalize(failing(), Language.ROWS, N)
    with pytest.raises(StorageError, match="broke"):
        await target.write(job, table, span(None, 1), language, pieces)
    assert await put(path, job, rows_of(1), span(None, 1)) == 1
    await target.close()


async def test_several_workers_queue_up(path: Path) -> None:
    job = job_for(N, key=("n",))
    await put(path, job, [], span(None, 0))
    written = await asyncio.gather(
        *(put(path, job, rows_of(*range(at, at + 50)), span(at, at + 50)) for at in range(0, 300, 50))
    )
    assert written == [50] * 6
    twice = await asyncio.gather(
        *(put(path, job, rows_of(1000), span(999, 1000)) for _ in range(3)), return_exceptions=True
    )
    assert sum(isinstance(one, AlreadyWritten) for one in twice) == 2
    assert len(await read_rows(path, rows=1000)) == 301


@pytest.mark.parametrize(("mode", "kept"), [(Mode.UPSERT, ["new", "new", "old"]), (Mode.ABSENT, ["old", "new", "old"])])
async def test_rows_are_found_by_their_key(path: Path, db: sqlite3.Connection, mode: Mode, kept: list[str]) -> None:
    db.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, s TEXT)")
    db.execute("INSERT INTO t VALUES (1, 'old'), (3, 'old')")
    job = job_for(N, key=("n",), mode=mode, created=False)
    assert await put(path, job, rows_of(1, 2), span(None, 2)) == 2
    await finish(path, job)
    assert [s for (s,) in db.execute("SELECT s FROM t ORDER BY n")] == kept
    with pytest.raises(Refused, match="no unique index"):
        await put(path, job_for(N, key=("s",), mode=mode), rows_of(1), span(None, 2))


@pytest.mark.parametrize("has_old", [True, False])
async def test_a_replacement_takes_its_place_at_once(path: Path, db: sqlite3.Connection, has_old: bool) -> None:
    if has_old:
        db.executescript("""
            CREATE TABLE "t" (n INTEGER PRIMARY KEY, s TEXT DEFAULT 'x' CHECK (s <> 'bad'));
            CREATE INDEX t_s ON t (s);
            CREATE VIEW v AS SELECT n FROM t;
            CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t WHERE n = -1; END;
            INSERT INTO t VALUES (1, 'old');
        """)
    job = job_for(N, key=("n",), mode=Mode.REPLACE, created=not has_old)
    await put(path, job, rows_of(2), span(None, 2))
    if has_old:
        assert db.execute("SELECT n FROM t").fetchall() == [(1,)]
    for _ in range(2):
        await finish(path, job)
    assert db.execute("SELECT n FROM t").fetchall() == [(2,)]
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
    assert names - {ledger.TABLE} == ({"t", "t_s", "v", "g"} if has_old else {"t"})
    if has_old:
        assert db.execute("SELECT n FROM v").fetchall() == [(2,)]
        with pytest.raises(sqlite3.IntegrityError):
            db.execute("INSERT INTO t VALUES (3, 'bad')")
    with pytest.raises(AlreadyWritten):
        await put(path, job, rows_of(2), span(None, 2))


async def test_what_is_built_beside_can_be_dropped_or_joined(path: Path, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, s TEXT)")
    db.execute("INSERT INTO t VALUES (1, 'old')")
    job = job_for(N, key=("n",), aside=True, created=False)
    target = open_writer(f"sqlite:{path}")
    await put(path, job, rows_of(2), span(None, 2))
    await target.drop(job)
    assert await target.done(job) == {}
    await put(path, job, rows_of(3), span(None, 2))
    await target.finish(job)
    await target.drop(job)
    assert db.execute("SELECT n FROM t").fetchall() == [(1,), (3,)]
    assert [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE name LIKE '%hg%'")] == []
    await target.close()


async def test_a_range_is_written_anew_for_a_repair(path: Path, db: sqlite3.Connection) -> None:
    job = job_for(N, key=("n",))
    await put(path, job, rows_of(1, 2), span(None, 2))
    await put(path, job, rows_of(3, 4), span(2, 4))
    await put(path, job, rows_of(4, text="again"), span(2, 4), again=True)
    assert db.execute("SELECT n, s FROM t").fetchall() == [(1, "new"), (2, "new"), (4, "again")]
    target = open_writer(f"sqlite:{path}")
    assert await target.done(job) == {span(None, 2): 2, span(2, 4): 1}
    await target.close()
    with pytest.raises(Refused, match="no key"):
        await put(path, job_for(N, "u"), rows_of(1), span(None, 2), again=True)
    by_text = job_for(N, "w", key=("s",))
    with pytest.raises(Refused, match="cannot be found"):
        await put(path, by_text, rows_of(1), Range(None, ("x",)), again=True)


@pytest.mark.parametrize(
    ("declared", "type", "is_kept"),
    [
        ("TEXT", Type(Kind.NUMERIC), True),
        ("BLOB", Type(Kind.NUMERIC), True),
        ("NUMERIC", Type(Kind.NUMERIC), False),
        ("DECIMAL(30,2)", Type(Kind.DECIMAL, 30, 2), False),
        ("DECIMAL(12,2)", Type(Kind.DECIMAL, 12, 2), True),
        ("INTEGER", TEXT, False),
        ("STRING", TEXT, False),
        ("VARCHAR(10)", TEXT, True),
        ("DATETIME", Type(Kind.TIMESTAMP), True),
        ("REAL", Type(Kind.INT64), False),
        ("REAL", Type(Kind.INT32), True),
        ("INTEGER", Type(Kind.INT64), True),
        ("INTEGER", Type(Kind.FLOAT64), False),
        ("BLOB", Type(Kind.BYTES), True),
    ],
    ids=str,
)
async def test_a_column_that_would_change_values_is_refused(
    path: Path, db: sqlite3.Connection, declared: str, type: Type, is_kept: bool
) -> None:
    db.execute(f"CREATE TABLE t (v {declared})")
    target = open_writer(f"sqlite:{path}")
    job = job_for((Column("v", type),), created=False)
    if is_kept:
        await target.prepare(job)
    else:
        with pytest.raises(Refused, match="cannot hold"):
            await target.prepare(job)
    with pytest.raises(Refused, match="no column"):
        await target.prepare(job_for((Column("w", type),), created=False))
    await target.close()


async def test_a_file_that_is_no_database_is_told(path: Path) -> None:
    path.write_text("this is not a database, " * 100)
    with pytest.raises(StorageError, match="not a database"):
        await open_reader(f"sqlite:{path}").tables()


async def test_a_file_that_is_gone_when_a_chunk_is_rolled_back_is_seen_as_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the chunk would be tried again and again, and the others with it."""
    job = Job(DUMP, Table("t", (Column("id", Type(Kind.INT64)),)), "t")
    target = SqliteWriter(f"sqlite:{tmp_path / 'a.db'}")
    table = await target.prepare(job)

    def gone(connection: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorname = "SQLITE_IOERR"
        raise error

    async def broken() -> Pieces:
        raise StorageError("a value does not fit")
        yield

    monkeypatch.setattr(writer_module, "_roll_back", gone)
    with pytest.raises(StorageGone, match="disk I/O error"):
        await target.write(job, table, Range(None, ("1",)), Language.ARROW, broken())
    await target.close()
