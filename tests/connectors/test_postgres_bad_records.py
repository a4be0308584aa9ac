"""What bad input gets: each bad record is named with its field and a reason, and its neighbours are written."""

from __future__ import annotations

import math
import time
from decimal import Decimal
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from headgate.connectors.api import Outgoing, Progress
from headgate.connectors.postgres import culprits, judge, session
from headgate.connectors.postgres.sink import PostgresOptions, PostgresSink
from headgate.errors import Bad, BadRecords, BatchRefused, Cause, ConnectorError
from headgate.testing.factories import make_context, make_grant

MODES = ["insert", "upsert"]
SECRET = "s3cr3t-value"


async def rows(url: str, query: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return list(await connection.fetch(query))
    finally:
        await connection.close()


async def settled(sink: PostgresSink, records: list[Any], key: tuple[str, ...] = ("id",)) -> dict[int, Bad]:
    """Write what can be written, as the worker does: bad records are left out until the rest is accepted."""
    found: dict[int, Bad] = {}
    for _ in range(10):
        kept = [index for index in range(len(records)) if index not in found]
        try:
            await sink.write(Outgoing([records[index] for index in kept], Progress(0, 1, 1), key))
        except BadRecords as error:
            found |= {kept[bad.index]: Bad(kept[bad.index], bad.field, bad.reason) for bad in error.bad}
            continue
        assert SECRET not in str(found)
        return found
    raise AssertionError("it does not come to an end")


def make_sink(url: str, mode: str = "insert", **options: Any) -> PostgresSink:
    return PostgresSink(PostgresOptions(url=url, table="target", mode=mode, **options), make_context())


async def found_in(url: str, mode: str, records: list[Any], **options: Any) -> dict[int, Bad]:
    sink = make_sink(url, mode, **options)
    await sink.open(make_grant(epoch=1, stream=uuid4()))
    try:
        return await settled(sink, records)
    finally:
        await sink.close()


BAD = [
    ("integer", "not a number", "an integer is expected, not text"),
    ("integer", 2**31, "is too large for integer"),
    ("smallint", -(2**15) - 1, "is too small for smallint"),
    ("bigint", 2**63, "is too large for bigint"),
    ("bigint", 2**80, "is too large for bigint"),
    ("bigint", str(2**63), "is out of range for bigint"),
    ("integer", 1.5, "an integer is expected, not a fraction"),
    ("bigint", Decimal("1.5"), "an integer is expected, not a fraction"),
    ("integer", math.nan, "integer has no NaN and no infinity"),
    ("bigint", math.inf, "bigint has no NaN and no infinity"),
    ("integer", Decimal("sNaN"), "integer has no NaN and no infinity"),
    ("integer", Decimal("1e999999"), "is too large for integer"),
    ("bigint", Decimal("-1e999999"), "is too small for bigint"),
    ("integer", [1], "an integer is expected, not a list"),
    ("integer", {"a": SECRET}, "an integer is expected, not an object"),
    ("text", f"{SECRET} \0 byte", "has a NUL character"),
    ("text", "half \ud800", "has half of a surrogate pair, which is no character"),
    ("text", {"a": "\ud800"}, "has half of a surrogate pair, which is no character"),
    ("varchar(3)", SECRET, "is too long for character varying(3)"),
    ("varchar(3)", 12345, "is too long for character varying(3)"),
    ("char(2)", "abc", "is too long for character(2)"),
    ("numeric", SECRET, "a number is expected, not text"),
    ("numeric(5,2)", 1000, "is out of range for numeric(5,2)"),
    ("numeric(5,2)", 999.999, "is out of range for numeric(5,2)"),
    ("numeric(5,2)", Decimal("1e20"), "is out of range for numeric(5,2)"),
    ("numeric(5,2)", math.inf, "is out of range for numeric(5,2)"),
    ("real", 1e39, "is out of range for real"),
    ("double precision", SECRET, "a number is expected, not text"),
    ("double precision", 10**400, "is out of range for double precision"),
    ("boolean", SECRET, "true or false is expected, not text"),
    ("boolean", 2, "true or false is expected, not an integer"),
    ("timestamptz", SECRET, "a timestamp is expected, not text"),
    ("timestamptz", "2026-02-30T00:00:00Z", "is out of range for timestamp with time zone"),
    ("timestamp", {"a": 1}, "a timestamp is expected, not an object"),
    ("date", SECRET, "a date is expected, not text"),
    ("uuid", SECRET, "a UUID is expected, not text"),
    ("uuid", 5, "a UUID is expected, not an integer"),
    ("inet", SECRET, "is no valid inet"),
    ("jsonb", {"a": "nul \0"}, "has a NUL character"),
    ("text", ["nul \0"], "has a NUL character"),
    ("jsonb", ["\ud800"], "has half of a surrogate pair, which is no character"),
    ("int[]", "{1,x}", "is no valid integer[]"),
    ("mood", SECRET, "is no valid mood"),
    ("positive", "-5", "breaks a rule of the type positive"),
    ("text NOT NULL", None, "must not be null"),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("type", "value", "reason"), BAD)
async def test_a_value_that_its_column_cannot_hold_is_named_and_its_neighbours_are_written(
    empty_url: str, mode: str, type: str, value: Any, reason: str
) -> None:
    await rows(empty_url, "CREATE TYPE mood AS ENUM ('calm')")
    await rows(empty_url, "CREATE DOMAIN positive AS int CHECK (value > 0)")
    await rows(empty_url, f"CREATE TABLE target (id int PRIMARY KEY, v {type}, w text DEFAULT 'x')")
    good = {"mood": "calm", "positive": 1, "text NOT NULL": "x"}.get(type)
    records = [{"id": id, "v": value if id in (2, 5) else good} for id in range(8)]
    found = await found_in(empty_url, mode, records)
    assert [row["id"] for row in await rows(empty_url, "SELECT id FROM target ORDER BY id")] == [0, 1, 3, 4, 6, 7]
    assert found == {at: Bad(at, "v", reason) for at in (2, 5)}


GOOD = [
    ("integer", [True, 1.0, "7", Decimal(3), -(2**31)]),
    ("numeric", [True, 0.1, "1e3", Decimal("NaN"), math.nan, math.inf]),
    ("numeric(5,2)", [999.99, "12.345", 0, None]),
    ("double precision", [True, 1, "nan", math.inf, Decimal("0.5")]),
    ("boolean", [True, 1, "yes", "off"]),
    ("text", ["", "é", 5, True, {"a": "\\u0000"}, ["x"], b"\x00"]),
    ("varchar(3)", ["abc   ", "é☃x", 123]),
    ("timestamptz", ["2026-01-02", "2026-01-02T03:04:05.123456+02:00", "epoch", "infinity"]),
    ("date", ["2026-01-02", "20260102", 20260102]),
    ("uuid", ["6f1c2c0e-2f0b-4d6e-9a53-0d5c1b7f8e21", "{6f1c2c0e2f0b4d6e9a530d5c1b7f8e21}"]),
    ("json", [{"a": "\\u0000"}, "x", 1, None]),
    ("jsonb", [{"a": "x"}, "\\u0000", 1, [None]]),
    ("int[]", ["{1,2}", [1, "2", None]]),
    ("inet", ["10.0.0.1", "::1/64"]),
    ("bytea", [b"\x00", "\\x00", "text"]),
    ("interval", ["1 day", 5]),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("type", "values"), GOOD)
async def test_a_good_record_is_never_taken_for_a_bad_one_because_of_its_neighbour(
    empty_url: str, mode: str, type: str, values: list[Any]
) -> None:
    """The judge has to know all that the server accepts, in whatever way it gets the row."""
    await rows(empty_url, f"CREATE TABLE target (id int PRIMARY KEY, v {type})")
    records = [{"id": place, "v": value} for place, value in enumerate(values)]
    found = await found_in(empty_url, mode, [*records, {"id": "bad", "v": None}])
    assert list(found) == [len(values)]
    assert len(await rows(empty_url, "SELECT FROM target")) == len(values)


async def test_a_nul_that_copy_would_keep_is_not_bad_because_of_a_neighbour(empty_url: str) -> None:
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY, v json)")
    assert set(await found_in(empty_url, "insert", [{"id": 1, "v": {"a": "\0"}}, {"id": "x", "v": None}])) == {1}


