"""Counts the connections of a node, and ends those that take too long.

One look a second at all connections costs less than a timer for each of their requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Protocol

from headgate.web.http.limits import Limits

LOOK_S = 1.0
SLICE = 1000  # Connections looked at in one go.


class Counted(Protocol):
    """A connection, as far as it is counted."""

    address: str

    def look(self, now_s: float) -> None:
        """End it if it has taken too long."""


class Census:
    """All connections, and how many come from each address."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: dict[Counted, None] = {}  # In the order of their coming.
        self._by_address: Counter[str] = Counter()

    @property
    def size(self) -> int:
        """How many are open."""
        return len(self._open)

    @property
    def addresses(self) -> int:
        """From how many addresses."""
        return len(self._by_address)

    def why_not(self, address: str) -> str:
        """Why a connection from this address is one too many, or nothing."""
        if len(self._open) >= self._limits.connections:
            return f"this node has {self._limits.connections} connections already"
        if self._by_address[address] >= self._limits.per_address:
            return f"this address has {self._limits.per_address} connections already"
        return ""

    def enter(self, connection: Counted) -> None:
        """It is open."""
        self._open[connection] = None
        self._by_address[connection.address] += 1

    def leave(self, connection: Counted) -> None:
        """It is closed. An address without connections is forgotten."""
        if self._open.pop(connection, self) is None:
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]

    async def run(self) -> None:
        """Look at all of them, again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            every = list(self._open)
            for first in range(0, len(every), SLICE):
                for connection in every[first : first + SLICE]:
                    connection.look(loop.time())
                await asyncio.sleep(0)
