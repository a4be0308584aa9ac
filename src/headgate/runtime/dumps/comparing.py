"""How one table is compared with what the plan was to write of it.

Chunk by chunk where both sides put the key in the same order; else the table as a whole. Either way by whatever costs
the least and is exact:

    numbers   both servers hash rows in the same forms, and only sums travel
    lines     both write rows as text, and each line is hashed: equal lines are equal rows
    values    rows are read as for a copy, and hashed by what their values mean
    texts     a value that has no meaning here, such as a date before Christ, is compared by its text

Where chunks are compared, rows of the target outside the plan would be seen by nobody, so they are looked for: beyond
the last key of the plan, and before the first if the dump began at a point.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from headgate.connectors.api.bulk import (
    By,
    Column,
    Digest,
    DigestsInServer,
    Mode,
    NamesTables,
    Ordered,
    Reader,
    StorageError,
    StorageGone,
    Table,
    Writer,
)
from headgate.connectors.values.digest import digest, digest_of_lines, has_lines, rows_in
from headgate.connectors.values.kinds import Kind
from headgate.core.chunks import Bound, Range
from headgate.core.chunks.locks import Chunk
from headgate.errors import HeadgateError, NotFound, StoreError
from headgate.hidden import error_said
from headgate.runtime.dumps.copying import copy
from headgate.runtime.dumps.plan import Plan, Storages
from headgate.runtime.dumps.verdicts import Finding
from headgate.text import counted

TOGETHER = 2  # Chunks that are compared at a time.
LONGEST_KEY = 60  # Characters of a key that is shown.

T = TypeVar("T")


class Missing(HeadgateError):
    """The target has no such table."""

    code = "missing"


@dataclass(frozen=True, slots=True)
class Compared:
    """What came of a chunk, or of the table as a whole."""

    chunk: int | None
    chunks: int  # How many this covers.
    rows: int
    finding: Finding = Finding.DIFFERENT
    why: str = ""  # Empty: there is no difference.
    repaired: bool = False
    unrepaired: str = ""


class Pairs:
    """Sessions with both sides, used for one table after another."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._free: list[tuple[Reader, Reader]] = []

    @asynccontextmanager
    async def one(self) -> AsyncIterator[tuple[Reader, Reader]]:
        """A session that reads the source, and one that reads the target. After an error they are not used again."""
        pair = self._free.pop() if self._free else (self._storages.read(), self._storages.read_target())
        try:
            yield pair
        except BaseException:
            await _close(*pair)
            raise
        self._free.append(pair)

    async def close(self) -> None:
        """End all sessions that are not in use."""
        while self._free:
            await _close(*self._free.pop())


