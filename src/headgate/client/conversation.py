"""What a consumer and a node say to each other, without a socket.

What the consumer may believe, and what it answers, is decided in `core.groups.belief`. `Believer` keeps that belief
over all connections; a `Conversation` is what is said on one of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import assert_never

from headgate.client.errors import Left, Lost, group_error_of
from headgate.core import frames
from headgate.core.frames import GroupFromClient, GroupFromNode, LeaveFrame
from headgate.core.groups import belief
from headgate.core.groups.belief import BeatDue, Belief, GiveUpConnection, Heard, ReportError, Say


class Believer:
    """The belief of one consumer. Any thread may read it: a step puts a new one in place of the old."""

    def __init__(self) -> None:
        self.belief = Belief()

    def step(self, event: belief.Event) -> list[GroupFromClient]:
        """Take in what happened; returns what to send. Raises what ends the connection."""
        done = belief.step(self.belief, event)
        self.belief = done.belief
        says: list[GroupFromClient] = []
        for effect in done.effects:
            match effect:
                case Say(frame=frame):
                    says.append(frame)
                case GiveUpConnection(reason=reason):
                    raise Lost(reason)
                case ReportError(frame=error):
                    raise group_error_of(error)
                case _:
                    assert_never(effect)
        return says


class Conversation:
    """What is said on one connection. Nothing is said after the goodbye."""

    def __init__(self, believer: Believer, clock: Callable[[], float], look: Callable[[], None]) -> None:
        self.wanted = asyncio.Event()
        self.has_progress = False  # The node has said something after joined.
        self._believer = believer
        self._clock = clock
        self._look = look
        self._control: deque[GroupFromClient] = deque()
        self._has_left = False

    def say(self, *said: GroupFromClient) -> None:
        """Send this when there is room."""
        for frame in said:
            if not self._has_left:
                self._control.append(frame)
                self._has_left = isinstance(frame, LeaveFrame)
        self.wanted.set()

    def next_frame(self) -> bytes | None:
        """What to send now; raises Left after the last frame."""
        if self._control:
            return frames.encode(self._control.popleft())
        if self._has_left:
            raise Left
        return None

    def beat(self) -> None:
        """Send a beat, unless the goodbye was said."""
        if not self._has_left:
            self.say(*self._believer.step(BeatDue(self._clock())))

    def receive(self, frame: GroupFromNode) -> None:
        """Take in what the node said."""
        try:
            self.say(*self._believer.step(Heard(frame, self._clock())))
        finally:
            self._look()
        self.has_progress = True
