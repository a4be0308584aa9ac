"""The tick on a real PostgreSQL: who is granted what, and what two ticks, or a tick and a death, do to each other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from headgate.core.lease import Expired
from headgate.core.push import PUSH
from headgate.core.streams import Acquire, Checkpoint, Done, Fenced, Granted, Release
from headgate.ids import new_id
from headgate.store import placement
from headgate.store.beats import BeatSession
from headgate.store.database import Database, sql
from headgate.store.nodes import Nodes
from headgate.store.placement import Placement
from headgate.store.streams import Streams
from tests.store.conftest import ME, Pause, Rows, session, unchecked
from tests.waiting import LONG_S

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


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("revision = revision", True),
        ("enabled = false", False),
        ("deleted = true", False),
        ("published_version = NULL", False),
        ("quarantine = 'it blocks'", False),
        ("dealing = true", False),
    ],
)
async def test_the_tick_grants_what_nodes_are_told_to_run_and_nothing_else(
    rows: Rows, change: str, expected: bool
) -> None:
    await rows.node()
    await rows.stream()
    await rows.database.execute(f"UPDATE headgate.datasource SET {change}")
    (entry,) = await rows.datasources.entries_since(0)
    assert entry.is_to_run == expected
    assert bool(await rows.placement.grant([])) == expected


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
    assert (await rows.row(stream)).progress.position == {"page": 7}


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
    """Whoever has this stream cannot run it, under the present key."""
    row = await rows.row(stream)
    assert row.owner is not None
    release = Release(row.owner, row.epoch, 0, None, "unable", await rows.wanted_key(name), "no driver")
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
    stream = (await rows.streams.find("orders:0")).id
    node = await rows.node("gone")
    epoch = await rows.acquire(node, stream)
    await rows.tell(node, stream, Release(node, epoch, 1, 99, "finished", await rows.wanted_key()))
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
    locked, free = await rows.many(["a", "b"])
    async with session(url) as connection:
        await connection.execute("BEGIN")
        await connection.fetch(sql("streams/lock"), [locked])
        assert await rows.placement.grant([]) == {free: node}
        await connection.execute("ROLLBACK")
    assert await rows.placement.grant([]) == {locked: node}


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
    rows: Rows, others: Rows, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await rows.node()
    running, _ = await rows.stream("running"), await rows.stream("free")
    epoch = await rows.acquire(node, running)
    pause = Pause()
    monkeypatch.setattr(placement, "_candidates", pause.before(placement._candidates))
    tick = asyncio.create_task(rows.placement.grant([]))
    await pause.reached.wait()
    beats = await BeatSession.open(url, unchecked, node)
    assert await beats.beat()
    beats.close()
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


# Wishes and orders.


async def balance(rows: Rows, *silent: UUID, moves: bool = True) -> int:
    """One tick of a node that remembers nothing of earlier ones."""
    return await Placement(rows.database).balance(silent, moves=moves)


async def wishes(rows: Rows) -> dict[UUID, tuple[UUID, bool, bool]]:
    """Where each stream should be, whether an operator said so, and whether its holder was told to step down."""
    found = await rows.database.fetch("SELECT * FROM headgate.wish")
    return {row["stream"]: (row["node"], row["pinned"], row["stepping"]) for row in found}


async def move(rows: Rows, name: str, node: UUID) -> None:
    target = await Nodes(rows.database).find(str(node))
    await rows.placement.move(await rows.streams.find(f"{name}:0"), target, ME)


async def hand_over(rows: Rows, stream: UUID) -> None:
    """Whoever has this stream steps down."""
    row = await rows.row(stream)
    assert row.owner is not None
    assert await rows.tell(row.owner, stream, Release(row.owner, row.epoch, 9, {"at": 9}, hands_over=True)) == Done()


async def test_a_node_that_joins_is_wished_its_share_and_nobody_else_is_touched(rows: Rows) -> None:
    left = await rows.node("left")
    streams = await rows.many([f"ds-{number}" for number in range(6)])
    await rows.acquire(left, *streams)
    before = [await rows.row(stream) for stream in streams]
    right = await rows.node("right")
    assert await balance(rows) == 3
    assert list((await wishes(rows)).values()) == [(right, False, True)] * 3
    assert [await rows.row(stream) for stream in streams] == before, "a join writes nothing but wishes"
    told = [offer.stream for offer in await rows.streams.granted(left) if offer.steps_down]
    assert sorted(told) == sorted(await wishes(rows))


async def test_who_was_told_is_not_told_again_and_who_was_not_is_by_the_next_tick(rows: Rows) -> None:
    """What is to be done is in the rows; which node looks, and what it remembers, does not matter."""
    left = await rows.node("left")
    await rows.acquire(left, *await rows.many(["a", "b"]))
    await rows.node("right")
    assert await balance(rows) == 1
    assert await balance(rows) == 0
    (order,) = await rows.placement.standing_orders()
    await rows.database.execute("UPDATE headgate.wish SET stepping = false")
    assert await rows.placement.standing_orders() == []
    assert await balance(rows, moves=False) == 1
    assert await rows.placement.standing_orders() == [order]


async def test_a_stream_that_is_handed_over_is_the_preferred_nodes_in_the_same_transaction(rows: Rows) -> None:
    left, stream = await rows.node("left"), await rows.stream("a")
    epoch = await rows.acquire(left, stream)
    await rows.node("middle")
    right = await rows.node("right")
    await move(rows, "a", right)
    assert await balance(rows) == 1
    await hand_over(rows, stream)
    row = await rows.row(stream)
    assert (row.owner, row.epoch, row.progress.position) == (right, epoch + 1, {"at": 9})
    assert await wishes(rows) == {stream: (right, True, False)}, "pinned, and nobody is to step down"
    assert [offer.steps_down for offer in await rows.streams.granted(right)] == [False]
    assert await balance(rows) == 0


async def test_a_wish_that_was_fulfilled_is_forgotten(rows: Rows) -> None:
    left = await rows.node("left")
    await rows.acquire(left, *await rows.many(["a", "b"]))
    right = await rows.node("right")
    await balance(rows)
    (stream,) = await wishes(rows)
    await hand_over(rows, stream)
    assert (await rows.row(stream)).owner == right
    assert await balance(rows) == 0
    assert await wishes(rows) == {}
    assert await rows.placement.standing_orders() == []


async def test_of_two_ticks_that_balance_at_once_one_works(
    rows: Rows, others: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await rows.node("left")
    await rows.acquire(left, *await rows.many(["a", "b", "c", "d"]))
    await rows.node("right")
    pause = Pause()
    monkeypatch.setattr(placement, "_candidates", pause.before(placement._candidates))
    tick = asyncio.create_task(balance(rows))
    await pause.reached.wait()
    assert await balance(others) == 0
    pause.go_on.set()
    assert await tick == 2
    assert await balance(others) == 0


async def test_many_ticks_wish_and_grant_without_a_deadlock(rows: Rows, others: Rows) -> None:
    """While holders hand over what they are told to."""
    left = await rows.node("left")
    streams = await rows.many([f"ds-{number}" for number in range(12)])
    await rows.acquire(left, *streams)
    right = await rows.node("right")

    async def step_down() -> None:
        while Counter((await rows.owners()).values())[right] < 6:
            for order in await rows.placement.standing_orders():
                await hand_over(rows, order.stream)

    async def tick(at: Rows) -> None:
        while Counter((await at.owners()).values())[right] < 6:
            await balance(at)
            await at.placement.grant([])

    async with asyncio.timeout(LONG_S):
        await asyncio.gather(step_down(), tick(rows), tick(others))
    assert Counter((await rows.owners()).values()) == {left: 6, right: 6}


@pytest.mark.parametrize("how", ["it leaves", "it is taken for dead"])
async def test_a_wish_ends_with_its_node_and_the_holder_keeps_the_stream(rows: Rows, how: str) -> None:
    left = await rows.node("left")
    streams = await rows.many(["a", "b"])
    await rows.acquire(left, *streams)
    right = await rows.node("right")
    for name in ("a", "b"):
        await move(rows, name, right)
    assert await balance(rows) == 2
    assert await (rows.nodes.end(right) if how == "it leaves" else rows.nodes.expire(Expired(right, 0))) == []
    assert await wishes(rows) == {}
    assert await rows.placement.standing_orders() == []
    assert [offer for offer in await rows.streams.granted(left) if offer.steps_down] == []
    assert await rows.owners() == dict.fromkeys(streams, left)


async def test_what_is_handed_over_when_its_new_node_has_just_died_goes_to_another(rows: Rows) -> None:
    left, middle = await rows.node("left"), await rows.node("middle")
    stream = await rows.stream("a")
    await rows.acquire(left, stream, *await rows.many(["b", "c"]))
    right = await rows.node("right")
    await move(rows, "a", right)
    await balance(rows)
    await rows.nodes.end(right)
    await hand_over(rows, stream)
    assert (await rows.row(stream)).owner == middle


async def test_an_operators_wish_outranks_the_planner_until_it_is_taken_back(rows: Rows) -> None:
    left = await rows.node("left")
    names = ["a", "b", "c", "d"]
    streams = await rows.many(names)
    await rows.acquire(left, *streams)
    for name in names:
        await move(rows, name, left)
    right = await rows.node("right")
    assert await balance(rows) == 0
    assert set((await wishes(rows)).values()) == {(left, True, False)}
    await rows.placement.unpin(await rows.streams.find("a:0"), ME)
    assert await balance(rows) == 1
    assert [wish for wish in (await wishes(rows)).values() if not wish[1]] == [(right, False, True)]


async def test_an_operator_may_wish_otherwise_while_the_holder_is_stepping_down(rows: Rows) -> None:
    left, stream = await rows.node("left"), await rows.stream("a")
    await rows.acquire(left, stream)
    middle, right = await rows.node("middle"), await rows.node("right")
    await move(rows, "a", middle)
    assert await balance(rows) == 1
    await move(rows, "a", right)
    assert await balance(rows) == 1
    await hand_over(rows, stream)
    assert (await rows.row(stream)).owner == right


async def test_a_wish_that_is_changed_back_to_the_holder_tells_it_nothing(rows: Rows) -> None:
    left, stream = await rows.node("left"), await rows.stream("a")
    await rows.acquire(left, stream)
    right = await rows.node("right")
    await move(rows, "a", right)
    assert await balance(rows) == 1
    await move(rows, "a", left)
    assert await balance(rows) == 0
    assert await rows.placement.standing_orders() == []
    assert [offer for offer in await rows.streams.granted(left) if offer.steps_down] == []


async def test_for_a_silent_or_draining_node_nobody_steps_down(rows: Rows) -> None:
    left, stream = await rows.node("left"), await rows.stream("a")
    await rows.acquire(left, stream)
    right = await rows.node("right")
    await move(rows, "a", right)
    assert await balance(rows, right) == 0
    await rows.nodes.set_draining(right, True)
    assert await balance(rows) == 0
    await rows.nodes.set_draining(right, False)
    assert await balance(rows) == 1


async def test_a_silent_holder_is_told_nothing(rows: Rows) -> None:
    """It may be dead; its lease will tell."""
    left, stream = await rows.node("left"), await rows.stream("a")
    await rows.acquire(left, stream)
    await move(rows, "a", await rows.node("right"))
    assert await balance(rows, left) == 0
    assert await rows.placement.standing_orders() == []


async def test_what_is_handed_over_goes_to_no_silent_node_though_it_is_preferred(
    rows: Rows, database: Database
) -> None:
    left, middle, stream = await rows.node("left"), await rows.node("middle"), await rows.stream("a")
    await rows.acquire(left, stream, *await rows.many(["b"]))
    right = await rows.node("right")
    await move(rows, "a", right)
    await balance(rows)
    row = await rows.row(stream)
    release = Release(left, row.epoch, 0, None, hands_over=True)
    await Streams(database, lambda: [right]).apply(left, {stream: release})
    assert (await rows.row(stream)).owner == middle
    assert await balance(rows, right) == 0
    assert await balance(rows) == 1, "it is wished there still"


async def test_nothing_is_moved_to_a_node_that_is_unable_nor_is_such_a_wish_kept(rows: Rows) -> None:
    left, right = await rows.node("left"), await rows.node("right")
    streams = await rows.many(["a", "b", "c", "d"])
    await rows.acquire(left, *streams)
    assert await balance(rows) == 2
    for stream in list(await wishes(rows)):
        await hand_over(rows, stream)
        row = await rows.row(stream)
        assert row.owner == right
        name = (await rows.streams.find(str(stream))).datasource
        await rows.tell(
            right, stream, Release(right, row.epoch, 9, None, "unable", await rows.wanted_key(name), "no driver")
        )
    await rows.placement.grant([])
    assert await rows.owners() == dict.fromkeys(streams, left)
    refused = set(await wishes(rows))
    assert await balance(rows) == 2, "the other two, in their place"
    assert set(await wishes(rows)) == set(streams) - refused


# Taking from the stuck.


async def test_a_stream_is_taken_from_a_holder_that_does_not_step_down_and_runs_elsewhere(rows: Rows) -> None:
    left, stream = await rows.node("left"), await rows.stream("a")
    epoch = await rows.acquire(left, stream)
    right = await rows.node("right")
    await move(rows, "a", right)
    await balance(rows)
    (order,) = await rows.placement.standing_orders()
    assert (order.stream, order.owner, order.epoch) == (stream, left, epoch)
    assert await rows.placement.take(order)
    assert (await rows.row(stream)).owner is None
    assert await rows.tell(left, stream, Checkpoint(left, epoch, 1, 1)) == Fenced()
    assert not await rows.placement.take(order), "once"
    assert await rows.placement.grant([]) == {stream: right}
    assert await rows.placement.standing_orders() == []
    reasons = await rows.database.fetch("SELECT node, reason FROM headgate.unable")
    assert [(row["node"], row["reason"]) for row in reasons] == [(left, "it did not step down in time")]


async def test_a_stream_that_was_taken_does_not_come_back_to_who_was_stuck(rows: Rows) -> None:
    left, stream = await rows.node("left"), await rows.stream("a")
    await rows.acquire(left, stream)
    right = await rows.node("right")
    await move(rows, "a", right)
    await balance(rows)
    (order,) = await rows.placement.standing_orders()
    await rows.placement.take(order)
    assert await rows.placement.grant([right]) == {}
    assert await rows.placement.grant([]) == {stream: right}


async def test_who_steps_down_in_the_last_moment_loses_nothing(rows: Rows) -> None:
    left, stream = await rows.node("left"), await rows.stream("a")
    await rows.acquire(left, stream)
    right = await rows.node("right")
    await move(rows, "a", right)
    await balance(rows)
    (order,) = await rows.placement.standing_orders()
    await hand_over(rows, stream)
    assert not await rows.placement.take(order)
    assert (await rows.row(stream)).owner == right
    assert not await rows.database.fetch("SELECT FROM headgate.unable")


async def test_two_observers_take_a_stream_once(rows: Rows, others: Rows) -> None:
    left, stream = await rows.node("left"), await rows.stream("a")
    epoch = await rows.acquire(left, stream)
    await move(rows, "a", await rows.node("right"))
    await balance(rows)
    (order,) = await rows.placement.standing_orders()
    taken = await asyncio.gather(*(at.placement.take(order) for at in (rows, others) for _ in range(3)))
    assert sorted(taken) == [False] * 5 + [True]
    assert (await rows.row(stream)).epoch == epoch + 1
