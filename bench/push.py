"""Programs that push: records per second through one node, into nothing and into PostgreSQL, until they are durable.

    python -m bench.push

The client is `headgate.client`, in a process of its own, with small JSON records in one stream. The clock stops when
the last record is acknowledged, which means that it is durable and its position committed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import Any

from bench.rig import DATABASE_CORE, SINK, report, running
from headgate.client import PushClient
from headgate.testing.processes import NodeProcess

RECORDS = {"blackhole": 1_000_000, "postgres": 500_000}
CHUNK = 1_000
ROUNDS = 3
PAYLOAD = b'{"id":%d,"page":"/pricing","user":"ada","ms":12}'


async def push(url: str, token: str, datasource: str, count: int) -> None:
    """Be the program: prints how many seconds it took."""
    async with PushClient(url, token=token, datasource=datasource) as client:
        stream = await client.stream("bench")
        first = 0 if stream.position is None else stream.position + 1
        began = time.perf_counter()
        for start in range(first, first + count, CHUNK):
            await stream.send_many([(id, PAYLOAD % id) for id in range(start, start + CHUNK)])
        await stream.flush()
        print(time.perf_counter() - began)
        await stream.finish()


def rate(node: NodeProcess, datasource: str) -> float:
    """The median of a few rounds, records per second."""
    count = RECORDS[datasource]
    command = [sys.executable, "-m", "bench.push", node.url, node.token, datasource, str(count)]
    rates = []
    for _ in range(ROUNDS):
        program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        os.sched_setaffinity(program.pid, DATABASE_CORE)
        printed, _ = program.communicate(timeout=300)
        rates.append(count / float(printed))
    return sorted(rates)[len(rates) // 2]


def main() -> dict[str, Any]:
    """Run and print."""
    with running(pinned=True) as rig:
        sinks = {"blackhole": {"type": "blackhole"}, "postgres": {"type": "postgres", "url": SINK, "table": "pushed"}}
        rig.node.apply({name: {"source": {"type": "push"}, "sink": sink} for name, sink in sinks.items()})
        rates = {name: rate(rig.node, name) for name in RECORDS}
    return report(
        "program → one node → sink, acknowledged as durable (python -m bench.push)",
        {f"into {name}, records/s, median of {ROUNDS}": found for name, found in rates.items()},
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(push(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
    else:
        main()
