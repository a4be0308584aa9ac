"""OffsetManager: hands out the chunks of one table, one after another.

`core.chunks.offsets` decides where the next chunk begins; the source says where it ends; the plan is written before a
worker can lease the chunk. A table is handed out from the beginning, from a point, from where its plan ended, or by a
list of chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

from headgate.connectors.api.bulk import Reader, StorageGone
from headgate.core.chunks import Bound, Range, offsets
from headgate.core.chunks.locks import Chunk, State
from headgate.core.chunks.offsets import Cut, Offsets
from headgate.core.chunks.outcome import Complete, GivenUp, Notice, verdict
from headgate.errors import Refused
from headgate.runtime.dumps.locks import LockManager
from headgate.runtime.dumps.plan import Plan
from headgate.store.dump_rows import AttemptRow, TableRow
from headgate.store.dumps import Dumps

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to plan a dump."""

    dump: UUID
    owner: UUID
    epoch: int


class OffsetManager:
    """The chunks of one table."""

    def __init__(
        self, dumps: Dumps, claim: Claim, number: int, plan: Plan, reader: Reader, workers: int, timeout_s: float
    ) -> None:
        self._dumps = dumps
        self._locks = LockManager(dumps.chunks, claim.dump)
        self._claim = claim
        self._number = number
        self._plan = plan
        self._reader = reader
        self._workers = workers
        self._timeout_s = timeout_s
        self._offsets = Offsets(None)
        self._listed: Offsets | None = None  # In a run over a list of chunks.
        self._numbers: dict[Range, int] = {}  # Of the list.
        self._last = 0  # The number of the last chunk that was cut.
        self._cut_rows = 0  # The size that the waiting chunks were cut to.
        self._rows = 0  # That were cut so far, roughly.

    async def open(self, row: TableRow, there: Sequence[Chunk]) -> None:
        """Begin, or go on after the chunks that are planned."""
        if there:
            self._offsets = offsets.from_plan(row.offsets, there)
        else:
            top = await self._answer(self._reader.top(self._plan.source))
            self._offsets = offsets.from_start(top, row.offsets.rows if row.offsets.fixed else None)
            if self._plan.since and top is not None:
                self._offsets = offsets.from_point(self._offsets, self._plan.since)
        if row.listed is not None:
            asked = [chunk for chunk in there if chunk.number in row.listed and chunk.state is not State.DONE]
            self._numbers = {chunk.range: chunk.number for chunk in asked}
            self._listed = offsets.from_list(self._numbers)
        self._last = max((chunk.number for chunk in there), default=0)
        self._rows = sum(chunk.rows if chunk.state is State.DONE else self._offsets.rows for chunk in there)
        await self._dumps.set_offsets(self._claim.dump, self._number, self._offsets)

    def is_wanted(self, waiting: int) -> bool:
        """Whether another chunk should be handed out, when this many wait."""
        return offsets.is_wanted(self._listed or self._offsets, waiting, self._workers)

    @property
    def is_handed_out(self) -> bool:
        """Whether no other chunk will be."""
        return offsets.is_handed_out(self._listed or self._offsets)

    async def hand_out(self) -> None:
        """Put one more chunk where a worker finds it."""
        if self._listed is not None:
            self._listed, found = offsets.next_chunk(self._listed)
            assert isinstance(found, Range), "a list has chunks, and nothing is cut"
            await self._locks.retry(self._number, self._numbers[found])
            return
        expected = self._plan.source.rows
        left = None if expected is None else expected - self._rows
        following, cut = offsets.next_chunk(self._offsets, left, self._workers)
        assert isinstance(cut, Cut), "chunks of before are in the plan, not in a list"
        following, range = offsets.planned(following, await self._end_of(cut))
        await self._save(following, [Chunk(self._last + 1, range)])
        self._last += 1
        self._cut_rows = cut.rows
        self._rows += cut.rows

    async def _end_of(self, cut: Cut) -> Bound:
        assert self._offsets.top is not None
        source = replace(self._plan.source, exact=self._offsets.fixed)
        return await self._answer(self._reader.cut(source, cut.after, self._offsets.top, cut.rows))

    async def hear(self, attempt: AttemptRow) -> None:
        """Follow what a worker reported: sizes, and the end of a source without a size."""
        match attempt.kind:
            case Notice.END:
                await self._save(offsets.end(self._offsets), [])
            case Notice.COMPLETED:
                self._offsets = offsets.observed(self._offsets, attempt.rows, attempt.seconds)
                if self._cut_rows and offsets.is_recut(self._offsets, self._cut_rows):
                    await self._recut()
            case Notice.ERROR | Notice.FAILURE:
                pass

    async def _recut(self) -> None:
        """Take back waiting chunks that turned out far too large. If a worker has just taken one they all stay."""
        self._cut_rows = 0
        there = [row.chunk for row in await self._dumps.chunks.all(self._claim.dump, self._number)]
        following, tail = offsets.recut(self._offsets, there)
        if await self._dumps.chunks.delete(self._claim.dump, self._number, tail):
            self._offsets = following
            await self._dumps.set_offsets(self._claim.dump, self._number, following)

    def verdict(self, there: Sequence[Chunk]) -> Complete | GivenUp | None:
        """What becomes of the table. None: it goes on."""
        return verdict(self._offsets, there, self._listed, frozenset(self._numbers.values()))

    async def _save(self, following: Offsets, cut: Sequence[Chunk]) -> None:
        claim = self._claim
        if not await self._dumps.plan(claim.dump, claim.owner, claim.epoch, self._number, following, cut):
            raise Refused("another process runs this dump now", code="taken")
        self._offsets = following

    async def _answer(self, question: Awaitable[T]) -> T:
        """What the source answers, if it does so in time."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await question
        except TimeoutError:
            raise silent(self._timeout_s) from None


def silent(timeout_s: float) -> StorageGone:
    """The error of a source that does not answer."""
    return StorageGone(
        f"the source has sent nothing for {timeout_s:g} s", hint="--source-timeout gives a slow one more time"
    )
