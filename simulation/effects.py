"""What the worker's machine asks for, performed on the simulated database and sinks.

As thin as that of a real node: what the registry is told is decided in `core.lifecycle.holding`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from headgate.core import lifecycle, parts, streams
from headgate.core.lifecycle import Failure, holding
from headgate.core.parts import UNNAMED
from headgate.core.streams import Progress
from headgate.errors import Cause
from simulation.handle import Handle
from simulation.kernel import Cancelled, Signal
from simulation.network import Away
from simulation.ownership import Ownership
from simulation.run import Failed, FencedOff, Run
from simulation.sources import PartsSource, Source

if TYPE_CHECKING:
    from simulation.manager import Manager

RETRY_S = 1.0
LAST_CHECKPOINT_S = 2.0


class Effects:
    """Performs the effects of all workers of one incarnation."""

    def __init__(self, manager: Manager) -> None:
        self.ownership = Ownership(manager.node.store, manager.id)
        self.revoking: set[UUID] = set()  # Streams that were abandoned, and are not free yet.
        self._manager = manager
        self._node = manager.node
        self._world = manager.world
        self._process = manager.node.process

    def perform(self, handle: Handle, effect: lifecycle.Effect) -> None:
        """Begin what the machine asks for."""
        manager, store = self._manager, self._node.store
        match effect:
            case lifecycle.AcquireStream(run=run, version=version):
                manager.spawn(self._acquire(handle, run, version), weight=3)
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
                phase, is_draining = handle.state.phase, manager.is_draining
                command = holding.release(handle.holding, manager.id, phase, outcome, is_draining=is_draining)
                manager.spawn(self._release(handle, command), weight=3)
            case lifecycle.CheckVersion(version=version):
                manager.spawn(self._check(handle, version))
            case lifecycle.Prove(version=version):
                manager.spawn(self._persist(partial(store.prove, handle.datasource, version)))
            case lifecycle.RejectVersion(version=version):
                manager.spawn(self._persist(partial(store.reject, handle.datasource, version)))
            case lifecycle.Report(type=type):
                self._world.trace.count(f"worker: {type}")

    async def _persist(self, change: Callable[[], None]) -> None:
        """Write a decision down, however long the database is away."""
        while not self._manager.is_over:
            try:
                await self._node.store.decide(change)
                break
            except Away:
                await self._process.sleep(RETRY_S)

    # Runs.

    async def _acquire(self, handle: Handle, run: int, version: int) -> None:
        """Read the configuration, then claim or regrant the stream."""
        manager = self._manager
        try:
            config = await self._node.store.config(handle.datasource, version)
            await self._catch_up(handle)
            claims = handle.pusher is not None
            identities, is_transactional = (config.source, config.sink), config.sink != "plain"
            run_id = self._world.new_id()
            command = streams.Acquire(manager.id, run_id, version, *identities, claims, is_transactional)
            if not holding.is_awaited(handle.state.phase, run):
                return  # Abandoned meanwhile: what it would get is another run's by now.
            step = await self.ownership.submit(handle.stream, command)
        except Away:
            self._fail(handle, run, Failure(Cause.NETWORK, "the database is away"))
            return
        now_s = self._process.clock_s()
        match step.reply:
            case streams.Granted(resets_position=resets_position):
                handle.config = config
                handle.holding = holding.acquired(handle.holding, step.stream.epoch, step.stream.progress)
                manager.dispatch(handle, lifecycle.Acquired(run, now_s, resets_position))
            case streams.IdentityChanged():
                self._fail(handle, run, Failure(Cause.CONFIG, "another source"))
            case _:
                manager.dispatch(handle, lifecycle.AcquireDenied(run, now_s))
                if handle.pusher is not None:
                    handle.pusher.refused("owned")

    async def _catch_up(self, handle: Handle) -> None:
        """Save what the last run had committed while the database was away: the next one goes on behind it."""
        command = holding.checkpoint(handle.holding, self._manager.id)
        if command is not None:
            await self.ownership.submit(handle.stream, command)

    def _launch(self, handle: Handle, number: int) -> None:
        config, held = handle.config, handle.holding
        assert config is not None
        assert held.epoch is not None
        feed = handle.pusher.feed if handle.pusher is not None else None
        handle.run = Run(
            self._node,
            handle.stream,
            held.epoch,
            config,
            held.progress,
            source=partial(self._source, handle),
            on_opened=partial(self._opened, handle, number),
            on_commit=partial(self._committed, handle, number),
            news=Signal() if feed is None else feed.news,
            is_settled=held.settled,
        )
        handle.run_number, handle.config = number, None
        handle.task = self._manager.spawn(self._drive(handle, handle.run, number, held.epoch), weight=3)

    async def _source(self, handle: Handle) -> Source:
        """What a run reads: its share of the parts, by their places in the registry."""
        if handle.pusher is not None:
            return handle.pusher.feed
        origin = self._world.origin(handle.datasource)
        if origin.parts == UNNAMED:
            return PartsSource(origin, UNNAMED if handle.index == 0 else ())
        try:
            names = await self._node.store.list_parts(handle.datasource, origin.parts)
        except Away:
            raise Failed(Cause.NETWORK, "the database is away") from None
        return PartsSource(origin, parts.parts_of(handle.index, handle.dealt, names))

    async def _drive(self, handle: Handle, run: Run, number: int, epoch: int) -> None:
        """Run to the end, save what was reached, and tell the machine how it ended."""
        manager = self._manager
        try:
            is_finished = await run.run()
        except FencedOff:
            manager.lose(handle, epoch)
            return
        except Cancelled:
            await self._last_checkpoint(handle, run)
            manager.dispatch(handle, lifecycle.Ended(number, self._process.clock_s()))
            return
        except Failed as error:
            await self._last_checkpoint(handle, run)
            self._fail(handle, number, error.failure)
            return
        phase = handle.state.phase
        if isinstance(phase, lifecycle.Draining) and phase.then is None:
            self._take_over(handle, run)  # The release brings it.
        else:
            await self._last_checkpoint(handle, run)
        manager.dispatch(handle, lifecycle.Ended(number, self._process.clock_s(), is_finished))

    async def _last_checkpoint(self, handle: Handle, run: Run) -> None:
        """Save what a run had committed when it ended, without waiting for a slow save."""
        if not self._take_over(handle, run):
            return
        saved = Signal()

        async def save() -> None:
            await self._manager.checkpoint([handle])
            saved.set()

        self._manager.spawn(save(), weight=3)
        await saved.wait(self._process, LAST_CHECKPOINT_S)

    def _take_over(self, handle: Handle, run: Run) -> bool:
        """Note how far a run came, unless it was abandoned before."""
        if handle.run is not run:
            return False
        handle.holding = holding.ended(handle.holding, run.progress, run.is_settled)
        return True

    def _opened(self, handle: Handle, number: int, progress: Progress) -> None:
        if handle.run is None or handle.run_number != number:
            return  # It was abandoned and still runs: nothing that it does counts.
        handle.holding = holding.opened(handle.holding, progress)
        self._manager.dispatch(handle, lifecycle.Opened(number, self._process.clock_s()))
        if handle.pusher is not None and handle.holding.epoch is not None:
            handle.pusher.opened(handle.holding.epoch, progress)

    def _committed(self, handle: Handle, number: int, progress: Progress) -> None:
        if handle.run is None or handle.run_number != number:
            return
        handle.holding = holding.reached(handle.holding, progress)
        phase = handle.state.phase
        if isinstance(phase, lifecycle.Running) and (not phase.proved or handle.state.attempt):
            self._manager.dispatch(handle, lifecycle.Committed(number))

    def _fail(self, handle: Handle, run: int, failure: Failure) -> None:
        jitter = self._world.random.random()
        self._manager.dispatch(handle, lifecycle.Failed(run, self._process.clock_s(), failure, jitter))
        if handle.pusher is not None and not handle.holding.is_opened:
            # The client waits instead of this node: it keeps its records, and asks again.
            handle.pusher.refused("not_ready")
            self._manager.give_back(handle)

    async def _check(self, handle: Handle, version: int) -> None:
        failure = None
        try:
            config = await self._node.store.config(handle.datasource, version)
            await self._world.sinks[config.sink].ask(self._process, lambda: None)
            if config.flaw == "check":
                failure = Failure(Cause.CONFIG, "this version is wrong")
        except Away:
            failure = Failure(Cause.NETWORK, "the sink is away")
        jitter = self._world.random.random()
        self._manager.dispatch(handle, lifecycle.Checked(version, self._process.clock_s(), failure, jitter))

    # Ends.

    def _abandon(self, handle: Handle) -> None:
        if handle.run is not None:
            handle.run.is_abandoned = True
        if handle.task is not None:
            handle.task.cancel()
        epoch, handle.holding = handle.holding.epoch, holding.abandoned(handle.holding)
        handle.run = handle.task = None
        self._manager.spawn(self._revoke(handle, epoch), weight=3)

    async def _revoke(self, handle: Handle, epoch: int | None) -> None:
        self.revoking.add(handle.stream)
        await self.persist(handle, holding.revocation(self._manager.id, handle.state.phase, epoch))
        self.revoking.discard(handle.stream)
        if holding.is_left(handle.state.phase):
            self._manager.remove(handle)
            if handle.pusher is not None:
                handle.pusher.released("stale")
        self._world.database.wake()

    async def _release(self, handle: Handle, command: streams.Release | streams.Revoke) -> None:
        """Give the stream back, and forget it: another grant begins with a new worker."""
        runs = handle.state.runs
        reply = await self.persist(handle, command)
        self._world.note(handle.about, "{}: {}", type(command).__name__, reply)
        if holding.is_to_revoke(handle.state, runs, reply):
            reply = await self.persist(handle, streams.Revoke(self._manager.id))
        epoch = command.epoch if isinstance(command, streams.Release) else None
        handle.holding = holding.released(handle.holding, epoch)
        if holding.is_over(handle.state, runs):
            self._manager.remove(handle)
            if handle.pusher is not None:
                handle.pusher.released(reply.why if isinstance(reply, streams.Fenced) else None)
        self._world.database.wake()

    async def persist(self, handle: Handle, command: streams.Command) -> streams.Reply | None:
        """Try until it is answered, or until another run or worker has begun, which has its own grant."""
        runs, manager = handle.state.runs, self._manager
        while handle.state.runs == runs and manager.is_current(handle) and not manager.is_over:
            try:
                return (await self.ownership.submit(handle.stream, command)).reply
            except Away:
                await self._process.sleep(RETRY_S)
        return None
