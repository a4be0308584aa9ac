"""Connections that break every rule, on plain sockets, and a lawful neighbour whose acks and rows are counted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from websockets.asyncio.client import connect

from tests.waiting import LONG_S
from tests.web.pushing import Program
from tests.web_node import Web

pack = msgspec.msgpack.encode

TEXT, BINARY, CLOSE, PING, PONG, CONT = 1, 2, 8, 9, 10, 0
HEAD = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"


def masked(data: bytes, opcode: int = BINARY, *, fin: bool = True, said_bytes: int | None = None) -> bytes:
    """A WebSocket frame of a client, masked with zeros. `said_bytes` is the length that it says it has."""
    size = len(data) if said_bytes is None else said_bytes
    head = bytes([(0x80 if fin else 0) | opcode])
    if size < 126:
        length = bytes([0x80 | size])
    else:
        length = b"\xfe" + size.to_bytes(2) if size < 2**16 else b"\xff" + size.to_bytes(8)
    return head + length + b"\0\0\0\0" + data


def framed(*fields: Any) -> bytes:
    """A frame of the protocol, as it goes over the wire."""
    return masked(pack(fields))


class Intruder:
    """A connection that is written to as its owner likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Send as much of this as the node takes."""
        with contextlib.suppress(OSError):
            self.writer.write(data)
            await self.writer.drain()

    def feed(self, data: bytes) -> asyncio.Task[None]:
        """Send this without waiting for it."""
        return asyncio.create_task(self.send(data))

    async def hear(self) -> list[Any]:
        """The next frame of the protocol; an empty list when the node has closed, or cut this off."""
        try:
            async with asyncio.timeout(LONG_S):
                while True:
                    first, second = await self.reader.readexactly(2)
                    size = second
                    if second >= 126:
                        size = int.from_bytes(await self.reader.readexactly(2 if second == 126 else 8))
                    data = await self.reader.readexactly(size)
                    if first & 15 == BINARY:
                        found: list[Any] = msgspec.msgpack.decode(data)
                        return found
                    if first & 15 == CLOSE:
                        return ["close", int.from_bytes(data[:2])]
        except (asyncio.IncompleteReadError, OSError):
            return []

    async def refused(self) -> Any:
        """Until the error frame; its code, or None if the node cut this off without one."""
        while (frame := await self.hear()) and frame[0] != "error":
            pass
        return frame[1] if frame else None

    async def ended(self) -> None:
        """Until the node closes this or cuts it off."""
        while await self.hear():
            pass


@asynccontextmanager
async def intruding(web: Web, path: str, *, limit: int = 2**16) -> AsyncIterator[Intruder]:
    """A WebSocket on which nothing has been said."""
    host, _, port = web.node.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=limit)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{HEAD}Sec-WebSocket-Version: 13\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        yield Intruder(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def admitted(web: Web, path: str, name: str) -> AsyncIterator[Intruder]:
    """The same, and its first frame was accepted."""
    async with intruding(web, path) as intruder:
        if path == "/push":
            await intruder.send(framed("hello", 1, web.node.token, name))
            assert (await intruder.hear())[0] == "ok"
        else:
            await intruder.send(framed("join", 1, web.node.token, "s", name))
            assert (await intruder.hear())[0] == "joined"
        yield intruder


def publish(web: Web, name: str) -> str:
    """A datasource that keeps the ids of pushed records; returns its table."""
    table = name.replace("-", "_")
    sink = {"type": "postgres", "url": web.database, "table": table}
    web.publish(name, source={"type": "push"}, sink=sink, mapping={"set": {"id": "meta.id"}})
    return table


class Neighbour:
    """A program that does everything right."""

    def __init__(self, web: Web, name: str, program: Program) -> None:
        self.web = web
        self.name = name
        self.program = program
        self.pushed = 0

    async def push(self) -> None:
        """One more record, until it is durable."""
        await self.program.push("good", [self.pushed])
        await self.program.acked("good", self.pushed)
        self.pushed += 1

    async def push_during(self, task: asyncio.Future[Any]) -> None:
        """One record after the other while somebody else does something, and one more."""
        while not task.done():
            await self.push()
        await task
        await self.push()


@asynccontextmanager
async def neighbour(web: Web, name: str) -> AsyncIterator[Neighbour]:
    """It pushes while others misbehave. In the end every record is there, once, in order, on the same incarnation."""
    table = publish(web, name)
    incarnations = await asyncio.to_thread(web.rows, "SELECT id FROM headgate.node")
    address = web.node.url.replace("http://", "ws://") + "/push"
    async with connect(address, compression=None, ping_interval=None, max_size=None, close_timeout=1) as socket:
        program = Program(socket, web.node.token)
        await program.hello(name)
        await program.have("good")
        found = Neighbour(web, name, program)
        await found.push()
        yield found
        await found.push()
        assert await program.end("good") == found.pushed - 1
    assert await ids(web, table) == list(range(found.pushed))
    assert await asyncio.to_thread(web.rows, "SELECT id FROM headgate.node") == incarnations, "the node began again"


async def ids(web: Web, table: str) -> list[int]:
    """What is in a table."""
    return [row["id"] for row in await asyncio.to_thread(web.rows, f"SELECT id FROM {table} ORDER BY id")]
