"""A server goes away for half a minute: how soon all streams move again, and what waiting for it costs.

    python -m bench comeback

Once it is the server that streams write into, once the server of the registry. Each is started again as people would
start it, so its own start is not counted. Then very many streams wait for a sink that stays away: that is processor
time, which a busy machine changes little.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import asyncpg

from bench.rest import CHUNK, share_of_core
from bench.rig import SINK, report
from headgate.store.embedded import EmbeddedServer
from headgate.testing.processes import NodeProcess

STREAMS, MANY = 100, 5000
AWAY_S = 30.0
SETTLE_S = 90.0  # By then the waits are as long as they get.
REST_S = 60.0
LOOK_S = 0.1


@dataclass
class Rig:
    """A node, the server of its registry, and the server that streams write into."""

    node: NodeProcess
    folder: Path
    servers: dict[str, EmbeddedServer]

    def stop(self, which: str) -> None:
        self.servers[which].leave()

    def start(self, which: str) -> None:
        self.servers[which] = EmbeddedServer.join(self.folder / which)


@contextlib.contextmanager
def running() -> Iterator[Rig]:
    """A node with two servers."""
    with tempfile.TemporaryDirectory(prefix="hgb") as name:
        folder = Path(name)
        servers = {which: EmbeddedServer.join(folder / which) for which in ("registry", "sink")}
        node = NodeProcess.start(folder / "home", database=servers["registry"].url)
        node.call("PUT", f"/api/secrets/{SINK['$secret']}", {"value": servers["sink"].url})
        try:
            yield Rig(node, folder, servers)
        finally:
            node.end(signal.SIGKILL)
            for server in servers.values():
                server.leave()


def document(name: str, rate: float) -> dict[str, Any]:
    """A stream into the table that all share."""
    return {
        "source": {"type": "generator", "rate": rate},
        "mapping": {"set": {"stream": f"'{name}'", "id": "id"}},
        "sink": {"type": "postgres", "url": SINK, "table": "target"},
    }


async def counts(url: str) -> dict[str, int]:
    """How many records of each stream have arrived."""
    connection = await asyncpg.connect(url)
    try:
        return {row[0]: row[1] for row in await connection.fetch("SELECT stream, count(*) FROM target GROUP BY stream")}
    except asyncpg.UndefinedTableError:
        return {}
    finally:
        await connection.close()


def until_all_moved(rig: Rig, streams: int) -> list[float]:
    """How long each stream took to write something more, the fastest first."""
    url = rig.servers["sink"].url
    before, began, took = asyncio.run(counts(url)), time.monotonic(), dict[str, float]()
    while len(took) < streams:
        for stream, number in asyncio.run(counts(url)).items():
            if number > before.get(stream, 0):
                took.setdefault(stream, time.monotonic() - began)
        time.sleep(LOOK_S)
    return sorted(took.values())


def outage(which: Literal["registry", "sink"]) -> dict[str, float]:
    """Stop a server, wait, and start it."""
    with running() as rig:
        rig.node.apply({f"stream-{number}": document(f"stream-{number}", 5) for number in range(STREAMS)})
        until_all_moved(rig, STREAMS)
        rig.stop(which)
        time.sleep(AWAY_S)
        rig.start(which)
        took = until_all_moved(rig, STREAMS)
    return {
        f"{which} away for {AWAY_S:.0f} s: the first of {STREAMS} streams moves after, s": took[0],
        f"{which}: half of them, s": took[STREAMS // 2],
        f"{which}: the last, s": took[-1],
    }


def waiting() -> dict[str, float]:
    """Streams that wait for a sink that stays away."""
    with running() as rig:
        rig.stop("sink")
        for begin in range(0, MANY, CHUNK):
            names = [f"stream-{number}" for number in range(begin, begin + CHUNK)]
            rig.node.apply({name: document(name, 1 / 60) for name in names})
        time.sleep(SETTLE_S)
        share = share_of_core(rig.node, REST_S)
        rig.start("sink")
    return {f"{MANY:,} streams that wait for a sink, % of one core": share}


def main() -> dict[str, float]:
    """Run and print."""
    title = "What was away comes back (python -m bench comeback)"
    return report(title, {**outage("sink"), **outage("registry"), **waiting()})


if __name__ == "__main__":
    main()
