"""PostgreSQL as a target: a chunk is written once, a refusal leaves nothing, and a finished table is whole."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from headgate.connectors.api.bulk import (
    AlreadyWritten,
    Excuse,
    Job,
    Language,
    Mode,
    Piece,
    Pieces,
    StorageError,
    StorageGone,
)
from headgate.connectors.postgres.writer import PostgresWriter
from headgate.connectors.sql import ledger
from headgate.core.chunks import Range
from headgate.errors import Refused
from headgate.store.embedded import EmbeddedServer
from tests.connectors.postgres_copy import (
    DUMP,
    OTHER,
    Side,
    copy,
    copy_chunks,
    emptied,
    job_for,
    make_databases,
    pieces_of,
    reading,
    writing,
)

LEDGER = f"SELECT count(*) FROM {ledger.TABLE} WHERE mark <> 'finished'"


@pytest.fixture(scope="module")
def urls(server: EmbeddedServer) -> list[str]:
    return asyncio.run(make_databases(server.url))


@pytest.fixture
async def source(urls: list[str]) -> AsyncIterator[Side]:
    async with emptied(urls[0]) as side:
        yield side


@pytest.fixture
async def target(urls: list[str]) -> AsyncIterator[Side]:
    async with emptied(urls[1]) as side:
        yield side


async def numbers(side: Side, last: int = 10, name: str = "t") -> None:
    """A small table with a key."""
    await side.sql.execute(
        f"CREATE TABLE {name} (id int PRIMARY KEY, v text);"
        f"INSERT INTO {name} SELECT i, 'v' || i FROM generate_series(1, {last}) i"
    )


# The ledger.


async def test_a_chunk_is_written_once(source: Side, target: Side) -> None:
    await numbers(source)
    job = await job_for(source, "t", target)
    async with reading(source) as reader, writing(target) as writer, writing(target) as later:
        into = await writer.prepare(job)
        for session in (writer, writer, later):
            chunk = Range(None, ("10",))
            pieces = reader.query(job.source, chunk, Language.COPY, writer.csv)
            if session is writer and not await writer.done(job):
                assert await session.write(job, into, chunk, Language.COPY, pieces) == 10
                continue
            with pytest.raises(AlreadyWritten):
                await session.write(job, into, chunk, Language.COPY, pieces)
        assert await writer.done(job) == {chunk: 10}
        assert await writer.prepare(job) == into
    assert await target.values("SELECT count(*) FROM t") == [10]


async def test_of_two_writers_of_a_chunk_one_writes_it(source: Side, target: Side) -> None:
    await source.sql.execute("CREATE TABLE t (id int NOT NULL UNIQUE, v text)")
    job = replace(await job_for(source, "t", target), source=(await job_for(source, "t", target)).source)
    sessions = [PostgresWriter(target.url) for _ in range(3)]
    into = await sessions[0].prepare(job)
    both = asyncio.Barrier(3)

    async def slow() -> Pieces:
        yield Piece(b"1,x\n", 4)
        await both.wait()  # Each has written its rows before one writes its line.
        yield Piece(b"2,y\n", 4, 2)

    results = await asyncio.gather(
        *(one.write(job, into, Range(None, ("2",)), Language.CSV, slow()) for one in sessions), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in results) == ["AlreadyWritten", "AlreadyWritten", "int"]
    assert await target.rows("SELECT id, v FROM t ORDER BY 1") == [(1, "x"), (2, "y")]
    for one in sessions:
        await one.close()


async def test_a_writer_that_is_killed_leaves_nothing(source: Side, target: Side) -> None:
    await numbers(source)
    job = await job_for(source, "t", target)
    async with writing(target) as writer:
        into = await writer.prepare(job)

        async def killed() -> Pieces:
            yield Piece(b"1,x\n", 4)
            await asyncio.sleep(0)
            await target.sql.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND starts_with(application_name, 'headgate dump')"
            )
            for _ in range(10_000):
                yield Piece(b"2,y\n" * 1000, 4000)

        with pytest.raises(StorageGone, match="gone"):
            await writer.write(job, into, Range(None, ("2",)), Language.CSV, killed())
        assert await target.values("SELECT count(*) FROM t") == [0]
        assert await writer.done(job) == {}  # With a new session.


async def test_whoever_wakes_after_another_wrote_the_chunk_and_finished_gets_an_error(
    source: Side, target: Side
) -> None:
    """A process that was stopped in the middle of a COPY holds a lock, which must not stop the others."""
    await numbers(source)
    job = await job_for(source, "t", target)
    asleep, awake = asyncio.Event(), asyncio.Event()

    async def stopped() -> Pieces:
        yield Piece(b"1,x\n", 4)
        asleep.set()
        await awake.wait()
        yield Piece(b"2,y\n", 4, 2)

    chunk = Range(None, ("10",))
    async with writing(target) as sleeper, writing(target) as writer, reading(source) as reader:
        into = await writer.prepare(job)
        sleeping = asyncio.ensure_future(sleeper.write(job, into, chunk, Language.CSV, stopped()))
        await asleep.wait()
        await writer.write(job, into, chunk, Language.COPY, reader.query(job.source, chunk, Language.COPY, writer.csv))
        await writer.finish(job)
        awake.set()
        with pytest.raises(StorageError):
            await sleeping
    assert await target.rows("SELECT * FROM t") == await source.rows("SELECT * FROM t")


async def test_a_source_that_breaks_in_the_middle_leaves_nothing_and_the_session_goes_on(
    source: Side, target: Side
) -> None:
    await numbers(source)
    job = await job_for(source, "t", target)

    async def broken() -> Pieces:
        yield Piece(b"1,x\n", 4)
        raise StorageError("the source broke")

    async with writing(target) as writer:
        into = await writer.prepare(job)
        chunk = Range(None, ("10",))
        with pytest.raises(StorageError, match="the source broke"):
            await writer.write(job, into, chunk, Language.CSV, broken())
        with pytest.raises(StorageError, match=r'COPY t, line 2, column id: "x"'):
            await writer.write(job, into, chunk, Language.CSV, pieces_of([b"1,x\nx,y\n"]))
        assert await writer.done(job) == {}
        assert await writer.write(job, into, chunk, Language.CSV, pieces_of([b"1,", b'"a\n\\.\nb"\n'], 1)) == 1
        with pytest.raises(StorageError, match="read 2 rows and wrote 1"):
            await writer.write(job, into, Range(("10",), ("20",)), Language.CSV, pieces_of([b"2,x\n"], 2))
    assert await target.rows("SELECT * FROM t") == [(1, "a\n\\.\nb")]


async def test_an_unfinished_dump_is_known_by_any_name_of_its_table(source: Side, target: Side) -> None:
    await numbers(source)
    job = await job_for(source, "t", target)
    async with writing(target) as writer:
        assert await writer.unfinished("t") == []
        await copy_chunks(job, source, target)
        for name in ("t", "T", "public.t", '"t"'):
            assert await writer.unfinished(name) == [DUMP]
        assert await writer.unfinished("other") == []
        await writer.finish(job)
        assert await writer.unfinished("t") == []


# Again.


async def test_a_repair_replaces_the_rows_of_its_range_and_no_others(source: Side, target: Side) -> None:
    await source.sql.execute("CREATE TABLE t (a int, b varchar(3), v text, PRIMARY KEY (a, b))")
    await source.sql.execute("INSERT INTO t SELECT i / 3, (i % 3)::text, 'v' FROM generate_series(0, 29) i")
    job = await copy(source, "t", target, rows=10)
    ranges = [Range(None, ("3", "0")), Range(("3", "0"), ("6", "1")), Range(("6", "1"), ("9", "2"))]
    await target.sql.execute(
        "UPDATE t SET v = 'wrong'; DELETE FROM t WHERE a = 4; INSERT INTO t VALUES (5, '77', 'more')"
    )
    async with reading(source) as reader, writing(target) as writer:
        into = await writer.look("t")
        assert into is not None
        pieces = reader.query(job.source, ranges[1], Language.CSV, writer.csv)
        assert await writer.write(job, into, ranges[1], Language.CSV, pieces, again=True) == 10
        assert len(await writer.done(job)) == 3
        byblock = replace(job, source=replace(job.source, by="block"))
        with pytest.raises(StorageError, match="no key"):
            await writer.write(byblock, into, Range(None, ("0",)), Language.CSV, pieces_of([]), again=True)
    inside = "(a, b) > (3, '0') AND (a, b) <= (6, '1')"
    query = f"SELECT * FROM t WHERE {inside} ORDER BY a, b"
    assert await target.rows(query) == await source.rows(query)
    assert await target.values(f"SELECT DISTINCT v FROM t WHERE NOT ({inside})") == ["wrong"]
    assert await target.values("SELECT count(*) FROM t") == [30]


async def test_a_repair_of_an_upsert_leaves_rows_that_are_not_the_sources(source: Side, target: Side) -> None:
    await numbers(source, 3)
    await target.sql.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'old'), (-5, 'mine')"
    )
    job = await copy(source, "t", target, mode=Mode.UPSERT)
    await target.sql.execute("UPDATE t SET v = 'wrong' WHERE id = 2; DELETE FROM t WHERE id = 3")
    async with reading(source) as reader, writing(target) as writer:
        into = await writer.look("t")
        assert into is not None
        chunk = Range(None, ("3",))
        pieces = reader.query(job.source, chunk, Language.CSV, writer.csv)
        await writer.write(job, into, chunk, Language.CSV, pieces, again=True)
    assert await target.rows("SELECT * FROM t ORDER BY 1") == [(-5, "mine"), (1, "v1"), (2, "v2"), (3, "v3")]


async def test_two_repairs_of_a_chunk_at_once_leave_its_rows_once(source: Side, target: Side) -> None:
    await source.sql.execute("CREATE TABLE t (id int NOT NULL UNIQUE, v text); INSERT INTO t VALUES (1, 'x')")
    await target.sql.execute("CREATE TABLE t (id int NOT NULL, v text)")
    job = await copy(source, "t", target)
    chunk = Range(None, ("1",))
    async with writing(target) as one, writing(target) as two:
        into = await one.look("t")
        assert into is not None
        results = await asyncio.gather(
            *(s.write(job, into, chunk, Language.CSV, pieces_of([b"1,y\n"]), again=True) for s in (one, two)),
            return_exceptions=True,
        )
    assert 1 in results
    assert await target.rows("SELECT * FROM t") == [(1, "y")]
    assert await target.values(LEDGER) == [1]


# Refusals.

CANNOT_HOLD = [
    ("numeric(10,4)", "numeric(10,2)"),
    ("numeric(10,2)", "numeric(8,2)"),
    ("numeric", "numeric(10,2)"),
    ("numeric(1000,500)", "numeric(1000,200)"),
    ("bigint", "numeric(5,-2)"),
    ("bigint", "double precision"),
    ("numeric(10,4)", "money"),
    ("numeric", "double precision"),
    ("double precision", "real"),
    ("timestamptz", "date"),
    ("timestamp", "timestamptz"),
    ("timestamp", "timestamp(0)"),
    ("timestamptz(3)", "timestamptz(2)"),
    ("time", "time(3)"),
    ("interval", "interval(0)"),
    ("interval", "interval day"),
    ("text", "name"),
    ("text", '"char"'),
    ("integer[]", "jsonb"),
    ("amount", "amount"),
]
CAN_HOLD = [
    ("integer", "bigint", "5"),
    ("integer", "smallint", "5"),
    ("integer", "numeric(12,2)", "5"),
    ("integer", "money", "5"),
    ("numeric(10,2)", "money", "-5.05"),
    ("money", "numeric", "5.05"),
    ("boolean", "smallint", "true"),
    ("boolean", "text", "false"),
    ("real", "double precision", "0.5"),
    ("varchar(5)", "text", "'a'"),
    ("text", "varchar(5)", "'abc'"),
    ("text", "integer", "'5'"),
    ("timestamp(3)", "timestamp", "'2020-01-01 00:00:00.123'"),
    ("integer[]", "bigint[]", "'{1,NULL}'"),
    ("integer[]", "text", "'{1,NULL}'"),
    ("json", "jsonb", "'{\"a\":1}'"),
    ("numeric(1000,200)", "numeric(1000,200)", "1.5"),
    ("numeric(100,20)", "numeric(200,20)", "1.5"),
    ("inet", "text", "'10.0.0.0/8'"),
    ("mood", "text", "'sad'"),
    ("text", "mood", "'sad'"),
]
TYPES = "CREATE TYPE mood AS ENUM ('sad'); CREATE DOMAIN amount AS numeric(10,{scale});"


async def test_a_column_that_would_round_or_cut_is_refused(source: Side, target: Side) -> None:
    await source.sql.execute(TYPES.format(scale=4))
    await target.sql.execute(TYPES.format(scale=2))
    for side, place in ((source, 0), (target, 1)):
        columns = ", ".join(f"c{number} {pair[place]}" for number, pair in enumerate(CANNOT_HOLD))
        await side.sql.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    job = await job_for(source, "t", target)
    for number, (given, held) in enumerate(CANNOT_HOLD):
        one = replace(job, source=replace(job.source, columns=job.source.named(["id", f"c{number}"])))
        error = await refused(one, target, "cannot_hold")
        assert f"t.c{number} is " in error.message, (given, held)


async def refused(job: Job, target: Side, code: str) -> Refused:
    """The refusal, which left nothing."""
    before = await target.catalog()
    async with writing(target) as writer:
        with pytest.raises(Refused) as caught:
            await writer.prepare(job)
        assert await writer.done(job) == {}
    assert caught.value.code == code
    assert "\n" not in caught.value.message
    assert await target.catalog() == before
    return caught.value


async def test_a_column_of_another_type_that_holds_the_values_gets_them(source: Side, target: Side) -> None:
    for side, place in ((source, 0), (target, 1)):
        columns = ", ".join(f"c{number} {one[place]}" for number, one in enumerate(CAN_HOLD))
        await side.sql.execute(TYPES.format(scale=2) + f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    await source.sql.execute(f"INSERT INTO t VALUES (1, {', '.join(value for _, _, value in CAN_HOLD)})")
    await source.sql.execute("INSERT INTO t (id) VALUES (2)")
    await copy(source, "t", target)
    for number, (given, held, _) in enumerate(CAN_HOLD):
        cast = f"{'int::' if given == 'boolean' else ''}{held}"
        expected = await source.rows(f"SELECT id, c{number}::{cast}::text FROM t ORDER BY id")
        assert await target.rows(f"SELECT id, c{number}::text FROM t ORDER BY id") == expected, (given, held)


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ("CREATE TABLE t (id int PRIMARY KEY)", "no_column"),
        ("CREATE TABLE t (id int PRIMARY KEY, v text, more int NOT NULL)", "required_column"),
        ("CREATE TABLE t (id int PRIMARY KEY, v text GENERATED ALWAYS AS ('x') STORED)", "generated"),
        ("CREATE TABLE t (id int PRIMARY KEY, v text, twice int)", "generated"),
        ("CREATE VIEW t AS SELECT 1 AS id, 'x' AS v", "not_a_table"),
    ],
    ids=["no column", "a column without a value", "generated here", "generated there", "a view"],
)
async def test_a_table_that_cannot_take_the_rows_is_refused(source: Side, target: Side, made: str, code: str) -> None:
    await source.sql.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, twice int GENERATED ALWAYS AS (id * 2) STORED)"
    )
    await target.sql.execute(made)
    await refused(await job_for(source, "t", target), target, code)


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE t (id int, v text)",
        "CREATE TABLE t (id int, v text); CREATE UNIQUE INDEX ON t (id) WHERE id > 0",
        "CREATE TABLE t (id int, v text); CREATE UNIQUE INDEX ON t (id, lower(v))",
        "CREATE TABLE t (id int, v text, UNIQUE (id, v))",
        "CREATE TABLE t (id int UNIQUE DEFERRABLE, v text)",
    ],
    ids=["none", "partial", "with an expression", "wider", "deferrable"],
)
async def test_an_upsert_without_a_fitting_index_is_refused(source: Side, target: Side, made: str) -> None:
    await numbers(source)
    await target.sql.execute(made)
    await refused(await job_for(source, "t", target, mode=Mode.UPSERT), target, "no_key")


async def test_a_new_table_of_unknown_types_is_not_made(source: Side, target: Side) -> None:
    await source.sql.execute(
        "CREATE SCHEMA shop; CREATE TYPE shop.pair AS (a int, b int); CREATE TYPE shop.mood AS ENUM ('x');"
        "CREATE TABLE shop.t (id serial PRIMARY KEY, m shop.mood, p shop.pair)"
    )
    job, before = await job_for(source, "shop.t", target), await target.catalog()
    async with writing(target) as writer:
        with pytest.raises(StorageError, match=r"'p' has the type shop\.pair, which the target does not have"):
            await writer.prepare(job)
    assert await target.catalog() == before


DEPENDENTS = {
    "view v": "CREATE VIEW v AS SELECT id FROM t",
    "view m": "CREATE MATERIALIZED VIEW m AS SELECT id FROM t",
    "foreign key f_fk of f": "CREATE TABLE f (id int CONSTRAINT f_fk REFERENCES t)",
    "trigger g": "CREATE TRIGGER g BEFORE UPDATE ON t EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "policy p of t": "CREATE POLICY p ON t",
    "policy q of o": "CREATE TABLE o (id int); CREATE POLICY q ON o USING (id IN (SELECT id FROM t))",
    "row security": "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
    "publication pub": "CREATE PUBLICATION pub FOR TABLE t",
    "child c": "CREATE TABLE c () INHERITS (t)",
    "rule r": "CREATE RULE r AS ON DELETE TO t DO INSTEAD NOTHING",
    "replica identity": "ALTER TABLE t REPLICA IDENTITY FULL",
    "function b()": "CREATE FUNCTION b() RETURNS bigint BEGIN ATOMIC SELECT count(*) FROM t; END",
    "function e(t)": "CREATE FUNCTION e(t) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "column x of table h": "CREATE TABLE h (x t)",
}


async def test_what_a_replacement_would_break_is_listed_and_refused(source: Side, target: Side) -> None:
    await numbers(source)
    job = await job_for(source, "t", target, mode=Mode.REPLACE)
    for number, (what, made) in enumerate(DEPENDENTS.items()):
        await numbers(target, name=f"t{number}")
        await target.sql.execute(re.sub(r"\bt\b", f"t{number}", made))
        error = await refused(replace(job, target=f"t{number}", created=False), target, "dependents")
        assert re.sub(r"\bt\b", f"t{number}", what) in error.message
    await target.sql.execute(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); CREATE TABLE t PARTITION OF p DEFAULT"
    )
    assert (
        "parent p"
        in (await refused(await job_for(source, "t", target, mode=Mode.REPLACE), target, "dependents")).message
    )
    job = await job_for(source, "t", target, into="p", mode=Mode.REPLACE)
    assert "plain table" in (await refused(job, target, "dependents")).message


# Finish.

RICH = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE SCHEMA shop;
CREATE TABLE other (id int PRIMARY KEY, up int REFERENCES other);
CREATE TABLE shop.rich (
    id serial PRIMARY KEY,
    always int GENERATED ALWAYS AS IDENTITY (START 100 INCREMENT 5),
    maybe bigint GENERATED BY DEFAULT AS IDENTITY,
    name text COLLATE "C" NOT NULL DEFAULT 'it''s' UNIQUE,
    low text GENERATED ALWAYS AS (lower(name)) STORED,
    "Mixed "" Case" int DEFAULT 5 CHECK ("Mixed "" Case" > 0),
    m mood DEFAULT 'sad',
    moods mood[],
    during int4range,
    docs jsonb,
    parent int REFERENCES shop.rich DEFERRABLE INITIALLY DEFERRED,
    other int CONSTRAINT to_other REFERENCES other ON DELETE CASCADE,
    EXCLUDE USING gist (during WITH &&) WHERE (id > 0),
    CONSTRAINT both_unique UNIQUE (id, name) INCLUDE (m),
    CONSTRAINT checked CHECK (id < 1000000)
);
CREATE INDEX "partial ON x USING y" ON shop.rich (name DESC NULLS LAST) INCLUDE (m) WHERE id > 3;
CREATE UNIQUE INDEX by_expression ON shop.rich (lower(name), (id + 1));
CREATE INDEX by_document ON shop.rich USING gin (docs jsonb_path_ops) WITH (fastupdate = off);
CREATE INDEX taken ON shop.rich USING hash (name);
"""
LONG = "a_name_that_is_as_long_as_a_name_in_postgresql_can_possibly_be"
SHAPE = """
SELECT 'column ' || attname || ' ' || format_type(atttypid, atttypmod) || attnotnull || attidentity::text
       || attgenerated::text || attcollation::regcollation
       || coalesce(pg_get_expr(adbin, adrelid), '') FROM pg_attribute
       LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
       WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped
UNION ALL SELECT 'constraint ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
       WHERE conrelid = $1::regclass AND contype <> 'n'
UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = $1::regclass
UNION ALL SELECT 'sequence ' || s.seqrelid::regclass::text || (to_jsonb(s) - '{seqrelid,seqtypid}'::text[])::text
       FROM pg_sequence s JOIN pg_depend d ON d.objid = s.seqrelid AND d.refobjid = $1::regclass
       AND d.deptype IN ('a', 'i')
ORDER BY 1
"""
INDEXES = "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 't'::regclass ORDER BY 1"


