"""Who may do what. Tokens come in the Authorization header; a browser may keep one in a cookie, for reading only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, TypeAlias

from litestar.connection import ASGIConnection, Request
from litestar.datastructures import State
from litestar.handlers import BaseRouteHandler

from headgate.clock import boot_s
from headgate.errors import Forbidden, Refused, Unauthorized
from headgate.store.tokens import ROLES, Token, Tokens, hash_of

COOKIE = "headgate_token"
KNOWN_S = 2.0  # A revoked token works no longer than this.
MOST_KNOWN = 10_000
Req: TypeAlias = Request[Token, None, State]
"""A request that a guard has let in: `user` is its token."""

Connection: TypeAlias = ASGIConnection[Any, Token, None, State]

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

ANYONE = Token(id=None, name="anyone", role="admin")  # type: ignore[arg-type]  # With --no-auth, on loopback.


class Gate:
    """Finds the token behind a request."""

    def __init__(self, tokens: Tokens, *, auth: bool) -> None:
        self._tokens = tokens
        self._auth = auth
        self._known: dict[bytes, tuple[float, Token | None]] = {}  # By hash: anyone may send any text of any length.

    async def identify(self, headers: Mapping[str, str], *, cookie_allowed: bool) -> Token | None:
        """Whose request this is. Header names are in lower case."""
        if not self._auth:
            return ANYONE if _is_local(headers.get("host", "")) and not _is_from_elsewhere(headers) else None
        scheme, _, text = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" and cookie_allowed:
            text = _cookie(headers.get("cookie", ""))
        elif scheme.lower() != "bearer":
            return None
        return await self._find(text.strip()) if text else None

    async def identify_text(self, text: str, headers: Mapping[str, str]) -> Token | None:
        """The same for a token that does not come in a header."""
        if not self._auth:
            return await self.identify(headers, cookie_allowed=False)
        return await self._find(text) if text else None

    def forget(self) -> None:
        """A token was revoked."""
        self._known.clear()

    async def _find(self, text: str) -> Token | None:
        key = hash_of(text)
        known = self._known.get(key)
        if known is not None and known[0] > boot_s():
            return known[1]
        token = await self._tokens.find(text)
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[key] = (boot_s() + KNOWN_S, token)
        return token


def _is_local(host: str) -> bool:
    """Without tokens, a page from elsewhere that resolves to us must not get in."""
    name = host.rpartition(":")[0] if host.count(":") == 1 or "]" in host else host
    return name.strip("[]") in LOOPBACK


def _is_from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Without tokens, a page of another site that is open in somebody's browser must not get in either."""
    origin = headers.get("origin", "")
    if origin and not _is_local(origin.partition("://")[2]):
        return True
    return headers.get("sec-fetch-site", "same-origin") in ("cross-site", "same-site")


def _cookie(header: str) -> str:
    try:
        morsel = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


def needs(role: str) -> Callable[[Connection, BaseRouteHandler], Awaitable[None]]:
    """A guard: the request must carry a token of this role or a higher one."""

    async def guard(connection: Connection, handler: BaseRouteHandler) -> None:
        gate: Gate = connection.app.state.gate
        reading = connection.scope["method"] in ("GET", "HEAD")  # type: ignore[typeddict-item]
        token = await gate.identify(connection.headers, cookie_allowed=reading)
        if token is None:
            raise Unauthorized("the token is missing or not valid")
        if ROLES.index(token.role) < ROLES.index(role):
            raise Forbidden(f"the token {token.name!r} has the role {token.role}; this needs {role}")
        connection.scope["user"] = token

    return guard


def check_no_auth(host: str) -> None:
    """`--no-auth` is for loopback only."""
    if host not in LOOPBACK:
        raise Refused(f"--no-auth is refused on {host}", hint="only on 127.0.0.1, or bring tokens")
