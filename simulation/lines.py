"""A line: what a pushed stream has handed over, on its way into the sink and into the registry.

Every barrier takes what has come in, writes it, and has it committed. Writes go one after the other; commits do not
wait for one another, so that a late one may come after a later one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from headgate.core import streams
from headgate.core.streams import Acquire, Checkpoint, Fenced, Granted, Progress
from simulation.database import Wish
from simulation.network import Away
from simulation.sinks import Batch

if TYPE_CHECKING:
    from simulation.push import PushHost

RETRY_S = 0.3
SETTLE_S = 8.0
COMMITS = 3  # At a time, of one stream.


class Line:
    """The way of one session's stream, under one grant after another."""

    def __init__(
        self, host: PushHost, stream: UUID, epoch: int, progress: Progress, saved_commits: int, wish: Wish
    ) -> None:
        self.stream = stream
        self.epoch = epoch
        self.progress = progress  # Durable in the sink.
        self.saved = replace(progress, commits=saved_commits)  # Committed in the registry, as far as we know.
        self.version = wish.version
        self.buffer: list[int] = []
        self.is_stopped = False
        self._host = host
        self._node = host.manager.node
        self._sink = wish.sink
        self._is_flushing = False
        self._is_regranting = False
        self._commits = 0

    def stop(self) -> None:
        """Nothing of it may be written any more."""
        self.is_stopped = True
        self._node.cut_writes_of(self.stream)

    def has_work(self) -> bool:
        """Whether something is not committed."""
        return bool(self.buffer) or self.saved.commits < self.progress.commits

    def is_busy(self) -> bool:
        """Whether a barrier has to wait."""
        return self._is_flushing or self._is_regranting or self._commits >= COMMITS

    async def flush(self, barrier: int) -> None:
        """Write what has come in before this barrier, then have it committed."""
        epoch, records = self.epoch, self.buffer
        self.buffer = []
        if records:
            self._is_flushing = True
            progress = replace(self.progress, commits=self.progress.commits + 1, position=records[-1])
            batch = Batch(self.stream, epoch, self._sink, "source", records, progress)
            outcome = await self._node.write(batch, lambda: not self.is_stopped)
            self._is_flushing = False
            if self.is_stopped:
                return
            if outcome != "done":
                self._host.broke(self)
                return
            self.progress = progress
        self._node.process.spawn(self._commit(barrier, epoch, self.progress), weight=3)

    async def _commit(self, barrier: int, epoch: int, progress: Progress) -> None:
        if progress.commits > self.saved.commits:
            self._commits += 1
            try:
                command = Checkpoint(self._host.manager.id, epoch, progress.commits, progress.position)
                reply = (await self._host.manager.apply(self.stream, command)).reply
            except Away:
                return  # A later barrier brings it.
            finally:
                self._commits -= 1
            if isinstance(reply, Fenced):
                if epoch == self.epoch and not self.is_stopped:
                    self._host.lost(self)
                return
            if progress.commits > self.saved.commits:
                self.saved = progress
        self._host.completed(self, barrier, epoch, progress)

    async def settle(self) -> None:
        """Have everything committed that has come in, without waiting long."""
        process = self._node.process
        until_s = process.clock_s() + SETTLE_S
        while not self.is_stopped and process.clock_s() < until_s:
            if self.is_busy() or self._commits:
                await process.sleep(0.02)
            elif self.has_work():
                await self.flush(self._host.barrier)
                await process.sleep(0.01)
            else:
                break

    async def regrant(self, wish: Wish) -> None:
        """A new version goes on: the same stream, under a higher epoch."""
        if self._is_regranting:
            return
        self._is_regranting, self.version = True, wish.version
        process, manager = self._node.process, self._host.manager
        while self._is_flushing and not self.is_stopped:
            await process.sleep(0.01)
        if self.is_stopped:
            return
        step = await self._host.acquire(self.stream, wish, lambda: not self.is_stopped)
        if step is None:
            return
        if not isinstance(step.reply, Granted):
            self._host.lost(self)
            return
        epoch = step.stream.epoch
        if self.is_stopped:
            # It was given back meanwhile; so is what has just been granted.
            self._host.regranted(self.stream, epoch, step.stream.progress)
            return
        sink = manager.world.sinks[self._sink]
        found = await sink.open(process, manager.id, self.stream, epoch)
        self._host.regranted(self.stream, epoch, step.stream.progress)
        if self.is_stopped:
            return
        self.epoch = epoch
        if isinstance(found, str):
            self._host.broke(self)
            return
        self.progress = streams.agree(self.progress if found is None else step.stream.progress, found)
        self._is_regranting = False


def acquire_command(manager_id: UUID, run: UUID, wish: Wish) -> Acquire:
    """Claim a pushed stream, or regrant it."""
    return Acquire(manager_id, run, wish.version, wish.source, wish.sink, claims=True)
