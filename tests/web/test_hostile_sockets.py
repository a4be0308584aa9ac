"""Attacks on the doors for WebSockets, on a node as it runs in production, beside a lawful neighbour.

The node's lease is the usual one and its watchdog is at work: if an outsider could block the loop for long, the node
would be ended, or begin as a new incarnation, and the neighbour would see it.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.web.hostile import (
    BINARY,
    CONT,
    PING,
    PONG,
    admitted,
    framed,
    ids,
    intruding,
    masked,
    neighbour,
    pack,
    publish,
)
from tests.web_node import Web

DOORS = pytest.mark.parametrize("path", ["/push", "/groups"])
MB = 1024 * 1024


def much(frame: bytes, size_bytes: int = 8 * MB) -> bytes:
    """A frame again and again."""
    return frame * (size_bytes // len(frame))


@DOORS
async def test_a_burst_of_pings_before_hello_ends_its_own_connection_and_nothing_else(
    web: Web, name: str, path: str
) -> None:
    async with neighbour(web, name) as good, intruding(web, path) as intruder:
        flood = intruder.feed(much(masked(b"", PING)))
        assert await intruder.refused() == "too_large"
        await good.push_during(flood)


FLOODS = {
    "pings": masked(b"", PING),
    "pongs": masked(b"x", PONG),
    "pings with a payload": masked(b"x" * 125, PING),
    "beats": framed("beat", 1),
    "empty fragments": masked(b"", CONT, fin=False),
    "crumbs": masked(b"x", CONT, fin=False),
}


@DOORS
@pytest.mark.parametrize("what", FLOODS)
async def test_a_flood_of_frames_that_carry_nothing_costs_the_neighbour_nothing(
    web: Web, name: str, path: str, what: str
) -> None:
    async with neighbour(web, name) as good, admitted(web, path, name) as intruder:
        if what in ("empty fragments", "crumbs"):
            await intruder.send(masked(b"", BINARY, fin=False))
        flood = intruder.feed(much(FLOODS[what]))
        for _ in range(10):
            await good.push()
        assert not flood.done(), "a flood was taken as fast as it came"
        flood.cancel()


async def test_a_flood_of_frames_without_records_costs_the_neighbour_nothing(web: Web, name: str) -> None:
    async with neighbour(web, name) as good, admitted(web, "/push", name) as intruder:
        await intruder.send(framed("notify", "s"))
        assert (await intruder.hear())[:3] == ["notify_ack", "s", True]
        flood = intruder.feed(much(framed("messages", "s", [])))
        for _ in range(10):
            await good.push()
        assert not flood.done(), "a flood was taken as fast as it came"
        flood.cancel()


async def test_who_never_says_hello_and_who_never_reads_are_cut_off(web: Web, name: str) -> None:
    """Answers to one that does not read fill the kernel's buffers; then nothing more is taken from it, for a while."""
    async with neighbour(web, name) as good, AsyncExitStack() as stack:
        ends = []
        for path in ("/push", "/groups"):
            dumb = await stack.enter_async_context(intruding(web, path))
            ends.append(asyncio.create_task(dumb.refused()))
            deaf = await stack.enter_async_context(admitted(web, path, name))
            deaf.reader._transport.pause_reading()  # type: ignore[attr-defined]
            ends.append(deaf.feed(much(masked(b"x" * 125, PING), 64 * MB)))  # Ends when the node aborts.
        await good.push_during(asyncio.gather(*ends))
        assert [end.result() for end in ends] == ["silent", None, "silent", None]


@DOORS
async def test_hundreds_of_connections_that_say_nothing_slow_nobody(web: Web, name: str, path: str) -> None:
    async with neighbour(web, name) as good, AsyncExitStack() as stack:
        for _ in range(300):
            await stack.enter_async_context(intruding(web, path))
        for _ in range(10):
            await good.push()


@DOORS
@pytest.mark.parametrize("size_bytes", [MB * 16, 2**40, 2**63 - 1])
async def test_a_message_that_says_it_is_too_large_is_told_so_before_it_comes(
    web: Web, name: str, path: str, size_bytes: int
) -> None:
    async with neighbour(web, name), admitted(web, path, name) as intruder:
        await intruder.send(masked(b"x", said_bytes=size_bytes))
        assert await intruder.refused() == "too_large"
        assert await intruder.hear() == ["close", 4000]


async def test_a_message_in_fragments_is_too_large_as_soon_as_they_are(web: Web, name: str) -> None:
    async with neighbour(web, name) as good, admitted(web, "/push", name) as intruder:
        part = masked(b"x" * 65_536, CONT, fin=False)
        flood = intruder.feed(masked(b"", BINARY, fin=False) + part * 65)
        assert await intruder.refused() == "too_large"
        await good.push_during(flood)


HEAVY = {
    "two million records": pack(["messages", "s", [[1]] * 1_900_000]),
    "very many lists": pack(["messages", "s", [[1, None, None, b"[" + b"[]," * 1_300_000 + b"1]"]]]),
    "very many fields": pack(
        ["messages", "s", [[1, None, None, b"{" + b",".join(b'"%x":1' % n for n in range(400_000)) + b"}"]]]
    ),
}


@pytest.mark.parametrize("what", HEAVY)
async def test_a_frame_that_would_take_long_to_decode_is_refused_before_it_is(web: Web, name: str, what: str) -> None:
    async with neighbour(web, name) as good, admitted(web, "/push", name) as intruder:
        await intruder.send(framed("notify", "s"))
        assert (await intruder.hear())[:3] == ["notify_ack", "s", True]
        flood = intruder.feed(masked(HEAVY[what]))
        assert await intruder.refused() in ("bad_frame", "bad_payload")
        await good.push_during(flood)


async def test_a_sender_of_one_record_per_frame_slows_itself_and_its_records_are_all_there(web: Web, name: str) -> None:
    count = 65_000
    frames = b"".join(framed("messages", "busy", [[n, None, None, b"{}"]]) for n in range(count))
    table = publish(web, f"{name}-busy")
    async with neighbour(web, name) as good, admitted(web, "/push", f"{name}-busy") as busy:
        await busy.send(framed("notify", "busy"))
        assert (await busy.hear())[:3] == ["notify_ack", "busy", True]

        async def durable() -> None:
            position = -1
            while position < count - 1:
                kind, _, positions = await busy.hear()
                assert kind == "ack"
                position = dict(positions).get("busy", position)

        await good.push_during(asyncio.gather(busy.feed(frames), durable()))
    assert await ids(web, table) == list(range(count))


@pytest.mark.parametrize("is_one_group", [False, True], ids=["a group each", "one group"])
async def test_joins_that_come_all_at_once_are_all_answered(web: Web, name: str, is_one_group: bool) -> None:
    """Nobody beats meanwhile, or confirms anything. Of those for a group each, the last is one more than a connection
    may carry; those for one group are fewer, because each costs as much as there are members."""
    count = 300 if is_one_group else 1001
    joins = [framed("join", 1, web.node.token, "s", name if is_one_group else f"{name}-{n}") for n in range(count)]
    async with intruding(web, "/groups") as eager:
        sending = eager.feed(b"".join(joins))
        heard: list[Any] = []
        while len(heard) < count and (not heard or heard[-1][0] == "joined"):
            heard += [frame for frame in [await eager.hear()] if frame[0] != "active"]
        errors = [one[1] for one in heard if one[0] != "joined"]
        if errors != ["unanswered"]:  # A slow machine asks for the first order's answer before.
            assert len(heard) == count
            assert bool(errors) != is_one_group
        await sending
