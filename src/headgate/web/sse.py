"""Server-sent events: what is new, as it comes. A wake-up makes it prompt; a poll makes it sure.

An event is made when the one before it has gone out, so a caller that reads slowly has one waiting and no more; one
that does not read is cut off (`doors/asgi.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Protocol, TypeVar

import msgspec
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter
from litestar.response import Stream

from headgate.errors import StoreError
from headgate.store.wake import Listener
from headgate.web.auth import Req

POLL_S = 2.0
MOST_ID = 2**63 - 1
MEDIA_TYPE = "text/event-stream"
ZIPPED_HEAD = bytes.fromhex("1f8b08000000000000ff")  # Of gzip, with nothing said about the contents.
ALIVE = b": \r\n\r\n"  # Finds out whether anyone still listens, and tells who does that the node is alive.

After = Annotated[int, Parameter(ge=0, le=MOST_ID)]
AfterOrNow = Annotated[int | None, Parameter(ge=0, le=MOST_ID)]
T = TypeVar("T", int, int | None)


def spec(of: type[msgspec.Struct]) -> dict[int, ResponseSpec]:
    """What the OpenAPI document says of a stream of these."""
    text = "Server-sent events; the data of each is one of these."
    return {200: ResponseSpec(of, description=text, media_type=MEDIA_TYPE, generate_examples=False)}


def event(data: bytes, id: int | None = None) -> bytes:
    """One event. JSON has no line breaks, so it is one line."""
    return b"data: %b\r\n\r\n" % data if id is None else b"id: %d\r\ndata: %b\r\n\r\n" % (id, data)


def zipped(event: bytes) -> bytes:
    """The same as a piece of a gzip stream that refers to no earlier piece, so that all who get the same event
    get the same bytes, wherever their streams began."""
    packer = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    return packer.compress(event) + packer.flush(zlib.Z_FULL_FLUSH)


class Live(Stream):
    """An answer that goes on for as long as its caller reads it."""

    def __init__(self, events: AsyncIterator[bytes], *, zipped: bool = False) -> None:
        headers = {"Cache-Control": "no-cache", "Connection": "keep-alive", "X-Accel-Buffering": "no"}
        if zipped:
            headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        super().__init__(events, media_type=MEDIA_TYPE, headers=headers)


class Item(Protocol):
    """Something with a rising id."""

    @property
    def id(self) -> int:
        """Its place among the others."""


def resumed(request: Req, after: T) -> T:
    """Where to go on: a browser that reconnects asks as it asked first, and adds what it saw last."""
    seen = request.headers.get("last-event-id", "")
    return int(seen) if seen.isdecimal() and len(seen) < 19 else after


def live(request: Req, events: AsyncIterator[bytes], *, zipped: bool = False) -> Live:
    """These events, until the caller leaves or its token ends."""
    return Live(_while_valid(request, events), zipped=zipped)


def items(
    request: Req, listener: Listener, topic: str, read: Callable[[int], Awaitable[Sequence[Item]]], after: int
) -> Live:
    """Rows with rising ids: each is sent once, in order."""
    return live(request, _items(listener, topic, read, after))


async def _items(
    listener: Listener, topic: str, read: Callable[[int], Awaitable[Sequence[Item]]], after: int
) -> AsyncIterator[bytes]:
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
                yield event(msgspec.json.encode(row, enc_hook=str), after)
            if rows:
                continue  # There may be more than one read returns.
            yield ALIVE
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await news.wait()
    finally:
        stop()


async def _while_valid(request: Req, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """End when the caller's token ends. There is an event every few seconds, if only a sign of life."""
    ended = asyncio.Event()
    with request.app.state.gate.hold(request.user, ended.set):
        async for event in events:
            if ended.is_set():
                return
            yield event
