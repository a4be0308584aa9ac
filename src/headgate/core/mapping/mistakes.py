"""What is wrong with a record, in words that repeat none of its values.

A reason is kept with the record's dead letter, and stands in logs, events and lists that people may see who may not see
the data. So our own functions raise a `MistakeError`, whose message speaks of kinds of values ("expects text, not int")
and of what the mapping's author wrote; and the errors of Python, which like to quote what they were given, are told
in fixed words, whatever they say.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal, InvalidOperation

UNSAID = "the value cannot be used here"

# By the first that fits: a class of Python's own errors, how its message begins, and what is said instead.
_WORDS: tuple[tuple[type[Exception], str, str], ...] = (
    (ZeroDivisionError, "", "division by zero"),
    (InvalidOperation, "", "the decimal cannot be worked out"),
    (ValueError, "cannot convert float NaN", "NaN cannot be made a whole number"),
    (OverflowError, "", "the number or the time is out of range"),
    (UnicodeError, "", "is not text in Unicode"),
    (ValueError, "Invalid isoformat", "cannot read text as a timestamp"),
    (ArithmeticError, "", "the number cannot be worked out"),
    (RecursionError, "", "is nested too deeply"),
    (MemoryError, "", "is too large"),
    (TypeError, "", "the value has a kind that cannot be used here"),
)


class MistakeError(Exception):
    """A mistake in a record, or in what an expression makes of it. Its message names no value."""


class WrongKindError(MistakeError, TypeError):
    """A value is of another kind than is expected."""


class WrongValueError(MistakeError, ValueError):
    """A value is of the right kind, and cannot be used all the same."""


class UnreadableError(MistakeError):
    """There is no record: its payload could not be read."""


def kind(value: object) -> str:
    """Name the type of a value as people who write mappings know it."""
    names = {str: "text", type(None): "None", datetime: "timestamp", Decimal: "decimal"}
    return names.get(type(value), type(value).__name__)


def reason_of(error: Exception) -> str:
    """Say in one line what is wrong, without a value."""
    if isinstance(error, MistakeError):
        return str(error)
    said = str(error)
    return next(
        (words for type_, begins, words in _WORDS if isinstance(error, type_) and said.startswith(begins)), UNSAID
    )
