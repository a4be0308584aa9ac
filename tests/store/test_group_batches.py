"""Whose commands go into the next batch. What a batch does to the rows is in `test_groups_store.py`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

import pytest

from headgate.core.groups.machine import Evaluate
from headgate.core.groups.requests import Outcome
from headgate.core.groups.roster import Roster, group_of
from headgate.errors import StoreError
from headgate.ids import new_id
from headgate.store import group_batches as batches
from headgate.store.group_batches import ALONE, MOST, MOST_OF_A_PLACE, Answers, Asked, Batches

NOTHING = Outcome(Roster(new_id(), "stream", "name", 5.0, group_of(None, (), 0, 0), {}))


class Transactions:
    """Notes what each transaction is asked, and ends it when told to."""

    def __init__(self) -> None:
        self.asked: list[list[UUID]] = []
        self.batches = Batches(self.carry_out)
        self.go_on = asyncio.Semaphore(0)
        self.error: Exception | None = None
        self.is_locked = False  # Every group, by somebody else.
        self.has_begun = asyncio.Event()

    async def carry_out(self, asked: Sequence[Asked], *, waits: bool) -> Answers:
        self.asked.append([one.place for one in asked if isinstance(one.place, UUID)])
        self.has_begun.set()
        await self.go_on.acquire()
        if self.error is not None:
            raise self.error
        return {} if self.is_locked and not waits else dict.fromkeys(asked, NOTHING)

    def put(self, *places: UUID) -> list[asyncio.Future[Outcome | None]]:
        return [self.batches.put(place, [Evaluate()]) for place in places]

    async def begin(self) -> asyncio.Future[Outcome | None]:
        """A first transaction is under way."""
        (first,) = self.put(new_id())
        await self.has_begun.wait()
        return first

    def let_all_end(self) -> None:
        for _ in range(1000):
            self.go_on.release()


@pytest.fixture
async def transactions() -> Transactions:
    return Transactions()


async def test_a_command_that_finds_none_under_way_is_a_transaction_alone(transactions: Transactions) -> None:
    transactions.let_all_end()
    for _ in range(3):
        (one,) = transactions.put(new_id())
        assert await one is NOTHING
    assert [len(asked) for asked in transactions.asked] == [1, 1, 1]


async def test_a_batch_is_bounded_and_what_is_beyond_it_comes_next(transactions: Transactions) -> None:
    await transactions.begin()
    places = [new_id() for _ in range(MOST + 10)]
    futures = transactions.put(*places)
    transactions.let_all_end()
    await asyncio.gather(*futures)
    assert transactions.asked[1:] == [places[:MOST], places[MOST:]]


async def test_a_group_with_very_many_commands_does_not_hold_up_the_others(transactions: Transactions) -> None:
    await transactions.begin()
    busy, others = new_id(), [new_id() for _ in range(MOST)]
    futures = transactions.put(*[busy] * 5 * MOST_OF_A_PLACE, *others)
    transactions.let_all_end()
    await asyncio.gather(*futures)
    first, second = transactions.asked[1:3]
    assert Counter(first)[busy] == Counter(second)[busy] == MOST_OF_A_PLACE
    assert {*first, *second} == {busy, *others}
    assert Counter(place for asked in transactions.asked for place in asked)[busy] == 5 * MOST_OF_A_PLACE


async def test_a_command_whose_caller_has_gone_is_not_asked(transactions: Transactions) -> None:
    await transactions.begin()
    kept, gone = new_id(), new_id()
    futures = transactions.put(gone, kept, kept, gone)
    for number in (0, 2, 3):
        futures[number].cancel()
    transactions.let_all_end()
    await futures[1]
    assert transactions.asked[1:] == [[kept]]


async def test_everyone_has_an_answer_when_the_database_is_away(transactions: Transactions) -> None:
    first = await transactions.begin()
    futures = transactions.put(*(new_id() for _ in range(5)))
    transactions.error = StoreError("the database did not answer")
    transactions.let_all_end()
    answers = await asyncio.gather(first, *futures, return_exceptions=True)
    assert [type(one) for one in answers] == [StoreError] * 6
    assert len({id(one) for one in answers}) == 6
    assert [len(asked) for asked in transactions.asked] == [1, 5]


async def test_a_group_that_finds_all_sessions_waiting_for_locks_fails_in_time(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "CONNECT_S", 0.05)
    transactions.is_locked = True
    stuck = transactions.put(*(new_id() for _ in range(ALONE + 3)))
    transactions.go_on.release()  # Of the batch; those that wait go on waiting.
    done, waiting = await asyncio.wait(stuck, return_when=asyncio.FIRST_EXCEPTION)
    answers = await asyncio.gather(*done, *stuck[ALONE:], return_exceptions=True)
    assert {type(one) for one in answers} == {StoreError}
    assert waiting >= set(stuck[:ALONE])
    transactions.let_all_end()
    assert await asyncio.gather(*stuck[:ALONE]) == [NOTHING] * ALONE


async def test_nobody_waits_for_an_answer_when_the_work_is_cancelled(transactions: Transactions) -> None:
    first = await transactions.begin()
    (task,) = transactions.batches._tasks
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    transactions.let_all_end()
    (later,) = transactions.put(new_id())
    assert await later is NOTHING