async def shape(side: Side, table: str) -> list[str]:
    """All that a table has besides its rows."""
    return [row[0] for row in await side.sql.fetch(SHAPE.replace("$1", f"'{table}'"))]


async def leftovers(side: Side) -> list[str]:
    """What was built beside."""
    return [one for one in await side.catalog() if "_hg_" in one or DUMP.hex[:8] in one]


async def make_rich(side: Side) -> None:
    await side.sql.execute(RICH)
    await side.sql.execute(
        f"CREATE INDEX {LONG}1 ON shop.rich (m); CREATE INDEX {LONG}2 ON shop.rich (during);"
        "INSERT INTO other VALUES (1, 1), (2, 1);"
        "INSERT INTO shop.rich (name, during, docs, moods, parent, other) SELECT 'N' || i, int4range(i, i + 1),"
        " jsonb_build_object('i', i), ARRAY['sad', 'ok']::mood[], 1 + i % 3, 1 + i % 2 FROM generate_series(1, 20) i;"
        "SELECT nextval('shop.rich_id_seq')"
    )


async def test_a_table_that_is_made_has_all_that_its_source_has_and_counts_on(source: Side, target: Side) -> None:
    await make_rich(source)
    others = await job_for(source, "other", target)
    job = await job_for(source, "shop.rich", target)
    await source.sql.execute("INSERT INTO shop.rich (name, parent) VALUES ('later', 1)")  # After it was described.
    for one in (others, job):
        await copy_chunks(one, source, target, rows=7)
    async with writing(target) as writer:
        for _ in range(2):
            await writer.finish(job)
            await writer.finish(others)
            assert await writer.link(job, {}) == []
            assert await writer.link(others, {}) == []
        assert await writer.unfinished("shop.rich") == []
    assert await shape(target, "shop.rich") == await shape(source, "shop.rich")
    assert await shape(target, "other") == await shape(source, "other")
    for side in (source, target):
        await side.sql.execute("INSERT INTO shop.rich (name, parent, other) VALUES ('Next', 1, 2)")
    query = "SELECT id, always, maybe, name, low, m::text, parent, other FROM shop.rich ORDER BY id"
    assert await target.rows(query) == await source.rows(query)
    assert (await target.rows(query))[-1][:5] == (23, 205, 22, "Next", "next")
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await target.sql.execute("UPDATE shop.rich SET other = 99")


