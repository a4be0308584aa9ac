"""Verify: whether the target has what the dump was to write, table by table; and repair of only the chunks that differ.

It is a judge, so it never guesses. A table is looked for by its name; if it is gone, it is missing. What cannot be
compared is said to be so, with the reason, and is not equal. `comparing` says how a table is compared.

What is read is the source of now: a row that has changed since the dump is a difference, and its chunk is repaired from
the source of now. Rows at the target that no chunk of the plan can have brought are counted and named. Of a dump that
appended to a table with rows, or upserted, only the source's rows are looked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from headgate.connectors.api.bulk import Mode, StorageGone
from headgate.core.chunks.locks import State
from headgate.core.chunks.outcome import TableState
from headgate.errors import HeadgateError, Refused, StoreError
from headgate.hidden import error_said
from headgate.runtime.dumps.comparing import Compared, Comparison, Missing, Pairs
from headgate.runtime.dumps.plan import Storages, plan_of, short
from headgate.runtime.dumps.verdicts import DifferenceView, Finding, Verdict, VerifiedView
from headgate.store.dump_rows import TableRow
from headgate.store.dumps import Dumps


@dataclass(frozen=True, slots=True)
class Difference:
    """A chunk, or a table, that is not known to be the same."""

    table: str
    chunk: int | None  # None: the table as a whole.
    finding: Finding
    why: str
    repaired: bool = False
    unrepaired: str = ""  # Why it could not be repaired, if that was asked for.


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
        """Whether everything was compared, and nothing differs any more."""
        return self.verdict is Verdict.EQUAL

    @property
    def verdict(self) -> Verdict:
        """In one word."""
        left = {one.finding for one in self.different if not one.repaired}
        if not left:
            return Verdict.EQUAL
        return Verdict.UNKNOWN if left == {Finding.UNKNOWN} else Verdict.DIFFERENT


async def verify(
    dumps: Dumps,
    dump: UUID,
    storages: Storages,
    *,
    repair: bool = False,
    notify: Callable[[str, int, int], None] = lambda table, done, chunks: None,
) -> Verified:
    """Compare all tables. `notify` hears table, chunks compared, chunks in all."""
    found = Verified()
    rows = await dumps.tables(dump)
    if not any(row.state is TableState.DONE for row in rows):
        raise Refused("nothing of this dump is finished", code="nothing", hint=f"headgate dumps resume {short(dump)}")
    if any(plan_of(row).job.mode is Mode.ABSENT for row in rows):
        raise Refused("a backfill leaves rows as they are; there is nothing to compare", code="backfill")
    pairs = Pairs(storages)
    try:
        for row in rows:
            if row.state is TableState.DONE:
                await _judge(_Bench(dumps, dump, storages, pairs, repair, notify), row, found)
            else:
                why = f"it was not copied: it is {row.state}" + (f" ({row.error})" if row.error else "")
                found.different.append(Difference(row.name, None, Finding.UNKNOWN, why))
    finally:
        await pairs.close()
    return found


@dataclass(frozen=True, slots=True)
class _Bench:
    """What every table is compared with."""

    dumps: Dumps
    dump: UUID
    storages: Storages
    pairs: Pairs
    repair: bool
    notify: Callable[[str, int, int], None]


async def _judge(bench: _Bench, row: TableRow, found: Verified) -> None:
    """One table. If it cannot be compared the others still are, unless a storage no longer answers."""
    there = [one.chunk for one in await bench.dumps.chunks.all(bench.dump, row.number)]
    chunks = [chunk for chunk in there if chunk.state is State.DONE]
    compared = 0

    def hear(one: Compared) -> None:
        nonlocal compared
        compared += one.chunks
        found.chunks += one.chunks
        found.rows += one.rows
        if one.why:
            found.different.append(Difference(row.name, one.chunk, one.finding, one.why, one.repaired, one.unrepaired))
        bench.notify(row.name, compared, len(chunks))

    try:
        await Comparison(bench.storages, bench.pairs, plan_of(row), chunks, bench.repair, hear).run()
        found.tables += 1
    except Missing as error:
        unrepaired = "a repair makes no tables; dump it again" if bench.repair else ""
        found.different.append(Difference(row.name, None, Finding.MISSING, error.message, unrepaired=unrepaired))
    except (StorageGone, StoreError):
        raise
    except HeadgateError as error:
        why = f"it cannot be compared: {error_said(error)}"
        unrepaired = "what cannot be compared is not copied again" if bench.repair else ""
        found.different.append(Difference(row.name, None, Finding.UNKNOWN, why, unrepaired=unrepaired))


def view(found: Verified) -> VerifiedView:
    """For people and programs."""
    return VerifiedView(
        tables=found.tables,
        chunks=found.chunks,
        rows=found.rows,
        equal=found.is_equal,
        verdict=found.verdict,
        repaired=found.repaired,
        different=[
            DifferenceView(
                table=one.table,
                chunk=one.chunk,
                finding=one.finding,
                why=one.why,
                repaired=one.repaired,
                unrepaired=one.unrepaired,
            )
            for one in found.different
        ],
    )
