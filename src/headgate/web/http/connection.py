"""One connection: its requests one after the other, each within the limits.

A request is taken when the one before it has been answered; what a caller sends ahead waits in the socket. So answers
are in order, wherever they come from, and a caller can occupy this node with one request at a time. A webhook goes to
its door, any other request to uvicorn: that is decided for each.

Bytes are taken in small goes with everybody else's turn in between. A caller that is refused before its body has come
is told so; then what it still sends is dropped for a moment, because closing at once could lose the answer on its way.
"""

from __future__ import annotations

import asyncio
import enum
import time
from typing import TYPE_CHECKING, Any, Protocol, cast

from headgate.web.http.answers import Answer, Phrases
from headgate.web.http.asgi import AsgiExchange, AsgiServer
from headgate.web.http.census import Census
from headgate.web.http.limits import (
    AHEAD_BYTES,
    BODY_S,
    DROPPED_BYTES,
    GO_S,
    HEAD_S,
    IDLE_S,
    LINGER_BYTES,
    LINGER_S,
    UNREAD_BYTES,
    UNREAD_S,
    Refusal,
)
from headgate.web.http.requests import CHUNKED, Head, Piece, Requests

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

NEVER = float("inf")


class Exchange(Protocol):
    """One request on its way to its answer."""

    @property
    def may_be_refused(self) -> bool:
        """Whether nothing of an answer has been sent."""

    def take(self, piece: Piece) -> None:
        """Some of the body."""

    def lost(self) -> None:
        """Nobody waits for the answer any more."""

    def shut_down(self) -> None:
        """The node stops."""

    def pause_writing(self) -> None:
        """The caller is slower than the answer."""

    def resume_writing(self) -> None:
        """It has caught up."""


class Door(Protocol):
    """Where webhooks go."""

    def open(self, caller: Any, head: Head) -> Any:
        """A call whose head has come: an exchange."""

    def begin(self, call: Any) -> None:
        """Answer it, or have it take its body."""


class Phase(enum.Enum):
    """What a connection is about."""

    HEAD = "waits for a request"
    HELD = "has the head; the one who answers is not ready for the body"
    BODY = "takes the body"
    WORK = "has it all, and waits for the answer"
    DROP = "has answered, and drops the rest of the body"
    LINGER = "has answered, and is over; what still comes is dropped"
    SOCKET = "is a WebSocket"


