"""To whom a token may be shown: to the addresses that a program was given, and to nodes of the same installation.

A node tells a client where other nodes are. Such an address may have come to belong to somebody else. So before a token
goes there, it is asked for its installation, once, and must be of the one that the first node named.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from urllib.parse import urlsplit, urlunsplit

from headgate.client.errors import Lost

PATH = "/api/installation"
MOST_BYTES = 4096  # Of an answer that has a hundred.
ASK_S = 5.0  # Of an address that we were given: without its answer there is nowhere else to go, and that is all.


class Installation:
    """The installation that the token is of, and which addresses have said that they are of it."""

    def __init__(self, door: str, tls: ssl.SSLContext | None) -> None:
        self._door = door
        self._tls = tls
        self._id: str | None = None
        self._known: set[str] = set()

    async def check(self, address: str, *, is_given: bool, within_s: float) -> None:
        """Raises Lost if the token must not go there."""
        if is_given:
            if self._id is None:
                self._id = await self._ask(address, min(within_s, ASK_S))
        elif address not in self._known:
            if self._id is None or await self._ask(address, within_s) != self._id:
                raise Lost("it did not show that it is of the same installation, and was sent no token")
            self._known.add(address)

    async def _ask(self, address: str, within_s: float) -> str | None:
        """What it says, if it says anything."""
        import httpx  # Loading it takes longer than asking, and not every program has the time at its start.

        parts = urlsplit(address)
        scheme = "https" if parts.scheme == "wss" else "http"
        url = urlunsplit((scheme, parts.netloc, parts.path.removesuffix(self._door) + PATH, "", ""))
        verify: ssl.SSLContext | bool = (self._tls or True) if scheme == "https" else False
        is_local = parts.hostname in ("127.0.0.1", "::1", "localhost")  # No proxy sees this machine's loopback.
        answer = b""
        try:
            async with (
                asyncio.timeout(within_s),
                httpx.AsyncClient(verify=verify, timeout=None, trust_env=not is_local) as http,
                http.stream("GET", url, headers={"Accept-Encoding": "identity"}) as response,
            ):
                if response.status_code != 200:
                    return None
                async for some in response.aiter_raw(MOST_BYTES):
                    answer += some
                    if len(answer) > MOST_BYTES:
                        return None
            found = json.loads(answer)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, RecursionError):  # TimeoutError is an OSError.
            return None
        match found:
            case {"installation": str(id)}:
                return id
        return None
