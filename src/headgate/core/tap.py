"""A tap: live records of a datasource for a person who looks, as few as a person can read.

A tap never holds a stream up. What it shows is bounded in a second, by number and by size, and in the size of one
record; what is more is dropped and counted. It decides in this order: the condition (an expression of the mapping
language; a record on which it fails, or for which it costs too much, does not match), then the sample (every Nth of
those that match), then what there is room for in this second.

Values are shown as JSON. What JSON has no form for is shown as text, and what is too long is cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, Literal, TypeAlias, get_args
from uuid import UUID

import msgspec

from headgate.core.mapping.document import Mapping, compile_mapping
from headgate.core.mapping.mapped import Mapped
from headgate.core.records import Unreadable

At: TypeAlias = Literal["source", "mapped", "written", "dead"]
"""Where records are looked at: as they were read, as the mapping made them, once they are durable in the sink, or when
they could not be handled."""

PLACES: tuple[At, ...] = get_args(At)

MOST_TAPS = 8  # At a time, in an installation.
MOST_SAMPLE = 1_000_000
RECORDS_A_SECOND = 200  # Of one tap, from one node: more than anybody reads.
BYTES_A_SECOND = 1_000_000
RECORD_BYTES = 64_000
DEEPEST = 50  # Levels of lists and objects.
_LONGEST_INTEGER = 2**63
_VALUE_BYTES = 5  # Of `null`, or brackets, and a comma.
_NUMBER_BYTES = 15  # Of one that is long, beyond that.


@dataclass(frozen=True, slots=True)
class Tap:
    """What somebody wants to see."""

    id: UUID
    datasource: UUID
    at: At
    where: str = ""  # An expression; empty: all records.
    sample: int = 1  # One in this many of those that match.


class Shown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record as it is shown."""

    stream: str
    node: str  # The name of the node that has it.
    place: str  # What the source calls the place of the record.
    record: Any  # As it was read; or as it is written, for `mapped` and `written`.
    meta: Any = None  # What the source says about it, for `source` and `dead`.
    mapped: Any = None  # For `dead`: what the mapping made of it, if it got that far.
    is_deletion: bool = False  # It says that the row with its key is to be deleted.
    stage: str | None = None  # Where it failed, for `dead`: `source`, `mapping` or `sink`;
    field: str | None = None  # in which field,
    reason: str | None = None  # and why.
    is_cut: bool = False  # Something of it was too long to be shown.


# Which records.


def condition_of(where: str) -> Mapping | None:
    """The condition, compiled; None if all records match. Raises ConfigError."""
    return compile_mapping({"where": where}, "tap") if where.strip() else None


def judge(condition: Mapping, records: list[Any], meta: list[Any] | None, begin: int, into: Mapped) -> int:
    """Judge records from `begin` on, for a few milliseconds. Returns where that ended."""
    done = condition.slice(records, meta, begin, into)
    if done == begin:  # It is too dear to be judged here, so it does not match.
        into.filtered.append(begin)
        done += 1
    return done


@dataclass(frozen=True, slots=True)
class Meter:
    """What one tap has shown on one node."""

    matched: int = 0  # Records in all, by which the sample counts.
    second: int = 0  # Which one it is;
    records: int = 0  # and what was shown in it.
    size_bytes: int = 0


def pick(meter: Meter, sample: int, matches: int, now_s: float) -> tuple[Meter, range, int]:
    """Which of this many matching records are shown, by number, and how many of the sample are not."""
    meter = _turned(meter, now_s)
    sampled = range(-meter.matched % sample, matches, sample)
    room = 0 if is_full(meter, now_s) else RECORDS_A_SECOND - meter.records
    meter = replace(meter, matched=meter.matched + matches)
    return meter, sampled[:room], len(sampled[room:])


def is_full(meter: Meter, now_s: float) -> bool:
    """Whether nothing more is shown in this second."""
    meter = _turned(meter, now_s)
    return meter.records >= RECORDS_A_SECOND or meter.size_bytes >= BYTES_A_SECOND


