"""Chunks of a dump: where they begin and end, who has them, and when everything is copied.

A table is copied in chunks. A chunk is the rows after `lo` up to and including `hi`; the first has no `lo`, and the
last ends at the *top*, the greatest key when the dump began. Greater keys belong to no chunk, so a table that keeps
growing is copied all the same. Each chunk begins where the previous one ended: there is no gap and no overlap, whatever
the keys are. Nothing here compares two bounds. They are the source's text, and only the source knows their order.

    offsets   OffsetManager: which chunks exist. Knows nothing of workers
    locks     LockManager: which worker has a chunk, until when, and when a chunk is given up
    outcome   what becomes of a table and of the whole dump

`runtime/dumps/offsets.py` and `runtime/dumps/locks.py` are the classes of those names: they load, ask these modules,
and save.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Bound: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """The rows after `lo` up to and including `hi`. Without `lo`: from the beginning."""

    lo: Bound | None
    hi: Bound
