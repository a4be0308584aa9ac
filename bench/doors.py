"""What a sender of very many small frames costs its neighbours: how long their records wait for an ack meanwhile.

    python -m bench.doors

One program sends a record every 20 ms and waits for its ack. First it is alone. Then another program, in a process of
its own, sends 65,000 frames with one record each, as fast as the node takes them, again and again. An ack comes after
the next barrier, which runs every 100 ms: most of what is measured is that.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect

from bench.rig import DATABASE_CORE, report, running
from headgate.testing.processes import NodeProcess

FRAMES = 65_000
MEASURED_S = 15.0
PAUSE_S = 0.02


async def opened(url: str, token: str, stream: str) -> ClientConnection:
    """A session that has a stream of its own."""
    address = url.replace("http://", "ws://") + "/push"
    socket = await connect(address, compression=None, ping_interval=None, max_size=None)
    await socket.send(msgspec.msgpack.encode(["hello", 1, token, "small"]))
    await heard(socket, "ok")
    await socket.send(msgspec.msgpack.encode(["notify", stream, None]))
    assert (await heard(socket, "notify_ack"))[2]
    return socket


async def heard(socket: ClientConnection, kind: str) -> list[Any]:
    """The next frame of this kind."""
    while True:
        frame: list[Any] = msgspec.msgpack.decode(await socket.recv())  # type: ignore[arg-type]
        if frame[0] == kind:
            return frame


async def durable(socket: ClientConnection, stream: str, id: int) -> None:
    """Until this record is."""
    position = -1
    while position < id:
        _, _, positions = await heard(socket, "ack")
        position = dict(positions).get(stream, position)


async def be_busy(url: str, token: str) -> None:
    """Be the sender of small frames, until the standard input ends; prints frames per second."""
    socket = await opened(url, token, "busy")
    over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    print("ready", flush=True)
    sent, began = 0, time.perf_counter()
    while not over.done():
        for id in range(sent, sent + FRAMES):
            await socket.send(msgspec.msgpack.encode(["messages", "busy", [[id, None, None, b'{"n":1}']]]))
        sent += FRAMES
        await durable(socket, "busy", sent - 1)
    print(sent / (time.perf_counter() - began), flush=True)
    os._exit(0)


async def waits_ms(url: str, token: str, stream: str) -> list[float]:
    """How long each record of a lawful program waited for its ack, shortest first."""
    socket = await opened(url, token, stream)
    found: list[float] = []
    until_s = time.perf_counter() + MEASURED_S
    while (began := time.perf_counter()) < until_s:
        await socket.send(msgspec.msgpack.encode(["messages", stream, [[len(found), None, None, b'{"n":1}']]]))
        await durable(socket, stream, len(found))
        found.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(PAUSE_S)
    return sorted(found)


def measured(node: NodeProcess) -> tuple[list[float], list[float], float]:
    """Waits alone, waits next to the sender of small frames, and how many of these it sent per second."""
    alone = asyncio.run(waits_ms(node.url, node.token, "alone"))
    command = [sys.executable, "-m", "bench.doors", node.url, node.token]
    busy = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    os.sched_setaffinity(busy.pid, DATABASE_CORE)
    assert busy.stdout is not None
    assert busy.stdout.readline() == "ready\n"
    crowded = asyncio.run(waits_ms(node.url, node.token, "crowded"))
    printed, _ = busy.communicate(timeout=300)
    return alone, crowded, float(printed)


def main() -> dict[str, Any]:
    """Run and print."""
    with running(pinned=True) as rig:
        rig.node.apply({"small": {"source": {"type": "push"}, "sink": {"type": "blackhole"}}})
        alone, crowded, rate = measured(rig.node)
    return report(
        f"a program next to one that sends {FRAMES:,} frames of one record (python -m bench.doors)",
        {
            "until an ack, alone, p50 ms": alone[len(alone) // 2],
            "until an ack, next to it, p50 ms": crowded[len(crowded) // 2],
            "until an ack, next to it, slowest ms": crowded[-1],
            "delay of the slowest against p50 alone, ms": crowded[-1] - alone[len(alone) // 2],
            "frames of one record, per second": rate,
        },
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(be_busy(sys.argv[1], sys.argv[2]))
    else:
        main()
