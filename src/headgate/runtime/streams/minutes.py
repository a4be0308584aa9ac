"""Minutes: once a minute, a line for each datasource that moved through this node, all in one statement.

The server's clock says which minute it is, so nodes agree on it. A write that fails is made up for by the next: totals
come from the streams' rows, and what only this node knows waits here. A stream that changes hands is told of by the
node that has it when the minute is over; one that it has just taken over counts as moved, because its last node may
have died before it could say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from uuid import UUID

from headgate.clock import unix_s
from headgate.core.figures import InboxBacklog
from headgate.core.minutes import MINUTE_S
from headgate.errors import StoreError
from headgate.runtime.inbox import InboxHub
from headgate.runtime.streams.handle import Handle
from headgate.store.minutes import Line, Minutes

AFTER_S = 2.0  # The end of a minute: by then its last checkpoints are saved.
SPREAD_S = 3.0  # Nodes do not all come at once.
RETRY_S = 5.0


class MinuteKeeper:
    """What this node has to say of the present minute."""

    def __init__(self, table: Minutes, inboxes: InboxHub, node: UUID, take_moved: Callable[[], set[Handle]]) -> None:
        self._table = table
        self._inboxes = inboxes
        self._take_moved = take_moved
        self._after_s = AFTER_S + node.int % 1000 / 1000 * SPREAD_S
        self._ahead_s = 0.0  # How far the server's clock is ahead of ours.
        self._untold: dict[UUID, tuple[int, float]] = {}  # Bytes and lag, by datasource.
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(self._until_next_s())
            while not await self._try_to_write():
                await asyncio.sleep(RETRY_S)

    async def write(self) -> None:
        """Write the lines of the minute that is just over."""
        async with self._writing:
            self._gather()
            server_s = await self._table.write(_lines(self._untold, await self._inboxes.backlogs()))
            self._untold = {}
            self._ahead_s = server_s - unix_s()

    async def _try_to_write(self) -> bool:
        try:
            await self.write()
        except StoreError:
            return False
        return True

    def _gather(self) -> None:
        """Take what the streams have to say. It is said by datasource: bytes add up, and the longest lag counts."""
        for handle in self._take_moved():
            size, lag_s = handle.stats.minute()
            before_bytes, before_s = self._untold.get(handle.datasource, (0, 0.0))
            self._untold[handle.datasource] = before_bytes + size, max(before_s, lag_s)

    def _until_next_s(self) -> float:
        """How long until the present minute is over, by the server's clock as we last read it."""
        return MINUTE_S - (unix_s() + self._ahead_s - self._after_s) % MINUTE_S


def _lines(untold: Mapping[UUID, tuple[int, float]], inboxes: Mapping[UUID, InboxBacklog]) -> list[Line]:
    """What moved, and the inboxes in which payloads wait, whether somebody reads them or not."""
    waiting = {datasource for datasource, inbox in inboxes.items() if inbox.records}
    return [_line(one, *untold.get(one, (0, 0.0)), inboxes.get(one)) for one in untold.keys() | waiting]


def _line(datasource: UUID, size: int, lag_s: float, inbox: InboxBacklog | None) -> Line:
    if inbox is None:
        return Line(datasource, size, None, lag_s)
    waited_s = 0.0 if inbox.oldest_at_s is None else unix_s() - inbox.oldest_at_s
    return Line(datasource, size, inbox.records, max(lag_s, waited_s))
