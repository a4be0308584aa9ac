"""The overview: one reading serves all who look, and what is sent is what changed. Who does not read is cut off."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
import uvicorn

from headgate.core.access import ANYONE, Bounds, Caller
from headgate.core.figures import Figures
from headgate.errors import StoreError
from headgate.web import sse
from headgate.web.bodies.datasources import Overview, Share, Summary
from headgate.web.doors import asgi
from headgate.web.doors.asgi import Receive, Scope, Send, impatient
from headgate.web.overview import Overviews, Snapshot
from tests.waiting import LONG_S, until

BOUND = Caller(None, "bound", "viewer", Bounds(("orders-*",)))


def summary(name: str, written: int = 0) -> Summary:
    return Summary(
        id=f"id-{name}",
        name=name,
        enabled=True,
        paused=False,
        health="ok",
        why="",
        worker_status="RUNNING",
        detail="running",
        published_version=1,
        running_version=1,
        published_status="published",
        has_draft=False,
        source_type="generator",
        sink_type="blackhole",
        metrics=Figures(records_written=written),
        error=None,
        node="alpha",
        quarantine=None,
        reason=None,
    )


def overview(*summaries: Summary, streams: int = 1) -> Overview:
    return Overview(datasources=list(summaries), nodes=[Share(name="alpha", streams=streams)], at_s=1.5)


def said(event: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(event.removeprefix(b"data: "))
    return found


def names(event: bytes) -> list[str]:
    return [one["name"] for one in said(event)["datasources"]]


class Reading:
    """An overview that counts how often it was read."""

    def __init__(self) -> None:
        self.times = 0
        self.fails = False
        self.rows = [summary("orders"), summary("returns")]

    async def __call__(self) -> Overview:
        self.times += 1
        if self.fails:
            raise StoreError("the database is away")
        return overview(*self.rows)


# What one snapshot says.


async def test_what_differs_is_sent_and_nothing_else() -> None:
    first = await Snapshot.take(overview(summary("orders"), summary("returns"), summary("quotes")), None)
    second = await Snapshot.take(overview(summary("orders", 7), summary("returns"), summary("new")), first)
    event = said(second.event(first.number, ANYONE))
    assert [(one["name"], one["metrics"]["records_written"]) for one in event["datasources"]] == [
        ("orders", 7),
        ("new", 0),
    ]
    assert (event["is_whole"], event["gone"]) == (False, ["id-quotes"])


async def test_who_has_missed_a_snapshot_gets_all_of_it() -> None:
    first = await Snapshot.take(overview(summary("orders"), summary("returns")), None)
    second = await Snapshot.take(overview(summary("orders", 7), summary("returns")), first)
    third = await Snapshot.take(overview(summary("orders", 7), summary("returns", 1)), second)
    for seen in (None, first.number):
        assert names(third.event(seen, ANYONE)) == ["orders", "returns"]
        assert said(third.event(seen, ANYONE))["is_whole"]
    assert names(third.event(second.number, ANYONE)) == ["returns"]


async def test_where_nothing_differs_only_a_sign_of_life_is_sent() -> None:
    first = await Snapshot.take(overview(summary("orders")), None)
    second = await Snapshot.take(overview(summary("orders")), first)
    assert second.event(first.number, ANYONE) == sse.ALIVE
    third = await Snapshot.take(overview(summary("orders"), streams=2), second)
    assert said(third.event(second.number, ANYONE))["nodes"] == [
        {"name": "alpha", "streams": 2, "registry_problem": None}
    ]


async def test_what_may_not_be_seen_is_neither_shown_nor_said_to_change_nor_to_be_gone() -> None:
    first = await Snapshot.take(overview(summary("orders-de"), summary("salaries")), None)
    assert names(first.event(None, BOUND)) == ["orders-de"]
    second = await Snapshot.take(overview(summary("orders-de"), summary("salaries", 5)), first)
    assert second.event(first.number, BOUND) == sse.ALIVE
    third = await Snapshot.take(overview(summary("orders-de")), second)
    assert third.event(second.number, BOUND) == sse.ALIVE
    assert said(third.event(second.number, ANYONE))["gone"] == ["id-salaries"]


async def test_all_who_see_the_same_get_the_same_bytes() -> None:
    first = await Snapshot.take(overview(summary("orders")), None)
    second = await Snapshot.take(overview(summary("orders", 1)), first)
    assert second.event(None, ANYONE) is second.event(None, ANYONE)
    assert second.event(first.number, ANYONE) is second.event(first.number, ANYONE)
    assert second.event(None, BOUND) is not second.event(None, ANYONE)


async def test_a_snapshot_of_many_lets_others_have_the_loop() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await Snapshot.take(overview(*(summary(f"ds-{number}") for number in range(2000))), None)
    counting.cancel()
    assert turns >= 9


# Who looks, and when it is read.


async def test_fifty_who_look_cost_one_reading_a_turn() -> None:
    reading = Reading()
    overviews = Overviews(reading, every_s=0.01)

    async def look() -> list[bytes]:
        async with aclosing(overviews.events(ANYONE)) as events:
            return [await anext(events) for _ in range(5)]

    found = await asyncio.gather(*(look() for _ in range(50)))
    assert reading.times <= 6
    assert {id(events[0]) for events in found} == {id(found[0][0])}
    assert found[0][1:] == [sse.ALIVE] * 4


async def test_nothing_is_read_while_nobody_looks() -> None:
    reading = Reading()
    overviews = Overviews(reading, every_s=0.001)
    assert reading.times == 0
    await overviews.latest()
    await until(lambda: overviews._reading is None)
    before = reading.times
    await asyncio.sleep(0.02)
    assert reading.times == before
    assert names(b"data: " + (await overviews.latest()).whole(ANYONE)) == ["orders", "returns"]


async def test_while_the_database_is_away_nothing_is_sent_and_then_it_goes_on() -> None:
    reading = Reading()
    overviews = Overviews(reading, every_s=0.001)
    async with aclosing(overviews.events(ANYONE)) as events:
        await anext(events)
        reading.fails = True
        following = asyncio.ensure_future(anext(events))
        before = reading.times
        await until(lambda: reading.times > before + 3)
        assert not following.done()
        reading.rows, reading.fails = [summary("orders", 3), summary("returns")], False
        assert names(await following) == ["orders"]


# Who does not read.


@asynccontextmanager
async def serving(app: Callable[[Scope, Receive, Send], Any]) -> AsyncIterator[tuple[str, int]]:
    """The server that nodes have, around one ASGI application."""
    server = uvicorn.Server(uvicorn.Config(app, http="httptools", lifespan="off", log_level="error", port=0))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        task = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield listening.getsockname()
        finally:
            server.should_exit = server.force_exit = True
            await task


async def test_a_caller_that_does_not_read_is_cut_off_and_holds_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "SLOW_S", 0.2)
    sent, over = 0, asyncio.Event()
    transports: list[asyncio.Transport] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        transports.append(send.__self__.transport)  # type: ignore[attr-defined]
        send = impatient(send)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not transports[0].is_closing():
            sent += 1
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        over.set()

    async with serving(app) as address, asyncio.timeout(LONG_S):
        _, writer = await asyncio.open_connection(*address, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await over.wait()
        assert transports[0].get_write_buffer_size() == 0
        assert sent < 200  # What sockets hold, and two more.
        writer.close()


async def test_a_caller_that_reads_slowly_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "SLOW_S", 0.2)
    monkeypatch.setattr(asgi, "LEAST_BYTES", 1)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        send = impatient(send)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        for _ in range(100):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with serving(app) as address, asyncio.timeout(LONG_S):
        reader, writer = await asyncio.open_connection(*address, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        found = 0
        while piece := await reader.read(400_000):
            found += piece.count(b"x")
            await asyncio.sleep(0.005)
        writer.close()
    assert found >= 100 * 100_000
