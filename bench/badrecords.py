"""One bad record in a hundred: what the PostgreSQL sink makes of batches of 5,000, against the same without bad ones.

    python -m bench.badrecords

The sink is called as the worker calls it: a batch that is refused comes again without the records that were named, and
with a dead letter for each. What the mapping costs is left out, so these ratios are lower than those of a datasource.
Rates are taken in turns, so that all kinds have the same share of the machine's moods.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg

from bench.rig import make_database, report
from headgate.connectors.api import Letter, Outgoing, Progress
from headgate.connectors.postgres.sink import PostgresOptions, PostgresSink
from headgate.errors import BadRecords
from headgate.store.embedded import EmbeddedServer
from headgate.testing.factories import make_context, make_grant

ROWS = 5_000
EVERY = 100
TURNS = 12
WARM_UP = 2
TABLE = """
CREATE TABLE {name} (id bigint PRIMARY KEY, kind text, email text, cents bigint CHECK (cents >= 0),
                     placed_at timestamptz, note text)
"""
KINDS = ("clean", "wrong", "refused")


def batch(first: int, kind: str) -> list[dict[str, Any]]:
    """Records of six fields. One in a hundred has a number that is none, or one that a CHECK refuses."""
    now = datetime.now(UTC)
    records = [
        {"id": id, "kind": "order", "email": f"user{id}@example.org", "cents": id, "placed_at": now, "note": "none"}
        for id in range(first, first + ROWS)
    ]
    if kind != "clean":
        for record in records[first % 7 :: EVERY]:
            record["cents"] = "not a number" if kind == "wrong" else -1
    return records


async def write(sink: PostgresSink, outgoing: Outgoing) -> None:
    """As the worker does."""
    try:
        await sink.write(outgoing)
    except BadRecords as error:
        bad = {one.index for one in error.bad}
        assert len(bad) == ROWS // EVERY
        letters = [Letter(uuid4(), b"x" * 300) for _ in bad]
        good = [record for index, record in enumerate(outgoing.records) if index not in bad]
        await sink.write(replace(outgoing, records=good, letters=letters))


async def rates(url: str, mode: str) -> dict[str, float]:
    """Records per second of each kind."""
    connection = await asyncpg.connect(url)
    sinks, spent = {}, dict.fromkeys(KINDS, 0.0)
    for kind in KINDS:
        name = f"{mode}_{kind}"
        await connection.execute(TABLE.format(name=name))
        sinks[kind] = PostgresSink(PostgresOptions(url=url, table=name, mode=mode), make_context())
        await sinks[kind].open(make_grant(name))
    for turn in range(WARM_UP + TURNS):
        for kind in KINDS:
            outgoing = Outgoing(batch(turn * ROWS, kind), Progress(0, turn + 1, turn), key=("id",))
            began = time.perf_counter()
            await write(sinks[kind], outgoing)
            if turn >= WARM_UP:
                spent[kind] += time.perf_counter() - began
    for sink in sinks.values():
        await sink.close()
    await connection.close()
    return {kind: TURNS * ROWS / seconds for kind, seconds in spent.items()}


async def measure(url: str) -> dict[str, float]:
    """Both modes."""
    sink, figures = await make_database(url, "sink"), {}
    for mode in ("insert", "upsert"):
        found = await rates(sink, mode)
        figures[f"{mode}, no bad records, records/s"] = found["clean"]
        figures[f"{mode}, 1 % of a wrong type, against none"] = found["wrong"] / found["clean"]
        figures[f"{mode}, 1 % that a constraint refuses, against none"] = found["refused"] / found["clean"]
    return figures


def main() -> dict[str, float]:
    """Run and print."""
    with tempfile.TemporaryDirectory(prefix="hgb") as folder:
        server = EmbeddedServer.join(Path(folder))
        try:
            figures = asyncio.run(measure(server.url))
        finally:
            server.leave()
    return report("one bad record in a hundred (python -m bench.badrecords)", figures)


if __name__ == "__main__":
    main()
