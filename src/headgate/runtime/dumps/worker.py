"""Worker: copies one chunk after another. Query a range, put it into the target's language, write it, report.

`core.chunks.outcome` says what a worker can report, and what follows from that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from uuid import UUID

from headgate.connectors.api.bulk import (
    AlreadyWritten,
    By,
    Piece,
    Pieces,
    Reader,
    SnapshotGone,
    StorageError,
    StorageGone,
    Writer,
)
from headgate.core.chunks.outcome import Notice, is_silent, notice, unnamed
from headgate.errors import ConfigError, HeadgateError, StoreError
from headgate.hidden import error_said
from headgate.log import get_logger
from headgate.runtime.dumps.copying import Transform, copy
from headgate.runtime.dumps.locks import LockManager
from headgate.runtime.dumps.offsets import silent
from headgate.runtime.dumps.plan import Plan, Rate, Storages, plan_of
from headgate.spans import spans
from headgate.store.dump_rows import Attempt, Leased
from headgate.store.dumps import Dumps

RENEW_S = 4.0  # Well within a chunk's lease.
LOOK_S = 0.2  # How often a worker without a chunk asks for one.
TARGET_S = 300.0  # A target that takes nothing for this long is gone. It may have waited for locks of others.

log = get_logger()


@dataclass(slots=True)
class Throttle:
    """Lets as much through as the rate allows, for all workers of a process together."""

    rate: Rate = field(default_factory=Rate)
    share: float = 1.0  # Of the rate, where several processes have it together.
    row_bytes: float = 100.0  # How long rows are, on average: bytes are seen at once, rows not always.
    _due_s: float = field(default=0.0)

    def learn(self, rows: int, size: int) -> None:
        """A chunk has shown how long rows are."""
        if rows:
            self.row_bytes = max(1.0, size / rows)

    async def wait(self, size: int) -> None:
        """Wait until this many bytes may go."""
        limit = self.rate.bytes or (self.rate.rows * self.row_bytes if self.rate.rows else None)
        if not limit:
            return
        limit *= self.share
        now_s = monotonic()
        self._due_s = max(self._due_s, now_s - 1.0) + size / limit
        if self._due_s > now_s:
            await asyncio.sleep(min(self._due_s - now_s, 5.0))


@dataclass(slots=True)
class Progress:
    """What a worker copies now, for the progress bar."""

    table: int = -1
    bytes: int = 0


@dataclass(slots=True)
class _Flow:
    """What has passed from the source to the target, and which of them is waited for."""

    began_s: float
    bytes: int = 0
    asked_s: float | None = None  # When the source was asked for more; None: it has answered.
    moved_s: float = 0.0  # When something last passed.

    @property
    def seconds(self) -> float:
        """How long it takes already."""
        return monotonic() - self.began_s


class Worker:
    """One copier, with its own sessions."""

    def __init__(
        self,
        name: str,
        dumps: Dumps,
        dump: UUID,
        storages: Storages,
        throttle: Throttle,
        on_report: Callable[[], None] = lambda: None,
        transform: Transform | None = None,
    ) -> None:
        self.name = name
        self.progress = Progress()
        self.paused = False
        self.planned = asyncio.Event()
        self.unrecorded: list[Attempt] = []  # Reports that the database did not take.
        self._dumps = dumps
        self._dump = dump
        self._locks = LockManager(dumps.chunks, dump)
        self._storages = storages
        self._throttle = throttle
        self._on_report = on_report
        self._transform = transform
        self._plans: dict[int, Plan] = {}
        self._reader: Reader | None = None
        self._writer: Writer | None = None
        self._snapshot = ""

    async def run(self, snapshot: str) -> None:
        """Copy chunks that are to be read in this snapshot, until cancelled, or until a storage is gone."""
        self._snapshot = snapshot
        try:
            while True:
                leased = None if self.paused else await self._lease()
                if leased is None:
                    await self._wait()
                elif not await self._handle(leased):
                    return
        finally:
            await self._close()

    async def _wait(self) -> None:
        """Until there may be a chunk. A plan of this process wakes us; one of another process does not."""
        self.planned.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self.planned.wait()

    async def _lease(self) -> Leased | None:
        """The next chunk. A worker that is stopped while it asks gives back what it gets."""
        asking = asyncio.ensure_future(self._locks.lease(self.name, self._snapshot))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(2.0):
                    if (leased := await asking) is not None:
                        await self._locks.give_back(leased)
            raise

    async def _handle(self, leased: Leased) -> bool:
        """One chunk, from lease to report. False: a storage is gone."""
        flow = _Flow(monotonic(), moved_s=monotonic())
        try:
            plan = await self._plan(leased.table)
            self.progress = Progress(leased.table)
            async with asyncio.TaskGroup() as group:
                renewal = group.create_task(self._renew(leased, flow))
                rows = await self._copy(plan, leased, flow)
                renewal.cancel()
        except asyncio.CancelledError:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(2.0):
                    await self._locks.give_back(leased)
            raise
        except BaseExceptionGroup as group:
            return await self._failed(leased, group.exceptions[0], flow)
        except Exception as error:
            return await self._failed(leased, error, flow)
        finally:
            self.progress = Progress()
        self._throttle.learn(rows, flow.bytes)
        kind = notice(rows, is_sized=plan.source.by is not By.OFFSET or plan.source.rows is not None)
        await self._report(leased, self._attempt(leased, kind, flow, rows=rows))
        if spans.is_on:
            self._trace(leased, flow, rows=rows)
        return True

    def _trace(self, leased: Leased, flow: _Flow, *, rows: int = 0, cause: str = "") -> None:
        """Which chunk, by its number: its bounds are values."""
        table = self._plans[leased.table].job.source.name if leased.table in self._plans else ""
        names = {"dump": str(self._dump), "table": table, "worker": self.name}
        numbers = {"chunk": leased.chunk.number, "rows": rows, "bytes": flow.bytes}
        spans.tell("chunk", flow.seconds, cause, **names, **numbers)

    def _attempt(self, leased: Leased, kind: Notice, flow: _Flow, *, rows: int = 0, error: str = "") -> Attempt:
        number, range = leased.chunk.number, leased.chunk.range
        return Attempt(leased.table, number, self.name, kind, rows, flow.bytes, flow.seconds, error, range.lo, range.hi)

    async def _plan(self, number: int) -> Plan:
        if number not in self._plans:
            plans = {row.number: plan_of(row) for row in await self._dumps.tables(self._dump)}
            self._plans = {number: plan for number, plan in plans.items() if plan.into is not None}
        return self._plans[number]

    async def _copy(self, plan: Plan, leased: Leased, flow: _Flow) -> int:
        reader, writer = self._sessions()
        writer.attempt = leased.chunk.epoch
        if not writer.transactional and leased.chunk.epoch > 1:
            assert plan.into is not None
            await writer.undo(plan.job, plan.into, leased.chunk.range)
        try:
            return await copy(
                reader, writer, plan, leased.chunk.range, self._transform, lambda pieces: self._metered(pieces, flow)
            )
        except AlreadyWritten:
            return (await writer.done(plan.job)).get(leased.chunk.range, 0)

    def _sessions(self) -> tuple[Reader, Writer]:
        if self._reader is None:
            self._reader = self._storages.read(self._snapshot or None)
        if self._writer is None:
            self._writer = self._storages.write()
        return self._reader, self._writer

    async def _metered(self, pieces: Pieces, flow: _Flow) -> AsyncIterator[Piece]:
        """Count what passes, and hold it to the rate."""
        flow.asked_s = monotonic()
        async for piece in pieces:
            flow.asked_s, flow.moved_s = None, monotonic()
            flow.bytes += piece.size
            self.progress.bytes = flow.bytes
            await self._throttle.wait(piece.size)
            yield piece
            flow.asked_s = flow.moved_s = monotonic()
        flow.asked_s, flow.moved_s = None, monotonic()

    async def _renew(self, leased: Leased, flow: _Flow) -> None:
        """Keep the lease, as long as both storages answer."""
        timeout_s = self._storages.source_timeout_s
        while True:
            await asyncio.sleep(min(RENEW_S, timeout_s / 2))
            if is_silent(flow.asked_s, monotonic(), timeout_s):
                raise silent(timeout_s)
            if is_silent(flow.moved_s, monotonic(), max(TARGET_S, timeout_s)):
                raise StorageGone(f"the target has taken nothing for {max(TARGET_S, timeout_s):g} s")
            if not await self._locks.renew(leased):
                raise StorageError("the chunk's lease has ended, and another worker has it")

    async def _failed(self, leased: Leased, error: BaseException, flow: _Flow) -> bool:
        """Report what went wrong. New sessions are opened: the old ones may be in the middle of something. False: a
        storage is gone."""
        await self._close()
        job = self._plans[leased.table].job if leased.table in self._plans else None
        text = error_said(error)
        text = unnamed(text, job.source.name, job.target) if job is not None else text
        # Chunks have no configuration: a server that refuses the connection for one refuses it for all.
        is_gone = isinstance(error, StorageGone | SnapshotGone | StoreError | ConfigError)
        if not isinstance(error, HeadgateError):
            log.error("a chunk failed in an unexpected way", error=text, exc_info=error)
        kind = Notice.FAILURE if is_gone else Notice.ERROR
        if spans.is_on:
            self._trace(leased, flow, cause=type(error).__name__)
        return await self._report(leased, self._attempt(leased, kind, flow, error=text)) or not is_gone

    async def _report(self, leased: Leased, attempt: Attempt) -> bool:
        """Write down what became of the chunk. True: another worker has it now, so that nothing follows from it."""
        try:
            match attempt.kind:
                case Notice.COMPLETED | Notice.END:
                    is_ours = await self._locks.complete(leased, attempt)
                case Notice.ERROR:
                    is_ours = await self._locks.fail(leased, attempt)
                case Notice.FAILURE:
                    is_ours = await self._locks.give_back(leased)
                    if is_ours:
                        await self._locks.record(leased, attempt)
        except StoreError:
            self.unrecorded.append(attempt)
            raise
        self._on_report()
        return not is_ours

    async def _close(self) -> None:
        for session in (self._reader, self._writer):
            if session is not None:
                with suppress(Exception):
                    await session.close()
        self._reader = self._writer = None
