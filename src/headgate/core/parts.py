"""Several streams for one datasource: who reads which part of the source, and how that is changed.

A source that can be read in parts lists them by name. The registry keeps the names in the order of first sight, and
removes none. Stream i of n reads the parts whose place in that list is i mod n, and its position is a map, part →
position. A source with one unnamed part belongs to stream 0, with the plain position that it makes.

Another n means that parts change hands, and their positions with them. A position is worth nothing until it is known
what the sink has, so nothing moves before every stream is *settled* (`core.streams`):

    wanted ≠ dealt ──▶ stop ──▶ all streams are free and settled ──▶ deal ──▶ dealt = wanted
                        ▲                    │
                        └───── take back ◀───┘ one is free and not settled

**Stop** asks all streams to step down, once each of them either runs, so that it will settle, or is settled already. If
one does not settle, since its node died or its last write was cut off, the stop is **taken back**: that stream is
granted once more, its run opens the sink, which fences the run before it and says how far the data are, and then the
stop is tried again. **Deal** shares all positions out again in one transaction, while nobody has any of the streams. So
nobody ever reads a part under an old deal: a run's n is constant.

The wanted n is that of the version that has proved itself. A version on trial runs with the streams as they are, and
one that is rejected has dealt nothing.

Streams that read different sources (a new version does, and not all have followed yet) are not dealt: their positions
have nothing to do with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from headgate.core.streams import Position
from headgate.errors import Refused

UNNAMED = ("",)  # The parts of a source that cannot be read in parts.


@dataclass(frozen=True, slots=True)
class DealtStream:
    """One stream of a datasource, as the decision sees it."""

    index: int
    is_owned: bool = False
    is_running: bool = False  # Under the present epoch: it has opened its sink, and will settle.
    is_settled: bool = True
    source_identity: str | None = None
    source_mark: str | None = None


@dataclass(frozen=True, slots=True)
class Dealt:
    """One datasource: what is wanted, and how it stands."""

    wanted: int
    dealt: int
    is_dealing: bool = False
    members: tuple[DealtStream, ...] = ()


# What to do next.


@dataclass(frozen=True, slots=True)
class Keep:
    """Nothing, for now."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Have all streams step down."""


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Let them run again."""


@dataclass(frozen=True, slots=True)
class Share:
    """Deal the parts to `n` streams."""

    n: int


Next: TypeAlias = Keep | Stop | TakeBack | Share


def next_step(found: Dealt) -> Next:
    """The next step for one datasource."""
    if found.wanted == found.dealt:
        return TakeBack() if found.is_dealing else Keep()
    used = [one for one in found.members if one.index < found.dealt]
    is_possible = _read_the_same(used) and all(map(_settles, used))
    if not is_possible:
        # While it is dealing, a stream that is owned and does not run yet was stopped while it started.
        gone = any(not one.is_owned and not one.is_settled for one in used)
        return TakeBack() if found.is_dealing and (gone or not any(one.is_owned for one in used)) else Keep()
    if any(one.is_owned for one in found.members):
        return Keep() if found.is_dealing else Stop()
    return Share(found.wanted)


def _read_the_same(used: Sequence[DealtStream]) -> bool:
    """Whether their positions are positions in the same data, under whatever names (`core.identity`)."""
    read = [one for one in used if one.source_identity is not None]
    marks = {one.source_mark for one in read}
    return len({one.source_identity for one in read}) <= 1 or (len(marks) == 1 and None not in marks)


def _settles(one: DealtStream) -> bool:
    return one.is_running if one.is_owned else one.is_settled


# Who reads what.


def parts_of(index: int, n: int, parts: Sequence[str]) -> list[str]:
    """The parts that stream `index` of `n` reads."""
    return list(parts[index::n])


def with_new(known: Sequence[str], found: Iterable[str]) -> list[str]:
    """The list with what was found for the first time at its end."""
    return list(dict.fromkeys([*known, *found]))


def deal(positions: Sequence[Position], parts: Sequence[str], n: int) -> list[Position]:
    """The positions of `n` streams, from those of the streams so far, in the order of their indexes.

    Where two maps have the same part, that of its reader counts. What is not the position of a known part stays with
    the first stream: it is the plain position of a source that has one unnamed part.
    """
    place = {part: number for number, part in enumerate(parts)}
    if not place:
        return [positions[0] if positions else None, *[None] * (n - 1)]
    merged: dict[str, Position] = {}
    plain: Position = None
    for index, position in enumerate(positions):
        if not isinstance(position, Mapping):
            plain = position if index == 0 else plain
            continue
        for part, at in position.items():
            is_reader = part not in place or place[part] % len(positions) == index
            if is_reader or part not in merged:
                merged[part] = at
    dealt: list[dict[str, Position]] = [{} for _ in range(n)]
    for part in sorted(merged, key=lambda part: place.get(part, -1)):
        dealt[place.get(part, 0) % n][part] = merged[part]
    shares: list[Position] = [share or None for share in dealt]
    return [plain, *shares[1:]] if plain is not None else shares


# Edits.


def edited(present: Position, given: Position, parts: Sequence[str], index: int, n: int) -> Position:
    """Where stream `index` of `n` stands after an operator's edit.

    Given a map, the parts that it names change, and a part with null starts over. Anything else, null included,
    replaces the whole position.
    """
    place = {part: number for number, part in enumerate(parts)}
    if given is None or not _is_map(present, place):
        return given
    if not isinstance(given, Mapping):
        if present is None:
            return given
        raise Refused(
            "the stream's position is a map from part to position",
            code="not_a_map",
            hint=f'such as {{"{parts[0]}": …}}',
        )
    for part in given:
        if part not in place:
            raise Refused(f"the source has no part {part!r}", code="no_such_part", hint=f"there are {_some(parts)}")
        if place[part] % n != index:
            raise Refused(f"part {part!r} is read by stream {place[part] % n}", code="other_stream", hint="edit that")
    merged = {**(present or {}), **given}
    return {part: at for part, at in merged.items() if at is not None} or None


def restored(present: Position, kept: Position, parts: Sequence[str], index: int, n: int) -> Position:
    """Where stream `index` of `n` stands after an operator went back to a position that it had before it was dealt
    other parts: its parts of then that are still its own stand where they stood, and the others where they stand."""
    place = {part: number for number, part in enumerate(parts)}
    if not isinstance(kept, Mapping) or not _is_map(kept, place) or not _is_map(present, place):
        return kept
    own = {part: at for part, at in kept.items() if place[part] % n == index}
    return {**(present or {}), **own} or None


def _is_map(position: Any, place: Mapping[str, int]) -> bool:
    """Whether this may be the position of a stream that reads parts by name."""
    if not place:
        return False
    return position is None or (isinstance(position, Mapping) and all(part in place for part in position))


def _some(parts: Sequence[str]) -> str:
    few = ", ".join(map(repr, parts[:10]))
    return few if len(parts) <= 10 else f"{few} and {len(parts) - 10} more"
