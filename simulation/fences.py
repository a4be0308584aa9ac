"""What the programs of a fenced group write to: a number that each of them counts up, behind a fence.

A program whose turn begins raises the epoch and reads the number, in one step. Then it writes the next number, and the
next, each under its epoch. A write under a lower epoch than the highest is refused. So if two are at work at once, only
one of them counts; if ever both did, a number would be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from simulation.kernel import Process

if TYPE_CHECKING:
    from simulation.world import World

SLOW = 0.15  # The share of requests that take long,
SLOWEST_S = 4.0  # and how long at most: another turn may begin meanwhile.


class Resource:
    """One number, and its fence."""

    def __init__(self, world: World, group: UUID) -> None:
        self._world = world
        self._group = group
        self.epoch = 0
        self.value = 0

    def begin(self, client: Process, epoch: int, reply: Callable[[int | None], None]) -> None:
        """Raise the epoch, then read. None is the answer to one that comes too late."""
        self._send(client, lambda: self._begin(epoch), reply)

    def write(self, client: Process, epoch: int, value: int, reply: Callable[[int | None], None]) -> None:
        """Write the next number. None: refused."""
        self._send(client, lambda: self._write(epoch, value), reply)

    def _send(self, client: Process, work: Callable[[], int | None], reply: Callable[[int | None], None]) -> None:
        loop = self._world.loop

        def arrive() -> None:
            found = work()
            loop.after(self._world.network.delay_s(), client.run, lambda: reply(found))

        loop.after(self._latency_s(), arrive)

    def _latency_s(self) -> float:
        random = self._world.random
        return self._world.network.delay_s() + (random.random() * SLOWEST_S if random.random() < SLOW else 0.0)

    def _begin(self, epoch: int) -> int | None:
        if epoch < self.epoch:
            self._refuse()
            return None
        self.epoch = epoch
        return self.value

    def _write(self, epoch: int, value: int) -> int | None:
        if epoch < self.epoch:
            self._refuse()
            return None
        self._world.group_checkers.written(self._group, self.value, value)
        self.value = value
        return value

    def _refuse(self) -> None:
        self._world.trace.count("groups: refused by a fence")
