"""What the doors for WebSockets have in common.

A `Connection` sends frames in order and ends with an error frame that says why. The rest is what every first frame is
checked for, and what is said when this node cannot serve anybody now.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from headgate.core import frames
from headgate.core.access import Caller, Subject
from headgate.core.frames import BadFrame, Frame
from headgate.errors import Forbidden, StoreError
from headgate.web.auth import Gate, address_of
from headgate.web.doors.asgi import Receive, Scope, Send

HELLO_S = 10.0
MOST_QUEUED = 10_000  # Frames that a program has not read. One that reads nothing is cut off.
LAST_S = 2.0  # For an error frame to get through.
CLOSE_FAILED = 4000  # The error frame says why.


class Over(Exception):
    """The connection ends; what the program is told."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """There is nothing under this path."""
    await receive()
    await send({"type": "websocket.close", "code": 1008})


class Connection:
    """One program: what it is sent, and how its connection ends."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._queue: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._failure: frames.ErrorFrame | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it has been told that it is over."""
        return self._failure is not None

    def fail(self, code: str, text: str) -> None:
        """It is over, from whichever side."""
        if self._failure is None:
            self._failure = frames.ErrorFrame(code, text)
            if self._reading is not None:
                self._reading.cancel()

    def token_ended(self) -> None:
        """It was revoked, or is past its end."""
        self.fail("unauthorized", "the token has ended")

    def say(self, frame: Frame) -> None:
        """Send a frame, in order."""
        if self._queue.qsize() >= MOST_QUEUED:
            self.fail("slow", "too many frames were not read")
        elif self._failure is None:
            self._queue.put_nowait(frame)

    async def serve(self, receive: Receive, reading: Any) -> str:
        """Accept, read until that ends, say the last word and close. Returns its code."""
        await receive()  # websocket.connect
        await self._send({"type": "websocket.accept"})
        writing = asyncio.create_task(self._write(), name="frame writer")
        self._reading = asyncio.create_task(reading, name="frame reader")
        try:
            await asyncio.wait([self._reading])
            self._note_end(self._reading)
        finally:
            self._reading.cancel()
            code = await self._finish(writing)
        return code

    async def _write(self) -> None:
        while (frame := await self._queue.get()) is not None:
            await self._send({"type": "websocket.send", "bytes": frames.encode(frame)})

    async def _finish(self, writing: asyncio.Task[None]) -> str:
        with contextlib.suppress(Exception):  # The program may be gone already.
            async with asyncio.timeout(LAST_S):
                self._queue.put_nowait(None)
                await writing
                if self._failure is not None:
                    await self._send({"type": "websocket.send", "bytes": frames.encode(self._failure)})
                await self._send({"type": "websocket.close", "code": 1000 if self._failure is None else CLOSE_FAILED})
        writing.cancel()
        return self._failure.code if self._failure is not None else "closed"

    def _note_end(self, reading: asyncio.Task[None]) -> None:
        """Why the connection ended, for its last word."""
        if reading.cancelled():
            return
        error = reading.exception()
        if isinstance(error, Over | BadFrame):
            if error.code != "closed":
                self.fail(error.code, error.text)
        elif error is not None:
            self.fail("internal", "a fault of this node")
            raise error


async def next_bytes(receive: Receive, within_s: float) -> bytes | None:
    """The next frame's bytes; None when the program has hung up."""
    try:
        async with asyncio.timeout(within_s):
            message = await receive()
    except TimeoutError:
        raise Over("silent", f"nothing came for {within_s:.0f} s") from None
    if message["type"] == "websocket.disconnect":
        return None
    data = message.get("bytes")
    if data is None:
        raise Over("bad_frame", "frames are binary messages")
    return bytes(data)


@contextlib.contextmanager
def needs_database() -> Iterator[None]:
    """End the connection if the database is away: another node may reach it."""
    try:
        yield
    except StoreError:
        raise Over("not_ready", "the database is away") from None


def check_trust(trust_left_s: float) -> None:
    """End the connection if this node may have been declared dead."""
    if trust_left_s <= 0.0:
        raise Over("not_ready", "this node may not act now")


async def check_token(gate: Gate, scope: Scope, token: str, subject: Subject) -> Caller:
    """Who has this token; end the connection unless they may send to this."""
    headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
    with needs_database():
        caller = await gate.identify_text(token, headers, address_of(scope))
    if caller is None:
        raise Over("unauthorized", "the token is missing or not valid")
    try:
        gate.check(caller, "send", subject, address_of(scope))
    except Forbidden as error:
        raise Over("forbidden", error.message) from None
    return caller


def check_version(version: int) -> None:
    """End the connection unless both sides speak the same version."""
    if version != frames.VERSION:
        raise Over("version", f"version {version} is not supported; this node speaks version {frames.VERSION}")
