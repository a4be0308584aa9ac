"""The PostgreSQL sink: exactly once, whoever is stopped wherever."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4, uuid5

import asyncpg
import pytest
from pydantic import ValidationError

from headgate.connectors.api import Outgoing, Progress
from headgate.connectors.postgres import writing
from headgate.connectors.postgres.session import roll_back
from headgate.connectors.postgres.sink import PostgresOptions, PostgresSink, lock_key
from headgate.errors import BadRecords, Cause, ConfigError, ConnectorError, Fenced, NotConnected
from headgate.runtime.streams import trusted as worker
from headgate.testing.contract import TransactionalSinkContract
from headgate.testing.factories import INSTALLATION, make_context, make_grant
from tests.proxy import proxied


def make_sink(url: str, table: str = "target", **options: Any) -> PostgresSink:
    return PostgresSink(PostgresOptions(url=url, table=table, **options), make_context())


async def rows(url: str, query: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(query)
    finally:
        await connection.close()


class TestPostgresInsertSink(TransactionalSinkContract):
    """The public contract, on a table that exists."""

    @pytest.fixture(autouse=True)
    async def table(self, empty_url: str) -> None:
        self.url = empty_url
        await rows(empty_url, "CREATE TABLE target (id bigint NOT NULL, text text)")

    def make_sink(self) -> PostgresSink:
        return make_sink(self.url)

    def make_records(self, first: int, number: int) -> list[dict[str, Any]]:
        return [{"id": i, "text": f"row {i}"} for i in range(first, first + number)]

    def make_refused_records(self) -> list[dict[str, Any]]:
        return [{"id": 1, "text": "good"}, {"id": None, "text": "no id"}]

    async def read_back(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await rows(self.url, "SELECT id, text FROM target ORDER BY id")]


# Somebody is stopped.

STATEMENTS = {"begin": "0", "copy": "1", "advance": "2", "commit": "3"}
MOMENTS = [(name, moment) for name in STATEMENTS for moment in ("before", "inside", "after")] + [("mid-copy", "")]


async def test_a_writer_stopped_anywhere_in_its_write_repeats_and_loses_nothing(empty_url: str) -> None:
    """For each moment: the writer stops, its successor opens and goes on from where the data stand, the writer wakes.

    Whatever the writer had committed is what the successor is told; whatever it had not, it never commits.
    """
    await rows(empty_url, "CREATE TABLE warm_up (id bigint, writer int)")
    first = make_sink(empty_url, "warm_up")
    await first.open(make_grant(epoch=1, stream=uuid4()))  # So that all find the position table.
    await first.close()
    outcomes = await asyncio.gather(*(stop_one(empty_url, name, moment) for name, moment in MOMENTS))
    assert dict(zip(MOMENTS, outcomes, strict=True)) == {
        moment: "committed" if moment in (("commit", "inside"), ("commit", "after")) else "fenced" for moment in MOMENTS
    }


async def stop_one(url: str, name: str, moment: str) -> str:
    """Returns whether the stopped writer's batch counted. Asserts that every record is there exactly once."""
    stream, table = uuid4(), f"t_{name.replace('-', '_')}_{moment or 'half'}"
    await rows(url, f"CREATE TABLE {table} (id bigint, writer int)")
    statement = "copy" if name == "mid-copy" else STATEMENTS[name]
    writer = await stopped_writer(url, table, str(stream), statement, moment)
    successor = make_sink(url, table)
    progress = await successor.open(make_grant(epoch=2, stream=stream))
    assert progress is not None
    begin = progress.position or 0
    end = (progress.position or 0) + 5
    await successor.write(
        Outgoing([{"id": i, "writer": 2} for i in range(begin, end)], Progress(0, progress.commits + 1, end))
    )
    await successor.close()
    os.kill(writer.pid, signal.SIGCONT)
    said = (await writer.communicate())[0].decode().strip()
    written = await rows(url, f"SELECT writer, count(*) AS n FROM {table} GROUP BY writer")
    counts = {row["writer"]: row["n"] for row in written}
    assert counts[2] == 5
    assert counts.get(1, 0) == begin, f"{name} {moment}: {counts}, the writer said {said}"
    return "committed" if begin else "fenced"


