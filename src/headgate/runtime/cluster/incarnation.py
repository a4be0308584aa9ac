"""Incarnations: a node's life is a sequence of them.

An incarnation begins with a row in the database and a beat, and usually lasts as long as the process. If another node
found it dead (it was stopped, or cut off, for longer than its lease; or its beat was late and its lock free), its next
beat is refused. Everything it held may have another owner by then, so the node drops its workers and begins a new
incarnation that holds nothing. Each incarnation has its own manager, so no worker of an old one can act in the name of
a new one. If the lease of the old one is not over yet, it still keeps the streams that nobody fences; once all its runs
have ended, and none of them in the middle of a write, the node gives those up as well.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from uuid import UUID

import structlog

from headgate.clock import boot_s
from headgate.config import Settings
from headgate.core import lease
from headgate.core.lease import Reachable
from headgate.errors import StoreError
from headgate.ids import new_id
from headgate.runtime import memory
from headgate.runtime.cluster.beat import Beat
from headgate.runtime.groups.listener import GroupListener
from headgate.runtime.push.listener import PushListener
from headgate.runtime.streams.manager import WorkerManager
from headgate.store.database import Check
from headgate.store.nodes import Nodes

RETRY_S = 2.0
ADDRESSES_S = 0.5
LAST_S = 3.0  # For a database that is away when we leave.

log = structlog.get_logger()


class Incarnations:
    """The present incarnation of this node: its beat, its trust, its manager; and the change to the next one."""

    def __init__(
        self,
        url: str,
        check: Check,
        name: str,
        settings: Settings,
        nodes: Nodes,
        push: PushListener,
        groups: GroupListener,
        make_manager: Callable[[UUID, Callable[[], float]], WorkerManager],
        silent: Callable[[], Collection[UUID]],
        on_freed: Callable[[], None],
    ) -> None:
        self._url = url
        self._check = check
        self._name = name
        self._settings = settings
        self._nodes = nodes
        self._push = push
        self._groups = groups
        self._make_manager = make_manager
        self._silent = silent  # The nodes that seem dead.
        self._on_freed = on_freed
        self._known_addresses: tuple[float, list[str]] = (-ADDRESSES_S, [])  # And since when.
        self.beat: Beat | None = None
        self.manager: WorkerManager | None = None
        self.address = settings.advertise or None
        self._manager_task: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None  # While a new incarnation begins.
        self._giving_up: set[asyncio.Task[None]] = set()  # While what an old one kept is given up.
        self._draining = False  # Because an operator said so; a new incarnation drains too.

    @property
    def id(self) -> UUID:
        """The present incarnation."""
        assert self.beat is not None
        return self.beat.trust.incarnation

    def trust_left_s(self) -> float:
        """How long this node may still act."""
        return self.beat.trust_left_s() if self.beat is not None else 0.0

    def may_work(self) -> bool:
        """Whether this node may begin something that is not a stream: it is trusted, and is not about to leave."""
        is_leaving = self._draining or self.manager is None or self.manager.is_stopping
        return not is_leaving and self.trust_left_s() > 0.0

    async def begin(self) -> None:
        """Join as a new incarnation, beat, and manage the streams that it is granted."""
        id = new_id()
        settings = self._settings
        await self._nodes.join(
            id, self._name, settings.lease_s, self.address, draining=self._draining, process=settings.process
        )
        self.beat = Beat(self._url, self._check, id, settings.lease_s, settings.home, self._ended)
        self.beat.start()
        self.manager = self._make_manager(id, self.beat.trust_left_s)
        self._push.begin(self.manager)
        self._manager_task = asyncio.create_task(self.manager.run(), name="manager")

    def set_draining(self, draining: bool) -> None:
        """Drain, or work again, as an operator said."""
        self._draining = draining
        if self.manager is not None and not self.manager.is_stopping:
            self.manager.drain(draining)
            self._push.drain(draining)

    async def drain(self) -> list[str]:
        """Give every stream back, and take no more. Returns those that could not be given back.

        While the database is away no stream can be given back: we wait for it as long as we are trusted.
        """
        if self.manager is None:
            return []
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LAST_S):  # So that nobody grants us what we are about to give back.
                await self._nodes.set_draining(self.id, True)
        self._push.drain(True)
        await self.manager.stop()
        while (kept := self.manager.kept()) and self.trust_left_s() > 0.0:
            await asyncio.sleep(0.05)
        return kept

    async def leave(self) -> bool:
        """Drain unless that has been tried, and end this incarnation. Returns whether the database knows."""
        if self.manager is None or not self.manager.is_stopping:
            await self.drain()
        for task in (*self._giving_up, *([self._next] if self._next is not None else [])):
            await _cancelled(task)
        if self._manager_task is not None:
            await _cancelled(self._manager_task)
        if self.beat is None:
            return False
        await asyncio.to_thread(self.beat.stop)
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LAST_S):
                await self._nodes.end(self.id)
                return True
        return False

    # The next incarnation.

    def _ended(self) -> None:
        log.warning("this node was taken for dead; it starts over")
        self._next = asyncio.create_task(self._begin_next(), name="incarnation")
        self._next.add_done_callback(_collect)

    async def _begin_next(self) -> None:
        over, manager = self.id, self.manager
        if manager is not None:
            manager.lose_all()
        self._push.lose_all()
        self._groups.lose_all()
        if self._manager_task is not None:
            await _cancelled(self._manager_task)
        if manager is not None:
            task = asyncio.create_task(self._give_up(over, manager), name="give up")
            self._giving_up.add(task)
            task.add_done_callback(self._giving_up.discard)
            task.add_done_callback(_collect)
        while True:
            try:
                return await self.begin()
            except StoreError:
                await asyncio.sleep(RETRY_S)
            except Exception:
                log.exception("a new incarnation failed")
                await asyncio.sleep(RETRY_S)

    async def _give_up(self, incarnation: UUID, manager: WorkerManager) -> None:
        """Say that the runs of an incarnation have ended, so that nobody waits for its lease. If a write of one was cut
        off on its way, it may still arrive: then the lease has to end."""
        if not await manager.ended():
            return
        while True:
            try:
                if await self._nodes.end(incarnation):
                    self._on_freed()
                break
            except StoreError:
                await asyncio.sleep(RETRY_S)

    # Where nodes are reached.

    async def set_address(self, address: str) -> None:
        """Say where we are reached, once the port is known; the advertised address wins."""
        self.address = self.address or address
        await self._nodes.set_address(self.id, self.address)

    async def addresses(self) -> list[str]:
        """Where programs can go, as of a moment ago: very many of them may ask at once."""
        known_at_s, found = self._known_addresses
        if boot_s() - known_at_s > ADDRESSES_S:
            found = await self._addresses()
            self._known_addresses = boot_s(), found
        return found

    async def other_address(self) -> str | None:
        """Where a program can go that should leave this node."""
        with contextlib.suppress(StoreError):
            return next((one for one in await self._addresses() if one != self.address), None)
        return None

    async def _addresses(self) -> list[str]:
        rows = [row for row in await self._nodes.all() if not row.ended]
        return lease.addresses((Reachable(row.id, row.address, row.draining) for row in rows), self.id, self._silent())


def _collect(task: asyncio.Task[None]) -> None:
    """What an incarnation held refers to itself in circles, and the collector would find it hours later. Two tasks know
    of it, the one that gives it up and the one that begins the next; it is free when the second of them has ended."""
    memory.collect()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
