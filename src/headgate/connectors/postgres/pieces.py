"""A batch of several streams, in pieces for several tables.

A batch is written table by table, in the order of their names, and parents before children where a foreign key says so.
If only the order of the records themselves will do, it is cut wherever the table changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from headgate.connectors.api import Outgoing, SourceStream
from headgate.connectors.postgres.batches import Split, picked_of
from headgate.errors import Bad, BadRecords

if TYPE_CHECKING:
    from headgate.connectors.postgres.writing import Writing

_One = TypeVar("_One")

TURN = 200  # Pieces between two turns of others.
UNNAMED = "the source does not say which stream it is of"


@dataclass(slots=True)
class Piece:
    """The records of a batch that go into one table."""

    writing: Writing
    batch: Outgoing
    numbers: Sequence[int]  # Of the records, in the whole batch.
    parts: Split
    columns: list[str]  # What is written of them; known once the table has been looked at.

    def open_only(self, open: Collection[UUID]) -> Piece:
        """Of a replay the records whose letters are open."""
        kept = [index for index, letter in enumerate(self.batch.replays) if letter in open]
        if len(kept) == len(self.batch.records):
            return self
        return replace(self, batch=picked_of(self.batch, kept), numbers=[self.numbers[index] for index in kept])

    @contextmanager
    def named(self) -> Iterator[None]:
        """What is bad in it is named by its number in the whole batch."""
        try:
            yield
        except BadRecords as error:
            raise BadRecords(self.renamed(error.bad)) from None

    def renamed(self, bad: Sequence[Bad]) -> list[Bad]:
        """By their numbers in the whole batch."""
        return [replace(one, index=self.numbers[one.index]) for one in bad]


def by_stream(streams: Sequence[SourceStream]) -> list[tuple[SourceStream, list[int]]]:
    """The records of each stream, by their numbers. The stream of the first record comes first."""
    found: dict[SourceStream, list[int]] = {}
    for number, stream in enumerate(streams):
        found.setdefault(stream, []).append(number)
    return list(found.items())


def in_order(streams: Sequence[SourceStream]) -> list[tuple[SourceStream, list[int]]]:
    """The same, without changing the order: a stream is there as often as it follows another."""
    return [
        (stream, [number for number, _ in some]) for stream, some in groupby(enumerate(streams), key=lambda one: one[1])
    ]


async def in_turns(some: Iterable[_One]) -> AsyncIterator[_One]:
    """Each of them. There may be as many as records, so others have turns in between."""
    for number, one in enumerate(some, 1):
        yield one
        if number % TURN == 0:
            await asyncio.sleep(0)


def unnamed(streams: Sequence[SourceStream]) -> list[Bad]:
    """The records that are of no stream."""
    return [Bad(number, None, UNNAMED) for number, stream in enumerate(streams) if not stream.name]


def parents_first(tables: Sequence[str], links: Collection[tuple[str, str]]) -> list[str]:
    """The tables, each after those that it refers to. `links`: a table, and one that a foreign key of it names. Those
    that refer to each other in a circle stay as they are."""
    waiting = dict.fromkeys(tables)
    parents: dict[str, set[str]] = {table: set() for table in waiting}
    for child, parent in links:
        if child != parent and child in waiting and parent in waiting:
            parents[child].add(parent)
    found = list[str]()
    while waiting:
        first = next((table for table in waiting if not parents[table]), next(iter(waiting)))
        del waiting[first]
        for left in parents.values():
            left.discard(first)
        found.append(first)
    return found
