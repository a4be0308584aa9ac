"""Sends one message to one target: it was taken, or an error says why not."""

from __future__ import annotations

import hashlib
import hmac
from typing import assert_never

from msgspec import json

from headgate.clock import unix_s
from headgate.connectors import smtp
from headgate.connectors.guard import Guard
from headgate.connectors.http import post
from headgate.datasources.notifications import EmailTarget, SlackTarget, Target, WebhookTarget
from headgate.runtime.notifications import messages
from headgate.runtime.notifications.messages import Body

SEND_S = 10.0

SIGNATURE, TIMESTAMP, ID = "X-Headgate-Signature", "X-Headgate-Timestamp", "X-Headgate-Message"
_JSON = {"Content-Type": "application/json"}


async def send(target: Target, body: Body, guard: Guard) -> None:
    """Send it. Raises ConnectorError."""
    match target:
        case WebhookTarget():
            await _webhook(target, body, guard)
        case SlackTarget():
            text = json.encode({"text": messages.chat_text(body)})
            await post(target.url.get_secret_value(), _JSON, text, guard, SEND_S, target.ca_file)
        case EmailTarget():
            await _mail(target, body, guard)
        case _:
            assert_never(target)


async def _webhook(target: WebhookTarget, body: Body, guard: Guard) -> None:
    text = json.encode({**body, "text": messages.title(body)})
    headers = {**_JSON, ID: str(body["id"])}
    if target.secret is not None:
        at = str(int(unix_s()))
        signed = hmac.new(target.secret.get_secret_value().encode(), f"{at}.".encode() + text, hashlib.sha256)
        headers |= {TIMESTAMP: at, SIGNATURE: signed.hexdigest()}
    await post(target.url.get_secret_value(), headers, text, guard, SEND_S, target.ca_file)


async def _mail(target: EmailTarget, body: Body, guard: Guard) -> None:
    password = None if target.password is None else target.password.get_secret_value()
    server = smtp.Server(target.host, target.at_port, target.tls, target.user, password, target.ca_file)
    message = messages.mail(body, target.sender, target.to)
    await smtp.send(server, smtp.Envelope(target.sender, target.to, message), guard, SEND_S)
