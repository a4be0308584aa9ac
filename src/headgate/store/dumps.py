"""Dumps: the plan of each, who has which chunk, and every attempt.

A chunk is locked, stepped by `core.chunks` and saved, as everything here is. Plans are written only by whoever runs the
dump: its row names the owner and an epoch, and a plan under an older one changes nothing. All of this is the memory of
a dump, not its truth: that is the ledger of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from headgate.core import chunks as core
from headgate.core.chunks import Bound, Chunk, Offsets, Range, State
from headgate.errors import NotFound, Refused
from headgate.store.database import Database, sql
from headgate.store.rows import decode
from headgate.store.secrets import Keyring

OWNER = timedelta(seconds=10)  # How long a dump whose process is silent is still its own.
MOST = 1000  # Rows of a list.
# A lease or a report that a crash of this database loses is found again in the target's ledger: nobody waits for the
# disk. A plan must last, or the ledger would have chunks that nobody planned.
_LATER = "; SET LOCAL synchronous_commit = off"


@dataclass(frozen=True, slots=True)
class Leased:
    """A chunk that a worker has."""

    table: int
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of a chunk."""

    table: int
    number: int
    worker: str
    kind: str  # completed, end, error, failure
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class NewDump:
    """What a dump is made of."""

    id: UUID
    source: str
    target: str
    urls: Mapping[str, Any]  # With passwords: sealed, or not kept.
    options: Mapping[str, Any]
    tables: Sequence[tuple[str, str, Mapping[str, Any]]]  # Source, target, job.
    rows: int | None  # A size of chunks, if one was chosen.
    rate: str | None
    place: str
    spread: bool
    actor: str
    datasource: UUID | None = None


