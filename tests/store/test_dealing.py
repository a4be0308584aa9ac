"""More or fewer streams for a datasource: which rows there are, who may be granted them, and where they stand."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from headgate.core.figures import Figures
from headgate.core.streams import Checkpoint, Release, Revoke
from headgate.ids import new_id
from headgate.store import dealing
from headgate.store.database import sql
from headgate.store.dealing import Dealing
from headgate.store.states import State, States
from tests.store.conftest import ME, Rows, content, session

PARTS = ["a", "b", "c", "d", "e"]


class Streams:
    """The streams of one datasource, and short ways to move them."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.dealing = Dealing(rows.database)
        self.node = new_id()

    async def publish(self, n: int, *, source: str = "generator", proved: bool = True) -> None:
        """Another version that asks for so many streams."""
        async with self.rows.datasources.change(ME) as change:
            found = await change.find("orders") or await change.create("orders", True)
            options = {"streams": n} if source != "push" else {}
            number = await change.publish_content(found.id, replace(content(source), options=options), ME)
            if proved:
                await change.set_running(found.id, number)

    async def join(self) -> None:
        self.node = await self.rows.node()

    async def all(self) -> list[Any]:
        return await self.rows.database.fetch("SELECT * FROM headgate.stream ORDER BY index")

    async def ids(self) -> list[UUID]:
        return [row["id"] for row in await self.all()]

    async def positions(self) -> list[str | None]:
        return [row["position"] for row in await self.all()]

    async def run(self, *, says_so: bool = True) -> None:
        """Have all that can be granted run."""
        await self.rows.placement.grant([])
        for row in await self.all():
            if row["owner"] is not None and row["run"] is None:
                epoch = await self.rows.acquire(self.node, row["id"])
                state = State(row["id"], epoch, "RUNNING", "running", 1, Figures(), None)
                if says_so:
                    await States(self.rows.database).save(self.node, [state])

    async def stop(self, index: int, position: Any = None, *, n: int = 1, is_settled: bool = True) -> None:
        """A run comes to its end in good order."""
        row = (await self.all())[index]
        release = Release(self.node, row["epoch"], row["commits"] + n, position, is_settled=is_settled)
        await self.rows.tell(self.node, row["id"], release)

    async def registered(self) -> Any:
        return await self.rows.database.fetchrow("SELECT * FROM headgate.datasource WHERE name = 'orders'")

    async def entry(self) -> Any:
        return next(one for one in await self.rows.datasources.entries_since(0) if one.name == "orders")


@pytest.fixture
async def orders(rows: Rows) -> Streams:
    streams = Streams(rows)
    await streams.join()
    return streams


async def ready(orders: Streams, n: int) -> None:
    """As many streams as that, all running, of a source with five parts."""
    await orders.publish(n)
    await orders.dealing.act()
    await orders.rows.datasources.list_parts(await orders.rows.datasource(), PARTS)
    await orders.run()


async def test_a_new_datasource_has_its_streams_at_the_first_tick(orders: Streams) -> None:
    await orders.publish(3, proved=False)
    assert await orders.dealing.act() == 1
    assert [row["index"] for row in await orders.all()] == [0, 1, 2]
    assert await orders.dealing.act() == 0
    assert len(await orders.rows.placement.grant([])) == 3
    assert [offer.dealt for offer in await orders.rows.streams.granted(orders.node)] == [3, 3, 3]
    assert [await orders.rows.history(id) for id in await orders.ids()] == [
        [("dealt", "headgate"), ("granted", "left")]
    ] * 3


async def test_a_version_deals_nothing_before_it_has_proved_itself(orders: Streams) -> None:
    await ready(orders, 2)
    await orders.publish(4, proved=False)
    assert await orders.dealing.act() == 0
    async with orders.rows.datasources.change(ME) as change:
        await change.set_running(await orders.rows.datasource(), 2)
    assert await orders.dealing.act() == 1
    assert (await orders.registered())["dealing"]


