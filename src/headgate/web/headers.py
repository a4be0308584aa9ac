"""The headers of every answer: nothing is guessed, framed, shared with other sites or kept.

`ALWAYS` goes to the server below the applications, so that its own answers have them too. `guarded` adds what pages and
static files may say themselves.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any

from headgate.web.doors.asgi import Send

# A form of ours must be sent with its origin, which `no-referrer` would hide: by the origin we tell it from others'.
ALWAYS = [
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
]
NO_STORE = (b"cache-control", b"no-store")
NOTHING = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
STATIC = "/static/"


class Guarded:
    """Where an application sends its answer; it leaves with the headers that it lacks."""

    def __init__(self, path: str, send: Send) -> None:
        self._is_static = path.startswith(STATIC)
        self._send = send
        self.has_begun = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self.has_begun = True
            message = {**message, "headers": self._completed(list(message.get("headers", ())))}
        await self._send(message)

    def _completed(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        if not self._is_static:
            headers = [*(one for one in headers if one[0].lower() != NO_STORE[0]), NO_STORE]
        return headers if any(name.lower() == NOTHING[0] for name, _ in headers) else [*headers, NOTHING]


def takes_gzip(header: str) -> bool:
    """Whether `Accept-Encoding` has gzip, and not with a weight of nothing."""
    for one in header.lower().split(","):
        name, _, weight = one.partition(";")
        if name.strip() == "gzip":
            return re.fullmatch(r"\s*q=0(\.0*)?\s*", weight) is None
    return False
