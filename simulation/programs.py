"""Programs outside of the nodes that take turns in a group: what one may believe is `core.groups.belief`.

Each has its own process and clock; it is killed, paused and cut off like a node. In its turn it acts many times
a second, and before each act it asks its belief. In a fenced group it acts on what has a fence (`fences`). Some are
slow to finish when they are asked to, some never do by themselves, and some finish without being asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from headgate.core.frames import VERSION, GroupFromNode, JoinedFrame, JoinFrame, LeaveFrame
from headgate.core.groups import belief
from headgate.core.groups.belief import (
    BeatDue,
    Belief,
    GiveUpConnection,
    GoodbyeSent,
    Heard,
    LinkLost,
    ReportError,
    Say,
    Standing,
    TimePassed,
    WorkFinished,
)
from simulation.kernel import Process
from simulation.pipes import Pipe

if TYPE_CHECKING:
    from simulation.world import Machine, World

TICK_S = 0.1
OPEN_S = 5.0  # A connection that is not answered by then is given up.
SLOW_S = 14.0  # Longer than an order may stay unanswered.


class Program:
    """One program, in one group, over all its processes."""

    def __init__(
        self, world: World, name: str, group: UUID, partition: int | None, rate: float, *, is_fenced: bool
    ) -> None:
        self.name = name
        self.group = group
        self.is_fenced = is_fenced  # What it writes carries the epoch.
        self.belief = Belief()
        self.pipe: Pipe | None = None
        self._world = world
        self._partition = partition
        self._rate = rate
        self._lease_s = world.random.choice((3.0, 5.0, 10.0))
        self._about = (name, world.name(group))
        self._turn: tuple[str, int] | None = None
        self._ends_at_s = 0.0  # When it will have finished, once it is asked to.
        self._value: int | None = None  # What a fenced one has read or written last, in this turn.
        self._waits = False  # For an answer to that.
        self._attempts = 0
        self.process = self._begin()

    def _begin(self) -> Process:
        self.process = Process(self._world.loop, self.name, self._rate, self._world.random.uniform(0.0, 1e6))
        self.belief, self.pipe, self._turn = Belief(), None, None
        self._attempts += 1
        self.process.spawn(self._live())
        self.process.after(self._world.random.random(), self._connect)
        return self.process

    def believes(self) -> str | None:
        """Under which consumer and epoch it may act now, if it may."""
        one = self.belief
        if not self.process.is_alive or one.consumer is None:
            return None
        return f"{one.epoch}" if one.holds(one.consumer, one.epoch, self.process.clock_s()) else None

    # Faults.

    def kill(self) -> bool:
        """kill -9; another process follows."""
        if not self.process.is_alive:
            return False
        self._world.note(self._about, "is killed")
        self.process.kill()
        if self.pipe is not None:
            self.pipe.cut()
        self._world.loop.after(self._world.random.uniform(0.2, 8.0), self.start)
        return True

    def start(self) -> None:
        """A new process, unless there is one. It remembers nothing."""
        if not self.process.is_alive:
            self._begin()

    # Connections.

    def _connect(self) -> None:
        if self.pipe is not None:
            return
        self._attempts += 1
        attempt, world = self._attempts, self._world
        machine = world.random.choice(world.machines)
        world.loop.after(world.network.delay_s(), self._reach, machine, attempt)
        self.process.after(OPEN_S, lambda: self._give_up(attempt))

    def _give_up(self, attempt: int) -> None:
        """No answer to join, or to the attempt to connect."""
        if attempt == self._attempts and not self.belief.is_connected:
            if self.pipe is not None:
                self.pipe.cut()
                self.pipe = None
            self._again()

    def _reach(self, machine: Machine, attempt: int) -> None:
        if machine.process is not None:
            machine.process.run(lambda: self._accepted_by(machine, attempt))

    def _accepted_by(self, machine: Machine, attempt: int) -> None:
        node = machine.node
        if attempt != self._attempts or self.pipe is not None or node is None or node.groups is None:
            return
        if node.process is machine.process and node.has_trust():
            self.pipe = Pipe(self._world.network, self, node.groups, node.process)
            machine.pipes.append(self.pipe)
            name, group, consumer = self._world.name(self.group), str(self.group), self.belief.consumer
            who = self._partition, self.name, consumer, self._lease_s, self.is_fenced
            join = JoinFrame(VERSION, "", name, group, *who)
            self.pipe.to_node(join)

    def received(self, pipe: Pipe, frame: GroupFromNode) -> None:
        """The node says something: read at once, or when the process goes on."""
        self.process.run(lambda: self._heard(pipe, frame))

    def _heard(self, pipe: Pipe, frame: GroupFromNode) -> None:
        if pipe is not self.pipe or not pipe.is_open:
            return
        self._world.note(self._about, "hears {}", frame)
        is_first = isinstance(frame, JoinedFrame) and not self.belief.is_connected
        self._step(Heard(frame, self.process.clock_s()))
        if is_first and self.pipe is pipe:
            self._beat(pipe)
        self._look()

    def _beat(self, pipe: Pipe) -> None:
        if pipe is self.pipe and self.belief.standing is not Standing.LEAVING:
            self._step(BeatDue(self.process.clock_s()))
            self.process.after(self.belief.beat_s, lambda: self._beat(pipe))

    def lost(self, pipe: Pipe) -> None:
        """A connection has broken."""
        self.process.run(lambda: self._lost(pipe))

    def _lost(self, pipe: Pipe) -> None:
        if pipe is self.pipe:
            self.pipe = None
            self._step(LinkLost())
            self._look()
            self._again()

    def _again(self) -> None:
        self.process.after(0.05 + self._world.random.random(), self._connect)

    def _step(self, event: belief.Event) -> None:
        """What happened, and what follows from it."""
        done = belief.step(self.belief, event)
        self.belief = done.belief
        self._world.group_checkers.believed(self)
        for effect in done.effects:
            match effect:
                case Say(frame=frame):
                    if self.pipe is not None:
                        self.pipe.to_node(frame)
                        if isinstance(frame, LeaveFrame):
                            self._said_goodbye(self.pipe)
                case GiveUpConnection() | ReportError():
                    if self.pipe is not None:
                        self.pipe.close_by_client()
                        self._lost(self.pipe)

    def _said_goodbye(self, pipe: Pipe) -> None:
        self.pipe = None
        pipe.close_by_client()
        self._step(GoodbyeSent())
        self._step(LinkLost())
        self._again()

    # Turns.

    async def _live(self) -> None:
        while True:
            await self.process.sleep(TICK_S)
            self._look()
            self._act()

    def _look(self) -> None:
        """Have the turn follow the belief."""
        now_s = self.process.clock_s()
        self._step(TimePassed(now_s))
        one = self.belief
        if self._turn is not None and not one.holds(*self._turn, now_s):
            self._world.note(self._about, "ends its turn {}", self._turn[1])
            self._turn = None
        if one.standing is Standing.OVER and self.pipe is not None:
            self.pipe.cut()
        if self._turn is None and one.consumer is not None and one.holds(one.consumer, one.epoch, now_s):
            self._turn = (one.consumer, one.epoch)
            self._ends_at_s = 0.0
            self._value, self._waits = None, False
            self._world.note(self._about, "begins its turn {}", one.epoch)
            self._world.group_checkers.began(self, one.consumer, one.epoch)

    def _act(self) -> None:
        now_s, random = self.process.clock_s(), self._world.random
        if self._turn is None or not self.belief.holds(*self._turn, now_s):
            return
        self._world.group_checkers.acted(self, self._turn[1])
        if self.is_fenced and not self._waits:
            self._count(self._turn)
        is_asked = self.belief.standing is Standing.STEPPING
        if is_asked and self._ends_at_s == 0.0:
            is_slow = random.random() < 0.4 and not self._world.is_healed
            self._ends_at_s = now_s + (SLOW_S if is_slow else random.random())
        if (is_asked and now_s >= self._ends_at_s) or (random.random() < 0.004 and not self._world.is_healed):
            self._step(WorkFinished(*self._turn, now_s))
            self._look()

    def _count(self, turn: tuple[str, int]) -> None:
        """One more, behind the fence; in the beginning, the fence itself."""
        resource, epoch, self._waits = self._world.resources[self.group], turn[1], True

        def answered(value: int | None) -> None:
            if turn == self._turn:
                self._waits = value is None  # One that is refused does nothing more.
                self._value = value

        if self._value is None:
            resource.begin(self.process, epoch, answered)
        else:
            resource.write(self.process, epoch, self._value + 1, answered)
