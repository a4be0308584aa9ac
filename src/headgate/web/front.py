"""The front: what a node answers while it waits for its database, and after that its application.

A node listens before it is connected, so that those who ask are told what is going on, instead of waiting with it: the
process lives (`/healthz`), it is not ready (`/readyz`), and everything else has to be asked again later. Nobody's token
can be looked up meanwhile. Only the token that this home keeps is known: who has it may read the node's log, too, and
is told what the node waits for.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from headgate.core.access import ANYONE, Caller
from headgate.hidden import hide
from headgate.web.app import App
from headgate.web.auth import without_token
from headgate.web.bodies import access
from headgate.web.doors.asgi import Receive, Scope, Send, impatient
from headgate.web.doors.turns import Turns
from headgate.web.doors.wire import SocketProtocol
from headgate.web.headers import Guarded
from headgate.web.http.answers import PROBLEM, Answer
from headgate.web.http.requests import Head, Piece
from headgate.web.problems import encode, problem

JSON = b"application/json"
AGAIN = (b"retry-after", b"2")
STARTING = "the node is starting"
WAITING = "the node waits for its database"


class _Caller(Protocol):
    """The connection of a webhook's call."""

    def answer(self, answer: Answer) -> None:
        """The answer, whole."""


class Unready:
    """A call of a webhook that comes too early."""

    may_be_refused = True

    def __init__(self, caller: _Caller) -> None:
        self._caller: _Caller | None = caller

    def begin(self) -> None:
        """Say so."""
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.answer(_not_now())

    def take(self, piece: Piece) -> None:
        """Nothing of a body is wanted."""

    def lost(self) -> None:
        """Nobody waits for the answer."""
        self._caller = None

    def shut_down(self) -> None:
        """It has been answered."""

    def pause_writing(self) -> None:
        """The answer is small."""

    def resume_writing(self) -> None:
        """The answer is small."""


class Front:
    """What connections and uvicorn call."""

    def __init__(self, *, auth: bool, token: Callable[[], str | None]) -> None:
        self._auth = auth
        self._token = token  # Of this home.
        self._reason = STARTING
        self._app: App | None = None
        self._turns = Turns()

    def waits(self, reason: str) -> None:
        """The node waits for its database, because of this."""
        self._reason = f"{WAITING}: {reason}"

    def ready(self, app: App) -> None:
        """From now on this application answers."""
        self._app = app

    # Webhooks.

    def open(self, caller: Any, head: Head) -> Any:
        """A call whose head has come."""
        return Unready(caller) if self._app is None else self._app.door.open(caller, head)

    def begin(self, call: Any) -> None:
        """Answer it, or have it take its body. It goes to the door that has opened it."""
        if isinstance(call, Unready):
            call.begin()
        elif self._app is not None:
            self._app.door.begin(call)

    # WebSockets.

    @property
    def doors(self) -> Mapping[str, Callable[[SocketProtocol], Awaitable[None]]] | None:
        """By path. None: not yet."""
        return None if self._app is None else self._app.doors

    @property
    def turns(self) -> Turns:
        """Of WebSockets."""
        return self._turns if self._app is None else self._app.turns

    # Everything else.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if self._app is not None:
            await self._app(scope, receive, send)
            return
        said = self._said(scope)
        answer = Guarded(scope["path"], impatient(send))
        headers = [(b"content-type", said.type), (b"content-length", b"%d" % len(said.body)), *said.headers]
        await answer({"type": "http.response.start", "status": said.status, "headers": headers})
        await answer({"type": "http.response.body", "body": said.body})

    def _said(self, scope: Scope) -> Answer:
        is_reading = scope["method"] in ("GET", "HEAD")
        if is_reading and scope["path"] == "/healthz":
            return Answer(200, msgspec.json.encode(access.Alive(status="ok")), JSON)
        if is_reading and scope["path"] == "/readyz":
            degraded = None if self._caller(scope) is None else [hide(self._reason)]
            body = msgspec.json.encode(access.Ready(status="unavailable", degraded=degraded))
            return Answer(503, body, JSON, (AGAIN,))
        return _not_now()

    def _caller(self, scope: Scope) -> Caller | None:
        """Who asks, as far as that can be told without a database."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if not self._auth:
            return without_token(headers)
        scheme, _, text = headers.get("authorization", "").partition(" ")
        kept = self._token()
        is_known = scheme.lower() == "bearer" and kept is not None
        return ANYONE if is_known and hmac.compare_digest(text.strip().encode(), str(kept).encode()) else None


def _not_now() -> Answer:
    """Callers need to know no more than that it is not now."""
    return Answer(503, encode(problem(503, WAITING, code="store_unavailable")), PROBLEM, (AGAIN,))