async def test_a_key_that_is_an_index_and_a_partitioned_table_are_made_as_they_are(source: Side, target: Side) -> None:
    """A partitioned table becomes a plain one, and so does a partition."""
    await source.sql.execute(
        "CREATE TABLE t (id int NOT NULL, v text); CREATE UNIQUE INDEX by_id ON t (id); INSERT INTO t VALUES (1, 'x');"
        "CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); CREATE INDEX by_v ON parted (v);"
        "CREATE TABLE part PARTITION OF parted DEFAULT; INSERT INTO parted VALUES (1, 'x')"
    )
    for name in ("t", "parted", "part"):
        await copy(source, name, target)
        found = [one.replace("ON ONLY ", "ON ") for one in await shape(source, name)]
        assert await shape(target, name) == found
        assert await target.rows(f"SELECT * FROM {name}") == [(1, "x")]


async def test_names_that_other_tables_have_are_not_taken_from_them(source: Side, target: Side) -> None:
    """Neither of an index nor of a sequence."""
    await source.sql.execute(
        "CREATE TABLE t (id serial CONSTRAINT pk PRIMARY KEY, v int); CREATE INDEX taken ON t (v);"
        "INSERT INTO t (v) VALUES (1), (2)"
    )
    await target.sql.execute(
        "CREATE TABLE old (id int CONSTRAINT pk PRIMARY KEY); CREATE INDEX taken ON old (id);"
        "CREATE SEQUENCE t_id_seq OWNED BY old.id"
    )
    before = await shape(target, "old")
    await copy(source, "t", target)
    assert await shape(target, "old") == before
    await target.sql.execute("INSERT INTO t (v) VALUES (3)")
    assert await target.rows("SELECT * FROM t ORDER BY 1") == [(1, 1), (2, 2), (3, 3)]
    assert await target.values(INDEXES) == [f"pk_{DUMP.hex[:8]}", f"taken_{DUMP.hex[:8]}"]
    await target.sql.execute("DROP TABLE old")
    await target.sql.execute("INSERT INTO t (v) VALUES (4)")


