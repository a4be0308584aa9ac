"""Verify: whether the target has what the source has, chunk by chunk; and repair of only the chunks that differ.

A chunk is compared by itself where both sides put its key in the same order; else the table is compared as a whole.
What is read is the source of now: a row that has changed since the dump is a difference, and its chunk is repaired from
the source of now. Of a dump that appended to a table with rows, or upserted, only the source's rows are looked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from uuid import UUID

from headgate.connectors.api.bulk import By, Digest, DigestsInServer, Mode, Ordered, Reader, Table
from headgate.connectors.values.digest import digest, digest_of_lines, has_lines
from headgate.core.chunks import Range
from headgate.core.chunks.locks import Chunk, State
from headgate.core.chunks.outcome import TableState
from headgate.errors import HeadgateError, NotFound, Refused
from headgate.runtime.dumps.copying import copy
from headgate.runtime.dumps.plan import Plan, Storages, plan_of, short
from headgate.runtime.dumps.views import DifferenceView, VerifiedView
from headgate.store.dumps import Dumps
from headgate.text import counted

TOGETHER = 2  # Chunks that are compared at a time.


@dataclass(frozen=True, slots=True)
class Difference:
    """A chunk, or a table, that is not the same."""

    table: str
    chunk: int | None  # None: the table as a whole.
    why: str
    repaired: bool = False


@dataclass(slots=True)
class Verified:
    """What was compared, and what was found."""

    tables: int = 0
    chunks: int = 0
    rows: int = 0
    different: list[Difference] = field(default_factory=list)

    @property
    def repaired(self) -> int:
        """How many differences are gone."""
        return sum(one.repaired for one in self.different)

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs any more."""
        return all(one.repaired for one in self.different)


async def verify(
    dumps: Dumps,
    dump: UUID,
    storages: Storages,
    *,
    repair: bool = False,
    notify: Callable[[str, int, int], None] = lambda table, done, chunks: None,
) -> Verified:
    """Compare all tables that are done. `notify` hears table, chunks compared, chunks in all."""
    found = Verified()
    rows = [row for row in await dumps.tables(dump) if row.state is TableState.DONE]
    if not rows:
        raise Refused("nothing of this dump is finished", code="nothing", hint=f"headgate dumps resume {short(dump)}")
    for row in rows:
        plan = plan_of(row)
        if plan.job.mode is Mode.ABSENT:
            raise Refused("a backfill leaves rows as they are; there is nothing to compare", code="backfill")
        there = [one.chunk for one in await dumps.chunks.all(dump, row.number)]
        chunks = [chunk for chunk in there if chunk.state is State.DONE]
        await _Table(storages, plan, chunks, found, repair, notify).compare()
        found.tables += 1
    return found


