"""Server-sent events: what is new, as it comes.

An event is made when the one before it has gone out, so a caller that reads slowly has one waiting and no more; one
that does not read is cut off (`doors/asgi.py`).
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Annotated, TypeVar

import msgspec
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter
from litestar.response import Stream

from headgate.web.auth import Req

ALIVE_S = 2.0  # Between signs of life. A console takes a node that is silent for 6 s for lost.
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


def resumed(request: Req, after: T) -> T:
    """Where to go on: a browser that reconnects asks as it asked first, and adds what it saw last."""
    seen = request.headers.get("last-event-id", "")
    return int(seen) if seen.isdecimal() and len(seen) < 19 else after


def live(request: Req, events: AsyncIterator[bytes], *, zipped: bool = False) -> Live:
    """These events, until the caller leaves or its token ends."""
    return Live(_while_valid(request, events), zipped=zipped)


async def _while_valid(request: Req, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """End when the caller's token ends. There is an event every few seconds, if only a sign of life."""
    ended = asyncio.Event()
    with request.app.state.gate.hold(request.user, ended.set):
        async for event in events:
            if ended.is_set():
                return
            yield event
