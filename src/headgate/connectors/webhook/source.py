"""Webhook source: other systems post to `/hooks/{datasource}`; what was answered 202 is read here, in order.

The door (`web.doors.webhooks`) makes a payload durable in the inbox before it answers. This source only reads the
inbox, so a sink that is away loses nothing. The position is the id of the last payload handled.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Sequence
from typing import Any

import msgspec

from headgate.connectors.api import Batch, Context, Position, Received, Unreadable
from headgate.connectors.webhook.options import WebhookOptions
from headgate.errors import Cause, ConnectorError

BYTES_AT_ONCE = 256 * 1024  # Of bodies that are decoded in one go: a few milliseconds, whatever they hold.

_Utf8 = codecs.getincrementaldecoder("utf-8")


class WebhookSource:
    """Reads the inbox."""

    def __init__(self, options: WebhookOptions, context: Context) -> None:
        assert context.inbox is not None, "the runtime hands this source its inbox"
        self._options = options
        self._inbox = context.inbox
        self._last = 0
        self._decode = msgspec.json.Decoder().decode

    async def check(self) -> None:
        """The inbox is the runtime's own: nothing can be missing."""

    async def parts(self) -> Sequence[str]:
        """One."""
        return [""]

    async def open(self, position: Position) -> None:
        """Continue after this payload."""
        if position is not None and type(position) is not int:
            raise ConnectorError(f"position {position!r} is not the id of a payload", cause=Cause.CONFIG)
        self._last = position or 0

    async def read(self) -> Batch:
        """Wait for payloads."""
        payloads = await self._inbox.after(self._last, self._options.batch)
        self._last = payloads[-1].id
        return Batch(
            records=await self._records(payloads),
            position=self._last,
            size_bytes=sum(len(payload.body) for payload in payloads),
            event_time_s=payloads[-1].received_at_s,
            meta=[
                {"id": payload.id, "received_at": payload.received_at_s, "headers": payload.headers}
                for payload in payloads
            ],
            place=lambda index: f"payload {payloads[index].id}",
        )

    async def ack(self, position: Position) -> None:
        """The inbox may remove what the sink has."""
        assert isinstance(position, int)
        await self._inbox.ack(position)

    async def close(self) -> None:
        """Nothing is held. What was acknowledged no longer counts: the stream may continue elsewhere, from earlier."""
        await self._inbox.close()

    async def _records(self, payloads: Sequence[Received]) -> list[Any]:
        """Decode, and let others have their turn after every few hundred kilobytes."""
        records, size_bytes = [], 0
        for payload in payloads:
            records.append(await self._record(payload))
            size_bytes += len(payload.body)
            if size_bytes > BYTES_AT_ONCE:
                size_bytes = 0
                await asyncio.sleep(0)
        return records

    async def _record(self, payload: Received) -> Any:
        """The door takes no JSON that costs much to decode; text is decoded in as many goes as it needs."""
        if self._options.format == "json":
            try:
                return self._decode(payload.body)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):  # It came while another format was asked for.
                return Unreadable(payload.body, "the body is not JSON")
        decoder, texts = _Utf8("replace"), []
        for start in range(0, len(payload.body), BYTES_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            texts.append(decoder.decode(payload.body[start : start + BYTES_AT_ONCE]))
        return {"body": "".join([*texts, decoder.decode(b"", final=True)])}
