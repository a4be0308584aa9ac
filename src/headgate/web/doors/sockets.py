"""What the doors for WebSockets have in common.

A `Connection` sends frames in order and ends with an error frame that says why. The rest is what every first frame is
checked for, and what is said when this node cannot serve anybody now.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import Any

from headgate.core import frames
from headgate.core.access import Caller, Subject
from headgate.core.frames import BadFrame, Frame
from headgate.errors import Forbidden, StoreError
from headgate.web.auth import Gate, address_of
from headgate.web.doors.asgi import Scope
from headgate.web.doors.wire import CLOSE_DONE, CLOSE_FAILED, Over, SocketProtocol

HELLO_S = 10.0


class Connection:
    """One program: what it is sent, and how its connection ends."""

    def __init__(self, socket: SocketProtocol) -> None:
        self.socket = socket
        self._failure: frames.ErrorFrame | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it has been told that it is over."""
        return self._failure is not None

    @property
    def has_more(self) -> bool:
        """Whether frames of it have arrived and were not read yet."""
        return self.socket.has_more

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
        if self._failure is None and not self.socket.send(frames.encode(frame)):
            self.fail("slow", "the program does not read")

    async def serve(self, reading: Coroutine[Any, Any, None]) -> str:
        """Read until that ends, say the last word and close. Returns its code."""
        self._reading = asyncio.create_task(reading, name="frame reader")
        try:
            await asyncio.wait([self._reading])
            self._note_end(self._reading)
        finally:
            self._reading.cancel()
            code = await self._finish()
        return code

    async def _finish(self) -> str:
        if self._failure is None:
            await self.socket.close(CLOSE_DONE)
            return "closed"
        self.socket.send(frames.encode(self._failure))
        await self.socket.close(CLOSE_FAILED)
        return self._failure.code

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
        raise Over(frames.OTHER_VERSION.code, frames.OTHER_VERSION.text)