@pytest.mark.parametrize("mode", MODES)
async def test_a_null_or_missing_key_is_a_bad_record(empty_url: str, mode: str) -> None:
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY, v text)")
    records = [{"id": 1, "v": "a"}, {"id": None, "v": SECRET}, {"v": SECRET}, {"id": 2, "v": "b"}]
    found = await found_in(empty_url, mode, records)
    assert {at: bad.field for at, bad in found.items()} == {1: "id", 2: "id"}
    assert len(await rows(empty_url, "SELECT FROM target")) == 2


async def test_a_null_key_is_refused_where_the_index_would_take_it(empty_url: str) -> None:
    """With a unique index on a column that may be NULL, each such row would be inserted once more."""
    await rows(empty_url, "CREATE TABLE target (id int UNIQUE, v text)")
    found = await found_in(empty_url, "upsert", [{"id": 1, "v": "a"}, {"id": None, "v": "b"}, {"v": "c"}])
    assert set(found) == {1, 2}


async def test_a_batch_in_which_no_record_has_the_key_is_all_bad(empty_url: str) -> None:
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY, v text)")
    assert set(await found_in(empty_url, "upsert", [{"v": "a"}, {"v": "b"}])) == {0, 1}


@pytest.mark.parametrize("mode", MODES)
async def test_a_record_with_an_unknown_field_is_bad_in_a_table_that_is_not_ours(empty_url: str, mode: str) -> None:
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY)")
    found = await found_in(empty_url, mode, [{"id": 1}, {"id": 2, "extra": SECRET}, {"id": 3}, {"value": 5}])
    assert {at: (bad.field, bad.reason) for at, bad in found.items()} == {
        1: ("extra", "the table has no column for it"),
        3: ("value", "the table has no column for it"),
    }


