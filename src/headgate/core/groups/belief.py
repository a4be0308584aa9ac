"""What one consumer may believe about itself, and what it answers the node.

**Theory.** A consumer that was told "active" believes it only while the node certainly waits for it. The node waits
`lease_s` from the last beat that it received. The consumer cannot know when that was, but it knows when it *sent* the
last beat that was echoed, and that was earlier. So it believes until that moment plus the lease, less a margin, on a
clock that keeps running while the machine sleeps. Reading late gains nothing: a process that was paused finds its
buffers full of echoes, and all of them are of beats that it sent long ago.

How a consumer stands:

    waiting     not active
    activating  told active, and no beat has been echoed yet: it may do nothing
    holding     active
    stepping    active, and asked to finish
    over        was active, and does not believe it any more
    leaving     has said that it leaves

A belief that has ended never returns. A consumer that is *over* goes back to the node only to leave, and joins again as
a new one. One that is *activating* has confirmed what it never began, so it is over as soon as its connection is lost.
One that is *holding* keeps its belief through a lost connection, and continues under its epoch if the node recognises
it before the belief ends. One that is *waiting* has nothing to lose, and keeps its place in the group. If the goodbye
of one that is *leaving* could not be sent, it is sent on the next connection.

Orders that name another consumer, another incarnation or a lower epoch than the known one belong to the past and are
ignored. An order that comes twice is answered twice. An order to step down from an epoch that is not held is confirmed
at once.

`step` takes the belief and one event, and returns the new belief and what to do: frames to send, or the end of the
connection. The time comes in the event. What an error frame means to the program is decided in the client.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TypeAlias, assert_never

from headgate.core.frames import (
    ActiveFrame,
    BeatFrame,
    ConfirmFrame,
    ErrorFrame,
    GroupFromClient,
    GroupFromNode,
    JoinedFrame,
    LeaveFrame,
    StepDownFrame,
)

BEAT_S = 2.0  # A lease of 10 s outlives three lost beats.
MARGIN_S = 1.0  # Between the end of the consumer's belief and the moment when the node may tell another one.


# State.


class Standing(Enum):
    """How a consumer stands."""

    WAITING = auto()
    ACTIVATING = auto()
    HOLDING = auto()
    STEPPING = auto()
    OVER = auto()
    LEAVING = auto()


_HELD = (Standing.HOLDING, Standing.STEPPING)


@dataclass(frozen=True, slots=True)
class Belief:
    """One consumer, over all its connections; times are seconds of one clock."""

    consumer: str | None = None  # None: no node has given it an id yet, or it has left.
    standing: Standing = Standing.WAITING
    epoch: int = 0  # The highest that this consumer knows of.
    partition: int | None = None
    incarnation: int = -1
    lease_s: float = 0.0
    until_s: float | None = None  # When the belief ends. None: no beat has been echoed yet.
    owed: int | None = None  # The epoch of a step-down that is confirmed on the next connection.
    is_connected: bool = False
    joined_at_s: float = 0.0  # On this connection.
    beats: int = 0  # How many were sent, on all connections: the number of the last one.
    sent: tuple[tuple[int, float], ...] = ()  # Beats that were not echoed, oldest first, and when each was sent.

    @property
    def beat_s(self) -> float:
        """How often to beat."""
        return min(BEAT_S, self.lease_s / 5)

    def holds(self, consumer: str, epoch: int, now_s: float) -> bool:
        """Whether this consumer may act under this epoch now."""
        is_held = self.standing in _HELD and (self.consumer, self.epoch) == (consumer, epoch)
        return is_held and self.until_s is not None and now_s < self.until_s


# Events.


@dataclass(frozen=True, slots=True)
class Heard:
    """The node sent a frame; `joined` is its first on a connection."""

    frame: GroupFromNode
    now_s: float


@dataclass(frozen=True, slots=True)
class BeatDue:
    """It is time to beat."""

    now_s: float


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing else happened: the belief may have ended."""

    now_s: float


