"""Servers that do what they should not: each is an error with the right cause, within bounds, and nothing is lost."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from headgate.connectors.api import Outgoing, Progress
from headgate.connectors.guard import Bound, Guard, OutOfReach
from headgate.connectors.http.options import HttpSinkOptions, HttpSourceOptions
from headgate.connectors.http.sink import HttpSink
from headgate.connectors.http.source import HttpSource
from headgate.connectors.http.targets import Depth, depth_of
from headgate.core.reach import AddressRule, Reach
from headgate.errors import Cause, ConnectorError, EndOfStream, NotConnected, RetryLater
from headgate.testing.factories import make_context, make_grant
from tests.certificates import Authority
from tests.connectors.http_server import HOST, Asked, HttpServer, Said, Serve, raw, serve

__all__ = ["serve"]  # A fixture.

OK = b"HTTP/1.1 200 OK\r\n"


def make_source(url: str, guard: Guard | None = None, **options: Any) -> HttpSource:
    context = make_context(guard=guard) if guard is not None else make_context()
    return HttpSource(HttpSourceOptions(url=url, **{"interval_s": None, "timeout_s": 5.0, **options}), context)


async def failure(url: str, guard: Guard | None = None, **options: Any) -> ConnectorError:
    """What the first read that brings no records ends with."""
    source = make_source(url, guard, **options)
    await source.open(None)
    with pytest.raises(ConnectorError) as caught:
        while True:
            await asyncio.wait_for(source.read(), 20)
    await source.close()
    assert not isinstance(caught.value, EndOfStream), "it found nothing wrong"
    assert "\n" not in caught.value.message
    return caught.value


def forever(head: bytes, piece: bytes, pause_s: float = 0.0) -> Said:
    """A beginning, and then the same again and again."""

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return Said(raw=write)


def whole(body: bytes, **headers: str) -> Said:
    return Said(body, headers={name.replace("_", "-"): value for name, value in headers.items()})


BOMB = zlib.compressobj(9, zlib.DEFLATED, 31)
BOMB_BODY = b"".join(BOMB.compress(bytes(1 << 20)) for _ in range(64)) + BOMB.flush()  # 64 MiB in 64 KiB.

HOSTILE: dict[str, tuple[Said, Cause, str]] = {
    "html": (whole(b"<html>Login</html>", Content_Type="text/html"), Cause.NETWORK, "a page for people"),
    "html as json": (whole(b" <!doctype html>", Content_Type="application/json"), Cause.NETWORK, "a page for people"),
    "not json": (whole(b"{", Content_Type="application/json"), Cause.BAD_RECORD, "not JSON"),
    "deep json": (whole(b"[" * 100_000), Cause.BAD_RECORD, "not JSON"),
    "a number": (whole(b"17"), Cause.BAD_RECORD, "no records"),
    "429": (Said(status=429), Cause.RATE_LIMIT, "429 Too Many Requests"),
    "500": (Said(status=500), Cause.NETWORK, "500"),
    "599": (Said(status=599), Cause.NETWORK, "599"),
    "401": (Said(status=401), Cause.AUTH, "401"),
    "403": (Said(status=403), Cause.AUTH, "403"),
    "404": (Said(status=404), Cause.CONFIG, "404"),
    "300 without a place": (Said(status=300), Cause.CONFIG, "300"),
    "302 without a place": (Said(status=302), Cause.CONFIG, "302"),
    "redirect loop": (Said(status=302, headers={"Location": "/"}), Cause.CONFIG, "redirects without end"),
    "redirect to a file": (Said(status=302, headers={"Location": "file:///etc/passwd"}), Cause.CONFIG, "http://"),
    "a body without end": (forever(OK + b"\r\n", bytes(65536)), Cause.CONFIG, "too large"),
    "chunks without end": (
        forever(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + bytes(65536) + b"\r\n"),
        Cause.CONFIG,
        "too large",
    ),
    "headers without end": (forever(OK, b"X-A: " + b"a" * 1000 + b"\r\n"), Cause.CONFIG, "headers"),
    "interim answers without end": (forever(b"", b"HTTP/1.1 103 Hints\r\nA: b\r\n\r\n" * 64), Cause.CONFIG, "headers"),
    "a gzip bomb": (whole(BOMB_BODY, Content_Encoding="gzip"), Cause.CONFIG, "too large when it is unpacked"),
    "empty gzips": (whole(gzip.compress(b"") * 500, Content_Encoding="gzip"), Cause.CONFIG, "too large when"),
    "half a gzip": (whole(gzip.compress(b"[1]" * 99)[:-9], Content_Encoding="gzip"), Cause.NETWORK, "unpacked"),
    "no gzip": (whole(b"[1]", Content_Encoding="gzip"), Cause.NETWORK, "unpacked"),
    "unasked packing": (whole(b"[1]", Content_Encoding="br"), Cause.CONFIG, "not asked for"),
    "not http": (raw(b"220 mail.example.com ESMTP\r\n"), Cause.NETWORK, "not HTTP"),
    "another protocol": (
        raw(b"HTTP/1.1 101 No\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
        Cause.NETWORK,
        "protocol",
    ),
    "nothing": (raw(b""), Cause.NETWORK, "closed"),
    "a cut header": (raw(OK + b"Content-Le"), Cause.NETWORK, "closed"),
    "a cut body": (raw(OK + b"Content-Length: 10\r\n\r\n[1]"), Cause.NETWORK, "closed"),
    "a cut chunk": (raw(OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\n[1]\r\n"), Cause.NETWORK, "closed"),
    "two lengths": (raw(OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n[1] "), Cause.NETWORK, "not HTTP"),
    "length and chunks": (
        raw(OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1]\r\n0\r\n\r\n"),
        Cause.NETWORK,
        "not HTTP",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_answer_has_its_cause(serve: Serve, kind: str) -> None:
    said, cause, words = HOSTILE[kind]
    server = await serve(lambda asked: said)
    error = await failure(server.url, max_body_bytes=1 << 20)
    assert error.cause is cause, error
    assert words in error.message


@pytest.mark.parametrize("kind", ["a body without end", "chunks without end", "a gzip bomb", "headers without end"])
async def test_what_a_hostile_answer_takes_of_memory_is_bounded(serve: Serve, kind: str) -> None:
    said = HOSTILE[kind][0]
    server = await serve(lambda asked: said)
    tracemalloc.start()
    try:
        await failure(server.url, max_body_bytes=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "said",
    [
        forever(OK, b"X", 0.05),
        forever(OK + b"X-A: b\r\n", b"", 0.05),
        forever(OK + b"Content-Length: 100000\r\n\r\n[", b" ", 0.05),
    ],
    ids=["a slow first line", "slow headers", "a slow body"],
)
async def test_an_answer_that_trickles_is_given_up(serve: Serve, said: Said) -> None:
    server = await serve(lambda asked: said)
    error = await failure(server.url, timeout_s=0.3)
    assert isinstance(error, NotConnected)
    assert "no whole answer" in error.message


async def test_a_server_that_does_not_listen_is_away() -> None:
    assert isinstance(await failure(f"http://{HOST}:1"), NotConnected)


async def test_a_name_that_does_not_exist_is_away() -> None:
    assert isinstance(await failure("http://nobody.invalid/"), NotConnected)


async def test_a_wait_that_is_asked_for_is_kept_and_the_page_is_read_then(serve: Serve) -> None:
    """The run continues: the same call brings the page."""
    limits = [Said(status=429, headers={"Retry-After": "7"}), Said(status=503, headers={"Retry-After": "3"})]

    def answer(asked: Asked) -> Said:
        page = int(asked.params["page"])
        return limits.pop() if page == 2 and limits else Said([page] if page < 4 else [])

    server = await serve(answer)
    source = make_source(server.url, paging={"type": "page"})
    await source.open(None)
    await source.read()
    for after_s in (3, 7):
        with pytest.raises(RetryLater) as caught:
            await source.read()
        assert caught.value.after_s == after_s
    assert (await source.read()).position["next"] == 3
    await source.close()


async def test_a_check_says_what_a_read_would(serve: Serve) -> None:
    server = await serve(lambda asked: Said(status=429, headers={"Retry-After": "7"}))
    source = make_source(server.url)
    with pytest.raises(ConnectorError) as caught:
        await source.check()
    assert caught.value.cause is Cause.RATE_LIMIT
    assert not isinstance(caught.value, RetryLater)  # That steers reads and writes only.
    await source.close()


# Circles.


def numbered(asked: Asked) -> Said:
    """The same page, whatever is asked for."""
    return Said({"items": [{"id": 1}, {"id": 2}], "next": "a", "url": "/x?b=1"}, headers={"Link": '</>; rel="next"'})


@pytest.mark.parametrize(
    ("paging", "most"),
    [
        ({"type": "page"}, 2),
        ({"type": "offset"}, 2),
        ({"type": "cursor", "path": "next", "param": "after"}, 2),
        ({"type": "cursor", "path": "url"}, 2),
        ({"type": "link"}, 1),
    ],
)
async def test_a_page_that_repeats_is_one_error_and_no_endless_loop(
    serve: Serve, paging: dict[str, Any], most: int
) -> None:
    server = await serve(numbered)
    error = await failure(server.url, paging=paging, records="items")
    assert error.cause is Cause.CONFIG
    assert "same records" in error.message or "leads back" in error.message
    assert len(server.asked) == most


async def test_a_circle_of_several_pages_is_found(serve: Serve) -> None:
    server = await serve(lambda asked: Said({"items": [1], "next": (int(asked.params.get("after", "0")) + 1) % 5 or 1}))
    error = await failure(server.url, paging={"type": "cursor", "path": "next", "param": "after"}, records="items")
    assert "leads back" in error.message
    assert len(server.asked) == 5


async def test_empty_pages_without_end_are_an_error(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.connectors.http.paging.MOST_EMPTY", 10)
    server = await serve(lambda asked: Said({"items": [], "next": int(asked.params.get("after", "0")) + 1}))
    error = await failure(server.url, paging={"type": "cursor", "path": "next", "param": "after"}, records="items")
    assert "have no records" in error.message


async def test_a_cursor_that_goes_back_is_an_error(serve: Serve) -> None:
    """The server ignores the parameter: everything would come again in every poll."""
    server = await serve(lambda asked: Said([{"at": 5}] if not asked.params else [{"at": 3}, {"at": 4}]))
    options = {"incremental": {"field": "at", "param": "since"}, "interval_s": 0.001}
    error = await failure(server.url, **options)
    assert error.cause is Cause.CONFIG
    assert "went back" in error.message


@pytest.mark.parametrize("next_", [["a"], {"a": 1}, 1.5, True, "x" * 20_000])
async def test_a_cursor_that_is_none_is_an_error(serve: Serve, next_: Any) -> None:
    server = await serve(lambda asked: Said({"items": [1], "next": next_}))
    error = await failure(server.url, paging={"type": "cursor", "path": "next", "param": "after"}, records="items")
    assert error.cause is Cause.BAD_RECORD


@pytest.mark.parametrize("url", ["file:///etc/passwd", "gopher://a/", "http://a b/", "http://x/" + "y" * 20_000])
async def test_a_next_url_that_is_none_is_an_error(serve: Serve, url: str) -> None:
    server = await serve(lambda asked: Said({"items": [1], "next": url}))
    error = await failure(server.url, paging={"type": "cursor", "path": "next"}, records="items")
    assert error.cause is Cause.BAD_RECORD


@pytest.mark.parametrize("format", ["jsonl", "csv"])
async def test_lines_whose_end_nobody_knows_are_not_taken(serve: Serve, format: str) -> None:
    server = await serve(lambda asked: raw(OK + b"\r\na\n1\n"))
    error = await failure(server.url, format=format)
    assert "where its answer ends" in error.message


async def test_json_whose_end_nobody_knows_shows_it_itself(serve: Serve) -> None:
    server = await serve(lambda asked: raw(OK + b"\r\n[1]"))
    source = make_source(server.url)
    await source.open(None)
    assert (await source.read()).records == [1]
    await source.close()


async def test_bytes_that_nobody_asked_for_are_no_answer(serve: Serve) -> None:
    """A second answer behind the first would be taken for that of the next request."""

    async def twice(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"Content-Length: 3\r\n\r\n[1]" + OK + b"X-Bad: 1\r\nContent-Length: 3\r\n\r\n[2]")
        await writer.drain()
        await asyncio.sleep(5)

    server = await serve(lambda asked: Said(raw=twice))
    source = make_source(server.url, interval_s=0.001)
    await source.open(None)
    for _ in range(3):
        assert (await source.read()).records == [1]
    assert server.connections == 3
    await source.close()


# Redirects and other hosts.


def only(*ports: int) -> Guard:
    rules = tuple(AddressRule(network=ip_network(HOST), port=port) for port in ports)
    return Guard((Bound(Reach(addresses=rules)),))


@pytest.fixture
async def pair() -> AsyncIterator[tuple[HttpServer, HttpServer]]:
    """One that the document names, and another."""
    other = await HttpServer(lambda asked: Said([sorted(asked.headers)])).start()
    server = await HttpServer(lambda asked: Said(status=307, headers={"Location": f"{other.url}/there"})).start()
    yield server, other
    await server.close()
    await other.close()


CREDENTIALS: dict[str, Any] = {
    "auth": {"type": "bearer", "token": "s3cret"},
    "headers": {"X-Api-Key": "s3cret", "Cookie": "s3cret"},
}


async def test_every_redirect_goes_past_the_guard(pair: tuple[HttpServer, HttpServer]) -> None:
    server, other = pair
    error = await failure(server.url, only(server.port))
    assert isinstance(error, OutOfReach)
    assert error.cause is Cause.CONFIG
    assert other.connections == 0


async def test_a_next_page_goes_past_the_guard_too(pair: tuple[HttpServer, HttpServer]) -> None:
    server, other = pair
    server.answer = lambda asked: Said([1], headers={"Link": f'<{other.url}/2>; rel="next"'})
    error = await failure(server.url, only(server.port), paging={"type": "link"})
    assert isinstance(error, OutOfReach)
    assert other.connections == 0


@pytest.mark.parametrize("way", ["redirect", "page"])
async def test_credentials_are_not_sent_to_another_host(pair: tuple[HttpServer, HttpServer], way: str) -> None:
    server, other = pair
    if way == "page":
        server.answer = lambda asked: Said([1], headers={"Link": f'<{other.url}/2>; rel="next"'})
    source = make_source(server.url, only(server.port, other.port), **CREDENTIALS, paging={"type": "link"})
    await source.open(None)
    if way == "page":
        await source.read()
    await source.read()
    await source.close()
    [asked] = other.asked
    assert "s3cret" not in repr(asked)
    assert "s3cret" in repr(server.asked[0])


async def test_a_redirect_within_the_host_keeps_what_was_said(serve: Serve) -> None:
    server = await serve(
        lambda asked: Said(status=301, headers={"Location": "/new?a=1"}) if asked.path == "/" else Said([1])
    )
    source = make_source(server.url, **CREDENTIALS)
    await source.open(None)
    assert (await source.read()).records == [1]
    await source.close()
    assert server.asked[1].headers["authorization"] == "Bearer s3cret"
    assert server.asked[1].params == {"a": "1"}


async def test_a_key_in_the_query_does_not_go_to_another_host(pair: tuple[HttpServer, HttpServer]) -> None:
    server, other = pair
    source = make_source(server.url, auth={"type": "query", "name": "key", "value": "s3cret"})
    await source.open(None)
    await source.read()
    await source.close()
    assert server.asked[0].params == {"key": "s3cret"}
    assert other.asked[0].params == {}


async def test_a_redirect_that_would_lose_a_body_is_an_error(serve: Serve) -> None:
    server = await serve(lambda asked: Said(status=302, headers={"Location": "/new"}))
    error = await failure(server.url, method="POST", body={"a": 1})
    assert error.cause is Cause.CONFIG
    assert "lose its body" in error.message
    assert len(server.asked) == 1


class Rebinding(Guard):
    """A name that points elsewhere each time that it is asked for."""

    addresses: list[str]

    async def resolve(self, host: str, port: int) -> list[str]:
        return [self.addresses.pop(0)]


async def test_a_name_is_resolved_once_and_its_name_is_what_the_server_hears(serve: Serve) -> None:
    server = await serve(lambda asked: Said([asked.headers["host"]]))
    guard = Rebinding()
    object.__setattr__(guard, "addresses", [HOST])  # A second question would find none.
    source = make_source(f"http://api.example.test:{server.port}/", guard)
    await source.open(None)
    assert (await source.read()).records == [f"api.example.test:{server.port}"]
    await source.close()


async def test_a_redirect_leads_no_deeper_into_the_network(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first server is on the internet, as far as the client can know."""
    server = await serve(lambda asked: Said(status=302, headers={"Location": "http://169.254.169.254/latest/"}))
    monkeypatch.setattr(
        "headgate.connectors.http.client.depth_of",
        lambda address: Depth.PUBLIC if address == HOST else depth_of(address),
    )
    error = await failure(server.url)
    assert error.cause is Cause.CONFIG
    assert "169.254.169.254" in error.message


