"""Any pair of storages: the same table goes from each to each, and back into PostgreSQL as it was."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pymysql
import pytest

from headgate.connectors.values.digest import digest_of_lines
from headgate.runtime.dumps.plan import Options, Request, Storages, create
from headgate.runtime.dumps.process import StreamProcess
from headgate.runtime.dumps.verify import verify
from headgate.store.database import Database
from headgate.store.dumps import Dumps
from headgate.store.embedded import EmbeddedServer
from tests.connectors.mariadb import Database as MariaDbDatabase
from tests.connectors.mariadb import MariaDb
from tests.connectors.mongo_server import MongoServer

KINDS = ["postgresql", "mysql", "sqlite", "csv", "jsonl", "parquet", "mongodb"]
ROWS = 60

COLUMNS = """
    id bigint PRIMARY KEY, name text NOT NULL, note text, amount numeric(12,2) NOT NULL, rate double precision,
    active boolean NOT NULL, at timestamptz NOT NULL, day date, doc jsonb, raw bytea, uid uuid NOT NULL
"""
FILL = f"""
INSERT INTO items SELECT g, E'name "quoted", \\\\ and\\nnewline ' || g, CASE g % 3 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE
    'día ✓ 😀 ' || g END, (g * 1.01)::numeric(12,2), CASE WHEN g % 5 = 0 THEN NULL ELSE g / 7.0::float8 END,
    g % 2 = 0, timestamptz '2026-02-03 04:05:06.789+00' + g * interval '1 hour',
    CASE WHEN g % 4 = 0 THEN NULL ELSE date '2026-01-01' + g END,
    CASE WHEN g % 6 = 0 THEN NULL ELSE jsonb_build_object('n', g, 'list', jsonb_build_array(1, 'two', NULL)) END,
    CASE WHEN g % 7 = 0 THEN NULL ELSE decode('00ff' || lpad(to_hex(g), 4, '0'), 'hex') END,
    ('00000000-0000-4000-8000-' || lpad(to_hex(g), 12, '0'))::uuid
FROM generate_series(1, {ROWS}) g
"""


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    server = MariaDb()
    yield server
    server.stop()


class World:
    """One place of each kind."""

    mysql: MariaDbDatabase

    def __init__(self, dumps: Dumps, home: Path, urls: dict[str, str], connection: Any, base: str) -> None:
        self.dumps, self.home, self.urls = dumps, home, urls
        self._connection, self._base = connection, base
        self._numbers = itertools.count(1)

    def place(self, kind: str) -> str:
        """A place that nothing has been written to."""
        number = next(self._numbers)
        if kind in ("csv", "jsonl", "parquet"):
            return f"{kind}:{self.home / f'{kind}{number}'}/"
        if kind == "sqlite":
            return f"sqlite:{self.home / f'{number}.db'}"
        if kind == "mongodb":
            return self.urls["mongodb"].replace("/shop", f"/shop{number}")
        return self.urls[kind]

    async def dump(self, source: str, target: str, *tables: str, mode: str = "replace", **more: Any) -> Any:
        """One dump, to its end."""
        made = await create(
            self.dumps,
            Request(source, target, tables or ("items",), Options(mode=mode), rows=25, **more),  # type: ignore[arg-type]
        )
        process = StreamProcess(self.dumps, made, Storages(source, target), 2, self.home)
        status = await process.run()
        errors = [row.error for row in await self.dumps.tables(made)]
        assert status == "completed", errors
        return made

    async def left(self, dump: Any) -> list[str]:
        """What it has left behind, each with its excuse."""
        return [f"{one}, {one.excuse}" for one in (await self.dumps.find(str(dump))).left_behind]


@pytest.fixture
async def world(server: EmbeddedServer, url: str, tmp_path: Path, mariadb: MariaDb) -> AsyncIterator[World]:
    connection = await asyncpg.connect(server.url)
    name = url.partition("@/")[2].partition("?")[0]
    await connection.execute(f"CREATE DATABASE {name}_s STRATEGY FILE_COPY")
    await connection.execute(f"CREATE DATABASE {name}_t STRATEGY FILE_COPY")
    source, target = (server.url.replace("/headgate?", f"/{name}{end}?") for end in ("_s", "_t"))
    filling = await asyncpg.connect(source)
    await filling.execute(f"CREATE TABLE items ({COLUMNS})")
    await filling.execute(FILL)
    await filling.close()
    database, mongo = await Database.open(url), MongoServer()
    await mongo.start()
    with mariadb.database() as mysql:
        urls = {
            "source": source,
            "postgresql": target,
            "mysql": mysql.url("tinyint1=bool"),
            "mongodb": mongo.url("shop"),
        }
        world = World(Dumps(database), tmp_path, urls, connection, name)
        world.mysql = mysql
        yield world
    await mongo.stop()
    await database.close()
    for end in ("_s", "_t"):
        await connection.execute(f"DROP DATABASE {name}{end} WITH (FORCE)")
    await connection.close()


async def at(url: str, *statements: str) -> list[Any]:
    """Statements for a PostgreSQL server; the rows of the last."""
    connection = await asyncpg.connect(url)
    try:
        for statement in statements[:-1]:
            await connection.execute(statement)
        return [tuple(row) for row in await connection.fetch(statements[-1])]
    finally:
        await connection.close()


async def rows_of(url: str) -> list[Any]:
    return await at(url, "SELECT * FROM items ORDER BY id")


@pytest.mark.parametrize("kind", KINDS)
async def test_there_and_back_again_every_value_is_what_it_was(world: World, kind: str) -> None:
    """Into each storage, and from there into a table with PostgreSQL's own types."""
    between = world.place(kind)
    if kind != "postgresql":
        await world.dump(world.urls["source"], between)
        back = await asyncpg.connect(world.urls["postgresql"])
        await back.execute(f"CREATE TABLE items ({COLUMNS})")
        await back.close()
    else:
        between = world.urls["source"]
    exclude = ("_id",) if kind == "mongodb" else ()
    columns = {"at": "timestamptz"} if kind == "mysql" else {}  # A clock without a zone; only the user knows it is UTC.
    await world.dump(between, world.urls["postgresql"], exclude=exclude, columns=columns)
    assert await rows_of(world.urls["postgresql"]) == await rows_of(world.urls["source"])


