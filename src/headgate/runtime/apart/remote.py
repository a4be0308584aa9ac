"""A source or a sink that lives in a process, as far as the two are alike; and how such a process is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import structlog

from headgate.clock import unix_s
from headgate.connectors.api import Connector, Context, Position
from headgate.connectors.bounds import WireGuard
from headgate.core.letters import packed
from headgate.errors import ConnectorError
from headgate.runtime.apart.failures import NONSENSE
from headgate.runtime.apart.process import Process
from headgate.runtime.apart.wire import SIGNATURES, Begin, Call, NonsenseError, decoded, encoded
from headgate.runtime.streams.shared import SharedThings

CLOSE_S = 1.5  # A little less than a run gives to both of its sides.
IDLE_S = 15.0  # A process that answers probes waits for the next one.
TELL_S = 30.0  # To say what a move means, its start included.
LONGEST_TEXT = 500  # Of a part, a column or a mark.
MOST_NAMES = 20_000

Side: TypeAlias = Literal["source", "sink"]


def process_of(connector: Connector, side: Side, given: Mapping[str, Any], context: Context) -> Process:
    """A process for one side of a connector. `given`: its options as the document has them, with their secrets."""
    begin = Begin(
        connector.name,
        side,
        packed(dict(given)),
        context.stream,
        WireGuard.of(context.guard),
        dict(context.field_types),
        context.is_rehearsal,
        context.memory_mb,
    )
    return Process(begin, context)


class Remote:
    """What a source and a sink have in common."""

    _side: Side

    def __init__(self, process: Process, part: str = "") -> None:
        self._process = process
        self._part = part
        self._number = process.join()
        self._is_closed = False

    async def check(self) -> None:
        """As the connector's."""
        await self._ask("check")

    async def mark(self) -> str | None:
        """As the connector's."""
        found: str | None = await self._ask("mark")
        return found

    async def close(self) -> None:
        """As the connector's, and then the process ends. One that does not return from it is killed."""
        if self._is_closed:
            return
        self._is_closed = True
        process = self._process
        try:
            if process.is_started and not process.is_over:
                async with asyncio.timeout(CLOSE_S):
                    await self._ask("close")
        except (TimeoutError, asyncio.CancelledError) as error:
            process.end()
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            process.leave()

    async def _ask(self, method: str, *args: Any, **more: Any) -> Any:
        """Call a method; returns what it should return, and nothing else."""
        message, _ = await self._process.call(self._call(method, *args), **more)
        return self._result(message, method)

    def _call(self, method: str, *args: Any, trust_until_s: float = 0.0) -> Call:
        if self._is_closed and method != "close":
            raise ConnectorError(f"{method} was called on a {self._side} that is closed")
        return Call(self._process.next_id(), self._number, self._part, method, encoded(args), trust_until_s)

    def _result(self, message: Any, method: str) -> Any:
        try:
            found = decoded(getattr(message, "value", b""), SIGNATURES[self._side, method][1])
            _check_texts(found)
        except NonsenseError as error:
            raise self._nonsense(str(error)) from None
        return found

    def _nonsense(self, what: str) -> ConnectorError:
        """Its process is ended: nobody knows what it has become."""

        def error() -> ConnectorError:
            return ConnectorError(f"the connector's process ended: {NONSENSE}", hint=what)

        self._process.end(error)
        return error()


def _check_texts(found: Any) -> None:
    """Names and marks are kept in the registry."""
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    if len(listed) > MOST_NAMES or any(isinstance(one, str) and len(one) > LONGEST_TEXT for one in listed):
        raise NonsenseError("a name is too long, or there are too many")


class Prober:
    """Asks a connector's probe, every second if need be, in a process that is kept for the next time."""

    def __init__(self, make: Callable[[], Process]) -> None:
        self._make = make
        self._process: Process | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self) -> None:
        """Raise what the probe raises."""
        if self._process is None or self._process.is_over:
            self._process = self._make()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._process.end)
        await self._process.call(Call(self._process.next_id(), 0, "", "probe", encoded(())))


async def tell_move(connector: Connector, before: Position, after: Position) -> str:
    """What a source's connector says of two positions, in its process if that is where it lives."""
    assert connector.source is not None
    assert connector.source.tell_move is not None
    if connector.runs != "process":
        return connector.source.tell_move(before, after)
    context = Context("move", structlog.get_logger("headgate.move"), unix_s, SharedThings())
    process = process_of(connector, "source", {}, context)
    try:
        async with asyncio.timeout(TELL_S):
            call = Call(process.next_id(), 0, "", "tell_move", encoded((before, after)))
            message, _ = await process.call(call)
        return str(decoded(getattr(message, "value", b""), str))
    finally:
        process.end()
