"""Headgate's own schema is out of reach for every sink, source and dump, whatever the URL and the name say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from headgate.connectors.api import Outgoing, Progress
from headgate.connectors.api.bulk import By, Csv, Job, Language, Mode, Piece, Pieces, Range, Table
from headgate.connectors.plugins import open_reader, open_writer
from headgate.connectors.postgres.sink import PostgresOptions, PostgresSink
from headgate.errors import Cause, ConnectorError, HeadgateError
from headgate.testing.factories import make_context, make_grant

TOKEN = {"id": str(uuid4()), "name": "mine", "role": "admin", "hash": "\\x00"}

MADE = """
CREATE VIEW public.seen AS SELECT * FROM headgate.token;
CREATE VIEW public.seen_twice AS SELECT * FROM public.seen;
CREATE MATERIALIZED VIEW public.kept AS SELECT * FROM headgate.secret;
CREATE TABLE public.child () INHERITS (headgate.token);
CREATE TABLE public.parent (id uuid, name text) PARTITION BY LIST (name);
CREATE TABLE headgate.part PARTITION OF public.parent DEFAULT;
CREATE TABLE public.ruled (id uuid, name text, role text, hash bytea);
CREATE RULE also AS ON INSERT TO public.ruled DO ALSO
    INSERT INTO headgate.token (id, name, role, hash) VALUES (new.id, new.name, new.role, new.hash);
