"""What it means to continue elsewhere, in words: what functions share that tell it. See `SourceKind.tell_move`."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from headgate.core.streams import Position

T = TypeVar("T")

NO_POSITION = "no run could continue after this: it is no position of such a source"


def both_of(before: Position, after: Position, kind: type[T]) -> tuple[T | None, T | None] | None:
    """Two positions of this kind, as they are kept. None: the second one is no such position. The first may be that of
    another source, which says nothing here."""
    try:
        stands = msgspec.convert(after, kind | None)
    except msgspec.ValidationError:
        return None
    try:
        return msgspec.convert(before, kind | None), stands
    except msgspec.ValidationError:
        return None, stands


def tell_numbers(before: Position, after: Position, noun: str) -> str:
    """`records 100 to 119 are read again`. A position is the number of the last one handled; they begin with 0."""
    if after is not None and not _is_number(after):
        return NO_POSITION
    stood, stands = (-1 if one is None else one for one in (before if _is_number(before) else None, after))
    if stood == stands:
        return "nothing changes"
    first, last = min(stood, stands) + 1, max(stood, stands)
    which = f"{noun} {first:,}" if first == last else f"{noun}s {first:,} to {last:,}"
    return f"{which} {'is' if first == last else 'are'} {'skipped' if stands > stood else 'read again'}"


def _is_number(position: Position) -> bool:
    return type(position) is int and position >= 0
