"""Doorways: how the process of a test reaches a socket that its user may not open.

A node that root has started may open any socket in a folder, such as that of the embedded database; the process of a
test has become `nobody`, and may not. So it asks the node, through a socket that belongs to this test alone, and is
handed one end of a pair of sockets. The node carries what is said from its other end to the socket that was named by
the version, and to no other: which those are is settled before the process begins, by the connector and the guard.

Who can open such a socket may often call himself whom he likes: a server that hears from a folder that only its owner
can enter asks for no password. So the connector says how the conversation has to begin (`LocalSocket.admits`), and a
process that begins otherwise is not let through.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headgate.connectors.api import LocalSocket
from headgate.connectors.guard import Guard, OutOfReach

MOST_OPEN = 16
MOST_BYTES = 256 * 1024 * 1024  # Of a test, in both directions.
MOST_FIRST = 16 * 1024  # Bytes before it is clear that a conversation begins as it should.
PIECE = 64 * 1024
TAKEN, REFUSED = b"1", b"0"


@dataclass(slots=True)
class _Allowance:
    left: int = MOST_BYTES

    def spend(self, number: int) -> None:
        self.left -= number
        if self.left < 0:
            raise ConnectionError("a test has said, or heard, too much")


class Doorways:
    """Those of one test. They close when `serve` ends."""

    def __init__(self, sockets: Sequence[LocalSocket], guard: Guard) -> None:
        self._sockets = sockets
        self._guard = guard
        self._allowance = _Allowance()

    @property
    def paths(self) -> list[str]:
        """What the process may ask for, by its number."""
        return [one.path for one in self._sockets]

    async def serve(self, asked: socket.socket) -> None:
        """Answer until the process has ended, or nobody waits for this any more."""
        loop = asyncio.get_running_loop()
        talks: set[asyncio.Task[None]] = set()
        try:
            while data := await loop.sock_recv(asked, 16):
                opened = await self._open(data) if len(talks) < MOST_OPEN else None
                if opened is None:
                    asked.send(REFUSED)
                    continue
                found, outside = opened
                ours, theirs = socket.socketpair()
                with theirs:
                    ours.setblocking(False)
                    talk = asyncio.create_task(self._talk(found, ours, outside))
                    socket.send_fds(asked, [TAKEN], [theirs.fileno()])
                talks.add(talk)
                talk.add_done_callback(talks.discard)
        except OSError:
            pass  # The process has ended, or does not read its answers.
        finally:
            for talk in list(talks):
                talk.cancel()
            await asyncio.gather(*talks, return_exceptions=True)

    async def _open(self, number: bytes) -> tuple[LocalSocket, socket.socket] | None:
        """The socket of this number, connected."""
        try:
            found = self._sockets[int(number)] if number.isdigit() else None
        except IndexError:
            found = None
        if found is None:
            return None
        outside = socket.socket(socket.AF_UNIX)
        outside.setblocking(False)
        try:
            with _lasting(self._guard.path(found.path)) as path:
                await asyncio.get_running_loop().sock_connect(outside, path)
        except (OSError, OutOfReach):
            outside.close()
            return None
        return found, outside

    async def _talk(self, door: LocalSocket, ours: socket.socket, outside: socket.socket) -> None:
        """Carry what is said, both ways, until one side is done."""
        with ours, outside, contextlib.suppress(OSError):
            if not await self._has_begun(door, ours, outside):
                return
            ways = [asyncio.ensure_future(self._carry(*way)) for way in ((ours, outside), (outside, ours))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def _has_begun(self, door: LocalSocket, ours: socket.socket, outside: socket.socket) -> bool:
        """Hold back what the process says until that is as it should be. False: it is not."""
        loop, first = asyncio.get_running_loop(), b""
        while (verdict := door.admits(first)) is None and len(first) < MOST_FIRST:
            data = await loop.sock_recv(ours, PIECE)
            if not data:
                return False
            first += data
        if not verdict:
            return False
        self._allowance.spend(len(first))
        await loop.sock_sendall(outside, first)
        return True

    async def _carry(self, here: socket.socket, there: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(here, PIECE):
            self._allowance.spend(len(data))
            await loop.sock_sendall(there, data)


@contextlib.contextmanager
def _lasting(path: str) -> Iterator[str]:
    """A path to what was judged, whatever is put in its place meanwhile, and however long its own path is."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


# In the process.


class Dial:
    """Asks for what is behind a doorway."""

    def __init__(self, wire: socket.socket, paths: Sequence[str]) -> None:
        self._wire = wire
        self._numbers = {path: number for number, path in enumerate(paths)}

    def knows(self, path: str) -> bool:
        """Whether there is a doorway to it."""
        return path in self._numbers

    def open(self, path: str) -> socket.socket:
        """A connection."""
        self._wire.send(str(self._numbers[path]).encode())
        answer, descriptors, _, _ = socket.recv_fds(self._wire, 16, 1)
        if answer != TAKEN or not descriptors:
            raise ConnectionRefusedError(f"{path} does not answer")
        return socket.socket(fileno=descriptors[0])