# What only the server knows.

CONSTRAINTS = {
    "check": (
        "CREATE TABLE target (id int PRIMARY KEY, v int CONSTRAINT v_small CHECK (v < 100))",
        Bad(0, "v", "breaks the constraint v_small"),
    ),
    "foreign key": (
        "CREATE TABLE parent (v int PRIMARY KEY); INSERT INTO parent VALUES (1);"
        "CREATE TABLE target (id int PRIMARY KEY, v int CONSTRAINT of_parent REFERENCES parent)",
        Bad(0, "v", "breaks the constraint of_parent"),
    ),
    "deferred foreign key": (
        "CREATE TABLE parent (v int PRIMARY KEY); INSERT INTO parent VALUES (1);"
        "CREATE TABLE target (id int PRIMARY KEY, v int CONSTRAINT of_parent REFERENCES parent"
        " DEFERRABLE INITIALLY DEFERRED)",
        Bad(0, "v", "breaks the constraint of_parent"),
    ),
    "trigger": (
        "CREATE TABLE target (id int PRIMARY KEY, v int);"
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF new.v > 99 THEN RAISE 'not %', new.v; END IF; RETURN new; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION refuse()",
        Bad(0, None, "is refused by a trigger or a rule of the table (P0001)"),
    ),
    "trigger with a code of its own": (
        "CREATE TABLE target (id int PRIMARY KEY, v int);"
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF new.v > 99 THEN RAISE 'not %', new.v USING ERRCODE = 'ZZ123'; END IF; RETURN new; END $$;"
        "CREATE TRIGGER refuse AFTER INSERT ON target FOR EACH ROW EXECUTE FUNCTION refuse()",
        Bad(0, None, "is refused by a trigger or a rule of the table (ZZ123)"),
    ),
    "domain": (
        "CREATE DOMAIN small AS int CONSTRAINT is_small CHECK (value < 100);"
        "CREATE TABLE target (id int PRIMARY KEY, v small)",
        Bad(0, None, "breaks the constraint is_small"),
    ),
    "partition": (
        "CREATE TABLE target (id int, v int, PRIMARY KEY (id, v)) PARTITION BY RANGE (v);"
        "CREATE TABLE part PARTITION OF target FOR VALUES FROM (0) TO (100)",
        Bad(0, None, "is refused by a trigger or a rule of the table (23514)"),
    ),
}


