"""The groups door of real nodes, spoken to by hand: turns, orders until they are answered, and never two believers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from headgate.core.groups import delivery
from headgate.errors import Refused, StoreError
from headgate.runtime.groups import listener as runtime
from headgate.store import database
from headgate.store.groups import Groups, HeldUp
from headgate.web.api import group_views
from tests.web.pushing import LONG_S, House, house, numbers
from tests.web_node import Databases

pytestmark = pytest.mark.asyncio(loop_scope="module")

Frame = list[Any]


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> str:
    return databases.make()


@asynccontextmanager
async def hasty(url: str, folder: Any) -> AsyncIterator[House]:
    """A node that looks often."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runtime, "LOOK_S", 0.05)
        patched.setattr(delivery, "RESEND_S", 0.2)
        async with house(url, folder) as found:
            yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with hasty(database_url, tmp_path_factory.mktemp("here") / "home") as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def there(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """Another node on the same database."""
    async with hasty(database_url, tmp_path_factory.mktemp("there") / "home") as found:
        yield found


class Member:
    """One consumer, on a connection of its own."""

    def __init__(self, at: House, socket: ClientConnection) -> None:
        self.at = at
        self.socket = socket
        self.id = ""
        self.incarnation = -1
        self.lease_s = 0.0
        self.beats = 0

    async def say(self, *frame: Any) -> None:
        await self.socket.send(msgspec.msgpack.encode(frame))

    async def hear(self) -> Frame:
        async with asyncio.timeout(LONG_S):
            data = await self.socket.recv()
        assert isinstance(data, bytes)
        assert self.at.token.encode() not in data
        frame: Frame = msgspec.msgpack.decode(data)
        return frame

    async def expect(self, kind: str, *others: str) -> Frame:
        while (frame := await self.hear())[0] != kind:
            assert frame[0] in others, f"{frame} came in place of {kind}"
        return frame[1:]

    async def join(
        self,
        group: str,
        *,
        partition: int | None = None,
        consumer: str | None = None,
        lease_s: float | None = None,
        stream: str = "invoices",
        fenced: bool | None = None,
    ) -> Member:
        await self.say("join", 1, self.at.token, stream, group, partition, "somebody", consumer, lease_s, fenced)
        self.id, self.incarnation, self.lease_s, _ = await self.expect("joined")
        return self

    async def active(self, *, answers: bool = True) -> int:
        """Until it is told to be active. Returns the epoch."""
        consumer, incarnation, epoch, _ = await self.expect("active", "beat", "step_down")
        assert (consumer, incarnation) == (self.id, self.incarnation)
        if answers:
            await self.confirm(epoch, "active")
        return int(epoch)

    async def told_to_step_down(self, epoch: int) -> None:
        assert await self.expect("step_down", "beat", "active") == [self.id, self.incarnation, epoch]

    async def confirm(self, epoch: int, what: str = "stepped_down") -> None:
        await self.say("confirm", self.id, epoch, what)

    async def beat(self) -> None:
        """Send one and wait for its echo."""
        self.beats += 1
        await self.say("beat", self.beats)
        while await self.expect("beat", "active", "step_down") != [self.beats]:
            pass

    async def fails(self, *codes: str) -> str:
        """Until the error frame; then the connection ends."""
        last: Frame = []
        with suppress(ConnectionClosed):
            while True:
                last = await self.hear()
        assert last[0] == "error", last
        assert last[1] in codes, last
        return str(last[2])

    async def hears_nothing(self, for_s: float = 0.4) -> None:
        """Nothing but beats."""
        with suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await self.expect("nothing", "beat")

    def cut(self) -> None:
        """Be gone without a word."""
        self.socket.transport.abort()

    async def end(self, how: str) -> None:
        """End the connection: as a program does that closes it, as the kernel does for one that died, or by a reset."""
        if how == "close":
            await self.socket.close()
        elif how == "reset":
            underneath = self.socket.transport.get_extra_info("socket")
            underneath.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self.cut()


@asynccontextmanager
async def connected(at: House) -> AsyncIterator[Member]:
    address = at.url.replace("http://", "ws://") + "/groups"
    async with connect(address, compression=None, ping_interval=None, close_timeout=1) as socket:
        yield Member(at, socket)


@asynccontextmanager
async def members(*houses: House, group: str, **join: Any) -> AsyncIterator[list[Member]]:
    """Consumers of one group, in this order."""
    found: list[Member] = []
    contexts = [connected(at) for at in houses]
    try:
        for context in contexts:
            found.append(await (await context.__aenter__()).join(group, **join))
        yield found
    finally:
        for context in contexts[: len(found)]:
            await context.__aexit__(None, None, None)


def a_group() -> str:
    return f"group-{next(numbers)}"


async def statuses(at: House, group: str) -> list[tuple[str, str]]:
    """Connectivity and activity of each consumer, in order."""
    found = await Groups(at.node.database).all("invoices", group)
    return [(m.connectivity, m.activity) for m in found[0].members] if found else []


async def until(at: House, group: str, *wanted: tuple[str, str]) -> None:
    await at.until(lambda: statuses(at, group), lambda found: found == list(wanted))


ACTIVE, WAITING, STEPPING = ("connected", "active"), ("connected", "waiting"), ("connected", "deactivating")


# Turns.


async def test_the_first_is_active_and_the_next_follows_when_it_leaves(here: House, there: House) -> None:
    async with members(here, there, here, group=(group := a_group())) as (first, second, third):
        epoch = await first.active()
        await second.hears_nothing()
        await first.say("leave", first.id)
        assert await second.active() == epoch + 1
        await second.say("leave", second.id)
        assert await third.active() == epoch + 2
        await until(here, group, ACTIVE)


async def test_partitions_are_shared_by_the_order_of_joining(here: House, there: House) -> None:
    group = a_group()
    async with connected(here) as first, connected(there) as second:
        await first.join(group, partition=1)
        consumer, incarnation, epoch, partition = await first.expect("active")
        assert (consumer, incarnation, partition) == (first.id, 0, 1)
        await first.confirm(epoch, "active")
        await second.join(group, partition=1)
        await first.told_to_step_down(epoch)
        await second.hears_nothing()
        await first.confirm(epoch)
        assert await second.active() == epoch + 1
        await second.say("leave", second.id)
        assert await first.active() == epoch + 2


async def test_another_partition_is_refused_and_changes_nothing(here: House) -> None:
    group = a_group()
    async with connected(here) as first, connected(here) as second:
        await first.join(group, partition=1)
        await first.active()
        await second.say("join", 1, here.token, "invoices", group, 2, None, None, None)
        await second.fails("partition_index_conflict")
        assert await statuses(here, group) == [ACTIVE]


async def test_an_epoch_never_falls_even_when_the_group_was_empty_and_removed(
    here: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, epochs = a_group(), []
    for removed in (False, True, False):
        async with connected(here) as one:
            await one.join(group)
            epochs.append(await one.active())
            await one.say("leave", one.id)
            await until(here, group)
        if removed:
            await here.sql(
                "UPDATE headgate.consumer_group SET changed_at = now() - interval '1 day' WHERE name = $1", group
            )
            await here.node.group_rows.clean()
            assert not await here.sql("SELECT FROM headgate.consumer_group WHERE name = $1", group)
    assert epochs == sorted(set(epochs))


async def test_a_stale_confirmation_is_ignored_and_counted(here: House) -> None:
    async with members(here, here, group=(group := a_group()), partition=1) as (first, second):
        epoch = await first.active()
        await first.told_to_step_down(epoch)
        for wrong in (epoch + 1, epoch - 1):
            await first.confirm(wrong)
        await second.confirm(epoch)
        await first.confirm(epoch + 7, "active")
        found = await here.until(
            lambda: Groups(here.node.database).all("invoices", group), lambda found: found[0].ignored == 4
        )
        assert [m.activity for m in found[0].members] == ["deactivating", "waiting"]
        await first.confirm(epoch)
        assert await second.active() == epoch + 1


async def test_an_order_is_sent_until_it_is_answered_and_not_again(here: House) -> None:
    async with members(here, group=a_group()) as (one,):
        epochs = [await one.active(answers=False) for _ in range(3)]
        assert len(set(epochs)) == 1
        await one.confirm(epochs[0], "active")
        await one.beat()
        await one.hears_nothing()


# Fenced groups.


FOR_EVER_S = 3600.0  # A lease that nobody waits for.


@pytest.mark.parametrize("how", ["close", "fin", "reset"])
async def test_in_a_fenced_group_a_program_that_ends_its_connection_is_gone_at_once(
    here: House, there: House, how: str
) -> None:
    join = {"group": (group := a_group()), "lease_s": FOR_EVER_S, "fenced": True}
    async with members(here, there, **join) as (first, second):
        epoch = await first.active()
        await first.end(how)
        assert await second.active() == epoch + 1
        assert await statuses(here, group) == [ACTIVE]
        async with connected(here) as back:
            await back.join(group, consumer=first.id, fenced=True)
            assert back.id != first.id


@pytest.mark.parametrize("how", ["close", "fin", "reset"])
@pytest.mark.parametrize("fenced", [None, False])
async def test_in_any_other_group_it_is_waited_for(here: House, how: str, fenced: bool | None) -> None:
    join = {"group": (group := a_group()), "lease_s": FOR_EVER_S, "fenced": fenced}
    async with members(here, here, **join) as (first, second):
        await first.active()
        await first.end(how)
        await until(here, group, ("disconnected", "active"), WAITING)
        await second.hears_nothing()


async def test_what_the_node_closes_is_no_end_of_a_program_even_in_a_fenced_group(here: House) -> None:
    """It may be at work, and knows of nothing; that it answers the node's goodbye changes nothing."""
    join = {"group": (group := a_group()), "lease_s": FOR_EVER_S, "fenced": True}
    async with members(here, here, **join) as (first, second):
        epoch = await first.active()
        await first.say("nonsense")
        await first.fails("unknown_frame")
        await until(here, group, ("disconnected", "active"), WAITING)
        await second.hears_nothing()
        async with connected(here) as back:
            await back.join(group, consumer=first.id, fenced=True)
            assert back.id == first.id
            await back.end("fin")
            assert await second.active() == epoch + 1


async def test_all_members_of_a_group_are_fenced_or_none_is(here: House) -> None:
    for fenced in (True, False):
        async with members(here, group=(group := a_group()), fenced=fenced) as (first,), connected(here) as second:
            await first.active()
            await second.say("join", 1, here.token, "invoices", group, None, None, None, None, not fenced)
            await second.fails("fenced_conflict")
            assert await statuses(here, group) == [ACTIVE]


async def test_people_see_that_a_group_is_fenced(here: House) -> None:
    async with members(here, group=(group := a_group()), fenced=True) as (first,):
        await first.active()
        found = await group_views.one_group(here.node, "invoices", group)
        assert found.group.fenced
        assert any(line.startswith("It is fenced") for line in found.lines)


# What bad input gets.


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([["beat", 1]], "unexpected"),
        ([["hello", 1, "x", "y"]], "unknown_frame"),
        ([["join", 2, "TOKEN", "s", "g", None, None, None, None]], "version"),
        ([["join", 1, "wrong", "s", "g", None, None, None, None]], "unauthorized"),
        ([["join", 1, "TOKEN", "orders:0", "workers", None, None, None, None]], "forbidden"),
        ([["join", 1, "TOKEN", "s", "nul \0", None, None, None, None]], "bad_frame"),
        ([["join", 1, "TOKEN", "", "g", None, None, None, None]], "bad_frame"),
        ([["join", 1, "TOKEN", "s", "g", -1, None, None, None]], "bad_frame"),
        ([["join", 1, "TOKEN", "s", "g", None, None, None, 0.5]], "bad_frame"),
        ([["join", 1, "TOKEN", "s", "g", None, None, None, None, "yes"]], "bad_frame"),
        ([["join", 1, "TOKEN", "s", "g", None, None, None, None, None, "more"]], "bad_frame"),
        ([["join", 1, "TOKEN", "s", "GROUP", None, None, None, None], ["confirm", "who", 1, "active"]], "not_joined"),
        ([["join", 1, "TOKEN", "s", "GROUP", None, None, None, None], ["leave", "who"]], "not_joined"),
        ([["join", 1, "TOKEN", "s", "GROUP", None, None, None, None], ["confirm", "w", 1, "maybe"]], "bad_frame"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_a_wrong_frame_ends_its_own_connection_with_a_code(here: House, frames: list[Frame], code: str) -> None:
    async with members(here, group=a_group()) as (innocent,), connected(here) as other:
        epoch = await innocent.active()
        words = {"TOKEN": here.token, "GROUP": a_group()}
        for frame in frames:
            await other.say(*(words.get(field, field) if isinstance(field, str) else field for field in frame))
        with suppress(ConnectionClosed):
            await other.fails(code)
        await innocent.beat()
        await innocent.confirm(epoch, "active")


# Losing touch.


async def test_a_cut_connection_is_not_a_death_and_whoever_returns_goes_on(here: House, there: House) -> None:
    """One way to two believers: taking the end of a socket for the end of a program."""
    async with members(here, here, group=(group := a_group())) as (first, second):
        epoch = await first.active()
        first.cut()
        await until(here, group, ("disconnected", "active"), WAITING)
        await second.hears_nothing()
        async with connected(there) as back:
            await back.join(group, consumer=first.id)
            assert (back.id, back.incarnation) == (first.id, first.incarnation + 1)
            await until(here, group, ACTIVE, WAITING)
            await back.beat()
            await second.hears_nothing()
            await back.say("leave", back.id)
            assert await second.active() == epoch + 1


async def test_whoever_stays_away_is_forgotten_after_a_lease_and_steps_down_when_it_returns(
    here: House, there: House
) -> None:
    async with members(here, here, group=(group := a_group()), lease_s=2.0) as (first, second):
        assert first.lease_s == second.lease_s == 2.0
        epoch = await first.active()
        first.cut()
        beating = asyncio.create_task(_keep_beating(second))
        await until(here, group, ("forgotten", "active"), ACTIVE)
        beating.cancel()
        assert await second.active() == epoch + 1
        async with connected(there) as back:
            await back.join(group, consumer=first.id)
            await back.told_to_step_down(epoch)
            assert await statuses(here, group) == [STEPPING, ACTIVE]
            await back.confirm(epoch)
            await until(here, group, WAITING, ACTIVE)


async def _keep_beating(member: Member) -> None:
    while True:
        member.beats += 1
        await member.say("beat", member.beats)
        await asyncio.sleep(0.3)


async def test_a_program_without_a_beat_for_a_lease_is_cut_off_before_another_is_told(here: House) -> None:
    """Another way: a program that is stopped, and goes on later with what it has buffered."""
    async with members(here, here, group=(group := a_group()), lease_s=2.0) as (stopped, second):
        await stopped.active()
        beating = asyncio.create_task(_keep_beating(second))
        await stopped.fails("silent")
        await second.active()
        beating.cancel()
        assert (await statuses(here, group))[-1] == ACTIVE


async def test_an_unanswered_order_ends_the_echo_everywhere_and_a_return_does_not_extend_that(
    here: House, there: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another way: a program that lives, beats, returns, and never steps down."""
    monkeypatch.setattr(delivery, "ANSWER_S", 0.3)
    async with members(here, here, group=(group := a_group()), partition=1, lease_s=2.0) as (deaf, second):
        epoch = await deaf.active()
        await deaf.told_to_step_down(epoch)
        await deaf.fails("unanswered")
        async with connected(there) as back:
            await back.join(group, partition=1, consumer=deaf.id)
            await back.say("beat", 1)
            assert await back.expect("error", "step_down") != [], "and no beat before it"
            beating = asyncio.create_task(_keep_beating(second))
            assert await second.active() == epoch + 1
            beating.cancel()
            assert await statuses(here, group) == [ACTIVE]


async def test_who_answers_late_is_heard_and_echoed_again(
    here: House, there: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "ANSWER_S", 0.3)
    async with members(here, here, group=(group := a_group()), partition=1) as (slow, second):
        epoch = await slow.active()
        await slow.told_to_step_down(epoch)
        await slow.fails("unanswered")
        async with connected(there) as back:
            await back.join(group, partition=1, consumer=slow.id)
            await back.told_to_step_down(epoch)
            await back.confirm(epoch)
            assert await second.active() == epoch + 1
            await back.beat()


async def test_a_node_without_trust_echoes_nothing(here: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async with members(here, group=a_group()) as (one,):
        await one.active()
        await one.beat()
        monkeypatch.setattr(here.node.groups, "_trust_left_s", lambda: 0.0)
        await one.say("beat", 99)
        await one.hears_nothing(0.2)
        monkeypatch.undo()
        await one.beat()


async def test_a_node_that_is_gone_leaves_its_consumers_silent_not_dead(
    here: House, database_url: str, tmp_path: Any
) -> None:
    """Another way: taking the death of a node for the death of the programs that hung on it."""
    group = a_group()
    async with connected(here) as second:
        async with hasty(database_url, tmp_path / "dying") as dying, connected(dying) as first:
            await first.join(group)
            epoch = await first.active()
            await second.join(group)
            await dying.sql("DELETE FROM headgate.node WHERE id = $1", dying.node.incarnation)
            await until(here, group, ("disconnected", "active"), WAITING)
            await second.hears_nothing()
        async with connected(here) as back:
            await back.join(group, consumer=first.id)
            await until(here, group, ACTIVE, WAITING)
            await back.say("leave", back.id)
            assert await second.active() == epoch + 1


async def test_an_operator_is_asked_before_one_is_dropped_that_may_still_believe(here: House) -> None:
    """The last way: somebody in a hurry."""
    async with members(here, here, group=(group := a_group()), lease_s=60.0) as (first, second):
        await first.active()
        first.cut()
        await until(here, group, ("disconnected", "active"), WAITING)
        with pytest.raises(Refused, match=r"somebody for up to [56][0-9] s more"):
            await here.node.groups.evaluate("invoices", group, yes=False)
        await here.node.groups.evaluate("invoices", group, yes=True)
        await second.active()
        await until(here, group, ACTIVE)


async def test_whoever_is_unknown_by_now_joins_as_somebody_new(here: House) -> None:
    async with connected(here) as one:
        gone = "00000000-0000-0000-0000-000000000000"
        await one.join(a_group(), consumer=gone)
        assert one.id != gone
        await one.active()


async def test_a_consumer_of_another_group_is_somebody_new_here(here: House) -> None:
    async with members(here, group=(group := a_group())) as (one,), connected(here) as other:
        await one.active()
        await other.join(a_group(), consumer=one.id)
        assert other.id != one.id
        await other.active()
        await one.beat()
        assert await statuses(here, group) == [ACTIVE]


async def test_a_node_that_begins_anew_echoes_to_nobody_who_hung_on_it_before(
    database_url: str, tmp_path: Any, here: House
) -> None:
    """What others count from is the end of its incarnation: an echo after that would outlast it."""
    group = a_group()
    async with hasty(database_url, tmp_path / "zombie") as zombie, connected(zombie) as one, connected(here) as second:
        await one.join(group)
        await one.active()
        await second.join(group)
        await zombie.sql("DELETE FROM headgate.node WHERE id = $1", zombie.node.incarnation)
        await one.fails("not_ready", "replaced")
        await until(here, group, ("disconnected", "active"), WAITING)


async def test_a_connection_whose_consumer_is_elsewhere_by_now_is_ended(here: House, there: House) -> None:
    async with members(here, group=(group := a_group())) as (one,), connected(there) as twin:
        await one.active()
        await twin.join(group, consumer=one.id)
        await one.fails("replaced")
        await twin.beat()
        assert await statuses(here, group) == [ACTIVE]


async def test_a_consumer_that_returns_before_its_loss_was_noticed_replaces_its_old_connection(
    here: House, there: House
) -> None:
    for at in (here, there):
        async with members(here, group=(group := a_group())) as (one,), connected(at) as again:
            await one.active()
            await again.join(group, consumer=one.id)
            assert again.incarnation == one.incarnation + 1
            if at is here:
                await one.fails("replaced")
            else:
                one.cut()
            await again.beat()
            assert await statuses(here, group) == [ACTIVE]


async def test_the_database_may_be_away_for_a_while(here: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends meanwhile is written down later, and an answer that was not heard is asked for again."""
    real = here.node.group_rows.apply
    away = True

    async def apply(requests: Any) -> Any:
        if away:
            raise StoreError("away")
        return await real(requests)

    monkeypatch.setattr(runtime, "RETRY_S", 0.05)
    async with members(here, here, group=(group := a_group())) as (first, second):
        epoch = await first.active(answers=False)
        monkeypatch.setattr(here.node.group_rows, "apply", apply)
        await first.confirm(epoch, "active")
        assert await first.active() == epoch
        second.cut()
        await asyncio.sleep(0.2)
        assert (await statuses(here, group))[1] == WAITING
        away = False
        await until(here, group, ACTIVE, ("disconnected", "waiting"))


async def test_the_end_of_a_connection_is_written_down_although_another_group_stays_locked(
    here: House, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one's is tried again until its group is free."""
    real, held_up = here.node.group_rows.apply, asyncio.Event()

    async def apply(requests: Any) -> Any:
        try:
            return await real(requests)
        except HeldUp:
            held_up.set()
            raise

    monkeypatch.setattr(here.node.group_rows, "apply", apply)
    monkeypatch.setattr(database, "_BEGIN", f"{database._BEGIN}; SET LOCAL lock_timeout = 100")
    monkeypatch.setattr(runtime, "RETRY_S", 0.05)
    locked, free = a_group(), a_group()
    lost = ("disconnected", "active")
    async with members(here, here, group=locked) as (first, _), members(here, here, group=free) as (second, _):
        await first.active()
        await second.active()
        await until(here, locked, ACTIVE, WAITING)
        connection = await database.connect(database_url)
        try:
            await connection.execute("BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0")
            await connection.execute("SELECT FROM headgate.consumer_group WHERE name = $1 FOR UPDATE", locked)
            first.cut()
            second.cut()
            await until(here, free, lost, WAITING)
            async with asyncio.timeout(LONG_S):
                await held_up.wait()
            assert await statuses(here, locked) == [ACTIVE, WAITING]
        finally:
            await connection.close()
        await until(here, locked, lost, WAITING)
