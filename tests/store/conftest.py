"""Nodes, datasources and streams, made straight in the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from headgate.core.streams import Acquire, Command, Reply, Stream
from headgate.ids import new_id
from headgate.store.database import Database, Session, connect
from headgate.store.datasources import Content, Datasources
from headgate.store.nodes import Nodes
from headgate.store.placement import Placement
from headgate.store.rows import stream_of
from headgate.store.streams import Streams
from tests.waiting import until

ME = "tester"


def content(source: str = "generator") -> Content:
    return Content({"type": source}, None, {"type": "blackhole"}, {}, (), source)


class Rows:
    """The stores, and short ways to fill them."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.datasources = Datasources(database)
        self.nodes = Nodes(database)
        self.streams = Streams(database)
        self.placement = Placement(database)

    async def node(self, name: str = "left") -> UUID:
        """A node that has joined."""
        node = new_id()
        await self.nodes.join(node, name, 5.0, None)
        return node

    async def stream(self, name: str = "orders", *, source: str = "generator", published: bool = True) -> UUID:
        """The stream of a new datasource that should run."""
        (stream,) = await self.many([name], source=source, published=published)
        return stream

    async def many(self, names: Iterable[str], *, source: str = "generator", published: bool = True) -> list[UUID]:
        """The same for many, in one transaction. Returns the streams in the order of their ids."""
        async with self.datasources.change(ME) as change:
            made = [await change.create(name, True) for name in names]
            for datasource in made if published else []:
                await change.publish_content(datasource.id, content(source), ME)
        of = "SELECT id FROM headgate.stream WHERE datasource = ANY ($1::uuid[]) ORDER BY id"
        return [row["id"] for row in await self.database.fetch(of, [one.id for one in made])]

    async def datasource(self, name: str = "orders") -> UUID:
        """The id of a datasource."""
        found = await self.datasources.find(name)
        assert found is not None
        return found.id

    async def publish(self, name: str = "orders", source: str = "generator") -> int:
        """Another version."""
        async with self.datasources.change(ME) as change:
            found = await change.find(name)
            assert found is not None
            return await change.publish_content(found.id, content(source), ME)

    async def restart(self, name: str = "orders") -> None:
        """As a restart or a changed secret does."""
        datasource = await self.datasource(name)
        async with self.datasources.change(ME) as change:
            await change.restart([datasource])

    async def start(self, name: str = "orders") -> None:
        """As a stop and a start do."""
        datasource = await self.datasource(name)
        async with self.datasources.change(ME) as change:
            await change.set_enabled(datasource, False)
            await change.set_enabled(datasource, True)

    async def wanted_key(self, name: str = "orders") -> str:
        """The key of what the registry wants, as a node reads it."""
        entries = {entry.name: entry for entry in await self.datasources.entries_since(0)}
        return entries[name].wanted_key_of(0)

    async def row(self, stream: UUID) -> Stream:
        """A stream as it is now."""
        return stream_of(await self.database.fetchrow("SELECT * FROM headgate.stream WHERE id = $1", stream))

    async def owners(self) -> dict[UUID, UUID | None]:
        """Who has which stream."""
        rows = await self.database.fetch("SELECT id, owner FROM headgate.stream ORDER BY id")
        return {row["id"]: row["owner"] for row in rows}

    async def tell(self, node: UUID, stream: UUID, command: Command) -> Reply:
        """One command for one stream."""
        return (await self.streams.apply(node, {stream: command}))[stream].reply

    async def acquire(self, node: UUID, *streams: UUID) -> int:
        """Have this node run these streams, as one that claims them. Returns the epoch of the last."""
        commands = {stream: Acquire(node, new_id(), 1, "source", "sink", claims=True) for stream in streams}
        steps = await self.streams.apply(node, commands)
        return steps[streams[-1]].stream.epoch

    async def history(self, stream: UUID) -> list[tuple[str, str]]:
        """What was done, and by whom, the oldest first."""
        return [(line.kind, line.actor) for line in reversed(await self.streams.history(stream, 1000))]

    async def waiting(self) -> int:
        """How many sessions of this database wait for a lock that another one holds."""
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return int(await self.database.fetchval(waiting))

    async def until_somebody_waits(self, number: int = 1) -> None:
        """Until so many do."""

        async def wait() -> bool:
            return await self.waiting() >= number

        await until(wait, "somebody waits", look_s=0.005)


@pytest.fixture
async def rows(database: Database) -> Rows:
    return Rows(database)


@pytest.fixture
async def others(url: str) -> AsyncIterator[Rows]:
    """The same database, seen by another process."""
    database = await Database.open(url)
    yield Rows(database)
    await database.close()


async def unchecked(session: Session) -> None:
    """Any registry will do."""


@asynccontextmanager
async def session(url: str) -> AsyncIterator[Any]:
    """A session of its own, to hold locks with."""
    connection = await connect(url)
    try:
        yield connection
    finally:
        await connection.close()


class Pause:
    """Stops the first one that calls a function of the store, inside its transaction, until told to go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    def before(self, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """The function, with the pause before it."""

        async def paused(*args: Any, **kwargs: Any) -> Any:
            if not self.reached.is_set():
                self.reached.set()
                await self.go_on.wait()
            return await real(*args, **kwargs)

        return paused
