"""Watching the others' beats, and ending those that fell silent: at once, if their lock is free, else after a lease."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from uuid import UUID

import structlog

from headgate.clock import boot_s
from headgate.core import lease
from headgate.core.lease import Observer
from headgate.errors import StoreError
from headgate.store.nodes import Nodes

log = structlog.get_logger()


class Watcher:
    """What this node sees of the others."""

    def __init__(
        self,
        nodes: Nodes,
        incarnation: Callable[[], UUID],
        on_draining: Callable[[bool], None],
        on_vanished: Callable[[], None],
        on_freed: Callable[[], None],
    ) -> None:
        self._nodes = nodes
        self._incarnation = incarnation
        self._on_draining = on_draining  # Whether an operator wants this node to drain.
        self._on_vanished = on_vanished
        self._on_freed = on_freed
        self._observer = Observer({})
        self._now = asyncio.Event()

    def look(self) -> None:
        """Look now."""
        self._now.set()

    async def run(self) -> None:
        """Observe until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(lease.next_look_s(self._observer, boot_s())):
                    await self._now.wait()
            self._now.clear()
            try:
                await self._observe()
            except (StoreError, TimeoutError):
                self._observer = lease.unanswered(self._observer)

    async def _observe(self) -> None:
        asked_at_s = boot_s()
        async with asyncio.timeout(lease.LATE_S):  # A later answer would prove nothing.
            beats, draining = await self._nodes.observe()
        me = self._incarnation()
        others = [row for row in beats if row.node != me]
        if self._observer.seen.keys() - {row.node for row in others if not row.is_ended}:
            self._on_vanished()
        self._observer, expired = lease.observed(self._observer, others, asked_at_s, boot_s())
        self._on_draining(me in draining)
        for one in expired:
            self._freed(one.node, await self._nodes.expire(one), "a node fell silent: its streams are free")
        for late in lease.quiet(self._observer, others, asked_at_s):
            self._freed(late.node, await self._nodes.end_early(late), "a node is gone: what is fenced is free")

    def _freed(self, node: UUID, taken: list[UUID] | None, text: str) -> None:
        if taken is not None:
            log.warning(text, node=str(node), streams=len(taken))
            self._on_freed()

    def silent_s(self, node: UUID) -> float:
        """For how long we have seen no beat of another node."""
        return lease.silent_s(self._observer, node, boot_s())

    def is_heard(self, node: UUID) -> bool:
        """Whether a node beats: this one does, and another if we have heard it lately."""
        return node == self._incarnation() or lease.is_heard(self._observer, node, boot_s())

    def silent(self) -> list[UUID]:
        """The nodes that should get no new streams."""
        return lease.silent(self._observer, boot_s())
