"""http → mapping of six fields → PostgreSQL: the node on one core, PostgreSQL and the server of pages on the other.

    python -m bench connectors.http

Beside it, in the same run on the same pages of 1,000 records: the bare loop of the same client (a request, JSON, six
fields by hand, COPY and commit, one after another), and that of httpx. `python -m bench.connectors.http clients` only
asks for pages, and compares the client with httpx and, if it is installed, aiohttp.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import httpx
import msgspec
import uvloop

from bench.connectors.bare import TABLE, bodies, row_of
from bench.rig import DATABASE_CORE, NODE_CORE, SINK, cpu_s, report, running
from bench.throughput import MAPPING, SECONDS, rate_of, records_written
from headgate.connectors.guard import OPEN
from headgate.connectors.http.client import Client, Limits, Request
from headgate.connectors.http.targets import target_of

PAGE, PAGES = 1_000, 20
Get = Callable[[str], Awaitable[bytes]]


# The server.


class Pages(asyncio.Protocol):
    """Answers with one page after another, without end."""

    def __init__(self, pages: list[bytes]) -> None:
        self._pages = pages

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody polls."""
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """One request: they come one at a time, and in one piece."""
        path = data.partition(b" HTTP/")[0]
        number = int(path.rpartition(b"cursor=")[2]) if b"cursor=" in path else 0
        body = b'{"next":%d,"items":%b}' % (number + 1, self._pages[number % len(self._pages)])
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        self._transport.write(body)


async def serve(size: int) -> None:
    """Until it is killed."""
    made = [msgspec.json.decode(body) for body in bodies(size * PAGES)]
    pages = [msgspec.json.encode(made[first : first + size]) for first in range(0, len(made), size)]
    server = await asyncio.get_running_loop().create_server(lambda: Pages(pages), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def serving(size: int = PAGE) -> Iterator[str]:
    """The URL of a server in a process."""
    command = [sys.executable, "-m", "bench.connectors.http", "serve", str(size)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        os.sched_setaffinity(process.pid, DATABASE_CORE)
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/orders"
    finally:
        process.kill()
        process.wait()


# The loops.


@contextlib.asynccontextmanager
async def own(url: str) -> Any:
    """The connector's client."""
    client = Client(target_of(url), OPEN, Limits(30.0, 10 << 20))

    async def get(url: str) -> bytes:
        return (await client.send(Request(target_of(url)))).body

    yield get
    await client.close()


@contextlib.asynccontextmanager
async def of_httpx(url: str) -> Any:
    """httpx."""
    async with httpx.AsyncClient(timeout=30.0, trust_env=False) as client:

        async def get(url: str) -> bytes:
            return (await client.get(url)).content

        yield get


@contextlib.asynccontextmanager
async def of_aiohttp(url: str) -> Any:
    """aiohttp."""
    import aiohttp  # type: ignore[import-not-found, unused-ignore]

    async with aiohttp.ClientSession() as session:

        async def get(url: str) -> bytes:
            async with session.get(url) as answer:
                return bytes(await answer.read())

        yield get


async def bare_rate(url: str, sink: str, client: Any, table: str) -> tuple[float, float]:
    """Records per second from a request to a commit, and the processor time of each in µs."""
    connection = await asyncpg.connect(sink)
    await connection.execute(f"CREATE TABLE {table} {TABLE}")
    began, began_cpu, written, number = time.perf_counter(), time.process_time(), 0, 0
    async with client(url) as get:
        while time.perf_counter() - began < SECONDS:
            found = msgspec.json.decode(await get(f"{url}?cursor={number}"))
            rows = [row_of(record) for record in found["items"]]
            async with connection.transaction():
                await connection.copy_records_to_table(table, records=rows)
            written, number = written + len(rows), found["next"]
        elapsed = time.perf_counter() - began
    await connection.close()
    return written / elapsed, (time.process_time() - began_cpu) / written * 1e6


async def page_cost_us(url: str, client: Any, pages: int = 400) -> float:
    """Processor time of a page that is not looked into. It says more than a rate where others use the machine, too."""
    began = 0.0
    async with client(url) as get:
        for number in range(pages + 20):
            if number == 20:  # The connection is there, and all is imported.
                began = time.process_time()
            await get(f"{url}?cursor={number}")
    return (time.process_time() - began) / pages * 1e6


def document(url: str) -> dict[str, Any]:
    """One datasource, as fast as its server and its sink."""
    paging = {"type": "cursor", "path": "next", "param": "cursor"}
    source = {"type": "http", "url": url, "records": "items", "paging": paging}
    return {"source": source, "mapping": MAPPING, "sink": {"type": "postgres", "url": SINK, "table": "polled"}}


def main() -> dict[str, float]:
    """Run and print."""
    with serving() as url, running(pinned=True) as rig:
        began_cpu_s = cpu_s(rig.node.process.pid)
        polled = rate_of(rig.node, "polled", document(url))
        cost_us = (cpu_s(rig.node.process.pid) - began_cpu_s) / records_written(rig.node, "polled") * 1e6
        os.sched_setaffinity(0, NODE_CORE)
        bare, bare_us = uvloop.run(bare_rate(url, rig.sink, own, "bare_own"))
        with_httpx, _ = uvloop.run(bare_rate(url, rig.sink, of_httpx, "bare_httpx"))
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    return report(
        "http, pages of 1,000 → mapping of six fields → PostgreSQL (python -m bench connectors.http)",
        {
            "records/s": polled,
            "bare loop of the same client, records/s": bare,
            "bare loop of httpx, records/s": with_httpx,
            "against the bare loop of the same client": polled / bare,
            "processor time of the node, µs a record": cost_us,
            "processor time of the bare loop, µs a record": bare_us,
        },
    )


def clients() -> None:
    """What a page costs each client."""
    for size in (1, 100, PAGE):
        with serving(size) as url:
            os.sched_setaffinity(0, NODE_CORE)
            figures = {"own": uvloop.run(page_cost_us(url, own)), "httpx": uvloop.run(page_cost_us(url, of_httpx))}
            with contextlib.suppress(ImportError):
                figures["aiohttp"] = uvloop.run(page_cost_us(url, of_aiohttp))
        report(f"pages of {size:,} records, µs of CPU a page (python -m bench.connectors.http clients)", figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        uvloop.run(serve(int(sys.argv[2])))
    elif sys.argv[1:2] == ["clients"]:
        clients()
    else:
        main()