@dataclass(frozen=True, slots=True)
class WorkFinished:
    """The program does nothing more under this epoch. If it was not asked to finish, it leaves the group."""

    consumer: str
    epoch: int
    now_s: float


@dataclass(frozen=True, slots=True)
class GoodbyeRequested:
    """The program leaves the group."""


@dataclass(frozen=True, slots=True)
class GoodbyeSent:
    """The node was told so: from here on this is another consumer."""


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The connection is gone. Beats that were sent on it are not echoed any more."""


Event: TypeAlias = Heard | BeatDue | TimePassed | WorkFinished | GoodbyeRequested | GoodbyeSent | LinkLost


# Effects.


@dataclass(frozen=True, slots=True)
class Say:
    """Send this frame."""

    frame: GroupFromClient


@dataclass(frozen=True, slots=True)
class GiveUpConnection:
    """The connection is of no more use; another one may be."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReportError:
    """The node ended the connection with this error."""

    frame: ErrorFrame


Effect: TypeAlias = Say | GiveUpConnection | ReportError


@dataclass(frozen=True, slots=True)
class Step:
    """The new belief, and what to do."""

    belief: Belief
    effects: tuple[Effect, ...] = ()


def step(belief: Belief, event: Event) -> Step:
    """Take in one event."""
    match event:
        case Heard(frame=frame, now_s=now_s):
            return _heard(_checked(belief, now_s), frame, now_s)
        case BeatDue(now_s=now_s):
            return _beat(_checked(belief, now_s), now_s)
        case TimePassed(now_s=now_s):
            return Step(_checked(belief, now_s))
        case WorkFinished():
            return _finished(_checked(belief, event.now_s), event)
        case GoodbyeRequested():
            return _leave(belief)
        case GoodbyeSent():
            return Step(_someone_new(belief, None))
        case LinkLost():
            return Step(_disconnected(belief))
        case _:
            assert_never(event)


def _checked(belief: Belief, now_s: float) -> Belief:
    """A belief whose time has passed is over; so is one whose end is not a number."""
    if belief.standing in _HELD and (belief.until_s is None or not now_s < belief.until_s):
        return replace(belief, standing=Standing.OVER)
    return belief


# What the node says.


def _heard(belief: Belief, frame: GroupFromNode, now_s: float) -> Step:
    if isinstance(frame, JoinedFrame) and not belief.is_connected:
        return _joined(belief, frame, now_s)
    if belief.standing is Standing.OVER:
        return Step(belief, (GiveUpConnection("this consumer has stopped believing"),))
    if belief.standing is Standing.LEAVING:
        return Step(belief)
    match frame:
        case BeatFrame(n=n):
            return Step(_echoed(belief, n, now_s))
        case ActiveFrame():
            return _activate(belief, frame, now_s) if _is_current(belief, frame) else Step(belief)
        case StepDownFrame():
            return _step_down(belief, frame) if _is_current(belief, frame) else Step(belief)
        case ErrorFrame():
            return Step(belief, (ReportError(frame),))
        case JoinedFrame():
            return Step(belief, (GiveUpConnection("the node said joined twice"),))
        case _:
            assert_never(frame)


def _joined(belief: Belief, frame: JoinedFrame, now_s: float) -> Step:
    """The node has answered join: what to say first."""
    if frame.consumer != belief.consumer:
        belief = _someone_new(belief, frame.consumer)
    elif belief.standing is Standing.OVER:
        return _leave(replace(belief, is_connected=True))
    elif frame.incarnation <= belief.incarnation:
        return Step(belief, (GiveUpConnection("the node knows only an older incarnation"),))
    says = () if belief.owed is None else (Say(ConfirmFrame(frame.consumer, belief.owed, "stepped_down")),)
    joined = replace(
        belief,
        lease_s=frame.lease_s,
        incarnation=frame.incarnation,
        is_connected=True,
        joined_at_s=now_s,
        owed=None,
    )
    return Step(joined, says)


def _is_current(belief: Belief, order: ActiveFrame | StepDownFrame) -> bool:
    is_own = (order.consumer, order.incarnation) == (belief.consumer, belief.incarnation)
    return is_own and order.epoch >= belief.epoch


