"""Two fuzzers, of `/push` and of `/groups`: random connections next to a lawful program and a lawful consumer.

What a connection does follows from its seed; a seed of the whole run is printed, and taken from the environment to
repeat it. A few seconds here; `make fuzz` runs for ten minutes. The node must live on as the same incarnation, every
record of the neighbour must be there once, and the lawful consumer must stay active under one epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.web.hostile import (
    BINARY,
    CLOSE,
    CONT,
    PING,
    PONG,
    TEXT,
    Intruder,
    framed,
    intruding,
    masked,
    neighbour,
    pack,
)
from tests.web_node import Web

RUN_S = float(os.environ.get("HEADGATE_TEST_FUZZ_S", "6"))
SEED = os.environ.get("HEADGATE_TEST_FUZZ_SEED") or f"{random.getrandbits(32):08x}"
AT_ONCE = 6

Random = random.Random


def value(rng: Random, depth: int = 0) -> Any:
    """Anything that MessagePack can say."""
    plain: list[Callable[[], Any]] = [
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: rng.choice([0, 1, 2, 7, -1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]),
        lambda: rng.choice([0.0, 1.5, -1e308, float("inf"), float("nan")]),
        lambda: "".join(rng.choice("ab \0/:é\u2028\U0001f600") for _ in range(rng.choice([0, 1, 5, 200, 1001]))),
        lambda: rng.randbytes(rng.choice([0, 1, 16, 300])),
    ]
    if depth < 3:
        plain.append(lambda: [value(rng, depth + 1) for _ in range(rng.randrange(4))])
        plain.append(lambda: {str(n): value(rng, depth + 1) for n in range(rng.randrange(3))})
    return rng.choice(plain)()


def payload(rng: Random) -> bytes:
    """What a record may carry, right or wrong."""
    return rng.choice([b"{}", b"7", b"[1,2]", b"", b"{", b'{"id": 1e999}', b"\xff", b"[" * 1000, rng.randbytes(30)])


def push_frame(rng: Random, token: str, name: str, number: int) -> list[Any]:
    """A frame of the push protocol, mostly right."""
    stream = rng.choice([*[f"s{number}"] * 5, "b", "good", "no stream", "x" * 201, ""])
    ids = rng.choice([[0], [1, 2], [2, 1], list(range(rng.randrange(300))), [2**63 - 1], []])
    kinds = [
        ["hello", rng.choice([1, 1, 1, 0, 2]), token, name, None, None],
        ["notify", stream, value(rng)],
        ["messages", stream, [[id, None, None, payload(rng)] for id in ids]],
        ["eos", stream],
        ["beat", rng.randrange(5)],
        ["error", "x", "y"],
        ["ack", 1, []],
    ]
    return rng.choice(kinds)


def group_frame(rng: Random, token: str, name: str) -> list[Any]:
    """A frame of the groups protocol, mostly right."""
    consumer = rng.choice(["who", f"{rng.getrandbits(128):032x}", "00000000-0000-0000-0000-000000000001"])
    kinds = [
        ["join", rng.choice([1, 1, 1, 0, 2]), token, name, rng.choice("abc"), None, value(rng), None, None],
        ["join", 1, token, name, rng.choice("abc"), rng.choice([None, 0, 1]), None, consumer, rng.choice([2.0, None])],
        ["confirm", consumer, rng.randrange(9), rng.choice(["active", "stepped_down", "maybe"])],
        ["leave", consumer],
        ["beat", rng.randrange(5)],
        ["error", "x", "y"],
        ["hello", 1, token, name],
    ]
    return rng.choice(kinds)


def mutated(rng: Random, frame: list[Any]) -> bytes:
    """The bytes of a frame, to which something may have happened."""
    if rng.random() < 0.3 and len(frame) > 1:
        frame = [*frame]
        frame[rng.randrange(len(frame))] = value(rng)
    data = pack(frame)
    match rng.randrange(10):
        case 0:
            return data[: rng.randrange(len(data))]
        case 1:
            return data + rng.randbytes(rng.randrange(1, 9))
        case 2:
            at = rng.randrange(len(data))
            return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        case _:
            return data


def wire(rng: Random, data: bytes) -> bytes:
    """How a message comes: as it should, in fragments, or as something that is no WebSocket frame."""
    match rng.randrange(14):
        case 0:
            return rng.randbytes(rng.randrange(1, 200))
        case 1:
            return masked(data, said_bytes=rng.choice([2**20, 2**32, 2**63 - 1]))
        case 2:
            return masked(data, rng.choice([3, 7, 11, 15, CLOSE, TEXT]))
        case 3:
            return masked(rng.randbytes(rng.randrange(125)), rng.choice([PING, PONG])) * rng.randrange(300)
        case 4:
            cut = rng.randrange(len(data) + 1)
            middle = masked(b"p", PING) if rng.random() < 0.5 else b""
            return masked(data[:cut], fin=False) + middle + masked(data[cut:], CONT)
        case 5:
            return masked(data, CONT)
        case 6:
            return masked(b"", BINARY, fin=False) + masked(b"", CONT, fin=False) * rng.randrange(300)
        case _:
            return masked(data)


async def misbehave(rng: Random, web: Web, path: str, name: str) -> None:
    """One connection: mostly it begins as it should, and ends in whatever way."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        async with intruding(web, path) as intruder:
            if rng.random() < 0.7:
                await greet(intruder, path, web.node.token, name)
                if rng.random() < 0.7:
                    await intruder.hear()
                    await intruder.hear()  # Granted, or active: what follows is taken.
            hears = asyncio.create_task(intruder.ended()) if rng.random() < 0.8 else None
            for _ in range(rng.randrange(1, 25)):
                token = rng.choice([web.node.token, "wrong", ""])
                frame = push_frame(rng, token, name, id(intruder)) if path == "/push" else group_frame(rng, token, name)
                await intruder.send(wire(rng, mutated(rng, frame)))
                if rng.random() < 0.1:
                    await asyncio.sleep(rng.random() * 0.05)
            if hears is not None:
                await asyncio.wait([hears], timeout=rng.random() * 0.2)
                hears.cancel()


