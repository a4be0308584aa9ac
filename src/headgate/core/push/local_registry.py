"""The local registry: which session of this node has which pushed stream.

It stands between the notifiers of a node's sessions and the global registry, the rows in PostgreSQL. What it knows it
answers itself; for the rest it asks. A session that asks for what it has already been given is answered the same again:
a node may repeat a request whose answer it has not seen. Another session is rejected at once, without a
round trip. A session that closes while its request is under way leaves the entry behind, marked: the answer is then
given back, and until it is, nobody else is told that the stream is free.

An answer goes to the session that asked last. The shell that carries the events makes sure that an answer to an earlier
question, of a session that is gone, is given back and not passed on as an answer to this one.

An incarnation begins with an empty local registry. What an older one held belongs to others by now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never
from uuid import UUID

from headgate.core.push.notifier import RETRY_MS, Id, Reason

NOT_READY_RETRY_MS = 1000
OWNED_RETRY_MS = 2000  # A session that lives may go on for days; asking more often helps nobody.


# States. No entry: nobody here has the stream.


@dataclass(frozen=True, slots=True)
class Asking:
    """The global registry has been asked for this session."""

    session: UUID
    name: str
    is_orphan: bool = False  # The session is gone; the answer is given back.


@dataclass(frozen=True, slots=True)
class HeldBySession:
    """This session has it."""

    session: UUID
    name: str
    epoch: int
    last_acked: Id
    last_seen: Id


@dataclass(frozen=True, slots=True)
class Relinquishing:
    """Being given back to the global registry."""

    session: UUID
    name: str
    epoch: int
    last_acked: Id


Entry: TypeAlias = Asking | HeldBySession | Relinquishing


# Events.


@dataclass(frozen=True, slots=True)
class Ask:
    """A session asks for the stream."""

    session: UUID
    name: str


@dataclass(frozen=True, slots=True)
class GlobalGranted:
    """The global registry gave it to this node; or gave it again, to the next run."""

    epoch: int
    position: Id


@dataclass(frozen=True, slots=True)
class GlobalDenied:
    """The global registry did not."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Updated:
    """At a barrier: how far the stream is."""

    session: UUID
    epoch: int
    last_acked: Id
    last_seen: Id


@dataclass(frozen=True, slots=True)
class Relinquish:
    """The session gives it back."""

    session: UUID
    epoch: int
    position: Id


@dataclass(frozen=True, slots=True)
class GlobalReleased:
    """The global registry has answered, whatever it said: the stream is not ours."""

    epoch: int


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The session is over."""

    session: UUID


@dataclass(frozen=True, slots=True)
class Taken:
    """The grant has ended without our doing."""

    epoch: int


Event: TypeAlias = Ask | GlobalGranted | GlobalDenied | Updated | Relinquish | GlobalReleased | SessionClosed | Taken


# Effects.


@dataclass(frozen=True, slots=True)
class AskGlobal:
    """Claim the stream's row."""


@dataclass(frozen=True, slots=True)
class AcceptSession:
    """Tell the session that it has the stream."""

    session: UUID
    epoch: int
    position: Id


@dataclass(frozen=True, slots=True)
class RejectSession:
    """Tell the session that it has not."""

    session: UUID
    reason: Reason
    retry_after_ms: int


@dataclass(frozen=True, slots=True)
class RelinquishGlobal:
    """Give the row back, until there is an answer."""

    epoch: int
    position: Id


Effect: TypeAlias = AskGlobal | AcceptSession | RejectSession | RelinquishGlobal


@dataclass(frozen=True, slots=True)
class Step:
    """The new entry, and what to do."""

    entry: Entry | None
    effects: tuple[Effect, ...] = ()


def step(entry: Entry | None, event: Event) -> Step:
    """Take in one event that concerns one stream."""
    match event:
        case Ask():
            return _ask(entry, event)
        case GlobalGranted():
            return _granted(entry, event)
        case GlobalDenied():
            return _denied(entry, event)
        case Updated():
            return _updated(entry, event)
        case Relinquish():
            return _relinquish(entry, event)
        case GlobalReleased(epoch=epoch) | Taken(epoch=epoch):
            return _gone(entry, epoch)
        case SessionClosed():
            return _session_closed(entry, event)
        case _:
            assert_never(event)


