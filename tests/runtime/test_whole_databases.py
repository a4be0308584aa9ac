"""A whole PostgreSQL database is copied: with all that it has, or with a word about each thing that is not copied."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from headgate.connectors.postgres import tools
from headgate.core.chunks.left import Excuse
from headgate.core.chunks.outcome import DumpWanted
from headgate.errors import ConfigError, NotFound, Refused
from headgate.runtime.dumps.plan import Options, Request, Storages, create
from headgate.runtime.dumps.process import DumpFailed, StreamProcess
from headgate.store.database import Database
from headgate.store.dump_rows import DumpRow
from headgate.store.dumps import Dumps
from headgate.testing.servers import Server, Servers, url_of
from tests.waiting import until

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
        for name in ("rental", "trade", "music"):
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

    async def has_lines(self, least: int, process: asyncio.Task[str]) -> bool:
        """Whether the ledger has more lines than this, or the process has ended."""
        (there,) = await rows(self.target, "SELECT to_regclass('headgate_dump_chunk') IS NOT NULL")
        if process.done() or not there[0]:
            return process.done()
        return bool((await rows(self.target, "SELECT count(*) > $1 FROM headgate_dump_chunk", least))[0][0])

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


@pytest.fixture
async def music(cluster: Server, url: str, tmp_path: Path) -> AsyncIterator[Place]:
    async for made in _places(cluster, "music", url, tmp_path):
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


async def test_names_in_quotes_and_tables_without_keys_arrive(music: Place) -> None:
    assert await music.left() == []
    await is_alike(music)
    (numbered,) = await rows(music.target, """INSERT INTO "Artist" ("Name") VALUES ('new') RETURNING "ArtistId\"""")
    assert numbered == (276,)


async def test_tables_have_statistics_and_materialized_views_are_filled(place: Place) -> None:
    await place.copy()
    unknown = "SELECT oid::regclass FROM pg_class WHERE relkind IN ('r', 'm') AND reltuples < 0 AND relispopulated"
    assert await rows(place.target, f"{unknown} AND relnamespace = 'rental'::regnamespace") == []
    assert await rows(place.target, "SELECT most FROM rental.above_totals") == await rows(
        place.source, "SELECT most FROM rental.above_totals"
    )


# What is left behind.


async def test_what_cannot_be_made_is_named_and_a_resume_makes_it(place: Place, cluster: Server) -> None:
    """A role that the target's cluster lacks: its objects are there, and wait for it."""
    await run(place.target, "CREATE SCHEMA rental; CREATE FUNCTION rental.slug(text) RETURNS text RETURN 'taken'")
    dump = await place.create()
    assert await place.process(dump).run() == "incomplete"
    found = await place.dumps.find(str(dump))
    (left,) = [one for one in found.left_behind if one.kind == "function"]
    assert left.name.startswith("slug(text)") or "slug" in left.name
    assert "already exists" in left.why
    assert "not copied: function" in found.error
    await run(place.target, "DROP FUNCTION rental.slug(text) CASCADE")
    await place.process(dump).run()
    left_behind = (await place.dumps.find(str(dump))).left_behind
    assert not [one for one in left_behind if one.kind == "function"]


async def test_one_odd_table_stops_no_other(place: Place) -> None:
    """The target has no rental.language: the name is taken by a view."""
    await run(place.target, "CREATE SCHEMA rental; CREATE SEQUENCE rental.language")
    dump = await place.create()
    assert await place.process(dump).run() == "incomplete"
    states = {row.name: row.state for row in await place.dumps.tables(dump)}
    assert states.pop("rental.language") == "failed"
    assert {name for name, state in states.items() if state != "done"} == set()
    left = [str(one) for one in (await place.dumps.find(str(dump))).left_behind]
    assert any(one.startswith("table rental.language") for one in left)
    assert any(one.startswith("foreign key film_language_id_fkey of rental.film") for one in left)


async def test_a_dump_that_is_interrupted_goes_on_where_it_was(place: Place) -> None:
    """Stopped with some definitions made and some not, twice."""
    dump = await place.create()
    for least in (20, 120):
        process = asyncio.create_task(place.process(dump).run())
        await until(lambda least=least, process=process: place.has_lines(least, process))
        process.cancel()
        await asyncio.gather(process, return_exceptions=True)
    if (await place.dumps.find(str(dump))).status != "completed":
        assert await place.process(dump).run() == "completed"
    assert (await place.dumps.find(str(dump))).left_behind == ()
    await is_alike(place)


