"""A run that stops itself (SIGSTOP) at a chosen moment of opening its sink: a process of the tests of forgetting.

Arguments: URL, table, stream id, statement (read, raise), moment (before, inside, after). Its node's trust ends two
seconds after it began. Opens, writes one record, and prints how that ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any
from uuid import UUID

import asyncpg

from headgate.connectors.api import Outgoing, Progress
from headgate.connectors.postgres import session
from headgate.connectors.postgres.sink import PostgresOptions, PostgresSink
from headgate.errors import ConnectorError
from headgate.testing.factories import make_context, make_grant

TRUST_S = 2.0
WORDS = {"read": "clock_timestamp())::float8 AS now_s", "raise": "INSERT INTO headgate_position AS p"}


class Stopping(session._Pooled):
    """Stops at one statement, once."""

    at = ""
    moment = ""

    async def fetchrow(self, query: str, *args: Any, **kwargs: Any) -> Any:
        if not Stopping.at or WORDS[Stopping.at] not in query:
            return await super().fetchrow(query, *args, **kwargs)
        Stopping.at = ""
        if Stopping.moment == "before":
            os.kill(os.getpid(), signal.SIGSTOP)
        task = asyncio.ensure_future(super().fetchrow(query, *args, **kwargs))
        if Stopping.moment == "inside":
            await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGSTOP)
        row = await task
        if Stopping.moment == "after":
            os.kill(os.getpid(), signal.SIGSTOP)
        return row


async def main(url: str, table: str, stream: str, statement: str, moment: str) -> None:
    """Open and write."""
    session._Pooled = Stopping  # type: ignore[misc]
    Stopping.at, Stopping.moment = statement, moment
    sink = PostgresSink(PostgresOptions(url=url, table=table), make_context())
    ends_s = time.clock_gettime(time.CLOCK_BOOTTIME) + TRUST_S
    grant = make_grant(
        epoch=7, stream=UUID(stream), trust_left_s=lambda: ends_s - time.clock_gettime(time.CLOCK_BOOTTIME)
    )
    try:
        await sink.open(grant)
        await sink.write(Outgoing([{"id": 1}], Progress(0, 1, 1)))
        print("written")
    except (ConnectorError, asyncpg.PostgresError) as error:
        print(type(error).__name__)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
