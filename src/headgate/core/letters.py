"""Dead letters: what they say, what becomes of them, and when there are too many.

A letter is a record that could not be read, mapped or written, with the place, the field and the reason. It commits
with the position that passes it, so that a record is never both written and dead, and never neither. What a letter
says to everybody (`Facts`) repeats no value of the record; the record itself is packed, encrypted and kept apart.

A letter is *open* until it is replayed, discarded or expired; or superseded, because its key was written, or deleted,
after it: an old letter never overwrites a newer row. How many were dead-lettered never falls.

Too many letters mean that the source or the mapping is broken as a whole. Then the stream stops (`is_too_many`) rather
than shovel a broken source into a table; a restart, or a new version, begins to count from nothing.
"""

from __future__ import annotations

import base64
import datetime
import math
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from headgate.core.records import Stage, Unreadable
from headgate.text import counted, parse_duration

LetterOutcome: TypeAlias = Literal["open", "replayed", "superseded", "discarded", "expired"]
"""What became of a letter. `superseded`: its key was written, or deleted, after it."""

LONGEST = 500  # Characters of a place, a field or a reason.
IN_A_ROW = 100  # Letters without one record that could be written.
LONGEST_S = 7 * 86400.0  # In which letters are counted.
_BUCKETS = 60  # In which letters of a span are counted.
_WIDE = 10**1000
_STOP_AFTER = re.compile(r"(\d{1,9}) in (\S+)")


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """What a letter says to everybody who sees its datasource."""

    place: str  # What the source calls it: an id, an offset, a line.
    stage: Stage
    field: str | None
    reason: str
    cause: str
    version: int  # Of the datasource.
    at_s: float
    size_bytes: int  # Of the payload, packed.


class Contents(msgspec.Struct, frozen=True, array_like=True):
    """The record itself."""

    payload: Any  # As it was read; `Unreadable` if it could not be decoded.
    meta: Any
    mapped: Any  # None if it did not get that far.
    only: int | None = None  # Of several records that the mapping makes of the payload, the one that is meant.


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter as a sink keeps it. What it says is the runtime's, and encrypted where it repeats the record."""

    id: UUID
    content: bytes
    key: bytes | None = None  # A hash of the record's key; None: it is not known, or the sink has no use for it.
    outcome: LetterOutcome = "open"
    remains: bytes = b""  # What takes the place of the content once it is not open any more: no record is in it.


# Packing: values of any record, in a form that gives the same values again.