CREATE SCHEMA other; CREATE TABLE other.registry (); CREATE TABLE other.token (id uuid, name text, role text);
CREATE TABLE other.secret (); CREATE TABLE other.migration ();
"""
TABLES = [
    "headgate.token",
    "headgate.no_such_table",
    "seen",
    "seen_twice",
    "kept",
    "child",
    "parent",
    "ruled",
    "other.token",  # A registry by another name.
    "pg_catalog.pg_authid",
    "information_schema.sql_features",
    "pg_catalog.no_such_table",
    "information_schema.no_such_table",
    "headgate_position",
    "headgate_dead_letter",
    "public.headgate_dump_chunk",
]


@pytest.fixture
async def walled(url: str) -> str:
    """A database with a registry, and with ways around to it."""
    await do(url, MADE)
    return url


async def do(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def count(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        found: int = await connection.fetchval("SELECT count(*) FROM headgate.token")
        return found
    finally:
        await connection.close()


async def write(url: str, table: str, **options: Any) -> None:
    sink = PostgresSink(PostgresOptions(url=url, table=table, **options), make_context())
    try:
        await sink.open(make_grant(str(uuid4())))
        await sink.write(Outgoing([TOKEN], Progress(0, 1, {"n": 1}), ("id",)))
    finally:
        await sink.close()


@pytest.mark.parametrize("table", TABLES)
async def test_a_sink_reaches_no_table_of_headgates_own_schema(walled: str, table: str) -> None:
    for options in ({}, {"mode": "upsert"}):
        with pytest.raises(ConnectorError, match=r"Headgate's own|the server's own") as caught:
            await write(walled, table, **options)
        assert caught.value.cause is Cause.CONFIG
    sink = PostgresSink(PostgresOptions(url=walled, table=table), make_context())
    with pytest.raises(ConnectorError, match=r"Headgate's own|the server's own"):
        await sink.check()
    assert await count(walled) == 0


@pytest.mark.parametrize("setting", ["search_path=headgate", "search_path=%22headgate%22,other"])
async def test_a_search_path_does_not_lead_there_either(walled: str, setting: str) -> None:
    for table in ("token", "orders"):
        with pytest.raises(ConnectorError, match="Headgate's own"):
            await write(f"{walled}&{setting}", table)
    with pytest.raises(HeadgateError, match="Headgate's own"):
        await open_reader(f"{walled}&{setting}").describe("token")
    assert await count(walled) == 0


async def test_a_name_without_a_schema_is_never_of_headgates_own(walled: str) -> None:
    """The user of this database is called as the schema is, so that the server looks there first."""
    for url in (walled, f"{walled}&search_path=headgate,public"):
        await write(url, "token")
    assert await count(walled) == 0
    with pytest.raises(asyncpg.UndefinedTableError):
        await do(walled, "SELECT FROM headgate.headgate_position")


async def test_a_table_beside_it_is_written_as_ever(walled: str) -> None:
    await write(walled, "orders")
    await write(walled, "public.others", mode="upsert")


async def test_a_user_role_and_another_name_of_the_server_change_nothing(walled: str) -> None:
    other = walled.replace("postgresql://", "postgres://") + "&application_name=elsewhere"
    with pytest.raises(ConnectorError, match="Headgate's own"):
        await write(other, "headgate.token")


DESCRIBED = ["headgate.token", "HEADGATE.Token", '"headgate"."token"', "seen", "seen_twice", "kept", "child", "parent"]


@pytest.mark.parametrize("table", [*DESCRIBED, "other.token", "pg_authid", "pg_catalog.pg_shadow"])
async def test_a_dump_reads_nothing_of_it(walled: str, table: str) -> None:
    reader = open_reader(walled)
    try:
        with pytest.raises(HeadgateError, match=r"Headgate's own|the server's own"):
            await reader.describe(table)
        assert not {"headgate.token", "other.token"} & set(await reader.tables())
    finally:
        await reader.close()


async def test_a_plan_that_was_made_elsewhere_is_judged_again_where_it_is_read(walled: str) -> None:
    """A worker's session may meet another server than the one that the plan was made with."""
    await do(walled, "CREATE TABLE public.plain (id uuid, name text)")
    reader = open_reader(walled)
    plain = await reader.describe("plain")
    await do(walled, "DROP TABLE public.plain; CREATE VIEW public.plain AS SELECT id, name FROM headgate.token")
    stranger = open_reader(walled)
    asked: list[Callable[[], Awaitable[Any]]] = [
        lambda: stranger.top(Table("headgate.token", plain.columns, ("id",), by=By.KEY)),
        lambda: _read(stranger.query(plain, Range(None, ("1",)), Language.CSV, Csv())),
        lambda: _read(stranger.query(plain, Range(None, ("1",)), Language.COPY, Csv())),
    ]
    try:
        for ask in asked:
            with pytest.raises(HeadgateError, match="Headgate's own"):
                await ask()
    finally:
        await reader.close()
        await stranger.close()


async def _read(pieces: Pieces) -> list[Piece]:
    return [piece async for piece in pieces]


@pytest.mark.parametrize("target", ["headgate.token", "headgate.fresh", '"headgate".fresh', "child", "ruled", "seen"])
@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.REPLACE])
async def test_a_dump_writes_nothing_into_it(walled: str, target: str, mode: Mode) -> None:
    await do(walled, "CREATE TABLE public.plain (id uuid PRIMARY KEY, name text)")
    reader, writer = open_reader(walled), open_writer(walled)
    try:
        plain = await reader.describe("plain")
        job = Job(uuid4(), plain, target, mode)
        for work in (lambda: writer.look(target), lambda: writer.prepare(job)):
            with pytest.raises(HeadgateError, match="Headgate's own"):
                await work()
        table = Table(target, plain.columns, family="postgres", details=plain.details)
        pieces = _pieces([Piece(b"", 0)])
        with pytest.raises(HeadgateError, match="Headgate's own"):
            await writer.write(job, table, Range(None, ("1",)), Language.CSV, pieces)
        for work in (lambda: writer.finish(job), lambda: writer.drop(job)):
            with pytest.raises(HeadgateError, match="Headgate's own"):
                await work()
    finally:
        await reader.close()
        await writer.close()


async def _pieces(pieces: list[Piece]) -> Pieces:
    for piece in pieces:
        yield piece
