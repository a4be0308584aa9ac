"""The definitions of a whole database, and which of them can be made now.

A definition is one object of the source's schema in the source's own words: a type, a table, an index, a grant. It is
made at one of three moments:

    BEFORE   the rows are copied: schemas, types, functions, tables. One after another, in their order
    FULL     as soon as the tables that it is about are full: keys and indexes, several at a time
    AFTER    all rows are there: foreign keys, triggers, policies, contents of materialized views

One waits until what it needs has been made, or has been tried: the database says best what is missing. Two that lock
the same table are not made at once, since the second would only hold a place while it waits. Whatever needs a table
that is not full waits for another run of the dump.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from headgate.core.chunks.left import Left


class Moment(StrEnum):
    """When a definition is made."""

    BEFORE = "before"
    FULL = "full"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Definition:
    """One object of a schema, or one thing that is said of an object."""

    number: int
    kind: str  # As a person says it.
    name: str
    of: str  # The table that it belongs to, in words.
    moment: Moment
    statement: str  # In the source's own words. Empty: the source has too many to be held at once.
    needs: tuple[int, ...] = ()
    tables: tuple[str, ...] = ()  # The tables of the dump that it is about.
    alone: bool = False  # Nothing else can be made for its tables meanwhile.
    settings: tuple[tuple[str, str], ...] = ()  # Of the session, for this one.
    owner: str = ""  # It gives an object to this role.

    @property
    def key(self) -> str:
        """What stands for it in the target's ledger. One that has changed at the source is another."""
        text = "\0".join((self.kind, self.name, self.of, self.statement))
        return f"made {hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def left(self, why: str) -> Left:
        """That it could not be made."""
        return Left(self.kind, self.name, self.of, why)


def startable(
    waiting: Mapping[int, Definition],
    running: Collection[Definition],
    full: Collection[str],
    places: int,
    *,
    is_after: bool,
) -> list[Definition]:
    """Those of the waiting that can be begun now, in their order: as many as there are places besides the running."""
    busy, found = {one.number: one for one in running}, []
    for one in waiting.values():
        if len(busy) >= places:
            break
        if _can_begin(one, waiting, busy, full, is_after):
            busy[one.number] = one
            found.append(one)
    return found


def _can_begin(
    one: Definition,
    waiting: Mapping[int, Definition],
    busy: Mapping[int, Definition],
    full: Collection[str],
    is_after: bool,
) -> bool:
    if one.moment is Moment.AFTER and not is_after:
        return False
    if any(table not in full for table in one.tables):
        return False
    if any(number in waiting or number in busy for number in one.needs):
        return False
    return not any(_collide(one, other) for other in busy.values())


def _collide(one: Definition, other: Definition) -> bool:
    return (one.alone or other.alone) and not set(one.tables).isdisjoint(other.tables)
