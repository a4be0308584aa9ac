"""Programs that push by hand, against a real node in this process with its real HTTP server.

Frames are written and read as plain MessagePack arrays, so that the node is not tested with its own words.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from copy import copy
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from headgate.config import Settings
from headgate.connectors.api import Connector, Grant, Options, Outgoing, Progress, SinkKind
from headgate.datasources.documents import read_all
from headgate.errors import ConnectorError
from headgate.runtime.node import Node
from headgate.store.secrets import Keyring, new_master_key
from headgate.web.app import App
from headgate.web.front import Front
from headgate.web.server import bind, make_server, serving, url_of
from tests.waiting import LONG_S, until

T = TypeVar("T")
Frame = list[Any]

WINDOW = 65_536
IDS = {"set": {"id": "meta.id"}}

numbers = itertools.count()
keyring = Keyring.load(new_master_key(), None)


class Program:
    """One connection of a program."""

    def __init__(self, socket: ClientConnection, token: str) -> None:
        self.socket = socket
        self.token = token
        self.ok: Frame = []
        self.credits = 0  # Given back so far.
        self.acks: dict[str, int | None] = {}

    async def say(self, *frame: Any) -> None:
        """Send one frame."""
        await self.socket.send(msgspec.msgpack.encode(frame))

    async def hear(self) -> Frame:
        """The next frame; no secret is in it."""
        async with asyncio.timeout(LONG_S):
            data = await self.socket.recv()
        assert isinstance(data, bytes)
        assert not self.token or self.token.encode() not in data, "the token came back"
        frame: Frame = msgspec.msgpack.decode(data)
        if frame[0] == "ack":
            self.credits += frame[1]
            self.acks.update(frame[2])
        return frame

    async def expect(self, kind: str, *others: str) -> Frame:
        """The next frame of this kind; between them only frames of the others may come. Returns its fields."""
        while True:
            frame = await self.hear()
            if frame[0] == kind:
                return frame[1:]
            assert frame[0] in others, f"{frame} came in place of {kind}"

    async def hello(self, datasource: str, *, version: int = 1) -> Frame:
        """Say hello; returns the fields of ok."""
        await self.say("hello", version, self.token, datasource, "tests", "1")
        self.ok = await self.expect("ok")
        return self.ok

    async def ask(self, stream: str) -> dict[str, Any]:
        """Notify; returns the answer."""
        await self.say("notify", stream, None)
        fields = await self.expect("notify_ack", "ack", "restart")
        names = ("stream", "accepted", "position", "epoch", "reason", "retry_after_ms")
        answer = dict(zip(names, fields, strict=True))
        assert answer["stream"] == stream
        return answer

    async def have(self, stream: str) -> int | None:
        """Ask until the stream is granted; returns its position."""
        async with asyncio.timeout(LONG_S):
            while not (answer := await self.ask(stream))["accepted"]:
                assert answer["retry_after_ms"] > 0
                await asyncio.sleep(0.02)  # Sooner than the hint says: tests are in a hurry.
        position: int | None = answer["position"]
        return position

    async def push(self, stream: str, ids: Iterable[int], payload: bytes = b"{}") -> None:
        """Records with these ids, in one frame."""
        await self.say("messages", stream, [[id, None, None, payload] for id in ids])

    async def acked(self, stream: str, id: int) -> None:
        """Until this record is durable."""
        while (self.acks.get(stream) if self.acks.get(stream) is not None else -1) < id:  # type: ignore[operator]
            await self.expect("ack", "beat")

    async def got_back(self, credits: int) -> None:
        """Until so many credits were given back in all; never more."""
        while self.credits < credits:
            await self.expect("ack", "beat")
        assert self.credits == credits

    async def end(self, stream: str) -> int | None:
        """Say that there is no more; returns the position that `closed` names."""
        await self.say("eos", stream)
        closed, position = await self.expect("closed", "ack")
        assert closed == stream
        return position  # type: ignore[no-any-return]

    async def fails(self, code: str) -> str:
        """Until the error frame; then the connection ends. Returns the error's text."""
        *_, (_, found, text) = [frame async for frame in self.rest()]
        assert found == code, (found, text)
        assert self.socket.close_code == 4000
        return str(text)

    async def rest(self) -> AsyncIterator[Frame]:
        """Everything that still comes, until the connection ends."""
        while True:
            try:
                yield await self.hear()
            except ConnectionClosed:
                return

    def cut(self) -> None:
        """Be gone without a word."""
        self.socket.transport.abort()


