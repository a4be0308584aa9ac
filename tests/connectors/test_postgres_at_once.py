"""A small batch in one statement: what is written, what is fenced, and what a process that stops leaves behind."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from headgate.connectors.api import Outgoing, Progress
from headgate.connectors.postgres import at_once, session
from headgate.connectors.postgres.sink import PostgresOptions, PostgresSink, lock_key
from headgate.errors import ConnectorError, Fenced
from headgate.testing.factories import INSTALLATION, make_context, make_grant
from tests.waiting import until


async def rows(url: str, query: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return list(await connection.fetch(query))
    finally:
        await connection.close()


def make_sink(url: str, **options: Any) -> PostgresSink:
    return PostgresSink(PostgresOptions(url=url, table="target", **options), make_context())


class Counting(session._Pooled):
    """A session that counts what it asks the server."""

    asked: int = 0

    async def execute(self, *args: Any, **kwargs: Any) -> str:
        Counting.asked += 1
        return str(await super().execute(*args, **kwargs))

    async def fetchval(self, *args: Any, **kwargs: Any) -> Any:
        Counting.asked += 1
        return await super().fetchval(*args, **kwargs)

    async def copy_records_to_table(self, *args: Any, **kwargs: Any) -> str:
        Counting.asked += 1
        return str(await super().copy_records_to_table(*args, **kwargs))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> type[Counting]:
    monkeypatch.setattr(session, "_Pooled", Counting)
    return Counting


async def test_one_record_and_its_position_are_one_statement(empty_url: str, asked: type[Counting]) -> None:
    await rows(empty_url, "CREATE TABLE target (id bigint, name varchar(5), tags text[], price numeric(5,2))")
    sink, stream = make_sink(empty_url), uuid4()
    await sink.open(make_grant(epoch=1, stream=stream))
    asked.asked = 0
    record = {"id": 1, "name": "weir", "tags": ["a", "b"], "price": 3}
    await sink.write(Outgoing([record], Progress(0, 1, 10)))
    await sink.write(Outgoing([], Progress(0, 2, 20)))
    assert asked.asked == 2
    await sink.close()
    (found,) = await rows(empty_url, "SELECT * FROM target")
    assert dict(found) == {**record, "price": 3}
    (kept,) = await rows(empty_url, "SELECT n, position FROM headgate_position WHERE epoch > 0")
    assert tuple(kept) == (2, "20")


@pytest.mark.parametrize("number", [0, 1, 3])
async def test_a_run_that_is_fenced_writes_nothing(empty_url: str, number: int) -> None:
    await rows(empty_url, "CREATE TABLE target (id bigint PRIMARY KEY)")
    older, newer, stream = make_sink(empty_url, mode="upsert"), make_sink(empty_url), uuid4()
    await older.open(make_grant(epoch=1, stream=stream))
    await newer.open(make_grant(epoch=2, stream=stream))
    with pytest.raises(Fenced):
        await older.write(Outgoing([{"id": id} for id in range(number)], Progress(0, 1, 1), ("id",)))
    assert await rows(empty_url, "SELECT * FROM target") == []
    assert [row["n"] for row in await rows(empty_url, "SELECT n FROM headgate_position WHERE epoch > 0")] == [0]
    await older.close()
    await newer.close()


async def test_a_write_that_waits_while_its_successor_begins_is_fenced(empty_url: str) -> None:
    """The row of the position is another's until the statement has begun; then it is that of a newer epoch."""
    await rows(empty_url, "CREATE TABLE target (id bigint)")
    sink, stream = make_sink(empty_url), uuid4()
    await sink.open(make_grant(epoch=1, stream=stream))
    successor = await asyncpg.connect(empty_url)
    await successor.execute("BEGIN")
    await successor.execute("UPDATE headgate_position SET epoch = 2 WHERE stream = $1", stream)
    writing = asyncio.ensure_future(sink.write(Outgoing([{"id": 1}], Progress(0, 1, 1))))

    async def waits() -> bool:
        return bool(await rows(empty_url, "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))

    await until(waits)
    await successor.execute("COMMIT")
    with pytest.raises(Fenced):
        await writing
    assert await rows(empty_url, "SELECT * FROM target") == []
    await successor.close()
    await sink.close()


async def test_a_row_that_the_table_refuses_leaves_the_position_where_it_was(empty_url: str) -> None:
    await rows(empty_url, "CREATE TABLE target (id bigint CHECK (id < 10))")
    sink = make_sink(empty_url)
    await sink.open(make_grant(epoch=1))
    with pytest.raises(ConnectorError):
        await sink.write(Outgoing([{"id": 10}], Progress(0, 1, 1)))
    assert [row["n"] for row in await rows(empty_url, "SELECT n FROM headgate_position WHERE epoch > 0")] == [0]
    await sink.write(Outgoing([{"id": 9}], Progress(0, 1, 1)))
    assert [row["id"] for row in await rows(empty_url, "SELECT id FROM target")] == [9]
    await sink.close()


async def test_a_text_that_is_too_long_is_refused_and_not_cut(empty_url: str) -> None:
    await rows(empty_url, "CREATE TABLE target (name varchar(3))")
    sink = make_sink(empty_url)
    await sink.open(make_grant(epoch=1))
    with pytest.raises(ConnectorError, match="too long"):
        await sink.write(Outgoing([{"name": "weir"}], Progress(0, 1, 1)))
    await sink.close()


async def test_a_value_for_an_identity_is_taken_as_with_copy(empty_url: str) -> None:
    await rows(empty_url, "CREATE TABLE target (id bigint GENERATED ALWAYS AS IDENTITY, name text)")
    sink = make_sink(empty_url)
    await sink.open(make_grant(epoch=1))
    await sink.write(Outgoing([{"id": 7, "name": "one"}], Progress(0, 1, 1)))
    await sink.write(Outgoing([{"id": 8, "name": "x"}, {"id": 9, "name": "x"}], Progress(0, 2, 2)))
    assert [row["id"] for row in await rows(empty_url, "SELECT id FROM target ORDER BY id")] == [7, 8, 9]
    await sink.close()


async def test_of_a_few_rows_that_replace_each_other_the_last_one_stays(empty_url: str, asked: type[Counting]) -> None:
    await rows(empty_url, "CREATE TABLE target (id bigint PRIMARY KEY, name text)")
    sink = make_sink(empty_url, mode="upsert")
    await sink.open(make_grant(epoch=1))
    asked.asked = 0
    few = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 1, "name": "c"}]
    await sink.write(Outgoing(few, Progress(0, 1, 1), ("id",)))
    await sink.write(Outgoing([{"id": 2, "name": "d"}], Progress(0, 2, 2), ("id",)))
    assert asked.asked == 3  # One is whether the table could refuse the record that is replaced.
    found = await rows(empty_url, "SELECT id, name FROM target ORDER BY id")
    assert [tuple(row) for row in found] == [(1, "c"), (2, "d")]
    await sink.close()


