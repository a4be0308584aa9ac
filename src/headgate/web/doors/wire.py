"""The WebSocket below the doors: what arrives is taken in pieces, in turns, and only when the door asks for more.

uvicorn hands a connection over when its request asks for a WebSocket. One task serves it: the handshake, then the door
of its path, which asks for one message after the other. Nothing is parsed ahead of the door, and nothing while the peer
does not read what it is sent; meanwhile the kernel slows the peer down. How much may be taken at a time, and before the
first frame is accepted, is decided in `core.sockets`. Frames are read and written by the library `websockets`.

A connection ends with a close frame, and two seconds for the peer to answer it. A peer that does not read gets neither:
its connection is aborted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import Any, cast
from urllib.parse import unquote

import structlog
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from headgate.clock import boot_s
from headgate.core import sockets
from headgate.core.frames import ErrorFrame, encode
from headgate.core.sockets import Allowance
from headgate.text import counted
from headgate.web.doors.asgi import Scope
from headgate.web.doors.turns import Turns

HANDSHAKE_S = 10.0
HEAD_BYTES = 64 * 1024
BACKLOG_BYTES = 64 * 1024  # With more than this the kernel is asked for nothing.
LAST_S = 2.0  # For the last frames to get through, and for the peer to answer the close frame.
QUIET_S = 0.5
CLOSE_DONE = 1000
CLOSE_FAILED = 4000  # The error frame says why.
CLOSE_GOING = 1012  # The node stops, and others go on.

log = structlog.get_logger()
_silent = logging.Logger("headgate.web.websockets")  # The library logs what peers do wrong.
_silent.disabled = True


class Over(Exception):
    """The connection ends; what the program is told."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class _Frames(ServerProtocol):
    """Says in a frame of our own what is wrong, before it closes because of something that is no WebSocket frame."""

    def __init__(self) -> None:
        super().__init__(max_size=sockets.EARLY_BYTES, logger=_silent)
        self.fault: ErrorFrame | None = None

    def fail(self, code: CloseCode | int, reason: str = "") -> None:
        """Something arrived that ends the connection."""
        if code == CloseCode.MESSAGE_TOO_BIG:
            size = counted(self.max_message_size or 0, "byte")
            self.fault = ErrorFrame("too_large", f"a message is too large; at most {size} are taken")
        else:
            self.fault = ErrorFrame("bad_frame", "this is not a frame of a WebSocket")
        if self.state is OPEN:
            self.send_binary(encode(self.fault))
        super().fail(CLOSE_FAILED)


