"""`headgate sql`: look into Headgate's database, also where no psql is installed."""

from __future__ import annotations

import asyncio
import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from headgate.cli.output import say, table
from headgate.text import counted


def sql(
    query: Annotated[str, typer.Argument(help="One statement. It is read only unless --write is given.")],
    database: Annotated[str | None, typer.Option(help="A PostgreSQL URL. Absent: the embedded one.")] = None,
    home: Annotated[Path | None, typer.Option(help="HEADGATE_HOME.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Let the statement change something.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
) -> None:
    """Run one statement and print its rows."""
    from headgate.config import load
    from headgate.store.database import ask

    settings = load(database=database, home=home)
    if settings.database is not None:
        rows = asyncio.run(ask(settings.database.get_secret_value(), query, write=write))
    else:
        from headgate.errors import NotFound
        from headgate.store.embedded import EmbeddedServer

        if not (settings.home / "postgres").exists():
            raise NotFound(f"{settings.home} has no database", hint="headgate up makes one; or --database")
        server = EmbeddedServer.join(settings.home)
        try:
            rows = asyncio.run(ask(server.url, query, write=write))
        finally:
            server.leave()
    if json:
        for row in rows:
            typer.echo(jsonlib.dumps(row, default=str))
    else:
        say(_shown(rows))


def _shown(rows: list[dict[str, object]]) -> str:
    """The rows as columns, and how many there are."""
    number = counted(len(rows), "row")
    if not rows:
        return number
    cells = [["" if value is None else str(value) for value in row.values()] for row in rows]
    return f"{table(list(rows[0]), cells, empty='', wrap=True)}\n{number}"