@pytest.mark.parametrize("has_language", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", CONSTRAINTS)
async def test_what_only_the_server_refuses_is_found_and_everything_else_is_written(
    empty_url: str, mode: str, kind: str, has_language: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ddl, expected = CONSTRAINTS[kind]
    connection = await asyncpg.connect(empty_url)
    await connection.execute(ddl)
    await connection.close()
    if not has_language:
        monkeypatch.setattr(culprits, "_in_one", no_language)
    key = ("id", "v") if kind == "partition" else ("id",)
    bad = {7, 8, 150, 299}
    sink = make_sink(empty_url, mode)
    await sink.open(make_grant(epoch=1))
    records = [{"id": id, "v": 1000 if id in bad else 1} for id in range(300)]
    found = await settled(sink, records, key)
    await sink.close()
    assert found == {at: Bad(at, expected.field, expected.reason) for at in bad}
    assert len(await rows(empty_url, "SELECT FROM target WHERE v = 1")) == 296


async def no_language(*args: Any) -> Any:
    raise asyncpg.UndefinedObjectError('language "plpgsql" does not exist')


@pytest.mark.parametrize("mode", MODES)
async def test_a_row_that_is_too_large_for_an_index_or_a_page_is_found(empty_url: str, mode: str) -> None:
    """Random text, because the server packs what repeats itself."""
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY, v text)")
    await rows(empty_url, "CREATE INDEX ON target (v)")
    large = "".join(uuid4().hex for _ in range(500))
    found = await found_in(empty_url, mode, [{"id": id, "v": large if id == 3 else "x"} for id in range(80)])
    assert found == {3: Bad(3, None, "the row, or its key in an index, is too large")}


async def test_of_equal_keys_in_an_insert_the_first_is_written(empty_url: str) -> None:
    await rows(empty_url, "CREATE TABLE target (id int CONSTRAINT one UNIQUE, v int)")
    await rows(empty_url, "INSERT INTO target VALUES (5, -1)")
    records = [{"id": id % 50, "v": id} for id in range(60)]
    found = await found_in(empty_url, "insert", records)
    assert set(found) == {5, *range(50, 60)}
    assert found[50] == Bad(50, "id", "breaks the constraint one")
    assert {row["v"] for row in await rows(empty_url, "SELECT v FROM target")} == {-1, *range(50)} - {5}


@pytest.mark.parametrize("is_deferred", [False, True])
async def test_a_row_that_refers_to_a_later_one_of_its_batch_is_good(empty_url: str, is_deferred: bool) -> None:
    """The children come first. As a whole the batch would be right, but for one record that refers to nothing."""
    deferred = "DEFERRABLE INITIALLY DEFERRED" if is_deferred else ""
    await rows(empty_url, f"CREATE TABLE target (id int PRIMARY KEY, up int REFERENCES target {deferred})")
    records: list[dict[str, Any]] = [{"id": id, "up": id + 1} for id in range(199)] + [{"id": 199, "up": None}]
    records[100]["up"] = 1000
    found = await found_in(empty_url, "insert", records)
    assert set(found) == {*range(101)}  # Those below it hang on it.
    assert len(await rows(empty_url, "SELECT FROM target")) == 99


async def test_a_trigger_may_fill_what_is_null(empty_url: str) -> None:
    """So a NULL is not bad only because the column must not be NULL."""
    connection = await asyncpg.connect(empty_url)
    await connection.execute(
        "CREATE TABLE target (id int PRIMARY KEY, v text NOT NULL);"
        "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " new.v := coalesce(new.v, 'filled'); RETURN new; END $$;"
        "CREATE TRIGGER fill BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION fill()"
    )
    await connection.close()
    found = await found_in(empty_url, "insert", [{"id": 1, "v": None}, {"id": "x", "v": None}, {"id": 2, "v": "b"}])
    assert set(found) == {1}


async def test_a_bad_last_version_does_not_take_the_good_earlier_one_with_it(empty_url: str) -> None:
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY, v int CHECK (v < 100))")
    records = [{"id": 1, "v": 1}, {"id": 1, "v": 1000}, {"id": 2, "v": 2}, {"id": 2, "v": "x"}, {"id": 3, "v": 500},
               {"id": 3, "v": 600}]  # fmt: skip
    found = await found_in(empty_url, "upsert", records)
    assert set(found) == {1, 3, 4, 5}
    assert [tuple(row) for row in await rows(empty_url, "SELECT id, v FROM target ORDER BY id")] == [(1, 1), (2, 2)]


