"""One connection with a clock and a socket that the test holds: what takes too long, and who does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from uvicorn.server import ServerState

from headgate.web.doors.webhooks import ACCEPTED, WebhookDoor
from headgate.web.http.answers import Phrases
from headgate.web.http.asgi import AsgiServer
from headgate.web.http.census import Census
from headgate.web.http.connection import Connection
from headgate.web.http.limits import (
    AHEAD_BYTES,
    BODY_S,
    HEAD_S,
    IDLE_S,
    LINGER_BYTES,
    LINGER_S,
    UNREAD_BYTES,
    UNREAD_S,
    Limits,
)
from headgate.web.http.requests import Head, Piece


class Socket:
    """A transport that remembers."""

    def __init__(self, address: str = "192.0.2.1") -> None:
        self._address = address
        self.written = b""
        self.ended = ""  # closed, aborted
        self.is_reading = True
        self.unread = 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return (self._address, 4711) if name == "peername" else default

    def write(self, data: bytes) -> None:
        assert not self.ended
        self.written += data

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def is_closing(self) -> bool:
        return bool(self.ended)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.written += b"<end>"

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def get_write_buffer_size(self) -> int:
        return self.unread


class Call:
    """A call at a door that does what the test says."""

    may_be_refused = True

    def __init__(self, connection: Connection, head: Head) -> None:
        self.connection = connection
        self.head = head
        self.body = b""
        self.is_lost = False

    def take(self, piece: Piece) -> None:
        self.body += piece.data

    def lost(self) -> None:
        self.is_lost = True

    def shut_down(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class Door:
    """Takes bodies at once, unless it hesitates, and answers when it is told to."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.hesitates = False

    def open(self, connection: Connection, head: Head) -> Call:
        self.calls.append(Call(connection, head))
        return self.calls[-1]

    def begin(self, call: Call) -> None:
        if call.head.length and not self.hesitates:
            call.connection.want_body()


class World:
    """A server without a network."""

    def __init__(self, connections: int = 10, per_address: int = 5) -> None:
        self.state = ServerState()
        self.census = Census(Limits(connections, per_address))
        self.door = Door()

    def connect(self, address: str = "192.0.2.1") -> tuple[Connection, Socket]:
        server = AsgiServer(cast(Any, None), self.state)
        connection = Connection(self.census, cast(WebhookDoor, self.door), server, Phrases(self.state))
        socket = Socket(address)
        connection.connection_made(cast(asyncio.BaseTransport, socket))
        return connection, socket


@pytest.fixture
async def world() -> World:
    """In an event loop, which every connection needs."""
    return World()


def after(seconds: float) -> float:
    """A time that far from now."""
    return asyncio.get_running_loop().time() + seconds


CALL = b"POST /hooks/a HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"


