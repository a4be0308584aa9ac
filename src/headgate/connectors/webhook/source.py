"""Webhook source: other systems post to `/hooks/{datasource}`; what was answered 202 is read here, in order.

The door (`web.doors.webhooks`) makes a payload durable in the inbox before it answers. This source only reads the
inbox, so a sink that is away loses nothing. The position is the id of the last payload handled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from pydantic import Field

from headgate.connectors.api.streaming import Batch, Connector, Context, Options, Position, Received, SourceKind
from headgate.connectors.webhook.signatures import Signature
from headgate.errors import Cause, ConnectorError


class WebhookOptions(Options):
    """Options of the webhook source."""

    signature: Signature | None = Field(None, description="How callers sign. Without, callers need a token.")
    format: Literal["json", "text"] = Field("json", description="json: the body is the record. text: {body: …}.")
    max_body_bytes: int = Field(1024 * 1024, gt=0, le=64 * 1024 * 1024, description="A larger body is answered 413.")
    inbox_limit_rows: int = Field(1_000_000, gt=0, description="A fuller inbox answers 503.")
    inbox_limit_bytes: int = Field(4 * 1024**3, gt=0, description="A fuller inbox answers 503.")
    batch: int = Field(1000, gt=0, le=10_000, description="Payloads per batch, at most.")


class WebhookSource:
    """Reads the inbox."""

    def __init__(self, options: WebhookOptions, context: Context) -> None:
        assert context.inbox is not None, "the runtime hands this source its inbox"
        self._options = options
        self._inbox = context.inbox
        self._last = 0
        self._decode = msgspec.json.Decoder().decode

    async def check(self) -> None:
        """The inbox is the runtime's own: there is nothing that could be missing."""

    async def parts(self) -> Sequence[str]:
        """One."""
        return [""]

    async def open(self, position: Position) -> None:
        """Go on after this payload."""
        if position is not None and type(position) is not int:
            raise ConnectorError(f"the position must be the id of a payload, not {position!r}", cause=Cause.CONFIG)
        self._last = position or 0

    async def read(self) -> Batch:
        """Wait for payloads."""
        payloads = await self._inbox.after(self._last, self._options.batch)
        self._last = payloads[-1].id
        return Batch(
            records=[self._record(payload) for payload in payloads],
            position=self._last,
            size_bytes=sum(len(payload.body) for payload in payloads),
            event_time_s=payloads[-1].received_at_s,
            meta=[
                {"id": payload.id, "received_at": payload.received_at_s, "headers": payload.headers}
                for payload in payloads
            ],
        )

    async def ack(self, position: Position) -> None:
        """The inbox is cleaned by the registry's committed position."""

    async def close(self) -> None:
        """Nothing is held."""

    def _record(self, payload: Received) -> Any:
        if self._options.format == "json":
            return self._decode(payload.body)
        return {"body": payload.body.decode("utf-8", "replace")}


CONNECTOR = Connector(
    name="webhook",
    summary="Receive JSON by HTTP POST, signed or with a token, made durable before it is answered",
    source=SourceKind(WebhookOptions, WebhookSource),
)
