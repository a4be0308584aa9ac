"""The ledger of a target: one line for each chunk that is in it, written with the chunk's rows.

    headgate_dump_chunk (dump, target, mark, lo, hi, rows, at), unique in (dump, target, mark)

`mark` stands for the two bounds, which may be longer than a key can be. A last line, `FINISHED`, says that the table is
complete: what was built beside is in its place, and indexes and constraints are there.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from headgate.core.chunks import Bound, Range

TABLE = "headgate_dump_chunk"
FINISHED = "finished"


def text_of(bound: Bound | None) -> str:
    """A bound as JSON."""
    return msgspec.json.encode(bound).decode()


def bound_of(text: str) -> Bound | None:
    """The bound of that JSON."""
    found: list[str] | None = msgspec.json.decode(text)
    return None if found is None else tuple(found)


def mark_of(range: Range) -> str:
    """What stands for a chunk in the ledger."""
    return hashlib.sha256(f"{text_of(range.lo)} {text_of(range.hi)}".encode()).hexdigest()[:32]


def line_of(range: Range) -> tuple[str, str, str]:
    """Mark, lo and hi."""
    return mark_of(range), text_of(range.lo), text_of(range.hi)


def range_of(lo: Any, hi: Any) -> Range:
    """The chunk of a line."""
    end = bound_of(hi)
    assert end is not None, "a chunk ends somewhere"
    return Range(bound_of(lo), end)
