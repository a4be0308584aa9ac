"""Sinks: two that commit records and position together, and one that keeps whatever reaches it.

A write is several messages, so that a process can be stopped between any two of them. Before each of them the sender is
seen by the watcher: this is what acting means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias
from uuid import UUID

from headgate.core.streams import Progress
from simulation.kernel import Cancelled, Process, Task
from simulation.network import Away, Network, Service
from simulation.transactions import TransactionalService

IDLE_S = 1.0
ANSWER_S = 15.0
SMALL = 3  # Records that a store takes in one request.

Outcome: TypeAlias = Literal["done", "failed", "fenced"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Records to be written under a grant."""

    stream: UUID
    epoch: int
    sink: str
    source: str
    part: str  # Of the source.
    records: Sequence[int]
    progress: Progress  # Where the stream stands once they are written.


def is_bad(record: int) -> bool:
    """Whether this record becomes a dead letter, which is committed like the others, and counted apart."""
    return record % 13 == 5


@dataclass(slots=True, eq=False)
class Write:
    """A batch on its way into a sink."""

    batch: Batch
    node: UUID
    began_at_s: float
    process: Process
    late_sends: int = 0  # Messages sent after the grant was over, by a process that had been paused.
    task: Task[Outcome] | None = field(default=None)


class Watcher(Protocol):
    """Sees everything that is sent to a sink and everything that happens in one."""

    def acting(self, write: Write) -> None:
        """A message of this write is being sent."""

    def opened(self, sink: str, stream: UUID, epoch: int) -> None:
        """A transactional sink has raised the epoch."""

    def committed(self, sink: str, write: Write, before: Progress) -> None:
        """A transactional sink has taken a batch."""

    def appended(self, sink: str, write: Write, records: Sequence[int]) -> None:
        """A plain sink has these records."""

    def fenced(self, stream: UUID, node: UUID) -> None:
        """A write or an opening was refused because a newer epoch has been there."""


class Sink(Protocol):
    """What a node uses."""

    name: str

    async def open(self, process: Process, node: UUID, stream: UUID, epoch: int) -> Progress | Outcome | None:
        """Where the data stand; None if the sink does not know; or why not."""

    async def write(self, write: Write) -> Outcome:
        """Make a batch durable."""


class PlainSink(Service):
    """Keeps whatever reaches it, at once and forever."""

    def __init__(self, network: Network, name: str, watcher: Watcher) -> None:
        super().__init__(network, name)
        self._watcher = watcher

    async def open(self, process: Process, node: UUID, stream: UUID, epoch: int) -> Progress | Outcome | None:
        """It knows nothing of positions."""
        try:
            await self.ask(process, lambda: None, ANSWER_S)
        except Away:
            return "failed"
        return None

    async def write(self, write: Write) -> Outcome:
        """In two parts: what the first brought stays, whatever becomes of the second."""
        middle = (len(write.batch.records) + 1) // 2
        for part in (write.batch.records[:middle], write.batch.records[middle:]):
            if part:
                self._watcher.acting(write)
                try:
                    await self.ask(write.process, lambda part=part: self._append(write, part), ANSWER_S)  # type: ignore[misc]
                except Away:
                    return "failed"
        return "done"

    def _append(self, write: Write, records: Sequence[int]) -> None:
        self._watcher.appended(self.name, write, records)


@dataclass(slots=True)
class Row:
    """A stream's row, kept with its data."""

    epoch: int
    progress: Progress


class Rows:
    """The rows of a sink that commits records and position together."""

    def __init__(self, name: str, watcher: Watcher) -> None:
        self._rows: dict[UUID, Row] = {}
        self._sink = name
        self._watcher = watcher

    def progress(self, stream: UUID) -> Progress:
        """Where the data stand. A new row has a lower generation than any registry: that one decides where to begin."""
        row = self._rows.get(stream)
        return Progress(generation=-1) if row is None else row.progress

    def is_too_late(self, stream: UUID, epoch: int) -> bool:
        """Whether this epoch, or a higher one, has been here."""
        row = self._rows.get(stream)
        return row is not None and row.epoch >= epoch

    def raise_epoch(self, stream: UUID, epoch: int) -> Progress | None:
        """From now on no older run commits anything. None: we are the older one."""
        if self.is_too_late(stream, epoch):
            return None
        self._rows[stream] = Row(epoch, self.progress(stream))
        self._watcher.opened(self._sink, stream, epoch)
        return self._rows[stream].progress

    def is_ours(self, write: Write) -> bool:
        """Whether a write may be committed."""
        return self._rows[write.batch.stream].epoch == write.batch.epoch

    def commit(self, write: Write) -> None:
        """Records and position, together."""
        row = self._rows[write.batch.stream]
        before, row.progress = row.progress, write.batch.progress
        self._watcher.committed(self._sink, write, before)


