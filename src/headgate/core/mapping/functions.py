"""The functions that expressions may call.

Each takes and gives plain values: text, numbers, decimals, booleans, moments, lists, dicts. Unless its entry in
`FUNCTIONS` says `takes_none`, a function is not called at all when its first argument is None: the answer is None.
A wrong argument raises a `MistakeError` with a message for the person who wrote the mapping, and without the argument.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias, TypeVar

import msgspec

from headgate.core.mapping.mistakes import WrongKindError, WrongValueError, kind
from headgate.core.mapping.operators import NUMBERS, add, bounded, is_in, item
from headgate.core.mapping.patterns import compile_pattern
from headgate.core.mapping.prices import ELEMENT, MOST_AT_ONCE, Budget, TooMuchError

Number: TypeAlias = int | float | Decimal
T = TypeVar("T")
N = TypeVar("N", int, float, Decimal)

NUMBER_TEXT_LIMIT = 400  # No honest number is written with more characters.
STRIPPED_LIMIT = 100
RUN = 10_000  # Elements that are sorted, or of which the least is found, in one go.
WIDE = 2**61 - 1  # Numbers below this do not share their hashes.
MILLISECONDS_FROM = 100_000_000_000  # As seconds this is the year 5138, as milliseconds it is 1973.
TIME_FORMAT = re.compile(r"([^%]|%[aAbBdfGHIjmMpSuVwyYzZ%]){0,100}")  # No widths: `%999999999Y` would fill memory.
FORMAT = re.compile(r"(.?[<>=^])?[+\- ]?0?\d{0,3}[,_]?(\.\d{1,2})?[bcdeEfFgGnosxX%]?")  # Widths below a thousand.
NOT_COMPARABLE = "cannot compare values of these kinds with each other"

_encode = msgspec.json.Encoder(decimal_format="number").encode
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Function:
    """One function: how it is called and what must be known to call it safely."""

    call: Callable[..., object]
    signature: str
    least: int = 1
    most: int | None = 1  # None: any number of arguments.
    takes_none: bool = False  # It decides itself what a None in its first argument means.
    fixed: bool = False  # Its cost has a bound that does not depend on what it is given; any other is paid for.
    deep: bool = False  # It looks at everything inside its arguments.


# Arguments.


def _wants(value: object, wanted: type[T], name: str) -> T:
    if not isinstance(value, wanted):
        raise WrongKindError(f"expects {name}, not {kind(value)}")
    return value


def _text(value: object) -> str:
    return str(_wants(value, str, "text"))


def _text_or_none(value: object) -> str | None:
    return None if value is None else _wants(value, str, "text")


def _whole(value: object) -> int:
    return _wants(value, int, "an int")


def _list(value: object) -> list[object]:
    return _wants(value, list, "a list")


def _number(value: object, name: str = "a number") -> Number:
    if not isinstance(value, int | float | Decimal):
        raise WrongKindError(f"expects {name}, not {kind(value)}")
    return value


def _fitting(length: int) -> None:
    if length > MOST_AT_ONCE:
        raise TooMuchError("the text would be too long")


def _countable(elements: int) -> None:
    if elements * ELEMENT > MOST_AT_ONCE:
        raise TooMuchError("the list would have too many elements")


# Text.


def lower(value: object) -> str:
    return _text(value).lower()


def upper(value: object) -> str:
    return _text(value).upper()


def strip(value: object, characters: object = None) -> str:
    """Each character at the ends is looked for among those to strip, so these must be few."""
    unwanted = _text_or_none(characters)
    if unwanted is not None and len(unwanted) > STRIPPED_LIMIT:
        raise WrongValueError(f"strips at most {STRIPPED_LIMIT} different characters")
    return _text(value).strip(unwanted)


def replace(value: object, old: object, new: object) -> str:
    """Measure the answer first: an empty `old` and a long `new` multiply."""
    value, old, new = _text(value), _text(old), _text(new)
    _fitting(len(value) + value.count(old) * (len(new) - len(old)))
    return str(value.replace(old, new))


def split(value: object, separator: object = None) -> list[str]:
    whole, between = _text(value), _text_or_none(separator)
    _countable(len(whole) // 2 if between is None else whole.count(between))
    return whole.split(between)


def join(values: object, separator: object = "") -> str:
    separator = _text(separator)
    parts = [text(value) for value in _list(values) if value is not None]
    _fitting(sum(map(len, parts)) + len(separator) * len(parts))
    return str(separator.join(parts))


def substring(value: object, start: object, length: object = None) -> str:
    """Count from 0; a negative start counts from the end."""
    whole, begin = _text(value), _whole(start)
    begin = max(len(whole) + begin, 0) if begin < 0 else begin
    return whole[begin:] if length is None else whole[begin : begin + max(_whole(length), 0)]


def length(value: object) -> int:
    if not isinstance(value, str | list | dict):
        raise WrongKindError(f"expects text, a list or a dict, not {kind(value)}")
    return len(value)


def text(value: object) -> str:
    """Write a value as a person or a JSON reader would."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode()
    return to_json(value) if isinstance(value, list | dict) else str(bounded(value))


