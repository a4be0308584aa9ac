"""LockManager: which worker has which chunk of one dump. It loads a chunk, asks `core.chunks.locks`, and saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias
from uuid import UUID

from headgate.core.chunks import Range, locks
from headgate.core.chunks.locks import Chunk, State
from headgate.core.chunks.outcome import Notice
from headgate.store.dump_chunks import Chunks, Stepped
from headgate.store.dump_rows import Attempt, ChunkRow, Leased

_ChunkStep: TypeAlias = Callable[[Chunk, float], Chunk | None]


class LockManager:
    """The leases of one dump."""

    def __init__(self, chunks: Chunks, dump: UUID) -> None:
        self._chunks = chunks
        self._dump = dump

    async def lease(self, worker: str, snapshot: str) -> Leased | None:
        """The next chunk for a worker that reads in this snapshot; None: there is none now. A lease that ran out ends
        here."""

        def take(row: ChunkRow, now_s: float) -> Stepped:
            chunk, attempts = row.chunk, tuple[Attempt, ...]()
            if (lost := locks.run_out(chunk, now_s)) is not None:
                attempt = Attempt(row.table, chunk.number, chunk.worker or "", Notice.ERROR, error=lost.error)
                chunk, attempts = lost, (_ranged(attempt, chunk),)
            if chunk.state is State.PLANNED:
                chunk = locks.lease(chunk, worker, now_s)
            return Stepped(chunk, attempts)

        found = await self._chunks.step_next(self._dump, snapshot, take)
        return Leased(found.table, found.chunk) if found is not None and found.chunk.worker == worker else None

    async def renew(self, leased: Leased) -> bool:
        """The worker goes on. False: another worker has the chunk now."""
        return await self._step(leased, lambda chunk, now_s: locks.renew(chunk, leased.chunk.epoch, now_s))

    async def give_back(self, leased: Leased) -> bool:
        """The worker stops. False: another worker has the chunk now."""
        return await self._step(leased, lambda chunk, _: locks.give_back(chunk, leased.chunk.epoch))

    async def complete(self, leased: Leased, attempt: Attempt) -> bool:
        """The chunk is written."""

        def finish(chunk: Chunk, now_s: float) -> Chunk | None:
            return locks.finish(chunk, leased.chunk.epoch, attempt.rows)

        return await self._step(leased, finish, attempt, attempt.bytes)

    async def fail(self, leased: Leased, attempt: Attempt) -> bool:
        """The chunk could not be written."""

        def fail(chunk: Chunk, now_s: float) -> Chunk | None:
            return locks.fail(chunk, leased.chunk.epoch, attempt.error, now_s)

        return await self._step(leased, fail, attempt)

    async def record(self, leased: Leased, attempt: Attempt) -> None:
        """Write down an attempt that changes nothing about the chunk."""
        await self._chunks.record(self._dump, _ranged(attempt, leased.chunk))

    async def restart(self, dead: str | None) -> None:
        """Another run begins: what failed is tried again, and what a dead process had is free."""

        def step(row: ChunkRow) -> Chunk:
            return locks.retry(locks.free(row.chunk, dead) if dead is not None else row.chunk)

        await self._chunks.step_all(self._dump, None, step)

    async def free(self, dead: str | None) -> None:
        """What a dead process had is free."""
        if dead is not None:
            await self._chunks.step_all(self._dump, None, lambda row: locks.free(row.chunk, dead))

    async def retry(self, table: int, number: int) -> None:
        """Try one chunk that failed again."""
        await self._chunks.step(self._dump, table, number, lambda row, now_s: Stepped(locks.retry(row.chunk)))

    async def settle(self, table: int, written: Mapping[Range, int], *, decides: bool) -> list[Chunk]:
        """What the target's ledger has is done; what it lacks is not, if it `decides`. Returns the chunks after."""

        def step(row: ChunkRow) -> Chunk:
            return locks.reconcile(row.chunk, written.get(row.chunk.range), decides=decides)

        await self._chunks.step_all(self._dump, table, step)
        return [row.chunk for row in await self._chunks.all(self._dump, table)]

    async def _step(
        self, leased: Leased, step: _ChunkStep, attempt: Attempt | None = None, size: int | None = None
    ) -> bool:
        def stepped(row: ChunkRow, now_s: float) -> Stepped | None:
            chunk = step(row.chunk, now_s)
            attempts = () if attempt is None else (_ranged(attempt, row.chunk),)
            return None if chunk is None else Stepped(chunk, attempts, size)

        return await self._chunks.step(self._dump, leased.table, leased.chunk.number, stepped)


def _ranged(attempt: Attempt, chunk: Chunk) -> Attempt:
    return replace(attempt, lo=chunk.range.lo, hi=chunk.range.hi)
