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
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec

from headgate.clock import unix_s
from headgate.connectors.api import Backlog, Batch, Context, Grant, LetterSink, Outgoing, Progress, Sink, Source
from headgate.core import letters
from headgate.core.mapping.mapped import Mapped
from headgate.core.streams import agree
from headgate.datasources.prepared import Prepared
from headgate.errors import (
    BadRecords,
    BatchRefused,
    Cause,
    ConnectorError,
    EndOfStream,
    Fenced,
    NotConnected,
    Refused,
    RetryLater,
    StoreError,
)
from headgate.runtime.streams import parts
from headgate.runtime.streams.batches import Batches, Written
from headgate.runtime.streams.letters import Copier, Desk
from headgate.runtime.streams.parts import Share
from headgate.runtime.streams.replays import Replayed, Replays
from headgate.runtime.streams.sides import (
    Awaited,
    Side,
    awaited_of,
    build_sink,
    build_source,
    close,
    source_builder,
    targets_of,
)
from headgate.runtime.streams.slices import map_all
from headgate.runtime.streams.stats import Stats
from headgate.runtime.streams.trusted import while_trusted
from headgate.runtime.taps.points import NOBODY, Points
from headgate.text import one_line

RETRY_S = 1.0
TRUST_POLL_S = 0.1
WHOLE = Share()
STEERING = (RetryLater, EndOfStream, BadRecords, BatchRefused)  # What a side says while nothing is wrong with it.


class Asked(Exception):
    """Letters are to be replayed."""


class _Blaming:
    """Notes on the run which side has failed. There is one for each side, and every read and write goes through it."""

    __slots__ = ("_run", "_side")

    def __init__(self, run: Run, side: Side) -> None:
        self._run = run
        self._side = side

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # The error itself must not be kept: it would keep the run, and the run it.
        if isinstance(error, Exception) and not isinstance(error, STEERING):
            self._run.blame(self._side)


