"""What a consumer may believe of itself, and how it answers the node: no socket, and no clock.

A consumer that was told "active" believes it only as long as the node surely waits for it. The node waits `lease_s`
from the last beat that it has heard. The consumer cannot know when that was, but it knows when it *sent* the last beat
that came back, and that was earlier. So it believes until then plus the lease, less a margin, on a clock that goes on
while the machine sleeps. What is read late counts for nothing: a process that was paused finds its buffers full of
echoes, and all of them are of beats that were sent long ago.

How a consumer stands:

    waiting    not active
    told       told active, and no beat has come back yet: nothing may be done
    holding    active
    stepping   active, and asked to finish
    over       was active, and does not believe it any more
    leaving    has said that it leaves

A belief that has ended never returns. Whoever is *over* goes back to the node only to leave, and joins anew. One that
is *told* has confirmed what it never began, so when its connection is lost it is over too. One that holds keeps its
belief through a lost connection, and goes on under its epoch if the node knows it again before the belief ends. One
that waits has nothing to lose, and keeps its place in the group. One whose goodbye could not be sent says it again.

Orders that name another consumer, another incarnation or a lower epoch than known are of the past, and ignored. An
order that comes twice is answered twice. An order to step down from what is not held is answered at once.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import assert_never

from headgate.client.errors import Lost, group_error_of
from headgate.core.frames import (
    Active,
    BeatFrame,
    Confirm,
    ErrorFrame,
    GroupFromClient,
    GroupFromNode,
    Joined,
    Leave,
    StepDown,
)

BEAT_S = 2.0  # A lease of 10 s outlives three lost beats.
MARGIN_S = 1.0  # Between the end of our belief and the moment when the node may tell another.


class Standing(Enum):
    """How a consumer stands."""

    WAITING = auto()
    TOLD = auto()
    HOLDING = auto()
    STEPPING = auto()
    OVER = auto()
    LEAVING = auto()


_HELD = (Standing.HOLDING, Standing.STEPPING)


class Belief:
    """One consumer, over all its connections; times are seconds of one clock."""

    def __init__(self) -> None:
        self.consumer: str | None = None
        self.lease_s = 0.0
        self.epoch = 0  # The highest that this consumer has heard of.
        self.partition: int | None = None
        self.standing = Standing.WAITING
        self._incarnation = -1
        self._is_connected = False
        self._until_s: float | None = None  # None: no beat has come back yet.
        self._since_s = 0.0  # When it joined, on this connection.
        self._beats = 0
        self._sent: dict[int, float] = {}  # When each beat was sent that has not come back.
        self._owed: int | None = None  # The epoch of a step-down that nobody could be told of.

    @property
    def beat_s(self) -> float:
        """How often to beat."""
        return min(BEAT_S, self.lease_s / 5)

    def holds(self, consumer: str, epoch: int, now_s: float) -> bool:
        """Whether this is believed now. Any thread may ask."""
        until_s = self._until_s
        is_held = self.standing in _HELD and (self.consumer, self.epoch) == (consumer, epoch)
        return is_held and until_s is not None and now_s < until_s

    def check(self, now_s: float) -> None:
        """Time has passed: a belief may have ended."""
        if self.standing in _HELD and (self._until_s is None or not now_s < self._until_s):
            self.standing = Standing.OVER

    # Connections.

    def joined(self, frame: Joined, now_s: float) -> list[GroupFromClient]:
        """The node has answered join: what to say first. Raises Lost."""
        self.check(now_s)
        if frame.consumer != self.consumer:
            self._become(frame.consumer)
        elif self.standing is Standing.OVER:
            return self.leave()
        elif frame.incarnation <= self._incarnation:
            raise Lost("the node knows an older incarnation only")
        self.lease_s = frame.lease_s
        self._incarnation = frame.incarnation
        self._is_connected = True
        self._since_s = now_s
        owed, self._owed = self._owed, None
        return [] if owed is None else [Confirm(frame.consumer, owed, "stepped_down")]

    def disconnected(self) -> None:
        """The connection is lost, or given up. The beats that were sent on it do not come back."""
        self._is_connected = False
        self._sent.clear()
        if self.standing in (Standing.TOLD, Standing.LEAVING):
            self.standing = Standing.OVER
        if self.standing is Standing.WAITING:
            self._until_s = None

    def beat(self, now_s: float) -> BeatFrame:
        """The next beat; raises Lost if none has come back for too long."""
        self.check(now_s)
        end_s = self._until(self._since_s) if self._until_s is None else self._until_s
        if not now_s < end_s:
            raise Lost("no beat has come back in time")
        self._beats += 1
        self._sent[self._beats] = now_s
        return BeatFrame(self._beats)

    # What the node says.

    def receive(self, frame: GroupFromNode, now_s: float) -> list[GroupFromClient]:
        """What to answer. Raises what ends the connection."""
        self.check(now_s)
        if self.standing is Standing.OVER:
            raise Lost("this consumer has stopped believing")
        if self.standing is Standing.LEAVING:
            return []
        match frame:
            case BeatFrame():
                self._echoed(frame.n, now_s)
                return []
            case Active():
                return self._told_active(frame, now_s) if self._is_meant(frame) else []
            case StepDown():
                return self._told_to_step_down(frame) if self._is_meant(frame) else []
            case ErrorFrame():
                raise group_error_of(frame)
            case Joined():
                raise Lost("the node said joined twice")
            case _:
                assert_never(frame)

    def _is_meant(self, order: Active | StepDown) -> bool:
        is_ours = (order.consumer, order.incarnation) == (self.consumer, self._incarnation)
        return is_ours and order.epoch >= self.epoch

    def _echoed(self, n: int, now_s: float) -> None:
        """Whatever was sent before this one may be forgotten: beats come back in order."""
        sent_s = self._sent.get(n)
        if sent_s is None:
            return
        self._sent = {later: at_s for later, at_s in self._sent.items() if later > n}
        until_s = self._until(sent_s)
        if now_s < until_s:
            self._until_s = until_s if self._until_s is None else max(until_s, self._until_s)
            if self.standing is Standing.TOLD:
                self.standing = Standing.HOLDING

    def _told_active(self, order: Active, now_s: float) -> list[GroupFromClient]:
        if order.epoch > self.epoch:
            self.epoch = order.epoch
            self.partition = order.partition
            self._owed = None
            if self._until_s is None:
                self.standing = Standing.TOLD
            else:
                self.standing = Standing.HOLDING if now_s < self._until_s else Standing.OVER
        elif self.standing not in (Standing.TOLD, Standing.HOLDING):
            return []  # Given back, or about to be: what is over does not begin again.
        return [Confirm(order.consumer, order.epoch, "active")]

    def _told_to_step_down(self, order: StepDown) -> list[GroupFromClient]:
        if order.epoch == self.epoch and self.standing in _HELD:
            self.standing = Standing.STEPPING
            return []
        self.epoch = order.epoch
        self.standing = Standing.WAITING
        return [Confirm(order.consumer, order.epoch, "stepped_down")]

    # What the program says.

    def done(self, consumer: str, epoch: int, now_s: float) -> list[GroupFromClient]:
        """The work of this epoch is finished. Whoever was not asked to leave it off, leaves."""
        self.check(now_s)
        if not self.holds(consumer, epoch, now_s):
            return []
        if self.standing is Standing.HOLDING:
            if self._is_connected:
                return self.leave()
            self.standing = Standing.OVER
            return []
        self.standing = Standing.WAITING
        if not self._is_connected:
            self._owed = epoch
            self._until_s = None
            return []
        return [Confirm(consumer, epoch, "stepped_down")]

    def leave(self) -> list[GroupFromClient]:
        """Leave the group: this is the last thing to say."""
        if self.consumer is None:
            return []
        self.standing = Standing.LEAVING
        return [Leave(self.consumer)]

    def left(self) -> None:
        """That was said."""
        self._become(None)

    def _become(self, consumer: str | None) -> None:
        self.consumer = consumer
        self.epoch = 0
        self.partition = None
        self.standing = Standing.WAITING
        self._incarnation = -1
        self._until_s = None
        self._sent.clear()
        self._owed = None

    def _until(self, sent_s: float) -> float:
        return sent_s + self.lease_s - min(MARGIN_S, self.lease_s / 4)
