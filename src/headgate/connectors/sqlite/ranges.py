"""Ranges of keys in SQLite.

A table is cut by its primary key if that is NOT NULL, and else by its rowid, which is not copied. A bound is text: a
whole number in digits, text after a quote, bytes in hexadecimal after `x'`, and a float with its point. SQLite
compares, with the collation of the column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from headgate.connectors.api.bulk import Range
from headgate.connectors.sql.keys import between, row_of
from headgate.connectors.sql.quoting import quoted
from headgate.errors import Refused

Value: TypeAlias = int | float | str | bytes


def text_of(value: object) -> str:
    """A value of a key as part of a bound."""
    match value:
        case int():
            return str(value)
        case float():
            return repr(value)
        case str():
            return f"'{value}"
        case bytes():
            return f"x'{value.hex()}"
    raise Refused("the key contains NULL", code="null_key")


def value_of(text: str) -> Value:
    """The value of that part."""
    if text.startswith("'"):
        return text[1:]
    if text.startswith("x'"):
        return bytes.fromhex(text[2:])
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def condition(names: Sequence[str], range: Range) -> tuple[str, list[Value]]:
    """The rows of a range as SQL, and its parameters."""
    key, places = row_of([*map(quoted, names)]), row_of(["?"] * len(names))
    values = [value_of(one) for bound in (range.lo, range.hi) if bound is not None for one in bound]
    return between(range, lambda operator, bound: f"{key} {operator} {places}"), values
