"""Records on their way from a program to a batch, and where a batch may end.

A program says its records one by one, and now and then its *state*: from there it could go on. A batch ends at a
state, because the state is the position of all records before it. Records after the last state have no position that
is theirs. If no state comes, they are handed on all the same, with the position of before, when they are many, when
they have waited for long, or when the program has ended: at least once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headgate.connectors.api import Batch
from headgate.core.records import Unreadable

ENOUGH = 5_000  # Records of a batch, if a state comes after them,
ENOUGH_BYTES = 4 * 1024 * 1024  # or bytes.
MOST = 20_000  # Records without a state: they are handed on,
MOST_BYTES = 32 * 1024 * 1024  # or bytes.
HOLD_S = 5.0  # How long records wait for a state.


@dataclass(slots=True)
class Gathered:
    """What has come and is in no batch yet."""

    state: Any = None  # That of the last batch, or of now if nothing waits before it.
    records: list[Any] = field(default_factory=list)
    meta: list[Any] = field(default_factory=list)
    size_bytes: int = 0
    since_s: float = 0.0  # When the first of the records came.
    _marked: int = 0  # How many of the records the latest state is behind,
    _marked_bytes: int = 0
    _latest: Any = None  # and that state.

    def add(self, record: Any, meta: Any, size_bytes: int) -> None:
        """A record, or what is there in place of one."""
        self.records.append(record)
        self.meta.append(meta)
        self.size_bytes += size_bytes

    def add_unreadable(self, body: bytes, reason: str, size_bytes: int) -> None:
        """A line that should have been a record."""
        self.add(Unreadable(body, reason), None, size_bytes)

    def mark(self, state: Any) -> None:
        """The program could go on from here."""
        if not self.records:
            self.state = state
            return
        self._marked, self._marked_bytes, self._latest = len(self.records), self.size_bytes, state

    @property
    def has_state(self) -> bool:
        """Whether a batch could end at a state."""
        return self._marked > 0

    @property
    def is_full(self) -> bool:
        """Whether there is enough for a batch."""
        is_enough = self._marked >= ENOUGH or self._marked_bytes >= ENOUGH_BYTES
        return is_enough or len(self.records) >= MOST or self.size_bytes >= MOST_BYTES

    def full(self) -> Batch | None:
        """A batch, if there is enough for one."""
        return (self.marked() or self.rest()) if self.is_full else None

    def marked(self) -> Batch | None:
        """What has come before the latest state."""
        count = self._marked
        if not count:
            return None
        self.state = self._latest
        found = Batch(self.records[:count], {"state": self.state}, self._marked_bytes, meta=self.meta[:count])
        self.records, self.meta = self.records[count:], self.meta[count:]
        self.size_bytes -= self._marked_bytes
        self._marked = self._marked_bytes = 0
        return found

    def rest(self) -> Batch | None:
        """All of it, behind the state of before."""
        if not self.records:
            return None
        position = None if self.state is None else {"state": self.state}
        found = Batch(self.records, position, self.size_bytes, meta=self.meta)
        self.records, self.meta, self.size_bytes = [], [], 0
        return found
