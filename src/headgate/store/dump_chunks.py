"""Chunks of dumps and every attempt at one. A chunk is locked, stepped by the caller's function, and saved.

What becomes of a chunk is not decided here: `runtime/dumps/locks.py` hands in steps of `core.chunks.locks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from headgate.core.chunks import Range
from headgate.core.chunks.locks import Chunk, State
from headgate.core.chunks.outcome import Notice
from headgate.store.database import Database, Row, Session, sql
from headgate.store.dump_rows import Attempt, AttemptRow, ChunkRow, bound_json, bound_of

MOST = 1000  # Lines of history at once.
# A lease or a report that a crash of this database loses is found again in the target's ledger: nobody waits for the
# disk. A plan must last, or the ledger would have chunks that nobody planned.
_LATER = "; SET LOCAL synchronous_commit = off"


@dataclass(frozen=True, slots=True)
class Stepped:
    """A chunk as it is to be saved, and what is written into the history about it."""

    chunk: Chunk
    attempts: tuple[Attempt, ...] = ()
    bytes: int | None = None  # None: as before.


Step: TypeAlias = Callable[[ChunkRow, float], Stepped | None]
"""From a chunk and the database's clock, in seconds. None: nothing changes."""


class Chunks:
    """The chunks and the history of all dumps."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self, dump: UUID, table: int | None = None) -> list[ChunkRow]:
        """Chunks in the order of the plan; of all tables, or of one."""
        return [_chunk(row) for row in await self._database.fetch(sql("dumps/chunks"), dump, table)]

    async def step(self, dump: UUID, table: int, number: int, step: Step) -> bool:
        """Step one chunk. False: nothing changed."""
        async with self._database.transaction(_LATER) as connection:
            for row in await connection.fetch(sql("dumps/lock_chunks"), dump, table, [number]):
                if (stepped := step(_chunk(row), row["now_s"])) is not None:
                    await _save(connection, dump, table, stepped)
                    return True
        return False

    async def step_next(self, dump: UUID, snapshot: str, step: Step) -> ChunkRow | None:
        """Step the first chunk that can be taken by who reads in this snapshot. Returns it as it is saved; None: there
        is none."""
        async with self._database.transaction(_LATER) as connection:
            for row in await connection.fetch(sql("dumps/lock_next"), dump, snapshot):
                found = _chunk(row)
                if (stepped := step(found, row["now_s"])) is not None:
                    await _save(connection, dump, found.table, stepped)
                    return ChunkRow(found.table, stepped.chunk, found.bytes)
        return None

    async def step_all(self, dump: UUID, table: int | None, step: Callable[[ChunkRow], Chunk]) -> int:
        """Step all chunks that are not as the step leaves them; of all tables, or of one. Returns how many changed."""
        changed = 0
        async with self._database.transaction() as connection:
            for row in await connection.fetch(sql("dumps/lock_all"), dump, table):
                found = _chunk(row)
                if (stepped := step(found)) != found.chunk:
                    await _save(connection, dump, found.table, Stepped(stepped))
                    changed += 1
        return changed

    async def delete(self, dump: UUID, table: int, chunks: Sequence[Chunk]) -> bool:
        """Delete chunks. False: one of them is not as it was read, and nothing changed."""
        numbers = [chunk.number for chunk in chunks]
        async with self._database.transaction() as connection:
            locked = [
                _chunk(row).chunk for row in await connection.fetch(sql("dumps/lock_chunks"), dump, table, numbers)
            ]
            if locked != sorted(chunks, key=lambda chunk: chunk.number):
                return False
            await connection.execute(sql("dumps/delete_chunks"), dump, table, numbers)
            return True

    async def forget(self, dump: UUID, table: int) -> None:
        """Delete all chunks of a table: it is planned from the beginning."""
        await self._database.execute(sql("dumps/delete_chunks"), dump, table, None)

    # History.

    async def record(self, dump: UUID, attempt: Attempt) -> None:
        """Write down what happened, whatever became of the chunk."""
        async with self._database.transaction(_LATER) as connection:
            await _append(connection, dump, attempt)

    async def history(self, dump: UUID, after: int = 0, most: int = MOST) -> list[AttemptRow]:
        """Attempts after this one, oldest first."""
        return [_attempt(row) for row in await self._database.fetch(sql("dumps/history"), dump, after, most)]


async def _save(connection: Session, dump: UUID, table: int, stepped: Stepped) -> None:
    chunk = stepped.chunk
    await connection.execute(
        sql("dumps/save_chunk"),
        dump,
        table,
        chunk.number,
        chunk.state,
        chunk.epoch,
        chunk.worker,
        chunk.until_s or None,
        chunk.attempts,
        chunk.rows,
        stepped.bytes,
        chunk.error,
    )
    for attempt in stepped.attempts:
        await _append(connection, dump, attempt)


async def _append(connection: Session, dump: UUID, attempt: Attempt) -> None:
    await connection.execute(sql("dumps/lock_history"), dump)
    await connection.execute(
        sql("dumps/append_attempt"),
        dump,
        attempt.table,
        attempt.chunk,
        attempt.worker,
        attempt.kind,
        attempt.rows,
        attempt.bytes,
        attempt.seconds,
        attempt.error,
        bound_json(attempt.lo),
        bound_json(attempt.hi),
    )


def _chunk(row: Row) -> ChunkRow:
    hi = bound_of(row["hi"])
    assert hi is not None, "a chunk ends somewhere"
    chunk = Chunk(
        row["number"],
        Range(bound_of(row["lo"]), hi),
        State(row["state"]),
        row["epoch"],
        row["worker"],
        row["until_s"],
        row["attempts"],
        row["rows"],
        row["error"],
    )
    return ChunkRow(row["table"], chunk, row["bytes"])


def _attempt(row: Row) -> AttemptRow:
    return AttemptRow(
        **{**row, "kind": Notice(row["kind"]), "lo": bound_of(row["lo"]), "hi": bound_of(row["hi"])},
    )
