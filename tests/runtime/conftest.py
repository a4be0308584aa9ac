"""Nodes in this process, on this test's database, with connectors that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar, copy_context
from dataclasses import asdict
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headgate.config import Settings
from headgate.connectors import plugins as connectors
from headgate.connectors.api import Connector
from headgate.datasources.documents import read_all
from headgate.errors import StoreError
from headgate.runtime.node import Node
from headgate.store.database import Database, is_undone
from headgate.store.dumps import Dumps
from headgate.store.embedded import EmbeddedServer
from headgate.store.secrets import Keyring, new_master_key
from tests.runtime.dump_bench import Bench
from tests.waiting import until

_node_here: ContextVar[str] = ContextVar("node_here", default="")  # By name: all tasks of a node have it.


class Harness:
    """A running node and what tests ask of it."""

    def __init__(self, node: Node, url: str) -> None:
        self.node = node
        self.url = url
        self._context = copy_context()
        self._context.run(_node_here.set, node.name)
        self._is_running = False

    async def start(self) -> None:
        """Begin to work."""
        await asyncio.create_task(self.node.start(), context=self._context)
        self._is_running = True

    async def stop(self) -> None:
        """Drain and leave. Doing it twice is doing it once."""
        if self._is_running:
            self._is_running = False
            await self.node.stop()

    async def apply(self, **documents: Any) -> None:
        """Publish these datasources through this node; `_` in a name stands for `-`."""
        read = read_all({"datasources": {name.replace("_", "-"): document for name, document in documents.items()}})
        while True:
            applying = self.node.registry.apply(read, "tester", is_admin=True)
            try:
                await asyncio.create_task(applying, context=self._context)
                return
            except StoreError as error:
                if not is_undone(error):  # This process may have stood still for longer than a transaction may.
                    raise

    async def sql(self, query: str, *args: Any) -> list[Any]:
        """Straight to the database."""
        connection = await asyncpg.connect(self.url)
        try:
            return await connection.fetch(query, *args)
        finally:
            await connection.close()

    async def state(self, name: str) -> dict[str, Any]:
        """The state row of a datasource, and what the registry says of it."""
        found = await self.node.registry.get(name)
        states, _ = (await self.node.registry.states.one(found.id)).of(found.id)
        return {
            "status": states[0].worker_status if states else "INIT",
            "detail": states[0].detail if states else "",
            "error": asdict(states[0].error) if states and states[0].error else {},
            "reported": asdict(states[0].reported) if states else {},
            "running": found.running_version,
            "published": found.published_version,
            "version": states[0].version if states else None,
            "quarantine": found.quarantine,
        }

    async def until(self, name: str, **wanted: Any) -> dict[str, Any]:
        """Until the state has these values."""
        state: dict[str, Any] = {}

        async def is_so() -> bool:
            state.update(await self.state(name))
            return all(state[key] == value for key, value in wanted.items())

        try:
            await until(is_so)
        except AssertionError:
            raise AssertionError(f"{name} is {state}, not {wanted}") from None
        return state

    async def until_true(self, is_so: Callable[[], Any]) -> None:
        """Until this holds; it may be a coroutine function."""
        await until(is_so)

    async def ids(self, table: str = "target") -> list[int]:
        """The ids in a sink's table, in order."""
        if not (await self.sql("SELECT to_regclass($1) AS t", table))[0]["t"]:
            return []
        return [row["id"] for row in await self.sql(f"SELECT id FROM {table} ORDER BY id")]

    async def until_rows(self, more_than: int, table: str = "target") -> None:
        """Until the sink has more rows than this."""

        async def has() -> bool:
            return len(await self.ids(table)) > more_than

        await self.until_true(has)

    async def owners(self) -> dict[str, str | None]:
        """Stream → the name of the node that has it."""
        return {one.name: one.node for one in await self.node.streams.all()}

    async def until_owners(self, **wanted: str | None) -> None:
        """Until the streams of these datasources are on these nodes."""
        named = {f"{name.replace('_', '-')}:0": node for name, node in wanted.items()}

        async def are() -> bool:
            owners = await self.owners()
            return all(owners[name] == node for name, node in named.items())

        await self.until_true(are)

    async def drain(self, draining: bool = True) -> None:
        """As an operator does: the node finds out by itself."""
        assert await self.node.nodes.set_draining(self.node.incarnation, draining)

    async def history(self, name: str) -> list[tuple[str, str]]:
        """What was done with a datasource's stream, and by whom, the oldest first."""
        stream = (await self.node.streams.find(f"{name}:0")).id
        return [(line.kind, line.actor) for line in reversed(await self.node.streams.history(stream, 100))]

    async def events(self, name: str) -> list[str]:
        """The types of what happened."""
        found = await self.node.registry.get(name)
        return [row.type for row in await self.node.registry.events.last(found.id)]


@asynccontextmanager
async def running_node(url: str, home: Path, **settings: Any) -> AsyncIterator[Harness]:
    """A node until the end of the block."""
    direct = settings.pop("direct", url)
    home.mkdir(exist_ok=True)
    harness = Harness(Node(Settings(home=home, **settings), url, settings.get("keyring") or KEYRING), direct)
    await harness.start()
    try:
        yield harness
    finally:
        await harness.stop()


KEYRING = Keyring.load(new_master_key(), None)


@pytest.fixture
async def hg(url: str, tmp_path: Path) -> AsyncIterator[Harness]:
    """A running node."""
    async with running_node(url, tmp_path / "home") as harness:
        yield harness


@pytest.fixture
async def join(url: str, tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Harness]]]:
    """Start a node of this name on this test's database. Those that still run at the end are stopped."""
    async with AsyncExitStack() as running:

        async def start(name: str, **settings: Any) -> Harness:
            through = settings.pop("url", url)
            node = running_node(through, tmp_path / name, node_name=name, direct=url, **settings)
            return await running.enter_async_context(node)

        yield start


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make a connector known for the length of a test: to all nodes, or to the one of this name."""
    extra: dict[tuple[str, str], Connector] = {}
    real = connectors.get

    def get(name: str) -> Connector:
        return extra.get((name, _node_here.get())) or extra.get((name, "")) or real(name)

    def put(connector: Connector, node: str = "") -> None:
        extra[connector.name, node] = connector

    monkeypatch.setattr(connectors, "get", get)
    return put


def generator(**options: Any) -> dict[str, Any]:
    """A source that counts."""
    return {"type": "generator", "rate": 200, **options}


def postgres(url: str, table: str = "target") -> dict[str, Any]:
    """A transactional sink."""
    return {"type": "postgres", "url": url, "table": table}


BLACKHOLE = {"type": "blackhole"}
IDS = {"set": {"id": "id"}}


@pytest.fixture
async def bench(server: EmbeddedServer, url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    connection = await asyncpg.connect(server.url)
    name = url.partition("@/")[2].partition("?")[0]
    names = [f"{name}_source", f"{name}_target"]
    for name in names:
        await connection.execute(f"CREATE DATABASE {name} STRATEGY FILE_COPY")
    database = await Database.open(url)
    source, target = (server.url.replace("/headgate?", f"/{name}?") for name in names)
    yield Bench(source, target, url, Dumps(database, Keyring.load(new_master_key(), None)), tmp_path)
    await database.close()
    for name in names:
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await connection.close()
