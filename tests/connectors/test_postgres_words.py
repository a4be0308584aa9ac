"""What a dump says of PostgreSQL: our words, with what to do next, and the server as it was named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from headgate.connectors.api.bulk import StorageError, StorageGone
from headgate.connectors.postgres.errors import translate_errors
from headgate.connectors.postgres.session import where_is
from headgate.store.embedded import EmbeddedServer
from tests.connectors.postgres_copy import Side, copy_chunks, emptied, job_for, make_databases, writing
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


@pytest.mark.parametrize(("url", "shown"), [
    ("postgresql://me:secret@db.example.org:6543/shop?sslmode=require", "db.example.org:6543/shop"),
    ("postgresql://me@db.example.org/shop", "db.example.org/shop"),
    ("postgresql://me:secret@[::1]:6543/shop", "[::1]:6543/shop"),
    ("postgresql://me:secret@a:1,b:2/shop", "a:1,b:2/shop"),
    ("postgresql:///shop?host=/tmp", "a local socket/shop"),
    ("postgresql://me:p@ss/word@host:1/shop", "the server"),
])  # fmt: skip
def test_a_server_is_named_with_its_port_and_without_its_password(url: str, shown: str) -> None:
    assert where_is(url) == shown


def test_a_full_disk_is_not_a_server_that_is_gone() -> None:
    error = asyncpg.DiskFullError('could not extend file "base/5/16384": No space left on device')
    error.hint = "Check free disk space."
    with pytest.raises(StorageGone) as caught, translate_errors("db:5432/shop", "t"):
        raise error
    assert caught.value.message.startswith("the disk of db:5432/shop is full: could not extend file")
    assert "gone" not in caught.value.message
    assert "HINT" not in caught.value.message
    assert caught.value.hint == "make room there"


def test_what_is_missing_comes_with_the_next_step() -> None:
    error = asyncpg.UndefinedFunctionError("function f(integer) does not exist")
    error.hint = "No function matches the given name and argument types. You might need to add explicit type casts."
    with pytest.raises(StorageError) as caught, translate_errors("db:5432/shop", "t"):
        raise error
    assert caught.value.message == "t: function f(integer) does not exist"
    assert caught.value.hint == "create it in db:5432/shop first, or --exclude the column that needs it"


async def test_what_needs_a_function_or_a_sequence_that_is_missing_is_named_with_the_next_step(
    source: Side, target: Side
) -> None:
    await source.sql.execute(
        "CREATE SEQUENCE free; CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1';"
        "CREATE TABLE t (id int PRIMARY KEY DEFAULT nextval('free'), n serial, CHECK (f(id) > 0));"
        "INSERT INTO t VALUES (1, 1)"
    )
    job = await job_for(source, "t", target)
    await copy_chunks(job, source, target)
    async with writing(target) as writer:
        await writer.finish(job)
        assert [str(one) for one in await writer.index(job)] == [
            'default id of t (relation "free" does not exist: create it there, then make this)',
            "constraint t_id_check of t (function f(integer) does not exist: create it there, then make this)",
        ]


async def test_an_index_that_is_built_says_how_far_it_is(source: Side, target: Side) -> None:
    """The index waits for a lock of the test, which is a part of its function."""
    await target.sql.execute(
        "CREATE TABLE t (id int); INSERT INTO t SELECT generate_series(1, 1000);"
        "CREATE FUNCTION slow(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
        " $$ BEGIN IF $1 = 1000 THEN PERFORM pg_advisory_xact_lock(7); END IF; RETURN $1; END $$"
    )
    await source.sql.execute("CREATE TABLE t (id int)")
    job = await job_for(source, "t", target)
    builder = await asyncpg.connect(target.url)
    await target.sql.execute("SELECT pg_advisory_lock(7)")
    building = asyncio.ensure_future(builder.execute("CREATE INDEX ON t (slow(id))"))
    try:
        async with writing(target) as writer:

            async def is_told() -> bool:
                return (await writer.building(job)).startswith("builds an index, scanning table, ")

            await until(is_told)
            await target.sql.execute("SELECT pg_advisory_unlock(7)")
            await building
            assert await writer.building(job) == ""
    finally:
        await builder.close()