class Connection(asyncio.Protocol):
    """What a listening socket makes for each that connects."""

    transport: asyncio.Transport

    def __init__(self, census: Census, door: Door, server: AsgiServer, phrases: Phrases) -> None:
        self._census = census
        self._door = door
        self._server = server
        self._phrases = phrases
        self._loop = asyncio.get_running_loop()
        self._requests = Requests()
        self._phase = Phase.HEAD
        self._until_s = NEVER  # When the phase has lasted too long.
        self._exchange: Exchange | None = None
        self._socket: asyncio.Protocol | None = None
        self._head: Head | None = None
        self._is_last = False
        self._is_idle = False  # Nothing of a request has come since the last answer.
        self._is_advancing = False
        self._is_due = False  # An advance is due in the next turn.
        self._is_paused = False
        self._is_clogged = False  # The caller has not read its answers.
        self._dropped = 0
        self._unread: tuple[int, float] | None = None  # How much was unread, and since when.
        self.address = ""

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there; whether there is room, the census knows."""
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        if reason := self._census.why_not(self.address):
            self.transport.write(self._phrases.refusal(503, reason))
            self.transport.close()
            self._phase = Phase.LINGER
            return
        self._census.enter(self)
        self._server.state.connections.add(cast("HttpToolsProtocol", self))
        self._until_s = self._loop.time() + HEAD_S

    def data_received(self, data: bytes) -> None:
        """Take it, as far as it is wanted."""
        if self._socket is not None:
            self._socket.data_received(data)
        elif self._phase is not Phase.LINGER:
            self._requests.buffer += data
            self._advance()
        else:
            self._dropped += len(data)
            if self._dropped > LINGER_BYTES:
                self.transport.abort()

    def eof_received(self) -> bool | None:
        """The caller has closed its side: it does not wait for answers."""
        return self._socket.eof_received() if self._socket is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._census.leave(self)
        self._server.state.connections.discard(cast("HttpToolsProtocol", self))
        self._phase = Phase.LINGER
        if self._socket is not None:
            self._socket.connection_lost(exc)
        if self._exchange is not None:
            self._exchange.lost()
            self._exchange = None

    def pause_writing(self) -> None:
        """The caller is slower than the answer. Its next request waits."""
        self._is_clogged = True
        if self._socket is not None:
            self._socket.pause_writing()
        elif self._exchange is not None:
            self._exchange.pause_writing()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._unread = None
        self._is_clogged = False
        if self._socket is not None:
            self._socket.resume_writing()
        elif self._exchange is not None:
            self._exchange.resume_writing()
        else:
            self._advance_soon()

    # What the node tells.

    def look(self, now_s: float) -> None:
        """Called every second: end what takes too long, and who does not read."""
        if self._is_stuck(now_s):
            self.transport.abort()
        elif now_s > self._until_s:
            self._too_slow()

    def shutdown(self) -> None:
        """The node stops: no more requests, but an answer to the one under way."""
        self._is_last = True
        if self._exchange is not None:
            self._exchange.shut_down()
        elif self._phase is Phase.LINGER:
            self.transport.abort()
        else:
            self.transport.close()

    # What the one who answers tells.

    def hold(self, is_held: bool) -> None:
        """Whether to wait before more of the body is taken."""
        if is_held and self._phase is Phase.BODY:
            self._phase = Phase.HELD
        elif not is_held and self._phase is Phase.HELD:
            self._phase = Phase.BODY
            self._advance_soon()

    def want_body(self) -> None:
        """The one who answers is ready for the body."""
        assert self._head is not None
        self._phase = Phase.BODY
        if self._head.awaits_continue and not self._requests.buffer:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._advance_soon()

    @property
    def is_last(self) -> bool:
        """Whether the connection ends with this answer."""
        return self._is_last or (self._left and not self._can_drop)

    def answer(self, answer: Answer) -> None:
        """The answer, whole."""
        head = self._head
        is_head = head is not None and head.method == "HEAD"
        is_last = self.is_last
        self._write(self._phrases.said(answer, is_last=is_last, is_head=is_head))
        self.answered(close=is_last)

    def answered(self, *, close: bool) -> None:
        """The answer has been written."""
        self._exchange = None
        if self._phase is Phase.LINGER:
            return
        if self._left:
            if self._can_drop and not close:
                self._phase, self._until_s = Phase.DROP, self._loop.time() + BODY_S
                self._advance_soon()
            else:
                self._linger()
        elif close or self._is_last:
            self._phase = Phase.LINGER
            self._until_s = self._loop.time() + UNREAD_S
            self.transport.close()
        else:
            self._await_next()

    def upgraded(self, protocol: asyncio.Protocol) -> None:
        """A WebSocket has taken over. We stay in between to count it."""
        self._phase, self._until_s = Phase.SOCKET, NEVER
        self._exchange, self._socket = None, protocol
        self._server.state.connections.discard(cast("HttpToolsProtocol", self))
        self.transport.set_protocol(self)
        self._resume()
        if self._requests.buffer:
            early, self._requests.buffer = bytes(self._requests.buffer), bytearray()
            protocol.data_received(early)

    # The requests.

    @property
    def _left(self) -> bool:
        """Whether some of the body has not come, or was not taken."""
        return self._head is not None and self._requests.body_left != 0

    @property
    def _can_drop(self) -> bool:
        """Whether the rest of the body is so small that reading it costs less than a new connection."""
        left = self._requests.body_left
        awaits = self._head is not None and self._head.awaits_continue
        return left != CHUNKED and left <= DROPPED_BYTES and not awaits

    def _advance_soon(self) -> None:
        if not self._is_due and not self._is_advancing:
            self._is_due = True
            self._loop.call_soon(self._advance)

    def _advance(self) -> None:
        """Take what has come, as far as it goes, but not for long."""
        self._is_due = False
        if self._is_advancing or self._phase is Phase.LINGER or self._socket is not None:
            return
        self._is_advancing = True
        until_s = time.perf_counter() + GO_S
        try:
            while self._step():
                if time.perf_counter() > until_s:
                    self._is_due = True
                    self._loop.call_soon(self._advance)
                    break
        except Refusal as refusal:
            self._refuse(refusal.status, refusal.reason)
        finally:
            self._is_advancing = False
        if len(self._requests.buffer) > AHEAD_BYTES:
            self._pause()
        else:
            self._resume()

    def _step(self) -> bool:
        """One step forward; False if there is nothing more to take now."""
        match self._phase:
            case Phase.HEAD:
                return not self._is_clogged and self._take_head()
            case Phase.BODY | Phase.DROP:
                return self._take_piece()
            case _:
                return False

    def _take_head(self) -> bool:
        head = self._requests.head()
        if head is None:
            if self._is_idle and self._requests.buffer:
                self._is_idle = False
                self._until_s = self._loop.time() + HEAD_S
            return False
        self._head = head
        self._is_idle = False
        self._is_last = self._is_last or head.is_last
        self._until_s = self._loop.time() + BODY_S if head.length else NEVER
        self._phase = Phase.HELD if head.length else Phase.WORK
        if head.path.startswith("/hooks/"):
            self._exchange = self._door.open(self, head)
            self._door.begin(self._exchange)
        else:
            exchange = AsgiExchange(self, self._server)
            self._exchange = exchange
            if head.length:
                self._phase = Phase.BODY
            exchange.begin(head)
        return True

    def _take_piece(self) -> bool:
        piece = self._requests.piece()
        if piece is None:
            return False
        if piece.is_last:
            self._until_s = NEVER
        if self._phase is Phase.DROP:
            if piece.is_last:
                self._await_next()
            return True
        if piece.is_last:
            self._phase = Phase.WORK
        assert self._exchange is not None
        self._exchange.take(piece)
        return True

    def _await_next(self) -> None:
        self._head = None
        self._phase, self._is_idle = Phase.HEAD, True
        self._until_s = self._loop.time() + IDLE_S
        if self._requests.buffer or self._is_paused:
            self._advance_soon()

    # The ends.

    def _refuse(self, status: int, reason: str) -> None:
        """Say why it is over. Whatever has been sent of an answer cannot be taken back: then it just ends."""
        exchange, self._exchange = self._exchange, None
        may_be_said = exchange is None or exchange.may_be_refused
        if exchange is not None:
            exchange.lost()
        if not may_be_said:
            self.transport.abort()
            return
        self._write(self._phrases.refusal(status, reason))
        self._linger()

    def _linger(self) -> None:
        """Drop what still comes, for a moment."""
        self._phase, self._until_s = Phase.LINGER, self._loop.time() + LINGER_S
        self._requests = Requests()
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        self._resume()

    def _too_slow(self) -> None:
        match self._phase:
            case Phase.HEAD if self._is_idle or not self._requests.buffer:
                self.transport.close()  # Nobody has asked for anything.
                self._phase, self._until_s = Phase.LINGER, self._loop.time() + LINGER_S
            case Phase.HEAD:
                self._refuse(408, f"the headers took longer than {HEAD_S:.0f} s")
            case Phase.BODY | Phase.HELD:
                self._refuse(408, f"the body took longer than {BODY_S:.0f} s")
            case _:
                self.transport.abort()

    def _is_stuck(self, now_s: float) -> bool:
        """Whether the caller has taken next to nothing of what it was sent, for long."""
        unread = self.transport.get_write_buffer_size()
        if not unread:
            self._unread = None
        elif self._unread is None:
            self._unread = (unread, now_s)
        elif now_s > self._unread[1] + UNREAD_S:
            if unread > self._unread[0] - UNREAD_BYTES:
                return True
            self._unread = (unread, now_s)
        return False

    def _write(self, data: bytes) -> None:
        """Between its end and the moment when we hear of it, a transport raises."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def _pause(self) -> None:
        if not self._is_paused and not self.transport.is_closing():
            self._is_paused = True
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self._is_paused and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()
