"""Failures that come in floods are recorded in numbers: when to write them down.

The first failure is written a second later, with what came in that second; what follows is counted for a minute, then
for an hour at a time, as long as it goes on. After a quiet time it starts over. So a flood of any size is a few events.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

LENGTHS_S = (1.0, 60.0, 3600.0)


@dataclass(frozen=True, slots=True)
class Tally:
    """How long failures are counted together now."""

    level: int = 0  # Into `LENGTHS_S`.
    began_s: float | None = None  # None: there is nothing to write down.
    ended_s: float = 0.0  # When the last one was written down.

    @property
    def due_s(self) -> float | None:
        """When it is to be written down."""
        return None if self.began_s is None else self.began_s + LENGTHS_S[self.level]


def failed(tally: Tally, now_s: float) -> Tally:
    """One more failure."""
    if tally.began_s is not None:
        return tally
    is_new = now_s - tally.ended_s > LENGTHS_S[tally.level]
    return Tally(0 if is_new else tally.level, now_s, tally.ended_s)


def written(tally: Tally, now_s: float) -> Tally:
    """It was written down."""
    return replace(tally, level=min(tally.level + 1, len(LENGTHS_S) - 1), began_s=None, ended_s=now_s)