def starts_with(value: object, beginning: object) -> bool:
    return _text(value).startswith(_text(beginning))


def ends_with(value: object, ending: object) -> bool:
    return _text(value).endswith(_text(ending))


def match(value: object, pattern: object) -> object:
    """Search for a pattern. Expressions search through the budget, with the pattern compiled."""
    return Budget().find(value, compile_pattern(_text(pattern)))


def format_parts(*parts: str | tuple[object, str]) -> str:
    """Join the parts of an f-string: texts, and pairs of a value and its format. None leaves nothing behind."""
    written = [part if isinstance(part, str) else _formatted(*part) for part in parts]
    _fitting(sum(map(len, written)))
    return "".join(written)


def _formatted(value: object, layout: str) -> str:
    if value is None:
        return ""
    if not layout:
        return text(value)
    wanted = value if isinstance(value, str) else bounded(_number(value, "text or a number to format"))
    try:
        return format(wanted, layout)
    except ValueError:
        raise WrongKindError(f"the format {layout} is not one of {kind(value)}") from None


# Numbers.


def to_int(value: object) -> int:
    """Read a whole number; a fraction is cut off."""
    if isinstance(value, str):
        return _read(int, value, "an int")
    return int(bounded(_number(value)))


def to_float(value: object) -> float:
    return _read(float, value, "a float") if isinstance(value, str) else float(bounded(_number(value)))


def to_decimal(value: object) -> Decimal:
    """Read a float as it is written, so that 0.1 is 0.1."""
    written = repr(value) if isinstance(value, float) else value
    return _read(Decimal, written, "a decimal") if isinstance(written, str) else Decimal(bounded(_number(written)))


def to_bool(value: object) -> bool:
    words = {"true": True, "t": True, "yes": True, "y": True, "on": True, "1": True}
    words |= {"false": False, "f": False, "no": False, "n": False, "off": False, "0": False}
    is_short = not isinstance(value, str) or len(value) <= NUMBER_TEXT_LIMIT
    found = words.get(str(bounded(value)).strip().lower()) if isinstance(value, str | int) and is_short else None
    if found is None:
        raise WrongValueError(f"cannot read {kind(value)} as a bool")
    return found


def _read(reader: Callable[[str], N], written: str, name: str) -> N:
    try:
        if len(written) <= NUMBER_TEXT_LIMIT:
            return bounded(reader(written))
    except (ValueError, InvalidOperation):
        pass
    raise WrongValueError(f"cannot read {kind(written)} as {name}")


def round_number(value: object, digits: object = None) -> object:
    """Halves go to the even neighbour, as in Python."""
    number = bounded(_number(value))
    if digits is None:
        return round(number)
    if abs(_whole(digits)) > 100:
        raise WrongValueError("rounds to at most 100 digits")
    return round(number, _whole(digits))


def absolute(value: object) -> object:
    return abs(_number(value))


def floor(value: object) -> int:
    return math.floor(bounded(_number(value)))


def ceil(value: object) -> int:
    return math.ceil(bounded(_number(value)))


