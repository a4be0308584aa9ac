"""A writer that stops itself (SIGSTOP) at a chosen moment of its write: run as a process by the fence tests.

Arguments: URL, table, stream id, statement (0-3) or "copy", moment (before, inside, after). Prints how the write ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import asyncpg

from headgate.connectors.api import Outgoing, Progress
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


async def main(url: str, table: str, stream: str, statement: str, moment: str) -> None:
    """Open, arm, write."""
    session._Pooled = Stopping  # type: ignore[misc]
    sink = PostgresSink(PostgresOptions(url=url, table=table), make_context())
    await sink.open(make_grant(epoch=1, stream=UUID(stream)))
    rows = 20_000 if statement == "copy" else 10
    Stopping.moment = "copy" if statement == "copy" else moment
    Stopping.at = -1 if statement == "copy" else int(statement)
    Stopping.armed = True
    records = [{"id": i * 10 // rows + 1 if rows == 10 else i, "writer": 1} for i in range(rows)]
    try:
        await sink.write(Outgoing(records, Progress(0, 1, rows)))
        print("written")
    except (ConnectorError, asyncpg.PostgresError) as error:
        print(type(error).__name__)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
