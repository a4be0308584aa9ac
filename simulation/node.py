"""A simulated node: beat, observe, tick, and one manager for each incarnation.

Its decisions are those of `headgate.core`; only the loops around them are rewritten here, on virtual time. Like a real
node it trusts itself by its own clock alone, and writes nothing without trust. A write under way when trust ends is
cut off; but a process that was paused then cannot know it, so that its next step goes out before it looks at the clock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from headgate.core import lease, patience
from headgate.core.lease import Expired, Observer, Quiet, Trust
from headgate.core.lifecycle import STOP_S
from headgate.core.patience import Patience
from simulation.beats import BeatSession
from simulation.database import NodeRow
from simulation.dealing import Dealing
from simulation.group_host import GroupHost
from simulation.kernel import Cancelled, Process, Signal
from simulation.manager import Manager
from simulation.network import Away
from simulation.sinks import Batch, Outcome, PlainSink, Write
from simulation.store import Store, beat_of

if TYPE_CHECKING:
    from simulation.world import Machine, World

TRUST_POLL_S = 0.1
REJOIN_S = 1.0
RETRY_S = 1.0
SOONEST_S = 0.05  # Before a session that broke is opened again.
WRITE_WEIGHT = 12  # A stumble in the middle of a write is worth more than one anywhere else;
EXPIRE_WEIGHT = 100  # one between the look at a silent node and its end is worth most.


class Node:
    """One process."""

    def __init__(self, world: World, machine: Machine, process: Process) -> None:
        self.world = world
        self.machine = machine
        self.process = process
        self.store = Store(world.database, process)
        self._dealing = Dealing(world.database, process)
        self.trust = Trust(UUID(int=0))
        self.manager: Manager | None = None
        self.is_leaving = False
        self.has_left = False  # It no longer beats, so that whatever it could not give back is taken.
        self.groups = GroupHost(self) if world.groups else None
        self._observer = Observer({})
        self._patience = Patience()
        self._look = Signal()  # There may be free streams.
        self._broken = Signal()  # The session of the beats is gone.
        self._session: BeatSession | None = None
        self._retry_s = SOONEST_S
        self._writes: list[Write] = []
        self._watched_until_s = 0.0
        world.database.listen(process, self._look)
        process.spawn(self._live())

    @property
    def incarnation(self) -> UUID:
        """Who it is now."""
        return self.trust.incarnation

    def has_trust(self) -> bool:
        """Whether it may act."""
        return self.trust.left_s(self.process.clock_s()) > 0.0

    def knows(self, stream: UUID) -> bool:
        """Whether it is aware of having this stream, or of asking for it."""
        return self.manager is not None and self.manager.knows(stream)

    async def _live(self) -> None:
        await self._incarnate()
        for loop in (self._observe_loop(), self._tick_loop()):
            self.process.spawn(loop)
        while not self.has_left:
            sent_at_s = self.process.clock_s()
            if await self._beat():
                spent_s = self.process.clock_s() - sent_at_s
                await self._broken.wait(self.process, max(SOONEST_S, lease.BEAT_S - spent_s))
            else:
                await self.process.sleep(self._retry_s)
                self._retry_s = min(2 * self._retry_s, lease.BEAT_S)

    # Incarnations.

    async def _incarnate(self) -> None:
        """Join under a new id. An attempt that may have been carried out leaves a row that falls silent."""
        while True:
            row = NodeRow(self.world.new_incarnation(self.machine.name), self.machine.name, lease.LEASE_S)
            try:
                await self.store.join(row)
                break
            except Away:
                await self.process.sleep(REJOIN_S)
        self.trust = Trust(row.id)
        self._session = BeatSession(self.world.database, self.process, row.id, is_pooled=self.machine.is_pooled)
        self._session.when_broken(self._broken.set)
        self.manager = Manager(self)
        self.world.note((self.machine.name,), "is now {}", row.id.int & 0xFFFF)
        await self._beat()

    async def _beat(self) -> bool:
        """One beat. False: there was no answer."""
        sent_at_s = self.process.clock_s()
        self.world.faults.beating(self.machine)
        assert self._session is not None
        try:
            alive = await self._session.beat()
        except Away:
            return False
        self._retry_s = SOONEST_S
        if alive:
            self._trust_from(sent_at_s)
        else:
            await self._refused()
        return True

    def _trust_from(self, sent_at_s: float) -> None:
        self.trust = lease.beat_answered(self.trust, sent_at_s)
        self._watch_trust()

    async def _refused(self) -> None:
        """Somebody found us dead: everything we held is somebody else's by now."""
        self.world.note((self.machine.name,), "was taken for dead")
        over, is_in_doubt = self.incarnation, self._is_in_doubt()
        self.trust = lease.beat_refused(self.trust)
        self._let_go()
        if self.manager is not None:
            self.manager.lose_all()
        if self.groups is not None:
            self.groups.lose_all()
        self._cut_writes()
        if not is_in_doubt:
            self.process.spawn(self._give_up(over))
        if not self.is_leaving:
            await self._incarnate()

    def _is_in_doubt(self) -> bool:
        """Whether something that we write now may arrive whatever we do, and is not fenced."""
        return any(isinstance(self.world.sinks[write.batch.sink], PlainSink) for write in self._writes)

    async def _give_up(self, incarnation: UUID) -> None:
        """Nothing of this incarnation runs any more: nobody has to wait for the end of its lease."""
        while True:
            try:
                if await self.store.end(incarnation):
                    self.world.trace.count("given up before its lease was over")
                return
            except Away:
                await self.process.sleep(RETRY_S)

    def _let_go(self) -> None:
        if self._session is not None:
            self._session.close()

    async def leave(self) -> None:
        """SIGTERM: give everything back, end the incarnation, and end the process."""
        self.is_leaving = True
        manager = self.manager
        with contextlib.suppress(Away):
            await self.store.set_draining(self.incarnation, True)
        if manager is not None:
            manager.drain(True)
            until_s = self.process.clock_s() + STOP_S + 1.0
            while not manager.is_idle() and self.has_trust() and self.process.clock_s() < until_s:
                await self.process.sleep(0.05)
            manager.lose_all()
        if self.groups is not None:
            self.groups.lose_all()
        self._cut_writes()
        self.has_left = True
        self._let_go()
        with contextlib.suppress(Away):
            await self.store.end(self.incarnation)
        self.machine.ended(self.process)

    # Others.

    async def _observe_loop(self) -> None:
        while True:
            await self.process.sleep(lease.next_look_s(self._observer, self.process.clock_s()))
            asked_at_s = self.process.clock_s()
            try:
                rows = await self.store.observe()
            except Away:
                self._observer = lease.unanswered(self._observer)
                continue
            for one in self._observed(rows, asked_at_s):
                await self.process.spawn(self._expire(one), EXPIRE_WEIGHT).ended
            others = [beat_of(row) for row in rows if row.id in self._observer.seen]
            for late in lease.quiet(self._observer, others, asked_at_s):
                await self.process.spawn(self._end_early(late), EXPIRE_WEIGHT).ended

    async def _expire(self, one: Expired) -> None:
        try:
            if await self.store.expire(one, self.incarnation):
                self._look.set()
        except Away:
            self._observer = lease.unanswered(self._observer)

    async def _end_early(self, late: Quiet) -> None:
        try:
            if await self.store.end_early(late, self.incarnation):
                self._look.set()
        except Away:
            self._observer = lease.unanswered(self._observer)

    def _observed(self, rows: Sequence[NodeRow], asked_at_s: float) -> list[Expired]:
        """Take in what was seen of the others, and of an operator's wish for us."""
        me = self.incarnation
        beats = [beat_of(row) for row in rows if row.id != me]
        self._observer, expired = lease.observed(self._observer, beats, asked_at_s, self.process.clock_s())
        draining = [row for row in rows if row.id == me and row.draining_since_s is not None]
        if self.manager is not None:
            self.manager.drain(bool(draining) or self.is_leaving)
        return expired

    async def _tick_loop(self) -> None:
        while True:
            await self._look.wait(self.process, lease.OBSERVE_S)
            if not self.has_trust():
                continue
            silent = lease.silent(self._observer, self.process.clock_s())
            try:
                if await self.store.place(silent, partial(self.world.faults.placing, self.machine)):
                    self.world.database.wake()
                await self._dealing.act()
                await self._take_from_the_stuck()
            except Away:
                continue

    async def _take_from_the_stuck(self) -> None:
        """A holder abandons a run that does not stop in time. One that does not even do that loses the stream."""
        standing = await self.store.standing_orders()
        now_s = self.process.clock_s()
        self._patience = patience.seen(self._patience, standing, now_s)
        for order in patience.overdue(self._patience, standing, now_s):
            self.world.trace.count("taken from a holder that does not step down")
            await self.store.take(order, self.incarnation)

    # Acting.

    async def write(self, batch: Batch, is_wanted: Callable[[], bool]) -> Outcome:
        """Make a batch durable, if and as long as we may act. Waits for trust, and is cut off when it ends."""
        while not self._may_write():
            await self.process.sleep(TRUST_POLL_S)
        if not is_wanted():
            return "fenced"  # Lost while it waited.
        write = Write(batch, self.incarnation, self.world.loop.now_s, self.process)
        write.task = self.process.spawn(self.world.sinks[batch.sink].write(write), WRITE_WEIGHT)
        self._writes.append(write)
        try:
            outcome = await write.task.ended
        except Cancelled:
            write.task.cancel()
            raise
        finally:
            self._writes.remove(write)
        return outcome or "failed"

    def _may_write(self) -> bool:
        return self.has_trust()

    def _cut_writes(self) -> None:
        for write in self._writes:
            if write.task is not None:
                write.task.cancel()

    def _watch_trust(self) -> None:
        """Cut off what is under way when trust ends: one timer for all."""
        now_s = self.process.clock_s()
        if now_s >= self._watched_until_s:
            self._watched_until_s = self.trust.until_s
            self.process.after(self.trust.until_s - now_s, self._trust_may_have_ended)

    def _trust_may_have_ended(self) -> None:
        now_s = self.process.clock_s()
        left_s = self.trust.left_s(now_s)
        if left_s > 1e-9:
            self._watched_until_s = self.trust.until_s
            self.process.after(left_s, self._trust_may_have_ended)
        else:
            self._watched_until_s = now_s
            self.trust_ended()

    def trust_ended(self) -> None:
        """A write that lasts longer than our trust is cut off, not awaited."""
        self._cut_writes()
