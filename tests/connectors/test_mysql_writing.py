"""MySQL and MariaDB as targets: what is refused, what happens once only, and how a table takes another's place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pymysql
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
from headgate.connectors.mysql.reader import MysqlReader
from headgate.connectors.values.kinds import TEXT, Kind, Type
from headgate.errors import ConfigError, HeadgateError, NotFound, Refused
from tests.connectors.mariadb import DUMP, Database, MariaDb, copied, csv_rows, of, read_all, reading, writing
from tests.waiting import until


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    server = MariaDb()
    yield server
    server.stop()


@pytest.fixture
def db(mariadb: MariaDb) -> Iterator[Database]:
    with mariadb.database() as database:
        yield database


def table_of(*columns: Column, key: tuple[str, ...] = ("id",), family: str = "") -> Table:
    return Table("source", columns, key, family=family)


ID = Column("id", Type(Kind.INT32), nullable=False)
NAME = Column("name", TEXT)


def row(*values: str) -> bytes:
    """A record as the writer wants it."""
    return "\x1f".join(values).encode() + b"\n"


ONE = Range(None, ("9",))
TWO = Range(("9",), ("99",))


async def put(writer: Any, job: Job, range: Range, *rows: bytes, **options: Any) -> int:
    """Prepare, and write these rows as one chunk."""
    table = await writer.prepare(job)
    return await writer.write(job, table, range, Language.CSV, of(*rows), **options)


@contextmanager
def refused(text: str, kind: type[HeadgateError] = StorageError) -> Iterator[None]:
    with pytest.raises(kind, match=text) as raised:
        yield
    assert "\n" not in str(raised.value)


# Types of other families.


async def test_a_table_is_made_for_every_kind(db: Database) -> None:
    kinds = [kind for kind in Kind if kind not in (Kind.DECIMAL, Kind.NUMERIC)]
    columns = [Column(kind.value, Type(kind)) for kind in kinds]
    columns += [Column("price", Type(Kind.DECIMAL, 20, 6)), Column("short", Type(Kind.TEXT, length=20))]
    columns += [Column("long", Type(Kind.TEXT, length=5000))]
    source = table_of(Column("k", TEXT, nullable=False), *columns, key=("k",), family="postgresql")
    values = ['"k"', "1", "-32768", "2147483647", "9223372036854775807", "0.1", "0.1", '"a""b"', "\\x00ff",
              "2024-02-29", "23:59:59.999999", "2024-01-01 00:00:00.000001", "0001-01-01 00:00:00",
              "fe4710db-e1aa-41f1-a892-02fc00000001", '"{""a"": 1}"', "1.500000", '"é"', '""']  # fmt: skip
    async with writing(db.url()) as writer:
        assert await put(writer, Job(DUMP, source, "t"), ONE, row(*values), row('"K"', *["NULL"] * 17)) == 2
    types = "SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE()"
    assert dict(db.rows(f"{types} AND TABLE_NAME = 't'")) == {
        "k": "varchar(255)", "bool": "tinyint(1)", "int16": "smallint(6)", "int32": "int(11)", "int64": "bigint(20)",
        "float32": "float", "float64": "double", "text": "longtext", "bytes": "longblob", "date": "date",
        "time": "time(6)", "timestamp": "datetime(6)", "timestamptz": "datetime(6)", "uuid": "uuid",
        "json": "longtext", "price": "decimal(20,6)", "short": "varchar(20)", "long": "longtext",
    }  # fmt: skip
    back = csv_rows(await read_all(db.url()))
    assert back[0] == ["K", *[""] * 17]  # Two rows: keys that differ in case are two keys.
    expected = [value.strip('"').replace('""', '"') for value in values]
    expected[5] = "0.10000000149011612"
    expected[12] = "0001-01-01 00:00:00.000000"
    assert back[1] == expected


async def test_numbers_without_bounds_are_refused_before_anything_is_made(db: Database) -> None:
    source = table_of(ID, Column("price", Type(Kind.NUMERIC)), family="postgresql")
    async with writing(db.url()) as writer:
        with pytest.raises(Refused, match="column 'price'") as raised:
            await writer.prepare(Job(DUMP, source, "t"))
        assert "--column price=decimal" in raised.value.hint
        assert await writer.look("t") is None


@pytest.mark.parametrize(
    ("native", "kind", "text"),
    [
        ("varchar(3)", Kind.TEXT, '"abcd"'),
        ("varchar(3)", Kind.TEXT, '"abc "'),
        ("char(3)", Kind.TEXT, '"ab "'),
        ("tinyint", Kind.INT32, "300"),
        ("int", Kind.TEXT, '"1.5"'),
        ("int", Kind.TEXT, '"x"'),
        ("decimal(5,2)", Kind.NUMERIC, "1.234"),
        ("double", Kind.FLOAT64, "NaN"),
        ("double", Kind.FLOAT64, "Infinity"),
        ("datetime", Kind.TIMESTAMP, "2024-01-01 00:00:00.500000"),
        ("datetime(3)", Kind.TIMESTAMPTZ, "2024-01-01 00:00:00.123456"),
        ("time", Kind.TIME, "00:00:00.1"),
        ("timestamp not null", Kind.TIMESTAMPTZ, "NULL"),
        ("timestamp", Kind.TIMESTAMPTZ, "2040-01-01 00:00:00"),
        ("int not null", Kind.INT32, "NULL"),
        ("date", Kind.DATE, "2024-00-10"),
        ("enum('a')", Kind.TEXT, '"b"'),
        ("json", Kind.JSON, '"{bad"'),
        ("varchar(9) character set latin1", Kind.TEXT, '"😀"'),
    ],
    ids=lambda value: str(value).replace(" ", "_"),
)
@pytest.mark.parametrize("local", [1, 0], ids=["load", "insert"])
async def test_a_value_that_would_be_changed_rolls_the_chunk_back(
    db: Database, native: str, kind: Kind, text: str, local: int
) -> None:
    db.execute(f"CREATE TABLE t (id int primary key, a {native})", f"SET GLOBAL local_infile = {local}")
    job = Job(DUMP, table_of(ID, Column("a", Type(kind))), "t")
    try:
        async with writing(db.url()) as writer:
            with refused(r"'a'|`a`|t\.a"):
                await put(writer, job, ONE, row("1", text))
            assert db.rows("SELECT * FROM t") == []
            assert await writer.done(job) == {}
    finally:
        db.execute("SET GLOBAL local_infile = 1")


async def test_times_without_a_fraction_fit_into_columns_that_have_none(db: Database) -> None:
    db.execute("CREATE TABLE t (id int primary key, a datetime, b timestamp(3) not null)")
    source = table_of(ID, Column("a", Type(Kind.TIMESTAMP)), Column("b", Type(Kind.TIMESTAMPTZ)))
    async with writing(db.url()) as writer:
        good = row("1", "2024-01-01 00:00:00.000000", "2024-01-01 00:00:00.123000")
        assert await put(writer, Job(DUMP, source, "t"), ONE, good, row("2", "NULL", "2024-01-01 00:00:00")) == 2
    assert db.rows("SELECT CAST(a AS CHAR), CAST(b AS CHAR) FROM t") == [
        ("2024-01-01 00:00:00", "2024-01-01 00:00:00.123"),
        (None, "2024-01-01 00:00:00.000"),
    ]


@pytest.mark.parametrize(
    ("native", "kind"),
    [("float", Kind.FLOAT64), ("int", Kind.FLOAT64), ("double", Kind.INT64), ("binary(4)", Kind.BYTES)],
)
async def test_a_column_that_would_round_or_fill_up_is_refused(db: Database, native: str, kind: Kind) -> None:
    db.execute(f"CREATE TABLE t (id int primary key, a {native})")
    async with writing(db.url()) as writer:
        with refused(r"t\.a is .* and cannot hold", Refused):
            await writer.prepare(Job(DUMP, table_of(ID, Column("a", Type(kind))), "t"))


async def test_a_duplicate_key_rolls_the_chunk_back_and_names_the_key(db: Database) -> None:
    db.execute("CREATE TABLE t (id int primary key, name text)", "INSERT INTO t VALUES (2, 'old')")
    async with writing(db.url()) as writer:
        with refused("Duplicate entry '2' for key 'PRIMARY'"):
            await put(writer, Job(DUMP, table_of(ID, NAME), "t"), ONE, row("1", '"a"'), row("2", '"b"'))
    assert db.rows("SELECT * FROM t") == [(2, "old")]


async def test_another_engine_a_missing_column_and_a_missing_key_are_refused(db: Database) -> None:
    db.execute("CREATE TABLE m (id int primary key, name text) ENGINE = MyISAM", "CREATE TABLE t (id int)")
    async with writing(db.url()) as writer:
        with refused("m is a table of MyISAM", Refused):
            await writer.prepare(Job(DUMP, table_of(ID, NAME), "m"))
        with refused("t has no column 'name'", Refused):
            await writer.prepare(Job(DUMP, table_of(ID, NAME), "t"))
        with refused(r"t has no unique index on \(id\)", Refused):
            await writer.prepare(Job(DUMP, table_of(ID), "t", Mode.UPSERT))


# Once only.


async def test_a_chunk_is_written_once(db: Database) -> None:
    job = Job(DUMP, table_of(ID, NAME), "t")
    async with writing(db.url()) as writer, writing(db.url()) as other:
        assert await put(writer, job, ONE, row("1", '"a"')) == 1
        with pytest.raises(AlreadyWritten):
            await put(other, job, ONE, row("1", '"a"'))
        assert await other.done(job) == {ONE: 1}
        assert await other.unfinished("t") == [DUMP]
        await other.finish(job)
        await writer.finish(job)
        assert await writer.unfinished("t") == []
        assert await writer.done(job) == {ONE: 1}
    assert db.rows("SELECT * FROM t") == [(1, "a")]


@pytest.mark.parametrize("key", [("id",), ()], ids=["key", "no_key"])
async def test_of_two_workers_with_the_same_chunk_one_writes_it(db: Database, key: tuple[str, ...]) -> None:
    job = Job(DUMP, table_of(ID, NAME, key=key), "t")
    async with writing(db.url()) as one, writing(db.url()) as two:
        rows = [row(str(number), '"a"') for number in range(500)]
        outcomes = await asyncio.gather(put(one, job, ONE, *rows), put(two, job, ONE, *rows), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["AlreadyWritten", "int"]
    assert db.value("SELECT COUNT(*) FROM t") == 500


async def test_pieces_that_break_off_leave_nothing_and_the_session_goes_on(db: Database) -> None:
    job = Job(DUMP, table_of(ID, NAME), "t")
    async with writing(db.url()) as writer:
        table = await writer.prepare(job)
        broken = of(row("1", '"a"'), error=StorageGone("the source is gone"))
        with refused("the source is gone", StorageGone):
            await writer.write(job, table, ONE, Language.CSV, broken)
        assert (db.rows("SELECT * FROM t"), await writer.done(job)) == ([], {})
        assert await put(writer, job, ONE, row("1", '"a"')) == 1


async def test_rows_that_got_lost_on_the_way_roll_back(db: Database) -> None:
    job = Job(DUMP, table_of(ID, NAME), "t")
    async with writing(db.url()) as writer:
        table = await writer.prepare(job)
        with refused("read 3 rows and wrote 1"):
            await writer.write(job, table, ONE, Language.CSV, of(row("1", '"a"'), rows=3))
    assert db.rows("SELECT * FROM t") == []


async def test_whoever_is_cancelled_leaves_nothing_and_the_session_goes_on(db: Database) -> None:
    job = Job(DUMP, table_of(ID, NAME), "t")
    begun = asyncio.Event()

    async def slow() -> Any:
        async for piece in of(row("1", '"a"')):
            yield piece
        begun.set()
        await asyncio.Event().wait()

    async with writing(db.url()) as writer:
        table = await writer.prepare(job)
        task = asyncio.create_task(writer.write(job, table, ONE, Language.CSV, slow()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await put(writer, job, ONE, row("1", '"b"')) == 1
    assert db.rows("SELECT * FROM t") == [(1, "b")]


async def test_a_chunk_is_replaced_by_a_repair(db: Database) -> None:
    job = Job(DUMP, table_of(ID, NAME), "t")
    async with writing(db.url()) as writer:
        await put(writer, job, ONE, row("1", '"a"'), row("2", '"b"'))
        await put(writer, job, TWO, row("10", '"c"'))
        assert await put(writer, job, ONE, row("1", '"new"'), again=True) == 1
        assert await writer.done(job) == {ONE: 1, TWO: 1}
        with refused("Incorrect integer value"):
            await put(writer, job, ONE, row('"x"', '"new"'), again=True)
    assert db.rows("SELECT * FROM t ORDER BY id") == [(1, "new"), (10, "c")]


async def test_a_repair_by_text_keys_of_another_order_is_refused(db: Database) -> None:
    job = Job(DUMP, table_of(Column("id", TEXT, nullable=False), family="postgresql"), "t")
    async with writing(db.url()) as writer:
        await put(writer, job, ONE, row('"a"'))
        with refused("another order"):
            await put(writer, job, ONE, row('"a"'), again=True)


# Modes.


async def test_upsert_overwrites_and_absent_leaves(db: Database) -> None:
    source = table_of(ID, NAME)
    for mode, expected in ((Mode.UPSERT, "new"), (Mode.ABSENT, "old")):
        db.execute("CREATE OR REPLACE TABLE t (id int primary key, name text, own int default 5)")
        db.execute("INSERT INTO t VALUES (1, 'old', 7), (3, 'kept', 8)")
        async with writing(db.url()) as writer:
            assert await put(writer, Job(uuid4(), source, "t", mode), ONE, row("1", '"new"'), row("2", '"two"')) == 2
        assert db.rows("SELECT * FROM t ORDER BY id") == [(1, expected, 7), (2, "two", 5), (3, "kept", 8)]


async def test_a_row_that_another_index_has_is_not_taken_for_the_same(db: Database) -> None:
    db.execute("CREATE TABLE t (id int primary key, name varchar(9) unique)", "INSERT INTO t VALUES (1, 'a')")
    for mode in (Mode.UPSERT, Mode.ABSENT):
        async with writing(db.url()) as writer:
            with refused("Duplicate entry 'a' for key 'name'"):
                await put(writer, Job(uuid4(), table_of(ID, NAME), "t", mode), ONE, row("2", '"a"'))
    assert db.rows("SELECT * FROM t") == [(1, "a")]


async def test_a_column_that_the_target_computes_is_left_to_it(db: Database) -> None:
    db.execute("CREATE TABLE t (id int primary key, twice int as (id * 2) stored)")
    source = table_of(ID, Column("twice", Type(Kind.INT32)))
    for number, mode in enumerate((Mode.APPEND, Mode.UPSERT, Mode.ABSENT)):
        async with writing(db.url()) as writer:
            await put(writer, Job(uuid4(), source, "t", mode), ONE, row(str(number), "0"))
    assert db.rows("SELECT * FROM t") == [(0, 0), (1, 2), (2, 4)]


async def test_indexes_defaults_and_the_counter_are_those_of_the_source(db: Database) -> None:
    db.execute(
        "CREATE TABLE t (id int auto_increment primary key, name varchar(20) default 'x', made timestamp not null"
        " default current_timestamp on update current_timestamp, twice int as (id * 2), body text, unique (name),"
        " index (made, id), index (body(10)), fulltext (body)) AUTO_INCREMENT = 500",
        "INSERT INTO t (name, body) VALUES ('a', 'b'), (NULL, NULL)",
    )
    await copied(db.url(), "t", "c", created=True)
    made = db.value("SHOW CREATE TABLE c") and db.rows("SHOW CREATE TABLE c")[0][1]
    source = db.rows("SHOW CREATE TABLE t")[0][1]
    keys = [line.strip(" ,") for line in source.splitlines() if "KEY" in line]
    assert sorted(line.strip(" ,") for line in made.splitlines() if "KEY" in line) == sorted(keys)
    assert "DEFAULT current_timestamp() ON UPDATE current_timestamp()" in made
    assert "DEFAULT 'x'" in made
    assert "`twice` int(11) DEFAULT NULL" in made
    db.execute("INSERT INTO c (name) VALUES ('new')")
    assert db.value("SELECT MAX(id) FROM c") >= 500


# Beside, and in place.


def replacing(mode: Mode = Mode.REPLACE, aside: bool = False) -> Job:
    return Job(DUMP, table_of(ID, NAME), "t", mode, aside)


async def test_a_replacement_is_seen_only_at_the_end(db: Database) -> None:
    db.execute("CREATE TABLE t (id int primary key, name text, index (name(5)))", "INSERT INTO t VALUES (1, 'old')")
    async with writing(db.url()) as writer:
        assert await put(writer, replacing(), ONE, row("7", '"new"')) == 1
        assert db.rows("SELECT * FROM t") == [(1, "old")]
        await writer.finish(replacing())
        await writer.finish(replacing())
        assert (await writer.prepare(replacing())).name == "t"
    assert db.rows("SELECT * FROM t") == [(7, "new")]
    assert db.tables() == {"t", "headgate_dump_chunk"}
    assert len(db.rows("SHOW INDEX FROM t")) == 2


@pytest.mark.parametrize("has_old", [True, False], ids=["old", "none"])
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
async def test_a_swap_that_broke_off_is_finished_by_the_next(db: Database, has_old: bool, steps: int) -> None:
    """The session is lost after each of the statements that change something, in turn."""
    if has_old:
        db.execute("CREATE TABLE t (id int primary key, name text)", "INSERT INTO t VALUES (1, 'old')")
    job = replacing()
    async with writing(db.url()) as writer:
        await put(writer, job, ONE, row("7", '"new"'))
        execute, left = writer._session.execute, steps

        def breaks_off(sql: str, *values: object) -> Any:
            nonlocal left
            if sql.startswith(("INSERT", "RENAME", "DROP")):
                left -= 1
                if left < 0:
                    raise pymysql.OperationalError(2013, "lost")
            return execute(sql, *values)

        writer._session.execute = breaks_off
        with refused("lost", StorageGone):
            await writer.finish(job)
    async with writing(db.url()) as writer:
        table = await writer.prepare(job)
        assert table.name == ("t__hg_aaaaaaaa" if steps == 1 else "t")
        assert await writer.done(job) == {ONE: 1}
        await writer.finish(job)
        assert await writer.unfinished("t") == []
    assert db.rows("SELECT * FROM t") == [(7, "new")]
    assert db.tables() == {"t", "headgate_dump_chunk"}


@pytest.mark.parametrize("statement", [
    "CREATE TABLE u (t_id int, CONSTRAINT of_t FOREIGN KEY (t_id) REFERENCES t (id))",
    "CREATE TRIGGER of_t BEFORE INSERT ON t FOR EACH ROW SET NEW.name = 'x'",
], ids=["foreign_key", "trigger"])  # fmt: skip
async def test_a_table_on_which_others_depend_is_not_replaced(db: Database, statement: str) -> None:
    db.execute("CREATE TABLE t (id int primary key, name text)", statement)
    async with writing(db.url()) as writer:
        with refused("t cannot be replaced: .*of_t", Refused):
            await writer.prepare(replacing())
    db.execute("DROP TABLE IF EXISTS u")


@pytest.mark.parametrize("exists", [True, False])
async def test_a_table_built_aside_is_added_at_the_end(db: Database, exists: bool) -> None:
    if exists:
        db.execute("CREATE TABLE t (id int primary key, name text)", "INSERT INTO t VALUES (1, 'old')")
    job = replacing(Mode.APPEND, aside=True)
    async with writing(db.url()) as writer:
        await put(writer, job, ONE, row("7", '"new"'))
        await writer.finish(job)
        await writer.finish(job)
    assert db.rows("SELECT * FROM t") == ([(1, "old")] if exists else []) + [(7, "new")]
    assert db.tables() == {"t", "headgate_dump_chunk"}


async def test_what_was_built_beside_can_be_dropped_and_begun_again(db: Database) -> None:
    async with writing(db.url()) as writer:
        await put(writer, replacing(), ONE, row("7", '"new"'))
        await writer.drop(replacing())
        assert await writer.done(replacing()) == {}
        assert db.tables() == {"headgate_dump_chunk"}
        assert await put(writer, replacing(), ONE, row("8", '"new"')) == 1


async def test_names_that_are_too_long_are_shortened(db: Database) -> None:
    long = "t" * 64
    job = Job(DUMP, table_of(ID), long, Mode.REPLACE)
    async with writing(db.url()) as writer:
        await put(writer, job, ONE, row("1"))
        await writer.finish(job)
    assert db.tables() == {long, "headgate_dump_chunk"}


async def test_look_says_empty_only_of_what_is_empty(db: Database) -> None:
    db.execute("CREATE TABLE t (id int primary key)")
    async with writing(db.url()) as writer:
        assert await writer.look("nothing") is None
        assert (await writer.look("t")).rows == 0
        db.execute("INSERT INTO t VALUES (1)")
        assert (await writer.look("t")).rows >= 1


# Errors.


async def test_what_is_wrong_with_a_url_is_said_in_one_line(mariadb: MariaDb, db: Database) -> None:
    db.execute("CREATE USER IF NOT EXISTS 'someone'@'127.0.0.1' IDENTIFIED BY 'right'")
    for url, kind, text in (
        (f"mysql://someone:wr0ng@127.0.0.1:{mariadb.port}/{db.name}", ConfigError, "Access denied for user 'someone'"),
        (mariadb.url("nowhere"), ConfigError, "Unknown database 'nowhere'"),
        (f"mysql://root:wr0ng@127.0.0.1:1/{db.name}", StorageGone, "does not answer"),
    ):
        async with reading(url) as reader:
            with refused(text, kind) as _:
                await reader.tables()
            with pytest.raises(kind) as raised:
                await reader.tables()
            assert "wr0ng" not in str(raised.value)
    async with reading(db.url()) as reader:
        with refused("has no table nothing", NotFound):
            await reader.describe("nothing")
    for url in ("mysql://root@localhost/", "mysql://h/d?what=1", "mysql://h/d?zero_dates=1", "mysql://h:x/d"):
        with pytest.raises(ConfigError):
            MysqlReader(url)


async def test_a_server_that_dies_is_gone_and_comes_back() -> None:
    server = MariaDb()
    try:
        with server.database() as db:
            db.execute("CREATE TABLE t (id int primary key, a text)")
            db.execute("INSERT INTO t SELECT seq, REPEAT('x', 1000) FROM seq_1_to_20000")
            async with reading(db.url()) as reader, writing(db.url()) as writer:
                table = await reader.describe("t")
                pieces = reader.query(table, Range(None, ("20000",)), Language.CSV, PLAIN)
                await anext(pieces)
                job = Job(DUMP, table_of(ID, NAME), "c")
                into = await writer.prepare(job)
                server.kill()
                with refused("no longer answers|does not answer", StorageGone):
                    async for _ in pieces:
                        pass
                with refused("no longer answers|does not answer", StorageGone):
                    await writer.write(job, into, ONE, Language.CSV, of(row("1", '"a"')))
                with refused("no longer answers|does not answer", StorageGone):
                    await reader.tables()
                server.start()
                assert await reader.tables() == ["c", "t"]
                assert await put(writer, job, ONE, row("1", '"a"')) == 1
            db.connection = server.connect()
    finally:
        server.stop()


async def test_a_writer_that_was_stopped_is_ended_by_its_successor(db: Database) -> None:
    stopped = asyncio.Event()

    async def half() -> Pieces:
        yield Piece(row("1", "a"), 4, 1)
        stopped.set()
        await asyncio.Event().wait()

    job = Job(DUMP, table_of(ID, NAME), "t")
    async with writing(db.url()) as first, writing(db.url()) as second:
        into = await first.prepare(job)
        writing_half = asyncio.create_task(first.write(job, into, ONE, Language.CSV, half()))
        await stopped.wait()
        loading = "SELECT 1 FROM information_schema.PROCESSLIST WHERE INFO LIKE 'LOAD DATA%'"
        await until(lambda: db.rows(loading), "the rows are on their way")
        second.attempt = 2
        assert await second.write(job, into, ONE, Language.CSV, of(row("1", "b"), row("2", "c"))) == 2
        writing_half.cancel()
        await asyncio.gather(writing_half, return_exceptions=True)
    assert db.rows("SELECT * FROM t ORDER BY id") == [(1, "b"), (2, "c")]
