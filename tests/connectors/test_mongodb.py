"""The MongoDB storage against the tests' own server, and against a real one that `HEADGATE_TEST_MONGODB` names."""

from __future__ import annotations

import asyncio
import math
import os
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import bson
import pytest
from bson.binary import Binary, UuidRepresentation
from bson.code import Code
from bson.codec_options import CodecOptions
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.regex import Regex
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from pymongo import AsyncMongoClient, errors

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
from headgate.connectors.mongodb import values
from headgate.connectors.mongodb.documents import id_in
from headgate.connectors.mongodb.reader import MongoReader
from headgate.connectors.mongodb.session import options_of
from headgate.connectors.mongodb.values import bound_of, decimal_of, id_of
from headgate.connectors.mongodb.writer import MongoWriter
from headgate.connectors.sql import ledger
from headgate.connectors.values import convert
from headgate.connectors.values.kinds import Kind, Type
from headgate.core.chunks.offsets import from_start, next_chunk, planned
from headgate.errors import ConfigError, NotFound, Refused
from tests.connectors import ferretdb
from tests.connectors.mongo_documents import raw_of
from tests.connectors.mongo_server import Broken, MongoServer

REAL = "HEADGATE_TEST_MONGODB"
CODEC: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True, uuid_representation=UuidRepresentation.STANDARD)
RAW = CodecOptions(document_class=RawBSONDocument)
OID = ObjectId("5f0000000000000000000001")
WHEN = datetime(2026, 11, 16, 13, 45, 0, 123000, UTC)
WHOLE = Range(None, ("9",))  # A range for writers, to whom it is only a name.


@dataclass
class Mongo:
    """A database for one test, and what opens it."""

    base: str
    database: Any
    server: MongoServer | None
    opened: list[Any]

    def url(self, options: str = "") -> str:
        """The URL with our options."""
        mark = "&" if "?" in self.base else "?"
        return f"{self.base}{mark}{options}" if options else self.base

    def reader(self, options: str = "") -> MongoReader:
        """A reader that is closed after the test."""
        self.opened.append(MongoReader(self.url(options)))
        return self.opened[-1]

    def writer(self, options: str = "") -> MongoWriter:
        """A writer that is closed after the test."""
        self.opened.append(MongoWriter(self.url(options)))
        return self.opened[-1]

    async def all(self, table: str) -> list[dict[str, Any]]:
        """All documents by `_id`."""
        return await self.database[table].find().sort("_id", 1).to_list()

    async def raw(self, table: str) -> list[bytes]:
        """The bytes of all documents, by `_id`."""
        cursor = self.database.get_collection(table, codec_options=RAW).find().sort("_id", 1)
        return [document.raw async for document in cursor]


async def opened(url: str, name: str, server: MongoServer | None) -> AsyncIterator[Mongo]:
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(url)
    found = Mongo(url, client.get_database(name, codec_options=CODEC), server, [])
    yield found
    for one in found.opened:
        await one.close()
    await client.drop_database(name)
    await client.close()


@pytest.fixture
async def server() -> AsyncIterator[MongoServer]:
    running = MongoServer()
    await running.start()
    yield running
    await running.stop()


@pytest.fixture(scope="module")
def ferret() -> Iterator[str]:
    """The URL of a FerretDB, without a database."""
    with ferretdb.serving() as url:
        yield url


@pytest.fixture(params=["own", "real", "ferretdb"])
async def mongo(request: pytest.FixtureRequest, server: MongoServer) -> AsyncIterator[Mongo]:
    """A database of each kind of server."""
    name = f"headgate_{uuid.uuid4().hex[:12]}"
    if request.param == "own":
        async for found in opened(server.url(name), name, server):
            yield found
        return
    if request.param == "ferretdb":
        test = request.node.originalname
        if test in ferretdb.LACKING:
            pytest.skip(f"FerretDB {ferretdb.LACKING[test]}")
        async for found in opened(request.getfixturevalue("ferret") + name, name, None):
            yield found
        return
    if not os.environ.get(REAL):
        pytest.skip(f"{REAL} names no server")
    head, mark, options = os.environ[REAL].partition("?")
    async for found in opened(f"{head.rstrip('/')}/{name}{mark}{options}", name, None):
        yield found


@pytest.fixture
async def own(server: MongoServer) -> AsyncIterator[Mongo]:
    """A database of the tests' server, which can be told to fail."""
    async for found in opened(server.url("shop"), "shop", server):
        yield found


async def planned_ranges(source: MongoReader, table: Table, rows: int) -> list[Range]:
    """All chunks, as a dump would cut them."""
    offsets, ranges = from_start(await source.top(table), rows), []
    while True:
        offsets, cut = next_chunk(offsets)
        if cut is None:
            return ranges
        assert offsets.top is not None
        assert not isinstance(cut, Range)
        offsets, chunk = planned(offsets, await source.cut(table, cut.after, offsets.top, rows))
        ranges.append(chunk)


async def rows_of(source: MongoReader, name: str, rows: int = 1000) -> list[dict[str, Any]]:
    table = await source.describe(name)
    found: list[dict[str, Any]] = []
    for range in await planned_ranges(source, table, rows):
        async for piece in source.query(table, range, Language.ROWS, PLAIN):
            assert piece.rows == len(piece.data)
            assert piece.size > 0
            found += piece.data
    return found


async def csv_of(source: MongoReader, name: str) -> str:
    """A collection as a target that wants CSV sees it."""
    table = await source.describe(name)
    data = b""
    for range in await planned_ranges(source, table, 2):
        pieces = source.query(table, range, Language.ROWS, PLAIN)
        async for piece in convert.translated(pieces, Language.ROWS, Language.CSV, table.columns):
            data += piece.data
    return data.decode()


def types_of(table: Table) -> dict[str, Kind]:
    return {column.name: column.type.kind for column in table.columns}


async def pieces_of(*parts: Sequence[dict[str, Any]]) -> Pieces:
    for rows in parts:
        yield Piece(list(rows), 100 * len(rows), len(rows))


def source_of(key: tuple[str, ...] = ("id",), **kinds: Kind) -> Table:
    """A table of some SQL database."""
    kinds = kinds or {"id": Kind.INT64, "name": Kind.TEXT}
    return Table("t", tuple(Column(name, Type(kind)) for name, kind in kinds.items()), key=key, family="postgresql")


