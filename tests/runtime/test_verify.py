"""Verify is a judge: by name and never by guess, every type exactly, and "equal" only if everything was compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headgate.connectors.api.bulk import StorageGone
from headgate.connectors.postgres.reader import PostgresReader
from headgate.runtime.dumps import comparing
from headgate.runtime.dumps.plan import Storages
from headgate.runtime.dumps.verdicts import Finding, Verdict
from headgate.runtime.dumps.verify import Verified, verify, view
from tests.runtime.dump_bench import Bench

# Each type that can be copied, a value, and another one that PostgreSQL may take for the same.
TYPES = {
    "interval": ("interval", "'1 mon'", "'30 days'"),
    "intervals": ("interval[]", "'{1 day}'", "'{24:00:00}'"),
    "enum": ("mood", "'glad'", "'sad'"),
    "enums": ("mood[]", "'{glad,sad}'", "'{sad,glad}'"),
    "domain": ("span", "'1 mon'", "'30 days'"),
    "composite": ("pair", "'(1,glad)'", "'(1,sad)'"),
    "json": ("json", """'{"b": 1, "a": 2}'""", """'{"a": 2, "b": 1}'"""),
    "jsonb": ("jsonb", """'{"a": 1.50}'""", """'{"a": 1.5}'"""),
    "float8": ("double precision", "0", "'-0'"),
    "float4": ("real", "0", "'-0'"),
    "money": ("money", "1.50", "1.51"),
    "bit": ("bit(4)", "'1010'", "'1011'"),
    "varbit": ("bit varying", "'1010'", "'10100'"),
    "tsvector": ("tsvector", "'a:1 b:2'", "'a:1 b:3'"),
    "tsquery": ("tsquery", "'a & b'", "'a | b'"),
    "array": ("integer[]", "'{1,2}'", "'{{1},{2}}'"),
    "range": ("numrange", "'[1,2)'", "'[1,2]'"),
    "point": ("point", "'(1,2)'", "'(2,1)'"),
    "inet": ("inet", "'10.0.0.1/8'", "'10.0.0.1/9'"),
    "padded": ("bpchar", "'a'", "'a '"),
    "bytes": ("bytea", r"'\x00ff'", r"'\x00fe'"),
    "timetz": ("time with time zone", "'12:00+01'", "'11:00+00'"),
    "path": ("jsonpath", "'$.a'", "'$.b'"),
}
MADE = """
CREATE TYPE mood AS ENUM ({moods});
CREATE TYPE pair AS (n integer, mood mood);
CREATE DOMAIN span AS interval;
"""


async def dumped(bench: Bench, *tables: str, **more: Any) -> tuple[UUID, Storages]:
    """A dump that is done, and its storages."""
    dump = await bench.create(*tables, **more)
    target = more.get("target", bench.target)
    assert await bench.process(dump, target=target).run() == "completed"
    return dump, Storages(bench.source, target)


async def judged(bench: Bench, made: tuple[UUID, Storages], **more: Any) -> Verified:
    return await verify(bench.dumps, *made, **more)


def said(found: Verified) -> list[tuple[str, Finding, str]]:
    return [(one.table, one.finding, one.why) for one in found.different]


# By name.


async def test_a_table_that_is_gone_is_missing_whatever_else_is_there(bench: Bench) -> None:
    await bench.make(100)
    made = await dumped(bench, "items")
    await bench.at(bench.target, "ALTER TABLE items RENAME TO other")  # The only table, and its rows are equal.
    found = await judged(bench, made, repair=True)
    assert said(found) == [("items", Finding.MISSING, "the target has no table items")]
    assert found.verdict is Verdict.DIFFERENT
    assert found.different[0].unrepaired == "a repair makes no tables; dump it again"


async def test_a_file_is_found_by_its_own_name_and_missing_if_it_is_gone(bench: Bench, tmp_path: Path) -> None:
    await bench.make(100)
    file = tmp_path / "other.csv"
    made = await dumped(bench, "items", target=f"csv:{file}")
    assert (await judged(bench, made)).is_equal
    file.rename(tmp_path / "items.csv")
    assert [one.finding for one in (await judged(bench, made)).different] == [Finding.MISSING]


async def test_a_column_that_is_gone_is_missing(bench: Bench) -> None:
    await bench.make(100)
    made = await dumped(bench, "items")
    await bench.at(bench.target, "ALTER TABLE items DROP COLUMN note")
    found = await judged(bench, made)
    assert said(found) == [("items", Finding.MISSING, "the target's table items has no column note")]


async def test_one_table_that_cannot_be_compared_leaves_the_others_and_is_not_equal(bench: Bench) -> None:
    await bench.make(100)
    await bench.make(100, "others")
    made = await dumped(bench, "items", "others")
    await bench.at(bench.source, "ALTER TABLE items RENAME COLUMN note TO remark")
    found = await judged(bench, made, repair=True)
    assert [(one.table, one.finding) for one in found.different] == [("items", Finding.UNKNOWN)]
    assert found.different[0].why == "it cannot be compared: the source's table items has no column note"
    assert (found.rows, found.verdict, found.is_equal) == (100, Verdict.UNKNOWN, False)
    assert view(found).text.startswith("not all could be compared: ")


async def test_a_table_that_was_not_copied_is_not_equal(bench: Bench) -> None:
    await bench.make(100)
    await bench.make(100, "others")
    await bench.at(bench.target, "CREATE VIEW others AS SELECT 1::bigint AS id, '' AS name, '' AS note WHERE false")
    dump = await bench.create("items", "others")
    assert await bench.process(dump).run() == "incomplete"
    found = await verify(bench.dumps, dump, Storages(bench.source, bench.target))
    assert [(one.table, one.finding) for one in found.different] == [("others", Finding.UNKNOWN)]
    assert found.different[0].why.startswith("it was not copied: it is failed")


async def test_a_storage_that_no_longer_answers_ends_the_comparison(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.make(300)
    made = await dumped(bench, "items")

    async def gone(*given: Any) -> Any:
        raise StorageGone("the server has left")

    monkeypatch.setattr(PostgresReader, "digest", gone)
    with pytest.raises(StorageGone, match="the server has left"):
        await judged(bench, made)


# Every type, exactly.


async def make_types(bench: Bench) -> None:
    """A row for each type at the source. The enums' own numbers differ at the target."""
    await bench.at(bench.source, "CREATE TYPE unrelated AS ENUM ('glad', 'sad')")
    for url in (bench.source, bench.target):
        for statement in MADE.format(moods="'glad', 'sad'").split(";")[:-1]:
            await bench.at(url, statement)
    columns = ", ".join(f'"{name}" {type}' for name, (type, _, _) in TYPES.items())
    await bench.at(bench.source, f"CREATE TABLE items (id text PRIMARY KEY, {columns})")
    await bench.at(
        bench.source, f"INSERT INTO items VALUES ('all', {', '.join(value for _, value, _ in TYPES.values())})"
    )


