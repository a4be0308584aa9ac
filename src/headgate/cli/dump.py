"""`headgate dump`: copy tables, collections or files from one storage to another."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headgate.cli import dumping
from headgate.cli.call import Call
from headgate.cli.dump_places import refuse
from headgate.cli.dumping import Database, Desk
from headgate.cli.early import begins_early
from headgate.errors import ConfigError, Refused

MOST_WORKERS = 64


class ModeName(StrEnum):
    """What happens with rows that the target has."""

    APPEND = "append"
    REPLACE = "replace"
    UPSERT = "upsert"


def _rate(text: str | None) -> str | None:
    """A rate that can be read; another is an error of usage."""
    from headgate.runtime.dumps.plan import parse_rate

    try:
        parse_rate(text)
    except ConfigError as error:
        raise typer.BadParameter(f"{error.problems[0].message} ({error.hint})") from None
    return text


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


Source = Annotated[
    str, typer.Argument(metavar="SOURCE", help="Where to read: a URL, or a path such as orders.csv or csv:folder.")
]
Target = Annotated[str, typer.Argument(metavar="TARGET", help="Where to write.")]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", "-t", metavar="TABLE", help="Only this table; name=target renames it. May be repeated."),
]
Workers = Annotated[int, typer.Option("--workers", "-w", min=1, max=MOST_WORKERS, help="Chunks copied at a time.")]
Processes = Annotated[bool, typer.Option("--processes", help="Each worker is a separate process.")]
ChunkRows = Annotated[
    int | None,
    typer.Option("--chunk-rows", min=1, metavar="N", help="Rows of a chunk. Default: as many as take about 3 seconds."),
]
Modes = Annotated[ModeName, typer.Option("--mode", help="What happens with rows that the target has.")]
Key = Annotated[str | None, typer.Option("--key", metavar="COLUMN,…", help="What identifies a row.")]
Include = Annotated[
    list[str] | None,
    typer.Option("--include", metavar="PATTERN", help="Only these tables or schemas, as sales.*. May be repeated."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="PATTERN", help="Not these tables, schemas or columns. May be repeated."),
]
SchemaOnly = Annotated[bool, typer.Option("--schema-only", help="Of a PostgreSQL database: everything but the rows.")]
DataOnly = Annotated[bool, typer.Option("--data-only", help="Only the rows, into tables that are there.")]
NoOwner = Annotated[bool, typer.Option("--no-owner", help="All objects belong to the user of the target's URL.")]
NoPrivileges = Annotated[bool, typer.Option("--no-privileges", help="Leave grants out.")]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="NAME=TYPE", help="A column's type, as price=decimal(12,2). May be repeated."),
]
From = Annotated[str | None, typer.Option("--from", metavar="KEY", help="Only rows after this key.")]
Rate = Annotated[
    str | None,
    typer.Option("--rate", metavar="RATE", callback=_rate, help="At most 5000 or 20k rows, or 20MB, a second."),
]
SourceTimeout = Annotated[
    float | None,
    typer.Option(
        "--source-timeout",
        min=0.1,
        metavar="SECONDS",
        help="A source that sends nothing for this long is gone. Or: HEADGATE_SOURCE_TIMEOUT_S; else 60.",
    ),
]
Storage = Annotated[
    list[str] | None,
    typer.Option("--storage", metavar="MODULE:FACTORY", help="Your own storage; FILE.py:FACTORY, too."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Append to tables that have rows.")]
Spread = Annotated[bool, typer.Option("--spread", help="Let all nodes work on it.")]
Detach = Annotated[bool, typer.Option("--detach", help="Leave it to the nodes, and end.")]


@begins_early
def dump(
    call: Call,
    source: Source,
    target: Target,
    table: Tables = None,
    workers: Workers = 2,
    processes: Processes = False,
    chunk_rows: ChunkRows = None,
    mode: Modes = ModeName.APPEND,
    key: Key = None,
    include: Include = None,
    exclude: Exclude = None,
    schema_only: SchemaOnly = False,
    data_only: DataOnly = False,
    no_owner: NoOwner = False,
    no_privileges: NoPrivileges = False,
    column: Columns = None,
    since: From = None,
    rate: Rate = None,
    source_timeout: SourceTimeout = None,
    storage: Storage = None,
    yes: Yes = False,
    spread: Spread = False,
    detach: Detach = False,
    database: Database = None,
) -> None:
    """Copy tables, collections or files to another storage, in chunks that are each written once."""
    from headgate.connectors.api.bulk import Mode
    from headgate.connectors.plugins import whole
    from headgate.runtime.dumps import plan

    for_nodes = spread or detach
    request = plan.Request(
        source,
        target,
        tables=tuple(table or ()),
        options=plan.Options(
            Mode(mode.value), workers, processes, tuple(map(_own, storage or ())), source_timeout_s=source_timeout
        ),
        rows=chunk_rows,
        rate=rate,
        key=_listed(key),
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        schema_only=schema_only,
        data_only=data_only,
        owners=not no_owner,
        privileges=not no_privileges,
        columns=dict(map(_type, column or ())),
        since=_listed(since),
        yes=yes,
        spread=spread,
        place="nodes" if for_nodes else "here",
        actor=dumping.actor(),
    )

    if call.is_at_node:
        from headgate.cli.dump_on import dump_on

        refuse(processes=processes, storage=storage, database=database)
        dump_on(call, request, detach=detach)
        return

    async def act(desk: Desk) -> None:
        if for_nodes:
            await _look_for_nodes(desk)
        try:
            made = await desk.signals.guard(plan.create(desk.dumps, request))
        except Refused as error:
            if desk.given and error.hint.startswith("headgate "):
                error.hint += f", with --database {desk.command().rpartition(' ')[2]}"
            raise
        await dumping.say_first(desk, made)
        if not for_nodes:
            kept = await desk.dumps.urls(made)
            urls = (kept.source, kept.target) if kept is not None else (whole(source), whole(target))
            timeout_s = source_timeout or desk.settings.source_timeout_s
            storages = plan.Storages(*urls, request.options.own, source_timeout_s=timeout_s)
            await dumping.run_here(desk, made, storages)
        elif detach:
            from headgate.runtime.dumps import views

            found = await views.describe(desk.dumps, str(made))
            call.say(found, f"dump {found.short} is left to the nodes (headgate dumps show {found.short})")
        else:
            await dumping.follow(desk, made)

    dumping.straight(call, database, act, make=True)


async def _look_for_nodes(desk: Desk) -> None:
    """Nodes must be there, and able to read the URLs."""
    from headgate.store.nodes import Nodes

    if desk.keyring is None:
        raise Refused(
            "nodes cannot read the URLs of a dump without a master key",
            code="no_master_key",
            hint="set HEADGATE_MASTER_KEY",
        )
    if not await Nodes(desk.database).all():
        raise Refused("no node is running", code="no_nodes", hint="headgate up; or without --spread and --detach")


def _type(text: str) -> tuple[str, str]:
    name, equals, type = text.partition("=")
    if not (name and equals and type):
        raise typer.BadParameter(f"{text!r} is not NAME=TYPE", param_hint="--column")
    from headgate.runtime.dumps.plan import column_type

    try:
        column_type(name, type)
    except ConfigError as error:
        near = f"; {error.hint}" if error.hint else ""
        raise typer.BadParameter(f"{error.problems[0].message}{near}", param_hint="--column") from None
    return name, type


def _own(text: str) -> str:
    """A file's path, so that it is found from any folder when the dump is resumed."""
    scheme, equals, rest = text.partition("=") if "=" in text else ("", "", text)
    where, colon, what = rest.rpartition(":")
    if not colon or not where:
        raise typer.BadParameter(f"{text!r} is not MODULE:FACTORY", param_hint="--storage")
    if where.endswith(".py"):
        where = str(Path(where).absolute())
    return f"{scheme}{equals}{where}:{what}"