def job_of(source: Table | None = None, **changes: Any) -> Job:
    return Job(uuid.uuid4(), source or source_of(), "orders", **changes)


def people(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"n{number}"} for number in numbers]


async def written(target: MongoWriter, job: Job, *parts: Sequence[dict[str, Any]], **more: Any) -> int:
    table = await target.prepare(job)
    return await target.write(job, table, more.pop("range", WHOLE), Language.ROWS, pieces_of(*parts), **more)


# Reading: columns and values.


async def test_collections_are_listed_without_the_servers_and_ours(mongo: Mongo) -> None:
    for name in ("b", "a", ledger.TABLE, "headgate_dump_written", "a__hg_0123abcd"):
        await mongo.database[name].insert_one({"x": 1})
    assert await mongo.reader().tables() == ["a", "b"]


async def test_a_collection_that_is_not_there_is_named(mongo: Mongo) -> None:
    with pytest.raises(NotFound, match="no collection nothing"):
        await mongo.reader().describe("nothing")


async def test_an_empty_collection_has_a_key_and_nothing_to_copy(mongo: Mongo) -> None:
    await mongo.database.create_collection("empty")
    source = mongo.reader()
    table = await source.describe("empty")
    assert (table.key, table.rows, await source.top(table)) == (("_id",), 0, None)
    assert await source.begin() is None


async def test_each_type_has_its_kind(mongo: Mongo) -> None:
    document = {
        "_id": OID,
        "text": "ä",
        "small": 1,
        "long": Int64(2**63 - 1),
        "double": 0.1,
        "decimal": Decimal128("1.10"),
        "yes": True,
        "at": WHEN,
        "uuid": UUID(int=1),
        "data": b"\0\xff",
        "other": Binary(b"x", 5),
        "document": {"a": 1},
        "list": [1],
        "regex": Regex("a"),
        "code": Code("f()"),
        "clock": Timestamp(1, 2),
        "least": MinKey(),
        "nothing": None,
    }
    await mongo.database.things.insert_one(document)
    table = await mongo.reader().describe("things")
    assert types_of(table) == {
        "_id": Kind.TEXT,
        "text": Kind.TEXT,
        "small": Kind.INT64,
        "long": Kind.INT64,
        "double": Kind.FLOAT64,
        "decimal": Kind.NUMERIC,
        "yes": Kind.BOOL,
        "at": Kind.TIMESTAMPTZ,
        "uuid": Kind.UUID,
        "data": Kind.BYTES,
        "other": Kind.BYTES,
        "document": Kind.JSON,
        "list": Kind.JSON,
        "regex": Kind.JSON,
        "code": Kind.JSON,
        "clock": Kind.JSON,
        "least": Kind.JSON,
        "nothing": Kind.TEXT,
    }
    assert (table.sampled, table.rows, table.columns[0].nullable, table.columns[0].native) == (
        True,
        1,
        False,
        "objectId",
    )
    assert table.size


async def test_values_at_the_edges_arrive_as_canonical_text(mongo: Mongo) -> None:
    documents = [
        {
            "_id": OID,
            "text": 'a"b,\n',
            "long": Int64(-(2**63)),
            "double": -0.0,
            "decimal": Decimal128("1.10"),
            "yes": False,
            "at": datetime(1969, 12, 31, 23, 59, 59, 999000, UTC),
            "uuid": UUID(int=1),
            "data": b"\0\xff",
            "json": {"a": [1, Int64(2), 1.5, None, True, "x"]},
        },
        {
            "_id": ObjectId("5f0000000000000000000002"),
            "text": "",
            "long": 7,
            "double": math.nan,
            "decimal": Decimal128("NaN"),
            "at": datetime(1, 1, 1, tzinfo=UTC),
            "json": {"o": OID, "d": Decimal128("1.10"), "n": math.inf, "at": WHEN, "b": b"\0", "u": UUID(int=1)},
        },
        {"_id": ObjectId("5f0000000000000000000003"), "double": 1e22, "decimal": Decimal128("-Infinity"), "text": None},
        {"_id": ObjectId("5f0000000000000000000004"), "decimal": Decimal128("12E+3"), "json": [Regex("a", "i")]},
    ]
    await mongo.database.things.insert_many(documents)
    lines = (await csv_of(mongo.reader(), "things")).splitlines()
    at = '{""$date"":""2026-11-16T13:45:00.123Z""}'
    assert lines == [
        '"5f0000000000000000000001","a""b,',
        '",-9223372036854775808,-0,"1.10",0,1969-12-31 23:59:59.999000,"00000000-0000-0000-0000-000000000001",'
        '"\\x00ff","{""a"":[1,2,1.5,null,true,""x""]}"',
        '"5f0000000000000000000002","",7,"NaN","NaN",,0001-01-01 00:00:00.000000,,,'
        '"{""o"":{""$oid"":""5f0000000000000000000001""},""d"":{""$numberDecimal"":""1.10""},'
        f'""n"":{{""$numberDouble"":""Infinity""}},""at"":{at},'
        '""b"":{""$binary"":{""base64"":""AA=="",""subType"":""00""}},'
        '""u"":{""$binary"":{""base64"":""AAAAAAAAAAAAAAAAAAAAAQ=="",""subType"":""04""}}}"',
        '"5f0000000000000000000003",,,1e+22,"-Infinity",,,,,',
        '"5f0000000000000000000004",,,,"12000",,,,,"[{""$regularExpression"":{""pattern"":""a"",""options"":""i""}}]"',
    ]


async def test_a_field_of_several_types_is_the_widest_or_json(mongo: Mongo) -> None:
    await mongo.database.mixed.insert_many(
        [
            {"_id": 1, "number": 1, "any": 1, "wide": 1, "text": OID},
            {"_id": 2, "number": Decimal128("0.5"), "any": "1", "wide": 0.5, "text": "x"},
            {"_id": 3, "number": None, "any": OID, "wide": Int64(2**62)},
        ]
    )
    source = mongo.reader()
    table = await source.describe("mixed")
    assert types_of(table) == {
        "_id": Kind.INT64,
        "number": Kind.NUMERIC,
        "any": Kind.JSON,
        "wide": Kind.JSON,
        "text": Kind.TEXT,
    }
    assert table.columns[2].native == "int|string|objectId"
    assert (await csv_of(source, "mixed")).splitlines() == [
        f'1,"1","1","1","{OID}"',
        '2,"0.5","""1""","0.5","x"',
        f'3,,"{{""$oid"":""{OID}""}}","4611686018427387904",',
    ]


