"""The protocol on one connection: frames in, frames out, and no socket.

The client's loops hand in what the node sends, and send what `next_frame` gives. Requests and beats go first; records
follow as credits allow, a batch of each stream in turn. `wanted` is set whenever there may be something to send.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import assert_never

from headgate.client.addresses import usable
from headgate.client.errors import Lost, Moved, PushError, PushRefused, error_of
from headgate.client.outgoing import Outgoing, Phase
from headgate.core import frames
from headgate.core.frames import (
    AckFrame,
    BeatFrame,
    ClosedFrame,
    EosFrame,
    ErrorFrame,
    Frame,
    FromNode,
    MessagesFrame,
    NotifyAckFrame,
    NotifyFrame,
    OkFrame,
    RestartFrame,
)

ASK_AGAIN_S = 0.5  # A node that gives no hint needs about that long to move a stream.
ASK_SOONEST_S, ASK_LATEST_S = 0.01, 60.0  # A hint beyond these is a mistake.
REFUSED = {"bad_stream"}  # Reasons for which asking again is useless.


class Session:
    """What one connection knows: credits, who may send, and what has been said."""

    def __init__(self, address: str, ok: OkFrame, streams: dict[str, Outgoing]) -> None:
        self.wanted = asyncio.Event()
        self.has_progress = False  # The node has said something after ok.
        self._address = address
        self._credits = ok.credits
        self._max_frame = ok.max_frame
        self._streams = streams
        self._control: deque[Frame] = deque()
        self._ready: deque[Outgoing] = deque()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._has_restarted = False  # The node has taken a stream from us; what was under way then may offend it.
        self._beats = 0
        self._missed = 0
        for outgoing in streams.values():
            self.ask(outgoing)

    def close(self) -> None:
        """The connection is over: what it granted is void."""
        for timer in self._timers.values():
            timer.cancel()
        for outgoing in self._streams.values():
            outgoing.revoke()

    # What goes out.

    def ask(self, outgoing: Outgoing) -> None:
        """Ask for a stream, unless it has been given up meanwhile."""
        self._timers.pop(outgoing.name, None)
        if self._streams.get(outgoing.name) is outgoing and outgoing.phase is Phase.ASKING and not outgoing.failure:
            self._say(NotifyFrame(outgoing.name))

    def beat(self) -> None:
        """One beat's time has passed; raises if the node has missed too many."""
        if self._missed >= frames.MISSED_BEATS:
            raise Lost(f"{self._missed} beats were not answered")
        self._missed += 1
        self._beats += 1
        self._say(BeatFrame(self._beats))

    def next_frame(self) -> bytes | None:
        """What to send now; None if there is nothing, or no credit for it."""
        if self._control:
            return frames.encode(self._control.popleft())
        while self._ready and self._credits:
            outgoing = self._ready.popleft()
            if outgoing.phase is Phase.OPEN:
                frame = self._records(outgoing) if outgoing.buffer.waiting else None
                self._queue(outgoing)
                if frame is not None:
                    return frame
        return None

    def _records(self, outgoing: Outgoing) -> bytes:
        messages = outgoing.take(self._credits)
        self._credits -= len(messages)
        frame = frames.encode(MessagesFrame(outgoing.name, messages))
        if len(frame) > self._max_frame:
            raise PushError("too_large", f"a record of stream {outgoing.name!r} is too large for this node")
        return frame

    def _queue(self, outgoing: Outgoing) -> None:
        """This stream has its turn when it has something to send. Its end needs no credit and no turn."""
        if outgoing.buffer.waiting:
            self._ready.append(outgoing)
            self.wanted.set()
        elif not outgoing.is_ending:
            outgoing.is_idle = True
        elif not outgoing.is_eos_sent:
            outgoing.is_eos_sent = True
            self._say(EosFrame(outgoing.name))

    def _say(self, frame: Frame) -> None:
        self._control.append(frame)
        self.wanted.set()

    # What comes in.

    def receive(self, frame: FromNode) -> None:
        """Take in what the node said. Raises Lost, Moved or PushError if that ends the connection."""
        match frame:
            case AckFrame():
                self._credits += frame.credits
                for stream, position in frame.positions:
                    if outgoing := self._streams.get(stream):
                        outgoing.acknowledge(position)
                self.wanted.set()
            case NotifyAckFrame():
                self._answered(frame)
            case ClosedFrame():
                self._closed(frame)
            case RestartFrame():
                self._restart(frame)
            case BeatFrame():
                self._missed = max(0, self._beats - frame.n)
            case ErrorFrame():
                raise self._error(frame)
            case OkFrame():
                raise Lost("the node said ok twice")
            case _:
                assert_never(frame)
        self.has_progress = True

    def _answered(self, frame: NotifyAckFrame) -> None:
        outgoing = self._streams.get(frame.stream)
        if outgoing is None:
            if frame.accepted:  # Nobody wants it any more.
                self._say(EosFrame(frame.stream))
        elif outgoing.phase is not Phase.ASKING:
            return
        elif frame.accepted:
            outgoing.grant(frame.position, self._max_frame, self._queue)
        elif frame.reason in REFUSED:
            outgoing.fail(PushRefused(str(frame.reason), f"the node does not take stream {frame.stream!r}"))
        else:
            hint_s = ASK_AGAIN_S if frame.retry_after_ms is None else frame.retry_after_ms / 1000
            self._ask_later(outgoing, min(max(hint_s, ASK_SOONEST_S), ASK_LATEST_S))

    def _closed(self, frame: ClosedFrame) -> None:
        outgoing = self._streams.get(frame.stream)
        if outgoing is None:
            return
        outgoing.acknowledge(frame.position)
        if outgoing.is_eos_sent and outgoing.buffer.first_id is None:
            del self._streams[frame.stream]
            outgoing.close()
        else:
            # The node has given the stream back before it had everything: it is ours to ask for again.
            outgoing.revoke()
            self._ask_later(outgoing, ASK_AGAIN_S)

    def _restart(self, frame: RestartFrame) -> None:
        address = usable(frame.address)
        reason = frame.reason or "the node asks for it"
        if frame.stream is None:
            raise Moved(address, reason)
        outgoing = self._streams.get(frame.stream)
        if outgoing is None:
            return
        if address is not None and address != self._address:
            raise Moved(address, reason)
        self._has_restarted = True
        outgoing.revoke()
        self._ask_later(outgoing, ASK_AGAIN_S)

    def _error(self, frame: ErrorFrame) -> Exception:
        if frame.code == "not_granted" and self._has_restarted:
            return Lost(f"{frame.text}, after a restart")
        return error_of(frame)

    def _ask_later(self, outgoing: Outgoing, wait_s: float) -> None:
        if timer := self._timers.pop(outgoing.name, None):
            timer.cancel()
        self._timers[outgoing.name] = asyncio.get_running_loop().call_later(wait_s, self.ask, outgoing)
