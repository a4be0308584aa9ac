"""Who asks: what an `auth` adds to a request, and tokens of OAuth2.

A token is fetched when it is first needed, used until shortly before it expires, and shared by all requests of one
source or sink. A request that is answered 401 with a kept token is asked once more with a new one: servers forget
tokens before their time. What the token's server is sent goes to that server alone, and no redirect is followed there.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated
from urllib.parse import quote, urlencode

import msgspec

from headgate.connectors.api import Context
from headgate.connectors.guard import Guard
from headgate.connectors.http.client import Client, Limits, Request
from headgate.connectors.http.options import (
    Auth,
    BasicAuth,
    BearerAuth,
    HeaderAuth,
    HttpOptions,
    OAuth2Auth,
    QueryAuth,
)
from headgate.connectors.http.statuses import named, raise_if_not_now
from headgate.connectors.http.targets import Target, target_of
from headgate.connectors.http.wire import Answer
from headgate.errors import Cause, ConnectorError, NotConnected
from headgate.hidden import remember

TOKEN_BYTES = 64 * 1024  # The most that an answer with a token may have.
MARGIN_S = 30.0  # A token that expires sooner is not used any more; of a short one, a tenth of its time.
USUAL_S = 3600.0  # How long a token is kept whose server does not say.


class _Token(msgspec.Struct):
    """What a token's server answers."""

    access_token: Annotated[str, msgspec.Meta(min_length=1)]
    expires_in: float | str | None = None


class Session:
    """A client, and who it is to the server."""

    def __init__(self, client: Client, auth: Auth | None, tokens: Tokens | None) -> None:
        self._client = client
        self._auth = auth
        self._tokens = tokens

    async def send(self, request: Request) -> Answer:
        """The answer; after a 401 with a token that was kept, to the same request with a new one."""
        if self._tokens is None:
            return await self._client.send(_with(self._auth, request))
        token, is_kept = await self._tokens.get()
        answer = await self._client.send(_bearing(token, request))
        if answer.status == 401 and is_kept:
            answer = await self._client.send(_bearing(await self._tokens.renew(token), request))
        return answer

    async def check(self) -> None:
        """Raise if the server is away, or if there is no token to be had. Nothing is asked of the server."""
        if self._tokens is not None:
            await self._tokens.get()
        await self._client.connect()

    def shown(self, target: Target) -> Target:
        """A URL without the key that stands in its query."""
        return target.without_params(self._auth.name) if isinstance(self._auth, QueryAuth) else target

    async def rest(self) -> None:
        """Hold no connection for a while."""
        await self._client.close()

    async def close(self) -> None:
        """End all connections, and forget the token."""
        await self._client.close()
        if self._tokens is not None:
            await self._tokens.close()


def session_of(options: HttpOptions, home: Target, context: Context, body_bytes: int, kept: int = 1) -> Session:
    """For the origin of this URL. It connects to nothing yet."""
    client = Client(home, context.guard, Limits(options.timeout_s, body_bytes), options.ca_file, kept)
    tokens = None
    if isinstance(options.auth, OAuth2Auth):
        tokens = Tokens(options.auth, context.guard, options.timeout_s, context.now_s)
    return Session(client, options.auth, tokens)


def _with(auth: Auth | None, request: Request) -> Request:
    match auth:
        case HeaderAuth():
            return _headed(request, auth.name, auth.value.get_secret_value())
        case BearerAuth():
            return _bearing(auth.token.get_secret_value(), request)
        case BasicAuth():
            return _headed(request, "Authorization", _basic(auth.user, auth.password.get_secret_value()))
        case QueryAuth():
            return replace(request, secret_params=((auth.name, auth.value.get_secret_value()),))
        case _:
            return request


def _bearing(token: str, request: Request) -> Request:
    return _headed(request, "Authorization", f"Bearer {token}")


def _headed(request: Request, name: str, value: str) -> Request:
    return replace(request, headers=((name, value), *request.headers))


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Tokens:
    """Fetches tokens by client credentials."""

    def __init__(self, auth: OAuth2Auth, guard: Guard, timeout_s: float, now_s: Callable[[], float]) -> None:
        self._auth = auth
        self._target = target_of(auth.token_url)
        self._client = Client(self._target, guard, Limits(timeout_s, TOKEN_BYTES), kept=0)
        self._now_s = now_s
        self._token: str | None = None
        self._until_s = 0.0  # On the loop's clock.
        self._lock = asyncio.Lock()  # One request for all that wait for a token.

    async def get(self) -> tuple[str, bool]:
        """A token, and whether it was kept."""
        async with self._lock:
            if self._token is not None and asyncio.get_running_loop().time() < self._until_s:
                return self._token, True
            return await self._fetch(), False

    async def renew(self, refused: str) -> str:
        """A token in place of one that the server has refused."""
        async with self._lock:
            return self._token if self._token not in (None, refused) else await self._fetch()

    async def close(self) -> None:
        """Forget the token."""
        self._token = None
        await self._client.close()

    async def _fetch(self) -> str:
        auth, secret = self._auth, self._auth.client_secret.get_secret_value()
        fields = {"grant_type": "client_credentials", **auth.params, **({"scope": auth.scope} if auth.scope else {})}
        headers = [("Accept", "application/json"), ("Content-Type", "application/x-www-form-urlencoded")]
        if auth.send == "body":
            fields |= {"client_id": auth.client_id, "client_secret": secret}
        else:
            headers.append(("Authorization", _basic(quote(auth.client_id, safe=""), quote(secret, safe=""))))
        request = Request(self._target, "POST", tuple(headers), urlencode(fields).encode(), follows=False)
        began_s = asyncio.get_running_loop().time()
        answer = await self._client.send(request)
        raise_if_not_now(answer, self._target.origin, self._now_s())
        if answer.status != 200:
            said = f"{self._target.origin} answered {named(answer.status)} and gave no token"
            raise ConnectorError(said, cause=Cause.AUTH, hint="correct `auth`")
        return self._taken(answer, began_s)

    def _taken(self, answer: Answer, began_s: float) -> str:
        try:
            found = msgspec.json.decode(answer.body, type=_Token)
            lasts_s = USUAL_S if found.expires_in is None else float(found.expires_in)
        except (msgspec.MsgspecError, UnicodeError, ValueError, RecursionError):
            raise NotConnected(f"{self._target.origin} answered with something that is no token") from None
        if not found.access_token.isascii() or not found.access_token.isprintable():
            raise ConnectorError(f"{self._target.origin} gave a token that no header may have", cause=Cause.AUTH)
        remember(found.access_token)
        self._token = found.access_token
        self._until_s = began_s + lasts_s - min(MARGIN_S, lasts_s / 10)
        return self._token