async def test_documents_in_documents_become_columns_when_asked(mongo: Mongo) -> None:
    await mongo.database.people.insert_many(
        [
            {"_id": {"a": 1}, "address": {"city": "Bern", "at": {"x": 1.5}}, "tags": [{"a": 1}]},
            {"_id": {"a": 2}, "address": None, "empty": {}},
        ]
    )
    source = mongo.reader("nested=flatten")
    assert types_of(await source.describe("people")) == {
        "_id": Kind.JSON,
        "address.city": Kind.TEXT,
        "address.at.x": Kind.FLOAT64,
        "tags": Kind.JSON,
        "empty": Kind.JSON,
    }
    assert await rows_of(source, "people") == [
        {"_id": {"a": 1}, "address.city": "Bern", "address.at.x": 1.5, "tags": [{"a": 1}], "empty": None},
        {"_id": {"a": 2}, "address.city": None, "address.at.x": None, "tags": None, "empty": {}},
    ]


async def test_a_dotted_field_that_is_there_twice_is_refused(own: Mongo) -> None:
    await own.database.people.insert_one({"_id": 1, "a": {"b": 1}, "a.b": 2})
    with pytest.raises(StorageError, match=r"_id 1 has the field 'a\.b' twice"):
        await rows_of(own.reader("nested=flatten"), "people")


async def test_a_field_that_was_not_sampled_ends_the_chunk_with_its_name(mongo: Mongo) -> None:
    await mongo.database.people.insert_many([{"_id": 1, "a": 1}, {"_id": 2, "a": 2, "gone": None}, {"_id": 3, "b": 1}])
    source = mongo.reader("sample=1")
    with pytest.raises(StorageError, match="_id 3 has the field 'b', which no sampled document has") as caught:
        await rows_of(source, "people")
    assert "?sample=" in caught.value.hint
    assert "?doc=json" in caught.value.hint
    assert [row["b"] for row in await rows_of(mongo.reader("sample=3"), "people")] == [None, None, 1]


async def test_a_value_that_does_not_fit_its_column_is_refused_with_its_document(mongo: Mongo) -> None:
    await mongo.database.people.insert_many([{"_id": 1, "a": 1, "d": WHEN}, {"_id": 2, "a": "x"}])
    with pytest.raises(StorageError, match=r"field 'a' of the document with the _id 2 .* string is not a number"):
        await rows_of(mongo.reader("sample=1"), "people")
    await mongo.database.people.replace_one({"_id": 2}, {"d": DatetimeMS(10**15)})
    with pytest.raises(StorageError, match=r"field 'd' of the document with the _id 2 .* outside the years"):
        await rows_of(mongo.reader("sample=2"), "people")


async def test_a_column_that_is_left_out_is_not_an_unknown_field(mongo: Mongo) -> None:
    await mongo.database.people.insert_one({"_id": 1, "a": 1, "b": 2})
    source = mongo.reader()
    table = await source.describe("people")
    some = table.with_columns(table.named(["_id", "b"]))
    found = [piece.data async for piece in source.query(some, Range(None, ("1",)), Language.ROWS, PLAIN)]
    assert found == [[{"_id": 1, "b": 2}]]


async def test_whole_documents_are_one_column_when_asked(mongo: Mongo) -> None:
    await mongo.database.people.insert_many([{"_id": OID, "z": 1, "a": [OID]}, {"_id": ObjectId(), "other": 1.0}])
    source = mongo.reader("doc=json&sample=1")
    table = await source.describe("people")
    assert types_of(table) == {"_id": Kind.TEXT, "doc": Kind.JSON}
    line = (await csv_of(source, "people")).splitlines()[0]
    assert line == f'"{OID}","{{""_id"":{{""$oid"":""{OID}""}},""z"":1,""a"":[{{""$oid"":""{OID}""}}]}}"'


# Reading: ranges.

IDS: list[Any] = [
    MinKey(),
    None,
    math.nan,
    -math.inf,
    -5,
    0,
    Int64(2**53),
    2.5,
    Decimal128("2.6"),
    "",
    "5f0000000000000000000001",
    "ä",
    "z",
    {"a": 1},
    {"a": 1, "b": 2},
    {"$oid": "none"},
    Binary(b"x", 0),
    UUID(int=7),
    OID,
    ObjectId("5f0000000000000000000002"),
    False,
    True,
    datetime(1960, 1, 1, tzinfo=UTC),
    WHEN,
    DatetimeMS(10**15),
    Timestamp(4, 2),
    MaxKey(),
]


@pytest.mark.parametrize("id", IDS[:-2], ids=lambda id: type(id).__name__)
def test_a_bound_gives_the_same_id_back(id: Any) -> None:
    again = id_of(bound_of(id))
    assert bson.encode({"": again}, codec_options=CODEC) == bson.encode({"": id}, codec_options=CODEC)


@pytest.mark.parametrize("id", [*IDS[:-2], -1, Int64(-1), "a\0ä"], ids=lambda id: type(id).__name__)
def test_the_id_of_a_document_is_found_without_reading_the_rest(id: Any) -> None:
    raw = RawBSONDocument(bson.encode({"_id": id, "a": 1}, codec_options=CODEC), values.RAW)
    found = id_in(raw)
    assert type(found) is type(raw["_id"])
    assert bson.encode({"": found}, codec_options=CODEC) == bson.encode({"": id}, codec_options=CODEC)


@given(st.decimals(allow_nan=False).filter(lambda one: len(one.as_tuple().digits) <= 34))
def test_a_decimal_is_the_same_number_with_the_same_digits(number: Decimal) -> None:
    try:
        value = Decimal128(number)
    except ArithmeticError:
        return
    assert str(decimal_of(value)) == str(value.to_decimal())


