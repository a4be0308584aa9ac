"""The table `headgate_position`: where each stream stands, next to its data, and the fence that every write passes.

For each stream (installation, stream) it has epoch, generation, commits, position and totals. `raise_epoch` raises the
epoch in a separate transaction, before the source is opened. From then on no older run can commit: the last statement
of every write is an update of that row `WHERE epoch = mine`, and a write that updates nothing rolls back. Reading the
position without raising the epoch would not do: an older run's transaction, open at that moment, could still commit
after it.

A stream that is gone is forgotten: its row goes, and its letters. A run that is open then updates nothing, and is
fenced. But a run that has yet to open would make the row again, and be a writer that nothing fences. So the server
itself compares its clock with the time until which the run may act: a run that was stopped just before it raises the
epoch, and wakes after its node has lost its trust, raises nothing.

A process that is stopped inside its transaction must not block its successor. Between statements the server ends such
a transaction after a second; inside a COPY that limit does not count, so every write first takes an advisory lock on
its stream, and `raise_epoch` ends the session that holds it.

The row of no installation and no stream has the mark of the table: an id by which the data next to it are known,
wherever they move (`core.identity`). The first stream that opens the sink gives it one.

What an older release made gets what is missing: the column of totals, and the table of letters. Where the user may
not, the sink works without: then the registry alone has the totals, and no letter can be kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias
from uuid import UUID, uuid4

import asyncpg
import msgspec
from asyncpg import Connection, Record

from headgate.connectors.api import Grant, Progress, Totals
from headgate.connectors.postgres import letters
from headgate.errors import Fenced, NotConnected

Position: TypeAlias = tuple[UUID, UUID, int, int, int, str, list[int]]
"""Installation, stream, epoch, generation, commits, where the source stands, as JSON, and the totals."""

# The columns `edits` and `n` are the generation and the commits. They keep these names: existing tables have them, and
# a user who may write to such a table need not be its owner, who alone could rename them.
_CREATE = """
CREATE TABLE IF NOT EXISTS headgate_position (
    installation uuid NOT NULL, stream uuid NOT NULL, epoch bigint NOT NULL,
    edits integer NOT NULL, n bigint NOT NULL, position json, totals bigint[],
    PRIMARY KEY (installation, stream)
) WITH (fillfactor = 50)
"""
_ADD_TOTALS = "ALTER TABLE headgate_position ADD COLUMN IF NOT EXISTS totals bigint[]"
_LOOK = """
SELECT p.oid IS NOT NULL AS has_positions, quote_ident(n.nspname) AS schema,
       l.oid IS NOT NULL AS has_letters, coalesce((SELECT bool_and(has_table_privilege(l.oid, p)) FROM
           unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p), false) AS may_keep_letters,
       EXISTS (SELECT FROM pg_attribute WHERE attrelid = p.oid AND attname = 'totals' AND NOT attisdropped)
           AS has_totals,
       coalesce(pg_has_role(p.relowner, 'USAGE'), true) AS may_alter,
       coalesce(has_schema_privilege(n.oid, 'CREATE'), true) AS may_create
FROM (SELECT to_regclass('headgate_position')::oid AS oid) t
CROSS JOIN (SELECT to_regclass('headgate_dead_letter')::oid AS oid) l
LEFT JOIN pg_class p ON p.oid = t.oid LEFT JOIN pg_namespace n ON n.oid = p.relnamespace
"""
# The server's clock comes with it, from which the end of our trust is counted.
_READ_EPOCH = """
SELECT extract(epoch FROM clock_timestamp())::float8 AS now_s,
       (SELECT epoch FROM headgate_position WHERE installation = $1 AND stream = $2) AS epoch
