"""Streams of a source that become tables: each its own, all in the transaction of the position."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from headgate.connectors.api import Grant, Letter, Outgoing, Progress, SourceStream
from headgate.connectors.postgres import several
from headgate.connectors.postgres.pieces import by_stream, in_order
from headgate.connectors.postgres.several import Tables
from headgate.connectors.postgres.sink import PostgresOptions, PostgresSink
from headgate.errors import Bad, BadRecords, Cause, ConnectorError, Fenced
from headgate.testing.factories import make_context, make_grant

MODES = ["insert", "upsert"]
USERS = SourceStream("users", key=("id",))
ORDERS = SourceStream("orders", key=("number",))
LINES = SourceStream("order-lines", key=("number", "line"))


async def rows(url: str, query: str, *values: Any) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(query, *values)]
    finally:
        await connection.close()


@pytest.fixture
async def url(empty_url: str) -> str:
    await rows(empty_url, "CREATE SCHEMA raw")
    return empty_url


def make_sink(url: str, mode: str = "upsert", **options: Any) -> PostgresSink:
    return PostgresSink(
        PostgresOptions(**{"url": url, "table": "raw.{stream}", "mode": mode, **options}), make_context()
    )


@asynccontextmanager
async def opened(url: str, mode: str = "upsert", grant: Grant | None = None, **options: Any) -> AsyncIterator[Any]:
    sink = make_sink(url, mode, **options)
    await sink.open(grant or make_grant(epoch=1, stream=uuid4()))
    try:
        yield sink
    finally:
        await sink.close()


def batch(*records: tuple[SourceStream, dict[str, Any]], commits: int = 1, **more: Any) -> Outgoing:
    progress = Progress(0, commits, commits)
    return Outgoing([one for _, one in records], progress, streams=[stream for stream, _ in records], **more)


async def refused(sink: PostgresSink, *records: tuple[SourceStream, dict[str, Any]], **more: Any) -> list[Bad]:
    with pytest.raises(BadRecords) as caught:
        await sink.write(batch(*records, **more))
    return list(caught.value.bad)


async def position(url: str) -> Any:
    found = await rows(url, "SELECT position::text FROM headgate_position WHERE epoch > 0")
    return found[0][0] if found else None


# Tables.


@pytest.mark.parametrize("mode", MODES)
async def test_each_stream_gets_its_own_table_with_the_position(url: str, mode: str) -> None:
    async with opened(url, mode) as sink:
        await sink.write(
            batch(
                (USERS, {"id": 1, "name": "ada"}),
                (LINES, {"number": 7, "line": 1, "price": 1.5}),
                (USERS, {"id": 2, "name": "bob"}),
            )
        )
        await sink.write(batch((ORDERS, {"number": 7}), commits=2))
    assert await rows(url, "SELECT * FROM raw.users ORDER BY id") == [(1, "ada"), (2, "bob")]
    assert await rows(url, "SELECT number, line FROM raw.order_lines") == [(7, 1)]
    assert await rows(url, "SELECT * FROM raw.orders") == [(7,)]
    assert await position(url) == "2"


async def test_each_stream_is_upserted_by_its_own_key(url: str) -> None:
    async with opened(url) as sink:
        first = [
            (USERS, {"id": 1, "name": "ada"}),
            (LINES, {"number": 1, "line": 1}),
            (LINES, {"number": 1, "line": 2}),
        ]
        await sink.write(batch(*first))
        await sink.write(batch((USERS, {"id": 1, "name": "eve"}), (LINES, {"number": 1, "line": 2}), commits=2))
        gone = batch((LINES, {"number": 1, "line": 1}), (USERS, {"id": 3, "name": "x"}), deletes=[0], commits=3)
        await sink.write(gone)
    assert await rows(url, "SELECT * FROM raw.users ORDER BY id") == [(1, "eve"), (3, "x")]
    assert await rows(url, "SELECT * FROM raw.order_lines") == [(1, 2)]
    keys = "SELECT conrelid::regclass::text, cardinality(conkey) FROM pg_constraint WHERE contype = 'p' ORDER BY 1"
    assert [one for one in await rows(url, keys) if one[0].startswith("raw.")] == [
        ("raw.order_lines", 2),
        ("raw.users", 1),
    ]


async def test_a_stream_without_a_key_cannot_be_upserted(url: str) -> None:
    async with opened(url) as sink:
        with pytest.raises(ConnectorError, match="stream 'logs' says no key") as caught:
            await sink.write(batch((SourceStream("logs"), {"a": 1})))
    assert caught.value.cause is Cause.CONFIG


async def test_a_field_without_a_value_has_the_type_that_the_source_knows(url: str) -> None:
    known = {"at": "timestamp", "price": "decimal", "data": "bytes", "id": "text", "odd": "no such word"}
    stream = SourceStream("users", key=("id",), types=known)
    async with opened(url) as sink:
        await sink.write(batch((stream, {"id": 1, "at": None, "price": None, "data": None, "odd": None})))
    types = (
        "SELECT attname::text, atttypid::regtype::text FROM pg_attribute"
        " WHERE attrelid = 'raw.users'::regclass AND attnum > 0"
    )
    assert dict(await rows(url, types)) == {
        "id": "bigint",  # What is there goes before what was announced: a mapping may have made it.
        "at": "timestamp with time zone",
        "price": "numeric",
        "data": "bytea",
        "odd": "text",
    }


class NotGoneThrough(dict[str, str]):
    def __iter__(self) -> Any:
        raise AssertionError("a schema may have many more fields than the records")


async def test_only_the_fields_of_the_records_are_looked_for_in_a_schema(url: str) -> None:
    stream = SourceStream("users", key=("id",), types=NotGoneThrough(at="timestamp", other="text"))
    async with opened(url) as sink:
        await sink.write(batch((stream, {"id": 1, "at": None})))
    types = "SELECT attname::text FROM pg_attribute WHERE attrelid = 'raw.users'::regclass AND attnum > 0"
    assert await rows(url, types) == [("id",), ("at",)]


async def test_each_table_follows_its_own_records(url: str) -> None:
    async with opened(url, columns={"name": "varchar(20)"}) as sink:
        await sink.write(batch((USERS, {"id": 1}), (ORDERS, {"number": 1, "total": 1})))
        await sink.write(batch((USERS, {"id": 2, "name": "x"}), (ORDERS, {"number": 2, "total": 1.5}), commits=2))
    assert await rows(url, "SELECT * FROM raw.users ORDER BY id") == [(1, None), (2, "x")]
    assert [float(one) for (one,) in await rows(url, "SELECT total FROM raw.orders ORDER BY number")] == [1.0, 1.5]


async def test_a_table_that_is_there_is_used_and_none_is_made_if_none_may_be(url: str) -> None:
    await rows(url, "CREATE TABLE raw.users (id int PRIMARY KEY, name text DEFAULT 'none')")
    async with opened(url, create=False) as sink:
        await sink.write(batch((USERS, {"id": 1})))
        with pytest.raises(ConnectorError, match=r"table raw\.orders does not exist"):
            await sink.write(batch((USERS, {"id": 2}), (ORDERS, {"number": 1}), commits=2))
    assert await rows(url, "SELECT * FROM raw.users") == [(1, "none")]


async def test_an_error_names_the_table_at_work(url: str) -> None:
    await rows(url, "CREATE TABLE raw.orders (number int)")
    both = batch((USERS, {"id": 1}), (ORDERS, {"number": 1}))
    async with opened(url) as sink:
        for use in (sink.write, sink.rehearse):
            with pytest.raises(ConnectorError, match=r"^raw\.orders: there is no unique"):
                await use(both)
        await rows(url, "DROP TABLE headgate_position")
        with pytest.raises(ConnectorError, match=r"^raw\.\{stream\}: relation"):
            await sink.write(batch((USERS, {"id": 1})))


async def test_tables_are_written_in_one_order_whatever_that_of_the_records_is(url: str) -> None:
    await rows(url, "CREATE SEQUENCE raw.turn")
    for table in ("users", "orders"):
        await rows(url, f"CREATE TABLE raw.{table} (id int PRIMARY KEY, at int DEFAULT nextval('raw.turn'))")
    users, orders = (SourceStream(name, key=("id",)) for name in ("users", "orders"))
    async with opened(url) as sink:
        await sink.write(batch((users, {"id": 1}), (orders, {"id": 1})))
    async with opened(url) as other:
        await other.write(batch((orders, {"id": 2}), (users, {"id": 2})))
    assert await rows(url, "SELECT id, at FROM raw.orders ORDER BY id") == [(1, 1), (2, 3)]
    assert await rows(url, "SELECT id, at FROM raw.users ORDER BY id") == [(1, 2), (2, 4)]


# Names that come from outside.


async def test_two_streams_of_one_table_are_refused_and_never_mixed(url: str) -> None:
    one, other = SourceStream("a-b", key=("id",)), SourceStream("a.b", key=("id",))
    async with opened(url) as sink:
        await sink.write(batch((one, {"id": 1})))
        with pytest.raises(ConnectorError, match=r"streams 'a\.b' and 'a-b' would both be the table raw\.a_b"):
            await sink.write(batch((one, {"id": 2}), (other, {"id": 3}), commits=2))
    async with opened(url) as later:  # Another run has never heard of the first one.
        with pytest.raises(ConnectorError, match=r"streams 'a\.b' and \"a-b\" would both be the table raw\.a_b"):
            await later.write(batch((other, {"id": 3})))
        with pytest.raises(ConnectorError, match="would both be the table"):
            await later.rehearse(batch((other, {"id": 3})))
    async with opened(url) as later:
        with pytest.raises(ConnectorError, match="would both be the table"):
            await later.write(batch((SourceStream("a-b", "elsewhere", ("id",)), {"id": 3})))
    assert await rows(url, "SELECT id FROM raw.a_b") == [(1,)]


@pytest.mark.parametrize(
    "name", ['x"; DROP TABLE raw.users; --', "o'clock", "\\", "nul\0", "ä\ud800", "q" * 5000, "$h$"]
)
async def test_a_hostile_name_is_a_table_like_any_other(url: str, name: str) -> None:
    stream = SourceStream(name, key=("id",))
    for epoch in range(2):
        async with opened(url) as sink:
            await sink.write(batch((USERS, {"id": epoch}), (stream, {"id": epoch})))
            assert await refused(sink, (USERS, {"id": 7}), (stream, {"id": None})) == [
                Bad(1, "id", "is a part of the key, and must not be null")
            ]
    tables = await rows(
        url, "SELECT relname::text FROM pg_class WHERE relnamespace = 'raw'::regnamespace AND relkind = 'r'"
    )
    assert len(tables) == 2
    for (table,) in tables:
        assert await rows(url, f'SELECT id FROM raw."{table}" ORDER BY id') == [(0,), (1,)]


@pytest.mark.parametrize("name", ["headgate_position", "headgate_dead_letter", "pg_class"])
async def test_no_stream_is_a_table_of_ours_or_of_the_server(url: str, name: str) -> None:
    async with opened(url, table="{stream}") as sink:
        with pytest.raises(ConnectorError, match="own") as caught:
            await sink.write(batch((SourceStream(name, key=("id",)), {"id": 1})))
    assert caught.value.cause is Cause.CONFIG


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        ("VIEW raw.wages AS SELECT * FROM payroll.wages", "a view"),
        ("MATERIALIZED VIEW raw.wages AS SELECT * FROM payroll.wages", "a materialized view"),
        ("INDEX wages ON raw.others (id)", "an index"),
        ("SEQUENCE raw.wages", "a sequence"),
        ("TYPE raw.wages AS (id int)", "a type"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
async def test_a_stream_goes_into_tables_only(url: str, mode: str, made: str, kind: str) -> None:
    await rows(url, "CREATE SCHEMA payroll")
    for table in ("payroll.wages", "raw.others"):
        await rows(url, f"CREATE TABLE {table} (id int PRIMARY KEY)")
    await rows(url, f"CREATE {made}")
    wages = SourceStream("wages", key=("id",))
    async with opened(url, mode) as sink:
        for use in (sink.write, sink.rehearse):
            with pytest.raises(ConnectorError, match=rf"^raw\.wages is {kind}, and the stream 'wages'") as caught:
                await use(batch((wages, {"id": 1})))
            assert caught.value.cause is Cause.CONFIG
    assert await rows(url, "SELECT * FROM payroll.wages") == []


async def test_a_stream_may_be_a_table_with_partitions(url: str) -> None:
    await rows(url, "CREATE TABLE raw.users (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    await rows(url, "CREATE TABLE raw.users_0 PARTITION OF raw.users DEFAULT")
    async with opened(url) as sink:
        await sink.write(batch((USERS, {"id": 1})))
        with pytest.raises(ConnectorError, match=r"^raw\.users_pkey is an index"):
            await sink.write(batch((SourceStream("users_pkey", key=("id",)), {"id": 1}), commits=2))
    assert await rows(url, "SELECT id FROM raw.users") == [(1,)]


@pytest.mark.parametrize("schema", ["headgate", "pg_catalog", "information_schema"])
async def test_the_schema_of_the_registry_or_of_the_server_is_out_of_reach(url: str, schema: str) -> None:
    await rows(url, "CREATE SCHEMA headgate")
    table = f"{schema}.{{stream}}"
    for use in (make_sink(url, table=table).check, lambda: make_sink(url, table=table).open(make_grant())):
        with pytest.raises(ConnectorError, match="own schema"):
            await use()


async def test_a_source_cannot_make_tables_without_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "MOST_TABLES", 2)
    async with opened(url) as sink:
        await sink.write(batch((USERS, {"id": 1}), (ORDERS, {"number": 1})))
        with pytest.raises(ConnectorError, match="'order-lines' would be one of more than 2 tables"):
            await sink.write(batch((LINES, {"number": 1, "line": 1}), commits=2))
    async with opened(url) as later:  # Nor by and by.
        await later.write(batch((USERS, {"id": 2})))
        with pytest.raises(ConnectorError, match="more than 2 tables"):
            await later.write(batch((LINES, {"number": 1, "line": 1}), commits=2))


async def test_a_record_of_no_stream_is_named(url: str) -> None:
    async with opened(url) as sink:
        found = await refused(sink, (USERS, {"id": 1}), (SourceStream(""), {"id": 2}))
    assert found == [Bad(1, None, "the source does not say which stream it is of")]


# Bad records.


@pytest.mark.parametrize("mode", MODES)
async def test_bad_records_of_all_streams_are_named_by_their_place_in_the_batch(url: str, mode: str) -> None:
    await rows(url, "CREATE TABLE raw.users (id int PRIMARY KEY, age int CHECK (age > 0))")
    await rows(url, "CREATE TABLE raw.orders (number int PRIMARY KEY, total int CHECK (total > 0))")
    records = [
        (USERS, {"id": 1, "age": 1}),
        (ORDERS, {"number": 1, "total": 5}),
        (ORDERS, {"number": 2, "total": "x"}),
        (USERS, {"id": 2, "age": "y"}),
        (ORDERS, {"number": 3, "total": -1}),
        (USERS, {"id": 3, "age": -1}),
        (ORDERS, {"number": 4, "total": 6}),
    ]
    async with opened(url, mode) as sink:
        assert await refused(sink, *records) == [
            Bad(2, "total", "an integer is expected, not text"),
            Bad(3, "age", "an integer is expected, not text"),
        ]
        left = [one for at, one in enumerate(records) if at not in (2, 3)]
        assert await refused(sink, *left) == [
            Bad(2, "total", "breaks the constraint orders_total_check"),
            Bad(3, "age", "breaks the constraint users_age_check"),
        ]
        assert await rows(url, "SELECT FROM raw.users UNION ALL SELECT FROM raw.orders") == []
        await sink.write(batch(*[one for at, one in enumerate(left) if at not in (2, 3)]))
    assert await rows(url, "SELECT id FROM raw.users") == [(1,)]
    assert await rows(url, "SELECT number FROM raw.orders ORDER BY 1") == [(1,), (4,)]


FAMILY = (
    "CREATE TABLE raw.users (id int PRIMARY KEY, age int CHECK (age > 0))",
    "CREATE TABLE raw.orders (number int PRIMARY KEY, owner int NOT NULL REFERENCES raw.users {}, total text)",
)


async def make_family(url: str, more: str = "") -> None:
    for statement in FAMILY:
        await rows(url, statement.format(more))


@pytest.mark.parametrize("more", ["", "DEFERRABLE INITIALLY DEFERRED"])
@pytest.mark.parametrize("mode", MODES)
async def test_a_child_may_come_before_its_parent(url: str, mode: str, more: str) -> None:
    await make_family(url, more)
    async with opened(url, mode) as sink:
        await sink.write(batch((ORDERS, {"number": 1, "owner": 1}), (USERS, {"id": 1, "age": 1})))
        # Two of one key: what a later one replaces is tried, too.
        twice = [
            (ORDERS, {"number": 2, "owner": 2}),
            (ORDERS, {"number": 2, "owner": 2, "total": "x"}),
            (USERS, {"id": 2, "age": 1}),
        ]
        await sink.write(batch(*twice[0 if mode == "upsert" else 1 :], commits=2))
    assert await rows(url, "SELECT number, owner FROM raw.orders ORDER BY 1") == [(1, 1), (2, 2)]


async def test_a_foreign_key_that_is_added_later_orders_the_tables_from_then_on(url: str) -> None:
    await rows(url, FAMILY[0])
    await rows(url, "CREATE TABLE raw.orders (number int PRIMARY KEY, owner int, total text)")
    async with opened(url) as sink:
        await sink.write(batch((ORDERS, {"number": 1, "owner": 1}), (USERS, {"id": 1, "age": 1})))
        await rows(url, "ALTER TABLE raw.orders ADD FOREIGN KEY (owner) REFERENCES raw.users")
        twice = [(ORDERS, {"number": 2, "owner": 2}), (ORDERS, {"number": 2, "owner": 2, "total": "x"})]
        await sink.write(batch(*twice, (USERS, {"id": 2, "age": 1}), commits=2))
    assert await rows(url, "SELECT number FROM raw.orders ORDER BY 1") == [(1,), (2,)]


@pytest.mark.parametrize("more", ["", "DEFERRABLE INITIALLY DEFERRED"])
@pytest.mark.parametrize("mode", MODES)
async def test_only_the_child_of_a_parent_that_is_not_there_is_bad(url: str, mode: str, more: str) -> None:
    await make_family(url, more)
    records = [
        (ORDERS, {"number": 1, "owner": 1}),
        (ORDERS, {"number": 2, "owner": 9}),  # Nobody.
        (ORDERS, {"number": 3, "owner": 2}),  # Of one that is refused.
        (USERS, {"id": 1, "age": 1}),
        (USERS, {"id": 2, "age": -1}),
    ]
    async with opened(url, mode) as sink:
        found = await refused(sink, *records)
        assert [(one.index, one.reason) for one in found] == [
            (1, "breaks the constraint orders_owner_fkey"),
            (2, "breaks the constraint orders_owner_fkey"),
            (4, "breaks the constraint users_age_check"),
        ]
        await sink.write(batch(records[0], records[3]))
    assert await rows(url, "SELECT number FROM raw.orders") == [(1,)]


async def test_children_are_deleted_before_their_parents(url: str) -> None:
    await make_family(url)
    async with opened(url) as sink:
        await sink.write(batch((USERS, {"id": 1, "age": 1}), (ORDERS, {"number": 1, "owner": 1})))
        await sink.write(batch((USERS, {"id": 1}), (ORDERS, {"number": 1}), deletes=[0, 1], commits=2))
    assert await rows(url, "SELECT FROM raw.users UNION ALL SELECT FROM raw.orders") == []


async def test_what_goes_only_in_the_order_of_the_records_goes_in_that_order(url: str) -> None:
    await make_family(url)
    async with opened(url) as sink:
        await sink.write(batch((USERS, {"id": 1, "age": 1}), (ORDERS, {"number": 1, "owner": 1})))
        # The order is given to somebody else, and only then its old owner can go.
        moved = [(USERS, {"id": 2, "age": 1}), (ORDERS, {"number": 1, "owner": 2}), (USERS, {"id": 1})]
        await sink.rehearse(batch(*moved, deletes=[2], commits=2))
        await sink.write(batch(*moved, deletes=[2], commits=2))
        # A circle of foreign keys.
        await rows(url, "ALTER TABLE raw.users ADD first int REFERENCES raw.orders")
    async with opened(url) as sink:
        circle = [
            (USERS, {"id": 5, "age": 1, "first": None}),
            (ORDERS, {"number": 5, "owner": 5}),
            (USERS, {"id": 6, "age": 1, "first": 5}),
            (ORDERS, {"number": 6, "owner": 6}),
        ]
        await sink.write(batch(*circle))
    assert await rows(url, "SELECT id FROM raw.users ORDER BY 1") == [(2,), (5,), (6,)]
    assert await rows(url, "SELECT number, owner FROM raw.orders ORDER BY 1") == [(1, 2), (5, 5), (6, 6)]


TEAMS = SourceStream("teams", key=("id",))


async def make_cascade(url: str, action: str) -> None:
    await rows(url, "CREATE TABLE raw.teams (id int PRIMARY KEY)")
    await rows(url, f"CREATE TABLE raw.users (id int PRIMARY KEY, team int DEFAULT 2 REFERENCES raw.teams {action})")
    owner = "owner int REFERENCES raw.users ON DELETE CASCADE"
    await rows(url, f"CREATE TABLE raw.orders (number int PRIMARY KEY, {owner}, note text)")


@pytest.mark.parametrize("action", ["ON DELETE CASCADE", "ON DELETE SET NULL", "ON DELETE SET DEFAULT"])
async def test_a_deletion_takes_along_only_what_is_still_there_when_it_comes(url: str, action: str) -> None:
    await make_cascade(url, action)
    async with opened(url) as sink:
        first = [(TEAMS, {"id": team}) for team in (1, 2, 3)]
        await sink.write(batch(*first, (USERS, {"id": 7, "team": 1}), (ORDERS, {"number": 1, "owner": 7})))
        await sink.rehearse(batch((USERS, {"id": 7, "team": 3}), (TEAMS, {"id": 1}), deletes=[1], commits=2))
        await sink.write(batch((USERS, {"id": 7, "team": 3}), (TEAMS, {"id": 1}), deletes=[1], commits=2))
        assert await rows(url, "SELECT * FROM raw.users") == [(7, 3)]
        assert await rows(url, "SELECT number, owner FROM raw.orders") == [(1, 7)]
        # One that comes and goes with its parent.
        await sink.write(batch((USERS, {"id": 8, "team": 3}), (TEAMS, {"id": 3}), deletes=[1], commits=3))
    left = {"CASCADE": [], "NULL": [(7, None), (8, None)], "DEFAULT": [(7, 2), (8, 2)]}[action.split()[-1]]
    assert await rows(url, "SELECT * FROM raw.users ORDER BY id") == left
    assert await rows(url, "SELECT number, owner FROM raw.orders") == ([(1, 7)] if left else [])


async def test_deletions_see_a_foreign_key_that_was_added_just_now_or_leads_through_another_table(url: str) -> None:
    await make_cascade(url, "")
    async with opened(url) as sink:
        await sink.write(batch((TEAMS, {"id": 1}), (TEAMS, {"id": 2}), (ORDERS, {"number": 1, "owner": None})))
        await rows(url, "INSERT INTO raw.users VALUES (7, 1), (8, 2)")
        await rows(url, "UPDATE raw.orders SET owner = 7, note = 'kept'")
        await rows(url, "ALTER TABLE raw.users DROP CONSTRAINT users_team_fkey")
        await rows(url, "ALTER TABLE raw.users ADD FOREIGN KEY (team) REFERENCES raw.teams ON DELETE CASCADE")
        await sink.write(batch((ORDERS, {"number": 1, "owner": 8}), (TEAMS, {"id": 1}), deletes=[1], commits=2))
    assert await rows(url, "SELECT * FROM raw.orders") == [(1, 8, "kept")]


async def test_two_versions_of_one_that_is_in_a_circle_of_foreign_keys_are_good(url: str) -> None:
    await make_family(url)
    await rows(url, "ALTER TABLE raw.users ADD first int REFERENCES raw.orders")
    circle = [
        (USERS, {"id": 0, "first": None}),
        (ORDERS, {"number": 1, "owner": 0}),
        (USERS, {"id": 1, "first": 1}),
        (USERS, {"id": 1, "first": 1}),
        (ORDERS, {"number": 2, "owner": 1}),
        (ORDERS, {"number": 2, "owner": 1}),
    ]
    async with opened(url) as sink:
        await sink.rehearse(batch(*circle))
        await sink.write(batch(*circle))
        assert await rows(url, "SELECT id, first FROM raw.users ORDER BY 1") == [(0, None), (1, 1)]
        # Only what is bad in the order of the records is.
        wrong = [(USERS, {"id": 2, "first": 9}), (ORDERS, {"number": 3, "owner": 8}), *circle]
        assert [one.index for one in await refused(sink, *wrong, commits=2)] == [0, 1]


@pytest.mark.parametrize("is_bad", [False, True])
async def test_one_that_moves_twice_before_its_old_parent_goes_is_good(url: str, is_bad: bool) -> None:
    await make_family(url)
    async with opened(url) as sink:
        await sink.write(batch((USERS, {"id": 1, "age": 1}), (USERS, {"id": 2, "age": 1})))
        moved = [(ORDERS, {"number": 7, "owner": 1}), (ORDERS, {"number": 7, "owner": 2}), (USERS, {"id": 1})]
        if is_bad:
            more = [*moved, (ORDERS, {"number": 8, "owner": 1}), (USERS, {"id": 3, "age": -1})]
            found = await refused(sink, *more, deletes=[2], commits=2)
            assert [one.index for one in found] == [3, 4]
        await sink.rehearse(batch(*moved, deletes=[2], commits=2))
        await sink.write(batch(*moved, deletes=[2], commits=2))
    assert await rows(url, "SELECT number, owner FROM raw.orders") == [(7, 2)]
    assert await rows(url, "SELECT id FROM raw.users") == [(2,)]


async def test_what_only_a_trigger_asks_of_another_table_is_tried_in_the_order_of_the_records(url: str) -> None:
    await make_cascade(url, "")
    await rows(url, "ALTER TABLE raw.orders DROP CONSTRAINT orders_owner_fkey")
    body = "BEGIN IF NOT EXISTS (SELECT FROM raw.users WHERE id = NEW.owner) THEN RAISE 'who?'; END IF; RETURN NEW; END"
    await rows(url, f"CREATE FUNCTION raw.ask() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
    await rows(url, "CREATE TRIGGER ask BEFORE INSERT ON raw.orders FOR EACH ROW EXECUTE FUNCTION raw.ask()")
    first = [(USERS, {"id": 1, "team": None}), (ORDERS, {"number": 1, "owner": 1})]
    second = [(USERS, {"id": 2, "team": None}), (ORDERS, {"number": 2, "owner": 2})]
    async with opened(url) as sink:
        await sink.write(batch(*first, *second))
        found = await refused(sink, *first, (ORDERS, {"number": 3, "owner": 9}), *second, commits=2)
        assert [one.index for one in found] == [2]


class Counted(list[int]):
    times = 0

    def __iter__(self) -> Any:
        self.times += 1
        return super().__iter__()


@pytest.mark.parametrize("cut", [by_stream, in_order])
async def test_to_cut_a_batch_is_quick_and_others_have_turns_in_between(url: str, cut: Any) -> None:
    tables = Tables(PostgresOptions(url=url, table="raw.{stream}", mode="upsert"), make_context())
    streams = [SourceStream(f"s{number}", key=("id",)) for number in range(500)]
    deletes, turns = Counted(range(0, 1_000, 2)), 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(others())
    whole = batch(*[(stream, {"id": 1}) for stream in streams * 2], deletes=deletes)
    pieces = await tables.pieces(whole, cut)
    task.cancel()
    assert len(pieces) == (500 if cut is by_stream else 1_000)
    assert [len(piece.batch.deletes) for piece in pieces[:2]] == [1 if cut is in_order else 2, 0]
    assert deletes.times == 1
    assert turns


# Positions and letters.


async def test_a_run_that_is_fenced_writes_nothing_into_any_table(url: str) -> None:
    stream = uuid4()
    async with opened(url, grant=make_grant(epoch=1, stream=stream)) as sink:
        await sink.write(batch((USERS, {"id": 1}), (ORDERS, {"number": 1})))
        successor = make_sink(url)
        found = await successor.open(make_grant(epoch=2, stream=stream))
        assert found is not None
        assert found.position == 1
        with pytest.raises(Fenced):
            await sink.write(batch((USERS, {"id": 2}), (ORDERS, {"number": 2}), commits=2))
        with pytest.raises(Fenced):  # Nor does it make one.
            await sink.write(batch((LINES, {"number": 2, "line": 1}), (USERS, {"id": 3}), commits=2))
        await successor.write(batch((USERS, {"id": 4}), commits=2))
        await successor.close()
    assert await rows(url, "SELECT id FROM raw.users ORDER BY 1") == [(1,), (4,)]
    assert await rows(url, "SELECT number FROM raw.orders") == [(1,)]


async def test_a_stream_that_is_gone_leaves_its_rows_and_no_position(url: str) -> None:
    grant = make_grant()
    async with opened(url, grant=grant) as sink:
        await sink.write(batch((USERS, {"id": 1})))
    await make_sink(url).forget(grant.installation, [grant.stream])
    assert await position(url) is None
    assert await rows(url, "SELECT id FROM raw.users") == [(1,)]


def key(record: dict[str, Any], stream: SourceStream | None = None) -> bytes | None:
    assert stream is not None
    return f"{stream.name} {[record.get(field) for field in stream.key]}".encode()


def letter(stream: SourceStream, **record: Any) -> Letter:
    return Letter(uuid4(), b"content", key(record, stream), remains=b"remains")


async def outcomes(url: str) -> dict[UUID, str]:
    return dict(await rows(url, "SELECT id, outcome FROM headgate_dead_letter"))


async def test_a_record_supersedes_letters_of_its_own_stream_only(url: str) -> None:
    of_user, of_order = letter(USERS, id=1), letter(ORDERS, number=1)
    async with opened(url) as sink:
        await sink.write(batch((USERS, {"id": 5}), (ORDERS, {"number": 5}), letters=[of_user, of_order]))
        await sink.write(batch((USERS, {"id": 1}), (LINES, {"number": 1, "line": 1}), supersedes=key, commits=2))
        assert await outcomes(url) == {of_user.id: "superseded", of_order.id: "open"}
        replay = batch(
            (ORDERS, {"number": 1}), (USERS, {"id": 1}), replays=[of_order.id, of_user.id], supersedes=key, commits=3
        )
        await sink.write(replay)
    assert await outcomes(url) == {of_user.id: "superseded", of_order.id: "replayed"}
    assert await rows(url, "SELECT number FROM raw.orders ORDER BY 1") == [(1,), (5,)]


async def test_the_kinds_of_a_key_are_those_of_the_streams_table(url: str) -> None:
    await rows(url, "CREATE TABLE raw.users (id int PRIMARY KEY)")
    async with opened(url) as sink:
        assert list(await sink.key_kinds(("id",), USERS)) == ["integer"]
        assert list(await sink.key_kinds(("number",), ORDERS)) == []
        await sink.write(batch((ORDERS, {"number": "x"})))
        assert list(await sink.key_kinds(("number",), ORDERS)) == ["text"]


async def test_a_rehearsal_leaves_nothing(url: str) -> None:
    sink = make_sink(url)
    await sink.check()
    await sink.rehearse(batch((USERS, {"id": 1}), (ORDERS, {"number": 1}), (USERS, {"id": 2})))
    with pytest.raises(BadRecords) as caught:
        await sink.rehearse(
            batch((USERS, {"id": 1}), (ORDERS, {"number": None}), (SourceStream("x", key=("id",)), {"id": 1}))
        )
    assert [one.index for one in caught.value.bad] == [1]
    assert await sink.columns() == []
    assert await rows(url, "SELECT to_regclass('raw.users'), to_regclass('raw.orders')") == [(None, None)]