_EXTENSIONS: tuple[tuple[type, Any, Any], ...] = (
    (Decimal, str, Decimal),
    (UUID, str, UUID),
    (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    (int, hex, lambda text: int(text, 16)),
    (
        Unreadable,
        lambda one: msgspec.json.encode(one).decode(),
        lambda text: msgspec.json.decode(text, type=Unreadable),
    ),
    (
        datetime.timedelta,
        lambda one: f"{one.days} {one.seconds} {one.microseconds}",
        lambda text: datetime.timedelta(*map(int, text.split())),
    ),
)
_OTHER = 100  # Text of a value that has no other form.
_PLAIN = (str, float, bool, type(None), bytes)
_WITH_SUBCLASSES: tuple[Any, ...] = (dict, list, tuple, str, int, float, Decimal, bytes)


def packed(value: Any) -> bytes:
    """Values as bytes. Raises RecursionError and UnicodeEncodeError for what cannot be packed."""
    return msgspec.msgpack.encode(_packed(value))


def unpacked(data: bytes) -> Any:
    """The values again."""
    return msgspec.msgpack.decode(data, ext_hook=_unpacked)


def pack(contents: Contents) -> bytes:
    """A record as bytes."""
    try:
        return packed(msgspec.structs.astuple(contents))
    except (RecursionError, UnicodeEncodeError):  # Nested too deeply, or text that is none: it can be shown, at least.
        text = ascii(contents.payload) if isinstance(contents.payload, str) else _shown(contents.payload)
        return msgspec.msgpack.encode((text, None, None, None))


def _shown(payload: Any) -> str:
    try:
        return msgspec.json.encode(payload, enc_hook=str).decode()
    except (RecursionError, UnicodeEncodeError, TypeError, ValueError):
        return f"a {type(payload).__name__} that cannot be shown"


def unpack(data: bytes) -> Contents:
    """The record again."""
    return Contents(*unpacked(data))


def _packed(value: Any) -> Any:
    kind = value.__class__
    if kind in _PLAIN or (kind is int and -(2**63) <= value < 2**63):
        return value
    if kind is dict:
        return {_packed(name): _packed(one) for name, one in value.items()}
    if kind is list or kind is tuple:
        return [_packed(one) for one in value]
    for code, (type, text_of, _) in enumerate(_EXTENSIONS):
        if kind is type:
            return msgspec.msgpack.Ext(code, str(text_of(value)).encode("utf-8", "surrogatepass"))
    for type in _WITH_SUBCLASSES:  # A client library may have its own kind of dict, or of text.
        if isinstance(value, type):
            return _packed(type(value))
    return msgspec.msgpack.Ext(_OTHER, str(value).encode("utf-8", "surrogatepass"))


def _unpacked(code: int, data: memoryview) -> Any:
    text = bytes(data).decode("utf-8", "surrogatepass")
    return text if code == _OTHER else _EXTENSIONS[code][2](text)


# Showing: a record as JSON, for people and programs.


def plain(value: Any) -> Any:
    """A value as JSON has it. What JSON cannot express is text: bytes in base64, a number that is none as `nan`."""
    match value:
        case None | bool():
            return value
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case int():
            return value if -(2**63) <= value < 2**64 else written(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {name if isinstance(name, str) else str(name): plain(one) for name, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case bytes():
            return base64.b64encode(value).decode()
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case _:
            return plain(str(value))


def written(number: int) -> str:
    """An integer as text. Of one with thousands of digits, Python writes only the hexadecimal ones."""
    return str(number) if -_WIDE < number < _WIDE else hex(number)


def text_of(body: bytes) -> str | None:
    """Bytes as text, if that is what they are."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


# Too many.


@dataclass(frozen=True, slots=True)
class StopAfter:
    """How many letters, in which time, stop the stream. Without `count` none do."""

    count: int | None = 1000
    within_s: float = 600.0


def parse_stop_after(text: str) -> StopAfter:
    """`1000 in 10m`, or `never`. Raises ValueError."""
    if text == "never":
        return StopAfter(None)
    found = _STOP_AFTER.fullmatch(text)
    if found is None or int(found[1]) < 1:
        raise ValueError("must be a number of letters in a time, as in `1000 in 10m`, or `never`")
    within_s = parse_duration(found[2])
    if not 1 <= within_s <= LONGEST_S:
        raise ValueError("the time must be between 1s and 7d")
    return StopAfter(int(found[1]), within_s)


@dataclass(frozen=True, slots=True)
class Recent:
    """The letters of a stream that count towards its end."""

    buckets: tuple[tuple[int, int], ...] = ()  # Number of a piece of time, and how many letters fell into it.
    in_a_row: int = 0  # Since a record was last written.


def note(recent: Recent, rule: StopAfter, letters: int, written: int, now_s: float) -> Recent:
    """A batch has become durable with this many letters and this many records written."""
    if not letters:
        return replace(recent, in_a_row=0) if written and recent.in_a_row else recent
    present = int(now_s * _BUCKETS / rule.within_s)
    buckets = dict(bucket for bucket in recent.buckets if bucket[0] > present - _BUCKETS)
    buckets[present] = buckets.get(present, 0) + letters
    return Recent(tuple(buckets.items()), 0 if written else recent.in_a_row + letters)


def is_too_many(recent: Recent, rule: StopAfter) -> str | None:
    """Why the stream stops; None: it goes on."""
    if rule.count is None:
        return None
    if recent.in_a_row >= IN_A_ROW:
        return f"{counted(recent.in_a_row, 'record')} in a row could not be handled"
    number = sum(letters for _, letters in recent.buckets)
    if number >= rule.count:
        return f"{counted(number, 'record')} could not be handled within {rule.within_s:.0f} s"
    return None
