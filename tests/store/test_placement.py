"""The tick on a real PostgreSQL: who is granted what, and what two ticks, or a tick and a death, do to each other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from headgate.connectors.api import PUSH
from headgate.core.lease import Expired
from headgate.core.streams import Acquire, Checkpoint, Done, Granted, Release
from headgate.ids import new_id
from headgate.store import placement
from headgate.store.database import sql
from tests.store.conftest import ME, Pause, Rows, session

# Who gets what.


async def test_free_streams_are_dealt_to_equal_nodes_in_turn(rows: Rows) -> None:
    nodes = [await rows.node(name) for name in ("a", "b", "c")]
    streams = await rows.many([f"ds-{number}" for number in range(7)])
    placed = await rows.placement.grant([])
    assert [placed[stream] for stream in streams] == [*nodes, *nodes, nodes[0]]
    assert await rows.owners() == placed


async def test_the_node_with_the_fewest_streams_is_next(rows: Rows) -> None:
    busy, idle = await rows.node("busy"), await rows.node("idle")
    await rows.acquire(busy, *await rows.many(["a", "b", "c"]))
    await rows.many(["d", "e", "f", "g", "h"])
    await rows.placement.grant([])
    assert Counter((await rows.owners()).values()) == {busy: 4, idle: 4}


async def test_a_granted_stream_waits_for_its_node_under_a_new_epoch(rows: Rows) -> None:
    node, stream = await rows.node(), await rows.stream()
    assert await rows.placement.grant([]) == {stream: node}
    (offer,) = await rows.streams.granted(node)
    assert (offer.stream, offer.datasource, offer.index, offer.epoch) == (stream, await rows.datasource(), 0, 1)
    assert await rows.tell(node, stream, Acquire(node, new_id(), 1, "source", "sink")) == Granted()
    assert await rows.streams.granted(node) == []
    assert (await rows.row(stream)).epoch == 2


async def test_what_somebody_has_is_not_granted_again(rows: Rows) -> None:
    left, stream = await rows.node("left"), await rows.stream()
    await rows.placement.grant([])
    await rows.node("right")
    assert await rows.placement.grant([]) == {}
    assert (await rows.row(stream)).owner == left
    assert (await rows.row(stream)).epoch == 1


async def test_a_stream_that_is_given_back_is_granted_again_with_its_position(rows: Rows) -> None:
    node, stream = await rows.node(), await rows.stream()
    epoch = await rows.acquire(node, stream)
    assert await rows.tell(node, stream, Release(node, epoch, 7, {"page": 7})) == Done()
    assert await rows.placement.grant([]) == {stream: node}
    assert (await rows.row(stream)).held.position == {"page": 7}


async def test_without_nodes_nothing_is_granted(rows: Rows) -> None:
    stream = await rows.stream()
    assert await rows.placement.grant([]) == {}
    assert await rows.owners() == {stream: None}


async def test_a_tick_grants_so_many_at_most_and_the_next_one_goes_on(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "MOST", 3)
    await rows.node()
    await rows.many([f"ds-{number}" for number in range(5)])
    assert [len(await rows.placement.grant([])) for _ in range(3)] == [3, 2, 0]


# Who gets nothing.


async def test_a_draining_node_gets_nothing_until_it_is_undrained(rows: Rows) -> None:
    left, right = await rows.node("left"), await rows.node("right")
    assert await rows.nodes.set_draining(left, True)
    first, second = await rows.many(["a", "b"])
    assert await rows.placement.grant([]) == {first: right, second: right}
    assert await rows.nodes.set_draining(left, False)
    third = await rows.stream("c")
    assert await rows.placement.grant([]) == {third: left}


async def test_a_silent_node_gets_nothing(rows: Rows) -> None:
    left, right = await rows.node("left"), await rows.node("right")
    first, second = await rows.many(["a", "b"])
    assert await rows.placement.grant([left]) == {first: right, second: right}


async def test_where_everyone_drains_or_is_silent_a_stream_stays_free(rows: Rows) -> None:
    left, right, stream = await rows.node("left"), await rows.node("right"), await rows.stream()
    await rows.nodes.set_draining(left, True)
    assert await rows.placement.grant([right]) == {}
    assert (await rows.row(stream)).epoch == 0


async def give_up(rows: Rows, stream: UUID, name: str = "orders") -> UUID:
    """Whoever has this stream cannot run it, for the present wish."""
    row = await rows.row(stream)
    assert row.owner is not None
    release = Release(row.owner, row.epoch, 0, None, "unable", await rows.wish(name), "no driver")
    assert await rows.tell(row.owner, stream, release) == Done()
    return row.owner


async def test_a_node_that_is_unable_leaves_the_stream_to_another(rows: Rows) -> None:
    left, right, stream = await rows.node("left"), await rows.node("right"), await rows.stream()
    assert await rows.placement.grant([]) == {stream: left}
    await give_up(rows, stream)
    assert await rows.placement.grant([]) == {stream: right}


async def test_a_node_that_is_unable_for_one_stream_gets_others(rows: Rows) -> None:
    left, right, stream = await rows.node("left"), await rows.node("right"), await rows.stream()
    await rows.placement.grant([])
    await give_up(rows, stream)
    other = await rows.stream("other")
    assert set((await rows.placement.grant([])).items()) == {(stream, right), (other, left)}


async def give_up_everywhere(rows: Rows, stream: UUID) -> None:
    while await rows.placement.grant([]):
        await give_up(rows, stream)
    assert (await rows.row(stream)).owner is None


another_chance = pytest.mark.parametrize(
    "change", [Rows.publish, Rows.restart, Rows.start], ids=["publish", "restart", "start"]
)


@another_chance
async def test_where_nobody_is_able_a_stream_waits_for_another_chance(
    rows: Rows, change: Callable[[Rows], Awaitable[object]]
) -> None:
    nodes, stream = {await rows.node("left"), await rows.node("right")}, await rows.stream()
    await give_up_everywhere(rows, stream)
    assert await rows.placement.grant([]) == {}
    await change(rows)
    assert set(await rows.placement.grant([])) == {stream}
    assert (await rows.row(stream)).owner in nodes


async def test_a_node_that_joins_is_tried_too(rows: Rows) -> None:
    await rows.node("left")
    stream = await rows.stream()
    await give_up_everywhere(rows, stream)
    right = await rows.node("right")
    assert await rows.placement.grant([]) == {stream: right}


async def test_a_node_that_comes_back_is_another_node(rows: Rows) -> None:
    """Whatever kept it from running the stream may have been installed meanwhile."""
    left, stream = await rows.node("left"), await rows.stream()
    await give_up_everywhere(rows, stream)
    await rows.nodes.end(left)
    again = await rows.node("left")
    assert await rows.placement.grant([]) == {stream: again}


async def test_an_unable_node_is_tried_again_after_a_while_if_another_was_able(rows: Rows) -> None:
    left, right, stream = await rows.node("left"), await rows.node("right"), await rows.stream()
    await rows.placement.grant([])
    await give_up(rows, stream)
    await rows.nodes.set_draining(right, True)
    assert await rows.placement.grant([]) == {}
    await rows.database.execute("UPDATE headgate.unable SET at = at - $1::interval", placement.UNABLE)
    assert await rows.placement.grant([]) == {stream: left}


async def test_where_nobody_is_able_time_alone_changes_nothing(rows: Rows) -> None:
    await rows.node("left")
    await rows.node("right")
    stream = await rows.stream()
    await give_up_everywhere(rows, stream)
    await rows.database.execute("UPDATE headgate.unable SET at = at - 2 * $1::interval", placement.UNABLE)
    assert await rows.placement.grant([]) == {}


# What is not granted.


async def stopped(rows: Rows) -> None:
    async with rows.datasources.change(ME) as change:
        await change.set_enabled(await rows.datasource(), False)


async def quarantined(rows: Rows) -> None:
    async with rows.datasources.change(ME) as change:
        await change.quarantine(await rows.datasource(), "it blocks")


async def deleted(rows: Rows) -> None:
    async with rows.datasources.change(ME) as change:
        await change.delete(await rows.datasource())


async def rejected(rows: Rows) -> None:
    async with rows.datasources.change(ME) as change:
        assert await change.reject(await rows.datasource(), 1, "no such topic")


async def pushed(rows: Rows) -> None:
    await rows.publish(source=PUSH)


async def finished(rows: Rows) -> None:
    stream = (await rows.streams.find("orders:0"))["id"]
    node = await rows.node("gone")
    epoch = await rows.acquire(node, stream)
    await rows.tell(node, stream, Release(node, epoch, 1, 99, "finished", await rows.wish()))
    await rows.nodes.end(node)


@pytest.mark.parametrize("what", [stopped, quarantined, deleted, rejected, pushed, finished])
async def test_what_should_not_run_is_not_granted(rows: Rows, what: Callable[[Rows], Awaitable[None]]) -> None:
    stream = await rows.stream()
    await what(rows)
    await rows.node()
    assert await rows.placement.grant([]) == {}
    assert (await rows.row(stream)).owner is None


async def test_what_was_never_published_is_not_granted(rows: Rows) -> None:
    await rows.node()
    await rows.stream(published=False)
    assert await rows.placement.grant([]) == {}


async def test_a_stream_that_a_program_pushes_is_not_granted(rows: Rows) -> None:
    """Not even if its datasource is one that is read by now."""
    await rows.node()
    stream = await rows.stream("clicks", source=PUSH)
    await rows.streams.label([(await rows.datasource("clicks"), "host-7")])
    assert await rows.placement.grant([]) == {}
    await rows.publish("clicks")
    assert set(await rows.placement.grant([])) == {stream}


@another_chance
async def test_a_stream_that_has_come_to_an_end_rests_until_another_chance(
    rows: Rows, change: Callable[[Rows], Awaitable[object]]
) -> None:
    stream = await rows.stream()
    await finished(rows)
    node = await rows.node()
    assert await rows.placement.grant([]) == {}
    await change(rows)
    assert await rows.placement.grant([]) == {stream: node}


async def test_an_edited_position_ends_the_rest(rows: Rows) -> None:
    stream = await rows.stream()
    await finished(rows)
    node = await rows.node()
    await rows.streams.edit("orders:0", 5, ME)
    assert await rows.placement.grant([]) == {stream: node}


async def test_an_edited_position_is_another_chance_for_every_node(rows: Rows) -> None:
    node, stream = await rows.node(), await rows.stream()
    await give_up_everywhere(rows, stream)
    await rows.streams.edit("orders:0", 5, ME)
    assert await rows.placement.grant([]) == {stream: node}


async def test_a_node_that_may_be_able_now_is_tried_again(rows: Rows) -> None:
    node, stream = await rows.node(), await rows.stream()
    await give_up_everywhere(rows, stream)
    await rows.streams.clear_unable(node)
    assert await rows.placement.grant([]) == {stream: node}


async def test_a_rejected_version_leaves_the_older_one_to_run(rows: Rows) -> None:
    """Whether its streams are pushed is then the older one's to say."""
    node, stream = await rows.node(), await rows.stream()
    datasource = await rows.datasource()
    async with rows.datasources.change(ME) as change:
        await change.set_running(datasource, 1)
    second = await rows.publish(source=PUSH)
    assert await rows.placement.grant([]) == {}
    async with rows.datasources.change(ME) as change:
        assert await change.reject(datasource, second, "no")
    assert await rows.placement.grant([]) == {stream: node}


