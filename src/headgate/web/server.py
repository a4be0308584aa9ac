"""The HTTP server of a node, in the node's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from typing import cast

import uvicorn

from headgate.config import Settings
from headgate.errors import ConfigError
from headgate.web.doors.wire import SocketProtocol
from headgate.web.front import Front
from headgate.web.headers import ALWAYS
from headgate.web.http.answers import Phrases
from headgate.web.http.asgi import AsgiServer
from headgate.web.http.census import Census
from headgate.web.http.connection import Connection
from headgate.web.http.handshake import TlsListener
from headgate.web.http.limits import Limits

NEXT_PORTS = 50  # How far to look for a free port.
BACKLOG = 2048
KEPT_FILES = 200  # For the database, files and other nodes, of those that the system lets us open.


def bind(host: str, port: int, *, search: bool) -> socket.socket:
    """A listening socket; with `search`, on the next free port if this one is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, port + (NEXT_PORTS if search and port else 1)):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, candidate))
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(f"{host}:{port} cannot be listened on: {error.strerror}") from None
        else:
            return sock
    raise ConfigError(f"port {port} on {host} is taken", hint="--port another, or --port 0 for any")


def url_of(sock: socket.socket, *, is_tls: bool = False) -> str:
    """The address that people type."""
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http{'s' if is_tls else ''}://{'127.0.0.1' if host in ('0.0.0.0', '::') else shown}:{port}"


def limits_of(settings: Settings) -> Limits:
    """How many connections there may be: no more than the system lets us open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    room = settings.max_connections if soft == resource.RLIM_INFINITY else max(soft - KEPT_FILES, soft // 2)
    connections = min(settings.max_connections, room)
    return Limits(connections, min(settings.max_connections_per_address, connections))


class Server(uvicorn.Server):
    """Listens with our own connections in front of uvicorn. Signals belong to the node."""

    def __init__(self, config: uvicorn.Config, door: Front, limits: Limits, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._door = door
        self._tls = tls
        self._census = Census(limits)
        self._looking: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Leave them alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await self.lifespan.startup()
        await self.on_tick(0)  # The headers of every answer.
        server, phrases = AsgiServer(self.config, self.server_state), Phrases(self.server_state)
        loop = asyncio.get_running_loop()

        def connection() -> asyncio.Protocol:
            return Connection(self._census, self._door, server, phrases)

        if self._tls is None:
            self.servers = [await loop.create_server(connection, sock=sock, backlog=BACKLOG) for sock in sockets or []]
        else:
            listening = [TlsListener(sock, self._tls, self._census, connection) for sock in sockets or []]
            self.servers = cast(list[asyncio.Server], listening)
        self._looking = asyncio.create_task(self._census.run(), name="connections")
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what is under way, and stop."""
        await super().shutdown(sockets)
        if self._looking is not None:
            self._looking.cancel()


def make_server(front: Front, settings: Settings, tls: ssl.SSLContext | None = None) -> Server:
    """The server with everything that it has to load: the loop stands still meanwhile. It does not listen yet."""
    config = uvicorn.Config(
        front,
        http="httptools",
        ws=SocketProtocol,
        loop="none",
        lifespan="off",
        log_level="error",  # What strangers send is no news.
        access_log=False,
        server_header=False,
        headers=ALWAYS,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )
    config.load()
    return Server(config, front, limits_of(settings), tls)


class Listening:
    """A server that answers on a socket, until it is stopped."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self._server = server
        self._task = asyncio.create_task(server.serve(sockets=[sock]), name="http")

    async def stop(self) -> None:
        """Answer what is under way, and stop. Doing it twice is doing it once."""
        self._server.should_exit = True
        await asyncio.wait([self._task], timeout=5.0)


@contextlib.asynccontextmanager
async def serving(server: Server, sock: socket.socket) -> AsyncIterator[None]:
    """Serve while the body runs."""
    listening = Listening(server, sock)
    try:
        yield
    finally:
        await listening.stop()