# Parts of it.


async def test_the_schema_alone(place: Place) -> None:
    assert await place.left(schema_only=True) == []
    assert schema_of(place.target) == schema_of(place.source)
    assert {count for count, _ in (await place.contents(place.target)).values()} == {0}


async def test_the_rows_alone_come_with_silent_triggers_and_checked_keys(place: Place) -> None:
    await place.copy(schema_only=True)
    assert await place.left(data_only=True, exclude=("audit",)) == []
    theirs, ours = await place.contents(place.source), await place.contents(place.target)
    for contents in (theirs, ours):  # What is computed from the rows.
        for name in ("audit.change", "rental.totals", "rental.above_totals"):
            contents.pop(name, None)
    assert ours == theirs
    assert await rows(place.target, SEQUENCES) == await rows(place.source, SEQUENCES)
    assert await rows(place.target, "SELECT count(*) FROM audit.change WHERE what LIKE 'INSERT%'") == [(0,)]


async def test_rows_that_refer_to_nothing_are_named(trade: Place) -> None:
    await trade.copy(schema_only=True)
    dump = await trade.create(data_only=True, exclude=('"Sales"."Customer"',))
    assert await trade.process(dump).run() == "incomplete"
    (left,) = (await trade.dumps.find(str(dump))).left_behind
    assert (left.kind, left.of) == ("foreign key", '"Sales"."Order"')
    assert "rows refer to rows that are not there" in left.why


async def test_without_the_right_to_silence_triggers_rows_alone_are_refused_or_go_in_order(
    trade: Place, cluster: Server
) -> None:
    await trade.copy(schema_only=True)
    name = trade.target.rpartition("/")[2]
    user = f"plain_{name}"
    await run(trade.target, f"CREATE ROLE {user} LOGIN; GRANT {user} TO headgate")
    for schema in ("HumanResources", "Production", "Sales", "public"):
        await run(
            trade.target,
            f'ALTER SCHEMA "{schema}" OWNER TO {user};'
            " DO $$ DECLARE t text; BEGIN FOR t IN SELECT oid::regclass FROM pg_class"
            f" WHERE relkind = 'r' AND relnamespace = '\"{schema}\"'::regnamespace LOOP"
            f" EXECUTE format('ALTER TABLE %s OWNER TO {user}', t); END LOOP; END $$",
        )
    trade.target = trade.target.replace("//headgate@", f"//{user}@")
    with pytest.raises(Refused, match="tOrder"):
        await trade.create(data_only=True)
    await run(trade.target, 'ALTER TABLE "Sales"."Order" DISABLE TRIGGER "tOrder"')
    valid = "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND convalidated"
    cancelled = await trade.create(data_only=True)
    await trade.dumps.set_wanted(cancelled, DumpWanted.CANCEL)
    assert await trade.process(cancelled).run() == "cancelled"
    assert await rows(trade.target, valid) == await rows(trade.source, valid)
    assert await trade.left(data_only=True) == []
    assert await trade.contents(trade.target) == await trade.contents(trade.source)
    assert await rows(trade.target, valid) == await rows(trade.source, valid)


async def test_a_schema_can_be_chosen_with_what_it_needs(trade: Place) -> None:
    left = await trade.left(include=('"Production"',))
    assert left == []
    assert schema_of(trade.target, "-n", '"Production"') == schema_of(trade.source, "-n", '"Production"')
    assert set(await trade.contents(trade.target)) == {'"Production"."Category"', '"Production"."Product"'}


async def test_what_needs_an_excluded_table_is_named_and_excused(trade: Place) -> None:
    found = await trade.copy(exclude=('"Sales"."Customer"', '"HumanResources".*'))
    assert found.status == "completed"
    assert {one.excuse for one in found.left_behind} == {Excuse.ASKED}
    names = {(one.kind, one.name) for one in found.left_behind}
    assert ("view", "Sales.vOrder") in names
    assert ("foreign key", "Order_CustomerID_fkey") in names
    assert ("foreign key", "Order_EmployeeID_fkey") in names
    assert '"Sales"."Customer"' not in await trade.contents(trade.target)


