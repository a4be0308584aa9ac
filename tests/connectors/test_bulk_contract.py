"""Every reader and writer that comes with Headgate passes the suite that others are asked to pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.connectors import own, plugins
from headgate.connectors.api.bulk import Mode, Reader, Writer
from headgate.connectors.generator import CONNECTOR as GENERATOR
from headgate.store.embedded import EmbeddedServer
from headgate.testing.contract import ReaderContract, WriterContract
from headgate.testing.contract.bulk import fill, make_job, rows_of
from tests.connectors.mariadb import MariaDb
from tests.connectors.mongo_server import MongoServer
from tests.connectors.postgres_copy import emptied, make_databases

Rows = list[dict[str, Any]]

ROWS: Rows = [{"id": id, "name": None if id % 5 == 0 else f'ñ {id}, "quoted"\n'} for id in range(23)]


@pytest.fixture(scope="module")
def shop(server: EmbeddedServer) -> str:
    """A database for the tests of this module."""
    [url] = asyncio.run(make_databases(server.url, 1))
    return url


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    """A server for the tests of this module."""
    running = MariaDb()
    yield running
    running.stop()


class OfUrl:
    """A system with a URL: sessions come through the door, as a dump's do."""

    url: str

    def make_reader(self) -> Reader:
        return plugins.open_reader(self.url)

    def make_writer(self) -> Writer:
        return plugins.open_writer(self.url)


class Read(OfUrl, ReaderContract):
    """The rows are put there by the writer of the same system."""

    table = "items"

    @pytest.fixture(autouse=True)
    async def filled(self, place: str) -> None:
        self.url = place
        await fill(self.make_writer(), make_job("items"), ROWS)
        if self.empty_table is not None:
            await fill(self.make_writer(), make_job(self.empty_table), [])

    def expected(self) -> Rows:
        return ROWS


class Written(OfUrl, WriterContract):
    """What was written is read by the reader of the same system."""

    @pytest.fixture(autouse=True)
    def at(self, place: str) -> None:
        self.url = place

    async def read_back(self, target: str) -> Rows | None:
        return await rows_of(self.make_reader(), target)


class InPostgres:
    """One database, emptied for each test."""

    @pytest.fixture
    async def place(self, shop: str) -> AsyncIterator[str]:
        async with emptied(shop):
            yield shop


class TestPostgresReader(InPostgres, Read):
    """PostgreSQL is read."""

    empty_table = "nothing"


class TestPostgresWriter(InPostgres, Written):
    """PostgreSQL is written."""


class InMariaDb:
    """One server, with a database for each test."""

    @pytest.fixture
    def place(self, mariadb: MariaDb) -> Iterator[str]:
        with mariadb.database() as database:
            yield database.url()


class TestMysqlReader(InMariaDb, Read):
    """MySQL is read."""

    empty_table = "nothing"


class TestMysqlWriter(InMariaDb, Written):
    """MySQL is written."""


class InSqlite:
    """A file."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        return f"sqlite:{tmp_path / 'shop.db'}"


class TestSqliteReader(InSqlite, Read):
    """SQLite is read."""

    empty_table = "nothing"


class TestSqliteWriter(InSqlite, Written):
    """SQLite is written."""


class InMongo:
    """A server that speaks the protocol."""

    @pytest.fixture
    async def place(self) -> AsyncIterator[str]:
        server = MongoServer()
        await server.start()
        yield server.url("shop")
        await server.stop()


class TestMongoReader(InMongo, Read):
    """MongoDB is read. A document has an `_id`, which the writer makes of the key."""

    def expected(self) -> Rows:
        return [{"_id": row["id"], **row} for row in ROWS]


class TestMongoWriter(InMongo, Written):
    """MongoDB is written."""


class InFolder:
    """A folder with a folder for each table."""

    scheme: str

    @pytest.fixture
    def place(self, tmp_path: Path) -> str:
        return f"{self.scheme}:{tmp_path / 'shop'}/"


class FilesWritten(InFolder, Written):
    """Files are appended to and replaced; their rows are not found by a key."""

    modes = frozenset({Mode.APPEND, Mode.REPLACE})


class TestCsvReader(InFolder, Read):
    """A folder of CSV is read."""

    scheme = "csv"


class TestCsvWriter(FilesWritten):
    """A folder of CSV is written."""

    scheme = "csv"


class TestJsonlReader(InFolder, Read):
    """A folder of JSON Lines is read."""

    scheme = "jsonl"


class TestJsonlWriter(FilesWritten):
    """A folder of JSON Lines is written."""

    scheme = "jsonl"


class TestJsonArrayReader(InFolder, Read):
    """A folder of JSON arrays is read."""

    scheme = "json"


class TestJsonArrayWriter(FilesWritten):
    """A folder of JSON arrays is written."""

    scheme = "json"


class TestParquetReader(InFolder, Read):
    """A folder of Parquet is read."""

    scheme = "parquet"


class TestParquetWriter(FilesWritten):
    """A folder of Parquet is written."""

    scheme = "parquet"


class Shelf:
    """A storage that is one small class, in memory."""

    modes = ("append", "upsert")

    def __init__(self) -> None:
        self.chunks: dict[own.Chunk, Rows] = {}

    def write(self, rows: Rows, chunk: own.Chunk) -> None:
        self.chunks.setdefault(chunk, []).extend(rows)

    def undo(self, chunk: own.Chunk) -> None:
        self.chunks.pop(chunk, None)

    def size(self) -> int:
        return len(self.query(0, 1000))

    def query(self, offset: int, limit: int) -> Rows:
        found = {row["id"]: row for rows in self.chunks.values() for row in rows}
        return list(found.values())[offset : offset + limit]


class TestOwnReader(ReaderContract):
    """Any object with a `query` is read."""

    table = "records"

    @pytest.fixture(autouse=True)
    async def shelf(self) -> None:
        self._shelf = Shelf()
        await fill(own.writer_of(self._shelf), make_job("records"), ROWS)

    def make_reader(self) -> Reader:
        return own.reader_of(self._shelf)

    def expected(self) -> Rows:
        return ROWS


class TestOwnWriter(WriterContract):
    """Any object with a `write` is written."""

    modes = frozenset({Mode.APPEND, Mode.UPSERT})

    @pytest.fixture(autouse=True)
    def shelf(self) -> None:
        self._shelf = Shelf()

    def make_writer(self) -> Writer:
        return own.writer_of(self._shelf)

    async def read_back(self, target: str) -> Rows | None:
        return self._shelf.query(0, 1000)


class TestGeneratorReader(ReaderContract):
    """All records of a generator that ends, as a backfill reads them."""

    table = "records"

    def _history(self) -> Any:
        assert GENERATOR.source is not None
        assert GENERATOR.reader is not None
        options = GENERATOR.source.model.model_validate({"count": 23, "fields": {"id": "sequence", "name": "word"}})
        return GENERATOR.reader.of_source(options)

    def make_reader(self) -> Reader:
        return own.reader_of(self._history())

    def expected(self) -> Rows:
        return list(self._history().query(0, 100))
