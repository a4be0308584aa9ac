"""Things that workers share: made once, closed with the last user, and never left behind."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from headgate.runtime.streams.shared import SharedThings


class Pool:
    def __init__(self) -> None:
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True

    def terminate(self) -> None:
        raise AssertionError("it closes in time")


async def test_two_users_have_one_thing_and_the_last_one_closes_it() -> None:
    shared, pool = SharedThings(), Pool()

    async def make() -> Pool:
        return pool

    assert await shared.get("a", make) is await shared.get("a", make) is pool
    await shared.give_back("a")
    assert not pool.is_closed
    await shared.give_back("a")
    assert pool.is_closed


async def test_a_thing_whose_only_user_is_cancelled_while_it_is_made_is_not_left_behind() -> None:
    shared, pool = SharedThings(), Pool()
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def make() -> Pool:
        begun.set()
        with suppress(asyncio.CancelledError):  # It was too late to stop: there is a pool.
            await may_end.wait()
        return pool

    user = asyncio.create_task(shared.get("a", make))
    await begun.wait()
    user.cancel()
    with pytest.raises(asyncio.CancelledError):
        await user
    assert pool.is_closed


async def test_making_stops_when_nobody_waits_for_it() -> None:
    shared = SharedThings()
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def make() -> Pool:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError

    user = asyncio.create_task(shared.get("a", make))
    await begun.wait()
    user.cancel()
    with pytest.raises(asyncio.CancelledError):
        await user
    assert stopped.is_set()


async def test_a_second_user_keeps_what_the_first_began_to_make() -> None:
    shared, pool, may_end = SharedThings(), Pool(), asyncio.Event()

    async def make() -> Pool:
        await may_end.wait()
        return pool

    first, second = (asyncio.create_task(shared.get("a", make)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    may_end.set()
    assert await second is pool
    assert not pool.is_closed
    await shared.give_back("a")
    assert pool.is_closed