async def test_every_type_is_compared_exactly_by_the_servers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_types(bench)
    made = await dumped(bench, "items")
    monkeypatch.delattr(comparing, "digest")
    assert said(await judged(bench, made)) == []
    for name, (_, value, other) in TYPES.items():
        await bench.at(bench.target, f'UPDATE items SET "{name}" = {other}')
        assert said(await judged(bench, made)) == [("items", Finding.DIFFERENT, "values differ")], name
        await bench.at(bench.target, f'UPDATE items SET "{name}" = {value}')
    assert (await judged(bench, made)).is_equal


async def test_every_type_is_compared_in_a_file(bench: Bench, tmp_path: Path) -> None:
    await make_types(bench)
    made = await dumped(bench, "items", target=f"jsonl:{tmp_path / 'items.jsonl'}")
    assert said(await judged(bench, made)) == []
    await bench.at(bench.source, "UPDATE items SET \"interval\" = '30 days'")
    assert said(await judged(bench, made)) == [("items", Finding.DIFFERENT, "values differ")]


async def test_values_that_mean_nothing_here_are_compared_as_text(bench: Bench, tmp_path: Path) -> None:
    await bench.at(bench.source, "CREATE TABLE items (id integer PRIMARY KEY, at timestamp, day date)")
    await bench.at(bench.source, "INSERT INTO items VALUES (1, 'infinity', '0044-03-15 BC'), (2, NULL, '12026-01-01')")
    made = await dumped(bench, "items", target=f"csv:{tmp_path / 'items.csv'}")
    assert said(await judged(bench, made)) == []
    await bench.at(bench.source, "UPDATE items SET day = '0043-03-15 BC' WHERE id = 1")
    found = await judged(bench, made)
    assert [one.finding for one in found.different] == [Finding.UNKNOWN]


