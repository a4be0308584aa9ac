"""generator → mapping of six fields → PostgreSQL: the node on one core, PostgreSQL on the other.

    python -m bench.throughput

Beside it, in the same run on the same data: rows that are already in memory, written by the bare driver (binary COPY,
one transaction per batch of 5,000), which is the most that any connector on this driver could reach.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import asyncpg

from bench.rig import NODE_CORE, SINK, report, running
from headgate.testing.processes import NodeProcess

SECONDS = 10.0
WARM_UP_RECORDS = 50_000
MAPPING = {
    "set": {
        "id": "id",
        "kind": "kind",
        "email": "lower(user.email)",
        "cents": "round(total * 100)",
        "placed_at": "timestamp(ts)",
        "note": 'coalesce(note, "none")',
    },
    "key": "id",
}


def document(mode: str) -> dict[str, Any]:
    """One datasource, as fast as its sink."""
    sink = {"type": "postgres", "url": SINK, "table": f"target_{mode}", "mode": mode}
    return {"source": {"type": "generator", "batch": 5000}, "mapping": MAPPING, "sink": sink}


def records_written(node: NodeProcess, name: str) -> int:
    """How many records have become durable."""
    return int(node.call("GET", f"/api/datasources/{name}")["metrics"].get("records_written", 0))


def rate(node: NodeProcess, mode: str) -> float:
    """Durable records per second, once it is warm."""
    return rate_of(node, f"bench-{mode}", document(mode))


def rate_of(node: NodeProcess, name: str, document: dict[str, Any]) -> float:
    """The same of any datasource."""
    node.apply({name: document})
    node.wait_for(name, lambda found: found["metrics"].get("records_written", 0) > WARM_UP_RECORDS, 60)
    began, first = time.perf_counter(), records_written(node, name)
    time.sleep(SECONDS)
    last, ended = records_written(node, name), time.perf_counter()
    node.call("POST", f"/api/datasources/{name}/stop")
    node.wait_for(name, lambda found: found["worker_status"] == "STOPPED")
    return (last - first) / (ended - began)


async def bare_rate(url: str) -> float:
    """The driver alone: the same columns, the same batches, nothing read and nothing mapped."""
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE bare (LIKE target_insert)")
    rows = [tuple(row) for row in await connection.fetch("SELECT * FROM target_insert LIMIT 5000")]
    began, written = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS / 2:
        async with connection.transaction():
            await connection.copy_records_to_table("bare", records=rows)
        written += len(rows)
    elapsed = time.perf_counter() - began
    await connection.close()
    return written / elapsed


def main() -> dict[str, float]:
    """Run and print."""
    with running(pinned=True) as rig:
        insert, upsert = rate(rig.node, "insert"), rate(rig.node, "upsert")
        os.sched_setaffinity(0, NODE_CORE)
        bare = asyncio.run(bare_rate(rig.sink))
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    return report(
        "generator → mapping of six fields → PostgreSQL (python -m bench.throughput)",
        {
            "insert, records/s": insert,
            "upsert, records/s": upsert,
            "bare COPY by the driver, rows/s": bare,
            "insert against bare COPY": insert / bare,
        },
    )


if __name__ == "__main__":
    main()
