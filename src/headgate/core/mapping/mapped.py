"""What a mapping makes of a batch: each record that was read is mapped, filtered or failed, and none is lost.

The unit is the record after `unnest`, so one input may stand for many. `read` is counted where records are taken, apart
from the lists in which they end, so that the two can be held against each other (`is_lawful`).
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from headgate.core.mapping.mistakes import UnreadableError, reason_of
from headgate.core.records import Stage
from headgate.text import one_line

REASON_LIMIT = 200


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """A record that cannot be mapped. It repeats no value of the record."""

    index: int  # Of the input record.
    element: int | None  # Of its unnested list; None: the record as a whole.
    stage: Stage
    field: str | None  # The part and field of the mapping at fault, such as `set.total`.
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}" if self.field else self.reason


@dataclass(slots=True)
class Mapped:
    """What has become of a batch so far."""

    records: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    failed: list[FailedRecord] = dataclasses.field(default_factory=list)
    filtered: list[int] = dataclasses.field(default_factory=list)  # Indexes of inputs; an empty list counts as one.
    deletes: list[int] = dataclasses.field(default_factory=list)  # Those of `records` that say what is to be deleted.
    read: int = 0
    # For each of `records` where it came from; None if each input gives one record at most.
    origins: list[tuple[int, int | None]] | None = None
    _gone: list[int] = dataclasses.field(default_factory=list, repr=False, compare=False)

    @property
    def is_lawful(self) -> bool:
        """Whether all that was read is accounted for."""
        return self.read == len(self.records) + len(self.filtered) + len(self.failed)

    def origin(self, number: int) -> tuple[int, int | None]:
        """From which input record, and which element of its list, an output record came."""
        if self.origins is not None:
            return self.origins[number]
        if len(self._gone) != len(self.filtered) + len(self.failed):
            self._gone = sorted([*self.filtered, *(failed.index for failed in self.failed)])
        # Before the input at `gone[n]`, n others are gone; the rest were kept.
        gone = self._gone
        return number + bisect_right(range(len(gone)), number, key=lambda n: gone[n] - n), None

    def take(self, index: int, element: int | None, made: object) -> None:
        """Add what a Python function made of a record: nothing, one record, or a list of them."""
        assert self.origins is not None
        if isinstance(made, list) and made:
            self.read += len(made) - 1
            self.records += made
            self.origins += [(index, number) for number in range(len(made))]
        elif isinstance(made, dict):
            self.records.append(made)
            self.origins.append((index, element))
        else:
            self.filtered.append(index)

    def undo(self, index: int) -> None:
        """Forget what an input's elements have become: they are mapped again, with more to spend."""
        assert self.origins is not None
        while self.origins and self.origins[-1][0] == index:
            self.origins.pop()
        del self.records[len(self.origins) :]
        while self.filtered and self.filtered[-1] == index:
            self.filtered.pop()
        while self.failed and self.failed[-1].index == index:
            self.failed.pop()
        while self.deletes and self.deletes[-1] >= len(self.records):
            self.deletes.pop()


def failed_record(blame: dict[int, str], error: Exception, index: int, element: int | None) -> FailedRecord:
    """Say what went wrong, and in which part, by the line of the function that the error left."""
    trace = error.__traceback__
    field = blame.get(trace.tb_lineno) if trace is not None else None
    stage: Stage = "source" if isinstance(error, UnreadableError) else "mapping"
    return FailedRecord(index, element, stage, field or None, one_line(reason_of(error), REASON_LIMIT))
