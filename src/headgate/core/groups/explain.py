"""How a group is, in one word and in plain sentences: who is active, who is awaited and until when, what is in the way.

There are two kinds. Of a group of programs outside (`Outside`) the sentences speak of consumers; of a stream that nodes
run (`Workers`) they speak of nodes. Either way the first sentence says who has it, and the next ones why it is not
somebody else. Until when somebody is awaited is what the node that answers would do: every node has its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from headgate.core.groups.machine import Activity, Connectivity
from headgate.text import roughly

Status: TypeAlias = Literal["active", "starting", "handing over", "blocked", "vacant", "stopped"]

# Worst first.
STATUSES: tuple[Status, ...] = ("vacant", "blocked", "handing over", "starting", "stopped", "active")


# Groups of programs outside.


@dataclass(frozen=True, slots=True)
class SeenConsumer:
    """A consumer, as it is seen now."""

    name: str
    connectivity: Connectivity = "connected"
    activity: Activity = "waiting"
    epoch: int = 0
    for_s: float = 0.0  # How long it has been like this.
    node: str | None = None  # Which it is connected to; None: that node is gone.
    answered: bool = True  # Its last order.
    muted: bool = False  # It let an order go unanswered: its beats are not echoed.
    waits_s: float = 0.0  # How long it is still waited for, if it is out of touch or muted.

    @property
    def is_holder(self) -> bool:
        """Whether it may still believe that it is active."""
        return self.connectivity != "forgotten" and self.activity != "waiting"


@dataclass(frozen=True, slots=True)
class Outside:
    """A group of programs outside, as it is seen now."""

    members: tuple[SeenConsumer, ...]
    partition: int | None = None
    ignored: int = 0
    wanted: SeenConsumer | None = None  # Who should be active.
    is_fenced: bool = False


def outside_status(group: Outside) -> Status:
    """How it is, in one word."""
    holders = [member for member in group.members if member.is_holder]
    active = _active(group)
    if active is not None and not active.muted:
        return "active" if active.answered else "starting"
    if any(one.connectivity == "disconnected" or one.muted for one in holders):
        return "blocked"
    return "handing over" if holders else "vacant"


def explain_outside(group: Outside) -> list[str]:
    """Who is active, and what is in the way of others."""
    lines = [_holder_line(member) for member in group.members if member.is_holder]
    if not lines:
        lines.append(_nobody(group))
    lines += [_forgotten_line(member) for member in group.members if member.connectivity == "forgotten"]
    silent = [one for one in group.members if one.connectivity == "disconnected" and not one.is_holder]
    lines += [f"{one.name} waits, and is out of touch: it is forgotten in {_left(one.waits_s)}." for one in silent]
    wanted = group.wanted
    if wanted is not None and wanted.activity != "active" and any(one.is_holder for one in group.members):
        lines.append(f"{wanted.name} is next.")
    if group.partition is not None:
        lines.append(f"Its partition is {group.partition}: the order of registration decides whose it is.")
    if group.is_fenced:
        lines.append("It is fenced: a consumer that ends its connection is gone at once, and its epoch is refused.")
    if group.ignored:
        was, it = ("confirmation was", "it") if group.ignored == 1 else ("confirmations were", "they")
        lines.append(f"{group.ignored} {was} ignored: {it} named another consumer or an old epoch.")
    return lines


def _active(group: Outside) -> SeenConsumer | None:
    active = (one for one in group.members if one.connectivity == "connected" and one.activity == "active")
    return next(active, None)


def _holder_line(one: SeenConsumer) -> str:
    where = f" on {one.node}" if one.node else ""
    if one.muted:
        what = "to be active under" if one.activity == "active" else "to step down from"
        return (
            f"{one.name}{where} did not answer when it was told {what} epoch {one.epoch}. "
            f"Its beats are not echoed, and it is dropped in {_left(one.waits_s)} unless it answers."
        )
    match one.connectivity, one.activity:
        case "connected", "active" if one.answered:
            return f"{one.name}{where} is active under epoch {one.epoch}, for {roughly(one.for_s)}."
        case "connected", "active":
            return (
                f"{one.name}{where} was told {roughly(one.for_s)} ago to be active under epoch {one.epoch}, and has "
                "not answered yet."
            )
        case "connected", _:
            return (
                f"{one.name}{where} was told {roughly(one.for_s)} ago to step down from epoch {one.epoch}, and has not "
                "confirmed. Until then nobody else is told to be active."
            )
        case _, "active":
            return (
                f"{one.name} is active under epoch {one.epoch} and has been out of touch for {roughly(one.for_s)}. "
                f"It may still believe so, and is waited for {_left(one.waits_s)} more."
            )
        case _:
            return (
                f"{one.name} was told to step down from epoch {one.epoch} and has been out of touch for "
                f"{roughly(one.for_s)}. It may still be at work, and is waited for {_left(one.waits_s)} more."
            )


def _forgotten_line(one: SeenConsumer) -> str:
    held = "" if one.activity == "waiting" else f", and steps down from epoch {one.epoch} first"
    return f"{one.name} is forgotten: its lease has ended. It can still come back within {_left(one.waits_s)}{held}."


def _nobody(group: Outside) -> str:
    if not group.members:
        return "Nobody is in it."
    if group.wanted is not None:
        return f"Nobody is active; {group.wanted.name} is about to be told."
    return "Nobody is active, and nobody can be: all its consumers are out of touch."


# Streams that nodes run.


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node, as it stands to one stream."""

    name: str
    is_draining: bool = False
    is_silent: bool = False
    silent_s: float = 0.0
    lease_s: float = 0.0
    unable: str = ""  # Why it cannot run the stream.
    is_ended: bool = False  # Found dead before its lease was over.

    @property
    def why_not(self) -> str:
        """Why it gets no stream, or not this one. Empty: it could."""
        if self.is_ended:
            return "found dead"
        if self.is_silent:
            return f"silent for {roughly(self.silent_s)}"
        if self.is_draining:
            return "draining"
        return f"unable: {self.unable}" if self.unable else ""


