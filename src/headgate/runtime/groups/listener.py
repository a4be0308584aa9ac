"""The group listener: programs that hang on this node, what they are told, and whose deadline has passed.

What a program says becomes a request on its group's rows (`store.groups`), where the machine (`core.groups`) decides.
Three loops do the rest, and none of them keeps anything that the rows do not say: `_deliver` sends every order that a
consumer here has not answered, again and again; `_observe` times the deadlines of those who are out of touch, wherever
they hung; `_write_ends` writes down which connections are gone, however long the database is away.

Who may say that a consumer is gone? It believes it is active only for so long after a beat that was *echoed*. So its
own word, or a lease without an echo, is proof; the end of a socket is none, and makes it silent only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias
from uuid import UUID

import structlog

from headgate.clock import boot_s
from headgate.core.groups import deadlines
from headgate.core.groups import machine as core
from headgate.core.groups.deadlines import Silent
from headgate.core.groups.machine import Confirm, DisconnectedTimeout, Purge, Unregister
from headgate.errors import NotFound, Refused, StoreError
from headgate.ids import as_id
from headgate.runtime.forever import forever
from headgate.store.groups import Answered, Drop, Ended, Groups, Joined, Mute, Order, Outcome, Request
from headgate.store.wake import Waker

LEASE_S = 10.0  # Unless the first of a group asks for another.
ANSWER_S = 10.0  # How long an order may go unanswered.
RESEND_S = 2.0
LOOK_S = 1.0
RETRY_S = 1.0
LOST_S = 10.0  # How long a consumer may hang here by no connection: joining takes less.
MOST_KEPT = 10_000  # Figures, where nobody asks for metrics.

log = structlog.get_logger()


class Peer(Protocol):
    """What a program is told."""

    def active(self, consumer: UUID, incarnation: int, epoch: int, partition: int | None) -> None:
        """It is active."""

    def step_down(self, consumer: UUID, incarnation: int, epoch: int) -> None:
        """It should finish, and confirm."""

    def fail(self, code: str, text: str) -> None:
        """Its connection is over, and why."""


@dataclass(eq=False, slots=True)
class Session:
    """One connection: the consumers that hang on it, and when they were last told that all is well."""

    peer: Peer
    consumers: dict[UUID, Joined] = field(default_factory=dict)
    echoed_at_s: float = 0.0
    muted: set[UUID] = field(default_factory=set)  # Who let an order go unanswered: no beat is echoed until it does.
    is_over: bool = False

    @property
    def lease_s(self) -> float:
        """The longest of its consumers."""
        return max((one.lease_s for one in self.consumers.values()), default=LEASE_S)


Key: TypeAlias = tuple[UUID, bool, int]
"""An order: a consumer, whether it is to be active, and the epoch."""


class GroupListener:
    """All consumers that hang on this node, and the deadlines of all that hang nowhere."""

    def __init__(
        self, groups: Groups, waker: Waker, node: Callable[[], UUID], trust_left_s: Callable[[], float]
    ) -> None:
        self._groups = groups
        self._waker = waker
        self._node = node
        self._trust_left_s = trust_left_s
        self._look = asyncio.Event()
        self._over = asyncio.Event()
        self._sessions: dict[UUID, Session] = {}  # By consumer.
        self._sent: dict[Key, tuple[float, float]] = {}  # When an order was first and last sent.
        self._seen: dict[deadlines.Key, float] = {}
        self._lost: dict[Ended, float] = {}  # Since when somebody has been seen to hang here by no connection.
        self._ends: dict[UUID, list[Ended]] = {}  # By group: connections that are gone and not written down yet.
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
    ) -> Joined:
        """A program comes, or comes back."""
        id = as_id(consumer) if consumer else None
        node = self._node()
        joined = await self._groups.rejoin(id, node, (stream, name)) if id is not None else None
        if joined is None:
            found = await self._groups.join(stream, name, partition, label, node, lease_s or LEASE_S)
            if isinstance(found, core.Refused):
                raise Refused(f"the group {name!r} of {stream!r} has another partition", code=found.reason)
            joined = found
        if session.is_over or node != self._node():  # Its connection, or we ourselves, went while it joined.
            self._end(joined, is_proved=False)
            return joined
        if (older := self._sessions.get(joined.consumer)) is not None and older is not session:
            older.consumers.pop(joined.consumer, None)
            older.peer.fail("replaced", "this consumer has come back by another connection")
        session.consumers[joined.consumer] = joined
        if joined.muted:
            session.muted.add(joined.consumer)
        session.echoed_at_s = session.echoed_at_s or boot_s()
        self._sessions[joined.consumer] = session
        self._changed()
        return joined

    async def confirm(self, session: Session, consumer: UUID, epoch: int, *, is_active: bool) -> None:
        """A program answers an order. While the database is away it is not heard, and gets the order again."""
        joined = session.consumers[consumer]
        request = Answered(consumer, epoch) if is_active else Confirm(str(consumer), epoch)
        with contextlib.suppress(StoreError):
            outcomes = await self._apply({joined.group: [request]})
            if all(isinstance(reply, core.Ok) for one in outcomes.values() for reply in one.replies):
                self._sent.pop((consumer, is_active, epoch), None)
                session.muted.discard(consumer)

    async def leave(self, session: Session, consumer: UUID) -> None:
        """A program says that it does nothing any more."""
        joined = session.consumers.pop(consumer)
        session.muted.discard(consumer)
        self._sessions.pop(consumer, None)
        try:
            await self._apply({joined.group: [Unregister(str(consumer))]})
        except StoreError:
            self._end(joined, is_proved=True)

    def may_echo(self, session: Session) -> bool:
        """Whether a beat may be echoed, which lets the program believe for another lease."""
        if session.muted or session.is_over or self._trust_left_s() <= 0.0:
            return False
        session.echoed_at_s = boot_s()
        return True

    def closed(self, session: Session) -> None:
        """A connection is gone. It proves nothing."""
        session.is_over = True
        is_proved = bool(session.consumers) and boot_s() - session.echoed_at_s > session.lease_s
        for joined in session.consumers.values():
            if self._sessions.get(joined.consumer) is session:
                del self._sessions[joined.consumer]
            self._end(joined, is_proved=is_proved)
        session.consumers = {}

    def lose_all(self) -> None:
        """Our incarnation has ended: others wait for whoever hung on us, so nobody may be told that all is well."""
        for session in set(self._sessions.values()):
            session.peer.fail("not_ready", "this node begins anew")
            self.closed(session)

    # What operators do.

    async def evaluate(self, stream: str, name: str, *, yes: bool) -> None:
        """Drop whoever is out of touch, and settle. Asks for a yes if one of them may still believe."""
        group = await self.find(stream, name)
        silent = {str(one) for one in await self._groups.evaluate(group["id"], yes=yes)}
        if silent:
            holders = [m for m in group["members"] if m["id"] in silent]
            who = ", ".join(f"{m['label']} for up to {self.waits_s(m, group):.0f} s more" for m in holders)
            raise Refused(
                f"may still believe to be active: {who}", code="may_believe", hint="--yes drops it all the same"
            )
        self._changed()

    async def find(self, stream: str, name: str) -> dict[str, Any]:
        """One group, for people."""
        found = await self._groups.all(stream, name)
        if not found:
            raise NotFound(f"group {name!r} of {stream!r} does not exist", hint="headgate groups list")
        return found[0]

    def waits_s(self, member: dict[str, Any], group: dict[str, Any]) -> float:
        """How long this node will still wait for a consumer that is out of touch."""
        one = Silent(
            UUID(member["id"]),
            group["id"],
            member["connectivity"],
            member["losses"],
            member["epoch"],
            member["muted"],
            group["lease_s"],
            has_node=member["node"] is not None,
            trust_s=member["trust_s"],
        )
        return deadlines.left_s(self._seen, one, boot_s())

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
                keys = {(one.consumer, one.is_active, one.epoch) for one in orders}
                self._sent = {key: sent for key, sent in self._sent.items() if key in keys}
                for order in orders:
                    await self._send(order)

    async def _send(self, order: Order) -> None:
        session = self._sessions.get(order.consumer)
        if session is None or session.consumers[order.consumer].losses != order.losses:
            return  # It is on its way to another connection.
        key, now_s = (order.consumer, order.is_active, order.epoch), boot_s()
        first_s, last_s = self._sent.get(key, (now_s, -RESEND_S))
        if now_s - first_s > ANSWER_S:
            session.muted.add(order.consumer)
            await self._groups.apply({order.group: [Mute(order.consumer, order.epoch, order.losses)]})
            session.peer.fail("unanswered", "an order was not answered in time")
        elif now_s - last_s >= RESEND_S:
            self._sent[key] = (first_s, now_s)
            if order.is_active:
                session.peer.active(order.consumer, order.losses, order.epoch, order.partition)
            else:
                session.peer.step_down(order.consumer, order.losses, order.epoch)

    async def _observe(self) -> None:
        """Time the deadlines of those who are out of touch, and end connections that have been silent for a lease."""
        while True:
            await asyncio.sleep(LOOK_S)
            for session in set(self._sessions.values()):
                if boot_s() - session.echoed_at_s > session.lease_s:
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
                    requests.setdefault(one.group, []).append(_request(what, one))
                if requests:
                    await self._apply(requests)
                elif stranded:
                    self._changed()

    async def _check_sessions(self) -> None:
        """A consumer that was dropped, or has come back elsewhere, hangs here in vain. One whose connection went while
        its joining was written down hangs here by nothing, and nobody else would ever notice.
        """
        before = dict(self._sessions)
        here = await self._groups.here(self._node())
        for consumer, session in before.items():
            joined = session.consumers.get(consumer)
            if (
                joined is not None
                and (joined.group, joined.losses) != here.get(consumer)
                and self._sessions.get(consumer) is session
            ):
                session.peer.fail("replaced", "this consumer was dropped, or has come back by another connection")
                self.closed(session)

        lost = {Ended(id, losses, False): group for id, (group, losses) in here.items() if id not in self._sessions}
        self._lost = {end: self._lost.get(end, boot_s()) for end in lost}
        for end, since_s in self._lost.items():
            if boot_s() - since_s > LOST_S:
                self._ends.setdefault(lost[end], []).append(end)
                self._over.set()

    async def _write_ends(self) -> None:
        """Write down which connections are gone."""
        while True:
            await self._over.wait()
            self._over.clear()
            ends, self._ends = self._ends, {}
            try:
                await self._apply(ends)
            except StoreError:
                for group, requests in ends.items():
                    self._ends.setdefault(group, []).extend(requests)
                self._over.set()
                await asyncio.sleep(RETRY_S)

    def _end(self, joined: Joined, *, is_proved: bool) -> None:
        self._ends.setdefault(joined.group, []).append(Ended(joined.consumer, joined.losses, is_proved))
        self._over.set()

    async def _apply(self, requests: Mapping[UUID, Sequence[Request]]) -> dict[UUID, Outcome]:
        outcomes = await self._groups.apply(requests)
        self.handed_over_s += [one.handed_over_s for one in outcomes.values() if one.handed_over_s is not None]
        self._changed()
        return outcomes

    def _changed(self) -> None:
        self._look.set()
        self._waker.wake("groups")


def _request(what: deadlines.What, one: Silent) -> Request:
    match what:
        case "forget":
            return DisconnectedTimeout(str(one.consumer), one.losses)
        case "drop":
            return Drop(one.consumer, one.epoch)
        case "purge":
            return Purge(frozenset({str(one.consumer)}))
