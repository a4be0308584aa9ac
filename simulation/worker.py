"""One stream on one node: acquire, open, read, write, ack, until drained; then give back or begin the next run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from headgate.core import streams
from headgate.core.streams import Acquire, Checkpoint, Fenced, Granted, Reply, Revoke, Stream
from simulation.database import Wish
from simulation.kernel import Signal
from simulation.network import Away
from simulation.sinks import Batch

if TYPE_CHECKING:
    from simulation.manager import Manager

CANCEL_S = 8.0  # A write that does not end is cancelled, so that a stop always wins.
BACKOFF_S = 0.5
READ_S = 0.002
LAST_CHECKPOINT_S = 2.0

End: TypeAlias = Literal["drained", "failed", "lost"]


class Worker:
    """Keeps one stream running."""

    def __init__(self, manager: Manager, offer: Stream, wish: Wish) -> None:
        self.stream = offer.id
        self.manager = manager
        self.world = manager.world
        self.process = manager.node.process
        self.epoch: int | None = offer.epoch  # Of our grant; None: not ours.
        self.progress = offer.progress  # Where the stream stands.
        self.saved_commits = offer.progress.commits  # What the registry knows.
        self.wish = wish
        self._acquired_for = wish
        self._version: int | None = None  # Of the run under way.
        self._is_draining = False
        self._steps_down = False  # Another node should have it.
        self._is_unsure = False  # An acquisition or a release has been sent and not answered.
        self._changed = Signal()
        self._about = (manager.node.machine.name, self.world.name(self.stream))
        self.process.spawn(self._live(), weight=3)

    # From the manager.

    def told(self, wish: Wish, *, steps_down: bool = False) -> None:
        """What should become of the stream now. A worker that was told to step down does."""
        self.wish = wish
        self._steps_down |= steps_down
        self.reconsider()

    def reconsider(self) -> None:
        """End the run if it is not what is wanted."""
        if self._version is not None and (not self._is_wanted() or self._version != self.wish.version):
            self._drain()

    def lose(self) -> None:
        """The grant has ended without our doing."""
        self.epoch = None
        self._drain()
        self.manager.node.cut_writes_of(self.stream)
        self.manager.remove(self)

    def is_due(self) -> bool:
        """Whether there is something to checkpoint."""
        return self.epoch is not None and self.progress.commits > self.saved_commits

    def checkpoint(self) -> Checkpoint | None:
        """Where the stream stands, as a command."""
        if self.epoch is None:
            return None
        return Checkpoint(self.manager.id, self.epoch, self.progress.commits, self.progress.position)

    def checkpointed(self, command: Checkpoint, reply: Reply) -> None:
        """The answer, which may be late."""
        if self.epoch == command.epoch:
            if isinstance(reply, Fenced):
                self._fenced()
            else:
                self.saved_commits = max(self.saved_commits, command.commits)

    def _fenced(self) -> None:
        """Our grant is over. That may be our own doing, by a command whose answer is not here yet."""
        if not self._is_unsure:
            self.lose()

    # The life of a stream here.

    async def _live(self) -> None:
        end: End = "drained"
        while self.epoch is not None and self._is_wanted():
            if end == "failed":
                await self._changed.wait(self.process, BACKOFF_S)
            acquired = await self._acquire()
            if acquired == "lost":
                self.lose()
                return
            if acquired == "drained" and self.epoch is not None:
                end = await self._run(self.epoch, self._acquired_for)
                self._version, self._is_draining = None, False
                if end == "lost":
                    self.lose()
                    return
                if self._is_wanted():
                    await self._last_checkpoint()  # Otherwise the release brings it.
        if self.epoch is not None:
            await self._give_back(self.epoch)
        self.manager.remove(self)

    async def _last_checkpoint(self) -> None:
        """Save what the run had reached before the next one begins, without waiting for a slow save."""
        saved = Signal()

        async def save() -> None:
            await self.manager.checkpoint([self])
            saved.set()

        self.process.spawn(save(), weight=3)
        await saved.wait(self.process, LAST_CHECKPOINT_S)

    def _is_wanted(self) -> bool:
        return self.wish.is_enabled and not self.manager.is_draining and not self._steps_down

    async def _acquire(self) -> End:
        """A grant for the next run. Failed: no answer, so it may be ours under an epoch that we do not know."""
        wish = self.wish
        command = Acquire(self.manager.id, self.world.new_id(), wish.version, wish.source, wish.sink)
        self._is_unsure = True
        try:
            step = await self.manager.apply(self.stream, command)
        except Away:
            await self.process.sleep(BACKOFF_S)
            return "failed"
        self._is_unsure = False
        if self.epoch is None or not isinstance(step.reply, Granted):
            return "lost"
        self.epoch, self.progress, self.saved_commits = (
            step.stream.epoch,
            step.stream.progress,
            step.stream.progress.commits,
        )
        self._acquired_for = wish
        return "drained"

    async def _run(self, epoch: int, wish: Wish) -> End:
        """Under one epoch, from the opening of the sink on."""
        self._version = wish.version
        found = await self.world.sinks[wish.sink].open(self.process, self.manager.id, self.stream, epoch)
        if found in ("failed", "fenced"):
            return "failed" if found == "failed" else "lost"
        if self.epoch != epoch:
            return "lost"
        assert not isinstance(found, str)
        progress = self.progress = streams.agree(self.progress, found)
        self.world.note(self._about, "opened {} under {} at {}", wish.sink, epoch, progress)
        source = self.world.source(self.stream)
        while not self._is_draining:
            records = source.read(progress.position)
            if not records:
                await self._changed.wait(self.process, source.wait_s(progress.position))
                continue
            await self.process.sleep(READ_S)
            if self._is_draining:
                break
            progress = replace(progress, commits=progress.commits + 1, position=records[-1])
            batch = Batch(self.stream, epoch, wish.sink, wish.source, records, progress)
            outcome = await self.manager.node.write(batch, lambda: self.epoch == epoch)
            if outcome != "done" or self.epoch != epoch:
                return "failed" if outcome == "failed" and self.epoch == epoch else "lost"
            self._committed(batch)
        return "drained"

    def _committed(self, batch: Batch) -> None:
        """The sink has it durably: the source may forget it, and the registry may know."""
        self.progress = batch.progress
        self.world.checkers.source_acked(batch)

    async def _give_back(self, epoch: int) -> None:
        """Until it is answered. A stale one may still be ours, if an acquisition was committed and its answer lost."""
        self._is_unsure = True
        goes_on = self._steps_down or self.manager.is_draining
        why = await self.manager.release(
            self.stream, epoch, self.progress.commits, self.progress.position, hands_over=goes_on
        )
        if why == "stale":
            await self.manager.persist(self.stream, Revoke(self.manager.id))
        self.epoch = None

    def _drain(self) -> None:
        """Finish the write under way, then end the run."""
        if not self._is_draining:
            self._is_draining = True
            self._changed.set()
            epoch = self.epoch
            self.process.after(CANCEL_S, lambda: self._cancel(epoch))

    def _cancel(self, epoch: int | None) -> None:
        if self._is_draining and self.epoch == epoch:
            self.manager.node.cut_writes_of(self.stream)
