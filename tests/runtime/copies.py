"""Whole dumps for tests: planned, run to their end, and looked at."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from headgate.connectors.api.bulk import Mode
from headgate.runtime.dumps import views
from headgate.runtime.dumps.plan import Options, Request, Storages, create
from headgate.runtime.dumps.process import StreamProcess
from headgate.runtime.dumps.views import DumpView
from headgate.store.dumps import Dumps


class Copy:
    """Dumps of a test."""

    def __init__(self, dumps: Dumps, home: Path) -> None:
        self.dumps, self.home = dumps, home

    async def run(self, source: str, target: str, *tables: str, **more: Any) -> DumpView:
        """A whole dump."""
        options = Options(mode=Mode(more.pop("mode", "append")))
        dump = await create(self.dumps, Request(source, target, tables, options, **more))
        return await self.again(str(dump), source, target)

    async def again(self, dump: str, source: str, target: str) -> DumpView:
        """Its first run, or one more."""
        found = await self.dumps.find(dump)
        await StreamProcess(self.dumps, found.id, Storages(source, target), 2, self.home).run()
        return await views.describe(self.dumps, dump)


def sqlite_with(path: Path, names: list[str]) -> str:
    """A file with these tables, each of which has its own name in it."""
    connection = sqlite3.connect(path)
    for name in names:
        quoted = name.replace('"', '""')
        connection.execute(f'CREATE TABLE "{quoted}" (id INTEGER PRIMARY KEY, name TEXT)')
        connection.execute(f'INSERT INTO "{quoted}" VALUES (1, ?)', (name,))
    connection.commit()
    connection.close()
    return f"sqlite:{path}"


def names_in(path: Path) -> dict[str, str]:
    """The tables of a file, and the name that each of them has in it."""
    connection = sqlite3.connect(path)
    query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'headgate_dump_chunk'"
    tables = [name for (name,) in connection.execute(query)]
    found = {}
    for name in tables:
        quoted = name.replace('"', '""')
        found[name] = connection.execute(f'SELECT name FROM "{quoted}"').fetchone()[0]
    connection.close()
    return found


def failed(found: DumpView) -> dict[str, str]:
    return {one.name: one.error for one in found.tables if one.state == "failed"}
