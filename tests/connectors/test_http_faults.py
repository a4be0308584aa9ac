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


class Hanging:
    """Answers, until it is asked for one thing; then not before the node was killed."""

    def __init__(self, is_it: Callable[[Asked], bool], answer: Callable[[Asked], Said]) -> None:
        self.hangs, self.goes_on = asyncio.Event(), asyncio.Event()
        self._is_it = is_it
        self._answer = answer

    def __call__(self, asked: Asked) -> Said:
        said = self._answer(asked)
        if self.goes_on.is_set() or not self._is_it(asked):
            return said

        async def hang(writer: asyncio.StreamWriter) -> None:
            self.hangs.set()
            await self.goes_on.wait()

        return Said(raw=hang)


async def test_a_node_that_is_killed_goes_on_with_the_same_page_and_sends_the_same_keys(
    start_node: Callable[..., NodeProcess], url: str, serve: Serve
) -> None:
    kept: dict[str, int] = {}

    def keep(asked: Asked) -> Said:
        kept[asked.headers["idempotency-key"]] = asked.json["id"]  # Also where nobody learns of it.
        return Said(status=201)

    polled = await serve(Hanging(lambda asked: asked.params["page"] == "12", paged))
    sent = await serve(Hanging(lambda asked: bool(asked.json["id"] == 130), keep))
    mapping = {"set": {"id": "id"}}
    datasources = {
        "polled": {
            "source": {"type": "http", "url": f"{polled.url}/orders", **PAGES},
            "mapping": mapping,
            "sink": {"type": "postgres", "url": url, "table": "target"},
        },
        "sent": {
            "source": {"type": "generator", "count": 300, "batch": 50, "fields": {"id": "sequence"}},
            "mapping": mapping,
            "sink": {"type": "http", "url": sent.url},
        },
    }
    node = await asyncio.to_thread(start_node)
    await asyncio.to_thread(node.apply, datasources)
    await until(lambda: polled.answer.hangs.is_set() and sent.answer.hangs.is_set())  # type: ignore[attr-defined]
    await until(lambda: _has(url, 11 * SIZE))
    await asyncio.to_thread(node.end, signal.SIGKILL)
    for server in (polled, sent):
        server.answer.goes_on.set()  # type: ignore[attr-defined]
    before = len(polled.asked)
    await asyncio.to_thread(start_node)
    await until(lambda: _has(url, COUNT))
    assert await table(url) == list(range(COUNT))
    assert [int(asked.params["page"]) for asked in polled.asked[before:]] == list(range(12, COUNT // SIZE + 2))
    await until(lambda: max(kept.values()) == 299)
    assert sorted(kept.values()) == list(range(300))
    assert len(sent.asked) > 300  # Some came again, under the same keys.


async def _has(url: str, number: int) -> bool:
    return len(await table(url)) == number