def minimum(*values: object) -> object:
    try:
        return min(map(min, _runs(_present(values))), default=None)
    except TypeError:
        raise WrongKindError(NOT_COMPARABLE) from None


def maximum(*values: object) -> object:
    try:
        return max(map(max, _runs(_present(values))), default=None)
    except TypeError:
        raise WrongKindError(NOT_COMPARABLE) from None


def total(values: object) -> object:
    answer: Any = 0
    found: list[Any] = _list(values)
    for value in found:
        if value.__class__ in NUMBERS and answer.__class__ in NUMBERS:
            answer = answer + value  # type: ignore[operator]
        elif value is not None:
            answer = add(answer, _number(value))
    return bounded(answer)


def _present(values: tuple[object, ...]) -> list[Any]:
    """Take one list or many arguments, and leave out None."""
    found = values[0] if len(values) == 1 and isinstance(values[0], list) else list(values)
    return [value for value in found if value is not None]


def _runs(values: list[Any]) -> list[list[Any]]:
    """Cut a list into pieces, each of which is walked through in a moment."""
    return [values[begin : begin + RUN] for begin in range(0, len(values), RUN)]


# Time.


def timestamp(value: object) -> datetime:
    """Read ISO 8601 text, or unix seconds or milliseconds. What names no zone is UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise WrongValueError("cannot read text as a timestamp") from None
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    seconds = float(bounded(_number(value, "ISO 8601 text or a unix time")))
    try:
        return datetime.fromtimestamp(seconds / 1000 if abs(seconds) >= MILLISECONDS_FROM else seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise WrongValueError("the unix time is out of range") from None


def to_date(value: object) -> date:
    return value if isinstance(value, date) and not isinstance(value, datetime) else timestamp(value).date()


def unix(value: object) -> float:
    return timestamp(value).timestamp()


def format_time(value: object, layout: object) -> str:
    written = _text(layout)
    if not TIME_FORMAT.fullmatch(written):
        raise WrongValueError("the text is not a format of times")
    return timestamp(value).strftime(written)


# Hashes.


def sha256(value: object) -> str:
    return hashlib.sha256(_bytes(value)).hexdigest()


def md5(value: object) -> str:
    return hashlib.md5(_bytes(value), usedforsecurity=False).hexdigest()


def crc32(value: object) -> int:
    return zlib.crc32(_bytes(value))


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else text(value).encode()


# JSON and lists.


def parse_json(value: object) -> object:
    written = value if isinstance(value, bytes) else _text(value).encode()
    _countable(sum(map(written.count, (b",", b"[", b"{"))))
    try:
        return _decode(written)
    except msgspec.DecodeError:
        raise WrongValueError(f"cannot read {kind(value)} as JSON") from None


def to_json(value: object) -> str:
    try:
        return _encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise WrongValueError(f"cannot write {kind(value)} as JSON") from None


def as_json(value: object) -> object:
    """Read text as JSON and leave other values as they are."""
    return parse_json(value) if isinstance(value, str | bytes) else value


def first(values: object) -> object:
    return next(iter(_list(values)), None)


def last(values: object) -> object:
    return next(reversed(_list(values)), None)


def count(values: object) -> int:
    return 0 if values is None else len(_list(values))


def sort(values: object, descending: object = False) -> list[object]:
    """Sort what can be compared; None comes last."""
    found: list[Any] = _list(values)
    try:
        runs = [sorted(run, reverse=bool(descending)) for run in _runs([value for value in found if value is not None])]
        present = runs[0] if len(runs) == 1 else list(heapq.merge(*runs, reverse=bool(descending)))
    except TypeError:
        raise WrongKindError(NOT_COMPARABLE) from None
    return present + [None] * (len(found) - len(present))


def unique(values: object) -> list[object]:
    """Keep the first of those that are equal. Lists and dicts are equal when their JSON is."""
    seen: dict[object, object] = {}
    for value in _list(values):
        seen.setdefault(_identity(value), value)
    return list(seen.values())


def _identity(value: object) -> object:
    """What a dict can tell values apart by. Numbers beyond the machine's are told apart by their digits: a sender can
    find as many as it likes whose hashes are equal, and each would be compared with all the others."""
    if isinstance(value, list | dict):
        return ("json", to_json(value))
    if isinstance(value, Decimal) and bounded(value).is_finite():
        value = int(value) if value == value.to_integral_value() else float(value) if float(value) == value else value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_wide = isinstance(value, Decimal) or (isinstance(value, int) and not -WIDE < value < WIDE)
    return ("number", str(value)) if is_wide else value


def contains(container: object, value: object) -> object:
    return is_in(value, container)


def coalesce(*values: object) -> object:
    return next((value for value in values if value is not None), None)


def get(value: object, path: object, default: object = None) -> object:
    """Walk a dotted path; a number in it is an index into a list."""
    for step in _text(path).split("."):
        is_index = isinstance(value, list) and step.lstrip("-").isdecimal() and len(step) < 10
        value = item(value, int(step) if is_index else step)
        if value is None:
            return default
    return value


FUNCTIONS: dict[str, Function] = {
    "lower": Function(lower, "lower(text)"),
    "upper": Function(upper, "upper(text)"),
    "strip": Function(strip, "strip(text, characters?)", most=2),
    "replace": Function(replace, "replace(text, old, new)", 3, 3),
    "split": Function(split, "split(text, separator?)", most=2),
    "join": Function(join, "join(list, separator?)", most=2, deep=True),
    "substring": Function(substring, "substring(text, start, length?)", 2, 3),
    "length": Function(length, "length(value)", fixed=True),
    "text": Function(text, "text(value)", deep=True),
    "starts_with": Function(starts_with, "starts_with(text, beginning)", 2, 2),
    "ends_with": Function(ends_with, "ends_with(text, ending)", 2, 2),
    "contains": Function(contains, "contains(container, value)", 2, 2, deep=True),
    "match": Function(match, 'match(text, "pattern")', 2, 2),
    "round": Function(round_number, "round(number, digits?)", most=2, fixed=True),
    "int": Function(to_int, "int(value)", fixed=True),
    "float": Function(to_float, "float(value)", fixed=True),
    "decimal": Function(to_decimal, "decimal(value)", fixed=True),
    "abs": Function(absolute, "abs(number)", fixed=True),
    "min": Function(minimum, "min(list) or min(a, b, …)", 1, None, takes_none=True, deep=True),
    "max": Function(maximum, "max(list) or max(a, b, …)", 1, None, takes_none=True, deep=True),
    "sum": Function(total, "sum(list)", deep=True),
    "floor": Function(floor, "floor(number)", fixed=True),
    "ceil": Function(ceil, "ceil(number)", fixed=True),
    "timestamp": Function(timestamp, "timestamp(value)", fixed=True),
    "date": Function(to_date, "date(value)", fixed=True),
    "unix": Function(unix, "unix(value)", fixed=True),
    "format_time": Function(format_time, 'format_time(value, "%Y-%m-%d")', 2, 2, fixed=True),
    "sha256": Function(sha256, "sha256(value)", deep=True),
    "md5": Function(md5, "md5(value)", deep=True),
    "crc32": Function(crc32, "crc32(value)", deep=True),
    "parse_json": Function(parse_json, "parse_json(text)"),
    "to_json": Function(to_json, "to_json(value)", deep=True),
    "first": Function(first, "first(list)", fixed=True),
    "last": Function(last, "last(list)", fixed=True),
    "count": Function(count, "count(list)", takes_none=True, fixed=True),
    "sort": Function(sort, "sort(list, descending?)", most=2, deep=True),
    "unique": Function(unique, "unique(list)", deep=True),
    "coalesce": Function(coalesce, "coalesce(a, b, …)", 1, None, takes_none=True, fixed=True),
    "get": Function(get, 'get(value, "a.b.0", default?)', 2, 3, takes_none=True),
}

TYPES: dict[str, Callable[[object], object]] = {
    "text": text,
    "int": to_int,
    "float": to_float,
    "decimal": to_decimal,
    "bool": to_bool,
    "timestamp": timestamp,
    "date": to_date,
    "json": as_json,
}
PRICED_TYPES = ("text", "json")  # To convert to any other has a fixed price.
