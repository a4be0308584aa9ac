"""A run that stops itself (SIGSTOP) at a chosen call of its Kafka sink: a process of the fence tests.

Arguments: brokers, topic, positions topic, stream id, when (open, write), the call (take, begin, send, commit, read),
and the moment (before, after). Its node's trust ends two seconds after it began, if the last argument says so. Opens
under epoch 1, writes ids 0 to 9, and prints how that ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from headgate.connectors.api import Outgoing, Progress
from headgate.connectors.kafka import positions, producing
from headgate.connectors.kafka.options import KafkaSinkOptions
from headgate.connectors.kafka.sink import KafkaSink
from headgate.errors import ConnectorError
from headgate.testing.factories import make_context, make_grant

TRUST_S = 2.0
armed = False


class StoppingProducer:
    """The client, which stops its process at one of its calls, once."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._inner = producing_client(config)

    def __getattr__(self, name: str) -> Any:
        return stopping(name, getattr(self._inner, name))


def stopping(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """A call that stops before or after its work."""

    def stopped(*args: Any, **kwargs: Any) -> Any:
        global armed
        if (mine := armed and CALLS.get(name) == call_name) and moment == "before":
            armed = False
            os.kill(os.getpid(), signal.SIGSTOP)
        result = call(*args, **kwargs)  # It may have to be repeated: then it is not over yet.
        if mine and moment == "after":
            armed = False
            os.kill(os.getpid(), signal.SIGSTOP)
        return result

    return stopped


CALLS = {
    "init_transactions": "take",
    "begin_transaction": "begin",
    "produce": "send",
    "commit_transaction": "commit",
    "read_to": "read",
}
producing_client = producing.Producer
brokers, topic, kept, stream, when, call_name, moment, *more = sys.argv[1:]


async def main() -> None:
    """Open and write."""
    global armed
    producing.Producer = StoppingProducer  # type: ignore[misc, assignment]
    positions.PositionReader.read_to = stopping("read_to", positions.PositionReader.read_to)  # type: ignore[method-assign]
    ends_s = time.clock_gettime(time.CLOCK_BOOTTIME) + TRUST_S
    trust = (lambda: ends_s - time.clock_gettime(time.CLOCK_BOOTTIME)) if more else 30.0
    grant = make_grant(epoch=1, stream=UUID(stream), trust_left_s=trust)
    sink = KafkaSink(KafkaSinkOptions(brokers=brokers, topic=topic, positions_topic=kept), make_context())
    try:
        armed = when == "open"
        await sink.open(grant)
        armed = when == "write"
        await sink.write(Outgoing([{"id": id, "writer": 1} for id in range(10)], Progress(0, 1, 10)))
        print("written")
    except ConnectorError as error:
        print(type(error).__name__)
        print(error, file=sys.stderr)
    finally:
        await sink.close()


if __name__ == "__main__":
    asyncio.run(main())
