"""A batch on its way into a table: which of its records are rows, and which of those with one key is the last.

`split` sets deletions apart from rows and finds what needs no server to be called bad. Records keep their index in the
batch, because that is how the worker knows them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from headgate.connectors.api import KeyKind, Outgoing
from headgate.connectors.postgres.culprits import Unit
from headgate.connectors.postgres.tables import MOST_MADE, wrong_name
from headgate.connectors.postgres.values import Unfit, hashed, key_of, only
from headgate.core.letter_keys import spelled
from headgate.errors import Bad


@dataclass(frozen=True, slots=True)
class Split:
    """The rows of a batch, each with its index, and those of its records that can be no row of any table."""

    records: list[dict[str, Any]]
    indexes: Sequence[int]
    bad: list[Bad]

    def without_columns(self, columns: Collection[str], unknown: Sequence[str], *, ignores: bool) -> list[Bad]:
        """The records with fields that the table has no column for; or, if such are ignored, with no other fields."""
        missing = {field for field in unknown if field not in columns}
        bad = []
        for index, record in zip(self.indexes, self.records, strict=True):
            found = next((field for field in record if field in missing), None)
            if found is not None and not (ignores and any(field not in missing for field in record)):
                bad.append(Bad(index, found[:80], wrong_name(found) or "the table has no column for it"))
        return bad

    def unmakeable(self, key: Sequence[str]) -> list[Bad]:
        """The records that no table can be made for."""
        known, bad = set[str](), []
        for index, record in zip(self.indexes, self.records, strict=True):
            wrong = next(((field, found) for field in record if (found := wrong_name(field))), None)
            if wrong is not None:
                bad.append(Bad(index, wrong[0][:80], wrong[1]))
            elif len(known | record.keys()) > MOST_MADE:
                bad.append(Bad(index, None, f"with its fields the table would have more than {MOST_MADE} columns"))
            else:
                known |= record.keys()
                bad += _null_key(index, record, key)
        return bad


def split(batch: Outgoing) -> Split:
    """The batch without its deletions."""
    records, indexes = batch.records, range(len(batch.records))
    if batch.deletes:
        gone = set(batch.deletes)
        kept = [index for index in indexes if index not in gone]
        records = [records[index] for index in kept]
    else:
        kept = indexes  # type: ignore[assignment]
    bad = []
    if not all(records):
        bad = [Bad(at, None, "has no fields") for at, one in zip(kept, records, strict=True) if not one]
    return Split(records, kept, bad)


def null_keys(batch: Outgoing) -> Iterator[Bad]:
    """The records of an upsert that lack a part of their key."""
    for index, record in enumerate(batch.records):
        yield from _null_key(index, record, batch.key)


def _null_key(index: int, record: Mapping[str, Any], key: Sequence[str]) -> list[Bad]:
    missing = next((field for field in key if record.get(field) is None), None)
    return [] if missing is None else [Bad(index, missing, "is a part of the key, and must not be null")]


# Keys.


def last_rows(columns: Sequence[str], rows: list[Any], key: Sequence[str], kinds: Sequence[KeyKind] = ()) -> list[Any]:
    """Of rows that replace each other, the last one. With `kinds`, those replace each other whose keys the table stores
    alike; without, whose keys are the same, which is nearly always the same and told sooner."""
    if not set(key) <= set(columns):
        raise Unfit("no record has a key")
    places = [columns.index(field) for field in key]
    if kinds:
        found = {_spelled_key([row[place] for place in places], kinds): row for row in rows}
    else:
        found = {key_of(row, places): row for row in rows}
    if any(None in one for one in found):
        raise Unfit("a key is null")
    return list(found.values())


def last_of(batch: Outgoing, kinds: Sequence[KeyKind]) -> tuple[Outgoing, list[tuple[Any, ...]]]:
    """The records that are the last of their key: those that are rows, and the keys of those that are deletions."""
    gone = set(batch.deletes)
    indexes = sorted({key: index for index, key in enumerate(_keys(batch, kinds))}.values())
    rows = [batch.records[index] for index in indexes if index not in gone]
    keys = [tuple(batch.records[index][field] for field in batch.key) for index in indexes if index in gone]
    return replace(batch, records=rows, deletes=(), replays=()), keys


def earlier_of(batch: Outgoing, kinds: Sequence[KeyKind]) -> list[list[int]]:
    """The records that a later one of their key replaces, in turns: each turn has a key once, the first one first."""
    keys = _keys(batch, kinds)
    last = {key: index for index, key in enumerate(keys)}
    turns: list[list[int]] = []
    seen = Counter[tuple[Any, ...]]()
    for index, key in enumerate(keys):
        if last[key] != index:
            if seen[key] == len(turns):
                turns.append([])
            turns[seen[key]].append(index)
            seen[key] += 1
    return turns


def _keys(batch: Outgoing, kinds: Sequence[KeyKind]) -> list[tuple[Any, ...]]:
    """The key of each record."""
    values = ([record.get(field) for field in batch.key] for record in batch.records)
    keys = [_spelled_key(one, kinds) if kinds else tuple(map(hashed, one)) for one in values]
    if any(None in key for key in keys):
        raise Unfit("a key is null")
    return keys


def _spelled_key(values: Sequence[Any], kinds: Sequence[KeyKind]) -> tuple[str | None, ...]:
    return tuple(None if value is None else spelled(value, kind) for value, kind in zip(values, kinds, strict=True))


def picked_of(batch: Outgoing, kept: Sequence[int], gone: Collection[int] | None = None) -> Outgoing:
    """Some of its records. `gone`: its deletions as a set, for who picks often."""
    gone = set(batch.deletes) if gone is None else gone
    return replace(
        batch,
        records=[batch.records[index] for index in kept],
        replays=[batch.replays[index] for index in kept] if batch.replays else (),
        deletes=[place for place, index in enumerate(kept) if index in gone] if gone else (),
        streams=[batch.streams[index] for index in kept] if batch.streams else (),
    )


# Rows.


def picked(columns: Sequence[str], records: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Records usually have the same fields; a missing one is NULL."""
    pick: Callable[[dict[str, Any]], Any] = itemgetter(*columns) if len(columns) > 1 else only(columns[0])
    try:
        return list(map(pick, records))
    except KeyError:
        return [tuple(map(record.get, columns)) for record in records]


def units_of(batch: Outgoing, columns: Sequence[str], rows: Sequence[Any], indexes: Sequence[int]) -> list[Unit]:
    """What the search tries: rows, and deletions as rows that have a key only. All of one key are tried, not only the
    last, because else each bad one would have to be found before the one that it hides."""
    units = {index: Unit(index, row) for index, row in zip(indexes, rows, strict=True)}
    for index in batch.deletes:
        record = batch.records[index]
        units[index] = Unit(index, tuple(record.get(c) if c in batch.key else None for c in columns), is_delete=True)
    return [units[index] for index in sorted(units)]
