"""What is asked of one group, and what that changes in its rows.

**Theory.** The machine decides who is active. It knows nothing of connections, nodes and the delivery of orders, and it
does not keep the time. A `Roster` (`roster`) is a group with what is needed beyond the machine: for each consumer a
`Seat` (its number, the node it is connected to, whether it has answered its last order), the lease, and since when no
consumer has been active and confirmed it. A request is either a command of the machine, or one of those below, which
become a command only while they are still true:

    Join, Rejoin     a consumer comes, or comes back
    Answered         it has confirmed that it is active
    Mute             it has left an order unanswered for too long: no node echoes its beats until it answers
    Drop             it was muted for a whole lease: no beat was echoed, so it believes nothing any more
    ConnectionEnded  its connection is gone
    Bury             it was forgotten long ago, and has not come back
    DropSilent       an operator does not want to wait for the consumers that are out of touch

The end of a connection proves nothing: the program may be at work, and believe that it is active. So its place is kept
for a lease. In a *fenced* group it need not be. There every program passes the epoch along with all that it writes, and
what it writes to refuses a lower one; so two may believe for a moment, and still only the newer one acts. If a program
of such a group ends its connection itself, by closing it or by dying, that is its end. A connection that falls silent,
or that the node closes, says nothing about the program, and is no more than a loss of touch in any group. Who was in a
fenced group may believe after all have left it; so it stays fenced when it is empty, until its row is removed.

Everybody may be late: a node that lost its connection to the database for a while, an observer that saw a consumer
fall silent, a confirmation that took a detour. So every request names what it is about, by epoch or by incarnation, and
if the consumer is past that, nothing happens. That is the whole protection, and it needs no clock. An answer that names
a grant which the consumer does not hold goes to the machine all the same, which counts it as ignored.

`step` takes a roster, one request and the time; it returns the new roster, the reply, and what people are shown of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from headgate.core.groups import machine
from headgate.core.groups.machine import (
    Command,
    Confirm,
    ConnectionDisconnected,
    ConnectionDown,
    ConnectionReconnected,
    DisconnectedTimeout,
    Evaluate,
    Group,
    Ok,
    Purge,
    Refused,
    Register,
    Reply,
    TellActive,
    TellStepDown,
    Unregister,
)
from headgate.core.groups.roster import Roster, Seat, name_of

# Requests.

MOST_CONSUMERS = 1000  # In one group. Each step looks at all of them.


class Join(Struct, frozen=True):
    """A new consumer. The first of a group decides its partition, its lease, and whether it is fenced."""

    consumer: UUID
    node: UUID
    trust_s: float
    partition: int | None
    label: str
    lease_s: float
    is_fenced: bool = False


class Rejoin(Struct, frozen=True):
    """A consumer is back, perhaps on another node, perhaps before anybody noticed that it was away."""

    consumer: UUID
    node: UUID
    trust_s: float
    stream: str
    name: str  # Of the group that it says it was in.
    is_fenced: bool = False


class Answered(Struct, frozen=True):
    """A consumer has confirmed that it is active."""

    consumer: UUID
    epoch: int


class Mute(Struct, frozen=True):
    """A consumer has left an order unanswered for too long; unless it has come back since."""

    consumer: UUID
    epoch: int
    incarnation: int


class Drop(Struct, frozen=True):
    """A consumer has been muted for a lease; unless it has answered since."""

    consumer: UUID
    epoch: int


class ConnectionEnded(Struct, frozen=True):
    """A consumer's connection is gone; unless it has come back by another one since."""

    consumer: UUID
    incarnation: int
    is_proved: bool  # It believes nothing any more. Otherwise it may, until its lease ends.
    is_own: bool = False  # The program has closed it, or its kernel has: no timeout, and not the node.


class Bury(Struct, frozen=True):
    """A consumer was forgotten long ago; unless it has come back since."""

    consumer: UUID
    incarnation: int


class DropSilent(Struct, frozen=True):
    """An operator asks: drop the consumers that are out of touch, even (`is_forced`) one that may still believe."""

    is_forced: bool


Request: TypeAlias = Command | Join | Rejoin | Answered | Mute | Drop | ConnectionEnded | Bury | DropSilent


# Replies, in addition to the machine's.


class Joined(Struct, frozen=True):
    """A consumer's place in its group."""

    consumer: UUID
    group: UUID
    incarnation: int
    lease_s: float
    muted: bool


class StillBelieving(Struct, frozen=True):
    """Nothing has changed: these consumers are out of touch, and may believe that they are active."""

    consumers: tuple[UUID, ...]


