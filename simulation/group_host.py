"""The node's side of groups: which programs are connected, what they are told, and whose deadline has passed.

It does what the group listener of a real node does: `core.groups.delivery` says which orders to send and which beats to
echo, `core.groups.deadlines` who has been silent for too long, and `core.groups.requests` what that changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import UUID

from headgate.core.frames import (
    ActiveFrame,
    BeatFrame,
    ConfirmFrame,
    ErrorFrame,
    GroupFromClient,
    JoinedFrame,
    JoinFrame,
    LeaveFrame,
    StepDownFrame,
)
from headgate.core.groups import deadlines, delivery
from headgate.core.groups.delivery import LEASE_S, Link, Order, OrderKey
from headgate.core.groups.machine import Confirm, Ok, Unregister
from headgate.core.groups.requests import Answered, ConnectionEnded, Joined, Mute, Request
from simulation.group_rows import GroupRows
from simulation.kernel import Signal
from simulation.network import Away
from simulation.pipes import Pipe

if TYPE_CHECKING:
    from simulation.node import Node

LOOK_S = 1.0
RETRY_S = 1.0


@dataclass(eq=False, slots=True)
class GroupSession:
    """One connection of a program."""

    host: GroupHost
    pipe: Pipe
    link: Link = field(default_factory=Link)
    inbox: deque[GroupFromClient] = field(default_factory=deque)
    is_busy: bool = False

    def received(self, frame: GroupFromClient) -> None:
        """A frame has come. Beats are echoed at once; everything else goes in order."""
        if self.link.is_over:
            return
        if isinstance(frame, BeatFrame):
            if self.host.may_echo(self):
                self.pipe.to_client(frame)
            return
        self.inbox.append(frame)
        if not self.is_busy:
            self.is_busy = True
            self.host.node.process.spawn(self._work())

    async def _work(self) -> None:
        while self.inbox and not self.link.is_over:
            try:
                await self.host.take(self, self.inbox.popleft())
            except Away:
                self.fail("not_ready")
        self.is_busy = False

    def fail(self, code: str) -> None:
        """The connection is over."""
        self.pipe.to_client(ErrorFrame(code, ""))
        self.pipe.close_by_node()
        self.host.closed(self)


class GroupHost:
    """All consumers that are connected to one node, and the deadlines of all that are connected nowhere."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._world = node.world
        self._rows = GroupRows(node.world.database, node.process, node.world.new_id)
        self._look = Signal()
        self._over = Signal()
        self._sessions: dict[UUID, GroupSession] = {}  # By consumer.
        self._sent: dict[OrderKey, tuple[float, float]] = {}
        self._seen: dict[deadlines.Key, float] = {}
        self._adrift: dict[ConnectionEnded, float] = {}
        self._ends: dict[UUID, list[Request]] = {}  # By group: what is not written down yet.
        node.world.database.listen(node.process, self._look)
        for loop in (self._deliver(), self._observe(), self._write_ends()):
            node.process.spawn(loop)

    def _now_s(self) -> float:
        return self.node.process.clock_s()

    def _trust_left_s(self) -> float:
        return self.node.trust.left_s(self._now_s())

    # What programs do.

    def connected(self, pipe: Pipe) -> GroupSession:
        """A program has connected."""
        return GroupSession(self, pipe)

    def closed(self, session: GroupSession, *, is_own: bool = False) -> None:
        """A connection is gone. `is_own`: the program has ended it, as far as anybody can see."""
        for consumer in session.link.consumers:
            if self._sessions.get(consumer) is session:
                del self._sessions[consumer]
        session.link, ends = delivery.ended(session.link, self._now_s(), is_own=is_own)
        self._write_later(ends)

    async def take(self, session: GroupSession, frame: GroupFromClient) -> None:
        """What a program says, except its beats."""
        match frame:
            case JoinFrame():
                await self._join(session, frame)
            case ConfirmFrame(consumer=consumer, epoch=epoch, what=what):
                await self._confirm(session, UUID(consumer), epoch, is_active=what == "active")
            case LeaveFrame(consumer=consumer):
                await self._leave(session, UUID(consumer))

    async def _join(self, session: GroupSession, frame: JoinFrame) -> None:
        group, incarnation = UUID(frame.group), self.node.incarnation
        joined = None
        if frame.consumer is not None:
            joined = await self._rows.rejoin(UUID(frame.consumer), incarnation, group, is_fenced=bool(frame.fenced))
        if joined is None:
            lease_s = frame.lease_s or LEASE_S
            place = group, incarnation, frame.partition, frame.label or ""
            found = await self._rows.join(*place, lease_s, is_fenced=bool(frame.fenced))
            if not isinstance(found, Joined):
                session.fail("refused")
                return
            joined = found
        if session.link.is_over or incarnation != self.node.incarnation:
            self._write_later([(joined.group, ConnectionEnded(joined.consumer, joined.incarnation, is_proved=False))])
            return
        if (older := self._sessions.get(joined.consumer)) is not None and older is not session:
            older.link = delivery.without(older.link, joined.consumer)
            older.fail("replaced")
        session.link = delivery.joined(session.link, joined, self._now_s())
        self._sessions[joined.consumer] = session
        session.pipe.to_client(JoinedFrame(str(joined.consumer), joined.incarnation, joined.lease_s, []))
        self._look.set()

    async def _confirm(self, session: GroupSession, consumer: UUID, epoch: int, *, is_active: bool) -> None:
        """While the database is away the answer is lost, and the order is sent again."""
        if consumer not in session.link.consumers:
            return
        group = session.link.consumers[consumer].group
        request = Answered(consumer, epoch) if is_active else Confirm(str(consumer), epoch)
        try:
            outcome = (await self._rows.apply({group: [request]}))[group]
        except Away:
            return
        if all(isinstance(reply, Ok) for reply in outcome.replies):
            self._sent.pop((consumer, is_active, epoch), None)
            session.link = replace(session.link, muted=session.link.muted - {consumer})
        self._look.set()

    async def _leave(self, session: GroupSession, consumer: UUID) -> None:
        if consumer not in session.link.consumers:
            return
        joined = session.link.consumers[consumer]
        session.link = delivery.without(session.link, consumer)
        self._sessions.pop(consumer, None)
        try:
            await self._rows.apply({joined.group: [Unregister(str(consumer))]})
        except Away:
            self._write_later([(joined.group, ConnectionEnded(consumer, joined.incarnation, is_proved=True))])

    def may_echo(self, session: GroupSession) -> bool:
        """Whether a beat may be echoed now; if so, it counts as echoed."""
        if not session.link.may_echo(self._trust_left_s()):
            return False
        session.link = replace(session.link, echoed_at_s=self._now_s())
        return True

    def lose_all(self) -> None:
        """This incarnation has ended: other nodes time its consumers, so no beat of theirs may be echoed any more."""
        for session in dict.fromkeys(self._sessions.values()):
            session.fail("not_ready")

    # Loops.

    async def _deliver(self) -> None:
        """Send every order that a consumer here has not answered: at once, and then again."""
        while True:
            await self._look.wait(self.node.process, LOOK_S)
            if not self._sessions or self._trust_left_s() <= 0.0:
                continue
            try:
                orders = await self._rows.orders(self.node.incarnation)
                here = {id: one.link.consumers[id].incarnation for id, one in self._sessions.items()}
                self._sent, due = delivery.due_orders(self._sent, orders, here, self._now_s())
                for order in (one for what, one in due if what == "send"):
                    self._send(order)
                await self._mute([one for what, one in due if what == "mute"])
            except Away:
                continue

    def _send(self, order: Order) -> None:
        pipe, consumer = self._sessions[order.consumer].pipe, str(order.consumer)
        if order.is_active:
            pipe.to_client(ActiveFrame(consumer, order.incarnation, order.epoch, order.partition))
        else:
            pipe.to_client(StepDownFrame(consumer, order.incarnation, order.epoch))

    async def _mute(self, orders: Sequence[Order]) -> None:
        """The echoes stop first: if the database is away, this is tried again."""
        requests: dict[UUID, list[Request]] = {}
        sessions = [self._sessions[order.consumer] for order in orders]
        for order, session in zip(orders, sessions, strict=True):
            session.link = replace(session.link, muted=session.link.muted | {order.consumer})
            requests.setdefault(order.group, []).append(Mute(order.consumer, order.epoch, order.incarnation))
        if requests:
            self._world.trace.count("groups: muted")
            await self._rows.apply(requests)
        for session in sessions:
            session.fail("unanswered")

    async def _observe(self) -> None:
        """Time the deadlines of consumers that are out of touch, and end connections that were silent for a lease."""
        while True:
            await self.node.process.sleep(LOOK_S)
            for session in dict.fromkeys(self._sessions.values()):
                if session.link.is_silent(self._now_s()):
                    session.fail("silent")
            if self._trust_left_s() <= 0.0:
                continue
            try:
                await self._check_sessions()
                await self._rows.strand()
                self._seen, due = deadlines.observed(self._seen, await self._rows.silent(), self._now_s())
                requests: dict[UUID, list[Request]] = {}
                for what, one in due:
                    self._world.trace.count(f"groups: {what}")
                    self._world.note((self.node.machine.name, "groups"), "{}: {}", what, one)
                    requests.setdefault(one.group, []).append(deadlines.request_of(what, one))
                if requests:
                    await self._rows.apply(requests)
            except Away:
                continue

    async def _check_sessions(self) -> None:
        """Compare who is connected with what the rows say."""
        before = dict(self._sessions)
        rows = await self._rows.here(self.node.incarnation)
        places = {id: session.link.consumers.get(id) for id, session in before.items()}
        connected = {id: (one.group, one.incarnation) for id, one in places.items() if one is not None}
        for consumer in delivery.replaced(connected, rows):
            if self._sessions.get(consumer) is before[consumer]:
                before[consumer].fail("replaced")
        self._adrift, overdue = delivery.adrift(self._adrift, self._sessions.keys(), rows, self._now_s())
        self._write_later(overdue)

    async def _write_ends(self) -> None:
        """Write down which connections are gone."""
        while True:
            await self._over.wait(self.node.process, 60.0)
            ends, self._ends = self._ends, {}
            try:
                if ends:
                    await self._rows.apply(ends)
            except Away:
                for group, requests in ends.items():
                    self._ends.setdefault(group, []).extend(requests)
                self._over.set()
                await self.node.process.sleep(RETRY_S)

    def _write_later(self, ends: Iterable[tuple[UUID, ConnectionEnded]]) -> None:
        for group, end in ends:
            self._ends.setdefault(group, []).append(end)
            self._over.set()
