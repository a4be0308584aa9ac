"""Arrow as binary COPY: each value arrives as it would through its text, or is refused by its column's name."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headgate.connectors.api.bulk import Column, Job, Language, Piece, Pieces, StorageError, Table
from headgate.connectors.postgres import binary
from headgate.connectors.postgres.fit import has_binary_forms
from headgate.connectors.postgres.writer import PostgresWriter
from headgate.connectors.values.arrow import arrow_schema, arrow_type, csv_bytes
from headgate.connectors.values.kinds import Kind, Type
from headgate.core.chunks import Range
from headgate.store.embedded import EmbeddedServer
from tests.connectors.postgres_copy import DUMP, OTHER, Side, emptied, make_databases

TIMES = [datetime(1, 1, 1), datetime(1970, 1, 1), datetime(1999, 12, 31, 23, 59, 59, 999999), datetime(9999, 12, 31)]
TEXTS = ["", "a", "tab\tnew\nline\r\\ \"'", "ö漢🙂", "NULL", "\\N", "x" * 70_000]
CASES: list[tuple[str, Type, list[Any]]] = [
    ("boolean", Type(Kind.BOOL), [True, False]),
    ("smallint", Type(Kind.INT16), [0, -1, 2**15 - 1, -(2**15)]),
    ("integer", Type(Kind.INT16), [0, -1, 2**15 - 1, -(2**15)]),
    ("integer", Type(Kind.INT32), [0, -1, 2**31 - 1, -(2**31)]),
    ("bigint", Type(Kind.INT32), [0, -1, 2**31 - 1, -(2**31)]),
    ("bigint", Type(Kind.INT64), [0, -1, 2**63 - 1, -(2**63)]),
    ("real", Type(Kind.FLOAT32), [0.0, -0.0, 1.5, 3.4028234663852886e38, math.inf, -math.inf, math.nan]),
    ("double precision", Type(Kind.FLOAT64), [0.1, -0.0, 5e-324, 1.7976931348623157e308, math.inf, math.nan]),
    ("text", Type(Kind.TEXT), TEXTS),
    ("character varying(5)", Type(Kind.TEXT, length=5), ["", "a", "ö漢🙂", "12345", "abc  "]),
    ("character(3)", Type(Kind.TEXT, length=3), ["", "a", "abc"]),
    ("bytea", Type(Kind.BYTES), [b"", b"\0\xff", b"x" * 5000]),
    ("date", Type(Kind.DATE), [date(1, 1, 1), date(1970, 1, 1), date(2000, 1, 1), date(9999, 12, 31)]),
    ("time without time zone", Type(Kind.TIME), [time(0), time(23, 59, 59, 999999)]),
    ("timestamp without time zone", Type(Kind.TIMESTAMP), TIMES),
    ("timestamp with time zone", Type(Kind.TIMESTAMPTZ), [one.replace(tzinfo=UTC) for one in TIMES]),
    ("uuid", Type(Kind.UUID), ["00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    ("json", Type(Kind.JSON), ['{"a": 1, "a": 2}', "null", '"x"', "[1.0, 1e400]"]),
    ("jsonb", Type(Kind.JSON), ['{"a": 1}', "null", '"ö"', "[1.0]"]),
]
DECIMALS = [(1, 0), (4, 0), (5, 0), (18, 0), (2, 2), (3, 1), (12, 2), (9, 5), (10, 10), (16, 16), (18, 16), (17, 4)]


@pytest.fixture(scope="module")
def url(server: EmbeddedServer) -> str:
    return asyncio.run(make_databases(server.url, 1))[0]


@pytest.fixture
async def target(url: str) -> AsyncIterator[Side]:
    async with emptied(url) as side:
        yield side


def column_of(native: str, type: Type, name: str = "v") -> Column:
    return Column(name, type, native=native)


def batch_of(columns: list[Column], values: list[list[Any]]) -> Any:
    arrays = [pa.array(some, arrow_type(column.type)) for column, some in zip(columns, values, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


async def one(data: Any, rows: int = 0) -> Pieces:
    yield Piece(data, 1, rows)


async def written(target: Side, columns: list[Column], batch: Any) -> list[list[Any]]:
    """What two tables hold after the batch went into one as Arrow and into the other as CSV."""
    found = []
    shape = ", ".join(f'"{column.name}" {column.native}' for column in columns)
    for name, dump, language, data in (
        ("a", DUMP, Language.ARROW, batch),
        ("b", OTHER, Language.CSV, csv_bytes(batch, columns)),
    ):
        await target.sql.execute(f"DROP TABLE IF EXISTS {name}; CREATE TABLE {name} ({shape})")
        writer = PostgresWriter(target.url)
        job = Job(dump, Table("t", tuple(columns)), name)
        try:
            into = await writer.prepare(job)
            assert list(writer.accepts(into, job)) == [Language.ARROW, Language.CSV]
            some = Range(None, (str(random.random()),))
            assert await writer.write(job, into, some, language, one(data, batch.num_rows)) == batch.num_rows
        finally:
            await writer.close()
        found.append(sorted(await target.values(f"SELECT t::text FROM {name} t")))
    return found


@pytest.mark.parametrize(("native", "type", "values"), CASES, ids=[f"{one[0]}-{one[1].kind}" for one in CASES])
async def test_each_value_arrives_as_through_its_text(target: Side, native: str, type: Type, values: list[Any]) -> None:
    column = column_of(native, type)
    for given in (
        values,
        [None, *values],
        [*values, None],
        [None] * 3,
        [None if i % 2 else v for i, v in enumerate(values)],
    ):
        binary_way, text_way = await written(target, [column], batch_of([column], [given]))
        assert binary_way == text_way
        assert len(binary_way) == len(given)


async def test_decimals_of_all_sizes(target: Side) -> None:
    numbers = random.Random(7)
    columns, values = [], []
    for precision, scale in DECIMALS:
        largest = 10**precision - 1
        whole = [
            0,
            1,
            -1,
            largest,
            -largest,
            10 ** (precision - 1),
            *(numbers.randint(-largest, largest) for _ in range(60)),
        ]
        columns.append(
            column_of(f"numeric({precision},{scale})", Type(Kind.DECIMAL, precision, scale), f"d{precision}_{scale}")
        )
        values.append([Decimal(one).scaleb(-scale) for one in whole])
    binary_way, text_way = await written(target, columns, batch_of(columns, values))
    assert binary_way == text_way
    given = await target.rows("SELECT * FROM a")
    assert given == list(zip(*values, strict=True))


async def test_a_numeric_without_a_size_keeps_the_digits(target: Side) -> None:
    column = column_of("numeric", Type(Kind.DECIMAL, 9, 3))
    binary_way, text_way = await written(target, [column], batch_of([column], [[Decimal("1.500"), Decimal("0.000")]]))
    assert binary_way == text_way == ["(0.000)", "(1.500)"]


async def test_many_columns_in_slices_and_with_nulls_here_and_there(
    target: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binary, "ROWS", 1000)
    numbers = random.Random(3)
    rows = 2 * binary.ROWS + 7
    columns = [column_of(native, type, f"c{place}") for place, (native, type, _) in enumerate(CASES)]
    values = [
        [
            None if numbers.random() < share else numbers.choice([one for one in some if one != TEXTS[-1]])
            for _ in range(rows)
        ]
        for place, (_, _, some) in enumerate(CASES)
        for share in (0.0 if place % 3 == 0 else 0.2,)
    ]
    batch = batch_of(columns, values).slice(5)
    binary_way, text_way = await written(target, columns, batch)
    assert binary_way == text_way


async def test_large_rows_are_not_joined_all_at_once(target: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary, "MOST", 100_000)
    column = column_of("text", Type(Kind.TEXT))
    batch = batch_of([column], [["x" * 60_000] * 20])
    encode = binary.encoder([column], Table("t", (column,), details={"plain": {"v": "text"}}))
    assert len(encode(batch)) == 20
    binary_way, text_way = await written(target, [column], batch)
    assert binary_way == text_way


async def test_no_rows_are_no_rows(target: Side) -> None:
    column = column_of("text", Type(Kind.TEXT))
    assert await written(target, [column], batch_of([column], [[]])) == [[], []]


def beyond(unit: str, value: int) -> Any:
    return pa.array([0, None, value], pa.int64()).cast(unit)


def days(value: int) -> Any:
    return pa.array([0, None, value], pa.int32()).cast(pa.date32())


def too_long() -> Any:
    """Decimals with more digits than their type says, as a file of another writer may hold."""
    wide = pa.array([Decimal(10) ** 12, None, Decimal(1)], pa.decimal128(16, 2))
    return pa.Array.from_buffers(pa.decimal128(12, 2), 3, wide.buffers())


REFUSED = {
    "before-4713-bc": ("timestamp without time zone", Kind.TIMESTAMP, beyond(pa.timestamp("us"), -(2**62))),
    "what-would-wrap": ("timestamp without time zone", Kind.TIMESTAMP, beyond(pa.timestamp("us"), -(2**63) + 1)),
    "a-day-that-would-wrap": ("date", Kind.DATE, days(-(2**31))),
    "a-day-past-the-last": ("date", Kind.DATE, days(2**31 - 1)),
    "more-digits-than-said": ("numeric(12,2)", Kind.DECIMAL, too_long()),
    "no-uuid": ("uuid", Kind.UUID, pa.array(["0000000000000000-0000-0000-0000-000", "x" * 36])),
    "a-short-uuid": ("uuid", Kind.UUID, pa.array(["a0eebc999c0b4ef8bb6d6bb9bd380a11"])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_come_out_as_another_value_is_refused(name: str) -> None:
    native, kind, array = REFUSED[name]
    column = column_of(native, Type(kind, 12, 2) if kind is Kind.DECIMAL else Type(kind))
    encode = binary.encoder([column], Table("t", (column,), details={"plain": {"v": native}}))
    with pytest.raises(StorageError, match="'v'"):
        encode(pa.RecordBatch.from_arrays([array], ["v"]))


@pytest.mark.parametrize(
    ("native", "type"),
    [
        ("integer", Type(Kind.INT64)),  # The server refuses what is too large, if it reads digits.
        ("double precision", Type(Kind.FLOAT32)),  # The digits of a short float are not those of a long one.
        ("numeric", Type(Kind.NUMERIC)),
        ("numeric(38,2)", Type(Kind.DECIMAL, 38, 2)),
        ("text", Type(Kind.JSON)),
        ("jsonb", Type(Kind.TEXT)),
        ("inet", Type(Kind.TEXT)),
        ("integer[]", Type(Kind.JSON)),
    ],
    ids=str,
)
def test_what_has_no_form_goes_as_text(native: str, type: Type) -> None:
    column = column_of(native, type)
    table = Table("t", (column,), details={"plain": {"v": native}})
    assert not has_binary_forms(Job(DUMP, table, "t"), table)


def test_a_domain_goes_as_text() -> None:
    column = column_of("text", Type(Kind.TEXT))
    table = Table("t", (replace(column, native="short"),), details={"plain": {"v": "text"}})
    assert not has_binary_forms(Job(DUMP, Table("s", (column,)), "t"), table)