@pytest.mark.parametrize(
    "text", ["0", "-0", "0E-6176", "9" * 34 + "E+6111", "-1E-6176", "1.000", "Infinity", "-Infinity"]
)
def test_a_decimal_at_the_edge_is_the_same_number(text: str) -> None:
    assert str(decimal_of(Decimal128(text))) == str(Decimal128(text).to_decimal())


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
async def test_chunks_of_ids_of_all_types_cover_each_document_once(mongo: Mongo, rows: int) -> None:
    """A plain `$gt` would see one type only, and lose the others."""
    ids = IDS if mongo.server else [id for id in IDS if id != {"$oid": "none"}]  # Servers refuse such a field in ids.
    await mongo.database.any.insert_many([{"_id": id, "n": number} for number, id in enumerate(ids)])
    source = mongo.reader()
    table = await source.describe("any")
    ranges = await planned_ranges(source, table, rows)
    assert len(ranges) == -(-len(ids) // rows)
    seen = []
    for one in ranges:
        chunk = [row["n"] async for piece in source.query(table, one, Language.ROWS, PLAIN) for row in piece.data]
        assert len(chunk) <= rows
        seen += chunk
    assert sorted(seen) == list(range(len(ids)))


@pytest.mark.parametrize(
    "ids",
    [
        [1, Int64(2**53 + 1), Int64(2**53 + 2), Int64(2**63 - 1), Int64(-(2**63)), -0.5, 2.5],
        ["", "B", "a", "a b", "z", "é", "\uffff", "\U0001f600"],
        [ObjectId(bytes([number] * 12)) for number in (0, 1, 127, 128, 255)],
        [Binary(bytes([number] * 16), 4) for number in (0, 1, 127, 128, 255)],
        [WHEN + timedelta(milliseconds=number) for number in (-(10**13), 0, 1, 2)],
    ],
    ids=["numbers", "strings", "objects", "uuids", "dates"],
)
async def test_ids_of_one_type_are_cut_by_comparison_where_bounds_are_ignored(mongo: Mongo, ids: list[Any]) -> None:
    if mongo.server is not None:
        mongo.server.keeps_bounds = False
    await mongo.database.orders.insert_many([{"_id": id, "n": number} for number, id in enumerate(ids)])
    source = mongo.reader()
    table = await source.describe("orders")
    for rows in (1, 2, 3, 100):
        ranges = await planned_ranges(source, table, rows)
        assert len(ranges) == -(-len(ids) // rows)
        seen = []
        for one in ranges:
            seen += [row["n"] async for piece in source.query(table, one, Language.ROWS, PLAIN) for row in piece.data]
        assert sorted(seen) == list(range(len(ids)))


@pytest.mark.parametrize("ids", [[1, 2, "a"], [{"a": 1}, {"a": 2}], [True, False]], ids=["mixed", "documents", "truth"])
async def test_a_server_that_ignores_bounds_is_refused_where_ids_cannot_be_compared(
    server: MongoServer, ids: list[Any]
) -> None:
    async for mongo in opened(server.url("bounds"), "bounds", server):
        await mongo.database.orders.insert_many([{"_id": id} for id in ids])
        source = mongo.reader()
        assert await source.top(await source.describe("orders")) is not None
        server.keeps_bounds = False
        table = await source.describe("orders")
        with pytest.raises(StorageError, match="ignores the bounds of a query"):
            await source.top(table)


async def test_documents_that_come_after_the_top_belong_to_nobody(mongo: Mongo) -> None:
    await mongo.database.grows.insert_many([{"_id": number} for number in (1, 2, 3)])
    source = mongo.reader()
    table = await source.describe("grows")
    ranges = await planned_ranges(source, table, 2)
    await mongo.database.grows.insert_many([{"_id": 4}, {"_id": 1.5}, {"_id": "a"}])
    found = [
        row["_id"]
        for range in ranges
        async for piece in source.query(table, range, Language.COPY, PLAIN)
        for row in bson.decode_all(piece.data)
    ]
    assert found == [1, 1.5, 2, 3]


async def test_a_large_chunk_comes_in_pieces(mongo: Mongo) -> None:
    await mongo.database.many.insert_many([{"_id": number} for number in range(4500)])
    source = mongo.reader()
    table = await source.describe("many")
    ranges = await planned_ranges(source, table, 10_000)
    sizes = [piece.rows async for piece in source.query(table, ranges[0], Language.ROWS, PLAIN)]
    assert len(ranges) == 1
    assert sum(sizes) == 4500
    assert max(sizes) <= 2000


# What goes wrong.


async def test_a_connection_that_breaks_in_a_query_is_a_storage_that_is_gone(own: Mongo, server: MongoServer) -> None:
    await own.database.many.insert_many([{"_id": number} for number in range(5000)])
    source = own.reader()
    table = await source.describe("many")
    top = await source.top(table)
    assert top is not None
    server.break_after["getMore"] = 1
    seen = 0
    with pytest.raises(StorageGone, match="many does not answer"):
        async for piece in source.query(table, Range(None, top), Language.ROWS, PLAIN):
            seen += piece.rows
    assert 0 < seen < 5000
    del server.break_after["getMore"]
    assert len(await rows_of(source, "many")) == 5000


async def test_a_server_that_is_not_there_is_gone(server: MongoServer) -> None:
    await server.stop()
    source = MongoReader(f"mongodb://u:secret@127.0.0.1:{server.port}/x?serverSelectionTimeoutMS=50")
    with pytest.raises(StorageGone, match="does not answer") as caught:
        await source.tables()
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    await source.close()


async def test_a_server_that_does_not_answer_in_time_is_gone(own: Mongo, server: MongoServer) -> None:
    source = own.reader("socketTimeoutMS=50&retryReads=false")
    await source.tables()
    server.delay_s = 0.5
    with pytest.raises(StorageGone, match="timed out"):
        await source.tables()
    server.delay_s = 0.0


async def test_a_wrong_password_is_an_error_of_the_configuration_without_it(server: MongoServer) -> None:
    source = MongoReader(f"mongodb://u:secret@127.0.0.1:{server.port}/x")
    with pytest.raises(ConfigError, match="does not accept") as caught:
        await source.tables()
    assert "secret" not in str(caught.value)
    await source.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        pytest.param("mongodb://h", "names no database", id="database"),
        pytest.param("mongodb://u:secret@h/x?sample=0", "sample=0 is not understood", id="sample"),
        pytest.param("mongodb://h/x?nested=both", "nested=both is not understood", id="nested"),
        pytest.param("mongodb://h/x?micros=round", "micros=round is not understood", id="micros"),
    ],
)
def test_a_url_that_means_nothing_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        MongoReader(url)
    assert "secret" not in str(caught.value)


