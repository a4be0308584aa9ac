"""The worker manager: keeps every enabled datasource running on this node.

One small loop for each concern. `_sync` asks the registry what changed and turns it into orders; every order and every
fact goes through `_dispatch`, which steps the pure machine in `core.lifecycle` and performs its effects; `_checkpoint`
saves positions once a second, all in one statement; the reporter writes states and events.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import structlog

from headgate.clock import boot_s, unix_s
from headgate.connectors.api import Context, Grant, Held
from headgate.core import lifecycle, streams
from headgate.core.lifecycle import Wanted
from headgate.core.reconcile import Entry, Forget, Halt, reconcile
from headgate.core.reconcile import Run as RunOrder
from headgate.errors import Cause, ConfigError, Fenced, NotFound, StoreError
from headgate.ids import new_id, stream_name
from headgate.runtime import worker
from headgate.runtime.beat import RunLabel, label_current
from headgate.runtime.forever import forever
from headgate.runtime.handle import Handle
from headgate.runtime.inbox import InboxHub
from headgate.runtime.ownership import Ownership
from headgate.runtime.registry import Registry
from headgate.runtime.reporter import Reporter
from headgate.runtime.shared import SharedThings
from headgate.runtime.worker import Run
from headgate.store.streams import Streams

POLL_S = 0.5  # Finds what a wake-up missed.
CHECKPOINT_S = 1.0
RETRY_S = 1.0
STARTING = 50  # Streams acquired at a time: a thousand that start together must not hold up the loop.
LAST_CHECKPOINT_S = 2.0

log = structlog.get_logger()


class WorkerManager:
    """All streams of one incarnation of this node."""

    def __init__(
        self,
        registry: Registry,
        rows: Streams,
        node: UUID,
        installation: UUID,
        trust_left_s: Callable[[], float],
        inboxes: InboxHub,
        is_listed: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self.node = node
        self._registry = registry
        self._rows = rows
        self._ownership = Ownership(rows, node)
        self._installation = installation
        self._trust_left_s = trust_left_s
        self._inboxes = inboxes
        self._is_listed = is_listed  # Whether the registry in use names this datasource.
        self._shared = SharedThings()
        self._handles: dict[UUID, Handle] = {}  # By datasource: one stream each.
        self._tasks: set[asyncio.Task[Any]] = set()
        self._wake = asyncio.Event()
        self._due: list[Entry] = []  # Changed, and not reconciled yet.
        self._reconciling = asyncio.Lock()
        self._reporter = Reporter(registry, node, self._handles.values)
        self._starting = asyncio.Semaphore(STARTING)
        self._stopping = False
        self._over = False  # The incarnation has ended: no event changes anything any more.
        self.synced = asyncio.Event()  # The registry has been read at least once.

    # Loops.

    async def run(self) -> None:
        """Manage until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(forever(self._sync_loop, "sync"), name="sync")
            group.create_task(forever(self._checkpoint_loop, "checkpoint"), name="checkpoint")
            group.create_task(forever(self._reporter.run, "report"), name="report")

    def wake(self) -> None:
        """Look at the registry now."""
        self._wake.set()

    async def _sync_loop(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._sync()
                await self._try_free()
            except StoreError:
                await asyncio.sleep(RETRY_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._wake.wait()

    async def _sync(self) -> None:
        # Kept until they are reconciled: the database may go away in between.
        self._due += await self._registry.sync()
        if self._due and not self._stopping:
            await self._reconcile(self._due)
        self._due = []
        self.synced.set()

    async def reconsider(self) -> None:
        """Reconcile everything, not only what changed: after the list of names has changed."""
        await self._reconcile(self._registry.entries())

    async def _reconcile(self, changed: list[Entry]) -> None:
        async with self._reconciling:
            await self._give_orders(changed)

    async def _give_orders(self, changed: list[Entry]) -> None:
        listed = [entry for entry in changed if entry.deleted or self._is_listed(entry.name)]
        unlisted = [entry for entry in changed if not entry.deleted and not self._is_listed(entry.name)]
        told = {id: handle.state.wanted for id, handle in self._handles.items()}
        orders = reconcile(listed, told)
        orders += [Halt(entry.datasource) for entry in unlisted if told.get(entry.datasource) is not None]
        await self._make_handles(orders, {entry.datasource: entry for entry in changed})
        for order in orders:
            handle = self._handles.get(order.datasource)
            if handle is None:
                continue
            match order:
                case RunOrder(wanted=wanted):
                    self._want(handle, wanted)
                case Halt():
                    self._want(handle, None)
                case Forget():
                    handle.forget = True
                    self._want(handle, None)

    async def _make_handles(self, orders: list[Any], entries: dict[UUID, Entry]) -> None:
        new = [o.datasource for o in orders if isinstance(o, RunOrder) and o.datasource not in self._handles]
        if not new:
            return
        for datasource, ids in (await self._rows.of_datasources(new)).items():
            name = stream_name(entries[datasource].name, 0)
            bound = structlog.get_logger("headgate.stream").bind(
                datasource=entries[datasource].name, stream=name, stream_id=ids[0]
            )
            self._handles.setdefault(datasource, Handle(ids[0], datasource, name, bound))

    async def _try_free(self) -> None:
        """Streams that another node had and nobody has now."""
        waiting = {h.stream: h for h in self._handles.values() if isinstance(h.state.phase, lifecycle.Waiting)}
        if waiting:
            for stream in await self._rows.free(list(waiting)):
                phase = waiting[stream].state.phase
                if isinstance(phase, lifecycle.Waiting):
                    self._dispatch(waiting[stream], lifecycle.Tick(phase.until_s))

    async def _checkpoint_loop(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            due = [h for h in self._handles.values() if h.epoch is not None and h.held.n > h.saved_n]
            await asyncio.gather(*(self._checkpoint(handle) for handle in due))

    async def _checkpoint(self, handle: Handle) -> None:
        """Save where a stream stands. A stream that is not ours any more loses its run."""
        epoch, held = handle.epoch, handle.held
        if epoch is None or held.n <= handle.saved_n:
            return
        try:
            step = await self._ownership.submit(
                handle.stream, streams.Checkpoint(self.node, epoch, held.n, held.position)
            )
        except (StoreError, NotFound):
            return
        if isinstance(step.reply, streams.Fenced):
            self._lose(handle, epoch)
        else:
            handle.saved_n = max(handle.saved_n, held.n)

    # The machine and its effects.

    def _want(self, handle: Handle, wanted: Wanted | None) -> None:
        self._dispatch(handle, lifecycle.Want(wanted, boot_s()))

    def _dispatch(self, handle: Handle, event: lifecycle.Event) -> None:
        if self._over:
            return
        before = handle.state
        step = lifecycle.step(before, event)
        handle.state = step.worker
        for effect in step.effects:
            self._perform(handle, effect)
        self._set_timer(handle)
        if step.worker.phase != before.phase:
            self._transition(handle)
        if handle.forget and isinstance(step.worker.phase, lifecycle.Idle):
            self._handles.pop(handle.datasource, None)

    def _transition(self, handle: Handle) -> None:
        status, detail = lifecycle.status(handle.state)
        handle.log.debug("worker", status=status, detail=detail)
        self._reporter.changed(handle)

    def _set_timer(self, handle: Handle) -> None:
        if handle.timer is not None:
            handle.timer.cancel()
            handle.timer = None
        due_s = lifecycle.due_s(handle.state)
        if due_s is not None:
            loop = asyncio.get_running_loop()
            handle.timer = loop.call_later(max(0.0, due_s - boot_s()) + 0.001, self._tick, handle)

    def _tick(self, handle: Handle) -> None:
        self._dispatch(handle, lifecycle.Tick(boot_s()))

    def _perform(self, handle: Handle, effect: lifecycle.Effect) -> None:
        match effect:
            case lifecycle.AcquireStream(run=run, version=version):
                self._spawn(self._acquire(handle, run, version))
            case lifecycle.Launch(run=run):
                self._launch(handle, run)
            case lifecycle.Drain():
                if handle.run is not None:
                    handle.run.drain()
            case lifecycle.Cancel():
                if handle.task is not None:
                    handle.task.cancel()
            case lifecycle.Abandon():
                self._abandon(handle)
            case lifecycle.ReleaseStream():
                self._spawn(self._release(handle))
            case lifecycle.CheckVersion(version=version):
                self._spawn(self._check(handle, version))
            case lifecycle.Prove(version=version):
                self._reporter.proved(handle, version)
            case lifecycle.Reject(version=version, failure=failure):
                handle.log.error("version rejected", version=version, cause=failure.cause, error=failure.message)
                reason = f"{failure.cause}: {failure.message}"
                self._spawn(self._persist(lambda: self._registry.reject(handle.datasource, version, reason)))
            case lifecycle.Report(type=type, failure=failure):
                self._reporter.note(handle, type, failure)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _persist(self, write: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Write a decision down, however long the database is away."""
        while True:
            try:
                return await write()
            except StoreError:
                await asyncio.sleep(RETRY_S)

    async def _acquire(self, handle: Handle, run: int, version: int) -> None:
        """Read the configuration, then claim or regrant the stream."""
        label_current(RunLabel(handle.datasource, handle.name))
        async with self._starting:
            try:
                config = await self._registry.get_datasource_config(handle.datasource, version)
                command = streams.Acquire(
                    self.node, new_id(), version, config.prepared.source_identity, config.prepared.sink_identity
                )
                step = await self._ownership.submit(handle.stream, command)
            except Exception as error:
                if _is_bug(error):
                    handle.log.exception("the stream could not be acquired")
                self._fail(handle, run, error)
                return
        now_s = boot_s()
        match step.reply:
            case streams.Granted(starts_anew=starts_anew):
                handle.config, handle.epoch = config, step.stream.epoch
                handle.held, handle.saved_n = step.stream.held, step.stream.held.n
                if starts_anew:
                    handle.log.warning("another source: its position begins at nothing")
                    self._reporter.event(handle, "position_reset", version=version)
                self._dispatch(handle, lifecycle.Granted(run, now_s, starts_anew))
            case streams.IdentityChanged():
                text = "this version reads another source than the stream's position is from; publish it to begin anew"
                self._fail(handle, run, ConfigError(text))
            case _:
                self._dispatch(handle, lifecycle.Denied(run, now_s))

    def _launch(self, handle: Handle, run: int) -> None:
        config, epoch = handle.config, handle.epoch
        assert config is not None
        assert epoch is not None
        grant = Grant(self._installation, handle.stream, handle.name, epoch, handle.held, self._trust_left_s)
        handle.run = Run(
            config.prepared,
            self._context(handle, run=run, epoch=epoch, version=config.version),
            grant,
            handle.stats,
            on_opened=lambda held: self._opened(handle, run, held),
            on_commit=lambda held, written: self._committed(handle, run, held, written),
        )
        handle.run_number = run
        handle.config = None
        handle.task = self._spawn(self._drive(handle, handle.run, run))

    def _context(self, handle: Handle, **labels: Any) -> Context:
        bound = handle.log.bind(**labels)
        inbox = self._inboxes.of(handle.datasource)
        return Context(handle.name, bound, unix_s, self._shared, inbox)

    async def _drive(self, handle: Handle, run: Run, number: int) -> None:
        """Run to the end, save what was reached, and tell the machine how it ended."""
        label_current(RunLabel(handle.datasource, handle.name))
        epoch = handle.epoch
        assert epoch is not None
        try:
            finished = await run.run()
        except Fenced as error:
            handle.log.warning("fenced", error=error.message)
            self._lose(handle, epoch)
            return
        except asyncio.CancelledError:
            # Cancelled by its deadline, or by the end of the node: what it had committed still counts.
            await self._last_checkpoint(handle, run)
            self._dispatch(handle, lifecycle.Ended(number, boot_s()))
            raise
        except Exception as error:
            if _is_bug(error):
                handle.log.exception("the run failed")
            await self._last_checkpoint(handle, run)
            self._fail(handle, number, error)
            return
        await self._last_checkpoint(handle, run)
        self._dispatch(handle, lifecycle.Ended(number, boot_s(), finished))

    async def _last_checkpoint(self, handle: Handle, run: Run) -> None:
        """What a run had committed when it ended, unless it was abandoned before. Not at any price."""
        if handle.run is run:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_CHECKPOINT_S):
                    await self._checkpoint(handle)

    def _opened(self, handle: Handle, run: int, held: Held) -> None:
        if handle.run is None or handle.run_number != run:
            return  # Abandoned, and still at it: nothing of it counts.
        handle.held = held
        self._dispatch(handle, lifecycle.Opened(run, boot_s()))

    def _committed(self, handle: Handle, run: int, held: Held, written: int) -> None:
        if handle.run is None or handle.run_number != run:
            return
        handle.held = held
        phase = handle.state.phase
        # A batch of which the mapping kept nothing shows nothing about the sink.
        if written and isinstance(phase, lifecycle.Running) and (not phase.proved or handle.state.attempt):
            self._dispatch(handle, lifecycle.Committed(run))

    def _fail(self, handle: Handle, run: int, error: BaseException) -> None:
        failure = worker.failure_of(error)
        self._dispatch(handle, lifecycle.Failed(run, boot_s(), failure, random.random()))

    def _lose(self, handle: Handle, epoch: int) -> None:
        """A grant of ours has ended without our doing."""
        if handle.epoch == epoch:
            handle.epoch = None
            if handle.run is not None:
                handle.run.abandoned = True
            self._dispatch(handle, lifecycle.Lost(boot_s()))

    def _abandon(self, handle: Handle) -> None:
        if handle.run is not None:
            handle.run.abandoned = True
        if handle.task is not None:
            handle.task.cancel()
        epoch, handle.epoch = handle.epoch, None
        handle.run = handle.task = None
        handle.log.warning("abandoned: the run did not end in time")
        self._spawn(self._revoke(handle, epoch))

    async def _revoke(self, handle: Handle, epoch: int | None) -> None:
        with contextlib.suppress(NotFound):
            await self._persist_command(handle, streams.Revoke(self.node, epoch))
        self._report_anew(handle)

    async def _release(self, handle: Handle) -> None:
        epoch, held = handle.epoch, handle.held
        # Without an epoch it may still be ours, if an acquisition was committed and its answer lost.
        command: streams.Command = streams.Revoke(self.node)
        if epoch is not None:
            command = streams.Release(self.node, epoch, held.n, held.position)
        with contextlib.suppress(NotFound):
            await self._persist_command(handle, command)
        if handle.epoch == epoch:
            handle.epoch = None
        self._report_anew(handle)

    def _report_anew(self, handle: Handle) -> None:
        """What was reported while the stream was changing hands may have been dropped."""
        handle.reported = ()
        self._reporter.changed(handle)

    async def _persist_command(self, handle: Handle, command: streams.Command) -> None:
        """Until it is done, or until another run has begun, which has a grant of its own."""
        runs = handle.state.runs
        while handle.state.runs == runs:
            try:
                await self._ownership.submit(handle.stream, command)
                return
            except StoreError:
                await asyncio.sleep(RETRY_S)

    async def _check(self, handle: Handle, version: int) -> None:
        label_current(RunLabel(handle.datasource, handle.name))
        failure = None
        try:
            config = await self._registry.get_datasource_config(handle.datasource, version)
            await worker.check(config.prepared, self._context(handle, version=version))
        except Exception as error:
            failure = worker.failure_of(error)
        self._dispatch(handle, lifecycle.Checked(version, boot_s(), failure, random.random()))

    # From outside.

    def lose_all(self) -> None:
        """This incarnation has ended: nothing here is ours any more."""
        self._stopping = self._over = True
        for handle in list(self._handles.values()):
            handle.epoch = None
            if handle.run is not None:
                handle.run.abandoned = True
            if handle.timer is not None:
                handle.timer.cancel()
            if handle.task is not None:
                handle.task.cancel()
        for task in list(self._tasks):
            task.cancel()

    async def stop(self) -> None:
        """Drain every stream and give it back; over within the stop's deadline."""
        self._stopping = True
        for handle in list(self._handles.values()):
            self._want(handle, None)
        deadline_s = boot_s() + lifecycle.STOP_S + 1.0
        while boot_s() < deadline_s and any(map(_is_busy, self._handles.values())):
            await asyncio.sleep(0.02)  # Once in a node's life; a signal would be one more thing to keep.
        self._over = True
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(2.0):
                await self._reporter.write(set(self._handles.values()))

    def handles(self) -> list[Handle]:
        """All streams here, for figures."""
        return list(self._handles.values())


def _is_busy(handle: Handle) -> bool:
    return not isinstance(handle.state.phase, lifecycle.Idle) or handle.epoch is not None


def _is_bug(error: BaseException) -> bool:
    """Whether a person should see where it happened."""
    return worker.failure_of(error).cause == Cause.BUG
