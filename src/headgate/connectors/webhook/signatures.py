"""Signed webhooks: HMAC-SHA256 in the layouts that senders use.

A signature covers the body and, where the sender sends one, a timestamp; an old timestamp is refused. What is signed is
also the replay key: the same signed message sent again is the same message. Several keys may be valid at once, so that
a key can be rotated without losing a call. Comparison takes the same time whatever differs.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, SecretStr

from headgate.connectors.api import Options

WINDOW_S = 300.0


class Signature(Options):
    """How a sender signs."""

    scheme: Literal["github", "stripe", "slack", "generic"] = "generic"
    secret: SecretStr | list[SecretStr] = Field(description="The shared key, or several while rotating.")
    header: str = Field("x-signature", description="generic: the header with the hex HMAC-SHA256 of the body.")
    timestamp_header: str | None = Field(
        None, description="generic: a header with Unix seconds; then `timestamp.body` is what is signed."
    )
    window_s: float = Field(WINDOW_S, gt=0, description="How old or how early a timestamp may be.")

    @property
    def keys(self) -> list[bytes]:
        """All keys that are valid now."""
        secrets = self.secret if isinstance(self.secret, list) else [self.secret]
        return [secret.get_secret_value().encode() for secret in secrets]


def verify(signature: Signature, headers: Mapping[str, str], body: bytes, now_s: float) -> str | Literal[False] | None:
    """False if the message is not genuine or not timely, else its replay key if it has one.

    Header names are in lower case.
    """
    match signature.scheme:
        case "github":
            signed, given = body, headers.get("x-hub-signature-256", "").removeprefix("sha256=")
            stamp = None
        case "stripe":
            fields = [part.strip().partition("=")[::2] for part in headers.get("stripe-signature", "").split(",")]
            stamp = next((value for name, value in fields if name == "t"), "")
            given = ",".join(value for name, value in fields if name == "v1")
            signed = stamp.encode() + b"." + body
        case "slack":
            stamp = headers.get("x-slack-request-timestamp", "")
            given = headers.get("x-slack-signature", "").removeprefix("v0=")
            signed = b"v0:" + stamp.encode() + b":" + body
        case "generic":
            given = headers.get(signature.header.lower(), "").removeprefix("sha256=")
            stamp = None if signature.timestamp_header is None else headers.get(signature.timestamp_header.lower(), "")
            signed = body if stamp is None else stamp.encode() + b"." + body
    if stamp is not None and not _is_timely(stamp, now_s, signature.window_s):
        return False
    if not _matches(signature.keys, signed, given.split(",")):
        return False
    return _replay_key(signature, headers, stamp, signed)


def _is_timely(stamp: str, now_s: float, window_s: float) -> bool:
    return stamp.isascii() and stamp.isdigit() and len(stamp) < 16 and abs(now_s - int(stamp)) <= window_s


def _matches(keys: list[bytes], signed: bytes, given: list[str]) -> bool:
    """Every key is tried against every signature, so that time says nothing about which one fits."""
    found = False
    for key in keys:
        expected = hmac.digest(key, signed, hashlib.sha256).hex()
        for text in given:
            found |= hmac.compare_digest(expected.encode(), text.strip().encode())
    return found


def _replay_key(signature: Signature, headers: Mapping[str, str], stamp: str | None, signed: bytes) -> str | None:
    """Where the sender numbers its messages, that number; else the signed timestamp makes a repeat recognisable.

    Without either, two equal bodies may well be two messages, and both are kept. The key comes from what is signed, not
    from the signature as it was written: an attacker who repeats a message may add a second, invalid one. It is a
    hash, because the sender chooses the length, and an index limits it.
    """
    if signature.scheme == "github":
        delivery = headers.get("x-github-delivery")
        return None if delivery is None else hashlib.sha256(delivery.encode()).hexdigest()
    return None if stamp is None else hashlib.sha256(signed).hexdigest()
