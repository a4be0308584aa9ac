"""A group: consumers of which one at a time is active.

**Theory.** Consumers come, go, and lose touch. The group decides who is active, and above all when nobody may be told
so yet. A consumer that was told "active" continues to believe it until it has confirmed a step-down, is found dead, or
has outlived its deadline; until then it *holds*, and nobody else is told. So at most one believes, whatever is lost or
late.

A consumer's status is connectivity × activity:

    connected     in touch                    active        told active, and not told otherwise
    disconnected  silent, deadline running    waiting       not active
    forgotten     silent past its deadline    deactivating  told to step down, not confirmed yet

Who is *wanted*: in a simple group the eligible active one, else the first eligible. In the group of a partition *p*,
number *p mod n* of the *n* that are not forgotten, in the order of registration; if that one is not eligible, the
eligible active one, else number *p mod count* of the eligible. Where a planner looks at many groups at once (`sticky`),
the one it prefers if eligible, else the eligible active one, else the fallback it names.

**One rule.** After every command the same function, `settle`, runs; no command has its own election:

1. nobody holds: the wanted one is granted (epoch + 1) and told active;
2. the wanted one is the active holder: any other connected active one is told to step down;
3. a holder is disconnected: wait until it returns, dies or is forgotten;
4. otherwise the connected active holder is told to step down; its confirmation, or its death, runs the rule again.

Each grant has a higher epoch than the last. Every order carries the epoch it is about, and every confirmation names
consumer and epoch; anything else is ignored, and counted. Effects are *new* orders: `delivery` sends an unanswered one
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias, assert_never

from msgspec import Struct
from msgspec.structs import replace

Connectivity: TypeAlias = Literal["connected", "disconnected", "forgotten"]
Activity: TypeAlias = Literal["active", "waiting", "deactivating"]


# State.


class Consumer(Struct, frozen=True):
    """One consumer, in the order of registration."""

    id: str
    connection: str  # One connection may carry many consumers.
    owner: str = ""  # For people.
    connectivity: Connectivity = "connected"
    activity: Activity = "waiting"
    epoch: int = 0  # Under which it was last told active.
    incarnation: int = 0  # Rises with every loss of touch: a deadline names the one that it belongs to.
    is_able: bool = True  # What else it takes to be eligible, such as a node that is not draining.

    @property
    def is_eligible(self) -> bool:
        """Whether it could be made active now."""
        return self.connectivity == "connected" and self.is_able

    @property
    def is_holder(self) -> bool:
        """Whether it may still believe that it is active."""
        return self.connectivity != "forgotten" and self.activity != "waiting"


class Group(Struct, frozen=True):
    """The whole state of one group."""

    partition: int | None = None  # Of a super stream; None: a simple group.
    consumers: tuple[Consumer, ...] = ()
    epoch: int = 0  # Of the last grant.
    incarnation: int = 0  # The highest of any consumer, so that a late deadline never fits another loss.
    ignored: int = 0  # Confirmations that named another consumer or epoch.
    preferred: str | None = None  # A planner's or an operator's wish.
    fallback: str | None = None  # A planner's second choice.
    is_sticky: bool = False  # Placed by a planner, not by the order of registration.
    is_fenced: bool = False  # What its consumers write to refuses older epochs: see `requests`.

    @property
    def active(self) -> Consumer | None:
        """Who was told active, and not told otherwise."""
        return next((c for c in self.consumers if c.activity == "active" and c.connectivity != "forgotten"), None)


# Commands.


class Register(Struct, frozen=True):
    """A consumer joins. A group has one partition, or none; and all of its consumers are fenced, or none."""

    consumer: str
    connection: str
    partition: int | None = None
    owner: str = ""
    is_fenced: bool = False


class Unregister(Struct, frozen=True):
    """A consumer leaves, and says so."""

    consumer: str


class Confirm(Struct, frozen=True):
    """A consumer has stepped down."""

    consumer: str
    epoch: int


class ConnectionDown(Struct, frozen=True):
    """A connection is gone for certain, and its consumers with it."""

    connection: str


class ConnectionDisconnected(Struct, frozen=True):
    """A connection is silent; it may be dead, or not."""

    connection: str


class DisconnectedTimeout(Struct, frozen=True):
    """The deadline of one loss of touch has passed."""

    connection: str
    incarnation: int | None = None  # None: the last one.


class ConnectionReconnected(Struct, frozen=True):
    """A connection is back."""

    connection: str


class Purge(Struct, frozen=True):
    """These connections were forgotten long ago, or their nodes are gone, and their deadlines have passed."""

    connections: frozenset[str]


class Evaluate(Struct, frozen=True):
    """An operator's word: consumers that are dead, silent or forgotten are dropped."""

    dead: frozenset[str] = frozenset()


