"""The tables of a dump that runs: made ready for chunks, finished, linked with each other, or removed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from headgate.connectors.api.bulk import By, Indexes, Inventory, Job, Links, Reader, StorageError, StorageGone, Writer
from headgate.core.chunks.left import Excuse, Left, difference, excused
from headgate.core.chunks.offsets import unplanned
from headgate.core.chunks.outcome import TableState, unnamed
from headgate.errors import HeadgateError
from headgate.hidden import error_said, hide
from headgate.runtime.dumps.locks import LockManager
from headgate.runtime.dumps.offsets import Claim, OffsetManager
from headgate.runtime.dumps.plan import Plan, Storages, as_json, is_planned, plan_of, planned_now, short
from headgate.store.dump_rows import TableRow
from headgate.store.dumps import Dumps


@dataclass(slots=True)
class CopiedTable:
    """A table that is copied now."""

    number: int
    name: str
    plan: Plan
    offsets: OffsetManager
    state: TableState = TableState.COPYING


@dataclass(frozen=True, slots=True)
class Tables:
    """Makes the tables of one dump ready for chunks."""

    dumps: Dumps
    claim: Claim
    reader: Reader
    writer: Writer
    workers: int
    timeout_s: float

    async def prepare(self, row: TableRow) -> CopiedTable:
        """Have the table ready at the target. What the target's ledger has is done; the rest is handed out."""
        dump, number, plan = self.claim.dump, row.number, plan_of(row)
        if plan.asked is not None:
            plan = await planned_now(self.dumps, dump, plan.asked, self.reader, self.writer)
            await self.dumps.set_table(dump, number, TableState.WAITING, as_json(plan))  # Before anything is made.
        job = plan.job
        if row.chunks and plan.source.by is By.BLOCK:
            await self.writer.drop(job)  # Blocks mean nothing in another snapshot.
            await self.dumps.chunks.forget(dump, number)
        plan = replace(plan, into=await self.writer.prepare(job))
        written = await self.writer.done(job)
        locks = LockManager(self.dumps.chunks, dump)
        there = await locks.settle(number, written, decides=self.writer.keeps_ledger)
        if unplanned(there, written):
            raise StorageError(
                "the target's ledger has chunks that the plan lacks: Headgate's database is older than the target",
                hint=f"headgate dumps cancel {short(dump)}, and copy the table again with --mode replace",
            )
        offsets = OffsetManager(self.dumps, self.claim, number, plan, self.reader, self.workers, self.timeout_s)
        await offsets.open(row, there)
        await self.dumps.set_table(dump, number, TableState.COPYING, as_json(plan))
        return CopiedTable(number, row.name, plan, offsets)


async def link(writer: Writer | None, rows: Sequence[TableRow]) -> list[Left]:
    """What follows all tables, for those that the dump made: indexes of another kind of database, foreign keys. Returns
    what could not be made."""
    jobs = [plan_of(row).job for row in rows]
    targets = {job.source.name: job.target for job in jobs}
    steps: list[Callable[[Job], Awaitable[list[Left]]]] = []
    if isinstance(writer, Indexes):
        steps.append(writer.index)
    if isinstance(writer, Links):
        steps.append(partial(writer.link, targets=targets))
    left: list[Left] = []
    for job in jobs if steps else ():
        if writer is not None and job.created and job.source.family != writer.family:
            left += [Left("index", name, job.target, why, Excuse.KIND) for name, why in job.source.unlike]
    for step in steps:
        for job in jobs:
            try:
                missing = await step(job) if job.created else []
            except StorageGone:
                raise  # Nothing more can be made, and nothing more can be known.
            except StorageError as error:
                missing = [Left("schema", of=job.target, why=hide(error.message))]
            left += missing if writer is None or job.source.family == writer.family else excused(missing, Excuse.KIND)
    return left


async def compare(storages: Storages, writer: Writer | None, rows: Sequence[TableRow], one_by_one: str) -> list[Left]:
    """What else belongs to the tables that the dump made and is not at the target, if that is a database. That one of
    another kind has none of it is no failure. `one_by_one`: why their database was not copied as a whole, where all
    its tables were asked for; then what belongs to the database counts, too."""
    jobs = [job for row in rows if (job := plan_of(row).job).created]
    source = storages.read()
    if not jobs or not isinstance(source, Inventory) or not isinstance(writer, Indexes):
        return []
    alike = [job for job in jobs if job.source.family == writer.family]
    why = f"tables were copied one by one: {one_by_one}" if one_by_one else "a table is copied without it"
    target = storages.read_target() if alike else None
    try:
        had = await source.inventory([job.source.name for job in jobs], is_whole=bool(one_by_one))
        has: list[Left] = []
        if isinstance(target, Inventory):
            has = await target.inventory([job.target for job in jobs], is_whole=bool(one_by_one))
        found = difference(had, has, {job.target: job.source.name for job in jobs})
        return [replace(one, why=why, excuse=Excuse.NONE if alike else Excuse.KIND) for one in found]
    finally:
        for session in (source, target):
            if session is not None:
                await session.close()


def begun(rows: Sequence[TableRow]) -> list[TableRow]:
    """The tables that may have something at the target that is not in its place yet."""
    return [row for row in rows if row.state not in (TableState.DONE, TableState.WAITING) and is_planned(row)]


async def remove(writer: Writer, rows: Sequence[TableRow]) -> str:
    """Remove the tables that were being built next to their targets. Returns what could not be removed."""
    left: dict[str, list[str]] = {}  # The tables, by what was wrong: a server that refuses one often refuses all.
    for row in begun(rows):
        try:
            await writer.drop(plan_of(row).job)
        except HeadgateError as error:
            left.setdefault(unnamed(error_said(error), row.target), []).append(row.target)
    texts = [f"{', '.join(names[:SHOWN])}{' and more' * (len(names) > SHOWN)}: {why}" for why, names in left.items()]
    return f"{LEFT}: {'; '.join(texts)}" if texts else ""


SHOWN = 5  # Tables of which one thing is said.


LEFT = "what was built may be left in the target"