# TLS.


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[tuple[HttpServer, str]]]]:
    authority = Authority(tmp_path)
    servers = []

    async def start(*hosts: str) -> tuple[HttpServer, str]:
        pair = authority.sign("server", *hosts)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        servers.append(await HttpServer(lambda asked: Said([1])).start(tls=context))
        return servers[-1], str(authority.file)

    yield start
    for server in servers:
        await server.close()


async def test_a_certificate_is_accepted_by_the_authority_that_is_named(secure: Any) -> None:
    server, authority = await secure(HOST)
    source = make_source(server.url, ca_file=authority)
    await source.open(None)
    assert (await source.read()).records == [1]
    await source.close()
    error = await failure(server.url)
    assert error.cause is Cause.CONFIG
    assert "certificate" in error.message


async def test_the_name_in_the_url_is_what_a_certificate_must_be_for(secure: Any) -> None:
    """Although the connection goes to an address that the guard has found."""
    server, authority = await secure("api.example.test")
    guard = Rebinding()
    object.__setattr__(guard, "addresses", [HOST])
    source = make_source(f"https://api.example.test:{server.port}/", guard, ca_file=authority)
    await source.open(None)
    assert (await source.read()).records == [1]
    await source.close()
    object.__setattr__(guard, "addresses", [HOST])
    error = await failure(f"https://other.example.test:{server.port}/", guard, ca_file=authority)
    assert error.cause is Cause.CONFIG
    assert "certificate" in error.message


async def test_a_server_without_tls_is_no_server_with_it(serve: Serve) -> None:
    server = await serve(lambda asked: Said([1]))
    error = await failure(server.url.replace("http:", "https:"), timeout_s=0.5)
    assert isinstance(error, NotConnected)


# The sink's side of it.


async def test_a_sink_does_not_read_what_a_server_has_to_say(serve: Serve) -> None:
    server = await serve(lambda asked: forever(OK + b"\r\n", bytes(65536)))
    sink = HttpSink(HttpSinkOptions(url=server.url, timeout_s=5.0), make_context())
    await sink.open(make_grant())
    await asyncio.wait_for(sink.write(Outgoing([{"id": 1}], Progress())), 20)
    await sink.close()
