"""How streams change hands: after a kill, when one is moved, when a node is drained, and when all are restarted.

    python -m bench.handover

Generators write into one PostgreSQL table that stamps every row with the moment of its commit's statement. A pause is
the time between two rows of one stream, read from the table: what a user of the data would see, not what a log says.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from bench.rig import SINK, report, with_sink
from bench.scale import fetch
from headgate.store.embedded import EmbeddedServer
from headgate.testing.processes import NodeProcess

KILLS = 20
DRAINS = 20
MOVES = 60
STREAMS = 6
RATE = 200  # Records a second and stream: a pause is known to 5 ms.
KEY = {"HEADGATE_MASTER_KEY": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}


class Cluster:
    """Nodes on one PostgreSQL."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.sink = ""  # The URL of the database that is written into, if one is.
        self.nodes: list[NodeProcess] = []
        self._folder = folder
        self._token = ""
        self._names = itertools.count()

    def start(self) -> NodeProcess:
        """One more."""
        name = f"node-{next(self._names)}"
        flags = ("--name", name)
        node = NodeProcess.start(
            self._folder / name, database=self.url, flags=flags, environment=KEY, token=self._token
        )
        self._token = self._token or node.token
        self.nodes.append(node)
        return node

    def end(self, node: NodeProcess, how: signal.Signals) -> None:
        """One less."""
        self.nodes.remove(node)
        node.end(how)

    def fetch(self, query: str, *args: Any) -> list[Any]:
        """One query of the nodes' database."""
        return fetch(self.url, query, *args)

    def wait(self, query: str, *args: Any, most_s: float = 60.0) -> None:
        """Until the query's first value is true."""
        deadline = time.monotonic() + most_s
        while not self.fetch(query, *args)[0][0]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {most_s:.0f} s: {query}")
            time.sleep(0.05)

    def busiest(self) -> tuple[NodeProcess, UUID]:
        """The node with the most streams."""
        most = """SELECT n.id, n.address FROM headgate.node n JOIN headgate.stream s ON s.owner = n.id
                  WHERE s.run IS NOT NULL GROUP BY n.id ORDER BY count(*) DESC, n.id LIMIT 1"""
        self.wait_until_all_run()
        row = self.fetch(most)[0]
        return next(node for node in self.nodes if node.url == row["address"]), row["id"]

    def wait_until_all_run(self) -> None:
        """Every stream has a run."""
        self.wait("SELECT count(*) = $1 FROM headgate.stream WHERE run IS NOT NULL", STREAMS)


@contextlib.contextmanager
def cluster(nodes: int) -> Iterator[Cluster]:
    """Nodes, and generators that write."""
    with tempfile.TemporaryDirectory(prefix="hgb") as folder:
        home = Path(folder) / "database"
        home.mkdir()
        server = EmbeddedServer.join(home)
        found = Cluster(Path(folder), server.url)
        try:
            for _ in range(nodes):
                found.start()
            found.sink = with_sink(found.nodes[0], server.url)
            fetch(found.sink, "CREATE TABLE target (stream int, id bigint, at timestamptz DEFAULT clock_timestamp())")
            found.nodes[0].apply({f"g{number}": _generator(number) for number in range(STREAMS)})
            found.wait_until_all_run()
            yield found
        finally:
            for node in list(found.nodes):
                found.end(node, signal.SIGKILL)
            server.leave()


def _generator(number: int) -> dict[str, Any]:
    return {
        "source": {"type": "generator", "rate": RATE},
        "mapping": {"set": {"stream": str(number), "id": "id"}},
        "sink": {"type": "postgres", "url": SINK, "table": "target"},
    }


def takeovers(cluster: Cluster) -> list[float]:
    """Seconds from kill -9 until the last stream of the dead node has been acquired by another."""
    found = []
    for _ in range(KILLS):
        victim, id = cluster.busiest()
        killed_at = cluster.fetch("SELECT clock_timestamp()")[0][0]
        cluster.end(victim, signal.SIGKILL)
        cluster.wait("SELECT count(*) = 0 FROM headgate.stream WHERE owner = $1 OR run IS NULL", id)
        last = "SELECT max(at) FROM headgate.stream_history WHERE kind = 'acquired' AND at > $1"
        found.append((cluster.fetch(last, killed_at)[0][0] - killed_at).total_seconds())
        cluster.start()
    return found


MOVED = """
SELECT d.name, h.at FROM headgate.stream_history h
JOIN headgate.stream s ON s.id = h.stream JOIN headgate.datasource d ON d.id = s.datasource
WHERE h.kind = 'released' AND h.at > $1
"""
PAUSES = """
WITH gaps AS (
    SELECT 'g' || stream AS name, at, lead(at) OVER (PARTITION BY stream ORDER BY id) AS next FROM target WHERE at > $1
)
SELECT extract(epoch FROM max(g.next - g.at))::float AS pause_s
FROM unnest($2::text[], $3::timestamptz[]) AS m (name, at)
JOIN gaps g ON g.name = m.name AND g.at < m.at + '1 s' AND g.next > m.at - '200 ms'::interval
GROUP BY m.name, m.at
"""


