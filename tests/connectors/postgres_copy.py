"""A dump in small: two fresh databases, and a table copied between them chunk by chunk."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from headgate.connectors.api.bulk import By, Job, Language, Piece, Pieces, Table
from headgate.connectors.postgres.reader import PostgresReader
from headgate.connectors.postgres.writer import PostgresWriter
from headgate.connectors.values.convert import common
from headgate.core.chunks import Bound, Range

DUMP = UUID("11111111-2222-3333-4444-555555555555")
OTHER = UUID("99999999-2222-3333-4444-555555555555")
_numbers = itertools.count()


@dataclass
class Side:
    """One database: its URL, and a session of the test's own."""

    url: str
    sql: Any

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query, as the server's text where the driver has no type for it."""
        return [tuple(row) for row in await self.sql.fetch(query)]

    async def values(self, query: str) -> list[Any]:
        """The first column of a query."""
        return [row[0] for row in await self.sql.fetch(query)]

    async def catalog(self) -> list[Any]:
        """All that anybody has made here."""
        return await self.values(
            "SELECT relkind::text || relname FROM pg_class WHERE oid >= 16384"
            " UNION SELECT 't' || typname FROM pg_type WHERE oid >= 16384"
            " UNION SELECT 'n' || nspname FROM pg_namespace WHERE oid >= 16384 ORDER BY 1"
        )


async def make_databases(server_url: str, count: int = 2) -> list[str]:
    """The URLs of new databases. They go with the server: making one takes longer than most tests do."""
    admin = await asyncpg.connect(server_url)
    names = [f"pgs{os.getpid()}_{next(_numbers)}" for _ in range(count)]
    for name in names:
        await admin.execute(f"CREATE DATABASE {name} STRATEGY FILE_COPY")
    await admin.close()
    return [server_url.replace("/headgate?", f"/{name}?") for name in names]


@asynccontextmanager
async def emptied(url: str) -> AsyncIterator[Side]:
    """A database with nothing in it."""
    sql = await asyncpg.connect(url)
    try:
        await sql.execute(
            "DO $$ DECLARE one text; BEGIN"
            " FOR one IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'"
            " LOOP EXECUTE format('DROP SCHEMA %I CASCADE', one); END LOOP;"
            " FOR one IN SELECT pubname FROM pg_publication LOOP EXECUTE format('DROP PUBLICATION %I', one); END LOOP;"
            " CREATE SCHEMA public; END $$"
        )
        await sql.execute("SET TimeZone = 'UTC'")
        yield Side(url, sql)
    finally:
        await sql.close()


@asynccontextmanager
async def reading(side: Side, snapshot: str | None = None) -> AsyncIterator[PostgresReader]:
    """A session that reads."""
    reader = PostgresReader(side.url, snapshot)
    try:
        yield reader
    finally:
        await reader.close()


@asynccontextmanager
async def writing(side: Side) -> AsyncIterator[PostgresWriter]:
    """A session that writes."""
    writer = PostgresWriter(side.url)
    try:
        yield writer
    finally:
        await writer.close()


def kept(job: Job) -> Job:
    """The job as it comes back from where a dump keeps it."""
    return msgspec.json.decode(msgspec.json.encode(job), type=Job)


async def job_for(
    source: Side, table: str, target: Side, into: str = "", exclude: Sequence[str] = (), **changes: Any
) -> Job:
    """What a dump would ask for."""
    async with reading(source) as reader, writing(target) as writer:
        found = await reader.describe(table)
        generated = found.details["generated"]
        columns = [one for one in found.columns if one.name not in generated and one.name not in exclude]
        dropped = [{"name": one.name, "native": one.native} for one in found.columns if one.name in generated]
        found = replace(found, columns=tuple(columns), details={**found.details, "dropped": dropped})
        into = into or found.name
        created = await writer.look(into) is None
    changes = {"key": found.key, "aside": found.by is By.BLOCK, "created": created, **changes}
    return kept(Job(DUMP, found, into, **changes))


async def chunks_of(reader: PostgresReader, table: Table, rows: int) -> list[Range]:
    """A whole table, in chunks of so many rows."""
    top, at, found = await reader.top(table), None, []
    while top is not None and at != top:
        hi: Bound = await reader.cut(table, at, top, rows)
        assert hi != at, "a chunk ends after it begins"
        found.append(Range(at, hi))
        at = hi
    return found


async def copy_chunks(
    job: Job, source: Side, target: Side, rows: int = 1000, language: Language | None = None
) -> list[Language]:
    """Prepare, and write each chunk. Returns the languages that were spoken."""
    spoken = []
    async with reading(source) as reader, writing(target) as writer:
        into = await writer.prepare(job)
        for range in await chunks_of(reader, job.source, rows):
            said = language or common(reader.languages, writer.accepts(into, job))
            await writer.write(job, into, range, said, reader.query(job.source, range, said, writer.csv))
            spoken.append(said)
    return spoken


async def copy(source: Side, table: str, target: Side, rows: int = 1000, **changes: Any) -> Job:
    """A whole dump of one table, with its foreign keys."""
    job = await job_for(source, table, target, **changes)
    await copy_chunks(job, source, target, rows)
    async with writing(target) as writer:
        await writer.finish(job)
        assert await writer.link(job, {}) == []
    return job


async def pieces_of(parts: Iterable[bytes], rows: int = 0) -> Pieces:
    """Bytes as a source would send them."""
    for part in parts:
        yield Piece(part, len(part))
    yield Piece(b"", 0, rows)
