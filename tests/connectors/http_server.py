"""A server of HTTP that answers as a test says, and remembers what it was asked.

It is written on sockets and not on a framework, so that it can do what no framework would: stop in the middle of a
header, send a body without end, or repeat a page. `python -m tests.connectors.http_server PORT FILE` is one in a
process to be killed: it has pages of records, and keeps what it is sent in a file.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import pytest

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str  # As it was sent, without the query.
    params: dict[str, str]
    headers: dict[str, str]  # By their names in lower case.
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Said:
    """One answer. `raw` does as it likes with the connection, which is closed after it."""

    body: Any = b""  # Bytes, or what becomes JSON.
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: Callable[[asyncio.StreamWriter], Awaitable[None]] | None = None

    def data(self) -> bytes:
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        kind = {} if isinstance(self.body, bytes) else {"Content-Type": "application/json"}
        headers = {**kind, "Content-Length": str(len(body)), **self.headers}
        lines = [f"HTTP/1.1 {self.status} Said", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        return "\r\n".join(lines).encode() + (b"" if self.status in (204, 304) else body)


def raw(text: bytes) -> Said:
    """Just these bytes, and the end of the connection."""

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        await writer.drain()

    return Said(raw=write)


class HttpServer:
    """In the event loop of the test."""

    def __init__(self, answer: Callable[[Asked], Said]) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._scheme = "http"

    async def start(self, tls: ssl.SSLContext | None = None, port: int = 0) -> HttpServer:
        self._scheme = "https" if tls else "http"
        self._server = await asyncio.start_server(self._accepted, HOST, port, ssl=tls)
        return self

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"{self._scheme}://{HOST}:{self.port}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
                while True:
                    asked = await _request(reader)
                    self.asked.append(asked)
                    said = self.answer(asked)
                    if said.raw is not None:
                        await said.raw(writer)
                        return
                    writer.write(said.data())
                    await writer.drain()
        finally:
            writer.close()


async def _request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    path, _, query = target.partition("?")
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, path, dict(parse_qsl(query, keep_blank_values=True)), headers, body)


Serve = Callable[[Callable[[Asked], Said]], Awaitable[HttpServer]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts servers, which end with the test."""
    servers: list[HttpServer] = []

    async def start(answer: Callable[[Asked], Said]) -> HttpServer:
        servers.append(await HttpServer(answer).start())
        return servers[-1]

    yield start
    for server in servers:
        await server.close()


# In a process.

COUNT, SIZE = 2_000, 50


def paged(asked: Asked) -> Said:
    """Page `page` of the records, and whether there are more."""
    first = SIZE * (int(asked.params.get("page", "1")) - 1)
    ids = range(first, min(first + SIZE, COUNT))
    return Said({"data": {"items": [{"id": id, "text": f"record {id}"} for id in ids]}})


def keeping(file: Path) -> Callable[[Asked], Said]:
    """Keeps what it is sent before it answers: a line for each new key, with the ids."""
    keys = {line.split(" ")[0] for line in file.read_text().splitlines()} if file.exists() else set()

    def answer(asked: Asked) -> Said:
        if asked.method == "GET":
            return paged(asked)
        key = asked.headers["idempotency-key"]
        found = asked.json
        ids = [one["id"] for one in (found if isinstance(found, list) else [found])]
        with file.open("a") as out:
            out.write(f"{key} {json.dumps(ids)} {'again' if key in keys else 'new'} {unquote(asked.path)}\n")
        keys.add(key)
        return Said(status=201)

    return answer


async def _main(port: int, file: Path) -> None:
    server = await HttpServer(keeping(file)).start(port=port)
    print(server.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), Path(sys.argv[2])))
