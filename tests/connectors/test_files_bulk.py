"""CSV, JSON Lines and Parquet as storages: chunks cover a file exactly, values stay what they are, parts are whole."""

from __future__ import annotations

import asyncio
import csv as text_csv
import io
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.connectors.api.bulk import (
    PLAIN,
    AlreadyWritten,
    Column,
    Csv,
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
from headgate.connectors.files import csv, jsonl
from headgate.connectors.files import reader as files
from headgate.connectors.files import writer as parts
from headgate.connectors.files.manifest import MANIFEST, sidecar_of
from headgate.connectors.plugins import open_reader, open_writer
from headgate.connectors.sql import ledger
from headgate.connectors.values.convert import translated
from headgate.connectors.values.kinds import TEXT, Kind, Type
from headgate.errors import ConfigError, NotFound, Refused

DUMP = UUID("11111111-2222-3333-4444-555555555555")
OTHER = UUID("99999999-2222-3333-4444-555555555555")
quick = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))

EDGES = (
    Column("id", Type(Kind.INT64)),
    Column("small", Type(Kind.INT16)),
    Column("flag", Type(Kind.BOOL)),
    Column("price", Type(Kind.DECIMAL, 30, 10)),
    Column("huge", Type(Kind.NUMERIC)),
    Column("ratio", Type(Kind.FLOAT64)),
    Column("short", Type(Kind.FLOAT32)),
    Column("name", TEXT),
    Column("raw", Type(Kind.BYTES)),
    Column("day", Type(Kind.DATE)),
    Column("hour", Type(Kind.TIME)),
    Column("wall", Type(Kind.TIMESTAMP)),
    Column("instant", Type(Kind.TIMESTAMPTZ)),
    Column("uid", Type(Kind.UUID)),
    Column("doc", Type(Kind.JSON)),
)
EDGE_ROWS: list[dict[str, Any]] = [
    {
        "id": -(2**63),
        "small": -(2**15),
        "flag": True,
        "price": Decimal("-12345678901234567890.0123456789"),
        "huge": Decimal("1234567890123456789012345678901234567890.12345678901234567890"),
        "ratio": 0.1,
        "short": 0.5,
        "name": 'quotes " and, commas\r\nand lines \u20ac \U0001f600',
        "raw": bytes(range(256)),
        "day": date(1, 1, 1),
        "hour": time(23, 59, 59, 999999),
        "wall": datetime(1, 1, 1),
        "instant": datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
        "uid": UUID(int=1),
        "doc": {"a": [1, "x", None], "b": Decimal("0.12345678901234567890123")},
    },
    {
        "id": 2**63 - 1,
        "small": 0,
        "flag": False,
        "price": Decimal("0.0000000001"),
        "huge": Decimal("0"),
        "ratio": 1e-300,
        "short": 0.0,
        "name": "",
        "raw": b"",
        "day": date(9999, 12, 31),
        "hour": time(0),
        "wall": datetime(9999, 12, 31, 23, 59, 59, 999999),
        "instant": datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
        "uid": UUID(int=2**128 - 1),
        "doc": "text",
    },
    {column.name: None for column in EDGES},
    {**{column.name: None for column in EDGES}, "name": "a\0b", "id": 7},
]


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests see does not depend on it, and a busy disk takes its time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


async def as_pieces(data: Iterable[Any]) -> Pieces:
    for one in data:
        yield Piece(one, len(one), len(one))


def job_for(columns: tuple[Column, ...], target: str = "t", **changes: Any) -> Job:
    return Job(changes.pop("dump", DUMP), Table("t", columns), target, **changes)


def span(lo: int | None, hi: int) -> Range:
    return Range(None if lo is None else (str(lo),), (str(hi),))


async def put(url: str, job: Job, rows: list[dict[str, Any]], range: Range, **changes: Any) -> int:
    """Write rows as one chunk, in whatever language the target speaks."""
    target = open_writer(url)
    table = await target.prepare(job)
    language, pieces = target.normalize(as_pieces([rows]), Language.ROWS, job.source.columns)
    return await target.write(job, table, range, language, pieces, **changes)


async def ranges_of(reader: Any, table: Table, rows: int) -> list[Range]:
    top = await reader.top(table)
    found: list[Range] = []
    at = None
    while top is not None and at != top:
        hi = await reader.cut(table, at, top, rows)
        assert hi != at, "no progress"
        found.append(Range(at, hi))
        at = hi
    return found


