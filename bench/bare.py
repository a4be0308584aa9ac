"""The least that a webhook receiver must do, to compare the door with: parse with httptools, check the HMAC, COPY into
a table, answer 202 after the commit. No limits, no inbox, no sink, one path, and nothing that could be configured.

    python -m bench.bare URL KEY    prints its port
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
import sys
from typing import Any

import asyncpg
import httptools
import uvloop

ANSWER = b'HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\ncontent-length: 21\r\n\r\n{"status":"accepted"}'
GATHER_S = 0.001


class Bare(asyncio.Protocol):
    """One connection."""

    def __init__(self, commits: Commits, key: bytes) -> None:
        self._commits = commits
        self._key = key
        self._parser = httptools.HttpRequestParser(self)
        self._signature = self._body = b""
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Parse it."""
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        if name == b"X-Signature":
            self._signature = value

    def on_body(self, data: bytes) -> None:
        """Called by the parser."""
        self._body += data

    def on_message_complete(self) -> None:
        """Called by the parser."""
        body, self._body = self._body, b""
        expected = hmac.digest(self._key, body, hashlib.sha256).hex().encode()
        if hmac.compare_digest(expected, self._signature):
            self._commits.add(body, self)


class Commits:
    """Many calls in one COPY."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._pending: list[tuple[bytes, Bare]] = []
        self._flushing: asyncio.Task[None] | None = None

    def add(self, body: bytes, caller: Bare) -> None:
        """Make this durable, soon."""
        self._pending.append((body, caller))
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        while self._pending:
            await asyncio.sleep(GATHER_S)
            batch, self._pending = self._pending, []
            await self._connection.copy_records_to_table("bare", records=[(body,) for body, _ in batch])
            for _, caller in batch:
                if not caller.transport.is_closing():
                    caller.transport.write(ANSWER)


async def main(url: str, key: str) -> None:
    """Listen until killed."""
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE IF NOT EXISTS bare (body bytea)")
    commits = Commits(connection)
    sock = socket.create_server(("127.0.0.1", 0), backlog=2048)
    server = await asyncio.get_running_loop().create_server(lambda: Bare(commits, key.encode()), sock=sock)
    print(sock.getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:3]))
