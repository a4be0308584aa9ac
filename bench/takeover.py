"""How soon another goes on after kill -9: streams, by what they write into, and programs of a fenced group.

    python -m bench.takeover [ROUNDS]

Three nodes run generators, some into a PostgreSQL table and some into a sink that cannot refuse anybody. In each round
the busiest node is killed at a random moment of its beat, and another takes its place. Counted are the seconds until
each of its streams is granted elsewhere, and until its next record is in the table; all by the machine's one clock.

Then two programs of a fenced group, and two consumers of a RabbitMQ queue with a single active consumer: the active one
is killed, and the seconds are counted until the other has begun to work. The two are measured in the same run, and in
turns.
"""

from __future__ import annotations

import contextlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from bench.broker import broker, missing
from bench.handover import Cluster
from bench.programs import TABLES
from bench.rabbitmq import Contestant, groups, queues, until
from bench.rig import SINK, report, with_sink
from bench.scale import fetch
from headgate.store.embedded import EmbeddedServer

ROUNDS = 50
RATE = 200  # Records a second and stream: a pause is known to 5 ms.
FENCED, PLAIN = ("f0", "f1", "f2"), ("p0", "p1", "p2")

AFTER = """
SELECT d.name, min(h.at) FILTER (WHERE h.kind = 'granted') AS granted FROM headgate.stream_history h
JOIN headgate.stream s ON s.id = h.stream JOIN headgate.datasource d ON d.id = s.datasource
WHERE h.at > $1 AND d.name = ANY ($2::text[]) GROUP BY d.name
"""


@contextlib.contextmanager
def cluster(folder: Path, url: str) -> Iterator[Cluster]:
    """Three nodes, and streams of both kinds."""
    found = Cluster(folder, url)
    try:
        for _ in range(3):
            found.start()
        found.sink = with_sink(found.nodes[0], url)
        fetch(found.sink, "CREATE TABLE target (stream text, id bigint, at timestamptz DEFAULT clock_timestamp())")
        documents = {name: _document(name, {"type": "postgres", "url": SINK, "table": "target"}) for name in FENCED}
        documents |= {name: _document(name, {"type": "blackhole"}) for name in PLAIN}
        found.nodes[0].apply(documents)
        found.wait_until_all_run()
        yield found
    finally:
        for node in list(found.nodes):
            found.end(node, signal.SIGKILL)


def _document(name: str, sink: dict[str, Any]) -> dict[str, Any]:
    mapping = {"set": {"stream": f"'{name}'", "id": "id"}}
    return {"source": {"type": "generator", "rate": RATE}, "mapping": mapping, "sink": sink}


def takeovers(cluster: Cluster, rounds: int) -> dict[str, list[float]]:
    """Seconds from each kill, by what they are seconds until."""
    found: dict[str, list[float]] = {"granted, fenced": [], "written, fenced": [], "granted, plain": []}
    for _ in range(rounds):
        victim, id = cluster.busiest()
        cluster.wait("SELECT bool_and(beat > 3) FROM headgate.node WHERE NOT ended")  # Everybody has seen everybody.
        time.sleep(random.random())
        names = _streams_of(cluster, id)
        killed_at = datetime.now(UTC)
        cluster.end(victim, signal.SIGKILL)
        cluster.wait("SELECT count(*) = 0 FROM headgate.stream WHERE owner = $1 OR run IS NULL", id)
        _note(cluster, killed_at, names, found)
        cluster.start()
    return found


def _streams_of(cluster: Cluster, node: UUID) -> list[str]:
    owned = "SELECT d.name FROM headgate.stream s JOIN headgate.datasource d ON d.id = s.datasource WHERE s.owner = $1"
    return [row["name"] for row in cluster.fetch(owned, node)]


def _note(cluster: Cluster, killed_at: datetime, names: list[str], found: dict[str, list[float]]) -> None:
    for row in cluster.fetch(AFTER, killed_at, names):
        kind = "fenced" if row["name"] in FENCED else "plain"
        found[f"granted, {kind}"].append((row["granted"] - killed_at).total_seconds())
        if kind == "fenced":
            at = _written_at(cluster, row["name"], row["granted"])
            found["written, fenced"].append((at - killed_at).total_seconds())


