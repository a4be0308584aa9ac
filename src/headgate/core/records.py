"""What becomes of records: each one read is written, filtered or dead-lettered, and the totals say so.

The unit is the record after `unnest`. The totals belong to the stream: they are kept with its progress, in a
transactional sink exactly, so they survive a stop, a move, a crash and a new version. `read` is counted where records
are read and the others where they end, so that a record which got lost between the two would show: `add` holds the law
for every batch, and a batch that breaks it is a bug that stops the stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

OnError: TypeAlias = Literal["dead_letter", "skip", "fail"]
"""What becomes of a record that cannot be mapped or written: kept as a letter, discarded, or the stream stops."""

Stage: TypeAlias = Literal["source", "mapping", "sink"]
"""Where a record failed: it could not be read as what it should be, not be mapped, or not be written."""


@dataclass(frozen=True, slots=True)
class Totals:
    """All that a stream has ever handled."""

    read: int = 0
    written: int = 0
    filtered: int = 0  # Left out by the mapping's `where`.
    dead_lettered: int = 0  # Never falls, whatever becomes of the letters.
    skipped: int = 0  # Those of the dead-lettered that `on_error: skip` discarded at once.

    @property
    def is_lawful(self) -> bool:
        """Whether every record that was read is accounted for."""
        return self.read == self.written + self.filtered + self.dead_lettered and self.skipped <= self.dead_lettered


NOTHING = Totals()


def add(totals: Totals, batch: Totals) -> Totals:
    """The totals after a batch."""
    assert batch.is_lawful, f"a batch does not add up: {batch}"
    return Totals(
        totals.read + batch.read,
        totals.written + batch.written,
        totals.filtered + batch.filtered,
        totals.dead_lettered + batch.dead_lettered,
        totals.skipped + batch.skipped,
    )


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A payload that is not what its source should have, in place of the record that it would have been."""

    body: bytes
    reason: str  # Without a word of the body.