async def test_streams_that_run_are_stopped_and_dealt_when_all_are_home(orders: Streams) -> None:
    await ready(orders, 2)
    await orders.publish(3)
    revision = (await orders.entry()).revision
    assert await orders.dealing.act() == 1
    entry = await orders.entry()
    assert (entry.is_dealing, entry.is_to_run) == (True, False)
    assert entry.revision > revision
    await orders.stop(0, {"a": 1, "c": 3, "e": 5})
    assert await orders.dealing.act() == 0
    assert await orders.rows.placement.grant([]) == {}, "what has stopped stays so"
    await orders.stop(1, {"b": 2, "d": 4})
    before = await orders.all()
    assert await orders.dealing.act() == 1
    after = await orders.all()
    assert await orders.positions() == ['{"a":1,"d":4}', '{"b":2,"e":5}', '{"c":3}']
    for was, now in zip(before, after, strict=False):
        assert (now["epoch"], now["generation"], now["commits"]) == (
            was["epoch"] + 1,
            was["generation"] + 1,
            was["commits"],
        )
    assert (after[2]["source_identity"], after[2]["version"]) == ("source", 1)
    entry = await orders.entry()
    assert (entry.dealt, entry.is_to_run) == (3, True)
    assert len(await orders.rows.placement.grant([])) == 3
    events = await orders.rows.database.fetch("SELECT payload FROM headgate.datasource_events ORDER BY id DESC LIMIT 1")
    assert events[0]["payload"] == '{"from":2,"to":3,"parts":5}'


async def test_streams_that_are_too_many_stay_but_are_never_run(orders: Streams) -> None:
    await ready(orders, 3)
    for index, position in enumerate(({"a": 1, "d": 4}, {"b": 2, "e": 5}, {"c": 3})):
        await orders.stop(index, position)
    await orders.publish(1)
    assert await orders.dealing.act() == 1
    assert await orders.positions() == ['{"a":1,"b":2,"c":3,"d":4,"e":5}', None, None]
    assert list(await orders.rows.placement.grant([])) == (await orders.ids())[:1]
    assert [one.name for one in await orders.rows.streams.all()] == ["orders:0"]
    await orders.run()
    await orders.stop(0, {"a": 2, "b": 3, "c": 4, "d": 5, "e": 6})
    await orders.publish(2)
    await orders.dealing.act()
    assert await orders.positions() == ['{"a":2,"c":4,"e":6}', '{"b":3,"d":5}', None]


async def test_a_stream_that_has_not_opened_its_sink_yet_is_waited_for(orders: Streams) -> None:
    await ready(orders, 1)
    await orders.stop(0)
    await orders.run(says_so=False)
    await orders.publish(2)
    assert await orders.dealing.act() == 0