async def read_rows(url: str, table: str = "", rows: int = 3, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """All rows of a table, read chunk by chunk."""
    reader = open_reader(url)
    found = await reader.describe(table or (await reader.tables())[0])
    if columns:
        found = found.with_columns(found.named(columns))
    result: list[dict[str, Any]] = []
    for one in await ranges_of(reader, found, rows):
        language = reader.languages[0]
        pieces = reader.query(found, one, language, PLAIN)
        async for piece in translated(pieces, language, Language.ROWS, found.columns):
            result += piece.data
    return result


async def bytes_of(reader: Any, table: Table, range: Range, csv: Csv = PLAIN) -> bytes:
    return b"".join([piece.data async for piece in reader.query(table, range, Language.CSV, csv)])


# Chunks cover a file.

field = st.text(st.sampled_from('ab",\n\r;é\U0001f600 \\'), max_size=6)


@quick
@given(st.lists(st.lists(field, min_size=2, max_size=2), max_size=25), st.integers(1, 9), st.booleans(), st.data())
def test_chunks_of_csv_together_are_the_file(
    tmp_path_factory: pytest.TempPathFactory, records: list[list[str]], rows: int, is_crlf: bool, data: st.DataObject
) -> None:
    """Whatever is in quotes, wherever it is cut: what the csv module reads in one go comes out."""
    out = io.StringIO()
    quoting = data.draw(st.sampled_from([text_csv.QUOTE_MINIMAL, text_csv.QUOTE_ALL]), "quoting")
    if (
        quoting == text_csv.QUOTE_MINIMAL
    ):  # The module writes a lone carriage return without quotes, and cannot read it.
        records = [[field.replace("\r", "") for field in record] for record in records]
    writer = text_csv.writer(out, lineterminator="\r\n" if is_crlf else "\n", quoting=quoting)
    writer.writerow(["a", "b"])
    writer.writerows(records)
    text = out.getvalue()
    if data.draw(st.booleans(), "last newline missing"):
        text = text.removesuffix("\n").removesuffix("\r")
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_bytes(data.draw(st.sampled_from([b"", b"\xef\xbb\xbf"]), "bom") + text.encode())
    found = asyncio.run(read_rows(f"csv:{path}", rows=rows))
    assert [[row["a"] or "", row["b"] or ""] for row in found] == records


json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@quick
@given(
    st.lists(st.dictionaries(st.sampled_from(["a", "b", "ü"]), json_value), max_size=20),
    st.integers(1, 7),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
    st.booleans(),
)
def test_chunks_of_json_lines_together_are_the_file(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]], rows: int, end: str, has_last: bool
) -> None:
    text = end.join(json.dumps(record, ensure_ascii=False) for record in records) + (end if has_last else "")
    path = tmp_path_factory.mktemp("jsonl") / "t.jsonl"
    path.write_text(text, newline="")
    assert asyncio.run(read_rows(f"jsonl:{path}", rows=rows)) == records


@quick
@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6), max_size=6), st.integers(1, 9))
def test_chunks_of_parquet_together_are_the_file(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[int]], rows: int
) -> None:
    path = tmp_path_factory.mktemp("parquet") / "t.parquet"
    with pq.ParquetWriter(path, pa.schema([("n", pa.int64())])) as out:
        for group in groups:
            out.write_table(pa.table({"n": pa.array(group, pa.int64())}))
    assert [row["n"] for row in asyncio.run(read_rows(f"parquet:{path}", rows=rows))] == [
        number for group in groups for number in group
    ]


@pytest.mark.parametrize("rows", [1, 2, 3, 50])
async def test_a_table_of_several_files_is_read_in_the_order_of_their_names(tmp_path: Path, rows: int) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    for number, some in enumerate([[1, 2, 3], [], [4], [5, 6, 7, 8]]):
        (folder / f"{number}.csv").write_text("n\n" + "".join(f"{one}\n" for one in some))
    (folder / "9.csv").write_text("")
    (folder / ".hidden.csv").write_text("n\n99\n")
    (folder / "notes.txt").write_text("n\n99\n")
    reader = open_reader(f"csv:{tmp_path}")
    assert await reader.tables() == ["t"]
    assert [row["n"] for row in await read_rows(f"csv:{tmp_path}", rows=rows)] == list(range(1, 9))
    top = await reader.top(await reader.describe("t"))
    assert top == ("3", str((folder / "3.csv").stat().st_size))


async def test_a_pattern_is_one_table(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"logs-{number}.jsonl").write_text(f'{{"n": {number}}}\n')
    assert await open_reader(f"jsonl:{tmp_path}/logs-?.jsonl").tables() == ["logs"]
    assert await read_rows(f"jsonl:{tmp_path}/logs-*.jsonl?sample=5") == [{"n": 1}, {"n": 2}]


