"""Drift: fields and types that a table did not have when it was made."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timezone
from decimal import Decimal
from typing import Any

import asyncpg
import pytest
from pydantic import ValidationError

from headgate.connectors.api import Outgoing, Progress
from headgate.connectors.postgres import tables
from headgate.connectors.postgres.sink import PostgresOptions, PostgresSink
from headgate.connectors.postgres.tables import widened
from headgate.connectors.postgres.types import type_for_values
from headgate.errors import BadRecords, Cause, ConnectorError, Fenced, RetryLater
from headgate.testing.factories import make_context, make_grant

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
TYPES = """
SELECT attname::text AS name, format_type(atttypid, atttypmod) AS type FROM pg_attribute
WHERE attrelid = 'target'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


async def do(url: str, query: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()


class Writer:
    """A sink that is open, and the events that it reported."""

    def __init__(self, url: str, epoch: int = 1, field_types: dict[str, str] | None = None, **options: Any) -> None:
        self.events: list[tuple[str, dict[str, str]]] = []
        self.commits = 0
        context = make_context(
            field_types=field_types or {}, note=lambda type, **payload: self.events.append((type, payload))
        )
        self.sink = PostgresSink(PostgresOptions(url=url, table="target", **options), context)
        self._grant = make_grant(epoch=epoch)

    async def __aenter__(self) -> Writer:
        await self.sink.open(self._grant)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.sink.close()

    async def write(self, *records: dict[str, Any]) -> None:
        self.commits += 1
        await self.sink.write(Outgoing(list(records), Progress(0, self.commits, self.commits), ("id",)))


# A table that is made.


@pytest.mark.parametrize(
    ("values", "type"),
    [
        ([], "text"),
        ([None, 1], "bigint"),
        ([1, 2.5], "numeric"),
        ([2.5], "double precision"),
        ([1, 2**63], "numeric"),
        ([1, Decimal("0.1")], "numeric"),
        ([True, False], "boolean"),
        ([True, 1], "text"),
        ([1, "x"], "text"),
        ([NOON, date(2026, 1, 1)], "timestamptz"),
        ([{"a": 1}, [1]], "jsonb"),
        ([{"a": 1}, "x", 1], "jsonb"),
    ],
)
def test_the_type_of_a_new_column_holds_all_values_of_the_first_batch(values: list[Any], type: str) -> None:
    assert type_for_values(values) == type


@pytest.mark.parametrize("mode", ["insert", "upsert"])
async def test_the_first_records_accident_does_not_decide_the_table(empty_url: str, mode: str) -> None:
    async with Writer(empty_url, mode=mode) as writer:
        await writer.write({"id": 1, "v": 10}, {"id": 2, "v": 9007199254740993}, {"id": 3, "v": 9.5, "w": {}},
                           {"id": 4, "v": None, "w": "x"})  # fmt: skip
    assert await do(empty_url, TYPES) == [("id", "bigint"), ("v", "numeric"), ("w", "jsonb")]
    assert (9007199254740993,) in await do(empty_url, "SELECT v FROM target")


async def test_what_the_mapping_tells_decides_before_what_the_values_show(empty_url: str) -> None:
    told = {"at": "timestamp", "n": "decimal", "x": "int", "unknown": "odd"}
    async with Writer(empty_url, field_types=told, columns={"x": "smallint"}) as writer:
        await writer.write({"id": 1, "at": None, "n": 1, "x": 5, "unknown": True})
    assert dict(await do(empty_url, TYPES)) == {
        "id": "bigint", "at": "timestamp with time zone", "n": "numeric", "x": "smallint", "unknown": "boolean",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["ctid", "n" * 64, "a\0b", "", "half \ud800"])
@pytest.mark.parametrize("is_there", [False, True])
async def test_a_field_that_no_column_can_be_called_is_a_bad_record(empty_url: str, name: str, is_there: bool) -> None:
    async with Writer(empty_url) as writer:
        if is_there:
            await writer.write({"id": 0})
        with pytest.raises(BadRecords) as caught:
            await writer.write({"id": 1}, {"id": 2, name: 1})
        assert [bad.index for bad in caught.value.bad] == [1]
        await writer.write({"id": 1})
    assert [found[0] for found in await do(empty_url, TYPES)] == ["id"]


# New fields.


@pytest.mark.parametrize("mode", ["insert", "upsert"])
async def test_a_table_that_headgate_made_gets_columns_for_new_fields(empty_url: str, mode: str) -> None:
    async with Writer(empty_url, mode=mode) as writer:
        await writer.write({"id": 1})
    async with Writer(empty_url, epoch=2, mode=mode) as writer:  # It still knows who made it.
        await writer.write({"id": 2, "a": 1}, {"id": 3, "a": 1.5, 'b "; --': "x"})
        assert writer.events == [
            ("column_added", {"table": "target", "column": "a", "before": "", "after": "numeric"}),
            ("column_added", {"table": "target", "column": 'b "; --', "before": "", "after": "text"}),
        ]
    assert len(await do(empty_url, "SELECT FROM target")) == 3
    assert await do(empty_url, TYPES) == [("id", "bigint"), ("a", "numeric"), ('b "; --', "text")]


async def test_a_table_of_somebody_else_is_not_changed_unless_the_document_says_so(empty_url: str) -> None:
    await do(empty_url, "CREATE TABLE target (id int)")
    async with Writer(empty_url) as writer:
        with pytest.raises(BadRecords, match="extra: the table has no column for it"):
            await writer.write({"id": 1, "extra": 1})
    async with Writer(empty_url, epoch=2, schema={"new_fields": "add"}) as writer:
        await writer.write({"id": 1, "extra": 1})
    assert await do(empty_url, TYPES) == [("id", "integer"), ("extra", "bigint")]


async def test_fields_may_be_ignored_but_not_all_of_a_record(empty_url: str) -> None:
    await do(empty_url, "CREATE TABLE target (id int)")
    async with Writer(empty_url, schema={"new_fields": "ignore"}) as writer:
        with pytest.raises(BadRecords) as caught:
            await writer.write({"id": 1, "extra": 1}, {"extra": 1})
        assert [bad.index for bad in caught.value.bad] == [1]
        await writer.write({"id": 1, "extra": 1}, {"id": 2})
    assert await do(empty_url, "SELECT * FROM target") == [(1,), (2,)]


async def test_a_sender_cannot_fill_a_table_with_columns(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that were dropped count, because their places in the table are used up."""
    monkeypatch.setattr(tables, "MOST_ADDED", 5)
    async with Writer(empty_url) as writer:
        await writer.write({"id": 1})
        with pytest.raises(BadRecords) as caught:
            await writer.write({"id": 2, "a": 1, "b": 1, "c": 1}, {"id": 3, **{f"f{n}": 1 for n in range(20)}})
        assert [bad.index for bad in caught.value.bad] == [1]
        await do(empty_url, "ALTER TABLE target DROP COLUMN a, DROP COLUMN b")
    async with Writer(empty_url, epoch=2) as writer:
        with pytest.raises(BadRecords):
            await writer.write({"id": 4, "yet another": 1})


async def test_a_fenced_run_changes_no_table(empty_url: str) -> None:
    async with Writer(empty_url) as older:
        await older.write({"id": 1})
        async with Writer(empty_url, epoch=2):
            with pytest.raises(Fenced):
                await older.write({"id": 2, "late": 1})
    assert await do(empty_url, TYPES) == [("id", "bigint")]


async def test_a_change_does_not_wait_for_a_locked_table_and_is_tried_again(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "TRIES", 1)
    async with Writer(empty_url) as writer:
        await writer.write({"id": 1})
        reader = await asyncpg.connect(empty_url)
        await reader.execute("BEGIN; SELECT * FROM target")
        with pytest.raises(RetryLater):
            await writer.write({"id": 2, "new": 1})
        await reader.execute("COMMIT")
        await reader.close()
        await writer.write({"id": 2, "new": 1})
    assert len(await do(empty_url, "SELECT new FROM target")) == 2


async def test_two_streams_that_add_the_same_column_both_write(empty_url: str) -> None:
    async with Writer(empty_url) as first:
        await first.write({"id": 0})
    writers = [Writer(empty_url, epoch=2) for _ in range(4)]
    for number, writer in enumerate(writers):
        writer._grant = make_grant(f"stream {number}")
        await writer.sink.open(writer._grant)
    await asyncio.gather(*(writer.write({"id": n, "new": n, f"own{n}": 1}) for n, writer in enumerate(writers)))
    for writer in writers:
        await writer.sink.close()
    assert len(await do(empty_url, "SELECT new FROM target WHERE new IS NOT NULL")) == 4


# New types.


@pytest.mark.parametrize(
    ("type", "values", "expected"),
    [
        ("smallint", [2**15], "integer"),
        ("smallint", [2**31], "bigint"),
        ("integer", [-(2**31) - 1, "x"], "bigint"),
        ("integer", [2**63], "numeric"),
        ("bigint", [1.5], "numeric"),
        ("bigint", [Decimal("0.1")], "numeric"),
        ("bigint", ["1.5"], None),
        ("bigint", [float("nan"), float("inf"), True], None),
        ("double precision", ["x"], None),
        ("date", [NOON], "timestamp with time zone"),
        ("date", [NOON, NOON.replace(tzinfo=None)], "timestamp without time zone"),
        ("date", ["x"], None),
        ("text", [{}], None),
    ],
)
def test_a_type_is_widened_only_to_one_that_loses_nothing(type: str, values: list[Any], expected: str | None) -> None:
    assert widened(type, values) == expected


@pytest.mark.parametrize("mode", ["insert", "upsert"])
async def test_a_column_of_a_table_that_headgate_made_is_widened(empty_url: str, mode: str) -> None:
    async with Writer(empty_url, mode=mode, columns={"v": "integer", "day": "date"}) as writer:
        await writer.write({"id": 1, "v": 10, "day": date(2026, 1, 1)})
        await writer.write({"id": 2, "v": 2**40, "day": NOON}, {"id": 3, "v": 1, "day": None})
        await writer.write({"id": 4, "v": 9.5, "day": None})
        with pytest.raises(BadRecords, match="a number is expected"):
            await writer.write({"id": 5, "v": "x", "day": None}, {"id": 6, "v": 1, "day": None})
        changes = [(event["column"], event["before"], event["after"]) for type, event in writer.events[1:]]
        assert changes == [
            ("day", "date", "timestamp with time zone"), ("v", "integer", "bigint"), ("v", "bigint", "numeric"),
        ]  # fmt: skip
    found = await do(empty_url, "SELECT v, day FROM target ORDER BY id")
    assert found == [(10, datetime(2026, 1, 1, tzinfo=UTC)), (2**40, NOON), (1, None), (Decimal("9.5"), None)]


async def test_a_bad_neighbour_does_not_keep_a_column_from_being_widened(empty_url: str) -> None:
    async with Writer(empty_url, columns={"v": "integer"}) as writer:
        await writer.write({"id": 1, "v": 1})
        with pytest.raises(BadRecords) as caught:
            await writer.write({"id": 2, "v": 2**40}, {"id": 3, "v": "x"}, {"id": 4, "v": 4})
        assert [bad.index for bad in caught.value.bad] == [1]
        await writer.write({"id": 2, "v": 2**40}, {"id": 4, "v": 4})


async def test_a_column_that_cannot_be_widened_makes_dead_letters(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view needs its type; or the table is so large that nobody could use it while it is written again."""
    async with Writer(empty_url, columns={"v": "integer", "w": "integer"}) as writer:
        await writer.write({"id": 1, "v": 1, "w": 1})
        await do(empty_url, "CREATE VIEW shown AS SELECT v FROM target")
        for _ in range(2):
            with pytest.raises(BadRecords, match="v: is too large for integer"):
                await writer.write({"id": 2, "v": 2**40, "w": 1})
        monkeypatch.setattr(tables, "LARGEST_REWRITE", 100)
        with pytest.raises(BadRecords, match="w: is too large for integer"):
            await writer.write({"id": 2, "v": 1, "w": 2**40})
        await writer.write({"id": 3, "v": 1, "w": 1})


async def test_a_value_of_another_type_may_stop_the_stream(empty_url: str) -> None:
    await do(empty_url, "CREATE TABLE target (id int, v text)")
    async with Writer(empty_url, schema={"new_types": "fail"}) as writer:
        with pytest.raises(ConnectorError, match="id: is too large for integer") as caught:
            await writer.write({"id": 2**40, "v": "x"}, {"id": 1, "v": "x"})
        assert not isinstance(caught.value, BadRecords)
        assert caught.value.cause == Cause.BAD_RECORD
        with pytest.raises(BadRecords):  # That is no question of types.
            await writer.write({"id": 1, "v": "\0"}, {"id": 2, "v": "x"})


async def test_dates_of_other_time_zones_become_the_same_instants(empty_url: str) -> None:
    east = datetime(2026, 1, 2, 1, tzinfo=timezone(NOON.replace(hour=13) - NOON))
    async with Writer(empty_url, columns={"day": "date"}) as writer:
        await writer.write({"id": 1, "day": date(2026, 1, 1)})
        await writer.write({"id": 2, "day": east})
    assert await do(empty_url, "SELECT day FROM target WHERE id = 2") == [(east,)]


def test_policies_are_checked_when_the_document_is_read() -> None:
    with pytest.raises(ValidationError):
        PostgresOptions(url="postgresql://x/y", table="t", schema={"new_fields": "drop"})
    with pytest.raises(ValidationError):
        PostgresOptions(url="postgresql://x/y", table="t", schema={"new_columns": "add"})