async def greet(intruder: Intruder, path: str, token: str, name: str) -> None:
    """The first frames of a lawful program."""
    if path == "/push":
        await intruder.send(framed("hello", 1, token, name) + framed("notify", f"s{id(intruder)}"))
    else:
        await intruder.send(framed("join", 1, token, name, f"g{id(intruder)}"))


@asynccontextmanager
async def consuming(web: Web, name: str) -> AsyncIterator[None]:
    """A lawful consumer that beats, is active all the time under one epoch, and hears nothing else."""
    async with intruding(web, "/groups") as consumer:
        await consumer.send(framed("join", 1, web.node.token, name, "lawful"))
        kind, id, *_ = await consumer.hear()
        assert kind == "joined"
        _, _, _, epoch, _ = await consumer.hear()
        await consumer.send(framed("confirm", id, epoch, "active"))

        async def live() -> None:
            for n in range(1_000_000):
                await consumer.send(framed("beat", n))
                while (heard := await consumer.hear()) != ["beat", n]:
                    assert heard[:2] == ["active", id], heard
                    assert heard[3] == epoch
                    await consumer.send(framed("confirm", id, epoch, "active"))
                await asyncio.sleep(0.2)

        living = asyncio.create_task(live())
        yield
        assert not living.done(), living.result()
        living.cancel()


@pytest.mark.parametrize("path", ["/push", "/groups"])
async def test_random_connections_harm_nobody(web: Web, name: str, path: str) -> None:
    print(f"HEADGATE_TEST_FUZZ_SEED={SEED}")
    ends_at_s = time.monotonic() + RUN_S
    rounds = 0

    async def one_after_the_other(number: int) -> None:
        nonlocal rounds
        turn = 0
        while time.monotonic() < ends_at_s:
            await misbehave(Random(f"{SEED} {path} {number} {turn}"), web, path, f"{name}-fuzz")
            turn += 1
            rounds += 1

    web.publish(f"{name}-fuzz", source={"type": "push"})
    async with neighbour(web, name) as good, consuming(web, name):
        await good.push_during(asyncio.gather(*(one_after_the_other(number) for number in range(AT_ONCE))))
    print(f"{rounds} connections, {good.pushed} records of the neighbour")
    assert rounds > AT_ONCE