class Comparison:
    """One table under comparison."""

    def __init__(
        self,
        storages: Storages,
        pairs: Pairs,
        plan: Plan,
        chunks: Sequence[Chunk],
        repair: bool,
        hear: Callable[[Compared], None],
    ) -> None:
        self._storages = storages
        self._pairs = pairs
        self._plan = plan
        self._columns = plan.job.source.columns
        self._read = plan.source  # The source as it is read; types that were given may differ from the columns'.
        self._chunks = chunks
        self._repair = repair
        self._hear = hear
        self._is_partial = plan.had_rows or plan.job.mode is Mode.UPSERT  # The target may have other rows.
        self._by_numbers = False
        self._by_lines = True  # Until a chunk is equal, and its text is not: then the others' is not either.

    async def run(self) -> None:
        """Compare it. Raises `Missing`, or another error if it cannot be compared."""
        async with self._pairs.one() as (reader, other):
            await self._check_source(reader)
            target = await self._find(other)
            self._by_numbers = await self._have_equal_forms(reader, other, target)
            is_alike = await self._is_cut_alike(reader, other, target)
            if not is_alike:
                await self._compare_whole(reader, other, target)
        if is_alike:
            await self._compare_chunks(replace(target, by=By.KEY))

    # What is compared with what.

    async def _check_source(self, reader: Reader) -> None:
        """What the source no longer has cannot be compared; it is said once, and not of every chunk."""
        if self._read.by is By.KEY:
            there = await reader.describe(self._read.name)
            absent = _names(self._read) - _names(there)
            if absent and not there.sampled:
                raise StorageError(f"the source's table {self._read.name} has no column {min(absent)}")

    async def _find(self, other: Reader) -> Table:
        """The target's table, by its name."""
        name = self._plan.job.target
        try:
            there = await other.describe(await other.name_of(name) if isinstance(other, NamesTables) else name)
        except NotFound:
            raise Missing(f"the target has no table {name}") from None
        if absent := {column.name for column in self._columns} - _names(there):
            raise Missing(f"the target's table {name} has no column {min(absent)}")
        return there.with_columns(there.named([column.name for column in self._columns]))

    async def _have_equal_forms(self, reader: Reader, other: Reader, target: Table) -> bool:
        """Whether both servers hash rows, and hash these alike."""
        if self._is_partial or self._read.details.get("strict") or self._plan.job.source.details.get("strict"):
            return False
        if not isinstance(reader, DigestsInServer) or not isinstance(other, DigestsInServer):
            return False
        forms = await reader.forms(self._read)
        return forms is not None and forms == await other.forms(target)

    async def _is_cut_alike(self, reader: Reader, other: Reader, target: Table) -> bool:
        """Whether the target selects the same rows by a chunk's bounds."""
        if self._read.by is not By.KEY or not isinstance(reader, Ordered) or not isinstance(other, Ordered):
            return False
        order = await reader.order(self._read)
        return order is not None and order == await other.order(replace(target, key=self._read.key))

    # Chunk by chunk.

    async def _compare_chunks(self, target: Table) -> None:
        target = replace(target, key=self._read.key)
        waiting = list(reversed(self._chunks))

        async def work() -> None:
            async with self._pairs.one() as (reader, other):
                while waiting:
                    await self._compare_chunk(waiting.pop(), target, reader, other)

        await _together(*(work() for _ in range(min(TOGETHER, len(waiting)))))
        if not self._is_partial:
            async with self._pairs.one() as (_, other):
                await self._look_outside(other, target)

    async def _compare_chunk(self, chunk: Chunk, target: Table, reader: Reader, other: Reader) -> None:
        ranges = [chunk.range]
        try:
            why, rows = await self._compare(reader, ranges, other, target, ranges)
        except (StorageGone, StoreError):
            raise
        except HeadgateError as error:
            said = f"it cannot be compared: {error_said(error)}"
            unrepaired = "what cannot be compared is not copied again" if self._repair else ""
            self._hear(Compared(chunk.number, 1, 0, Finding.UNKNOWN, said, unrepaired=unrepaired))
            return
        unrepaired = ""
        if why and self._repair:
            unrepaired = await self._copy_again(chunk.range)
            if not unrepaired and (await self._compare(reader, ranges, other, target, ranges))[0]:
                unrepaired = "it still differs: source or target is being written to"
        repaired = bool(why) and self._repair and not unrepaired
        self._hear(Compared(chunk.number, 1, rows, Finding.DIFFERENT, why, repaired, unrepaired))

    async def _look_outside(self, other: Reader, target: Table) -> None:
        """Rows of the target that no chunk can have brought."""
        begins, ends = {one.range.lo for one in self._chunks}, {one.range.hi for one in self._chunks}
        first = next((lo for lo in begins if lo is not None and lo not in ends), None)
        last = next((hi for hi in ends if hi not in begins), None)
        top = await other.top(target)
        if first is not None:
            await self._count_outside(
                other, target, Range(None, first), f"up to {_shown(first)}, where the plan begins"
            )
        if top is not None and top != last:
            where = f"beyond {_shown(last)}, where the plan ends" if last else "which the plan has none of"
            await self._count_outside(other, target, Range(last, top), where)

    async def _count_outside(self, other: Reader, target: Table, range: Range, where: str) -> None:
        by_key = target.with_columns([one for one in target.columns if one.name in target.key])
        if isinstance(other, DigestsInServer) and await other.forms(by_key) is not None:
            rows = (await other.digest(by_key, range)).rows
        else:
            rows = await rows_in(other, by_key, range)
        if rows:
            first = await other.cut(replace(target, exact=True), range.lo, range.hi, 1)
            keys = _shown(first) if rows == 1 else f"{_shown(first)} to {_shown(range.hi)}"
            why = f"{counted(rows, 'row')} {where}: {keys}"
            unrepaired = "rows that are not in the plan are left as they are" if self._repair else ""
            self._hear(Compared(None, 0, 0, Finding.EXTRA, why, unrepaired=unrepaired))

    # The table as a whole.

    async def _compare_whole(self, reader: Reader, other: Reader, target: Table) -> None:
        """Files, tables without a key, and keys that both sides order differently."""
        self._by_lines = False  # If they are not alike, as those of files seldom are, all is read twice.
        if self._read.by is By.BLOCK:  # Blocks have moved; the plan was the whole table.
            ranges = await _all_of(reader, self._read)
        else:
            ranges = [chunk.range for chunk in self._chunks]
        why, rows = await self._compare(reader, ranges, other, target, await _all_of(other, target))
        unrepaired = self._why_not_in_chunks() if why and self._repair else ""
        self._hear(Compared(None, len(self._chunks), rows, Finding.DIFFERENT, why, unrepaired=unrepaired))

    def _why_not_in_chunks(self) -> str:
        if self._read.by is By.KEY:
            return "the target cannot tell which rows are of which chunk, as it orders keys differently; dump it again"
        return "without a key nobody can tell which rows are of which chunk; dump it again with --mode replace"

    # Comparing.

    async def _compare(
        self, reader: Reader, ranges: Sequence[Range], other: Reader, target: Table, others: Sequence[Range]
    ) -> tuple[str, int]:
        """How some of the source differs from some of the target, and the source's rows."""
        if self._by_numbers:
            assert isinstance(reader, DigestsInServer)
            assert isinstance(other, DigestsInServer)
            server, its_server = reader, other
            one, two = await _both(
                _sum(ranges, lambda range: server.digest(self._read, range)),
                _sum(others, lambda range: its_server.digest(target, range)),
            )
            return one.difference(two), one.rows
        if self._by_lines and not self._is_partial and has_lines(reader, other):
            lines, its_lines = await _both(_lines(reader, self._read, ranges), _lines(other, target, others))
            if lines is not None and lines == its_lines:
                return "", lines.rows
        return await self._compare_values(reader, ranges, other, target, others)

    async def _compare_values(
        self, reader: Reader, ranges: Sequence[Range], other: Reader, target: Table, others: Sequence[Range]
    ) -> tuple[str, int]:
        def sides(columns: Sequence[Column], *, as_text: bool = False) -> Awaitable[tuple[Digest, Digest]]:
            how = {"keep": self._is_partial, "as_text": as_text}
            return _both(
                _sum(ranges, lambda range: digest(reader, self._read, range, columns, **how)),
                _sum(others, lambda range: digest(other, target, range, columns, **how)),
            )

        try:
            one, two = await sides(self._columns)
        except StorageGone:
            raise
        except StorageError:
            if not has_lines(reader, other):
                raise
            one, two = await sides(self._columns, as_text=True)
            if self._difference(one, two):
                raise
            return "", one.rows
        why = self._difference(one, two)
        if not why:
            self._by_lines = False
        elif unlike := self._unlike(target):
            rest = [column for column in self._columns if column.name not in unlike]
            if not rest or not self._difference(*await sides(rest)):
                name, native = next(iter(unlike.items()))
                raise StorageError(f"column {name!r} is text in the source and {native} in the target")
        return why, one.rows

    def _difference(self, one: Digest, two: Digest) -> str:
        if not self._is_partial:
            return one.difference(two)
        missing = one.missing(two)
        return f"{counted(missing, 'row')} of the source not in the target" if missing else ""

    def _unlike(self, target: Table) -> dict[str, str]:
        """Columns of text whose type at the target may write the same otherwise, with that type."""
        natives = {column.name: column.native or str(column.type) for column in target.columns}
        return {
            column.name: natives[column.name]
            for column in self._columns
            if column.type.kind is Kind.TEXT
            and natives[column.name] != column.native
            and not re.search(r"text|char|string|clob", natives[column.name], re.IGNORECASE)
        }

    # Repair.

    async def _copy_again(self, range: Range) -> str:
        """Copy a chunk again: what is there of it goes in the same transaction. Returns why it could not."""
        plan = self._plan
        if plan.had_rows and plan.job.mode is not Mode.UPSERT:
            return "the target had rows before the dump, and those between the chunk's keys may be other people's"
        reader, writer = self._storages.read(), self._storages.write()
        try:
            into = await writer.look(plan.job.target)
            job = replace(plan.job, aside=False, mode=Mode.APPEND if plan.job.mode is Mode.REPLACE else plan.job.mode)
            await copy(reader, writer, replace(plan, job=job, into=into), range, again=True)
        except HeadgateError as error:
            return error_said(error)
        else:
            return ""
        finally:
            await _close(reader, writer)


