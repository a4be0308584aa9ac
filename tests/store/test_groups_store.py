"""Groups on a real PostgreSQL: what many at once do to one group, to many groups, and to each other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from msgspec.structs import replace

from headgate.core.groups import machine as core
from headgate.core.groups import requests
from headgate.core.groups.machine import (
    Confirm,
    ConnectionDisconnected,
    ConnectionDown,
    ConnectionReconnected,
    DisconnectedTimeout,
    Evaluate,
    Group,
    Purge,
    Register,
    TellActive,
    TellStepDown,
    Unregister,
)
from headgate.core.groups.requests import Answer, Answered, Bury, ConnectionEnded, Drop, Joined, Mute, Request
from headgate.core.groups.roster import Roster
from headgate.errors import StoreError
from headgate.ids import new_id
from headgate.store import database as database_module
from headgate.store import group_batches as batches
from headgate.store import groups as store
from headgate.store.database import POOL_SIZE, Database, is_undone, sql
from headgate.store.group_batches import ALONE, Answers, Asked
from headgate.store.groups import EMPTY, GroupRow, Groups, HeldUp
from tests.store.conftest import Pause, Rows, session


class House:
    """The groups of one database, and short ways to fill and read them."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.groups = Groups(database)
        self.node = new_id()

    async def join(self, name: str = "group", partition: int | None = None) -> Joined:
        joined = await self.try_to_join(name, partition)
        assert isinstance(joined, Joined)
        return joined

    async def try_to_join(self, name: str, partition: int | None) -> Joined | core.Refused:
        return await self.groups.join("invoices", name, partition, "somebody", self.node, 5.0)

    async def rejoin(self, consumer: UUID, name: str = "group") -> Joined | None:
        return await self.groups.rejoin(consumer, self.node, "invoices", name)

    async def tell(self, joined: Joined, *requests: Request) -> list[Answer]:
        return list((await self.groups.apply({joined.group: requests}))[joined.group].replies)

    async def read(self, name: str = "group") -> GroupRow:
        """A group as it is listed; the holder must be the one that the machine would name."""
        (found,) = await self.groups.all("invoices", name)
        active = found.group.active
        assert found.granted_to == (UUID(active.id) if active else None)
        return found

    async def statuses(self, name: str = "group") -> list[str]:
        """Of each consumer, in order."""
        return [f"{m.connectivity} {m.activity}" for m in (await self.read(name)).members]

    async def orders(self) -> dict[UUID, tuple[bool, int]]:
        return {one.consumer: (one.is_active, one.epoch) for one in await self.groups.orders(self.node)}

    async def age(self) -> None:
        """As if everything had happened long ago."""
        await self.database.execute("UPDATE headgate.consumer_group SET changed_at = now() - 2 * $1::interval", EMPTY)


@pytest.fixture
async def house(rows: Rows) -> House:
    found = House(rows.database)
    found.node = await rows.node("here")
    return found


@pytest.fixture
async def elsewhere(others: Rows, house: House) -> House:
    """The same groups, seen by another node."""
    found = House(others.database)
    found.node = await others.node("elsewhere")
    return found


ACTIVE, WAITING, STEPPING = "connected active", "connected waiting", "connected deactivating"


# Many at once.


async def test_of_many_that_join_at_once_one_is_granted_and_each_has_a_place(house: House, elsewhere: House) -> None:
    joined = await asyncio.gather(*(one.join() for one in (house, elsewhere) for _ in range(15)))
    assert len({one.group for one in joined}) == 1
    found = await house.read()
    assert {m.id for m in found.members} == {one.consumer for one in joined}
    assert await house.statuses() == [ACTIVE, *[WAITING] * 29]
    assert found.epoch == 1
    numbers = await house.database.fetch("SELECT number FROM headgate.consumer ORDER BY number")
    assert [row["number"] for row in numbers] == list(range(1, 31))


async def test_many_that_join_and_leave_at_once_leave_one_granted(house: House, elsewhere: House) -> None:
    async def come_and_go(at: House, times: int) -> None:
        for _ in range(times):
            joined = await at.join()
            await at.tell(joined, Unregister(str(joined.consumer)))
        await at.join()

    await asyncio.gather(*(come_and_go(at, times) for at in (house, elsewhere) for times in (3, 5, 7)))
    assert sorted(await house.statuses()) == [ACTIVE, *[WAITING] * 5]


async def test_of_two_partitions_that_join_at_once_one_is_refused(house: House, elsewhere: House) -> None:
    both = await asyncio.gather(house.try_to_join("group", 1), elsewhere.try_to_join("group", 2))
    assert sorted(type(one).__name__ for one in both) == ["Joined", "Refused"]
    assert await house.statuses() == [ACTIVE]


async def test_the_next_in_the_order_of_joining_follows(house: House) -> None:
    joined = [await house.join() for _ in range(4)]
    for epoch, one in enumerate(joined, 1):
        assert await house.orders() == {one.consumer: (True, epoch)}
        await house.tell(one, Unregister(str(one.consumer)))
    assert await house.groups.all() == []


# Many groups together.