def _echoed(belief: Belief, n: int, now_s: float) -> Belief:
    """Beats are echoed in order, so those that were sent before this one can be forgotten."""
    sent_at_s = next((at_s for number, at_s in belief.sent if number == n), None)
    if sent_at_s is None:
        return belief
    belief = replace(belief, sent=tuple(one for one in belief.sent if one[0] > n))
    until_s = _end_s(belief, sent_at_s)
    if not now_s < until_s:
        return belief
    standing = Standing.HOLDING if belief.standing is Standing.ACTIVATING else belief.standing
    latest_s = until_s if belief.until_s is None else max(until_s, belief.until_s)
    return replace(belief, until_s=latest_s, standing=standing)


def _activate(belief: Belief, order: ActiveFrame, now_s: float) -> Step:
    if order.epoch > belief.epoch:
        standing = Standing.ACTIVATING
        if belief.until_s is not None:
            standing = Standing.HOLDING if now_s < belief.until_s else Standing.OVER
        belief = replace(belief, epoch=order.epoch, partition=order.partition, owed=None, standing=standing)
    elif belief.standing not in (Standing.ACTIVATING, Standing.HOLDING):
        return Step(belief)  # Given back, or about to be: what has ended does not begin again.
    return Step(belief, (Say(ConfirmFrame(order.consumer, order.epoch, "active")),))


def _step_down(belief: Belief, order: StepDownFrame) -> Step:
    if order.epoch == belief.epoch and belief.standing in _HELD:
        return Step(replace(belief, standing=Standing.STEPPING))
    waiting = replace(belief, epoch=order.epoch, standing=Standing.WAITING)
    return Step(waiting, (Say(ConfirmFrame(order.consumer, order.epoch, "stepped_down")),))


# What the program says, and what happens to the connection.


def _beat(belief: Belief, now_s: float) -> Step:
    """The time at which a beat counts as sent is before it goes out."""
    end_s = _end_s(belief, belief.joined_at_s) if belief.until_s is None else belief.until_s
    if not now_s < end_s:
        return Step(belief, (GiveUpConnection("no beat was echoed in time"),))
    n = belief.beats + 1
    return Step(replace(belief, beats=n, sent=(*belief.sent, (n, now_s))), (Say(BeatFrame(n)),))


def _finished(belief: Belief, event: WorkFinished) -> Step:
    if not belief.holds(event.consumer, event.epoch, event.now_s):
        return Step(belief)
    if belief.standing is Standing.HOLDING:
        return _leave(belief) if belief.is_connected else Step(replace(belief, standing=Standing.OVER))
    if not belief.is_connected:
        return Step(replace(belief, standing=Standing.WAITING, owed=event.epoch, until_s=None))
    waiting = replace(belief, standing=Standing.WAITING)
    return Step(waiting, (Say(ConfirmFrame(event.consumer, event.epoch, "stepped_down")),))


def _leave(belief: Belief) -> Step:
    if belief.consumer is None:
        return Step(belief)
    return Step(replace(belief, standing=Standing.LEAVING), (Say(LeaveFrame(belief.consumer)),))


def _disconnected(belief: Belief) -> Belief:
    belief = replace(belief, is_connected=False, sent=())
    if belief.standing in (Standing.ACTIVATING, Standing.LEAVING):
        return replace(belief, standing=Standing.OVER)
    return replace(belief, until_s=None) if belief.standing is Standing.WAITING else belief


def _someone_new(belief: Belief, consumer: str | None) -> Belief:
    """Nothing of what the consumer was before is true of the new one; the connection and its beats are the same."""
    return Belief(
        consumer,
        lease_s=belief.lease_s,
        is_connected=belief.is_connected,
        joined_at_s=belief.joined_at_s,
        beats=belief.beats,
    )


def _end_s(belief: Belief, sent_at_s: float) -> float:
    return sent_at_s + belief.lease_s - min(MARGIN_S, belief.lease_s / 4)
