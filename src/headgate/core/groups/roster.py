"""A group and its consumers as the rows have them: the machine's state, and what delivery needs in addition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from uuid import UUID

from msgspec import Struct

from headgate.core.groups.machine import Consumer, Group


class Seat(Struct, frozen=True):
    """What a consumer has in addition to its state in the machine."""

    number: int  # In the order of registration.
    node: UUID  # Which it is connected to, or was.
    trust_s: float  # How long that node may go on echoing after it was declared dead.
    label: str  # For people.
    answered: bool = True  # Its last order.
    muted: bool = False  # It left an order unanswered: its beats are not echoed until it answers.


class Roster(Struct, frozen=True):
    """One group and all its consumers."""

    id: UUID
    stream: str
    name: str
    lease_s: float
    group: Group  # Without consumers: the group is empty, and keeps its epoch.
    seats: Mapping[str, Seat]  # By consumer.
    vacant_since: datetime | None = None  # Since when no consumer has been active and confirmed it.
    epoch_floor: int = 0  # No lower than any epoch that a group had which was removed since.

    def find(self, consumer: UUID) -> Consumer | None:
        """One of its consumers."""
        return next((c for c in self.group.consumers if c.id == str(consumer)), None)


def group_of(partition: int | None, consumers: Iterable[Consumer], epoch: int, ignored: int, is_fenced: bool) -> Group:
    """A group as the machine sees it. Its incarnation is the highest that one of its consumers has."""
    members = tuple(consumers)
    incarnation = max((c.incarnation for c in members), default=0)
    return Group(partition, members, epoch, incarnation, ignored, is_fenced=is_fenced)


def name_of(label: str, consumer: UUID | str) -> str:
    """What people call a consumer: its label, or the beginning of its id if it has none."""
    return label or f"consumer {str(consumer)[:8]}"