async def test_a_folder_is_many_tables(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("x\n1\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.csv").write_text("x\n1\n")
    (tmp_path / "empty").mkdir()
    reader = open_reader(f"csv:{tmp_path}")
    assert await reader.tables() == ["a", "b"]
    with pytest.raises(NotFound):
        await reader.describe("c")
    with pytest.raises(NotFound):
        await open_reader(f"csv:{tmp_path}/nothing").tables()
    (tmp_path / "a.csv").write_text("x\n")
    with pytest.raises(Refused, match="twice"):
        await reader.tables()


async def test_a_record_larger_than_what_is_read_at_once_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (files, csv, jsonl):
        monkeypatch.setattr(module, "BLOCK", 16)
    long = 'x"y\n' * 50
    (tmp_path / "t.csv").write_text('a,b\n1,"' + long.replace('"', '""') + '"\n2,z\n')
    assert await read_rows(f"csv:{tmp_path / 't.csv'}", rows=1) == [{"a": "1", "b": long}, {"a": "2", "b": "z"}]
    (tmp_path / "t.jsonl").write_text(json.dumps({"a": long}) + "\n" + json.dumps({"a": "z"}))
    assert await read_rows(f"jsonl:{tmp_path / 't.jsonl'}", rows=1) == [{"a": long}, {"a": "z"}]


# What a file may look like.


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        pytest.param("", None, id="empty"),
        pytest.param("\ufeff", None, id="only a byte order mark"),
        pytest.param("a,b", [], id="header without newline"),
        pytest.param("a,b\n", [], id="header only"),
        pytest.param("a,b\r\n", [], id="header only with CRLF"),
        pytest.param("\ufeffa,b\n1,2\n", [["1", "2"]], id="byte order mark"),
        pytest.param("a,b\n1,2", [["1", "2"]], id="last newline missing"),
        pytest.param("a,b\n1,2\n\n", [["1", "2"]], id="blank line at the end"),
        pytest.param("a,b\n\n\n1,2\r\n\r\n", [["1", "2"]], id="blank lines"),
        pytest.param('a,b\n,""\n', [[None, ""]], id="NULL and the empty string"),
        pytest.param('a,b\n"x\r\ny",z\r\n', [["x\r\ny", "z"]], id="CRLF in a value"),
        pytest.param('"a","b"\n007, 1 \n', [["007", " 1 "]], id="text stays text"),
    ],
)
async def test_a_csv_file_may_look_like_this(tmp_path: Path, text: str, rows: list[list[Any]] | None) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text, newline="")
    table = await open_reader(f"csv:{path}").describe("t")
    assert [column.name for column in table.columns] == ([] if rows is None else ["a", "b"])
    assert [list(row.values()) for row in await read_rows(f"csv:{path}?sample=0")] == (rows or [])


