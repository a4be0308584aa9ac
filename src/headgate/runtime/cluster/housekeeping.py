"""Housekeeping: what nobody needs any more is removed. Any node may do it; doing it twice is harmless."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import structlog

from headgate.errors import StoreError
from headgate.runtime.inbox import InboxHub
from headgate.store.datasources import Datasources
from headgate.store.events import Events
from headgate.store.groups import Groups
from headgate.store.inbox import InboxTable
from headgate.store.letters import Letters
from headgate.store.minutes import Minutes
from headgate.store.placement import Placement
from headgate.store.sessions import Sessions
from headgate.store.streams import Streams
from headgate.store.tokens import Tokens
from headgate.store.wake import Waker

HOUSEKEEPING_S = 30.0
PAUSE_S = 0.1  # Between two pieces of a large inbox, or of many events or letters.

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Housekeeper:
    """The tables that have something to remove."""

    inbox: InboxTable
    inboxes: InboxHub
    inbox_keep_s: float
    events: Events
    events_keep_s: float
    datasources: Datasources
    streams: Streams
    minutes: Minutes
    groups: Groups
    letters: Letters
    placement: Placement
    tokens: Tokens
    sessions: Sessions
    waker: Waker

    async def run(self) -> None:
        """Keep house until cancelled."""
        while True:
            with contextlib.suppress(StoreError):
                await self._clean()
            await asyncio.sleep(HOUSEKEEPING_S)

    async def _clean(self) -> None:
        while await self.inbox.clean(self.inbox_keep_s, self.inboxes.acked):
            await asyncio.sleep(PAUSE_S)
        while await self.events.forget(self.events_keep_s):
            await asyncio.sleep(PAUSE_S)
        await self.datasources.purge()
        await self.minutes.keep()
        await self.streams.trim_history()
        await self.groups.clean()
        while await self.letters.clean():
            await asyncio.sleep(PAUSE_S)
        await self.sessions.clean()
        if await self.tokens.end_expired():
            self.waker.wake("events")
        if freed := await self.placement.sweep():
            log.warning("streams of owners that are gone were freed", streams=freed)
