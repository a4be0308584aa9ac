"""StreamProcess: runs one dump. It plans chunks ahead of the workers, hears what became of each, and knows the end.

    start      claim the dump; hold a snapshot; prepare each table; what the target's ledger has is done
    continue   cut chunks, a few more than there are workers; finish each table that is complete
    end        nothing is left: completed. Or some chunks failed too often: incomplete

A table that cannot be copied is left out and the others go on. A storage that is gone, or Headgate's own database,
ends the process: the history is saved as JSON beside the database, and the error says how to resume. Any process can
resume: the plan is in the database, what was written is in the target's ledger, and the ledger decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import UUID

import structlog

from headgate.connectors.api.bulk import By, Indexes, Job, Links, Reader, StorageError, StorageGone, Writer
from headgate.core import chunks
from headgate.core.chunks import Chunk, Cut, Offsets, Range, State
from headgate.errors import HeadgateError, Refused, StoreError
from headgate.ids import new_id
from headgate.runtime.dumps.history import History
from headgate.runtime.dumps.plan import Plan, Storages, as_json, plan_of, short
from headgate.runtime.dumps.worker import COMPLETED, END, FAILURE, Transform
from headgate.runtime.dumps.workers import WorkersManager, is_dead, process_name
from headgate.store.dumps import Attempt, Dumps, offsets_of
from headgate.text import counted, error_line

TICK_S = 0.2
AHEAD = 2  # Chunks that wait for each worker.
CLAIM_S = 15.0  # A process that died is known to be dead after its lease.

log = structlog.get_logger()


class DumpFailed(HeadgateError):
    """A storage is gone. What was copied stays, and the dump can be resumed."""

    code = "dump_failed"


@dataclass(frozen=True, slots=True)
class Notification:
    """What a worker said."""

    kind: str
    table: str
    chunk: int
    worker: str
    rows: int = 0
    error: str = ""


@dataclass(slots=True)
class _Table:
    """A table that is copied now."""

    number: int
    plan: Plan
    offsets: Offsets
    planned: int  # The number of the last chunk that was cut.
    state: str = "copying"
    cut_rows: int = 0  # The size that the waiting chunks were cut to.
    rows: int = 0  # That were cut so far, roughly.


class StreamProcess:
    """One dump, run by this process."""

    def __init__(
        self,
        dumps: Dumps,
        dump: UUID,
        storages: Storages,
        count: int,
        home: Path,
        *,
        notify: Callable[[Notification], None] = lambda notification: None,
        transform: Transform | None = None,
        processes: str | None = None,
        goes_on: bool = False,  # If this process is stopped, another will go on by itself.
    ) -> None:
        self.dump = dump
        self.workers = WorkersManager(
            dumps, dump, storages, count, told=self._wake, transform=transform, processes=processes
        )
        self._dumps = dumps
        self._storages = storages
        self._count = count
        self._notify = notify
        self._me = new_id()
        self._epoch = 0
        self._tables: dict[int, _Table] = {}
        self._names: dict[int, str] = {}
        self._finishing: dict[int, asyncio.Task[None]] = {}
        self._seen = 0  # The last attempt that we have heard of.
        self._woken = asyncio.Event()
        self._reader: Reader | None = None
        self._writer: Writer | None = None
        self._history = History(home, dump)
        self._goes_on = goes_on

    async def run(self) -> str:
        """Run the dump to its end. Returns its status. Raises `DumpFailed` when a storage is gone."""
        try:
            await self._claim()
            try:
                await self._start()
                status = await self._continue()
                return await self._end(status)
            finally:
                await self.workers.stop()
                for task in self._finishing.values():
                    task.cancel()
                await asyncio.gather(*self._finishing.values(), return_exceptions=True)
        except (StorageGone, StoreError) as error:
            raise await self._fail(error) from None
        except asyncio.CancelledError:
            await self._leave()
            raise
        finally:
            await self._close()

    def _wake(self) -> None:
        self._woken.set()

    # Start.

    async def _claim(self) -> None:
        found = await self._dumps.find(str(self.dump))
        dead = found["process"] if is_dead(found["process"]) else None
        until_s = monotonic() + (0.0 if self._goes_on else CLAIM_S)
        while (epoch := await self._dumps.claim(self.dump, self._me, process_name(), dead)) is None:
            if monotonic() >= until_s:
                raise Refused(
                    f"{found['process']} runs this dump", code="running", hint=f"headgate dumps show {short(self.dump)}"
                )
            await asyncio.sleep(0.5)
        self._epoch = epoch
        await self._dumps.restart(self.dump, dead)
        await self._dumps.set_status(self.dump, "running")
        self._seen = await self._dumps.last_attempt(self.dump)

    async def _start(self) -> None:
        rows = await self._dumps.tables(self.dump)
        self._names = {row["number"]: row["name"] for row in rows}
        self._history.begin({row["number"]: (row["name"], row["target"]) for row in rows})
        if all(row["state"] == "done" for row in rows):
            return
        self._reader, self._writer = self._storages.read(), self._storages.write()
        snapshot = await self._reader.begin()
        await self._dumps.set_snapshot(self.dump, snapshot, fuzzy=any(row["done"] for row in rows))
        for row in rows:
            if row["state"] == "done":
                continue
            try:
                self._tables[row["number"]] = await self._prepare(row)
            except StorageGone:
                raise
            except HeadgateError as error:
                await self._set_aside(row["number"], plan_of(row), error)
        self.workers.start(snapshot)

    async def _prepare(self, row: Any) -> _Table:
        """Have the table ready for chunks; what the ledger has is done."""
        assert self._reader is not None
        assert self._writer is not None
        plan, number = plan_of(row), row["number"]
        job = plan.job
        has_begun = row["chunks"] > 0
        if has_begun and plan.source.by is By.BLOCK:
            await self._writer.drop(job)  # Blocks mean nothing in another snapshot.
            await self._dumps.forget_chunks(self.dump, number)
            has_begun = False
        plan = replace(plan, into=await self._writer.prepare(job))
        await self._settle(number, await self._writer.done(job))
        if has_begun:
            offsets = await self._go_on(row)
        else:
            top = await self._reader.top(plan.source)
            offsets = chunks.from_start(top, row["size"] if row["fixed"] else None)
            if plan.since and top is not None:
                offsets = chunks.from_point(offsets, plan.since)
        await self._dumps.save_table(self.dump, number, "copying", as_json(plan), offsets)
        there = [chunk for _, chunk, _ in await self._dumps.chunks(self.dump, number)]
        rows = sum(chunk.rows if chunk.state is State.DONE else offsets.rows for chunk in there)
        return _Table(number, plan, offsets, planned=max((chunk.number for chunk in there), default=0), rows=rows)

    async def _settle(self, number: int, written: dict[Range, int]) -> None:
        """What the ledger has is done. What it has beyond the plan would be written twice."""
        assert self._writer is not None
        await self._dumps.settle(self.dump, number, written, decides=self._writer.keeps_ledger)
        there = [chunk for _, chunk, _ in await self._dumps.chunks(self.dump, number)]
        if chunks.unplanned(there, written):
            raise StorageError(
                "the target's ledger has chunks that the plan has not: Headgate's database is older than the target",
                hint=f"headgate dumps cancel {short(self.dump)}, and copy the table again with --mode replace",
            )

    async def _go_on(self, row: Any) -> Offsets:
        """Where planning was. The last chunk says that best."""
        planned = [chunk for _, chunk, _ in await self._dumps.chunks(self.dump, row["number"])]
        offsets = offsets_of(row)
        at = planned[-1].range.hi
        return replace(offsets, at=at, ended=(offsets.ended and at == offsets.at) or at == offsets.top)

    async def _set_aside(self, number: int, plan: Plan, error: BaseException) -> None:
        """One bad table does not stop the others."""
        text = error_line(error)
        log.warning("a table cannot be copied", table=self._names[number], error=text)
        self._history.table_failed(number, text)
        offsets = self._tables[number].offsets if number in self._tables else None
        await self._dumps.save_table(self.dump, number, "failed", as_json(plan), offsets, text)
        self._tables.pop(number, None)
        self._notify(Notification("error", self._names[number], -1, "", error=text))

    # Continue.

    async def _continue(self) -> str:
        """Until nothing is left to do here. Returns how it ended."""
        while True:
            state = await self._dumps.renew(self.dump, self._me, self._epoch)
            if state is None:
                raise Refused("another process runs this dump now", code="taken")
            if state["wanted"] == "cancel":
                return "cancelled"
            is_paused = state["wanted"] == "pause"
            self.workers.set(state)
            await self._hear()
            if not is_paused:
                await self._plan_ahead()
            rows = {row["number"]: row for row in await self._dumps.tables(self.dump)}
            for table in list(self._tables.values()):
                await self._look_at(table, rows[table.number])
            if not self._tables:
                return "ended"
            if self.workers.ended:
                raise self.workers.error() or StorageGone("no worker is left")
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._woken.wait()
            self._woken.clear()

    async def _hear(self) -> None:
        """What workers said since we last listened, here or anywhere."""
        for row in await self._dumps.history(self.dump, self._seen):
            self._seen = row["id"]
            self._history.append(row)
            self._notify(Notification(row["kind"], row["name"], row["chunk"], row["worker"], row["rows"], row["error"]))
            table = self._tables.get(row["table"])
            if row["kind"] == FAILURE:
                raise StorageGone(row["error"])
            if table is None:
                continue
            if row["kind"] == END:
                table.offsets = chunks.end(table.offsets)
                await self._dumps.plan(self.dump, self._me, self._epoch, table.number, table.offsets, [])
            if row["kind"] == COMPLETED:
                table.offsets = chunks.observed(table.offsets, row["rows"], row["seconds"])
                await self._recut(table)

    async def _recut(self, table: _Table) -> None:
        """Chunks in waiting that have proved far too large are cut anew."""
        if table.cut_rows and chunks.is_recut(table.offsets, table.cut_rows):
            table.offsets = await self._dumps.take_back(self.dump, table.number, table.offsets)
            table.cut_rows = 0

    async def _plan_ahead(self) -> None:
        """Cut chunks until enough wait; for the first tables first."""
        rows = await self._dumps.tables(self.dump)
        waiting = sum(row["waiting"] for row in rows)
        for table in list(self._tables.values()):  # One that is finished meanwhile leaves.
            while table.state == "copying" and waiting < AHEAD * self._count and not table.offsets.ended:
                try:
                    await self._cut(table)
                except StorageGone:
                    raise
                except StorageError as error:
                    await self._set_aside(table.number, table.plan, error)
                    return
                waiting += 1

    async def _cut(self, table: _Table) -> None:
        assert self._reader is not None
        expected = table.plan.source.rows
        left = None if expected is None else expected - table.rows
        offsets, cut = chunks.next_chunk(table.offsets, left, self._count)
        assert isinstance(cut, Cut), "failed chunks are in the plan, not in a list"
        assert offsets.top is not None
        hi = await self._reader.cut(table.plan.source, cut.after, offsets.top, cut.rows)
        offsets, range = chunks.planned(offsets, hi)
        table.planned += 1
        if not await self._dumps.plan(
            self.dump, self._me, self._epoch, table.number, offsets, [Chunk(table.planned, range)]
        ):
            raise Refused("another process runs this dump now", code="taken")
        table.offsets, table.cut_rows = offsets, cut.rows
        table.rows += cut.rows
        self.workers.wake()

    async def _look_at(self, table: _Table, row: Any) -> None:
        """Finish a table that is complete; leave one that cannot be."""
        if table.state != "copying" or not table.offsets.ended or row["waiting"] or row["leased"]:
            return
        there = [chunk for _, chunk, _ in await self._dumps.chunks(self.dump, table.number)]
        if chunks.is_stuck(table.offsets, there):
            bad = [chunk for chunk in there if chunk.state is State.FAILED]
            text = f"{len(bad)} of {counted(len(there), 'chunk')} failed: {bad[0].error}"
            await self._set_aside(table.number, table.plan, StorageError(text))
        if not chunks.is_complete(table.offsets, there):
            return
        table.state = "finishing"
        await self._dumps.save_table(self.dump, table.number, "finishing", as_json(table.plan), table.offsets)
        self._finishing[table.number] = asyncio.create_task(self._finish(table), name=f"finish {row['name']}")

    async def _finish(self, table: _Table) -> None:
        """Indexes, constraints, the swap. Other tables go on meanwhile."""
        writer = self._storages.write()
        try:
            await writer.finish(table.plan.job)
            await self._dumps.save_table(self.dump, table.number, "done", as_json(table.plan), table.offsets)
            self._tables.pop(table.number, None)
        except (StorageGone, StoreError) as error:
            await self._dumps.record(self.dump, _failure(table.number, error))
        except HeadgateError as error:
            await self._set_aside(table.number, table.plan, error)
        finally:
            with suppress(Exception):
                await writer.close()
            self._wake()

    # End.

    async def _end(self, status: str) -> str:
        if status == "cancelled":
            await self.workers.stop()
            await self._drop()
            await self._dumps.set_status(self.dump, "cancelled")
        else:
            rows = await self._dumps.tables(self.dump)
            bad = [row for row in rows if row["state"] != "done"]
            status = "incomplete" if bad else "completed"
            text = f"{bad[0]['name']}: {bad[0]['error']}" if bad else ""
            if not bad:
                text = await self._link(rows)
            await self._dumps.set_status(self.dump, status, text)
            if bad:
                self._history.save(text)
            else:
                self._history.remove()
        await self._dumps.release(self.dump, self._me)
        return status

    async def _link(self, rows: list[Any]) -> str:
        """What follows all tables, for those that the dump made: indexes of another kind of database, foreign keys."""
        jobs = [plan_of(row).job for row in rows]
        targets = {job.source.name: job.target for job in jobs}
        steps: list[Callable[[Job], Awaitable[list[str]]]] = []
        if isinstance(self._writer, Indexes):
            steps.append(self._writer.index)
        if isinstance(self._writer, Links):
            steps.append(partial(self._writer.link, targets=targets))
        missing: list[str] = []
        for step in steps:
            for job in jobs:
                try:
                    missing += await step(job) if job.created else ()
                except StorageError as error:
                    missing.append(f"{job.target}: {error.message}")
        return f"left out: {'; '.join(missing)}" if missing else ""

    async def _drop(self) -> None:
        if self._writer is None:
            return
        for row in await self._dumps.tables(self.dump):
            if row["state"] != "done":
                with suppress(StorageError):
                    await self._writer.drop(plan_of(row).job)

    async def _fail(self, error: HeadgateError) -> DumpFailed:
        """Save what is known, here and on disk."""
        text = error_line(error)
        file = self._history.save(text)
        with suppress(StoreError):
            await self._dumps.set_status(self.dump, "failed", text)
            await self._dumps.release(self.dump, self._me)
        return DumpFailed(text, hint=f"headgate dumps resume {short(self.dump)}; history in {file}")

    async def _leave(self) -> None:
        """Interrupted: the dump is nobody's, and can be resumed at once."""
        if not self._goes_on:
            self._history.save("interrupted")
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(3.0):
                if not self._goes_on:
                    await self._dumps.set_status(self.dump, "failed", "interrupted")
                await self._dumps.release(self.dump, self._me)

    async def _close(self) -> None:
        for session in (self._reader, self._writer):
            if session is not None:
                with suppress(Exception):
                    await session.close()


def _failure(table: int, error: HeadgateError) -> Attempt:
    return Attempt(table, -1, process_name(), FAILURE, error=error_line(error))
