"""How far each part of a source is, counted without a break for as long as nobody says where to begin.

An *era* of a part begins with an operator's edit, or with another source or sink, at the position that the registry
had then. Another deal does not begin one: whichever stream reads the part from then on goes on where the last one was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from headgate.core.parts import UNNAMED
from headgate.core.streams import Stream


class Eras:
    """The eras of all parts of all streams."""

    def __init__(self) -> None:
        self._eras: dict[tuple[UUID, int, str], int] = {}  # By stream, generation and part.
        self._begins: dict[tuple[UUID, int], Mapping[str, int]] = {}
        self._bases: list[int] = []
        self._reached: dict[int, int] = {}

    def begin(self, stream: UUID, generation: int, positions: Mapping[str, int]) -> None:
        """Somebody has said where this stream begins."""
        self._begins[stream, generation] = positions

    def era(self, stream: UUID, generation: int, part: str) -> int:
        """The era that this stream is in, with one of its parts."""
        key = (stream, generation, part)
        if key not in self._eras:
            self._eras[key] = len(self._bases)
            self._bases.append(self._begins.get((stream, generation), {}).get(part, -1))
        return self._eras[key]

    def base(self, era: int) -> int:
        """The record before the first that is due in an era."""
        return self._bases[era]

    def reached(self, era: int) -> int:
        """The last record that has arrived, in order."""
        return self._reached.get(era, self._bases[era])

    def reach(self, era: int, index: int) -> None:
        """Records up to this one have arrived."""
        self._reached[era] = index

    def dealt(self, before: Sequence[Stream], after: Sequence[Stream], parts: Sequence[str]) -> None:
        """Each part goes on in its era, with the stream that reads it from now on."""
        for place, part in enumerate(parts or UNNAMED):
            old, new = before[place % len(before)], after[place % len(after)]
            self._eras[new.id, new.progress.generation, part] = self.era(old.id, old.progress.generation, part)


def positions_of(position: Any) -> Mapping[str, Any]:
    """What a position says of each part that it names."""
    if isinstance(position, Mapping):
        return position
    return {} if position is None else {"": position}
