"""What a plain ASGI application is, as every door is one; and how to send to callers who may not read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

SLOW_S = 10.0  # In this time
LEAST_BYTES = 64 * 1024  # a caller reads so much, or all that waits for it.


def impatient(send: Send) -> Send:
    """The same, but a caller that does not read what it asked for is cut off.

    The server waits before it writes, so what was not sent in time can be sent again. The connection is aborted:
    closing it would wait for the very caller that does not read.
    """
    transport: asyncio.Transport | None = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is None:
        return send

    async def send_or_cut(message: MutableMapping[str, Any]) -> None:
        while True:
            before = transport.get_write_buffer_size()
            try:
                async with asyncio.timeout(SLOW_S):
                    return await send(message)
            except TimeoutError:
                if before - transport.get_write_buffer_size() < LEAST_BYTES:
                    return transport.abort()

    return send_or_cut
