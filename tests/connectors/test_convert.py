"""Translation between languages, and the kinds: exact for every kind, or refused with the column's name."""

from __future__ import annotations

import asyncio
import csv as text_csv
import io
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.connectors.api.bulk import Column, Csv, Language, Piece, Pieces, StorageError
from headgate.connectors.values import convert, long_bytes
from headgate.connectors.values.arrow import arrow_type, batch_of, csv_bytes, csv_parser, with_null
from headgate.connectors.values.convert import (
    Normalizes,
    common,
    end_of_records,
    json_text,
    translated,
)
from headgate.connectors.values.kinds import (
    TEXT,
    Kind,
    Type,
    canonical,
    decimal_type,
    type_from_text,
    type_of_value,
    widest,
)

quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

plain_text = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('",\n\r\t\\\0'), max_size=8)
documents = st.recursive(
    st.booleans() | st.integers(-(2**70), 2**70) | plain_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_text, inner, max_size=3),
    max_leaves=5,
)
VALUES: dict[Type, st.SearchStrategy[Any]] = {
    Type(Kind.BOOL): st.booleans(),
    Type(Kind.INT16): st.integers(-(2**15), 2**15 - 1),
    Type(Kind.INT32): st.integers(-(2**31), 2**31 - 1),
    Type(Kind.INT64): st.integers(-(2**63), 2**63 - 1),
    Type(Kind.DECIMAL, 38, 10): st.decimals(-(10**27), 10**27, places=10),
    Type(Kind.DECIMAL, 12, 2): st.decimals(-(10**9), 10**9, places=2),
    Type(Kind.DECIMAL, 76, 40): st.decimals(-(10**30), 10**30, places=40),
    Type(Kind.NUMERIC): st.decimals(allow_nan=False, allow_infinity=False, places=3)
    | st.integers(-(10**60), 10**60).map(Decimal)
    | st.just(Decimal("NaN")),
    Type(Kind.FLOAT32): st.floats(width=32),
    Type(Kind.FLOAT64): st.floats(),
    TEXT: plain_text,
    Type(Kind.BYTES): st.binary(max_size=6),
    Type(Kind.DATE): st.dates(),
    Type(Kind.TIME): st.times(),
    Type(Kind.TIMESTAMP): st.datetimes(),
    Type(Kind.TIMESTAMPTZ): st.datetimes(timezones=st.just(UTC)),
    Type(Kind.UUID): st.uuids(),
    Type(Kind.JSON): documents,
}


async def as_pieces(data: Iterable[Any]) -> Pieces:
    for one in data:
        yield Piece(one, len(one), len(one))


async def collect(pieces: Pieces) -> list[Any]:
    return [piece.data async for piece in pieces]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in pieces that end anywhere."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[one:other] for one, other in pairwise(edges)]


def same(one: Any, other: Any) -> bool:
    """Equal, and NaN is equal to itself."""
    return repr(one) == repr(other) or one == other


@pytest.mark.parametrize("type", VALUES, ids=str)
@quick
@given(data=st.data())
def test_every_kind_goes_from_rows_over_arrow_to_csv_and_back(type: Type, data: st.DataObject) -> None:
    columns = (Column("first", type), Column("second", TEXT)) if data.draw(st.booleans()) else (Column("first", type),)
    values = data.draw(st.lists(st.none() | VALUES[type], max_size=6))
    rows = [{"first": value, **({"second": "x"} if len(columns) > 1 else {})} for value in values]

    async def there_and_back() -> None:
        text = b"".join(await collect(translated(as_pieces([rows]), Language.ROWS, Language.CSV, columns)))
        pieces = cut(text, data.draw(st.lists(st.integers(0, 1000), max_size=4)))
        back = await collect(translated(as_pieces(pieces), Language.CSV, Language.ROWS, columns))
        found = [row for some in back for row in some]
        assert len(found) == len(rows)
        for one, other in zip(found, rows, strict=True):
            assert same(one["first"], other["first"]), text
            assert one.get("second") == other.get("second")

    asyncio.run(there_and_back())


