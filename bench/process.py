"""What is left of a connector's speed when it has its own process: the same source and the same sink, here and there.

    python -m bench process

Records have six fields, as those of `bench.throughput`, in batches of 5,000. The source has them in memory, so what is
measured is the way from it to whoever reads: into this process, through the wire, decoded. The sink counts and forgets.
Then both together, as a stream has them: the next batch is read while the last one is written.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from bench.rig import report
from headgate.connectors.api import (
    Batch,
    Connector,
    Context,
    Grant,
    Options,
    Outgoing,
    Position,
    Progress,
    Sink,
    SinkKind,
    Source,
    SourceKind,
)
from headgate.core.mapping.document import compile_mapping
from headgate.runtime.apart.remote import process_of
from headgate.runtime.apart.sink import RemoteSink
from headgate.runtime.apart.source import RemoteSource
from headgate.testing.factories import make_context, make_grant

BATCH = 5_000
SECONDS = 4.0
BAR = 0.6
MAPPING = {
    "set": {
        "id": "id",
        "kind": "kind",
        "email": "lower(user.email)",
        "cents": "round(total * 100)",
        "placed_at": "timestamp(ts)",
        "note": 'coalesce(note, "none")',
    }
}


class MemoryOptions(Options):
    """None are needed."""


class MemorySource:
    """Makes each batch as a client library would: one new dict for each record."""

    def __init__(self, options: MemoryOptions, context: Context) -> None:
        self._next = 0

    async def check(self) -> None:
        """All is here."""

    async def parts(self) -> Sequence[str]:
        """One."""
        return [""]

    async def open(self, position: Position) -> None:
        """From anywhere."""

    async def read(self) -> Batch:
        """The next records."""
        first = self._next
        self._next += BATCH
        records = [
            {
                "id": number,
                "kind": "order",
                "user": {"email": f"Person{number}@Example.com", "name": "A Person"},
                "total": number * 1.01,
                "ts": "2026-03-01T10:11:12Z",
                "note": None,
            }
            for number in range(first, self._next)
        ]
        return Batch(records, self._next)

    async def ack(self, position: Position) -> None:
        """Good."""

    async def close(self) -> None:
        """Nothing is held."""


class MemorySink:
    """Counts."""

    def __init__(self, options: MemoryOptions, context: Context) -> None:
        self._written = 0

    async def check(self) -> None:
        """All is here."""

    async def open(self, grant: Grant) -> Progress | None:
        """Nothing is kept."""
        return None

    async def write(self, batch: Outgoing) -> None:
        """Look at each record, as a driver does."""
        self._written += sum(record["id"] >= 0 for record in batch.records)

    async def close(self) -> None:
        """Nothing is held."""


CONNECTOR = Connector(
    "memory",
    "For measuring",
    source=SourceKind(MemoryOptions, MemorySource),
    sink=SinkKind(MemoryOptions, MemorySink),
    runs="process",
)


def _install(folder: Path) -> None:
    """As pip would, for this process and those that it starts."""
    package = folder / "memory-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: memory\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[headgate.connectors]\nmemory = bench.process:CONNECTOR\n")
    sys.path.insert(0, str(folder))


async def _reading(source: Source) -> float:
    """Records per second, with the acknowledgement of each batch."""
    await source.open(None)
    await source.read()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        batch = await source.read()
        await source.ack(batch.position)
        count += len(batch.records)
    elapsed = time.perf_counter() - began
    await source.close()
    return count / elapsed


async def _moving(source: Source, sink: Sink) -> float:
    """From the one to the other, mapped, as a run does it."""
    mapping = compile_mapping(MAPPING)
    await sink.open(make_grant(trust_left_s=3600.0))
    await source.open(None)
    reading = asyncio.ensure_future(source.read())
    await asyncio.wait({reading})
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        batch = await reading
        reading = asyncio.ensure_future(source.read())
        mapped = mapping.apply(batch.records, batch.meta)
        await sink.write(Outgoing(mapped.records, Progress(commits=count, position=batch.position)))
        await source.ack(batch.position)
        count += len(batch.records)
    elapsed = time.perf_counter() - began
    reading.cancel()
    await source.close()
    await sink.close()
    return count / elapsed


async def _measure() -> dict[str, Any]:
    options, context = MemoryOptions(), make_context()

    def remote_source() -> Source:
        return RemoteSource(process_of(CONNECTOR, "source", {}, context))

    def remote_sink() -> Sink:
        return RemoteSink(process_of(CONNECTOR, "sink", {}, context))

    found: dict[str, Any] = {}
    here, there = await _reading(MemorySource(options, context)), await _reading(remote_source())
    found |= {"source, in the node: records/s": here, "source, in a process: records/s": there}
    here = await _moving(MemorySource(options, context), MemorySink(options, context))
    of_source = await _moving(remote_source(), MemorySink(options, context))
    of_both = await _moving(remote_source(), remote_sink())
    found |= {
        "source, mapping and sink in the node: records/s": here,
        "source in a process: records/s": of_source,
        "source and sink in processes: records/s": of_both,
        f"source in a process / in the node (bar {BAR})": round(of_source / here, 2),
        f"both in processes / in the node (bar {BAR})": round(of_both / here, 2),
    }
    return found


def main() -> dict[str, Any]:
    """Run and print."""
    with tempfile.TemporaryDirectory(prefix="hgb") as folder:
        _install(Path(folder))
        figures = uvloop.run(_measure())
    return report("A connector in its own process", figures)


if __name__ == "__main__":
    main()
