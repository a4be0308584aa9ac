"""The overview: one reading serves all who look, and what is sent is what changed. Who does not read is cut off."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec
import pytest
import uvicorn

from headgate.core.access import ANYONE, Bounds, Caller
from headgate.core.figures import Figures
from headgate.errors import StoreError
from headgate.web import sse
from headgate.web.bodies.datasources import Overview, Share, Summary
from headgate.web.doors import asgi
from headgate.web.doors.asgi import Receive, Scope, Send, impatient
from headgate.web.overview import SHOWN, Overviews, Snapshot
from headgate.web.windows import MOST_KEPT, Window
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
        labels=[],
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
    new = summary("new")
    second = await Snapshot.take(overview(summary("orders", 7), summary("returns"), new), first)
    event = said(second.event(first.number, ANYONE))
    orders, added = event["datasources"]
    assert orders == {"name": "orders", "metrics": {"records_written": 7}}
    assert added["id"] == "id-new"
    assert added.keys() == set(Summary.__struct_fields__)
    assert (event["is_whole"], event["gone"]) == (False, ["quotes"])


async def test_another_datasource_of_the_same_name_is_told_by_what_differs() -> None:
    first = await Snapshot.take(overview(summary("orders", 7)), None)
    again = msgspec.structs.replace(summary("orders"), id="id-again", health="starting")
    second = await Snapshot.take(overview(again), first)
    event = said(second.event(first.number, ANYONE))
    changed = {"name": "orders", "id": "id-again", "health": "starting", "metrics": {"records_written": 0}}
    assert (event["datasources"], event["gone"]) == ([changed], [])


async def test_figures_that_lists_do_not_show_are_not_sent() -> None:
    busy = Figures(records_written=1, batches=7, bytes_in=100, write_s=0.5, last_write_s=0.1, last_hour=7)
    quiet = Figures(records_written=1)
    first = await Snapshot.take(overview(msgspec.structs.replace(summary("orders"), metrics=quiet)), None)
    assert set(said(first.event(None, ANYONE))["datasources"][0]["metrics"]) == set(SHOWN)
    second = await Snapshot.take(overview(msgspec.structs.replace(summary("orders"), metrics=busy)), first)
    assert second.event(first.number, ANYONE) == sse.ALIVE


def moving(second: int) -> Overview:
    """Many datasources, each of which has written a record since the second before."""
    now_s, read = 1_794_951_578.0 + second, 1000 + second
    return overview(
        *(
            msgspec.structs.replace(
                summary(f"steady-{number}"),
                id=str(uuid5(NAMESPACE_OID, str(number))),
                metrics=Figures(
                    read, read, last_record_at_s=now_s + number * 0.777 % 1, batches=read, write_s=read / 7
                ),
            )
            for number in range(300)
        )
    )


async def test_many_that_move_cost_a_few_bytes_each() -> None:
    first = await Snapshot.take(moving(0), None)
    second = await Snapshot.take(moving(1), first)
    event = second.event(first.number, ANYONE)
    assert len(said(event)["datasources"]) == 300
    assert len(event) < 300 * 120
    assert len(second.event(first.number, ANYONE, zipped=True)) < 300 * 20


async def test_zipped_events_are_the_same_for_all_wherever_they_began() -> None:
    first = await Snapshot.take(moving(0), None)
    second = await Snapshot.take(moving(1), first)
    third = await Snapshot.take(overview(summary("orders")), second)
    for seen in ([None, first.number, second.number], [None, second.number]):
        snapshots = [first, second, third][-len(seen) :]
        plain = b"".join(one.event(number, ANYONE) for one, number in zip(snapshots, seen, strict=True))
        zipped = [one.event(number, ANYONE, zipped=True) for one, number in zip(snapshots, seen, strict=True)]
        packed = zlib.decompressobj(wbits=31)
        assert packed.decompress(sse.ZIPPED_HEAD + b"".join(zipped)) == plain
    assert third.event(second.number, ANYONE, zipped=True) is third.event(second.number, ANYONE, zipped=True)


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
    assert said(third.event(second.number, ANYONE))["gone"] == ["salaries"]


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
    overviews = Overviews(reading, every_s=0.1)  # Long enough for all fifty to have seen one before the next.

    async def look() -> list[bytes]:
        async with aclosing(overviews.events(ANYONE)) as events:
            return [await anext(events) for _ in range(5)]

    found = await asyncio.gather(*(look() for _ in range(50)))
    assert reading.times <= 6
    assert {id(events[0]) for events in found} == {id(found[0][0])}
    assert found[0][1:] == [sse.ALIVE] * 4


async def test_nothing_is_read_while_nobody_looks() -> None:
    reading = Reading()
    overviews = Overviews(reading, every_s=0.001, linger_s=0.0)
    assert reading.times == 0
    await overviews.latest()
    await until(lambda: overviews._reading is None)
    before = reading.times
    await asyncio.sleep(0.02)
    assert reading.times == before
    assert names(b"data: " + (await overviews.latest()).whole(ANYONE)) == ["orders", "returns"]


async def test_who_comes_after_a_quiet_time_gets_what_was_read_last_at_once_and_then_what_is() -> None:
    reading = Reading()
    overviews = Overviews(reading, every_s=0.001, linger_s=0.0)
    keeping = asyncio.create_task(overviews.keep())
    await until(lambda: overviews._last is not None)
    keeping.cancel()
    reading.rows = [summary("later")]
    kept = await overviews.soon(0.0)
    assert kept is not None
    assert sorted(row["name"] for row in kept.windows.rows(ANYONE, Window())) == ["orders", "returns"]
    assert names(b"data: " + (await overviews.latest()).whole(ANYONE)) == ["later"]
    assert overviews._last is kept or overviews._reading is not None
    kept.taken_at_s -= 10_000.0
    await until(lambda: overviews._reading is None)
    assert overviews._last is not kept


async def test_what_is_too_old_is_not_shown() -> None:
    overviews = Overviews(Reading(), every_s=0.001, linger_s=0.0)
    overviews._last = await Snapshot.take(overview(summary("old")), None)
    overviews._last.taken_at_s -= 10_000.0
    found = await overviews.soon(LONG_S)
    assert found is not None
    assert [row["name"] for row in found.windows.rows(ANYONE, Window())] != ["old"]


async def test_while_the_database_is_away_streams_end_and_who_asks_again_is_told_so() -> None:
    reading = Reading()
    overviews = Overviews(reading, every_s=0.001)
    async with aclosing(overviews.events(ANYONE)) as events:
        await anext(events)
        reading.fails = True
        with pytest.raises(StopAsyncIteration):
            while True:
                await anext(events)
    with pytest.raises(StoreError):
        await overviews.latest()
    reading.rows, reading.fails = [summary("orders", 3), summary("returns")], False
    assert names(b"data: " + (await _latest(overviews)).whole(ANYONE)) == ["orders", "returns"]


async def _latest(overviews: Overviews) -> Snapshot:
    async with asyncio.timeout(LONG_S):
        while True:
            with contextlib.suppress(StoreError):
                return await overviews.latest()


async def test_a_reading_that_fails_once_ends_nothing() -> None:
    reading = Reading()

    async def flaky() -> Overview:
        reading.fails = reading.times == 2
        return await reading()

    overviews = Overviews(flaky, every_s=0.001)
    async with aclosing(overviews.events(ANYONE)) as events:
        for _ in range(5):
            await anext(events)
    assert reading.times > 3


# What a page shows.


def ill(name: str, health: str, **figures: Any) -> Summary:
    return msgspec.structs.replace(summary(name), health=health, metrics=Figures(**figures), labels=["team:a"])


async def test_a_window_has_the_worst_first_and_no_more_than_it_shows() -> None:
    rows = [summary(f"ds-{number:04}") for number in range(3000)]
    found = await Snapshot.take(overview(*rows, ill("zulu", "error", written_per_s=2.0)), None)
    window = json.loads(found.windows.text(ANYONE, Window(limit=3)))
    assert window["order"] == ["zulu", "ds-0000", "ds-0001"]
    assert [one["name"] for one in window["rows"]] == window["order"]
    assert (window["matching"], window["counts"]["ok"], window["written_per_s"]) == (3001, 3000, 2.0)
    assert len(found.windows.text(ANYONE, Window())) < 40_000

    def order(**wish: Any) -> list[str]:
        found_names: list[str] = json.loads(found.windows.text(ANYONE, Window(**wish)))["order"]
        return found_names

    assert order(search="ds-299 generator", limit=2) == ["ds-2990", "ds-2991"]
    assert order(search="TEAM:A") == ["zulu"]
    assert order(health="error") == ["zulu"]
    assert order(search="nothing like it") == []
    assert order(order="rate", limit=1) == ["zulu"]
    assert order(order="name", limit=1) == ["ds-0000"]


async def test_in_a_window_only_what_it_shows_is_told() -> None:
    window = Window(limit=2)
    first = await Snapshot.take(overview(summary("a"), summary("b"), summary("c")), None)
    assert said(first.windows.event(ANYONE, window, is_next=False))["order"] == ["a", "b"]
    second = await Snapshot.take(overview(summary("a", 7), summary("b"), summary("c", 9)), first)
    event = said(second.windows.event(ANYONE, window, is_next=True))
    assert (event["order"], event["rows"]) == (None, [{"name": "a", "metrics": {"records_written": 7}}])
    third = await Snapshot.take(overview(summary("a", 7), summary("b"), ill("c", "error")), second)
    event = said(third.windows.event(ANYONE, window, is_next=True))
    assert event["order"] == ["c", "a"]
    assert [set(one) == set(Summary.__struct_fields__) for one in event["rows"]] == [True]
    fourth = await Snapshot.take(overview(summary("a", 7), summary("b", 1), ill("c", "error")), third)
    assert fourth.windows.event(ANYONE, window, is_next=True) == sse.ALIVE
    assert fourth.windows.event(ANYONE, window, is_next=True) is fourth.windows.event(ANYONE, window, is_next=True)


async def test_whatever_is_searched_for_a_snapshot_keeps_little_and_the_next_finds_what_has_changed() -> None:
    first = await Snapshot.take(overview(summary("a"), summary("b")), None)
    for number in range(3 * MOST_KEPT):
        first.windows.text(ANYONE, Window(search=f"a {number}"))
    assert len(first.windows._texts) <= MOST_KEPT >= len(first.windows._drawn)
    ran = Window(search="alpha " * 30)
    assert said(first.windows.event(ANYONE, ran, is_next=False))["order"] == ["a", "b"]
    moved = msgspec.structs.replace(summary("b"), node="beta")
    second = await Snapshot.take(overview(summary("a"), moved), first)
    assert said(second.windows.event(ANYONE, ran, is_next=True))["order"] == ["a"]
    forgotten = said(second.windows.event(ANYONE, Window(search="a 0"), is_next=True))
    assert forgotten["order"] == []
    unknown = said(second.windows.event(ANYONE, Window(limit=7), is_next=True))
    assert [one["name"] for one in unknown["rows"]] == ["a", "b"]


async def test_a_window_of_a_bound_token_counts_only_what_it_names() -> None:
    found = await Snapshot.take(overview(summary("orders-de"), ill("salaries", "error", written_per_s=5.0)), None)
    window = json.loads(found.windows.text(BOUND, Window()))
    assert (window["order"], window["matching"], window["counts"]["error"]) == (["orders-de"], 1, 0)
    assert (window["written_per_s"], window["nodes"]) == (0.0, [])


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
