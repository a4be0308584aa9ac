"""Records on their way between two processes: in slices, so that neither side is held up for long by a large batch.

Most records have nothing but what JSON has, bytes, and moments in UTC. Whether that is so is found out level by level,
at a fraction of what encoding costs, and then they are encoded as they are. Others are packed value by value, as dead
letters are, so that a `Decimal` or a date is the same when it arrives. Both ways are read alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from typing import Any, TypeAlias

import msgspec

from headgate.core.letters import packed, unpacked

SLICE_BYTES = 512 * 1024  # About: a few milliseconds to encode or decode.
FIRST_RECORDS = 32  # Of the first slice. The others follow its size.
MOST_RECORDS = 20_000
MOST_CONTAINERS = 2_000_000  # In a slice. An empty one is a byte here, and 64 when it is decoded.
_DEEPEST = 50  # Levels that are looked at. What lies deeper is packed value by value, or cannot be.
_SCALARS = frozenset({str, int, float, bool, type(None), bytes})
_PLAIN = _SCALARS | {dict, list, tuple, datetime}
_HEADS = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])  # Bytes that can begin a map or a list.

Slice: TypeAlias = tuple[list[Any], list[Any] | None]
"""Records, and what the mapping sees as their `meta`."""


UNSENDABLE = "is nested too deeply, or has text that is none"
_ERRORS = (RecursionError, UnicodeEncodeError)


class UnsendableError(Exception):
    """A record is nested too deeply, or has text that is none. `unsendable` says which."""


def in_slices(records: Sequence[Any], meta: Sequence[Any] | None = None) -> Iterator[bytes]:
    """Records as bytes, some at a time. Raises UnsendableError."""
    begin, step = 0, FIRST_RECORDS
    while begin < len(records):
        end = begin + step
        data = _slice(records[begin:end], None if meta is None else meta[begin:end])
        yield data
        step = max(1, min(MOST_RECORDS, 4 * step, step * SLICE_BYTES // len(data)))
        begin = end


def from_slice(data: bytes) -> Slice:
    """The records again. Raises ValueError for what is none."""
    if len(data) - len(data.translate(None, _HEADS)) > MOST_CONTAINERS:
        raise ValueError("a slice has too much in it")
    try:
        found = unpacked(data)
    except Exception:  # A date that is none, a number that is none, a kind that nobody knows.
        raise ValueError("a slice has values that are none") from None
    match found:
        case [list(records), None]:
            return records, None
        case [list(records), list(meta)] if len(meta) == len(records):
            return records, meta
        case _:
            raise ValueError("a slice is no list of records")


def _are_utc(level: list[Any]) -> bool:
    """Whether all moments are told in UTC: others would be told so afterwards."""
    return {one.tzinfo for one in level if type(one) is datetime} == {UTC}


def unsendable(records: Sequence[Any], meta: Sequence[Any] | None = None) -> list[int]:
    """Which records cannot be sent."""
    return [i for i, one in enumerate(records) if not _can_be_sent((one, None if meta is None else meta[i]))]


def _can_be_sent(value: Any) -> bool:
    try:
        packed(value)
    except _ERRORS:
        return False
    return True


def _slice(records: Sequence[Any], meta: Sequence[Any] | None) -> bytes:
    whole = (list(records), None if meta is None else list(meta))
    try:
        with suppress(OverflowError):  # A number of more than 64 bits.
            if is_plain(whole):
                return msgspec.msgpack.encode(whole)
        return packed(whole)
    except _ERRORS:
        raise UnsendableError from None


def is_plain(value: Any) -> bool:
    """Whether there is nothing in it but what JSON has, bytes, and moments in UTC."""
    level: list[Any] = [value]
    for _ in range(_DEEPEST):
        kinds = set(map(type, level))
        if kinds <= _SCALARS:
            return True
        if not kinds <= _PLAIN or (datetime in kinds and not _are_utc(level)):
            return False
        maps = [one for one in level if type(one) is dict]
        if not set(map(type, chain.from_iterable(maps))) <= {str}:
            return False
        lists = [one for one in level if type(one) is list or type(one) is tuple]
        level = [*chain.from_iterable(map(dict.values, maps)), *chain.from_iterable(lists)]
    return False
