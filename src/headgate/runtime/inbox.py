"""Inboxes: one reader serves all the webhooks of a node.

A source that finds its inbox empty waits here. It is woken by a payload that came in through this node, by a wake-up
from another node, or by a poll that asks for all waiting sources in one query.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from headgate.clock import boot_s
from headgate.connectors.api import Received
from headgate.core.figures import InboxBacklog
from headgate.errors import StoreError
from headgate.store.inbox import InboxTable

POLL_S = 1.0
GATHER_S = 0.01  # A source that was woken lets a few more payloads come in: one write for all of them.
BUSY_GATHER_S = 0.03  # From one read to the next while payloads keep coming: each write is a commit of the sink.


class InboxHub:
    """Who waits for what."""

    def __init__(self, table: InboxTable) -> None:
        self._table = table
        self._waiting: dict[UUID, tuple[int, asyncio.Future[None]]] = {}
        self._news = asyncio.Event()
        self._acked: dict[UUID, int] = {}
        self._next_read_s: dict[UUID, float] = {}

    def of(self, datasource: UUID) -> DatasourceInbox:
        """One datasource's inbox."""
        return DatasourceInbox(self, self._table, datasource)

    def arrived(self, datasource: UUID) -> None:
        """A payload for this datasource is durable."""
        waiting = self._waiting.pop(datasource, None)
        if waiting is not None and not waiting[1].done():
            waiting[1].set_result(None)

    def look(self) -> None:
        """Something may have arrived through another node."""
        self._news.set()

    async def wait(self, datasource: UUID, id: int) -> None:
        """Wait until there may be something after `id`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[datasource] = (id, future)
        await future

    @property
    def acked(self) -> Mapping[UUID, int]:
        """The last payload of each datasource that its sink has durably, of the streams that run here."""
        return self._acked

    async def backlogs(self) -> dict[UUID, InboxBacklog]:
        """What waits in each inbox that has ever had anything."""
        return await self._table.unread(self._acked)

    def ack(self, datasource: UUID, id: int) -> None:
        """Everything up to `id` is durable in the sink."""
        self._acked[datasource] = id

    def rewind(self, datasource: UUID, id: int) -> None:
        """What follows `id` is read, maybe again: it is not to be removed before that."""
        if self._acked.get(datasource, id) > id:
            self._acked[datasource] = id

    def forget(self, datasource: UUID) -> None:
        """A source here is done with it. What waits by now is another's."""
        self._acked.pop(datasource, None)
        self._next_read_s.pop(datasource, None)

    async def let_gather(self, datasource: UUID) -> None:
        """Wait, if the last read was a moment ago and found all that there was."""
        wait_s = self._next_read_s.pop(datasource, 0.0) - boot_s()
        if wait_s > 0.0:
            await asyncio.sleep(wait_s)

    def has_read_all(self, datasource: UUID) -> None:
        """A read has found all that there was."""
        self._next_read_s[datasource] = boot_s() + BUSY_GATHER_S

    async def run(self) -> None:
        """Poll for all who wait, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._news.wait()
            self._news.clear()
            self._waiting = {d: (id, f) for d, (id, f) in self._waiting.items() if not f.done()}
            if not self._waiting:
                continue
            with contextlib.suppress(StoreError):
                for datasource in await self._table.news({d: id for d, (id, _) in self._waiting.items()}):
                    self.arrived(datasource)


@dataclass(frozen=True, slots=True)
class DatasourceInbox:
    """One datasource's inbox, as its source sees it."""

    hub: InboxHub
    table: InboxTable
    datasource: UUID

    async def after(self, id: int, limit: int) -> Sequence[Received]:
        """The oldest payloads after `id`; waits until there is one."""
        self.hub.rewind(self.datasource, id)
        await self.hub.let_gather(self.datasource)
        while True:
            payloads = await self.table.after(self.datasource, id, limit)
            if payloads:
                if len(payloads) < limit:
                    self.hub.has_read_all(self.datasource)
                return payloads
            await self.hub.wait(self.datasource, id)
            await asyncio.sleep(GATHER_S)

    async def ack(self, id: int) -> None:
        """Everything up to `id` is durable in the sink, and may be removed once it has been kept long enough."""
        self.hub.ack(self.datasource, id)

    async def close(self) -> None:
        """Forget what was acknowledged: by now the registry knows the position, which may be set back."""
        self.hub.forget(self.datasource)
