"""A dump that is killed (kill -9) at random moments and resumed, while its source is written to; then an audit.

Rows are known by their number, so that the audit knows what must be there:

    4, 6, 8 (mod 10)   nobody touches them: each is in the target once and unchanged, before anything is repaired
    2                  updated meanwhile: there once, in some version
    0                  deleted meanwhile, some of them
    odd                inserted meanwhile, below the top and above it; those above belong to nobody

When the writes have ended, `verify --repair` makes the target equal to what the source has up to the plan's top.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import asyncpg

WORKERS = 2
KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
LONG_S = 120.0
SHAPE = "id bigint NOT NULL, version integer NOT NULL DEFAULT 0, body text NOT NULL"

MODES = ("plain", "absent", "replace")  # What is at the target before: a table without an index, none, one with rows.

# The order in which everything is compared, and how. A table has one row for each key, so that no hash is needed.
_ROWS = "SELECT id, version, body FROM {table} WHERE id <= $1 ORDER BY id"


@dataclass
class Outcome:
    """What one cycle has seen."""

    runs: int = 0
    kills: int = 0
    chunks: int = 0
    again: int = 0  # Chunks that were begun more than once.
    lost: int = 0  # Rows that must be there and are not.
    repeated: int = 0  # Rows that are there twice.
    changed: int = 0  # Rows that nobody touched and that are not as they were.
    repaired: int = 0
    equal: bool = False
    errors: list[str] = field(default_factory=list)

    @property
    def in_flight(self) -> int:
        """The most chunks that were under way when their process was killed."""
        return self.kills * WORKERS

    @property
    def is_good(self) -> bool:
        """Whether every promise was kept."""
        wrong = self.lost or self.repeated or self.changed or self.errors
        return self.equal and not wrong and self.again <= self.in_flight


@dataclass(frozen=True)
class Place:
    """Two databases, Headgate's own, and a home."""

    source: str
    target: str
    own: str
    home: Path

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """A command as a process of its own."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
        variables = {
            **inherited,
            "HEADGATE_HOME": str(self.home),
            "HEADGATE_DATABASE": self.own,
            "HEADGATE_MASTER_KEY": KEY,
        }
        with (self.home / "out").open("wb") as out, (self.home / "errors").open("ab") as errors:
            command = [sys.executable, "-m", "headgate.cli", *words]
            return subprocess.Popen(command, env=variables, cwd=self.home, stdout=out, stderr=errors)

    def said(self) -> Any:
        """What the last command that ended by itself has printed, as JSON."""
        return json.loads((self.home / "out").read_text())

    def complained(self) -> str:
        """The end of what commands wrote to stderr."""
        return (self.home / "errors").read_text()[-2000:]


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Its exit code. One that does not end is killed."""
    try:
        return await asyncio.to_thread(process.wait, LONG_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


class Cycle:
    """One dump, from its first start to the audit."""

    def __init__(self, place: Place, random: Random, table: str, mode: str, rows: int, chunk_rows: int) -> None:
        self.place = place
        self.outcome = Outcome()
        self._random = random
        self._table = table
        self._mode = mode
        self._rows = rows
        self._chunk_rows = chunk_rows

    async def run(self, most_kills: int = 4) -> Outcome:
        """All of it."""
        place = self.place
        urls = (place.source, place.target, place.own)
        self._source, self._target, self._own = [await asyncpg.connect(url) for url in urls]
        writing = None
        try:
            await self._prepare()
            writing = asyncio.create_task(self._write())
            dump = await self._until_complete(most_kills)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            if dump is not None:
                await self._audit(dump)
        finally:
            if writing is not None:
                writing.cancel()
            for connection in (self._source, self._target, self._own):
                await connection.close()
        return self.outcome

    async def _prepare(self) -> None:
        await self._source.execute(f"CREATE TABLE {self._table} ({SHAPE}, PRIMARY KEY (id))")
        await self._source.execute(
            f"INSERT INTO {self._table} SELECT 2 * n, 0, repeat(md5(n::text), 4) FROM generate_series(1, $1::int) n",
            self._rows,
        )
        if self._mode != "absent":
            await self._target.execute(f"CREATE TABLE {self._table} ({SHAPE})")
        if self._mode == "replace":
            await self._target.execute(f"INSERT INTO {self._table} VALUES (1, 1, 'old'), (-1, 1, 'old')")

    async def _write(self) -> None:
        """Update, insert and delete at random, until cancelled."""
        connection = await asyncpg.connect(self.place.source)
        numbers, table = self._random, self._table
        above = 2 * self._rows
        try:
            while True:
                ten = 10 * numbers.randrange(self._rows // 5)
                await connection.execute(f"UPDATE {table} SET version = version + 1 WHERE id = $1", ten + 2)
                await connection.execute(f"DELETE FROM {table} WHERE id = $1", ten)
                above += 1
                for id in (ten + 1, above):
                    await connection.execute(f"INSERT INTO {table} VALUES ($1, 0, 'new') ON CONFLICT DO NOTHING", id)
                await asyncio.sleep(0.002)
        finally:
            connection.terminate()

    async def _until_complete(self, most_kills: int) -> UUID | None:
        """Start, kill, resume, until it ends by itself. The first run is always killed, if it can be caught."""
        dump: UUID | None = None
        while True:
            dump = dump or await self._find()
            process = self.place.start(*self._command(dump))
            self.outcome.runs += 1
            if self.outcome.kills < most_kills and (not self.outcome.kills or self._random.random() < 0.6):
                await self._wait_for_a_moment(process)
                if process.poll() is None:
                    process.kill()
                    self.outcome.kills += 1
            code = await ended(process)
            dump = dump or await self._find()
            if code == 0 or (code < 0 and await self._is_complete(dump)):
                return dump
            if code > 0:
                self.outcome.errors.append(f"exit code {code}: {self.place.complained()}")
                return None

    def _command(self, dump: UUID | None) -> tuple[str, ...]:
        if dump is not None:
            return "dumps", "resume", str(dump)
        mode = "replace" if self._mode == "replace" else "append"
        size = ("--chunk-rows", str(self._chunk_rows))
        tables = ("--table", self._table, "--mode", mode, "--workers", str(WORKERS))
        return "dump", self.place.source, self.place.target, *tables, *size

    async def _find(self) -> UUID | None:
        """The dump, if it was written down before its process was killed."""
        with suppress(asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            query = "SELECT dump FROM headgate.dump_table WHERE name = $1 OR name = 'public.' || $1"
            found: UUID | None = await self._own.fetchval(query, self._table)
            return found
        return None

    async def _is_complete(self, dump: UUID | None) -> bool:
        """Whether it was killed only after it had ended."""
        status = await self._own.fetchval("SELECT status FROM headgate.dump WHERE id = $1", dump) if dump else None
        return bool(status == "completed")

    async def _wait_for_a_moment(self, process: subprocess.Popen[bytes]) -> None:
        """Either some time after the start, or when some more chunks are in the ledger, and a little later."""
        numbers = self._random
        if numbers.random() < 0.2:
            await asyncio.sleep(numbers.uniform(0.0, 1.5))
            return
        chunks = self._rows // self._chunk_rows
        more = numbers.randrange(chunks // 2)
        start = await self._lines()
        while process.poll() is None and await self._lines() < min(start + more, chunks):
            await asyncio.sleep(0.003)
        await asyncio.sleep(numbers.uniform(0.0, 0.05))

    async def _lines(self) -> int:
        with suppress(asyncpg.UndefinedTableError):
            query = "SELECT count(*) FROM headgate_dump_chunk WHERE target = $1 OR target = 'public.' || $1"
            count: int = await self._target.fetchval(query, self._table)
            return count
        return 0

    # The audit.

    async def _audit(self, dump: UUID) -> None:
        seen = self.outcome
        query = (
            "SELECT count(*), coalesce(sum(greatest(epoch - 1, 0)), 0)::int FROM headgate.dump_chunk WHERE dump = $1"
        )
        seen.chunks, seen.again = await self._own.fetchrow(query, dump)
        top = json.loads(await self._own.fetchval("SELECT top FROM headgate.dump_table WHERE dump = $1", dump))
        highest = int(top[0])
        before = await self._all(self._target, highest)
        if await self._target.fetchval(f"SELECT count(*) FROM {self._table} WHERE id > $1", highest):
            seen.errors.append("rows above the top were copied")
        there = {row["id"]: row for row in before}
        seen.repeated = len(before) - len(there)
        for row in await self._all(self._source, highest):
            if row["id"] % 10 in (2, 4, 6, 8) and row["id"] not in there:
                seen.lost += 1
            elif row["id"] % 10 in (4, 6, 8) and row != there[row["id"]]:
                seen.changed += 1
        await self._repair(dump, highest)

    async def _repair(self, dump: UUID, highest: int) -> None:
        code = await ended(self.place.start("dumps", "verify", str(dump), "--repair", "--json"))
        if code != 0:
            self.outcome.errors.append(f"verify ended with {code}: {self.place.complained()}")
            return
        self.outcome.repaired = self.place.said()["repaired"]
        source, target = await self._all(self._source, highest), await self._all(self._target, highest)
        self.outcome.equal = source == target

    async def _all(self, connection: Any, highest: int) -> list[Any]:
        rows: list[Any] = await connection.fetch(_ROWS.format(table=self._table), highest)
        return rows
