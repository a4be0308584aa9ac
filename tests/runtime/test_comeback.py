"""Streams that wait for something go on as soon as it is back, and say once that they wait. A wait is an hour long."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from headgate.connectors.api import Connector, Context, Options, SinkKind
from headgate.connectors.guard import Bound, Guard, OutOfReach
from headgate.connectors.places import Place
from headgate.core.reach import Kind, Reach
from headgate.errors import Cause, ConnectorError, NotConnected
from headgate.runtime.streams.manager import WorkerManager
from headgate.runtime.streams.sides import awaited_of
from headgate.store.embedded import EmbeddedServer
from tests.proxy import proxied
from tests.runtime.conftest import IDS, Harness, generator, postgres, running_node
from tests.waiting import until

HOUR_S = 3600.0


def set_waits(monkeypatch: pytest.MonkeyPatch, wait_s: float) -> None:
    for name in ("FIRST_S", "LONGEST_S", "WATCHED_FIRST_S", "WATCHED_LONGEST_S"):
        monkeypatch.setattr(f"headgate.core.backoff.{name}", wait_s)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if everything had failed very often already."""
    set_waits(monkeypatch, HOUR_S)


class ServerOptions(Options):
    """Where a test's sink is."""

    address: str = "db.test:5432"


class Away:
    """A server that does not answer, until it does; what its sinks and probes say."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.probes = 0
        self.answers_probes = True
        self.writes: dict[str, int] = {}

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    async def probe(self, options: Any, guard: Guard) -> None:
        self.probes += 1
        if not self.answers_probes:
            raise NotConnected("the probe cannot get through")
        self.check()

    def connector(self, **more: Any) -> Connector:
        """Sinks that write to it."""

        def reaches(options: Any) -> list[Place]:
            host, _, port = options.address.partition(":")
            return [Place(Kind.ADDRESS, host, int(port))]

        return Connector(
            "server", "a server", sink=SinkKind(ServerOptions, lambda o, c: _Sink(self, c), reaches=reaches, **more)
        )


class _Sink:
    def __init__(self, server: Away, context: Context) -> None:
        self._server = server
        self._stream = context.stream

    async def check(self) -> None:
        self._server.check()

    async def open(self, grant: Any) -> None:
        self._server.check()

    async def write(self, batch: Any) -> None:
        self._server.check()
        self._server.writes[self._stream] = self._server.writes.get(self._stream, 0) + 1

    async def close(self) -> None: ...


def to_server(rate: int = 50, **sink: Any) -> dict[str, Any]:
    return {"source": generator(rate=rate), "sink": {"type": "server", **sink}}


async def until_waiting(hg: Harness, *names: str) -> None:
    for name in names:
        await hg.until(name, status="ERROR", detail="backing off")


async def until_seen_away(hg: Harness) -> None:
    """Somebody has asked what streams wait for, in vain."""
    await until(lambda: any(watch.target.is_away for watch in manager_of(hg)._lookout._watches.values()))


async def until_writing(server: Away, *names: str) -> None:
    before = dict(server.writes)
    await until(lambda: all(server.writes.get(f"{name}:0", 0) > before.get(f"{name}:0", 0) for name in names))


@pytest.fixture
async def own_server() -> AsyncIterator[Path]:
    """A PostgreSQL that may be stopped."""
    home = Path(tempfile.mkdtemp(prefix="hg"))
    yield home
    await asyncio.to_thread(shutil.rmtree, home, True)


async def test_streams_into_a_postgresql_that_was_stopped_go_on_once_it_is_started(
    hg: Harness, own_server: Path
) -> None:
    server = await asyncio.to_thread(EmbeddedServer.join, own_server, {"fsync": "off"})
    names = ("first", "second", "third")
    for name in names:
        await hg.apply(**{name: {"source": generator(), "mapping": IDS, "sink": postgres(server.url, name)}})
    for name in names:
        await hg.until(name, status="RUNNING", running=1)
    await asyncio.to_thread(server.leave)
    await until_waiting(hg, *names)
    server = await asyncio.to_thread(EmbeddedServer.join, own_server, {"fsync": "off"})
    try:
        for name in names:
            await hg.until(name, status="RUNNING")
        connection = await asyncpg.connect(server.url)
        for name in names:
            found = [row["id"] for row in await connection.fetch(f"SELECT id FROM {name} ORDER BY id")]
            assert found == list(range(found[0], found[0] + len(found)))
        await connection.close()
        for name in names:
            await hg.node.registry.set_enabled(name, False, "tester")
            await hg.until(name, status="STOPPED")
    finally:
        await asyncio.to_thread(server.leave)


async def test_a_postgresql_that_only_reads_is_away_until_it_takes_writes(hg: Harness) -> None:
    """It lets everybody in, so only asking tells."""
    database = hg.url.partition("@/")[2].partition("?")[0]
    await hg.sql("CREATE ROLE reader LOGIN SUPERUSER")
    await hg.sql(f"ALTER ROLE reader IN DATABASE {database} SET default_transaction_read_only = on")
    try:
        sink = postgres(hg.url.replace("//headgate@", "//reader@"))
        await hg.apply(orders={"source": generator(), "mapping": IDS, "sink": sink})
        await until_waiting(hg, "orders")
        await until_seen_away(hg)
        await hg.sql(f"ALTER ROLE reader IN DATABASE {database} RESET default_transaction_read_only")
        await hg.until_rows(3)
        await hg.node.registry.set_enabled("orders", False, "tester")
        await hg.until("orders", status="STOPPED")
    finally:
        await hg.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'reader'")
        await hg.sql("REASSIGN OWNED BY reader TO headgate")
        await hg.sql("DROP ROLE reader")


async def test_many_streams_share_one_probe(hg: Harness, plug: Any) -> None:
    server = Away()
    plug(server.connector(probe=server.probe))
    names = [f"s{n}" for n in range(30)]
    await hg.apply(**{name: to_server(rate=5) for name in names})
    await until_writing(server, *names)
    server.error = NotConnected("connection refused")
    await until_waiting(hg, *names)
    before = server.probes
    await until(lambda: server.probes >= before + 2)
    assert server.probes - before < len(names)
    server.error = None
    await until_writing(server, *names)


async def test_a_server_without_a_probe_is_knocked_at(hg: Harness, plug: Any) -> None:
    server = Away()
    plug(server.connector())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    await hg.apply(orders=to_server(address=f"127.0.0.1:{port}"))
    await until_writing(server, "orders")
    server.error = NotConnected("connection refused")
    await until_waiting(hg, "orders")
    await until_seen_away(hg)
    server.error = None
    listening = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", port)
    async with listening:
        await until_writing(server, "orders")


async def test_another_stream_that_works_tells_those_that_wait(hg: Harness, plug: Any) -> None:
    """The probe does not get through, for whatever reason, and a stream does."""
    server = Away()
    plug(server.connector(probe=server.probe))
    await hg.apply(waiting=to_server())
    await until_writing(server, "waiting")
    server.error, server.answers_probes = NotConnected("connection refused"), False
    await until_waiting(hg, "waiting")
    await until_seen_away(hg)
    server.error = None
    await hg.apply(working=to_server())
    await until_writing(server, "working", "waiting")


async def test_an_answer_of_any_kind_is_a_return(hg: Harness, plug: Any) -> None:
    """A server that is back and refuses the password: the stream finds out now, and not in an hour."""
    server = Away()
    plug(server.connector(probe=server.probe))
    await hg.apply(orders=to_server())
    await until_writing(server, "orders")
    server.error = NotConnected("connection refused")
    await until_waiting(hg, "orders")
    await until_seen_away(hg)
    server.error = ConnectorError("wrong password", cause=Cause.AUTH)
    await hg.until("orders", status="ERROR", detail="quarantined")


async def test_a_probe_passes_the_guard_and_says_nothing_of_a_password(url: str, tmp_path: Path, plug: Any) -> None:
    knocked = asyncio.Event()

    async def heard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        knocked.set()
        writer.close()

    server = Away()
    plug(server.connector())
    listening = await asyncio.start_server(heard, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening, running_node(url, tmp_path / "home") as hg:
        await hg.apply(orders=to_server(address=f"127.0.0.1:{port}"))
        await until_writing(server, "orders")
        config = await hg.node.registry.get_datasource_config((await hg.node.registry.get("orders")).id, 1)
        guarded = replace(config.prepared, sink_guard=Guard((Bound(Reach(addresses=())),)))
        found = awaited_of(guarded, "sink", NotConnected("away"))
        assert found is not None
        assert found.probe is not None
        with pytest.raises(OutOfReach):
            await found.probe()
        assert not knocked.is_set()
        assert str(port) not in found.key


async def test_what_needs_the_registry_goes_on_once_that_is_back(url: str, tmp_path: Path, plug: Any) -> None:
    async with proxied(url) as (proxy, through), running_node(through, tmp_path / "home", direct=url) as hg:
        server = Away()

        class Asking(_Sink):
            async def write(self, batch: Any) -> None:
                await hg.node.database.fetchval("SELECT 1")
                await super().write(batch)

        plug(Connector("server", "a server", sink=SinkKind(ServerOptions, lambda o, c: Asking(server, c))))
        await hg.apply(orders=to_server())
        await until_writing(server, "orders")
        proxy.refuse = True
        proxy.cut()
        await until_seen_away(hg)
        proxy.refuse = False
        await until_writing(server, "orders")


# What is said of it.


async def said_of(hg: Harness, name: str, *types: str) -> list[tuple[str, dict[str, Any]]]:
    found = await hg.node.registry.get(name)
    return [(row.type, row.payload) for row in await hg.node.registry.events.last(found.id, 1000) if row.type in types]


async def test_failures_that_repeat_are_one_event_and_the_end_has_their_number(
    hg: Harness, plug: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_waits(monkeypatch, 0.001)
    server = Away()
    plug(server.connector())
    await hg.apply(orders=to_server())
    await until_writing(server, "orders")
    server.error = NotConnected("connection refused")
    (handle,) = manager_of(hg).handles()
    await until(lambda: handle.stats.restarts > 20)
    with capture_logs() as lines:
        before = handle.stats.restarts
        await until(lambda: handle.stats.restarts > before + 20)
    assert [line for line in lines if line["log_level"] != "debug"] == []
    server.error = None
    await until_writing(server, "orders")
    types = ("worker_failed", "worker_running")

    async def is_told() -> bool:
        return len(await said_of(hg, "orders", *types)) == 3

    await until(is_told)
    first, failed, again = await said_of(hg, "orders", *types)
    assert first == ("worker_running", {"stream": "orders:0"})
    error = {"cause": "network", "error": "connection refused"}
    assert failed == ("worker_failed", {"stream": "orders:0", **error, "count": 1})
    assert again[0] == "worker_running"
    assert again[1]["failures"] == handle.stats.restarts
    assert again[1]["since"] <= datetime.now(UTC).isoformat()


async def test_a_restart_by_hand_makes_the_next_failure_news(hg: Harness, plug: Any) -> None:
    server = Away()
    plug(server.connector())
    server.error = NotConnected("connection refused")
    await hg.apply(orders=to_server())
    await until_waiting(hg, "orders")
    await hg.node.registry.restart("orders", "tester")

    async def is_told_twice() -> bool:
        return len(await said_of(hg, "orders", "worker_failed")) == 2

    await until(is_told_twice)


def manager_of(hg: Harness) -> WorkerManager:
    assert hg.node.manager is not None
    return hg.node.manager