async def test_owners_and_grants_can_be_left_out(place: Place) -> None:
    assert await place.left(owners=False, privileges=False) == []
    assert schema_of(place.target, "-O", "-x") == schema_of(place.source, "-O", "-x")
    owners = "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname IN ('rental', 'audit')"
    assert await rows(place.target, owners) == [("headgate",)]


async def test_a_pattern_that_means_nothing_is_refused(place: Place) -> None:
    with pytest.raises(NotFound, match="nothing that no_such"):
        await place.create(include=("no_such*",))
    with pytest.raises(ConfigError, match="exclude each other"):
        await place.create(schema_only=True, data_only=True)
    with pytest.raises(Refused, match="no rental"):
        await place.create(data_only=True)


async def test_without_a_tool_tables_are_made_from_the_catalog(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "find_tool", lambda version: None)
    with pytest.raises(Refused, match="no pg_dump of PostgreSQL 15"):
        await place.create(schema_only=True)
    found = await place.copy(include=("rental.without_key", "rental.person"))
    assert [(one.kind, one.name, one.of) for one in found.left_behind] == [
        ("policy", "no_new", "rental.person"),
        ("policy", "own_rows", "rental.person"),
        ("row security", "", "rental.person"),
        ("storage option", "toast_tuple_target=4096", "rental.without_key"),
    ]


async def test_a_tool_that_fails_ends_the_dump_and_it_can_be_resumed(
    trade: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = await trade.create()
    with monkeypatch.context() as patched:
        patched.setattr(tools, "find_tool", lambda version: Path("/bin/false"))
        with pytest.raises(DumpFailed, match="pg_dump: it failed"):
            await trade.process(dump).run()
    assert (await trade.dumps.find(str(dump))).status == "failed"
    assert await trade.process(dump).run() == "completed"


# Into a newer server.


async def test_a_newer_server_takes_what_it_can_have(trade: Place, server: Any, url: str) -> None:
    name = f"newer{next(_numbers)}"
    await run(server.url, f"CREATE DATABASE {name}")
    trade.target = server.url.replace("/headgate?", f"/{name}?")
    assert await trade.left(owners=False) == []
    assert await trade.contents(trade.target) == await trade.contents(trade.source)
    await run(server.url, f"DROP DATABASE {name} WITH (FORCE)")


# The tool.


def test_the_password_is_in_the_environment_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://me:s%40cret@a:1,b:2/shop?sslmode=require&passfile=/x"
    found = tools.environment_of(url, ("b", 2))
    assert (found["PGPASSWORD"], found["PGUSER"], found["PGDATABASE"]) == ("s@cret", "me", "shop")
    assert (found["PGHOST"], found["PGPORT"], found["PGSSLMODE"]) == ("b", "2", "require")
    socket = tools.environment_of("postgresql://me@/shop", "/run/pg/.s.PGSQL.5433")
    assert (socket["PGHOST"], socket["PGPORT"]) == ("/run/pg", "5433")
    assert not {name for name in found if not name.startswith("PG")} - {*os.environ, "LC_ALL"}


async def test_rows_without_a_column_to_copy_are_named(trade: Place) -> None:
    """A table of nothing but computed columns: it is made, and how many rows it had is lost."""
    await run(trade.source, 'INSERT INTO "Sales"."Computed" DEFAULT VALUES')
    try:
        dump = await trade.create()
        assert await trade.process(dump).run() == "incomplete"
        (left,) = (await trade.dumps.find(str(dump))).left_behind
        assert str(left) == 'rows of "Sales"."Computed" (it has no column that could be copied)'
    finally:
        await run(trade.source, 'TRUNCATE "Sales"."Computed"')


async def test_a_table_that_is_newer_than_the_plan_is_made_and_its_rows_are_named(trade: Place) -> None:
    dump = await trade.create()
    await run(trade.source, "CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (1)")
    try:
        assert await trade.process(dump).run() == "incomplete"
        left = [str(one) for one in (await trade.dumps.find(str(dump))).left_behind]
        assert left == ["rows of public.late (the table was made after the dump was planned)"]
    finally:
        await run(trade.source, "DROP TABLE late")
