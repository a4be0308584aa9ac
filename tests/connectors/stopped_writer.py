"""A writer that stops itself (SIGSTOP) at a chosen moment of its write: run as a process by the fence tests.

Arguments: URL, table, stream id, statement (0-3) or "copy", moment (before, inside, after), and "replay" for a write
that replays one letter, supersedes another and keeps a third (0-7). Prints how the write ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid5

import asyncpg

from headgate.connectors.api import Letter, Outgoing, Progress, Totals
from headgate.connectors.postgres import session
from headgate.connectors.postgres.sink import PostgresOptions, PostgresSink
from headgate.errors import ConnectorError
from headgate.testing.factories import make_context, make_grant


def stop() -> None:
    """Until somebody continues us."""
    os.kill(os.getpid(), signal.SIGSTOP)


class Stopping(session._Pooled):
    """Counts the statements of a write and stops at one of them."""

    armed = False
    count = 0
    at = -1
    moment = ""

    async def execute(self, *args: Any, **kwargs: Any) -> str:
        return await self._stopping(super().execute(*args, **kwargs))

    async def fetch(self, *args: Any, **kwargs: Any) -> Any:
        return await self._stopping(super().fetch(*args, **kwargs))

    async def copy_records_to_table(self, *args: Any, records: Any, **kwargs: Any) -> str:
        if Stopping.armed and Stopping.moment == "copy":
            records = self._half_way(records)
        return await self._stopping(super().copy_records_to_table(*args, records=records, **kwargs))

    def _half_way(self, records: list[Any]) -> Iterator[Any]:
        for index, record in enumerate(records):
            if index == len(records) // 2:
                stop()
            yield record

    async def _stopping(self, work: Any) -> Any:
        if not Stopping.armed:
            return await work
        mine = Stopping.count == Stopping.at
        Stopping.count += 1
        if mine and Stopping.moment == "before":
            stop()
        task = asyncio.ensure_future(work)
        if mine and Stopping.moment == "inside":
            await asyncio.sleep(0)  # The statement is sent; its answer is not read.
            stop()
        answer = await task
        if mine and Stopping.moment == "after":
            stop()
        return answer


def letter(stream: UUID, name: str, key: bytes | None = None) -> Letter:
    """One of the stream's letters."""
    return Letter(uuid5(stream, name), b"content", key)


async def replay(sink: PostgresSink, stream: UUID) -> Outgoing:
    """Keep two letters of one key, and return the write that replays the newer one."""
    for commits, name in ((1, "older"), (2, "newer")):
        await sink.write(Outgoing([], Progress(0, commits, 5, Totals(commits)), letters=[letter(stream, name, b"1")]))
    records = [{"id": id, "writer": 1} for id in range(10)]
    return Outgoing(
        records,
        Progress(0, 3, 5, Totals(3)),
        key=("id",),
        letters=[letter(stream, "kept")],
        replays=[letter(stream, "newer").id] * 10,
        supersedes=lambda record: str(record["id"]).encode(),
    )


async def main(url: str, table: str, stream: str, statement: str, moment: str, kind: str = "") -> None:
    """Open, arm, write."""
    session._Pooled = Stopping  # type: ignore[misc]
    options = PostgresOptions(url=url, table=table, mode="upsert" if kind else "insert")
    sink = PostgresSink(options, make_context())
    await sink.open(replace(make_grant(epoch=1, stream=UUID(stream)), datasource=UUID(stream)))
    rows = 20_000 if statement == "copy" else 10
    records = [{"id": i * 10 // rows + 1 if rows == 10 else i, "writer": 1} for i in range(rows)]
    batch = await replay(sink, UUID(stream)) if kind else Outgoing(records, Progress(0, 1, rows))
    Stopping.moment = "copy" if statement == "copy" else moment
    Stopping.at = -1 if statement == "copy" else int(statement)
    Stopping.armed = True
    try:
        await sink.write(batch)
        print("written", Stopping.count)
    except (ConnectorError, asyncpg.PostgresError) as error:
        print(type(error).__name__)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