async def test_requests_for_many_groups_are_one_transaction(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    firsts = [await house.join(f"group-{number}") for number in range(20)]
    seconds = [await house.join(f"group-{number}") for number in range(20)]
    leaving: dict[UUID, Sequence[Request]] = {one.group: [Unregister(str(one.consumer))] for one in firsts}

    async def fail(*args: Any) -> None:
        await real(*args)
        raise RuntimeError("before the commit")

    real = store._save
    monkeypatch.setattr(store, "_save", fail)
    with pytest.raises(RuntimeError):
        await house.groups.apply(leaving)
    monkeypatch.undo()
    assert set(await house.orders()) == {one.consumer for one in firsts}, "all or nothing"
    outcomes = await house.groups.apply(leaving)
    assert {reply for one in outcomes.values() for reply in one.replies} == {core.Ok()}
    assert set(await house.orders()) == {one.consumer for one in seconds}


async def test_a_group_that_is_gone_has_no_answer_and_holds_up_no_other(house: House) -> None:
    one = await house.join()
    outcomes = await house.groups.apply({new_id(): [Evaluate()], one.group: [Unregister(str(one.consumer))]})
    assert list(outcomes) == [one.group]


async def test_batches_over_the_same_groups_in_opposite_orders_do_not_deadlock(house: House, elsewhere: House) -> None:
    """Each batch locks its rows in the order of their ids, whatever order it was given."""
    joined = [await house.join(f"group-{number}", 1) for number in range(40)]
    epochs = {one.group: 1 for one in joined}

    async def batch(at: House, groups: list[UUID]) -> None:
        for _ in range(8):
            await at.groups.apply({group: [Confirm(str(new_id()), epochs[group])] for group in groups})

    groups = [one.group for one in joined]
    await asyncio.gather(
        batch(house, groups), batch(elsewhere, groups[::-1]), batch(house, sorted(groups)), batch(elsewhere, groups)
    )
    assert {one.ignored for one in await house.groups.all()} == {32}


async def test_a_batch_and_joins_to_its_groups_do_not_deadlock(house: House, elsewhere: House) -> None:
    joined = [await house.join(f"group-{number}", 1) for number in range(10)]

    async def join_all() -> None:
        for number in reversed(range(10)):
            await elsewhere.join(f"group-{number}", 1)

    confirms: dict[UUID, Sequence[Request]] = {one.group: [Answered(one.consumer, 1)] for one in joined}
    await asyncio.gather(join_all(), *(house.groups.apply(confirms) for _ in range(10)))
    for number in range(10):
        assert await house.statuses(f"group-{number}") == [STEPPING, WAITING]


# Many commands in one transaction.


class Batch:
    """Commands that come while a transaction of their node is under way, and so go into the next one together."""

    def __init__(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        self._house = house
        self._monkeypatch = monkeypatch
        self._carry_out = house.groups._carry_out
        self._transactions: list[tuple[int, bool]] = []
        self.loses_answers = False  # To its commits.

    @property
    def transactions(self) -> list[tuple[int, bool]]:
        """How many commands each had, and whether it was one that waits for locks."""
        return self._transactions[1:]

    async def _counted(self, asked: Sequence[Asked], *, waits: bool) -> Answers:
        self._transactions.append((len(asked), waits))
        answers = await self._carry_out(asked, waits=waits)
        if self.loses_answers and len(asked) > 1:
            raise StoreError("the answer to the commit is lost")
        return answers

    async def of(self, *commands: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
        """Ask for these while another command is under way; return when it is done."""
        pause = Pause()
        self._monkeypatch.setattr(self._house.groups._batches, "_carry_out", pause.before(self._counted))
        first = asyncio.create_task(self._house.join("first of all"))
        await pause.reached.wait()
        tasks = [asyncio.create_task(one) for one in commands]
        await asyncio.sleep(0)  # Now each of them has asked.
        pause.go_on.set()
        await first
        return tasks


@pytest.fixture
def batch(house: House, monkeypatch: pytest.MonkeyPatch) -> Batch:
    return Batch(house, monkeypatch)


HOLD = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0"  # For as long as the test takes.


@asynccontextmanager
async def locked(url: str, *groups: UUID) -> AsyncIterator[Any]:
    """Somebody else has these groups locked."""
    async with session(url) as connection:
        await connection.execute(HOLD)
        await connection.execute(sql("groups/lock"), groups, [], [])
        yield connection


@asynccontextmanager
async def making(url: str, name: str) -> AsyncIterator[Any]:
    """Somebody else makes this group, and is not done yet."""
    async with session(url) as connection:
        await connection.execute(HOLD)
        await connection.execute(sql("groups/make"), [new_id()], ["invoices"], [name], [None], [5.0])
        yield connection


async def test_what_comes_while_a_transaction_is_under_way_is_the_next_one(house: House, batch: Batch) -> None:
    joined = [await house.join(f"group-{number}") for number in range(10)]
    confirms = [house.tell(one, Answered(one.consumer, 1)) for one in joined]
    joins = [house.join(f"group-{number}") for number in range(20)]
    answers = await asyncio.gather(*await batch.of(*confirms, *joins))
    assert batch.transactions == [(30, False)]
    assert answers[:10] == [[core.Ok()]] * 10
    assert [one.group for one in answers[10:20]] == [one.group for one in joined]
    assert await house.statuses("group-0") == [ACTIVE, WAITING]
    assert await house.statuses("group-19") == [ACTIVE]


async def test_each_command_of_a_batch_has_its_own_answer(house: House, batch: Batch) -> None:
    one = await house.join(partition=1)
    answers = await asyncio.gather(
        *await batch.of(
            house.tell(one, Confirm(str(one.consumer), 7)),
            house.try_to_join("group", 2),
            house.rejoin(new_id()),
            house.rejoin(one.consumer, "another"),
            house.groups.apply({new_id(): [Evaluate()]}),
            house.try_to_join("other", 2),
            house.tell(one, Answered(one.consumer, 1)),
        )
    )
    assert answers[:2] == [[core.Refused("stale")], core.Refused("partition_index_conflict")]
    assert answers[2:5] == [None, None, {}]
    assert isinstance(answers[5], Joined)
    assert answers[6] == [core.Ok()]
    found = await house.read()
    assert (found.ignored, [m.answered for m in found.members]) == (1, [True])
    assert await house.statuses("other") == [ACTIVE]


async def test_commands_for_one_group_are_stepped_in_the_order_in_which_they_came(house: House, batch: Batch) -> None:
    """Whether they name it by its id or by its names."""
    one = await house.join()
    await asyncio.gather(
        *await batch.of(
            house.join(),
            house.tell(one, Unregister(str(one.consumer))),
            house.join(),
            house.rejoin(one.consumer),
            house.tell(one, Evaluate()),
            house.try_to_join("group", None),
        )
    )
    found = await house.read()
    assert [line.what for line in found.lately] == ["register", "register", "unregister", "register", "register"]
    assert await house.statuses() == [ACTIVE, WAITING, WAITING]


async def test_a_command_whose_step_goes_wrong_fails_alone(
    house: House, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = [await house.join(f"group-{number}") for number in range(3)]

    def step(roster: Roster, request: Request, now: datetime) -> requests.Step:
        if isinstance(request, Evaluate):
            raise RuntimeError("a bug")
        return real(roster, request, now)

    real = requests.step
    monkeypatch.setattr(requests, "step", step)
    commands: list[Request] = [Answered(joined[1].consumer, 1), Evaluate(), Unregister(str(joined[1].consumer))]
    answers = await asyncio.gather(
        *await batch.of(
            house.tell(joined[0], Answered(joined[0].consumer, 1)),
            *(house.tell(joined[1], command) for command in commands),
            house.tell(joined[2], Answered(joined[2].consumer, 1), Evaluate()),
        ),
        return_exceptions=True,
    )
    assert [type(one) for one in answers] == [list, list, RuntimeError, list, RuntimeError]
    assert batch.transactions == [(5, False)]
    assert set(await house.orders()) == {joined[2].consumer, *await first_of_all(house)}
    assert await house.groups.all("invoices", "group-1") == []


async def first_of_all(house: House) -> list[UUID]:
    return [m.id for m in (await house.read("first of all")).members]


async def test_a_command_that_the_database_does_not_accept_fails_alone(house: House, batch: Batch) -> None:
    one = await house.join()
    bad = [
        house.groups.join("invoices", "a zero byte", None, "\0", house.node, 5.0),
        house.groups.join("invoices", "a surrogate", None, "\ud800", house.node, 5.0),
        house.groups.join("invoices", "a large number", 2**40, "", house.node, 5.0),
        house.groups.join("invoices", "group", None, "\0", house.node, 5.0),
    ]
    answers = await asyncio.gather(
        *await batch.of(
            house.tell(one, Answered(one.consumer, 1)), house.join(), *bad, house.join(), house.join("last")
        ),
        return_exceptions=True,
    )
    assert [isinstance(one, Exception) for one in answers] == [False, False, True, True, True, True, False, False]
    assert await house.statuses() == [ACTIVE, WAITING, WAITING]
    assert await house.statuses("last") == [ACTIVE]
    assert {one.name for one in await house.groups.all()} == {"group", "last", "first of all"}


async def test_a_group_that_somebody_has_locked_holds_up_none_of_its_neighbours(
    house: House, batch: Batch, url: str
) -> None:
    joined = [await house.join(f"group-{number}") for number in range(5)]
    async with locked(url, joined[0].group) as connection:
        tasks = await batch.of(*(house.tell(one, Answered(one.consumer, 1)) for one in joined))
        await asyncio.gather(*tasks[1:])
        later = asyncio.create_task(house.tell(joined[0], Unregister(str(joined[0].consumer))))
        await house.tell(joined[1], Unregister(str(joined[1].consumer)))
        await Rows(house.database).until_somebody_waits()
        assert not tasks[0].done()
        await connection.execute("COMMIT")
        assert await tasks[0] == [core.Ok()]
        assert await later == [core.Ok()]
    assert batch.transactions == [(5, False), (1, True), (1, False), (1, False)]


async def test_many_locks_that_are_not_released_hold_up_their_own_groups_and_no_others(
    house: House, rows: Rows, batch: Batch, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more of them than a node has sessions."""
    joined = [await house.join(f"group-{number}") for number in range(POOL_SIZE + 3)]
    confirms: dict[UUID, Sequence[Request]] = {one.group: [Answered(one.consumer, 1)] for one in joined}
    stuck = {one.group for one in joined[2:]}
    monkeypatch.setattr(database_module, "_BEGIN", database_module._BEGIN + "; SET LOCAL lock_timeout = 500")
    async with locked(url, *stuck):
        (task,) = await batch.of(house.groups.apply(confirms))
        await rows.until_somebody_waits(ALONE)
        await house.tell(joined[0], Unregister(str(joined[0].consumer)))
        await house.join("another")
        assert await rows.waiting() <= ALONE
        with pytest.raises(HeldUp) as raised:
            await task
    assert raised.value.groups == stuck
    assert raised.value.outcomes.keys() == confirms.keys() - stuck
    outcomes = await house.groups.apply({group: confirms[group] for group in stuck})
    assert {reply for one in outcomes.values() for reply in one.replies} == {core.Ok()}


async def test_a_group_that_another_makes_and_does_not_finish_holds_up_no_neighbour(
    house: House, batch: Batch, url: str
) -> None:
    one = await house.join()
    async with making(url, "made") as connection:
        tasks = await batch.of(house.tell(one, Answered(one.consumer, 1)), house.join("made"), house.join("new"))
        await asyncio.gather(tasks[0], tasks[2])
        assert not tasks[1].done()
        await connection.execute("COMMIT")
        await tasks[1]
    assert await house.statuses("made") == [ACTIVE]


async def test_groups_with_more_consumers_than_a_batch_reads_are_asked_alone(
    house: House, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    firsts = [await house.join(f"group-{number}") for number in range(6)]
    for number in range(12):
        await house.join(f"group-{number % 6}")
    monkeypatch.setattr(store, "MOST_ROWS", 7)
    answers = await asyncio.gather(*await batch.of(*(house.tell(one, Answered(one.consumer, 1)) for one in firsts)))
    assert answers == [[core.Ok()]] * 6
    assert batch.transactions == [(6, False), *[(1, True)] * 4]
    assert not {one.consumer for one in firsts} & set(await house.orders())


async def test_commands_of_a_batch_whose_database_goes_away_fail_and_change_nothing(
    house: House, elsewhere: House, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = [await house.join(f"group-{number}") for number in range(5)]
    pause = Pause()
    tasks = await batch.of(*(house.tell(one, Answered(one.consumer, 1)) for one in joined), house.join("new"))
    monkeypatch.setattr(store, "_save", pause.before(store._save))
    await pause.reached.wait()
    sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    await elsewhere.database.execute(sessions)
    pause.go_on.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert {isinstance(one, StoreError) for one in answers} == {True}
    assert batch.transactions == [(6, False)]
    assert set(await house.orders()) >= {one.consumer for one in joined}
    assert await house.groups.all("invoices", "new") == []


async def test_a_batch_whose_commit_was_not_answered_is_not_repeated(house: House, batch: Batch) -> None:
    batch.loses_answers = True
    answers = await asyncio.gather(
        *await batch.of(house.join(), house.join(), house.join("other")), return_exceptions=True
    )
    assert [type(one) for one in answers] == [StoreError] * 3
    assert await house.statuses() == [ACTIVE, WAITING]
    assert await house.statuses("other") == [ACTIVE]


async def test_a_command_whose_caller_goes_is_dropped_or_carried_out_and_its_neighbours_are_answered(
    house: House, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = await batch.of(*(house.join(f"group-{number}") for number in range(4)))
    pause = Pause()
    monkeypatch.setattr(store, "_save", pause.before(store._save))
    await pause.reached.wait()
    tasks[0].cancel()
    waiting = [asyncio.create_task(house.join(name)) for name in ("late", "later")]
    await asyncio.sleep(0)
    waiting[0].cancel()
    pause.go_on.set()
    answers = await asyncio.gather(*tasks, *waiting, return_exceptions=True)
    assert [isinstance(one, Joined) for one in answers] == [False, True, True, True, False, True]
    names = {one.name for one in await house.groups.all()}
    assert names == {"first of all", *(f"group-{number}" for number in range(4)), "later"}


@pytest.fixture
def deadlocks(monkeypatch: pytest.MonkeyPatch) -> list[StoreError]:
    """Batches that the database has ended because they and others waited for each other."""
    found: list[StoreError] = []

    def noted(error: StoreError) -> bool:
        if isinstance(error.__cause__, asyncpg.DeadlockDetectedError):
            found.append(error)
        return is_undone(error)

    monkeypatch.setattr(batches, "is_undone", noted)
    monkeypatch.setattr(store, "_BATCH", "")  # They wait long enough for the database to notice.
    return found


async def test_batches_of_two_nodes_that_make_the_same_groups_do_not_deadlock(
    house: House, elsewhere: House, deadlocks: list[StoreError], url: str
) -> None:
    """Each comes to the group that somebody else makes after it has made some, and goes on when that is taken back."""
    for turn in range(5):
        names = [f"group-{turn}-{number:02}" for number in range(40)]
        async with making(url, names[20]) as connection:
            joining = asyncio.gather(*map(house.join, names), *map(elsewhere.join, reversed(names)))
            await Rows(house.database).until_somebody_waits(2)
            await connection.execute("ROLLBACK")
            joined = await joining
        assert len({one.group for one in joined}) == len(names)
    assert deadlocks == []


async def test_batches_of_two_nodes_over_the_same_groups_do_not_deadlock(
    house: House, elsewhere: House, deadlocks: list[StoreError]
) -> None:
    """Each program joins a group, answers, leaves; all the while groups are emptied, removed and made again."""

    async def program(at: House, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(6):
            joined = await at.join(f"group-{chance.randrange(12)}", 1)
            found = await at.rejoin(joined.consumer, "not there")
            assert found is None
            await at.tell(joined, Answered(joined.consumer, 1))
            ends = [ConnectionEnded(joined.consumer, joined.incarnation, is_proved=True)]
            await at.groups.apply({joined.group: ends, new_id(): [Evaluate()]})

    async def clean() -> None:
        while not programs.done():
            await house.age()
            await house.groups.clean()

    programs = asyncio.gather(*(program(at, seed) for seed in range(20) for at in (house, elsewhere)))
    await asyncio.gather(programs, clean())
    assert deadlocks == []
    assert await house.groups.all() == []


# Coming back, while something else is decided.


async def test_an_end_that_is_noticed_after_the_return_is_of_the_past(house: House, elsewhere: House) -> None:
    for is_proved in (False, True):
        name = f"group-{is_proved}"
        one = await house.join(name)
        back = await elsewhere.rejoin(one.consumer, name)
        assert back is not None
        assert back.incarnation == one.incarnation + 1
        await house.tell(one, ConnectionEnded(one.consumer, one.incarnation, is_proved))
        assert await house.statuses(name) == [ACTIVE]
        assert (await house.read(name)).members[0].node == "elsewhere"


@pytest.mark.parametrize("is_proved", [False, True], ids=["silent", "gone"])
async def test_a_return_and_an_end_at_once_leave_one_story(house: House, elsewhere: House, is_proved: bool) -> None:
    """Whoever was told that it is back is there, and whoever was told that it is unknown is not."""
    joined = [await house.join(f"group-{number}") for number in range(30)]
    ends = [house.tell(one, ConnectionEnded(one.consumer, one.incarnation, is_proved)) for one in joined]
    returns = [elsewhere.rejoin(one.consumer, f"group-{number}") for number, one in enumerate(joined)]
    backs = (await asyncio.gather(*ends, *returns))[len(ends) :]
    listed = {one.id: one.members for one in await house.groups.all()}
    for one, back in zip(joined, backs, strict=True):
        assert is_proved or back is not None
        assert (one.group in listed) == (back is not None)
        if isinstance(back, Joined):
            (member,) = listed[one.group]
            assert (member.connectivity, member.activity, member.incarnation) == (
                "connected",
                "active",
                back.incarnation,
            )


async def test_whoever_moves_on_while_its_old_node_is_found_gone_stays_connected(
    house: House, elsewhere: House, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of the stranded was read before it came back."""
    one = await house.join()
    await rows.nodes.end(house.node)
    pause = Pause()
    monkeypatch.setattr(house.groups, "apply", pause.before(house.groups.apply))
    strand = asyncio.create_task(house.groups.strand())
    await pause.reached.wait()
    back = await elsewhere.rejoin(one.consumer)
    pause.go_on.set()
    await strand
    assert back is not None
    assert await elsewhere.statuses() == [ACTIVE]
    assert await elsewhere.groups.strand() == 0


async def test_who_hung_on_a_node_that_is_gone_is_silent_and_nobody_else(
    house: House, elsewhere: House, rows: Rows
) -> None:
    stranded, other = await house.join(), await elsewhere.join()
    await rows.nodes.end(house.node)
    assert await elsewhere.groups.strand() == 1
    assert await elsewhere.statuses() == ["disconnected active", WAITING]
    assert await elsewhere.groups.strand() == 0
    assert [(s.consumer, s.has_node) for s in await elsewhere.groups.silent()] == [(stranded.consumer, False)]
    incarnation = stranded.incarnation + 1
    await elsewhere.tell(other, DisconnectedTimeout(str(stranded.consumer), incarnation))
    assert await elsewhere.orders() == {other.consumer: (True, 2)}


async def test_a_deadline_of_an_earlier_loss_means_nobody(house: House) -> None:
    one = await house.join()
    await house.tell(one, ConnectionEnded(one.consumer, one.incarnation, is_proved=False))
    (silent,) = await house.groups.silent()
    back = await house.rejoin(one.consumer)
    assert back is not None
    await house.tell(one, ConnectionEnded(back.consumer, back.incarnation, is_proved=False))
    await house.tell(one, DisconnectedTimeout(str(one.consumer), silent.incarnation))
    assert await house.statuses() == ["disconnected active"]


async def stepping(house: House) -> tuple[Joined, Joined]:
    """One that was told to step down, and the one that it should make room for."""
    first = await house.join(partition=1)
    await house.tell(first, Answered(first.consumer, 1))
    second = await house.join(partition=1)
    assert await house.orders() == {first.consumer: (False, 1)}
    return first, second


async def test_a_return_of_one_that_does_not_answer_changes_nothing_about_its_end(
    house: House, elsewhere: House
) -> None:
    first, second = await stepping(house)
    await house.tell(first, Mute(first.consumer, 1, first.incarnation))
    back = await elsewhere.rejoin(first.consumer)
    assert back is not None
    assert back.muted
    await house.tell(second, Drop(first.consumer, 1))
    assert await house.statuses() == [ACTIVE]
    assert await house.orders() == {second.consumer: (True, 2)}
    assert await elsewhere.rejoin(first.consumer) is None


async def test_an_order_that_went_unanswered_on_another_connection_mutes_nobody_who_has_come_back(
    house: House, elsewhere: House
) -> None:
    """Its new node echoes its beats: were it muted behind that node's back, it would be dropped while it believes."""
    first, _ = await stepping(house)
    back = await elsewhere.rejoin(first.consumer)
    assert back is not None
    await house.tell(first, Mute(first.consumer, 1, first.incarnation))
    assert await house.groups.silent() == []
    await house.tell(first, Mute(first.consumer, 1, back.incarnation))
    assert [one.muted for one in await house.groups.silent()] == [True]


async def test_an_end_that_was_due_means_nobody_who_has_answered_since(house: House) -> None:
    first, second = await stepping(house)
    await house.tell(first, Mute(first.consumer, 1, first.incarnation))
    assert [one.muted for one in await house.groups.silent()] == [True]
    await house.tell(first, Confirm(str(first.consumer), 1))
    await house.tell(first, Drop(first.consumer, 1))
    assert await house.statuses() == [WAITING, ACTIVE]
    assert await house.groups.silent() == []
    assert await house.orders() == {second.consumer: (True, 2)}


async def test_an_answer_and_an_end_that_is_due_at_once_leave_one_active(house: House, elsewhere: House) -> None:
    for _ in range(10):
        first, second = await stepping(house)
        await house.tell(first, Mute(first.consumer, 1, first.incarnation))
        await asyncio.gather(
            house.tell(first, Confirm(str(first.consumer), 1)), elsewhere.tell(first, Drop(first.consumer, 1))
        )
        assert (await house.statuses())[-1] == ACTIVE
        await house.tell(first, Unregister(str(first.consumer)), Unregister(str(second.consumer)))
        await house.age()
        await house.groups.clean()
        await house.database.execute("UPDATE headgate.registry SET group_epoch = 0")


async def test_an_answer_to_what_is_over_by_now_answers_nothing(house: House) -> None:
    """It is to step down: that it has heard to be active does not matter any more."""
    first, _ = await stepping(house)
    await house.tell(first, Mute(first.consumer, 1, first.incarnation))
    replies = await house.tell(first, Answered(first.consumer, 1))
    assert replies == [core.Refused("stale")]
    assert await house.orders() == {first.consumer: (False, 1)}
    assert [one.muted for one in await house.groups.silent()] == [True]


# An empty group is removed, its epochs are not.


async def leave(house: House, joined: Joined) -> None:
    await house.tell(joined, Unregister(str(joined.consumer)))


async def test_epochs_go_on_rising_when_an_empty_group_has_been_removed(house: House) -> None:
    epochs = []
    for name in ("group", "group", "other", "group"):
        joined = await house.join(name)
        epochs.append((await house.read(name)).epoch)
        await leave(house, joined)
        await house.age()
        await house.groups.clean()
        assert await house.database.fetchval("SELECT count(*) FROM headgate.consumer_group") == 0
    assert epochs == sorted(set(epochs))


async def test_a_group_that_has_just_become_empty_is_kept_and_one_in_use_is_not_touched(house: House) -> None:
    await leave(house, await house.join("empty"))
    used = await house.join("used")
    await house.groups.clean()
    assert await house.database.fetchval("SELECT count(*) FROM headgate.consumer_group") == 2
    await house.age()
    await house.groups.clean()
    rows = await house.database.fetch("SELECT id FROM headgate.consumer_group")
    assert [row["id"] for row in rows] == [used.group]


async def test_whoever_joins_while_its_empty_group_is_removed_makes_it_anew_with_a_higher_epoch(
    house: House, url: str
) -> None:
    await leave(house, await house.join())
    await leave(house, await house.join())
    await house.age()
    async with session(url) as connection:
        await connection.execute("BEGIN")
        await connection.execute(sql("groups/clean"), EMPTY)
        joining = asyncio.create_task(house.join())
        await Rows(house.database).until_somebody_waits()
        await connection.execute("COMMIT")
        await joining
    assert (await house.read()).epoch == 3


async def test_a_group_that_is_joined_while_it_would_be_removed_is_kept(
    house: House, elsewhere: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leave(house, await house.join())
    await house.age()
    pause = Pause()
    monkeypatch.setattr(store, "_save", pause.before(store._save))
    joining = asyncio.create_task(house.join())
    await pause.reached.wait()
    cleaning = asyncio.create_task(elsewhere.groups.clean())
    await Rows(elsewhere.database).until_somebody_waits()
    pause.go_on.set()
    await asyncio.gather(joining, cleaning)
    assert await house.statuses() == [ACTIVE]
    assert (await house.read()).epoch == 2


# Whatever is asked, the rows say what the machine says.


@dataclass
class Model:
    """A group as the machine alone would have it, and what its delivery keeps beside it."""

    group: Group
    exists: bool = False
    unanswered: set[str] = field(default_factory=set)
    muted: set[str] = field(default_factory=set)

    def step(self, command: core.Command) -> core.Reply:
        start: Group | None = self.group if self.group.consumers else None
        if start is None and isinstance(command, Register):
            start = Group(command.partition, epoch=self.group.epoch)
        if start is not None:  # Rows know how often each consumer has lost touch, and not how often all have.
            start = replace(start, incarnation=max((c.incarnation for c in start.consumers), default=0))
        step = core.step(start, command)
        for effect in step.effects:
            if isinstance(effect, TellActive | TellStepDown):
                self.unanswered.add(effect.consumer)
        if isinstance(command, Confirm) and step.reply == core.Ok():
            self.answered(command.consumer)
        self.group = step.group or Group(self.group.partition, epoch=self.group.epoch, ignored=self.group.ignored)
        ids = {c.id for c in self.group.consumers}
        self.unanswered &= ids
        self.muted &= ids
        return step.reply

    def answered(self, consumer: str) -> None:
        self.unanswered.discard(consumer)
        self.muted.discard(consumer)

    def find(self, consumer: UUID) -> core.Consumer | None:
        return next((c for c in self.group.consumers if c.id == str(consumer)), None)

    def request(self, request: Request) -> core.Reply:
        """What the request means, told once more and apart from the store."""
        match request:
            case Answered(consumer=id, epoch=epoch):
                found = self.find(id)
                if found is None or not found.is_holder or found.epoch != epoch:
                    return self.step(Confirm(str(id), -1))
                if found.activity == "deactivating":
                    return core.Refused("stale")
                self.answered(found.id)
                return core.Ok()
            case Mute(consumer=id, epoch=epoch, incarnation=incarnation):
                found = self.find(id)
                if found is not None and (found.epoch, found.incarnation) == (epoch, incarnation):
                    self.muted |= {found.id} & self.unanswered
                return core.Ok()
            case Drop(consumer=id, epoch=epoch):
                found = self.find(id)
                if found is not None and found.epoch == epoch and found.id in self.muted:
                    return self.step(ConnectionDown(found.id))
                return core.Ok()
            case ConnectionEnded(consumer=id, incarnation=incarnation, is_proved=is_proved):
                found = self.find(id)
                if found is None or found.incarnation != incarnation:
                    return core.Ok()
                return self.step(ConnectionDown(found.id) if is_proved else ConnectionDisconnected(found.id))
            case Bury(consumer=id, incarnation=incarnation):
                found = self.find(id)
                if found is None or (found.connectivity, found.incarnation) != ("forgotten", incarnation):
                    return core.Ok()
                return self.step(Purge(frozenset({found.id})))
            case _:
                return self.step(request)


class Fold:
    """Random requests, told to the store and to the machine."""

    def __init__(self, house: House, seed: int) -> None:
        self.house = house
        self.random = random.Random(seed)
        self.models = {"simple": Model(Group()), "partition": Model(Group(1))}
        self.rows: dict[str, UUID] = {}
        self.known: dict[str, list[UUID]] = {"simple": [], "partition": []}  # Whoever ever joined.
        self.floor = 0

    async def run(self, steps: int) -> None:
        for number in range(steps):
            what = self.random.choices([self.join, self.rejoin, self.apply, self.clean, self.refuse], [3, 3, 12, 1, 1])[
                0
            ]
            await what()
            await self.compare(f"after step {number}, {what.__name__}")

    async def join(self) -> None:
        name = self.random.choice(list(self.models))
        model = self.models[name]
        if len(model.group.consumers) >= 5:
            return
        if not model.group.consumers:
            model.group = replace(model.group, epoch=max(model.group.epoch, self.floor))
        partition = 1 if name == "partition" else None
        joined = await self.house.join(name, partition)
        self.rows[name] = joined.group
        self.known[name].append(joined.consumer)
        model.exists = True
        assert isinstance(
            model.step(Register(str(joined.consumer), str(joined.consumer), partition, "somebody")), core.Ok
        )

    async def refuse(self) -> None:
        """Another partition than the group's."""
        if self.models["partition"].group.consumers:
            refused = await self.house.try_to_join("partition", 2)
            assert refused == core.Refused("partition_index_conflict")

    async def rejoin(self) -> None:
        name = self.random.choice(list(self.models))
        if self.known[name]:
            consumer, model = self.random.choice(self.known[name]), self.models[name]
            back = await self.house.rejoin(consumer, name)
            assert (back is None) == (model.find(consumer) is None)
            if back is not None:
                model.step(ConnectionDisconnected(str(consumer)))
                model.step(ConnectionReconnected(str(consumer)))
                assert back.muted == (str(consumer) in model.muted)

    async def apply(self) -> None:
        """A few requests for one of the groups, or for both."""
        requests: dict[UUID, list[Request]] = {}
        for name in self.random.sample(list(self.rows), self.random.randint(0, len(self.rows))):
            requests[self.rows[name]] = [self.request(name) for _ in range(self.random.randint(1, 3))]
        outcomes = await self.house.groups.apply(requests)
        for name, model in self.models.items():
            group = self.rows.get(name)
            if group in requests and model.exists:
                expected = [model.request(one) for one in requests[group]]
                assert list(outcomes[group].replies) == expected, requests[group]

    def request(self, name: str) -> Request:
        group = self.models[name].group
        members = [UUID(c.id) for c in group.consumers]
        consumer = self.random.choice([*members, *members, *members, *self.known[name], new_id()])
        id, found = str(consumer), self.models[name].find(consumer)
        epoch = self.random.choice([found.epoch, found.epoch, found.epoch, group.epoch, 7]) if found else 1
        incarnation = self.random.choice([found.incarnation, found.incarnation, 0]) if found else 0
        kinds: list[Request] = [
            Confirm(id, epoch),
            Confirm(id, epoch),
            Answered(consumer, epoch),
            Answered(consumer, epoch),
            ConnectionEnded(consumer, incarnation, is_proved=False),
            ConnectionEnded(consumer, incarnation, is_proved=True),
            Mute(consumer, epoch, incarnation),
            Mute(consumer, epoch, incarnation),
            Drop(consumer, epoch),
            DisconnectedTimeout(id, incarnation),
            Bury(consumer, incarnation),
            Unregister(id),
        ]
        return self.random.choices([*kinds, Evaluate()], [1] * len(kinds) + [0.2])[0]

    async def clean(self) -> None:
        await self.house.age()
        await self.house.groups.clean()
        for name, model in self.models.items():
            if not model.group.consumers and name in self.rows:
                del self.rows[name]
                self.floor = max(self.floor, model.group.epoch)
                model.group, model.exists = Group(model.group.partition), False

    async def compare(self, when: str) -> None:
        listed = {one.name: one for one in await self.house.groups.all("invoices")}
        orders = await self.house.orders()
        for name, model in self.models.items():
            assert (name in listed) == bool(model.group.consumers), when
            if not model.group.consumers:
                continue
            found = listed[name]
            assert replace(found.group, incarnation=0) == replace(model.group, incarnation=0), when
            active = model.group.active
            assert found.granted_to == (None if active is None else UUID(active.id)), when
            assert {str(m.id) for m in found.members if m.muted} == model.muted, when
            for consumer in model.group.consumers:
                is_ordered = consumer.connectivity == "connected" and consumer.activity != "waiting"
                is_open = is_ordered and consumer.id in model.unanswered
                order = (consumer.activity == "active", consumer.epoch) if is_open else None
                assert orders.get(UUID(consumer.id)) == order, when


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_asked_the_rows_say_what_the_machine_says(house: House, seed: int) -> None:
    await Fold(house, seed).run(150)


async def test_whatever_many_ask_at_once_one_at_most_is_active_and_epochs_rise(house: House, elsewhere: House) -> None:
    """Nobody knows the order of what is asked here: this is what holds in any."""

    async def ask(at: House, seed: int) -> None:
        fold = Fold(at, seed)
        for _ in range(25):
            joined = await at.join("partition", 1)
            fold.known["partition"].append(joined.consumer)
            for found in await at.groups.all("invoices"):
                fold.models["partition"].group = found.group
            await at.groups.apply({joined.group: [fold.request("partition") for _ in range(3)]})
            await at.rejoin(fold.random.choice(fold.known["partition"]), "partition")

    async def look() -> int:
        looks = seen = 0
        while not asked.done():
            for found in await house.groups.all("invoices"):
                group = found.group
                active = [c for c in group.consumers if c.is_holder and c.activity == "active"]
                assert [(UUID(c.id), c.epoch) for c in active] in ([], [(found.granted_to, group.epoch)])
                assert group.epoch >= seen
                looks, seen = looks + 1, group.epoch
        return looks

    asked = asyncio.gather(*(ask(at, seed) for seed, at in enumerate((house, elsewhere, house, elsewhere))))
    looking = asyncio.create_task(look())
    await asked
    assert await looking > 1


async def test_after_an_era_has_begun_nobody_is_let_in_for_a_lease(database: Database) -> None:
    """Who was active in the time that was lost may still believe it, and this registry does not know who it was."""
    groups = Groups(database)
    assert not await groups.is_settling()
    await database.execute("UPDATE headgate.registry SET era_began_at = now() - interval '9 s'")
    assert await groups.is_settling()
    await database.execute("UPDATE headgate.registry SET era_began_at = now() - interval '11 s'")
    assert not await groups.is_settling()
    await groups.join("orders", "workers", None, "me", new_id(), 30.0)
    assert await groups.is_settling()
