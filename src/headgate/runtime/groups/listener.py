"""The group listener: the programs that are connected to this node, and the deadlines of those that are nowhere.

What a program says becomes a request to its group (`core.groups.requests`), which is carried out on the group's rows
(`store.groups`). Three loops do the rest, and none of them keeps anything that the rows do not say: `_deliver` sends
every order that a consumer here has not answered, again and again; `_observe` times the deadlines of the consumers that
are out of touch, on whichever node they were; `_write_ends` writes down which connections are gone, however long the
database is away. What is due, and what proves that a consumer believes nothing any more, is decided in
`core.groups.delivery` and `core.groups.deadlines`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from uuid import UUID

import structlog

from headgate.clock import boot_s
from headgate.core.groups import deadlines, delivery
from headgate.core.groups.delivery import LEASE_S, Link, Order, OrderKey
from headgate.core.groups.machine import Confirm, Ok, Unregister
from headgate.core.groups.machine import Refused as GroupRefused
from headgate.core.groups.requests import MOST_CONSUMERS, Answered, ConnectionEnded, Joined, Mute, Outcome, Request
from headgate.core.groups.roster import name_of
from headgate.errors import NotFound, Refused, StoreError
from headgate.ids import as_id
from headgate.runtime.forever import forever
from headgate.store.groups import ConsumerRow, GroupRow, Groups, HeldUp
from headgate.store.wake import Waker

LOOK_S = 1.0
RETRY_S = 1.0
MOST_KEPT = 10_000  # Figures, if no one reads the metrics.

_REFUSED = {
    "partition_index_conflict": "the group has another partition",
    "fenced_conflict": "the consumers of a group are all fenced, or none of them is",
    "too_many": f"the group has {MOST_CONSUMERS:,} consumers, and no more can join",
}

log = structlog.get_logger()


class Peer(Protocol):
    """What a program is sent."""

    @property
    def has_more(self) -> bool:
        """Whether frames of it have arrived and were not read yet."""

    def active(self, consumer: UUID, incarnation: int, epoch: int, partition: int | None) -> None:
        """It is active."""

    def step_down(self, consumer: UUID, incarnation: int, epoch: int) -> None:
        """It should finish, and confirm."""

    def fail(self, code: str, text: str) -> None:
        """Its connection is over, and why."""


@dataclass(eq=False, slots=True)
class Session:
    """One connection: whom to send to, and what is known of its consumers."""

    peer: Peer
    link: Link = field(default_factory=Link)

    @property
    def consumers(self) -> Mapping[UUID, Joined]:
        """The consumers that are on this connection."""
        return self.link.consumers

    @property
    def lease_s(self) -> float:
        """The longest of its consumers."""
        return self.link.lease_s


class GroupListener:
    """All consumers that are connected to this node, and the deadlines of all that are connected nowhere."""

    def __init__(
        self, groups: Groups, waker: Waker, node: Callable[[], UUID], trust_left_s: Callable[[], float]
    ) -> None:
        self._groups = groups
        self._waker = waker
        self._node = node
        self._trust_left_s = trust_left_s
        self._is_settled = False  # No era has just begun.
        self._look = asyncio.Event()
        self._over = asyncio.Event()
        self._sessions: dict[UUID, Session] = {}  # By consumer.
        self._sent: dict[OrderKey, tuple[float, float]] = {}  # When an order was first and last sent.
        self._seen: dict[deadlines.Key, float] = {}
        self._adrift: dict[ConnectionEnded, float] = {}  # Consumers that are here in the rows only, and since when.
        self._ends: dict[UUID, list[ConnectionEnded]] = {}  # By group: what is not written down yet.
        self.handed_over_s: deque[float] = deque(maxlen=MOST_KEPT)  # For metrics: taken from here.

    # What programs do.

    async def join(
        self,
        session: Session,
        stream: str,
        name: str,
        partition: int | None,
        label: str,
        consumer: str | None,
        lease_s: float | None,
        *,
        is_fenced: bool = False,
    ) -> Joined:
        """A program joins a group, or comes back to it."""
        await self._wait_for_the_lost()
        id = as_id(consumer) if consumer else None
        node, joined = self._node(), None
        if id is not None:
            joined = await self._groups.rejoin(id, node, stream, name, is_fenced=is_fenced)
        if joined is None:
            place = stream, name, partition, label, node
            found = await self._groups.join(*place, lease_s or LEASE_S, is_fenced=is_fenced)
            if isinstance(found, GroupRefused):
                raise Refused(_REFUSED.get(found.reason, "the group cannot be joined"), code=found.reason)
            joined = found
        if session.link.is_over or node != self._node():  # Its connection, or this incarnation, ended meanwhile.
            self._write_later([(joined.group, ConnectionEnded(joined.consumer, joined.incarnation, is_proved=False))])
            return joined
        if (older := self._sessions.get(joined.consumer)) is not None and older is not session:
            older.link = delivery.without(older.link, joined.consumer)
            older.peer.fail("replaced", "this consumer has come back on another connection")
        session.link = delivery.joined(session.link, joined, boot_s())
        self._sessions[joined.consumer] = session
        self._changed()
        return joined

    async def _wait_for_the_lost(self) -> None:
        """After a registry went back in time nobody is let in for a lease: it may not know who is active."""
        if not self._is_settled:
            if await self._groups.is_settling():
                raise StoreError("an era has just begun: those who were active before may still believe it")
            self._is_settled = True

    async def confirm(self, session: Session, consumer: UUID, epoch: int, *, is_active: bool) -> None:
        """A program answers an order. While the database is away the answer is lost, and the order is sent again."""
        group = session.consumers[consumer].group
        request = Answered(consumer, epoch) if is_active else Confirm(str(consumer), epoch)
        with contextlib.suppress(StoreError):
            outcomes = await self._apply({group: [request]})
            if all(isinstance(reply, Ok) for one in outcomes.values() for reply in one.replies):
                self._sent.pop((consumer, is_active, epoch), None)
                session.link = replace(session.link, muted=session.link.muted - {consumer})

    async def leave(self, session: Session, consumer: UUID) -> None:
        """A program says that it does nothing more."""
        joined = session.consumers[consumer]
        session.link = delivery.without(session.link, consumer)
        self._sessions.pop(consumer, None)
        try:
            await self._apply({joined.group: [Unregister(str(consumer))]})
        except StoreError:
            self._write_later([(joined.group, ConnectionEnded(consumer, joined.incarnation, is_proved=True))])

    def may_echo(self, session: Session) -> bool:
        """Whether a beat may be echoed now; if so, it counts as echoed."""
        if not session.link.may_echo(self._trust_left_s()):
            return False
        session.link = replace(session.link, echoed_at_s=boot_s())
        return True

    def closed(self, session: Session, *, is_own: bool = False) -> None:
        """A connection is gone. `is_own`: the program has ended it, by closing it or by dying."""
        for consumer in session.consumers:
            if self._sessions.get(consumer) is session:
                del self._sessions[consumer]
        session.link, ends = delivery.ended(session.link, boot_s(), is_own=is_own)
        self._write_later(ends)

    def lose_all(self) -> None:
        """This incarnation has ended: other nodes time its consumers, so no beat of theirs may be echoed any more."""
        self._is_settled = False
        for session in set(self._sessions.values()):
            session.peer.fail("not_ready", "this node starts again as a new incarnation")
            self.closed(session)

    # What operators do.

    async def evaluate(self, stream: str, name: str, *, yes: bool) -> None:
        """Drop the consumers that are out of touch. Asks for a yes if one of them may still believe."""
        group = await self.find(stream, name)
        believing = await self._groups.drop_silent(group.id, is_forced=yes)
        if believing:
            holders = [member for member in group.members if member.id in believing]
            who = ", ".join(
                f"{name_of(one.label, one.id)} for up to {self.waits_s(one, group):.0f} s more" for one in holders
            )
            raise Refused(
                f"consumers may still believe that they are active: {who}",
                code="may_believe",
                hint="--yes drops them all the same",
            )
        self._changed()

    async def find(self, stream: str, name: str) -> GroupRow:
        """One group, for people."""
        found = await self._groups.all(stream, name)
        if not found:
            raise NotFound(f"group {name!r} of {stream!r} does not exist", hint="headgate groups list")
        return found[0]

    def waits_s(self, member: ConsumerRow, group: GroupRow) -> float:
        """How long this node will still wait for a consumer that is out of touch."""
        return deadlines.left_s(self._seen, group.silent(member), boot_s())

    # Loops.

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(forever(self._deliver, "deliver"), name="deliver")
            group.create_task(forever(self._observe, "observe consumers"), name="observe consumers")
            group.create_task(forever(self._write_ends, "ends"), name="ends")

    def look(self) -> None:
        """Something has changed in a group."""
        self._look.set()

    async def _deliver(self) -> None:
        """Send every order that a consumer here has not answered: at once, and then again."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._look.wait()
            self._look.clear()
            if not self._sessions or self._trust_left_s() <= 0.0:
                continue
            with contextlib.suppress(StoreError):
                orders = await self._groups.orders(self._node())
                here = {id: session.consumers[id].incarnation for id, session in self._sessions.items()}
                self._sent, due = delivery.due_orders(self._sent, orders, here, boot_s(), self._unread())
                for order in (one for what, one in due if what == "send"):
                    self._send(order)
                await self._mute([one for what, one in due if what == "mute"])

    def _unread(self) -> set[UUID]:
        """Consumers whose answers may have arrived and wait for us."""
        return {
            id
            for id, session in self._sessions.items()
            if delivery.may_have_answered(session.link, session.peer.has_more, boot_s())
        }

    def _send(self, order: Order) -> None:
        peer = self._sessions[order.consumer].peer
        if order.is_active:
            peer.active(order.consumer, order.incarnation, order.epoch, order.partition)
        else:
            peer.step_down(order.consumer, order.incarnation, order.epoch)

    async def _mute(self, orders: Sequence[Order]) -> None:
        """The echoes stop first: if the database is away, this is tried again."""
        requests: dict[UUID, list[Request]] = {}
        sessions = [self._sessions[order.consumer] for order in orders]
        for order, session in zip(orders, sessions, strict=True):
            session.link = replace(session.link, muted=session.link.muted | {order.consumer})
            requests.setdefault(order.group, []).append(Mute(order.consumer, order.epoch, order.incarnation))
        held_up: Collection[UUID] = ()
        try:
            await self._groups.apply(requests)
        except HeldUp as error:
            held_up = error.groups
        for order, session in zip(orders, sessions, strict=True):
            if order.group not in held_up:
                session.peer.fail("unanswered", "an order was not answered in time")

    async def _observe(self) -> None:
        """Time the deadlines of consumers that are out of touch, and end connections that were silent for a lease."""
        while True:
            await asyncio.sleep(LOOK_S)
            for session in set(self._sessions.values()):
                if session.link.is_silent(boot_s()):
                    session.peer.fail("silent", f"no beat for {session.lease_s:.0f} s")
                    self.closed(session)
            if self._trust_left_s() <= 0.0:
                continue
            with contextlib.suppress(StoreError):
                await self._check_sessions()
                stranded = await self._groups.strand()
                self._seen, due = deadlines.observed(self._seen, await self._groups.silent(), boot_s())
                requests: dict[UUID, list[Request]] = {}
                for what, one in due:
                    log.info("a consumer's deadline has passed", consumer=str(one.consumer), now=what)
                    requests.setdefault(one.group, []).append(deadlines.request_of(what, one))
                if requests:
                    await self._apply(requests)
                elif stranded:
                    self._changed()

    async def _check_sessions(self) -> None:
        """Compare who is connected with what the rows say."""
        before = dict(self._sessions)
        rows = await self._groups.here(self._node())
        places = {id: session.consumers.get(id) for id, session in before.items()}
        connected = {id: (one.group, one.incarnation) for id, one in places.items() if one is not None}
        for consumer in delivery.replaced(connected, rows):
            session = before[consumer]
            if self._sessions.get(consumer) is session:
                session.peer.fail("replaced", "this consumer was dropped, or has come back on another connection")
                self.closed(session)
        self._adrift, overdue = delivery.adrift(self._adrift, self._sessions.keys(), rows, boot_s())
        self._write_later(overdue)

    async def _write_ends(self) -> None:
        """Write down which connections are gone."""
        while True:
            await self._over.wait()
            self._over.clear()
            ends, self._ends = self._ends, {}
            try:
                await self._apply(ends)
            except StoreError as error:
                left = error.groups if isinstance(error, HeldUp) else ends
                self._write_later((group, end) for group in left for end in ends[group])
                await asyncio.sleep(RETRY_S)

    def _write_later(self, ends: Iterable[tuple[UUID, ConnectionEnded]]) -> None:
        for group, end in ends:
            self._ends.setdefault(group, []).append(end)
            self._over.set()

    async def _apply(self, requests: Mapping[UUID, Sequence[Request]]) -> dict[UUID, Outcome]:
        try:
            outcomes = await self._groups.apply(requests)
        except HeldUp as error:
            self._carried_out(error.outcomes)
            raise
        self._carried_out(outcomes)
        return outcomes

    def _carried_out(self, outcomes: Mapping[UUID, Outcome]) -> None:
        self.handed_over_s += [one.handed_over_s for one in outcomes.values() if one.handed_over_s is not None]
        if outcomes:
            self._changed()

    def _changed(self) -> None:
        self._look.set()
        self._waker.wake("groups")
