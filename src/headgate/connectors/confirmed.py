"""What a sink has published of a batch, and a broker has confirmed: remembered until the next batch.

A worker may come back with the same batch after a pause, or with the rest of it once bad records were taken out. The
records are the same objects then, and those that are confirmed need not be published again.
"""

from __future__ import annotations

from typing import Any


class Confirmed:
    """Records of the batch in hand."""

    def __init__(self) -> None:
        self._commits = -1
        self._records: dict[int, Any] = {}  # By identity. They are kept, so that no other record can have it.

    def begin(self, commits: int) -> None:
        """A batch, which may be the last one again."""
        if commits != self._commits:
            self._commits, self._records = commits, {}

    def add(self, record: Any) -> None:
        """The broker has it."""
        self._records[id(record)] = record

    def __contains__(self, record: Any) -> bool:
        return id(record) in self._records
