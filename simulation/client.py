"""A program that pushes: it keeps what is not acknowledged, asks again wherever it can, and finally ends its stream.

Its records are numbered by their index in a sequence that everybody knows; what it sends are ids, which have gaps. It
lives outside of the nodes: no fault stops it, but its connections break.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from simulation.pipes import Pipe

if TYPE_CHECKING:
    from simulation.world import Machine, World

PATIENCE_S = 6.0  # Three missed beats of the node.
MOST = 20  # Records in a frame.


@dataclass(frozen=True, slots=True)
class Sequence:
    """The records of a pushed stream: ids that rise, with gaps, the first may be 0."""

    first: int
    stride: int
    per_second: float

    def id(self, index: int) -> int:
        """The id of a record."""
        return self.first + index * self.stride

    def index(self, id: int | None) -> int:
        """The index of a record; -1 for none."""
        return -1 if id is None else (id - self.first) // self.stride

    def ready(self, now_s: float) -> int:
        """How many there are by now."""
        return int(now_s * self.per_second)


class Client:
    """One program, pushing one stream."""

    def __init__(self, world: World, name: str, stream: UUID, sequence: Sequence, is_forgetful: bool) -> None:
        self.name = name
        self.stream = stream
        self.sequence = sequence
        self.acked = -1  # The last index that is known to be durable.
        self.is_done = False
        self.is_cut_asking = False  # Its next request will not be answered.
        self.pipe: Pipe | None = None
        self._world = world
        self._is_forgetful = is_forgetful  # Sends everything again that it has kept, whatever position it is told.
        self._ends_at_s: float | None = None  # Nothing more is produced after this.
        self._next = 0  # The index to send next.
        self._is_open = False
        self._is_ending = False
        self._grants = 0
        self._heard_at_s = 0.0
        self._attempt = 0
        self._machine: Machine | None = None
        self._about = (name, world.name(stream))
        world.loop.after(world.random.random() * 3.0, self._connect, 0)
        world.loop.after(1.0, self._watch)

    def finish(self) -> None:
        """Produce no more; what there is has to get through."""
        self._ends_at_s = self._world.loop.now_s

    # Connections.

    def _connect(self, attempt: int) -> None:
        if self.is_done or attempt != self._attempt:
            return
        self._attempt += 1
        self._heard_at_s = self._world.loop.now_s
        others = [machine for machine in self._world.machines if machine is not self._machine]
        self._machine = self._world.random.choice(others or self._world.machines)
        self._world.loop.after(self._world.network.delay_s(), self._reach, self._machine, self._attempt)

    def _reach(self, machine: Machine, attempt: int) -> None:
        process = machine.process
        if process is None or not process.is_alive:
            self._again()
        else:
            # A process that is paused takes the connection when it goes on; by then we may have given up.
            process.run(lambda: self._accepted_by(machine, attempt))

    def _accepted_by(self, machine: Machine, attempt: int) -> None:
        node = machine.node
        if attempt != self._attempt or self.pipe is not None:
            return
        if node is None or node.manager is None or node.manager.is_over or node.process is not machine.process:
            self._again()
            return
        self.pipe = Pipe(self._world.network, self, node.manager.push, node.process)
        machine.pipes.append(self.pipe)
        self._world.note((*self._about, machine.name), "connected")
        self._notify()

    def lost(self, pipe: Pipe) -> None:
        """A connection has broken."""
        if pipe is self.pipe:
            self.pipe, self._is_open, self._is_ending = None, False, False
            self._world.note(self._about, "lost its connection")
            self._again()

    def _again(self) -> None:
        attempt = self._attempt
        self._world.loop.after(0.05 + self._world.random.random() * 0.5, self._connect, attempt)

    def _watch(self) -> None:
        """Close when nothing is heard of the other side."""
        now_s = self._world.loop.now_s
        if self._is_open and not self._is_ending and self._next - 1 <= self.acked:
            self._heard_at_s = now_s  # Nothing is expected.
        elif now_s - self._heard_at_s > PATIENCE_S and not self.is_done:
            self._heard_at_s = now_s
            if self.pipe is not None:
                self.pipe.cut()
            else:
                self._connect(self._attempt)
        self._world.loop.after(1.0, self._watch)

    # Frames.

    def received(self, pipe: Pipe, frame: tuple[Any, ...]) -> None:
        """The node says something."""
        if pipe is not self.pipe or not pipe.is_open:
            return
        self._heard_at_s = self._world.loop.now_s
        self._world.note(self._about, "hears {}", frame[0:1] + frame[2:])
        match frame:
            case ("accepted", _, epoch, position):
                self._accepted(epoch, self.sequence.index(position))
            case ("refused", _, _, retry_after_ms):
                self._world.loop.after(retry_after_ms / 1000 * (0.5 + self._world.random.random()), self._retry, pipe)
            case ("ack", _, position):
                self._acked(self.sequence.index(position))
            case ("closed", _, position):
                self._closed(self.sequence.index(position))
            case ("restart", stream, _):
                self._is_open = self._is_ending = False
                if stream is not None:
                    self._world.loop.after(0.1, self._retry, pipe)
                else:
                    self._leave(pipe)
            case ("error", _, code):
                self._world.checkers.client_blamed(self, code)

    def _leave(self, pipe: Pipe) -> None:
        """Go elsewhere."""
        self.pipe = None
        pipe.close_by_client()
        self._again()

    def _retry(self, pipe: Pipe) -> None:
        if pipe is self.pipe and not self._is_open and not self.is_done:
            self._notify()

    def _notify(self) -> None:
        if self.pipe is not None:
            self.pipe.to_node(("notify", self.stream))
            if self.is_cut_asking:
                self.is_cut_asking = False
                self._world.loop.after(self._world.random.random() * 0.02, self.pipe.cut, 0.005)

    def _accepted(self, epoch: int, index: int) -> None:
        self._world.checkers.client_accepted(self, epoch, index)
        self._is_open = True
        self._next = self.acked + 1 if self._is_forgetful else index + 1
        self.acked = max(self.acked, index)
        self._grants += 1
        self._pump(self._grants)

    def _acked(self, index: int) -> None:
        self._world.checkers.client_acked(self, index)
        self.acked = max(self.acked, index)

    def _closed(self, index: int) -> None:
        self._world.checkers.client_closed(self, index, self._next - 1)
        self.acked = max(self.acked, index)
        self._is_open = self._is_ending = False
        if self._ends_at_s is not None and self.acked + 1 >= self._total():
            self.is_done = True
            if self.pipe is not None:
                self.pipe.close_by_client()
            self.pipe = None
        else:
            self._world.loop.after(0.05 + self._world.random.random(), self._retry, self.pipe)

    # Records.

    def _total(self) -> int:
        now_s = self._world.loop.now_s
        return self.sequence.ready(now_s if self._ends_at_s is None else min(now_s, self._ends_at_s))

    def _pump(self, grant: int) -> None:
        """Send what there is; once there is no more, say so, and now and then before."""
        pipe = self.pipe
        if pipe is None or grant != self._grants or not self._is_open or self._is_ending:
            return
        total = self._total()
        if self._next < total:
            until = min(total, self._next + MOST)
            pipe.to_node(("messages", self.stream, [self.sequence.id(index) for index in range(self._next, until)]))
            self._next = until
        if self._next >= total and (self._ends_at_s is not None or self._world.random.random() < 0.05):
            self._is_ending = True
            pipe.to_node(("eos", self.stream))
            return
        self._world.loop.after(0.05 + self._world.random.random() * 0.2, self._pump, grant)
