"""What somebody who helps from afar needs to know of a database. Nothing here shows a record, or what a position is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headgate.store.database import Database, sql

MOST = 5000  # Datasources, and streams: a bundle is sent by mail.

Line: TypeAlias = Mapping[str, object]
"""One thing, with what is known of it by name. People read it, and no code does."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the database says of itself and of the installation."""

    server: Mapping[str, str]
    migrations: Sequence[Line]
    tables: Sequence[Line]
    datasources: Sequence[Line]
    streams: Sequence[Line]


async def facts(database: Database) -> Facts:
    """All of it, as it is now."""

    async def lines(query: str, *args: object) -> list[Line]:
        return [dict(row.items()) for row in await database.fetch(query, *args)]

    return Facts(
        server={row["name"]: row["value"] for row in await database.fetch(sql("support/server"))},
        migrations=await lines(sql("support/migrations")),
        tables=await lines(sql("support/tables")),
        datasources=await lines(sql("support/datasources"), MOST),
        streams=await lines(sql("support/streams"), MOST),
    )