class Dumps:
    """Make, run, plan, lease, look at."""

    def __init__(self, database: Database, keyring: Keyring | None = None) -> None:
        self._database = database
        self._keyring = keyring

    # Whole dumps.

    async def create(self, new: NewDump) -> None:
        """Write a new dump and its tables."""
        text = msgspec.json.encode(new.urls).decode()
        sealed = self._keyring.seal(str(new.id), text) if self._keyring else (None, None, None)
        async with self._database.transaction() as connection:
            await connection.execute(
                sql("dumps/insert"),
                new.id,
                new.source,
                new.target,
                *sealed,
                _json(new.options),
                new.datasource,
                new.rate,
                new.place,
                new.spread,
                new.actor,
            )
            await connection.execute(
                sql("dumps/insert_tables"),
                new.id,
                list(range(len(new.tables))),
                [name for name, _, _ in new.tables],
                [target for _, target, _ in new.tables],
                [_json(job) for _, _, job in new.tables],
                new.rows or core.FIRST_ROWS,
                new.rows is not None,
            )

    async def all(self, most: int = MOST) -> list[Any]:
        """All dumps, newest first."""
        return await self._database.fetch(sql("dumps/list"), None, most)

    async def find(self, id: str) -> Any:
        """One dump, by its id or the beginning of it."""
        rows = await self._database.fetch(sql("dumps/list"), id.lower(), 2) if _is_id(id) else []
        if not rows:
            raise NotFound(f"dump {id!r} does not exist", hint="headgate dumps list")
        if len(rows) > 1:
            raise Refused(
                f"dump {id!r} is ambiguous: several begin with it", code="ambiguous", hint="write more of the id"
            )
        return rows[0]

    async def urls(self, dump: UUID) -> dict[str, Any] | None:
        """The URLs with their passwords; None: they were not kept, or no key fits."""
        row = await self._database.fetchrow(sql("dumps/read_urls"), dump)
        if row is None or row["ciphertext"] is None or self._keyring is None:
            return None
        text = self._keyring.unseal(str(dump), row["key_id"], row["wrapped"], row["ciphertext"])
        return None if text is None else msgspec.json.decode(text)

    async def unfinished(self, target: str, tables: Sequence[str]) -> list[UUID]:
        """Dumps into these tables that have begun and not finished."""
        rows = await self._database.fetch(sql("dumps/unfinished"), target, list(tables))
        return [row["id"] for row in rows]

    async def set_wanted(self, dump: UUID, wanted: str) -> None:
        """Run, pause or cancel."""
        await self._database.execute(sql("dumps/set_wanted"), dump, wanted)

    async def set_rate(self, dump: UUID, rate: str | None) -> None:
        """How fast it may go."""
        await self._database.execute(sql("dumps/set_rate"), dump, rate)

    async def set_status(self, dump: UUID, status: str, error: str = "") -> None:
        """How it ended, or that it runs again."""
        await self._database.execute(sql("dumps/set_status"), dump, status, error)

    async def delete(self, dump: UUID) -> bool:
        """Forget one that is over, and its history. False: it is not over."""
        return await self._database.fetchval(sql("dumps/delete"), dump) is not None

    async def state(self, dump: UUID) -> Any:
        """What is wanted of it now."""
        return await self._database.fetchrow(sql("dumps/read_state"), dump)

    async def to_run(self) -> list[Any]:
        """Dumps that nodes should work on."""
        return await self._database.fetch(sql("dumps/open"))

    async def figures(self) -> dict[str, int]:
        """How many dumps there are of each status."""
        return {row["status"]: row["dumps"] for row in await self._database.fetch(sql("dumps/figures"))}

    async def totals(self) -> dict[str, int]:
        """Rows and bytes that all dumps together have copied, those that were deleted among them."""
        return dict(await self._database.fetchrow(sql("dumps/totals")))

    async def pace(self, dump: UUID) -> Any:
        """Rows and bytes of late, and in how many seconds."""
        return await self._database.fetchrow(sql("dumps/pace"), dump)

    # Who runs it.

    async def claim(self, dump: UUID, owner: UUID, process: str, dead: str | None = None) -> int | None:
        """Run it from now on. None: another process does."""
        found: int | None = await self._database.fetchval(sql("dumps/claim"), dump, owner, process, OWNER, dead)
        return found

    async def renew(self, dump: UUID, owner: UUID, epoch: int) -> Any:
        """Go on running it; what is wanted of it. None: another runs it by now."""
        return await self._database.fetchrow(sql("dumps/renew"), dump, owner, epoch, OWNER)

    async def release(self, dump: UUID, owner: UUID) -> None:
        """Run it no longer."""
        await self._database.execute(sql("dumps/release"), dump, owner)

    async def restart(self, dump: UUID, dead: str | None = None) -> None:
        """Try again what failed, and what a dead process had."""
        await self._database.execute(sql("dumps/restart"), dump, dead or "nobody")

    async def set_snapshot(self, dump: UUID, snapshot: str | None, *, fuzzy: bool) -> None:
        """The snapshot that it reads, and whether it has read another before."""
        await self._database.execute(sql("dumps/set_snapshot"), dump, snapshot, fuzzy)

    # The plan.

    async def tables(self, dump: UUID) -> list[Any]:
        """Its tables, with what is done of each."""
        return await self._database.fetch(sql("dumps/tables"), dump)

    async def save_table(
        self, dump: UUID, number: int, state: str, job: Mapping[str, Any], offsets: Offsets | None, error: str = ""
    ) -> None:
        """A table's state and how far it is planned."""
        at = offsets or Offsets(None)
        places = (_bound(at.top), _bound(at.at), at.ended, at.rows)
        await self._database.execute(sql("dumps/save_table"), dump, number, state, _json(job), *places, error)

    async def plan(
        self, dump: UUID, owner: UUID, epoch: int, table: int, offsets: Offsets, cut: Sequence[Chunk]
    ) -> bool:
        """Write chunks that were cut, before anyone can have them. False: another runs the dump by now."""
        numbers = [chunk.number for chunk in cut]
        los, his = [_bound(chunk.range.lo) for chunk in cut], [_bound(chunk.range.hi) for chunk in cut]
        places = (_bound(offsets.at), offsets.ended, offsets.rows)
        done = await self._database.fetchval(sql("dumps/plan"), dump, owner, epoch, table, numbers, los, his, *places)
        return done is not None

    async def take_back(self, dump: UUID, table: int, offsets: Offsets) -> Offsets:
        """Take back the end of the plan that nobody has had, to cut it anew."""
        async with self._database.transaction() as connection:
            rows = await connection.fetch(sql("dumps/chunks"), dump, table)
            changed, tail = core.recut(offsets, [chunk_of(row) for row in rows])
            numbers = [chunk.number for chunk in tail]
            locked = await connection.fetch(sql("dumps/lock_chunks"), dump, table, numbers)
            if any(row["state"] != State.PLANNED or row["epoch"] > 0 for row in locked):
                return offsets  # Somebody has just taken one of them.
            await connection.execute(sql("dumps/delete_chunks"), dump, table, numbers)
            await connection.execute(sql("dumps/set_at"), dump, table, _bound(changed.at), changed.ended, changed.rows)
            return changed

    async def forget_chunks(self, dump: UUID, table: int) -> None:
        """Plan a table from the beginning."""
        await self._database.execute(sql("dumps/delete_chunks"), dump, table, None)

    async def chunks(self, dump: UUID, table: int | None = None) -> list[tuple[int, Chunk, int]]:
        """Table, chunk and bytes, in the order of the plan."""
        rows = await self._database.fetch(sql("dumps/chunks"), dump, table)
        return [(row["table"], chunk_of(row), row["bytes"]) for row in rows]

    # Chunks and workers.

    async def lease(self, dump: UUID, worker: str, most: int = 1) -> list[Leased]:
        """The next chunks for a worker."""
        async with self._database.transaction(_LATER) as connection:
            found = []
            for row in await connection.fetch(sql("dumps/free_chunks"), dump, most):
                chunk, table = chunk_of(row), row["table"]
                if (lost := core.run_out(chunk, row["now_s"])) is not None:
                    attempt = Attempt(table, chunk.number, chunk.worker or "", "error", error=lost.error)
                    await _append(connection, dump, attempt)
                    chunk = lost
                if chunk.state is State.PLANNED:
                    chunk = core.lease(chunk, worker, row["now_s"])
                    found.append(Leased(table, chunk))
                await _save(connection, dump, table, chunk)
            return found

    async def renew_lease(self, dump: UUID, leased: Leased) -> bool:
        """The worker goes on. False: the chunk is another's by now."""
        return await self._step(dump, leased, lambda chunk, now_s: core.renew(chunk, leased.chunk.epoch, now_s))

    async def give_back(self, dump: UUID, leased: Leased) -> bool:
        """The worker stops."""
        return await self._step(dump, leased, lambda chunk, _: core.give_back(chunk, leased.chunk.epoch))

    async def complete(self, dump: UUID, leased: Leased, attempt: Attempt) -> bool:
        """The chunk is written."""

        def done(chunk: Chunk, now_s: float) -> Chunk | None:
            return core.finish(chunk, leased.chunk.epoch, attempt.rows)

        return await self._step(dump, leased, done, attempt, attempt.bytes)

    async def fail(self, dump: UUID, leased: Leased, attempt: Attempt, *, last: bool = False) -> bool:
        """The chunk could not be written. `last`: trying again cannot help."""

        def failed(chunk: Chunk, now_s: float) -> Chunk | None:
            return core.fail(chunk, leased.chunk.epoch, attempt.error, 1 if last else core.ATTEMPTS)

        return await self._step(dump, leased, failed, attempt)

    async def record(self, dump: UUID, attempt: Attempt) -> None:
        """Write down what happened, whatever became of the chunk."""
        async with self._database.transaction(_LATER) as connection:
            await _append(connection, dump, attempt)

    async def settle(self, dump: UUID, table: int, written: Mapping[Range, int], *, decides: bool) -> int:
        """What the target's ledger has is done, whoever wrote it; what it has not is not, if it `decides`. Returns how
        many chunks that changed."""
        changed = 0
        async with self._database.transaction() as connection:
            rows = await connection.fetch(sql("dumps/chunks"), dump, table)
            for row in await connection.fetch(sql("dumps/lock_chunks"), dump, table, [row["number"] for row in rows]):
                chunk = chunk_of(row)
                if chunk.range in written:
                    settled = core.settle(chunk, written[chunk.range])
                else:
                    settled = core.unsettle(chunk) if decides else chunk
                if settled.state is not chunk.state:
                    await _save(connection, dump, table, settled)
                    changed += 1
        return changed

    async def _step(
        self,
        dump: UUID,
        leased: Leased,
        step: Callable[[Chunk, float], Chunk | None],
        attempt: Attempt | None = None,
        size: int | None = None,
    ) -> bool:
        """Lock the chunk, step it, save it, and write down the attempt. False: nothing was changed."""
        async with self._database.transaction(_LATER) as connection:
            rows = await connection.fetch(sql("dumps/lock_chunks"), dump, leased.table, [leased.chunk.number])
            stepped = step(chunk_of(rows[0]), rows[0]["now_s"]) if rows else None
            if stepped is None:
                return False
            await _save(connection, dump, leased.table, stepped, size)
            if attempt is not None:
                await _append(connection, dump, attempt)
            return True

    # History.

    async def last_attempt(self, dump: UUID) -> int:
        """The number of the newest attempt."""
        found: int = await self._database.fetchval(sql("dumps/last_attempt"), dump)
        return found

    async def history(self, dump: UUID, after: int = 0, most: int = MOST) -> list[Any]:
        """Attempts after this one, oldest first."""
        return await self._database.fetch(sql("dumps/history"), dump, after, most)


