"""Sends records to a URL: one by one, or several in a request.

*Repeats.* A request carries a key (`Idempotency-Key`) that is made of the stream, its generation, the places of the
records at the source and the request itself. The same records from the same places have the same key when they are sent
again, also after a crash and from another node; a server that honours the key takes them once. Another server may get
again what was sent since the last checkpoint: at least once.

*Within a run* nothing that was answered 2xx is sent again. An answer that refuses a record does not say that its
neighbours are not there, so what was taken of the batch in hand is remembered, record by record, and left out when the
worker writes the batch again without the record, in halves, or after a pause.

*Refusals.* A 4xx to one record makes it a dead letter with the status as the reason; to several, the worker finds it by
halves. A URL without fields that is not there (404, 405, 410) is no record's fault: it is a mistake of configuration.
What the server says in the body is not read: it may repeat the record.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby

from headgate.connectors.api import Context, Grant, Outgoing, Progress
from headgate.connectors.http.access import session_of
from headgate.connectors.http.client import Request
from headgate.connectors.http.options import HttpSinkOptions, plain_headers
from headgate.connectors.http.statuses import named, raise_if_not_now
from headgate.connectors.http.targets import Target, target_of
from headgate.connectors.http.templates import NotInUrl, Template, with_sample_values
from headgate.connectors.http.wire import Answer
from headgate.connectors.payloads import encoded
from headgate.errors import Bad, BadRecords, BatchRefused, Cause, ConnectorError, RetryLater

ANSWER_BYTES = 64 * 1024  # Of an answer's body, which is not read: as much is taken in to keep the connection.
_GONE = frozenset({404, 410})
_NOT_THERE = frozenset({404, 405, 410})
_TYPES = {"json": "application/json", "jsonl": "application/x-ndjson"}


@dataclass(frozen=True, slots=True)
class Piece:
    """One record as it is sent."""

    index: int  # In the batch.
    target: Target
    body: bytes
    is_delete: bool
    mark: bytes  # By which it is known again: who sends it, its place, and all of the above.


class HttpSink:
    """Sends records."""

    def __init__(self, options: HttpSinkOptions, context: Context) -> None:
        self._options = options
        self._context = context
        self._url = Template(options.url)
        self._delete_url = Template(options.delete_url) if options.delete_url is not None else None
        home = target_of(with_sample_values(options.url))
        self._origin = home.origin
        self._session = session_of(options, home, context, ANSWER_BYTES, kept=options.in_flight)
        self._headers = (*plain_headers(options.headers), ("Content-Type", _TYPES[_format(options)]))
        self._stream = b""
        self._batch: tuple[int, int] | None = None  # Which batch is in hand: generation and commits,
        self._taken: set[bytes] = set()  # and the marks of its records that the server has taken.

    async def check(self) -> None:
        """Connect, and fetch a token if there is one to fetch. Nothing is sent."""
        try:
            await self._session.check()
        except RetryLater as error:
            raise ConnectorError(error.message, cause=Cause.RATE_LIMIT) from None

    async def open(self, grant: Grant) -> Progress | None:
        await self.check()
        self._stream = f"{grant.installation}/{grant.stream}".encode()
        return None

    async def write(self, batch: Outgoing) -> None:
        in_hand = (batch.progress.generation, batch.progress.commits)
        if in_hand != self._batch:
            self._batch, self._taken = in_hand, set()
        calls = list(self._calls(piece for piece in self._pieces(batch) if piece.mark not in self._taken))
        bad: list[Bad] = []
        failures: list[Exception] = []
        waiting = iter(calls)
        await asyncio.gather(
            *(self._work(waiting, bad, failures) for _ in range(min(self._options.in_flight, len(calls))))
        )
        if failures:
            raise failures[0]
        if bad:
            raise BadRecords(sorted(bad, key=lambda one: one.index))

    async def close(self) -> None:
        await self._session.close()

    # From a batch to requests.

    def _pieces(self, batch: Outgoing) -> list[Piece]:
        """Every record as it is sent. `BadRecords` names those that cannot be."""
        bodies, deleted, bad = encoded(batch.records, "json"), set(batch.deletes), []
        occurred: Counter[bytes] = Counter()
        pieces = []
        for index, record in enumerate(batch.records):
            is_delete = index in deleted
            try:
                target = self._template(is_delete).of(record)
            except NotInUrl as error:
                bad.append(Bad(index, error.field, str(error)))
                continue
            body = b"" if is_delete else bodies[index]
            known = self._mark(batch, index, target, body, is_delete)
            occurred[known] += 1
            mark = known if occurred[known] == 1 else _hashed(known, str(occurred[known]).encode())
            pieces.append(Piece(index, target, body, is_delete, mark))
        if bad:
            raise BadRecords(bad)
        return pieces

    def _template(self, is_delete: bool) -> Template:
        if not is_delete:
            return self._url
        if self._delete_url is None:
            raise ConnectorError("nothing says how to delete", cause=Cause.CONFIG, hint="say `delete_url`")
        return self._delete_url

    def _mark(self, batch: Outgoing, index: int, target: Target, body: bytes, is_delete: bool) -> bytes:
        if batch.replays:
            place = f"letter {batch.replays[index]}"
        elif batch.places is not None:
            place = batch.places(index)
        else:
            place = f"{batch.progress.position}/{index}"
        words = (str(batch.progress.generation), place, "DELETE" if is_delete else self._options.method, str(target))
        return _hashed(self._stream, *(word.encode("utf-8", "surrogatepass") for word in words), body)

    def _calls(self, pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
        """The pieces of each request, in order. A deletion is one by itself."""
        for is_delete, some in groupby(pieces, key=lambda piece: piece.is_delete):
            call: list[Piece] = []
            size_bytes = 0
            for piece in some:
                is_full = len(call) >= self._options.batch or size_bytes + len(piece.body) > self._options.batch_bytes
                if call and (is_delete or is_full):
                    yield call
                    call, size_bytes = [], 0
                call.append(piece)
                size_bytes += len(piece.body) + 1
            yield call

    def _request(self, call: Sequence[Piece]) -> Request:
        first = call[0]
        key = first.mark if len(call) == 1 else _hashed(*(piece.mark for piece in call))
        name = self._options.idempotency_header
        headers = ((name, key.hex()), *self._headers) if name is not None else self._headers
        if first.is_delete:
            return Request(first.target, "DELETE", headers, truncates=True)
        return Request(first.target, self._options.method, headers, self._body(call), truncates=True)

    def _body(self, call: Sequence[Piece]) -> bytes:
        if self._options.batch == 1:
            return call[0].body
        if self._options.format == "jsonl":
            return b"\n".join([*(piece.body for piece in call), b""])
        return b"[" + b",".join(piece.body for piece in call) + b"]"

    # Sending.

    async def _work(self, waiting: Iterator[list[Piece]], bad: list[Bad], failures: list[Exception]) -> None:
        """Send one after another until nothing waits or one has failed: the others that are under way are finished."""
        for call in waiting:
            if failures:
                return
            try:
                self._judge(call, await self._session.send(self._request(call)), bad)
            except Exception as error:
                failures.append(error)

    def _judge(self, call: Sequence[Piece], answer: Answer, bad: list[Bad]) -> None:
        status, first = answer.status, call[0]
        if 200 <= status < 300 or (first.is_delete and status in _GONE):
            self._taken.update(piece.mark for piece in call)
            return
        raise_if_not_now(answer, self._origin, self._context.now_s())
        said = f"the server answered {named(status)}"
        has_fields = bool(self._template(first.is_delete).fields)
        if status < 400 or (status in _NOT_THERE and not has_fields):
            raise ConnectorError(f"{self._origin} answered {named(status)}", cause=Cause.CONFIG, hint="correct `url`")
        if len(call) > 1:
            raise BatchRefused(said)
        bad.append(Bad(first.index, None, said))


def _format(options: HttpSinkOptions) -> str:
    return options.format if options.batch > 1 else "json"


def _hashed(*parts: bytes) -> bytes:
    """Of all of them, each with its length, so that no two lists are one."""
    found = blake2b(digest_size=16)
    for part in parts:
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.digest()