class _Table:
    """One table under comparison."""

    def __init__(
        self,
        storages: Storages,
        plan: Plan,
        chunks: list[Chunk],
        found: Verified,
        repair: bool,
        notify: Callable[[str, int, int], None],
    ) -> None:
        self._storages = storages
        self._plan = plan
        self._source = plan.job.source
        self._read = plan.source  # The same, as it is read; types that were given may differ.
        self._chunks = chunks
        self._found = found
        self._repair = repair
        self._notify = notify
        self._target: Table | None = None
        self._by_lines = True  # Until a chunk is equal, and its text is not: then the others' is not either.
        self._done = 0

    async def compare(self) -> None:
        """All chunks, a few at a time, or the whole table at once."""
        reader = self._storages.read_target()
        try:
            target = await self._described(reader)
        finally:
            await reader.close()
        names = [column.name for column in self._source.columns]
        self._target = replace(target.with_columns(target.named(names)), key=self._source.key)
        if await self._is_cut_alike():
            await self._each_chunk()
        else:
            await self._whole()

    async def _described(self, reader: Reader) -> Table:
        """The target's table. A file that holds one table is called by its own name."""
        try:
            return await reader.describe(self._plan.job.target)
        except NotFound:
            names = await reader.tables()
            if len(names) != 1:
                raise NotFound(f"{self._plan.job.target} no longer exists") from None
            return await reader.describe(names[0])

    async def _is_cut_alike(self) -> bool:
        """Whether the target selects the same rows by a chunk's bounds."""
        assert self._target is not None
        if self._source.by is not By.KEY:
            return False
        orders = []
        for reader, table in ((self._storages.read(), self._read), (self._storages.read_target(), self._target)):
            try:
                orders.append(await reader.order(table) if isinstance(reader, Ordered) else None)
            finally:
                await reader.close()
        return orders[0] is not None and orders[0] == orders[1]

    async def _each_chunk(self) -> None:
        waiting = list(reversed(self._chunks))

        async def work() -> None:
            reader, other = self._storages.read(), self._storages.read_target()
            try:
                while waiting:
                    await self._chunk(waiting.pop(), reader, other)
            finally:
                for session in (reader, other):
                    with suppress(Exception):
                        await session.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(min(TOGETHER, len(waiting))):
                group.create_task(work())

    async def _chunk(self, chunk: Chunk, reader: Reader, other: Reader) -> None:
        why, rows = await self._compared(chunk.range, reader, other)
        if why:
            repaired = self._repair and await self._repaired(chunk.range)
            if repaired:
                again, _ = await self._compared(chunk.range, reader, other)
                repaired = not again
            self._found.different.append(Difference(self._source.name, chunk.number, why, repaired))
        self._found.chunks += 1
        self._found.rows += rows
        self._done += 1
        self._notify(self._source.name, self._done, len(self._chunks))

    async def _compared(self, range: Range, reader: Reader, other: Reader) -> tuple[str, int]:
        """How a chunk differs, and its rows; by whatever costs the least."""
        assert self._target is not None
        keep = self._is_partial()
        read, target, columns = self._read, replace(self._target, by=self._source.by), self._source.columns
        alike = _has_equal_types(self._source, self._target) and not keep
        if alike and isinstance(reader, DigestsInServer) and isinstance(other, DigestsInServer):
            target = replace(target, details=self._source.details)
            one, two = await asyncio.gather(reader.digest(read, range), other.digest(target, range))
            return self._difference(one, two), one.rows
        if self._by_lines and not keep and has_lines(reader, other):
            lines, others = await asyncio.gather(
                digest_of_lines(reader, read, range), digest_of_lines(other, target, range)
            )
            if lines is not None and lines == others:
                return "", lines.rows
        one, two = await asyncio.gather(
            digest(reader, read, range, columns, keep=keep), digest(other, target, range, columns, keep=keep)
        )
        if not (why := self._difference(one, two)):
            self._by_lines = False
        return why, one.rows

    def _difference(self, one: Digest, two: Digest) -> str:
        if not self._is_partial():
            return one.difference(two)
        missing = one.missing(two)
        return f"{counted(missing, 'row')} of the source not in the target" if missing else ""

    def _is_partial(self) -> bool:
        return self._plan.had_rows or self._plan.job.mode is Mode.UPSERT

    async def _whole(self) -> None:
        """The table as one: files, and keys that both sides order differently."""
        assert self._target is not None
        keep = self._is_partial()
        one = await self._all_of(self._storages.read(), self._read, keep, self._chunks)
        two = await self._all_of(self._storages.read_target(), self._target, keep, None)
        if why := self._difference(one, two):
            self._found.different.append(Difference(self._source.name, None, why))
        self._found.chunks += len(self._chunks)
        self._found.rows += one.rows
        self._notify(self._source.name, len(self._chunks), len(self._chunks))

    async def _all_of(self, reader: Reader, table: Table, keep: bool, chunks: list[Chunk] | None) -> Digest:
        """All rows of a side: of the source those of the plan, of the target all there are."""
        columns = self._source.columns
        total = Digest(nulls={column.name: 0 for column in columns})
        try:
            if chunks is None:
                own = await reader.describe(table.name)
                own = own.with_columns(own.named([column.name for column in columns]))
                top = await reader.top(own)
                ranges = [] if top is None else [Range(None, top)]
                table = own
            elif table.by is By.BLOCK:  # Blocks have moved; the plan was the whole table.
                top = await reader.top(table)
                ranges = [] if top is None else [Range(None, top)]
            else:
                ranges = [chunk.range for chunk in chunks]
            for range in ranges:
                part = await digest(reader, table, range, columns, keep=keep)
                total.rows += part.rows
                total.sum = (total.sum + part.sum) & ((1 << 64) - 1)
                total.nulls = {name: total.nulls[name] + part.nulls[name] for name in total.nulls}
                if part.hashes is not None:
                    total.hashes = part.hashes if total.hashes is None else total.hashes + part.hashes
            return total
        finally:
            await reader.close()

    async def _repaired(self, range: Range) -> bool:
        """Copy a chunk again: what is there of it goes in the same transaction."""
        plan = self._plan
        if plan.had_rows and plan.job.mode is not Mode.UPSERT:
            return False  # The range may hold rows that are not ours.
        reader, writer = self._storages.read(), self._storages.write()
        try:
            into = await writer.look(plan.job.target)
            job = replace(plan.job, aside=False, mode=Mode.APPEND if plan.job.mode is Mode.REPLACE else plan.job.mode)
            await copy(reader, writer, replace(plan, job=job, into=into), range, again=True)
        except HeadgateError:
            return False
        else:
            return True
        finally:
            for session in (reader, writer):
                with suppress(Exception):
                    await session.close()


def _has_equal_types(one: Table, other: Table) -> bool:
    """Whether servers of one family hash the rows of both alike."""
    natives = {column.name: column.native for column in other.columns}
    return (
        one.family == other.family
        and not one.details.get("strict")
        and all(natives.get(column.name) == column.native for column in one.columns)
    )


def view(found: Verified) -> VerifiedView:
    """For people and programs."""
    return VerifiedView(
        tables=found.tables,
        chunks=found.chunks,
        rows=found.rows,
        equal=found.is_equal,
        repaired=found.repaired,
        different=[
            DifferenceView(table=one.table, chunk=one.chunk, why=one.why, repaired=one.repaired)
            for one in found.different
        ],
    )
