"""One run: open the sink, then read, write and acknowledge, under one grant.

As in a real one, the sink comes first: it fences the run before this one. Draining lets the write under way finish.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from headgate.core import streams
from headgate.core.lifecycle import Failure
from headgate.core.records import Totals, add
from headgate.core.streams import Progress
from headgate.errors import Cause
from simulation.kernel import Signal
from simulation.registry import Version
from simulation.sinks import Batch, is_bad
from simulation.sources import Source

if TYPE_CHECKING:
    from simulation.node import Node

READ_S = 0.002


class Failed(Exception):
    """The run cannot go on."""

    def __init__(self, cause: Cause, text: str) -> None:
        super().__init__(text)
        self.failure = Failure(cause, text)


class FencedOff(Exception):
    """A newer run has been there."""


class Run:
    """One run of one stream."""

    def __init__(
        self,
        node: Node,
        stream: UUID,
        epoch: int,
        version: Version,
        progress: Progress,
        source: Callable[[], Awaitable[Source]],
        on_opened: Callable[[Progress], None],
        on_commit: Callable[[Progress], None],
        news: Signal,
        is_settled: bool,
    ) -> None:
        self._node = node
        self._stream = stream
        self._epoch = epoch
        self._version = version
        self._granted = progress
        self._source = source
        self._on_opened = on_opened
        self._on_commit = on_commit
        self._news = news  # There is more to read, or the run is to end.
        self._is_draining = False
        self.progress: Progress | None = None  # Where the stream stands, once the sink has said so.
        self.is_settled = is_settled  # Whether the sink is known to have just that.
        self.is_abandoned = False  # Nothing may be written any more, whatever still runs.

    def drain(self) -> None:
        """Finish the write under way, then end."""
        self._is_draining = True
        self._news.set()

    async def run(self) -> bool:
        """Move records until drained (False) or until the source has ended (True); raise if it cannot go on."""
        node, version = self._node, self._version
        found = await node.world.sinks[version.sink].open(node.process, node.incarnation, self._stream, self._epoch)
        if found == "fenced":
            raise FencedOff
        if isinstance(found, str):
            raise Failed(Cause.NETWORK, "the sink is away")
        progress = self.progress = streams.agree(self._granted, found)
        self.is_settled = True
        if version.flaw is not None:
            raise Failed(Cause.CONFIG, "this version cannot be opened")
        source = await self._source()
        source.open(progress.position)
        self._on_opened(progress)
        return await self._move(source, progress)

    async def _move(self, source: Source, progress: Progress) -> bool:
        process, version = self._node.process, self._version
        while not self._is_draining:
            if source.is_over:
                return True
            read = source.read(progress.position)
            if read is None:
                await self._news.wait(process, source.wait_s(progress.position))
                continue
            await process.sleep(READ_S)
            if self._is_draining:
                break
            part, records, position = read
            bad = sum(map(is_bad, records))
            totals = add(progress.totals, Totals(len(records), len(records) - bad, 0, bad))
            progress = replace(progress, commits=progress.commits + 1, position=position, totals=totals)
            batch = Batch(self._stream, self._epoch, version.sink, version.source, part, records, progress)
            await self._write(batch)
            self._node.world.checkers.source_acked(batch)
        return False

    async def _write(self, batch: Batch) -> None:
        self.is_settled = False
        outcome = await self._node.write(batch, lambda: not self.is_abandoned)
        if outcome == "fenced":
            raise FencedOff
        if outcome == "failed":
            raise Failed(Cause.NETWORK, "a write was not answered")
        self.progress, self.is_settled = batch.progress, True
        self._on_commit(batch.progress)
