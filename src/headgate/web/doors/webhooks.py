"""The webhook door: answers 202 when a payload is durable in the inbox, and not before.

Plain ASGI, because this is the hottest path of a node. Payloads that arrive while a commit is under way go into the
next one together, so the number of commits does not grow with the number of calls.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import msgspec
import structlog

from headgate.clock import unix_s
from headgate.connectors.webhook import WebhookOptions, verify
from headgate.core.access import OfDatasource
from headgate.core.reconcile import Entry
from headgate.datasources.registry import Registry
from headgate.errors import Forbidden, HeadgateError, StoreError
from headgate.ids import is_name
from headgate.runtime.inbox import InboxHub
from headgate.store.inbox import InboxTable, Limit, Payload
from headgate.store.wake import Waker
from headgate.web.auth import Gate, address_of
from headgate.web.doors.asgi import Receive, Scope, Send
from headgate.web.problems import encode, problem

MOST_IN_A_COMMIT = 2000
MOST_BYTES_IN_A_COMMIT = 16 * 1024 * 1024
MOST_HEADER_BYTES = 8192
GATHER_S = 0.001  # A commit waits this long for company: fewer commits leave more of the machine for calls.
WAKE_S = 0.1  # How long calls are gathered before other nodes are woken.
ACCEPTED = b'{"status":"accepted"}'

# What must not be stored: credentials, and what only concerns this connection.
_DROPPED = frozenset({"authorization", "cookie", "proxy-authorization", "connection", "host", "content-length"})

log = structlog.get_logger()


class _Answer(Exception):
    def __init__(self, status: int, detail: str = "", hint: str = "") -> None:
        self.status = status
        self.detail = detail
        self.hint = hint


@dataclass(frozen=True, slots=True)
class _Route:
    """What the door knows of one webhook."""

    datasource: UUID
    revision: int
    options: WebhookOptions


class WebhookDoor:
    """Everything below /hooks/."""

    def __init__(
        self,
        registry: Registry,
        table: InboxTable,
        hub: InboxHub,
        waker: Waker,
        gate: Gate,
        trust_left_s: Callable[[], float],
        lists: Callable[[str], bool],
    ) -> None:
        self._registry = registry
        self._table = table
        self._hub = hub
        self._waker = waker
        self._gate = gate
        self._trust_left_s = trust_left_s
        self._lists = lists  # Whether the registry in use names this datasource.
        self._routes: dict[str, _Route] = {}
        self._limits: dict[UUID, Limit] = {}
        self._pending: list[tuple[Payload, asyncio.Future[bool]]] = []
        self._flushing: asyncio.Task[None] | None = None
        self._waking: asyncio.TimerHandle | None = None
        self._decode = msgspec.json.Decoder().decode  # As the source decodes: what passes here can be read there.
        self.answers: Counter[tuple[str, int]] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call."""
        name = scope["path"].removeprefix("/hooks/")
        try:
            await self._accept(name, scope, receive)
            status, body, retry = 202, ACCEPTED, False
        except _Answer as answer:
            status, retry = answer.status, answer.status == 503
            body = encode(problem(status) if status == 401 else problem(status, answer.detail, hint=answer.hint))
        self.answers[name if status not in (404, 405) else "", status] += 1  # Only names that exist are kept.
        headers = [
            (b"content-type", b"application/json" if status == 202 else b"application/problem+json"),
            (b"content-length", str(len(body)).encode()),
        ]
        if retry:
            headers.append((b"retry-after", b"2"))
        if status == 405:
            headers.append((b"allow", b"POST"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _accept(self, name: str, scope: Scope, receive: Receive) -> None:
        if scope["method"] != "POST":
            raise _Answer(405, "a webhook is a POST")
        route = await self._route(name)
        if self._trust_left_s() <= 0.0:
            raise _Answer(503, "this node may not act now")
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        body = await _body(headers, receive, route.options.max_body_bytes)
        replay_key = await self._authenticate(name, route.options, headers, body, address_of(scope))
        if route.options.format == "json":
            self._check_json(body)
        signed = route.options.signature.header.lower() if route.options.signature else ""
        kept = {k: v for k, v in headers.items() if k not in _DROPPED and k != signed and "signature" not in k}
        text = msgspec.json.encode(kept)
        if len(text) > MOST_HEADER_BYTES:
            raise _Answer(431, "the headers are too large")
        await self._make_durable(Payload(route.datasource, text.decode(), body, replay_key))

    async def _route(self, name: str) -> _Route:
        entry = await self._entry(name)
        if entry is None or entry.wanted is None or entry.wanted.target is None:
            raise _Answer(404, f"webhook {name!r} does not exist")
        if not entry.enabled or not self._lists(name):
            raise _Answer(503, f"the webhook {name!r} is stopped")
        route = self._routes.get(name)
        if route is None or route.revision != entry.revision:
            route = await self._load(entry, entry.wanted.target)
            self._routes[name] = route
            self._limits[entry.datasource] = Limit(route.options.inbox_limit_rows, route.options.inbox_limit_bytes)
        return route

    async def _entry(self, name: str) -> Entry | None:
        entry = self._registry.entry(name)
        if (entry is not None and entry.wanted is not None) or not is_name(name):
            return entry
        # Perhaps it was published after our last look. Unknown names are few, and looking costs one indexed query.
        try:
            found = await self._registry.datasources.find(name)
            entries = await self._registry.datasources.entries_since(found.revision - 1) if found else []
        except StoreError:
            raise _Answer(503, "the database is away") from None
        return next((e for e in entries if e.name == name and not e.deleted), None)

    async def _load(self, entry: Entry, version: int) -> _Route:
        try:
            config = await self._registry.get_datasource_config(entry.datasource, version)
        except HeadgateError:
            raise _Answer(503, f"the webhook {entry.name!r} is not ready") from None
        options = config.prepared.source_options
        if not isinstance(options, WebhookOptions):
            raise _Answer(404, f"{entry.name!r} is not a webhook")
        return _Route(entry.datasource, entry.revision, options)

    async def _authenticate(
        self, name: str, options: WebhookOptions, headers: dict[str, str], body: bytes, address: str
    ) -> str | None:
        """The replay key of a genuine call. Without a signature, a token that may send is needed."""
        if options.signature is not None:
            replay_key = verify(options.signature, headers, body, unix_s())
            if replay_key is False:
                raise _Answer(401)
            return replay_key or None
        try:
            caller = await self._gate.identify(headers, address, cookie_allowed=False)
        except StoreError:
            raise _Answer(503, "the database is away") from None
        if caller is None:
            raise _Answer(401)
        try:
            self._gate.check(caller, "send", OfDatasource(name), address)
        except Forbidden as error:
            raise _Answer(403, error.message) from None
        return None

    def _check_json(self, body: bytes) -> None:
        """Refused here it can be corrected by its sender; later it could not."""
        try:
            self._decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _Answer(400, f"the body is not JSON: {error}", hint="or set format: text") from None

    async def _make_durable(self, payload: Payload) -> None:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._pending.append((payload, future))
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush(), name="inbox")
        if not await future:
            raise _Answer(503, "the inbox is full", hint="its sink is away, or slower than its callers")

    async def _flush(self) -> None:
        while self._pending:
            await asyncio.sleep(GATHER_S)
            batch = self._take()
            try:
                full = await self._table.append([payload for payload, _ in batch], self._limits)
            except Exception as error:  # Whatever it is, nobody may wait for an answer that never comes.
                if not isinstance(error, StoreError):
                    log.exception("payloads could not be made durable", count=len(batch))
                for _, future in batch:
                    if not future.done():
                        future.set_exception(_Answer(503, "the database is away"))
                continue
            for payload, future in batch:
                if not future.done():
                    future.set_result(payload.datasource not in full)
            for datasource in {payload.datasource for payload, _ in batch}:
                self._hub.arrived(datasource)
            self._wake_others()

    def _take(self) -> list[tuple[Payload, asyncio.Future[bool]]]:
        """What goes into the next commit: not too many, and not too much."""
        number = size = 0
        for payload, _ in self._pending[:MOST_IN_A_COMMIT]:
            size += len(payload.body)
            if number and size > MOST_BYTES_IN_A_COMMIT:
                break
            number += 1
        batch, self._pending = self._pending[:number], self._pending[number:]
        return batch

    def _wake_others(self) -> None:
        """Wake the sources on other nodes, a few times a second; the one on this node knows already."""
        if self._waking is None:
            self._waking = asyncio.get_running_loop().call_later(WAKE_S, self._wake)

    def _wake(self) -> None:
        self._waking = None
        self._waker.wake("inbox")


async def _body(headers: dict[str, str], receive: Receive, limit: int) -> bytes:
    """The whole body, unless it is too large."""
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length) > limit:
        raise _Answer(413, f"the body is larger than {limit} bytes")
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Answer(400, "the body ended early")
        body += message.get("body", b"")
        if len(body) > limit:
            raise _Answer(413, f"the body is larger than {limit} bytes")
        if not message.get("more_body"):
            return bytes(body)
