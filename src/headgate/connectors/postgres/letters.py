"""The table `headgate_dead_letter`: dead letters next to the data, so that they commit with the position.

A letter belongs to a stream and to its datasource. It is open until it has another outcome; then its record goes at
once, and its row after 30 days, when the next letter of its stream is kept or a run of it opens.

A letter may have a key: the hash of the key of the record that it repeats. In an upsert, a row of that key that is
written later supersedes the letter, in the same transaction, because to replay it would bring the older row back. Both
a write and a replay lock the letters that concern them before they touch any row, in the order of their ids. So the one
that comes second finds what the first has decided, and no two wait for each other.

Whether there is any open letter with a key is asked in the round trip that begins a transaction: as long as there is
none, which is nearly always, nothing else is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from asyncpg import Connection

from headgate.connectors.api import Grant, Letter, LetterOutcome

TABLE = "headgate_dead_letter"
KEPT = "30 days"  # The row of a letter that is not open, so that the registry can learn what became of it.
TOLD = "29 days"  # For less than the registry knows it: what that has forgotten would be counted once more.

_CREATE = """
CREATE TABLE IF NOT EXISTS {schema}headgate_dead_letter (
    installation uuid NOT NULL, datasource uuid NOT NULL, stream uuid NOT NULL, id uuid NOT NULL,
    key bytea, outcome text NOT NULL, content bytea NOT NULL, remains bytea NOT NULL, created_at timestamptz NOT NULL,
    resolved_at timestamptz, PRIMARY KEY (installation, id)
)
"""
_INDEXES = (
    "CREATE INDEX IF NOT EXISTS headgate_dead_letter_stream ON {schema}headgate_dead_letter (installation, stream)",
    "CREATE INDEX IF NOT EXISTS headgate_dead_letter_key ON {schema}headgate_dead_letter"
    " (installation, datasource, key) WHERE outcome = 'open' AND key IS NOT NULL",
)
_WITH_KEYS = """
SELECT FROM headgate_dead_letter
WHERE installation = {installation} AND datasource = {datasource} AND outcome = 'open' AND key IS NOT NULL LIMIT 1
"""
_LOCK = """
SELECT id, key, created_at FROM headgate_dead_letter
WHERE installation = $1 AND datasource = $2 AND outcome = 'open' AND (id = ANY ($3::uuid[]) OR key = ANY ($4::bytea[]))
ORDER BY id FOR UPDATE
"""
_RESOLVE = """
UPDATE headgate_dead_letter SET outcome = $4, content = remains, resolved_at = now()
WHERE installation = $1 AND datasource = $2 AND id = ANY ($3::uuid[]) AND outcome = 'open'
"""
PURGE = f"""
DELETE FROM headgate_dead_letter
WHERE installation = $1 AND stream = $2 AND resolved_at < now() - interval '{KEPT}'
"""
_KEEP = f"""
WITH purged AS ({PURGE})
INSERT INTO headgate_dead_letter
    (installation, stream, datasource, id, key, outcome, content, remains, created_at, resolved_at)
SELECT $1, $2, $3, id, key, outcome, CASE outcome WHEN 'open' THEN content ELSE remains END, remains,
       now() + place * interval '1 microsecond', CASE WHEN outcome <> 'open' THEN now() END
FROM unnest($4::uuid[], $5::bytea[], $6::text[], $7::bytea[], $8::bytea[])
    WITH ORDINALITY AS l (id, key, outcome, content, remains, place)
