"""TLS in front of connections: a caller that is still in the handshake is counted like any other.

A server of asyncio tells nobody of a connection before its handshake is over. So here each is accepted by hand and
counted; when its handshake is over, the connection takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

from headgate.web.http.census import Census
from headgate.web.http.limits import HEAD_S

REFUSED_S = 0.5  # How long nothing is accepted if the system has no file left.


class TlsListener:
    """A listening socket, and all that shake hands on it."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        census: Census,
        connection: Callable[[], asyncio.Protocol],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._context = context
        self._census = census
        self._connection = connection
        self._tasks = {asyncio.create_task(self._accept(), name="TLS connections")}

    def close(self) -> None:
        """Accept no more, and end what has not become a connection."""
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Until nothing of it is left."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, peer = await loop.sock_accept(self._sock)
            except OSError:
                await asyncio.sleep(REFUSED_S)
                continue
            address = str(peer[0]) if isinstance(peer, tuple) else ""
            if self._census.why_not(address):
                sock.close()  # It cannot be told why: nothing may be said before the handshake.
                continue
            handshake = _Handshake(address, self._census, self._connection)
            task = asyncio.create_task(self._shake(sock, handshake), name="a TLS handshake")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _shake(self, sock: socket.socket, handshake: _Handshake) -> None:
        loop = asyncio.get_running_loop()
        try:
            with contextlib.suppress(OSError):  # It has gone, took too long, or spoke something else.
                await loop.connect_accepted_socket(
                    lambda: handshake, sock, ssl=self._context, ssl_handshake_timeout=HEAD_S
                )
        finally:
            self._census.leave(handshake)


class _Handshake(asyncio.Protocol):
    """One that has connected, until its handshake is over."""

    def __init__(self, address: str, census: Census, connection: Callable[[], asyncio.Protocol]) -> None:
        self.address = address
        self._census = census
        self._connection = connection
        census.enter(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is over: the connection takes this place."""
        self._census.leave(self)
        connection = self._connection()
        transport.set_protocol(connection)
        connection.connection_made(transport)

    def look(self, now_s: float) -> None:
        """A handshake has its own timer."""