"""
_END_HOLDERS = """
SELECT pg_terminate_backend(pid) FROM pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND pid <> pg_backend_pid()
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (classid::bigint << 32 | objid::bigint) = $1
"""
# A new row has a lower generation than any registry has, so the registry decides where its stream begins. It is a whole
# transaction: of a process that is stopped the server has either all of it, or nothing that it could commit later.
_RAISE_EPOCH = """
WITH limits AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'on', true), set_config('lock_timeout', '5000', true)
){purged}
INSERT INTO headgate_position AS p (installation, stream, epoch, edits, n)
SELECT $1::uuid, $2::uuid, $3::bigint, -1, 0 FROM limits WHERE extract(epoch FROM clock_timestamp()) < $4::float8
ON CONFLICT (installation, stream) DO UPDATE SET epoch = excluded.epoch WHERE p.epoch < excluded.epoch
RETURNING edits, n, position, {totals} AS totals
"""
_NOBODY = UUID(int=0)
_SET_MARK = """
INSERT INTO headgate_position (installation, stream, epoch, edits, n, position)
VALUES ($1, $1, 0, -1, 0, to_json($2::text)) ON CONFLICT DO NOTHING
"""
_READ_MARK = "SELECT position #>> '{}' FROM headgate_position WHERE installation = $1 AND stream = $1"
_FORGET = "DELETE FROM headgate_position WHERE installation = $1 AND stream = ANY ($2::uuid[])"
_BEGIN = """
BEGIN; SET LOCAL synchronous_commit = on; SET LOCAL idle_in_transaction_session_timeout = 1000;
SET LOCAL lock_timeout = 5000; SELECT pg_advisory_xact_lock({key})
"""
_ADVANCE = """
UPDATE headgate_position SET edits = $4, n = $5, position = $6{totals}
WHERE installation = $1 AND stream = $2 AND epoch = $3 AND ($7::bigint[] IS NULL OR true)
"""
_HOLD = """
SELECT epoch FROM headgate_position WHERE installation = $1 AND stream = $2 AND epoch = $3 FOR SHARE
"""


class Kept:
    """What a database has of Headgate's tables for this user, beyond the positions themselves."""

    __slots__ = ("has_letters", "has_totals")

    def __init__(self, *, has_totals: bool, has_letters: bool) -> None:
        self.has_totals = has_totals
        self.has_letters = has_letters

    @property
    def set_totals(self) -> str:
        """What an update of the position says of the totals, which are its $7."""
        return ", totals = $7" if self.has_totals else ""


def lock_key(installation: UUID, stream: UUID) -> int:
    """The advisory lock of one stream's writes, below 2^63 so that both halves are plain numbers."""
    digest = hashlib.sha256(b"headgate-sink" + installation.bytes + stream.bytes).digest()
    return int.from_bytes(digest[:8]) >> 1


# When a run opens.


async def ensure(connection: Connection) -> Kept:
    """Make what is absent, as far as this user may."""
    found = await connection.fetchrow(_LOOK)
    if _missing(found):
        with suppress(asyncpg.LockNotAvailableError):  # A long transaction of another run: without, then.
            await _make(connection)
        found = await connection.fetchrow(_LOOK)
    return Kept(has_totals=found["has_totals"], has_letters=found["may_keep_letters"])


def _missing(found: Record) -> list[str]:
    """The statements that make what is missing and may be made."""
    if not found["has_positions"]:
        return [_CREATE, *letters.create("")]
    add = [] if found["has_totals"] or not found["may_alter"] else [_ADD_TOTALS]
    return add if found["has_letters"] or not found["may_create"] else [*add, *letters.create(f"{found['schema']}.")]


async def _make(connection: Connection) -> None:
    async with connection.transaction():
        # Two sessions that create at once collide in the catalog: one after the other, then, and the second one looks
        # again. To wait for a table's lock holds up all others who write to it.
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('headgate_position', 0))")
        statements = _missing(await connection.fetchrow(_LOOK))
        await connection.execute(";".join(["SET LOCAL lock_timeout = 500", *statements]))