@pytest.mark.parametrize("how", ["expired", "revoked", "released in doubt"])
async def test_a_stream_that_does_not_come_home_is_granted_once_more(
    orders: Streams, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ready(orders, 2)
    ids = await orders.ids()
    await orders.publish(3)
    await orders.dealing.act()
    await orders.stop(0, {"a": 1})
    if how == "expired":
        await orders.rows.nodes.end(orders.node)
        await orders.join()
    elif how == "revoked":
        await orders.rows.tell(orders.node, ids[1], Revoke(orders.node))
    else:
        await orders.stop(1, {"b": 2}, is_settled=False)
    assert await orders.dealing.act() == 1
    assert not (await orders.registered())["dealing"]
    await orders.run()
    assert await orders.dealing.act() == 0, "not again at once"
    await orders.rows.database.execute("UPDATE headgate.datasource SET deal_after = now()")
    assert await orders.dealing.act() == 1
    await orders.stop(0, {"a": 1})
    await orders.stop(1, {"b": 9}, n=5)  # As its sink said.
    assert await orders.dealing.act() == 1
    assert (await orders.positions())[:2] == ['{"a":1}', '{"b":9}']


async def test_a_grant_that_is_declined_does_not_bring_a_stream_home(orders: Streams) -> None:
    """Its last line of history is `released`, and still nobody has asked the sink."""
    await ready(orders, 1)
    (stream,) = await orders.ids()
    await orders.rows.tell(orders.node, stream, Revoke(orders.node))
    await orders.rows.placement.grant([])
    epoch = (await orders.rows.row(stream)).epoch
    await orders.rows.tell(orders.node, stream, Release(orders.node, epoch, 0, None))
    await orders.publish(2)
    assert await orders.dealing.act() == 0


async def test_a_stop_is_taken_back_when_the_wish_is_as_before(orders: Streams) -> None:
    await ready(orders, 2)
    await orders.publish(3)
    await orders.dealing.act()
    await orders.publish(2)
    assert await orders.dealing.act() == 1
    assert (await orders.entry()).is_to_run


async def test_streams_of_different_sources_are_not_dealt(orders: Streams) -> None:
    await ready(orders, 2)
    await orders.stop(0)
    await orders.stop(1)
    await orders.rows.database.execute("UPDATE headgate.stream SET source_identity = 'another' WHERE index = 0")
    await orders.publish(3)
    assert await orders.dealing.act() == 0


async def test_a_datasource_that_programs_push_to_is_left_alone(orders: Streams) -> None:
    await ready(orders, 2)
    await orders.publish(3)
    await orders.dealing.act()
    await orders.publish(1, source="push")
    assert await orders.dealing.act() == 1, "a stop is taken back"
    assert await orders.dealing.act() == 0
    assert (await orders.registered())["dealt"] == 2


async def test_what_is_deleted_is_left_alone(orders: Streams) -> None:
    await ready(orders, 1)
    await orders.stop(0)
    await orders.publish(2)
    async with orders.rows.datasources.change(ME) as change:
        await change.delete((await orders.registered())["id"])
    assert await orders.dealing.act() == 0


async def test_one_that_is_stopped_is_dealt_while_it_is_home(orders: Streams) -> None:
    await ready(orders, 1)
    await orders.stop(0, {"a": 1, "b": 2})
    await orders.publish(2)
    async with orders.rows.datasources.change(ME) as change:
        await change.set_enabled((await orders.registered())["id"], False)
    assert await orders.dealing.act() == 1
    assert await orders.positions() == ['{"a":1}', '{"b":2}']


async def test_a_stream_that_rested_begins_again_when_it_was_dealt(orders: Streams) -> None:
    await ready(orders, 1)
    row = (await orders.all())[0]
    finished = Release(
        orders.node, row["epoch"], 1, {"a": 1}, "finished", await orders.rows.wanted_key(), is_settled=True
    )
    await orders.rows.tell(orders.node, row["id"], finished)
    await orders.publish(2)
    await orders.dealing.act()
    assert len(await orders.rows.placement.grant([])) == 2


# At the same time.


async def test_whoever_has_the_tick_deals_and_nobody_else(orders: Streams, url: str) -> None:
    await orders.publish(2, proved=False)
    async with session(url) as other:
        await other.execute("BEGIN")
        assert await other.fetchval(sql("placement/lock"), dealing._TICK)
        assert await orders.dealing.act() == 0
        await other.execute("ROLLBACK")
    assert await orders.dealing.act() == 1


async def test_a_stream_that_is_being_handed_over_is_not_dealt(orders: Streams, url: str) -> None:
    """The release and the next grant are one transaction, which does not wait for the tick."""
    await ready(orders, 1)
    await orders.stop(0)
    await orders.publish(2)
    async with session(url) as other:
        await other.execute("BEGIN")
        await other.execute("UPDATE headgate.stream SET owner = $1, epoch = epoch + 1", orders.node)
        acting = asyncio.create_task(orders.dealing.act())
        await orders.rows.until_somebody_waits()
        await other.execute("COMMIT")
    assert await acting == 0
    assert (await orders.registered())["dealt"] == 1


async def test_an_old_run_can_neither_checkpoint_nor_release_what_was_dealt(orders: Streams) -> None:
    await ready(orders, 1)
    (stream,) = await orders.ids()
    old = (await orders.rows.row(stream)).epoch
    await orders.stop(0, {"a": 1, "b": 2})
    await orders.publish(2)
    await orders.dealing.act()
    await orders.run()
    for command in (Checkpoint(orders.node, old, 99, {"a": 9}), Release(orders.node, old, 99, {"a": 9})):
        await orders.rows.tell(orders.node, stream, command)
    assert (await orders.positions()) == ['{"a":1}', '{"b":2}']


# Parts.


async def test_parts_are_listed_in_the_order_of_first_sight_whoever_finds_them(rows: Rows, others: Rows) -> None:
    await rows.stream()
    datasource = await rows.datasource()
    assert await rows.datasources.list_parts(datasource, ["b", "a"]) == ["b", "a"]
    assert await others.datasources.list_parts(datasource, ["a", "b"]) == ["b", "a"]
    found = await asyncio.gather(
        *(one.datasources.list_parts(datasource, [name, "a"]) for one, name in ((rows, "x"), (others, "y")))
    )
    listed = await rows.datasources.list_parts(datasource, [])
    assert listed[:2] == ["b", "a"]
    assert set(listed) == {"a", "b", "x", "y"}
    assert all(listed[: len(one)] == one for one in found)


async def test_looking_for_what_is_due_costs_the_same_with_any_number_of_datasources(rows: Rows) -> None:
    await rows.many(f"ds-{number}" for number in range(500))
    await rows.database.execute("ANALYZE headgate.datasource")
    plan = await rows.database.fetch(f"EXPLAIN {sql('dealing/read')}", "push", None)
    assert "datasource_deal_due" in "".join(row[0] for row in plan)