# Two at once.


async def test_of_two_ticks_at_once_one_works(rows: Rows, others: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    await rows.node()
    stream = await rows.stream()
    pause = Pause()
    monkeypatch.setattr(placement, "_candidates", pause.before(placement._candidates))
    tick = asyncio.create_task(rows.placement.grant([]))
    await pause.reached.wait()
    assert await others.placement.grant([]) == {}
    assert await others.placement.sweep() == 0
    pause.go_on.set()
    assert set(await tick) == {stream}
    assert (await rows.row(stream)).epoch == 1


async def test_many_ticks_grant_each_stream_once(rows: Rows, others: Rows) -> None:
    await rows.node("left")
    await rows.node("right")
    streams = await rows.many([f"ds-{number}" for number in range(50)])
    placed = await asyncio.gather(*(one.placement.grant([]) for one in (rows, others) for _ in range(5)))
    assert sorted(stream for one in placed for stream in one) == streams
    assert {(await rows.row(stream)).epoch for stream in streams} == {1}


async def test_a_tick_passes_over_a_row_that_somebody_holds(rows: Rows, url: str) -> None:
    node = await rows.node()
    held, free = await rows.many(["a", "b"])
    async with session(url) as connection:
        await connection.execute("BEGIN")
        await connection.fetch(sql("streams/lock"), [held])
        assert await rows.placement.grant([]) == {free: node}
        await connection.execute("ROLLBACK")
    assert await rows.placement.grant([]) == {held: node}


@pytest.mark.parametrize("how", ["it leaves", "it is taken for dead"])
async def test_a_node_that_ends_while_the_tick_runs_takes_its_new_streams_down_with_it(
    rows: Rows, others: Rows, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    node = await rows.node()
    streams = await rows.many(["a", "b"])
    pause = Pause()
    monkeypatch.setattr(placement, "_candidates", pause.before(placement._candidates))
    tick = asyncio.create_task(rows.placement.grant([]))
    await pause.reached.wait()
    ending = others.nodes.end(node) if how == "it leaves" else others.nodes.expire(Expired(node, 0))
    end = asyncio.create_task(ending)
    await others.until_somebody_waits()
    pause.go_on.set()
    assert await tick == dict.fromkeys(streams, node)
    assert await end == streams
    assert await rows.owners() == dict.fromkeys(streams)
    assert await rows.placement.sweep() == 0


async def test_a_tick_that_finds_a_node_ending_gives_it_nothing(rows: Rows, url: str) -> None:
    leaving, staying = await rows.node("leaving"), await rows.node("staying")
    stream = await rows.stream()
    async with session(url) as connection:
        await connection.execute("BEGIN")
        await connection.execute(sql("nodes/delete"), leaving)
        tick = asyncio.create_task(rows.placement.grant([]))
        await rows.until_somebody_waits()
        await connection.execute("COMMIT")
    assert await tick == {stream: staying}


async def test_a_beat_and_a_checkpoint_do_not_wait_for_a_tick(
    rows: Rows, others: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await rows.node()
    running, _ = await rows.stream("running"), await rows.stream("free")
    epoch = await rows.acquire(node, running)
    pause = Pause()
    monkeypatch.setattr(placement, "_candidates", pause.before(placement._candidates))
    tick = asyncio.create_task(rows.placement.grant([]))
    await pause.reached.wait()
    assert await others.nodes.beat(node)
    assert await others.tell(node, running, Checkpoint(node, epoch, 1, 1)) == Done()
    assert await others.nodes.set_draining(node, True)
    pause.go_on.set()
    assert len(await tick) == 1


# Orphans.


async def test_streams_of_an_owner_that_is_gone_are_freed(rows: Rows) -> None:
    node = await rows.node()
    kept, orphan = await rows.many(["kept", "orphan"])
    epoch = await rows.acquire(node, kept, orphan)
    ghost = new_id()
    await rows.database.execute("UPDATE headgate.stream SET owner = $1 WHERE id = $2", ghost, orphan)
    assert await rows.placement.sweep() == 1
    assert await rows.owners() == {kept: node, orphan: None}
    assert (await rows.row(orphan)).epoch == epoch + 1
    assert (await rows.history(orphan))[-1] == ("revoked", "headgate")
    assert await rows.placement.sweep() == 0
    assert await rows.placement.grant([]) == {orphan: node}