async def test_text_that_the_target_writes_otherwise_cannot_be_compared(bench: Bench) -> None:
    await bench.at(bench.source, "CREATE TABLE items (id integer PRIMARY KEY, span text)")
    await bench.at(bench.source, "INSERT INTO items VALUES (1, '1 month')")
    await bench.at(bench.target, "CREATE TABLE items (id integer PRIMARY KEY, span interval)")
    made = await dumped(bench, "items")
    found = await judged(bench, made)
    why = "it cannot be compared: column 'span' is text in the source and interval in the target"
    assert said(found) == [("items", Finding.UNKNOWN, why)]
    await bench.at(bench.target, "UPDATE items SET id = 0")
    assert said(await judged(bench, made)) == [("items", Finding.DIFFERENT, "values differ")]


# Rows that nobody planned.


async def test_rows_beyond_the_plan_are_counted_and_named(bench: Bench) -> None:
    await bench.make(500)
    made = await dumped(bench, "items")
    await bench.at(bench.target, "INSERT INTO items VALUES (501, 'a', NULL), (777, 'b', NULL), (900, 'c', NULL)")
    found = await judged(bench, made, repair=True)
    assert said(found) == [("items", Finding.EXTRA, "3 rows beyond 500, where the plan ends: 501 to 900")]
    assert found.different[0].unrepaired == "rows that are not in the plan are left as they are"
    await bench.at(bench.target, "DELETE FROM items WHERE id > 777 OR id = 501")
    (_, _, why) = said(await judged(bench, made))[0]
    assert why == "1 row beyond 500, where the plan ends: 777"


async def test_rows_before_the_plan_are_counted_and_named(bench: Bench) -> None:
    await bench.make(500)
    made = await dumped(bench, "items", since=("200",))
    assert (await judged(bench, made)).is_equal
    await bench.at(bench.target, "INSERT INTO items VALUES (7, 'a', NULL), (200, 'b', NULL)")
    found = await judged(bench, made)
    assert said(found) == [("items", Finding.EXTRA, "2 rows up to 200, where the plan begins: 7 to 200")]


async def test_rows_of_a_table_that_was_empty_are_named(bench: Bench) -> None:
    await bench.make(0)
    made = await dumped(bench, "items")
    assert (await judged(bench, made)).is_equal
    await bench.at(bench.target, "INSERT INTO items VALUES (5, 'a', NULL)")
    assert said(await judged(bench, made)) == [("items", Finding.EXTRA, "1 row which the plan has none of: 5")]


async def test_rows_beyond_the_plan_of_an_upsert_are_none_of_its_business(bench: Bench) -> None:
    await bench.make(100)
    await bench.at(bench.target, "CREATE TABLE items (id bigint PRIMARY KEY, name text NOT NULL, note text)")
    await bench.at(bench.target, "INSERT INTO items VALUES (9999, 'mine', 'y')")
    assert (await judged(bench, await dumped(bench, "items", mode="upsert"))).is_equal


# What a repair cannot do.


async def test_a_repair_of_a_table_without_a_key_says_what_it_cannot_do(bench: Bench) -> None:
    await bench.at(bench.source, "CREATE TABLE items (name text)")
    await bench.at(bench.source, "INSERT INTO items SELECT 'name ' || g FROM generate_series(1, 500) g")
    made = await dumped(bench, "items")
    assert (await judged(bench, made)).is_equal
    await bench.at(bench.target, "UPDATE items SET name = 'x' WHERE name = 'name 7'")
    found = await judged(bench, made, repair=True)
    assert said(found) == [("items", Finding.DIFFERENT, "values differ")]
    text = view(found).different[0].text
    assert text.startswith("items: values differ; not repaired: without a key nobody can tell")
    assert "--mode replace" in text


async def test_a_repair_next_to_other_peoples_rows_says_why_not(bench: Bench) -> None:
    await bench.make(100)
    await bench.at(bench.target, "CREATE TABLE items (id bigint PRIMARY KEY, name text NOT NULL, note text)")
    await bench.at(bench.target, "INSERT INTO items VALUES (9999, 'mine', 'y')")
    made = await dumped(bench, "items", yes=True)
    await bench.at(bench.target, "DELETE FROM items WHERE id = 5")
    found = await judged(bench, made, repair=True)
    assert "other people's" in found.different[0].unrepaired
    assert not found.is_equal