async def test_a_target_that_does_not_acknowledge_is_refused(own: Mongo) -> None:
    with pytest.raises(ConfigError, match="w=0"):
        await own.writer("w=0").look("x")


def test_our_options_are_not_the_clients() -> None:
    options = options_of("mongodb://a:1,b:2/shop?sample=5&replicaSet=rs&nested=flatten&readPreferenceTags=dc:ny,r:1")
    assert options.url == "mongodb://a:1,b:2/shop?replicaSet=rs&readPreferenceTags=dc:ny,r:1"
    assert (options.database, options.sample, options.flatten) == ("shop", 5, True)


# Writing.


async def test_values_of_each_kind_are_written_as_bson(mongo: Mongo) -> None:
    row = {
        "id": 2**40,
        "small": 1,
        "yes": True,
        "number": Decimal("12.50"),
        "double": math.nan,
        "text": "a\0b",
        "data": b"\0",
        "day": date(2026, 11, 16),
        "hour": time(1, 2, 3, 4),
        "wall": datetime(2026, 11, 16, 1, 2, 3, 4),
        "at": WHEN,
        "uuid": UUID(int=3),
        "json": {"a": [1, Decimal("1.5"), Decimal("0.10000000000000000000001"), 2**70, None], "b": {"c": "x"}},
        "nothing": None,
    }
    kinds = [Kind.INT64, Kind.INT32, Kind.BOOL, Kind.NUMERIC, Kind.FLOAT64, Kind.TEXT, Kind.BYTES, Kind.DATE]
    kinds += [Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.UUID, Kind.JSON, Kind.TEXT]
    job = job_of(source_of(**dict(zip(row, kinds, strict=True))))
    assert await written(mongo.writer(), job, [row]) == 1
    found = (await mongo.all("orders"))[0]
    assert math.isnan(found.pop("double"))
    assert list(found)[:3] == ["_id", "id", "small"]
    assert type(found["id"]) is Int64
    assert found == {
        "_id": 2**40,
        "id": 2**40,
        "small": 1,
        "yes": True,
        "number": Decimal128("12.50"),
        "text": "a\0b",
        "data": b"\0",
        "day": "2026-11-16",
        "hour": "01:02:03.000004",
        "wall": "2026-11-16T01:02:03.000004",
        "at": WHEN,
        "uuid": UUID(int=3),
        "json": {
            "a": [1, 1.5, Decimal128("0.10000000000000000000001"), Decimal128(str(2**70)), None],
            "b": {"c": "x"},
        },
        "nothing": None,
    }


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        pytest.param(Kind.NUMERIC, Decimal("1." + "1" * 34), r"1\.1+ does not fit a Decimal128", id="digits"),
        pytest.param(Kind.NUMERIC, Decimal("1e7000"), "does not fit a Decimal128", id="range"),
        pytest.param(Kind.TIMESTAMPTZ, WHEN + timedelta(microseconds=1), "has microseconds", id="microseconds"),
        pytest.param(Kind.JSON, {"a\0": 1}, "name of a field contains", id="name"),
        pytest.param(Kind.INT64, 2**63, "64 bits", id="long"),
        pytest.param(Kind.TEXT, 5, "int is not str", id="text"),
        pytest.param(Kind.FLOAT64, 2**53 + 1, "would be rounded", id="double"),
    ],
)
async def test_what_bson_cannot_hold_is_refused_with_its_column(
    own: Mongo, kind: Kind, value: Any, message: str
) -> None:
    target, job = own.writer(), job_of(source_of(id=Kind.INT64, x=kind))
    with pytest.raises(StorageError, match=f"column 'x' of orders .*{message}"):
        await written(target, job, [{"id": 1, "x": None}], [{"id": 2, "x": value}])
    assert await own.all("orders") == []


@pytest.mark.parametrize(
    ("micros", "expected"),
    [
        pytest.param("text", "2026-11-16T13:45:00.123001+00:00", id="text"),
        pytest.param("truncate", WHEN, id="truncate"),
    ],
)
async def test_microseconds_are_text_or_cut_when_asked(own: Mongo, micros: str, expected: Any) -> None:
    job = job_of(source_of(id=Kind.INT64, at=Kind.TIMESTAMPTZ))
    await written(own.writer(f"micros={micros}"), job, [{"id": 1, "at": WHEN + timedelta(microseconds=1)}])
    assert (await own.all("orders"))[0]["at"] == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param(source_of(("_id",), _id=Kind.TEXT, id=Kind.INT64), "x", id="own"),
        pytest.param(source_of(("id",), id=Kind.INT64), 1, id="single"),
        pytest.param(source_of(("id", "b"), id=Kind.INT64, b=Kind.TEXT), {"id": 1, "b": "y"}, id="several"),
    ],
)
async def test_the_id_is_the_sources_or_its_key(mongo: Mongo, source: Table, expected: Any) -> None:
    row = {"_id": "x", "id": 1, "b": "y"}
    await written(mongo.writer(), job_of(source), [{column.name: row[column.name] for column in source.columns}])
    assert (await mongo.all("orders"))[0]["_id"] == expected


async def test_without_a_key_the_id_is_the_place_in_the_dump(mongo: Mongo) -> None:
    job = job_of(source_of(()))
    await written(mongo.writer(), job, people(5, 5), people(6))
    key = ledger.key_of(WHOLE)
    assert [one["_id"] for one in await mongo.all("orders")] == [f"{job.dump}:{key}:{number}" for number in (0, 1, 2)]


async def test_a_key_that_is_null_is_refused(own: Mongo) -> None:
    with pytest.raises(StorageError, match="'id' of orders is NULL"):
        await written(own.writer(), job_of(), [{"id": None, "name": "x"}])


async def test_a_chunk_is_written_once_and_the_ledger_says_so(mongo: Mongo) -> None:
    target, job = mongo.writer(), job_of()
    other = Range(("9",), ("99",))
    assert await written(target, job, people(1, 2)) == 2
    assert await written(target, job, range=other) == 0
    assert await target.done(job) == {WHOLE: 2, other: 0}
    with pytest.raises(AlreadyWritten):
        await written(target, job, people(1, 2))
    assert await target.unfinished("orders") == [job.dump]
    await target.finish(job)
    await target.finish(job)
    assert await target.unfinished("orders") == []
    assert await target.done(job) == {WHOLE: 2, other: 0}
    assert await mongo.database["headgate_dump_written"].count_documents({}) == 0