@quick
@given(
    st.lists(st.tuples(st.none() | plain_text, st.none() | plain_text, st.none() | st.integers(0, 9)), max_size=6),
    st.sampled_from([",", "\t", ";", "|", "\x1f", "é"]),
    st.sampled_from(["", "\\N", "NULL"]),
)
def test_csv_is_written_as_the_writer_wants_it(
    rows: list[tuple[str | None, str | None, int | None]], delimiter: str, null: str
) -> None:
    columns = (Column("a", TEXT), Column("b", TEXT), Column("c", Type(Kind.INT64)))
    batch = batch_of([dict(zip("abc", row, strict=True)) for row in rows], columns)
    text = csv_bytes(batch, columns, Csv(null, delimiter)).decode()
    assert parsed(text, delimiter, null) == [[value if value is None else str(value) for value in row] for row in rows]


def parsed(text: str, delimiter: str, null: str) -> list[list[str | None]]:
    """Read CSV and tell NULL from text: what has no quotes and is the word."""
    rows: list[list[str | None]] = []
    fields: list[str | None] = []
    at = 0
    while at < len(text):
        if text[at] == '"':
            end, value = at + 1, ""
            while text[end] != '"' or text[end + 1 : end + 2] == '"':
                value += text[end]
                end += 2 if text[end] == '"' else 1
            fields.append(value)
            at = end + 1
        else:
            end = min(place for place in (text.find(delimiter, at), text.find("\n", at)) if place >= 0)
            fields.append(None if text[at:end] == null else text[at:end])
            at = end
        if text[at] == "\n":
            rows.append(fields)
            fields = []
        at += 1
    return rows


@pytest.mark.parametrize("delimiter", [",", "\t", "|", "\x01"], ids=repr)
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1,2,3\n", "1,2,3\n"),
        (",,\n", "N,N,N\n"),
        (',"",\n', 'N,"",N\n'),
        (",1,\n,,2\n", "N,1,N\nN,N,2\n"),
        ('"a\n\nb",\n', '"a\n\nb",N\n'),
        ("\n\n", "N\nN\n"),
        ('"x\n\ny"\n\n""\n', '"x\n\ny"\nN\n""\n'),
        ("", ""),
    ],
    ids=["full", "empty", "quotes", "edges", "lines in a value", "one column", "one column with lines", "nothing"],
)
def test_empty_fields_get_the_word_for_null(text: str, wanted: str, delimiter: str) -> None:
    csv = Csv("N", delimiter)
    assert with_null(text.replace(",", delimiter).encode(), csv).decode() == wanted.replace(",", delimiter)


def test_a_family_that_is_welcome_does_not_change_how_csv_is_written() -> None:
    columns = (Column("a", TEXT),)
    batch = batch_of([{"a": None}, {"a": ""}], columns)
    assert csv_bytes(batch, columns, Csv(native="postgresql")) == csv_bytes(batch, columns) == b'\n""\n'


@quick
@given(st.lists(st.lists(plain_text, min_size=1, max_size=3), max_size=8), st.integers(0, 200))
def test_the_last_whole_record_is_found_in_any_piece(records: list[list[str]], size: int) -> None:
    out = io.StringIO()
    ends = [0]
    for record in records:
        text_csv.writer(out, lineterminator="\n", quoting=text_csv.QUOTE_ALL).writerow(record)
        ends.append(len(out.getvalue().encode()))
    data = out.getvalue().encode()[:size]
    assert end_of_records(data) == max(end for end in ends if end <= len(data))


async def test_blocks_are_split_at_records_wherever_pieces_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "BLOCK", 10)
    columns = (Column("a", TEXT), Column("b", TEXT))
    data = b'"x\ny","1"\n"""",\n"' + b"long\n" * 20 + b'","2"\n'
    for size in range(1, 9):
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        found = await collect(translated(as_pieces(pieces), Language.CSV, Language.ROWS, columns))
        assert [tuple(row.values()) for some in found for row in some] == [
            ("x\ny", "1"),
            ('"', None),
            ("long\n" * 20, "2"),
        ]


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (Type(Kind.INT16), "40000"),
        (Type(Kind.INT64), "1.5"),
        (Type(Kind.INT64), '""'),
        (Type(Kind.DECIMAL, 5, 2), "1.234"),
        (Type(Kind.DECIMAL, 5, 2), "12345.6"),
        (Type(Kind.DECIMAL, 50, 2), "1.234"),
        (Type(Kind.DECIMAL, 50, 2), "x"),
        (Type(Kind.BOOL), "true"),
        (Type(Kind.DATE), "2026-02-30"),
        (Type(Kind.TIMESTAMP), "2026-01-01 00:00:00.1234567"),
        (Type(Kind.TIMESTAMP), "2026-01-01 00:00:00+01"),
        (Type(Kind.BYTES), "abc"),
        (Type(Kind.BYTES), "\\x1"),
        (Type(Kind.BYTES), "\\xzz"),
    ],
    ids=str,
)
def test_text_that_a_column_cannot_hold_is_refused_with_its_name(type: Type, text: str) -> None:
    with pytest.raises(StorageError, match="column 'price'"):
        csv_parser((Column("x", TEXT), Column("price", type)))(f"a,{text}\n".encode())


