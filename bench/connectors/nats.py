"""JetStream stream → mapping of six fields → PostgreSQL, against nats-py.

python -m bench connectors.nats
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import nats
from nats.js.api import AckPolicy, ConsumerConfig

from bench.connectors.bare import RECORDS, bare_rate, bodies, node_rate
from bench.rig import DATABASE_CORE, pin, report, running

BATCH = 5000
STREAM = "ORDERS"


@contextmanager
def server() -> Iterator[str]:
    """A server with default settings, on the core of the databases. Gives its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    folder = tempfile.mkdtemp(prefix="hgbn")
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or "nats-server"
    command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder, "-l", f"{folder}/log"]
    process = subprocess.Popen(command)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.02)
        pin(process.pid, DATABASE_CORE)
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


async def fill(url: str) -> None:
    """Messages on one subject."""
    client = await nats.connect(url)
    config = json.dumps({"name": STREAM, "subjects": ["orders.>"]}).encode()
    await client.request(f"$JS.API.STREAM.CREATE.{STREAM}", config, timeout=5)
    for number, body in enumerate(bodies()):
        await client.publish("orders.new", body)
        if number % 10_000 == 0:
            await client.flush(30)
    await client.flush(30)
    question = f"$JS.API.STREAM.INFO.{STREAM}"
    while json.loads((await client.request(question, timeout=5)).data)["state"]["messages"] < RECORDS:
        await asyncio.sleep(0.1)
    await client.close()


async def batches(url: str) -> AsyncIterator[list[bytes]]:
    """As nats-py reads them."""
    client = await nats.connect(url)
    try:
        jetstream = client.jetstream()
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=300)
        pull = await jetstream.pull_subscribe("orders.>", stream=STREAM, config=config)
        read = 0
        while read < RECORDS:
            messages = await pull.fetch(BATCH, timeout=5)
            read += len(messages)
            yield [message.data for message in messages]
    finally:
        await client.close()


def main() -> dict[str, float]:
    """Run and print."""
    with server() as url, running(pinned=True) as rig:
        asyncio.run(fill(url))
        rig.node.call("PUT", "/api/secrets/nats", {"value": url})
        source = {"type": "nats", "url": {"$secret": "nats"}, "stream": STREAM, "batch": BATCH}
        ours = node_rate(rig, "from-nats", source)
        bare = asyncio.run(bare_rate(rig.sink, batches(url)))
    return report(
        "JetStream stream → mapping of six fields → PostgreSQL (python -m bench connectors.nats)",
        {"records/s": ours, "bare loop of nats-py, records/s": bare, "against the bare loop": ours / bare},
    )


if __name__ == "__main__":
    main()