async def test_a_half_written_chunk_is_written_again_and_each_document_is_there_once(
    own: Mongo, server: MongoServer
) -> None:
    """Also if the source has changed since: a row that is gone leaves nothing, and another has its new values."""
    target, job = own.writer(), job_of()
    await own.database.orders.insert_one({"_id": 1000, "name": "before"})
    server.break_after_inserts = 3
    with pytest.raises(StorageGone):
        await written(target, job, people(1, 2, 3, 4, 5))
    assert len(await own.all("orders")) == 4
    assert await target.done(job) == {}
    assert await target.unfinished("orders") == [job.dump]
    again = [{"id": 1, "name": "new"}, *people(2, 4, 5)]
    assert await written(own.writer(), job, again) == 4
    assert [(one["_id"], one["name"]) for one in await own.all("orders")] == [
        (1, "new"),
        (2, "n2"),
        (4, "n4"),
        (5, "n5"),
        (1000, "before"),
    ]
    assert await target.done(job) == {WHOLE: 4}


async def test_undo_removes_what_a_broken_chunk_left_and_nothing_else(own: Mongo, server: MongoServer) -> None:
    target, job = own.writer(), job_of()
    await own.database.orders.insert_one({"_id": 1000})
    table = await target.prepare(job)
    await target.undo(job, table, WHOLE)
    server.break_after_inserts = 3
    with pytest.raises(StorageGone):
        await written(target, job, people(1, 2, 3, 4, 5))
    await target.undo(job, table, WHOLE)
    assert [one["_id"] for one in await own.all("orders")] == [1000]
    await written(target, job, people(1))
    await target.undo(job, table, WHOLE)
    assert [one["_id"] for one in await own.all("orders")] == [1, 1000]


@pytest.mark.parametrize(
    "there", [{"_id": 2, "x": 1}, {"_id": 2, "id": Int64(2), "name": "n2"}], ids=["other", "equal"]
)
async def test_a_document_that_was_there_before_is_refused_at_each_attempt_and_untouched(
    mongo: Mongo, there: dict[str, Any]
) -> None:
    await mongo.database.orders.insert_one(dict(there))
    target, job = mongo.writer(), job_of()
    for _ in range(3):
        with pytest.raises(StorageError, match="orders has a document with the _id 2, which this chunk did not write"):
            await written(target, job, people(1, 2, 3))
        assert await mongo.all("orders") == [there]
    assert await target.done(job) == {}


async def test_a_document_of_another_is_refused_after_a_broken_attempt_too(own: Mongo, server: MongoServer) -> None:
    target, job = own.writer(), job_of()
    server.break_after_inserts = 1
    with pytest.raises(StorageGone):
        await written(target, job, people(1, 2, 3))
    await own.database.orders.insert_one({"_id": 3, "name": "theirs"})
    with pytest.raises(StorageError, match="_id 3"):
        await written(target, job, people(1, 2, 3))
    assert await own.all("orders") == [{"_id": 3, "name": "theirs"}]


async def test_whoever_is_faster_than_our_look_keeps_its_document(own: Mongo, server: MongoServer) -> None:
    """The document appears after the ids were looked up and before they are inserted."""
    theirs = {"_id": 2, "name": "theirs"}

    def insert(command: str, collection: Any) -> None:
        if (command, collection) == ("insert", "orders"):
            server.before = None
            server.databases["shop"]["orders"].put(raw_of(theirs), "shop.orders")

    server.before = insert
    with pytest.raises(StorageError, match="two documents have the same key"):
        await written(own.writer(), job_of(), people(1, 2, 3))
    assert await own.all("orders") == [theirs]


async def test_rows_with_the_same_key_are_refused_and_the_chunk_leaves_nothing(mongo: Mongo) -> None:
    target, job = mongo.writer(), job_of(mode=Mode.REPLACE)
    await written(target, job, people(1))
    with pytest.raises(StorageError, match="same key"):
        await written(target, job, people(2, 2), range=Range(("9",), ("99",)))
    with pytest.raises(StorageError, match="_id 1, which this chunk did not write"):
        await written(target, job, people(3, 1), range=Range(("9",), ("99",)))
    assert [one["_id"] for one in await mongo.all(job.apart_name)] == [1]


async def test_a_worker_whose_chunk_was_taken_stops_and_removes_nothing(mongo: Mongo) -> None:
    job, slow, fast = job_of(), mongo.writer(), mongo.writer()
    table = await slow.prepare(job)
    has_begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def halting() -> Pieces:
        has_begun.set()
        await may_go_on.wait()
        yield Piece(people(1, 2), 100, 2)

    late = asyncio.create_task(slow.write(job, table, WHOLE, Language.ROWS, halting()))
    await has_begun.wait()
    assert await written(fast, job, people(1, 2)) == 2
    may_go_on.set()
    with pytest.raises(StorageError):
        await late
    assert len(await mongo.all("orders")) == 2
    assert await slow.done(job) == {WHOLE: 2}


async def test_upsert_overwrites_what_has_the_id_and_may_be_repeated(mongo: Mongo) -> None:
    await mongo.database.orders.insert_many([{"_id": 1, "old": 1}, {"_id": 3, "old": 1}])
    source = source_of(("_id",), _id=Kind.INT64, name=Kind.TEXT)
    target, job = mongo.writer(), job_of(source, mode=Mode.UPSERT)
    rows = [{"_id": 1, "name": "a"}, {"_id": 2, "name": "b"}]
    assert await written(target, job, rows) == 2
    assert await written(target, job, rows, again=True) == 2
    assert await mongo.all("orders") == [{"_id": 1, "name": "a"}, {"_id": 2, "name": "b"}, {"_id": 3, "old": 1}]


async def test_upsert_by_another_key_finds_documents_by_it(mongo: Mongo) -> None:
    await mongo.database.orders.insert_one({"_id": OID, "id": 1, "name": "old", "kept": True})
    target = mongo.writer()
    assert await written(target, job_of(mode=Mode.UPSERT), people(1, 2)) == 2
    assert await mongo.all("orders") == [
        {"_id": 2, "id": 2, "name": "n2"},
        {"_id": OID, "id": 1, "name": "n1", "kept": True},
    ]


