"""The streams of one incarnation: take what is granted, checkpoint once a second, give back what is not wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from headgate.core import streams
from headgate.core.streams import Checkpoint, Command, Fenced, Reply
from simulation.kernel import Signal
from simulation.network import Away
from simulation.push import PushHost
from simulation.store import Look
from simulation.worker import Worker

if TYPE_CHECKING:
    from simulation.node import Node

POLL_S = 0.5
CHECKPOINT_S = 1.0
RETRY_S = 1.0


class Manager:
    """All streams of one incarnation."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.world = node.world
        self.id = node.incarnation
        self.workers: dict[UUID, Worker] = {}
        self.is_over = False
        self.is_draining = False
        self.push = PushHost(self)
        self.changed = Signal()
        node.world.database.listen(node.process, self.changed)
        for loop in (self._sync_loop(), self._checkpoint_loop()):
            node.process.spawn(loop)

    def knows(self, stream: UUID) -> bool:
        """Whether it is aware of having this stream."""
        return stream in self.workers or self.push.knows(stream)

    def is_idle(self) -> bool:
        """Whether everything has been given back."""
        return not self.workers and self.push.is_idle()

    def drain(self, draining: bool) -> None:
        """Give all streams back and take no more; or be ready for some again."""
        if self.is_draining != draining:
            self.is_draining = draining
            self.world.note((self.node.machine.name,), "drains" if draining else "is ready again")
            for worker in list(self.workers.values()):
                worker.reconsider()
            if draining:
                self.push.drain()

    def lose_all(self) -> None:
        """This incarnation is over: nothing here is ours any more."""
        self.is_over = True
        for worker in list(self.workers.values()):
            worker.lose()
        self.push.lose_all()

    # Loops.

    async def _sync_loop(self) -> None:
        while not self.is_over:
            try:
                self._take_in(await self.node.store.look(self.id))
            except Away:
                await self.node.process.sleep(RETRY_S)
            await self.changed.wait(self.node.process, POLL_S)

    def _take_in(self, look: Look) -> None:
        if self.is_over:
            return
        for worker in list(self.workers.values()):
            worker.told(look.wishes[worker.stream], steps_down=worker.stream in look.step_downs)
        for offer in look.offers:
            if offer.id not in self.workers:
                worker = self.workers[offer.id] = Worker(self, offer, look.wishes[offer.id])
                worker.told(look.wishes[offer.id], steps_down=offer.id in look.step_downs)
        self.push.told(look.wishes)

    def remove(self, worker: Worker) -> None:
        """A worker has ended."""
        if self.workers.get(worker.stream) is worker:
            del self.workers[worker.stream]
            self.changed.set()

    async def _checkpoint_loop(self) -> None:
        while not self.is_over:
            await self.node.process.sleep(CHECKPOINT_S)
            due = [worker for worker in self.workers.values() if worker.is_due()]
            if due:
                # Not awaited: a slow one does not hold up the next, so that they may overtake one another.
                self.node.process.spawn(self.checkpoint(due), weight=3)

    async def checkpoint(self, workers: list[Worker]) -> None:
        """Save where these stand, all in one transaction. A stream that is not ours any more loses its run."""
        commands: dict[UUID, Checkpoint] = {}
        for worker in workers:
            command = worker.checkpoint()
            if command is not None:
                commands[worker.stream] = command
        if not commands:
            return
        try:
            steps = await self.node.store.apply(self.id, commands)
        except Away:
            return
        for worker in workers:
            if worker.stream in commands:
                worker.checkpointed(commands[worker.stream], steps[worker.stream].reply)

    # Commands.

    async def apply(self, stream: UUID, command: Command) -> streams.Step:
        """One command on one stream."""
        return (await self.node.store.apply(self.id, {stream: command}))[stream]

    async def persist(self, stream: UUID, command: Command) -> Reply | None:
        """The same, until there is an answer or the incarnation is over (None)."""
        while not self.is_over:
            try:
                return (await self.apply(stream, command)).reply
            except Away:
                await self.node.process.sleep(RETRY_S)
        return None

    async def release(
        self, stream: UUID, epoch: int, commits: int, position: int | None, *, hands_over: bool = False
    ) -> streams.Why | None:
        """Give a stream back, and say why it was not ours to give, if it was not."""
        reply = await self.persist(stream, streams.Release(self.id, epoch, commits, position, hands_over=hands_over))
        self.world.note((self.node.machine.name, self.world.name(stream)), "released {}: {}", epoch, reply)
        self.world.database.wake()
        return reply.why if isinstance(reply, Fenced) else None