@pytest.mark.parametrize("number", [0, 100])
@pytest.mark.parametrize("has_language", [True, False])
@pytest.mark.parametrize("kind", [*CONSTRAINTS, "type", "null", "unique"])
async def test_a_bad_version_that_a_later_record_of_its_key_replaces_is_a_bad_record_all_the_same(
    empty_url: str, kind: str, has_language: bool, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would count as written, and nobody would ever know."""
    if not has_language:
        monkeypatch.setattr(culprits, "_in_one", no_language)
    if kind == "partition":
        pytest.skip("what decides about the partition is a part of the key")
    plain = {"unique": "CREATE TABLE target (id int PRIMARY KEY, v int UNIQUE); INSERT INTO target VALUES (99, 1000)",
             "type": "CREATE TABLE target (id int PRIMARY KEY, v int)",
             "null": "CREATE TABLE target (id int PRIMARY KEY, v int NOT NULL)"}  # fmt: skip
    connection = await asyncpg.connect(empty_url)
    await connection.execute(plain.get(kind) or CONSTRAINTS[kind][0])
    await connection.close()
    bad = {"type": "x", "null": None}.get(kind, 1000)
    good = (lambda id: id) if kind == "unique" else (lambda id: 1)
    records = [{"id": 1, "v": bad}, {"id": 1, "v": good(1)}, {"id": 2, "v": good(2)}, {"id": 2, "v": bad},
               {"id": 3, "v": bad}, {"id": 3, "v": bad}, {"id": 3, "v": good(3)}]  # fmt: skip
    records += [{"id": 100 + id, "v": good(100 + id)} for id in range(number)]
    if kind != "trigger with a code of its own":  # It is for new rows, and does not see the second version of one.
        assert set(await found_in(empty_url, "upsert", records)) == {0, 3, 4, 5}
    await rows(empty_url, "DELETE FROM target WHERE id < 99 OR id > 99")
    rest = [{"id": 1, "v": bad}, {"id": 1, "v": good(1)}]  # And no other record leads to it.
    assert set(await found_in(empty_url, "upsert", [*rest, *records[7:]])) == {0}
    found = await rows(empty_url, "SELECT id, v FROM target WHERE id < 99 ORDER BY id")
    assert [tuple(row) for row in found] == [(1, good(1))]


@pytest.mark.parametrize("number", [3, 60])
@pytest.mark.parametrize("is_deferred", [False, True])
async def test_an_earlier_version_may_refer_to_a_later_row_of_its_batch(
    empty_url: str, is_deferred: bool, number: int
) -> None:
    """Tried before all others it would be refused."""
    deferred = "DEFERRABLE INITIALLY DEFERRED" if is_deferred else ""
    await rows(empty_url, f"CREATE TABLE target (id int PRIMARY KEY, v int, up int REFERENCES target {deferred})")
    records = [{"id": 1, "v": v, "up": 2} for v in range(number)] + [{"id": 2, "v": 0, "up": None}]
    assert await found_in(empty_url, "upsert", records) == {}
    found = await rows(empty_url, "SELECT * FROM target ORDER BY id")
    assert [tuple(row) for row in found] == [(1, number - 1, 2), (2, 0, None)]


async def test_a_hundred_versions_of_one_key_are_judged_too(empty_url: str) -> None:
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY, v int CHECK (v <> 50))")
    assert set(await found_in(empty_url, "upsert", [{"id": 1, "v": v} for v in range(100)])) == {50}
    assert [tuple(row) for row in await rows(empty_url, "SELECT * FROM target")] == [(1, 99)]


async def test_a_bad_version_before_a_deletion_of_its_key_is_a_bad_record_all_the_same(empty_url: str) -> None:
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY, v int CHECK (v < 100))")
    sink = make_sink(empty_url, "upsert")
    await sink.open(make_grant(epoch=1))
    for bad in (1000, "x"):
        records = [{"id": 1, "v": bad}, {"id": "1"}, {"id": 2, "v": 1}, {"id": 2}, {"id": 2, "v": 2}]
        with pytest.raises(BadRecords) as caught:
            await sink.write(Outgoing(records, Progress(0, 1, 1), ("id",), deletes=[1, 3]))
        assert [one.index for one in caught.value.bad] == [0]
    await sink.write(Outgoing(records[1:], Progress(0, 1, 1), ("id",), deletes=[0, 2]))
    assert [tuple(row) for row in await rows(empty_url, "SELECT * FROM target")] == [(2, 2)]
    await sink.close()


@pytest.mark.parametrize("number", [0, 100])
async def test_spellings_of_one_key_replace_each_other_in_their_order(empty_url: str, number: int) -> None:
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY, v int)")
    records = [{"id": "017", "v": 1}, {"id": 17, "v": 2}, {"id": " 18", "v": 3}, {"id": 18.0, "v": 4}]
    records += [{"id": 100 + id, "v": 0} for id in range(number)]
    assert await found_in(empty_url, "upsert", records) == {}
    found = await rows(empty_url, "SELECT * FROM target WHERE id < 100 ORDER BY id")
    assert [tuple(row) for row in found] == [(17, 2), (18, 4)]


async def test_a_deletion_follows_a_row_whose_key_is_spelled_otherwise(empty_url: str) -> None:
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY, v int)")
    sink = make_sink(empty_url, "upsert")
    await sink.open(make_grant(epoch=1))
    await sink.write(Outgoing([{"id": 17, "v": 1}, {"id": "017"}], Progress(0, 1, 1), ("id",), deletes=[1]))
    assert await rows(empty_url, "SELECT FROM target") == []
    await sink.close()


@pytest.mark.parametrize("mode", MODES)
async def test_all_bad_values_of_a_batch_are_named_at_once(empty_url: str, mode: str) -> None:
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY, n int, t text, at timestamptz)")
    sink = make_sink(empty_url, mode)
    await sink.open(make_grant(epoch=1))
    records: list[dict[str, Any]] = [{"id": id, "n": 1, "t": "x", "at": None} for id in range(500)]
    records[3]["n"], records[100]["t"], records[499]["at"], records[200]["n"] = 2**40, "\0", "never", "x"
    with pytest.raises(BadRecords) as caught:
        await sink.write(Outgoing(records, Progress(0, 1, 1), ("id",)))
    assert [(bad.index, bad.field) for bad in caught.value.bad] == [(3, "n"), (100, "t"), (200, "n"), (499, "at")]
    assert await rows(empty_url, "SELECT FROM target") == []
    await sink.close()


@pytest.mark.parametrize("mode", MODES)
async def test_a_batch_that_is_looked_at_in_pieces_keeps_its_indexes(
    empty_url: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(culprits, "VALUES", 100)
    monkeypatch.setattr(culprits, "LONGEST_JSON", 500)
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY, v int CHECK (v < 100))")
    records = [{"id": id, "v": "x" if id % 70 == 3 else 1000 if id % 70 == 9 else 1} for id in range(300)]
    found = await found_in(empty_url, mode, records)
    assert set(found) == {id for id in range(300) if id % 70 in (3, 9)}


@pytest.mark.parametrize("number", [1, 3, 100])
@pytest.mark.parametrize("mode", MODES)
async def test_without_the_servers_help_a_bad_text_is_found_by_halves(
    empty_url: str, mode: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before PostgreSQL 16."""
    monkeypatch.setattr(culprits, "ASKS", 1_000)
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY, v uuid)")
    found = await found_in(empty_url, mode, [{"id": id, "v": f"{SECRET} {id}"} for id in range(number)])
    assert found == {at: Bad(at, "v", "a UUID is expected, not text") for at in range(number)}