class Able(Struct, frozen=True):
    """These consumers, and no others, could be made active as far as they themselves are concerned."""

    consumers: frozenset[str]


class Prefer(Struct, frozen=True):
    """A planner's wish. No wish means: keep."""

    preferred: str | None
    fallback: str | None = None


Command: TypeAlias = (
    Register
    | Unregister
    | Confirm
    | ConnectionDown
    | ConnectionDisconnected
    | DisconnectedTimeout
    | ConnectionReconnected
    | Purge
    | Evaluate
    | Able
    | Prefer
)


# Effects: new orders, and a deadline to watch.


class TellActive(Struct, frozen=True):
    """You are active, under this epoch."""

    consumer: str
    epoch: int


class TellStepDown(Struct, frozen=True):
    """You are not, any more: confirm with this epoch."""

    consumer: str
    epoch: int


class StartDeadline(Struct, frozen=True):
    """Unless this connection is back in time, it is to be forgotten."""

    connection: str
    incarnation: int


Effect: TypeAlias = TellActive | TellStepDown | StartDeadline


# Replies.


class Ok(Struct, frozen=True):
    """Done; `is_active` of a consumer that has just registered."""

    is_active: bool = False


class Refused(Struct, frozen=True):
    """Nothing has changed."""

    reason: Literal[
        "partition_index_conflict", "fenced_conflict", "already_registered", "not_found", "stale", "too_many"
    ]


Reply: TypeAlias = Ok | Refused


class Step(Struct, frozen=True):
    """The new state, None once the last consumer has left; the answer; and what to do."""

    group: Group | None
    reply: Reply = Ok()
    effects: tuple[Effect, ...] = ()


def step(group: Group | None, command: Command) -> Step:
    """Apply one command to one group; None is a group that does not exist."""
    if isinstance(command, Register):
        return _register(group or Group(command.partition, is_fenced=command.is_fenced), command)
    if group is None:
        return Step(None, Refused("not_found"))
    match command:
        case Unregister(consumer=consumer):
            return _unregister(group, consumer)
        case Confirm():
            return _confirm(group, command)
        case ConnectionDown(connection=connection):
            return _without(group, lambda c: c.connection == connection)
        case ConnectionDisconnected(connection=connection):
            return _disconnected(group, connection)
        case DisconnectedTimeout():
            return _timeout(group, command)
        case ConnectionReconnected(connection=connection):
            return _reconnected(group, connection)
        case Purge(connections=connections):
            return _without(group, lambda c: c.connection in connections)
        case Evaluate(dead=dead):
            return _without(group, lambda c: c.connectivity != "connected" or c.connection in dead)
        case Able(consumers=able):
            return _settled(_each(group, lambda c: replace(c, is_able=c.id in able)))
        case Prefer(preferred=preferred, fallback=fallback):
            return _settled(replace(group, preferred=preferred, fallback=fallback))
        case _:
            assert_never(command)


# Commands change who is there, and in which state.


def _register(group: Group, command: Register) -> Step:
    if command.partition != group.partition:
        return Step(group, Refused("partition_index_conflict"))
    if command.is_fenced != group.is_fenced:
        return Step(group, Refused("fenced_conflict"))
    if _find(group, command.consumer) is not None:
        return Step(group, Refused("already_registered"))
    consumer = Consumer(command.consumer, command.connection, command.owner)
    step = _settled(replace(group, consumers=(*group.consumers, consumer)))
    assert step.group is not None
    registered = _find(step.group, command.consumer)
    return replace(step, reply=Ok(registered is not None and registered.activity == "active"))


def _unregister(group: Group, consumer: str) -> Step:
    if _find(group, consumer) is None:
        return Step(group, Refused("not_found"))
    return _without(group, lambda c: c.id == consumer)