LONG = (
    Column("id", Type(Kind.INT64)),
    Column("note", TEXT),
    Column("v", Type(Kind.BYTES)),
    Column("w", Type(Kind.BYTES)),
)


@pytest.mark.parametrize(
    "line",
    [
        f"1,a,\\x{'00ff2c5c' * 30},\\x0a\n",
        f'1,a,\\x{"00" * 70},\\x{"FF" * 90}\n2,,,\n3,"",\\x,\\x01\n',
        f'1,"a, ""\nb",,"\\x{"0a22" * 40}"\n',
        f'1,"\\x{"ab" * 60}",\\x01,\n',
        f"1,\\x{'ab' * 60},\\x{'cd' * 60},\n",
        f"1,a,,\\x{'00' * 70}",
    ],
    ids=["one", "several", "quoted", "a text", "a text and bytes", "without an end"],
)
def test_long_bytes_are_the_same_values_past_arrows_parser(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short = csv_parser(LONG)(line.encode())
    monkeypatch.setattr(long_bytes, "LEAST", 20)
    monkeypatch.setattr(long_bytes, "AT_ONCE", 14)
    assert csv_parser(LONG)(memoryview(bytearray(line.encode()))) == short


@pytest.mark.parametrize("end", ["1", "zz"])
def test_long_bytes_that_are_none_are_refused_with_the_columns_name(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_bytes, "LEAST", 20)
    with pytest.raises(StorageError, match="column 'v'"):
        csv_parser(LONG)(f"1,a,\\x{'00' * 40}{end},\n".encode())


ZONE = timezone(timedelta(hours=5))


@pytest.mark.parametrize(
    ("type", "value"),
    [
        (Type(Kind.BOOL), 1),
        (Type(Kind.INT64), True),
        (Type(Kind.INT64), 1.5),
        (Type(Kind.INT64), "1"),
        (Type(Kind.INT64), 2**63),
        (Type(Kind.INT16), 2**15),
        (Type(Kind.INT64), Decimal("NaN")),
        (Type(Kind.FLOAT64), 2**53 + 1),
        (Type(Kind.FLOAT64), True),
        (Type(Kind.FLOAT64), Decimal("0.1")),
        (Type(Kind.FLOAT32), 1e300),
        (Type(Kind.DECIMAL, 5, 2), Decimal("1.234")),
        (Type(Kind.DECIMAL, 5, 2), Decimal("NaN")),
        (Type(Kind.DECIMAL, 5, 2), 1.5),
        (Type(Kind.NUMERIC), "one"),
        (Type(Kind.NUMERIC), True),
        (TEXT, 1),
        (TEXT, b"x"),
        (TEXT, "\ud800"),
        (Type(Kind.BYTES), "x"),
        (Type(Kind.DATE), datetime(2026, 1, 1, 5)),
        (Type(Kind.DATE), 5),
        (Type(Kind.TIME), time(1, tzinfo=UTC)),
        (Type(Kind.TIMESTAMP), datetime(2026, 1, 1, tzinfo=UTC)),
        (Type(Kind.TIMESTAMP), date(2026, 1, 1)),
        (Type(Kind.TIMESTAMP), 5),
        (Type(Kind.TIMESTAMPTZ), datetime(2026, 1, 1)),
        (Type(Kind.TIMESTAMPTZ), "2026-01-01 00:00:00.1234567"),
        (Type(Kind.TIMESTAMP), "2026-01-01 00:00:00+01:00"),
        (Type(Kind.TIME), "00:00:00.1234567"),
        (Type(Kind.UUID), "x"),
        (Type(Kind.JSON), float("nan")),
        (Type(Kind.JSON), {"a": [None, float("inf")]}),
        (Type(Kind.JSON), {"a": Decimal("NaN")}),
    ],
    ids=lambda one: str(one).encode("ascii", "backslashreplace").decode(),
)
def test_a_value_that_a_column_cannot_hold_is_refused_with_its_name(type: Type, value: Any) -> None:
    with pytest.raises(StorageError, match="column 'price'"):
        batch_of([{"price": value}], (Column("price", type),))


@pytest.mark.parametrize(
    ("type", "value", "found"),
    [
        (Type(Kind.INT64), 5.0, 5),
        (Type(Kind.INT64), Decimal("5.00"), 5),
        (Type(Kind.FLOAT64), 5, 5.0),
        (Type(Kind.DECIMAL, 5, 2), 5, Decimal("5.00")),
        (Type(Kind.NUMERIC), 5, "5"),
        (Type(Kind.NUMERIC), Decimal("1E+3"), "1000"),
        (Type(Kind.NUMERIC), 0.1, "0.1"),
        (Type(Kind.NUMERIC), "1.50", "1.50"),
        (Type(Kind.UUID), "00000000000000000000000000000001", str(UUID(int=1))),
        (Type(Kind.BYTES), bytearray(b"x"), b"x"),
        (Type(Kind.TIMESTAMPTZ), datetime(2026, 1, 1, tzinfo=ZONE), datetime(2025, 12, 31, 19, tzinfo=UTC)),
        (Type(Kind.TIMESTAMPTZ), "2026-01-01 00:00:00", datetime(2026, 1, 1, tzinfo=UTC)),
        (Type(Kind.TIMESTAMP), "2026-01-01 00:00:00.1230000000", datetime(2026, 1, 1, 0, 0, 0, 123000)),
        (Type(Kind.JSON), "x", '"x"'),
        (Type(Kind.JSON), {"a": None, "b": Decimal("1.50")}, '{"a":null,"b":1.50}'),
    ],
    ids=str,
)
def test_a_value_of_another_sort_that_means_the_same_is_taken(type: Type, value: Any, found: Any) -> None:
    batch = batch_of([{"v": value}, {}], (Column("v", type),))
    assert batch.column(0).to_pylist() == [found, None]


def test_a_field_that_is_no_column_ends_the_chunk() -> None:
    with pytest.raises(StorageError, match="field 'z'"):
        batch_of([{"a": "x"}, {"z": 1}], (Column("a", TEXT),))


@pytest.mark.parametrize(
    ("type", "array"),
    [
        (Type(Kind.TIMESTAMP), pa.array([2**62], pa.timestamp("us"))),
        (Type(Kind.JSON), pa.array(["{"])),
        (Type(Kind.UUID), pa.array(["x"])),
        (Type(Kind.NUMERIC), pa.array(["x"])),
    ],
    ids=["a late year", "json", "uuid", "numeric"],
)
async def test_what_python_cannot_hold_is_refused_with_its_column(type: Type, array: Any) -> None:
    batch = pa.RecordBatch.from_arrays([array], names=["price"])
    columns = (Column("price", type),)

    async def pieces() -> Pieces:
        yield Piece(batch, 1, 1)

    with pytest.raises(StorageError, match="column 'price'"):
        await collect(translated(pieces(), Language.ARROW, Language.ROWS, columns))


def test_numbers_that_are_none_have_their_own_words_in_csv() -> None:
    columns = (Column("a", Type(Kind.FLOAT64)), Column("b", Type(Kind.DECIMAL, 20, 12)))
    rows = [
        {"a": float("nan"), "b": Decimal("1E-12")},
        {"a": float("inf"), "b": None},
        {"a": float("-inf"), "b": Decimal(0)},
        {"a": None},
    ]
    assert csv_bytes(batch_of(rows, columns), columns).replace(b'"', b"") == (
        b"NaN,0.000000000001\nInfinity,\n-Infinity,0.000000000000\n,\n"
    )
    assert csv_bytes(batch_of(rows[1:2], columns), columns, Csv("\\N", ",")).replace(b'"', b"") == b"Infinity,\\N\n"


def test_a_storage_takes_the_nearest_language() -> None:
    class Speaks(Normalizes):
        languages = (Language.ROWS,)

    async def nothing() -> Pieces:
        return
        yield

    pieces = nothing()
    assert Speaks().normalize(pieces, Language.ROWS, ()) == (Language.ROWS, pieces)
    assert Speaks().normalize(nothing(), Language.CSV, ())[0] is Language.ROWS
    with pytest.raises(StorageError):
        Speaks().normalize(nothing(), Language.COPY, ())
    assert common((Language.COPY, Language.CSV), (Language.ROWS, Language.CSV)) is Language.CSV
    assert common((Language.COPY, Language.CSV), (Language.ROWS,)) is Language.CSV


# Kinds.


@pytest.mark.parametrize(
    "type",
    [*(Type(kind) for kind in Kind if kind is not Kind.DECIMAL), Type(Kind.DECIMAL, 12, 2), Type(Kind.TEXT, length=20)],
    ids=str,
)
def test_a_type_is_the_same_after_it_was_text(type: Type) -> None:
    assert type_from_text(str(type)) == type
    assert type_from_text(f" {str(type).upper()} ") == type
    assert arrow_type(type) is not None


@pytest.mark.parametrize(
    "text",
    ["", "integer", "decimal", "decimal(0,0)", "decimal(77,2)", "decimal(2,3)", "int64(3)", "text(1,2)", "int64)"],
)
def test_what_is_no_type_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"type|decimal|size"):
        type_from_text(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (True, "1"),
        (1.0, "1.0"),
        (float("-inf"), "-Infinity"),
        (Decimal("1E+3"), "1000"),
        (Decimal("1E-7"), "0.0000001"),
        (Decimal("NaN"), "NaN"),
        (b"\x00\xff", "\\x00ff"),
        (date(1, 1, 1), "0001-01-01"),
        (datetime(2026, 1, 1, tzinfo=ZONE), "2025-12-31 19:00:00"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ],
    ids=str,
)
def test_each_value_has_one_text(value: Any, text: str | None) -> None:
    assert canonical(value) == text