async def test_with_one_column_an_empty_line_is_null(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a\nx\n\n""\n')
    assert await read_rows(f"csv:{tmp_path / 't.csv'}") == [{"a": "x"}, {"a": None}, {"a": ""}]


@pytest.mark.parametrize(
    ("data", "where"),
    [
        pytest.param(b'a,b\n1,2\n3,"4\n', "line 3 .*quote", id="odd quotes"),
        pytest.param(b'a,b\n1,2\n3,x"y"\n', "line 3 .*quote", id="quote in a field"),
        pytest.param(b'a,b\n1,2\n"x"y,4\n', "line 3 .*quote", id="text after a quote"),
        pytest.param(b"a,b\n1,2\n3,4,5\n", "line 3: 3 fields for 2 columns", id="too many fields"),
        pytest.param(b"a,b\n1,2\n3\n", "line 3: 1 field ", id="too few fields"),
        pytest.param(b"a,b\n1,2\n3,\xff\n", "byte 10: the text is not utf-8", id="invalid UTF-8"),
    ],
)
async def test_broken_csv_ends_its_chunk_with_the_place(tmp_path: Path, data: bytes, where: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    with pytest.raises(StorageError, match=f"t.csv, {where}"):
        await read_rows(f"csv:{path}", rows=100)


@pytest.mark.parametrize("header", ["a,a", "a,", ",a", "\na"])
async def test_a_header_that_names_no_columns_is_refused(tmp_path: Path, header: str) -> None:
    (tmp_path / "t.csv").write_text(f"{header}\n1,2\n")
    with pytest.raises(Refused):
        await open_reader(f"csv:{tmp_path / 't.csv'}").describe("t")


async def test_files_of_one_table_must_have_the_same_header(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("a\n1\n")
    (tmp_path / "2.csv").write_text("b\n1\n")
    with pytest.raises(Refused, match="other columns"):
        await open_reader(f"csv:{tmp_path}/*.csv").describe((await open_reader(f"csv:{tmp_path}/*.csv").tables())[0])


async def test_other_dialects_are_named_in_the_url(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes('1;"é;x";\\N;\n'.encode("latin-1"))
    url = f"csv:{path}?delimiter=;&header=false&null=\\N&encoding=latin-1"
    assert await read_rows(url) == [{"c1": 1, "c2": "é;x", "c3": None, "c4": ""}]
    path.write_text("a\tb\n1\t,\n")
    assert await read_rows(f"csv:{path}?delimiter=tab") == [{"a": 1, "b": ","}]
    for option in ("delimiter=ab", "encoding=utf-16", "encoding=klingon", "header=maybe", "colour=red"):
        with pytest.raises(ConfigError):
            open_reader(f"csv:{path}?{option}")


async def test_csv_passes_untouched_and_other_csv_is_made_to_order(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('a,b\n1,"x,""y"\n,""\n')
    reader = open_reader(f"csv:{path}")
    table = await reader.describe("t")
    [whole] = await ranges_of(reader, table, 100)
    assert await bytes_of(reader, table, whole) == b'1,"x,""y"\n,""\n'
    assert await bytes_of(reader, table, whole, Csv("\\N", "\t")) == b'"1"\t"x,""y"\n\\N\t""\n'
    assert await bytes_of(reader, table, whole, Csv(native="postgresql")) == b'1,"x,""y"\n,""\n'
    some = table.with_columns(table.named(["b"]))
    assert await bytes_of(reader, some, whole) == b'"x,""y"\n""\n'


@pytest.mark.parametrize(
    ("lines", "kinds"),
    [
        pytest.param(['{"a": 1}', '{"a": null}'], {"a": Kind.INT64}, id="whole"),
        pytest.param(['{"a": 1.5}', '{"a": 1e3}'], {"a": Kind.FLOAT64}, id="fractions"),
        pytest.param(['{"a": 1}', '{"a": 1.50}'], {"a": Kind.FLOAT64}, id="numbers"),
        pytest.param(['{"a": 0.12345678901234567890}'], {"a": Kind.NUMERIC}, id="more digits than a float has"),
        pytest.param(['{"a": 18446744073709551616}', '{"a": 0.5}'], {"a": Kind.NUMERIC}, id="huge"),
        pytest.param(['{"a": true}'], {"a": Kind.BOOL}, id="boolean"),
        pytest.param(['{"a": "2026-11-16"}'], {"a": Kind.TEXT}, id="text"),
        pytest.param(['{"a": 1}', '{"a": "1"}'], {"a": Kind.JSON}, id="several sorts"),
        pytest.param(['{"a": {"b": 1}}', '{"c": [1]}'], {"a": Kind.JSON, "c": Kind.JSON}, id="nested"),
        pytest.param(['{"a": null}'], {"a": Kind.JSON}, id="nothing known"),
    ],
)
async def test_types_of_json_come_from_the_first_records(
    tmp_path: Path, lines: list[str], kinds: dict[str, Kind]
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines))
    table = await open_reader(f"jsonl:{path}").describe("t")
    assert {column.name: column.type.kind for column in table.columns} == kinds
    assert table.sampled
    found = await read_rows(f"jsonl:{path}")
    assert found == [
        json.loads(line, parse_float=float if Kind.FLOAT64 in kinds.values() else Decimal) for line in lines
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        pytest.param('{"a": "x"}', "line 3: field 'a': 'x' is text, and the column is int64", id="another sort"),
        pytest.param('{"a": 1.5}', "line 3: field 'a'", id="a fraction"),
        pytest.param('{"a": 9223372036854775808}', "line 3: field 'a'", id="too large"),
        pytest.param('{"a": true}', "line 3: field 'a'", id="a boolean"),
        pytest.param('{"a": 1, "z": 1}', "line 3: field 'z' is new", id="a new field"),
        pytest.param('{"a": 1', "line 3: not JSON", id="cut off"),
        pytest.param('{"a": 1} x', "line 3: not JSON", id="something behind"),
        pytest.param('{"a": NaN}', "line 3: not JSON", id="not a number"),
        pytest.param("[1]", "line 3: a record must be an object", id="no object"),
        pytest.param("7", "line 3: a record must be an object", id="a number alone"),
    ],
)
async def test_a_later_record_that_does_not_fit_is_told_with_its_line(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f'{{"a": 1}}\n\n{line}\n{{"a": 2}}\n')
    with pytest.raises(StorageError, match=f"t.jsonl, {told}"):
        await read_rows(f"jsonl:{path}?sample=1", rows=100)


async def test_json_that_is_not_utf8_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'{"a": "x"}\n{"a": "\xff"}\n')
    with pytest.raises(StorageError, match="line 2: not JSON"):
        await read_rows(f"jsonl:{tmp_path / 't.jsonl'}?sample=1")


async def test_nested_objects_become_columns_if_told_so(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"id": 1, "user": {"email": "x", "tags": ["a"]}}\n{"id": 2, "user": {}}\n')
    assert await read_rows(f"jsonl:{path}?nested=flatten") == [
        {"id": 1, "user.email": "x", "user.tags": ["a"]},
        {"id": 2},
    ]
    path.write_text('{"a.b": 1, "a": {"b": 2}}\n')
    with pytest.raises(StorageError, match=r"'a\.b' occurs twice"):
        await read_rows(f"jsonl:{path}?nested=flatten")
    for option in ("nested=no", "sample=x", "sample=0"):
        with pytest.raises(ConfigError):
            open_reader(f"jsonl:{path}?{option}")


async def test_only_the_columns_that_are_asked_for_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"a": 1, "b": 2, "c": 3}\n')
    assert await read_rows(f"jsonl:{tmp_path / 't.jsonl'}", columns=["c", "a"]) == [{"c": 3, "a": 1}]
    (tmp_path / "t.csv").write_text("a,b,c\n1,2,3\n")
    assert await read_rows(f"csv:{tmp_path / 't.csv'}", columns=["c", "a"]) == [{"c": 3, "a": 1}]
    pq.write_table(pa.table({"a": [1], "b": [2], "c": [3]}), tmp_path / "t.parquet")
    assert await read_rows(f"parquet:{tmp_path / 't.parquet'}", columns=["c", "a"]) == [{"c": 3, "a": 1}]


FOREIGN = [
    pytest.param(pa.array([0, 255], pa.uint8()), Type(Kind.INT16), [0, 255], id="uint8"),
    pytest.param(pa.array([65535], pa.uint16()), Type(Kind.INT32), [65535], id="uint16"),
    pytest.param(pa.array([2**32 - 1], pa.uint32()), Type(Kind.INT64), [2**32 - 1], id="uint32"),
    pytest.param(pa.array([2**64 - 1], pa.uint64()), Type(Kind.DECIMAL, 20, 0), [Decimal(2**64 - 1)], id="uint64"),
    pytest.param(pa.array([-128], pa.int8()), Type(Kind.INT16), [-128], id="int8"),
    pytest.param(pa.array(["x", None, "x"]).dictionary_encode(), TEXT, ["x", None, "x"], id="dictionary"),
    pytest.param(pa.array(["x"], pa.large_string()), TEXT, ["x"], id="large_string"),
    pytest.param(pa.array([b"x\0"], pa.large_binary()), Type(Kind.BYTES), [b"x\0"], id="large_binary"),
    pytest.param(pa.array([b"xy"], pa.binary(2)), Type(Kind.BYTES), [b"xy"], id="fixed_size_binary"),
    pytest.param(pa.array([None], pa.null()), TEXT, [None], id="null"),
    pytest.param(pa.array([1.5], pa.float16()), Type(Kind.FLOAT32), [1.5], id="float16"),
    pytest.param(pa.array([1], pa.time32("s")), Type(Kind.TIME), [time(0, 0, 1)], id="time32"),
    pytest.param(pa.array([86_400_000], pa.date64()), Type(Kind.DATE), [date(1970, 1, 2)], id="date64"),
    pytest.param(pa.array([1], pa.timestamp("s")), Type(Kind.TIMESTAMP), [datetime(1970, 1, 1, 0, 0, 1)], id="seconds"),
    pytest.param(
        pa.array([1000], pa.timestamp("ns", "Europe/Berlin")),
        Type(Kind.TIMESTAMPTZ),
        [datetime(1970, 1, 1, 0, 0, 0, 1, UTC)],
        id="nanoseconds with a zone",
    ),
    pytest.param(
        pa.array([Decimal("1.5")], pa.decimal256(50, 3)), Type(Kind.DECIMAL, 50, 3), [Decimal("1.500")], id="decimal256"
    ),
    pytest.param(pa.array([[1, 2], None]), Type(Kind.JSON), [[1, 2], None], id="list"),
    pytest.param(pa.array([{"a": {"b": 1}}]), Type(Kind.JSON), [{"a": {"b": 1}}], id="struct"),
    pytest.param(pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), Type(Kind.JSON), [[["k", 1]]], id="map"),
]