Answer: TypeAlias = Reply | Joined | StillBelieving


class Transition(Struct, frozen=True):
    """What happened in a group, for people."""

    at: str
    what: str
    who: str
    told: tuple[tuple[str, str, int], ...]  # Orders: what, to whom, under which epoch.


class Step(Struct, frozen=True):
    """The new roster, the answer, what happened, and how long the group was vacant if that has just ended."""

    roster: Roster
    reply: Answer
    transitions: tuple[Transition, ...] = ()
    handed_over_s: float | None = None


class Outcome(Struct, frozen=True):
    """The same for several requests."""

    roster: Roster
    replies: tuple[Answer, ...] = ()
    transitions: tuple[Transition, ...] = ()
    handed_over_s: float | None = None


def carry_out(roster: Roster, requests: Iterable[Request], now: datetime) -> Outcome:
    """Step through several requests, one after another."""
    outcome = Outcome(roster)
    for request in requests:
        done = step(outcome.roster, request, now)
        outcome = Outcome(
            done.roster,
            (*outcome.replies, done.reply),
            (*outcome.transitions, *done.transitions),
            outcome.handed_over_s if done.handed_over_s is None else done.handed_over_s,
        )
    return outcome


def step(roster: Roster, request: Request, now: datetime) -> Step:
    """Carry out one request."""
    match request:
        case Join():
            return _join(roster, request, now)
        case Rejoin():
            return _rejoin(roster, request, now)
        case Answered():
            return _answered(roster, request, now)
        case Mute():
            return _mute(roster, request)
        case Drop():
            return _drop(roster, request, now)
        case ConnectionEnded():
            return _ended(roster, request, now)
        case Bury():
            return _bury(roster, request, now)
        case DropSilent(is_forced=is_forced):
            return _drop_silent(roster, is_forced, now)
        case _:
            return _command(roster, request, now)


# Coming, and coming back.


def _join(roster: Roster, request: Join, now: datetime) -> Step:
    if len(roster.seats) >= MOST_CONSUMERS:
        return Step(roster, Refused("too_many"))
    id = str(request.consumer)
    opened = roster
    if not roster.group.consumers:
        epoch, is_fenced = max(roster.group.epoch, roster.epoch_floor), request.is_fenced or roster.group.is_fenced
        fresh = Group(request.partition, epoch=epoch, is_fenced=is_fenced)
        opened = replace(roster, group=fresh, lease_s=request.lease_s)
    number = max((seat.number for seat in roster.seats.values()), default=0) + 1
    seat = Seat(number, request.node, request.trust_s, request.label)
    seated = replace(opened, seats={**opened.seats, id: seat})
    done = _command(seated, Register(id, id, request.partition, request.label, request.is_fenced), now)
    if isinstance(done.reply, Refused):
        return Step(roster, done.reply)
    return replace(done, reply=_place(done.roster, request.consumer))


def _rejoin(roster: Roster, request: Rejoin, now: datetime) -> Step:
    """A consumer that is back has lost touch, noticed or not: what its old connection still hears or does is old."""
    id, place = str(request.consumer), (roster.stream, roster.name, roster.group.is_fenced)
    if roster.find(request.consumer) is None or (request.stream, request.name, request.is_fenced) != place:
        return Step(roster, Refused("not_found"))
    lost = _command(roster, ConnectionDisconnected(id), now)
    moved = replace(lost.roster.seats[id], node=request.node, trust_s=request.trust_s)
    back = _command(_seated(lost.roster, id, moved), ConnectionReconnected(id), now)
    reply = _place(back.roster, request.consumer)
    return replace(back, reply=reply, transitions=(*lost.transitions, *back.transitions))


def _place(roster: Roster, consumer: UUID) -> Joined:
    found = roster.find(consumer)
    assert found is not None
    return Joined(consumer, roster.id, found.incarnation, roster.lease_s, roster.seats[found.id].muted)


# Answers, and what follows if there is none.


def _answered(roster: Roster, request: Answered, now: datetime) -> Step:
    found = roster.find(request.consumer)
    if found is None or not found.is_holder or found.epoch != request.epoch:
        return _command(roster, Confirm(str(request.consumer), -1), now)  # Nobody's: ignored, and counted.
    if found.activity != "active":  # It has been told to step down meanwhile, and has not answered that.
        return Step(roster, Refused("stale"))
    since, heard = roster.vacant_since, replace(roster.seats[found.id], answered=True, muted=False)
    occupied = replace(_seated(roster, found.id, heard), vacant_since=None)
    return Step(occupied, Ok(), handed_over_s=None if since is None else (now - since).total_seconds())