async def turn() -> None:
    """Let the event loop have a few turns."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_connection_that_says_nothing_is_closed_after_ten_seconds(world: World) -> None:
    connection, socket = world.connect()
    connection.look(after(HEAD_S - 1))
    assert not socket.ended
    connection.look(after(HEAD_S + 1))
    assert (socket.ended, socket.written) == ("closed", b"")


@pytest.mark.parametrize("is_second", [False, True])
async def test_a_head_that_drips_in_is_refused_after_ten_seconds(world: World, is_second: bool) -> None:
    connection, socket = world.connect()
    if is_second:
        connection.data_received(CALL)
        connection.answer(ACCEPTED)
        await turn()
        socket.written = b""
    connection.data_received(b"POST ")
    connection.look(after(HEAD_S - 1))
    connection.data_received(b"/hooks/a HTTP/1.1\r\n")
    assert not socket.written
    connection.look(after(HEAD_S + 1))
    assert socket.written.startswith(b"HTTP/1.1 408 ")
    assert b"10 s" in socket.written
    connection.look(after(LINGER_S + 1))
    assert socket.ended == "aborted"


@pytest.mark.parametrize("hesitates", [False, True])
async def test_a_body_that_drips_in_is_refused_after_thirty_seconds(world: World, hesitates: bool) -> None:
    world.door.hesitates = hesitates
    connection, socket = world.connect()
    connection.data_received(CALL[:-1])
    connection.look(after(BODY_S - 1))
    assert not socket.written
    connection.look(after(BODY_S + 1))
    assert socket.written.startswith(b"HTTP/1.1 408 ")
    assert world.door.calls[0].is_lost


async def test_a_call_that_waits_for_its_commit_is_not_late(world: World) -> None:
    connection, socket = world.connect()
    connection.data_received(CALL)
    connection.look(after(1000))
    connection.answer(ACCEPTED)
    assert socket.written.startswith(b"HTTP/1.1 202 ")


async def test_an_idle_connection_is_closed_after_a_minute(world: World) -> None:
    connection, socket = world.connect()
    connection.data_received(CALL)
    connection.answer(ACCEPTED)
    connection.look(after(IDLE_S - 1))
    assert not socket.ended
    connection.look(after(IDLE_S + 1))
    assert socket.ended == "closed"
    connection.look(after(IDLE_S + LINGER_S + 1))
    assert socket.ended == "aborted"


async def test_a_reader_that_takes_next_to_nothing_is_cut_off_and_a_slow_one_is_not(world: World) -> None:
    (slow, slow_socket), (stuck, stuck_socket) = world.connect(), world.connect()
    for connection in (slow, stuck):
        connection.data_received(CALL)
    slow_socket.unread = stuck_socket.unread = 10 * UNREAD_BYTES
    for looks in range(1, 4):
        for connection in (slow, stuck):
            connection.look(after(looks * (UNREAD_S + 1)))
        slow_socket.unread -= UNREAD_BYTES
        stuck_socket.unread -= 1
    assert stuck_socket.ended == "aborted"
    assert not slow_socket.ended


async def test_a_caller_that_reads_no_answers_gets_no_more_of_them(world: World) -> None:
    connection, socket = world.connect()
    connection.data_received(CALL)
    connection.answer(ACCEPTED)
    connection.pause_writing()
    connection.data_received(CALL)
    connection.data_received(b"x" * AHEAD_BYTES)
    await turn()
    assert len(world.door.calls) == 1
    assert not socket.is_reading
    connection.resume_writing()
    await turn()
    assert len(world.door.calls) == 2


async def test_what_is_sent_ahead_waits_and_is_answered_in_order(world: World) -> None:
    connection, socket = world.connect()
    connection.data_received(CALL + CALL.replace(b"/a", b"/b") + CALL.replace(b"/a", b"/c"))
    for path in ("/hooks/a", "/hooks/b", "/hooks/c"):
        assert world.door.calls[-1].head.path == path
        connection.answer(ACCEPTED)
        await turn()
    assert socket.written.count(b"HTTP/1.1 202 ") == 3


async def test_a_caller_that_sends_far_ahead_is_not_read_until_it_was_answered(world: World) -> None:
    connection, socket = world.connect()
    connection.data_received(CALL + b"POST /hooks/b HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + b"x" * AHEAD_BYTES)
    assert not socket.is_reading
    connection.answer(ACCEPTED)
    await turn()
    assert socket.is_reading
    assert len(world.door.calls[-1].body) == AHEAD_BYTES


async def test_a_body_is_not_taken_before_the_door_wants_it(world: World) -> None:
    world.door.hesitates = True
    connection, socket = world.connect()
    connection.data_received(b"POST /hooks/a HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 2 * AHEAD_BYTES)
    await turn()
    assert world.door.calls[0].body == b""
    assert not socket.is_reading
    connection.want_body()
    await turn()
    assert len(world.door.calls[0].body) == 2 * AHEAD_BYTES
    assert socket.is_reading


async def test_a_small_body_that_was_refused_is_dropped_and_the_connection_stays(world: World) -> None:
    world.door.hesitates = True
    connection, socket = world.connect()
    connection.data_received(CALL[:-1])
    connection.answer(ACCEPTED)
    assert b"connection: close" not in socket.written
    connection.data_received(b"}" + CALL)
    await turn()
    assert len(world.door.calls) == 2
    assert world.door.calls[1].head.path == "/hooks/a"


async def test_a_caller_of_a_large_body_that_was_refused_is_listened_to_for_a_while(world: World) -> None:
    world.door.hesitates = True
    connection, socket = world.connect()
    connection.data_received(b"POST /hooks/a HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n")
    connection.answer(ACCEPTED)
    assert b"connection: close" in socket.written
    assert socket.written.endswith(b"<end>")
    connection.data_received(b"x" * LINGER_BYTES)
    assert not socket.ended
    connection.data_received(b"x")
    assert socket.ended == "aborted"


async def test_there_is_room_for_so_many_connections_in_all_and_from_one_address(world: World) -> None:
    five = [world.connect() for _ in range(5)]
    _, socket = world.connect()
    assert socket.written.startswith(b"HTTP/1.1 503 ")
    assert socket.ended == "closed"
    others = [world.connect(f"192.0.2.{number}") for number in range(2, 7)]
    assert world.connect("192.0.2.9")[1].ended == "closed"
    for connection, _ in [five[0], others[0]]:
        connection.connection_lost(None)
    assert not world.connect()[1].ended
    assert not world.connect("192.0.2.9")[1].ended
    assert world.census.size == 10


async def test_an_address_that_has_gone_is_forgotten(world: World) -> None:
    for number in range(100):
        connection, _ = world.connect(f"192.0.2.{number}")
        connection.connection_lost(None)
    assert world.census.size == 0
    assert world.census.addresses == 0


async def test_cheap_requests_that_came_at_once_are_taken_in_turns(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock says that each step takes a millisecond."""
    ticks = iter(range(10**9))
    monkeypatch.setattr("headgate.web.http.connection.time.perf_counter", lambda: next(ticks) / 1000)
    connection, _ = world.connect()
    monkeypatch.setattr(world.door, "begin", answer_at_once(connection))
    connection.data_received(b"GET /hooks/a HTTP/1.1\r\n\r\n" * 100)
    first = len(world.door.calls)
    assert 0 < first < 10
    await turn()
    assert first < len(world.door.calls) < 100
    while len(world.door.calls) < 100:
        await turn()


def answer_at_once(connection: Connection) -> Callable[[Call], None]:
    return lambda _: connection.answer(ACCEPTED)
