"""PostgreSQL as a source: types stay exact, chunks cover a table once, and a snapshot is one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from headgate.connectors.api.bulk import PLAIN, By, Csv, Language, SnapshotGone, StorageError, StorageGone, Table
from headgate.connectors.plugins import open_reader
from headgate.connectors.postgres import reader as reader_module
from headgate.connectors.postgres.reader import PostgresReader
from headgate.connectors.urls import redacted
from headgate.connectors.values.convert import csv_to_arrow
from headgate.core.chunks import Range
from headgate.errors import ConfigError, NotFound, Refused
from headgate.store.embedded import EmbeddedServer
from tests.connectors.postgres_copy import (
    Side,
    chunks_of,
    copy_chunks,
    emptied,
    job_for,
    make_databases,
    reading,
    writing,
)
from tests.waiting import until


@pytest.fixture(scope="module")
def urls(server: EmbeddedServer) -> list[str]:
    return asyncio.run(make_databases(server.url))


@pytest.fixture
async def source(urls: list[str]) -> AsyncIterator[Side]:
    async with emptied(urls[0]) as side:
        yield side


@pytest.fixture
async def target(urls: list[str]) -> AsyncIterator[Side]:
    async with emptied(urls[1]) as side:
        yield side


TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'it''s ok', '\\ "x",');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN prices AS numeric(8,3);
CREATE DOMAIN cheap AS prices CHECK (VALUE < 100);
CREATE DOMAIN tags AS text[];
CREATE TYPE pair AS (a int, m mood);
"""
# Each with values at its edges, as SQL.
EDGES = {
    "numeric(1000,500)": ["'1e499'::numeric + 1e-500", "-0.5", "'NaN'"],
    "numeric": ["'NaN'", "'Infinity'", "'-Infinity'", "1e-1000", "'9' || repeat('9', 5000)", "1.500"],
    "numeric(20,5)": ["-123456789012345.67891", "'NaN'", "0"],
    "numeric(3,-2)": ["12300", "-99900"],
    "smallint": ["-32768", "32767"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "real": ["'-0'", "'NaN'", "'Infinity'", "'-Infinity'", "1e-45", "3.4028235e38", "0.1", "16777217"],
    "double precision": ["'-0'", "'NaN'", "'-Infinity'", "5e-324", "1.7976931348623157e308", "0.1", "1/3::float8"],
    "boolean": ["true", "false"],
    "text": [
        "''",
        "E'\\\\.'",
        "E'a\\n\\\\.\\nb'",
        "E'\\\\N'",
        "E'tab\\tquote\" apostrophe'' comma, \\r\\n\\x1f\\x01 '",
        "'\U0001f600 é ß'",
        "'NULL'",
        "'\"'",
        "' '",
    ],
    "varchar(5)": ["'  x  '", "'ééééé'", "''"],
    "char(5)": ["'ab'", "''", "'  a'"],
    '"char"': ["'a'", "''", "'\"'"],
    "name": ["'x'"],
    "bytea": ["'\\x'", "'\\x00ff5c2e0a22'"],
    "date": ["'infinity'", "'-infinity'", "'0044-03-15 BC'", "'5874897-12-31'", "'2000-02-29'"],
    "timestamp": ["'infinity'", "'-infinity'", "'4713-01-01 00:00:00 BC'", "'294276-12-31 23:59:59.999999'"],
    "timestamptz": ["'infinity'", "'0001-01-01 00:00:00 BC'", "'294276-12-31 23:59:59.999999+00'", "'1999-12-31 +14'"],
    "time": ["'24:00:00'", "'00:00:00'", "'23:59:59.999999'"],
    "timetz": ["'24:00:00-1559'", "'12:00+05:45'"],
    "interval": ["'178000000 years'", "'-1 mon 2 days -03:04:05.678901'", "'0'", "'infinity'"],
    "uuid": ["'ffffffff-ffff-ffff-ffff-ffffffffffff'", "'00000000-0000-0000-0000-000000000000'"],
    "json": ['\'{"b": 1,  "a":[null]}\'', "'null'", "'\"\\\\u0000\"'", "'1e400'"],
    "jsonb": ['\'{"a":1.50,"é":"\\\\n\\""}\'', "'null'", "'[]'"],
    "integer[]": ["'{}'", "'{1,NULL,3}'", "'[-1:0][2:3]={{1,2},{3,NULL}}'"],
    "text[]": ["ARRAY['', NULL, 'NULL', 'a,b', '\"', E'\\\\', E'\\n']", "'{{a,b},{c,d}}'"],
    "mood": ["'sad'", "'it''s ok'", "E'\\\\ \"x\",'"],
    "mood[]": ["ARRAY['sad', NULL, E'\\\\ \"x\",']::mood[]"],
    "positive": ["1", "2147483647"],
    "cheap": ["99.999", "-1.5"],
    "tags": ["'{a,b}'"],
    "pair": ["ROW(1, 'sad')", "ROW(NULL, NULL)", "ROW(2, E'\\\\ \"x\",')"],
    "int4range": ["'empty'", "'(,5]'", "'[1,9)'"],
    "tstzrange": ["'[2020-01-01 00:00+02,infinity)'"],
    "nummultirange": ["'{[1.5,2),(3,)}'"],
    "inet": ["'::1/64'", "'10.0.0.1'"],
    "cidr": ["'10.0.0.0/8'"],
    "macaddr": ["'08:00:2b:01:02:03'"],
    "macaddr8": ["'08:00:2b:01:02:03:04:05'"],
    "bit(5)": ["B'10101'"],
    "bit varying": ["B''", "B'101'"],
    "money": ["'-92233720368547758.08'", "1234.56"],
    "tsvector": ["'a:1A ''b c'':2'::tsvector"],
    "tsquery": ["'a & !b'"],
    "point": ["'(0.1,-0)'"],
    "oid": ["4294967295"],
    "pg_lsn": ["'FFFFFFFF/FFFFFFFF'"],
    "regclass": ["'pg_class'"],
    "jsonpath": ["'$.a[*] ? (@ > 1)'"],
}


async def make_edges(side: Side) -> None:
    await side.sql.execute("SET lc_monetary = 'C'")
    await side.sql.execute(TYPES)
    columns = ", ".join(f"c{place} {native}" for place, native in enumerate(EDGES))
    await side.sql.execute(f"CREATE TABLE edges (id int PRIMARY KEY, {columns})")
    for row in range(max(map(len, EDGES.values())) + 1):
        given = [f"({values[row]})::{native}" if row < len(values) else "NULL" for native, values in EDGES.items()]
        await side.sql.execute(f"INSERT INTO edges VALUES ({row}, {', '.join(given)})")


async def binary(side: Side, table: str) -> bytes:
    """All rows by their bits, as the server sends them; types with numbers of their own as text."""
    names = [
        f"{name}::text" if is_own else name
        for name, is_own in await side.rows(
            "SELECT quote_ident(attname), atttypid >= 16384 FROM pg_attribute"
            f" WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
    ]
    found: list[bytes] = []

    async def take(data: bytes) -> None:
        found.append(data)

    await side.sql.copy_from_query(f"SELECT {', '.join(names)} FROM {table} ORDER BY 1", output=take, format="binary")
    return b"".join(found)


@pytest.mark.parametrize("how", ["copy", "csv", "one differs"])
async def test_each_type_arrives_bit_by_bit(source: Side, target: Side, how: str) -> None:
    """Types whose binary form names other types by number travel as text; where only one differs, all do."""
    await make_edges(source)
    await target.sql.execute(TYPES)
    textual = [f"c{place}" for place, native in enumerate(EDGES) if native in ("mood[]", "pair", "regclass")]
    if how == "one differs":
        columns = ", ".join(f"c{place} {native}" for place, native in enumerate(EDGES))
        await target.sql.execute(f"CREATE TABLE edges (id bigint PRIMARY KEY, {columns})")
    if how != "csv":
        await source.sql.execute("".join(f"ALTER TABLE edges DROP {name};" for name in textual))
        await target.sql.execute("".join(f"ALTER TABLE IF EXISTS edges DROP {name};" for name in textual))
    job = await job_for(source, "edges", target)
    spoken = await copy_chunks(job, source, target, rows=3)
    assert set(spoken) == {Language.COPY if how == "copy" else Language.CSV}
    async with writing(target) as writer:
        await writer.finish(job)
    await target.sql.execute("ALTER TABLE edges ALTER id TYPE int")
    rows = await source.rows("SELECT t::text FROM edges t ORDER BY id")
    assert await target.rows("SELECT t::text FROM edges t ORDER BY id") == rows
    assert len(rows) > 5
    assert await binary(target, "edges") == await binary(source, "edges")


# Canonical CSV, as any other storage reads it.

CANONICAL: list[tuple[str, str, Any]] = [
    ("boolean", "true", True),
    ("smallint", "-32768", -32768),
    ("integer", "2147483647", 2147483647),
    ("bigint", "-9223372036854775808", -(2**63)),
    ("oid", "4294967295", 4294967295),
    ("numeric(76,38)", "-12345678901234567890.00000000000000000000000000000000000001", None),
    ("numeric(12,2)", "-0.05", Decimal("-0.05")),
    ("numeric", "'NaN'", "NaN"),
    ("numeric(1000,500)", "1.5", "1.5" + "0" * 499),
    ("money", "'1234.50'", "1234.50"),
    ("real", "0.1", 0.10000000149011612),
    ("real", "1e-45", 1.401298464324817e-45),
    ("double precision", "5e-324", 5e-324),
    ("double precision", "'-Infinity'", float("-inf")),
    ("text", "''", ""),
    ("text", "E'a\\n\\\\.\\nb,\"'", 'a\n\\.\nb,"'),
    ("text", "NULL", None),
    ("char(5)", "'ab'", "ab   "),
    ("bytea", "'\\x00ff0a'", b"\x00\xff\n"),
    ("bytea", "''", b""),
    ("date", "'0001-01-01'", date(1, 1, 1)),
    ("date", "'9999-12-31'", date(9999, 12, 31)),
    ("time", "'23:59:59.999999'", time(23, 59, 59, 999999)),
    ("timestamp", "'2026-11-16 13:45:00.123456'", datetime(2026, 11, 16, 13, 45, 0, 123456)),
    ("timestamp", "'0001-01-01'", datetime(1, 1, 1)),
    ("timestamptz", "'2026-11-16 13:45:00.5+05:45'", datetime(2026, 11, 16, 8, 0, 0, 500000, tzinfo=UTC)),
    ("uuid", "'FFFFFFFF-ffff-ffff-ffff-ffffffffffff'", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    ("json", "'{\"a\":  1}'", '{"a":  1}'),
    ("jsonb", "'{\"a\":  1.50}'", '{"a": 1.50}'),
    ("integer[]", "'[0:1][1:2]={{1,NULL},{3,4}}'", "[[1, null], [3, 4]]"),
    ("tags", "'{}'", "[]"),
    ("mood", "'sad'", "sad"),
    ("cheap", "1.5", Decimal("1.500")),
    ("interval", "'1 mon -2 days'", "1 mon -2 days"),
    ("timetz", "'12:00+05:45'", "12:00:00+05:45"),
    ("inet", "'::1/64'", "::1/64"),
    ("pair", "ROW(1, 'sad')", "(1,sad)"),
]
REFUSED = [
    ("timestamp", "'infinity'"),
    ("timestamptz", "'-infinity'"),
    ("timestamp", "'0044-03-15 00:00:00 BC'"),
    ("timestamptz", "'294276-12-31 23:59:59.999999+00'"),
    ("date", "'0044-03-15 BC'"),
    ("date", "'infinity'"),
    ("date", "'5874897-12-31'"),
    ("time", "'24:00:00'"),
    ("numeric(12,2)", "'NaN'"),
]


async def test_canonical_text_becomes_the_same_value(source: Side) -> None:
    columns = ", ".join(f"c{place} {native}" for place, (native, _, _) in enumerate(CANONICAL))
    values = ", ".join(value for _, value, _ in CANONICAL)
    await source.sql.execute(f"{TYPES} CREATE TABLE one (id int PRIMARY KEY, {columns})")
    await source.sql.execute(f"INSERT INTO one VALUES (1, {values})")
    async with reading(source) as reader:
        table = await reader.describe("one")
        found = await in_arrow(reader, table)
    for place, (native, value, expected) in enumerate(CANONICAL):
        wanted = Decimal(value) if expected is None and value != "NULL" else expected
        assert found.column(place + 1).to_pylist() == [wanted], native


async def in_arrow(reader: PostgresReader, table: Table) -> Any:
    pieces = reader.query(table, Range(None, ("1",)), Language.CSV, PLAIN)
    [batch] = [piece.data async for piece in csv_to_arrow(pieces, table.columns)]
    return batch


@pytest.mark.parametrize("csv", [PLAIN, Csv(null="NULL", delimiter="\x1f"), Csv(alike=True)], ids=str)
async def test_rows_with_long_bytes_are_the_same_without_the_driver(
    source: Side, monkeypatch: pytest.MonkeyPatch, csv: Csv
) -> None:
    """Their messages are taken apart as they come, wherever they are cut."""
    await source.sql.execute("CREATE TABLE long (id int PRIMARY KEY, note text, v bytea)")
    await source.sql.execute(
        "INSERT INTO long SELECT n, CASE WHEN n % 3 > 0 THEN repeat(E'a\"\\n,', n) END,"
        " CASE WHEN n % 5 > 0 THEN decode(repeat('00ff2c5c', n * 300), 'hex') END FROM generate_series(1, 300) AS n"
    )
    found = []
    asked: list[str] = []
    monkeypatch.setattr(reader_module, "copy_out_text", seen_by(asked, reader_module.copy_out_text))
    for least in (4 << 20, 0):
        monkeypatch.setattr(reader_module, "LARGE", least)
        async with reading(source) as reader:
            table = await reader.describe("long")
            pieces = [one async for one in reader.query(table, Range(None, ("300",)), Language.CSV, csv)]
            assert sum(one.rows for one in pieces) == 300
            found.append(b"".join(one.data for one in pieces))
            assert await reader.describe("long") == table, "the session goes on"
    assert found[0] == found[1]
    assert len(asked) == 1


def seen_by(asked: list[str], copy: Any) -> Any:
    def noted(connection: Any, query: str, *more: Any) -> Any:
        asked.append(query)
        return copy(connection, query, *more)

    return noted


async def test_what_a_kind_cannot_hold_is_refused_with_the_columns_name(source: Side) -> None:
    columns = ", ".join(f"c{place} {native}" for place, (native, _) in enumerate(REFUSED))
    await source.sql.execute(f"CREATE TABLE one (id int PRIMARY KEY, {columns})")
    await source.sql.execute(f"INSERT INTO one VALUES (1, {', '.join(value for _, value in REFUSED)})")
    async with reading(source) as reader:
        table = await reader.describe("one")
        for place in range(len(REFUSED)):
            with pytest.raises(StorageError, match=f"column 'c{place}'"):
                await in_arrow(reader, table.with_columns(table.named(["id", f"c{place}"])))


async def test_a_word_for_null_is_told_from_the_text_that_is_the_same_word(source: Side) -> None:
    await source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    await source.sql.execute("INSERT INTO t VALUES (1, 'NULL'), (2, NULL), (3, '')")
    async with reading(source) as reader:
        table = await reader.describe("t")
        csv = Csv(null="NULL", delimiter="\x1f")
        data = [piece.data async for piece in reader.query(table, Range(None, ("3",)), Language.CSV, csv)]
    assert b"".join(data) == b'"1"\x1f"NULL"\n"2"\x1fNULL\n"3"\x1f""\n'


# Describe.

KEYS = {
    "a primary key": ("CREATE TABLE t (a int, b int PRIMARY KEY, UNIQUE (a))", ("b",)),
    "a compound one in its own order": ("CREATE TABLE t (a int, b int, c int, PRIMARY KEY (c, a))", ("c", "a")),
    "a unique index": ("CREATE TABLE t (a int NOT NULL UNIQUE)", ("a",)),
    "the narrowest": (
        "CREATE TABLE t (a int NOT NULL, b int NOT NULL, UNIQUE (a, b)); CREATE UNIQUE INDEX ON t (b) INCLUDE (a)",
        ("b",),
    ),
    "not with NULLs": ("CREATE TABLE t (a int UNIQUE)", ()),
    "not a partial one": ("CREATE TABLE t (a int NOT NULL); CREATE UNIQUE INDEX ON t (a) WHERE a > 0", ()),
    "not an expression": ("CREATE TABLE t (a int NOT NULL); CREATE UNIQUE INDEX ON t ((a + 1))", ()),
    "not with an expression": ("CREATE TABLE t (a int NOT NULL); CREATE UNIQUE INDEX ON t (a, (a + 1))", ()),
    "not a deferrable one": ("CREATE TABLE t (a int NOT NULL UNIQUE DEFERRABLE)", ()),
    "not an exclusion": ("CREATE TABLE t (a int4range, EXCLUDE USING gist (a WITH =))", ()),
    "of a partitioned table": (
        "CREATE TABLE t (a int, b int, PRIMARY KEY (b, a)) PARTITION BY RANGE (a)",
        ("b", "a"),
    ),
}


async def test_the_key_is_the_primary_one_or_as_good(source: Side) -> None:
    async with reading(source) as reader:
        for case, (statements, key) in KEYS.items():
            await source.sql.execute(f"DROP TABLE IF EXISTS t; {statements}")
            table = await reader.describe("t")
            assert table.key == key, case
            assert (table.by is By.KEY) == bool(key)


NAMES = {
    "folded": ("orders", "ORDERS", "orders"),
    "mixed case": ('"Orders"', '"Orders"', '"Orders"'),
    "reserved": ('"select"', "select", '"select"'),
    "with a quote": ('"a""b"', '"a""b"', '"a""b"'),
    "with a dot": ('"a.b"', '"a.b"', '"a.b"'),
    "with a space": ('"my table"', "my table", '"my table"'),
    "qualified": ("shop.orders", "shop.orders", "shop.orders"),
    "qualified and mixed": ('shop."My Orders"', 'shop."My Orders"', 'shop."My Orders"'),
    "as long as can be": ("t" * 63, "t" * 63, "t" * 63),
    "not of this alphabet": ('"заказы"', "заказы", '"заказы"'),
}


async def test_a_table_is_found_and_copied_by_any_name(source: Side, target: Side) -> None:
    await source.sql.execute("CREATE SCHEMA shop")
    for made, _, _ in NAMES.values():
        await source.sql.execute(f'CREATE TABLE {made} ("I""d" int PRIMARY KEY, "sel ect" text)')
        await source.sql.execute(f"INSERT INTO {made} VALUES (1, '{made}')")
    async with reading(source) as reader:
        assert sorted(await reader.tables()) == sorted(proper for _, _, proper in NAMES.values())
    for made, named, proper in NAMES.values():
        job = await job_for(source, named, target)
        assert job.source.name == proper
        await copy_chunks(job, source, target)
        async with writing(target) as writer:
            await writer.finish(job)
        assert await target.rows(f"SELECT * FROM {made}") == [(1, made)]


async def test_the_search_path_decides_which_table_a_bare_name_means(source: Side) -> None:
    await source.sql.execute("CREATE SCHEMA shop; CREATE TABLE t (a int); CREATE TABLE shop.t (b int)")
    async with reading(source) as reader:
        assert [column.name for column in (await reader.describe("t")).columns] == ["a"]
        assert await reader.tables() == ["shop.t", "t"]
    async with reading(Side(f"{source.url}&search_path=shop,public", None)) as reader:
        assert [column.name for column in (await reader.describe("t")).columns] == ["b"]
        assert await reader.tables() == ["public.t", "t"]


async def all_of(reader: PostgresReader, name: str, rows: int = 2) -> list[str]:
    """The first column of all chunks, as text."""
    table = await reader.describe(name)
    found: list[str] = []
    for range in await chunks_of(reader, table, rows):
        found += await texts(reader, table, range)
    return found


async def texts(reader: PostgresReader, table: Any, range: Range) -> list[str]:
    """The first column of a range, as text."""
    only = replace(table, columns=table.columns[:1])
    data = [piece.data async for piece in reader.query(only, range, Language.CSV, PLAIN)]
    return b"".join(data).decode().splitlines()


async def test_all_that_can_be_selected_from_can_be_read(source: Side) -> None:
    """A parent has its own rows only: its children are tables themselves, and would be copied twice."""
    await source.sql.execute(
        "CREATE TABLE parted (a int) PARTITION BY RANGE (a);"
        "CREATE TABLE p1 PARTITION OF parted FOR VALUES FROM (0) TO (9);"
        "CREATE TABLE p2 PARTITION OF parted DEFAULT; INSERT INTO parted VALUES (1), (2), (30), (40);"
        "CREATE VIEW seen AS SELECT a FROM parted WHERE a > 1; CREATE MATERIALIZED VIEW kept AS SELECT a FROM parted;"
        "CREATE TABLE parent (a int); CREATE TABLE child (b int) INHERITS (parent);"
        "INSERT INTO parent VALUES (1), (2); INSERT INTO child VALUES (3), (4);"
        "CREATE TABLE keyed (a int PRIMARY KEY); CREATE TABLE heir () INHERITS (keyed);"
        "INSERT INTO keyed VALUES (1); INSERT INTO heir VALUES (1);"
        "CREATE TABLE nothing (a int); CREATE UNLOGGED TABLE fast (a int); CREATE TEMP TABLE mine (a int);"
        "CREATE TABLE orders__hg_0123abcd (a int);"
        "CREATE TABLE headgate_dump_chunk (a int); CREATE INDEX an_index ON fast (a)"
    )
    async with reading(source) as reader:
        assert await reader.tables() == ["child", "fast", "heir", "keyed", "nothing", "parent", "parted"]
        assert (await reader.describe("p1")).by is By.BLOCK
        for name, by, values in (
            ("parted", By.OFFSET, ["1", "2", "30", "40"]),
            ("seen", By.OFFSET, ["2", "30", "40"]),
            ("kept", By.BLOCK, ["1", "2", "30", "40"]),
            ("parent", By.BLOCK, ["1", "2"]),
            ("child", By.BLOCK, ["3", "4"]),
            ("keyed", By.KEY, ["1"]),
            ("heir", By.BLOCK, ["1"]),
            ("nothing", By.BLOCK, []),
        ):
            assert (await reader.describe(name)).by is by
            assert sorted(await all_of(reader, name), key=int) == values
        for name in ("an_index", "nobody", "no.such", "a..b", "x" * 70):
            with pytest.raises(NotFound, match="has no table"):
                await reader.describe(name)
            with pytest.raises(Refused, match="in the server's own schema"):
                await reader.describe("pg_catalog.pg_nothing")


async def test_about_how_many_rows_there_are_is_known_before_anybody_counted(source: Side) -> None:
    await source.sql.execute("CREATE TABLE t (a int); INSERT INTO t SELECT generate_series(1, 30000)")
    await source.sql.execute("CREATE TABLE small (a int); INSERT INTO small VALUES (1)")
    async with reading(source) as reader:
        assert 15_000 < ((await reader.describe("t")).rows or 0) < 60_000
        assert ((await reader.describe("small")).rows or 0) < 500
        await source.sql.execute("ANALYZE t")
        assert (await reader.describe("t")).rows == 30_000


async def test_rights_that_are_missing_are_told_in_one_line(source: Side) -> None:
    await source.sql.execute(
        "CREATE TABLE t (a int PRIMARY KEY, secret int); INSERT INTO t VALUES (1, 2);"
        "CREATE TABLE counted (a serial PRIMARY KEY); CREATE TABLE hidden (a int PRIMARY KEY);"
        "CREATE TABLE ruled (a int PRIMARY KEY); ALTER TABLE ruled ENABLE ROW LEVEL SECURITY;"
        "DROP ROLE IF EXISTS poor; CREATE ROLE poor LOGIN PASSWORD 'pw-1234'; GRANT USAGE ON SCHEMA public TO poor;"
        "GRANT SELECT (a) ON t TO poor; GRANT SELECT ON counted, ruled TO poor"
    )
    async with reading(Side(source.url.replace("headgate@", "poor:pw-1234@"), None)) as reader:
        table = await reader.describe("t")
        assert await reader.top(table) == ("1",)
        assert (await reader.describe("counted")).details["sequences"] == {"a": {"last": None, "called": None}}
        for attempt in (
            lambda: reader.describe("hidden"),
            lambda: texts(reader, replace(table, columns=table.columns[1:]), Range(None, ("1",))),
            lambda: reader.describe("ruled"),  # An empty table, for all that a policy shows.
        ):
            with pytest.raises(StorageError) as caught:
                await attempt()
            assert "\n" not in caught.value.message
            assert "GRANT" in caught.value.hint
            assert "pw-1234" not in f"{caught.value} {caught.value.hint}"
    await source.sql.execute("DROP OWNED BY poor; DROP ROLE poor")


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("postgresql://someone:s3cret@127.0.0.1:1/db", StorageGone),
        ("postgresql://someone:s3cret/rest@127.0.0.1/db", ConfigError),
        ("postgresql://someone:12/s3cret@nowhere.invalid/db", StorageGone),
        ("postgresql://someone:12?s3cret@nowhere.invalid/db", None),
        ("postgresql://someone:12#s3cret@nowhere.invalid/db", None),
        ("postgresql://someone:s3cret@127.0.0.1:port/db", ConfigError),
        ("postgresql://someone:s3cret@127.0.0.1:1/db?sslmode=s3cret", ConfigError),
        ("postgresql://someone:s3cret@nowhere.invalid/db", StorageGone),
    ],
    ids=["refused", "slash", "slash and digits", "question mark", "hash", "port", "option", "no such host"],
)
async def test_no_message_holds_a_password(url: str, kind: type[Exception] | None) -> None:
    with pytest.raises(kind or (ConfigError, StorageGone)) as caught:
        await open_reader(url).tables()
    assert "s3cret" not in f"{caught.value} {getattr(caught.value, 'hint', '')} {redacted(url)}"


async def test_what_the_server_refuses_at_the_door_is_told_without_the_password(source: Side) -> None:
    for url in (source.url.replace("headgate@", "nobody:s3cret@"), source.url.replace("/pgs", "/nodb")):
        with pytest.raises(ConfigError, match="refuses the connection") as caught:
            await open_reader(url.replace("headgate@", "headgate:s3cret@")).tables()
        assert "s3cret" not in str(caught.value)


# Chunks.

COVERED = {
    "int": ("k int PRIMARY KEY", "i", "k"),
    "compound": ("a int, k text, PRIMARY KEY (a, k)", "i % 7, (i / 7)::text", "a, k"),
    "text": ('k text COLLATE "another" PRIMARY KEY', "chr(97 + i % 26) || chr(65 + i % 29) || '-' || i", "k"),
    "text by an index of another collation": ('k text COLLATE "another" NOT NULL', "chr(65 + i % 60) || i", "k"),
    "text that is equal in any case": (
        "k text COLLATE anycase PRIMARY KEY",
        "CASE i % 2 WHEN 0 THEN 'É' ELSE 'e' END || i",
        "k",
    ),
    "uuid": ("k uuid PRIMARY KEY", "md5(i::text)::uuid", "k"),
    "timestamptz": ("k timestamptz PRIMARY KEY", "'2020-01-01'::timestamptz + i * '1.000001 hours'::interval", "k"),
    "numeric": ("k numeric PRIMARY KEY", "CASE i WHEN 5 THEN 'NaN' ELSE i / 3.0 END", "k"),
    "float": ("k float8 PRIMARY KEY", "i / 3.0", "k"),
    "bytea": ("k bytea PRIMARY KEY", "decode(md5(i::text), 'hex')", "k"),
    "char": ("k char(6) PRIMARY KEY", "i::text", "k"),
    "enum and domain": (
        "a size, k positive, PRIMARY KEY (a, k)",
        "(ARRAY['s', 'l', 'm']::size[])[i % 3 + 1], i",
        "a, k",
    ),
    "descending": ("a int NOT NULL, k int NOT NULL", "i % 5, i", "a, k"),
    "skewed": ("k bigint PRIMARY KEY", "CASE WHEN i < 250 THEN i ELSE i * 1000000007::bigint END", "k"),
    "strange names": ('"K ""1""" int PRIMARY KEY', "i", '"K ""1"""'),
}


@pytest.mark.parametrize("case", COVERED)
async def test_chunks_cover_each_planned_row_once_while_rows_come_and_go(source: Side, case: str) -> None:
    columns, values, key = COVERED[case]
    if "anycase" in columns:
        try:
            await source.sql.execute(
                "CREATE COLLATION anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
            )
        except asyncpg.FeatureNotSupportedError as error:
            pytest.skip(str(error))
    names = await source.values("SELECT collname FROM pg_collation WHERE collname ~ '^(en-x-icu|pg_unicode_fast)$'")
    columns = columns.replace("another", min(names, default="C"))
    await source.sql.execute(
        "CREATE TYPE size AS ENUM ('s', 'm', 'l'); CREATE DOMAIN positive AS int CHECK (VALUE > 0);"
        f"CREATE TABLE t (i int, {columns})"
    )
    if "PRIMARY" not in columns:
        await source.sql.execute(f"CREATE UNIQUE INDEX ON t ({INDEXED[case]})")
    for rows in (1, 7, 1000):
        last = 20 if rows == 1 else 100
        await source.sql.execute(f"TRUNCATE t; INSERT INTO t SELECT i, {values} FROM generate_series(1, {last}) i")
        await covers(source, values, key, last, rows)


INDEXED = {"text by an index of another collation": 'k COLLATE "C"', "descending": "a DESC, k DESC"}


async def covers(source: Side, values: str, key: str, last: int, rows: int) -> None:
    """Rows are inserted above the top, or at least somewhere, and removed where chunks begin and inside of them."""
    planned, deleted = set(await source.values("SELECT i::text FROM t")), set()
    found: list[str] = []
    async with reading(source) as reader:
        table = await reader.describe("t")
        assert ", ".join(table.key) == key.replace('""', "'").replace('"', "").replace("'", '"')
        at, top = None, await reader.top(table)
        assert top is not None
        for number in itertools.count():
            hi = await reader.cut(table, at, top, rows)
            if number < 20:
                await source.sql.execute(f"INSERT INTO t SELECT i, {values} FROM (SELECT {last + 1 + number} AS i) n")
            if number % 3 == 0 and rows > 1:
                first = f"SELECT i FROM t WHERE i <= {last} ORDER BY {key} LIMIT 1"
                gone = await source.values(f"DELETE FROM t WHERE i = ({first}) RETURNING i::text")
                deleted |= set(gone) - set(found)
            found += await texts(reader, table, Range(at, hi))
            at = hi
            if at == top:
                break
    assert len(found) == len(set(found))
    assert set(found) & planned == planned - deleted


async def test_blocks_cover_the_table_of_the_snapshot_while_rows_move(source: Side) -> None:
    await source.sql.execute(
        "CREATE TABLE t (i int, v text); INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 3000) i"
    )
    await source.sql.execute("ANALYZE t")
    async with reading(source) as holder:
        snapshot = await holder.begin()
        async with reading(source, snapshot) as reader:
            table = await holder.describe("t")
            assert table.by is By.BLOCK
            found: list[str] = []
            for number, range in enumerate(await chunks_of(holder, table, 400)):
                await source.sql.execute(
                    f"UPDATE t SET v = v || 'y' WHERE i % 7 = {number}; DELETE FROM t WHERE i = {number}"
                )
                await source.sql.execute("VACUUM t")
                await source.sql.execute("INSERT INTO t VALUES (-1, '')")
                found += await texts(reader, table, range)
            assert sorted(map(int, found)) == list(range_of(1, 3000))
            plan = await source.values("EXPLAIN SELECT i FROM t WHERE ctid >= '(1,0)' AND ctid < '(3,0)'")
            assert "Tid Range Scan" in plan[0]  # Before PostgreSQL 14: a scan of the table, with the same rows.


def range_of(first: int, last: int) -> range:
    return range(first, last + 1)


async def test_nobody_rewrites_a_table_whose_blocks_are_being_read(source: Side) -> None:
    await source.sql.execute(
        "CREATE TABLE t (i int); INSERT INTO t SELECT generate_series(1, 1000); DELETE FROM t WHERE i < 900"
    )
    async with reading(source) as holder:
        await holder.begin()
        await holder.top(await holder.describe("t"))
        await source.sql.execute("SET lock_timeout = 50")
        for statement in ("VACUUM FULL t", "TRUNCATE t", "ALTER TABLE t ADD v int DEFAULT random()"):
            with pytest.raises(asyncpg.LockNotAvailableError):
                await source.sql.execute(statement)
        await source.sql.execute("INSERT INTO t VALUES (1)")


# Snapshots.


async def test_all_sessions_of_a_snapshot_see_the_same(source: Side) -> None:
    await source.sql.execute("CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    async with reading(source) as holder:
        snapshot = await holder.begin()
        await source.sql.execute("INSERT INTO t VALUES (3); DELETE FROM t WHERE i = 1")
        async with reading(source, snapshot) as one, reading(source, snapshot) as two, reading(source) as now:
            assert await all_of(one, "t") == ["1", "2"]
            await source.sql.execute("DELETE FROM t")
            assert await all_of(two, "t") == ["1", "2"]
            assert await all_of(holder, "t") == ["1", "2"]
            assert await all_of(now, "t") == []


async def test_a_snapshot_ends_with_its_session_and_those_inside_go_on(source: Side) -> None:
    await source.sql.execute("CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1)")
    holder = PostgresReader(source.url, None)
    snapshot = await holder.begin()
    async with reading(source, snapshot) as inside, reading(source, snapshot) as late:
        assert await all_of(inside, "t") == ["1"]
        await holder.close()
        await source.sql.execute("DELETE FROM t")
        assert await all_of(inside, "t") == ["1"]
        with pytest.raises(SnapshotGone, match="is gone"):
            await late.describe("t")
    async with reading(source, "no-such-1") as wrong:
        with pytest.raises(SnapshotGone):
            await wrong.tables()


async def test_a_bad_table_does_not_end_the_snapshot_of_the_others(source: Side) -> None:
    await source.sql.execute(
        "CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE TABLE bad (i int PRIMARY KEY)"
    )
    async with reading(source) as holder:
        bad = await holder.describe("bad")
        snapshot = await holder.begin()
        await source.sql.execute("DROP TABLE bad; DELETE FROM t")
        for attempt in (holder.top(bad), holder.cut(bad, None, ("1",), 5), holder.describe("bad")):
            with pytest.raises((StorageError, NotFound)):
                await attempt
        async with reading(source, snapshot) as reader:
            assert await all_of(reader, "t") == ["1"]
        assert await all_of(holder, "t") == ["1"]


async def test_a_session_that_held_the_snapshot_is_not_replaced_in_silence(source: Side) -> None:
    async with reading(source) as holder:
        await holder.begin()
        await source.sql.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'headgate dump'"
        )
        for _ in range(2):
            with pytest.raises(StorageGone):
                await holder.tables()


async def test_keys_that_count_are_cut_by_reckoning_and_others_by_their_rows(source: Side) -> None:
    await source.sql.execute(
        "CREATE TABLE dense (id bigint PRIMARY KEY); INSERT INTO dense SELECT generate_series(-500, 499);"
        "CREATE TABLE sparse (id bigint PRIMARY KEY); INSERT INTO sparse SELECT 1000 * generate_series(1, 100);"
        "DELETE FROM dense WHERE id = -401"
    )
    await source.sql.execute("ANALYZE dense, sparse")
    async with reading(source) as reader:
        dense, sparse = await reader.describe("dense"), await reader.describe("sparse")
        assert await reader.cut(dense, None, ("499",), 100) == ("-401",), "which no row has"
        assert await reader.cut(dense, ("-401",), ("499",), 100) == ("-301",)
        assert await reader.cut(dense, ("450",), ("499",), 100) == ("499",)
        assert await reader.cut(sparse, None, ("100000",), 10) == ("10000",)
        assert await reader.cut(sparse, ("95000",), ("100000",), 10) == ("100000",)


async def test_whoever_leaves_in_the_middle_of_a_chunk_can_read_again(source: Side) -> None:
    await source.sql.execute("CREATE TABLE t (i int PRIMARY KEY, v text)")
    await source.sql.execute("INSERT INTO t SELECT i, repeat(md5(i::text), 100) FROM generate_series(1, 3000) i")
    async with reading(source) as reader:
        table = await reader.describe("t")
        pieces = reader.query(table, Range(None, ("3000",)), Language.COPY, PLAIN)
        assert (await anext(pieces)).size > 0
        await pieces.aclose()  # type: ignore[attr-defined]
        assert len(await all_of(reader, "t", 1000)) == 3000


async def test_a_statement_that_somebody_cancels_is_only_that_chunks_error(source: Side) -> None:
    await source.sql.execute("CREATE TABLE t (i int PRIMARY KEY); INSERT INTO t VALUES (1)")
    await source.sql.execute("CREATE VIEW slow AS SELECT i, pg_sleep(60)::text AS slept FROM t")
    async with reading(source) as reader:
        await reader.tables()
        asking = asyncio.ensure_future(all_of(reader, "slow"))
        query = (
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
            " WHERE wait_event = 'PgSleep' AND datname = current_database()"
        )
        await until(lambda: source.values(query), "the statement is cancelled")
        with pytest.raises(StorageError, match="cancel") as caught:
            await asking
        assert not isinstance(caught.value, StorageGone)
