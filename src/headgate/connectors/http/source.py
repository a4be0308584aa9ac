"""Polls a URL: page after page, then again after a while, asking for what is new.

A *poll* is the pages from the first to the last. A page is a batch, so it is handled whole or not at all, and the
position after it says everything that the rest of the poll needs: which page follows, what this poll asks from, and how
far it has come. A run that is killed goes on with the page that was not handled. What can come twice is that page: into
a sink that is not transactional, all of its records at most.

A page's own place may be gone when a run goes on, because servers forget cursors. Then the poll begins again from what
it asked from: its records come again, none is missed.

*Conditional requests.* If the last poll was one page, and the next would ask for the same URL, it is asked with the
page's ETag and Last-Modified: a 304 is a poll without records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from headgate.connectors.api import Batch, Context, Position
from headgate.connectors.http import incremental, paging
from headgate.connectors.http.access import Session, session_of
from headgate.connectors.http.answers import page_of
from headgate.connectors.http.client import Request
from headgate.connectors.http.incremental import Mark, Value
from headgate.connectors.http.options import CursorPaging, HttpSourceOptions, LinkPaging, plain_headers
from headgate.connectors.http.statuses import named, raise_if_not_now
from headgate.connectors.http.targets import Target, target_of
from headgate.connectors.http.wire import Answer
from headgate.connectors.moves import NO_POSITION, both_of
from headgate.errors import Cause, ConnectorError, EndOfStream, RetryLater

LONGEST_TAG = 1_024  # Of an ETag that is kept with the position.
KEPT_FROM_S = 5.0  # Polls that are further apart have a connection each.
_FORGOTTEN = frozenset({400, 404, 410})  # What a server answers for a page that it does not know any more.
_ACCEPTED = {"json": "application/json", "jsonl": "application/x-ndjson, application/json", "csv": "text/csv"}


class Place(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A position: what has been handled, and what the next request is."""

    polls: int = 0  # How many are over.
    since: Value = None  # What this poll asks from, or the next one if none is under way.
    seen: tuple[str, ...] = ()
    largest: Value = None
    latest: tuple[str, ...] = ()
    by: str = ""  # How `next` is meant: the type of the paging.
    next: int | str | None = None  # The page to read; None: a new poll begins.
    etag: str = ""
    modified: str = ""

    @property
    def mark(self) -> Mark:
        """How far the poll has come."""
        if self.next is None:
            return incremental.begun(self.since, self.seen)
        return Mark(self.since, self.seen, self.largest, self.latest)


@dataclass(frozen=True, slots=True)
class Taken:
    """What one page has brought."""

    place: Place
    records: list[Any]