ON CONFLICT (installation, id) DO NOTHING
"""
_OUTCOMES = f"""
SELECT id, outcome FROM headgate_dead_letter
WHERE installation = $1 AND stream = $2 AND (resolved_at IS NULL OR resolved_at > now() - interval '{TOLD}')
"""
_REWRITE = """
UPDATE headgate_dead_letter l SET content = u.content FROM unnest($3::uuid[], $4::bytea[]) AS u (id, content)
WHERE l.installation = $1 AND l.datasource = $2 AND l.id = u.id AND l.outcome = 'open'
"""
_READ = """
SELECT id, content, key, outcome, remains FROM headgate_dead_letter
WHERE installation = $1 AND datasource = $2 AND id = ANY ($3::uuid[])
"""


FORGET = "DELETE FROM headgate_dead_letter WHERE installation = $1 AND stream = ANY ($2::uuid[])"


def create(schema: str) -> list[str]:
    """The statements that make the table; `schema` is quoted and ends with a dot, or is empty."""
    return [statement.format(schema=schema) for statement in (_CREATE, *_INDEXES)]


def any_with_keys(installation: str, datasource: str) -> str:
    """A query that finds a row if the datasource has open letters with keys. Both ids are SQL."""
    return _WITH_KEYS.format(installation=installation, datasource=datasource)


@dataclass(frozen=True, slots=True)
class Locked:
    """An open letter that stays as it is until the transaction ends."""

    id: UUID
    key: bytes | None
    created_at: datetime


async def lock(connection: Connection, grant: Grant, ids: Sequence[UUID], keys: Sequence[bytes]) -> list[Locked]:
    """The open ones of these letters, and all open letters with these keys."""
    found = await connection.fetch(_LOCK, *_of(grant), list(set(ids)), list(set(keys)))
    return [Locked(row["id"], row["key"], row["created_at"]) for row in found]


def superseded(locked: Sequence[Locked], keys: Sequence[bytes | None], replays: Sequence[UUID]) -> list[UUID]:
    """The letters that records with these keys make worthless; in a replay, `replays` has the letter of each record.

    A replay is no news: it supersedes only letters that are older than the one that it repeats.
    """
    if not replays:
        known = {key for key in keys if key is not None}
        return [letter.id for letter in locked if letter.key in known]
    ages = {letter.id: (letter.created_at, letter.id) for letter in locked}
    newest: dict[bytes, tuple[datetime, UUID]] = {}
    for key, id in zip(keys, replays, strict=True):
        if key is not None and id in ages:
            newest[key] = max(newest.get(key, ages[id]), ages[id])
    repeated = set(replays)
    return [x.id for x in locked if x.id not in repeated and x.key in newest and ages[x.id] < newest[x.key]]


def none_of(keys: list[bytes | None], replays: Sequence[UUID], letters: Sequence[Letter]) -> list[bytes | None]:
    """The keys of the records of a replay, without those of these letters."""
    without = {letter.id for letter in letters}
    return [None if id in without else key for key, id in zip(keys, replays, strict=True)] if keys else keys


async def resolve(connection: Connection, grant: Grant, ids: Sequence[UUID], outcome: LetterOutcome) -> None:
    """Those of these that are open have had this outcome. Who calls it has locked them."""
    await connection.execute(_RESOLVE, *_of(grant), ids, outcome)


async def rewrite(connection: Connection, grant: Grant, letters: Sequence[Letter]) -> None:
    """The open ones of these have another content. Who calls it has locked them."""
    await connection.execute(_REWRITE, *_of(grant), [one.id for one in letters], [one.content for one in letters])


async def keep(connection: Connection, grant: Grant, letters: Sequence[Letter]) -> None:
    """Add letters to the transaction. Their order is that of their records, and their times tell it."""
    rows = [(x.id, x.key, x.outcome, x.content, x.remains) for x in letters]
    columns = [list(column) for column in zip(*rows, strict=True)]
    await connection.execute(_KEEP, grant.installation, grant.stream, grant.datasource, *columns)


async def outcomes(connection: Connection, grant: Grant) -> dict[UUID, LetterOutcome]:
    """Of all letters of the stream."""
    found = await connection.fetch(_OUTCOMES, grant.installation, grant.stream)
    return {row["id"]: row["outcome"] for row in found}


async def read(connection: Connection, grant: Grant, ids: Sequence[UUID]) -> list[Letter]:
    """Those of these letters that are there."""
    found = await connection.fetch(_READ, *_of(grant), ids)
    return [Letter(row["id"], row["content"], row["key"], row["outcome"], row["remains"]) for row in found]


def _of(grant: Grant) -> tuple[UUID, UUID]:
    return grant.installation, grant.datasource
