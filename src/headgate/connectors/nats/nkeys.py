"""Credentials of NATS that are keys: the server sends a nonce, and who has the seed signs it.

A seed is an Ed25519 key in base32, with a kind in front and a checksum at the end. A file of credentials (`.creds`) has
one next to a JWT, which says what its owner may do; without a JWT the server knows the public key itself.
"""

from __future__ import annotations

import base64
import binascii
import re

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

_USER = 20 << 3  # What a public key of a user begins with: U.
_SEED = 18 << 3  # What a seed begins with: S.
_BLOCK = re.compile(r"-{3,}BEGIN [A-Z ]+-{3,}\s*([\w.=-]+)\s*-{3,}END")
_BARE = re.compile(r"S[A-Z2-7]{57}")


class Credentials:
    """Somebody who can sign."""

    def __init__(self, text: str) -> None:
        """From a file of credentials, or a seed by itself. ValueError: it is neither."""
        blocks = _BLOCK.findall(text) or [text.strip()]
        seeds = [one for one in blocks if _BARE.fullmatch(one)]
        tokens = [one for one in blocks if one.count(".") == 2]
        if len(seeds) != 1:
            raise ValueError("must be a file of credentials (.creds) or the seed of a user, which begins with SU")
        self._jwt = tokens[0] if tokens else None
        self._key = Ed25519PrivateKey.from_private_bytes(_seed(seeds[0]))

    def answer(self, nonce: str) -> dict[str, str]:
        """What the server wants to hear."""
        signature = base64.urlsafe_b64encode(self._key.sign(nonce.encode())).decode().rstrip("=")
        who = {"jwt": self._jwt} if self._jwt is not None else {"nkey": self.public}
        return {**who, "sig": signature}

    @property
    def public(self) -> str:
        """The public key, as a server's settings have it."""
        raw = bytes([_USER]) + self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return base64.b32encode(raw + _checksum(raw)).decode().rstrip("=")


def _seed(text: str) -> bytes:
    raw = base64.b32decode(text + "=" * (-len(text) % 8))
    if raw[0] & 0xF8 != _SEED or _checksum(raw[:-2]) != raw[-2:] or len(raw) != 36:
        raise ValueError("has a seed that is not whole")
    return raw[2:34]


def _checksum(data: bytes) -> bytes:
    return binascii.crc_hqx(data, 0).to_bytes(2, "little")
