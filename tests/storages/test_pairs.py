"""Any pair of storages: the same table goes from each to each, and back into PostgreSQL as it was."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headgate.runtime.dump.plan import Options, Request, Storages, create
from headgate.runtime.dump.process import StreamProcess
from headgate.runtime.dump.verify import verify
from headgate.store.database import Database
from headgate.store.dumps import Dumps
from headgate.store.embedded import EmbeddedServer
from tests.storages.mariadb import MariaDb
from tests.storages.mongo_server import MongoServer

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

    async def dump(self, source: str, target: str, table: str = "items", mode: str = "replace", **more: Any) -> Any:
        """One dump, to its end."""
        made = await create(
            self.dumps,
            Request(source, target, (table,), Options(mode=mode), rows=25, **more),  # type: ignore[arg-type]
        )
        process = StreamProcess(self.dumps, made, Storages(source, target), 2, self.home)
        status = await process.run()
        errors = [row["error"] for row in await self.dumps.tables(made)]
        assert status == "completed", errors
        return made


@pytest.fixture
async def world(server: EmbeddedServer, url: str, tmp_path: Path, mariadb: MariaDb) -> AsyncIterator[World]:
    connection = await asyncpg.connect(server.url)
    name = url.partition("@/")[2].partition("?")[0]
    await connection.execute(f"CREATE DATABASE {name}_s")
    await connection.execute(f"CREATE DATABASE {name}_t")
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
        yield World(Dumps(database), tmp_path, urls, connection, name)
    await mongo.stop()
    await database.close()
    for end in ("_s", "_t"):
        await connection.execute(f"DROP DATABASE {name}{end} WITH (FORCE)")
    await connection.close()


async def rows_of(url: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch("SELECT * FROM items ORDER BY id")]
    finally:
        await connection.close()


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