def pauses_since(cluster: Cluster, since: datetime) -> list[float]:
    """Seconds for which each stream that moved was not written. Both databases have the clock of one server."""
    moved = cluster.fetch(MOVED, since)
    rows = fetch(cluster.sink, PAUSES, since, [row["name"] for row in moved], [row["at"] for row in moved])
    return [row["pause_s"] for row in rows]


def drains(cluster: Cluster) -> list[float]:
    """Seconds for which a stream was not written while it moved from a draining node to another."""
    since = cluster.fetch("SELECT clock_timestamp()")[0][0]
    for _ in range(DRAINS):
        node, id = cluster.busiest()
        node.call("POST", f"/api/nodes/{id}/drain", {})
        cluster.wait("SELECT count(*) = 0 FROM headgate.stream WHERE owner = $1 OR run IS NULL", id)
        time.sleep(1.0)
        node.call("POST", f"/api/nodes/{id}/undrain", {})
        cluster.wait("SELECT NOT draining FROM headgate.node WHERE id = $1", id)
        time.sleep(0.6)  # The node looks twice a second.
    return pauses_since(cluster, since)


def moves(cluster: Cluster) -> list[float]:
    """Seconds for which a stream was not written while an operator moved it to another node."""
    cluster.wait_until_all_run()
    since = cluster.fetch("SELECT clock_timestamp()")[0][0]
    here = "SELECT s.id, s.owner FROM headgate.stream s ORDER BY s.id OFFSET $1 LIMIT 1"
    for number in range(MOVES):
        stream, owner = cluster.fetch(here, number % STREAMS)[0]
        others = cluster.fetch("SELECT id FROM headgate.node WHERE id <> $1 ORDER BY id", owner)
        target = others[number % len(others)]["id"]
        cluster.nodes[0].call("POST", f"/api/streams/{stream}/move", {"node": str(target)})
        cluster.wait("SELECT owner = $2 AND run IS NOT NULL FROM headgate.stream WHERE id = $1", stream, target)
        time.sleep(0.3)
    for row in cluster.fetch("SELECT id FROM headgate.stream"):
        cluster.nodes[0].call("POST", f"/api/streams/{row['id']}/move", {"node": None})
    time.sleep(1.0)
    return pauses_since(cluster, since)


def rolling_restart(cluster: Cluster) -> dict[str, float]:
    """All nodes, one after another, while everything is written."""
    since = cluster.fetch("SELECT clock_timestamp()")[0][0]
    for node in list(cluster.nodes):
        cluster.end(node, signal.SIGTERM)
        cluster.start()
        cluster.wait_until_all_run()
    time.sleep(1.0)
    counted = fetch(
        cluster.sink,
        """SELECT count(*) AS rows, count(DISTINCT (stream, id)) AS distinct,
           (SELECT sum(n)::bigint FROM (SELECT max(id) - min(id) + 1 AS n FROM target GROUP BY stream) AS t) AS expected
           FROM target""",
    )[0]
    longest = fetch(
        cluster.sink,
        """SELECT extract(epoch FROM max(next - at))::float AS longest FROM
           (SELECT at, lead(at) OVER (PARTITION BY stream ORDER BY id) AS next FROM target WHERE at > $1) AS t""",
        since,
    )[0]
    return {
        "rolling restart of three nodes: records": counted["rows"],
        "lost": counted["expected"] - counted["distinct"],
        "repeated": counted["rows"] - counted["distinct"],
        "longest pause of a stream, ms": 1000 * longest["longest"],
    }


def main() -> dict[str, Any]:
    """Run and print."""
    with cluster(3) as found:
        restarted = rolling_restart(found)
        moved = sorted(1000 * pause for pause in moves(found))
        pauses = sorted(1000 * pause for pause in drains(found))
        taken = sorted(takeovers(found))
    percentiles = statistics.quantiles(pauses, n=100, method="inclusive")
    moved_percentiles = statistics.quantiles(moved, n=100, method="inclusive")
    return report(
        "streams that change hands (python -m bench.handover)",
        {
            **restarted,
            f"planned hand-over ({len(pauses)} streams moved), pause p50, ms": percentiles[49],
            "planned hand-over, pause p99, ms": percentiles[98],
            "planned hand-over, longest pause, ms": pauses[-1],
            f"moved one at a time ({len(moved)} streams moved), pause p50, ms": moved_percentiles[49],
            "moved one at a time, pause p99, ms": moved_percentiles[98],
            f"kill -9 until granted elsewhere ({len(taken)} times), fastest, s": taken[0],
            "kill -9, median, s": statistics.median(taken),
            "kill -9, slowest, s": taken[-1],
        },
    )


if __name__ == "__main__":
    main()