def _confirm(group: Group, command: Confirm) -> Step:
    found = _find(group, command.consumer)
    if found is None or (found.activity, found.epoch) != ("deactivating", command.epoch):
        return Step(replace(group, ignored=group.ignored + 1), Refused("stale"))
    return _settled(_each(group, lambda c: replace(c, activity="waiting") if c.id == found.id else c))


def _disconnected(group: Group, connection: str) -> Step:
    """Lost touch with: kept, in its place and with its activity, until it is back or its deadline has passed."""
    lost = [c for c in group.consumers if c.connection == connection and c.connectivity == "connected"]
    if not lost:
        return Step(group)
    incarnation = group.incarnation + 1
    ids = {c.id for c in lost}
    silent = _each(
        group, lambda c: replace(c, connectivity="disconnected", incarnation=incarnation) if c.id in ids else c
    )
    step = _settled(replace(silent, incarnation=incarnation))
    return replace(step, effects=(StartDeadline(connection, incarnation), *step.effects))


def _timeout(group: Group, command: DisconnectedTimeout) -> Step:
    def forget(c: Consumer) -> Consumer:
        if c.connection != command.connection or c.connectivity != "disconnected":
            return c
        return replace(c, connectivity="forgotten") if command.incarnation in (None, c.incarnation) else c

    return _settled(_each(group, forget))


def _reconnected(group: Group, connection: str) -> Step:
    """One that was forgotten while it held may still be at work, and another may be active by now: it steps down."""
    orders: list[Effect] = []

    def welcome(c: Consumer) -> Consumer:
        if c.connection != connection or c.connectivity == "connected":
            return c
        if c.connectivity == "forgotten" and c.activity == "active":
            orders.append(TellStepDown(c.id, c.epoch))
            return replace(c, connectivity="connected", activity="deactivating")
        return replace(c, connectivity="connected")

    step = _settled(_each(group, welcome))
    return replace(step, effects=(*orders, *step.effects))


def _without(group: Group, is_gone: Callable[[Consumer], bool]) -> Step:
    kept = tuple(c for c in group.consumers if not is_gone(c))
    if not kept:
        return Step(None)
    return _settled(replace(group, consumers=kept))


def _each(group: Group, change: Callable[[Consumer], Consumer]) -> Group:
    return replace(group, consumers=tuple(map(change, group.consumers)))


def _find(group: Group, consumer: str) -> Consumer | None:
    return next((c for c in group.consumers if c.id == consumer), None)


# The one rule.


def _settled(group: Group) -> Step:
    group, effects = settle(group)
    return Step(group, Ok(), tuple(effects))


def settle(group: Group) -> tuple[Group, list[Effect]]:
    """Bring the group nearer to having exactly the wanted one active."""
    holders = [c for c in group.consumers if c.is_holder]
    target = wanted(group)
    if not holders:
        return (group, []) if target is None else _grant(group, target)
    if target is not None and target.activity == "active":
        return _step_down(group, (c for c in holders if c.id != target.id))
    if any(c.connectivity == "disconnected" for c in holders):
        return group, []
    return _step_down(group, holders)


def wanted(group: Group) -> Consumer | None:
    """Who should be active."""
    eligible = [c for c in group.consumers if c.is_eligible]
    if not eligible:
        return None
    by_id = {c.id: c for c in eligible}
    active = next((c for c in eligible if c.activity == "active"), None)
    if group.is_sticky:
        fallback = by_id.get(group.fallback or "", eligible[0])
        return by_id.get(group.preferred or "") or active or fallback
    if group.partition is None:
        return active or eligible[0]
    counted = [c for c in group.consumers if c.connectivity != "forgotten"]
    chosen = counted[group.partition % len(counted)]
    return by_id.get(chosen.id) or active or eligible[group.partition % len(eligible)]


def _grant(group: Group, target: Consumer) -> tuple[Group, list[Effect]]:
    epoch = group.epoch + 1
    granted = _each(group, lambda c: replace(c, activity="active", epoch=epoch) if c.id == target.id else c)
    return replace(granted, epoch=epoch), [TellActive(target.id, epoch)]


def _step_down(group: Group, holders: Iterable[Consumer]) -> tuple[Group, list[Effect]]:
    epochs = {c.id: c.epoch for c in holders if c.connectivity == "connected" and c.activity == "active"}
    stepping = _each(group, lambda c: replace(c, activity="deactivating") if c.id in epochs else c)
    return stepping if epochs else group, [TellStepDown(id, epoch) for id, epoch in epochs.items()]
