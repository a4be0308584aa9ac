"""A node that has little to do: open consoles, quiet datasources, scrapes, and publishes that come and go.

    python -m bench rest

Shares of a core are processor time, so that a busy machine changes them little.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx

from bench.rig import cpu_s, report, rss_kb, running
from bench.scale import quiet, wait_for_running
from headgate.core.records import Totals
from headgate.slices import SLICE, sliced
from headgate.telemetry import exposition
from headgate.telemetry.metrics import (
    COUNTERS,
    DatasourceFigures,
    DumpFigures,
    GroupFigures,
    NodeCollector,
    PushFigures,
    StreamFigures,
)
from headgate.testing.processes import NodeProcess

CONSOLES, WATCHED = 50, 300
MANY = 5000
CHUNK = 200  # Datasources in one apply.
SETTLE_S = 40.0  # Silent sources prove their version after half a minute; then it is at rest.
REST_S = 60.0
ROUNDS = 1000


def steady() -> dict[str, Any]:
    """One record a second, so that every snapshot of a console differs from the last."""
    return {"source": {"type": "generator", "rate": 1}, "sink": {"type": "blackhole"}}


def share_of_core(node: NodeProcess, span_s: float) -> float:
    """Percent of one core that the node uses over a span."""
    before, began = cpu_s(node.process.pid), time.monotonic()
    time.sleep(span_s)
    return (cpu_s(node.process.pid) - before) / (time.monotonic() - began) * 100


@contextlib.contextmanager
def consoles(node: NodeProcess, number: int) -> Iterator[list[int]]:
    """This many open consoles, each of which reads all that comes; yields how many bytes each has read."""
    read, over = [0] * number, threading.Event()

    def follow(index: int) -> None:
        headers = {"Authorization": f"Bearer {node.token}"}
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("GET", f"{node.url}/api/overview", headers=headers, timeout=10.0) as answer,
        ):
            for piece in answer.iter_raw():
                read[index] += len(piece)
                if over.is_set():
                    return

    threads = [threading.Thread(target=follow, args=(index,), daemon=True) for index in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield read
    finally:
        over.set()
        for thread in threads:
            thread.join()


def watched() -> dict[str, float]:
    """Consoles on a node whose datasources move all the time."""
    with running() as rig:
        node, url = rig.node, rig.own
        node.apply({f"steady-{number}": steady() for number in range(WATCHED)})
        wait_for_running(url, WATCHED)
        time.sleep(5.0)
        alone = share_of_core(node, 20.0)
        with consoles(node, CONSOLES) as read:
            time.sleep(3.0)
            begun = sum(read)
            together = share_of_core(node, 20.0)
            each_kb = (sum(read) - begun) / CONSOLES / 20.0 / 1000
    return {
        f"{WATCHED} datasources of one record a second, % of one core": alone,
        f"and {CONSOLES} consoles, % of one core more": together - alone,
        "each console reads, KB/s": each_kb,
    }


def resting() -> dict[str, float]:
    """Datasources of one record a minute, and what it costs to be scraped with them."""
    with running() as rig:
        for begin in range(0, MANY, CHUNK):
            rig.node.apply({f"quiet-{number}": quiet() for number in range(begin, begin + CHUNK)})
        wait_for_running(rig.own, MANY)
        time.sleep(SETTLE_S)
        share = share_of_core(rig.node, REST_S)
    return {f"{MANY:,} datasources of one record a minute, % of one core": share}


def scraped() -> dict[str, float]:
    """How long the text of as many streams holds the event loop, in one go and in all."""

    async def here() -> AsyncIterator[StreamFigures]:
        async for some in sliced(range(MANY), SLICE):
            for number in some:
                counts = dict.fromkeys(COUNTERS, float(number))
                totals = Totals(number, number)
                name = f"quiet-{number}"
                yield StreamFigures(name, f"{name}:0", "RUNNING", counts, totals, 0.5, 0.1, 3, 300, 0.01, 1e9)

    async def nothing() -> dict[str, int]:
        return {}

    async def resting() -> list[StreamFigures]:
        return []

    async def taken() -> set[str]:
        return set()

    async def datasources() -> DatasourceFigures:
        return DatasourceFigures([(f"quiet-{number}", "ok") for number in range(MANY)])

    async def run() -> tuple[float, float, int]:
        groups = GroupFigures(nothing, deque(), lambda: 0, Counter())
        push = PushFigures(0, 0, Counter())
        collector = NodeCollector(
            here,
            resting,
            taken,
            datasources,
            lambda: None,
            lambda: MANY,
            lambda: 4.0,
            lambda: 0.0,
            Counter,
            lambda: push,
            groups,
            DumpFigures(nothing),
        )
        holds: list[float] = []

        async def watch() -> None:
            while True:
                before = time.thread_time()
                await asyncio.sleep(0)
                holds.append(time.thread_time() - before)

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        size = 0
        async for some in exposition.zipped(exposition.written(await collector.families())):
            size += len(some)
        watching.cancel()
        return max(holds), sum(holds), size

    longest_s, whole_s, size = asyncio.run(run())
    return {
        f"/metrics of {MANY:,} streams, longest hold of the event loop, ms": longest_s * 1000,
        "in all, ms of processor time": whole_s * 1000,
        "zipped, MB": size / 1e6,
    }


def coming_and_going() -> dict[str, float]:
    """Publish a datasource, see it run, delete it: again and again."""
    with running() as rig:
        node = rig.node
        sizes = []
        with httpx.Client(base_url=node.url, headers={"Authorization": f"Bearer {node.token}"}, timeout=60.0) as client:
            for round in range(2 * ROUNDS + 1):
                if round % ROUNDS == 0:
                    time.sleep(5.0)
                    sizes.append(rss_kb(node.process.pid))
                name = f"passing-{round}"
                document = {"source": {"type": "generator", "rate": 100}, "sink": {"type": "blackhole"}}
                client.post("/api/apply", json={"datasources": {name: document}}).raise_for_status()
                while client.get(f"/api/datasources/{name}").json()["worker_status"] != "RUNNING":
                    time.sleep(0.01)
                client.delete(f"/api/datasources/{name}").raise_for_status()
    first, second, third = sizes
    return {
        "resident memory before, MB": first / 1000,
        f"after {ROUNDS:,} publishes and deletes, MB": second / 1000,
        f"after {ROUNDS:,} more, MB": third / 1000,
        "the second thousand adds, %": (third - second) / second * 100,
    }


def main() -> dict[str, float]:
    """Run and print."""
    return report(
        "A node at rest (python -m bench rest)", {**watched(), **scraped(), **resting(), **coming_and_going()}
    )


if __name__ == "__main__":
    main()
