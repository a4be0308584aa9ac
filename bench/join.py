"""A node joins a cluster that runs 10,000 streams.

    python -m bench.join

Each stream is a generator that has one record an hour, so what a node costs is what 10,000 streams cost at rest. One
node runs them all while another stands by, drained; then a third joins, and streams move until the spread is even. A
stream that did not move must not have noticed: neither its run nor its epoch has changed.
"""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.handover import Cluster
from bench.rig import cpu_s, postmaster, report
from bench.scale import tree_cpu_s
from headgate.store.embedded import EmbeddedServer

MANY = 10_000
APPLIED = 1_000  # In one call.
REST_S = 20.0
SETTLE_S = 10.0

QUIET = {"source": {"type": "generator", "rate": 1 / 3600}, "sink": {"type": "blackhole"}}
RUN = "SELECT count(*) = $1 FROM headgate.stream WHERE run IS NOT NULL"
PROVED = "SELECT count(*) = $1 FROM headgate.datasource WHERE running_version IS NOT NULL"  # After half a minute.
PLACES = "SELECT id, owner, run, epoch FROM headgate.stream"
HAND_OVERS = "SELECT count(*) FROM headgate.stream_history WHERE kind = 'released' AND at > $1"
IS_EVEN = """
SELECT max(n) - min(n) <= 1 AND sum(n) = $1 AND count(*) = 2 AND NOT EXISTS (SELECT FROM headgate.wish WHERE stepping)
FROM (SELECT count(*) AS n FROM headgate.stream WHERE run IS NOT NULL GROUP BY owner) AS t
"""


def shares(when: str, pids: dict[str, int], database: int) -> dict[str, float]:
    """What each process, and PostgreSQL, uses at rest: % of one core."""

    def look() -> dict[str, float]:
        return {name: cpu_s(pid) for name, pid in pids.items()} | {"PostgreSQL": tree_cpu_s(database)}

    before = look()
    time.sleep(REST_S)
    return {f"{when}: {name}, % of a core": 100 * (used - before[name]) / REST_S for name, used in look().items()}


def measure(cluster: Cluster, database: int) -> dict[str, Any]:
    """From a busy node and an idle one to two that share."""
    busy, standby = cluster.start(), cluster.start()
    for row in cluster.fetch("SELECT id FROM headgate.node"):
        busy.call("POST", f"/api/nodes/{row['id']}/drain", {})
    began = time.perf_counter()
    for first in range(0, MANY, APPLIED):
        busy.apply({f"quiet-{number}": QUIET for number in range(first, first + APPLIED)})
    figures: dict[str, Any] = {"publishing them, s": time.perf_counter() - began}
    began = time.perf_counter()
    own = cluster.fetch("SELECT id FROM headgate.node WHERE address = $1", busy.url)[0]["id"]
    busy.call("POST", f"/api/nodes/{own}/undrain", {})
    cluster.wait(RUN, MANY, most_s=120)
    figures["until all run on one node, s"] = time.perf_counter() - began
    cluster.wait(PROVED, MANY, most_s=120)
    time.sleep(SETTLE_S)
    pids = {"the node with all": busy.process.pid, "the standby": standby.process.pid}
    figures |= shares("at rest before", pids, database)

    before = {row["id"]: row for row in cluster.fetch(PLACES)}
    since = cluster.fetch("SELECT clock_timestamp()")[0][0]
    began = time.perf_counter()
    joined = cluster.start()
    figures["start of a node until it is up, s"] = time.perf_counter() - began
    began = time.perf_counter()
    cluster.wait(IS_EVEN, MANY, most_s=180)
    figures["up until the spread is even, s"] = time.perf_counter() - began
    after = {row["id"]: row for row in cluster.fetch(PLACES)}
    moved = {id for id, row in after.items() if row["owner"] != before[id]["owner"]}
    figures["streams that moved"] = len(moved)
    figures["streams that stayed"] = MANY - len(moved)
    figures["streams that stayed and paused"] = sum(
        (row["run"], row["epoch"]) != (before[id]["run"], before[id]["epoch"])
        for id, row in after.items()
        if id not in moved
    )
    figures["hand-overs"] = cluster.fetch(HAND_OVERS, since)[0][0]
    time.sleep(SETTLE_S)
    pids = {"the node that had all": busy.process.pid, "the one that joined": joined.process.pid}
    return figures | shares("at rest after", pids, database)


def main() -> dict[str, Any]:
    """Run and print."""
    with tempfile.TemporaryDirectory(prefix="hgb") as folder:
        home = Path(folder) / "database"
        home.mkdir()
        server = EmbeddedServer.join(home)
        cluster = Cluster(Path(folder), server.url)
        try:
            figures = measure(cluster, postmaster(home))
        finally:
            for node in list(cluster.nodes):
                cluster.end(node, signal.SIGKILL)
            server.leave()
    return report(f"a node joins a cluster with {MANY:,} streams (python -m bench.join)", figures)


if __name__ == "__main__":
    main()