async def test_a_table_under_another_name_refers_to_itself(source: Side, target: Side) -> None:
    await source.sql.execute(
        "CREATE TABLE t (id serial PRIMARY KEY, up int REFERENCES t); INSERT INTO t (up) VALUES (1), (1)"
    )
    await copy(source, "t", target, into='shop."Tree.s"')
    await target.sql.execute('INSERT INTO shop."Tree.s" (up) VALUES (3)')
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await target.sql.execute('INSERT INTO shop."Tree.s" (up) VALUES (99)')


async def test_foreign_keys_in_a_circle_are_made_and_those_that_cannot_be_are_told(source: Side, target: Side) -> None:
    await source.sql.execute(
        "CREATE TABLE far (id int PRIMARY KEY); CREATE TABLE a (id int PRIMARY KEY, b int);"
        "CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a, far int CONSTRAINT to_far REFERENCES far);"
        "ALTER TABLE a ADD CONSTRAINT to_b FOREIGN KEY (b) REFERENCES b DEFERRABLE;"
        "INSERT INTO a VALUES (1, NULL); INSERT INTO b VALUES (1, 1); UPDATE a SET b = 1"
    )
    jobs = [await job_for(source, name, target) for name in ("a", "b")]
    async with writing(target) as writer:
        for job in jobs:
            await copy_chunks(job, source, target)
            await writer.finish(job)
        assert await writer.link(jobs[0], {}) == []
        assert list(map(str, await writer.link(jobs[1], {}))) == [
            f"foreign key to_far of {jobs[1].target} (there is no far)"
        ]
        await target.sql.execute("CREATE TABLE far (id int)")
        assert (await writer.link(jobs[1], {}))[0].why.startswith("there is no unique constraint")
    assert "constraint to_b FOREIGN KEY (b) REFERENCES b(id) DEFERRABLE" in await shape(target, "a")


