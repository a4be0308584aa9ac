"""Dead letters that commit with the data in PostgreSQL: superseded, replayed, and copied to the registry by id."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headgate.config import Settings
from headgate.core.records import Totals
from headgate.runtime.node import Node
from headgate.store.letters import Filter
from headgate.store.secrets import Keyring, new_master_key
from tests.runtime.conftest import Harness
from tests.runtime.test_dead_letters import Given, Plug, open_letters, totals

CREATE = "CREATE TABLE target (id bigint PRIMARY KEY, total integer CHECK (total >= 0))"


def orders(hg: Harness, **more: Any) -> dict[str, Any]:
    sink = {"type": "postgres", "url": hg.url, "table": "target", "mode": "upsert"}
    return {"source": {"type": "given"}, "mapping": {"key": "id"}, "sink": sink, **more}


async def rows(hg: Harness) -> dict[int, int]:
    """The table."""
    return {row["id"]: row["total"] for row in await hg.sql("SELECT id, total FROM target")}


async def numbers(hg: Harness) -> dict[str, int]:
    """How many letters had which outcome."""
    found = await hg.node.letters.numbers((await hg.node.registry.get("orders")).id)
    names = ("open", "replayed", "superseded", "discarded", "expired")
    return {name: number for name in names if (number := getattr(found, name))}


async def until_numbers(hg: Harness, **wanted: int) -> None:
    async def are() -> bool:
        return await numbers(hg) == wanted

    await hg.until_true(are)


async def replay(hg: Harness, **which: Any) -> None:
    found = await hg.node.registry.get("orders")
    await hg.node.letters.ask(Filter([found.id], **which), None, overwrite=False, any_key=True, actor="tester")
    hg.node.waker.wake("letters")


async def test_a_letter_is_superseded_by_a_later_record_of_its_key_and_by_no_earlier_one(
    hg: Harness, plug: Plug
) -> None:
    await hg.sql(CREATE)
    source = Given(
        [
            {"id": 1, "total": "x"},  # Superseded within its batch.
            {"id": 1, "total": 5},
            {"id": 2, "total": 6},
            {"id": 2, "total": -2},  # Later than the row: open.
            {"id": 3, "total": -3},  # Superseded by the next batch.
            {"id": 4, "total": -4},  # Stays.
        ],
        at_once=6,
        ends=False,
    )
    plug(source.connector())
    await hg.apply(orders=orders(hg))
    await until_numbers(hg, open=3, superseded=1)
    source.records.append({"id": 3, "total": 7})
    await until_numbers(hg, open=2, superseded=2)
    assert await rows(hg) == {1: 5, 2: 6, 3: 7}
    await hg.sql("ALTER TABLE target DROP CONSTRAINT target_total_check")
    await replay(hg)
    await until_numbers(hg, replayed=2, superseded=2)
    assert await rows(hg) == {1: 5, 2: -2, 3: 7, 4: -4}

    async def are_counted() -> bool:
        return await totals(hg) == Totals(7, 3, 0, 4)

    await hg.until_true(are_counted)


async def test_a_deletion_supersedes_and_is_never_undone_by_a_replay(hg: Harness, plug: Plug) -> None:
    await hg.sql(CREATE)
    source = Given([{"id": 1, "total": 1}, {"id": 1, "total": -1}], ends=False)
    plug(source.connector())
    await hg.apply(orders=orders(hg, mapping={"key": "id", "delete": "gone", "drop": ["gone"]}))
    await until_numbers(hg, open=1)
    source.records.append({"id": 1, "gone": True})
    await until_numbers(hg, superseded=1)
    await hg.sql("ALTER TABLE target DROP CONSTRAINT target_total_check")
    await replay(hg)
    source.records.append({"id": 2, "total": 2})
    await hg.until_rows(0)
    assert await rows(hg) == {2: 2}


async def test_two_letters_of_one_key_are_replayed_in_their_order(hg: Harness, plug: Plug) -> None:
    await hg.sql(CREATE)
    plug(Given([{"id": 1, "total": -n} for n in range(1, 30)], ends=False).connector())
    await hg.apply(orders=orders(hg))
    await until_numbers(hg, open=29)
    await hg.sql("ALTER TABLE target DROP CONSTRAINT target_total_check")
    await replay(hg)
    await until_numbers(hg, replayed=29)
    assert await rows(hg) == {1: -29}


async def test_a_newer_letter_that_is_replayed_supersedes_the_older_ones_of_its_key(hg: Harness, plug: Plug) -> None:
    await hg.sql(CREATE)
    plug(Given([{"id": 1, "total": -n} for n in (1, 2, 3)], ends=False).connector())
    await hg.apply(orders=orders(hg))
    await until_numbers(hg, open=3)
    await hg.sql("ALTER TABLE target DROP CONSTRAINT target_total_check")
    middle = next(one for one in await hg.node.letters.page(Filter(), "open", 10) if one.place == "number 1")
    await replay(hg, ids=[middle.id])
    await until_numbers(hg, open=1, superseded=1, replayed=1)
    assert await rows(hg) == {1: -2}
    assert [place for place, *_ in await open_letters(hg)] == ["number 2"]


async def test_what_the_registry_has_lost_is_copied_again_from_the_sink(hg: Harness, plug: Plug) -> None:
    """As after a registry that went back in time."""
    await hg.sql(CREATE)
    source = Given([{"id": n, "total": -n} for n in range(1, 6)], ends=False)
    plug(source.connector())
    await hg.apply(orders=orders(hg))
    await until_numbers(hg, open=5)
    await hg.node.registry.set_enabled("orders", False, "tester")
    await hg.until_owners(orders=None)
    await hg.sql("DELETE FROM headgate.dead_letter")
    await hg.node.registry.set_enabled("orders", True, "tester")
    await until_numbers(hg, open=5)


async def test_a_letter_that_was_discarded_is_not_opened_again(hg: Harness, plug: Plug) -> None:
    await hg.sql(CREATE)
    plug(Given([{"id": 1, "total": -1}, {"id": 2, "total": 2}], ends=False).connector())
    await hg.apply(orders=orders(hg))
    await until_numbers(hg, open=1)
    found = await hg.node.registry.get("orders")
    await hg.node.letter_box.discard(found, Filter(), "tester", everything=True)
    await until_numbers(hg, discarded=1)
    await hg.node.registry.restart("orders", "tester")

    async def is_known_to_the_sink() -> bool:
        return [row["outcome"] for row in await hg.sql("SELECT outcome FROM headgate_dead_letter")] == ["discarded"]

    await hg.until_true(is_known_to_the_sink)
    assert await numbers(hg) == {"discarded": 1}


# Back in time.


async def test_a_letter_that_a_sink_has_open_again_is_open_again_and_can_be_replayed(hg: Harness, plug: Plug) -> None:
    """As after a sink was restored from a backup that is older than the replay: its row is gone, too."""
    await hg.sql(CREATE)
    source = Given([{"id": 1, "total": -1}, {"id": 2, "total": -2}, {"id": 3, "total": 3}], ends=False)
    plug(source.connector())
    await hg.apply(orders=orders(hg))
    await until_numbers(hg, open=2)
    await hg.sql("CREATE TABLE backup AS SELECT * FROM headgate_dead_letter")
    await hg.sql("ALTER TABLE target DROP CONSTRAINT target_total_check")
    await replay(hg)
    await until_numbers(hg, replayed=2)
    assert await rows(hg) == {1: -1, 2: -2, 3: 3}
    await hg.node.registry.set_enabled("orders", False, "tester")
    await hg.until_owners(orders=None)
    for statement in (
        "DELETE FROM target WHERE total < 0",
        "DELETE FROM headgate_dead_letter",
        "INSERT INTO headgate_dead_letter SELECT * FROM backup",
    ):
        await hg.sql(statement)
    await hg.node.registry.set_enabled("orders", True, "tester")
    await until_numbers(hg, open=2)

    async def is_told() -> bool:
        return "letters_reopened" in await hg.events("orders")

    await hg.until_true(is_told)
    assert {row["outcome"] for row in await hg.sql("SELECT outcome FROM headgate_dead_letter")} == {"open"}
    await replay(hg)
    await until_numbers(hg, replayed=2)
    assert await rows(hg) == {1: -1, 2: -2, 3: 3}


async def test_a_letter_that_was_superseded_after_the_backup_is_open_again_too(hg: Harness, plug: Plug) -> None:
    await hg.sql(CREATE)
    source = Given([{"id": 1, "total": -1}, {"id": 2, "total": 2}], ends=False)
    plug(source.connector())
    await hg.apply(orders=orders(hg))
    await until_numbers(hg, open=1)
    await hg.sql("CREATE TABLE backup AS SELECT * FROM headgate_dead_letter")
    source.records.append({"id": 1, "total": 5})
    await until_numbers(hg, superseded=1)
    await hg.node.registry.set_enabled("orders", False, "tester")
    await hg.until_owners(orders=None)
    await hg.sql("DELETE FROM headgate_dead_letter")
    await hg.sql("INSERT INTO headgate_dead_letter SELECT * FROM backup")
    await hg.node.registry.set_enabled("orders", True, "tester")
    await until_numbers(hg, open=1)


# Keys.


async def test_texts_and_numbers_that_the_table_stores_alike_are_one_key(hg: Harness, plug: Plug) -> None:
    await hg.sql(CREATE)
    source = Given([{"id": "017", "total": -1}, {"id": "018", "total": -2}, {"id": 2, "total": 2}], ends=False)
    plug(source.connector())
    await hg.apply(orders=orders(hg))
    await until_numbers(hg, open=2)
    source.records.append({"id": 17, "total": 5})
    await until_numbers(hg, open=1, superseded=1)
    await hg.sql("ALTER TABLE target DROP CONSTRAINT target_total_check")
    await replay(hg)
    await until_numbers(hg, replayed=1, superseded=1)
    assert await rows(hg) == {2: 2, 17: 5, 18: -2}


async def test_after_a_rotation_letters_in_sinks_need_the_old_master_key_no_more(
    url: str, plug: Plug, tmp_path: Path
) -> None:
    """Their copies in the registry are lost at last, so that the sink's are all there is."""
    (old, new), source = (new_master_key(), new_master_key()), Given([{"id": 1, "total": -1}], ends=False)
    plug(source.connector())
    async with keyed_node(url, tmp_path, old) as hg:
        await hg.sql(CREATE)
        await hg.apply(orders=orders(hg))
        await until_numbers(hg, open=1)
    async with keyed_node(url, tmp_path, new, old) as hg:
        await hg.until_true(lambda: is_rewrapped(hg))
        assert await hg.node.letters.rotate() == (1, 0)
    async with keyed_node(url, tmp_path, new) as hg:
        await hg.node.registry.set_enabled("orders", False, "tester")
        await hg.until_owners(orders=None)
        await hg.sql("DELETE FROM headgate.dead_letter")
        await hg.sql("ALTER TABLE target DROP CONSTRAINT target_total_check")
        await hg.node.registry.set_enabled("orders", True, "tester")
        await until_numbers(hg, open=1)
        await replay(hg)
        await until_numbers(hg, replayed=1)
        assert await rows(hg) == {1: -1}


