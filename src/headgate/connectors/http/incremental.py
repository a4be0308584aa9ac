"""What is new: the largest value of a field is what the next poll asks from.

Numbers are compared as numbers, times as times (ISO 8601), digits as numbers and other texts letter by letter. Within
one stream all values must be of one kind, because the largest of several would mean nothing.

Servers differ in whether they give again what has just that value. So the records that had the largest one are
remembered by their hashes, each as often as it came, and the same ones are passed over when they come again. Nothing
is missed by that: a record that is another, or comes once more than it did, is passed on.

A page that has only records from before what was asked for shows that the server does not know the parameter, or went
back in time. It is an error: all would be read again in each poll, without end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec

from headgate.connectors.api import Unreadable
from headgate.connectors.http.answers import looked_up
from headgate.errors import Cause, ConnectorError

MOST_SEEN = 1_000  # Records with the largest value. Of more, some may come again.
LONGEST = 1_024  # Of a value, in characters.

Value: TypeAlias = int | float | str | None
Key: TypeAlias = tuple[str, float | datetime | str]
"""How a value is compared: its kind, and what it is worth among those of its kind."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a poll has come."""

    since: Value = None  # What the poll asks from.
    seen: tuple[str, ...] = ()  # Hashes of records with that value, which have been passed on before.
    largest: Value = None
    latest: tuple[str, ...] = ()  # The same for the largest value.


def begun(since: Value, seen: tuple[str, ...]) -> Mark:
    """At the beginning of a poll."""
    return Mark(since, seen, since)


def advanced(mark: Mark, field: str, records: list[Any]) -> tuple[Mark, list[Any]]:
    """After a page: how far the poll has come, and the records that were not passed on before."""
    since = None if mark.since is None else key_of(mark.since)
    largest_value, largest = mark.largest, None if mark.largest is None else key_of(mark.largest)
    latest, left = mark.latest, Counter(mark.seen)
    newest: list[Any] = []
    kept: list[Any] = []
    has_value = is_within = False
    for record in records:
        value = None if isinstance(record, Unreadable) else looked_up(record, field)
        if value is None:
            kept.append(record)
            continue
        key, has_value = key_of(value), True
        if largest is not None and key[0] != largest[0]:
            said = f"{field!r} is {largest[0]} in one record and {key[0]} in another, so none is the largest"
            raise ConnectorError(said, cause=Cause.CONFIG, hint="correct `incremental`")
        is_within = is_within or since is None or key >= since
        if largest is None or key > largest:
            largest_value, largest, latest, newest = value, key, (), []
        if key == largest and len(newest) < MOST_SEEN:
            newest.append(record)
        if since is not None and key == since and left[mark_ := hash_of(record)] > 0:
            left[mark_] -= 1
            continue
        kept.append(record)
    _judge(records, field, has_value, is_within)
    latest = (*latest, *map(hash_of, newest))[:MOST_SEEN]
    return Mark(mark.since, tuple(left.elements()), largest_value, latest), kept


def ended(mark: Mark) -> Mark:
    """After the last page of a poll: how the next one begins."""
    if mark.largest == mark.since:
        return begun(mark.since, (mark.latest + mark.seen)[:MOST_SEEN])
    return begun(mark.largest, mark.latest)


def time_of(value: Value) -> float | None:
    """When it was, if it is a time."""
    try:
        kind, worth = key_of(value)
    except ConnectorError:
        return None
    return worth.timestamp() if kind == "a time" and isinstance(worth, datetime) else None


def key_of(value: Any) -> Key:
    """How a value is compared with others."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "a number", value
    if isinstance(value, str) and len(value) <= LONGEST:
        if value.isascii() and value.isdigit():
            return "a number", int(value)
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            return "a text", value
        return "a time", found if found.tzinfo else found.replace(tzinfo=UTC)
    raise ConnectorError(
        "the field of `incremental` has a value that is neither a number nor a short text", cause=Cause.CONFIG
    )


def hash_of(record: Any) -> str:
    """By which a record is known again."""
    return blake2b(msgspec.json.encode(record, order="sorted"), digest_size=8).hexdigest()


def _judge(records: list[Any], field: str, has_value: bool, is_within: bool) -> None:
    if records and not has_value and not all(isinstance(record, Unreadable) for record in records):
        said = f"no record has the field {field!r}, so nothing says what is new"
        raise ConnectorError(said, cause=Cause.CONFIG, hint="correct `incremental.field`")
    if has_value and not is_within:
        said = f"the server gives only records from before what was asked for: their {field!r} went back"
        hint = "correct `incremental.param`, or set the position if the server was set back"
        raise ConnectorError(said, cause=Cause.CONFIG, hint=hint)
