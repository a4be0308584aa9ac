"""What a program has pushed and what is not durable yet, in order.

Records are kept in the pieces that they came in, and handed on in whole pieces: the end of a batch is the end of a
piece, and nothing is done for a single record. What has been handed on stays until it is durable, so that a run that
failed can be followed by another which begins where the sink stands. Only the latest run reads: one that was left to
itself must not take what its successor waits for.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from headgate.connectors.api import Backlog, Batch, Position
from headgate.errors import Fenced

MOST_RECORDS = 20_000  # In one batch.
MOST_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """Records that came in one frame."""

    ids: list[int]  # Rising.
    records: list[Any]
    meta: list[Any]
    size_bytes: int
    event_time_s: float | None


class PushFeed:
    """The records of one pushed stream."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self._read = 0  # How many pieces the present run has taken.
        self._run = 0  # The number of the present run.
        self._news = asyncio.Event()

    def append(self, piece: Piece) -> None:
        """More records, after all others."""
        self._pieces.append(piece)
        self._news.set()

    def rewind(self, position: Position) -> None:
        """Begin a run: everything after this record is handed on, again if need be."""
        self._run += 1
        self._read = sum(1 for piece in self._pieces if position is not None and piece.ids[-1] <= position)
        if self._read < len(self._pieces) and position is not None and self._pieces[self._read].ids[0] <= position:
            durable, rest = _split(self._pieces[self._read], position)
            self._pieces[self._read] = rest
            self._pieces.insert(self._read, durable)
            self._read += 1
        self._news.set()

    async def read(self) -> Batch:
        """What has come in since; waits until there is something."""
        run = self._run
        while self._read >= len(self._pieces):
            self._news.clear()
            await self._news.wait()
            if run != self._run:
                raise Fenced("another run reads this stream")
        taken: list[Piece] = []
        records = size_bytes = 0
        for piece in islice(self._pieces, self._read, None):
            if taken and (records + len(piece.ids) > MOST_RECORDS or size_bytes + piece.size_bytes > MOST_BYTES):
                break
            taken.append(piece)
            records += len(piece.ids)
            size_bytes += piece.size_bytes
        self._read += len(taken)
        if len(taken) == 1:
            return _batch(taken[0].records, taken[0].meta, taken)
        return _batch([r for piece in taken for r in piece.records], [m for piece in taken for m in piece.meta], taken)

    def backlog(self) -> Backlog:
        """What has come in and was not read yet."""
        waiting = list(islice(self._pieces, self._read, None))
        return Backlog(sum(len(piece.ids) for piece in waiting), sum(piece.size_bytes for piece in waiting))

    def trim(self, position: int | None) -> int:
        """Forget what is durable. Returns how many records that were."""
        freed = 0
        while self._pieces and position is not None and self._pieces[0].ids[-1] <= position:
            freed += len(self._pieces.popleft().ids)
            self._read = max(0, self._read - 1)
        return freed

    def clear(self) -> int:
        """Forget everything: there will be no further run. Returns how many records that were."""
        freed = sum(len(piece.ids) for piece in self._pieces)
        self._pieces.clear()
        self._read = 0
        return freed


def _batch(records: list[Any], meta: list[Any], pieces: list[Piece]) -> Batch:
    last = pieces[-1]

    def place(index: int) -> str:
        return f"record {next(islice(chain.from_iterable(piece.ids for piece in pieces), index, None))}"

    size_bytes = sum(piece.size_bytes for piece in pieces)
    return Batch(records, last.ids[-1], size_bytes, last.event_time_s, meta, place)


def _split(piece: Piece, position: int) -> tuple[Piece, Piece]:
    """What is durable, and the rest."""
    cut = bisect_right(piece.ids, position)
    size_bytes = piece.size_bytes * cut // len(piece.ids)
    durable = Piece(piece.ids[:cut], piece.records[:cut], piece.meta[:cut], size_bytes, piece.event_time_s)
    size_bytes = piece.size_bytes - size_bytes
    return durable, Piece(piece.ids[cut:], piece.records[cut:], piece.meta[cut:], size_bytes, piece.event_time_s)
