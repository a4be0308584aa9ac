"""How a turn changes hands between two programs on two nodes.

    python -m bench.turns

Two consumers of one group, each on a node of its own. A pause is the time in which nobody has the turn: from the moment
the one says that it is done until the other has its turn. It is measured in one process, by one clock.

- Stepping down: a second program joins the group of a partition and is wanted there. The first is asked to finish,
  and says that it has.
- Leaving: the second closes, and the first has its turn again.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.handover import Cluster
from bench.rig import report
from headgate.client import Consumer
from headgate.store.embedded import EmbeddedServer

TIMES = 100


async def hand_over(cluster: Cluster) -> dict[str, list[float]]:
    """Seconds of each hand-over, by what it was for."""
    found: dict[str, list[float]] = {"stepping down": [], "joining": [], "leaving": []}
    here, there = cluster.nodes

    def consumer(url: str) -> Consumer:
        return Consumer(url, token=here.token, stream="bench", group="turns", partition=1)

    async with consumer(here.url) as first:
        for _ in range(TIMES):
            turn = await first.turn()
            joins_at = time.perf_counter()
            second = await consumer(there.url).__aenter__()
            await turn.asked()
            done_at = time.perf_counter()
            await turn.done()
            await second.turn()
            found["stepping down"].append(time.perf_counter() - done_at)
            found["joining"].append(time.perf_counter() - joins_at)
            done_at = time.perf_counter()
            closing = asyncio.create_task(second.close())
            await first.turn()
            found["leaving"].append(time.perf_counter() - done_at)
            await closing
    return found


def main() -> dict[str, Any]:
    """Run and print."""
    with tempfile.TemporaryDirectory(prefix="hgb") as folder:
        home = Path(folder) / "database"
        home.mkdir()
        server = EmbeddedServer.join(home)
        cluster = Cluster(Path(folder), server.url)
        try:
            for _ in range(2):
                cluster.start()
            found = asyncio.run(hand_over(cluster))
        finally:
            for node in list(cluster.nodes):
                cluster.end(node, signal.SIGTERM)
            server.leave()
    figures: dict[str, Any] = {}
    titles = {
        "stepping down": "asked and done(), until the other has its turn",
        "joining": "joining, until it has the turn of the other",
        "leaving": "close() until the other has its turn",
    }
    for name, title in titles.items():
        percentiles = statistics.quantiles([1000 * one for one in found[name]], n=100, method="inclusive")
        figures[f"{title}, p50, ms"] = percentiles[49]
        figures[f"{title}, p99, ms"] = percentiles[98]
    return report(f"turns that change hands between two nodes, {TIMES} each (python -m bench.turns)", figures)


if __name__ == "__main__":
    main()
