"""Backfill: what a datasource missed, through its mapping and into its sink, while its live stream runs.

Records come from the source's own history, where it has one, or from a storage that holds them. They go through the
mapping of the version that runs. A record whose key the sink has is left out, so that the live one wins whichever
comes first. The stream's position is not touched: a backfill knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from headgate.connectors.api.bulk import PLAIN, Column, Job, Language, Mode, Reader, StorageError, Table
from headgate.connectors.guard import OPEN, Guard
from headgate.connectors.own import reader_of
from headgate.connectors.plugins import whole
from headgate.connectors.urls import redacted
from headgate.connectors.values.convert import common, translated
from headgate.connectors.values.kinds import TEXT, JsonNull, canonical
from headgate.core.chunks import Range
from headgate.datasources.prepared import Prepared
from headgate.datasources.registry import Registry
from headgate.errors import NotFound, Refused
from headgate.ids import new_id
from headgate.runtime.dumps.copying import Transform
from headgate.runtime.dumps.plan import Options, Plan, Storages, as_json, parse_rate, short
from headgate.runtime.streams.slices import map_all
from headgate.store.dump_rows import NewDump
from headgate.store.dumps import Dumps
from headgate.text import counted

SAMPLE = 1000  # Records that show which fields the mapping makes.


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody asks for."""

    source: str | None = None  # A storage to read from. None: the source's own history.
    table: str | None = None
    workers: int = 2
    rows: int | None = None
    rate: str | None = None
    is_bounded: bool = False  # Somebody who is no admin asks.


async def create(
    dumps: Dumps, datasource: UUID, name: str, prepared: Prepared, wish: Wish, actor: str, guard: Guard = OPEN
) -> UUID:
    """Look at everything, and write the backfill down as a dump that nodes run."""
    parse_rate(wish.rate)
    storages, table = storages_of(name, prepared, None if wish.source is None else whole(wish.source), guard)
    reader, writer = storages.read(), storages.write()
    try:
        source = await reader.describe(await _table_of(reader, wish, storages))
        fields = await _fields(reader, source, transform_of(name, prepared))
        there = await writer.look(table)
        if there is None:
            raise NotFound(
                f"the sink's table {table} does not exist yet", hint="start the datasource once, or create it"
            )
        job = Job(new_id(), _mapped_table(source, there, fields), table, Mode.ABSENT, key=prepared.mapping.key)
        for other in await dumps.unfinished(redacted(storages.target), [table]):
            raise Refused(
                f"a backfill into {table} is not finished",
                code="unfinished",
                hint=f"headgate dumps show {short(other)}",
            )
    finally:
        for session in (reader, writer):
            with suppress(Exception):
                await session.close()
    await dumps.create(
        NewDump(
            id=job.dump,
            source=redacted(storages.source),
            target=redacted(storages.target),
            urls={"source": storages.source, "target": storages.target},
            options=msgspec.to_builtins(Options(Mode.ABSENT, wish.workers, is_bounded=wish.is_bounded)),
            tables=[(source.name, table, as_json(Plan(job, had_rows=True, reads=source)))],
            rows=wish.rows,
            rate=wish.rate,
            place="nodes",
            spread=False,
            actor=actor,
            datasource=datasource,
        )
    )
    return job.dump


async def running_version(registry: Registry, datasource: UUID) -> tuple[str, Prepared]:
    """A datasource's name, and the version of it that runs; if none does, the published one."""
    found = await registry.get(str(datasource))
    version = found.running_version or found.published_version
    if version is None:
        raise Refused(f"{found.name} has no version", hint=f"headgate ds publish {found.name}")
    config = await registry.get_datasource_config(found.id, version)
    return found.name, config.prepared


def storages_of(name: str, prepared: Prepared, source: str | None, guard: Guard) -> tuple[Storages, str]:
    """Where a backfill of this datasource reads and writes, and the sink's table. The guard is that of the source; the
    sink has its own."""
    writer = prepared.sink.writer
    landing = writer.of_sink(prepared.sink_options) if writer is not None else None
    if landing is None or not prepared.mapping.key:
        raise Refused(
            f"{name} cannot be backfilled: its sink does not upsert by a key",
            code="no_key",
            hint="a sink with mode: upsert, and a mapping with a key",
        )
    if source is not None and not source.startswith("history:"):
        return Storages(source, landing.url, source_guard=guard, target_guard=prepared.sink_guard), landing.table
    reader = prepared.source.reader
    history = reader.of_source(prepared.source_options) if reader is not None else None
    if history is None:
        raise Refused(f"the source of {name} keeps no history", code="no_history", hint="--from URL says where it is")
    storages = Storages(f"history:{name}", landing.url, history=lambda: reader_of(history))
    return replace(storages, target_guard=prepared.sink_guard), landing.table


def transform_of(name: str, prepared: Prepared) -> Transform:
    """The datasource's mapping, over records as JSON would hold them."""
    mapping = prepared.mapping

    async def apply(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        mapped = await map_all(mapping, [{field: plain(value) for field, value in row.items()} for row in rows])
        if mapped.failed and prepared.options.on_error != "skip":
            hint = "on_error: skip leaves such records out"
            raise StorageError(f"a record of {name} cannot be mapped: {mapped.failed[0]}", hint=hint)
        gone = set(mapped.deletes)  # What the live stream deleted is not there to be filled in.
        return [record for number, record in enumerate(mapped.records) if number not in gone]

    return apply


def plain(value: Any) -> Any:
    """A value as a live record would have it: what JSON knows, or its canonical text."""
    match value:
        case JsonNull():
            return None
        case Decimal():
            return float(value) if value.is_finite() and Decimal(repr(float(value))) == value else str(value)
        case datetime():
            return value.isoformat()
        case date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
        case bytes():
            return canonical(value)
    return value


async def _table_of(reader: Reader, wish: Wish, storages: Storages) -> str:
    if wish.table is not None:
        return wish.table
    names = await reader.tables()
    if len(names) != 1:
        raise Refused(
            f"{redacted(storages.source)} has {counted(len(names), 'table')}",
            code="which",
            hint="name one with --table",
        )
    return names[0]


async def _fields(reader: Reader, source: Table, transform: Transform) -> list[str]:
    """The fields that the mapping makes, from the first records."""
    top = await reader.top(source)
    if top is None:
        raise Refused(f"{source.name} is empty", code="empty")
    hi = await reader.cut(source, None, top, SAMPLE)
    language = common(reader.languages, (Language.ROWS,))
    fields: dict[str, None] = {}
    pieces = reader.query(source, Range(None, hi), language, PLAIN)
    async for piece in translated(pieces, language, Language.ROWS, source.columns):
        for row in await transform(piece.data):
            fields.update(dict.fromkeys(row))
    if not fields:
        raise Refused(f"the mapping keeps none of the first {SAMPLE} records", code="nothing")
    return list(fields)


def _mapped_table(source: Table, there: Table, fields: Sequence[str]) -> Table:
    """What is written: the mapping's fields, with the types of the sink's columns."""
    types = {column.name: column for column in there.columns}
    columns = tuple(types.get(field, Column(field, TEXT)) for field in fields)
    return replace(source, columns=columns, key=(), details={}, family=there.family)