async def test_letters_in_sinks_that_nobody_has_rewrapped_are_counted(url: str, plug: Plug, tmp_path: Path) -> None:
    (old, new), source = (new_master_key(), new_master_key()), Given([{"id": 1, "total": -1}], ends=False)
    plug(source.connector())
    async with keyed_node(url, tmp_path, old) as hg:
        await hg.sql(CREATE)
        await hg.apply(orders=orders(hg))
        await until_numbers(hg, open=1)
        await hg.node.registry.set_enabled("orders", False, "tester")
        await hg.until_owners(orders=None)
    async with keyed_node(url, tmp_path, new, old) as hg:
        assert await hg.node.letters.rotate() == (1, 0)
        assert await hg.node.letters.left_to_rewrap() == 1
        await hg.sql("UPDATE headgate.dead_letter SET sink_key_id = ''")  # As after an upgrade: nobody has looked.
        await hg.node.registry.set_enabled("orders", True, "tester")
        await hg.until_true(lambda: is_rewrapped(hg))


async def is_rewrapped(hg: Harness) -> bool:
    return await hg.node.letters.left_to_rewrap() == 0


@asynccontextmanager
async def keyed_node(url: str, tmp_path: Path, *keys: str) -> AsyncIterator[Harness]:
    """A node with these master keys, the first of which encrypts."""
    harness = Harness(Node(Settings(home=tmp_path), url, Keyring.load(",".join(keys), None)), url)
    await harness.start()
    try:
        yield harness
    finally:
        await harness.stop()


async def test_a_null_key_cannot_be_superseded_and_waits_for_an_edit(hg: Harness, plug: Plug) -> None:
    await hg.sql(CREATE)
    plug(Given([{"total": 3}, {"id": 2, "total": 2}], ends=False).connector())
    await hg.apply(orders=orders(hg))
    await until_numbers(hg, open=1)
    ((_, stage, field, reason),) = await open_letters(hg)
    assert (stage, field) == ("sink", "id")
    assert reason
