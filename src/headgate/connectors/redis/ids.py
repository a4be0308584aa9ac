"""Ids of a stream's entries, and the positions of this source, in words and as they compare."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from headgate.connectors.api import Position
from headgate.connectors.moves import NO_POSITION

Id: TypeAlias = tuple[int, int]

START: Id = (0, 0)
_FORM = re.compile(r"(\d{1,20})-(\d{1,20})", re.ASCII)
_FIRST_TIME_MS = 10**12  # In 2001. A smaller first half is no time: its writer has numbered the entries.


def parse(text: str) -> Id:
    """From `1526919030474-55`. ValueError: it is none."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError("this is not the id of an entry")
    return int(found[1]), int(found[2])


def shown(id: Id) -> str:
    return f"{id[0]}-{id[1]}"


def time_s(id: Id) -> float | None:
    """When the entry was added, in Unix time, if its id says so."""
    return id[0] / 1000 if _FIRST_TIME_MS <= id[0] < 10 * _FIRST_TIME_MS else None


@dataclass(frozen=True, slots=True)
class Place:
    """The last entry handled, and how many had been added to the stream up to it, as far as that is known."""

    id: Id = START
    added: int | None = None


def place_of(position: Position) -> Place:
    """From a position: what this source wrote, or an id that somebody has set. ValueError: it is neither."""
    match position:
        case None:
            return Place()
        case str():
            return Place(parse(position))
        case {"id": str() as text, **rest} if set(rest) <= {"added"}:
            added = rest.get("added")
            if added is None or (type(added) is int and added >= 0):
                return Place(parse(text), added)
    raise ValueError("this is no position in a stream")


def position_of(place: Place) -> Position:
    """What goes into a batch."""
    return {"id": shown(place.id)} if place.added is None else {"id": shown(place.id), "added": place.added}


def tell_move(before: Position, after: Position) -> str:
    """What it means to continue elsewhere."""
    if isinstance(after, dict) and "history" in after:
        return "elements of the list that were taken and are after this one are read; those before it are gone"
    try:
        stands = place_of(after).id
    except ValueError:
        return NO_POSITION
    try:
        stood = place_of(before).id
    except ValueError:
        stood = START
    if stood == stands:
        return "nothing changes"
    first, last = sorted((stood, stands))
    which = f"entries after {shown(first)} up to {shown(last)}" if first != START else f"entries up to {shown(last)}"
    return f"{which} are {'skipped' if stands > stood else 'read again'}"