@pytest.mark.parametrize("kind", ["postgresql", "mysql", "parquet", "mongodb"])  # One for each language.
async def test_from_each_language_to_each_and_verified(world: World, kind: str) -> None:
    source = world.urls["source"]
    if kind != "postgresql":
        source = world.place(kind)
        await world.dump(world.urls["source"], source)
    for other in KINDS:
        target = world.place(other)
        if target == source:
            continue  # One server of this kind: the other test goes there and back.
        columns = {"amount": "decimal(12,2)"} if kind == "mongodb" else {}  # Decimal128 has no size that others know.
        dump = await world.dump(source, target, columns=columns)
        found = await verify(world.dumps, dump, Storages(source, target))
        assert found.rows == ROWS
        assert found.is_equal, f"{kind} → {other}: {found.different}"
        await asyncio.sleep(0)


ALIKE = (
    "CREATE TABLE items (id bigint PRIMARY KEY, n int, price decimal(12,2), rate double, name varchar(80), note text,"
    " open tinyint(1) NOT NULL, at timestamp(6) NULL, made datetime(3), day date)",
    "INSERT INTO items VALUES"
    " (1, -7, 1.50, 0.1, 'a \"b\", c', '', 1, '2026-02-03 04:05:06', '2026-02-03 10:20:30.1', NULL),"
    " (2, NULL, -0.01, -1.5, 'día ✓ 😀', NULL, 0, NULL, '2026-02-03 00:00:00', '2026-01-10'),"
    " (3, 0, NULL, NULL, '', 'x\ty', 1, '2026-02-03 04:05:06.100200', NULL, '1999-12-31')",
)


async def from_mariadb(world: World, *statements: str) -> tuple[Any, Storages]:
    """A dump of a table of MariaDB into PostgreSQL, done."""
    world.mysql.execute(*statements)
    source, target = world.urls["mysql"], world.urls["postgresql"]
    return await world.dump(source, target), Storages(source, target)