class House:
    """A node, its HTTP server, and what tests ask of them."""

    def __init__(self, node: Node, url: str, database: str, token: str, pool: Any) -> None:
        self.node = node
        self.url = url
        self.database = database
        self.token = token
        self._pool = pool

    @asynccontextmanager
    async def connected(self, datasource: str = "", token: str | None = None) -> AsyncIterator[Program]:
        """A connection, with hello said if a datasource is named."""
        address = self.url.replace("http://", "ws://") + "/push"
        async with connect(address, compression=None, ping_interval=None, max_size=None, close_timeout=1) as socket:
            program = Program(socket, self.token if token is None else token)
            if datasource:
                await program.hello(datasource)
            yield program

    async def publish(self, name: str = "", **parts: Any) -> str:
        """Publish a push datasource, into a table of its name unless told otherwise. Returns the name."""
        name = name or f"push-{next(numbers)}"
        document = {"source": {"type": "push"}, "sink": self.table(name), "mapping": IDS, **parts}
        document = {part: value for part, value in document.items() if value is not None}
        await self.node.registry.apply(read_all({"datasources": {name: document}}), "tester", is_admin=True)
        return name

    def table(self, name: str) -> dict[str, Any]:
        """A transactional sink."""
        return {"type": "postgres", "url": self.database, "table": name.replace("-", "_")}

    async def sql(self, query: str, *args: Any) -> list[Any]:
        """Straight to the database."""
        return await self._pool.fetch(query, *args)  # type: ignore[no-any-return]

    async def connection(self) -> Any:
        """A session of the database, for whoever wants to hold something."""
        return await asyncpg.connect(self.database)

    async def ids(self, name: str, column: str = "id") -> list[Any]:
        """What is in a datasource's table, in order."""
        table = name.replace("-", "_")
        if not (await self.sql("SELECT to_regclass($1) AS t", table))[0]["t"]:
            return []
        return [row[column] for row in await self.sql(f"SELECT {column} FROM {table} ORDER BY {column}")]

    async def row(self, name: str, stream: str) -> Any:
        """The stream's row."""
        query = "SELECT s.* FROM headgate.stream s JOIN headgate.datasource d ON d.id = s.datasource"
        rows = await self.sql(f"{query} WHERE d.name = $1 AND s.label = $2", name, stream)
        return rows[0] if rows else None

    async def until(self, read: Callable[[], Awaitable[T]], is_so: Callable[[T], bool]) -> T:
        """Read until this holds."""
        found: list[T] = []

        async def look() -> bool:
            found[:] = [await read()]
            return is_so(found[0])

        try:
            await until(look)
        except AssertionError:
            raise AssertionError(f"it never came to this: {found}") from None
        return found[0]

    async def until_free(self, name: str, stream: str) -> None:
        """Until nobody owns the stream."""
        await self.until(lambda: self.row(name, stream), lambda row: row["owner"] is None)

    async def until_empty(self) -> None:
        """Until nothing pushed is left on this node: no session, no stream, no worker."""

        async def left() -> Any:
            push, manager = self.node.push, self.node.manager
            workers = [handle.name for handle in manager.handles() if handle.pusher] if manager else []
            return [*push.sessions, *push._entries, *push._pushed, *push._asked, *workers]

        await self.until(left, lambda found: not found)


@asynccontextmanager
async def house(url: str, home: Path, *, direct: str = "", **settings: Any) -> AsyncIterator[House]:
    """A node with its server. `direct` is the database without what stands between it and the node.

    Its lease is long: between tests its loop stands still, and a machine under load must not end it.
    """
    home.mkdir(exist_ok=True)
    node = Node(Settings(home=home, **{"lease_s": 60.0, **settings}), url, keyring)
    await node.start()
    try:
        sock = bind("127.0.0.1", 0, search=False)
        pool = asyncpg.create_pool(direct or url, min_size=0, max_size=2)
        front = Front(auth=True, token=lambda: None)
        front.ready(App(node, auth=True))
        async with pool, serving(make_server(front, node.settings), sock):
            await node.incarnations.set_address(url_of(sock))
            _, token = await node.tokens.create(f"tester {next(numbers)}", "operator")
            yield House(node, url_of(sock), direct or url, token, pool)
    finally:
        try:
            await node.stop()
        finally:
            node.incarnations.beat.stop()  # type: ignore[union-attr]  # Without its loop it would end the whole process.


class GateOptions(Options):
    """Options of the gate."""

    name: str = "gate"


class Gate:
    """A sink that keeps what it gets in memory, and does as its test says."""

    def __init__(self) -> None:
        self.may_open = asyncio.Event()
        self.may_write = asyncio.Event()
        self.may_open.set()
        self.may_write.set()
        self.opening = asyncio.Semaphore(0)  # Released by each run that comes to open.
        self.writing = asyncio.Semaphore(0)
        self.is_stubborn = False  # A write that is cancelled goes on all the same.
        self.failures: list[ConnectorError] = []  # Raised by the next writes, one each.
        self.open_failure: ConnectorError | None = None
        self.progress: dict[UUID, Progress] = {}
        self.records: list[dict[str, Any]] = []

    @property
    def connector(self) -> Connector:
        """To plug in."""
        return Connector(name="gate", summary="", sink=SinkKind(GateOptions, lambda options, context: _GateSink(self)))


class _GateSink:
    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._stream: UUID | None = None

    async def check(self) -> None:
        """Nothing is amiss."""

    async def open(self, grant: Grant) -> Progress | None:
        self._stream = grant.stream
        self._gate.opening.release()
        await self._gate.may_open.wait()
        if self._gate.open_failure is not None:
            raise copy(self._gate.open_failure)  # What was raised keeps whoever raised it.
        return self._gate.progress.get(grant.stream)

    async def write(self, batch: Outgoing) -> None:
        self._gate.writing.release()
        await self._permission()
        if self._gate.failures:
            raise copy(self._gate.failures.pop(0))
        assert self._stream is not None
        self._gate.records += batch.records
        self._gate.progress[self._stream] = batch.progress

    async def _permission(self) -> None:
        while True:
            try:
                await self._gate.may_write.wait()
            except asyncio.CancelledError:
                if not self._gate.is_stubborn:
                    raise
            else:
                return

    async def close(self) -> None:
        """Nothing is held."""
