"""Redis stream → mapping of six fields → PostgreSQL, against redis-py with hiredis.

python -m bench connectors.redis
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import redis
import redis.asyncio

from bench.connectors.bare import RECORDS, bare_rate, bodies, node_rate
from bench.rig import DATABASE_CORE, pin, report, running

BATCH = 5000
KEY = "orders"


@contextmanager
def server() -> Iterator[int]:
    """A Redis with default settings, on the core of the databases. Gives its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    folder = tempfile.mkdtemp(prefix="hgbr")
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port) as client:
            while True:
                try:
                    client.ping()
                    break
                except redis.exceptions.ConnectionError:
                    time.sleep(0.02)
        pin(process.pid, DATABASE_CORE)
        yield port
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def fill(port: int) -> None:
    """Entries with one field."""
    found = bodies()
    with redis.Redis(port=port) as client:
        for start in range(0, len(found), 1000):
            with client.pipeline(transaction=False) as pipe:
                for body in found[start : start + 1000]:
                    pipe.xadd(KEY, {"body": body})
                pipe.execute()


async def batches(port: int) -> AsyncIterator[list[bytes]]:
    """As the plain client reads them."""
    client = redis.asyncio.Redis(port=port, protocol=2)
    last, read = b"0-0", 0
    try:
        while read < RECORDS:
            ((_, entries),) = await client.xread({KEY: last}, count=BATCH)
            last, read = entries[-1][0], read + len(entries)
            yield [fields[b"body"] for _, fields in entries]
    finally:
        await client.aclose()


def main() -> dict[str, float]:
    """Run and print."""
    with server() as port, running(pinned=True) as rig:
        fill(port)
        rig.node.call("PUT", "/api/secrets/redis", {"value": f"redis://127.0.0.1:{port}"})
        source = {"type": "redis", "url": {"$secret": "redis"}, "stream": KEY, "format": "json", "batch": BATCH}
        ours = node_rate(rig, "from-redis", source)
        bare = asyncio.run(bare_rate(rig.sink, batches(port)))
    return report(
        "Redis stream → mapping of six fields → PostgreSQL (python -m bench connectors.redis)",
        {"records/s": ours, "bare loop of redis-py, records/s": bare, "against the bare loop": ours / bare},
    )


if __name__ == "__main__":
    main()