# What is no record's fault.


async def test_a_failure_of_the_sink_as_a_whole_is_no_bad_record(empty_url: str) -> None:
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY)")
    sink = make_sink(empty_url)
    await sink.open(make_grant(epoch=1))
    await rows(empty_url, "DROP TABLE target")
    with pytest.raises(ConnectorError) as caught:
        await sink.write(Outgoing([{"id": 1}, {"id": 2}], Progress(0, 1, 1)))
    assert not isinstance(caught.value, BadRecords | BatchRefused)
    assert caught.value.cause == Cause.CONFIG
    await sink.close()


async def test_a_refusal_that_no_record_brings_about_alone_is_said_to_be_the_batchs(empty_url: str) -> None:
    """A trigger for whole statements allows ten rows at once, whichever they are."""
    connection = await asyncpg.connect(empty_url)
    await connection.execute(
        "CREATE TABLE target (id int);"
        "CREATE FUNCTION few() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF (SELECT count(*) FROM new_rows) > 10 THEN RAISE 'secret'; END IF; RETURN NULL; END $$;"
        "CREATE TRIGGER few AFTER INSERT ON target REFERENCING NEW TABLE AS new_rows"
        " FOR EACH STATEMENT EXECUTE FUNCTION few()"
    )
    await connection.close()
    sink = make_sink(empty_url)
    await sink.open(make_grant(epoch=1))
    with pytest.raises(BatchRefused) as caught:
        await sink.write(Outgoing([{"id": id} for id in range(60)], Progress(0, 1, 1)))
    assert "secret" not in str(caught.value)
    await sink.write(Outgoing([{"id": id} for id in range(5)], Progress(0, 1, 1)))
    await sink.close()


