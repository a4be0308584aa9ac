"""A source that names streams, on a real node: each stream gets its table, and letters know which one they are of."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
import structlog

from headgate.connectors.api import Batch, Connector, Options, Position, SourceKind, SourceStream
from headgate.connectors.bounds import WireGuard
from headgate.connectors.guard import OPEN
from headgate.core.records import Totals
from headgate.datasources.documents import read_all
from headgate.runtime.harness.jobs import run_job
from headgate.runtime.harness.wire import Case, Job, Outcome
from headgate.runtime.streams.replays import OTHER_KEY, UNKNOWN_KEY
from tests.runtime.conftest import Harness
from tests.runtime.test_dead_letters import Plug, open_letters, totals
from tests.runtime.test_letters_in_postgres import replay, until_numbers
from tests.runtime.test_replayed_letters import replay as replay_all
from tests.runtime.test_sink_cleaning import left, work

KEYS = {"users": ["id"], "orders": ["number"]}
MAKE = (
    "CREATE TABLE raw.users (id bigint PRIMARY KEY, age int CHECK (age > 0))",
    "CREATE TABLE raw.orders (number bigint PRIMARY KEY, total int CHECK (total > 0))",
)


class Naming:
    """A source that says of each record which stream it is of; one batch for each list."""

    def __init__(self, *batches: list[tuple[str, dict[str, Any]]]) -> None:
        self.batches = list(batches)

    def connector(self) -> Connector:
        kind = SourceKind(Options, lambda options, context: _Reading(self), names_streams=True)
        return Connector("naming", "names", source=kind)


class _Reading:
    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self._next = 0

    async def check(self) -> None: ...

    async def parts(self) -> list[str]:
        return [""]

    async def open(self, position: Position) -> None:
        self._next = 0 if position is None else position + 1

    async def read(self) -> Batch:
        while self._next >= len(self._naming.batches):
            await asyncio.sleep(0.01)
        some, number = self._naming.batches[self._next], self._next
        self._next += 1
        known = [SourceStream("users", types={"born": "date"})]
        meta = [{"stream": stream, "key": KEYS.get(stream, [])} for stream, _ in some]
        return Batch(
            [record for _, record in some], number, meta=meta, streams=known, place=lambda at: f"batch {number}, {at}"
        )

    async def ack(self, position: Position) -> None: ...

    async def close(self) -> None: ...


def document(hg: Harness, mapping: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    sink = {"type": "postgres", "url": hg.url, "table": "raw.{stream}", "mode": "upsert"}
    return {"source": {"type": "naming"}, "mapping": mapping or {}, "sink": sink, **more}


@pytest.fixture
async def raw(hg: Harness) -> None:
    await hg.sql("CREATE SCHEMA raw")


async def rows(hg: Harness, query: str) -> list[Any]:
    return [tuple(row) for row in await hg.sql(query)]


async def until_rows(hg: Harness, query: str, *wanted: Any) -> None:
    async def are_there() -> bool:
        found = await hg.sql(
            "SELECT to_regclass('raw.users') IS NOT NULL AND to_regclass('raw.orders') IS NOT NULL AS t"
        )
        return bool(found[0]["t"]) and await rows(hg, query) == list(wanted)

    await hg.until_true(are_there)


async def test_streams_become_tables_and_go_on_after_a_restart(hg: Harness, plug: Plug, raw: None) -> None:
    source = Naming(
        [("users", {"id": 1, "born": None}), ("orders", {"number": 1}), ("users", {"id": 2, "born": None})],
    )
    plug(source.connector())
    await hg.apply(orders=document(hg, {"where": "meta.stream != 'logs'"}))
    await until_rows(hg, "SELECT id FROM raw.users ORDER BY 1", (1,), (2,))
    type = (
        "SELECT atttypid::regtype::text FROM pg_attribute WHERE attrelid = 'raw.users'::regclass AND attname = 'born'"
    )
    assert await rows(hg, type) == [("date",)]
    await hg.node.registry.restart("orders", "tester")
    source.batches.append([("orders", {"number": 1, "total": 5}), ("logs", {}), ("users", {"id": 3})])
    await until_rows(hg, "SELECT id FROM raw.users ORDER BY 1", (1,), (2,), (3,))
    assert await rows(hg, "SELECT number, total FROM raw.orders") == [(1, 5)]

    async def are_counted() -> bool:
        return await totals(hg) == Totals(6, 5, 1, 0)

    await hg.until_true(are_counted)


async def test_a_letter_names_its_stream_and_is_superseded_and_replayed_in_its_table(
    hg: Harness, plug: Plug, raw: None
) -> None:
    for statement in MAKE:
        await hg.sql(statement)
    source = Naming(
        [
            ("users", {"id": 1, "age": -1}),  # Superseded by the next batch.
            ("orders", {"number": 1, "total": -1}),  # A record 1 of another stream supersedes nothing.
            ("users", {"id": 2, "age": "x"}),
            ("users", {"id": 2, "age": 7}),  # Supersedes the one before it.
            ("orders", {"number": 2, "total": 2}),
        ]
    )
    plug(source.connector())
    await hg.apply(orders=document(hg))
    await until_numbers(hg, open=2, superseded=1)
    assert await open_letters(hg) == [
        ("stream 'users', batch 0, 0", "sink", "age", "breaks the constraint users_age_check"),
        ("stream 'orders', batch 0, 1", "sink", "total", "breaks the constraint orders_total_check"),
    ]
    assert await rows(hg, "SELECT id, age FROM raw.users") == [(2, 7)]
    assert await rows(hg, "SELECT number, total FROM raw.orders") == [(2, 2)]
    source.batches.append([("users", {"id": 1, "age": 5})])
    await until_numbers(hg, open=1, superseded=2)
    await hg.sql("ALTER TABLE raw.orders DROP CONSTRAINT orders_total_check")
    await replay(hg)
    await until_numbers(hg, replayed=1, superseded=2)
    assert await rows(hg, "SELECT id, age FROM raw.users ORDER BY 1") == [(1, 5), (2, 7)]
    assert await rows(hg, "SELECT number, total FROM raw.orders ORDER BY 1") == [(1, -1), (2, 2)]


async def test_a_record_that_cannot_be_mapped_has_the_key_of_its_stream(hg: Harness, plug: Plug, raw: None) -> None:
    for statement in MAKE:
        await hg.sql(statement.replace("number bigint", "id bigint"))
    source = Naming([("users", {"id": "017", "age": "x"}), ("orders", {"id": "017", "age": "x"})])
    plug(source.connector())
    await hg.apply(orders=document(hg, {"set": {"id": "id", "age": "int(age)"}, "key": "id"}))
    await until_numbers(hg, open=2)
    source.batches.append([("users", {"id": 17, "age": 1})])
    await until_numbers(hg, open=1, superseded=1)
    ((place, stage, *_),) = await open_letters(hg)
    assert (place, stage) == ("stream 'orders', batch 0, 1", "mapping")


async def test_a_letter_of_the_mapping_is_superseded_by_the_key_that_its_stream_says(
    hg: Harness, plug: Plug, raw: None
) -> None:
    for statement in MAKE:
        await hg.sql(statement)
    source = Naming([("users", {"id": "01", "age": "x"}), ("orders", {"number": 1, "age": "x"})])
    plug(source.connector())
    await hg.apply(orders=document(hg, {"types": {"age": "int"}}))
    await until_numbers(hg, open=2)
    source.batches.append([("users", {"id": 1, "age": 5})])
    await until_numbers(hg, open=1, superseded=1)
    assert [place for place, *_ in await open_letters(hg)] == ["stream 'orders', batch 0, 1"]


async def test_a_letter_without_a_key_says_that_and_not_that_its_key_is_another_one(
    hg: Harness, plug: Plug, raw: None
) -> None:
    for statement in MAKE:
        await hg.sql(statement)
    source = Naming([("users", {"age": "x"})])
    plug(source.connector())
    await hg.apply(orders=document(hg, {"types": {"age": "int"}}))
    await until_numbers(hg, open=1)
    await hg.apply(orders=document(hg, {"set": {"id": "1", "age": "length(age)"}}))
    await hg.until("orders", version=2, status="RUNNING")
    await replay(hg)

    async def is_refused() -> bool:
        return [reason for *_, reason in await open_letters(hg)] == [UNKNOWN_KEY]

    await hg.until_true(is_refused)


async def test_a_letter_whose_table_has_another_key_by_now_stops_nothing(
    hg: Harness, plug: Plug, raw: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the run has heard of the new key the sink refuses it; afterwards it goes by that key."""
    monkeypatch.setitem(KEYS, "users", ["id"])
    await hg.sql("CREATE TABLE raw.users (id bigint PRIMARY KEY, region int, age int CHECK (age > 0))")
    await hg.sql(MAKE[1])
    source = Naming([("users", {"id": 1, "region": 1, "age": -1})])
    plug(source.connector())
    await hg.apply(orders=document(hg))
    await until_numbers(hg, open=1)
    await hg.sql("ALTER TABLE raw.users DROP CONSTRAINT users_pkey, ADD PRIMARY KEY (id, region)")
    await hg.sql("ALTER TABLE raw.users DROP CONSTRAINT users_age_check")
    KEYS["users"] = ["id", "region"]
    await hg.node.registry.restart("orders", "tester")
    await replay_all(hg)
    ((*_, reason),) = await open_letters(hg)
    assert "ON CONFLICT" in reason
    source.batches.append([("users", {"id": 2, "region": 1, "age": 5})])
    await until_rows(hg, "SELECT id, region FROM raw.users", (2, 1))
    await replay_all(hg)
    assert [reason for *_, reason in await open_letters(hg)] == [OTHER_KEY]
    await replay_all(hg, overwrite=True)
    assert await rows(hg, "SELECT id, region, age FROM raw.users ORDER BY 1") == [(1, 1, -1), (2, 1, 5)]


