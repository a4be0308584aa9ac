"""A source whose catalog lies: each text that a plan has of it may be anything, and none does harm at the target.

A rich table is described, and then each text in its description, wherever it stands, is replaced by each of a few
hostile ones. Whatever else the description may come to have is replaced as well.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import asyncpg
import msgspec
import pytest

from headgate.connectors.api.bulk import Job, Writer
from headgate.connectors.mysql.reader import MysqlReader
from headgate.connectors.mysql.writer import MysqlWriter
from headgate.connectors.postgres.judged import is_constraint, is_expression, is_index
from headgate.connectors.postgres.writer import PostgresWriter
from headgate.connectors.sqlite.reader import SqliteReader
from headgate.connectors.sqlite.writer import SqliteWriter
from headgate.errors import HeadgateError
from headgate.store.embedded import EmbeddedServer
from tests.connectors.mariadb import MariaDb
from tests.connectors.postgres_copy import DUMP, Side, emptied, job_for, make_databases

HARM = "DELETE FROM canary"
HOSTILE = [
    f"1); {HARM}; --",
    f"x'); {HARM}; --",
    f'x"); {HARM}; /*',
    f"x`); {HARM}; --",
    "harm()",
    "a\0b" + "é" * 40 + "$$ /* %s {0} \\ \n -- ʼ ＂",
]
SQL = (
    "expression",
    "definition",
    "rest",
    "sql",
    "native",
    "options",
    "refers",
    "on_delete",
)  # Texts that are more than names.


class Room(Protocol):
    """One kind of database: a table described by its reader, and a target with a canary."""

    async def job(self) -> Job: ...

    def writer(self) -> Writer: ...

    async def is_unharmed(self) -> bool: ...

    async def clear(self) -> None: ...


class PostgresRoom:
    """The target has a function that does harm, which anybody may call."""

    SOURCE = """
        CREATE TYPE mood AS ENUM ('glad', 'sad'); CREATE TABLE other (id int PRIMARY KEY);
        CREATE TABLE rich (
            id bigserial PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY, m mood DEFAULT 'glad',
            v numeric(10,2) DEFAULT 1.5,
            t varchar(20) COLLATE "C" NOT NULL DEFAULT lower('X'), at timestamptz DEFAULT now(), o int REFERENCES other,
            double bigint GENERATED ALWAYS AS (id * 2) STORED, CONSTRAINT positive CHECK (v > 0), UNIQUE (t, o)
        );
        CREATE INDEX lowered ON rich (lower(t) text_pattern_ops DESC) WHERE v > 1
    """
    TARGET = f"""
        CREATE TABLE canary (v int); INSERT INTO canary VALUES (1); CREATE TABLE other (id int PRIMARY KEY);
        CREATE FUNCTION harm() RETURNS int LANGUAGE plpgsql AS 'BEGIN {HARM}; RETURN 1; END'
    """

    def __init__(self, source: Side, target: Side) -> None:
        self.source, self.target = source, target

    async def job(self) -> Job:
        await self.source.sql.execute(self.SOURCE)
        await self.target.sql.execute(self.TARGET)
        return await job_for(self.source, "rich", self.target)

    def writer(self) -> Writer:
        return PostgresWriter(self.target.url)

    async def is_unharmed(self) -> bool:
        """The canary lives, nothing that was made calls the function, and what is inserted does no harm, either."""
        calls = await self.target.values(
            "SELECT count(*) FROM pg_depend WHERE refobjid = 'harm()'::regprocedure AND deptype = 'n'"
        )
        return calls == [0] and await self.target.values("SELECT v FROM canary") == [1]

    async def clear(self) -> None:
        query = """
            SELECT format('DROP TABLE %s CASCADE', oid::regclass) FROM pg_class WHERE relkind = 'r'
            AND relnamespace = 'public'::regnamespace AND relname NOT IN ('canary', 'other')
            UNION ALL SELECT format('DROP TYPE %s', oid::regtype) FROM pg_type WHERE typtype = 'e'
        """
        for statement in await self.target.values(query):
            await self.target.sql.execute(statement)


class MysqlRoom:
    """Statements come one by one there, so what counts is what is made."""

    SOURCE = """
        CREATE TABLE other (id int PRIMARY KEY);
        CREATE TABLE rich (
            id bigint PRIMARY KEY AUTO_INCREMENT, v decimal(10,2) unsigned DEFAULT 1.5,
            t varchar(20) NOT NULL DEFAULT 'x',
            e enum('a''b', 'c') DEFAULT 'c', at timestamp DEFAULT current_timestamp() ON UPDATE current_timestamp(),
            o int, KEY (t(5)), UNIQUE (o), CONSTRAINT link FOREIGN KEY (o) REFERENCES other (id) ON DELETE CASCADE
        )
    """

    def __init__(self, source: Any, target: Any) -> None:
        self.source, self.target = source, target

    async def job(self) -> Job:
        for statement in self.SOURCE.split(";"):
            self.source.execute(statement)
        self.target.execute("CREATE TABLE canary (v int)")
        self.target.execute("INSERT INTO canary VALUES (1)")
        self.target.execute("CREATE TABLE other (id int PRIMARY KEY)")
        self.target.execute("CREATE FUNCTION harm() RETURNS int RETURN 1")
        reader = MysqlReader(self.source.url())
        try:
            found = await reader.describe("rich")
        finally:
            await reader.close()
        return Job(DUMP, found, "rich", key=found.key, created=True)

    def writer(self) -> Writer:
        return MysqlWriter(self.target.url())

    async def is_unharmed(self) -> bool:
        query = "SELECT COLUMN_DEFAULT FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE()"
        calls = any("harm" in str(text) and "'" not in str(text) for (text,) in self.target.rows(query))
        return not calls and self.target.rows("SELECT v FROM canary") == [(1,)]

    async def clear(self) -> None:
        for name in self._tables():
            self.target.execute(f"DROP TABLE `{name.replace('`', '``')}`")

    def _tables(self) -> list[str]:
        return [row[0] for row in self.target.rows("SHOW TABLES") if row[0] not in ("canary", "other")]


class SqliteRoom:
    """The statements of indexes are in the file, as text."""

    SOURCE = """
        CREATE TABLE rich (id INTEGER PRIMARY KEY, v DECIMAL(10,2), t TEXT COLLATE NOCASE UNIQUE, o "odd type");
        CREATE INDEX lowered ON rich (lower(t)) WHERE v > 1; CREATE INDEX plain ON rich (v DESC, o)
    """

    def __init__(self, folder: Path) -> None:
        self.source, self.target = folder / "source.db", folder / "target.db"

    async def job(self) -> Job:
        _script(self.source, self.SOURCE)
        _script(self.target, "CREATE TABLE canary (v int); INSERT INTO canary VALUES (1)")
        reader = SqliteReader(f"sqlite:{self.source}")
        try:
            found = await reader.describe("rich")
        finally:
            await reader.close()
        return Job(DUMP, found, "rich", key=found.key, created=True)

    def writer(self) -> Writer:
        return SqliteWriter(f"sqlite:{self.target}")

    async def is_unharmed(self) -> bool:
        connection = sqlite3.connect(self.target)
        alive = connection.execute("SELECT v FROM canary").fetchall() == [(1,)]
        calls = connection.execute("SELECT count(*) FROM sqlite_schema WHERE type NOT IN ('table', 'index')").fetchone()
        connection.close()
        return alive and calls == (0,)

    async def clear(self) -> None:
        connection = sqlite3.connect(self.target)
        query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name <> 'canary'"
        for (name,) in connection.execute(query).fetchall():
            connection.execute('DROP TABLE "' + name.replace('"', '""') + '"')
        connection.commit()
        connection.close()


def _script(path: Path, statements: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(statements)
    connection.close()


@pytest.fixture(scope="module")
def urls(server: EmbeddedServer) -> list[str]:
    return asyncio.run(make_databases(server.url))


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    server = MariaDb()
    yield server
    server.stop()


@pytest.fixture
async def postgres(urls: list[str]) -> AsyncIterator[Room]:
    async with emptied(urls[0]) as source, emptied(urls[1]) as target:
        yield PostgresRoom(source, target)


@pytest.fixture
def mysql(mariadb: MariaDb) -> Iterator[Room]:
    with mariadb.database() as source, mariadb.database() as target:
        yield MysqlRoom(source, target)


@pytest.fixture
def sqlite(tmp_path: Path) -> Room:
    return SqliteRoom(tmp_path)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a text stands in a job: as a value, or as a key of its details."""
    match value:
        case str():
            yield path
        case list() | tuple():
            for index, one in enumerate(value):
                yield from places(one, (*path, index))
        case dict():
            for key, one in value.items():
                if len(path) == 3 and path[1] == "details":  # Deeper, and less deep, the keys are our own.
                    yield (*path, "key of", key)
                yield from places(one, (*path, key))