async def test_what_needs_a_column_that_was_not_copied_is_left_out(source: Side, target: Side) -> None:
    await source.sql.execute(
        "CREATE TABLE t (id int PRIMARY KEY, secret int REFERENCES t, v int, CHECK (secret > 0), UNIQUE (v, secret));"
        "CREATE INDEX ON t (v) WHERE secret > 1; CREATE INDEX kept ON t (v); INSERT INTO t VALUES (1, 1, 1)"
    )
    job = await job_for(source, "t", target, exclude=["secret"])
    await copy_chunks(job, source, target)
    async with writing(target) as writer:
        await writer.finish(job)
        (left,) = await writer.link(job, {})
        assert (left.name, left.why, left.excuse) == ("t_secret_fkey", "its columns were not copied", Excuse.ASKED)
    assert await target.values(INDEXES) == ["kept", "t_pkey"]


async def test_a_table_without_a_key_is_built_beside_and_put_in_place(source: Side, target: Side) -> None:
    await source.sql.execute("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY, v text)")
    await source.sql.execute("INSERT INTO t (v) VALUES ('x'), ('x')")
    job = await job_for(source, "t", target)
    assert job.aside
    await copy_chunks(job, source, target)
    assert "rt" not in await target.catalog()
    async with writing(target) as writer:
        await writer.drop(job)
        assert await writer.done(job) == {}
        assert await leftovers(target) == []
        await copy_chunks(job, source, target)
        for _ in range(2):
            await writer.finish(job)
            await writer.drop(job)
    await target.sql.execute("INSERT INTO t (v) VALUES ('y')")
    assert await target.rows("SELECT * FROM t ORDER BY id") == [(1, "x"), (2, "x"), (3, "y")]
    assert "St_id_seq" in await target.catalog()


