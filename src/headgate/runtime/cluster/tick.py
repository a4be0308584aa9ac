"""The tick: free streams are granted, others moved, parts dealt. Any node may do it; one at a time does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from uuid import UUID

import structlog

from headgate.clock import boot_s
from headgate.core import lease, patience
from headgate.core.patience import Patience
from headgate.errors import StoreError
from headgate.store.dealing import Dealing
from headgate.store.placement import Placement
from headgate.store.wake import Waker

log = structlog.get_logger()


class Ticker:
    """This node's part in placing streams."""

    def __init__(
        self,
        placement: Placement,
        dealing: Dealing,
        waker: Waker,
        silent: Callable[[], list[UUID]],
        trust_left_s: Callable[[], float],
        on_changed: Callable[[], None],
    ) -> None:
        self._placement = placement
        self._dealing = dealing
        self._waker = waker
        self._silent = silent
        self._trust_left_s = trust_left_s
        self._on_changed = on_changed
        self._patience = Patience()
        self._look = asyncio.Event()  # There may be free streams.

    def look(self) -> None:
        """Look now."""
        self._look.set()

    def vanished(self) -> None:
        """A node is gone."""
        self._patience = patience.vanished(self._patience, boot_s())

    def takes_in_s(self, stream: UUID, epoch: int, lease_s: float) -> float | None:
        """When we would take a stream from a holder that was told to step down. None: we have not seen that yet."""
        return patience.takes_in_s(self._patience, (stream, epoch), lease_s, boot_s())

    async def run(self) -> None:
        """Tick whenever something changed, and now and then, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(lease.OBSERVE_S):
                    await self._look.wait()
            self._look.clear()
            if self._trust_left_s() > 0.0:
                await self._tick()

    async def _tick(self) -> None:
        dealt = 0
        with contextlib.suppress(StoreError):  # First: what is dealt now is granted at once.
            dealt = await self._dealing.act()
        with contextlib.suppress(StoreError):
            silent = self._silent()
            granted = await self._placement.grant(silent)
            moves = patience.may_move(self._patience, silent, boot_s())
            ordered = await self._placement.balance(silent, moves=moves)
            if dealt:
                self._waker.wake("registry")
                self._waker.wake("events")
            taken = await self._take_from_the_stuck()
            if granted or ordered or dealt or taken:
                self._on_changed()
                self._waker.wake("streams")

    async def _take_from_the_stuck(self) -> int:
        """A holder abandons a run that does not stop in time. One that does not even do that loses the stream."""
        standing = await self._placement.standing_orders()
        self._patience = patience.seen(self._patience, standing, boot_s())
        taken = 0
        for order in patience.overdue(self._patience, standing, boot_s()):
            if await self._placement.take(order):
                log.warning("a stream was taken from a node that did not step down", stream=str(order.stream))
                taken += 1
        return taken
