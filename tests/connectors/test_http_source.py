"""The HTTP source: every way to page, who asks, what is new, and positions that go on without a gap."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from headgate.connectors.api import Batch, Position, Source, Unreadable
from headgate.connectors.http import answers
from headgate.connectors.http.options import HttpSourceOptions
from headgate.connectors.http.source import HttpSource
from headgate.errors import Cause, ConnectorError, EndOfStream
from headgate.testing.contract import SourceContract
from headgate.testing.factories import make_context
from tests.connectors.http_server import Asked, HttpServer, Said, Serve, serve

__all__ = ["serve"]  # A fixture.

COUNT, SIZE = 23, 5
RECORDS = [{"id": id, "text": f"record {id}"} for id in range(COUNT)]


def make_source(server: HttpServer, path: str = "/orders", **options: Any) -> HttpSource:
    return HttpSource(HttpSourceOptions(url=f"{server.url}{path}", **{"interval_s": 0.001, **options}), make_context())


async def opened(server: HttpServer, position: Position = None, **options: Any) -> HttpSource:
    source = make_source(server, **options)
    await source.open(position)
    return source


async def read_all(source: HttpSource) -> list[Batch]:
    batches = []
    try:
        while True:
            batches.append(await asyncio.wait_for(source.read(), 20))
    except EndOfStream:
        return batches
    finally:
        await source.close()


async def all_of(server: HttpServer, **options: Any) -> list[Any]:
    """What one poll gives."""
    batches = await read_all(await opened(server, **{"interval_s": None, **options}))
    return [record for batch in batches for record in batch.records]


def stored(batch: Batch) -> Position:
    return msgspec.json.decode(msgspec.json.encode(batch.position))


# The contract, with every way to page.


def by_page(asked: Asked) -> Said:
    first = SIZE * (int(asked.params["page"]) - 1)
    return Said({"data": {"items": RECORDS[first : first + SIZE]}})


def by_offset(asked: Asked) -> Said:
    first = int(asked.params["skip"])
    return Said(RECORDS[first : first + SIZE])


def by_cursor(asked: Asked) -> Said:
    first = int(asked.params.get("after", "0"))
    more = first + SIZE < COUNT
    return Said({"items": RECORDS[first : first + SIZE], "meta": {"next": str(first + SIZE) if more else None}})


def by_url(asked: Asked) -> Said:
    first = int(asked.params.get("from", "0"))
    following = f"?from={first + SIZE}&all=1" if first + SIZE < COUNT else ""
    return Said({"items": RECORDS[first : first + SIZE], "next": following})


def by_link(asked: Asked) -> Said:
    first = int(asked.params.get("from", "0"))
    link = {"Link": f'</orders?from={first + SIZE}>; rel="next"'} if first + SIZE < COUNT else {}
    return Said(RECORDS[first : first + SIZE], headers=link)


WAYS: dict[str, tuple[Callable[[Asked], Said], dict[str, Any]]] = {
    "page": (by_page, {"records": "data.items", "paging": {"type": "page"}}),
    "offset": (by_offset, {"paging": {"type": "offset", "param": "skip"}}),
    "cursor": (by_cursor, {"records": "items", "paging": {"type": "cursor", "path": "meta.next", "param": "after"}}),
    "url": (by_url, {"records": "items", "paging": {"type": "cursor", "path": "next"}}),
    "link": (by_link, {"paging": {"type": "link"}}),
}


class _HttpContract(SourceContract):
    way = ""

    @pytest.fixture(autouse=True)
    async def server(self) -> AsyncIterator[None]:
        answer, self._options = WAYS[self.way]
        self._server = await HttpServer(answer).start()
        yield
        await self._server.close()

    def make_source(self) -> Source:
        return make_source(self._server, **{"interval_s": None, **self._options})

    def expected(self) -> list[Any]:
        return RECORDS


class TestHttpPageSource(_HttpContract):
    way = "page"


class TestHttpLinkSource(_HttpContract):
    way = "link"


class TestHttpCursorSource(_HttpContract):
    way = "cursor"


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_to_page_reads_all_and_goes_on_anywhere(serve: Serve, way: str) -> None:
    answer, options = WAYS[way]
    server = await serve(answer)
    batches = await read_all(await opened(server, interval_s=None, **options))
    assert [record for batch in batches for record in batch.records] == RECORDS
    handled = 0
    for batch in batches:
        handled += len(batch.records)
        rest = await read_all(await opened(server, stored(batch), interval_s=None, **options))
        assert [record for one in rest for record in one.records] == RECORDS[handled:]


async def test_a_url_of_the_next_page_is_relative_to_the_page(serve: Serve) -> None:
    def answer(asked: Asked) -> Said:
        return Said({"items": [1]} if asked.path == "/v1/more" else {"items": [0], "next": "more"})

    server = await serve(answer)
    assert await all_of(server, path="/v1/orders", records="items", paging={"type": "cursor", "path": "next"}) == [0, 1]


async def test_a_server_may_say_that_no_more_follows(serve: Serve) -> None:
    def answer(asked: Asked) -> Said:
        return Said({"items": [int(asked.params["page"])], "has_more": asked.params["page"] != "2"})

    server = await serve(answer)
    paging = {"type": "page", "more": "has_more"}
    assert await all_of(server, records="items", paging=paging) == [1, 2]
    assert len(server.asked) == 2


async def test_another_paging_in_the_document_begins_the_poll_again(serve: Serve) -> None:
    server = await serve(by_page)
    first = await (await opened(server, **WAYS["page"][1])).read()
    server.answer = by_link
    batches = await read_all(await opened(server, stored(first), interval_s=None, **WAYS["link"][1]))
    assert [record for batch in batches for record in batch.records] == RECORDS


# Formats.


@pytest.mark.parametrize(
    ("body", "options", "records"),
    [
        ([1, 2], {}, [1, 2]),
        ({"id": 1}, {}, [{"id": 1}]),
        ({"data": [{"items": [1]}]}, {"records": "data.0.items"}, [1]),
        ({"data": {"items": []}}, {"records": "data.items"}, []),
        (b"", {}, []),
        (b"\xef\xbb\xbf[1]", {}, [1]),
        (b'{"a": 1}\n\n{"a": 2}\r\n', {"format": "jsonl"}, [{"a": 1}, {"a": 2}]),
        (b'{"a": 1}\nno\n', {"format": "jsonl"}, [{"a": 1}, Unreadable(b"no", "the body is not JSON")]),
        (b'a;b\n1;"x\ny"\n', {"format": "csv", "delimiter": ";"}, [{"a": "1", "b": "x\ny"}]),
        (b"a,b\n1\n", {"format": "csv"}, [Unreadable(b"1", "the row has 1 field, and the header has 2")]),
        (b"a\n\xff\n", {"format": "csv"}, [Unreadable(b"\xff", "the row is not UTF-8")]),
    ],
)
async def test_an_answer_is_read_as_the_document_says(
    serve: Serve, body: Any, options: dict[str, Any], records: list[Any]
) -> None:
    server = await serve(lambda asked: Said(body, headers={"Content-Type": "text/plain"}))
    assert await all_of(server, **options) == records


async def test_another_encoding_and_a_packed_answer_are_read(serve: Serve) -> None:
    plain = json.dumps(["ä"], ensure_ascii=False)
    latin = {"Content-Type": "application/json; charset=iso-8859-1"}
    server = await serve(lambda asked: Said(plain.encode("latin-1"), headers=latin))
    assert await all_of(server) == ["ä"]
    server.answer = lambda asked: Said(
        gzip.compress(plain.encode()[:2]) + gzip.compress(plain.encode()[2:]), headers={"Content-Encoding": "gzip"}
    )
    assert await all_of(server) == ["ä"]


async def test_a_large_answer_is_taken_apart_and_has_the_same_records(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "is_costly", lambda body: len(body) > 100)
    server = await serve(by_cursor)
    options = WAYS["cursor"][1]
    assert await all_of(server, **options) == RECORDS
    server.answer = lambda asked: Said({"a": {"b": [{"items": [1, 2]}]}, "next": None})
    assert await all_of(server, records="a.b.0.items") == [1, 2]
    server.answer = by_offset
    assert await all_of(server, **WAYS["offset"][1]) == RECORDS


async def test_a_post_sends_its_body_and_what_the_document_adds(serve: Serve) -> None:
    server = await serve(lambda asked: Said([asked.json]))
    options = {"method": "POST", "body": {"query": "all"}, "params": {"limit": 5, "deep": True}}
    assert await all_of(server, **options, headers={"X-Tenant": "a"}) == [{"query": "all"}]
    [asked] = server.asked
    assert asked.params == {"limit": "5", "deep": "true"}
    assert asked.headers["x-tenant"] == "a"
    assert asked.headers["content-type"] == "application/json"


async def test_a_batch_says_where_each_record_was(serve: Serve) -> None:
    server = await serve(lambda asked: Said([{"id": 1, "at": "2024-01-02T03:04:05Z"}], headers={"Date": "today"}))
    source = await opened(server, incremental={"field": "at", "param": "since"})
    batch = await source.read()
    await source.close()
    assert batch.place is not None
    assert batch.place(0) == f"poll 1, {server.url}/orders, record 1"
    assert batch.meta == [{"url": f"{server.url}/orders", "poll": 1, "date": "today"}]
    assert batch.event_time_s == 1704164645.0
    assert batch.size_bytes > 0


# Who asks.

BASIC = "Basic " + base64.b64encode("ada:pä:ss".encode()).decode()


@pytest.mark.parametrize(
    ("auth", "name", "value"),
    [
        ({"type": "header", "name": "X-Api-Key", "value": "s3cret"}, "x-api-key", "s3cret"),
        ({"type": "bearer", "token": "s3cret"}, "authorization", "Bearer s3cret"),
        ({"type": "basic", "user": "ada", "password": "pä:ss"}, "authorization", BASIC),
    ],
)
async def test_a_request_says_who_asks(serve: Serve, auth: dict[str, str], name: str, value: str) -> None:
    server = await serve(lambda asked: Said([asked.headers[name]]))
    assert await all_of(server, auth=auth) == [value]


async def test_a_key_in_the_query_is_in_no_position_and_no_place(serve: Serve) -> None:
    def answer(asked: Asked) -> Said:
        assert asked.params["api_key"] == "s3cret"
        page = int(asked.params.get("page", "1"))
        following = f'</orders?page={page + 1}&api_key=s3cret>; rel="next"'
        return Said([page], headers={"Link": following} if page < 3 else {})

    server = await serve(answer)
    auth = {"type": "query", "name": "api_key", "value": "s3cret"}
    batches = await read_all(await opened(server, interval_s=None, auth=auth, paging={"type": "link"}))
    assert [batch.records for batch in batches] == [[1], [2], [3]]
    assert "s3cret" not in repr(batches) + "".join(batch.place(0) for batch in batches if batch.place)


class TokenServer:
    """Gives tokens, and records to those who have the last one."""

    def __init__(self, expires_in: Any = 3600) -> None:
        self.given: list[str] = []
        self.valid: set[str] = set()
        self.expires_in = expires_in

    def __call__(self, asked: Asked) -> Said:
        if asked.path == "/token":
            self.given.append(f"token-{len(self.given)}")
            self.valid = {self.given[-1]}
            return Said({"access_token": self.given[-1], "expires_in": self.expires_in, "token_type": "Bearer"})
        if asked.headers.get("authorization", "").removeprefix("Bearer ") not in self.valid:
            return Said(status=401)
        return Said([1])


def oauth2(server: HttpServer, **more: Any) -> dict[str, Any]:
    return {
        "type": "oauth2",
        "token_url": f"{server.url}/token",
        "client_id": "a b",
        "client_secret": "c&d",
        **more,
    }


async def test_a_token_is_kept_and_fetched_again_once_when_it_is_refused(serve: Serve) -> None:
    tokens = TokenServer()
    server = await serve(tokens)
    source = await opened(server, auth=oauth2(server, scope="read", params={"audience": "x"}))
    for _ in range(3):
        await source.read()
    assert tokens.given == ["token-0"]
    asked = server.asked[0]
    assert asked.body == b"grant_type=client_credentials&audience=x&scope=read"
    assert asked.headers["authorization"] == "Basic " + base64.b64encode(b"a%20b:c%26d").decode()
    tokens.valid = set()
    await source.read()
    assert tokens.given == ["token-0", "token-1"]
    await source.close()


async def test_a_token_that_is_refused_twice_is_a_matter_of_access(serve: Serve) -> None:
    tokens = TokenServer()
    server = await serve(lambda asked: tokens(asked) if asked.path == "/token" else Said(status=401))
    source = await opened(server, auth=oauth2(server, send="body"))
    with pytest.raises(ConnectorError, match="401") as caught:
        await source.read()
    assert caught.value.cause is Cause.AUTH
    assert b"client_id=a+b&client_secret=c%26d" in server.asked[0].body
    await source.close()


async def test_a_token_that_expires_is_not_used_any_more(serve: Serve) -> None:
    tokens = TokenServer(expires_in="0")
    server = await serve(tokens)
    source = await opened(server, auth=oauth2(server))
    await source.read()
    await source.read()
    assert len(tokens.given) == 2
    await source.close()


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (Said({"error": "invalid_client"}, 401), Cause.AUTH),
        (Said({"error": "invalid_scope"}, 400), Cause.AUTH),
        (Said({}, 302, {"Location": "http://127.0.0.1:1/"}), Cause.AUTH),
        (Said({}, 307, {"Location": "http://127.0.0.1:1/"}), Cause.AUTH),
        (Said({"access_token": "a\r\nX-Bad: 1"}), Cause.AUTH),
        (Said({}, 503), Cause.NETWORK),
        (Said(b"<html>"), Cause.NETWORK),
        (Said({"access_token": "a", "expires_in": "soon"}), Cause.NETWORK),
    ],
)
async def test_a_token_that_cannot_be_had_has_its_cause(serve: Serve, said: Said, cause: Cause) -> None:
    server = await serve(lambda asked: said)
    source = make_source(server, auth=oauth2(server))
    with pytest.raises(ConnectorError) as caught:
        await source.check()
    assert caught.value.cause is cause
    assert "c&d" not in caught.value.message
    assert [asked.path for asked in server.asked] == ["/token"]
    await source.close()


# What is new.


class Growing:
    """Records with a rising `at`; what is not older than `since`, two on a page."""

    def __init__(self, *values: Any) -> None:
        self.values = list(values)

    def __call__(self, asked: Asked) -> Said:
        since = int(asked.params.get("since", "0"))
        found = [{"at": value} for value in self.values if value >= since]
        first = int(asked.params.get("offset", "0"))
        return Said(found[first : first + 2])


NEW: dict[str, Any] = {"incremental": {"field": "at", "param": "since"}, "paging": {"type": "offset"}}


async def test_a_poll_asks_for_what_is_new_and_repeats_nothing(serve: Serve) -> None:
    growing = Growing(1, 2, 3)
    server = await serve(growing)
    source = await opened(server, **NEW)
    assert [(await source.read()).records for _ in range(2)] == [[{"at": 1}, {"at": 2}], [{"at": 3}]]
    reading = asyncio.ensure_future(source.read())
    await asyncio.sleep(0.05)
    assert not reading.done()
    growing.values += [3, 4, 5, 6]  # The first once more: it is another one.
    found = (await asyncio.wait_for(reading, 20)).records
    while len(found) < 4:
        found += (await asyncio.wait_for(source.read(), 20)).records
    assert found == [{"at": 3}, {"at": 4}, {"at": 5}, {"at": 6}]
    await source.close()


async def test_the_first_poll_begins_where_the_document_says(serve: Serve) -> None:
    server = await serve(Growing(1, 2, 3, 4))
    asked = {"field": "at", "param": "since", "start": 3}
    assert await all_of(server, **{**NEW, "incremental": asked}) == [{"at": 3}, {"at": 4}]


async def test_killed_after_any_page_of_any_poll_nothing_is_missed_and_nothing_comes_twice(serve: Serve) -> None:
    """Every batch by a source of its own, opened with the position of the last."""
    growing = Growing(1, 2, 3, 3, 4)
    server = await serve(growing)
    found: list[int] = []
    position: Position = None
    while len(found) < 9:
        source = await opened(server, position, **NEW)
        batch = await asyncio.wait_for(source.read(), 20)
        await source.close()
        found += [record["at"] for record in batch.records]
        position = stored(batch)
        if len(found) == 5:
            growing.values += [4, 5, 6, 7]
    assert found == [1, 2, 3, 3, 4, 4, 5, 6, 7]


async def test_a_page_that_the_server_has_forgotten_begins_the_poll_again(serve: Serve) -> None:
    known = {"0": "a"}

    def answer(asked: Asked) -> Said:
        cursor = asked.params.get("after")
        if cursor is not None and cursor not in known.values():
            return Said(status=410)
        return Said({"items": [{"at": 5}] if cursor else [{"at": 4}], "next": None if cursor else known["0"]})

    server = await serve(answer)
    options = {**NEW, "records": "items", "paging": {"type": "cursor", "path": "next", "param": "after"}}
    first = await (await opened(server, **options)).read()
    known["0"] = "b"  # The server was restarted.
    batches = await read_all(await opened(server, stored(first), interval_s=None, **options))
    assert [batch.records for batch in batches] == [[{"at": 4}], [{"at": 5}]]


# Conditional requests.


async def test_what_has_not_changed_costs_nothing_and_comes_once(serve: Serve) -> None:
    version = "one"

    def answer(asked: Asked) -> Said:
        if asked.headers.get("if-none-match") == f'"{version}"':
            return Said(status=304)
        return Said([version], headers={"ETag": f'"{version}"', "Last-Modified": "Sun, 09 Sep 2001 01:46:40 GMT"})

    server = await serve(answer)
    source = await opened(server)
    batch = await source.read()
    reading = asyncio.ensure_future(source.read())
    await asyncio.sleep(0.05)
    assert not reading.done()
    assert len(server.asked) > 2
    assert server.asked[-1].headers["if-modified-since"] == "Sun, 09 Sep 2001 01:46:40 GMT"
    version = "two"
    assert (await asyncio.wait_for(reading, 20)).records == ["two"]
    await source.close()
    version = "one"
    later = await opened(server, stored(batch))  # After a crash the tag is still known.
    reading = asyncio.ensure_future(later.read())
    await asyncio.sleep(0.05)
    assert not reading.done()
    reading.cancel()
    await later.close()


async def test_a_poll_of_several_pages_is_not_conditional(serve: Serve) -> None:
    server = await serve(lambda asked: Said([1] if asked.params["page"] == "1" else [], headers={"ETag": '"a"'}))
    source = await opened(server, paging={"type": "page"})
    await source.read()
    await source.read()
    assert not any("if-none-match" in asked.headers for asked in server.asked)
    await source.close()


# Connections.


async def test_pages_share_a_connection_and_one_that_was_closed_is_replaced(serve: Serve) -> None:
    server = await serve(by_page)
    assert await all_of(server, **WAYS["page"][1]) == RECORDS
    assert server.connections == 1
    server.answer = lambda asked: Said([1], headers={"Connection": "close"})
    source = await opened(server)
    for _ in range(3):
        await source.read()
    assert server.connections == 4
    await source.close()


async def test_a_position_that_is_none_is_refused(serve: Serve) -> None:
    server = await serve(by_page)
    source = make_source(server)
    for position in (17, "x", {"page": 3}, {"polls": "x"}):
        with pytest.raises(ConnectorError) as caught:
            await source.open(position)
        assert caught.value.cause is Cause.CONFIG
    await source.close()