class HttpSource:
    """Polls one URL."""

    def __init__(self, options: HttpSourceOptions, context: Context) -> None:
        self._options = options
        self._context = context
        first = target_of(options.url)
        self._first = first.with_params({name: _param(value) for name, value in options.params.items()})
        self._session: Session = session_of(options, first, context, options.max_body_bytes)
        self._headers = (*plain_headers(options.headers), ("Accept", _ACCEPTED[options.format]))
        self._body = b"" if options.body is None else msgspec.json.encode(options.body)
        self._by = options.paging.type if options.paging is not None else ""
        self._place = Place()
        self._round = paging.Round()
        self._is_resumed = False  # The next page was found by another run.
        self._began_s = 0.0  # When the poll began, on the loop's clock,
        self._due_s = 0.0  # and when the next one may.

    async def check(self) -> None:
        """Ask for the first page, and see whether it is one."""
        try:
            await self._take(self._begin(), paging.Round())
        except RetryLater as error:
            raise ConnectorError(error.message, cause=Cause.RATE_LIMIT) from None

    async def parts(self) -> Sequence[str]:
        return [""]

    async def open(self, position: Position) -> None:
        try:
            place = self._begin() if position is None else msgspec.convert(position, Place)
        except msgspec.ValidationError as error:
            raise ConnectorError(f"the position is none of a poll: {error}", cause=Cause.CONFIG) from None
        if place.next is not None and place.by != self._by:
            place = _begun_again(place)  # The document says another paging now.
        self._place = place
        self._round = paging.Round()
        self._is_resumed = place.next is not None

    async def read(self) -> Batch:
        while True:
            await self._wait()
            place = self._place
            target = self._target(place)
            try:
                taken, answer = await self._take(place, self._round)
            except _Forgotten as error:
                if not self._is_resumed:
                    raise ConnectorError(error.message, cause=Cause.CONFIG, hint="correct `url`") from None
                self._context.log.warning("the server has forgotten the page; the poll begins again")
                self._is_resumed, self._place = False, _begun_again(place)
                continue
            # From here on nothing is awaited: a read that is cancelled has changed nothing.
            self._is_resumed = False
            self._place = taken.place
            if taken.place.next is None:
                self._round = paging.Round()
                self._due_s = self._began_s + (self._options.interval_s or 0.0)
            if taken.records:
                return self._batch(place, taken, answer, target)

    async def ack(self, position: Position) -> None:
        """The server does not need to know."""

    async def close(self) -> None:
        await self._session.close()

    # One page.

    async def _wait(self) -> None:
        """Until the next poll is due, if none is under way."""
        place, interval_s = self._place, self._options.interval_s
        if place.next is not None:
            return
        if interval_s is None and place.polls > 0:
            raise EndOfStream("the poll is over")
        clock = asyncio.get_running_loop().time
        if (wait_s := self._due_s - clock()) > 0:
            if wait_s > KEPT_FROM_S:
                await self._session.rest()
            await asyncio.sleep(wait_s)
        self._began_s = clock()

    def _begin(self) -> Place:
        asked = self._options.incremental
        return Place(since=None if asked is None else asked.start)

    def _target(self, place: Place) -> Target:
        asked = self._options.incremental
        since = {} if asked is None or place.since is None else {asked.param: _param(place.since)}
        try:
            return paging.target_of_page(self._options.paging, place.next, self._first.with_params(since))
        except ValueError as error:
            said = f"{self._first.origin} names a URL for the next page that {error}"
            raise ConnectorError(said, cause=Cause.BAD_RECORD) from None

    async def _take(self, place: Place, round_: paging.Round) -> tuple[Taken, Answer]:
        """Ask for a page, and read it. Changes nothing but what is known of this round, and that at the end."""
        target = self._target(place)
        answer = await self._session.send(self._request(place, target))
        if answer.status == 304 and _is_conditional(place):
            return Taken(self._over(place, place.mark, target, answer), []), answer
        self._judge(answer, place)
        page = await page_of(answer, self._options, target.origin)
        mark, records = place.mark, page.records
        if self._options.incremental is not None:
            mark, records = incremental.advanced(mark, self._options.incremental.field, records)
        here = self._here(place, target)
        following = self._following(paging.next_of(self._options.paging, place.next, answer, page), target)
        paging.note(self._options.paging, round_, here, following, page)
        if following is None:
            return Taken(self._over(place, mark, target, answer), records), answer
        after = Place(place.polls, mark.since, mark.seen, mark.largest, mark.latest, self._by, following)
        return Taken(after, records), answer

    def _request(self, place: Place, target: Target) -> Request:
        headers = list(self._headers)
        if self._body:
            headers.append(("Content-Type", "application/json"))
        if place.next is None and self._options.method == "GET":
            headers += [("If-None-Match", place.etag)] if place.etag else []
            headers += [("If-Modified-Since", place.modified)] if place.modified else []
        return Request(target, self._options.method, tuple(headers), self._body)

    def _judge(self, answer: Answer, place: Place) -> None:
        raise_if_not_now(answer, self._first.origin, self._context.now_s())
        if 200 <= answer.status < 300:
            return
        said = f"{self._first.origin} answered {named(answer.status)}"
        if place.next is not None and answer.status in _FORGOTTEN:
            raise _Forgotten(said)
        raise ConnectorError(said, cause=Cause.CONFIG, hint="correct `url`")

    def _here(self, place: Place, target: Target) -> int | str | None:
        return str(self._session.shown(target)) if self._has_urls else place.next

    @property
    def _has_urls(self) -> bool:
        """Whether the server names pages by their URLs."""
        found = self._options.paging
        return isinstance(found, LinkPaging) or (isinstance(found, CursorPaging) and found.param is None)

    def _following(self, found: int | str | None, target: Target) -> int | str | None:
        """The next page, as it is kept: a whole URL, without our key in it."""
        if found is None or not self._has_urls:
            return found
        try:
            return str(self._session.shown(target.joined(str(found))))
        except ValueError as error:
            said = f"{target.origin} names a URL for the next page that {error}"
            raise ConnectorError(said, cause=Cause.BAD_RECORD) from None

    def _over(self, place: Place, mark: Mark, target: Target, answer: Answer) -> Place:
        """After the last page of a poll."""
        following = incremental.ended(mark)
        after = Place(place.polls + 1, following.since, following.seen)
        if place.next is not None or self._target(after) != target:
            return after
        if answer.status == 304:
            return msgspec.structs.replace(after, etag=place.etag, modified=place.modified)
        etag, modified = (answer.headers.get(name, "") for name in ("etag", "last-modified"))
        return msgspec.structs.replace(after, etag=_short(etag), modified=_short(modified))

    def _batch(self, before: Place, taken: Taken, answer: Answer, target: Target) -> Batch:
        url = str(self._session.shown(target))
        place = taken.place
        meta = {"url": url, "poll": before.polls + 1, "date": answer.headers.get("date")}
        newest = place.largest if place.next is not None else place.since
        return Batch(
            taken.records,
            position=msgspec.to_builtins(place),
            size_bytes=len(answer.body),
            event_time_s=incremental.time_of(newest) if self._options.incremental is not None else None,
            meta=[meta] * len(taken.records),
            place=partial(_place_of, before.polls + 1, url),
        )


class _Forgotten(ConnectorError):
    """The server does not know a page that it has named."""


def tell_move(before: Position, after: Position) -> str:
    """What another position means."""
    if (both := both_of(before, after, Place)) is None:
        return NO_POSITION
    stood, stands = both
    if stood == stands:
        return "nothing changes"
    if stands is None:
        return "polling begins again from `start`: all that the server still has is read again"
    where = "the next poll asks for all" if stands.since is None else f"polls ask for what follows {stands.since}"
    if stood is not None and stood.since != stands.since:
        where += f", in place of {'all' if stood.since is None else stood.since}"
    return where if stands.next is None else f"{where}, from a page in the middle on"


def _is_conditional(place: Place) -> bool:
    return place.next is None and bool(place.etag or place.modified)


def _begun_again(place: Place) -> Place:
    """The same poll, from its first page on."""
    return Place(place.polls, place.since, place.seen)


def _place_of(poll: int, url: str, index: int) -> str:
    return f"poll {poll}, {url}, record {index + 1}"


def _param(value: str | float | bool) -> str:
    """As a parameter is written."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _short(tag: str) -> str:
    return tag if len(tag) <= LONGEST_TAG and tag.isascii() and tag.isprintable() else ""
