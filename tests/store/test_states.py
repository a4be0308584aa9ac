"""What people see of a stream: the last word is that of the newest grant."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from headgate.core.figures import Reported
from headgate.core.records import Totals
from headgate.core.streams import Checkpoint, Grant, Release
from headgate.store.states import State, States, StreamState
from tests.store.conftest import ME, Rows


def state(stream: UUID, epoch: int | None, status: str = "RUNNING") -> State:
    return State(stream, epoch, status, "", 1, Reported(), None)


async def seen(rows: Rows) -> tuple[str, int] | None:
    found = await listed(States(rows.database))
    return (found[0].worker_status, found[0].epoch) if found else None


async def listed(states: States) -> list[StreamState]:
    return [state for found in (await states.all()).states.values() for state in found]


async def test_a_holder_may_say_its_last_after_it_was_granted_the_stream_again(rows: Rows) -> None:
    node, stream, states = await rows.node(), await rows.stream(), States(rows.database)
    epoch = await rows.acquire(node, stream)
    assert await states.save(node, [state(stream, epoch)]) == {stream}
    await rows.tell(node, stream, Release(node, epoch, 0, None))
    await rows.tell(node, stream, Grant(node))
    assert await states.save(node, [state(stream, epoch, "STOPPED")]) == {stream}
    assert await seen(rows) == ("STOPPED", epoch)


async def test_a_stale_holder_does_not_speak_over_its_successor(rows: Rows) -> None:
    left, right, stream = await rows.node("left"), await rows.node("right"), await rows.stream()
    states = States(rows.database)
    old = await rows.acquire(left, stream)
    await rows.tell(left, stream, Release(left, old, 0, None))
    new = await rows.acquire(right, stream)
    assert await states.save(right, [state(stream, new)]) == {stream}
    assert await states.save(left, [state(stream, old, "STOPPED")]) == set()
    assert await seen(rows) == ("RUNNING", new)


async def test_whoever_never_had_the_stream_says_nothing_and_harms_no_other(rows: Rows) -> None:
    node, states = await rows.node(), States(rows.database)
    mine, free = await rows.many(["mine", "free"])
    epoch = await rows.acquire(node, mine)
    told = [state(free, None), state(mine, epoch), replace(state(free, None), epoch=9)]
    assert await states.save(node, told) == {mine}


async def test_a_stream_that_has_ended_is_stopping_until_it_has_been_given_back(rows: Rows) -> None:
    """Its state and its release are two writes. Whoever reads that it has stopped may edit or start it at once."""
    node, stream, states = await rows.node(), await rows.stream(), States(rows.database)

    async def shown() -> tuple[str, str]:
        (found,) = await listed(states)
        return found.worker_status, found.detail

    epoch = await rows.acquire(node, stream)
    await states.save(node, [replace(state(stream, epoch, "STOPPED"), detail="finished")])
    assert await shown() == ("RUNNING", "stopping")
    key = await rows.wanted_key()
    await rows.tell(node, stream, Release(node, epoch, 0, None, "finished", key, is_settled=True))
    assert await shown() == ("STOPPED", "finished")
    # A node that is to run it again has said nothing of that yet.
    await rows.tell(node, stream, Grant(node))
    assert await shown() == ("STOPPED", "finished")


async def test_a_quarantine_that_people_see_is_one_that_a_start_ends(rows: Rows) -> None:
    node, stream, states = await rows.node(), await rows.stream(), States(rows.database)

    async def is_quarantined() -> bool:
        async with rows.datasources.change(ME) as change:
            return (await change.at_rest(await rows.datasource())).quarantined

    epoch = await rows.acquire(node, stream)
    assert not await is_quarantined()
    await states.save(node, [replace(state(stream, epoch, "ERROR"), detail="quarantined")])
    assert await is_quarantined()  # The node is about to give the stream back.
    await rows.tell(node, stream, Release(node, epoch, 0, None))
    assert await is_quarantined()
    await rows.acquire(node, stream)
    assert not await is_quarantined()


# What streams have done.


async def counted(rows: Rows, node: UUID, stream: UUID, read: int, status: str = "RUNNING") -> int:
    """A stream that has read this much, and whose node has said so."""
    epoch = await rows.acquire(node, stream)
    totals = Totals(read, read - 1, 1)
    await rows.tell(node, stream, Checkpoint(node, epoch, 1, read, totals))
    reported = Reported(last_record_at_s=float(read), last_hour=read)
    await States(rows.database).save(node, [replace(state(stream, epoch, status), reported=reported)])
    return epoch


async def test_a_state_has_the_totals_of_its_stream_as_of_the_last_checkpoint(rows: Rows) -> None:
    node, stream = await rows.node(), await rows.stream()
    await counted(rows, node, stream, 7)
    (found,) = await listed(States(rows.database))
    assert (found.totals, found.reported.last_record_at_s) == (Totals(7, 6, 1), 7.0)


async def test_streams_of_programs_that_have_gone_are_summed_up_and_each_counts_once(rows: Rows) -> None:
    await rows.stream(source="push")
    node, datasource, states = await rows.node(), await rows.datasource(), States(rows.database)
    labels = await rows.streams.label([(datasource, name) for name in ("gone", "also-gone", "used", "failed")])
    for number, (_, name) in enumerate(labels, 1):
        stream = labels[datasource, name]
        epoch = await counted(rows, node, stream, 10**number, "ERROR" if name == "failed" else "RUNNING")
        if name != "used":
            await rows.tell(node, stream, Release(node, epoch, 2, None, totals=Totals(10**number, 10**number - 1, 1)))
    shown, others = (await states.all()).of(datasource)
    assert {one.label for one in shown} == {"used", "failed"}
    all_read = sum(10**number for number in range(1, 5))
    assert sum(one.totals.read for one in shown) + others.totals.read == all_read
    assert others.last_record_at_s == max(10.0**n for n, (_, name) in enumerate(labels, 1) if "gone" in name)
    whole, rest = (await states.one(datasource)).of(datasource)
    assert {one.label for one in whole} == {"gone", "also-gone", "used", "failed"}
    assert (sum(one.totals.read for one in whole), rest.totals.read) == (all_read, 0)
    assert await states.pushed(node) == {"orders": Totals(all_read, all_read - 4, 4)}


async def test_what_programs_have_pushed_is_reported_by_the_oldest_node_alone(rows: Rows) -> None:
    await rows.stream(source="push")
    oldest, younger, states = await rows.node(), await rows.node("right"), States(rows.database)
    await rows.streams.label([(await rows.datasource(), "agent")])
    assert list(await states.pushed(oldest)) == ["orders"]
    assert await states.pushed(younger) == {}


async def test_a_stream_that_was_dealt_everything_away_keeps_what_it_has_counted(rows: Rows) -> None:
    node, stream, states = await rows.node(), await rows.stream(), States(rows.database)
    epoch = await counted(rows, node, stream, 7)
    await rows.tell(node, stream, Release(node, epoch, 2, None, totals=Totals(7, 6, 1)))
    await rows.database.execute("UPDATE headgate.datasource SET dealt = 0")
    shown, others = (await states.all()).of(await rows.datasource())
    assert (shown, others.totals) == ([], Totals(7, 6, 1))
    (resting,) = await states.resting(node, 10)
    assert (resting.totals, resting.is_dealt) == (Totals(7, 6, 1), False)
