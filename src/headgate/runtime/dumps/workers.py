"""WorkersManager: the pool of a dump's workers, each a task of this process or a separate process.

Workers know nothing of each other. Each leases chunks from the plan in the database, so it does not matter where it
runs: here, in another process, or on another node. Separate processes are for targets where much is done in Python;
between two PostgreSQL servers tasks are as fast.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

import msgspec

from headgate.core.chunks.outcome import DumpWanted, takes_part
from headgate.errors import StoreError
from headgate.ids import new_id
from headgate.log import get_logger
from headgate.runtime.dumps.copying import Transform
from headgate.runtime.dumps.plan import Storages, parse_rate
from headgate.runtime.dumps.processes import process_name
from headgate.runtime.dumps.worker import Progress, Throttle, Worker
from headgate.store.database import Database
from headgate.store.dump_rows import Attempt, DumpState
from headgate.store.dumps import Dumps
from headgate.store.lineage import Witness

LOOK_S = 1.0  # How often a pool of another process than the planning one looks at what is wanted.
END_S = 5.0

log = get_logger()


class WorkersManager:
    """The workers of one dump in this process."""

    def __init__(
        self,
        dumps: Dumps,
        dump: UUID,
        storages: Storages,
        count: int,
        *,
        on_report: Callable[[], None] = lambda: None,
        transform: Transform | None = None,
        processes: str | None = None,  # The database's URL: workers are processes that connect to it.
    ) -> None:
        self.throttle = Throttle()
        self._storages = storages
        self._dump = dump
        self._dumps = dumps
        self._count = count
        self._processes_url = processes
        self._pool = f"{process_name()}/{new_id().hex[-4:]}"
        self._workers = [
            Worker(f"{self._pool}.{number}", dumps, dump, storages, self.throttle, on_report, transform)
            for number in range(count)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, snapshot: str) -> None:
        """Begin to copy."""
        if self._processes_url is not None:
            self._tasks = [
                asyncio.create_task(self._child(number), name=f"dump process {number}") for number in range(self._count)
            ]
            return
        self._tasks = [
            asyncio.create_task(worker.run(snapshot), name=f"dump worker {worker.name}") for worker in self._workers
        ]

    def set(self, state: DumpState) -> None:
        """How fast, and whether at all. What is under way is finished. All pools at work share one rate."""
        self.throttle.rate, self.throttle.share = parse_rate(state.rate), 1 / len({self._pool, *state.pools})
        paused = state.wanted is not DumpWanted.RUN
        for worker in self._workers:
            worker.paused = paused

    def wake(self) -> None:
        """There is something to lease."""
        for worker in self._workers:
            worker.planned.set()

    def progress(self) -> list[Progress]:
        """What each worker copies now."""
        return [worker.progress for worker in self._workers]

    def unrecorded(self) -> list[Attempt]:
        """Reports that the database did not take."""
        return [attempt for worker in self._workers for attempt in worker.unrecorded]

    @property
    def ended(self) -> bool:
        """Whether no worker works any more: each has met a storage that is gone."""
        return bool(self._tasks) and all(task.done() for task in self._tasks)

    def error(self) -> BaseException | None:
        """Why a worker ended that should not have."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                return error
        return None

    async def stop(self) -> None:
        """End all workers; chunks that they had are given back."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_S)

    async def _child(self, number: int) -> None:
        """A worker in a separate process. It gets its URLs on its standard input, where nobody else sees them."""
        assert self._processes_url is not None
        storages = self._storages
        given = _Given(
            self._processes_url,
            self._dump,
            storages.source,
            storages.target,
            storages.own,
            storages.source_timeout_s,
            os.getpid(),
        )
        child = await asyncio.create_subprocess_exec(
            # `-P`: no module comes from the folder that we are in, which others may write to.
            *(sys.executable, "-P", "-m", "headgate.runtime.dumps.workers"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,  # Ours is for results; what a worker reports is in the history.
            start_new_session=True,  # Ctrl-C is for us, and we end our workers.
        )
        assert child.stdin is not None
        try:
            child.stdin.write(msgspec.json.encode(given) + b"\n")
            await child.stdin.drain()
            code = await child.wait()
            if code not in (0, -signal.SIGTERM):
                log.warning("a worker process ended", number=number, code=code)
        finally:
            if child.returncode is None:
                with suppress(ProcessLookupError):
                    child.terminate()
                with suppress(TimeoutError):
                    async with asyncio.timeout(END_S):
                        await child.wait()


async def join(dumps: Dumps, dump: UUID, storages: Storages, count: int, transform: Transform | None = None) -> None:
    """Work on a dump that another process plans, until it is over, or no process plans it, or another one does, which
    reads in another snapshot."""
    state = await dumps.state(dump)
    if state is None or not _goes_on(state):
        return
    snapshot = state.snapshot
    workers = WorkersManager(dumps, dump, storages, count, transform=transform)
    if snapshot is not None:
        workers.start(snapshot)
    try:
        while state is not None and _goes_on(state) and state.snapshot == snapshot and not workers.ended:
            workers.set(state)
            await asyncio.sleep(LOOK_S)
            with suppress(StoreError):
                state = await dumps.state(dump)
    finally:
        await workers.stop()


def _goes_on(state: DumpState) -> bool:
    return takes_part(state.status, state.wanted, is_run=state.is_run)


class _Given(msgspec.Struct):
    """What a worker process is given."""

    database: str
    dump: UUID
    source: str
    target: str
    own: tuple[str, ...]
    source_timeout_s: float
    parent: int


async def _run_child() -> None:
    given = msgspec.json.decode(await asyncio.to_thread(sys.stdin.readline), type=_Given)
    database = await Database.open(given.database, size=2, check=Witness().check)
    try:
        dumps = Dumps(database)
        storages = Storages(given.source, given.target, given.own, source_timeout_s=given.source_timeout_s)
        working = asyncio.create_task(join(dumps, given.dump, storages, 1))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
        while not working.done() and os.getppid() == given.parent:
            await asyncio.wait([working], timeout=LOOK_S)
        working.cancel()
        await asyncio.wait([working])
    finally:
        await database.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_run_child())