class Run:
    """One run of one stream."""

    def __init__(
        self,
        prepared: Prepared,
        version: int,
        context: Context,
        grant: Grant,
        stats: Stats,
        desk: Desk,
        on_opened: Callable[[Progress], None],
        on_commit: Callable[[Progress, Written | None], None],
        share: Share = WHOLE,
        is_settled: bool = False,
        taps: Points = NOBODY,
    ) -> None:
        self._prepared = prepared
        self._version = version
        self._context = context
        self._grant = grant
        self._stats = stats
        self._desk = desk
        self._on_opened = on_opened
        self._on_commit = on_commit
        self._share = share
        self._taps = taps
        self._reading: asyncio.Task[tuple[Batch, Mapped]] | None = None
        self._copier: Copier | None = None  # If the sink keeps letters.
        self._is_asked = False  # Somebody wants replays.
        self._bell: asyncio.Future[None] | None = None  # While nothing is there to be done.
        self._recent, self._stop_after = letters.Recent(), prepared.stop_after
        self._draining = False
        self._has_written = False  # A part of the batch in hand, at least.
        self._source: Source | None = None  # While it is open, and if it knows its backlog.
        self.progress: Progress | None = None  # Where the stream stands, once the sink has said so.
        self.is_settled = is_settled  # Whether the sink is known to have just that.
        self._targets: Sequence[str] | None = None  # Found out when somebody waits for something.
        self._failed_side: Side | None = None  # Which of them has ended the run, if one did.
        self.abandoned = False  # Nothing may be written any more, whatever still runs.

    def drain(self) -> None:
        """Finish the write under way, then end."""
        self._draining = True
        if self._reading is not None:
            self._reading.cancel()

    def replay(self) -> None:
        """Somebody wants letters of this stream replayed, or has discarded some: see to it between two batches."""
        self._is_asked = True
        self._ring()
        self._has_new_letters()

    async def run(self) -> bool:
        """Move records until drained (False) or until the source has ended (True); raise if it cannot go on."""
        sink = build_sink(self._prepared, replace(self._context, letters_resolved=self._has_new_letters))
        source: Source | None = None
        try:
            # The sink first: it fences the run before this one, whatever may be wrong with the source.
            with _Blaming(self, "sink"):
                opened = await sink.open(self._grant)
            progress = self.progress = self._agreed(opened)
            self.is_settled = True
            if self._prepared.sink_kind.keeps_letters:
                # A run before this one may have left some.
                self._copier = Copier(self._desk, cast(LetterSink, sink), is_due=_has_letters(progress))
            with _Blaming(self, "source"):
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
            if (copier := self._copier) is not None:
                self._copier = None  # It refers to the sink, and the sink to this run.
                await copier.end(copies=not self.abandoned)
            await close(*([source, sink] if source is not None else [sink]))

    def blame(self, side: Side) -> None:
        """This side has failed."""
        self._failed_side = side

    def awaited_after(self, error: BaseException) -> Awaited | None:
        """What has to come back before another run can do better than this one, which has ended with an error."""
        return awaited_of(self._prepared, self._failed_side, error)

    def targets(self) -> Sequence[str]:
        """What it reaches that others may wait for."""
        if self._targets is None:
            self._targets = targets_of(self._prepared)
        return self._targets

    def _agreed(self, kept: Progress | None) -> Progress:
        try:
            return agree(self._grant.progress, kept)
        except Refused as error:
            position = one_line(msgspec.json.encode(kept and kept.position).decode(), 200)
            hint = f"headgate streams set-position; the sink has {position}"
            raise ConnectorError(error.message, cause=Cause.CONFIG, hint=hint) from None

    @property
    def is_in_doubt(self) -> bool:
        """Whether a write of it may still arrive after it was cut off. What a transactional sink gets does not count:
        that is fenced."""
        return not self.is_settled and not self._prepared.sink_kind.transactional

    @property
    def knows_backlog(self) -> bool:
        """Whether its source is open and can say how much waits."""
        return self._source is not None

    async def backlog(self) -> Backlog | None:
        """What waits at the source. One that fails has said nothing."""
        source = self._source
        if source is None:
            return None
        with contextlib.suppress(Exception):
            return await source.backlog()  # type: ignore[attr-defined, no-any-return]
        return None

    async def _build_source(self) -> Source:
        prepared, context = self._prepared, self._context
        if prepared.source_kind.in_parts:
            return await parts.take(source_builder(prepared, context), self._share)
        return parts.Nothing() if self._share.index else build_source(prepared, context)

    async def _move(self, source: Source, sink: Sink, progress: Progress) -> bool:
        async def write(outgoing: Outgoing) -> None:
            await self._write_durably(sink, outgoing)

        of_source = _Blaming(self, "source")
        batches = Batches(self._prepared, self._version, self._context, sink, write, self._desk)
        replays = Replays(self._prepared, self._version, self._context, sink, write, self._desk, batches.keys)
        if _has_letters(progress):
            self.replay()  # Some may have been waiting for a run.
        while not self._draining:
            if self._reading is None:
                self._reading = self._read(source)
            if self._is_asked:
                self._is_asked = False
                progress = await self._replay(replays, progress, self._has_read)
            try:
                with of_source:
                    batch, mapped = await self._read_or_asked()
            except asyncio.CancelledError:
                if self._draining and not _is_cancelled():
                    return False
                raise
            except Asked:
                continue
            except EndOfStream:
                await self._replay(replays, progress)  # Asked for while the source was about to end.
                return True
            except RetryLater as later:
                self._reading = None
                await asyncio.sleep(later.after_s)
                continue
            self._reading = self._read(source)
            progress = await self._write(batches, batch, mapped, progress)
            with of_source:
                await source.ack(batch.position)
            self._stop_if_too_many()
        return False

    async def _read_or_asked(self) -> tuple[Batch, Mapped]:
        """The next batch. Raises `Asked` if letters are to be replayed before it comes."""
        assert self._reading is not None
        while not self._reading.done():
            if self._is_asked:
                raise Asked
            self._bell = asyncio.get_running_loop().create_future()
            await self._bell
        return await self._reading

    def _ring(self) -> None:
        """A batch was read, or replays were asked for."""
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    def _has_read(self) -> bool:
        """Whether a batch is there to be written. A source that has ended, or wants to be asked later, can wait."""
        task = self._reading
        return task is not None and task.done() and not task.cancelled() and task.exception() is None

    def _read(self, source: Source) -> asyncio.Task[tuple[Batch, Mapped]]:
        task = asyncio.ensure_future(self._read_and_map(source))
        task.add_done_callback(self._has_come)
        return task

    def _has_come(self, task: asyncio.Task[tuple[Batch, Mapped]]) -> None:
        """A batch read ahead may fail after its run has ended; nobody needs the error then."""
        if not task.cancelled():
            task.exception()
        self._ring()

    async def _read_and_map(self, source: Source) -> tuple[Batch, Mapped]:
        self._stats.reads()
        batch = await source.read()
        self._stats.has_read(batch)
        _check_position(batch.position)
        if self._taps.active:
            self._taps.read(self._grant, batch)
        mapped = await map_all(self._prepared.mapping, batch.records, batch.meta)
        if self._taps.active:
            self._taps.mapped(self._grant, batch, mapped)
        return batch, mapped

    async def _write(self, batches: Batches, batch: Batch, mapped: Mapped, before: Progress) -> Progress:
        stats = self._stats
        began = time.perf_counter()
        stats.writes()
        self._has_written = False
        written = await batches.write(batch, mapped, before)
        stats.committed(batch, written.records, time.perf_counter() - began)
        self.progress, self.is_settled = written.progress, True
        if written.letters:
            self._has_new_letters()
        bad, now_s = len(written.culprits), unix_s()
        self._recent = letters.note(self._recent, self._stop_after, bad, written.records, now_s)
        if self._taps.active:
            self._taps.written(self._grant, self._prepared.mapping, batch, mapped, written)
        self._on_commit(written.progress, written)
        return written.progress

    def _stop_if_too_many(self) -> None:
        """What was handled stays handled: the stream stops behind it."""
        why = letters.is_too_many(self._recent, self._stop_after)
        if why is not None:
            hint = "headgate dlq list says why; a publish or a restart goes on"
            raise ConnectorError(why, cause=Cause.TOO_MANY_DEAD_LETTERS, hint=hint)

    # Letters.

    async def _replay(
        self, replays: Replays, progress: Progress, is_enough: Callable[[], bool] = lambda: False
    ) -> Progress:
        """Replay what somebody wants, a few letters at a time, until there is something else to do: however many there
        are, the stream goes on. A registry that is away is asked again later."""
        while not self._draining:
            self._has_written = False
            try:
                found = await replays.some(progress)
            except StoreError:
                found = Replayed(progress, is_noted=False)
            if found is None:
                return progress
            progress = self.progress = found.progress
            self.is_settled = True
            self._has_new_letters()
            self._on_commit(progress, None)
            if not found.is_noted:
                asyncio.get_running_loop().call_later(RETRY_S, self.replay)
                return progress
            if is_enough():
                self.replay()  # The rest after the next batch.
                return progress
        return progress

    def _has_new_letters(self) -> None:
        if self._copier is not None:
            self._copier.due()

    async def _write_durably(self, sink: Sink, outgoing: Outgoing) -> None:
        while True:
            left_s = await self._trust()
            try:
                async with while_trusted(self._grant.trust_left_s, left_s):
                    self.is_settled = False
                    with _Blaming(self, "sink"):
                        await sink.write(outgoing)
                    self._has_written = True
                    return
            except RetryLater as later:
                self.is_settled = not self._has_written
                await asyncio.sleep(later.after_s)
            except (BadRecords, BatchRefused):
                self.is_settled = not self._has_written  # Nothing of what was tried now has been written.
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


def _has_letters(progress: Progress) -> bool:
    return progress.totals.dead_lettered > progress.totals.skipped


def _check_position(position: Any) -> None:
    """A position that cannot be written down must not get as far as the sink."""
    try:
        msgspec.json.encode(position)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConnectorError(f"the source's position cannot be stored: {error}") from None


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
