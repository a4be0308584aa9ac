"""Worker: copies one chunk after another. Query a range, put it into the target's language, write it, say so.

What a worker says is one of four things. `completed`: the chunk is written. `end`: the query gave
nothing, where a source without a known size ends. `error`: this chunk failed; it is recorded, and others go on.
`failure`: a storage is gone; the whole dump stops, and can be resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, TypeAlias
from uuid import UUID

import structlog

from headgate.connectors.api.bulk import (
    PLAIN,
    AlreadyWritten,
    By,
    Language,
    Piece,
    Pieces,
    Range,
    Reader,
    SnapshotGone,
    StorageError,
    StorageGone,
    Writer,
)
from headgate.connectors.values.convert import common, translated
from headgate.errors import ConfigError, HeadgateError, StoreError
from headgate.runtime.dumps.plan import Plan, Rate, Storages, plan_of
from headgate.store.dumps import Attempt, Dumps, Leased
from headgate.text import error_line

RENEW_S = 4.0  # Well within a chunk's lease.
LOOK_S = 0.2  # How often a worker without a chunk asks for one.
STALL_S = 300.0  # A storage that moves nothing for so long is gone.

COMPLETED, END, ERROR, FAILURE = "completed", "end", "error", "failure"

Transform: TypeAlias = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]

log = structlog.get_logger()


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
        """Wait until so many bytes may go."""
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
    """What a worker is at, for the progress bar."""

    table: int = -1
    bytes: int = 0


@dataclass(slots=True)
class _Counted:
    """What went by."""

    bytes: int = 0
    at_s: float = 0.0


class Worker:
    """One copier, with sessions of its own."""

    def __init__(
        self,
        name: str,
        dumps: Dumps,
        dump: UUID,
        storages: Storages,
        throttle: Throttle,
        told: Callable[[], None] = lambda: None,
        transform: Transform | None = None,
    ) -> None:
        self.name = name
        self.progress = Progress()
        self.paused = False
        self.planned = asyncio.Event()
        self._dumps = dumps
        self._dump = dump
        self._storages = storages
        self._throttle = throttle
        self._told = told
        self._transform = transform
        self._plans: dict[int, Plan] = {}
        self._reader: Reader | None = None
        self._writer: Writer | None = None
        self._snapshot: str | None = None

    async def run(self, snapshot: str | None) -> None:
        """Copy chunks until cancelled, or until a storage is gone."""
        self._snapshot = snapshot
        try:
            while True:
                leased = [] if self.paused else await self._lease()
                if not leased:
                    await self._wait()
                    continue
                if not await self._handle(leased[0]):
                    return
        finally:
            await self._close()

    async def _wait(self) -> None:
        """Until there may be a chunk. The plan is in a table, which tells nobody; whoever plans here tells us."""
        self.planned.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self.planned.wait()

    async def _lease(self) -> list[Leased]:
        """The next chunk. Whoever is stopped while asking gives back what he gets: nobody else knows that he has it."""
        asking = asyncio.ensure_future(self._dumps.lease(self._dump, self.name))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(2.0):
                    for leased in await asking:
                        await self._dumps.give_back(self._dump, leased)
            raise

    async def _handle(self, leased: Leased) -> bool:
        """One chunk, from lease to report. False: a storage is gone."""
        began_s = monotonic()
        counted = _Counted(at_s=began_s)
        try:
            plan = await self._plan(leased.table)
            self.progress = Progress(leased.table)
            async with asyncio.TaskGroup() as group:
                renewal = group.create_task(self._renew(leased, counted))
                rows = await self._copy(plan, leased, counted)
                renewal.cancel()
        except asyncio.CancelledError:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(2.0):
                    await self._dumps.give_back(self._dump, leased)
            raise
        except BaseExceptionGroup as group:
            return await self._report(leased, group.exceptions[0], counted.bytes, monotonic() - began_s)
        except Exception as error:
            return await self._report(leased, error, counted.bytes, monotonic() - began_s)
        finally:
            self.progress = Progress()
        self._throttle.learn(rows, counted.bytes)
        is_end = rows == 0 and plan.source.by is By.OFFSET and plan.source.rows is None
        kind = END if is_end else COMPLETED
        seconds = monotonic() - began_s
        attempt = Attempt(leased.table, leased.chunk.number, self.name, kind, rows, counted.bytes, seconds)
        await self._dumps.complete(self._dump, leased, attempt)
        self._told()
        return True

    async def _plan(self, number: int) -> Plan:
        if number not in self._plans:
            self._plans = {row["number"]: plan_of(row) for row in await self._dumps.tables(self._dump)}
        return self._plans[number]

    async def _copy(self, plan: Plan, leased: Leased, counted: _Counted) -> int:
        reader, writer = self._sessions()
        writer.attempt = leased.chunk.epoch
        if not writer.transactional and leased.chunk.epoch > 1:
            assert plan.into is not None
            await writer.undo(plan.job, plan.into, leased.chunk.range)
        try:
            return await copy(
                reader, writer, plan, leased.chunk.range, self._transform, lambda pieces: self._metered(pieces, counted)
            )
        except AlreadyWritten:
            return (await writer.done(plan.job)).get(leased.chunk.range, 0)

    def _sessions(self) -> tuple[Reader, Writer]:
        if self._reader is None:
            self._reader = self._storages.read(self._snapshot)
        if self._writer is None:
            self._writer = self._storages.write()
        return self._reader, self._writer

    async def _metered(self, pieces: Pieces, counted: _Counted) -> AsyncIterator[Piece]:
        """Count what goes by, and hold it to the rate."""
        async for piece in pieces:
            counted.bytes += piece.size
            counted.at_s = monotonic()
            self.progress.bytes = counted.bytes
            await self._throttle.wait(piece.size)
            yield piece

    async def _renew(self, leased: Leased, counted: _Counted) -> None:
        """Keep the lease, as long as something moves."""
        while True:
            await asyncio.sleep(RENEW_S)
            if monotonic() - counted.at_s > STALL_S:
                raise StorageGone(f"nothing has moved for {STALL_S:.0f} s")
            if not await self._dumps.renew_lease(self._dump, leased):
                raise StorageError("the chunk's lease has ended, and another has it")

    async def _report(self, leased: Leased, error: BaseException, size: int, seconds: float) -> bool:
        """Say what went wrong. Sessions are opened anew: they may be in the middle of something."""
        await self._close()
        text = error_line(error)
        # Chunks have no configuration: a server that refuses us now refuses all of them.
        is_gone = isinstance(error, StorageGone | SnapshotGone | StoreError | ConfigError)
        kind = FAILURE if is_gone else ERROR
        attempt = Attempt(leased.table, leased.chunk.number, self.name, kind, 0, size, seconds, text)
        if not isinstance(error, HeadgateError):
            log.error("a chunk failed in an unexpected way", error=text, exc_info=error)
        if is_gone:
            if not await self._dumps.give_back(self._dump, leased):
                return True  # Another has the chunk by now, and ended our session: nothing is gone but that.
            await self._dumps.record(self._dump, attempt)
        else:
            await self._dumps.fail(self._dump, leased, attempt)
        self._told()
        return not is_gone

    async def _close(self) -> None:
        for session in (self._reader, self._writer):
            if session is not None:
                with suppress(Exception):
                    await session.close()
        self._reader = self._writer = None


async def copy(
    reader: Reader,
    writer: Writer,
    plan: Plan,
    range: Range,
    transform: Transform | None = None,
    metered: Callable[[Pieces], Pieces] = lambda pieces: pieces,
    *,
    again: bool = False,
) -> int:
    """One range, from the source's session to the target's: query, translate, map, normalize, write."""
    job, into = plan.job, plan.into
    assert into is not None, "a chunk is planned after its table is prepared"
    language, wanted, csv = spoken(reader, writer, plan, transform is not None)
    read = reader.query(plan.source, range, language, csv)
    try:
        pieces = metered(read)
        if wanted is not language:
            columns = job.source.columns if transform is None else plan.source.columns
            pieces, language = translated(pieces, language, wanted, columns), wanted
        if transform is not None:
            pieces = _mapped(pieces, transform)
        if language not in writer.accepts(into, job):
            language, pieces = writer.normalize(pieces, language, job.source.columns)
        return await writer.write(job, into, range, language, pieces, again=again)
    finally:
        # A query that is left half-way would be ended some time later, in the middle of something else.
        if (end := getattr(read, "aclose", None)) is not None:
            with suppress(RuntimeError):  # Whoever takes its pieces in another task ends it there.
                await end()


def spoken(reader: Reader, writer: Writer, plan: Plan, as_rows: bool) -> tuple[Language, Language, Any]:
    """What the source speaks, what that is translated to first, and how its CSV looks."""
    job, into = plan.job, plan.into
    assert into is not None
    if as_rows:
        language = common(reader.languages, (Language.ROWS,))
        return language, Language.ROWS, PLAIN
    if job.source.details.get("strict"):
        language = common(reader.languages, (Language.CSV, Language.ARROW))
        return language, Language.ARROW, PLAIN
    language = common(reader.languages, writer.accepts(into, job))
    is_direct = language is Language.CSV and language in writer.languages
    csv = writer.csv if is_direct else PLAIN
    if csv.native and csv.native != job.source.family:
        csv = replace(csv, native="")
    return language, language, csv


async def _mapped(pieces: Pieces, transform: Transform) -> AsyncIterator[Piece]:
    async for piece in pieces:
        rows = transform(piece.data)
        yield Piece(rows, piece.size, len(rows))
