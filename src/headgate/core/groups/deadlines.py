"""Deadlines of consumers that are out of touch, timed by every observer on its own clock.

**Theory.** No clock is compared with another one. An observer notes when it *first saw* that a consumer was silent,
which is after the consumer fell silent, and acts a whole lease later. By then the consumer's belief, which is counted
from the sending of its last echoed beat, has ended in any case. Two observers may both act; each request names what it
is about (an incarnation, or the epoch of an order), so it does nothing to a consumer that has come back.

If the node that the consumer was connected to was declared dead, that node may have gone on echoing for as long as it
trusted itself: the observer waits that much longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never
from uuid import UUID

from headgate.core.groups.machine import Connectivity, DisconnectedTimeout
from headgate.core.groups.requests import Bury, Drop, Request

FORGOTTEN_S = 600.0  # How long a forgotten consumer may still come back as itself.


@dataclass(frozen=True, slots=True)
class Silent:
    """A consumer whose deadline runs."""

    consumer: UUID
    group: UUID
    connectivity: Connectivity
    incarnation: int
    epoch: int
    muted: bool  # It left an order unanswered.
    lease_s: float
    has_node: bool = True  # Whether the node that it was connected to is still there.
    trust_s: float = 0.0  # How long that node may have gone on echoing after it was declared dead.


What: TypeAlias = Literal["forget", "drop", "bury"]

Key: TypeAlias = tuple[UUID, What, int]
"""A consumer, what will be done to it, and the incarnation or the epoch that this is about."""


def observed(
    seen: Mapping[Key, float], silent: Iterable[Silent], now_s: float
) -> tuple[dict[Key, float], list[tuple[What, Silent]]]:
    """What an observer remembers after a look, and what is due."""
    remembered: dict[Key, float] = {}
    due: list[tuple[What, Silent]] = []
    for one in silent:
        for what, number, within_s in _deadlines(one):
            key = (one.consumer, what, number)
            since_s = remembered[key] = seen.get(key, now_s)
            if now_s - since_s > within_s:
                due.append((what, one))
    return remembered, due


def left_s(seen: Mapping[Key, float], one: Silent, now_s: float) -> float:
    """How long this observer still waits for a consumer."""
    waits = [within_s - (now_s - seen.get((one.consumer, what, n), now_s)) for what, n, within_s in _deadlines(one)]
    return max(0.0, min(waits, default=0.0))


def request_of(what: What, one: Silent) -> Request:
    """What to ask of a consumer's group when its deadline has passed."""
    match what:
        case "forget":
            return DisconnectedTimeout(str(one.consumer), one.incarnation)
        case "drop":
            return Drop(one.consumer, one.epoch)
        case "bury":
            return Bury(one.consumer, one.incarnation)
        case _:
            assert_never(what)


def _deadlines(one: Silent) -> Iterable[tuple[What, int, float]]:
    if one.connectivity == "disconnected":
        yield "forget", one.incarnation, one.lease_s if one.has_node else one.lease_s + one.trust_s
    elif one.connectivity == "forgotten":  # Without its node it has hardly anywhere to come back from.
        yield "bury", one.incarnation, FORGOTTEN_S if one.has_node else one.lease_s
    if one.muted:
        yield "drop", one.epoch, one.lease_s