def _names(table: Table) -> set[str]:
    return {column.name for column in table.columns}


async def _close(*sessions: Reader | Writer) -> None:
    for session in sessions:
        with suppress(Exception):
            await session.close()


async def _both(one: Coroutine[object, object, T], other: Coroutine[object, object, T]) -> tuple[T, T]:
    found = await _together(one, other)
    return found[0], found[1]


async def _together(*work: Coroutine[object, object, T]) -> list[T]:
    """All at once. The first error ends the others, so that nobody uses their sessions meanwhile."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _sum(ranges: Sequence[Range], of: Callable[[Range], Awaitable[Digest]]) -> Digest:
    total = Digest()
    for range in ranges:
        total.add(await of(range))
    return total


async def _lines(reader: Reader, table: Table, ranges: Sequence[Range]) -> Digest | None:
    total = Digest()
    for range in ranges:
        found = await digest_of_lines(reader, table, range)
        if found is None:
            return None
        total.add(found)
    return total


async def _all_of(reader: Reader, table: Table) -> list[Range]:
    top = await reader.top(table)
    return [] if top is None else [Range(None, top)]


def _shown(bound: Bound) -> str:
    """A key for people."""
    text = "/".join(bound)
    return text if len(text) <= LONGEST_KEY else f"{text[:LONGEST_KEY]}…"
