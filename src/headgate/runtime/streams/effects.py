"""What a worker's machine asks for, done: acquire, launch, drain, abandon, release, check.

Each effect is one method. What it learns goes back as a fact, and what it tells the registry was decided by
`core.lifecycle.holding`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, assert_never
from uuid import UUID

from headgate.clock import boot_s, unix_s
from headgate.connectors.api import Context, Grant, Progress
from headgate.core import lifecycle, streams
from headgate.core.figures import LastFailure
from headgate.core.lifecycle import holding
from headgate.datasources.prepared import Prepared
from headgate.datasources.registry import Config, Registry
from headgate.errors import Cause, ConfigError, Fenced, NotFound, StoreError
from headgate.ids import new_id
from headgate.runtime.cluster.beat import RunLabel, label_current
from headgate.runtime.inbox import InboxHub
from headgate.runtime.streams import sides
from headgate.runtime.streams.batches import Written
from headgate.runtime.streams.checkpoints import Checkpoints
from headgate.runtime.streams.handle import Handle
from headgate.runtime.streams.letters import Desk
from headgate.runtime.streams.lookout import Lookout
from headgate.runtime.streams.ownership import Ownership
from headgate.runtime.streams.reporter import Reporter
from headgate.runtime.streams.run import Run
from headgate.runtime.streams.shared import SharedThings
from headgate.runtime.streams.sides import Awaited
from headgate.runtime.taps.points import Points
from headgate.spans import spans
from headgate.store.letters import Letters

RETRY_S = 1.0
STARTING = 50  # Streams acquired at a time: a thousand that start together must not hold up the loop.


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What effects work with."""

    node: UUID
    installation: UUID
    registry: Registry
    letters: Letters
    ownership: Ownership
    reporter: Reporter
    checkpoints: Checkpoints
    lookout: Lookout
    inboxes: InboxHub
    taps: Points
    trust_left_s: Callable[[], float]
    is_draining: Callable[[], bool]
    dispatch: Callable[[Handle, lifecycle.Event], None]
    give_back: Callable[[Handle], None]
    lose: Callable[[Handle, int], None]
    remove: Callable[[Handle], None]
    is_current: Callable[[Handle], bool]  # Whether no other worker of this node has the stream.
    memory_mb: int  # That the process of a connector may take.


