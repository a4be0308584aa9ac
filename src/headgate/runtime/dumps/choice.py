"""Which tables a dump is about, and whether it is of a whole database: then the source's own definitions are made.

A dump of everything between two databases of one family is of the whole database, if the source can tell its
definitions here, the target has none of the tables, and nothing is asked for that changes a table on the way. Otherwise
each table is made from what the catalogs of both have in common, and what that leaves behind is named.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headgate.connectors.api.bulk import Mode, Reader, Writer
from headgate.connectors.api.whole import Wanted, WholeReader, WholeWriter
from headgate.connectors.sql.patterns import is_meant, pattern_of
from headgate.errors import ConfigError, NotFound, Refused

if TYPE_CHECKING:
    from headgate.runtime.dumps.plan import Request

NOT_WHOLE = "only a database of PostgreSQL goes into another one whole"

_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')


def check(request: Request) -> None:
    """Refuse what contradicts itself."""
    if request.schema_only and request.data_only:
        raise ConfigError("schema only and data only exclude each other", hint="without either, both are copied")
    if request.tables and (request.include or request.schema_only or request.data_only):
        raise ConfigError("tables are either named or chosen by patterns", hint="--include instead of --table")
    for text in request.include:
        pattern_of(text)


async def chosen(
    request: Request, reader: Reader, writer: Writer, refuse_unfinished: Callable[[Sequence[str]], Awaitable[None]]
) -> tuple[Request, list[str]]:
    """The request with its options settled, and the tables that have rows to copy."""
    if request.tables:
        return request, list(request.tables)
    if isinstance(reader, WholeReader) and isinstance(writer, WholeWriter):
        return await _between_alike(request, reader, writer, refuse_unfinished)
    if request.schema_only or request.data_only:
        raise Refused("only a dump from PostgreSQL to PostgreSQL can leave out schema or data", code="not_whole")
    names = await reader.tables()
    patterns = [text for text in request.exclude if any(is_meant([text], *split(name)) for name in names)]
    columns = tuple(text for text in request.exclude if text not in patterns)
    if not request.include and not patterns:
        request = replace(request, options=replace(request.options, one_by_one=NOT_WHOLE))
    return replace(request, exclude=columns), _filtered(names, request.include, patterns)


async def _between_alike(
    request: Request,
    reader: Reader,
    writer: Writer,
    refuse_unfinished: Callable[[Sequence[str]], Awaitable[None]],
) -> tuple[Request, list[str]]:
    assert isinstance(reader, WholeReader)
    assert isinstance(writer, WholeWriter)
    patterns = [text for text in request.exclude if await reader.has(text)]
    columns = tuple(text for text in request.exclude if text not in patterns)
    wanted = Wanted(
        schema=not request.data_only,
        data=not request.schema_only,
        include=request.include,
        exclude=tuple(patterns),
        owners=request.owners,
        privileges=request.privileges,
    )
    tables = await reader.whole_tables(wanted)
    await refuse_unfinished(tables)
    is_asked = request.schema_only or not request.owners or not request.privileges
    is_changed = bool(columns or request.columns or request.key) or request.options.mode is not Mode.APPEND
    request = replace(request, exclude=columns)
    if request.data_only:
        there = await writer.existing(tables)
        if missing := [name for name in tables if name not in there]:
            hint = "without --data-only the tables are made, too; --exclude leaves some out"
            raise Refused(f"the target has no {missing[0]}", code="no_table", hint=hint)
        around = await writer.around(tables)
        options = replace(request.options, whole=wanted, around=around)
        return replace(request, options=options), list(around.tables)
    why = await reader.why_not_whole()
    if is_changed:
        why = "columns, keys and modes are of tables, and a whole database is copied as it is"
    elif not why and (there := await writer.existing(tables)):
        why = f"the target has {', '.join(there[:3])}{' and more' if len(there) > 3 else ''} already"
    if not why:
        return replace(request, options=replace(request.options, whole=wanted)), tables if wanted.data else []
    if is_asked:
        raise Refused(f"the schema cannot be copied: {why}", code="not_whole", hint="an empty database; or --data-only")
    if not request.include and not patterns:
        request = replace(request, options=replace(request.options, one_by_one=why))
    return request, _filtered(await reader.tables(), request.include, patterns)


def _filtered(names: Sequence[str], include: Sequence[str], exclude: Sequence[str]) -> list[str]:
    for pattern in include:
        if not any(is_meant([pattern], *split(name)) for name in names):
            raise NotFound(f"the source has nothing that {pattern} means", hint="orders, sales.*, public.order_*")
    found = [name for name in names if not include or is_meant(include, *split(name))]
    return [name for name in found if not is_meant(exclude, *split(name))]


def split(name: str) -> tuple[str, str]:
    """The schema, or nothing, and the table of a name as its storage knows it."""
    parts = [(quoted or plain).replace('""', '"') for quoted, plain in _PART.findall(name)]
    return (".".join(parts[:-1]), parts[-1]) if parts else ("", name)
