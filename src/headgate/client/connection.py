"""One WebSocket to a node, and the three loops that use it.

One loop writes what the session has to say, one reads what the node says, one beats. Only the reading loop decides why
a connection ended: the node's last word may still lie in its queue when writing fails.

Two protocols are spoken like this; they differ in their frames, and in what answers the first of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from abc import abstractmethod
from typing import Generic, NoReturn, Protocol, Self, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from headgate.client.errors import Lost, error_of, group_error_of
from headgate.core import frames
from headgate.core.frames import (
    BadFrame,
    ErrorFrame,
    FromNode,
    GroupFromNode,
    HelloFrame,
    JoinedFrame,
    JoinFrame,
    OkFrame,
)

CLOSE_S = 1.0
MAX_INCOMING_BYTES = 16 * frames.MAX_FRAME_BYTES  # One ack may name very many streams.
WRITE_AHEAD_BYTES = 1024 * 1024  # Several frames, so that the socket has something to do while we make the next.
SHORTEST_BEAT_S, LONGEST_BEAT_S = 0.01, 60.0  # Whatever the node asks for.

# At debug level the library would log every frame, and the first one has the token in it.
_silent = logging.Logger("headgate.client.websockets")
_silent.disabled = True


Heard = TypeVar("Heard")
HeardBy = TypeVar("HeardBy", contravariant=True)
Answer = TypeVar("Answer")


class Speaker(Protocol[HeardBy]):
    """Decides what to send, and handles what is received."""

    wanted: asyncio.Event  # There may be something to send.

    def next_frame(self) -> bytes | None:
        """What to send now, if anything."""

    def receive(self, frame: HeardBy) -> None:
        """Take in what the node said; raises what ends the connection."""

    def beat(self) -> None:
        """One beat's time has passed; raises if that ends the connection."""


class Wire(Generic[Heard, Answer]):
    """A socket on which the frames of one protocol go both ways."""

    answer: type[Answer]  # To the first frame.

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    @classmethod
    async def open(
        cls, address: str, hello: HelloFrame | JoinFrame, timeout_s: float, tls: ssl.SSLContext | None = None
    ) -> tuple[Self, Answer]:
        """Connect and say hello, or what stands for it; what the node answered."""
        async with asyncio.timeout(timeout_s):
            socket = await connect(
                address,
                ssl=(tls or True) if address.startswith("wss:") else None,  # True: whom everybody trusts.
                compression=None,  # It would cost more than everything else together.
                open_timeout=None,
                ping_interval=None,  # The protocol has its own beats.
                close_timeout=CLOSE_S,
                max_size=MAX_INCOMING_BYTES,
                write_limit=WRITE_AHEAD_BYTES,
                logger=_silent,
            )
            connection = cls(socket)
            try:
                return connection, await connection._greet(hello)
            except BaseException:
                connection.abort()
                raise

    async def run(self, session: Speaker[Heard], beat_s: float) -> NoReturn:
        """Work until the connection ends; raises the reason."""
        loops = [
            asyncio.create_task(self._read(session)),
            asyncio.create_task(self._beat(session, min(max(SHORTEST_BEAT_S, beat_s), LONGEST_BEAT_S))),
            asyncio.create_task(self._write(session)),
        ]
        try:
            await asyncio.wait(loops, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for loop in loops:
                loop.cancel()
            ends = await asyncio.gather(*loops, return_exceptions=True)
        raise next(end for end in ends if isinstance(end, Exception))

    async def close(self) -> None:
        """Say goodbye, if the node listens."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._socket.close()
        self.abort()

    def abort(self) -> None:
        """Close the socket at once, whatever is still in it."""
        self._socket.transport.abort()

    @staticmethod
    @abstractmethod
    def decode(data: bytes) -> Heard:
        """What the node sent; raises BadFrame."""

    @staticmethod
    @abstractmethod
    def error_of(frame: ErrorFrame) -> Exception:
        """What an error frame means."""

    async def _greet(self, hello: HelloFrame | JoinFrame) -> Answer:
        await self._socket.send(frames.encode(hello))
        answer = await self._receive()
        if isinstance(answer, ErrorFrame):
            raise self.error_of(answer)
        if not isinstance(answer, self.answer):
            raise Lost("the node did not answer the first frame")
        return answer

    async def _write(self, session: Speaker[Heard]) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await session.wanted.wait()
                session.wanted.clear()
                while (frame := session.next_frame()) is not None:
                    await self._socket.send(frame)

    async def _read(self, session: Speaker[Heard]) -> None:
        while True:
            session.receive(await self._receive())

    async def _beat(self, session: Speaker[Heard], beat_s: float) -> None:
        while True:
            await asyncio.sleep(beat_s)
            session.beat()

    def _decode(self, data: str | bytes) -> Heard:
        if isinstance(data, str):
            raise BadFrame("bad_frame", "a text message")
        return self.decode(data)

    async def _receive(self) -> Heard:
        """The next frame. A node that sends something else gets an error frame, if it still listens."""
        data = await self._socket.recv()
        try:
            return self._decode(data)
        except BadFrame as bad:
            with contextlib.suppress(TimeoutError, ConnectionClosed):
                async with asyncio.timeout(CLOSE_S):
                    await self._socket.send(frames.encode(ErrorFrame(bad.code, bad.text)))
            raise Lost(f"the node sent something that is not a frame: {bad.text}") from None


class Connection(Wire[FromNode, OkFrame]):
    """The connection of a push client."""

    answer = OkFrame

    @staticmethod
    def decode(data: bytes) -> FromNode:
        return frames.decode_from_node(data, MAX_INCOMING_BYTES)

    @staticmethod
    def error_of(frame: ErrorFrame) -> Exception:
        return error_of(frame)


class GroupConnection(Wire[GroupFromNode, JoinedFrame]):
    """The connection of a consumer."""

    answer = JoinedFrame

    @staticmethod
    def decode(data: bytes) -> GroupFromNode:
        return frames.decode_group_from_node(data)

    @staticmethod
    def error_of(frame: ErrorFrame) -> Exception:
        return group_error_of(frame)
