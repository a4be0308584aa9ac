"""Webhook source: other systems post to `/hooks/{datasource}`; what was answered 202 is read here, in order.

The door (`web.doors.webhooks`) makes a payload durable in the inbox before it answers. This source only reads the
inbox, so a sink that is away loses nothing. The position is the id of the last payload handled.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.connectors.api import Batch, Context, Position
from headgate.connectors.payloads import decoded
from headgate.connectors.webhook.options import WebhookOptions
from headgate.errors import Cause, ConnectorError


class WebhookSource:
    """Reads the inbox."""

    def __init__(self, options: WebhookOptions, context: Context) -> None:
        assert context.inbox is not None, "the runtime hands this source its inbox"
        self._options = options
        self._inbox = context.inbox
        self._last = 0

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
            records=await decoded((one.body for one in payloads), self._options.format),
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
