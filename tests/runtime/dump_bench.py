"""Two databases and Headgate's own, between which tests run dumps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from headgate.connectors.api.bulk import Mode
from headgate.runtime.dumps.plan import Options, Request, Storages, create
from headgate.runtime.dumps.process import Notification, StreamProcess
from headgate.store.dumps import Dumps
from tests.waiting import until


class Bench:
    """A source, a target, and Headgate's own database."""

    def __init__(self, source: str, target: str, url: str, dumps: Dumps, home: Path) -> None:
        self.source, self.target, self.url, self.dumps, self.home = source, target, url, dumps, home
        self.heard: list[Notification] = []

    async def at(self, url: str, query: str, *args: Any) -> list[Any]:
        """One statement, somewhere."""
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetch(query, *args)
        finally:
            await connection.close()

    async def make(self, rows: int = 1000, table: str = "items") -> None:
        """A table with a key at the source."""
        await self.at(self.source, f"CREATE TABLE {table} (id bigint PRIMARY KEY, name text NOT NULL, note text)")
        await self.at(
            self.source,
            f"INSERT INTO {table} SELECT g, 'name ' || g, nullif('note ' || g % 7, 'note 3')"
            f" FROM generate_series(1, {rows}) g",
        )

    async def create(self, *tables: str, mode: str = "append", rows: int | None = 100, **more: Any) -> UUID:
        """A dump, not yet running."""
        options = Options(mode=Mode(mode), workers=more.pop("workers", 2))
        source, target = more.pop("source", self.source), more.pop("target", self.target)
        return await create(self.dumps, Request(source, target, tables, options, rows, **more))

    def process(self, dump: UUID, *, source: str = "", target: str = "", count: int = 2, **more: Any) -> StreamProcess:
        """Who runs it."""
        storages = Storages(source or self.source, target or self.target)
        return StreamProcess(self.dumps, dump, storages, count, self.home, notify=self.heard.append, **more)

    async def equal(self, table: str = "items") -> bool:
        """Whether both sides have the same rows, each once."""
        query = f"SELECT count(*), sum(hashtextextended(t::text, 0)::numeric) FROM {table} t"
        return [tuple(row) for row in await self.at(self.source, query)] == [
            tuple(row) for row in await self.at(self.target, query)
        ]

    def kinds(self) -> list[str]:
        """What workers said."""
        return [one.kind for one in self.heard]

    @asynccontextmanager
    async def running(self, process: StreamProcess) -> AsyncIterator[asyncio.Task[str]]:
        """The process beside the test."""
        task = asyncio.create_task(process.run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until_done(self, dump: UUID, chunks: int) -> None:
        """Until so many chunks are done."""

        async def are() -> bool:
            return bool((await self.dumps.find(str(dump))).done >= chunks)

        await until(are)