async def _save(connection: Any, dump: UUID, table: int, chunk: Chunk, size: int | None = None) -> None:
    until_s = chunk.until_s or None
    await connection.execute(
        sql("dumps/save_chunk"),
        dump,
        table,
        chunk.number,
        chunk.state,
        chunk.epoch,
        chunk.worker,
        until_s,
        chunk.attempts,
        chunk.rows,
        size,
        chunk.error,
    )


async def _append(connection: Any, dump: UUID, attempt: Attempt) -> None:
    await connection.execute(sql("dumps/lock_history"), dump)
    await connection.execute(sql("dumps/append_attempt"), dump, *_line(attempt))


def chunk_of(row: Any) -> Chunk:
    """A row as the machine knows it."""
    return Chunk(
        row["number"],
        Range(bound_of(row["lo"]), _some(row["hi"])),
        State(row["state"]),
        row["epoch"],
        row["worker"],
        row["until_s"],
        row["attempts"],
        row["rows"],
        row["error"],
    )


def offsets_of(row: Any) -> Offsets:
    """How far a table's row says that it is planned."""
    return Offsets(
        bound_of(row["top"]), bound_of(row["at"]), ended=row["planned"], rows=row["size"], fixed=row["fixed"]
    )


def bound_of(text: Any) -> Bound | None:
    """A bound from JSON."""
    found = decode(text)
    return None if found is None else tuple(found)


def _some(text: Any) -> Bound:
    found = bound_of(text)
    assert found is not None, "a chunk ends somewhere"
    return found


def _bound(bound: Bound | None) -> str | None:
    return None if bound is None else _json(bound)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _line(attempt: Attempt) -> Iterable[Any]:
    return (
        attempt.table,
        attempt.number,
        attempt.worker,
        attempt.kind,
        attempt.rows,
        attempt.bytes,
        attempt.seconds,
        attempt.error,
    )


def _is_id(text: str) -> bool:
    return bool(text) and set(text.lower()) <= set("0123456789abcdef-")
