"""The part of a group's epoch that programs see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Turn:
    """The time in which this program is the active one of its group; `Consumer.turn` makes it.

    A turn ends when the program is done with it, or when the consumer may no longer believe in it, and does
    not come back: the next one has a higher epoch.
    """

    def __init__(
        self,
        consumer: str,
        epoch: int,
        partition: int | None,
        is_believed: Callable[[str, int], bool],
        finish: Callable[[str, int], None],
    ) -> None:
        self.consumer = consumer
        self.epoch = epoch
        self.partition = partition
        self._is_believed = is_believed
        self._finish = finish
        self._asked = asyncio.Event()
        self._over = asyncio.Event()

    def __repr__(self) -> str:
        return f"Turn(epoch={self.epoch}, partition={self.partition}, holds={self.holds})"

    @property
    def holds(self) -> bool:
        """Whether the program may continue. It reads the clock each time: ask before each piece of work."""
        return not self._over.is_set() and self._is_believed(self.consumer, self.epoch)

    @property
    def stepping(self) -> bool:
        """Whether the program was asked to finish. The turn still holds, until it is done."""
        return self._asked.is_set() and self.holds

    async def asked(self) -> None:
        """Wait until the program is asked to finish, or the turn is over."""
        await self._asked.wait()

    async def over(self) -> None:
        """Wait until the turn is over."""
        await self._over.wait()

    async def done(self) -> None:
        """The program has finished, and does nothing more under this epoch.

        If the program was asked to finish, the consumer confirms that, and keeps its place in the group for the next
        turn. If not, it gives the turn back: it leaves the group and joins it again, after the others.
        """
        if not self._over.is_set():
            self._finish(self.consumer, self.epoch)

    def ask(self) -> None:
        """The group would like it back."""
        self._asked.set()

    def end(self) -> None:
        """It is over."""
        self._over.set()
        self._asked.set()
