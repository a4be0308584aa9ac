"""What people see of a stream: the last word is that of the newest grant."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from headgate.core.figures import Figures
from headgate.core.streams import Grant, Release
from headgate.store.states import State, States
from tests.store.conftest import ME, Rows


def state(stream: UUID, epoch: int | None, status: str = "RUNNING") -> State:
    return State(stream, epoch, status, "", 1, Figures(), None)


async def seen(rows: Rows) -> tuple[str, int] | None:
    found = await States(rows.database).all()
    return (found[0].worker_status, found[0].epoch) if found else None


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
        (found,) = await states.all()
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