@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.UPSERT])
async def test_a_table_that_is_there_gets_what_was_built_beside_at_once(source: Side, target: Side, mode: Mode) -> None:
    await source.sql.execute("CREATE TABLE t (id int, v text); INSERT INTO t VALUES (1, 'new'), (2, 'new')")
    await target.sql.execute("CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY UNIQUE, v text)")
    await target.sql.execute("INSERT INTO t (id, v) OVERRIDING SYSTEM VALUE VALUES (0, 'mine')")
    if mode is Mode.UPSERT:
        await target.sql.execute("INSERT INTO t (v) VALUES ('old')")
    job = await job_for(source, "t", target, mode=mode, key=("id",))
    await copy_chunks(job, source, target)
    assert await target.values("SELECT v FROM t WHERE v = 'new'") == []
    async with writing(target) as writer:
        await writer.finish(job)
    await target.sql.execute("INSERT INTO t (v) VALUES ('next')")
    assert await target.rows("SELECT * FROM t ORDER BY id") == [(0, "mine"), (1, "new"), (2, "new"), (3, "next")]
    assert await leftovers(target) == []


@pytest.mark.parametrize("is_there", [False, True])
async def test_an_upsert_overwrites_by_key(source: Side, target: Side, is_there: bool) -> None:
    await numbers(source, 3)
    if is_there:
        await target.sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text, extra int NOT NULL DEFAULT 7)")
        await target.sql.execute("INSERT INTO t VALUES (2, 'old', 1), (9, 'mine', 1)")
    await copy(source, "t", target, mode=Mode.UPSERT)
    mine = [(9, "mine")] if is_there else []
    assert await target.rows("SELECT id, v FROM t ORDER BY id") == [(1, "v1"), (2, "v2"), (3, "v3"), *mine]


