"""Deadlines of consumers that are out of touch, timed by every observer on its own clock.

Nobody's clock is compared with another's: an observer notes when it *first saw* that a consumer was silent, which is
after it fell silent, and acts a whole lease later. By then the consumer's belief, which is counted from the sending of
its last echoed beat, has ended whatever happened. Observers may act twice; each request names what it is about (the
loss of touch, or the order), so a consumer that has come back is not meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias
from uuid import UUID

FORGOTTEN_S = 600.0  # How long a forgotten consumer may still come back as itself.


@dataclass(frozen=True, slots=True)
class Silent:
    """A consumer whose deadline runs."""

    consumer: UUID
    group: UUID
    connectivity: str
    losses: int
    epoch: int
    muted: bool  # It let an order go unanswered.
    lease_s: float
    has_node: bool = True  # Whether the node that it hung on is still there.
    trust_s: float = 0.0  # How long that node may have gone on echoing after it was ended.


What: TypeAlias = Literal["forget", "drop", "purge"]

Key: TypeAlias = tuple[UUID, What, int]
"""A consumer, what is to become of it, and the loss of touch or the order that this is about."""


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


def _deadlines(one: Silent) -> Iterable[tuple[What, int, float]]:
    if one.connectivity == "disconnected":
        yield "forget", one.losses, one.lease_s if one.has_node else one.lease_s + one.trust_s
    elif one.connectivity == "forgotten":  # One whose node is gone as well has hardly anywhere to come back from.
        yield "purge", one.losses, FORGOTTEN_S if one.has_node else one.lease_s
    if one.muted:
        yield "drop", one.epoch, one.lease_s
