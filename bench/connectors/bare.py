"""What the benchmarks of brokers share: the records, the bare loop's half after the client, and the node's rate.

The *bare loop* is what somebody would write without Headgate: the plain client's batch read, JSON decode, six fields,
binary COPY, one transaction per batch. It has no position, no dead letters and no retry.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from bench.rig import NODE_CORE, SINK, Rig
from bench.throughput import MAPPING, records_written

RECORDS = int(os.environ.get("HEADGATE_TEST_BENCH_RECORDS", "400000"))
WARM_UP_RECORDS = RECORDS // 8
TABLE = "(id bigint, kind text, email text, cents bigint, placed_at timestamptz, note text)"


def bodies(number: int = RECORDS) -> list[bytes]:
    """Orders as JSON, about 150 bytes each."""
    return [
        msgspec.json.encode(
            {
                "id": id,
                "kind": "order",
                "user": {"email": f"User{id % 1000}@Example.com"},
                "total": id % 10_000 / 100,
                "ts": f"2026-01-{id % 28 + 1:02}T12:00:00Z",
                "note": None if id % 3 else "gift",
            }
        )
        for id in range(number)
    ]


def row_of(order: dict[str, Any]) -> tuple[Any, ...]:
    """What the mapping makes of an order."""
    return (
        order["id"],
        order["kind"],
        order["user"]["email"].lower(),
        round(order["total"] * 100),
        datetime.fromisoformat(order["ts"]),
        order["note"] if order["note"] is not None else "none",
    )


async def bare_rate(url: str, batches: AsyncIterator[list[bytes]]) -> float:
    """Rows per second of the bare loop, on the core that the node has when it is measured."""
    os.sched_setaffinity(0, NODE_CORE)
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("DROP TABLE IF EXISTS bare")
        await connection.execute(f"CREATE TABLE bare {TABLE}")
        decode, written = msgspec.json.Decoder().decode, 0
        began = time.perf_counter()
        async for batch in batches:
            rows = [row_of(decode(body)) for body in batch]
            async with connection.transaction():
                await connection.copy_records_to_table("bare", records=rows)
            written += len(rows)
        return written / (time.perf_counter() - began)
    finally:
        await connection.close()
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def node_rate(rig: Rig, name: str, source: dict[str, Any], total: int = RECORDS) -> float:
    """Durable records per second from this source into PostgreSQL, from the warm-up to the last record."""
    sink = {"type": "postgres", "url": SINK, "table": name.replace("-", "_")}
    rig.node.apply({name: {"source": source, "mapping": MAPPING, "sink": sink}})
    rig.node.wait_for(name, lambda found: found["metrics"].get("records_written", 0) >= WARM_UP_RECORDS, 60)
    began, first = time.perf_counter(), records_written(rig.node, name)
    while (last := records_written(rig.node, name)) < total:
        time.sleep(0.02)
    ended = time.perf_counter()
    rig.node.call("POST", f"/api/datasources/{name}/stop")
    rig.node.wait_for(name, lambda found: found["worker_status"] == "STOPPED")
    return (last - first) / (ended - began)