@pytest.mark.parametrize(("array", "type", "values"), FOREIGN)
async def test_types_of_other_writers_are_understood_exactly(
    tmp_path: Path, array: Any, type: Type, values: list[Any]
) -> None:
    pq.write_table(pa.table({"v": array}), tmp_path / "t.parquet")
    table = await open_reader(f"parquet:{tmp_path / 't.parquet'}").describe("t")
    assert table.columns[0].type == type
    assert [row["v"] for row in await read_rows(f"parquet:{tmp_path / 't.parquet'}")] == values


async def test_parquet_that_cannot_be_held_is_refused_with_the_column(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"late": pa.array([1], pa.duration("us"))}), path)
    with pytest.raises(Refused, match="'late' is duration"):
        await open_reader(f"parquet:{path}").describe("t")
    pq.write_table(pa.table({"fine": pa.array([1], pa.timestamp("ns"))}), path)
    with pytest.raises(StorageError, match="'fine'"):
        await read_rows(f"parquet:{path}")
    path.write_bytes(b"PAR1 this is not")
    with pytest.raises(StorageError, match=r"t\.parquet"):
        await open_reader(f"parquet:{path}").describe("t")


# A file that changes.


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
async def test_a_file_that_has_changed_is_not_read(tmp_path: Path, kind: str) -> None:
    url = f"{kind}:{tmp_path / f't.{kind}'}"
    await put(url, job_for(EDGES), EDGE_ROWS, span(None, 1))
    await open_writer(url).finish(job_for(EDGES))
    reader = open_reader(url)
    table = await reader.describe("t")
    assert [
        one async for one in reader.query(table, (await ranges_of(reader, table, 9))[0], reader.languages[0], PLAIN)
    ]
    [range] = await ranges_of(reader, table, 9)
    os.utime(tmp_path / f"t.{kind}", ns=(1, 1))
    with pytest.raises(Refused, match="has changed"):
        [one async for one in reader.query(table, range, reader.languages[0], PLAIN)]
    with pytest.raises(Refused, match="has changed"):
        await reader.cut(table, None, range.hi, 1)
    (tmp_path / f"t.{kind}").unlink()
    with pytest.raises(StorageGone):
        [one async for one in reader.query(table, range, reader.languages[0], PLAIN)]


# Round trips.


