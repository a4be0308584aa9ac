"""Types that somebody wrote down: parsed by a grammar of ours, found in the server's catalog, never run as SQL."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from pydantic import ValidationError

from headgate.connectors.api import Outgoing, Progress
from headgate.connectors.postgres.declared import Declared, parse_type, resolve
from headgate.connectors.postgres.options import PostgresOptions
from headgate.connectors.postgres.sink import PostgresSink
from headgate.errors import Cause, ConnectorError
from headgate.testing.factories import make_context, make_grant

HOSTILE = [
    "bigint); COPY (SELECT 1) TO PROGRAM 'touch /tmp/x'; --",
    "bigint DEFAULT pg_sleep(10)",
    "bigint, evil text",
    "bigint CHECK (pg_read_file('x') IS NULL)",
    "bigint PRIMARY KEY",
    "text COLLATE \"C\"",
    "text -- x",
    "text /* x */",
    "text;",
    "$$text$$",
    "text'",
    "numeric(10,2",
    "numeric(10,2))",
    "numeric()",
    "numeric(1,)",
    "numeric(1+1)",
    "numeric((1))",
    "varchar(10); DROP TABLE x",
    'varchar("x")',
    "varchar('x')",
    "E'text'",
    "text\0",
    '"te\0xt"',
    '""',
    'text"',
    "a.b.c",
    ".text",
    "text.",
    "text[",
    "text[1",
    "text[a]",
    "text" + "[]" * 7,
    "timestamp with time",
    "timestamp with time zone at time zone 'x'",
    "interval year to second",
    "%s",
    "{}",
    "bigint\\",
    "(SELECT 1)",
    "1text",
    "",
    " ",
    "x" * 2000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_anything_but_a_type_is_refused_when_the_document_is_read(text: str) -> None:
    with pytest.raises(ValueError, match="type"):
        parse_type(text)
    with pytest.raises(ValidationError, match="'id'"):
        PostgresOptions(url="postgresql://x/y", table="t", columns={"id": text})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bigint", Declared(("pg_catalog", "int8"))),
        ("numeric(10, -2)", Declared(("pg_catalog", "numeric"), (10, -2))),
        ("Timestamp (3) With Time Zone", Declared(("pg_catalog", "timestamptz"), (3,))),
        ("character varying(20)[][3]", Declared(("pg_catalog", "varchar"), (20,), 2)),
        ("char", Declared(("pg_catalog", "bpchar"), (1,))),
        ('"char"', Declared(("char",))),
        ("float(24)", Declared(("pg_catalog", "float4"))),
        ('public."My ""Mood"""', Declared(("public", 'My "Mood"'))),
        ("Mood", Declared(("mood",))),
        ("geometry(Point,4326)", Declared(("geometry",), ("Point", 4326))),
        ("interval day to second(3)", Declared(("interval",), (3,), 0, "interval day to second")),
    ],
)
def test_a_type_is_taken_apart(text: str, expected: Declared) -> None:
    assert parse_type(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "smallint",
        "integer",
        "bigint",
        "real",
        "double precision",
        "numeric",
        "numeric(10,2)",
        "numeric(3,-2)",
        "text",
        "character varying",
        "character varying(20)",
        "character(3)",
        '"char"',
        "name",
        "bytea",
        "boolean",
        "uuid",
        "json",
        "jsonb",
        "date",
        "time without time zone",
        "time(3) with time zone",
        "timestamp without time zone",
        "timestamp(3) with time zone",
        "interval",
        "interval day to second(3)",
        "interval(2)",
        "bit(3)",
        "bit varying(5)",
        "inet",
        "integer[]",
        "character varying(20)[]",
        "tsvector",
        "mood",
        '"My Mood"',
        "other.far[]",
        "short",
    ],
)
async def test_what_a_server_calls_its_types_is_what_they_resolve_to(empty_url: str, text: str) -> None:
    connection = await asyncpg.connect(empty_url)
    try:
        await connection.execute(
            "CREATE TYPE mood AS ENUM ('a'); CREATE TYPE \"My Mood\" AS ENUM ('a'); CREATE SCHEMA other;"
            " CREATE TYPE other.far AS (x int); CREATE DOMAIN short AS varchar(3)"
        )
        type = await resolve(connection, parse_type(text))
        await connection.execute(f"CREATE TABLE made (v {type})")
        query = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = $1::regclass AND attnum = 1"
        assert await connection.fetchval(query, "made") == text
    finally:
        await connection.close()


@pytest.mark.parametrize("text", ["no_such_type", "nowhere.text", "text(3)", "record", "anyelement", '"x"";--"'])
async def test_a_type_that_the_server_does_not_have_is_said_by_the_check_and_nothing_is_made(
    empty_url: str, text: str
) -> None:
    options = PostgresOptions(url=empty_url, table="made", columns={"id": text})  # type: ignore[arg-type]
    sink = PostgresSink(options, make_context())
    with pytest.raises(ConnectorError, match="the server has no type") as caught:
        await sink.check()
    assert caught.value.cause == Cause.CONFIG
    await sink.open(make_grant(epoch=1))
    with pytest.raises(ConnectorError, match="the server has no type"):
        await sink.write(Outgoing([{"id": None}], Progress(0, 1, 1)))
    await sink.close()
    assert await fetch(empty_url, "SELECT to_regclass('made') AS made") == [{"made": None}]


async def test_a_users_own_types_are_fine_in_columns(empty_url: str) -> None:
    await fetch(empty_url, "CREATE TYPE mood AS ENUM ('glad', 'sad')")
    options = PostgresOptions(url=empty_url, table="made", columns={"m": "mood", "tags": "text[]"})  # type: ignore[arg-type]
    sink = PostgresSink(options, make_context())
    await sink.open(make_grant(epoch=1, stream=uuid4()))
    await sink.write(Outgoing([{"id": 1, "m": "glad", "tags": ["a"]}], Progress(0, 1, 1)))
    await sink.close()
    assert await fetch(empty_url, "SELECT * FROM made") == [{"id": 1, "m": "glad", "tags": ["a"]}]


async def fetch(url: str, query: str) -> list[dict[str, Any]]:
    connection = await asyncpg.connect(url)
    try:
        return [dict(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()