def changed(value: Any, path: tuple[Any, ...], text: str) -> Any:
    """The same with another text at one place."""
    match path:
        case ():
            return text
        case ("key of", key):
            return {text if name == key else name: one for name, one in value.items()}
        case (step, *rest) if isinstance(value, dict):
            return {**value, step: changed(value[step], tuple(rest), text)}
        case (step, *rest):
            return [changed(one, tuple(rest), text) if number == step else one for number, one in enumerate(value)]
    raise AssertionError(path)


async def attempt(writer: Any, job: Job) -> None:
    """All that a dump would make of a table. It may fail."""
    try:
        await writer.prepare(job)
        await writer.finish(job)
        await writer.index(job)
        if hasattr(writer, "link"):
            await writer.link(job, {})
    except HeadgateError:
        pass


async def feed(room: Room) -> None:
    """Every hostile text, in every place."""
    job = await room.job()
    plain, writer = msgspec.to_builtins(job), room.writer()
    await attempt(writer, job)
    await room.clear()
    found = sorts(path for path in places(plain) if path[0] in ("source", "key") and path[1:] != ("family",))
    assert len(found) >= 10
    for number, path in enumerate(found):
        for text in HOSTILE if path[-1] in SQL else (HOSTILE[number % 6], HOSTILE[(number + 3) % 6]):
            try:
                hostile = msgspec.convert(changed(plain, path, text), Job)
            except msgspec.ValidationError:
                break  # A word of ours, such as a kind: a plan with another one is not read at all.
            await attempt(writer, hostile)
            assert await room.is_unharmed(), f"{path}: {text!r}"
            await room.clear()
    await writer.close()