async def stopped_writer(*arguments: str) -> asyncio.subprocess.Process:
    """A process that has stopped inside its write."""
    script = Path(__file__).with_name("stopped_writer.py")
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    writer = await asyncio.create_subprocess_exec(
        sys.executable, str(script), *arguments, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    await asyncio.to_thread(wait_until_stopped, writer.pid)
    return writer


REPLAYED = ("begin", "lock", "supersede", "insert", "replayed", "keep", "advance", "commit")


async def test_a_writer_stopped_anywhere_in_a_replay_leaves_rows_letters_and_totals_that_agree(empty_url: str) -> None:
    first = make_sink(empty_url, "warm_up")
    await first.open(make_grant(epoch=1, stream=uuid4()))
    await first.close()
    moments = [(name, moment) for name in REPLAYED for moment in ("before", "inside", "after")]
    outcomes = await asyncio.gather(*(stop_a_replay(empty_url, name, moment) for name, moment in moments))
    assert dict(zip(moments, outcomes, strict=True)) == {
        moment: moment in (("commit", "inside"), ("commit", "after")) for moment in moments
    }


async def stop_a_replay(url: str, name: str, moment: str) -> bool:
    """Returns whether the stopped writer's batch counted. Asserts that all of it did, or nothing."""
    stream, table = uuid4(), f"r_{name}_{moment}"
    await rows(url, f"CREATE TABLE {table} (id bigint PRIMARY KEY, writer int)")
    writer = await stopped_writer(url, table, str(stream), str(REPLAYED.index(name)), moment, "replay")
    successor = make_sink(url, table, mode="upsert")
    progress = await successor.open(replace(make_grant(epoch=2, stream=stream), datasource=stream))
    os.kill(writer.pid, signal.SIGCONT)
    said = (await writer.communicate())[0].decode().strip()
    outcomes = await successor.outcomes()
    await successor.close()
    written = len(await rows(url, f"SELECT FROM {table}"))
    assert progress is not None
    names = {one: outcomes.get(uuid5(stream, one)) for one in ("older", "newer", "kept")}
    if progress.commits == 3:
        expected: dict[str, str | None] = {"older": "superseded", "newer": "replayed", "kept": "open"}
    else:
        expected = {"older": "open", "newer": "open", "kept": None}
    assert (written, progress.totals.read, names) == (
        10 if progress.commits == 3 else 0, progress.commits, expected,
    ), f"{name} {moment}: the writer said {said}"  # fmt: skip
    return progress.commits == 3


def wait_until_stopped(pid: int) -> None:
    """Until the kernel shows it as stopped."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        pass


async def test_a_late_open_does_not_end_the_session_of_a_newer_run(empty_url: str) -> None:
    """The one that is stale finds out by the epoch, before it ends anybody's session."""
    await rows(empty_url, "CREATE TABLE target (id bigint)")
    stream = uuid4()
    newer = make_sink(empty_url)
    await newer.open(make_grant(epoch=7, stream=stream))
    holder = await asyncpg.connect(empty_url)
    await holder.execute(f"BEGIN; SELECT pg_advisory_xact_lock({lock_key(INSTALLATION, stream)})")
    with pytest.raises(Fenced):
        await make_sink(empty_url).open(make_grant(epoch=6, stream=stream))
    assert await holder.fetchval("SELECT 1") == 1
    await holder.close()
    await newer.close()


async def test_a_write_ends_when_trust_does(empty_url: str) -> None:
    """The network swallows the commit: the write is given up at the end of our trust, not at the end of patience."""
    await rows(empty_url, "CREATE TABLE target (id bigint)")
    async with proxied(empty_url) as (proxy, through):
        sink = make_sink(through)
        await sink.open(make_grant(epoch=1, trust_left_s=30.0))
        proxy.freeze()
        with pytest.raises(TimeoutError):
            async with worker.while_trusted(lambda: 0.0, 0.3):
                await sink.write(Outgoing([{"id": 1}], Progress(0, 1, 1)))
        proxy.thaw()
        await sink.close()


# Values.


async def written(url: str, table: str, records: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    sink = make_sink(url, table, **options)
    await sink.open(make_grant(epoch=1, stream=uuid4()))
    await sink.write(Outgoing(records, Progress(0, 1, 1), key=tuple(options.pop("key", ("id",)))))
    await sink.close()
    return [dict(row) for row in await rows(url, f'SELECT * FROM "{table}" ORDER BY id')]


VALUES = {
    "id": 1, "b": True, "f": 1.5, "d": Decimal("12345678901234567890.123456789"), "s": "Zürich ☃ '; DROP TABLE x",
    "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "day": date(2026, 1, 2), "raw": b"\x00\xff", "j": {"a": [1, None]},
    "u": uuid4(),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["insert", "upsert"])
async def test_a_table_is_made_from_the_first_batch_and_every_value_comes_back(empty_url: str, mode: str) -> None:
    found = (await written(empty_url, "made", [VALUES], mode=mode))[0]
    assert found == VALUES | {"j": '{"a": [1, null]}'}


async def test_explicit_columns_decide_the_types_of_a_new_table(empty_url: str) -> None:
    await written(empty_url, "made", [{"id": 1, "n": None}], columns={"n": "numeric(10,2)"})
    types = await rows(
        empty_url,
        "SELECT format_type(atttypid, atttypmod) AS t FROM pg_attribute"
        " WHERE attname = 'n' AND attrelid = 'made'::regclass",
    )
    assert types[0]["t"] == "numeric(10,2)"


@pytest.mark.parametrize(
    ("type", "value", "expected"),
    [
        ("timestamptz", "2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("text", 42, "42"),
        ("bigint", "42", 42),
        ("numeric", 0.1, Decimal("0.1")),
        ("double precision", math.nan, math.nan),
        ("double precision", math.inf, math.inf),
        ("text[]", ["a", None], ["a", None]),
        ("text", {"a": 1}, '{"a":1}'),
        ("jsonb", "text", '"text"'),
        ("jsonb", None, None),
        ("boolean", "true", True),
        ("text", "", ""),
    ],
)
@pytest.mark.parametrize("mode", ["insert", "upsert"])
async def test_a_value_is_converted_to_its_column_by_postgresql(
    empty_url: str, mode: str, type: str, value: Any, expected: Any
) -> None:
    await rows(empty_url, f"CREATE TABLE target (id int PRIMARY KEY, v {type})")
    found = await written(empty_url, "target", [{"id": 1, "v": value}], mode=mode)
    assert found[0]["v"] == expected or (expected != expected and math.isnan(found[0]["v"]))


@pytest.mark.parametrize("value", ["not a number", 2**80, "nul \x00 byte", 1.5])
async def test_a_value_that_does_not_fit_is_a_bad_record_and_nothing_is_written(empty_url: str, value: Any) -> None:
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY, v int)")
    sink = make_sink(empty_url)
    await sink.open(make_grant(epoch=1))
    with pytest.raises(BadRecords):
        await sink.write(Outgoing([{"id": 1, "v": 1}, {"id": 2, "v": value}], Progress(0, 1, 2)))
    assert await rows(empty_url, "SELECT * FROM target") == []
    await sink.write(Outgoing([{"id": 3, "v": 3}], Progress(0, 1, 3)))  # The session is usable again.
    assert len(await rows(empty_url, "SELECT * FROM target")) == 1
    await sink.close()


async def test_an_upsert_keeps_the_last_of_equal_keys_in_a_batch_and_over_batches(empty_url: str) -> None:
    found = await written(empty_url, "made", [{"id": 1, "v": 1}, {"id": 2, "v": 1}, {"id": 1, "v": 2}], mode="upsert")
    assert found == [{"id": 1, "v": 2}, {"id": 2, "v": 1}]
    found = await written(empty_url, "made", [{"id": 1, "v": 3}], mode="upsert")
    assert found == [{"id": 1, "v": 3}, {"id": 2, "v": 1}]


async def test_records_with_different_fields_share_a_table_and_what_is_missing_is_null(empty_url: str) -> None:
    found = await written(empty_url, "made", [{"id": 1, "a": 1}, {"id": 2, "b": 2}])
    assert found == [{"id": 1, "a": 1, "b": None}, {"id": 2, "a": None, "b": 2}]


async def test_a_table_may_have_capitals_and_a_schema(empty_url: str) -> None:
    await rows(empty_url, 'CREATE SCHEMA "My"')
    sink = make_sink(empty_url, "My.Orders")
    await sink.open(make_grant(epoch=1))
    await sink.write(Outgoing([{"id": 1}], Progress(0, 1, 1)))
    await sink.write(Outgoing([{"id": 2}], Progress(0, 2, 2)))
    await sink.close()
    assert len(await rows(empty_url, 'SELECT * FROM "My"."Orders"')) == 2


async def test_names_are_quoted_whatever_they_contain(empty_url: str) -> None:
    found = await written(empty_url, "made", [{"id": 1, 'order "by"; --': "x"}])
    assert found == [{"id": 1, 'order "by"; --': "x"}]


@pytest.mark.parametrize("mode", ["insert", "upsert"])
async def test_senders_name_fields_as_they_like_and_do_no_harm(empty_url: str, mode: str) -> None:
    """Without a mapping the sender of the first record names the columns of the table."""
    await rows(empty_url, "CREATE TABLE canary (v int)")
    odd = [
        *(
            "x); DROP TABLE canary; --",
            'x"); DROP TABLE canary; --',
            "x'); DROP TABLE canary; --",
            "$1",
            "$$",
            "/*",
            "{0}",
        ),
        *("{put}", "%s", "a\\b", "new\nline", "ʼ＂", "select", "n" * 63),
    ]
    record = {"id": 1, **{name: number for number, name in enumerate(odd)}}
    assert await written(empty_url, "made", [record], mode=mode) == [record]
    assert len(await written(empty_url, "made", [{**record, "id": number} for number in range(200)], mode=mode)) >= 200
    for name in ("a\0b", "n" * 64, "é" * 40):
        with pytest.raises((ConnectorError, ConfigError), match=r"NUL|63 bytes"):
            await written(empty_url, "other", [{"id": 1, name: 1}], mode=mode)
    assert await rows(empty_url, "SELECT * FROM canary") == []


@pytest.mark.parametrize("table", ["a\0b", "", ".", "a.", ".b", "a.b.c"])
def test_what_cannot_be_a_tables_name_is_refused_when_the_document_is_read(table: str) -> None:
    with pytest.raises(ValidationError, match="must be a table's name"):
        make_sink("postgresql://x/y", table)


async def test_one_batch_of_any_number_of_rows_is_written_in_parts_and_committed_at_once(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One payload may become tens of thousands of records. Equal hashes of keys cost nothing."""
    monkeypatch.setattr(writing, "VALUES_AT_ONCE", 3_000)
    prime = 2**61 - 1
    many = [{"id": prime * number, "v": number} for number in range(5_000)]
    found = await written(empty_url, "made", many, mode="upsert", columns={"id": "numeric"})
    assert [row["v"] for row in found] == list(range(5_000))
    assert len(await written(empty_url, "plain", many, columns={"id": "numeric"})) == 5_000


@pytest.mark.parametrize("records", [[{}], [{}, {}], [{}, {"id": 1}], [{"id": 1}, {}]])
async def test_a_record_without_fields_is_a_bad_record_and_makes_no_table(
    empty_url: str, records: list[dict[str, Any]]
) -> None:
    sink = make_sink(empty_url)
    await sink.open(make_grant(epoch=1))
    with pytest.raises(BadRecords, match="has no fields"):
        await sink.write(Outgoing(records, Progress(0, 1, 1)))
    await sink.close()
    assert not (await rows(empty_url, "SELECT to_regclass('target') IS NOT NULL AS is_there"))[0]["is_there"]


async def test_fields_that_the_table_lacks_are_refused_before_any_row_is_made_of_them(empty_url: str) -> None:
    """A batch whose records have no field in common would be thousands of columns wide."""
    await rows(empty_url, "CREATE TABLE target (id int)")
    sink = make_sink(empty_url, schema={"new_fields": "fail"})
    await sink.open(make_grant(epoch=1))
    many = [{f"{number}-{field}": 1 for field in range(20)} for number in range(500)]
    tracemalloc.start()
    try:
        with pytest.raises(ConnectorError, match="no column '0-0'"):
            await sink.write(Outgoing(many, Progress(0, 1, 1)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    await sink.close()
    assert peak < 20_000_000  # As rows they are 40 MB.


# What people get wrong.


async def test_a_missing_column_is_a_mistake_in_the_configuration_with_the_cure(empty_url: str) -> None:
    await rows(empty_url, "CREATE TABLE target (id int)")
    sink = make_sink(empty_url, schema={"new_fields": "fail"})
    await sink.open(make_grant(epoch=1))
    with pytest.raises(ConnectorError, match="no column 'extra'") as caught:
        await sink.write(Outgoing([{"id": 1, "extra": 2}], Progress(0, 1, 1)))
    assert caught.value.cause == Cause.CONFIG
    assert "ALTER TABLE" in caught.value.hint
    await sink.close()


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda url: url.replace("headgate@", "nobody@"), Cause.AUTH),
        (lambda url: url.replace("?host=", "_gone?host="), Cause.CONFIG),
        (lambda url: "postgresql://u:p@127.0.0.1:1/x", Cause.NETWORK),
    ],
)
async def test_what_the_server_answers_decides_whether_trying_again_can_help(
    empty_url: str, change: Any, cause: Cause
) -> None:
    sink = make_sink(change(empty_url))
    with pytest.raises(ConnectorError) as caught:
        await sink.check()
    assert caught.value.cause == cause
    with pytest.raises(ConnectorError) as caught:
        await sink.open(make_grant(epoch=1))
    assert caught.value.cause == cause
    await sink.close()


async def test_a_check_finds_a_missing_table_that_may_not_be_made(empty_url: str) -> None:
    with pytest.raises(ConnectorError, match="table target does not exist"):
        await make_sink(empty_url, create=False).check()
    await make_sink(empty_url).check()
    assert await rows(empty_url, "SELECT 1 FROM pg_class WHERE relname IN ('target', 'headgate_position')") == []


async def test_ten_streams_that_open_at_once_on_an_empty_database_all_succeed(empty_url: str) -> None:
    async def one(number: int) -> None:
        sink = make_sink(empty_url)
        await sink.open(make_grant(epoch=1, stream=uuid4()))
        await sink.write(Outgoing([{"id": number}], Progress(0, 1, 1)))
        await sink.close()

    await asyncio.gather(*(one(number) for number in range(10)))
    assert len(await rows(empty_url, "SELECT * FROM target")) == 10


# What went wrong is what is said.


async def test_a_session_that_the_server_ends_inside_a_write_is_what_the_error_says(empty_url: str) -> None:
    """And not that the pool has taken its connection back, which is only what follows."""
    await rows(empty_url, "CREATE TABLE target (id bigint)")
    sink = make_sink(empty_url)
    await sink.open(make_grant(epoch=1))
    other = await asyncpg.connect(empty_url)
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE target IN ACCESS EXCLUSIVE MODE")
            writing = asyncio.create_task(sink.write(Outgoing([{"id": 1}], Progress(0, 1, 1))))
            waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            while (pid := await other.fetchval(waits)) is None:
                await asyncio.sleep(0.01)
            await other.execute("SELECT pg_terminate_backend($1)", pid)
            with pytest.raises(NotConnected, match="terminating connection"):
                await writing
    finally:
        await other.close()
        await sink.close()


async def test_a_cancelled_write_is_cancelled_and_the_sink_closes(empty_url: str) -> None:
    await rows(empty_url, "CREATE TABLE target (id bigint)")
    sink = make_sink(empty_url)
    await sink.open(make_grant(epoch=1))
    other = await asyncpg.connect(empty_url)
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE target IN ACCESS EXCLUSIVE MODE")
            writing = asyncio.create_task(sink.write(Outgoing([{"id": 1}], Progress(0, 1, 1))))
            waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            while await other.fetchval(waits) is None:
                await asyncio.sleep(0.01)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
    finally:
        await other.close()
        await sink.close()


class Broken:
    """A session that cannot be used any more, and says so about whatever it is asked for."""

    def __init__(self) -> None:
        self.is_terminated = False

    async def execute(self, statement: str) -> None:
        raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")

    def terminate(self) -> None:
        self.is_terminated = True
        raise asyncpg.InterfaceError("connection has been released back to the pool")


@pytest.mark.parametrize(
    "cause", [asyncpg.UniqueViolationError("twice"), TypeError("not a number"), ConnectorError("bad")]
)
async def test_leaving_a_broken_session_raises_nothing_in_place_of_the_cause(cause: Exception) -> None:
    connection = Broken()
    assert not await roll_back(connection, cause)
    assert connection.is_terminated