@pytest.mark.parametrize("shape", ["file", "folder"])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
async def test_values_at_the_edges_come_back(tmp_path: Path, kind: str, shape: str) -> None:
    url = f"{kind}:{tmp_path / ('t.' + kind if shape == 'file' else 'out')}"
    job = job_for(EDGES)
    assert await put(url, job, EDGE_ROWS[:2], span(None, 5)) == 2
    assert await put(url, job, EDGE_ROWS[2:], span(5, 9)) == 2
    await open_writer(url).finish(job)
    table = await open_reader(url).describe("t")
    assert [(one.name, one.type) for one in table.columns] == [(one.name, one.type) for one in EDGES]
    found = await read_rows(url, "t")
    assert sorted(found, key=lambda row: (row["id"] is None, row["id"])) == sorted(
        EDGE_ROWS, key=lambda row: (row["id"] is None, row["id"])
    )
    if shape == "file":
        assert found == EDGE_ROWS


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
async def test_json_has_no_word_for_what_is_no_number(tmp_path: Path, value: float) -> None:
    for kind in (Kind.FLOAT64, Kind.JSON):
        columns = (Column("v", Type(kind)),)
        with pytest.raises(StorageError, match="'v'"):
            await put(f"jsonl:{tmp_path}", job_for(columns), [{"v": value}], span(None, 1))
    assert [one.name for one in (tmp_path / "t").iterdir()] == []
    for kind in ("csv", "parquet"):
        columns = (Column("v", Type(Kind.FLOAT64)), Column("w", Type(Kind.NUMERIC)))
        url = f"{kind}:{tmp_path / kind}"
        await put(url, job_for(columns), [{"v": value, "w": Decimal(str(value))}], span(None, 1))
        await open_writer(url).finish(job_for(columns))
        assert str(await read_rows(url)) == str([{"v": value, "w": Decimal(str(value))}])


async def test_json_is_written_for_people_and_other_programs(tmp_path: Path) -> None:
    url = f"jsonl:{tmp_path / 't.jsonl'}"
    await put(url, job_for(EDGES), EDGE_ROWS[:1], span(None, 1))
    await open_writer(url).finish(job_for(EDGES))
    found = json.loads((tmp_path / "t.jsonl").read_text(), parse_float=Decimal)
    assert found["huge"] == EDGE_ROWS[0]["huge"]
    assert found["doc"] == EDGE_ROWS[0]["doc"]
    assert found["instant"] == "9999-12-31T23:59:59.999999Z"
    assert found["wall"] == "0001-01-01 00:00:00"
    assert found["raw"].startswith("\\x0001")
    assert found["uid"] == "00000000-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.TIMESTAMPTZ, "2026-01-01T00:00:00.1234567Z"),
        (Kind.TIMESTAMPTZ, "2026-01-01T00:00:00"),
        (Kind.TIMESTAMP, "2026-01-01T00:00:00Z"),
        (Kind.TIME, "00:00:00.1234567"),
        (Kind.TIME, "00:00:00Z"),
        (Kind.DATE, "2026-02-30"),
        (Kind.UUID, "x"),
        (Kind.BYTES, "x"),
    ],
    ids=str,
)
async def test_text_that_is_not_what_the_manifest_says_is_told_with_its_line(
    tmp_path: Path, kind: Kind, text: str
) -> None:
    job = job_for((Column("v", Type(kind)),))
    await put(f"jsonl:{tmp_path}", job, [], span(None, 1))
    await open_writer(f"jsonl:{tmp_path}").finish(job)
    (tmp_path / "t" / "z.jsonl").write_text(json.dumps({"v": text}) + "\n")
    with pytest.raises(StorageError, match=r"z\.jsonl, line 1: field 'v'"):
        await read_rows(f"jsonl:{tmp_path}")


# Parts.

N = (Column("n", Type(Kind.INT64)), Column("s", TEXT))


def rows_of(*numbers: int) -> list[dict[str, Any]]:
    return [{"n": number, "s": str(number)} for number in numbers]


KINDS = ["csv", "jsonl", "parquet"]