def _written_at(cluster: Cluster, stream: str, after: datetime) -> datetime:
    written = "SELECT min(at) FROM target WHERE stream = $1 AND at > $2"
    at: datetime = until(lambda: fetch(cluster.sink, written, stream, after)[0][0])
    return at


class Relay:
    """Two programs of one contestant, of which the active one is killed again and again."""

    def __init__(self, contestant: Contestant, target: str) -> None:
        self._contestant = contestant
        self._target = target
        self._scene = f"relay-{uuid4()}"
        self._stack = contextlib.ExitStack()
        self._programs: dict[int, subprocess.Popen[bytes]] = {}
        self.after_s: list[float] = []

    def __enter__(self) -> Relay:
        fetch(self._target, "INSERT INTO fence (scene) VALUES ($1)", self._scene)
        self._contestant.prepare(self._scene)
        for number in (1, 2):
            self._start(number)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self, members: int = 2) -> None:
        program = self._stack.enter_context(self._contestant.program(self._scene, self._contestant.port))
        self._programs[program.pid] = program
        until(lambda: self._contestant.waiting(self._scene) == members)

    def kill(self) -> None:
        """One round."""
        last = "SELECT pid FROM handled WHERE scene = $1 ORDER BY at DESC LIMIT 1"
        active = until(lambda: (fetch(self._target, last, self._scene) or [[None]])[0][0])
        time.sleep(0.5 + random.random())
        program = self._programs.pop(active)
        killed_at = datetime.now(UTC)
        program.kill()
        program.wait()
        (other,) = self._programs
        begun = "SELECT at FROM begun WHERE scene = $1 AND pid = $2"
        at = until(lambda: (fetch(self._target, begun, self._scene, other) or [[None]])[0][0])
        self.after_s.append((at - killed_at).total_seconds())
        until(lambda: self._contestant.waiting(self._scene) == 1)
        self._start()


def relays(cluster: Cluster, rounds: int) -> dict[str, list[float]]:
    """Seconds until the next program works, by whose program it is."""
    for statement in TABLES.split(";")[:-1]:
        fetch(cluster.url, statement)
    with contextlib.ExitStack() as stack:
        contestants = [groups(cluster.nodes[0], cluster.url, is_fenced=True)]
        if (why := missing()) is None:
            contestants.append(queues(stack.enter_context(broker()), cluster.url, None, repeats=1))
        else:
            print(f"\nwithout RabbitMQ: {why}")
        raced = [stack.enter_context(Relay(one, cluster.url)) for one in contestants]
        for _ in range(rounds):
            for one in raced:
                one.kill()
        return {one.title: relay.after_s for one, relay in zip(contestants, raced, strict=True)}


def _figures(name: str, seconds: list[float], unit: str = "s", factor: float = 1.0) -> dict[str, Any]:
    if len(seconds) < 2:
        return {f"{name}, times": len(seconds)}
    percentiles = statistics.quantiles(sorted(factor * one for one in seconds), n=100, method="inclusive")
    return {
        f"{name}, times": len(seconds),
        f"{name}, p50, {unit}": percentiles[49],
        f"{name}, p99, {unit}": percentiles[98],
    }


def main(rounds: int = ROUNDS) -> dict[str, Any]:
    """Run and print."""
    with tempfile.TemporaryDirectory(prefix="hgb") as folder:
        home = Path(folder) / "database"
        home.mkdir()
        server = EmbeddedServer.join(home)
        try:
            with cluster(Path(folder), server.url) as found:
                taken = takeovers(found, rounds)
                relayed = relays(found, rounds)
        finally:
            server.leave()
    figures = {
        **_figures("kill -9 until granted, transactional sink", taken["granted, fenced"]),
        **_figures("kill -9 until written again, transactional sink", taken["written, fenced"]),
        **_figures("kill -9 until granted, other sink", taken["granted, plain"]),
    }
    for title, seconds in relayed.items():
        figures |= _figures(f"kill -9 until the next works, {title}", seconds, "ms", 1000.0)
    return report("who goes on after a kill (python -m bench.takeover)", figures)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
