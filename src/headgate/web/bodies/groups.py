"""Bodies about groups: those of programs outside, and the streams that nodes run."""

from __future__ import annotations

from typing import Literal, TypeAlias
from uuid import UUID

from msgspec import UNSET, UnsetType

from headgate.web.bodies import Answer, Request

Status = Literal["vacant", "blocked", "handing over", "starting", "stopped", "active"]


Order: TypeAlias = tuple[str, str | None, int]
"""What a consumer was sent: the activity, its label, and the epoch."""


class Group(Answer):
    """A group in one line."""

    kind: Literal["outside", "workers"]  # Programs outside, or the nodes that run a stream.
    stream: str
    name: str
    partition: int | None
    status: Status
    active: str | None  # Who has its turn.
    epoch: int
    since: str | None  # Since when it is that one's turn.
    consumers: int


class Groups(Answer):
    """Groups in the order of their names."""

    items: list[Group]
    more: bool  # There are more than were asked for.


class Consumer(Answer):
    """A member of a group: a program, or a node that could run the stream."""

    id: str
    label: str  # Without one, the beginning of its id stands for it.
    node: str | None
    connectivity: str
    activity: str
    epoch: int
    # What only programs have.
    node_id: UUID | UnsetType = UNSET
    incarnation: int | UnsetType = UNSET  # How often it was given up and came back.
    answered: bool | UnsetType = UNSET
    muted: bool | UnsetType = UNSET
    trust_s: float | UnsetType = UNSET
    since: str | UnsetType = UNSET
    waits_s: float | UnsetType | None = UNSET  # For how long the answering node waits for one that is out of touch.
    # What only nodes have.
    why_not: str | UnsetType = UNSET  # Why a node cannot run the stream.


class Transition(Answer):
    """Something that happened in a group."""

    at: str
    what: str
    who: str | None
    told: list[Order]


class GroupDetails(Group):
    """A group with its members and its last transitions."""

    members: list[Consumer]
    lately: list[Transition]
    # What only groups of programs have.
    lease_s: float | UnsetType = UNSET
    ignored: int | UnsetType = UNSET  # Confirmations that were nobody's or too late.
    fenced: bool | UnsetType = UNSET  # A program that ends its connection is gone at once: its epoch is refused.
    # What only streams that nodes run have.
    preferred: str | UnsetType | None = UNSET  # The node that should run the stream.
    is_pinned: bool | UnsetType = UNSET  # An operator said so.
    takes_in_s: float | UnsetType | None = UNSET  # When the stream is taken from a node that does not step down.


class GroupExplanation(Answer):
    """Why a group is as it is."""

    kind: Literal["outside", "workers"]
    stream: str
    name: str
    status: Status
    lines: list[str]
    lately: list[Transition]


class Evaluate(Request):
    """Drop consumers that are out of touch."""

    yes: bool = False  # Even those that may still act.


class Evaluated(Answer):
    """Who was dropped, and how many are left."""

    stream: str
    name: str
    dropped: list[str]
    consumers: int
