"""When the tick may move streams, and when it may take one from a holder that does not step down.

Both need memory of what one node has seen, on its own clock. A node that has just vanished may be back soon, so nothing
is moved to even out what it left for `WAIT_OUT_S`; nor while a node is silent. And a holder that was told to step down
abandons a run that does not end within `STOP_S`. One that does not even do that, although it beats, loses the stream
after its lease has passed as well, counted from when *this* node first saw the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias
from uuid import UUID

from headgate.core.lifecycle import STOP_S

WAIT_OUT_S = 10.0  # Longer than a node needs to start again.

Key: TypeAlias = tuple[UUID, int]
"""A stream, and the epoch from which its holder should step down."""


@dataclass(frozen=True, slots=True)
class StandingOrder:
    """A holder that was told to step down, and has not yet."""

    stream: UUID
    owner: UUID
    epoch: int
    lease_s: float

    @property
    def key(self) -> Key:
        """What the order is about."""
        return self.stream, self.epoch


@dataclass(frozen=True, slots=True)
class Patience:
    """What one node has seen so far."""

    vanished_at_s: float = float("-inf")  # When a node was last missing.
    orders: Mapping[Key, float] = field(default_factory=dict)  # Since when we have seen each.


def vanished(patience: Patience, now_s: float) -> Patience:
    """A node that used to beat is gone."""
    return replace(patience, vanished_at_s=now_s)


def may_move(patience: Patience, silent: Iterable[UUID], now_s: float) -> bool:
    """Whether streams may be moved to spread the load."""
    return not list(silent) and now_s - patience.vanished_at_s > WAIT_OUT_S


def seen(patience: Patience, standing: Iterable[StandingOrder], now_s: float) -> Patience:
    """These orders stand now. One that was carried out is forgotten."""
    return replace(patience, orders={one.key: patience.orders.get(one.key, now_s) for one in standing})


def takes_in_s(patience: Patience, key: Key, lease_s: float, now_s: float) -> float | None:
    """When this stream would be taken from its holder. None: we have not seen the order."""
    since_s = patience.orders.get(key)
    return None if since_s is None else max(0.0, STOP_S + lease_s - (now_s - since_s))


def overdue(patience: Patience, standing: Iterable[StandingOrder], now_s: float) -> list[StandingOrder]:
    """The orders whose streams are to be taken now."""
    return [one for one in standing if takes_in_s(patience, one.key, one.lease_s, now_s) == 0.0]
