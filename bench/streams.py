"""Ownership: claiming, checkpointing and relinquishing streams, against the bare statements on the same table.

    python -m bench.streams

Every stream of a table of 1,000, 10,000 and 100,000 is claimed, checkpointed and relinquished, five hundred in a
transaction. Ours is what a node does, two transactions under way: the rows read, the pure machine stepped for each, the
rows saved, and the history of each change of hands kept. The bare statement is one fenced UPDATE, on one connection
with the same settings. Ours and bare take turns in the same run, over the same rows; so do the three sizes.

How many passes go between two vacuums (`LEAST`) matters: with one after every pass the bare statement is faster on a
small table (claim then has 0.41 of it), and after fifty passes a small table is mostly dead versions, for both.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from bench.rig import make_database, report
from headgate.core.streams import Acquire, Checkpoint, Release
from headgate.runtime.streams.ownership import LANES
from headgate.store.database import Database
from headgate.store.embedded import EmbeddedServer
from headgate.store.migrate import migrate
from headgate.store.nodes import Nodes
from headgate.store.streams import Streams

SIZES = (1_000, 10_000, 100_000)
BATCH = 500
LEAST = 20_000
ROUNDS = 5

CLAIM = """
UPDATE headgate.stream s SET owner = $2, run = $2, epoch = epoch + 1
FROM (SELECT * FROM unnest($1::uuid[]) AS v (id) ORDER BY id) AS u
WHERE s.id = ANY ($1) AND s.id = u.id AND s.owner IS NULL
"""
CHECKPOINT = """
UPDATE headgate.stream s SET commits = u.commits, position = u.position
FROM (SELECT * FROM unnest($1::uuid[], $3::bigint[], $4::bigint[], $5::json[]) AS v (id, epoch, commits, position)
      ORDER BY id) AS u
WHERE s.id = ANY ($1) AND s.id = u.id AND s.owner IS NOT DISTINCT FROM $2 AND s.epoch = u.epoch
  AND s.commits < u.commits
"""
RELINQUISH = """
UPDATE headgate.stream s SET owner = NULL, run = NULL, commits = greatest(s.commits, u.commits), position = u.position
FROM (SELECT * FROM unnest($1::uuid[], $3::bigint[], $4::bigint[], $5::json[]) AS v (id, epoch, commits, position)
      ORDER BY id) AS u
