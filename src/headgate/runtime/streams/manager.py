"""The worker manager: runs the streams that this node has been granted, or that its push sessions claim.

One small loop for each concern. `look` asks what was granted and what the registry changed, and tells each worker what
is wanted of it; each `Want` and each fact goes through `_dispatch`, which steps the pure machine in `core.lifecycle`
and performs its effects; `checkpoint` saves positions once a second, all in one statement; the reporter writes states
and events. A worker exists as long as its grant: streams of other nodes cost nothing here.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import structlog

from headgate.clock import boot_s, unix_s
from headgate.connectors.api import Context, Grant, Progress
from headgate.core import lifecycle, streams
from headgate.core.lifecycle import Wanted
from headgate.core.push.notifier import Reason
from headgate.core.reconcile import Entry, Place, wanted_here
from headgate.datasources.registry import Registry
from headgate.errors import Cause, ConfigError, Fenced, NotFound, StoreError
from headgate.ids import new_id, stream_name
from headgate.runtime.cluster.beat import RunLabel, label_current
from headgate.runtime.forever import forever
from headgate.runtime.inbox import InboxHub
from headgate.runtime.streams import run as worker
from headgate.runtime.streams.handle import Handle, Pusher
from headgate.runtime.streams.ownership import Ownership
from headgate.runtime.streams.parts import Share
from headgate.runtime.streams.reporter import Reporter
from headgate.runtime.streams.run import Run
from headgate.runtime.streams.shared import SharedThings
from headgate.store.streams import Offer, Streams

POLL_S = 0.5  # Finds what a wake-up missed.
CHECKPOINT_S = 1.0
RETRY_S = 1.0
STARTING = 50  # Streams acquired at a time: a thousand that start together must not hold up the loop.
LAST_CHECKPOINT_S = 2.0

ELSEWHERE = lifecycle.Idle("elsewhere")

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
        self._handles: dict[UUID, Handle] = {}  # By stream.
        self._declining: set[UUID] = set()
        self._revoking: set[str] = set()  # Abandoned, and not free yet.
        self._looking = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._wake = asyncio.Event()
        self._reporter = Reporter(registry, node, self._handles.values)
        self._starting = asyncio.Semaphore(STARTING)
        self._draining = False
        self.is_stopping = False
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
                await self.look()
            except StoreError:
                await asyncio.sleep(RETRY_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._wake.wait()

    async def look(self) -> None:
        """Bring everything here in line with the registry and with what was granted."""
        async with self._looking:
            # Grants are read first: whatever they were granted for is then in the registry's answer.
            offers = await self._rows.granted(self.node)
            changed = {entry.datasource for entry in await self._registry.sync()}
        for handle in self.handles():
            if handle.datasource in changed:
                self._want(handle)
        for offer in offers:
            self._take(offer)
        self.synced.set()

    def reconsider(self) -> None:
        """Tell every worker anew what is wanted: what this node adds to it has changed."""
        for handle in self.handles():
            self._want(handle)

    def drain(self, draining: bool) -> None:
        """Give all streams back and take no more; or be ready for some again."""
        if self._draining != (draining or self.is_stopping):
            self._draining = draining or self.is_stopping
            self.reconsider()

    def _wanted(self, entry: Entry | None, *, is_pushed: bool, index: int = 0) -> Wanted | None:
        lists = entry is not None and self._is_listed(entry.name)
        return wanted_here(entry, Place(self._draining, lists), is_pushed=is_pushed, index=index)

    # Streams come and go.

    def _take(self, offer: Offer) -> None:
        """Begin to run a stream that was granted to us, or decline it; or step down from one that we have."""
        handle = self._handles.get(offer.stream)
        if offer.steps_down and handle is not None and (handle.last_epoch or 0) <= offer.epoch:
            self.give_back(handle)
        if handle is not None or offer.stream in self._declining:
            return  # An older worker is about to end; the next look finds the offer again.
        entry = self._registry.entry_of(offer.datasource)
        wanted = self._wanted(entry, is_pushed=False, index=offer.index)
        if entry is None or offer.steps_down or wanted is None:
            self._declining.add(offer.stream)
            self._spawn(self._decline(offer, entry))
            return
        handle = self._add(offer.stream, entry, stream_name(entry.name, offer.index))
        handle.epoch = handle.last_epoch = offer.epoch
        handle.index, handle.dealt, handle.was_settled = offer.index, offer.dealt, offer.is_settled
        self._want(handle)

    async def _decline(self, offer: Offer, entry: Entry | None) -> None:
        release = streams.Release(self.node, offer.epoch, 0, None, hands_over=offer.steps_down or self._draining)
        if entry is not None and entry.is_to_run and not self._is_listed(entry.name):
            reason = "the registry file of this node does not name the datasource"
            release = replace(release, outcome="unable", wanted_key=entry.wanted_key_of(offer.index), reason=reason)
        with contextlib.suppress(StoreError, NotFound):
            await self._ownership.submit(offer.stream, release)
        self._declining.discard(offer.stream)

    def claim(self, stream: UUID, datasource: UUID, label: str, pusher: Pusher) -> Handle | Reason:
        """Begin to run a stream that a program pushes through this node; or say why not."""
        entry = self._registry.entry_of(datasource)
        if stream in self._handles:
            return "busy"
        if entry is None or self._wanted(entry, is_pushed=True) is None:
            return "draining" if self._draining else "not_ready"
        handle = self._add(stream, entry, stream_name(entry.name, label))
        handle.pusher = pusher
        self._want(handle)
        return handle

    def give_back(self, handle: Handle) -> None:
        """Its session is done with it, or another node is to have it: drain and release."""
        handle.is_given_back = True
        self._want(handle)

    def _add(self, stream: UUID, entry: Entry, name: str) -> Handle:
        bound = structlog.get_logger("headgate.stream").bind(datasource=entry.name, stream=name, stream_id=stream)
        handle = self._handles[stream] = Handle(stream, entry.datasource, name, bound)
        return handle

    def _remove(self, handle: Handle) -> None:
        if self._handles.get(handle.stream) is handle:
            del self._handles[handle.stream]
            self._wake.set()  # It may have been granted to us again meanwhile.

    async def _checkpoint_loop(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            await self.checkpoint(handle for handle in self._handles.values() if handle.pusher is None)

    async def checkpoint(self, handles: Iterable[Handle]) -> None:
        """Save where these streams stand. A stream that is not ours any more loses its run."""
        due = {
            h.stream: (h, h.epoch, h.progress)
            for h in handles
            if h.epoch is not None and h.progress.commits > h.saved.commits
        }
        commands = [
            (stream, streams.Checkpoint(self.node, epoch, progress.commits, progress.position))
            for stream, (_, epoch, progress) in due.items()
        ]
        for stream, reply in (await self._ownership.checkpoint(commands)).items():
            handle, epoch, progress = due[stream]
            if isinstance(reply, streams.Fenced):
                # Our own release may have been faster. And where nothing runs, the fence may be that of a newer grant
                # of ours whose answer was lost: the next acquisition tells.
                between = isinstance(handle.state.phase, lifecycle.Acquiring | lifecycle.BackingOff)
                if reply.why != "already_inactive" and not between:
                    self._lose(handle, epoch)
            elif progress.commits > handle.saved.commits:
                handle.saved = progress

    # The machine and its effects.

    def _want(self, handle: Handle) -> None:
        """Tell a worker what is wanted of it. Telling it twice changes nothing."""
        entry = self._registry.entry_of(handle.datasource)
        wanted = self._wanted(entry, is_pushed=handle.pusher is not None, index=handle.index)
        wanted = None if handle.is_given_back else wanted
        handle.wanted_key = entry.wanted_key_of(handle.index) if entry is not None else ""
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
        if step.worker.phase == ELSEWHERE:
            handle.epoch = None
            self._remove(handle)

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
            case lifecycle.ReleaseStream(outcome=outcome):
                phase = handle.state.phase
                reason = phase.failure.message if isinstance(phase, lifecycle.Quarantined) else ""
                self._spawn(self._release(handle, handle.epoch, outcome, reason))
            case lifecycle.CheckVersion(version=version):
                self._spawn(self._check(handle, version))
            case lifecycle.Prove(version=version):
                self._reporter.proved(handle, version)
            case lifecycle.RejectVersion(version=version, failure=failure):
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
                prepared, claims = config.prepared, handle.pusher is not None
                command = streams.Acquire(
                    self.node, new_id(), version, prepared.source_identity, prepared.sink_identity, claims
                )
                await self._catch_up(handle)
                step = await self._ownership.submit(handle.stream, command)
            except Exception as error:
                if _is_bug(error):
                    handle.log.exception("the stream could not be acquired")
                self._fail(handle, run, error)
                return
        now_s = boot_s()
        match step.reply:
            case streams.Granted(starts_anew=starts_anew):
                handle.config = config
                handle.epoch = handle.last_epoch = step.stream.epoch
                handle.progress = handle.saved = step.stream.progress
                if starts_anew:
                    handle.log.warning("another source: its position begins at nothing")
                    self._reporter.event(handle, "position_reset", version=version)
                self._dispatch(handle, lifecycle.Acquired(run, now_s, starts_anew))
            case streams.IdentityChanged():
                text = "this version reads another source than the stream's position is from; publish it to begin anew"
                self._fail(handle, run, ConfigError(text))
            case _:
                self._dispatch(handle, lifecycle.AcquireDenied(run, now_s))
                if handle.pusher is not None:
                    handle.pusher.refused("owned")

    async def _catch_up(self, handle: Handle) -> None:
        """Save what the last run had committed while the database was away: the next one goes on behind it."""
        epoch, progress = handle.epoch, handle.progress
        if epoch is not None and progress.commits > handle.saved.commits:
            await self._ownership.submit(
                handle.stream, streams.Checkpoint(self.node, epoch, progress.commits, progress.position)
            )

    def _launch(self, handle: Handle, run: int) -> None:
        config, epoch = handle.config, handle.epoch
        assert config is not None
        assert epoch is not None
        grant = Grant(self._installation, handle.stream, handle.name, epoch, handle.progress, self._trust_left_s)
        handle.run = Run(
            config.prepared,
            self._context(handle, run=run, epoch=epoch, version=config.version),
            grant,
            handle.stats,
            on_opened=lambda progress: self._opened(handle, run, progress),
            on_commit=lambda progress, written: self._committed(handle, run, progress, written),
            share=Share(handle.index, handle.dealt, partial(self._registry.list_parts, handle.datasource)),
            is_settled=handle.is_settled,
        )
        handle.run_number = run
        handle.config = None
        handle.task = self._spawn(self._drive(handle, handle.run, run))

    def _context(self, handle: Handle, **labels: Any) -> Context:
        bound = handle.log.bind(**labels)
        inbox = self._inboxes.of(handle.datasource)
        feed = handle.pusher.feed if handle.pusher is not None else None
        return Context(handle.name, bound, unix_s, self._shared, inbox, feed)

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
        phase = handle.state.phase
        if not (isinstance(phase, lifecycle.Draining) and phase.then is None):  # Else the release brings it.
            await self._last_checkpoint(handle, run)
        self._dispatch(handle, lifecycle.Ended(number, boot_s(), finished))

    async def _last_checkpoint(self, handle: Handle, run: Run) -> None:
        """What a run had committed when it ended, unless it was abandoned before. Not at any price."""
        if handle.run is run:
            if run.progress is not None and run.progress.commits >= handle.progress.commits:
                handle.progress = run.progress
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_CHECKPOINT_S):
                    await self.checkpoint([handle])

    def _opened(self, handle: Handle, run: int, progress: Progress) -> None:
        if handle.run is None or handle.run_number != run:
            return  # Abandoned, and still at it: nothing of it counts.
        handle.progress, handle.is_opened = progress, True
        self._dispatch(handle, lifecycle.Opened(run, boot_s()))
        if handle.pusher is not None and handle.epoch is not None:
            handle.pusher.opened(handle.epoch, progress)

    def _committed(self, handle: Handle, run: int, progress: Progress, written: int) -> None:
        if handle.run is None or handle.run_number != run:
            return
        handle.progress = progress
        phase = handle.state.phase
        # A batch of which the mapping kept nothing shows nothing about the sink.
        if written and isinstance(phase, lifecycle.Running) and (not phase.proved or handle.state.attempt):
            self._dispatch(handle, lifecycle.Committed(run))
        if handle.pusher is not None:
            handle.pusher.committed()

    def _fail(self, handle: Handle, run: int, error: BaseException) -> None:
        failure, before = worker.failure_of(error), handle.state
        self._dispatch(handle, lifecycle.Failed(run, boot_s(), failure, random.random()))
        handle.stats.errors += handle.state is not before  # An older run's failure changes nothing.
        if handle.pusher is not None and not handle.is_opened:
            # Its client can wait better than we: it keeps its records, and asks again.
            handle.pusher.refused("not_ready")
            self.give_back(handle)

    def _lose(self, handle: Handle, epoch: int) -> None:
        """A grant of ours has ended without our doing."""
        if handle.epoch == epoch:
            handle.epoch = None
            if handle.run is not None:
                handle.run.abandoned = True
            self._dispatch(handle, lifecycle.OwnershipLost(boot_s()))
            if handle.pusher is not None:
                handle.pusher.released("stale")

    def _abandon(self, handle: Handle) -> None:
        if handle.run is not None:
            handle.run.abandoned = True
        if handle.task is not None:
            handle.task.cancel()
        epoch, handle.epoch = handle.epoch, None
        handle.run = handle.task = None
        handle.was_settled = False
        handle.log.warning("abandoned: the run did not end in time")
        self._spawn(self._revoke(handle, epoch))

    async def _revoke(self, handle: Handle, epoch: int | None) -> None:
        self._revoking.add(handle.name)
        if isinstance(handle.state.phase, lifecycle.Idle):
            epoch = None  # Nothing follows, so whatever we still get, such as by an answer that was lost, goes as well.
        await self._persist_command(handle, streams.Revoke(self.node, epoch))
        self._revoking.discard(handle.name)
        if isinstance(handle.state.phase, lifecycle.Idle):  # Nothing follows: another grant begins with a new worker.
            self._remove(handle)
            if handle.pusher is not None:
                handle.pusher.released("stale")
        self._registry.waker.wake("streams")

    async def _release(self, handle: Handle, epoch: int | None, outcome: streams.Outcome, reason: str) -> None:
        """Give the stream back, and forget it: another grant begins with a new worker."""
        progress, runs = handle.progress, handle.state.runs
        command: streams.Command = streams.Revoke(self.node)
        if epoch is not None:
            goes_on = handle.pusher is None and outcome == "stopped" and (self._draining or handle.is_given_back)
            command = streams.Release(
                self.node,
                epoch,
                progress.commits,
                progress.position,
                outcome,
                handle.wanted_key,
                reason,
                goes_on,
                handle.is_settled,
            )
        reply = await self._persist_command(handle, command)
        if isinstance(reply, streams.Fenced) and reply.why == "stale":
            # It may still be ours, if an acquisition was committed and its answer lost.
            reply = await self._persist_command(handle, streams.Revoke(self.node))
        if handle.epoch == epoch:
            handle.epoch = None
        if handle.state.runs == runs and isinstance(handle.state.phase, lifecycle.Idle | lifecycle.Quarantined):
            self._remove(handle)
            if handle.pusher is not None:
                handle.pusher.released(reply.why if isinstance(reply, streams.Fenced) else None)
        self._registry.waker.wake("streams")

    async def _persist_command(self, handle: Handle, command: streams.Command) -> streams.Reply | None:
        """Until it is answered, or until another run has begun, which has a grant of its own."""
        runs = handle.state.runs
        while handle.state.runs == runs:
            try:
                return (await self._ownership.submit(handle.stream, command)).reply
            except NotFound:
                return None
            except StoreError:
                await asyncio.sleep(RETRY_S)
        return None

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
        self._draining = self._over = True
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
        """Drain every stream and give it back; over within the stop's deadline, and when there is no more trust."""
        self.is_stopping = True
        self.drain(True)
        deadline_s = boot_s() + lifecycle.STOP_S + 1.0
        while self._trust_left_s() > 0.0 and boot_s() < deadline_s and any(map(_is_busy, self._handles.values())):
            await asyncio.sleep(0.02)  # Once in a node's life; a signal would be one more thing to keep.
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(2.0):
                await self._reporter.flush()

    def kept(self) -> list[str]:
        """The streams that are still ours."""
        progress = {handle.name for handle in self._handles.values() if handle.epoch is not None}
        return sorted(progress | self._revoking)

    def handles(self) -> list[Handle]:
        """All streams here, for figures."""
        return list(self._handles.values())


def _is_busy(handle: Handle) -> bool:
    return not isinstance(handle.state.phase, lifecycle.Idle) or handle.epoch is not None


def _is_bug(error: BaseException) -> bool:
    """Whether a person should see where it happened."""
    return worker.failure_of(error).cause == Cause.BUG