async def test_values_that_both_sides_write_alike_are_compared_as_text(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump, storages = await from_mariadb(world, *ALIKE)
    with monkeypatch.context() as patch:
        patch.delattr("headgate.runtime.dumps.comparing.digest")
        found = await verify(world.dumps, dump, storages)
    assert (found.is_equal, found.rows) == (True, 3)


@pytest.mark.parametrize(
    "change",
    [
        "note = NULL WHERE id = 1",
        "note = '' WHERE id = 2",
        "name = 'a \"b\", c ' WHERE id = 1",
        "at = at + interval '1 microsecond' WHERE id = 3",
        "price = 1.51 WHERE id = 1",
        "open = false WHERE id = 3",
        "id = 0 WHERE id = 2",
    ],
)
async def test_a_change_of_one_value_is_found_and_repaired(world: World, change: str) -> None:
    dump, storages = await from_mariadb(world, *ALIKE)
    await at(world.urls["postgresql"], f"UPDATE items SET {change} RETURNING id")
    found = await verify(world.dumps, dump, storages, repair=True)
    assert [one.chunk for one in found.different] == [1]
    assert found.is_equal, found.different
    assert (await verify(world.dumps, dump, storages)).different == []


async def test_lines_that_change_places_between_values_are_a_difference(world: World) -> None:
    """The lines of both are the same, taken one by one: values with a newline are not compared as lines."""
    dump, storages = await from_mariadb(
        world,
        "CREATE TABLE items (id int PRIMARY KEY, v text)",
        "INSERT INTO items VALUES (1, 'a\nb'), (2, 'c\nd')",
    )
    assert (await verify(world.dumps, dump, storages)).is_equal
    swap = "UPDATE items SET v = CASE id WHEN 1 THEN E'a\\nd' ELSE E'c\\nb' END RETURNING id"
    await at(world.urls["postgresql"], swap)
    assert [one.why for one in (await verify(world.dumps, dump, storages)).different] == ["values differ"]


async def test_where_equal_values_are_written_otherwise_text_is_compared_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB writes a float with the digits of a double."""
    dump, storages = await from_mariadb(
        world, "CREATE TABLE items (id int PRIMARY KEY, v float)", "INSERT INTO items SELECT seq, 0.1 FROM seq_1_to_200"
    )
    asked = []

    async def lines(*given: Any) -> Any:
        asked.append(given)
        return await digest_of_lines(*given)

    monkeypatch.setattr("headgate.runtime.dumps.comparing.digest_of_lines", lines)
    found = await verify(world.dumps, dump, storages)
    assert found.is_equal
    assert found.chunks > 2  # As many are compared at a time; each has two sides.
    assert 2 <= len(asked) <= 4


# What comes with a table.

SHOP = (
    "CREATE TABLE customers (id {counter}, email varchar(80) NOT NULL UNIQUE, about {text})",
    "CREATE TABLE orders (id {counter}, customer {integer} NOT NULL, placed date NOT NULL,"
    " CONSTRAINT of_customer FOREIGN KEY (customer) REFERENCES customers (id) ON DELETE CASCADE)",
    "CREATE INDEX orders_of ON orders (customer, placed)",
    "CREATE INDEX about ON customers ({about})",
    "INSERT INTO customers (id, email) VALUES (5, 'a@x'), (9, 'b@x')",
    "INSERT INTO orders (id, customer, placed) VALUES (1, 5, '2026-01-01'), (3, 9, '2026-01-02')",
)
WORDS = {
    "postgresql": {"counter": "serial PRIMARY KEY", "integer": "integer", "text": "text", "about": "about"},
    "mysql": {"counter": "int AUTO_INCREMENT PRIMARY KEY", "integer": "int", "text": "text", "about": "about(20)"},
    "sqlite": {"counter": "INTEGER PRIMARY KEY", "integer": "INTEGER", "text": "TEXT", "about": "about"},
}
TABLES = ("customers=clients", "orders")
INDEXES = "SELECT indexname FROM pg_indexes WHERE tablename IN ('clients', 'orders') ORDER BY 1"


def shop(kind: str) -> list[str]:
    return [statement.format(**WORDS[kind]) for statement in SHOP]


async def source_of(world: World, kind: str) -> str:
    """A shop of two tables."""
    if kind == "mysql":
        world.mysql.execute(*shop(kind))
        return world.urls["mysql"]
    if kind == "sqlite":
        path = world.home / "shop.db"
        with sqlite3.connect(path) as connection:
            connection.executescript("; ".join(shop(kind)))
        connection.close()
        return f"sqlite:{path}"
    await at(world.urls["source"], *shop(kind))
    return world.urls["source"]


@pytest.mark.parametrize("kind", ["mysql", "sqlite"])
async def test_into_postgresql_come_counters_indexes_and_foreign_keys(world: World, kind: str) -> None:
    target = world.urls["postgresql"]
    dump = await world.dump(await source_of(world, kind), target, *TABLES, mode="append")
    beginning = "index about of clients (it has only the beginning of a text), kind"
    assert await world.left(dump) == ([beginning] if kind == "mysql" else [])
    expected = ["clients_email_key", "clients_pkey", "orders_customer_placed_idx", "orders_pkey"]
    found = [name for (name,) in await at(target, INDEXES)]
    assert [name for name in found if name != "clients_about_idx"] == expected
    assert ("clients_about_idx" in found) == (kind == "sqlite")  # That of MariaDB has the beginning only.
    assert await at(target, "INSERT INTO clients (email) VALUES ('c@x') RETURNING id") == [(10,)]
    for refused in ("INSERT INTO clients (email) VALUES ('c@x')", "INSERT INTO orders VALUES (7, 77, '2026-01-01')"):
        with pytest.raises(asyncpg.IntegrityConstraintViolationError):
            await at(target, refused)
    assert await at(target, "DELETE FROM clients WHERE id = 9", "SELECT id FROM orders") == [(1,)]


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
async def test_into_mariadb_come_counters_indexes_and_foreign_keys(world: World, kind: str) -> None:
    dump = await world.dump(await source_of(world, kind), world.urls["mysql"], *TABLES, mode="append")
    left = await world.left(dump)
    assert left == [] if kind == "postgresql" else "cannot be unique" in left[0]  # A text of SQLite has no length.
    found = {row[2] for table in ("clients", "orders") for row in world.mysql.rows(f"SHOW INDEX FROM {table}")}
    assert found >= {"PRIMARY", "orders_of", "about"}
    world.mysql.execute("INSERT INTO clients (email) VALUES ('c@x')")
    assert world.mysql.value("SELECT max(id) FROM clients") == 10
    with pytest.raises(pymysql.IntegrityError):
        world.mysql.execute("INSERT INTO orders VALUES (7, 77, '2026-01-01')")
    world.mysql.execute("DELETE FROM clients WHERE id = 9")
    assert world.mysql.rows("SELECT id FROM orders") == [(1,)]


async def test_from_mariadb_to_mariadb_come_foreign_keys(world: World, mariadb: MariaDb) -> None:
    source = await source_of(world, "mysql")
    with mariadb.database() as other:
        dump = await world.dump(source, other.url(), *TABLES, mode="append")
        assert await world.left(dump) == []
        assert "REFERENCES `clients` (`id`) ON DELETE CASCADE" in other.rows("SHOW CREATE TABLE orders")[0][1]


async def test_into_sqlite_come_indexes(world: World) -> None:
    await world.dump(await source_of(world, "postgresql"), f"sqlite:{world.home / 'new.db'}", *TABLES, mode="append")
    with sqlite3.connect(world.home / "new.db") as connection:
        found = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL ORDER BY 1")
        assert [name for (name,) in found] == ["clients_about_idx", "clients_email_key", "orders_customer_placed_idx"]
    connection.close()


async def test_what_cannot_be_made_is_named_and_the_tables_are_copied(world: World) -> None:
    source, target = await source_of(world, "mysql"), world.urls["postgresql"]
    world.mysql.execute("ALTER TABLE customers ADD UNIQUE INDEX same_about (id, email)")
    dump = await world.dump(source, target, "orders", mode="append")
    assert await world.left(dump) == ["foreign key of_customer of orders (there is no customers), kind"]
    dump = await world.dump(source, target, "customers", mode="append", exclude=("email",))
    assert await world.left(dump) == [
        "index about of customers (it has only the beginning of a text), kind",
        "index email of customers (its columns were not copied), asked",
        "index same_about of customers (its columns were not copied), asked",
    ]
    assert await at(target, "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM customers)") == [(2, 2)]


ODD_TABLE = 'odd "t"\'s `x`; -- /* %s {0}'
ODD_NAMES = (
    *('a"b', "a'b", "a`b", "a; DROP TABLE canary; --", "a\\b", "/*c", "a$$x$$", "%s %(x)s", "{0}", "new\nline"),
    *("ünï ʼ＂", "select", "n" * 60, "😀"),
)


def in_quotes(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.parametrize("kind", ["postgresql", "mysql", "sqlite", "mongodb"])
async def test_names_that_would_end_a_quoted_name_go_through_every_database(world: World, kind: str) -> None:
    """The table, its key and its columns have such names, on the way there and back, with an index of each."""
    known = [name for name in ODD_NAMES if kind != "mysql" or name != "😀"]  # Names have three bytes a sign there.
    first, *others = known
    columns = [f"{in_quotes(first)} text PRIMARY KEY", *(f"{in_quotes(name)} int" for name in others)]
    connection = await asyncpg.connect(world.urls["source"])
    await connection.execute(f"CREATE TABLE {in_quotes(ODD_TABLE)} ({', '.join(columns)})")
    for name in others:
        await connection.execute(f"CREATE INDEX ON {in_quotes(ODD_TABLE)} ({in_quotes(name)})")
    rows = [(f"{first}{number}", *range(number, number + len(others))) for number in range(30)]
    await connection.copy_records_to_table(ODD_TABLE, records=rows)
    place = world.place(kind)
    await world.dump(world.urls["source"], place, in_quotes(ODD_TABLE))
    if kind != "postgresql":
        await world.dump(place, world.urls["postgresql"], ODD_TABLE)
    back = await asyncpg.connect(world.urls["postgresql"])
    listed = ", ".join(map(in_quotes, (first, *others)))
    found = await back.fetch(f"SELECT {listed} FROM {in_quotes(ODD_TABLE)} ORDER BY 2")
    assert [tuple(row) for row in found] == rows
    await back.close()
    await connection.close()
