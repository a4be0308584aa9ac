"""What it means to continue elsewhere, in words, for positions that are whole numbers. See `SourceKind.tell_move`."""

from __future__ import annotations

from headgate.core.streams import Position

NO_POSITION = "no run could continue after this: it is no position of such a source"


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
