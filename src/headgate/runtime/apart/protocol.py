"""The node's end of the wire to the process of a connector: frames are read straight into their place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headgate.runtime.apart.wire import FRAME, FromProcess, NonsenseError, Unframer


class WireProtocol(asyncio.BufferedProtocol):
    """Hands on each message as it is whole, and says when there will be no more."""

    def __init__(self, on_message: Callable[[FromProcess, list[bytes]], None], on_lost: Callable[[str], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost  # With what was wrong, or nothing if the other end has closed it.
        self._unframer = Unframer(FromProcess, is_bounded=True)
        self._head = memoryview(bytearray(FRAME.size))
        self._kind = 0
        self._body: bytearray | None = None  # None while the head of a frame is read.
        self._left = self._head

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes belong."""
        return self._left

    def buffer_updated(self, nbytes: int) -> None:
        """Some have come."""
        self._left = self._left[nbytes:]
        try:
            while not len(self._left):
                self._complete()
        except NonsenseError as error:
            self._on_lost(str(error))

    def _complete(self) -> None:
        if self._body is None:
            length, self._kind = FRAME.unpack(self._head)
            self._unframer.check(length, self._kind)
            self._body = bytearray(length)
            self._left = memoryview(self._body)
            return
        body, self._body, self._left = bytes(self._body), None, self._head
        if (found := self._unframer.frame(self._kind, body)) is not None:
            self._on_message(*found)

    def connection_lost(self, error: Exception | None) -> None:
        """It has ended, or we have closed it."""
        self._on_lost("")

    def eof_received(self) -> Any:
        """It has ended."""
        return None
