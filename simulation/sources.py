"""Where records come from: sources that are read in one part or in many, and what a program has pushed.

A part's records are numbered from 0 and come into being a few at a time; they can be read again from any position. The
position of a source with named parts is a map, part → number; of one without, the number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from headgate.core.parts import UNNAMED
from headgate.core.streams import Position
from simulation.kernel import Loop, Signal

TOGETHER = 3  # Records that a part gets at a time.
NEVER_S = 1e6  # How often one that is idle gets some.

Read: TypeAlias = tuple[str, Sequence[int], Position]
"""A part, records of it, and the position once they are handled."""


class Source(Protocol):
    """What a run reads."""

    def open(self, position: Position) -> None:
        """Begin after this position."""

    def read(self, position: Position) -> Read | None:
        """What comes after this position, of one part; None: nothing yet."""

    def wait_s(self, position: Position) -> float:
        """How long until there is more."""

    @property
    def is_over(self) -> bool:
        """Whether there will never be more."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A system that sources read from."""

    loop: Loop
    parts: tuple[str, ...]
    every_s: float
    most: int  # In a batch.

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to read, ever."""
        return self.every_s == NEVER_S

    def ready(self) -> int:
        """The number of the newest record, of any part."""
        return int(self.loop.now_s / self.every_s) * TOGETHER - 1


class PartsSource:
    """Some parts of an origin, seen as one source."""

    def __init__(self, origin: Origin, parts: Sequence[str]) -> None:
        self._origin = origin
        self._parts = list(parts)

    @property
    def is_over(self) -> bool:
        """A stream that has no part has nothing to read."""
        return not self._parts

    def open(self, position: Position) -> None:
        """It can be read from anywhere."""

    def read(self, position: Position) -> Read | None:
        """The parts take turns."""
        origin = self._origin
        for _ in range(len(self._parts)):
            part = self._parts.pop(0)
            self._parts.append(part)
            first = self._next(position, part)
            records = range(first, min(origin.ready() + 1, first + origin.most))
            if records:
                at = records[-1] if origin.parts == UNNAMED else {**(position or {}), part: records[-1]}
                return part, records, at
        return None

    def wait_s(self, position: Position) -> float:
        """All parts get their records at the same time."""
        first = min(self._next(position, part) for part in self._parts)
        return max(0.01, (first // TOGETHER + 1) * self._origin.every_s - self._origin.loop.now_s)

    def _next(self, position: Position, part: str) -> int:
        at = position if self._origin.parts == UNNAMED else (position or {}).get(part)
        return 0 if at is None else int(at) + 1


class Feed:
    """What a program has pushed and what is not durable yet, in order.

    What has been handed on stays until it is durable, so that a run that failed can be followed by another.
    """

    is_over = False

    def __init__(self) -> None:
        self.news = Signal()
        self.ids: list[int] = []
        self._read = 0  # How many the present run has taken.

    def append(self, ids: Sequence[int]) -> None:
        """More records, after all others."""
        self.ids.extend(ids)
        self.news.set()

    def open(self, position: Position) -> None:
        """Begin a run: everything after this record is handed on, again if need be."""
        self._read = sum(1 for id in self.ids if position is not None and id <= position)

    def read(self, position: Position) -> Read | None:
        """Everything that has come in since."""
        found = self.ids[self._read :]
        self._read = len(self.ids)
        return ("", found, found[-1]) if found else None

    def wait_s(self, position: Position) -> float:
        """Until somebody sends something."""
        return 60.0

    def trim(self, position: Position) -> None:
        """Forget what is durable."""
        while self.ids and position is not None and self.ids[0] <= position:
            del self.ids[0]
            self._read = max(0, self._read - 1)

    def clear(self) -> None:
        """Forget everything: there will be no further run."""
        self.ids, self._read = [], 0