async def test_rows_of_a_backfill_stay_away_from_those_that_are_there(source: Side, target: Side) -> None:
    await numbers(source, 3)
    await target.sql.execute("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)")
    await target.sql.execute("INSERT INTO t VALUES (DEFAULT, 'live')")
    job = await job_for(source, "t", target, mode=Mode.ABSENT)

    async def rows() -> Pieces:
        yield Piece([{"id": number, "v": f"v{number}"} for number in (1, 2, 3)], 10, 3)

    async with writing(target) as writer:
        into = await writer.prepare(job)
        assert list(writer.accepts(into, job)) == [Language.ROWS]
        await writer.write(job, into, Range(None, ("3",)), Language.ROWS, rows())
    assert await target.rows("SELECT * FROM t ORDER BY id") == [(1, "live"), (2, "v2"), (3, "v3")]


# Replace.

BOSS = '"the %s boss"'


async def test_a_replacement_keeps_names_rights_owner_defaults_and_counts_on(source: Side, target: Side) -> None:
    for side in (source, target):
        await make_rich(side)
    await target.sql.execute(
        f"DROP ROLE IF EXISTS clerk; DROP ROLE IF EXISTS {BOSS}; CREATE ROLE clerk; CREATE ROLE {BOSS};"
        "GRANT ALL ON SCHEMA shop TO clerk; ALTER TABLE shop.rich OWNER TO clerk;"
        f"GRANT SELECT ON shop.rich TO {BOSS} WITH GRANT OPTION; GRANT UPDATE (name) ON shop.rich TO {BOSS};"
        "ALTER TABLE shop.rich SET (fillfactor = 70); GRANT REFERENCES ON other TO clerk;"
        "ALTER DEFAULT PRIVILEGES IN SCHEMA shop GRANT DELETE ON TABLES TO PUBLIC"
    )
    facts = (
        "SELECT relowner::regrole::text, relacl::text, reloptions, relpersistence, array(SELECT attacl::text"
        " FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 ORDER BY attnum) FROM pg_class c"
        " WHERE oid = 'shop.rich'::regclass"
    )
    before, rights = await shape(target, "shop.rich"), await target.rows(facts)
    await target.sql.execute("UPDATE shop.rich SET name = 'old ' || name; SELECT nextval('shop.rich_always_seq')")
    job = await job_for(source, "shop.rich", target, mode=Mode.REPLACE)
    await copy_chunks(job, source, target, rows=7)
    assert "old N1" in await target.values("SELECT name FROM shop.rich")
    async with writing(target) as writer:
        assert await writer.unfinished("shop.rich") == [DUMP]
        for _ in range(2):
            await writer.finish(job)
            await writer.link(job, {})
    assert await shape(target, "shop.rich") == before
    assert await target.rows(facts) == rights
    assert await leftovers(target) == []
    query = "SELECT id, always, maybe, name, low, m::text, parent, other FROM shop.rich ORDER BY id"
    assert await target.rows(query) == await source.rows(query)
    await target.sql.execute("INSERT INTO shop.rich (name) VALUES ('Next')")
    assert (await target.rows(query))[-1][:4] == (22, 205, 21, "Next")
    again = replace(job, dump=OTHER)
    await copy_chunks(again, source, target)
    async with writing(target) as writer:
        await writer.finish(again)
    assert await shape(target, "shop.rich") == before
    await target.sql.execute(f"DROP SCHEMA shop CASCADE; DROP OWNED BY clerk, {BOSS}")
    await target.sql.execute(f"DROP ROLE clerk; DROP ROLE {BOSS}")