@pytest.mark.parametrize("shape", ["t.{}", "out"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_chunk_is_written_once(tmp_path: Path, kind: str, shape: str) -> None:
    url, job = f"{kind}:{tmp_path / shape.format(kind)}", job_for(N)
    target = open_writer(url)
    assert await target.look("t") is None
    await put(url, job, rows_of(3, 4), span(2, 4))
    assert await target.unfinished("t") == [DUMP]
    await put(url, job, rows_of(1, 2), span(None, 2))
    for _ in range(2):
        with pytest.raises(AlreadyWritten):
            await put(url, job, rows_of(9), span(None, 2))
        assert await target.done(job) == {span(None, 2): 2, span(2, 4): 2}
        await target.finish(job)
        assert await target.unfinished("t") == []
    looked = await target.look("t")
    assert looked is not None
    assert looked.rows == 4
    assert {row["n"] for row in await read_rows(url)} == {1, 2, 3, 4}
    assert not [one.name for one in tmp_path.rglob("*.part")]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_single_file_has_its_rows_in_the_order_of_the_source(tmp_path: Path, kind: str) -> None:
    url, job = f"{kind}:{tmp_path / f'out.{kind}'}", job_for(N)
    await put(url, job, rows_of(5), span(9, 10))
    await put(url, job, rows_of(1, 2), span(None, 4))
    await put(url, job, rows_of(), span(4, 8))
    with pytest.raises(StorageError, match="cannot be joined"):
        await open_writer(url).finish(job)
    await put(url, job, rows_of(3, 4), span(8, 9))
    await open_writer(url).finish(job)
    assert [row["n"] for row in await read_rows(url)] == [1, 2, 3, 4, 5]
    later = job_for(N, dump=OTHER)
    await put(url, later, rows_of(6), span(None, 1))
    await open_writer(url).finish(later)
    assert await read_rows(url) == rows_of(1, 2, 3, 4, 5, 6)
    fresh = job_for(N, dump=UUID(int=5), mode=Mode.REPLACE)
    await put(url, fresh, rows_of(7), span(None, 1))
    assert len(await read_rows(url)) == 6
    await open_writer(url).finish(fresh)
    assert await read_rows(url) == rows_of(7)
    assert sorted(one.name for one in tmp_path.iterdir()) == [f".out.{kind}.headgate.json", f"out.{kind}"]


async def test_a_single_file_of_somebody_else_is_appended_to_if_its_header_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("n,s\r\n1,x")
    url = f"csv:{path}"
    await put(url, job_for(N), rows_of(2), span(None, 1))
    await open_writer(url).finish(job_for(N))
    assert path.read_bytes() == b'n,s\n1,x\n2,"2"\n'
    path.write_text("other\n1\n")
    with pytest.raises(Refused, match="other columns"):
        await open_writer(url).prepare(job_for(N, dump=OTHER))


@pytest.mark.parametrize("kind", KINDS)
async def test_parts_count_for_readers_when_their_dump_is_finished(tmp_path: Path, kind: str) -> None:
    url, job = f"{kind}:{tmp_path}", job_for(N)
    await put(url, job, rows_of(1), span(None, 1))
    await open_writer(url).finish(job)
    other = job_for(N, dump=OTHER)
    await put(url, other, rows_of(2), span(None, 1))
    assert await read_rows(url) == rows_of(1)
    await open_writer(url).finish(other)
    assert sorted(row["n"] for row in await read_rows(url)) == [1, 2]
    assert (await read_rows(f"{kind}:{tmp_path / 't'}"))[0].keys() == {"n", "s"}
    manifest = json.loads((tmp_path / "t" / MANIFEST).read_text())
    assert [one["rows"] for one in manifest["parts"]] == [1, 1]
    with pytest.raises(Refused, match="other columns"):
        await open_writer(url).prepare(job_for(EDGES, dump=UUID(int=7)))


async def test_a_crash_between_line_and_name_leaves_nothing_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, job, target = f"csv:{tmp_path}", job_for(N), open_writer(f"csv:{tmp_path}")

    def die(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            await put(url, job, rows_of(1), span(None, 1))
    part = target._part(job, span(None, 1))  # type: ignore[attr-defined]
    assert sidecar_of(part).exists()
    assert await target.done(job) == {}
    assert await target.unfinished("t") == []
    stray = part.with_name(f".{part.name}.12345678.part")
    stray.write_text("half of")
    await target.undo(job, Table("t", N), span(None, 1))
    assert not stray.exists()
    await put(url, job, rows_of(1), span(None, 1))
    assert await target.done(job) == {span(None, 1): 1}


async def test_a_part_is_written_anew_for_a_repair(tmp_path: Path) -> None:
    url, job = f"csv:{tmp_path / 'out'}", job_for(N)
    await put(url, job, rows_of(1), span(None, 1))
    await put(url, job, rows_of(1, 2), span(None, 1), again=True)
    await open_writer(url).finish(job)
    await put(url, job, rows_of(1, 2, 3), span(None, 1), again=True)
    assert len(await read_rows(url)) == 3
    assert await open_writer(url).done(job) == {span(None, 1): 3}
    assert await open_writer(url).unfinished("t") == []
    await open_writer(url).finish(job)
    url = f"csv:{tmp_path / 'one.csv'}"
    await put(url, job, rows_of(1), span(None, 1))
    await open_writer(url).finish(job)
    with pytest.raises(Refused, match="one file"):
        await put(url, job, rows_of(1), span(None, 1), again=True)


async def replaced(tmp_path: Path) -> tuple[str, Job]:
    """A folder with an old table, and a new one beside it that is ready to take its place."""
    url = f"jsonl:{tmp_path}"
    await put(url, job_for(N), rows_of(1), span(None, 1))
    await open_writer(url).finish(job_for(N))
    job = job_for(N, dump=OTHER, mode=Mode.REPLACE)
    await put(url, job, rows_of(2), span(None, 1))
    assert await read_rows(url) == rows_of(1)
    return url, job


@pytest.mark.parametrize("renames", [0, 1, 2])
async def test_a_swap_goes_on_wherever_it_was_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    url, job = await replaced(tmp_path)
    rename, remove, left = Path.rename, shutil.rmtree, [renames]

    def dying(self: Path, target: Path) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return rename(self, target)

    def dead(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", dying)
        patched.setattr(parts.shutil, "rmtree", dead)
        with pytest.raises(KeyboardInterrupt):
            await open_writer(url).finish(job)
    assert parts.shutil.rmtree is remove
    target = open_writer(url)
    assert await target.unfinished("t") == ([] if renames == 2 else [OTHER])
    await target.prepare(job)
    assert await target.done(job) == {span(None, 1): 1}
    await target.finish(job)
    await target.finish(job)
    assert await read_rows(url) == rows_of(2)
    assert [one.name for one in tmp_path.iterdir()] == ["t"]
    assert await target.unfinished("t") == []


@pytest.mark.parametrize("has_moved", [False, True])
async def test_a_joined_file_takes_its_place_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_moved: bool
) -> None:
    """An append that is broken off at its last step does not append twice."""
    url = f"csv:{tmp_path / 'out.csv'}"
    await put(url, job_for(N), rows_of(1), span(None, 1))
    await open_writer(url).finish(job_for(N))
    job = job_for(N, dump=OTHER)
    await put(url, job, rows_of(2), span(None, 1))
    move = Path.replace

    def dying(self: Path, target: Path) -> Any:
        if self.name != "joined":
            return move(self, target)
        if has_moved:
            move(self, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", dying)
        with pytest.raises(KeyboardInterrupt):
            await open_writer(url).finish(job)
    await open_writer(url).prepare(job)
    assert await open_writer(url).done(job) == {span(None, 1): 1}
    await open_writer(url).finish(job)
    assert await read_rows(url) == rows_of(1, 2)
    await open_writer(url).prepare(job)
    await open_writer(url).finish(job)
    assert await read_rows(url) == rows_of(1, 2)


async def test_what_is_built_beside_can_be_dropped(tmp_path: Path) -> None:
    url, job = await replaced(tmp_path)
    await open_writer(url).drop(job)
    assert [one.name for one in tmp_path.iterdir()] == ["t"]
    with pytest.raises(StorageError, match="no longer exists"):
        await open_writer(url).finish(job)
    assert await read_rows(url) == rows_of(1)


async def test_parts_built_beside_join_a_table_that_is_there(tmp_path: Path) -> None:
    url = f"parquet:{tmp_path}"
    await put(url, job_for(N), rows_of(1), span(None, 1))
    await open_writer(url).finish(job_for(N))
    job = job_for(N, dump=OTHER, aside=True)
    await put(url, job, rows_of(2), span(None, 1))
    assert await open_writer(url).unfinished("t") == [OTHER]
    await open_writer(url).finish(job)
    await open_writer(url).finish(job)
    assert sorted(row["n"] for row in await read_rows(url)) == [1, 2]
    assert [one.name for one in tmp_path.iterdir()] == ["t"]


async def test_nothing_of_others_is_lost_by_a_replacement(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "thesis.doc").write_text("years of work")
    with pytest.raises(Refused, match=r"thesis\.doc"):
        await open_writer(f"csv:{tmp_path}").prepare(job_for(N, mode=Mode.REPLACE))


@pytest.mark.parametrize("mode", [Mode.UPSERT, Mode.ABSENT])
async def test_files_have_no_keys(tmp_path: Path, mode: Mode) -> None:
    with pytest.raises(Refused, match="needs a key"):
        await open_writer(f"csv:{tmp_path}").prepare(job_for(N, mode=mode))


@pytest.mark.parametrize("name", ["../t", ".t", "", "a/b"])
async def test_a_table_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match="cannot be the name"):
        await open_writer(f"csv:{tmp_path}").prepare(job_for(N, target=name))


async def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """A write fails as on a full disk: one byte more than a file may have."""
    import resource
    import signal

    url, job = f"csv:{tmp_path}", job_for(N)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        with pytest.raises(StorageError, match="cannot be written"):
            await put(url, job, rows_of(*range(1000)), span(None, 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert list((tmp_path / "t").iterdir()) == []


async def test_two_workers_write_a_chunk_and_one_of_them_is_told(tmp_path: Path) -> None:
    url, job = f"csv:{tmp_path}", job_for(N)
    results = await asyncio.gather(
        *(put(url, job, rows_of(*range(count)), span(None, 1)) for count in (1, 2, 3)), return_exceptions=True
    )
    assert sum(isinstance(one, AlreadyWritten) for one in results) == 2
    [rows] = [one for one in results if isinstance(one, int)]
    assert await open_writer(url).done(job) == {span(None, 1): rows}
    await open_writer(url).finish(job)
    assert len(await read_rows(url)) == rows


async def test_a_source_that_fails_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    async def failing() -> AsyncIterator[Piece]:
        yield Piece(b"1,x\n", 4, 1)
        raise StorageError("the source broke")

    target, job = open_writer(f"csv:{tmp_path}"), job_for(N)
    table = await target.prepare(job)
    with pytest.raises(StorageError, match="broke"):
        await target.write(job, table, span(None, 1), Language.CSV, failing())
    assert list((tmp_path / "t").iterdir()) == []


async def test_one_file_holds_one_table(tmp_path: Path) -> None:
    url = f"csv:{tmp_path / 'out.csv'}"
    await open_writer(url).prepare(job_for(N, target="a"))
    with pytest.raises(Refused, match="already holds the table"):
        await open_writer(url).prepare(job_for(N, target="b"))


def test_a_mark_is_the_same_for_the_same_range() -> None:
    assert ledger.key_of(span(None, 1)) == ledger.key_of(span(None, 1)) != ledger.key_of(span(1, 2))