async def test_absent_leaves_what_has_the_key(mongo: Mongo) -> None:
    await mongo.database.orders.insert_one({"_id": OID, "id": 1, "name": "live"})
    target, job = mongo.writer(), job_of(mode=Mode.ABSENT)
    assert await written(target, job, people(1, 2)) == 2
    expected = [{"_id": 2, "id": 2, "name": "n2"}, {"_id": OID, "id": 1, "name": "live"}]
    assert await mongo.all("orders") == expected
    await written(target, job, people(1, 2), again=True)
    assert await mongo.all("orders") == expected
    await mongo.database.orders.insert_one({"_id": 3, "id": 30})
    with pytest.raises(StorageError, match="same key"):
        await written(target, job, people(3), range=Range(("9",), ("99",)))


@pytest.mark.parametrize("mode", [Mode.UPSERT, Mode.ABSENT])
async def test_writing_by_key_needs_one(own: Mongo, mode: Mode) -> None:
    with pytest.raises(Refused, match="no key"):
        await own.writer().prepare(job_of(source_of(()), mode=mode))


async def test_a_chunk_can_be_repaired(mongo: Mongo) -> None:
    target, job = mongo.writer(), job_of()
    await written(target, job, people(1, 2))
    await mongo.database.orders.replace_one({"_id": 1}, {"name": "wrong"})
    await mongo.database.orders.delete_one({"_id": 2})
    assert await written(target, job, people(1, 2), again=True) == 2
    assert [one["name"] for one in await mongo.all("orders")] == ["n1", "n2"]
    assert await target.done(job) == {WHOLE: 2}


async def test_a_repair_that_broke_off_goes_on_when_the_chunk_is_written_anew(own: Mongo, server: MongoServer) -> None:
    target, job = own.writer("retryWrites=false"), job_of()
    await written(target, job, people(1, 2))
    server.break_after["update"] = 1  # The line, and then the documents.
    with pytest.raises(StorageGone):
        await written(target, job, people(1, 2), again=True)
    del server.break_after["update"]
    assert await target.done(job) == {}
    await target.undo(job, await target.prepare(job), WHOLE)
    assert await written(target, job, people(1, 2)) == 2
    assert [one["_id"] for one in await own.all("orders")] == [1, 2]


async def test_an_insert_that_ends_after_its_worker_is_still_told_from_others(own: Mongo, server: MongoServer) -> None:
    target, job = own.writer(), job_of()
    server.break_after_inserts = 1
    with pytest.raises(StorageGone):
        await written(target, job, people(1, 2))
    await target.undo(job, await target.prepare(job), WHOLE)
    await own.database.orders.insert_one({"_id": Int64(2), "id": Int64(2), "name": "n2"})  # The rest of the broken one.
    assert await written(target, job, [{"id": 2, "name": "new"}]) == 1
    assert [(one["_id"], one["name"]) for one in await own.all("orders")] == [(2, "new")]


async def test_a_dump_that_is_cancelled_leaves_whole_chunks_only(own: Mongo, server: MongoServer) -> None:
    target, job = own.writer(), job_of()
    await written(target, job, people(1, 2))
    server.break_after_inserts = 1
    with pytest.raises(StorageGone):
        await written(target, job, people(11, 12), range=Range(("9",), ("99",)))
    await target.drop(job)
    assert [one["_id"] for one in await own.all("orders")] == [1, 2]
    assert await own.database["headgate_dump_written"].count_documents({}) == 0


async def test_replace_builds_beside_and_takes_the_place_with_the_old_indexes(mongo: Mongo) -> None:
    await mongo.database.orders.insert_one({"_id": 7, "old": True})
    await mongo.database.orders.create_index([("name", -1)])
    target, job = mongo.writer(), job_of(mode=Mode.REPLACE)
    await written(target, job, people(1, 2))
    assert [one["_id"] for one in await mongo.all("orders")] == [7]
    await target.finish(job)
    await target.finish(job)
    assert [one["_id"] for one in await mongo.all("orders")] == [1, 2]
    assert await mongo.reader().tables() == ["orders"]
    indexes = await mongo.database.orders.index_information()
    assert indexes["id_1"]["unique"]
    assert set(indexes) == {"_id_", "id_1", "name_-1"}
    assert (await target.prepare(job)).name == "orders"


async def test_a_swap_that_was_interrupted_before_its_last_line_is_recognised(own: Mongo, server: MongoServer) -> None:
    """Even if a late worker has made the collection beside again."""
    target, job = own.writer("retryWrites=false"), job_of(mode=Mode.REPLACE)
    await own.database.orders.insert_one({"_id": 7})
    await written(target, job, people(1))

    def crash(command: str, collection: Any) -> None:
        if command == "update" and "renameCollection" in server.commands:
            server.before = None
            raise Broken

    server.before = crash
    with pytest.raises(StorageGone):
        await target.finish(job)
    await own.database[job.apart_name].insert_one({"_id": 5})
    assert await target.unfinished("orders") == [job.dump]
    assert (await target.prepare(job)).name == "orders"
    await target.finish(job)
    assert [one["_id"] for one in await own.all("orders")] == [1]
    assert await target.unfinished("orders") == []


async def test_a_swap_that_was_interrupted_before_the_rename_is_done_then(own: Mongo, server: MongoServer) -> None:
    target, job = own.writer(), job_of(mode=Mode.REPLACE)
    await own.database.orders.insert_one({"_id": 7})
    await written(target, job, people(1))
    server.break_after["renameCollection"] = 0
    with pytest.raises(StorageGone):
        await target.finish(job)
    del server.break_after["renameCollection"]
    assert (await target.prepare(job)).name == job.apart_name
    await target.finish(job)
    assert [one["_id"] for one in await own.all("orders")] == [1]


async def test_a_collection_beside_that_was_dropped_is_not_taken_for_a_new_one(mongo: Mongo) -> None:
    target, job = mongo.writer(), job_of(mode=Mode.REPLACE)
    await written(target, job, people(1))
    await mongo.database.drop_collection(job.apart_name)
    with pytest.raises(Refused, match="is gone"):
        await target.prepare(job)


async def test_what_was_built_beside_goes_with_its_lines(mongo: Mongo) -> None:
    target, job = mongo.writer(), job_of(aside=True)
    await written(target, job, people(1))
    assert await target.look(job.apart_name) is not None
    await target.drop(job)
    assert await target.look(job.apart_name) is None
    assert await target.done(job) == {}
    assert await target.unfinished("orders") == []