async def test_it_is_durable_and_does_not_wait_for_ever_whatever_the_session_says(empty_url: str) -> None:
    """A trigger sees the settings under which the row is written, and the lock by which a successor ends it."""
    stream = uuid4()
    await rows(empty_url, "CREATE TABLE target (id bigint)")
    await rows(empty_url, "CREATE TABLE seen (name text, setting text)")
    await rows(
        empty_url,
        """
        CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO seen SELECT name, setting FROM pg_settings WHERE name IN ('synchronous_commit', 'lock_timeout');
            INSERT INTO seen SELECT 'lock', (classid::bigint << 32 | objid::bigint)::text FROM pg_locks
                WHERE locktype = 'advisory' AND pid = pg_backend_pid();
            RETURN new;
        END $$
        """,
    )
    await rows(empty_url, "CREATE TRIGGER look BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION look()")
    (database,) = await rows(empty_url, "SELECT current_database() AS name")
    await rows(empty_url, f'ALTER DATABASE "{database["name"]}" SET synchronous_commit = off')
    sink = make_sink(empty_url)
    await sink.open(make_grant(epoch=1, stream=stream))
    await sink.write(Outgoing([{"id": 1}], Progress(0, 1, 1)))
    found = {row["name"]: row["setting"] for row in await rows(empty_url, "SELECT * FROM seen")}
    key = str(lock_key(INSTALLATION, stream))
    assert found == {"synchronous_commit": "on", "lock_timeout": "5000", "lock": key}
    await sink.close()


async def test_a_table_that_stays_locked_is_an_error_in_the_end(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_once, "ANSWER_S", 0.3)
    await rows(empty_url, "CREATE TABLE target (id bigint)")
    sink = make_sink(empty_url)
    await sink.open(make_grant(epoch=1))
    holder = await asyncpg.connect(empty_url)
    await holder.execute("BEGIN; LOCK TABLE target")
    with pytest.raises(ConnectorError):
        await sink.write(Outgoing([{"id": 1}], Progress(0, 1, 1)))
    await holder.execute("ROLLBACK")
    await holder.close()
    await sink.write(Outgoing([{"id": 1}], Progress(0, 1, 1)))
    assert len(await rows(empty_url, "SELECT * FROM target")) == 1
    await sink.close()