async def raise_epoch(connection: Connection, grant: Grant, kept: Kept) -> Progress:
    """Fence every older run, and return where the data stand."""
    stream = grant.installation, grant.stream
    found = await connection.fetchrow(_READ_EPOCH, *stream)
    until_s = found["now_s"] + grant.trust_left_s()  # In this order: whatever happens in between only shortens it.
    if found["epoch"] is not None and found["epoch"] >= grant.epoch:
        raise Fenced(f"epoch {grant.epoch} is fenced by epoch {found['epoch']}")
    await connection.execute(_END_HOLDERS, lock_key(*stream))
    statement = _RAISE_EPOCH.format(
        totals="p.totals" if kept.has_totals else "NULL::bigint[]",
        purged=f", purged AS ({letters.PURGE} AND EXISTS (SELECT FROM limits))" if kept.has_letters else "",
    )
    row = await connection.fetchrow(statement, *stream, grant.epoch, until_s)
    if row is None:
        present = (await connection.fetchrow(_READ_EPOCH, *stream))["epoch"]
        if present is None or present < grant.epoch:
            raise NotConnected("our trust ended before the sink was open")
        raise Fenced(f"epoch {grant.epoch} is fenced by epoch {present}")
    position = None if row["position"] is None else msgspec.json.decode(row["position"])
    # Of what was never counted here, the registry's totals are the best that is known.
    totals = grant.progress.totals if row["totals"] is None else Totals(*row["totals"])
    return Progress(row["edits"], row["n"], position, totals)


async def set_mark(connection: Connection) -> None:
    """Give the data here a mark, unless they have one."""
    await connection.execute(_SET_MARK, _NOBODY, str(uuid4()))


async def read_mark(connection: Connection) -> str | None:
    """What the data here are known by."""
    if await connection.fetchval("SELECT to_regclass('headgate_position')") is None:
        return None
    return await connection.fetchval(_READ_MARK, _NOBODY)  # type: ignore[no-any-return]


# When a stream is gone.


async def forget(connection: Connection, installation: UUID, streams: Sequence[UUID]) -> None:
    """Remove what is kept of these streams, letters first, as a write locks them. What is absent is no error."""
    found = await connection.fetchrow(_LOOK)
    forget_letters = [letters.FORGET] if found["has_letters"] else []
    async with connection.transaction():
        await connection.execute("SET LOCAL lock_timeout = 5000")
        for statement in [*forget_letters, _FORGET] if found["has_positions"] else forget_letters:
            await connection.execute(statement, installation, streams)


# When it writes.


def position_of(grant: Grant, progress: Progress) -> Position:
    """What a write puts into the stream's row."""
    totals = progress.totals
    counts = [totals.read, totals.written, totals.filtered, totals.dead_lettered, totals.skipped]
    text = msgspec.json.encode(progress.position).decode()
    return grant.installation, grant.stream, grant.epoch, progress.generation, progress.commits, text, counts


async def begin(connection: Connection, grant: Grant, also: str = "") -> str:
    """Begin a write's transaction; `also` is a query to ask at the end of the same round trip. Returns its status."""
    text = _BEGIN.format(key=lock_key(grant.installation, grant.stream))
    return await connection.execute(f"{text}; {also}" if also else text)  # type: ignore[no-any-return]


async def advance(connection: Connection, position: Position, kept: Kept) -> bool:
    """The last statement of a write. False: the stream has another run."""
    answer = await connection.execute(_ADVANCE.format(totals=kept.set_totals), *position)
    return answer == "UPDATE 1"  # type: ignore[no-any-return]


async def hold(connection: Connection, grant: Grant) -> None:
    """Keep the epoch from being raised until this transaction ends, or find that the run is fenced.

    FOR KEY SHARE would not do: a successor's update of the epoch, which is no key, goes past it.
    """
    if await connection.fetchval(_HOLD, grant.installation, grant.stream, grant.epoch) is None:
        raise fenced(grant)


def fenced(grant: Grant) -> Fenced:
    """What a run is told whose stream has another one."""
    return Fenced(f"epoch {grant.epoch} is fenced: another run has the stream")
