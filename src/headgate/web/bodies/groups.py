"""Bodies about groups: those of programs outside, and the streams that nodes run."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from headgate.web.bodies import Answer, Request

Status = Literal["vacant", "blocked", "handing over", "starting", "stopped", "active"]


class Group(Answer):
    """A group in one line."""

    kind: Literal["outside", "workers"]  # Programs outside, or the nodes that run a stream.
    stream: str
    name: str
    partition: int | None
    status: Status
    active: str | None  # Who has its turn.
    epoch: int
    since: datetime | None  # Since when it is that one's turn.
    consumers: int


class Groups(Answer):
    """Groups in the order of their names."""

    items: list[Group]
    more: bool  # There are more than were asked for.


class Consumer(Answer):
    """A member of a group: a program, or a node that could run the stream."""

    id: str
    label: str
    node: str | None
    connectivity: str
    activity: str
    epoch: int
    losses: int = 0  # How often it was given up and came back.
    since: datetime | None = None
    answered: bool = True
    muted: bool = False
    waits_s: float | None = None  # For how long the answering node still waits for one that is out of touch.
    why_not: str = ""  # Why a node cannot run the stream.


class Transition(Answer):
    """Something that happened in a group."""

    at: datetime
    what: str
    who: str | None
    told: list[tuple[str, str | None, int]]  # Who was sent which activity, under which epoch.


class GroupDetails(Group):
    """A group with its members and its last transitions."""

    members: list[Consumer]
    lately: list[Transition]
    lease_s: float | None = None  # Of a group of programs.
    ignored: int = 0  # Confirmations that were nobody's or too late.
    preferred: str | None = None  # The node that should run the stream.
    is_pinned: bool = False  # An operator said so.
    takes_in_s: float | None = None  # When the stream is taken from a node that does not step down.


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
