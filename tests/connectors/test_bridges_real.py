"""Connectors that others have written and published, read for real.

Their packages are installed once, by Headgate's own installer, into a cache that stays between runs. Where they cannot
be fetched, these tests are skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headgate.connectors import plugins
from headgate.connectors.api import Batch, Outgoing, Position, Progress, Source
from headgate.connectors.bridges import dlt, gathered, installed
from headgate.connectors.bridges.installed import Home, Installed
from headgate.connectors.bridges.installing import Work, install
from headgate.connectors.bridges.requirement import wanted_from_texts
from headgate.connectors.postgres.sink import PostgresOptions, PostgresSink
from headgate.core.source_streams import SourceStreams
from headgate.errors import Cause, ConfigError, ConnectorError, EndOfStream
from headgate.testing.contract import SourceContract
from headgate.testing.factories import make_context, make_grant
from tests.connectors.bridge_home import HERE, put
from tests.connectors.http_server import Asked, Said, Serve, serve

__all__ = ["serve"]  # A fixture.

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headgate-tests" / "bridges"
COLUMNS = {"users": ["id", "name", "born"], "lines": ["number", "line", "price"]}
PACKAGES = {
    "tap": ("singer:meltanolabs-tap-postgres==0.10.0", []),
    "airbyte": ("airbyte:airbyte-source-faker==7.2.1", []),
    "dlt": ("dlt:dlt==1.31.0", ["sqlalchemy==2.0.51"]),
}


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    before = installed.present_home()
    yield Home.use(CACHE)
    installed._home = before


def need(home: Home, name: str) -> Installed:
    """One of the packages, installed now if it is not in the cache."""
    package, extra = PACKAGES[name]
    wanted = wanted_from_texts(package, extra)
    found = home.find(wanted.kind, wanted.package.name)
    if found is not None and found.version == wanted.package.version:
        return found
    try:
        return asyncio.run(install(home, Work(wanted, time.time())))
    except (ConfigError, ConnectorError) as error:
        pytest.skip(f"{package} cannot be installed: {error.message}")


@pytest.fixture(scope="module")
def tap(home: Home) -> Installed:
    return need(home, "tap")


@pytest.fixture(scope="module")
def faker(home: Home) -> Installed:
    return need(home, "airbyte")


@pytest.fixture(scope="module")
def dlt_package(home: Home) -> Installed:
    return need(home, "dlt")


def make(connector: str, **options: Any) -> Any:
    kind = plugins.get(connector).source
    assert kind is not None
    return kind.build(kind.model(**{"once": True, "every": "0.1s", **options}), make_context())


@asynccontextmanager
async def opened(source: Any, position: Position = None) -> AsyncIterator[Any]:
    try:
        await source.open(position)
        yield source
    finally:
        await source.close()


async def read_all(source: Any, position: Position = None) -> list[Batch]:
    batches = []
    async with opened(source, position):
        with suppress(EndOfStream):
            while True:
                batches.append(await asyncio.wait_for(source.read(), 180))
    return batches


def records(batches: list[Batch]) -> list[Any]:
    return [record for batch in batches for record in batch.records]


async def poured(batches: list[Batch], url: str) -> None:
    """Into a table for each stream, as a node does it without a mapping."""
    sink = PostgresSink(PostgresOptions(url=url, table="raw.{stream}", mode="upsert"), make_context())
    await sink.open(make_grant())
    try:
        for number, batch in enumerate(batches, 1):
            named = SourceStreams(known=batch.streams)
            streams = [named.of(meta) for meta in batch.meta or []]
            await sink.write(Outgoing(batch.records, Progress(0, number, batch.position), streams=streams))
    finally:
        await sink.close()


async def keys_in(connection: asyncpg.Connection) -> dict[str, list[str]]:
    """Of each table of the schema `raw`."""
    rows = await connection.fetch(
        "SELECT c.conrelid::regclass::text AS name, array(SELECT attname::text FROM pg_attribute"
        " WHERE attrelid = c.conrelid AND attnum = ANY (c.conkey)) AS key FROM pg_constraint c"
        " WHERE c.contype = 'p' AND c.connamespace = 'raw'::regnamespace"
    )
    return {row["name"]: row["key"] for row in rows}


# Singer.


async def test_a_tap_of_others_reads_a_table_and_goes_on_from_its_state(tap: Installed, empty_url: str) -> None:
    connection = await asyncpg.connect(empty_url)
    await connection.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, at timestamptz NOT NULL, total numeric(12, 2));"
        "INSERT INTO orders SELECT i, timestamptz '2024-05-01Z' + make_interval(secs => i), i / 2.0"
        " FROM generate_series(0, 49) i"
    )
    parts = re.fullmatch(r"postgresql://(\w+)@/(\w+)\?host=(.*)&port=(\d+)", empty_url)
    assert parts is not None
    # The socket in a folder takes the place of the host, which the tap insists on.
    address = f"postgresql+psycopg2://{parts[1]}:none@localhost/{parts[2]}?host={parts[3]}&port={parts[4]}"
    choice = {"name": "public-orders", "replication": "incremental", "cursor": "at"}
    options = {"tap": "tap-postgres", "secrets": {"sqlalchemy_url": address}, "streams": [choice]}
    batches = await read_all(make("singer", **options))
    found = records(batches)
    assert [record["id"] for record in found] == list(range(50))
    assert found[3]["at"] == datetime(2024, 5, 1, 0, 0, 3, tzinfo=UTC)
    assert found[3]["total"] in (Decimal("1.5"), 1.5)
    assert batches[0].meta is not None
    assert batches[0].meta[0]["stream"] == "public-orders"
    assert batches[0].meta[0]["key"] == ["id"]
    await connection.execute("INSERT INTO orders VALUES (50, timestamptz '2024-05-02Z', 1)")
    again = records(await read_all(make("singer", **options), batches[-1].position))
    assert [record["id"] for record in again] in ([49, 50], [50])  # At least once: taps repeat the last record.
    await connection.close()
    spec = tap.spec or {}
    assert spec["properties"]["password"]
    with pytest.raises(ValueError, match="must not be written out"):
        make("singer", tap="tap-postgres", config={"host": "h", "password": "hunter2"})


async def test_the_tables_of_a_tap_of_others_become_tables(tap: Installed, empty_url: str) -> None:
    connection = await asyncpg.connect(empty_url)
    await connection.execute(
        "CREATE SCHEMA raw; CREATE TABLE users (id int PRIMARY KEY, name text, born date);"
        "CREATE TABLE lines (number int, line int, price numeric(12, 2), PRIMARY KEY (number, line));"
        "INSERT INTO users SELECT i, 'user ' || i, NULL FROM generate_series(1, 9) i;"
        "INSERT INTO lines SELECT i / 5, i % 5, i / 2.0 FROM generate_series(0, 49) i"
    )
    parts = re.fullmatch(r"postgresql://(\w+)@/(\w+)\?host=(.*)&port=(\d+)", empty_url)
    assert parts is not None
    address = f"postgresql+psycopg2://{parts[1]}:none@localhost/{parts[2]}?host={parts[3]}&port={parts[4]}"
    secrets = {"sqlalchemy_url": address}
    streams = ["public-users", "public-lines"]
    batches = await read_all(make("singer", tap="tap-postgres", secrets=secrets, streams=streams))
    await poured([*batches, *batches], empty_url)  # Each record twice, as after a crash.
    assert await keys_in(connection) == {"raw.public_users": ["id"], "raw.public_lines": ["number", "line"]}
    for copy, original in (("raw.public_users", "users"), ("raw.public_lines", "lines")):
        compared = f"SELECT {', '.join(COLUMNS[original])} FROM {{}} ORDER BY 1, 2"
        assert await connection.fetch(compared.format(copy)) == await connection.fetch(compared.format(original))
    type = "SELECT atttypid::regtype::text FROM pg_attribute WHERE attrelid = 'raw.public_users'::regclass"
    assert await connection.fetchval(f"{type} AND attname = 'born'") == "date"  # Though no record has one.
    await connection.close()


# Airbyte.


async def test_a_source_of_others_says_its_spec_and_its_records(faker: Installed) -> None:
    assert faker.spec is not None
    assert faker.spec["properties"]["count"]["type"] == "integer"
    options = {"source": "source-faker", "config": {"count": 20}, "tuning": {"records_per_slice": 5, "parallelism": 1}}
    batches = await read_all(make("airbyte", streams=["users"], **options))
    found = records(batches)
    assert sorted(record["id"] for record in found) == list(range(1, 21))
    assert isinstance(found[0]["updated_at"], datetime)
    assert "stream /users" in batches[-1].position["state"]


async def test_the_streams_of_a_source_of_others_become_tables(faker: Installed, empty_url: str) -> None:
    connection = await asyncpg.connect(empty_url)
    await connection.execute("CREATE SCHEMA raw")
    options = {"source": "source-faker", "config": {"count": 20}, "tuning": {"records_per_slice": 5, "parallelism": 1}}
    batches = await read_all(make("airbyte", **options))
    await poured([*batches, *batches], empty_url)
    assert await keys_in(connection) == {"raw.users": ["id"], "raw.products": ["id"], "raw.purchases": ["id"]}
    for stream in ("users", "products", "purchases"):
        pairs = [pair for batch in batches for pair in zip(batch.records, batch.meta or [], strict=True)]
        named = {record["id"] for record, meta in pairs if meta["stream"] == stream}
        assert named
        assert {row["id"] for row in await connection.fetch(f"SELECT id FROM raw.{stream}")} == named
    await connection.close()


async def test_a_source_built_on_the_cdk_goes_on_from_its_state(
    home: Home, faker: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathered, "ENOUGH", 5)
    python = str(home.environment(faker.environment) / "bin" / "python")
    put(home, "airbyte", "source-cdk", HERE / "bridge_cdk.py", python)
    try:
        options: dict[str, Any] = {"source": "source-cdk", "config": {"count": 12}}
        first, *rest = await read_all(make("airbyte", **options))
        assert [record["id"] for record in first.records] == list(range(5))
        assert first.meta is not None
        assert first.meta[0]["stream"] == "orders"
        everything = records([first, *rest])
        assert [record["id"] for record in everything] == [*range(12), *range(12)]
        resumed = records(await read_all(make("airbyte", **options), first.position))
        assert [record["id"] for record in resumed] == [*range(5, 12), *range(12)]
        # A stream that is read in full is read in full again by the next run; the other has nothing new.
        again = records(await read_all(make("airbyte", **options), rest[-1].position))
        assert [record["id"] for record in again] == list(range(12))
    finally:
        home.forget(next(one for one in home.all() if one.name == "source-cdk"))


# dlt.


COUNT, PAGE = 8, 4


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """States after every page, which are otherwise a thousand rows apart."""
    runner = tmp_path / "runner.py"
    text = dlt._RUNNER.read_text()
    assert "LEAST = 1_000" in text
    runner.write_text(text.replace("LEAST = 1_000", "LEAST = 1").replace("LEAST_S = 0.5", "LEAST_S = 0.0"))
    monkeypatch.setattr(dlt, "_RUNNER", runner)
    monkeypatch.setattr(gathered, "ENOUGH", PAGE)


def make_table(path: Path) -> str:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, price NUMERIC(10, 2), at TIMESTAMP)")
        rows = [(id, f"{id}.25", f"2024-05-01 00:00:{id:02}.000000") for id in range(COUNT)]
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
    return f"sqlite:///{path}"


def sql_table(url: str, row_order: str | None = "asc") -> Any:
    cursor = {"cursor_path": "id", **({"row_order": row_order} if row_order else {})}
    arguments = {"table": "orders", "chunk_size": PAGE, "incremental": {"$incremental": cursor}}
    options = {"resource": "dlt.sources.sql_database:sql_table", "arguments": arguments}
    return make("dlt", secrets={"credentials": url}, **options)


class TestDltSource(SourceContract):
    @pytest.fixture(autouse=True)
    def table(self, dlt_package: Installed, small_pages: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headgate.testing.contract.streaming.CANCEL_AFTER", (5,))  # Each costs a start of dlt.
        self._url = make_table(tmp_path / "orders.db")

    def make_source(self) -> Source:
        return sql_table(self._url)  # type: ignore[no-any-return]

    def expected(self) -> list[Any]:
        return list(range(COUNT))

    def comparable(self, record: Any) -> Any:
        return record["id"] if isinstance(record, dict) else record


async def test_without_an_order_the_state_comes_at_the_end_and_types_are_kept(
    dlt_package: Installed, small_pages: None, tmp_path: Path
) -> None:
    url = make_table(tmp_path / "orders.db")
    batches = await read_all(sql_table(url, row_order=None))
    assert records(batches)[2] == {"id": 2, "price": Decimal("2.25"), "at": datetime(2024, 5, 1, 0, 0, 2)}
    assert {batch.position is None for batch in batches[:-1]} <= {True}
    assert batches[-1].meta is not None
    assert batches[-1].meta[-1] == {"stream": "orders", "key": ["id"]}
    with sqlite3.connect(tmp_path / "orders.db") as connection:
        connection.execute(f"INSERT INTO orders VALUES ({COUNT}, '1.00', '2024-05-01 00:01:00.000000')")
    again = records(await read_all(sql_table(url), batches[-1].position))
    assert [record["id"] for record in again] == [COUNT]


async def test_the_tables_of_a_database_that_dlt_reads_become_tables(
    dlt_package: Installed, tmp_path: Path, empty_url: str
) -> None:
    url = make_table(tmp_path / "orders.db")
    with sqlite3.connect(tmp_path / "orders.db") as file:
        file.execute("CREATE TABLE lines (number INTEGER, line INTEGER, text TEXT, PRIMARY KEY (number, line))")
        file.executemany("INSERT INTO lines VALUES (?, ?, ?)", [(at // 3, at % 3, str(at)) for at in range(9)])
    source = make("dlt", resource="dlt.sources.sql_database:sql_database", secrets={"credentials": url})
    batches = await read_all(source)
    connection = await asyncpg.connect(empty_url)
    await connection.execute("CREATE SCHEMA raw")
    await poured([*batches, *batches], empty_url)
    assert await keys_in(connection) == {"raw.orders": ["id"], "raw.lines": ["number", "line"]}
    assert [row["id"] for row in await connection.fetch("SELECT id FROM raw.orders ORDER BY id")] == list(range(COUNT))
    rows = await connection.fetch("SELECT number, line, text FROM raw.lines ORDER BY 1, 2")
    assert [tuple(row) for row in rows] == [(at // 3, at % 3, str(at)) for at in range(9)]
    await connection.close()


async def test_a_source_with_a_cursor_over_http_goes_on_after_a_restart(dlt_package: Installed, serve: Serve) -> None:
    orders = [{"id": id, "updated_at": f"2024-05-01T00:00:{id:02}Z"} for id in range(COUNT)]
    asked_since: list[str] = []

    def answer(asked: Asked) -> Said:
        if asked.headers.get("authorization") != "Bearer t0ken":
            return Said(status=401)
        since = asked.params.get("since", "")
        asked_since.append(since)
        return Said([order for order in orders if order["updated_at"] >= since])

    server = await serve(answer)
    cursor = {"cursor_path": "updated_at", "initial_value": "2024-01-01T00:00:00Z"}
    endpoint = {"path": "orders", "params": {"since": "{incremental.start_value}"}, "incremental": cursor}
    config = {
        "client": {"base_url": server.url, "auth": {"type": "bearer"}},
        "resources": [{"name": "orders", "primary_key": "id", "endpoint": {**endpoint, "paginator": "single_page"}}],
    }
    options = {"resource": "dlt.sources.rest_api:rest_api_source", "arguments": {"config": config}}
    secrets = {"config.client.auth.token": "t0ken"}
    batches = await read_all(make("dlt", secrets=secrets, **options))
    assert [record["id"] for record in records(batches)] == list(range(COUNT))
    orders.append({"id": COUNT, "updated_at": "2024-05-02T00:00:00Z"})
    position = json.loads(json.dumps(batches[-1].position))
    again = records(await read_all(make("dlt", secrets=secrets, **options), position))
    assert [record["id"] for record in again] == [COUNT]
    assert asked_since[-1] == orders[COUNT - 1]["updated_at"]
    with pytest.raises(ConnectorError, match="401") as caught:
        await read_all(make("dlt", secrets={"config.client.auth.token": "wrong"}, **options))
    assert caught.value.cause is Cause.AUTH
    absent = make("dlt", secrets=secrets, resources=["order"], **options)
    with pytest.raises(ConnectorError, match="has no resource 'order'") as caught:
        await absent.check()
    assert caught.value.cause is Cause.CONFIG