@dataclass(frozen=True, slots=True)
class Workers:
    """A stream that nodes run, as it is seen now."""

    stream: str
    nodes: tuple[SeenNode, ...]
    epoch: int = 0
    owner: SeenNode | None = None
    is_begun: bool = True  # The owner has acquired it for a run.
    for_s: float | None = None  # How long the owner has had it.
    preferred: SeenNode | None = None
    is_pinned: bool = False  # The wish is an operator's.
    is_stepping: bool = False  # The owner was told to step down.
    takes_in_s: float | None = None  # When the node that answers would take it from the owner.
    is_modulo: bool = False  # Placed by its number.
    stopped: str = ""  # Why it should not run. Empty: it should.


def workers_status(group: Workers) -> Status:
    """How it is, in one word."""
    if group.owner is None:
        return "stopped" if group.stopped else "vacant"
    if group.owner.is_silent or group.owner.is_ended:
        return "blocked"
    if group.is_stepping:
        return "handing over"
    return "active" if group.is_begun else "starting"


def explain_workers(group: Workers) -> list[str]:
    """Who has the stream, who should, and which nodes are out of the question."""
    lines = [_free_line(group)] if group.owner is None else _owner_lines(group, group.owner)
    if group.preferred is not None:
        lines += _wish_lines(group, group.preferred)
    if group.is_modulo:
        lines.append("It is placed by its number (assignment: modulo).")
    lines += [f"{one.name} gets nothing new: {one.why_not}." for one in group.nodes if one.why_not and not one.unable]
    lines += [f"{one.name} is {one.why_not}." for one in group.nodes if one.unable]
    return lines


def _owner_lines(group: Workers, owner: SeenNode) -> list[str]:
    since = "" if group.for_s is None else f", for {roughly(group.for_s)}"
    lines = [f"{owner.name} has it under epoch {group.epoch}{since}{'' if group.is_begun else ', and has not begun'}."]
    left_s = max(0.0, owner.lease_s - owner.silent_s)
    if owner.is_ended:
        lines.append(
            f"{owner.name} was found dead. The sink cannot refuse what it may still write, so the stream waits for "
            f"the end of its lease, in {_left(left_s)}."
        )
    elif owner.is_silent:
        lines.append(f"{owner.name} has been silent for {roughly(owner.silent_s)}: its lease ends in {_left(left_s)}.")
    if group.stopped:
        lines.append(f"It should not run: {group.stopped}.")
    if group.is_stepping:
        line = f"{owner.name} was told to step down and has not yet."
        if group.takes_in_s is not None:
            line += f" This node would take the stream from it in {_left(group.takes_in_s)}."
        lines.append(line)
    return lines


def _free_line(group: Workers) -> str:
    if group.stopped:
        return f"No node has it, and none should: {group.stopped}."
    if not group.nodes:
        return "No node has it: none is running."
    takers = [one.name for one in group.nodes if not one.why_not]
    if takers:
        return f"No node has it. It is about to be granted to one of: {', '.join(takers)}."
    if all(one.unable for one in group.nodes):
        return "No node has it: all are unable. A publish, a changed secret or a restart tries it again."
    return "No node has it, and none can take it now."


def _wish_lines(group: Workers, preferred: SeenNode) -> list[str]:
    who = "An operator" if group.is_pinned else "The planner"
    is_there = group.owner is not None and group.owner.name == preferred.name
    if is_there and not group.is_pinned:
        return []
    line = f"{who} wants it on {preferred.name}" + (", where it is." if is_there else ".")
    if group.is_pinned:
        line += f" To leave it to the planner: headgate streams move {group.stream} --anywhere"
    if not is_there and preferred.why_not:
        return [line, f"It does not move as long as {preferred.name} is {preferred.why_not}."]
    return [line]


def _left(span_s: float) -> str:
    """A deadline; one that has passed is met at the next look."""
    return roughly(max(span_s, 1.0))
