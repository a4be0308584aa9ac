"""Checkpoints: where all streams of this node stand, saved once a second in one statement."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from uuid import UUID

from headgate.core import streams
from headgate.core.lifecycle import holding
from headgate.runtime.streams.handle import Handle
from headgate.runtime.streams.ownership import Ownership

CHECKPOINT_S = 1.0
LAST_CHECKPOINT_S = 2.0  # For a run's last one: its end must not wait for a database that is away.


class Checkpoints:
    """Saves where streams stand."""

    def __init__(
        self,
        ownership: Ownership,
        node: UUID,
        lose: Callable[[Handle, int], None],
    ) -> None:
        self._ownership = ownership
        self._node = node
        self._lose = lose
        self._moved: set[Handle] = set()  # Streams that have moved since they were saved: the others cost nothing.

    def moved(self, handle: Handle) -> None:
        """It stands elsewhere than it did. Pushed streams are saved when their session asks."""
        if handle.pusher is None:
            self._moved.add(handle)

    async def run(self) -> None:
        """Save until cancelled."""
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            due = list(self._moved)
            await self.save(due)
            self._moved -= {handle for handle in due if not handle.holding.is_unsaved}

    async def save(self, handles: Iterable[Handle]) -> None:
        """Save where these streams stand. A stream that is not ours any more loses its run."""
        found = ((handle, holding.checkpoint(handle.holding, self._node)) for handle in handles)
        due = {
            handle.stream: (handle, command, handle.holding.progress)
            for handle, command in found
            if command is not None
        }
        replies = await self._ownership.checkpoint([(stream, command) for stream, (_, command, _) in due.items()])
        for stream, reply in replies.items():
            handle, command, progress = due[stream]
            if not isinstance(reply, streams.Fenced):
                handle.holding = holding.saved(handle.holding, progress)
            elif holding.is_lost(handle.holding, handle.state.phase, command.epoch, reply.why):
                self._lose(handle, command.epoch)

    async def save_last(self, handle: Handle) -> None:
        """Save what a run had committed when it ended, without waiting long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_CHECKPOINT_S):
                await self.save([handle])
