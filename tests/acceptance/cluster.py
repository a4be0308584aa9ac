"""Several nodes on one database, and a witness that looks at the database past them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import asyncpg

from headgate.testing.processes import NodeProcess
from tests.acceptance.ledger import Ledger, plug_in
from tests.waiting import LONG_S, until

LEASE_S = 3.0  # The shortest: these tests wait for its end again and again.

_STREAMS = """
SELECT d.name || ':' || coalesce(s.index::text, s.label) AS stream, s.owner, n.name AS node, s.run, s.epoch
FROM headgate.stream s JOIN headgate.datasource d ON d.id = s.datasource LEFT JOIN headgate.node n ON n.id = s.owner
WHERE NOT d.deleted AND (s.label IS NULL) = (d.name <> 'pushed')
"""
_COUNTS = """
SELECT stream, count(*) AS rows, count(DISTINCT id) AS ids, min(id) AS low, max(id) AS high FROM target GROUP BY stream
"""


class Cluster:
    """The nodes by name. What they write lies in the table `target`, of their own database, and in a file."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.nodes: dict[str, NodeProcess] = {}
        self.ledger = Ledger(folder / "ledger.jsonl")
        self.token = ""
        self._folder = folder
        self._path = plug_in(folder / "plugins")
        self._started: list[NodeProcess] = []
        self._witness: Any = None

    # Nodes.

    async def start(self, *names: str, database: str | None = None, lease_s: float = LEASE_S) -> None:
        """Start nodes of these names, all at once."""
        await asyncio.gather(*(asyncio.to_thread(self._start, name, database or self.url, lease_s) for name in names))
        self.token = self.token or next(self.nodes[name].token for name in names if self.nodes[name].token)
        for name in names:
            self.nodes[name].token = self.token

    def _start(self, name: str, database: str, lease_s: float) -> None:
        environment = {"HEADGATE_NODE_NAME": name, "HEADGATE_LEASE_S": str(lease_s), "PYTHONPATH": self._path}
        node = NodeProcess.start(self._folder / name, database=database, environment=environment, token=self.token)
        self._started.append(node)
        self.nodes[name] = node

    async def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> int:
        """End one, and wait until it has ended; returns its exit code."""
        began = time.monotonic()
        code = await asyncio.to_thread(self.nodes.pop(name).end, how)
        print(f"{name} ends with {code}: {time.monotonic() - began:.1f} s")
        return code

    async def call(self, name: str, method: str, path: str, body: Any = None) -> Any:
        """One call of one node's API."""
        return await asyncio.to_thread(self.nodes[name].call, method, path, body)

    async def apply(self, documents: dict[str, Any]) -> None:
        """Publish datasources, through any node."""
        await self.call(next(iter(self.nodes)), "POST", "/api/apply", {"datasources": documents})

    async def close(self) -> None:
        """End whatever still runs, each by its own pid."""
        await asyncio.gather(*(asyncio.to_thread(node.end, signal.SIGKILL) for node in self._started))
        if self._witness is not None:
            self._witness.terminate()

    # Datasources.

    def counting(self, name: str, rate: int = 100, **sink: Any) -> dict[str, Any]:
        """A stream of numbers into the table."""
        return {
            name: {
                "source": {"type": "generator", "rate": rate},
                "mapping": {"set": {"stream": f"'{name}:0'", "id": "id"}},
                "sink": {"type": "postgres", "url": self.url, "table": "target"} | sink,
            }
        }

    def noting(self, name: str, rate: int = 100, **sink: Any) -> dict[str, Any]:
        """A stream of numbers into the file."""
        return {
            name: {
                "source": {"type": "generator", "rate": rate},
                "sink": {"type": "ledger", "path": str(self.ledger.path)} | sink,
            }
        }

    def pushed(self) -> dict[str, Any]:
        """Whatever programs push, into the table."""
        return {
            "pushed": {
                "source": {"type": "push"},
                "mapping": {"set": {"stream": "stream", "id": "id"}},
                "sink": {"type": "postgres", "url": self.url, "table": "target"},
            }
        }

    # The witness.

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        """Rows, straight from the database."""
        if self._witness is None or self._witness.is_closed():
            self._witness = await asyncpg.connect(self.url)
        return list(await self._witness.fetch(query, *args))

    async def streams(self) -> dict[str, Any]:
        """Each stream's row, by name."""
        return {row["stream"]: row for row in await self.fetch(_STREAMS)}

    async def places(self) -> dict[str, str | None]:
        """The name of the node on which each stream runs; None while nobody runs it."""
        return {name: row["node"] if row["run"] else None for name, row in (await self.streams()).items()}

    async def sizes(self) -> dict[str, int]:
        """How many different records of each stream have arrived."""
        return {row["stream"]: row["ids"] for row in await self.fetch(_COUNTS)} | self.ledger.sizes()

    async def check(self, crashed: Collection[str] = (), interrupted: Collection[str] = ()) -> None:
        """No record is lost, and none is repeated but in the file, of streams whose node crashed or was interrupted."""
        for row in await self.fetch(_COUNTS):
            assert row["low"] == 0, f"{row['stream']} has lost its first records"
            assert row["rows"] == row["ids"], f"{row['stream']} has repeats"
            assert row["ids"] == row["high"] + 1, f"{row['stream']} has lost records"
        self.ledger.check(crashed, interrupted)
        last: dict[Any, Any] = {}
        for line in await self.fetch("SELECT stream, epoch, commits, kind FROM headgate.stream_history ORDER BY id"):
            before = last.get(line["stream"], line)
            assert line["commits"] >= before["commits"], "a commit number fell"
            assert line["epoch"] >= before["epoch"], "an epoch fell"
            assert line["kind"] != "acquired" or line is before or line["epoch"] > before["epoch"], "an epoch again"
            last[line["stream"]] = line

    # Waiting.

    async def until(self, is_so: Callable[[], Awaitable[bool] | bool], what: str, timeout_s: float = LONG_S) -> float:
        """Wait for this; returns how long it took."""
        began = time.monotonic()
        try:
            await until(is_so, what, timeout_s, look_s=0.05)
        except AssertionError as error:
            logs = [f"-- {name}\n{node.log()[-1500:]}" for name, node in self.nodes.items()]
            error.add_note(f"{await self.places()}\n" + "\n".join(logs))
            raise
        took_s = time.monotonic() - began
        print(f"{what}: {took_s:.1f} s")
        return took_s

    async def until_placed(self, *names: str, streams: Collection[str] | None = None) -> float:
        """Until these streams, or all, run on these nodes and nowhere else."""

        async def is_so() -> bool:
            places = await self.places()
            return all(place in names for stream, place in places.items() if streams is None or stream in streams)

        return await self.until(is_so, f"runs on {' '.join(names)}")

    async def pin(self, name: str) -> None:
        """Have all streams stay on this node, or go there."""
        for stream in await self.streams():
            await self.call(name, "POST", f"/api/streams/{stream}/move", {"node": name})

    async def until_even(self) -> float:
        """Until every stream runs where it should, and no node has more than it must."""

        async def is_so() -> bool:
            counts = """SELECT n.id, count(s.id) AS streams, count(s.id) - count(s.run) AS waiting
                        FROM headgate.node n LEFT JOIN headgate.stream s ON s.owner = n.id GROUP BY n.id"""
            rows = await self.fetch(counts)
            sizes = [row["streams"] for row in rows]
            return max(sizes) - min(sizes) <= 1 and not any(row["waiting"] for row in rows)

        return await self.until(is_so, "an even spread")

    async def until_moved_on(self, records: int = 25) -> float:
        """Until every worker stream has got this much further."""
        before = await self.sizes()
        streams = [name for name, row in (await self.streams()).items() if not name.startswith("pushed:")]

        async def is_so() -> bool:
            now = await self.sizes()
            return all(now.get(stream, 0) >= before.get(stream, 0) + records for stream in streams)

        return await self.until(is_so, f"{records} records more of every stream")

    async def until_moved_on_of(self, stream: str, records: int = 25) -> float:
        """Until this one has got this much further."""
        before = (await self.sizes()).get(stream, 0)

        async def is_so() -> bool:
            return (await self.sizes()).get(stream, 0) >= before + records

        return await self.until(is_so, f"{records} records more of {stream}")

    async def ids_of(self, name: str) -> list[Any]:
        """The incarnations of this name."""
        return [row["id"] for row in await self.fetch("SELECT id FROM headgate.node WHERE name = $1", name)]
