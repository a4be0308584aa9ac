"""A whole PostgreSQL database is copied: with all that it has, or with a word about each thing that is not copied."""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from headgate.runtime.dumps.plan import Options, Request, Storages, create
from headgate.runtime.dumps.process import StreamProcess
from headgate.store.database import Database
from headgate.store.dump_rows import DumpRow
from headgate.store.dumps import Dumps
from headgate.testing.servers import Server, Servers, url_of

DEBIAN = Path("/usr/lib/postgresql/15/bin")
SCHEMAS = Path(__file__).parent / "schemas"
ROWS = """
SELECT format('%I.%I', n.nspname, c.relname) AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'm') AND c.relispopulated AND n.nspname !~ '^pg_|information_schema'
  AND c.relname <> 'headgate_dump_chunk'
"""
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Server]:
    if not (DEBIAN / "postgres").exists() or not Path("/usr/share/postgresql/15/extension/hstore.control").exists():
        pytest.skip("PostgreSQL 15 with its extensions is not installed (Debian: postgresql-15)")
    with Servers(programs=DEBIAN) as servers:
        server = servers.make()
        for name in ("rental", "trade"):
            server.execute(f"CREATE DATABASE {name}", "postgres")
            asyncio.run(run(url_of(server, database=name), (SCHEMAS / f"{name}.sql").read_text()))
        yield server


async def run(url: str, text: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for part in re.split(r"^-- Apart\.$", text, flags=re.MULTILINE):
            await connection.execute(part)
    finally:
        await connection.close()


async def rows(url: str, query: str, *args: Any) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(query, *args)]
    finally:
        await connection.close()


@dataclass
class Place:
    """A source, an empty target, and Headgate's own database."""

    source: str
    target: str
    dumps: Dumps
    home: Path

    async def create(self, **asked: Any) -> UUID:
        options = Options(workers=2)
        return await create(self.dumps, Request(self.source, self.target, options=options, **asked))

    def process(self, dump: UUID) -> StreamProcess:
        return StreamProcess(self.dumps, dump, Storages(self.source, self.target), 2, self.home)

    async def copy(self, **asked: Any) -> DumpRow:
        dump = await self.create(**asked)
        await self.process(dump).run()
        found = await self.dumps.find(str(dump))
        errors = [f"{row.name}: {row.error}" for row in await self.dumps.tables(dump) if row.error]
        assert not errors, errors
        return found

    async def left(self, **asked: Any) -> list[str]:
        return [str(one) for one in (await self.copy(**asked)).left_behind]

    async def contents(self, url: str) -> dict[str, tuple[Any, ...]]:
        """Each table's number of rows, and a hash of them."""
        found = {}
        for (name,) in await rows(url, ROWS):
            query = f"SELECT count(*), sum(hashtextextended(t::text, 0)::numeric) FROM ONLY {name} t"
            found[name] = (await rows(url, query))[0]
        return found


@pytest.fixture
async def place(cluster: Server, url: str, tmp_path: Path) -> AsyncIterator[Place]:
    async for made in _places(cluster, "rental", url, tmp_path):
        yield made


@pytest.fixture
async def trade(cluster: Server, url: str, tmp_path: Path) -> AsyncIterator[Place]:
    async for made in _places(cluster, "trade", url, tmp_path):
        yield made


async def _places(cluster: Server, source: str, url: str, home: Path) -> AsyncIterator[Place]:
    name = f"target{next(_numbers)}"
    cluster.execute(f"CREATE DATABASE {name}", "postgres")
    database = await Database.open(url)
    yield Place(url_of(cluster, database=source), url_of(cluster, database=name), Dumps(database), home)
    await database.close()
    cluster.execute(f"DROP DATABASE {name} WITH (FORCE)", "postgres")


def schema_of(url: str, *options: str) -> list[str]:
    """What `pg_dump` says of a database, without what differs from run to run."""
    done = subprocess.run([DEBIAN / "pg_dump", "-s", *options, url], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if not line.startswith(("\\restrict", "\\unrestrict"))]


SEQUENCES = "SELECT schemaname, sequencename, last_value FROM pg_sequences ORDER BY 1, 2"
OBJECTS = "SELECT oid, lomowner::regrole::text, md5(lo_get(oid)) FROM pg_largeobject_metadata ORDER BY 1"


async def is_alike(place: Place) -> None:
    assert schema_of(place.target) == schema_of(place.source)
    assert await place.contents(place.target) == await place.contents(place.source)
    for query in (SEQUENCES, OBJECTS):
        assert await rows(place.target, query) == await rows(place.source, query)


# All of it.


async def test_a_whole_database_arrives_with_everything_that_it_has(place: Place) -> None:
    found = await place.copy()
    assert list(map(str, found.left_behind)) == []
    assert found.status == "completed"
    await is_alike(place)


async def test_another_whole_database_arrives_too(trade: Place) -> None:
    assert await trade.left() == []
    await is_alike(trade)


async def test_tables_have_statistics_and_materialized_views_are_filled(place: Place) -> None:
    await place.copy()
    unknown = "SELECT oid::regclass FROM pg_class WHERE relkind IN ('r', 'm') AND reltuples < 0 AND relispopulated"
    assert await rows(place.target, f"{unknown} AND relnamespace = 'rental'::regnamespace") == []
    assert await rows(place.target, "SELECT most FROM rental.above_totals") == await rows(
        place.source, "SELECT most FROM rental.above_totals"
    )
