"""Who asks, and whether that is allowed. Tokens come in the Authorization header; a browser that has signed in keeps
a session in a cookie, which serves for reading, and for what a script of our own pages sends (`origin.is_act`). What a
role may do stands in `headgate.core.access`, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from litestar.connection import ASGIConnection, Request
from litestar.datastructures import State
from litestar.handlers import BaseRouteHandler

from headgate.core import access
from headgate.core.access import ANYONE, Action, Caller, Subject
from headgate.errors import Forbidden, Refused, Unauthorized
from headgate.runtime.access import Access
from headgate.store.tokens import CODE, SESSION, TOKEN
from headgate.web.cookies import Cookies
from headgate.web.origin import is_act

Req: TypeAlias = Request[Caller, None, State]
"""A request that a guard has let in: `user` is who asks."""

Connection: TypeAlias = ASGIConnection[Any, Caller, None, State]

Finder: TypeAlias = Callable[[Connection], Awaitable[Subject | None]]
"""Finds what a request is about."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_LOCAL = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?")


class Gate:
    """Finds out who asks, and refuses what is not allowed."""

    def __init__(self, access: Access, cookies: Cookies, *, auth: bool) -> None:
        self._access = access
        self._auth = auth
        self.cookies = cookies

    async def identify(self, headers: Mapping[str, str], address: str, *, cookie_allowed: bool) -> Caller | None:
        """Whose request this is. Header names are in lower case."""
        if not self._auth:
            return without_token(headers)
        scheme, _, text = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return await self._find(text.strip(), address)
        return await self.reader(headers, address) if cookie_allowed else None

    async def reader(self, headers: Mapping[str, str], address: str) -> Caller | None:
        """Whose session a browser has. One that is over is no failure: browsers keep its cookie."""
        text = self.cookies.read(headers)
        found = await self._access.find(text) if text.startswith(SESSION) else None
        if found is None or found.has_ended:
            return None
        self._access.used(found.caller, address)
        return found.caller

    async def signer(self, text: str, headers: Mapping[str, str], address: str) -> Caller | None:
        """Who signs in with this: a token, or the code of a link."""
        if not self._auth:
            return await self.identify(headers, address, cookie_allowed=False)
        return await self._find(text, address, CODE if text.startswith(CODE) else TOKEN)

    async def identify_text(self, text: str, headers: Mapping[str, str], address: str) -> Caller | None:
        """The same for a token that does not come in a header."""
        if not self._auth:
            return await self.identify(headers, address, cookie_allowed=False)
        return await self._find(text, address)

    def check(self, caller: Caller, action: Action, subject: Subject | None, address: str) -> None:
        """Refuse what this caller may not do."""
        if (refusal := access.refusal(caller, action, subject)) is not None:
            self._access.failed("forbidden", address)
            raise Forbidden(refusal)

    def hold(self, caller: Caller, end: Callable[[], None]) -> AbstractContextManager[None]:
        """For a connection that stays open: call `end` when the caller's token ends before the block does."""
        return self._access.hold(caller, end)

    def drop(self, text: str) -> None:
        """A session has ended."""
        self._access.drop(text)

    def forget(self) -> None:
        """A token was made or revoked."""
        self._access.forget()

    async def _find(self, text: str, address: str, kind: str = TOKEN) -> Caller | None:
        if not text:
            return None
        found = await self._access.find(text) if text.startswith(kind) else None
        if found is None or found.has_ended:
            self._access.failed("unknown" if found is None else "ended", address)
            return None
        self._access.used(found.caller, address)
        return found.caller


def without_token(headers: Mapping[str, str]) -> Caller | None:
    """Whose request this is on a node that asks for no token: anyone's on this machine."""
    return ANYONE if _is_local(headers.get("host", "")) and not _is_from_elsewhere(headers) else None


def _is_local(host: str) -> bool:
    """Without tokens, a page from elsewhere that resolves to us must not get in."""
    return _LOCAL.fullmatch(host) is not None


def _is_from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Without tokens, a page of another site that is open in somebody's browser must not get in either, be it served
    from another port of this machine."""
    origin = headers.get("origin", "")
    if origin and origin.partition("://")[2] != headers.get("host", ""):
        return True
    return headers.get("sec-fetch-site", "same-origin") in ("cross-site", "same-site")


def address_of(scope: Mapping[str, Any]) -> str:
    """Where a request comes from. Behind a proxy, that is the proxy."""
    client = scope.get("client")
    return str(client[0]) if client else ""


class Needs:
    """A guard: who asks must be allowed this action, on what `find` finds."""

    def __init__(self, action: Action, find: Finder | None = None) -> None:
        self.action = action
        self._find = find

    async def __call__(self, connection: Connection, handler: BaseRouteHandler) -> None:
        """Let the request in, or raise."""
        gate: Gate = connection.app.state.gate
        reading = connection.scope["method"] in ("GET", "HEAD")  # type: ignore[typeddict-item]
        address = address_of(connection.scope)
        is_trusted = reading or is_act(connection.headers)
        caller = await gate.identify(connection.headers, address, cookie_allowed=is_trusted)
        if caller is None:
            raise Unauthorized("the token is missing or not valid")
        await self.check(connection, caller)
        connection.scope["user"] = caller

    async def check(self, connection: Connection, caller: Caller) -> None:
        """Refuse what this caller may not do. What a path is about is looked up only for those to whom it matters."""
        gate, subject = connection.app.state.gate, None
        if caller.bounds is not None and self._find is not None and caller.role in access.RULES[self.action].roles:
            subject = await self._find(connection)
        gate.check(caller, self.action, subject, address_of(connection.scope))


def check_no_auth(host: str) -> None:
    """`--no-auth` is for loopback only."""
    if host not in LOOPBACK:
        raise Refused(f"--no-auth is refused on {host}", hint="only on 127.0.0.1, or bring tokens")
