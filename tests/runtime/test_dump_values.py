"""What goes into files and other databases and back is what it was; what cannot be is refused."""

from __future__ import annotations

import asyncio
import math
import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.connectors.api.bulk import Language, StorageError
from headgate.runtime.dumps import control
from headgate.store.database import Database
from headgate.store.dumps import Dumps
from headgate.store.embedded import EmbeddedServer
from headgate.store.secrets import Keyring, new_master_key
from tests.connectors.postgres_copy import Side, emptied, job_for, make_databases, writing
from tests.runtime.copies import Copy, failed, names_in, sqlite_with

FILES = ["csv:{}/out", "csv:{}/t.csv", "parquet:{}/out", "parquet:{}/t.parquet", "jsonl:{}/out", "jsonl:{}/t.jsonl",
         "json:{}/out", "json:{}/t.json"]  # fmt: skip


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


@pytest.fixture
def copy(database: Database, tmp_path: Path) -> Copy:
    return Copy(Dumps(database, Keyring.load(new_master_key(), None)), tmp_path)


# There and back.


@pytest.mark.parametrize("files", FILES)
async def test_an_empty_table_goes_there_and_back(
    copy: Copy, source: Side, target: Side, tmp_path: Path, files: str
) -> None:
    await source.sql.execute("CREATE TABLE t (id int, name text, at timestamptz, price numeric(10,2))")
    files = files.format(tmp_path)
    assert failed(await copy.run(source.url, files)) == {}
    assert failed(await copy.run(files, target.url)) == {}
    columns = (
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass"
        " AND attnum > 0 ORDER BY attnum"
    )
    assert await target.rows(columns) == await source.rows(columns)
    assert await target.values("SELECT count(*) FROM t") == [0]


@pytest.mark.parametrize("files", FILES)
async def test_what_looks_like_nothing_comes_back_as_it_was(
    copy: Copy, source: Side, target: Side, tmp_path: Path, files: str
) -> None:
    """The JSON document null and NULL, minus zero, and the blanks of char(n)."""
    await source.sql.execute(
        "CREATE TABLE t (id int, doc json, zero float8, padded char(5));"
        "INSERT INTO t VALUES (1, NULL, '-0', 'ab'), (2, 'null', 0, NULL), (3, '[null, -0.0]', NULL, ''),"
        """ (4, E'{"a":\\n1.50,\\r\\n"b": [1, 2]}', 1, 'abcde')"""
    )
    files = files.format(tmp_path)
    assert failed(await copy.run(source.url, files)) == {}
    assert failed(await copy.run(files, target.url)) == {}
    query = "SELECT id, doc IS NULL, doc::jsonb = 'null', doc::jsonb, zero::text, octet_length(padded) FROM t"
    assert await target.rows(f"{query} ORDER BY id") == await source.rows(f"{query} ORDER BY id")
    assert math.copysign(1, (await target.values("SELECT zero FROM t WHERE id = 1"))[0]) == -1


async def test_a_document_keeps_its_text_in_json_lines(copy: Copy, source: Side, tmp_path: Path) -> None:
    await source.sql.execute(
        """CREATE TABLE t (id int PRIMARY KEY, doc json); INSERT INTO t VALUES (1, '{"a": 1, "a": 2.00}')"""
    )
    await copy.run(source.url, f"jsonl:{tmp_path / 't.jsonl'}")
    assert (tmp_path / "t.jsonl").read_text() == '{"id":1,"doc":{"a": 1, "a": 2.00}}\n'


@pytest.mark.parametrize(("kind", "text"), [
    ("jsonl?sample=1", '{"id": 1}\n{"id": 2, "id": 3}\n'),
    ("jsonl", '{"id": 1}\n{"id": 2, "id": 3}\n'),
    ("jsonl", '{"id": 1}\n{"id": 2, "doc": {"a": 1, "a" : 1}}\n'),
    ("jsonl", '{"id": 1}\n{"id": 2, "doc": [{"a": 1}, {"b": {"c": 1, "c": "\\":"}}]}\n'),
    ("json", '[{"id": 1},\n{"id": 2, "doc": {"a": 1, "a": 1}}]\n'),
])  # fmt: skip
async def test_a_field_that_a_record_has_twice_is_refused(copy: Copy, tmp_path: Path, kind: str, text: str) -> None:
    kind, _, options = kind.partition("?")
    (tmp_path / f"t.{kind}").write_text(text)
    source = f"{kind}:{tmp_path / f't.{kind}'}{options and '?' + options}"
    if options:  # It is not among the first records.
        error = failed(await copy.run(source, f"sqlite:{tmp_path / 'out.db'}"))["t"]
    else:
        with pytest.raises(StorageError) as refused:
            await copy.run(source, f"sqlite:{tmp_path / 'out.db'}")
        error = refused.value.message
    assert re.search("line 2.*: field '(id|a|c)' occurs twice", error)


