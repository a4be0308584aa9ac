"""Which records of a refused batch are at fault, found by halves.

A batch was refused, and nobody knows for which of its records. Ranges of it are tried in their order: an accepted one
is done, a refused one is tried again in halves, and a refused range of one record is that record's fault. What was
accepted must stay in force while the search goes on, so that a record is refused which contradicts an earlier one.

If a range was refused and its first half was accepted, then the second half will be refused: it is halved at once. But
no record is called bad that was not refused alone, because a refusal may have had another reason, which has passed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]
"""The first record, and the one after the last."""


@dataclass(frozen=True, slots=True)
class _Half:
    """A range to try. `is_second`: it is refused for sure if what is tried before it is accepted as a whole."""

    range: Range
    is_second: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    """What is left to try, the next last, and the records that are at fault, in their order."""

    todo: tuple[_Half, ...]
    bad: tuple[int, ...] = ()

    @property
    def next(self) -> Range | None:
        """The records to try next; None: the search is over."""
        return self.todo[-1].range if self.todo else None


def begin(number: int, most: int = 0) -> Search:
    """Search a refused batch of this many records; `most`: the largest number to try at once."""
    if most:
        firsts = range(0, number, most)
        return Search(tuple(_Half((first, min(first + most, number))) for first in reversed(firsts)))
    return Search(_halves((0, number)) if number else ())


def accepted(search: Search) -> Search:
    """The next range was accepted."""
    todo = search.todo[:-1]
    if todo and todo[-1].is_second:
        todo = (*todo[:-1], *_halves(todo[-1].range))
    return replace(search, todo=todo)


def refused(search: Search) -> Search:
    """The next range was refused."""
    half, todo = search.todo[-1], search.todo[:-1]
    if todo and todo[-1].is_second:
        todo = (*todo[:-1], replace(todo[-1], is_second=False))
    first, end = half.range
    if end - first == 1:
        return Search(todo, (*search.bad, first))
    return replace(search, todo=(*todo, *_halves(half.range)))


def _halves(range: Range) -> tuple[_Half, ...]:
    first, end = range
    middle = (first + end) // 2
    if middle == first:
        return (_Half(range),)
    return _Half((middle, end), is_second=True), _Half((first, middle))
