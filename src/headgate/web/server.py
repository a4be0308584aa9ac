"""The HTTP server of a node, in the node's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator

import uvicorn

from headgate.errors import ConfigError
from headgate.runtime.node import Node
from headgate.web.app import App
from headgate.web.doors.wire import SocketProtocol
from headgate.web.headers import ALWAYS

NEXT_PORTS = 50  # How far to look for a free port.


def bind(host: str, port: int, *, search: bool) -> socket.socket:
    """A listening socket; with `search`, on the next free port if this one is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, port + (NEXT_PORTS if search and port else 1)):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, candidate))
            sock.listen(2048)
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


class _Server(uvicorn.Server):
    """Signals belong to the node."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Leave them alone."""
        yield


def make_server(node: Node, *, auth: bool, tls: ssl.SSLContext | None = None) -> uvicorn.Server:
    """The server with everything that it has to load: the loop stands still meanwhile. It does not listen yet."""
    config = uvicorn.Config(
        App(node, auth=auth, is_tls=tls is not None),
        http="httptools",
        ws=SocketProtocol,
        loop="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        headers=ALWAYS,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
    )
    config.load()
    config.ssl = tls
    return _Server(config)


@contextlib.asynccontextmanager
async def serving(server: uvicorn.Server, sock: socket.socket) -> AsyncIterator[None]:
    """Serve while the body runs."""
    task = asyncio.create_task(server.serve(sockets=[sock]), name="http")
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.wait([task], timeout=5.0)
