"""Signed webhooks: HMAC-SHA256 in the layouts that senders use.

A signature covers the body and, where the sender sends one, a timestamp; an old timestamp is refused. What is signed is
also the replay key: the same signed message sent again is the same message. Several keys may be valid at once, so that
a key can be rotated without losing a call. Comparison takes the same time whatever differs.

A `Check` takes the body in pieces as it comes, so that a large one holds nobody up, and copies none of it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, SecretStr

from headgate.connectors.api import Options

WINDOW_S = 300.0
MOST_SIGNATURES = 16  # In one call: each is compared with each key.

_HEX = 64  # The length of a signature.
_BLOCK = 64
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))


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


class _Key:
    """The two halves of an HMAC with the key in them: hashing begins from a copy, which is faster than from the key."""

    def __init__(self, key: bytes) -> None:
        padded = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
        self.inner = hashlib.sha256(padded.translate(_INNER))
        self.outer = hashlib.sha256(padded.translate(_OUTER))


class Check:
    """One message while its body comes."""

    __slots__ = ("_given", "_keys", "_replay_key", "_running", "_signed")

    def __init__(self, keys: list[_Key], given: list[bytes], replay_key: str | None, prefix: bytes | None) -> None:
        self._keys = keys
        self._given = given
        self._replay_key = replay_key
        self._running = [key.inner.copy() for key in keys]
        self._signed = None if prefix is None else hashlib.sha256()  # All that is signed: a repeat has the same.
        if prefix is not None:
            self.update(prefix)

    def update(self, data: bytes) -> None:
        """The next piece."""
        for running in self._running:
            running.update(data)
        if self._signed is not None:
            self._signed.update(data)

    def end(self) -> str | Literal[False] | None:
        """False if the message is not genuine, else its replay key if it has one.

        Every key is tried against every signature, so that time says nothing about which one fits.
        """
        found = False
        for key, running in zip(self._keys, self._running, strict=True):
            outer = key.outer.copy()
            outer.update(running.digest())
            expected = outer.hexdigest().encode()
            for text in self._given:
                found |= hmac.compare_digest(expected, text)
        if not found:
            return False
        return self._replay_key if self._signed is None else self._signed.hexdigest()


class Verifier:
    """Knows how a sender signs."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._keys = [_Key(key) for key in signature.keys]
        self._header = signature.header.lower()
        self._timestamp_header = signature.timestamp_header.lower() if signature.timestamp_header is not None else None

    def begin(self, headers: Mapping[str, str], now_s: float) -> Check | None:
        """A check of the message with these headers, names in lower case; None if it cannot be genuine or timely."""
        stamp, given, before = self._layout(headers)
        texts = [text.encode() for part in given.split(",") if len(text := part.strip()) == _HEX]
        if not texts or len(texts) > MOST_SIGNATURES:
            return None
        if stamp is not None and not _is_timely(stamp, now_s, self._signature.window_s):
            return None
        prefix = None if stamp is None else before + stamp.encode() + (b":" if before else b".")
        return Check(self._keys, texts, self._delivery(headers), prefix)

    def _layout(self, headers: Mapping[str, str]) -> tuple[str | None, str, bytes]:
        """The timestamp, the signatures, and what is signed before the timestamp."""
        match self._signature.scheme:
            case "github":
                return None, headers.get("x-hub-signature-256", "").removeprefix("sha256="), b""
            case "stripe":
                parts = headers.get("stripe-signature", "").split(",", MOST_SIGNATURES)
                fields = [part.strip().partition("=")[::2] for part in parts]
                stamp = next((value for name, value in fields if name == "t"), "")
                return stamp, ",".join(value for name, value in fields if name == "v1"), b""
            case "slack":
                given = headers.get("x-slack-signature", "").removeprefix("v0=")
                return headers.get("x-slack-request-timestamp", ""), given, b"v0:"
            case "generic":
                given = headers.get(self._header, "").removeprefix("sha256=")
                if self._timestamp_header is None:
                    return None, given, b""
                return headers.get(self._timestamp_header, ""), given, b""

    def _delivery(self, headers: Mapping[str, str]) -> str | None:
        """Where the sender numbers its messages, that number; else a signed timestamp makes a repeat recognisable.

        Without either, two equal bodies may well be two messages, and both are kept. The key comes from what is
        signed, not from the signature as it was written: an attacker who repeats a message may add a second, invalid
        one. It is a hash, because the sender chooses the length, and an index limits it.
        """
        if self._signature.scheme != "github":
            return None
        delivery = headers.get("x-github-delivery")
        return None if delivery is None else hashlib.sha256(delivery.encode()).hexdigest()


def _is_timely(stamp: str, now_s: float, window_s: float) -> bool:
    return stamp.isascii() and stamp.isdigit() and len(stamp) < 16 and abs(now_s - int(stamp)) <= window_s