def _ask(entry: Entry | None, event: Ask) -> Step:
    match entry:
        case None:
            return Step(Asking(event.session, event.name), (AskGlobal(),))
        case Asking(session=session, is_orphan=False) if session == event.session:
            return Step(entry)  # The answer is under way.
        case HeldBySession(session=session) if session == event.session:
            return Step(entry, (AcceptSession(session, entry.epoch, entry.last_acked),))
        case HeldBySession():
            return Step(entry, (RejectSession(event.session, "owned", OWNED_RETRY_MS),))
        case Asking() | Relinquishing():
            return Step(entry, (RejectSession(event.session, "busy", RETRY_MS),))
        case _:
            assert_never(entry)


def _granted(entry: Entry | None, event: GlobalGranted) -> Step:
    match entry:
        case Asking(session=session, name=name, is_orphan=False):
            held = HeldBySession(session, name, event.epoch, event.position, event.position)
            return Step(held, (AcceptSession(session, event.epoch, event.position),))
        case Asking(session=session, name=name):
            given_back = Relinquishing(session, name, event.epoch, event.position)
            return Step(given_back, (RelinquishGlobal(event.epoch, event.position),))
        case HeldBySession() if event.epoch > entry.epoch:
            return Step(replace(entry, epoch=event.epoch))
        case Relinquishing() if event.epoch > entry.epoch:
            again = replace(entry, epoch=event.epoch)
            return Step(again, (RelinquishGlobal(event.epoch, entry.last_acked),))
        case HeldBySession() | Relinquishing():
            return Step(entry)
        case None:
            # An answer that nobody waits for.
            return Step(None, (RelinquishGlobal(event.epoch, event.position),))
        case _:
            assert_never(entry)


def _denied(entry: Entry | None, event: GlobalDenied) -> Step:
    match entry:
        case Asking(is_orphan=True):
            return Step(None)
        case Asking(session=session):
            retry_after_ms = OWNED_RETRY_MS if event.reason == "owned" else NOT_READY_RETRY_MS
            return Step(None, (RejectSession(session, event.reason, retry_after_ms),))
        case _:
            return Step(entry)


def _updated(entry: Entry | None, event: Updated) -> Step:
    match entry:
        case HeldBySession(session=session, epoch=epoch) if (session, epoch) == (event.session, event.epoch):
            if _is_behind(event.last_acked, entry.last_acked):
                return Step(entry)  # Barriers may complete out of order.
            return Step(replace(entry, last_acked=event.last_acked, last_seen=event.last_seen))
        case _:
            return Step(entry)


def _is_behind(position: Id, reached: Id) -> bool:
    return reached is not None and (position is None or position < reached)


def _relinquish(entry: Entry | None, event: Relinquish) -> Step:
    match entry:
        case HeldBySession(session=session, epoch=epoch, name=name) if (session, epoch) == (event.session, event.epoch):
            given_back = Relinquishing(session, name, epoch, event.position)
            return Step(given_back, (RelinquishGlobal(epoch, event.position),))
        case None:
            # We know of no grant, but its session does: better given back twice than not at all.
            return Step(None, (RelinquishGlobal(event.epoch, event.position),))
        case _:
            return Step(entry)


def _gone(entry: Entry | None, epoch: int) -> Step:
    match entry:
        case HeldBySession() | Relinquishing() if epoch >= entry.epoch:
            return Step(None)
        case _:
            return Step(entry)


def _session_closed(entry: Entry | None, event: SessionClosed) -> Step:
    match entry:
        case Asking(session=session) if session == event.session:
            return Step(replace(entry, is_orphan=True))
        case HeldBySession(session=session) if session == event.session:
            given_back = Relinquishing(session, entry.name, entry.epoch, entry.last_acked)
            return Step(given_back, (RelinquishGlobal(entry.epoch, entry.last_acked),))
        case _:
            return Step(entry)
