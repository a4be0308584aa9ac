"""A run that stops itself (SIGSTOP) at a chosen moment of a call to Redis: a process of the tests of the fence.

Arguments: URL, key of the stream, stream id, call (read and raise of an open, write), moment (before, inside, after).
Its node's trust ends a second after it began. Opens, writes ten records, and prints how that ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any
from uuid import UUID

from headgate.connectors.api import Outgoing, Progress
from headgate.connectors.redis import session
from headgate.connectors.redis.options import RedisSinkOptions
from headgate.connectors.redis.scripts import OPEN, WRITE
from headgate.connectors.redis.sink import RedisSink
from headgate.errors import ConnectorError
from headgate.testing.factories import make_context, make_grant

TRUST_S = 1.0


class Stopping(session.Session):
    """Stops at one call, once."""

    at = ""
    moment = ""
    opens = 0

    async def answers(self, commands: Any, **limits: Any) -> Any:
        kind = ""
        if OPEN.hash in commands[0]:
            Stopping.opens += 1
            kind = "read" if Stopping.opens == 1 else "raise"
        elif WRITE.hash in commands[0]:
            kind = "write"
        if kind != Stopping.at:
            return await super().answers(commands, **limits)
        if Stopping.moment == "before":
            os.kill(os.getpid(), signal.SIGSTOP)
        task = asyncio.ensure_future(super().answers(commands, **limits))
        if Stopping.moment == "inside":
            await asyncio.sleep(0)  # The words are sent; the answer is not read.
            os.kill(os.getpid(), signal.SIGSTOP)
        answer = await task
        if Stopping.moment == "after":
            os.kill(os.getpid(), signal.SIGSTOP)
        return answer


async def main(url: str, key: str, stream: str, call: str, moment: str) -> None:
    """Open and write."""
    options = RedisSinkOptions(url=url, stream=key)  # type: ignore[arg-type]
    sink = RedisSink(options, make_context())
    sink._session = Stopping(session.address_of(url), make_context().guard)
    for script in (OPEN, WRITE):  # So that the server knows them all, and each call is one.
        await sink._session.call("SCRIPT", "LOAD", script.text)
    Stopping.at, Stopping.moment = call, moment
    ends_s = time.clock_gettime(time.CLOCK_BOOTTIME) + TRUST_S
    grant = make_grant(
        epoch=1, stream=UUID(stream), trust_left_s=lambda: ends_s - time.clock_gettime(time.CLOCK_BOOTTIME)
    )
    try:
        await sink.open(grant)
        await sink.write(Outgoing([{"writer": 1}] * 10, Progress(0, 1, 10)))
        print("written")
    except ConnectorError as error:
        print(type(error).__name__)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
