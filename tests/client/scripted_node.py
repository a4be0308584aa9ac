"""A node as tests of the clients play it: a real socket and real frames, and each test says what it answers."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, ClassVar, TypeVar

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from headgate.client import Consumer, PushClient, PushStream, Turn
from headgate.core import frames
from headgate.core.frames import (
    AckFrame,
    ActiveFrame,
    BeatFrame,
    ClosedFrame,
    ConfirmFrame,
    EosFrame,
    Frame,
    HelloFrame,
    JoinedFrame,
    JoinFrame,
    LeaveFrame,
    MessagesFrame,
    NotifyAckFrame,
    NotifyFrame,
    OkFrame,
    StepDownFrame,
)
from tests.waiting import LONG_S

TOKEN = "hg_s3cret"

F = TypeVar("F", bound=Frame)


class Peer:
    """One connection, seen from the node."""

    decode: ClassVar[Any] = staticmethod(frames.decode_from_client)

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        self.path = socket.request.path if socket.request else ""
        self.beats = 0
        self.is_deaf = False  # Does not echo.

    async def say(self, *said: Frame | bytes | str) -> None:
        for frame in said:
            await self.socket.send(frame if isinstance(frame, bytes | str) else frames.encode(frame))

    async def hear(self) -> Any:
        """The next frame; beats are echoed."""
        while True:
            async with asyncio.timeout(LONG_S):
                data = await self.socket.recv(decode=False)
            frame = self.decode(data)
            if not isinstance(frame, BeatFrame):
                return frame
            self.beats += 1
            if not self.is_deaf:
                await self.say(frame)

    async def hear_beat(self) -> None:
        """The next frame is a beat; it is echoed."""
        await self.say(await self.take_beat())

    async def take_beat(self) -> BeatFrame:
        """The next frame is a beat; it is kept."""
        async with asyncio.timeout(LONG_S):
            frame = self.decode(await self.socket.recv(decode=False))
        assert isinstance(frame, BeatFrame), frame
        return frame

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
    ) -> HelloFrame:
        hello = await self.expect(HelloFrame)
        await self.say(OkFrame(credits, max_frame, heartbeat_s, nodes or []))
        return hello

    async def grant(self, name: str, position: int | None = None) -> None:
        assert await self.expect(NotifyFrame) == NotifyFrame(name)
        await self.say(NotifyAckFrame(name, accepted=True, position=position, epoch=1))

    async def take(self, name: str, records: int) -> list[int]:
        """The ids of so many records of a stream, in whatever frames they come."""
        ids: list[int] = []
        while len(ids) < records:
            frame = await self.expect(MessagesFrame)
            assert frame.stream == name
            ids += [message.id for message in frame.messages]
        return ids

    async def ack(self, name: str, position: int | None, credits: int = 0) -> None:
        await self.say(AckFrame(credits, [(name, position)]))

    async def end(self, name: str, position: int | None) -> None:
        assert await self.expect(EosFrame) == EosFrame(name)
        await self.say(ClosedFrame(name, position))

    async def closed(self) -> None:
        """Wait until the client has gone."""
        async with asyncio.timeout(LONG_S):
            await self.socket.wait_closed()

    def cut(self) -> None:
        """End the connection as a broken cable does, as far as the client can see."""
        self.socket.transport.abort()


class GroupPeer(Peer):
    """One connection of a consumer."""

    decode: ClassVar[Any] = staticmethod(frames.decode_group_from_client)

    def __init__(self, socket: ServerConnection) -> None:
        super().__init__(socket)
        self.id = ""
        self.incarnation = 0

    async def admit(self, id: str = "c1", incarnation: int = 1, lease_s: float = 10.0, *nodes: str) -> JoinFrame:
        """Take it into the group; its first beat is still to come."""
        self.id, self.incarnation = id, incarnation
        join = await self.expect(JoinFrame)
        await self.say(JoinedFrame(id, incarnation, lease_s, list(nodes)))
        return join

    async def activate(self, epoch: int, partition: int | None = None) -> None:
        await self.say(ActiveFrame(self.id, self.incarnation, epoch, partition))
        assert await self.expect(ConfirmFrame) == ConfirmFrame(self.id, epoch, "active")

    async def step_down(self, epoch: int) -> None:
        await self.say(StepDownFrame(self.id, self.incarnation, epoch))

    async def expect_stepped_down(self, epoch: int) -> None:
        assert await self.expect(ConfirmFrame) == ConfirmFrame(self.id, epoch, "stepped_down")

    async def expect_leave(self, id: str | None = None) -> None:
        assert await self.expect(LeaveFrame) == LeaveFrame(id or self.id)


class ScriptedNode:
    """Listens, and hands each connection to the test."""

    def __init__(self) -> None:
        self.url = ""
        self.installation = json.dumps({"installation": "ours"})  # What it says of itself.
        self.asked = 0
        self._peers: asyncio.Queue[Any] = asyncio.Queue()

    async def accept(self) -> Any:
        """The next connection, which must come."""
        async with asyncio.timeout(LONG_S):
            return await self._peers.get()

    async def wait_for_peer(self) -> Any:
        """The next connection, if there is one."""
        return await self._peers.get()

    @property
    def is_alone(self) -> bool:
        """Whether nobody has connected whom the test does not know of."""
        return self._peers.empty()

    def answer(self, socket: ServerConnection, request: Request) -> Response | None:
        """Of which installation it is."""
        if request.path != "/api/installation":
            return None
        assert TOKEN not in str(request.headers)
        self.asked += 1
        return socket.respond(HTTPStatus.OK, self.installation)

    async def serve(self, socket: ServerConnection) -> None:
        is_group = socket.request is not None and socket.request.path.endswith("/groups")
        self._peers.put_nowait(GroupPeer(socket) if is_group else Peer(socket))
        await socket.wait_closed()


@asynccontextmanager
async def scripted_node(tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedNode]:
    """A node on a port of its own."""
    node = ScriptedNode()
    async with serve(
        node.serve,
        "127.0.0.1",
        0,
        compression=None,
        max_size=None,
        ping_interval=None,
        close_timeout=0.1,
        process_request=node.answer,
        ssl=tls,
    ) as server:
        node.url = f"http{'s' if tls else ''}://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        yield node


def client_of(*nodes: ScriptedNode | str, **options: Any) -> PushClient:
    """A client of these nodes, or URLs."""
    urls = [node if isinstance(node, str) else node.url for node in nodes]
    return PushClient(urls, **{"token": TOKEN, "datasource": "clicks", **options})


async def connected(node: ScriptedNode, **welcome: Any) -> Peer:
    """The next connection, welcomed."""
    peer: Peer = await node.accept()
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


def consumer_of(*nodes: ScriptedNode | str, **options: Any) -> Consumer:
    """A consumer of these nodes, or URLs."""
    urls = [node if isinstance(node, str) else node.url for node in nodes]
    return Consumer(
        urls,
        **{
            "token": TOKEN,
            "stream": "invoices",
            "group": "billing",
            "label": "me",
            "open_timeout_s": LONG_S,
            **options,
        },
    )


async def admitted(node: ScriptedNode, id: str = "c1", incarnation: int = 1, lease_s: float = 10.0) -> GroupPeer:
    """The next connection of a consumer, in its group and with a beat echoed."""
    peer: GroupPeer = await node.accept()
    await peer.admit(id, incarnation, lease_s)
    await peer.hear_beat()
    return peer


class Clock:
    """Time that goes on when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def soon(what: Any) -> Any:
    """What must come."""
    async with asyncio.timeout(LONG_S):
        return await what


async def entered(node: ScriptedNode, clock: Clock, **options: Any) -> tuple[Consumer, GroupPeer]:
    """A consumer in its group; the test closes it."""
    consumer = consumer_of(node, clock=clock, **options)
    _, peer = await asyncio.gather(consumer.__aenter__(), admitted(node))
    return consumer, peer


async def in_turn(node: ScriptedNode, clock: Clock, epoch: int = 5) -> tuple[Consumer, GroupPeer, Turn]:
    """A consumer in its turn; the test closes it."""
    consumer, peer = await entered(node, clock)
    await peer.activate(epoch)
    return consumer, peer, await soon(consumer.turn())


async def closed(consumer: Consumer, peer: GroupPeer | None = None) -> None:
    """Close; whoever is told hears of it."""
    if peer is None:
        await soon(consumer.close())
    else:
        await soon(asyncio.gather(consumer.close(), peer.expect_leave()))


def beat(consumer: Consumer) -> None:
    """Have it beat now."""
    assert consumer._conversation is not None
    consumer._conversation.beat()


async def never(turn: Turn) -> None:
    """Work that does not end."""
    await asyncio.Event().wait()
