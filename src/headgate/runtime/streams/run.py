"""One run: source → mapping → sink → ack, under one grant.

The next batch is read and mapped while the last one is written; nothing more is read ahead, so a slow sink slows the
source. Mapping gives way to others every few milliseconds (`runtime.streams.slices`), so that a large batch, or a dear
record, holds up neither the write that is waiting for its answer nor other streams. A batch is acknowledged only after
the sink has it durably. Draining lets the write under way finish and drops what was read ahead: that was not
acknowledged, and is read again.

Without trust nothing is written. A write that outlasts our trust is cut off, not awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from headgate.connectors.api import Backlog, Batch, Context, Grant, Outgoing, Progress, Sink, Source
from headgate.core.lifecycle import Failure
from headgate.core.mapping.document import Mapped
from headgate.core.records import Totals, add
from headgate.core.streams import agree
from headgate.datasources.prepared import Prepared
from headgate.errors import (
    BadRecord,
    Cause,
    ConfigError,
    ConnectorError,
    EndOfStream,
    Fenced,
    HeadgateError,
    NotConnected,
    RetryLater,
    StoreError,
)
from headgate.hidden import hide
from headgate.runtime.streams import parts
from headgate.runtime.streams.hosting import Threaded
from headgate.runtime.streams.parts import Share
from headgate.runtime.streams.slices import map_all
from headgate.runtime.streams.stats import Stats
from headgate.text import error_line

CLOSE_S = 2.0
CHECK_S = 30.0
TRUST_POLL_S = 0.1
RENEW_S = 0.1
BACKLOG_S = 1.0
WHOLE = Share()

T = TypeVar("T")


class while_trusted:
    """Let something last as long as this node may act, and cut it off when it may no longer.

    Trust is renewed every second, so a long write goes on while beats are answered. Every write has one of these, so it
    is one timer, and nothing is left behind that refers to itself.
    """

    __slots__ = ("_limit", "_timer", "_trust_left_s")

    def __init__(self, trust_left_s: Callable[[], float], left_s: float) -> None:
        self._trust_left_s = trust_left_s
        self._limit = asyncio.timeout(None)
        self._timer = asyncio.get_running_loop().call_later(_until_next_look(left_s), self._look)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _look(self) -> None:
        left_s, loop = self._trust_left_s(), asyncio.get_running_loop()
        if left_s > 0.0:
            self._timer = loop.call_later(_until_next_look(left_s), self._look)
        else:
            self._limit.reschedule(loop.time())


def _until_next_look(left_s: float) -> float:
    """Half of what is left, so that a renewal is seen in time; the whole when it is little."""
    return max(left_s / 2, min(left_s, RENEW_S))


def build_source(prepared: Prepared, context: Context, part: str = "") -> Source:
    """The source, or that of one part, made awaitable if its methods block."""
    context = replace(context, part=part, guard=prepared.source_guard)
    prepared.source_guard.check(prepared.source_kind.reaches(prepared.source_options))
    source = prepared.source_kind.build(prepared.source_options, context)
    return Threaded(source, context.stream) if prepared.source.runs == "thread" else source


def build_sink(prepared: Prepared, context: Context) -> Sink:
    """The sink, made awaitable if its methods block."""
    prepared.sink_guard.check(prepared.sink_kind.reaches(prepared.sink_options))
    sink = prepared.sink_kind.build(prepared.sink_options, replace(context, guard=prepared.sink_guard))
    return Threaded(sink, context.stream) if prepared.sink.runs == "thread" else sink


async def check(prepared: Prepared, context: Context) -> None:
    """Whether this version could be opened, without taking anything that a running one holds."""
    source, sink = build_source(prepared, context), build_sink(prepared, context)
    try:
        async with asyncio.timeout(CHECK_S):
            await asyncio.gather(source.check(), sink.check())
    except TimeoutError:
        raise NotConnected(f"the check took longer than {CHECK_S:.0f} s") from None
    finally:
        await _close(source, sink)


def failure_of(error: BaseException) -> Failure:
    """What to write down about an error, without any secret, and what it means for the next try."""
    found = _failure_of(error)
    # A file name that is not UTF-8, or a NUL in a message, must not keep anything from being written down.
    text = found.message.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    return Failure(found.cause, hide(text))


def _failure_of(error: BaseException) -> Failure:
    match error:
        case ConnectorError():
            return Failure(error.cause, error_line(error))
        case ConfigError():
            return Failure(Cause.CONFIG, error.message)
        case StoreError():
            return Failure(Cause.NETWORK, error.message)
        case HeadgateError():
            return Failure(Cause.CONFIG, error.message)
        case OSError():
            return Failure(Cause.NETWORK, error_line(error))
        case _:
            return Failure(Cause.BUG, error_line(error))


class Run:
    """One run of one stream."""

    def __init__(
        self,
        prepared: Prepared,
        context: Context,
        grant: Grant,
        stats: Stats,
        on_opened: Callable[[Progress], None],
        on_commit: Callable[[Progress, int], None],
        share: Share = WHOLE,
        is_settled: bool = False,
    ) -> None:
        self._prepared = prepared
        self._context = context
        self._grant = grant
        self._stats = stats
        self._on_opened = on_opened
        self._on_commit = on_commit
        self._share = share
        self._reading: asyncio.Task[tuple[Batch, Mapped]] | None = None
        self._draining = False
        self._source: Source | None = None  # While it is open, and if it knows its backlog.
        self.progress: Progress | None = None  # Where the stream stands, once the sink has said so.
        self.is_settled = is_settled  # Whether the sink is known to have just that.
        self.abandoned = False  # Nothing may be written any more, whatever still runs.

    def drain(self) -> None:
        """Finish the write under way, then end."""
        self._draining = True
        if self._reading is not None:
            self._reading.cancel()

    async def run(self) -> bool:
        """Move records until drained (False) or until the source has ended (True); raise if it cannot go on."""
        sink = build_sink(self._prepared, self._context)
        source: Source | None = None
        try:
            # The sink first: it fences the run before this one, whatever may be wrong with the source.
            progress = self.progress = agree(self._grant.progress, await sink.open(self._grant))
            self.is_settled = True
            source = await self._build_source()
            await source.open(progress.position)
            self._source = source if self._prepared.source_kind.knows_backlog else None
            self._on_opened(progress)
            has_ended = await self._move(source, sink, progress)
            self._stats.rests()
            return has_ended
        finally:
            self._source = None
            if self._reading is not None:
                self._reading.cancel()
                self._reading = None  # Its error would keep this run alive, and this run its error.
            await _close(*([source, sink] if source is not None else [sink]))

    @property
    def knows_backlog(self) -> bool:
        """Whether its source is open and can say how much waits."""
        return self._source is not None

    async def backlog(self) -> Backlog | None:
        """What waits at the source. One that does not answer, or fails, has said nothing."""
        source = self._source
        if source is None:
            return None
        with contextlib.suppress(Exception):
            async with asyncio.timeout(BACKLOG_S):
                return await source.backlog()  # type: ignore[attr-defined, no-any-return]
        return None

    async def _build_source(self) -> Source:
        prepared, context = self._prepared, self._context
        if prepared.source_kind.in_parts:
            return await parts.take(lambda part: build_source(prepared, context, part), self._share)
        return parts.Nothing() if self._share.index else build_source(prepared, context)

    async def _move(self, source: Source, sink: Sink, progress: Progress) -> bool:
        while not self._draining:
            if self._reading is None:
                self._reading = self._read(source)
            try:
                batch, mapped = await self._reading
            except asyncio.CancelledError:
                if self._draining and not _is_cancelled():
                    return False
                raise
            except EndOfStream:
                return True
            except RetryLater as later:
                self._reading = None
                await asyncio.sleep(later.after_s)
                continue
            self._reading = self._read(source)
            counted = Totals(
                len(batch.records), len(mapped.records), mapped.skipped, len(mapped.failed), len(mapped.failed)
            )
            totals = add(progress.totals, counted)
            progress = replace(progress, commits=progress.commits + 1, position=batch.position, totals=totals)
            await self._write(sink, batch, mapped, progress)
            await source.ack(batch.position)
        return False

    def _read(self, source: Source) -> asyncio.Task[tuple[Batch, Mapped]]:
        task = asyncio.ensure_future(self._read_and_map(source))
        task.add_done_callback(_retrieved)
        return task

    async def _read_and_map(self, source: Source) -> tuple[Batch, Mapped]:
        self._stats.reads()
        batch = await source.read()
        self._stats.has_read(batch)
        _check_position(batch.position)
        return batch, await map_all(self._prepared.mapping, batch.records, batch.meta)

    async def _write(self, sink: Sink, batch: Batch, mapped: Mapped, progress: Progress) -> None:
        stats = self._stats
        if mapped.failed:
            if self._prepared.mapping.on_error == "fail":
                index, text = mapped.failed[0]
                raise BadRecord(f"record {index + 1} of {len(batch.records)} cannot be mapped: {text}", index=index)
            self._context.log.warning("records skipped", count=len(mapped.failed), first=mapped.failed[0][1])
        outgoing = Outgoing(mapped.records, progress, self._prepared.mapping.key)
        began = time.perf_counter()
        stats.writes()
        await self._write_durably(sink, outgoing)
        stats.committed(batch, len(mapped.records), time.perf_counter() - began)
        self._on_commit(progress, len(mapped.records))

    async def _write_durably(self, sink: Sink, outgoing: Outgoing) -> None:
        while True:
            left_s = await self._trust()
            try:
                async with while_trusted(self._grant.trust_left_s, left_s):
                    self.is_settled = False
                    await sink.write(outgoing)
                    self.progress, self.is_settled = outgoing.progress, True
                    return
            except RetryLater as later:
                self.is_settled = True
                await asyncio.sleep(later.after_s)
            except BadRecord:
                self.is_settled = True  # Nothing of the batch was written.
                raise
            except TimeoutError:
                raise NotConnected("our trust ended during a write") from None

    async def _trust(self) -> float:
        """Wait until this node may act."""
        while (left_s := self._grant.trust_left_s()) <= 0.0 and not self.abandoned:
            await asyncio.sleep(TRUST_POLL_S)  # Trust is kept by another thread, and seldom gone.
        if self.abandoned:
            raise Fenced("this run was abandoned")
        return left_s


def _check_position(position: Any) -> None:
    """A position that cannot be written down must not get as far as the sink."""
    try:
        msgspec.json.encode(position)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConnectorError(f"the source's position cannot be stored: {error}") from None


def _retrieved(task: asyncio.Task[Any]) -> None:
    """A batch read ahead may fail after its run has ended; nobody needs the error then."""
    if not task.cancelled():
        task.exception()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _close(*sides: Source | Sink) -> None:
    """Close both. If one hangs or fails, the other is closed all the same."""
    for side in sides:
        await _quietly(side.close())


async def _quietly(closing: Awaitable[T]) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await closing
    except Exception as error:  # A run that has ended has nothing more to lose.
        del error
