"""Turns of connections, and how little of a connection is taken in one of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from headgate.core import sockets
from headgate.web.doors import wire
from headgate.web.doors.turns import Turns
from headgate.web.doors.wire import SocketProtocol
from tests.waiting import until
from tests.web.hostile import HEAD, PING, masked


async def test_those_who_were_idle_come_first_and_those_who_wait_again_get_every_second_turn() -> None:
    turns, order = Turns(), []

    async def take(name: str, *, is_fresh: bool) -> None:
        await turns.take(is_fresh=is_fresh)
        order.append(name)

    again = [asyncio.create_task(take(f"again {n}", is_fresh=False)) for n in range(3)]
    fresh = [asyncio.create_task(take(f"fresh {n}", is_fresh=True)) for n in range(5)]
    await asyncio.gather(*again, *fresh)
    assert order == ["fresh 0", "again 0", "fresh 1", "again 1", "fresh 2", "again 2", "fresh 3", "fresh 4"]


async def test_who_is_cancelled_while_waiting_costs_no_turn() -> None:
    turns = Turns()
    waiting = [asyncio.create_task(turns.take(is_fresh=True)) for _ in range(5)]
    await asyncio.sleep(0)
    for task in waiting[:4]:
        task.cancel()
    await waiting[4]
    await turns.take(is_fresh=False)


class Transport:
    """A peer that reads everything, and what it was sent."""

    def __init__(self) -> None:
        self.written = b""
        self.reads = True
        self.unread_bytes = 0
        self.was_aborted = self.was_closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.was_aborted or self.was_closed

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def get_extra_info(self, name: str) -> None:
        return None

    def close(self) -> None:
        self.was_closed = True

    def abort(self) -> None:
        self.was_aborted = True


async def opened(door: Any) -> tuple[SocketProtocol, Transport]:
    """A socket with this behind it, after the handshake."""
    app = SimpleNamespace(doors={"/push": door}, turns=Turns())
    socket = SocketProtocol(SimpleNamespace(loaded_app=app), SimpleNamespace(connections=set(), tasks=set()), {})
    transport = Transport()
    socket.connection_made(transport)  # type: ignore[arg-type]
    socket.data_received(f"GET /push HTTP/1.1\r\nHost: x\r\n{HEAD}Sec-WebSocket-Version: 13\r\n\r\n".encode())
    await until(lambda: b"101" in transport.written)
    return socket, transport


async def test_the_loop_goes_round_many_times_while_a_burst_is_taken() -> None:
    rounds = 0
    heard: list[bytes | None] = []

    async def door(socket: SocketProtocol) -> None:
        socket.admit(4096)
        heard.append(await socket.receive(60))

    socket, transport = await opened(door)
    burst = masked(b"", PING) * (sockets.IDLE_AT_ONCE - 1)
    socket.data_received(burst + masked(b"the end"))
    while not heard:
        rounds += 1
        await asyncio.sleep(0)
    assert heard == [b"the end"]
    assert rounds > len(burst) / sockets.SMALL_PIECE_BYTES
    assert transport.written.count(b"\x8a\x00") == sockets.IDLE_AT_ONCE - 1, "every ping is answered"


async def test_only_a_little_is_taken_in_before_the_door_asks_for_it() -> None:
    asking = asyncio.Event()
    heard: list[bytes | None] = []

    async def door(socket: SocketProtocol) -> None:
        socket.admit(2**20)
        while not heard or heard[-1] is not None:
            await asking.wait()
            heard.append(await socket.receive(60))

    socket, transport = await opened(door)
    message = masked(b"x" * 40_000)
    socket.data_received(message + message)
    assert not transport.reads, "the kernel is asked for no more"
    asking.set()
    await until(lambda: len(heard) == 2)
    assert transport.reads
    socket.connection_lost(None)
    await until(lambda: len(heard) == 3)


async def test_while_a_peer_reads_nothing_nothing_is_taken_from_it() -> None:
    ends: list[str] = []

    async def door(socket: SocketProtocol) -> None:
        socket.admit(2**20)
        try:
            await socket.receive(0.05)
        except wire.Over as over:
            ends.append(over.code)

    socket, transport = await opened(door)
    socket.pause_writing()
    socket.data_received(masked(b"", PING))
    await until(lambda: bool(ends))
    assert ends == ["slow"]
    assert b"\x8a\x00" not in transport.written
    assert transport.was_aborted, "and it is not asked"


async def test_a_peer_that_leaves_too_much_unread_is_aborted() -> None:
    sent: list[bool] = []

    async def door(socket: SocketProtocol) -> None:
        sent.append(socket.send(b"one"))
        transport.unread_bytes = sockets.UNREAD_BYTES + 1
        sent.append(socket.send(b"two"))

    transport = Transport()
    app = SimpleNamespace(doors={"/push": door}, turns=Turns())
    socket = SocketProtocol(SimpleNamespace(loaded_app=app), SimpleNamespace(connections=set(), tasks=set()), {})
    socket.connection_made(transport)  # type: ignore[arg-type]
    socket.data_received(f"GET /push HTTP/1.1\r\nHost: x\r\n{HEAD}Sec-WebSocket-Version: 13\r\n\r\n".encode())
    await until(lambda: len(sent) == 2)
    assert sent == [True, False]
    assert transport.was_aborted