async def test_fields_with_odd_texts_are_not_twice(copy: Copy, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"id" : 1, "v": "\\":\\":"}\n{"id": 2, "doc": {"id": [{"id": 1}]}}\n')
    assert failed(await copy.run(f"jsonl:{tmp_path / 't.jsonl'}", f"sqlite:{tmp_path / 'out.db'}")) == {}


async def test_sqlite_refuses_the_zero_that_it_would_change(copy: Copy, source: Side, tmp_path: Path) -> None:
    await source.sql.execute("CREATE TABLE t (id int PRIMARY KEY, v float8); INSERT INTO t VALUES (1, '-0'), (2, 0)")
    found = await copy.run(source.url, f"sqlite:{tmp_path / 'out.db'}")
    assert "SQLite has no -0.0, and would make it 0.0 (--column v=text)" in failed(found)["t"]
    found = await copy.run(source.url, f"sqlite:{tmp_path / 'other.db'}", columns={"v": "text"})
    assert failed(found) == {}
    assert sqlite3.connect(tmp_path / "other.db").execute("SELECT v FROM t ORDER BY id").fetchall() == [("-0",), ("0",)]


# Types that were guessed.


async def test_a_csv_file_has_the_types_of_its_first_records_unless_others_are_given_or_there(
    copy: Copy, target: Side, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text("id,at,code,flag\n1,2024-01-31,7,1\n2,,8,0\n")
    types = (
        "SELECT string_agg(format_type(atttypid, atttypmod), ', ' ORDER BY attnum) FROM pg_attribute"
        " WHERE attnum > 0 AND attrelid = $1::text::regclass"
    )
    await copy.run(f"csv:{tmp_path / 't.csv'}", target.url)
    assert await target.sql.fetchval(types, "t") == "bigint, date, bigint, bigint"
    await copy.run(f"csv:{tmp_path / 't.csv'}", target.url, "t=u", columns={"code": "text", "flag": "bool"})
    assert await target.sql.fetchval(types, "u") == "bigint, date, text, boolean"
    await target.sql.execute("CREATE TABLE v (id text, at text, code float8, flag boolean)")
    await copy.run(f"csv:{tmp_path / 't.csv'}", target.url, "t=v")
    assert await target.rows("SELECT id, at, code, flag FROM v ORDER BY 1") == [
        ("1", "2024-01-31", 7, True),
        ("2", None, 8, False),
    ]


# Between versions of PostgreSQL.


async def test_intervals_and_added_types_go_as_text_to_an_older_server(source: Side, target: Side) -> None:
    """Version 17 says infinity with a number that is 178,956,970 years to those before it."""
    await source.sql.execute(
        "CREATE TYPE mood AS ENUM ('good'); CREATE TABLE t (id int PRIMARY KEY, waits interval);"
        "CREATE TABLE u (id int PRIMARY KEY, m mood); CREATE TABLE v (id int PRIMARY KEY, name text)"
    )
    async with writing(target) as writer:
        for name, is_alike in (("t", False), ("u", False), ("v", True)):
            job = await job_for(source, name, target)
            into = await writer.prepare(job)
            assert Language.COPY in writer.accepts(into, job)
            into.details["server"] = 16
            assert (Language.COPY in writer.accepts(into, job)) == is_alike


# What a dump leaves for itself.


@pytest.mark.parametrize("where", ["sqlite:{}/out.db", "csv:{}/t.csv", "csv:{}/out", "postgresql"])
async def test_a_dump_that_is_over_is_cleaned_from_its_target(
    copy: Copy, target: Side, tmp_path: Path, where: str
) -> None:
    sqlite_with(tmp_path / "in.db", ["t"])
    url = target.url if where == "postgresql" else where.format(tmp_path)
    found = await copy.run(f"sqlite:{tmp_path / 'in.db'}", url)
    await control.clean(copy.dumps, found.id)
    match where.partition(":")[0]:
        case "postgresql":
            assert await target.values("SELECT to_regclass('headgate_dump_chunk')::text") == [None]
            assert await target.rows("SELECT * FROM t") == [(1, "t")]
        case "sqlite":
            tables = sqlite3.connect(tmp_path / "out.db").execute("SELECT name FROM sqlite_schema").fetchall()
            assert ("headgate_dump_chunk",) not in tables
            assert names_in(tmp_path / "out.db") == {"t": "t"}
        case _:
            names = {one.name for one in tmp_path.rglob("*") if one.is_file() and "dumps" not in str(one)} - {"in.db"}
            assert len(names) == 1
            assert all(name.endswith(".csv") for name in names)
            assert not any(name.startswith((".", "_")) for name in names)
