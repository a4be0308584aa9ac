"""Positions in a partition: the offset of the last record handled, and by what a partition is known to be the same.

    {"offset": 17, "leader_epoch": 4, "topic_id": "orho6w5tTYCS6kUTWeFUfg"}

An offset means nothing in a topic that was deleted and made again. Its id differs then. Where a log was truncated,
because a broker that lagged became its leader, another leader epoch ends before the offset, and the brokers say so.
A plain number is a position, too: somebody may have edited it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

from headgate.connectors.moves import NO_POSITION, tell_numbers
from headgate.core.streams import Position
from headgate.errors import Cause, ConnectorError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream stands in a partition."""

    offset: int
    leader_epoch: int | None = None
    topic_id: str | None = None

    def as_position(self) -> Position:
        """As it is kept."""
        known = {"leader_epoch": self.leader_epoch, "topic_id": self.topic_id}
        return {"offset": self.offset, **{name: value for name, value in known.items() if value is not None}}


def place_of(position: Position) -> Place:
    """What a position says. ValueError: it is none of this source."""
    if _is_number(position):
        return Place(position)
    if isinstance(position, dict) and position.keys() <= {"offset", "leader_epoch", "topic_id"}:
        offset, epoch, id = (position.get(name) for name in ("offset", "leader_epoch", "topic_id"))
        if _is_number(offset) and (epoch is None or _is_number(epoch)) and (id is None or isinstance(id, str)):
            return Place(offset, epoch, id)
    raise ValueError("a position is an offset, or {offset: …}")


def opened_at(position: Position) -> Place | None:
    """What a run continues after."""
    try:
        return None if position is None else place_of(position)
    except ValueError as error:
        raise ConnectorError(str(error), cause=Cause.CONFIG, hint="headgate streams set-position") from None


def tell_move(before: Position, after: Position) -> str:
    """What it means to continue after the second in place of the first."""
    try:
        stood_at, stands_at = (None if one is None else place_of(one).offset for one in (before, after))
    except ValueError:
        return NO_POSITION
    return tell_numbers(stood_at, stands_at, "record")


def _is_number(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**63
