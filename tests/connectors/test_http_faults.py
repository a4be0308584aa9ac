"""HTTP under faults: servers and nodes that are killed, connections that are cut, in the middle of pages and writes."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from headgate.connectors.api import Outgoing, Position, Progress
from headgate.connectors.http.options import HttpSinkOptions, HttpSourceOptions
from headgate.connectors.http.sink import HttpSink
from headgate.connectors.http.source import HttpSource
from headgate.errors import EndOfStream, NotConnected
from headgate.testing.factories import make_context, make_grant
from headgate.testing.processes import NodeProcess
from headgate.testing.servers import free_port
from tests.connectors.http_server import COUNT, HOST, SIZE, Asked, Said, Serve, paged, serve
from tests.proxy import Proxy, listening
from tests.waiting import until, wait_until

__all__ = ["serve"]  # A fixture.

PAGES: dict[str, Any] = {"records": "data.items", "paging": {"type": "page"}, "interval_s": None}


class Process:
    """A server that can be killed."""

    def __init__(self, file: Path) -> None:
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}"
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.connectors.http_server", str(self.port), str(self._file)]
        root = Path(__file__).parent.parent.parent
        self._process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE)
        wait_until(self._listens, "the server listens")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _listens(self) -> bool:
        with socket.socket() as found:
            return found.connect_ex((HOST, self.port)) == 0

    def kept(self) -> list[tuple[str, list[int]]]:
        """What it was sent: the key and the ids."""
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return [(line.split(" ")[0], json.loads(line.partition(" ")[2].rpartition("]")[0] + "]")) for line in lines]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    server = Process(tmp_path / "kept.txt")
    server.start()
    yield server
    server.kill()


def make_source(url: str) -> HttpSource:
    return HttpSource(HttpSourceOptions(url=f"{url}/orders", timeout_s=10.0, **PAGES), make_context())


async def read_through(url: str, before_each: Callable[[int], None]) -> list[int]:
    """All ids, as a worker reads them: after a failure it opens again with the last position."""
    ids: list[int] = []
    position: Position = None
    reads = 0
    while True:
        source = make_source(url)
        try:
            await source.open(position)
            while True:
                before_each(reads)
                reads += 1
                batch = await asyncio.wait_for(source.read(), 20)
                ids += [record["id"] for record in batch.records]
                position = msgspec.json.decode(msgspec.json.encode(batch.position))
        except NotConnected:
            await asyncio.sleep(0.01)
        except EndOfStream:
            return ids
        finally:
            await source.close()


async def test_a_server_that_is_killed_and_started_again_in_the_middle_costs_no_record(process: Process) -> None:
    failed = 0

    def before(reads: int) -> None:
        nonlocal failed
        if reads in (5, 20):
            process.kill()
        elif reads in (7, 22):
            process.start()
            failed += 1

    assert await read_through(process.url, before) == list(range(COUNT))
    assert failed == 2


async def test_connections_that_are_cut_cost_no_record(serve: Serve) -> None:
    server = await serve(paged)
    proxy = Proxy(f"{HOST}:{server.port}")
    async with listening(proxy) as address:

        def before(reads: int) -> None:
            if reads % 3 == 2:
                asyncio.get_running_loop().call_soon(proxy.cut)

        assert await read_through(f"http://{address}", before) == list(range(COUNT))
    assert proxy.accepted > 3


async def test_a_server_that_is_killed_in_the_middle_of_writes_has_every_record_under_one_key(process: Process) -> None:
    options = HttpSinkOptions(url=f"{process.url}/orders", batch=7, timeout_s=10.0)
    batches = [
        Outgoing([{"id": id} for id in range(first, first + 50)], Progress(commits=1 + first // 50), places=str)
        for first in range(0, 300, 50)
    ]
    sink = HttpSink(options, make_context())
    await sink.open(make_grant())
    for number, batch in enumerate(batches):
        if number in (2, 4):
            process.kill()
            with pytest.raises(NotConnected):
                await sink.write(batch)
            process.start()
            await sink.close()
            sink = HttpSink(options, make_context())
            await sink.open(make_grant(epoch=number))
        await sink.write(batch)
    await sink.close()
    by_key = dict(process.kept())
    assert sorted(id for ids in by_key.values() for id in ids) == list(range(300))


# With a node.


async def table(url: str) -> list[int]:
    connection = await asyncpg.connect(url)
    try:
        if await connection.fetchval("SELECT to_regclass('target')") is None:
            return []
        return [row[0] for row in await connection.fetch("SELECT id FROM target ORDER BY id")]
    finally:
        await connection.close()


async def test_a_node_that_is_killed_in_a_poll_goes_on_with_the_page_that_was_not_handled(
    start_node: Callable[..., NodeProcess], url: str, serve: Serve
) -> None:
    asked_for: list[int] = []
    is_hanging, may_go_on = asyncio.Event(), asyncio.Event()

    def answer(asked: Asked) -> Said:
        asked_for.append(int(asked.params["page"]))
        if asked_for[-1] != 12 or may_go_on.is_set():
            return paged(asked)

        async def hang(writer: asyncio.StreamWriter) -> None:
            is_hanging.set()
            await may_go_on.wait()

        return Said(raw=hang)

    server = await serve(answer)
    node = await asyncio.to_thread(start_node)
    source = {"type": "http", "url": f"{server.url}/orders", **PAGES}
    sink = {"type": "postgres", "url": url, "table": "target"}
    document = {"source": source, "mapping": {"set": {"id": "id"}}, "sink": sink}
    await asyncio.to_thread(node.apply, {"orders": document})
    await asyncio.wait_for(is_hanging.wait(), 60)
    await until(lambda: _has(url, 11 * SIZE))
    await asyncio.to_thread(node.end, signal.SIGKILL)
    may_go_on.set()
    before = len(asked_for)
    await asyncio.to_thread(start_node)
    await until(lambda: _has(url, COUNT))
    assert await table(url) == list(range(COUNT))
    assert asked_for[before:] == list(range(12, COUNT // SIZE + 2))


async def _has(url: str, number: int) -> bool:
    return len(await table(url)) == number


async def test_a_node_that_is_killed_while_it_sends_sends_the_same_keys_again(
    start_node: Callable[..., NodeProcess], serve: Serve
) -> None:
    kept: dict[str, int] = {}
    is_hanging, may_go_on = asyncio.Event(), asyncio.Event()

    def answer(asked: Asked) -> Said:
        if asked.json["id"] != 130 or may_go_on.is_set():
            kept[asked.headers["idempotency-key"]] = asked.json["id"]
            return Said(status=201)

        async def hang(writer: asyncio.StreamWriter) -> None:
            kept[asked.headers["idempotency-key"]] = asked.json["id"]  # It is taken, and nobody learns of it.
            is_hanging.set()
            await may_go_on.wait()

        return Said(raw=hang)

    server = await serve(answer)
    node = await asyncio.to_thread(start_node)
    source = {"type": "generator", "count": 300, "batch": 50, "fields": {"id": "sequence"}}
    document = {"source": source, "mapping": {"set": {"id": "id"}}, "sink": {"type": "http", "url": server.url}}
    await asyncio.to_thread(node.apply, {"orders": document})
    await asyncio.wait_for(is_hanging.wait(), 60)
    await asyncio.to_thread(node.end, signal.SIGKILL)
    may_go_on.set()
    await asyncio.to_thread(start_node)
    await until(lambda: len(server.asked) > 200 and max(kept.values()) == 299)
    assert sorted(kept.values()) == list(range(300))  # More were sent; under these keys.
