"""A thousand datasources on one node: cold start, cost at rest, and how soon a change is acted upon.

    python -m bench.scale

Each datasource is a generator of one record a minute into a PostgreSQL table.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import asyncpg

from bench.rig import SINK, children, cpu_s, memory_kb, postmaster, report, running
from headgate.testing.processes import NodeProcess

MANY = 1000
REST_S = 60.0
CHANGES = 20


def quiet() -> dict[str, Any]:
    """One record a minute."""
    return {
        "source": {"type": "generator", "rate": 1 / 60},
        "mapping": {"set": {"id": "id", "at": "timestamp(ts)"}},
        "sink": {"type": "postgres", "url": SINK, "table": "target"},
    }


def probe(number: int) -> dict[str, Any]:
    """The one that is changed; each number is another version."""
    return {
        "source": {"type": "generator", "rate": 100},
        "mapping": {"set": {"id": "id", "version": number}},
        "sink": {"type": "blackhole"},
    }


def fetch(url: str, query: str, *args: Any) -> list[Any]:
    """One query on a connection of its own."""

    async def run() -> list[Any]:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetch(query, *args)
        finally:
            await connection.close()

    return asyncio.run(run())


def wait_for_running(url: str, number: int) -> None:
    """Until this many streams run on a node that lives."""
    query = (
        "SELECT count(*) AS n FROM headgate.datasource_state s JOIN headgate.node n ON n.id = s.node"
        " WHERE s.worker_status = 'RUNNING'"
    )
    deadline = time.monotonic() + 120
    while fetch(url, query)[0]["n"] < number:
        assert time.monotonic() < deadline, "they did not all run"
        time.sleep(0.05)


async def change_times(node: NodeProcess, url: str) -> tuple[list[float], list[float]]:
    """From the publish to the regrant of the stream, and to the new version having proved itself."""
    connection = await asyncpg.connect(url)
    begun, proved = [], []
    query = (
        "SELECT d.running_version, s.epoch FROM headgate.datasource d JOIN headgate.stream s ON s.datasource = d.id"
        " WHERE d.name = 'probe'"
    )
    node.apply({"probe": probe(0)})
    while (before := await connection.fetchrow(query))["running_version"] != 1:
        await asyncio.sleep(0.01)
    for number in range(1, CHANGES + 1):
        await asyncio.sleep(0.3)
        before = await connection.fetchrow(query)
        began = time.perf_counter()
        await asyncio.to_thread(node.apply, {"probe": probe(number)})
        seen = None
        while True:
            row = await connection.fetchrow(query)
            if seen is None and row["epoch"] > before["epoch"]:
                seen = time.perf_counter() - began
            if row["running_version"] > before["running_version"]:
                break
            await asyncio.sleep(0.002)
        proved.append(time.perf_counter() - began)
        begun.append(seen or proved[-1])
    await connection.close()
    return begun, proved


def main() -> dict[str, float]:
    """Run and print."""
    with running() as rig:
        node, url = rig.node, rig.own
        few_begun, few_proved = asyncio.run(change_times(node, url))
        node.call("DELETE", "/api/datasources/probe")
        time.sleep(2.0)
        empty_kb = memory_kb(node.process.pid)
        node.apply({f"quiet-{number}": quiet() for number in range(MANY)})
        wait_for_running(url, MANY)
        node.end(signal.SIGTERM)
        began = time.perf_counter()
        again = NodeProcess.start(node.home)
        wait_for_running(url, MANY)
        cold_s = time.perf_counter() - began
        try:
            time.sleep(35.0)  # Silent sources prove their version after half a minute; then it is at rest.
            database = postmaster(node.home)
            node_cpu, database_cpu = cpu_s(again.process.pid), tree_cpu_s(database)
            time.sleep(REST_S)
            node_share = (cpu_s(again.process.pid) - node_cpu) / REST_S * 100
            database_share = (tree_cpu_s(database) - database_cpu) / REST_S * 100
            each_kb = (memory_kb(again.process.pid) - empty_kb) / MANY
            begun, proved = asyncio.run(change_times(again, url))
        finally:
            again.end(signal.SIGTERM)
    return report(
        f"{MANY:,} datasources on one node (python -m bench.scale)",
        {
            "cold start to all RUNNING, s": cold_s,
            "at rest, node, % of one core": node_share,
            "at rest, PostgreSQL, % of one core": database_share,
            "memory for each, KB": each_kb,
            "publish to regrant, median, ms, with no others": statistics.median(few_begun) * 1000,
            f"publish to regrant, median, ms, with {MANY:,} others": statistics.median(begun) * 1000,
            f"publish to regrant, slowest of {CHANGES}, ms": max(begun) * 1000,
            "publish to proved, median, ms, with no others": statistics.median(few_proved) * 1000,
            f"publish to proved, median, ms, with {MANY:,} others": statistics.median(proved) * 1000,
            f"publish to proved, slowest of {CHANGES}, ms": max(proved) * 1000,
        },
    )


def tree_cpu_s(pid: int) -> float:
    """Of a process, its children that are there now, and those that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    alive = [one for one in children(pid) if Path(f"/proc/{one}").exists()]
    return ended + sum(cpu_s(one) for one in [pid, *alive])


if __name__ == "__main__":
    main()