WHERE s.id = ANY ($1) AND s.id = u.id AND s.owner IS NOT DISTINCT FROM $2 AND s.epoch = u.epoch
"""

Pass = Callable[[list[UUID], int, int], Awaitable[None]]
"""Over these streams, under this epoch, with this commit number."""


def ours(streams: Streams, node: UUID) -> dict[str, Pass]:
    """What a node does, two transactions under way."""

    async def claim(ids: list[UUID], epoch: int, n: int) -> None:
        acquire = Acquire(node, node, 1, "source", "sink", claims=True)
        await over(ids, lambda some: streams.apply(node, dict.fromkeys(some, acquire)))

    async def checkpoint(ids: list[UUID], epoch: int, n: int) -> None:
        checkpoint = Checkpoint(node, epoch, n, n)
        await over(ids, lambda some: streams.checkpoint(node, dict.fromkeys(some, checkpoint)))

    async def relinquish(ids: list[UUID], epoch: int, n: int) -> None:
        release = Release(node, epoch, n, n)
        await over(ids, lambda some: streams.apply(node, dict.fromkeys(some, release)))

    async def over(ids: list[UUID], act: Callable[[list[UUID]], Awaitable[Any]]) -> None:
        left = batches(ids)

        async def lane() -> None:
            while left:
                await act(left.pop())

        await asyncio.gather(*(lane() for _ in range(LANES)))

    return {"claim": claim, "checkpoint": checkpoint, "relinquish": relinquish}


def batches(ids: list[UUID]) -> list[list[UUID]]:
    """As many as go into a transaction."""
    return [ids[begin : begin + BATCH] for begin in range(0, len(ids), BATCH)]


def bare(connection: Any, node: UUID) -> dict[str, Pass]:
    """The same in SQL alone."""

    async def claim(ids: list[UUID], epoch: int, n: int) -> None:
        for some in batches(ids):
            await connection.execute(CLAIM, some, node)

    async def checkpoint(ids: list[UUID], epoch: int, n: int) -> None:
        for some in batches(ids):
            await connection.execute(CHECKPOINT, some, node, [epoch] * BATCH, [n] * BATCH, [str(n)] * BATCH)

    async def relinquish(ids: list[UUID], epoch: int, n: int) -> None:
        for some in batches(ids):
            await connection.execute(RELINQUISH, some, node, [epoch] * BATCH, [n] * BATCH, [str(n)] * BATCH)

    return {"claim": claim, "checkpoint": checkpoint, "relinquish": relinquish}


class Table:
    """A registry with so many streams, in a database of its own."""

    def __init__(self, size: int, ids: list[UUID], kinds: dict[str, dict[str, Pass]], connection: Any) -> None:
        self.size = size
        self.rates: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
        self._ids = ids
        self._kinds = kinds
        self._connection = connection
        self._epoch = self._n = 0

    @classmethod
    async def make(cls, url: str, size: int) -> Table:
        """Empty but for its streams."""
        url = await make_database(url, f"streams_{size}")
        connection, database, node = await asyncpg.connect(url), await Database.open(url), uuid4()
        await migrate(database)
        await Nodes(database).join(node, "bench", 3600, None)
        ids = await _make_streams(connection, size)
        await connection.execute("SET enable_bitmapscan = off")
        kinds = {"ours": ours(Streams(database), node), "bare": bare(connection, node)}
        return cls(size, ids, kinds, connection)

    async def measure(self) -> None:
        """Streams per second, ours and bare, of each of the three."""
        for kind, passes in self._kinds.items():
            spent = dict.fromkeys(passes, 0.0)
            repeats = max(1, LEAST // self.size)
            for _ in range(repeats):
                self._epoch, self._n = self._epoch + 1, self._n + 1
                for verb, act in passes.items():
                    self._n += verb == "relinquish"
                    began = time.perf_counter()
                    await act(self._ids, self._epoch, self._n)
                    spent[verb] += time.perf_counter() - began
            for verb, seconds in spent.items():
                self.rates[kind].setdefault(verb, []).append(self.size * repeats / seconds)
            await self._connection.execute("VACUUM headgate.stream")

    def medians(self) -> dict[str, dict[str, float]]:
        """Of all rounds."""
        return {kind: {verb: statistics.median(found) for verb, found in by.items()} for kind, by in self.rates.items()}


async def measure(url: str) -> dict[int, dict[str, dict[str, float]]]:
    """All sizes, which take turns: a machine that is slower for a while is so for all of them."""
    tables = [await Table.make(url, size) for size in SIZES]
    for _ in range(ROUNDS):
        for table in tables:
            await table.measure()
    return {table.size: table.medians() for table in tables}


async def _make_streams(connection: Any, size: int) -> list[UUID]:
    datasource = uuid4()
    await connection.execute("INSERT INTO headgate.datasource (id, name, revision) VALUES ($1, 'bench', 1)", datasource)
    rows = await connection.fetch(
        """INSERT INTO headgate.stream (id, datasource, label)
           SELECT gen_random_uuid(), $1, i::text FROM generate_series(1, $2) i RETURNING id""",
        datasource,
        size,
    )
    await connection.execute("VACUUM ANALYZE headgate.stream")
    return [row["id"] for row in rows]


def main() -> dict[str, Any]:
    """Measure, print, return."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hgb") as folder:
        home = Path(folder) / "home"
        home.mkdir()
        server = EmbeddedServer.join(home)
        try:
            found = asyncio.run(measure(server.url))
        finally:
            server.leave()
    for size, kinds in found.items():
        for verb, rate in kinds["ours"].items():
            figures[f"{verb}, {size:,} streams, per second"] = rate
            figures[f"{verb}, {size:,} streams, of bare SQL"] = rate / kinds["bare"][verb]
    for verb in found[SIZES[0]]["ours"]:
        costs = [1e6 / found[size]["ours"][verb] for size in SIZES]
        figures[f"{verb}, dearest over cheapest size"] = max(costs) / min(costs)
    return report("Ownership of streams, 500 in a transaction", figures)


if __name__ == "__main__":
    main()
