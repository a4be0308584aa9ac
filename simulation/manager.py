"""The streams of one incarnation: a thin shell around `core.lifecycle`, on virtual time.

It does what the worker manager of a real node does, in the same order: it asks what was granted and what the registry
says, tells each worker what is wanted of it, steps the machine and performs its effects on the simulated database and
sinks, saves positions once a second, and reports what runs.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headgate.core import lifecycle
from headgate.core.lifecycle import Wanted, holding
from headgate.core.lifecycle.holding import Declined, Holding
from headgate.core.push.notifier import Reason
from headgate.core.reconcile import Entry, Place, wanted_here
from headgate.core.streams import Fenced
from simulation.effects import Effects
from simulation.handle import Handle, Pusher
from simulation.kernel import Signal, Task
from simulation.network import Away
from simulation.push import PushHost
from simulation.store import Offer

if TYPE_CHECKING:
    from simulation.node import Node

POLL_S = 0.5
CHECKPOINT_S = 1.0
OWNED_S = 5.0
RETRY_S = 1.0

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
        self._effects = Effects(self)
        self._entries: Mapping[UUID, Entry] = {}
        self._declining: set[UUID] = set()
        self._reported: dict[UUID, tuple[int, bool]] = {}
        node.world.database.listen(node.process, self.changed)
        for loop in (self._sync_loop(), self._checkpoint_loop(), self._owned_loop()):
            node.process.spawn(loop)

    def knows(self, stream: UUID) -> bool:
        """Whether it is aware of having this stream."""
        return stream in self.handles or stream in self._declining or stream in self._effects.revoking

    def is_idle(self) -> bool:
        """Whether everything has been given back."""
        return not any(map(_is_busy, self.handles.values())) and not self._declining and not self._effects.revoking

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

    def _wanted(
        self, entry: Entry | None, *, is_pushed: bool, index: int = 0, dealt: int | None = None
    ) -> Wanted | None:
        return wanted_here(entry, Place(self.is_draining), is_pushed=is_pushed, index=index, dealt=dealt)

    async def _checkpoint_loop(self) -> None:
        while not self.is_over:
            await self._process.sleep(CHECKPOINT_S)
            due = [handle for handle in self.handles.values() if handle.pusher is None and handle.holding.is_unsaved]
            if due:
                # Not awaited: a slow one does not hold up the next, so that they may overtake one another.
                self.spawn(self.checkpoint(due), weight=3)
            await self._report()

    async def _owned_loop(self) -> None:
        """A run that has nothing to write is never fenced: it has to ask whether its stream is still ours."""
        while not self.is_over:
            await self._process.sleep(OWNED_S)
            running = {handle: handle.holding.epoch for handle in self.handles.values() if _is_running(handle)}
            try:
                owned = await self.node.store.owned(self.id) if running else {}
            except Away:
                continue
            for handle, epoch in running.items():
                if epoch is not None and owned.get(handle.stream) != epoch and _is_running(handle):
                    self.lose(handle, epoch)

    async def _report(self) -> None:
        """Write what runs here, as far as it is not written yet."""
        states = {
            stream: (handle.holding.last_epoch or 0, lifecycle.status(handle.state)[0] == "RUNNING")
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
        if offer.steps_down and handle is not None and holding.is_meant(handle.holding, offer.epoch):
            self.give_back(handle)
        if handle is not None or offer.stream in self._declining:
            return  # An older worker is about to end; the next look finds the offer again.
        entry = self._entries.get(offer.datasource)
        if offer.steps_down or self._wanted(entry, is_pushed=False, index=offer.index) is None:
            self._declining.add(offer.stream)
            self.spawn(self._decline(offer), weight=3)
            return
        handle = self._add(offer.stream, offer.datasource)
        handle.index, handle.dealt = offer.index, offer.dealt
        handle.holding = holding.granted(offer.epoch, offer.is_settled)
        self.want(handle)

    async def _decline(self, offer: Offer) -> None:
        """If the database is away, the next look finds the offer again."""
        declined = holding.decline(self.id, Declined(offer.epoch, offer.steps_down, self.is_draining))
        try:
            await self._effects.ownership.submit(offer.stream, declined)
        except Away:
            return
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
        handle.pusher, handle.holding = pusher, Holding(is_pushed=True)
        self.want(handle)
        return handle

    def give_back(self, handle: Handle) -> None:
        """Its session is done with it, or another node is to have it: drain and release."""
        handle.holding = replace(handle.holding, is_given_back=True)
        self.want(handle)

    def _add(self, stream: UUID, datasource: UUID) -> Handle:
        about = (self.node.machine.name, self.world.name(stream))
        handle = self.handles[stream] = Handle(stream, datasource, about)
        return handle

    def is_current(self, handle: Handle) -> bool:
        """Whether no other worker of this node has the stream."""
        return self.handles.get(handle.stream, handle) is handle

    def remove(self, handle: Handle) -> None:
        """A worker has ended."""
        if self.handles.get(handle.stream) is handle:
            del self.handles[handle.stream]
            self.changed.set()  # It may have been granted to us again meanwhile.

    async def checkpoint(self, handles: Iterable[Handle]) -> None:
        """Save where these streams stand. A stream that is not ours any more loses its run."""
        found = ((handle, holding.checkpoint(handle.holding, self.id)) for handle in handles)
        due = {
            handle.stream: (handle, command, handle.holding.progress)
            for handle, command in found
            if command is not None
        }
        if not due:
            return
        try:
            steps = await self.node.store.apply(self.id, {stream: command for stream, (_, command, _) in due.items()})
        except Away:
            return
        for stream, step in steps.items():
            handle, command, progress = due[stream]
            if not isinstance(step.reply, Fenced):
                handle.holding = holding.saved(handle.holding, progress)
            elif holding.is_lost(handle.holding, handle.state.phase, command.epoch, step.reply.why):
                self.lose(handle, command.epoch)

    def lose(self, handle: Handle, epoch: int) -> None:
        """A grant of ours has ended without our doing."""
        if handle.holding.epoch == epoch:
            handle.holding = holding.lost(handle.holding)
            if handle.run is not None:
                handle.run.is_abandoned = True
            self.dispatch(handle, lifecycle.OwnershipLost(self._process.clock_s()))
            if handle.pusher is not None:
                handle.pusher.released("stale")

    # The machine and its effects.

    def want(self, handle: Handle) -> None:
        """Tell a worker what is wanted of it. Telling it twice changes nothing."""
        entry = self._entries.get(handle.datasource)
        is_pushed = handle.pusher is not None
        dealt = None if is_pushed else handle.dealt
        wanted = self._wanted(entry, is_pushed=is_pushed, index=handle.index, dealt=dealt)
        wanted_key = entry.wanted_key_of(handle.index) if entry is not None else ""
        handle.holding = replace(handle.holding, wanted_key=wanted_key)
        self.dispatch(handle, lifecycle.Want(holding.wanted_of(handle.holding, wanted), self._process.clock_s()))

    def dispatch(self, handle: Handle, event: lifecycle.Event) -> None:
        """One event, and what follows from it."""
        if self.is_over:
            return
        before = handle.state
        step = lifecycle.step(before, event)
        handle.state = step.worker
        for effect in step.effects:
            self._effects.perform(handle, effect)
        self._set_timer(handle)
        if step.worker.phase != before.phase:
            self.world.note(handle.about, "{}, {}", *lifecycle.status(handle.state))
        if step.worker.phase == ELSEWHERE:
            handle.holding = holding.lost(handle.holding)
            self.remove(handle)

    def _set_timer(self, handle: Handle) -> None:
        handle.timers += 1
        due_s = lifecycle.due_s(handle.state)
        if due_s is not None:
            left_s = due_s - self._process.clock_s()
            self._process.after(max(0.0, left_s) + 0.001, partial(self._tick, handle, handle.timers))

    def _tick(self, handle: Handle, timer: int) -> None:
        if timer == handle.timers:
            self.dispatch(handle, lifecycle.Tick(self._process.clock_s()))

    def spawn(self, work: Coroutine[Any, Any, None], weight: int = 1) -> Task[None]:
        """Begin something that ends with the process."""
        return self._process.spawn(work, weight)

    # From outside.

    def lose_all(self) -> None:
        """This incarnation has ended: nothing here is ours any more."""
        self.is_draining = self.is_over = True
        for handle in list(self.handles.values()):
            handle.holding = holding.lost(handle.holding)
            if handle.run is not None:
                handle.run.is_abandoned = True
            if handle.task is not None:
                handle.task.cancel()
        self.push.lose_all()


def _is_running(handle: Handle) -> bool:
    return isinstance(handle.state.phase, lifecycle.Running)


def _is_busy(handle: Handle) -> bool:
    return not isinstance(handle.state.phase, lifecycle.Idle) or handle.holding.epoch is not None
