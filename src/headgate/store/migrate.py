"""The schema, brought up to date under an advisory lock, so that any number of nodes may start at once."""

from __future__ import annotations

import re
from importlib import resources

from headgate.errors import Refused
from headgate.ids import lock_key
from headgate.store.database import Database, Session

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
OLDEST_SERVER = 150000  # PostgreSQL 15.


def migrations() -> list[tuple[int, str, str]]:
    """Number, name and text of each migration, in order."""
    folder = resources.files("headgate.store").joinpath("migrations")
    return sorted(
        (int(match[1]), match[2], file.read_text("utf-8"))
        for file in folder.iterdir()
        if (match := _FILE.fullmatch(file.name))
    )


async def migrate(database: Database) -> list[str]:
    """Apply what is missing, all in one transaction. Returns the names of what was applied."""
    async with database.transaction() as connection:
        version = int(await connection.fetchval("SHOW server_version_num"))
        if version < OLDEST_SERVER:
            raise Refused(f"PostgreSQL {version // 10000} is too old", hint="Headgate needs PostgreSQL 15 or newer")
        await connection.execute("SET LOCAL lock_timeout = '60s'; SET LOCAL statement_timeout = '60s'")
        await connection.execute("SELECT pg_advisory_xact_lock($1)", lock_key("migrate"))
        return await _apply(connection)


async def _apply(connection: Session) -> list[str]:
    await connection.execute(
        "CREATE SCHEMA IF NOT EXISTS headgate;"
        "CREATE TABLE IF NOT EXISTS headgate.migration"
        " (number integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
    )
    applied = await connection.fetchval("SELECT coalesce(max(number), 0) FROM headgate.migration")
    known = migrations()
    if applied > known[-1][0]:
        raise Refused(
            f"this database was set up by a newer Headgate (schema {applied}, this one knows {known[-1][0]})",
            hint="upgrade this node",
        )
    done = []
    for number, name, text in known:
        if number > applied:
            await connection.execute(text)
            await connection.execute("INSERT INTO headgate.migration (number, name) VALUES ($1, $2)", number, name)
            done.append(name)
    return done