class Effects:
    """Performs the effects of all workers of one incarnation."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._shared = SharedThings()
        self._starting = asyncio.Semaphore(STARTING)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.revoking: set[str] = set()  # Streams that were abandoned, and are not free yet.

    def perform(self, handle: Handle, effect: lifecycle.Effect) -> None:
        """Begin what the machine asks for."""
        around = self._around
        match effect:
            case lifecycle.AcquireStream(run=run, version=version):
                self.spawn(self._acquire(handle, run, version))
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
                phase, is_draining = handle.state.phase, around.is_draining()
                command = holding.release(handle.holding, around.node, phase, outcome, is_draining=is_draining)
                self.spawn(self._release(handle, command))
            case lifecycle.CheckVersion(version=version):
                self.spawn(self._check(handle, version))
            case lifecycle.Prove(version=version):
                around.reporter.proved(handle, version)
            case lifecycle.RejectVersion(version=version, failure=failure):
                handle.log.error("version rejected", version=version, cause=failure.cause, error=failure.message)
                reason = f"{failure.cause}: {failure.message}"
                self.spawn(self._persist(lambda: around.registry.reject(handle.datasource, version, reason)))
            case lifecycle.Report(type=type, failure=failure):
                around.reporter.note(handle, type, failure)
            case _:
                assert_never(effect)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have this done; `cancel_all` ends it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel_all(self) -> None:
        """End everything that is under way."""
        for task in list(self._tasks):
            task.cancel()

    async def ended(self) -> None:
        """Wait until nothing is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _persist(self, write: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Write a decision down, however long the database is away."""
        while True:
            try:
                return await write()
            except StoreError:
                await asyncio.sleep(RETRY_S)

    # Runs.

    async def _acquire(self, handle: Handle, run: int, version: int) -> None:
        """Read the configuration, then claim or regrant the stream."""
        label_current(RunLabel(handle.datasource, handle.name))
        around = self._around
        marks: tuple[str | None, str | None] = (None, None)
        began_at_s = boot_s()
        try:
            while True:
                async with self._starting:
                    began_at_s = boot_s()
                    config = await around.registry.get_datasource_config(handle.datasource, version)
                    await self._catch_up(handle)
                    if not holding.is_awaited(handle.state.phase, run):
                        return  # Abandoned meanwhile: what it would get is another run's by now.
                    command = self._acquisition(handle, config, version, marks)
                    step = await around.ownership.submit(handle.stream, command)
                if not isinstance(step.reply, streams.IdentityUnclear):
                    break
                marks = await sides.marks(config.prepared, self._context(handle, version=version))
        except Exception as error:
            self._show_bug(handle, error, "the stream could not be acquired")
            self._fail(handle, run, error, began_at_s, sides.awaited_of(None, None, error))
            return
        match step.reply:
            case streams.Granted(resets_position=resets_position):
                handle.config = config
                handle.holding = holding.acquired(handle.holding, step.stream.epoch, step.stream.progress)
                handle.marks = (step.stream.source_mark, step.stream.sink_mark)
                if resets_position:
                    handle.log.warning("this version reads another source: the position is reset")
                    around.reporter.event(handle, "position_reset", version=version)
                around.dispatch(handle, lifecycle.Acquired(run, boot_s(), resets_position))
            case streams.IdentityChanged():
                text = (
                    "this version reads another source, for which the stream has no position; publish it to start over"
                )
                self._fail(handle, run, ConfigError(text), began_at_s)
            case _:
                around.dispatch(handle, lifecycle.AcquireDenied(run, boot_s()))
                if handle.pusher is not None:
                    handle.pusher.refused("owned")

    def _acquisition(
        self, handle: Handle, config: Config, version: int, marks: tuple[str | None, str | None]
    ) -> streams.Acquire:
        prepared = config.prepared
        return streams.Acquire(
            self._around.node,
            new_id(),
            version,
            prepared.source_identity,
            prepared.sink_identity,
            handle.pusher is not None,
            prepared.sink_kind.transactional,
            prepared.source_marks(marks[0]),
            prepared.sink_marks(marks[1]),
        )

    async def _catch_up(self, handle: Handle) -> None:
        """Save what the last run had committed while the database was away: the next one goes on behind it."""
        command = holding.checkpoint(handle.holding, self._around.node)
        if command is not None:
            await self._around.ownership.submit(handle.stream, command)

    def _launch(self, handle: Handle, run: int) -> None:
        config, held, around = handle.config, handle.holding, self._around
        assert config is not None
        assert held.epoch is not None
        grant = Grant(
            around.installation,
            handle.datasource,
            handle.stream,
            handle.name,
            held.epoch,
            held.progress,
            around.trust_left_s,
        )
        handle.run = Run(
            config.prepared,
            config.version,
            self._context(handle, run=run, epoch=held.epoch, version=config.version),
            grant,
            handle.stats,
            self._desk(handle, held.epoch),
            on_opened=partial(self._opened, handle, run, config.prepared),
            on_commit=partial(self._committed, handle, run),
            share=handle.share,
            is_settled=held.settled,
            taps=around.taps,
        )
        handle.run_number = run
        handle.config = None
        handle.task = self.spawn(self._drive_and_forget(handle, handle.run, run, held.epoch))

    def _desk(self, handle: Handle, epoch: int) -> Desk:
        around = self._around
        ids = (around.node, around.installation, handle.datasource, handle.stream)
        return Desk(around.letters, around.registry, *ids, epoch)

    def _context(self, handle: Handle, **labels: Any) -> Context:
        bound = handle.log.bind(**labels)
        inbox = self._around.inboxes.of(handle.datasource)
        feed = handle.pusher.feed if handle.pusher is not None else None
        note = partial(self._around.reporter.event, handle)
        memory_mb = self._around.memory_mb
        return Context(handle.name, bound, unix_s, self._shared, inbox, feed, note=note, memory_mb=memory_mb)

    async def _drive_and_forget(self, handle: Handle, run: Run, number: int, epoch: int) -> None:
        """A run refers to its handle: while the handle refers to a run that has ended, neither would be freed."""
        named = handle.name.partition(":")[0]
        span = handle.span = spans.begin("run", datasource=named, stream=handle.name, run=number, epoch=epoch)
        try:
            await self._drive(handle, run, number, epoch)
        finally:
            span.end()
            if handle.run is run:
                handle.run = handle.task = None

    async def _drive(self, handle: Handle, run: Run, number: int, epoch: int) -> None:
        """Run to the end, save what was reached, and tell the machine how it ended."""
        label_current(RunLabel(handle.datasource, handle.name))
        around, began_at_s = self._around, boot_s()
        try:
            finished = await run.run()
        except Fenced as error:
            if run.progress is None and await self._is_ours(handle, epoch):
                self._fail(handle, number, _ahead(error), began_at_s)
                return
            handle.log.warning("fenced", error=error.message)
            handle.span.fail("fenced")
            around.lose(handle, epoch)
            return
        except asyncio.CancelledError:
            # Cancelled by its deadline, or by the end of the node: what it had committed still counts.
            await self._last_checkpoint(handle, run)
            around.dispatch(handle, lifecycle.Ended(number, boot_s()))
            raise
        except Exception as error:
            self._show_bug(handle, error, "the run failed")
            await self._last_checkpoint(handle, run)
            self._fail(handle, number, error, began_at_s, run.awaited_after(error))
            return
        phase = handle.state.phase
        if isinstance(phase, lifecycle.Draining) and phase.then is None:
            self._take_over(handle, run)  # The release brings it.
        else:
            await self._last_checkpoint(handle, run)
        around.dispatch(handle, lifecycle.Ended(number, boot_s(), finished))

    async def _is_ours(self, handle: Handle, epoch: int) -> bool:
        """Whether the registry stands by its grant. A checkpoint of nothing changes nothing."""
        with contextlib.suppress(StoreError, NotFound):
            command = streams.Checkpoint(self._around.node, epoch, 0, None)
            return isinstance((await self._around.ownership.submit(handle.stream, command)).reply, streams.Done)
        return False

    async def _last_checkpoint(self, handle: Handle, run: Run) -> None:
        """Save what a run had committed when it ended."""
        if self._take_over(handle, run):
            await self._around.checkpoints.save_last(handle)

    def _take_over(self, handle: Handle, run: Run) -> bool:
        """Note how far a run came, unless it was abandoned before."""
        if handle.run is not run:
            return False
        handle.holding = holding.ended(handle.holding, run.progress, run.is_settled)
        self._around.checkpoints.moved(handle)
        return True

    def _opened(self, handle: Handle, run: int, prepared: Prepared, progress: Progress) -> None:
        if handle.run is None or handle.run_number != run:
            return  # It was abandoned and still runs: nothing that it does counts.
        handle.holding = holding.opened(handle.holding, progress)
        handle.stats.opened(progress.totals)
        self._around.checkpoints.moved(handle)
        self._around.lookout.works(handle.run.targets)
        self._around.dispatch(handle, lifecycle.Opened(run, boot_s()))
        if handle.pusher is not None and handle.holding.epoch is not None:
            handle.pusher.opened(handle.holding.epoch, progress)
        if prepared.source_kind.is_marked or prepared.sink_kind.is_marked:
            self.spawn(self._note_marks(handle, prepared, handle.holding.epoch))

    async def _note_marks(self, handle: Handle, prepared: Prepared, epoch: int | None) -> None:
        """Have the registry know the data by what they say that they are, before their address changes. If this fails,
        the next run does it."""
        try:
            said = await sides.marks(prepared, self._context(handle))
            marks = prepared.source_marks(said[0]).mark or None, prepared.sink_marks(said[1]).mark or None
            if epoch is not None and any(new not in (None, old) for new, old in zip(marks, handle.marks, strict=True)):
                await self._around.ownership.submit(handle.stream, streams.Mark(self._around.node, epoch, *marks))
        except Exception as error:
            handle.log.debug("the marks are not known", error=sides.failure_of(error).message)

    def _committed(self, handle: Handle, run: int, progress: Progress, written: Written | None) -> None:
        if handle.run is None or handle.run_number != run:
            return
        handle.holding = holding.reached(handle.holding, progress)
        self._around.lookout.works(handle.run.targets)
        self._around.checkpoints.moved(handle)
        self._around.reporter.moved(handle)
        if spans.is_on and written is not None:
            bad = len(written.culprits)
            handle.span.part("batch", handle.stats.last_write_s, written=written.records, dead_lettered=bad)
        phase = handle.state.phase
        if written is not None and written.culprits:
            self._around.reporter.culprits(handle, written)
        # A batch of which nothing was written shows nothing about the sink.
        if (
            written is not None
            and written.records
            and isinstance(phase, lifecycle.Running)
            and (not phase.proved or handle.state.attempt)
        ):
            self._around.dispatch(handle, lifecycle.Committed(run))
        elif written is not None and written.culprits and isinstance(phase, lifecycle.Running) and not phase.proved:
            self._around.dispatch(handle, lifecycle.NoneWritten(run, boot_s()))
        if handle.pusher is not None:
            handle.pusher.committed()

    def _fail(
        self, handle: Handle, run: int, error: BaseException, began_at_s: float, awaited: Awaited | None = None
    ) -> None:
        failure, before, is_watched = sides.failure_of(error), handle.state, False
        handle.span.fail(str(failure.cause))
        if awaited is not None and not isinstance(before.phase, lifecycle.BackingOff):  # Else it is an older run's.
            handle.awaited, failure = awaited, replace(failure, awaits=awaited.key)
            is_watched = self._around.lookout.is_away(awaited.key)
        failed = lifecycle.Failed(run, boot_s(), failure, random.random(), began_at_s, is_watched)
        self._around.dispatch(handle, failed)
        if handle.state is not before:  # An older run's failure changes nothing.
            handle.stats.fails()
            handle.last_failure = LastFailure(str(failure.cause), failure.message)
        if handle.pusher is not None and (handle.pusher.is_brief or not handle.holding.is_opened):
            # The client waits instead of this node: it keeps its records, and asks again.
            handle.pusher.refused("not_ready")
            self._around.give_back(handle)

    def _show_bug(self, handle: Handle, error: Exception, text: str) -> None:
        """People should see where it happened, once."""
        failure = sides.failure_of(error)
        if failure.cause is Cause.BUG and self._around.reporter.is_new(handle, failure):
            handle.log.error(text, exc_info=error)

    async def _check(self, handle: Handle, version: int) -> None:
        label_current(RunLabel(handle.datasource, handle.name))
        failure = None
        try:
            config = await self._around.registry.get_datasource_config(handle.datasource, version)
            await sides.check(config.prepared, self._context(handle, version=version))
        except Exception as error:
            failure = sides.failure_of(error)
        self._around.dispatch(handle, lifecycle.Checked(version, boot_s(), failure, random.random()))

    # Ends.

    def _abandon(self, handle: Handle) -> None:
        if handle.run is not None:
            handle.run.abandoned = True
        if handle.task is not None:
            handle.task.cancel()
        epoch, handle.holding = handle.holding.epoch, holding.abandoned(handle.holding)
        handle.run = handle.task = None
        handle.log.warning("abandoned: the run did not end in time")
        self.spawn(self._revoke(handle, epoch))

    async def _revoke(self, handle: Handle, epoch: int | None) -> None:
        self.revoking.add(handle.name)
        await self._persist_command(handle, holding.revocation(self._around.node, handle.state.phase, epoch))
        self.revoking.discard(handle.name)
        if holding.is_left(handle.state.phase):
            self._around.remove(handle)
            if handle.pusher is not None:
                handle.pusher.released("stale")
        self._around.registry.waker.wake("streams")

    async def _release(self, handle: Handle, command: streams.Release | streams.Revoke) -> None:
        """Give the stream back, and forget it: another grant begins with a new worker."""
        runs = handle.state.runs
        reply = await self._persist_command(handle, command)
        if holding.is_to_revoke(handle.state, runs, reply):
            reply = await self._persist_command(handle, streams.Revoke(self._around.node))
        epoch = command.epoch if isinstance(command, streams.Release) else None
        handle.holding = holding.released(handle.holding, epoch)
        if holding.is_over(handle.state, runs):
            self._around.remove(handle)
            if handle.pusher is not None:
                handle.pusher.released(reply.why if isinstance(reply, streams.Fenced) else None)
        self._around.registry.waker.wake("streams")

    async def _persist_command(self, handle: Handle, command: streams.Command) -> streams.Reply | None:
        """Try until it is answered, or until another run or worker has begun, which has its own grant."""
        runs = handle.state.runs
        while handle.state.runs == runs and self._around.is_current(handle):
            try:
                return (await self._around.ownership.submit(handle.stream, command)).reply
            except NotFound:
                return None
            except StoreError:
                await asyncio.sleep(RETRY_S)
        return None

    async def decline(self, stream: UUID, offer: holding.Declined) -> None:
        """Give back a grant that no run comes of. If the database is away, the next look finds it again."""
        with contextlib.suppress(StoreError, NotFound):
            await self._around.ownership.submit(stream, holding.decline(self._around.node, offer))


def _ahead(error: Fenced) -> ConfigError:
    """A sink has seen a higher epoch than its registry ever granted."""
    return ConfigError(
        f"{error.message}, which this registry never granted: it went back in time, or is a copy",
        hint="headgate installation adopt, or headgate installation fork",
    )