class TableSink(TransactionalService):
    """Like PostgreSQL: a transaction of several statements, which the server ends if its client falls silent."""

    def __init__(self, network: Network, name: str, watcher: Watcher) -> None:
        super().__init__(network, name, IDLE_S)
        self.rows = Rows(name, watcher)
        self._watcher = watcher

    async def open(self, process: Process, node: UUID, stream: UUID, epoch: int) -> Progress | Outcome | None:
        """Raise the epoch in a separate transaction, then say where the data stand."""
        self.network.release_stuck(self.name)
        transaction = self.begin(process)
        try:
            if not await self.ask(process, lambda: self._end_holders(stream, epoch), ANSWER_S):
                self._watcher.fenced(stream, node)
                return "fenced"
            await transaction.lock([lambda: [(("row", stream), "exclusive")]], lambda: None)
            progress: Progress | None = await transaction.commit(lambda: self.rows.raise_epoch(stream, epoch))
        except Away:
            transaction.close()
            return "failed"
        return _opened(self._watcher, progress, stream, node)

    def _end_holders(self, stream: UUID, epoch: int) -> bool:
        """End the transactions that are in the middle of a write, unless the caller is too late."""
        if self.rows.is_too_late(stream, epoch):
            return False
        for transaction in self.holders(("write", stream)):
            self.end(transaction)
        return True

    async def write(self, write: Write) -> Outcome:
        """The data, then the position where the epoch is ours, then the commit."""
        transaction = self.begin(write.process)
        stream = write.batch.stream
        try:
            self._watcher.acting(write)
            await transaction.lock([lambda: [(("write", stream), "exclusive")]], lambda: None)
            self._watcher.acting(write)
            is_ours: bool = await transaction.lock(
                [lambda: [(("row", stream), "exclusive")]], lambda: self.rows.is_ours(write)
            )
            if not is_ours:
                transaction.close()
                self._watcher.fenced(stream, write.node)
                return "fenced"
            self._watcher.acting(write)
            await transaction.commit(lambda: self.rows.commit(write))
        except Away:
            transaction.close()
            return "failed"
        except Cancelled:
            transaction.close()
            raise
        return "done"


class StoreSink(Service):
    """A store without sessions: records are staged, and one request compares the epoch and takes them over.

    Nobody ends what a client left behind, so that a request which was under way for long does its work when it arrives.
    """

    def __init__(self, network: Network, name: str, watcher: Watcher) -> None:
        super().__init__(network, name)
        self.rows = Rows(name, watcher)
        self._watcher = watcher

    async def open(self, process: Process, node: UUID, stream: UUID, epoch: int) -> Progress | Outcome | None:
        """Raise the epoch, and say where the data stand, at once."""
        self.network.release_stuck(self.name)
        try:
            progress: Progress | None = await self.ask(process, lambda: self.rows.raise_epoch(stream, epoch), ANSWER_S)
        except Away:
            return "failed"
        return _opened(self._watcher, progress, stream, node)

    async def write(self, write: Write) -> Outcome:
        """Stage, then take over; a small batch needs no staging."""
        try:
            if len(write.batch.records) > SMALL:
                self._watcher.acting(write)
                await self.ask(write.process, lambda: None, ANSWER_S)
            self._watcher.acting(write)
            is_taken: bool = await self.ask(write.process, lambda: self._take_over(write), ANSWER_S)
        except Away:
            return "failed"
        if not is_taken:
            self._watcher.fenced(write.batch.stream, write.node)
        return "done" if is_taken else "fenced"

    def _take_over(self, write: Write) -> bool:
        if not self.rows.is_ours(write):
            return False
        self.rows.commit(write)
        return True


def _opened(watcher: Watcher, progress: Progress | None, stream: UUID, node: UUID) -> Progress | Outcome:
    if progress is None:
        watcher.fenced(stream, node)
        return "fenced"
    return progress
