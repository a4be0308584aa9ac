"""Server-sent events: what is new, as it comes. A wake-up makes it prompt; a poll makes it sure."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Protocol, TypeVar

import msgspec
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter
from litestar.response import ServerSentEvent, ServerSentEventMessage

from headgate.errors import StoreError
from headgate.store.wake import Listener
from headgate.web.auth import Req

POLL_S = 2.0
MOST_ID = 2**63 - 1

After = Annotated[int, Parameter(ge=0, le=MOST_ID)]
AfterOrNow = Annotated[int | None, Parameter(ge=0, le=MOST_ID)]
T = TypeVar("T", int, int | None)


def spec(of: type[msgspec.Struct]) -> dict[int, ResponseSpec]:
    """What the OpenAPI document says of a stream of these."""
    text = "Server-sent events; the data of each is one of these."
    return {200: ResponseSpec(of, description=text, media_type="text/event-stream", generate_examples=False)}


class Item(Protocol):
    """Something with a rising id."""

    @property
    def id(self) -> int:
        """Its place among the others."""


def resumed(request: Req, after: T) -> T:
    """Where to go on: a browser that reconnects asks as it asked first, and adds what it saw last."""
    seen = request.headers.get("last-event-id", "")
    return int(seen) if seen.isdecimal() and len(seen) < 19 else after


def items(
    request: Req, listener: Listener, topic: str, read: Callable[[int], Awaitable[Sequence[Item]]], after: int
) -> ServerSentEvent:
    """Rows with rising ids: each is sent once, in order."""
    return ServerSentEvent(_while_valid(request, _items(listener, topic, read, after)))


async def _items(
    listener: Listener, topic: str, read: Callable[[int], Awaitable[Sequence[Item]]], after: int
) -> AsyncIterator[ServerSentEventMessage]:
    news = asyncio.Event()
    stop = listener.on(topic, lambda number: news.set())
    try:
        while True:
            news.clear()
            rows: Sequence[Item] = []
            with contextlib.suppress(StoreError):
                rows = await read(after)
            for row in rows:
                after = row.id
                yield ServerSentEventMessage(data=msgspec.json.encode(row, enc_hook=str).decode(), id=after)
            if rows:
                continue  # There may be more than one read returns.
            yield ServerSentEventMessage(None, comment="")  # Finds out whether anyone still listens.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await news.wait()
    finally:
        stop()


def snapshots(request: Req, read: Callable[[], Awaitable[object]], every_s: float) -> ServerSentEvent:
    """The whole of something, again and again; only when it has changed."""

    async def produce() -> AsyncIterator[ServerSentEventMessage]:
        last = b""
        while True:
            with contextlib.suppress(StoreError):
                text = msgspec.json.encode(await read(), enc_hook=str)
                if text != last:
                    yield ServerSentEventMessage(data=text.decode())
                else:
                    yield ServerSentEventMessage(None, comment="")
                last = text
            await asyncio.sleep(every_s)

    return ServerSentEvent(_while_valid(request, produce()))


async def _while_valid(
    request: Req, messages: AsyncIterator[ServerSentEventMessage]
) -> AsyncIterator[ServerSentEventMessage]:
    """End when the caller's token ends. There is a message at least every two seconds, if only an empty one."""
    ended = asyncio.Event()
    with request.app.state.gate.hold(request.user, ended.set):
        async for message in messages:
            if ended.is_set():
                return
            yield message