def _mute(roster: Roster, request: Mute) -> Step:
    found = roster.find(request.consumer)
    if found is None or (found.epoch, found.incarnation) != (request.epoch, request.incarnation):
        return Step(roster, Ok())
    seat = roster.seats[found.id]
    return Step(_seated(roster, found.id, replace(seat, muted=not seat.answered)), Ok())


def _drop(roster: Roster, request: Drop, now: datetime) -> Step:
    found = roster.find(request.consumer)
    if found is None or found.epoch != request.epoch or not roster.seats[found.id].muted:
        return Step(roster, Ok())
    return _command(roster, ConnectionDown(found.id), now)


# Going.


def _ended(roster: Roster, request: ConnectionEnded, now: datetime) -> Step:
    found = roster.find(request.consumer)
    if found is None or found.incarnation != request.incarnation:
        return Step(roster, Ok())
    is_over = request.is_proved or (request.is_own and roster.group.is_fenced)
    return _command(roster, ConnectionDown(found.id) if is_over else ConnectionDisconnected(found.id), now)


def _bury(roster: Roster, request: Bury, now: datetime) -> Step:
    found = roster.find(request.consumer)
    if found is None or (found.connectivity, found.incarnation) != ("forgotten", request.incarnation):
        return Step(roster, Ok())
    return _command(roster, Purge(frozenset({found.id})), now)


def _drop_silent(roster: Roster, is_forced: bool, now: datetime) -> Step:
    holders = [c for c in roster.group.consumers if c.connectivity == "disconnected" and c.is_holder]
    if holders and not is_forced:
        return Step(roster, StillBelieving(tuple(UUID(c.id) for c in holders)))
    return _command(roster, Evaluate(), now)


# The machine, and what its effects leave in the seats.


def _command(roster: Roster, command: Command, now: datetime) -> Step:
    before = roster.group
    exists = bool(before.consumers) or isinstance(command, Register)
    done = machine.step(before if exists else None, command)
    empty = Group(before.partition, epoch=before.epoch, ignored=before.ignored, is_fenced=before.is_fenced)
    after = done.group or empty
    seats = dict(roster.seats)
    told: list[tuple[str, str, int]] = []
    if isinstance(command, Confirm) and isinstance(done.reply, Ok):
        # Before the effects: the rule may grant the same consumer again, and that order is not answered.
        seats[command.consumer] = replace(seats[command.consumer], answered=True, muted=False)
    for effect in done.effects:
        if isinstance(effect, TellActive | TellStepDown):
            seats[effect.consumer] = replace(seats[effect.consumer], answered=False)
            what = "active" if isinstance(effect, TellActive) else "step down"
            told.append((what, name_of(seats[effect.consumer].label, effect.consumer), effect.epoch))
    stayed = {c.id: seats[c.id] for c in after.consumers}
    changed = replace(roster, group=after, seats=stayed, vacant_since=_vacant_since(roster, after, now))
    if after == before:
        return Step(changed, done.reply)
    at = now.isoformat(timespec="milliseconds")
    return Step(changed, done.reply, (Transition(at, _words(command), _who(command, seats), tuple(told)),))


def _vacant_since(roster: Roster, after: Group, now: datetime) -> datetime | None:
    """A group is vacant from the moment when its active consumer goes, or is lost, until another one has confirmed."""
    before, active = roster.group.active, after.active
    if not after.consumers or after == roster.group:
        return roster.vacant_since if after.consumers else None
    is_same = active is not None and before is not None and active.id == before.id
    is_in_touch = active is not None and active.connectivity == "connected"
    if not roster.group.consumers or (is_same and is_in_touch):
        return roster.vacant_since
    return roster.vacant_since or now


def _seated(roster: Roster, consumer: str, seat: Seat) -> Roster:
    return replace(roster, seats={**roster.seats, consumer: seat})


def _words(command: Command) -> str:
    """What happened: the command's name, in words."""
    name = type(command).__name__
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()


def _who(command: Command, seats: Mapping[str, Seat]) -> str:
    """The name of the consumer that a command names. In these groups a consumer is its own connection."""
    match command:
        case Register(consumer=id) | Unregister(consumer=id) | Confirm(consumer=id):
            named = id
        case ConnectionDown(connection=id) | ConnectionDisconnected(connection=id):
            named = id
        case DisconnectedTimeout(connection=id) | ConnectionReconnected(connection=id):
            named = id
        case _:
            return ""
    return name_of(seats[named].label, named) if named in seats else ""
