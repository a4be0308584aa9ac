"""Pushes records to a datasource: keeps a connection to some node, whatever happens, until it is closed.

A connection that is lost costs nothing but time: every stream asks again on the next one, learns what is durable, and
the rest is sent once more, in order.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import ssl
from collections.abc import Iterable
from types import TracebackType
from typing import NoReturn, Self

from websockets.exceptions import WebSocketException

from headgate.client.addresses import PATH, Addresses
from headgate.client.connection import Connection
from headgate.client.errors import Lost, Moved, PushError, PushRefused
from headgate.client.installation import Installation
from headgate.client.outgoing import Outgoing, Room
from headgate.client.session import Session
from headgate.client.stream import PushStream
from headgate.core import backoff, frames
from headgate.core.frames import HelloFrame

BUFFER = 100_000  # Records that may be under way: one and a half windows, so that the node never waits for us.
OPEN_S = 10.0  # A node that has not answered by then is not worth waiting for.
LONGEST_WAIT_S = 15.0  # A node that comes back is found within this.
NAME_CHARACTERS = 200

log = logging.getLogger("headgate.client")


class PushClient:
    """Pushes streams of one datasource. Use it as `async with PushClient(…) as client`.

    Leaving the block waits until everything is durable; leaving it by an exception does not. An error that no other
    connection would mend (`PushError`) fails every call that waits and every later one. Everything else is mended:
    with no node in reach calls wait, so use `asyncio.timeout` where waiting must end.
    """

    def __init__(
        self,
        urls: str | Iterable[str],
        *,
        datasource: str,
        token: str = "",
        program: str | None = None,
        instance: str | None = None,
        buffer: int = BUFFER,
        open_timeout_s: float = OPEN_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if buffer < 1:
            raise ValueError("the buffer must hold at least one record")
        self._addresses = Addresses([urls] if isinstance(urls, str) else urls)
        self._installation = Installation(PATH, tls)
        self._token = token
        self._datasource = datasource
        self._program = program
        self._instance = instance or f"{socket.gethostname()}:{os.getpid()}"
        self._open_timeout_s = open_timeout_s
        self._tls = tls
        self._room = Room(buffer)
        self._streams: dict[str, Outgoing] = {}
        self._session: Session | None = None
        self._attempt = 0  # Connections since the last one that worked.
        self._failure: PushError | None = None
        self._keeper: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"PushClient(datasource={self._datasource!r}, streams={sorted(self._streams)!r})"

    async def __aenter__(self) -> Self:
        if self._keeper is not None:
            raise RuntimeError("a client can be entered only once")
        self._keeper = asyncio.create_task(self._keep_connected(), name="headgate push client")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self._flush()
        finally:
            await self._close()

    async def stream(self, name: str) -> PushStream:
        """Ask for a stream, and wait until a node has accepted it.

        A node that cannot give it now (`busy`, `owned`, `draining`, `not_ready`) is asked again after the time it
        names; a name that cannot be a stream's raises PushRefused. A stream that is open is given again as it is.
        """
        while (outgoing := self._streams.get(name)) is not None and outgoing.is_ending:
            await PushStream(outgoing).finish()
        outgoing = self._streams.get(name) or self._ask(name)
        outgoing.askers += 1
        try:
            await outgoing.until(lambda: outgoing.was_granted)
        finally:
            outgoing.askers -= 1
            if not outgoing.askers and not outgoing.was_granted and self._streams.get(name) is outgoing:
                del self._streams[name]
        return PushStream(outgoing)

    def _ask(self, name: str) -> Outgoing:
        if self._keeper is None:
            raise RuntimeError("a client must be used within `async with`")
        if self._failure is not None:
            raise self._failure.again()
        if not 1 <= len(name) <= NAME_CHARACTERS:
            raise PushRefused("bad_stream", f"a stream's name has 1 to {NAME_CHARACTERS} characters")
        outgoing = self._streams[name] = Outgoing(name, self._room)
        if self._session is not None:
            self._session.ask(outgoing)
        return outgoing

    async def _flush(self) -> None:
        """Only what is not durable can fail now."""
        for outgoing in list(self._streams.values()):
            if outgoing.buffer.first_id is not None:
                await PushStream(outgoing).flush()

    async def _close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        self._fail(PushError("closed", "the client is closed"))

    def _fail(self, failure: PushError) -> None:
        """Fail every call that waits, and every later one: none of them hangs."""
        self._failure = self._failure or failure
        for outgoing in self._streams.values():
            outgoing.fail(self._failure)

    # Keeping the connection.

    async def _keep_connected(self) -> None:
        try:
            await self._connect_again_and_again()
        except PushError as error:
            self._fail(PushError(error.code, self._hide(error.text)))
        except Exception as error:
            failure = PushError("bug", f"the client failed: {type(error).__name__}")
            failure.__cause__ = error
            self._fail(failure)

    async def _connect_again_and_again(self) -> NoReturn:
        while True:
            address = self._addresses.next()
            is_moved = False
            try:
                await self._use(address)
            except Moved as moved:
                is_moved, reason = True, str(moved)
                self._addresses.prefer(moved.address)
            except (Lost, OSError, UnicodeError, WebSocketException) as error:  # A host's name may be malformed.
                reason = str(error) or type(error).__name__
            self._attempt += 1
            wait_s = min(backoff.wait_s(self._attempt, random.random()), LONGEST_WAIT_S)
            if is_moved and self._attempt == 1:
                wait_s = 0.0  # One redirection is normal; several in a row are a failure.
            log.warning("left %s: %s; the next try is in %.1f s", address, self._hide(reason), wait_s)
            await asyncio.sleep(wait_s)

    async def _use(self, address: str) -> NoReturn:
        """Connect, and work until the connection ends; raises the reason."""
        is_given = self._addresses.is_given(address)
        await self._installation.check(address, is_given=is_given, within_s=self._open_timeout_s)
        hello = HelloFrame(frames.VERSION, self._token, self._datasource, self._program, self._instance)
        connection, ok = await Connection.open(address, hello, self._open_timeout_s, self._tls)
        log.info("connected to %s", address)
        self._addresses.learn(ok.nodes)
        session = self._session = Session(address, ok, self._streams)
        try:
            await connection.run(session, ok.heartbeat_s)
        except (Moved, asyncio.CancelledError):
            await connection.close()
            raise
        finally:
            connection.abort()
            self._session = None
            session.close()
            if session.has_progress:
                self._attempt = 0

    def _hide(self, text: str) -> str:
        """What a node says may repeat what we said."""
        return text.replace(self._token, "…") if self._token else text
