"""The webhook door: answers 202 when a payload is durable in the inbox, and not before.

The hottest path of a node, so a call that is signed and whose webhook is known waits for nothing but its body and the
commit. A body is taken only after the caller's token was found; one whose signature covers it is hashed as it comes,
so that even a large one is checked in small goes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog

from headgate.clock import unix_s
from headgate.connectors.webhook import Check
from headgate.core.access import OfDatasource
from headgate.core.payloads import is_costly
from headgate.errors import Forbidden, NotFound, Refused, StoreError
from headgate.ids import is_name
from headgate.store.inbox import Payload
from headgate.web.auth import Gate
from headgate.web.doors.commits import Commits, Pending
from headgate.web.doors.hooks import Hook, Hooks
from headgate.web.http.answers import Answer
from headgate.web.http.requests import Head, Piece
from headgate.web.origin import HEADER, is_act
from headgate.web.problems import encode, problem

MOST_HEADER_BYTES = 8192
MOST_HALF_BYTES = 256 * 1024 * 1024  # Of bodies that have not come to their end, of all callers together.
JUDGED_BYTES = 1024 * 1024  # Of a body whose cost is counted at once.
FEW_ANSWERS = 1000  # Counters that are kept without asking whether their webhooks still exist.
ACCEPTED = Answer(202, b'{"status":"accepted"}', b"application/json")

# What must not be stored: credentials, and what only concerns this connection.
_DROPPED = frozenset({"authorization", "cookie", "proxy-authorization", "connection", "host", "content-length", HEADER})

_decode = msgspec.json.Decoder().decode  # As the source decodes: what passes here can be read there.

log = structlog.get_logger()


class Caller(Protocol):
    """The connection of a call."""

    address: str

    def want_body(self) -> None:
        """Take the body now."""

    def answer(self, answer: Answer) -> None:
        """The answer, whole."""


class _Refused(Exception):
    def __init__(self, status: int, detail: str = "", hint: str = "") -> None:
        self.status = status
        self.detail = detail
        self.hint = hint


class Call:
    """One call."""

    __slots__ = ("_caller", "_check", "_door", "_parts", "_size", "address", "head", "headers", "hook", "name", "task")

    may_be_refused = True  # An answer is sent as a whole.

    def __init__(self, door: WebhookDoor, caller: Caller, head: Head) -> None:
        self._door = door
        self._caller: Caller | None = caller
        self._parts: list[bytes] = []
        self._size = 0
        self._check: Check | None = None
        self.address = caller.address
        self.head = head
        self.name = head.path.removeprefix("/hooks/")
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        self.hook: Hook | None = None
        self.task: asyncio.Task[None] | None = None

    def admit(self, hook: Hook) -> None:
        """The caller may send its body."""
        limit = hook.options.max_body_bytes
        if self.head.length > limit:
            raise _Refused(413, f"the body is larger than {limit} bytes")
        self.hook = hook
        if hook.verifier is not None:
            self._check = hook.verifier.begin(self.headers, unix_s())
            if self._check is None:
                raise _Refused(401)
        if self.head.length and self._caller is not None:
            self._caller.want_body()
        elif self._caller is not None:
            self._finish()

    def take(self, piece: Piece) -> None:
        """Some of the body."""
        assert self.hook is not None
        if piece.data:
            self._size += len(piece.data)
            limit = self.hook.options.max_body_bytes
            if self._size > limit:
                self.refuse(_Refused(413, f"the body is larger than {limit} bytes"))
                return
            self._parts.append(piece.data)
            if self._check is not None:
                self._check.update(piece.data)
        if piece.is_last:
            self._finish()
        else:
            self._door.halves.add(self, len(piece.data))

    def lost(self) -> None:
        """Nobody waits for the answer. What is on its way into the inbox stays there."""
        self._caller = None
        self._parts = []
        self._door.halves.drop(self)
        if self.task is not None:
            self.task.cancel()

    def shut_down(self) -> None:
        """The node stops; the call is answered."""

    def pause_writing(self) -> None:
        """Answers are small."""

    def resume_writing(self) -> None:
        """Answers are small."""

    def refuse(self, refused: _Refused) -> None:
        """Say why not."""
        status = refused.status
        found = problem(status) if status == 401 else problem(status, refused.detail, hint=refused.hint)
        headers = {503: [(b"retry-after", b"2")], 405: [(b"allow", b"POST")]}.get(status, [])
        self._answer(Answer(status, encode(found), headers=tuple(headers)))

    def _finish(self) -> None:
        """All of it has come."""
        assert self.hook is not None
        self._door.halves.drop(self)
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        try:
            self._door.take(self, self.hook, body, self._replay_key())
        except _Refused as refused:
            self.refuse(refused)

    def _replay_key(self) -> str | None:
        if self._check is None:
            return None
        replay_key = self._check.end()
        if replay_key is False:
            raise _Refused(401)
        return replay_key

    def done(self, failure: str) -> None:
        """It is durable, or cannot be."""
        if not failure:
            self._answer(ACCEPTED)
        else:
            hint = "its sink is away, or slower than its callers" if "full" in failure else ""
            self.refuse(_Refused(503, failure, hint))

    def _answer(self, answer: Answer) -> None:
        caller, self._caller = self._caller, None
        self._parts = []
        self._door.halves.drop(self)
        self._door.count(self.name, answer.status)
        if caller is not None:
            caller.answer(answer)


class _Halves:
    """Bodies that have not come to their end. When they are too large together, the oldest goes: it is the slowest."""

    def __init__(self) -> None:
        self._sizes: dict[Call, int] = {}
        self._bytes = 0

    def add(self, call: Call, size: int) -> None:
        """This much more has come."""
        self._sizes[call] = self._sizes.get(call, 0) + size
        self._bytes += size
        while self._bytes > MOST_HALF_BYTES:
            oldest = next(iter(self._sizes))
            oldest.refuse(_Refused(503, "too many bodies are on their way"))

    def drop(self, call: Call) -> None:
        """It has come to its end, or will not."""
        self._bytes -= self._sizes.pop(call, 0)


class WebhookDoor:
    """Everything below /hooks/."""

    def __init__(self, hooks: Hooks, commits: Commits, gate: Gate, trust_left_s: Callable[[], float]) -> None:
        self._hooks = hooks
        self._commits = commits
        self._gate = gate
        self._trust_left_s = trust_left_s
        self._answers: Counter[tuple[str, int]] = Counter()
        self._most_answers = FEW_ANSWERS
        self.halves = _Halves()

    def open(self, caller: Caller, head: Head) -> Call:
        """A call whose head has come."""
        return Call(self, caller, head)

    def begin(self, call: Call) -> None:
        """Answer it, or have it take its body, now or as soon as it is known who calls."""
        if call.head.method != "POST":
            call.refuse(_Refused(405, "a webhook is a POST"))
            return
        hook = self._hooks.known(call.name)
        if hook is None and not is_name(call.name):
            call.refuse(_Refused(404, f"webhook {call.name[:100]!r} does not exist"))
        elif hook is None or hook.verifier is None:
            call.task = asyncio.create_task(self._admit_later(call, hook), name="a webhook's caller")
        else:
            self._admit(call, hook)

    def take(self, call: Call, hook: Hook, body: bytes, replay_key: str | None) -> None:
        """A call that is genuine: make it durable."""
        if hook.options.format != "json":
            self._keep(call, hook, body, replay_key)
        elif len(body) > JUDGED_BYTES:
            call.task = asyncio.create_task(self._take_large(call, hook, body, replay_key), name="a large webhook")
        else:
            _check_json(body, is_costly(body))
            self._keep(call, hook, body, replay_key)

    async def _take_large(self, call: Call, hook: Hook, body: bytes, replay_key: str | None) -> None:
        """To judge what it costs takes a while."""
        try:
            costs_much = await asyncio.to_thread(is_costly, body)
            call.task = None
            _check_json(body, costs_much)
            self._keep(call, hook, body, replay_key)
        except _Refused as refused:
            call.refuse(refused)

    def _keep(self, call: Call, hook: Hook, body: bytes, replay_key: str | None) -> None:
        """Have it committed."""
        self._check_trust()
        signed, headers = hook.signed_header, call.headers
        kept = {k: v for k, v in headers.items() if k not in _DROPPED and k != signed and "signature" not in k}
        text = msgspec.json.encode(kept)
        if len(text) > MOST_HEADER_BYTES:
            raise _Refused(431, "the headers are too large")
        payload = Payload(hook.datasource, text.decode(), body, replay_key)
        self._commits.add(Pending(payload, hook.limit, call.done))

    def count(self, name: str, status: int) -> None:
        """An answer was given. Only names that exist are kept."""
        self._answers[name if status not in (404, 405) else "", status] += 1
        if len(self._answers) > self._most_answers:
            self._most_answers = 2 * len(self.figures()) + FEW_ANSWERS

    def figures(self) -> Counter[tuple[str, int]]:
        """How many answers were given, by name and status; those of deleted webhooks are forgotten."""
        for gone in [key for key in self._answers if key[0] and not self._hooks.exists(key[0])]:
            del self._answers[gone]
        return self._answers

    def _admit(self, call: Call, hook: Hook) -> None:
        try:
            self._check_trust()
            call.admit(hook)
        except _Refused as refused:
            call.refuse(refused)

    async def _admit_later(self, call: Call, hook: Hook | None) -> None:
        """The same for a webhook that must be looked up, or whose caller must."""
        try:
            if hook is None:
                hook = await self._hooks.find(call.name)
            if hook.verifier is None and not await self._may_send(call):
                call.refuse(_Refused(401))
            else:
                call.task = None
                self._admit(call, hook)
        except Forbidden as error:
            call.refuse(_Refused(403, error.message))
        except NotFound as error:
            call.refuse(_Refused(404, error.message))
        except StoreError:
            call.refuse(_Refused(503, "the database is away"))
        except Refused as error:
            call.refuse(_Refused(503, error.message))
        except Exception:  # A bug of ours: the log has the stack, the caller does not.
            log.exception("a webhook's call failed")
            call.refuse(_Refused(500, "this should not have happened; the node's log says more"))

    async def _may_send(self, call: Call) -> bool:
        """Without a signature, a token that may send is needed; or its session, for a script of our own pages."""
        found = await self._gate.identify(call.headers, call.address, cookie_allowed=is_act(call.headers))
        if found is not None:
            self._gate.check(found, "send", OfDatasource(call.name), call.address)
        return found is not None

    def _check_trust(self) -> None:
        if self._trust_left_s() <= 0.0:
            raise _Refused(503, "this node may not act now")


def _check_json(body: bytes, costs_much: bool) -> None:
    """Refused here it can be corrected by its sender; later it could not. The source decodes in one go, as we do."""
    if costs_much:
        raise _Refused(413, "the body costs too much to be read as JSON", hint="split it, or set format: text")
    try:
        _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _Refused(400, f"the body is not JSON: {error}", hint="or set format: text") from None