async def test_aside_does_not_replace_documents_that_came_meanwhile(mongo: Mongo) -> None:
    target, job = mongo.writer(), job_of(aside=True)
    await written(target, job, people(1))
    await mongo.database.orders.insert_one({"_id": 5})
    with pytest.raises(Refused, match="no longer empty"):
        await target.finish(job)
    await mongo.database.orders.delete_one({"_id": 5})
    await target.finish(job)
    assert [one["_id"] for one in await mongo.all("orders")] == [1]


async def test_a_look_tells_an_empty_collection_from_none(mongo: Mongo) -> None:
    target = mongo.writer()
    assert await target.look("orders") is None
    await mongo.database.create_collection("orders")
    table = await target.look("orders")
    assert table is not None
    assert table.rows == 0
    await mongo.database.orders.insert_many([{}, {}])
    table = await target.look("orders")
    assert table is not None
    assert table.rows == 2


async def test_the_canonical_text_of_a_database_becomes_documents(mongo: Mongo) -> None:
    kinds = {"id": Kind.INT32, "n": Kind.NUMERIC, "at": Kind.TIMESTAMPTZ, "doc": Kind.JSON, "u": Kind.UUID}
    job, target = job_of(source_of(**kinds)), mongo.writer()
    text = f"""1,12.50,2026-11-16 13:45:00.123,"{{""a"":[1,1.50,0.1]}}",{UUID(int=5)}\n2,,,"null",\n"""

    async def csv() -> Pieces:
        yield Piece(text.encode(), len(text))

    table = await target.prepare(job)
    language, pieces = target.normalize(csv(), Language.CSV, job.source.columns)
    assert await target.write(job, table, WHOLE, language, pieces) == 2
    assert await mongo.all("orders") == [
        {"_id": 1, "id": 1, "n": Decimal128("12.50"), "at": WHEN, "doc": {"a": [1, 1.5, 0.1]}, "u": UUID(int=5)},
        {"_id": 2, "id": 2, "n": None, "at": None, "doc": None, "u": None},
    ]


# From MongoDB to MongoDB.


@pytest.mark.parametrize("mode", list(Mode))
async def test_documents_between_two_mongodbs_stay_what_they_are_to_the_byte(mongo: Mongo, mode: Mode) -> None:
    documents = [
        {"_id": OID, "z": 1, "a": Int64(1), "d": Decimal128("1.100"), "n": {"y": None, "b": [1.0, Int64(1)]}},
        {"_id": "x", "r": Regex("a", "i"), "c": Code("f()"), "t": Timestamp(1, 2), "m": MinKey(), "u": UUID(int=1)},
        {"_id": {"k": 1}, "only here": DatetimeMS(10**15), "b": Binary(b"x", 128)},
    ]
    await mongo.database.source.insert_many(documents)
    await mongo.database.source.create_index([("z", 1), ("a", -1)], name="own", sparse=True)
    source, target = mongo.reader("sample=1"), mongo.writer()
    table = await source.describe("source")
    job = Job(uuid.uuid4(), table, "copy", mode=mode, created=True)
    into = await target.prepare(job)
    language = convert.common(source.languages, target.accepts(into, job))
    assert language is Language.COPY
    for range in await planned_ranges(source, table, 2):
        pieces = source.query(table, range, language, PLAIN)
        language, pieces = target.normalize(pieces, language, table.columns)
        await target.write(job, into, range, language, pieces)
    await target.finish(job)
    one, other = [await mongo.raw(name) for name in ("source", "copy")]
    assert one == other
    indexes = await mongo.database["copy"].index_information()
    assert indexes["own"]["key"] == [("z", 1), ("a", -1)]
    assert indexes["own"]["sparse"]


async def test_a_field_that_is_left_out_does_not_change_the_others(mongo: Mongo) -> None:
    """Also those that were not sampled."""
    first = ObjectId("5e0000000000000000000001")
    await mongo.database.source.insert_one({"_id": first, "z": 1, "secret": 1, "a": 1})
    await mongo.database.source.insert_one({"_id": OID, "z": Int64(1), "secret": 1, "a": [OID], "more": 1})
    source = mongo.reader("sample=1")
    table = await source.describe("source")
    some = table.with_columns(table.named(["_id", "a", "z"]))
    range = Range(bound_of(first), bound_of(OID))
    data = [piece.data async for piece in source.query(some, range, Language.COPY, PLAIN)]
    assert data == [bson.encode({"_id": OID, "z": Int64(1), "a": [OID], "more": 1})]


async def test_documents_are_passed_on_untouched_only_if_their_fields_are(own: Mongo) -> None:
    await own.database.source.insert_one({"_id": 1, "a": 1, "x.y": 1})
    target = own.writer()
    table = await own.reader().describe("source")
    flat = await own.reader("nested=flatten").describe("source")
    other = [replace(column, type=Type(Kind.TEXT)) for column in table.columns]
    jobs = {
        "whole": job_of(table),
        "without a column": job_of(table.with_columns(table.named(["_id", "x.y"]))),
        "without a dotted one": job_of(table.with_columns(table.named(["_id", "a"]))),
        "without the id": job_of(table.with_columns(table.named(["a", "x.y"]))),
        "other types": job_of(table.with_columns(other)),
        "flat": job_of(flat),
        "another key": job_of(table, mode=Mode.UPSERT, key=("a",)),
        "another family": job_of(replace(table, family="postgresql")),
    }
    passed = [name for name, job in jobs.items() if Language.COPY in target.accepts(table, job)]
    assert passed == ["whole", "without a column"]


async def test_a_server_that_is_gone_when_a_chunk_is_taken_back_is_seen_as_gone(
    own: Mongo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the chunk would fail by itself, though no other can be written either."""
    target, job = own.writer(), job_of()
    table = await target.prepare(job)

    async def gone(*_: object) -> None:
        raise errors.AutoReconnect("connection closed")

    async def broken() -> Pieces:
        raise StorageError("a value does not fit")
        yield

    monkeypatch.setattr(target, "_remove", gone)
    with pytest.raises(StorageGone, match="connection closed"):
        await target.write(job, table, WHOLE, Language.ROWS, broken())
