"""What deleted datasources have left in their sinks is removed, by any node, however long a sink is away.

What is to be done is rows (`store.removals`): they are written when a deleted datasource's streams are purged, so that
nothing is forgotten when a node dies. The node that takes some builds the sink that a version describes and has it
forget the streams. A version names its secrets, so a changed password counts. Where the sink cannot be built, since its
secret is gone, or not be reached, it is tried again later (`core.removals`), and given up with an event in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import cast
from uuid import UUID

import structlog

from headgate.clock import unix_s
from headgate.connectors.api import Context, ForgettingSink
from headgate.core import removals
from headgate.datasources.registry import SYSTEM, Registry
from headgate.errors import StoreError
from headgate.runtime.cluster.beat import RunLabel, label_current
from headgate.runtime.streams import sides
from headgate.runtime.streams.shared import SharedThings
from headgate.store.events import Event
from headgate.store.removals import Removal, Removals

LOOK_S = 15.0
FORGET_S = 60.0  # For one sink and some hundred streams.
UNFINISHED = "a node has begun, and has not finished"

log = structlog.get_logger()


class Remover:
    """Works off what is due."""

    def __init__(self, rows: Removals, registry: Registry, installation: Callable[[], UUID]) -> None:
        self._rows = rows
        self._registry = registry
        self._installation = installation

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            with contextlib.suppress(StoreError):
                while await self.work():
                    pass
            await asyncio.sleep(LOOK_S)

    async def work(self) -> int:
        """Remove some of what is due. Returns how many there were to remove."""
        taken = await self._rows.take()
        for removal in taken:
            # Written down first: a connector that ends its node must not end one node after another.
            await self._rows.put_off(removal, removals.wait_s(removal.attempts), UNFINISHED)
            try:
                sink = await asyncio.create_task(self._forget(removal), name="a removal")
            except StoreError:
                raise  # Our own database: nothing can be written down about it either.
            except Exception as error:
                await self._failed(removal, sides.failure_of(error).message)
            else:
                done = _event(removal, "sink_cleaned", sink=sink) if sink else None
                await self._rows.end(removal, done)
            self._registry.waker.wake("events")
        return len(taken)

    async def _forget(self, removal: Removal) -> str:
        """Have the sink forget the streams. Returns what it is; empty: it keeps nothing of them."""
        label_current(RunLabel(removal.datasource, removal.name))
        side = await self._registry.get_forgetting_sink(removal.datasource, removal.version)
        if side is None:
            return ""
        context = Context(removal.name, log.bind(datasource=removal.name), unix_s, SharedThings())
        sink = cast(ForgettingSink, sides.build_sink_side(side, context))
        try:
            async with asyncio.timeout(FORGET_S):
                await sink.forget(self._installation(), removal.streams)
        finally:
            await sides.close(sink)
        return side.connector.name

    async def _failed(self, removal: Removal, reason: str) -> None:
        if removals.is_given_up(removal.age_s):
            log.warning("what a deleted datasource left in its sink stays there", datasource=removal.name, why=reason)
            await self._rows.end(removal, _event(removal, "sink_not_cleaned", reason=reason))
        else:
            await self._rows.put_off(removal, removals.wait_s(removal.attempts), reason)


def _event(removal: Removal, type: str, **more: str) -> Event:
    payload = {"version": removal.version, "streams": len(removal.streams), **more}
    return Event(removal.datasource, removal.name, type, payload, SYSTEM)