async def test_a_letter_of_a_stream_without_a_key_stops_nothing(
    hg: Harness, plug: Plug, raw: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KEYS, "logs", [])
    for statement in MAKE:
        await hg.sql(statement)
    source = Naming([("logs", {"age": "x"}), ("users", {"id": 1, "age": "x"})])
    plug(source.connector())
    await hg.apply(orders=document(hg, {"types": {"age": "int"}}))
    await until_numbers(hg, open=2)
    await hg.apply(orders=document(hg))
    await hg.until("orders", version=2, status="RUNNING")
    source.batches.append([("users", {"id": 2, "age": 5})])
    await replay_all(hg, overwrite=True)
    told = {place: reason for place, _, _, reason in await open_letters(hg)}
    assert told["stream 'logs', batch 0, 0"] == "stream 'logs' says no key, by which the sink could upsert"
    await until_rows(hg, "SELECT id FROM raw.users", (2,))


async def test_two_streams_of_one_table_stop_the_datasource_and_say_so(hg: Harness, plug: Plug, raw: None) -> None:
    KEYS.update({"a-b": ["id"], "a b": ["id"]})
    source = Naming([("a-b", {"id": 1})], [("a b", {"id": 2})])
    plug(source.connector())
    await hg.apply(orders=document(hg))
    state = await hg.until("orders", status="ERROR")
    assert state["error"]["message"].startswith("the streams 'a b' and 'a-b' would both be the table raw.a_b")
    assert await rows(hg, "SELECT id FROM raw.a_b") == [(1,)]


