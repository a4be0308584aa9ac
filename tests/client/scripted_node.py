"""A node as tests of the push client play it: a real socket and real frames, and each test says what it answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from websockets.asyncio.server import ServerConnection, serve

from headgate.client import PushClient, PushStream
from headgate.core import frames
from headgate.core.frames import (
    Ack,
    BeatFrame,
    Closed,
    Eos,
    Frame,
    FromClient,
    Hello,
    Messages,
    Notify,
    NotifyAck,
    Ok,
)

TOKEN = "hg_s3cret"
PATIENCE_S = 10.0  # For what must come. A test that waits as long as this has failed.

F = TypeVar("F", bound=FromClient)


class Peer:
    """One connection, seen from the node."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        self.path = socket.request.path if socket.request else ""
        self.beats = 0
        self.is_deaf = False  # Does not echo.

    async def say(self, *said: Frame | bytes | str) -> None:
        for frame in said:
            await self.socket.send(frame if isinstance(frame, bytes | str) else frames.encode(frame))

    async def hear(self) -> FromClient:
        """The next frame; beats are echoed."""
        while True:
            async with asyncio.timeout(PATIENCE_S):
                data = await self.socket.recv(decode=False)
            frame = frames.decode_from_client(data)
            if not isinstance(frame, BeatFrame):
                return frame
            self.beats += 1
            if not self.is_deaf:
                await self.say(frame)

    async def hear_beat(self) -> None:
        """The next frame is a beat; it is echoed."""
        async with asyncio.timeout(PATIENCE_S):
            frame = frames.decode_from_client(await self.socket.recv(decode=False))
        assert isinstance(frame, BeatFrame), frame
        await self.say(frame)

    async def expect(self, kind: type[F]) -> F:
        frame = await self.hear()
        assert isinstance(frame, kind), frame
        return frame

    async def welcome(
        self,
        credits: int = frames.WINDOW,
        max_frame: int = frames.MAX_FRAME_BYTES,
        heartbeat_s: float = 5.0,
        nodes: list[str] | None = None,
    ) -> Hello:
        hello = await self.expect(Hello)
        await self.say(Ok(credits, max_frame, heartbeat_s, nodes or []))
        return hello

    async def grant(self, name: str, position: int | None = None) -> None:
        assert await self.expect(Notify) == Notify(name)
        await self.say(NotifyAck(name, accepted=True, position=position, epoch=1))

    async def take(self, name: str, records: int) -> list[int]:
        """The ids of so many records of a stream, in whatever frames they come."""
        ids: list[int] = []
        while len(ids) < records:
            frame = await self.expect(Messages)
            assert frame.stream == name
            ids += [message.id for message in frame.messages]
        return ids

    async def ack(self, name: str, position: int | None, credits: int = 0) -> None:
        await self.say(Ack(credits, [(name, position)]))

    async def end(self, name: str, position: int | None) -> None:
        assert await self.expect(Eos) == Eos(name)
        await self.say(Closed(name, position))

    async def closed(self) -> None:
        """Wait until the client has gone."""
        async with asyncio.timeout(PATIENCE_S):
            await self.socket.wait_closed()

    def cut(self) -> None:
        """End the connection as a broken cable does, as far as the client can see."""
        self.socket.transport.abort()


class ScriptedNode:
    """Listens, and hands each connection to the test."""

    def __init__(self) -> None:
        self.url = ""
        self._peers: asyncio.Queue[Peer] = asyncio.Queue()

    async def accept(self) -> Peer:
        """The next connection, which must come."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._peers.get()

    async def wait_for_peer(self) -> Peer:
        """The next connection, if there is one."""
        return await self._peers.get()

    @property
    def is_alone(self) -> bool:
        """Whether nobody has connected whom the test does not know of."""
        return self._peers.empty()

    async def serve(self, socket: ServerConnection) -> None:
        self._peers.put_nowait(Peer(socket))
        await socket.wait_closed()


@asynccontextmanager
async def scripted_node() -> AsyncIterator[ScriptedNode]:
    """A node on a port of its own."""
    node = ScriptedNode()
    async with serve(
        node.serve, "127.0.0.1", 0, compression=None, max_size=None, ping_interval=None, close_timeout=0.1
    ) as server:
        node.url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        yield node


def client_of(*nodes: ScriptedNode | str, **options: Any) -> PushClient:
    """A client of these nodes, or URLs."""
    urls = [node if isinstance(node, str) else node.url for node in nodes]
    return PushClient(urls, **{"token": TOKEN, "datasource": "clicks", **options})


async def connected(node: ScriptedNode, **welcome: Any) -> Peer:
    """The next connection, welcomed."""
    peer = await node.accept()
    await peer.welcome(**welcome)
    return peer


async def open_stream(client: PushClient, peer: Peer, name: str = "s", position: int | None = None) -> PushStream:
    """Both sides of opening a stream."""
    stream, _ = await asyncio.gather(client.stream(name), peer.grant(name, position))
    return stream


async def round_trip(client: PushClient, peer: Peer) -> None:
    """When this is over, both have dealt with everything that was said before it, and nothing was pushed meanwhile."""
    stream = await open_stream(client, peer, "fence")
    await asyncio.gather(stream.finish(), peer.end("fence", None))
