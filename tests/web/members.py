"""Programs that are members of a group, as its pages show them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from websockets.sync.client import connect

from headgate.testing.processes import NodeProcess
from tests.waiting import LONG_S


@contextmanager
def joined(node: NodeProcess, stream: str, group: str, label: str) -> Iterator[None]:
    """A program that is active for the time of a block."""

    def frame(kind: str) -> list[Any]:
        while True:
            found = msgspec.msgpack.decode(socket.recv(timeout=LONG_S))
            if found[0] == kind:
                return list(found[1:])

    with connect(node.url.replace("http", "ws") + "/groups", compression=None) as socket:
        join = ["join", 1, node.token, stream, group, None, label, None, 60.0]
        socket.send(msgspec.msgpack.encode(join))
        consumer = frame("joined")[0]
        epoch = frame("active")[2]
        socket.send(msgspec.msgpack.encode(["confirm", consumer, epoch, "active"]))
        yield
        socket.send(msgspec.msgpack.encode(["leave", consumer]))
