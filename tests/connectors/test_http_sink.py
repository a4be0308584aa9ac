"""The HTTP sink: what is sent, what a status makes of it, and that nothing is sent twice without need."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar
from uuid import UUID

import pytest

from headgate.connectors.api import Outgoing, Progress, Sink
from headgate.connectors.http.options import HttpSinkOptions
from headgate.connectors.http.sink import HttpSink
from headgate.errors import BadRecords, BatchRefused, Cause, ConnectorError, NotConnected, RetryLater
from headgate.runtime.streams.batches import part_of, search
from headgate.testing.contract import SinkContract
from headgate.testing.factories import make_context, make_grant
from tests.connectors.http_server import Asked, HttpServer, Said, Serve, serve

__all__ = ["serve"]  # A fixture.


def make_sink(server: HttpServer, path: str = "/orders", **options: Any) -> HttpSink:
    if "delete_url" in options:
        options["delete_url"] = server.url + options["delete_url"]
    return HttpSink(HttpSinkOptions(url=server.url + path, **{"timeout_s": 10.0, **options}), make_context())


async def opened(server: HttpServer, path: str = "/orders", **options: Any) -> HttpSink:
    sink = make_sink(server, path, **options)
    await sink.open(make_grant())
    return sink


def outgoing(*records: dict[str, Any], commits: int = 1, **more: Any) -> Outgoing:
    """Records whose places are their ids, as a source with offsets has them."""
    places = [str(record.get("id")) for record in records]
    return Outgoing(
        list(records), Progress(commits=commits), **{"key": ("id",), "places": lambda index: places[index], **more}
    )


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": id} for id in ids]


class Keeping:
    """Keeps what it is sent; some ids are answered otherwise."""

    def __init__(self, **refused: int) -> None:
        self.kept: list[Any] = []
        self.refused = {int(id[1:]): status for id, status in refused.items()}
        self.headers: dict[str, str] = {}

    def __call__(self, asked: Asked) -> Said:
        lines = asked.body.splitlines() if "ndjson" in asked.headers.get("content-type", "") else []
        found = [json.loads(line) for line in lines] if lines else asked.json
        records = found if isinstance(found, list) else [found]
        for record in records:
            if status := self.refused.get(record["id"]):
                return Said({"error": "a value"}, status, self.headers)
        self.kept += records
        return Said(status=201)

    @property
    def ids(self) -> list[int]:
        return [record["id"] for record in self.kept]


class _Contract(SinkContract):
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    async def server(self) -> AsyncIterator[None]:
        self._keeping = Keeping()
        self._server = await HttpServer(self._keeping).start()
        yield
        await self._server.close()

    def make_sink(self) -> Sink:
        return make_sink(self._server, **self.options)

    async def read_back(self) -> list[dict[str, Any]] | None:
        return sorted(self._keeping.kept, key=lambda record: int(record["id"]))


class TestHttpSink(_Contract):
    """One by one."""


class TestHttpBatchSink(_Contract):
    """A few at a time, and out of order."""

    options: ClassVar[dict[str, Any]] = {"batch": 4, "format": "jsonl", "in_flight": 3}


# What is sent.


async def test_one_by_one_in_order_with_the_fields_in_the_url(serve: Serve) -> None:
    server = await serve(Keeping())
    sink = await opened(server, "/orders/{id}?by={name}", method="PUT", headers={"X-A": "b"})
    await sink.write(outgoing({"id": 1, "name": "a/../b&c=d"}, {"id": 2, "name": "ä"}))
    await sink.close()
    assert [(asked.method, asked.path, asked.params) for asked in server.asked] == [
        ("PUT", "/orders/1", {"by": "a/../b&c=d"}),
        ("PUT", "/orders/2", {"by": "ä"}),
    ]
    assert server.asked[0].json == {"id": 1, "name": "a/../b&c=d"}
    assert server.asked[0].headers["x-a"] == "b"
    assert server.asked[0].headers["content-type"] == "application/json"
    assert server.connections == 1


@pytest.mark.parametrize(
    ("options", "bodies"),
    [
        ({"batch": 2}, [b'[{"id":1},{"id":2}]', b'[{"id":3}]']),
        ({"batch": 2, "format": "jsonl"}, [b'{"id":1}\n{"id":2}\n', b'{"id":3}\n']),
        ({"batch": 9, "batch_bytes": 12}, [b'[{"id":1}]', b'[{"id":2}]', b'[{"id":3}]']),
    ],
)
async def test_several_in_a_request(serve: Serve, options: dict[str, Any], bodies: list[bytes]) -> None:
    server = await serve(Keeping())
    sink = await opened(server, **options)
    await sink.write(outgoing(*rows(1, 2, 3)))
    await sink.close()
    assert [asked.body for asked in server.asked] == bodies


async def test_deletions_are_sent_in_their_order(serve: Serve) -> None:
    server = await serve(lambda asked: Said(status=404 if asked.method == "DELETE" else 200))
    sink = await opened(server, batch=10, delete_url="/orders/{id}")
    await sink.write(outgoing(*rows(1, 2, 3, 4), deletes=(1, 2)))
    await sink.close()
    sent = [(asked.method, asked.path, asked.body) for asked in server.asked]
    assert sent == [
        ("POST", "/orders", b'[{"id":1}]'),
        ("DELETE", "/orders/2", b""),
        ("DELETE", "/orders/3", b""),
        ("POST", "/orders", b'[{"id":4}]'),
    ]


async def test_records_that_cannot_stand_in_the_url_are_named_before_anything_is_sent(serve: Serve) -> None:
    server = await serve(Keeping())
    sink = await opened(server, "/orders/{id}")
    with pytest.raises(BadRecords) as caught:
        await sink.write(outgoing({"id": 1}, {"id": ".."}, {"other": 2}))
    assert [(bad.index, bad.field) for bad in caught.value.bad] == [(1, "id"), (2, "id")]
    assert server.asked == []
    await sink.close()


async def test_several_requests_at_a_time(serve: Serve) -> None:
    """All are under way before one is answered, and no more than that."""
    waiting: list[asyncio.Future[None]] = []
    most = 0

    async def answer(writer: asyncio.StreamWriter) -> None:
        nonlocal most
        waiting.append(asyncio.get_running_loop().create_future())
        most = max(most, len(waiting))
        if len(waiting) == 3:
            for one in waiting:
                one.set_result(None)
            waiting.clear()
        else:
            await waiting[-1]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()

    server = await serve(lambda asked: Said(raw=answer))
    sink = await opened(server, in_flight=3)
    await asyncio.wait_for(sink.write(outgoing(*rows(*range(9)))), 90)
    await sink.close()
    assert most == 3
    assert len(server.asked) == 9


# What a status makes of it.


@pytest.mark.parametrize(
    ("status", "headers", "kind", "cause"),
    [
        (401, {}, ConnectorError, Cause.AUTH),
        (403, {}, ConnectorError, Cause.AUTH),
        (404, {}, ConnectorError, Cause.CONFIG),
        (405, {}, ConnectorError, Cause.CONFIG),
        (302, {"Location": "/there"}, ConnectorError, Cause.CONFIG),
        (304, {}, ConnectorError, Cause.CONFIG),
        (408, {}, NotConnected, Cause.NETWORK),
        (425, {}, NotConnected, Cause.NETWORK),
        (429, {}, ConnectorError, Cause.RATE_LIMIT),
        (429, {"Retry-After": "9"}, RetryLater, Cause.RATE_LIMIT),
        (500, {}, NotConnected, Cause.NETWORK),
        (503, {"Retry-After": "9"}, RetryLater, Cause.RATE_LIMIT),
    ],
)
async def test_a_status_steers_the_worker(
    serve: Serve, status: int, headers: dict[str, str], kind: type[Exception], cause: Cause
) -> None:
    server = await serve(lambda asked: Said(b"a value", status, headers))
    sink = await opened(server)
    with pytest.raises(ConnectorError) as caught:
        await sink.write(outgoing(*rows(1, 2)))
    assert type(caught.value) is kind
    assert caught.value.cause is cause
    assert "a value" not in caught.value.message
    assert len(server.asked) == 1  # The second is not tried.
    await sink.close()


async def test_a_refused_record_is_named_with_its_status_and_its_neighbours_are_sent_once(serve: Serve) -> None:
    keeping = Keeping(_2=422, _4=400)
    server = await serve(keeping)
    sink = await opened(server)
    batch = outgoing(*rows(1, 2, 3, 4, 5))
    with pytest.raises(BadRecords) as caught:
        await sink.write(batch)
    assert [(bad.index, str(bad)) for bad in caught.value.bad] == [
        (1, "the server answered 422 Unprocessable Entity"),
        (3, "the server answered 400 Bad Request"),
    ]
    await sink.write(part_of(batch, [0, 2, 4]))  # As the worker does.
    assert keeping.ids == [1, 3, 5]
    await sink.close()


async def test_a_url_with_a_field_that_is_not_there_is_the_records_fault(serve: Serve) -> None:
    server = await serve(lambda asked: Said(status=404))
    sink = await opened(server, "/orders/{id}")
    with pytest.raises(BadRecords, match="404"):
        await sink.write(outgoing(*rows(1)))
    await sink.close()


async def test_a_refused_batch_is_found_by_halves_and_nothing_is_sent_twice(serve: Serve) -> None:
    keeping = Keeping(_7=422, _12=413)
    server = await serve(keeping)
    sink = await opened(server, batch=4)
    batch = outgoing(*rows(*range(16)))
    with pytest.raises(BatchRefused) as caught:
        await sink.write(batch)
    bad, is_written = await search(sink, batch, caught.value, sink.write, rehearses=False)
    assert is_written
    assert [(one.index, one.reason) for one in bad] == [
        (7, "the server answered 422 Unprocessable Entity"),
        (12, "the server answered 413 Request Entity Too Large"),
    ]
    assert keeping.ids == [id for id in range(16) if id not in (7, 12)]
    await sink.close()


async def test_a_pause_in_the_middle_goes_on_where_it_was(serve: Serve) -> None:
    keeping = Keeping(_3=429)
    keeping.headers = {"Retry-After": "1"}
    server = await serve(keeping)
    sink = await opened(server)
    batch = outgoing(*rows(1, 2, 3, 4))
    with pytest.raises(RetryLater):
        await sink.write(batch)
    keeping.refused.clear()
    await sink.write(batch)
    assert keeping.ids == [1, 2, 3, 4]
    await sink.write(outgoing(*rows(1), commits=2))  # Another batch may have the same record.
    assert keeping.ids == [1, 2, 3, 4, 1]
    await sink.close()


# Keys.


def keys(server: HttpServer) -> list[str]:
    return [asked.headers["idempotency-key"] for asked in server.asked]


async def test_the_same_records_have_the_same_key_however_they_are_cut_and_whoever_sends_them(serve: Serve) -> None:
    server = await serve(Keeping())
    first = await opened(server)
    await first.write(outgoing(*rows(1, 2, 3)))
    await first.close()
    second = make_sink(server)
    await second.open(make_grant(epoch=9))
    await second.write(outgoing(*rows(2), commits=1))
    await second.write(outgoing(*rows(3, 4), commits=2))
    await second.close()
    found = keys(server)
    assert found[:3] == [found[0], *found[3:5]]
    assert len(set(found)) == 4


async def test_what_differs_has_another_key(serve: Serve) -> None:
    server = await serve(lambda asked: Said())
    sink = await opened(server, delete_url="/orders/{id}")
    await sink.write(outgoing({"id": 1}))
    await sink.write(outgoing({"id": 1, "a": 2}, commits=2))  # The content.
    await sink.write(outgoing({"id": 1}, commits=3, places=lambda index: "elsewhere"))
    await sink.write(outgoing({"id": 1}, commits=4, deletes=(0,)))
    await sink.write(Outgoing([{"id": 1}], Progress(generation=1), places=lambda index: "1"))
    await sink.write(Outgoing([{"id": 1}, {"id": 1}], Progress(commits=6), places=lambda index: "9"))  # Twice the same.
    await sink.write(Outgoing([{"id": 1}], Progress(commits=7), replays=[UUID(int=1)]))
    await sink.close()
    other = make_sink(server)
    await other.open(make_grant("other"))
    await other.write(outgoing({"id": 1}))
    await other.close()
    assert len(set(keys(server))) == len(server.asked) == 9


async def test_a_batch_that_is_sent_again_has_its_key(serve: Serve) -> None:
    server = await serve(Keeping())
    for _ in range(2):
        sink = await opened(server, batch=2, idempotency_header="X-Request-Id")
        await sink.write(outgoing(*rows(1, 2, 3)))
        await sink.close()
    found = [asked.headers["x-request-id"] for asked in server.asked]
    assert found[:2] == found[2:]
    assert found[0] != found[1]
    sink = await opened(server, idempotency_header=None)
    await sink.write(outgoing(*rows(1)))
    await sink.close()
    assert "idempotency-key" not in server.asked[-1].headers


# Away.


async def test_a_sink_that_is_away_is_noticed_when_it_is_opened() -> None:
    server = await HttpServer(Keeping()).start()
    sink = make_sink(server)
    await server.close()
    with pytest.raises(NotConnected):
        await sink.open(make_grant())
    await sink.close()


async def test_a_check_sends_nothing(serve: Serve) -> None:
    server = await serve(Keeping())
    sink = make_sink(server)
    await sink.check()
    await sink.close()
    assert server.asked == []