@pytest.mark.parametrize("mode", MODES)
async def test_names_of_columns_cannot_break_out_of_the_search(empty_url: str, mode: str) -> None:
    await rows(empty_url, "CREATE TABLE canary (v int)")
    odd = ["$$; DROP TABLE canary; $$", "hg_rows", "hg_found", "u", "r", "n", "p", "e", "{insert}", "$h$"]
    columns = ", ".join('"' + name + '" int' for name in odd)
    await rows(empty_url, f"CREATE TABLE target (id int PRIMARY KEY, {columns}, CHECK (u < 5))")
    records = [{"id": id, **dict.fromkeys(odd, 9 if id == 6 else 1)} for id in range(40)]
    assert set(await found_in(empty_url, mode, records)) == {6}
    assert await rows(empty_url, "SELECT * FROM canary") == []


async def test_a_value_that_nobody_can_write_down_is_its_records_fault_and_no_wrong_url(empty_url: str) -> None:
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY, v numeric)")
    sink = make_sink(empty_url, "upsert")
    await sink.open(make_grant(epoch=1, stream=uuid4()))
    with pytest.raises(BatchRefused):
        await sink.write(Outgoing([{"id": 1, "v": 10**5000}], Progress(0, 1, 1), ("id",)))
    await sink.write(Outgoing([{"id": 1, "v": 1}], Progress(0, 1, 1), ("id",)))
    await sink.close()


async def test_a_search_is_cut_so_that_its_cost_grows_with_the_batch_and_no_faster(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(culprits, "SEARCHED", 7)
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY, v int CHECK (v % 3 > 0))")
    found = await found_in(empty_url, "insert", [{"id": n, "v": n} for n in range(100)])
    assert sorted(found) == [n for n in range(100) if n % 3 == 0]


