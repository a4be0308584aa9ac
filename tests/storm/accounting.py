"""What was sent, what has arrived, and what is wrong between the two: kept by somebody who asks Headgate nothing.

A *lane* is a series of records in the order in which its source gave them, numbered from 0: those of one generator or
of one of its parts, of one file, of one pushed stream, of one caller of a webhook. Whoever makes a record knows its
*fate*:

- ROW: it must become a row, once.
- NOTHING: the mapping filters it; it must not become a row.
- EITHER: it is a bad record to some versions of its datasource. It must become a row or a dead letter; a letter that is
  replayed becomes a row.
- PERHAPS: its sender was told nothing (a webhook without a 202). It may be there or not, but not twice.

Rows come to a lane in the order in which they were written. So a record that is skipped is seen at once: it is
*missing*. If it comes later, it was *reordered*; if it never comes, it is *lost*. What was awaited of EITHER and
PERHAPS may come at any time. A row that has come before is *repeated*. A sink that is not transactional may repeat
records after a crash; even there nothing may be lost, and what is new comes in order.

A registry whose standby is asynchronous loses what it committed last when the standby is promoted: payloads that were
answered 202, and the letters of sinks that keep none. Which fates a lane may lose to that, its `forgives` says; such
losses are counted and are no problem.

A lane keeps a number and the few records that are missing, so the rows themselves can be deleted once they are here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

MOST_SHOWN = 5  # Records that a problem names.


class Fate(Enum):
    """What must become of a record."""

    ROW = "row"
    NOTHING = "nothing"
    EITHER = "either"
    PERHAPS = "perhaps"


_NO_LETTER = (Fate.ROW, Fate.NOTHING)

Fates: TypeAlias = Callable[[int], Fate]


@dataclass(slots=True)
class Lane:
    """The rows of one lane, so far."""

    fate: Fates
    is_exact: bool = True  # The sink is transactional: a repeat is a mistake.
    forgives: frozenset[Fate] = frozenset()  # What may be lost, because the registry may lose it.
    keys: int = 0  # Record i replaces the row of key i modulo this; 0: every record is a row of its own.
    high: int = -1  # The highest record that has come.
    rows: int = 0  # Different ones.
    repeats: int = 0
    late: int = 0  # Letters that became rows, and records nobody was told about.
    missing: set[int] = field(default_factory=set)  # Below `high`, and must be rows.
    awaited: set[int] = field(default_factory=set)  # Below `high`, and may be rows yet.
    reordered: list[int] = field(default_factory=list)
    foreign: list[int] = field(default_factory=list)  # Rows that should not be.
    overwriting: list[int] = field(default_factory=list)  # Older records in the place of newer ones.
    latest: dict[int, int] = field(default_factory=dict)  # By key.

    def arrive(self, id: int) -> None:
        """A row was written."""
        if self.keys:
            self._replace(id)
        if id > self.high:
            self._expect(range(self.high + 1, id))
            self.high = id
            if self.fate(id) is Fate.NOTHING:
                self.foreign.append(id)
        elif id in self.awaited:
            self.awaited.remove(id)
            self.late += 1
        elif id in self.missing:
            self.missing.remove(id)
            self.reordered.append(id)
        else:
            self.repeats += 1
            return
        self.rows += 1

    def _expect(self, ids: Iterable[int]) -> None:
        for id in ids:
            match self.fate(id):
                case Fate.ROW:
                    self.missing.add(id)
                case Fate.EITHER | Fate.PERHAPS:
                    self.awaited.add(id)

    def _replace(self, id: int) -> None:
        key = id % self.keys
        if id < self.latest.get(key, -1):
            self.overwriting.append(id)
        self.latest[key] = max(id, self.latest.get(key, -1))

    def owes(self, last: int) -> bool:
        """Whether rows are still to come if everything up to this record is said to be durable."""
        if Fate.ROW in self.forgives:
            return False
        return bool(self.missing) or any(self.fate(id) is Fate.ROW for id in range(self.high + 1, last + 1))


@dataclass(frozen=True, slots=True)
class Letters:
    """The dead letters of a lane by record; those that are open, and those whose place a newer row has taken."""

    open: list[int] = field(default_factory=list)
    superseded: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Balance:
    """What became of a lane, at the end."""

    sent: int
    rows: int
    letters: int
    filtered: int
    repeats: int
    lost: int
    problems: tuple[str, ...]


def settle(lane: Lane, last: int, letters: Letters) -> Balance:
    """Balance a lane whose source gave the records up to `last`, and whose rows are all here."""
    dead = {*letters.open, *letters.superseded}
    beyond = sorted(id for id in {lane.high, *dead} if id > last)
    lane._expect(range(lane.high + 1, last + 1))
    nowhere = {id for id in lane.awaited if lane.fate(id) is Fate.EITHER} - dead
    lost = sorted((lane.missing - dead) | nowhere)
    written_too = sorted(id for id in dead if id <= lane.high and id not in lane.awaited and id not in lane.missing)
    found = (
        ("lost", [id for id in lost if lane.fate(id) not in lane.forgives]),
        ("repeated", [f"{lane.repeats} times"] if lane.repeats and lane.is_exact else []),
        ("out of order", lane.reordered),
        ("written though filtered", lane.foreign),
        ("written over a newer row", lane.overwriting),
        ("written and a letter too", written_too if lane.is_exact else []),
        ("a letter though nothing is wrong with it", sorted(id for id in dead if lane.fate(id) in _NO_LETTER)),
        ("handled beyond the position", beyond),
    )
    filtered = sum(lane.fate(id) is Fate.NOTHING for id in range(last + 1))
    return Balance(
        sent=last + 1,
        rows=lane.rows,
        letters=len(dead),
        filtered=filtered,
        repeats=lane.repeats,
        lost=len(lost),
        problems=tuple(f"{len(ids)} {what}: {_shown(ids)}" for what, ids in found if ids),
    )


def _shown(ids: Collection[object]) -> str:
    listed = list(ids)
    return ", ".join(map(str, listed[:MOST_SHOWN])) + (", …" if len(listed) > MOST_SHOWN else "")


@dataclass(frozen=True, slots=True)
class Totals:
    """What Headgate itself says of a datasource."""

    read: int
    written: int
    filtered: int
    dead_lettered: int
    letters: int  # All outcomes together.
    replayed: int


def check_totals(totals: Totals, *, sent: int | None, rows: int | None) -> list[str]:
    """What does not add up. `sent` and `rows` are what is known outside; None: it is not known for certain."""
    handled = totals.written + totals.filtered + totals.dead_lettered
    laws = (
        ("read is not written + filtered + dead-lettered", totals.read, handled),
        ("dead-lettered is not the sum of the letters", totals.dead_lettered, totals.letters),
        ("read is not what was sent", totals.read, totals.read if sent is None else sent),
        ("written + replayed is not what arrived", totals.written + totals.replayed, rows),
    )
    return [f"{what}: {left} and {right}" for what, left, right in laws if right is not None and left != right]