def sorts(paths: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """One place of each sort: of columns, defaults, constraints and indexes, the first that has it."""
    found: dict[Any, tuple[Any, ...]] = {}
    for path in paths:
        begin = tuple(step for step in path[:3] if not isinstance(step, int))
        found.setdefault((begin, path[-1] if len(path) > 3 else len(path)), path)
    return list(found.values())


async def test_no_text_of_a_postgresql_catalog_does_harm_at_the_target(postgres: Room) -> None:
    await feed(postgres)


async def test_no_text_of_a_mariadb_catalog_does_harm_at_the_target(mysql: Room) -> None:
    await feed(mysql)


async def test_no_text_of_a_sqlite_file_does_harm_at_the_target(sqlite: Room) -> None:
    await feed(sqlite)


# What PostgreSQL's own catalog may say.


@pytest.mark.parametrize(
    "default",
    [
        "harm()",
        "(SELECT 1)",
        "query_to_xml('DELETE FROM canary', true, true, '')::text",
        "pg_read_file('PG_VERSION')",
        "current_setting('x')",
        "lo_import('x')::text",
        "set_config('a.b', 'c', false)",
        "nothing()",
    ],
)
async def test_a_default_that_calls_what_may_do_harm_is_left_out_and_said(urls: list[str], default: str) -> None:
    async with emptied(urls[0]) as source, emptied(urls[1]) as target:
        await target.sql.execute(PostgresRoom.TARGET)
        await source.sql.execute(
            "CREATE TABLE rich (id int PRIMARY KEY, t text DEFAULT 'x', u text DEFAULT upper('y'))"
        )
        job = await job_for(source, "rich", target)
        details = {**job.source.details}
        details["defaults"] = [
            {**row, "expression": default} if row["name"] == "t" else row for row in details["defaults"]
        ]
        hostile = replace(job, source=replace(job.source, details=details))
        writer = PostgresWriter(target.url)
        await writer.prepare(hostile)
        await writer.finish(hostile)
        assert [(one.kind, one.name) for one in await writer.index(hostile)] == [("default", "t")]
        await writer.close()
        await target.sql.execute("INSERT INTO rich (id) VALUES (1)")
        assert await target.rows("SELECT t, u FROM rich") == [(None, "Y")]
        assert await target.values("SELECT v FROM canary") == [1]


async def test_a_schema_of_harmless_expressions_comes_whole(urls: list[str]) -> None:
    async with emptied(urls[0]) as source, emptied(urls[1]) as target:
        await source.sql.execute(PostgresRoom.SOURCE)
        await target.sql.execute(PostgresRoom.TARGET)
        job = await job_for(source, "rich", target)
        writer = PostgresWriter(target.url)
        await writer.prepare(job)
        await writer.finish(job)
        assert await writer.index(job) == []
        assert await writer.link(job, {}) == []
        await writer.close()
        query = """
            SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'rich'::regclass
            UNION ALL SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'rich'::regclass
            UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'rich'::regclass ORDER BY 1
        """
        assert await target.values(query) == await source.values(query)


@pytest.mark.parametrize(
    "text",
    ["1; x", "1 -- x", "1 /* x */", "1)", "(1", "1, 2", "'", '"', "$$x$$", "$1", "E'\\'", "U&'\\0027'", "1\0", "\\x"],
)
def test_what_is_more_or_less_than_an_expression_is_none(text: str) -> None:
    assert not is_expression(text)


def test_definitions_as_postgresql_writes_them_are_definitions() -> None:
    assert is_index(
        " USING gin (lower(a) gin_trgm_ops, b) INCLUDE (c) WITH (fastupdate='off') WHERE (a > 'x--;'::text)"
    )
    assert is_constraint(
        'FOREIGN KEY (a) REFERENCES public."O"(id) MATCH FULL ON UPDATE CASCADE ON DELETE SET NULL (a)'
    )
    assert is_constraint("CHECK (((v > (0)::numeric) AND (t ~ E'^\\\\d''$'::text))) NO INHERIT NOT VALID")
    assert is_constraint("EXCLUDE USING gist (room WITH =, during WITH &&) WHERE ((NOT cancelled))")
    assert not is_constraint("CHECK ((true)), ADD COLUMN z integer")
    assert not is_constraint("CHECK ((true)) other")
    assert not is_index(" USING btree (a) TABLESPACE x")
    assert not is_index(" USING btree (a); DROP TABLE x")


async def test_a_trial_leaves_nothing_behind(urls: list[str]) -> None:
    async with emptied(urls[0]) as source, emptied(urls[1]) as target:
        await source.sql.execute("CREATE TABLE rich (id int PRIMARY KEY, v int DEFAULT 1 CHECK (v > 0))")
        job = await job_for(source, "rich", target)
        writer = PostgresWriter(target.url)
        await writer.prepare(job)
        await writer.finish(job)
        await writer.close()
        made: asyncpg.Record = await target.sql.fetchrow("SELECT count(*) FROM pg_class WHERE relname ~ 'trial'")
        assert made[0] == 0
