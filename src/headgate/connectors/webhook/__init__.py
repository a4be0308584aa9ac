"""Webhooks: other programs post payloads, which are durable in the inbox before they are answered."""

from __future__ import annotations

from functools import partial

from headgate.connectors.api import Connector, SourceKind
from headgate.connectors.moves import tell_numbers
from headgate.connectors.webhook.options import WebhookOptions
from headgate.connectors.webhook.signatures import Check, Verifier
from headgate.connectors.webhook.source import WebhookSource

__all__ = ["CONNECTOR", "Check", "Verifier", "WebhookOptions"]

CONNECTOR = Connector(
    name="webhook",
    summary="Receive JSON by HTTP POST, signed or with a token, made durable before it is answered",
    source=SourceKind(
        WebhookOptions,
        WebhookSource,
        tell_move=partial(tell_numbers, noun="payload"),
        promise="each payload that was answered 202 exactly once into a transactional sink",
    ),
)