def test_types_of_values_and_the_widest_of_two() -> None:
    values = [True, 1, 2**63, 1.5, Decimal(1), b"", datetime(1, 1, 1), datetime(1, 1, 1, tzinfo=UTC), date(1, 1, 1)]
    types = [type_of_value(value) for value in [*values, time(1), UUID(int=1), {}, "x"]]
    wanted = "bool int64 numeric float64 numeric bytes timestamp timestamptz date time uuid json text"
    assert " ".join(map(str, types)) == wanted
    assert type_of_value(None) is None
    assert widest(Type(Kind.INT16), Type(Kind.INT32)) == Type(Kind.INT64)
    assert widest(Type(Kind.INT64), Type(Kind.DECIMAL, 5, 2)) == Type(Kind.NUMERIC)
    assert widest(Type(Kind.FLOAT32), Type(Kind.FLOAT64)) == Type(Kind.FLOAT64)
    assert widest(Type(Kind.TEXT, length=5), TEXT) == TEXT
    assert widest(Type(Kind.INT64), Type(Kind.JSON)) == Type(Kind.JSON)
    assert widest(Type(Kind.INT64), TEXT) is None
    assert decimal_type(77, 0) == decimal_type(5, 6) == Type(Kind.NUMERIC)


def test_json_keeps_every_digit() -> None:
    text = '{"a":0.12345678901234567890123,"b":123456789012345678901234567890,"c":null}'
    assert json_text(msgspec.json.decode(text, type=dict[str, Decimal | int | None])) != ""
    assert json_text(msgspec.json.Decoder(float_hook=Decimal).decode(text)) == text


RACE = """
import asyncio, sys
from headgate.connectors.api.bulk import Column, Language, Piece
from headgate.connectors.values.convert import translated
from headgate.connectors.values.kinds import Kind, Type

COLUMNS = [Column("id", Type(Kind.INT64))]


async def rows():
    yield Piece([{"id": 1}], 1, 1)


async def main():
    sees = []

    async def watch():
        while not sees or not sees[-1]:
            arrow = sys.modules.get("pyarrow")
            sees.append(arrow is not None)
            if arrow is not None:
                arrow.jemalloc_memory_pool  # What is half made has no such name.
            await asyncio.sleep(0)

    async def work():
        return [piece async for piece in translated(rows(), Language.ROWS, Language.CSV, COLUMNS)]

    await asyncio.gather(watch(), *(work() for _ in range(5)))
    assert not sees[0]


asyncio.run(main())
"""


def test_no_task_ever_sees_arrow_half_imported() -> None:
    """A thread that imports it lets other tasks see a module in the making: five workers began with small chunks."""
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