class SocketProtocol(asyncio.Protocol):
    """One WebSocket. uvicorn makes it; the door of its path gets it."""

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        self._doors = config.loaded_app.doors
        self._turns: Turns = config.loaded_app.turns
        self._connections: set[Any] = server_state.connections
        self._tasks: set[asyncio.Task[None]] = server_state.tasks
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # Until connection_made.
        self._frames = _Frames()
        self._allowance = Allowance()
        self._turn_began_s = 0.0
        self._piece_bytes = sockets.SMALL_PIECE_BYTES
        self._backlog = bytearray()  # What has arrived and was not taken yet.
        self._news = asyncio.Event()  # More has arrived, or nothing more will.
        self._is_paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._messages: deque[bytes | str] = deque()
        self._parts: bytearray | None = None  # Of a message whose end has not come.
        self._is_text = False
        self._is_lost = False  # The transport is gone.
        self._is_over = False  # The peer has hung up, or this node goes.
        self._is_ending = False  # This node has begun to end the connection.
        self.has_left = False  # The peer has ended it: by a close frame, its FIN or its reset, before this node did.
        self.scope: Scope = {}

    # What the event loop and uvicorn call.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer has connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        task = asyncio.get_running_loop().create_task(self._run(), name="socket")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def data_received(self, data: bytes) -> None:
        """It sent something."""
        self._backlog += data
        self._news.set()
        if len(self._backlog) > BACKLOG_BYTES and not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """It sends nothing more; what it was sent may still be on its way."""
        self._leave()
        self._hang_up()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._connections.discard(self)
        if isinstance(exc, ConnectionError):  # Its reset, now or at our last write. A timeout is none.
            self._leave()
        self._is_lost = True
        self._writable.set()
        self._hang_up()

    def pause_writing(self) -> None:
        """It does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It reads again."""
        self._writable.set()

    def shutdown(self) -> None:
        """This node stops."""
        self._send_close(CLOSE_GOING)
        self._hang_up()

    def _leave(self) -> None:
        self.has_left = self.has_left or not self._is_ending

    def _hang_up(self) -> None:
        self._is_over = True
        self._news.set()

    # What the door calls.

    async def receive(self, within_s: float) -> bytes | None:
        """The next message; None when the peer has hung up."""
        try:
            async with asyncio.timeout(within_s):
                message = await self._next_message()
        except TimeoutError:
            if not self._writable.is_set():
                self.abort()
                raise Over("slow", "the program does not read") from None
            raise Over("silent", f"no frame came for {within_s:.0f} s") from None
        if isinstance(message, str):
            raise Over("bad_frame", "frames are binary messages")
        return message

    def send(self, data: bytes) -> bool:
        """Send a message. False if the peer has left too much unread: then the connection is aborted."""
        if self._frames.state is OPEN:
            self._frames.send_binary(data)
            self._flush()
        return not self._has_overflowed()

    @property
    def has_more(self) -> bool:
        """Whether something has arrived that the door has not asked for."""
        return bool(self._messages or self._backlog)

    def admit(self, max_bytes: int) -> None:
        """The first frame was accepted. From now on messages may have this many bytes."""
        self._frames.max_message_size = max_bytes
        self._allowance = sockets.admitted(self._allowance)

    def count_idle(self) -> None:
        """The last message carried nothing."""
        self._allowance = sockets.took(self._allowance, 0, 1, boot_s())

    async def breathe(self) -> None:
        """Let others have a turn, if this one has lasted long enough."""
        if boot_s() - self._turn_began_s > sockets.TURN_S:
            await self._turns.take(is_fresh=False)
            self._turn_began_s = boot_s()

    async def close(self, code: int) -> None:
        """Say that it is over, and give the peer a moment to hear it.

        What it still sends is thrown away meanwhile: unread, it would make the kernel throw our last words away. After
        something that is no frame, an answer of the peer cannot be read, and its silence stands for one.
        """
        self._send_close(code)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                while not self._is_over:
                    async with asyncio.timeout(LAST_S if self._frames.fault is None else QUIET_S):
                        await self._take()
                    self._messages.clear()
                await self._writable.wait()
        if self._is_lost or self._transport.get_write_buffer_size():
            self.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Cut the peer off."""
        self._is_ending = True
        if not self._is_lost:
            self._transport.abort()

    # The handshake.

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                door = await self._handshake()
            if door is not None:
                await door(self)
        except TimeoutError:
            pass
        except Exception:
            log.exception("a connection was ended by a fault of this node")
        finally:
            if not self._transport.is_closing():
                self.abort()

    async def _handshake(self) -> Any:
        """The door of the path that the peer asks for. None if there is none, or the request is not right."""
        while (end := self._backlog.find(b"\r\n\r\n")) < 0:
            if self._is_over or len(self._backlog) > HEAD_BYTES:
                return None
            await self._more()
        self._frames.receive_data(self._cut(end + 4))
        door = None
        for request in self._frames.events_received():
            assert isinstance(request, Request)
            self.scope = self._scope_of(request)
            door = None if self._doors is None else self._doors.get(self.scope["path"])
            refusal = 503 if self._doors is None else 403  # Not yet, or never.
            response = self._frames.accept(request) if door is not None else self._frames.reject(refusal, "")
            door = door if response.status_code == 101 else None
            self._frames.send_response(response)
        self._flush()
        if door is None:
            self._transport.close()
        return door

    def _scope_of(self, request: Request) -> Scope:
        headers = request.headers.raw_items()
        lower = [(key.lower().encode("latin-1"), value.encode("latin-1", "replace")) for key, value in headers]
        path = unquote(request.path.partition("?")[0])
        return {"path": path, "headers": lower, "client": self._transport.get_extra_info("peername")}

    # What arrives.

    async def _next_message(self) -> bytes | str | None:
        await self.breathe()
        while not self._messages:
            if self._frames.fault is not None:
                raise Over(self._frames.fault.code, self._frames.fault.text)
            if self._is_over and (not self._backlog or self._frames.state is not OPEN):
                return None
            if sockets.is_too_early(self._allowance):
                raise Over("too_large", f"more than {sockets.EARLY_BYTES:,} bytes before the first frame was accepted")
            await self._take()
        return self._messages.popleft()

    async def _take(self) -> None:
        """Take the next piece of what has arrived, or wait for it."""
        if not self._backlog:
            await self._more()
            await self._turns.take(is_fresh=True)
            self._turn_began_s = boot_s()
            return
        await self._writable.wait()
        if (wait_s := sockets.wait_s(self._allowance)) > 0.0:
            await asyncio.sleep(wait_s)
        await self.breathe()
        piece = self._cut(self._piece_bytes)
        self._frames.receive_data(piece)
        found = self._frames.events_received()
        idle = sum(self._note(frame) for frame in found if isinstance(frame, Frame))
        self._piece_bytes = sockets.piece_bytes(self._piece_bytes, len(found))
        self._allowance = sockets.took(self._allowance, len(piece), idle, boot_s())
        self._flush()

    async def _more(self) -> None:
        if not self._is_over:
            self._news.clear()
            await self._news.wait()

    def _cut(self, size_bytes: int) -> bytes:
        piece = bytes(self._backlog[:size_bytes])
        del self._backlog[:size_bytes]
        if self._is_paused and len(self._backlog) <= BACKLOG_BYTES // 2 and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()
        return piece

    def _note(self, frame: Frame) -> bool:
        """Take in a frame; whether it is idle."""
        if frame.opcode is Opcode.CLOSE:
            self._leave()
            self._is_over = True
        elif frame.opcode is not Opcode.PING and frame.opcode is not Opcode.PONG:
            self._add(frame)
            return sockets.is_idle(len(frame.data), is_control=False, is_end=frame.fin)
        return True

    def _add(self, frame: Frame) -> None:
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
            self._parts = None if frame.fin else bytearray()
        if self._parts is not None:
            self._parts += frame.data
        if frame.fin:
            data = bytes(frame.data if self._parts is None else self._parts)
            self._messages.append("" if self._is_text else data)  # What a text says does not matter.
            self._parts = None

    # What is sent.

    def _send_close(self, code: int) -> None:
        self._is_ending = True
        if self._frames.state is OPEN:
            self._frames.send_close(code)
            self._flush()

    def _flush(self) -> None:
        data = self._frames.data_to_send()
        if not data or self._transport.is_closing():
            return
        self._transport.write(b"".join(data))
        if self._has_overflowed():
            self.abort()

    def _has_overflowed(self) -> bool:
        return not self._is_lost and self._transport.get_write_buffer_size() > sockets.UNREAD_BYTES
