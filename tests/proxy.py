"""A real TCP proxy that tests can cut, freeze and let go on, and that speaks TLS for a server that does not."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """Stands between a client and a server: a unix socket, or a host with its port."""

    def __init__(self, target: str, tls: ssl.SSLContext | None = None) -> None:
        self._target = target
        self._tls = tls
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.accepted = 0
        self.refuse = False

    def freeze(self) -> None:
        """Half-open: connections stay, nothing passes, nobody is told."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Let everything pass again."""
        self._flowing.set()

    def cut(self) -> None:
        """End all connections at once."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refuse:
            writer.transport.abort()
            return
        if self._tls is not None:
            await reader.readexactly(8)  # PostgreSQL's question whether there is TLS.
            writer.write(b"S")
            await writer.start_tls(self._tls)
        try:
            there_reader, there_writer = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there_writer}
        await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))
        self._writers -= {writer, there_writer}

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.startswith("/"):
            return await asyncio.open_unix_connection(self._target)
        host, _, port = self._target.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def listening(proxy: Proxy) -> AsyncIterator[str]:
    """The address at which this proxy takes connections, until the end of the block."""
    server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield f"127.0.0.1:{proxy.port}"
    finally:
        proxy.thaw()
        proxy.cut()
        server.close()


@asynccontextmanager
async def proxied(url: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy before the embedded server of this URL, and the URL through it."""
    before, _, query = url.partition("?host=")
    folder = query.partition("&")[0]
    proxy = Proxy(f"{folder}/.s.PGSQL.5432", tls)
    scheme, _, rest = before.partition("://")
    user, _, path = rest.partition("@/")
    async with listening(proxy) as address:
        yield proxy, f"{scheme}://{user}@{address}/{path}?sslmode={'require' if tls else 'disable'}"