def pay(meter: Meter, size_bytes: int, now_s: float) -> tuple[Meter, bool]:
    """Show a record of this size, if there is room for it."""
    meter = _turned(meter, now_s)
    if meter.records >= RECORDS_A_SECOND or meter.size_bytes + size_bytes > BYTES_A_SECOND:
        return meter, False
    return replace(meter, records=meter.records + 1, size_bytes=meter.size_bytes + size_bytes), True


def _turned(meter: Meter, now_s: float) -> Meter:
    return meter if int(now_s) == meter.second else Meter(meter.matched, int(now_s))


# How they are shown.


def show(shown: Shown) -> bytes:
    """A record as JSON, at most about `RECORD_BYTES` long."""
    paper = _Paper(RECORD_BYTES)
    reason = shown.reason
    if isinstance(shown.record, Unreadable):
        reason = reason or shown.record.reason
    written = msgspec.structs.replace(
        shown,
        place=paper.text(shown.place),
        record=paper.write(shown.record),
        meta=paper.write(shown.meta),
        mapped=paper.write(shown.mapped),
        reason=reason,
    )
    return msgspec.json.encode(msgspec.structs.replace(written, is_cut=paper.is_cut))


class _Paper:
    """As much JSON as there is room for."""

    def __init__(self, room: int) -> None:
        self._left = room
        self.is_cut = False

    def write(self, value: Any, depth: int = 0) -> Any:
        """The value in a form that JSON has."""
        self._left -= _VALUE_BYTES
        if isinstance(value, str):
            return self.text(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return self._number(value)
        if depth >= DEEPEST and isinstance(value, dict | list | tuple | set | frozenset):
            return self._cut()
        if isinstance(value, dict):
            return self._object(value, depth + 1)
        if isinstance(value, list | tuple | set | frozenset):
            return self._list(value, depth + 1)
        return self._said(value)

    def _number(self, value: float) -> Any:
        self._left -= _NUMBER_BYTES
        if isinstance(value, int):
            return value if -_LONGEST_INTEGER <= value < _LONGEST_INTEGER else self._said(value)
        return value if math.isfinite(value) else str(value)

    def text(self, text: str) -> str:
        """As much of a text as there is room for."""
        kept = text[: max(0, self._left)]
        try:
            size = len(msgspec.json.encode(kept))
        except UnicodeEncodeError:  # Half a character, which no UTF-8 has.
            kept = ascii(kept)[1:-1]
            size = len(kept)
        if size - 2 > self._left:
            kept = kept[: max(0, self._left) // 6]  # A character has at most six bytes.
        self._left -= size
        if len(kept) < len(text):
            self.is_cut = True
            return f"{kept}…"
        return kept

    def _object(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, one in self._while_there_is_room(value.items()):
            shown = self.text(name) if isinstance(name, str) else self._said(name)
            found[shown] = self.write(one, depth)
        return found

    def _list(self, values: Iterable[Any], depth: int) -> list[Any]:
        return [self.write(one, depth) for one in self._while_there_is_room(values)]

    def _while_there_is_room(self, values: Iterable[Any]) -> Iterable[Any]:
        for one in values:
            if self._left <= 0:
                self.is_cut = True
                return
            yield one

    def _said(self, value: Any) -> str:
        """What JSON has no form for."""
        match value:
            case Unreadable(body=body):
                return self._bytes(body)
            case bytes() | bytearray() | memoryview():
                return self._bytes(bytes(value[: max(0, self._left) + 1]))
            case datetime() | date():
                return self.text(value.isoformat())
        try:
            return self.text(str(value))
        except Exception:  # A number of too many digits, or a type of a connector.
            return self.text(f"a value of the type {type(value).__name__}")

    def _bytes(self, body: bytes) -> str:
        return self.text(body[: max(0, self._left) + 1].decode("utf-8", "backslashreplace"))

    def _cut(self) -> str:
        self.is_cut = True
        return "…"
