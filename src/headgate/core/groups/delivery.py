"""What a node does for the consumers that are connected to it: which orders to send, which beats to echo.

**Theory.** An order stays in the rows until it is answered, so a lost frame loses nothing: it is sent again every
`RESEND_S`. A consumer that has not answered for `ANSWER_S` may be deaf and still believe that it is active, so it is
*muted*: no beat of its connection is echoed until it answers, and a lease later it believes nothing.

Why does a lease without an echo prove that? A consumer believes until a lease after the *sending* of its last echoed
beat, which was before the node echoed it. So a consumer whose last beat was echoed longer ago than its lease believes
nothing. Nothing else that a node sees is proof: the end of a socket may be the end of a cable.

The node must not echo either while it may have been declared dead itself: other nodes time its consumers then.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias
from uuid import UUID

from headgate.core.groups.requests import ConnectionEnded, Joined

LEASE_S = 10.0  # Unless the first consumer of a group asks for another.
ANSWER_S = 10.0  # How long an order may be unanswered.
RESEND_S = 2.0
JOINING_S = 60.0  # A node reads a thousand joins, and what was sent after them, in less.
ADRIFT_S = 10.0  # How long a consumer may be connected to this node in the rows only: joining takes less.


# Connections.


@dataclass(frozen=True, slots=True)
class Link:
    """One connection of a program to this node, and the consumers on it."""

    consumers: Mapping[UUID, Joined] = field(default_factory=dict)
    muted: frozenset[UUID] = frozenset()  # Consumers that left an order unanswered.
    began_at_s: float = 0.0  # When the first consumer joined.
    echoed_at_s: float | None = None  # When the last beat was echoed, or the last consumer joined.
    is_over: bool = False

    @property
    def lease_s(self) -> float:
        """The longest of its consumers."""
        return max((one.lease_s for one in self.consumers.values()), default=LEASE_S)

    def may_echo(self, trust_left_s: float) -> bool:
        """Whether a beat may be echoed, which lets its consumers believe for another lease."""
        return not self.muted and not self.is_over and trust_left_s > 0.0

    def is_silent(self, now_s: float) -> bool:
        """Whether none of its consumers believes anything: no beat was echoed for a lease."""
        return bool(self.consumers) and self.echoed_at_s is not None and now_s - self.echoed_at_s > self.lease_s


def joined(link: Link, place: Joined, now_s: float) -> Link:
    """A consumer has joined on this connection.

    A program may send a thousand joins at once, and then its first beat: while the node works on them it is not silent.
    """
    return replace(
        link,
        consumers={**link.consumers, place.consumer: place},
        muted=link.muted | {place.consumer} if place.muted else link.muted,
        began_at_s=now_s if link.echoed_at_s is None else link.began_at_s,
        echoed_at_s=now_s,
    )


def without(link: Link, consumer: UUID) -> Link:
    """A consumer is not on this connection any more."""
    kept = {id: one for id, one in link.consumers.items() if id != consumer}
    return replace(link, consumers=kept, muted=link.muted - {consumer})


def may_have_answered(link: Link, has_more: bool, now_s: float) -> bool:
    """Whether answers may be among what a program has sent and this node has not read: then it is not late.

    Only for a while after it began: a program that always sends more must not hold its group up.
    """
    return has_more and now_s - link.began_at_s < JOINING_S


def ended(link: Link, now_s: float, *, is_own: bool = False) -> tuple[Link, list[tuple[UUID, ConnectionEnded]]]:
    """A connection is gone: what is left of it, and for each consumer its group and what to write down. `is_own`: the
    program has ended it."""
    is_proved = link.is_silent(now_s)
    ends = [
        (one.group, ConnectionEnded(one.consumer, one.incarnation, is_proved, is_own))
        for one in link.consumers.values()
    ]
    return Link(is_over=True, echoed_at_s=link.echoed_at_s), ends


# Orders.


@dataclass(frozen=True, slots=True)
class Order:
    """What a consumer was told, and has not answered."""

    consumer: UUID
    group: UUID
    is_active: bool  # Otherwise it is to step down.
    epoch: int
    incarnation: int
    partition: int | None

    @property
    def key(self) -> OrderKey:
        """What an answer to it names."""
        return self.consumer, self.is_active, self.epoch


OrderKey: TypeAlias = tuple[UUID, bool, int]
"""A consumer, whether it is to be active, and the epoch."""

Sent: TypeAlias = Mapping[OrderKey, tuple[float, float]]
"""When each unanswered order was first and last sent."""


def due_orders(
    sent: Sent, orders: Iterable[Order], here: Mapping[UUID, int], now_s: float, unread: Collection[UUID] = ()
) -> tuple[dict[OrderKey, tuple[float, float]], list[tuple[Literal["send", "mute"], Order]]]:
    """What to remember of the orders that are unanswered, and what to do now.

    `here` has the incarnation of each consumer that is connected. An order for another one is left alone: its consumer
    is on its way to another connection. The answers of those in `unread` may have come, so their time begins again.
    """
    remembered: dict[OrderKey, tuple[float, float]] = {}
    due: list[tuple[Literal["send", "mute"], Order]] = []
    for order in orders:
        was = sent.get(order.key)
        if here.get(order.consumer) != order.incarnation:
            if was is not None:
                remembered[order.key] = was
            continue
        first_s, last_s = was if was is not None else (now_s, -math.inf)
        if order.consumer in unread:
            first_s = now_s
        if now_s - first_s > ANSWER_S:
            due.append(("mute", order))
        elif now_s - last_s >= RESEND_S:
            due.append(("send", order))
            last_s = now_s
        remembered[order.key] = first_s, last_s
    return remembered, due


# What the rows say, and what is connected.


Place: TypeAlias = tuple[UUID, int]
"""A group, and a consumer's incarnation in it."""


def replaced(connected: Mapping[UUID, Place], rows: Mapping[UUID, Place]) -> list[UUID]:
    """Consumers that are connected here, but were dropped or have come back on another connection."""
    return [consumer for consumer, place in connected.items() if rows.get(consumer) != place]


def adrift(
    seen: Mapping[ConnectionEnded, float], connected: Collection[UUID], rows: Mapping[UUID, Place], now_s: float
) -> tuple[dict[ConnectionEnded, float], list[tuple[UUID, ConnectionEnded]]]:
    """Consumers that are on this node in the rows only, since when; and for how many that has lasted too long.

    Their connection went while their joining was written down, and no other node would ever notice.
    """
    lost = {
        ConnectionEnded(id, incarnation, is_proved=False): group
        for id, (group, incarnation) in rows.items()
        if id not in connected
    }
    remembered = {end: seen.get(end, now_s) for end in lost}
    return remembered, [(lost[end], end) for end, since_s in remembered.items() if now_s - since_s > ADRIFT_S]
