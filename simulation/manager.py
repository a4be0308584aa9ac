"""The streams of one incarnation: a thin shell around `core.lifecycle`, on virtual time.

It does what the worker manager of a real node does, in the same order: it asks what was granted and what the registry
says, tells each worker what is wanted of it, steps the machine and performs its effects on the simulated database and
sinks, saves positions once a second, and reports what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headgate.core import lifecycle, parts, streams
from headgate.core.lifecycle import Failure, Wanted
from headgate.core.parts import UNNAMED
from headgate.core.push.notifier import Reason
from headgate.core.reconcile import Entry, Place, wanted_here
from headgate.core.streams import Progress
from headgate.errors import Cause
from simulation.handle import Handle, Pusher
from simulation.kernel import Cancelled, Signal, Task
from simulation.network import Away
from simulation.ownership import Ownership
from simulation.push import PushHost
from simulation.run import Failed, FencedOff, Run
from simulation.sources import PartsSource, Source
from simulation.store import Offer

if TYPE_CHECKING:
    from simulation.node import Node

POLL_S = 0.5
CHECKPOINT_S = 1.0
RETRY_S = 1.0
LAST_CHECKPOINT_S = 2.0

ELSEWHERE = lifecycle.Idle("elsewhere")


class Manager:
    """All streams of one incarnation."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.world = node.world
        self.id = node.incarnation
        self.handles: dict[UUID, Handle] = {}
        self.is_over = False
        self.is_draining = False
        self.changed = Signal()
        self.push = PushHost(self)
        self._process = node.process
        self._ownership = Ownership(node.store, node.incarnation)
        self._entries: Mapping[UUID, Entry] = {}
        self._declining: set[UUID] = set()
        self._revoking: set[UUID] = set()
        self._reported: dict[UUID, tuple[int, bool]] = {}
        node.world.database.listen(node.process, self.changed)
        for loop in (self._sync_loop(), self._checkpoint_loop()):
            node.process.spawn(loop)

    def knows(self, stream: UUID) -> bool:
        """Whether it is aware of having this stream."""
        return stream in self.handles or stream in self._declining or stream in self._revoking

    def is_idle(self) -> bool:
        """Whether everything has been given back."""
        return not any(map(_is_busy, self.handles.values())) and not self._declining and not self._revoking

    # Loops.

    async def _sync_loop(self) -> None:
        while not self.is_over:
            try:
                # Grants are read first: whatever they were granted for is then in the registry's answer.
                offers = await self.node.store.granted(self.id)
                self._take_in(offers, await self.node.store.sync())
            except Away:
                await self._process.sleep(RETRY_S)
            await self.changed.wait(self._process, POLL_S)

    def _take_in(self, offers: Iterable[Offer], entries: Mapping[UUID, Entry]) -> None:
        if self.is_over:
            return
        before, self._entries = self._entries, entries
        for handle in list(self.handles.values()):
            if before.get(handle.datasource) is not entries[handle.datasource]:
                self.want(handle)
        for offer in offers:
            self._take(offer)

    def drain(self, draining: bool) -> None:
        """Give all streams back and take no more; or be ready for some again."""
        if self.is_draining != draining and not self.is_over:
            self.is_draining = draining
            self.world.note((self.node.machine.name,), "drains" if draining else "is ready again")
            self.push.drain(draining)
            for handle in list(self.handles.values()):
                self.want(handle)

    def _wanted(self, entry: Entry | None, *, is_pushed: bool, index: int = 0) -> Wanted | None:
        return wanted_here(entry, Place(self.is_draining), is_pushed=is_pushed, index=index)

    async def _checkpoint_loop(self) -> None:
        while not self.is_over:
            await self._process.sleep(CHECKPOINT_S)
            due = [handle for handle in self.handles.values() if handle.pusher is None and _is_due(handle)]
            if due:
                # Not awaited: a slow one does not hold up the next, so that they may overtake one another.
                self.spawn(self.checkpoint(due), weight=3)
            await self._report()

    async def _report(self) -> None:
        """Write what runs here, as far as it is not written yet."""
        states = {
            stream: (handle.last_epoch, lifecycle.status(handle.state)[0] == "RUNNING")
            for stream, handle in self.handles.items()
        }
        if states != self._reported:
            try:
                await self.node.store.decide(lambda: self.node.store.report(self.id, states))
                self._reported = states
            except Away:
                return

    # Streams come and go.

    def _take(self, offer: Offer) -> None:
        """Begin to run a stream that was granted to us, or decline it; or step down from one that we have."""
        handle = self.handles.get(offer.stream)
        if offer.steps_down and handle is not None and handle.last_epoch <= offer.epoch:
            self.give_back(handle)
        if handle is not None or offer.stream in self._declining:
            return  # An older worker is about to end; the next look finds the offer again.
        entry = self._entries.get(offer.datasource)
        if offer.steps_down or self._wanted(entry, is_pushed=False, index=offer.index) is None:
            self._declining.add(offer.stream)
            self.spawn(self._decline(offer), weight=3)
            return
        handle = self._add(offer.stream, offer.datasource)
        handle.epoch = handle.last_epoch = offer.epoch
        handle.index, handle.dealt, handle.was_settled = offer.index, offer.dealt, offer.is_settled
        self.want(handle)

    async def _decline(self, offer: Offer) -> None:
        goes_on = offer.steps_down or self.is_draining
        try:
            await self._ownership.submit(
                offer.stream, streams.Release(self.id, offer.epoch, 0, None, hands_over=goes_on)
            )
        except Away:
            pass  # The next look finds the offer again.
        finally:
            self._declining.discard(offer.stream)

    def claim(self, stream: UUID, pusher: Pusher) -> Handle | Reason:
        """Begin to run a stream that a program pushes through this node; or say why not."""
        datasource = self.world.database.members[stream].datasource
        if stream in self.handles:
            return "busy"
        if self._wanted(self._entries.get(datasource), is_pushed=True) is None:
            return "draining" if self.is_draining else "not_ready"
        handle = self._add(stream, datasource)
        handle.pusher = pusher
        self.want(handle)
        return handle

    def give_back(self, handle: Handle) -> None:
        """Its session is done with it, or another node is to have it: drain and release."""
        handle.is_given_back = True
        self.want(handle)

    def _add(self, stream: UUID, datasource: UUID) -> Handle:
        about = (self.node.machine.name, self.world.name(stream))
        handle = self.handles[stream] = Handle(stream, datasource, about)
        return handle

    def _remove(self, handle: Handle) -> None:
        if self.handles.get(handle.stream) is handle:
            del self.handles[handle.stream]
            self.changed.set()  # It may have been granted to us again meanwhile.

    async def checkpoint(self, handles: Iterable[Handle]) -> None:
        """Save where these streams stand. A stream that is not ours any more loses its run."""
        due = {h.stream: (h, h.epoch, h.progress) for h in handles if h.epoch is not None and _is_due(h)}
        commands = {
            stream: streams.Checkpoint(self.id, epoch, progress.commits, progress.position)
            for stream, (_, epoch, progress) in due.items()
        }
        if not commands:
            return
        try:
            steps = await self.node.store.apply(self.id, commands)
        except Away:
            return
        for stream, step in steps.items():
            handle, epoch, progress = due[stream]
            if isinstance(step.reply, streams.Fenced):
                self._fenced(handle, epoch, step.reply.why)
            elif progress.commits > handle.saved.commits:
                handle.saved = progress

    def _fenced(self, handle: Handle, epoch: int, why: streams.Why) -> None:
        """Our own release may have been faster than a checkpoint.

        And where nothing runs, the fence may be that of a newer grant of ours whose answer was lost: the next
        acquisition tells.
        """
        phase = handle.state.phase
        is_asking = isinstance(phase, lifecycle.Draining) and phase.run != handle.run_number
        is_between = is_asking or isinstance(phase, lifecycle.Acquiring | lifecycle.BackingOff)
        if why != "already_inactive" and not is_between:
            self._lose(handle, epoch)

    # The machine and its effects.

    def want(self, handle: Handle) -> None:
        """Tell a worker what is wanted of it. Telling it twice changes nothing."""
        entry = self._entries.get(handle.datasource)
        wanted = self._wanted(entry, is_pushed=handle.pusher is not None, index=handle.index)
        wanted = None if handle.is_given_back else wanted
        handle.wanted_key = entry.wanted_key_of(handle.index) if entry is not None else ""
        self.dispatch(handle, lifecycle.Want(wanted, self._process.clock_s()))

    def dispatch(self, handle: Handle, event: lifecycle.Event) -> None:
        """One event, and what follows from it."""
        if self.is_over:
            return
        before = handle.state
        step = lifecycle.step(before, event)
        handle.state = step.worker
        for effect in step.effects:
            self._perform(handle, effect)
        self._set_timer(handle)
        if step.worker.phase != before.phase:
            self.world.note(handle.about, "{}, {}", *lifecycle.status(handle.state))
        if step.worker.phase == ELSEWHERE:
            handle.epoch = None
            self._remove(handle)

    def _set_timer(self, handle: Handle) -> None:
        handle.timers += 1
        due_s = lifecycle.due_s(handle.state)
        if due_s is not None:
            left_s = due_s - self._process.clock_s()
            self._process.after(max(0.0, left_s) + 0.001, partial(self._tick, handle, handle.timers))

    def _tick(self, handle: Handle, timer: int) -> None:
        if timer == handle.timers:
            self.dispatch(handle, lifecycle.Tick(self._process.clock_s()))

    def _perform(self, handle: Handle, effect: lifecycle.Effect) -> None:
        match effect:
            case lifecycle.AcquireStream(run=run, version=version):
                self.spawn(self._acquire(handle, run, version), weight=3)
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
                self.spawn(self._release(handle, handle.epoch, outcome), weight=3)
            case lifecycle.CheckVersion(version=version):
                self.spawn(self._check(handle, version))
            case lifecycle.Prove(version=version):
                self._decide(partial(self.node.store.prove, handle.datasource, version))
            case lifecycle.RejectVersion(version=version):
                self._decide(partial(self.node.store.reject, handle.datasource, version))
            case lifecycle.Report(type=type):
                self.world.trace.count(f"worker: {type}")

    def spawn(self, work: Coroutine[Any, Any, None], weight: int = 1) -> Task[None]:
        """Begin something that ends with the process."""
        return self._process.spawn(work, weight)

    def _decide(self, change: Callable[[], None]) -> None:
        self.spawn(self._persist(change))

    async def _persist(self, change: Callable[[], None]) -> None:
        """Write a decision down, however long the database is away."""
        while not self.is_over:
            try:
                await self.node.store.decide(change)
                break
            except Away:
                await self._process.sleep(RETRY_S)

    async def _acquire(self, handle: Handle, run: int, version: int) -> None:
        """Read the configuration, then claim or regrant the stream."""
        try:
            config = await self.node.store.config(handle.datasource, version)
            await self._catch_up(handle)
            claims = handle.pusher is not None
            command = streams.Acquire(self.id, self.world.new_id(), version, config.source, config.sink, claims)
            if not self._is_asking(handle, run):
                return  # Abandoned meanwhile: what it would get is another worker's by now.
            step = await self._ownership.submit(handle.stream, command)
        except Away:
            self._fail(handle, run, Failure(Cause.NETWORK, "the database is away"))
            return
        now_s = self._process.clock_s()
        match step.reply:
            case streams.Granted(starts_anew=starts_anew):
                handle.config = config
                handle.epoch = handle.last_epoch = step.stream.epoch
                handle.progress = handle.saved = step.stream.progress
                self.dispatch(handle, lifecycle.Acquired(run, now_s, starts_anew))
            case streams.IdentityChanged():
                self._fail(handle, run, Failure(Cause.CONFIG, "another source"))
            case _:
                self.dispatch(handle, lifecycle.AcquireDenied(run, now_s))
                if handle.pusher is not None:
                    handle.pusher.refused("owned")

    def _is_asking(self, handle: Handle, run: int) -> bool:
        """Whether the worker still waits for the answer to this acquisition."""
        phase = handle.state.phase
        is_waiting = isinstance(phase, lifecycle.Acquiring | lifecycle.Draining) and phase.run == run
        return is_waiting and self.handles.get(handle.stream) is handle

    async def _catch_up(self, handle: Handle) -> None:
        """Save what the last run had committed while the database was away: the next one goes on behind it."""
        epoch, progress = handle.epoch, handle.progress
        if epoch is not None and progress.commits > handle.saved.commits:
            await self._ownership.submit(
                handle.stream, streams.Checkpoint(self.id, epoch, progress.commits, progress.position)
            )

    def _launch(self, handle: Handle, number: int) -> None:
        config, epoch = handle.config, handle.epoch
        assert config is not None
        assert epoch is not None
        feed = handle.pusher.feed if handle.pusher is not None else None
        handle.run = Run(
            self.node,
            handle.stream,
            epoch,
            config,
            handle.progress,
            source=partial(self._source, handle),
            on_opened=partial(self._opened, handle, number),
            on_commit=partial(self._committed, handle, number),
            news=Signal() if feed is None else feed.news,
            is_settled=handle.is_settled,
        )
        handle.run_number, handle.config = number, None
        handle.task = self.spawn(self._drive(handle, handle.run, number), weight=3)

    async def _source(self, handle: Handle) -> Source:
        """What a run reads: its share of the parts, by their places in the registry."""
        if handle.pusher is not None:
            return handle.pusher.feed
        origin = self.world.origin(handle.datasource)
        if origin.parts == UNNAMED:
            return PartsSource(origin, UNNAMED if handle.index == 0 else ())
        try:
            names = await self.node.store.list_parts(handle.datasource, origin.parts)
        except Away:
            raise Failed(Cause.NETWORK, "the database is away") from None
        return PartsSource(origin, parts.parts_of(handle.index, handle.dealt, names))

    async def _drive(self, handle: Handle, run: Run, number: int) -> None:
        """Run to the end, save what was reached, and tell the machine how it ended."""
        epoch = handle.epoch
        assert epoch is not None
        try:
            is_finished = await run.run()
        except FencedOff:
            self._lose(handle, epoch)
            return
        except Cancelled:
            await self._last_checkpoint(handle, run)
            self.dispatch(handle, lifecycle.Ended(number, self._process.clock_s()))
            return
        except Failed as error:
            await self._last_checkpoint(handle, run)
            self._fail(handle, number, error.failure)
            return
        phase = handle.state.phase
        if not (isinstance(phase, lifecycle.Draining) and phase.then is None):  # Else the release brings it.
            await self._last_checkpoint(handle, run)
        self.dispatch(handle, lifecycle.Ended(number, self._process.clock_s(), is_finished))

    async def _last_checkpoint(self, handle: Handle, run: Run) -> None:
        """What a run had committed when it ended, unless it was abandoned before. Not at any price."""
        if handle.run is not run:
            return
        if run.progress is not None and run.progress.commits >= handle.progress.commits:
            handle.progress = run.progress
        saved = Signal()

        async def save() -> None:
            await self.checkpoint([handle])
            saved.set()

        self.spawn(save(), weight=3)
        await saved.wait(self._process, LAST_CHECKPOINT_S)

    def _opened(self, handle: Handle, number: int, progress: Progress) -> None:
        if handle.run is None or handle.run_number != number:
            return  # Abandoned, and still at it: nothing of it counts.
        handle.progress, handle.is_opened = progress, True
        self.dispatch(handle, lifecycle.Opened(number, self._process.clock_s()))
        if handle.pusher is not None and handle.epoch is not None:
            handle.pusher.opened(handle.epoch, progress)

    def _committed(self, handle: Handle, number: int, progress: Progress) -> None:
        if handle.run is None or handle.run_number != number:
            return
        handle.progress = progress
        phase = handle.state.phase
        if isinstance(phase, lifecycle.Running) and (not phase.proved or handle.state.attempt):
            self.dispatch(handle, lifecycle.Committed(number))

    def _fail(self, handle: Handle, run: int, failure: Failure) -> None:
        self.dispatch(handle, lifecycle.Failed(run, self._process.clock_s(), failure, self.world.random.random()))
        if handle.pusher is not None and not handle.is_opened:
            # Its client can wait better than we: it keeps its records, and asks again.
            handle.pusher.refused("not_ready")
            self.give_back(handle)

    def _lose(self, handle: Handle, epoch: int) -> None:
        """A grant of ours has ended without our doing."""
        if handle.epoch == epoch:
            handle.epoch = None
            if handle.run is not None:
                handle.run.is_abandoned = True
            self.dispatch(handle, lifecycle.OwnershipLost(self._process.clock_s()))
            if handle.pusher is not None:
                handle.pusher.released("stale")

    def _abandon(self, handle: Handle) -> None:
        if handle.run is not None:
            handle.run.is_abandoned = True
        if handle.task is not None:
            handle.task.cancel()
        epoch, handle.epoch = handle.epoch, None
        handle.run = handle.task = None
        handle.was_settled = False
        self.spawn(self._revoke(handle, epoch), weight=3)

    async def _revoke(self, handle: Handle, epoch: int | None) -> None:
        self._revoking.add(handle.stream)
        if isinstance(handle.state.phase, lifecycle.Idle):
            epoch = None  # Nothing follows, so whatever we still get, such as by an answer that was lost, goes as well.
        await self.persist(handle, streams.Revoke(self.id, epoch))
        self._revoking.discard(handle.stream)
        if isinstance(handle.state.phase, lifecycle.Idle):  # Nothing follows: another grant begins with a new worker.
            self._remove(handle)
            if handle.pusher is not None:
                handle.pusher.released("stale")
        self.world.database.wake()

    async def _release(self, handle: Handle, epoch: int | None, outcome: streams.Outcome) -> None:
        """Give the stream back, and forget it: another grant begins with a new worker."""
        progress, runs = handle.progress, handle.state.runs
        command: streams.Command = streams.Revoke(self.id)
        if epoch is not None:
            goes_on = handle.pusher is None and outcome == "stopped" and (self.is_draining or handle.is_given_back)
            release = streams.Release(self.id, epoch, progress.commits, progress.position, outcome, handle.wanted_key)
            command = replace(release, hands_over=goes_on, is_settled=handle.is_settled)
        reply = await self.persist(handle, command)
        self.world.note(handle.about, "released {}: {}", epoch, reply)
        if isinstance(reply, streams.Fenced) and reply.why == "stale" and handle.state.runs == runs:
            # It may still be ours, if an acquisition was committed and its answer lost.
            reply = await self.persist(handle, streams.Revoke(self.id))
        if handle.epoch == epoch:
            handle.epoch = None
        if handle.state.runs == runs and isinstance(handle.state.phase, lifecycle.Idle | lifecycle.Quarantined):
            self._remove(handle)
            if handle.pusher is not None:
                handle.pusher.released(reply.why if isinstance(reply, streams.Fenced) else None)
        self.world.database.wake()

    async def persist(self, handle: Handle, command: streams.Command) -> streams.Reply | None:
        """Until it is answered, or until another run or another worker has begun, which has a grant of its own."""
        runs = handle.state.runs
        while handle.state.runs == runs and self.handles.get(handle.stream, handle) is handle and not self.is_over:
            try:
                return (await self._ownership.submit(handle.stream, command)).reply
            except Away:
                await self._process.sleep(RETRY_S)
        return None

    async def _check(self, handle: Handle, version: int) -> None:
        failure = None
        try:
            config = await self.node.store.config(handle.datasource, version)
            await self.world.sinks[config.sink].ask(self._process, lambda: None)
            if config.flaw == "check":
                failure = Failure(Cause.CONFIG, "this version is wrong")
        except Away:
            failure = Failure(Cause.NETWORK, "the sink is away")
        jitter = self.world.random.random()
        self.dispatch(handle, lifecycle.Checked(version, self._process.clock_s(), failure, jitter))

    # From outside.

    def lose_all(self) -> None:
        """This incarnation has ended: nothing here is ours any more."""
        self.is_draining = self.is_over = True
        for handle in list(self.handles.values()):
            handle.epoch = None
            if handle.run is not None:
                handle.run.is_abandoned = True
            if handle.task is not None:
                handle.task.cancel()
        self.push.lose_all()


def _is_busy(handle: Handle) -> bool:
    return not isinstance(handle.state.phase, lifecycle.Idle) or handle.epoch is not None


def _is_due(handle: Handle) -> bool:
    return handle.epoch is not None and handle.progress.commits > handle.saved.commits