async def test_long_names_that_begin_alike_stay_apart(source: Side, target: Side) -> None:
    for name in (f"{LONG}1", f"{LONG}2"):
        await source.sql.execute(f"CREATE TABLE {name} AS SELECT '{name[-1]}' AS v")
        await target.sql.execute(f"CREATE TABLE {name} (v text)")
    jobs = [await job_for(source, f"{LONG}{number}", target, mode=Mode.REPLACE) for number in (1, 2)]
    for job in jobs:
        await copy_chunks(job, source, target)
    async with writing(target) as writer:
        for job in jobs:
            await writer.finish(job)
    assert await target.rows(f"SELECT * FROM {LONG}1") == [("1",)]
    assert await target.rows(f"SELECT * FROM {LONG}2") == [("2",)]


async def test_readers_of_the_old_table_wait_for_the_swap_only(source: Side, target: Side) -> None:
    """While indexes are made, the old table is read; a reader that stays in stops the swap, which can be done again."""
    await make_rich(source)
    await make_rich(target)
    job = await job_for(source, "shop.rich", target, mode=Mode.REPLACE)
    await copy_chunks(job, source, target)
    reader = await asyncpg.connect(target.url)
    async with reader.transaction():
        await reader.execute("SELECT FROM shop.rich")
        async with writing(target) as writer:
            await (await writer.session()).execute("SET lock_timeout = 100")
            with pytest.raises(StorageError, match="lock timeout"):
                await writer.finish(job)
            assert await target.values("SELECT count(*) FROM shop.rich") == [20]
    async with writing(target) as writer:
        await writer.finish(job)
    await reader.close()
    assert await shape(target, "shop.rich") == await shape(source, "shop.rich")


class Falling:
    """A session that is lost when the server has done its n-th statement, and before anybody hears of it. What only
    reads is not counted, and of those within a transaction only some are: they come to the same."""

    def __init__(self, connection: Any, at: int) -> None:
        self._connection = connection
        self._left = at
        self._inside = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def execute(self, *args: Any) -> Any:
        status = await self._connection.execute(*args)
        self._inside = self._inside + 1 if self._connection.is_in_transaction() else 0
        self._left -= self._inside % 4 in (0, 1)
        if self._left == 0:
            self._connection.terminate()
            raise asyncpg.ConnectionDoesNotExistError("it fell")
        return status


@pytest.mark.parametrize("mode", ["append", "aside", "replace"])
async def test_a_finish_that_falls_at_any_statement_can_be_done_again(source: Side, target: Side, mode: str) -> None:
    """Each statement of it, in turn, is the last of a session; the one after goes on to the same end."""
    table = (
        "CREATE TABLE t (id serial PRIMARY KEY, k int GENERATED ALWAYS AS IDENTITY, v text UNIQUE CHECK (v <> ''),"
        " up int REFERENCES t); CREATE INDEX by_v ON t (lower(v));"
    )
    await source.sql.execute(f"{table} INSERT INTO t (v, up) VALUES ('a', 1), ('b', 1)")
    if mode == "replace":
        await target.sql.execute(table)
    job = await job_for(source, "t", target, mode=Mode.REPLACE if mode == "replace" else Mode.APPEND)
    job = replace(job, aside=mode == "aside")
    expected, rows = await shape(source, "t"), await source.rows("SELECT * FROM t ORDER BY id")
    at = 0
    while True:
        at += 1
        job = replace(job, dump=UUID(int=at << 96))
        await copy_chunks(job, source, target)
        is_fallen = await fell(job, target, at)
        async with writing(target) as writer:
            await writer.finish(job)
            assert await writer.link(job, {}) == []
            assert await writer.unfinished("t") == []
        assert await shape(target, "t") == expected, at
        assert await target.rows("SELECT * FROM t ORDER BY id") == rows
        assert await leftovers(target) == []
        if not is_fallen:
            break
        if mode != "replace":
            await target.sql.execute("DROP TABLE t")
    assert at > 6


async def fell(job: Job, target: Side, at: int) -> bool:
    """Finish with a session that is lost at a statement. False: there are not so many."""
    async with writing(target) as writer:
        writer._connection = Falling(await writer.session(), at)
        try:
            await writer.finish(job)
        except StorageGone:
            return True
        return False