async def test_a_datasource_that_is_deleted_leaves_its_tables_and_no_position(
    hg: Harness, plug: Plug, raw: None
) -> None:
    plug(Naming([("users", {"id": 1}), ("orders", {"number": 1})]).connector())
    await hg.apply(orders=document(hg))
    await until_rows(hg, "SELECT id FROM raw.users", (1,))
    stream = (await hg.node.streams.find("orders:0")).id
    assert await left(hg, stream) == 1
    await hg.node.registry.delete("orders", "tester", yes=True)

    async def is_purged() -> bool:
        await hg.node.registry.datasources.purge()
        return not await hg.sql("SELECT FROM headgate.stream WHERE id = $1", stream)

    await hg.until_true(is_purged)
    assert await work(hg) == 1
    assert await left(hg, stream) == 0
    assert await rows(hg, "SELECT id FROM raw.users") == [(1,)]


async def test_a_payload_says_which_stream_its_record_is_of(hg: Harness, plug: Plug, raw: None) -> None:
    for statement in MAKE:
        await hg.sql(statement)
    plug(Naming().connector())
    content = read_all({"datasources": {"orders": document(hg)}})["orders"].content
    payload = [
        {"stream": "users", "key": ["id"], "record": {"id": 1, "age": 1}},
        {"stream": "orders", "key_properties": ["number"], "record": {"number": 1, "total": -1}},
        {"id": 7},
    ]
    told: list[Any] = []
    case = Case(payload=msgspec.json.encode(payload))
    everywhere = WireGuard.of(OPEN)
    job = Job("orders", content, {}, everywhere, everywhere, everywhere, cases=[case], is_rehearsed=True)
    await run_job(job, (OPEN, OPEN), structlog.get_logger(), told.append)
    results = [one.results[0] for one in told if isinstance(one, Outcome)]
    assert [(one.outcome, one.reason) for one in results] == [
        ("written", None),
        ("dead_lettered", "breaks the constraint orders_total_check"),
        ("dead_lettered", "the source does not say which stream it is of"),
    ]
    assert results[0].after == {"id": 1, "age": 1}
    assert await rows(hg, "SELECT FROM raw.users") == []
