"""Options of the webhook source."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from headgate.connectors.api import Options
from headgate.connectors.webhook.signatures import Signature


class WebhookOptions(Options):
    """Options of the webhook source."""

    signature: Signature | None = Field(None, description="How callers sign. Without, callers need a token.")
    format: Literal["json", "text"] = Field("json", description="json: the body is the record. text: {body: …}.")
    max_body_bytes: int = Field(1024 * 1024, gt=0, le=64 * 1024 * 1024, description="A larger body is answered 413.")
    inbox_limit_rows: int = Field(1_000_000, gt=0, description="A fuller inbox answers 503.")
    inbox_limit_bytes: int = Field(4 * 1024**3, gt=0, description="A fuller inbox answers 503.")
    batch: int = Field(1000, gt=0, le=10_000, description="Payloads per batch, at most.")
