"""StreamProcess: runs one dump. It plans chunks ahead of the workers, hears what became of each, and knows the end.

    start      claim the dump; hold a snapshot; make what the rows of a whole database need
    continue   prepare one table after the other, where what the target's ledger has is done; hand out chunks, a few
               more than there are workers; finish each table that is complete
    end        nothing is left: completed. Or some tables failed: incomplete

A table that cannot be copied fails, and the others go on. A storage that is gone, or Headgate's own database, ends the
process: the history is saved as JSON in `HEADGATE_HOME`, and the error says how to resume. Any process can resume: the
plan is in the database, what was written is in the target's ledger, and the ledger decides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from uuid import UUID

from headgate.connectors.api.bulk import Builds, Reader, StorageError, StorageGone, Writer
from headgate.core.chunks import outcome
from headgate.core.chunks.left import is_complete, summed_up
from headgate.core.chunks.outcome import INTERRUPTED, Complete, DumpWanted, GivenUp, Notice, Status, TableState
from headgate.errors import HeadgateError, Refused, StoreError
from headgate.hidden import error_said
from headgate.ids import new_id
from headgate.log import get_logger
from headgate.runtime.dumps import tables
from headgate.runtime.dumps.copying import Transform
from headgate.runtime.dumps.history import History
from headgate.runtime.dumps.locks import LockManager
from headgate.runtime.dumps.offsets import Claim
from headgate.runtime.dumps.plan import Plan, Storages, as_json, options_of, plan_of, short
from headgate.runtime.dumps.processes import is_dead, process_name
from headgate.runtime.dumps.restoring import Restoring
from headgate.runtime.dumps.tables import CopiedTable, Tables
from headgate.runtime.dumps.workers import WorkersManager
from headgate.store.dump_rows import Attempt, AttemptRow, TableRow
from headgate.store.dumps import Dumps

TICK_S = 0.2
PREPARE_S = 0.1
BUILDING_S = 1.0
CLAIM_S = 15.0  # A process that died is known to be dead after its lease.
CLAIMED_S = 2.0  # How often a claim is renewed while something else takes long.
LEAVE_S = 3.0  # Longer than a database that answers needs, and short enough for somebody who pressed Ctrl-C.

log = get_logger()


class DumpFailed(HeadgateError):
    """A storage is gone. What was copied stays, and the dump can be resumed."""

    code = "dump_failed"


@dataclass(frozen=True, slots=True)
class Notification:
    """What a worker reported."""

    kind: Notice
    table: str
    chunk: int
    worker: str
    rows: int = 0
    error: str = ""


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
        goes_on: bool = False,  # If this process is stopped, another goes on by itself.
    ) -> None:
        self.dump = dump
        self.workers = WorkersManager(
            dumps, dump, storages, count, on_report=self._wake, transform=transform, processes=processes
        )
        self._dumps = dumps
        self._locks = LockManager(dumps.chunks, dump)
        self._storages = storages
        self._count = count
        self._notify = notify
        self._claim = Claim(dump, new_id(), 0)
        self._unprepared: deque[TableRow] = deque()
        self._ready: Tables | None = None
        self._tables: dict[int, CopiedTable] = {}
        self._finishing: dict[int, asyncio.Task[None]] = {}
        self.building: dict[int, str] = {}  # What is built for each table that is being finished.
        self._seen = 0  # The last attempt that we have read.
        self._woken = asyncio.Event()
        self._is_changed = False  # Something has become of a table or of one of its chunks.
        self._restoring: Restoring | None = None  # Of a whole database.
        self._after: Mapping[str, Sequence[str]] = {}  # The tables that one is filled after.
        self._reader: Reader | None = None
        self._writer: Writer | None = None
        self._idle: list[Writer] = []  # Sessions that have finished tables, for the next ones.
        self._history = History(home, dump)
        self._goes_on = goes_on

    async def run(self) -> Status:
        """Run the dump to its end. Returns its status. Raises `DumpFailed` when a storage is gone."""
        try:
            await self._take()
            try:
                await self._start()
                is_cancelled = not await self._continue()
                return await (self._cancel() if is_cancelled else self._end())
            finally:
                await self.workers.stop()
                for task in self._finishing.values():
                    task.cancel()
                await asyncio.gather(*self._finishing.values(), return_exceptions=True)
        except (StorageError, StoreError) as error:
            raise await self._fail(error) from None
        except asyncio.CancelledError:
            await self._leave()
            raise
        finally:
            await self._close()

    def _wake(self) -> None:
        self._is_changed = True
        self._woken.set()

    # Start.

    async def _take(self) -> None:
        """Claim the dump; wait a while for a process that may have died."""
        found = await self._dumps.find(str(self.dump))
        dead = found.process if is_dead(found.process) else None
        until_s = monotonic() + (0.0 if self._goes_on else CLAIM_S)
        owner = self._claim.owner
        while (epoch := await self._dumps.claim(self.dump, owner, process_name(), dead)) is None:
            if monotonic() >= until_s:
                raise Refused(
                    f"{found.process} runs this dump", code="running", hint=f"headgate dumps show {short(self.dump)}"
                )
            await asyncio.sleep(0.5)
        self._claim = Claim(self.dump, owner, epoch)
        rows = await self._dumps.tables(self.dump)
        self._history.begin(rows)
        if any(row.listed is not None for row in rows):
            await self._locks.free(dead)
        else:
            await self._locks.restart(dead)
        await self._dumps.set_status(self.dump, Status.RUNNING)
        while await self._read_on():
            pass

    async def _start(self) -> None:
        rows = await self._dumps.tables(self.dump)
        options = options_of(await self._dumps.find(str(self.dump)))
        is_copied = all(row.state is TableState.DONE for row in rows)
        if is_copied and options.whole is None:
            return
        self._reader, self._writer = self._storages.read(), self._storages.write()
        snapshot = await self._reader.begin() or ""  # Without one each chunk is read as it is at that moment.
        is_mixed = not is_copied and any(row.done or row.leased for row in rows)  # Some go on for a run that is over.
        await self._dumps.set_snapshot(self.dump, snapshot, fuzzy=is_mixed)
        if options.whole is not None:
            whole, around = options.whole, options.around
            self._restoring = Restoring(self._storages, self.dump, whole, around, self._count, self._woken.set)
            self._after = around.after if around is not None else {}
            await self._claimed(self._restoring.begin(snapshot, {row.target for row in rows}, options.bare))
            self._restoring.fill(row.target for row in rows if row.state is TableState.DONE)
        timeout_s = self._storages.source_timeout_s
        self._ready = Tables(self._dumps, self._claim, self._reader, self._writer, self._count, timeout_s)
        wanted = [row for row in rows if row.state is not TableState.DONE and row.listed != ()]
        for row in wanted:
            if row.chunks:  # A worker could lease one before the target's ledger was asked for it.
                await self._prepare(row)
        if any(row.done for row in await self._dumps.tables(self.dump) if row.number in self._tables):
            await self._dumps.set_snapshot(self.dump, snapshot, fuzzy=True)  # The target's ledger may know of more.
        self._unprepared.extend(row for row in wanted if not row.chunks)
        self.workers.start(snapshot)

    async def _prepare_some(self) -> None:
        """Have the next tables ready, while the workers copy those before them: the first one alone, so that there is
        something to copy; then as many as there is time for before a look at the workers."""
        until_s = monotonic() + (PREPARE_S if self._tables else 0.0)
        while self._unprepared:
            await self._prepare(self._unprepared.popleft())
            if self._is_changed or monotonic() >= until_s:
                break
        self._is_changed = True

    async def _prepare(self, row: TableRow) -> None:
        """Have a table ready for its rows."""
        assert self._ready is not None
        try:
            self._tables[row.number] = await self._ready.prepare(row)
        except StorageGone:
            raise
        except HeadgateError as error:
            plans = {one.number: plan_of(one) for one in await self._dumps.tables(self.dump)}
            await self._give_up(row.number, row.name, plans[row.number], error_said(error))

    async def _claimed(self, work: Coroutine[object, object, None]) -> None:
        """Do something that may take long, while the dump stays ours."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([task], timeout=CLAIMED_S))[0]:
                if await self._dumps.renew(self.dump, self._claim.owner, self._claim.epoch) is None:
                    raise Refused("another process runs this dump now", code="taken")
            task.result()
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _give_up(self, number: int, name: str, plan: Plan, error: str) -> None:
        """The table fails; the others go on."""
        error = outcome.unnamed(error, name, plan.job.target)
        log.warning("a table cannot be copied", table=name, error=error)
        self._history.table_failed(number, error)
        await self._dumps.set_table(self.dump, number, TableState.FAILED, as_json(plan), error)
        self._tables.pop(number, None)
        self._notify(Notification(Notice.ERROR, name, -1, "", error=error))

    # Continue.

    async def _continue(self) -> bool:
        """Until nothing is left to do here. False: the dump is to be cancelled."""
        wanted, renewed_s = DumpWanted.RUN, 0.0
        while True:
            if is_due := monotonic() - renewed_s >= TICK_S:
                state = await self._dumps.renew(self.dump, self._claim.owner, self._claim.epoch)
                if state is None:
                    raise Refused("another process runs this dump now", code="taken")
                if state.wanted is DumpWanted.CANCEL:
                    return False
                self.workers.set(state)
                wanted, renewed_s = state.wanted, monotonic()
            if self._unprepared:
                await self._prepare_some()
            if self._tables and (self._is_changed or is_due):
                self._is_changed = False
                await self._go_on(is_handing_out=wanted is DumpWanted.RUN)
            if not self._tables and not self._unprepared and await self._is_restored():
                self._announce(await self._read_on())  # What was reported between the last look at it and the end.
                return True
            if self._tables and self.workers.ended:
                await self._hear()  # The last of them may have said why since we last looked.
                raise self.workers.error() or StorageGone("no worker is left")
            if not self._unprepared:
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._woken.wait()
                self._woken.clear()

    async def _go_on(self, *, is_handing_out: bool) -> None:
        """Follow the tables that are copied, each as it is when this begins."""
        await self._hear()
        rows = {row.number: row for row in await self._dumps.tables(self.dump)}
        if is_handing_out:
            await self._plan_ahead(sum(row.waiting for row in rows.values()))
        for number, table in list(self._tables.items()):
            is_idle = not rows[number].waiting + rows[number].leased
            if table.state is TableState.COPYING and is_idle and table.offsets.is_handed_out:
                await self._judge(table)

    async def _is_restored(self) -> bool:
        """Whether what follows the rows has been made, as far as it can be. It is begun here."""
        if self._restoring is None:
            return True
        await self._restoring.end()
        return self._restoring.is_over

    async def _read_on(self) -> list[AttemptRow]:
        """Attempts since we last looked, of workers here and elsewhere."""
        rows = await self._dumps.chunks.history(self.dump, self._seen)
        for row in rows:
            self._seen = row.id
            self._history.append(row)
        return rows

    async def _hear(self) -> None:
        """Follow what workers reported."""
        rows = await self._read_on()
        self._announce(rows)
        for row in rows:
            if (table := self._tables.get(row.table)) is not None:
                await table.offsets.hear(row)
        for row in rows:
            if row.kind is Notice.FAILURE:
                raise StorageGone(row.error)

    def _announce(self, rows: Sequence[AttemptRow]) -> None:
        for row in rows:
            self._notify(Notification(row.kind, row.name, row.chunk, row.worker, row.rows, row.error))

    async def _plan_ahead(self, waiting: int) -> None:
        """Hand out chunks until enough wait; those of the first tables first."""
        for table in list(self._tables.values()):  # One that is finished meanwhile leaves.
            if not self._targets().isdisjoint(self._after.get(table.plan.job.target, ())):
                continue
            while table.state is TableState.COPYING and table.offsets.is_wanted(waiting):
                try:
                    await table.offsets.hand_out()
                except StorageGone:
                    raise
                except StorageError as error:
                    await self._give_up(table.number, table.name, table.plan, error_said(error))
                    return
                waiting += 1
                self.workers.wake()

    def _targets(self) -> set[str]:
        """Of the tables that are not there yet."""
        return {row.target for row in self._unprepared} | {table.plan.job.target for table in self._tables.values()}

    async def _judge(self, table: CopiedTable) -> None:
        """Finish a table that is complete; give up one that cannot be."""
        there = [row.chunk for row in await self._dumps.chunks.all(self.dump, table.number)]
        match table.offsets.verdict(there):
            case GivenUp(error):
                await self._give_up(table.number, table.name, table.plan, error)
            case Complete():
                table.state = TableState.FINISHING
                await self._dumps.set_table(self.dump, table.number, table.state, as_json(table.plan))
                task = asyncio.create_task(self._finish(table), name=f"finish {table.name}")
                self._finishing[table.number] = task
            case None:
                pass

    async def _finish(self, table: CopiedTable) -> None:
        """Indexes, constraints, the swap. Other tables go on meanwhile."""
        writer = self._idle.pop() if self._idle else self._storages.write()
        watching = asyncio.create_task(self._watch_building(table), name=f"building {table.name}")
        try:
            await writer.finish(table.plan.job)
            await self._dumps.set_table(self.dump, table.number, TableState.DONE, as_json(table.plan))
            self._tables.pop(table.number, None)
            if self._restoring is not None:
                self._restoring.fill([table.plan.job.target])
        except (StorageGone, StoreError) as error:
            failure = Attempt(table.number, -1, process_name(), Notice.FAILURE, error=error_said(error))
            await self._dumps.chunks.record(self.dump, failure)
        except HeadgateError as error:
            await self._give_up(table.number, table.name, table.plan, error_said(error))
        finally:
            watching.cancel()
            if table.plan.job.whole:
                self._idle.append(writer)
            else:
                with suppress(Exception):
                    await writer.close()
            self._wake()

    async def _watch_building(self, table: CopiedTable) -> None:
        """Know what is built for the table, to show it. What goes wrong here is no reason to stop."""
        await asyncio.sleep(BUILDING_S)
        writer = self._storages.write()
        try:
            with suppress(HeadgateError):
                while isinstance(writer, Builds):
                    self.building[table.number] = await writer.building(table.plan.job)
                    await asyncio.sleep(BUILDING_S)
        finally:
            self.building.pop(table.number, None)
            with suppress(Exception):
                await writer.close()

    # End.

    async def _cancel(self) -> Status:
        await self.workers.stop()
        if self._restoring is not None:
            await self._restoring.close()
            await self._dumps.set_left(self.dump, await self._restoring.give_up())
        rows = await self._dumps.tables(self.dump)
        left = await tables.remove(self._writer, rows) if self._writer is not None else ""
        await self._dumps.set_status(self.dump, Status.CANCELLED, left)
        await self._dumps.release(self.dump, self._claim.owner)
        return Status.CANCELLED

    async def _end(self) -> Status:
        rows = await self._dumps.tables(self.dump)
        status, text = outcome.ended([(row.name, row.state, row.error) for row in rows])
        if self._restoring is not None:
            left = self._restoring.left_behind()
            await self._dumps.set_left(self.dump, left)
            if status is Status.COMPLETED and not is_complete(left):
                status, text = Status.INCOMPLETE, f"not copied: {summed_up([one for one in left if not one.excuse])}"
            if status is Status.COMPLETED:
                await self._restoring.tidy_up()
        elif status is Status.COMPLETED:
            left = await tables.link(self._writer, rows)
            options = options_of(await self._dumps.find(str(self.dump)))
            left += await tables.compare(self._storages, self._writer, rows, options.one_by_one)
            await self._dumps.set_left(self.dump, left)
        await self._dumps.set_status(self.dump, status, text)
        if status is Status.COMPLETED:
            self._history.remove()
        else:
            await self._save(text)
        await self._dumps.release(self.dump, self._claim.owner)
        return status

    async def _fail(self, error: HeadgateError) -> DumpFailed:
        """Save what is known, here and on disk."""
        text = error_said(error)
        file = await self._save(text)
        with suppress(StoreError):
            await self._dumps.set_status(self.dump, Status.FAILED, text)
            await self._dumps.release(self.dump, self._claim.owner)
        return DumpFailed(text, hint=f"headgate dumps resume {short(self.dump)}; history in {file}")

    async def _leave(self) -> None:
        """Interrupted: no process runs the dump any more, and it can be resumed at once."""
        if not self._goes_on:
            await self._save(INTERRUPTED)
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                if not self._goes_on:
                    await self._dumps.set_status(self.dump, Status.FAILED, INTERRUPTED)
                await self._dumps.release(self.dump, self._claim.owner)

    async def _save(self, error: str) -> Path:
        """The history as a file: what the database has, and what it did not take."""
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                while await self._read_on():
                    pass
        for attempt in self.workers.unrecorded():
            self._history.append_unrecorded(attempt)
        return self._history.save(error)

    async def _close(self) -> None:
        self._history.close()
        if self._restoring is not None:
            await self._restoring.close()
        sessions: list[Reader | Writer | None] = [self._reader, self._writer, *self._idle]
        for session in sessions:
            if session is not None:
                with suppress(Exception):
                    await session.close()
