"""Types of CSV columns that no manifest tells: guessed from the first records, and held to in all that follow.

A column is a number, a date, a time or a UUID only if each of its values is written as that kind is always written
(`values.kinds`): "007", "+1", "1e5" and " 5" are text, because as numbers they would come back as something else. So a
guess never changes a value. A later value that is written otherwise ends its chunk with its line.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from headgate.connectors.values.arrow import arrow_type
from headgate.connectors.values.kinds import TEXT, Kind, Type

_POSITIVE = r"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?"
_NEGATIVE = r"-(?:[1-9][0-9]*(?:\.[0-9]+)?|0\.[0-9]*[1-9][0-9]*)"  # A zero has no sign.
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_FORMS = {
    Kind.INT64: r"0|-?[1-9][0-9]{0,17}",
    Kind.NUMERIC: f"{_POSITIVE}|{_NEGATIVE}",
    Kind.DATE: _DATE,
    Kind.TIMESTAMP: rf"{_DATE}[ T][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(?:\.[0-9]{{1,6}})?",
    Kind.UUID: r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
}


def guessed(texts: pa.ChunkedArray) -> Type:
    """The type of a column with these values. Without any it is text."""
    if texts.null_count == len(texts):
        return TEXT
    for kind in _FORMS:
        if _is_alike(texts, kind):
            type = Type(kind)
            return type if _can_be_read(texts, type) else TEXT
    return TEXT


def first_other(texts: pa.ChunkedArray, kind: Kind) -> int | None:
    """The place of the first value that is not written as this kind is. None: all are."""
    if _is_alike(texts, kind):
        return None
    matches: Iterable[bool | None] = pc.match_substring_regex(texts, f"^(?:{_FORMS[kind]})$").to_pylist()
    return next(place for place, is_alike in enumerate(matches) if is_alike is False)


def _is_alike(texts: pa.ChunkedArray, kind: Kind) -> bool:
    return pc.all(pc.match_substring_regex(texts, f"^(?:{_FORMS[kind]})$")).as_py() is not False


def _can_be_read(texts: pa.ChunkedArray, type: Type) -> bool:
    """Whether these are days and times that exist."""
    if type.kind not in (Kind.DATE, Kind.TIMESTAMP):
        return True
    try:
        texts.cast(arrow_type(type))
    except pa.ArrowInvalid:
        return False
    return True