def test_only_values_of_another_class_than_their_column_are_judged_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless one of that class may not fit: then nobody knows which."""
    real, looked_at = judge._whole, 0

    def counted(field: judge.Field, value: Any) -> judge.Verdict:
        nonlocal looked_at
        looked_at += 1
        return real(field, value)

    monkeypatch.setattr(judge, "_whole", counted)
    field, values = judge.Field("v", "integer", "integer"), [*range(5000)]
    values[10:40:10] = ["x", True, None]  # type: ignore[list-item]
    assert judge.judge_column(field, values) == {10: judge.Question("x", "text")}
    assert looked_at == 2
    values[50] = 2**31
    assert list(judge.judge_column(field, values)) == [10, 50]
    assert looked_at == 2 + 4999


async def test_of_a_refused_batch_the_server_is_asked_what_it_alone_knows(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each column: a round trip costs as much as a hundred rows."""
    asked: list[str] = []

    class Counting(session._Pooled):
        async def execute(self, query: str, *args: Any, **options: Any) -> str:
            asked.append(query)
            return str(await super().execute(query, *args, **options))

        async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
            asked.append(query)
            return await super().fetch(query, *args, **options)

    monkeypatch.setattr(session, "_Pooled", Counting)
    columns = ", ".join(f"c{number} int" for number in range(30))
    await rows(empty_url, f"CREATE TABLE target (id int PRIMARY KEY, {columns})")
    sink = make_sink(empty_url)
    await sink.open(make_grant(epoch=1, stream=uuid4()))
    records = [{"id": id, **{f"c{number}": id for number in range(30)}} for id in range(100)]
    records[3]["c7"] = "x"  # type: ignore[assignment]
    asked.clear()
    with pytest.raises(BadRecords):
        await sink.write(Outgoing(records, Progress(0, 1, 1)))
    await sink.close()
    # Begin, roll back, begin, ask between two lines of a savepoint, and roll back.
    assert len(asked) == 7, asked


async def test_a_search_that_takes_its_time_is_not_cut_off_by_the_server(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that does nothing for a second is: its process may be stopped. A large batch takes longer to be judged,
    and would be tried again for ever."""
    real = culprits.judge_column

    def judge(*args: Any, **options: Any) -> Any:
        time.sleep(1.5)
        return real(*args, **options)

    monkeypatch.setattr(culprits, "judge_column", judge)
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY)")
    found = await found_in(empty_url, "insert", [{"id": 1}, {"id": "x"}])
    assert sorted(found) == [1]


async def test_a_row_that_a_policy_refuses_is_its_records_fault(empty_url: str) -> None:
    """The server's code is that of a user who may do nothing at all."""
    role = f"tenant_{uuid4().hex}"
    await rows(empty_url, f"CREATE ROLE {role} LOGIN")
    try:
        for statement in (
            "CREATE TABLE target (id int PRIMARY KEY, v text)",
            "ALTER TABLE target ENABLE ROW LEVEL SECURITY",
            f"GRANT CREATE ON SCHEMA public TO {role}",
            f"GRANT ALL ON target TO {role}",
            f"CREATE POLICY own ON target TO {role} USING (true) WITH CHECK (v <> 'other')",
        ):
            await rows(empty_url, statement)
        sink = make_sink(empty_url.replace("headgate@", f"{role}@"), "upsert")
        await sink.open(make_grant(epoch=1, stream=uuid4()))
        for some in ([{"id": 1, "v": "own"}, {"id": 2, "v": "other"}], [{"id": 2, "v": "other"}]):
            with pytest.raises(BatchRefused, match="refused by a trigger or a rule"):
                await sink.write(Outgoing(some, Progress(0, 1, 1), ("id",)))
            with pytest.raises(BatchRefused, match="refused by a trigger or a rule"):
                await sink.rehearse(Outgoing(some, Progress(0, 1, 1), ("id",)))
        await sink.write(Outgoing([{"id": 1, "v": "own"}], Progress(0, 1, 1), ("id",)))
        await sink.close()
    finally:
        await rows(empty_url, f"DROP OWNED BY {role} CASCADE")
        await rows(empty_url, f"DROP ROLE {role}")
