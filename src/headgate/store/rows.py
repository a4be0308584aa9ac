"""Rows of streams: read, stepped by `core.streams`, saved if they are as they were read, with their history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias
from uuid import UUID

import msgspec

from headgate.core import streams as core
from headgate.core.records import Totals
from headgate.core.streams import (
    Acquire,
    Checkpoint,
    Command,
    Deal,
    Edit,
    Grant,
    Mark,
    Position,
    Progress,
    Release,
    Revoke,
    Step,
    Stream,
    TakeOver,
)
from headgate.store.database import Row, Session, sql

_KINDS: dict[type, str] = {
    Grant: "granted",
    Release: "released",
    Revoke: "revoked",
    TakeOver: "revoked",
    Edit: "edited",
}


async def step_owned(connection: Session, owner: UUID, command: Command) -> dict[UUID, Step]:
    """The same command for every stream that this node owns."""
    rows = await connection.fetch(sql("streams/lock_owned"), owner)
    return await step_and_save(connection, map(stream_of, rows), {row["id"]: command for row in rows})


async def step_and_save(
    connection: Session,
    streams: Iterable[Stream],
    commands: Mapping[UUID, Command],
    actor: str | None = None,
) -> dict[UUID, Step]:
    """Apply commands to rows that were read, save what changed, and keep its history."""
    steps: dict[UUID, Step] = {}
    changes: dict[tuple[type[Command], UUID | None, UUID | None], list[tuple[Stream, Stream]]] = {}
    for stream in streams:
        command = commands[stream.id]
        step = steps[stream.id] = core.step(stream, command)
        if step.stream is not stream:
            kind = (type(command), stream.owner, step.stream.owner)
            changes.setdefault(kind, []).append((stream, step.stream))
    for (command_type, was_owner, owner), changed in changes.items():
        if command_type is Checkpoint:
            await _advance(connection, owner, changed)
        elif command_type is Acquire:
            await _acquire(connection, was_owner, owner, changed)
        elif command_type is Mark:
            await _mark(connection, owner, changed)
        elif command_type is Deal:
            await _deal(connection, changed)
        else:
            await _move(connection, _KINDS[command_type], was_owner, owner, changed, actor)
    return steps


class Changed(Exception):
    """A row is not as it was read."""


Changes: TypeAlias = Sequence[tuple[Stream, Stream]]
"""Rows as they were read and as they are to be; all with the same old and the same new owner."""


async def _advance(connection: Session, owner: UUID | None, changes: Changes) -> None:
    status = await connection.execute(
        sql("streams/advance"),
        owner,
        [s.id for _, s in changes],
        [s.epoch for _, s in changes],
        [was.progress.commits for was, _ in changes],
        [s.progress.commits for _, s in changes],
        [encode(s.progress.position) for _, s in changes],
        *totals_of(s.progress.totals for _, s in changes),
    )
    _check(status, "UPDATE", changes)


async def _acquire(connection: Session, was_owner: UUID | None, owner: UUID | None, changes: Changes) -> None:
    status = await connection.execute(
        sql("streams/acquire"),
        was_owner,
        owner,
        [s.id for _, s in changes],
        [was.epoch for was, _ in changes],
        [was.progress.commits for was, _ in changes],
        [s.run for _, s in changes],
        [s.epoch for _, s in changes],
        [s.progress.generation for _, s in changes],
        [encode(s.progress.position) for _, s in changes],
        [s.version for _, s in changes],
        [s.source_identity for _, s in changes],
        [s.sink_identity for _, s in changes],
        [s.transactional for _, s in changes],
        [s.source_mark for _, s in changes],
        [s.sink_mark for _, s in changes],
    )
    _check(status, "INSERT 0", changes)


async def _mark(connection: Session, owner: UUID | None, changes: Changes) -> None:
    status = await connection.execute(
        sql("streams/mark"),
        owner,
        [s.id for _, s in changes],
        [s.epoch for _, s in changes],
        [s.source_mark for _, s in changes],
        [s.sink_mark for _, s in changes],
    )
    _check(status, "UPDATE", changes)


async def _move(
    connection: Session, kind: str, was_owner: UUID | None, owner: UUID | None, changes: Changes, actor: str | None
) -> None:
    status = await connection.execute(
        sql("streams/move"),
        was_owner,
        owner,
        [s.id for _, s in changes],
        [was.epoch for was, _ in changes],
        [was.progress.commits for was, _ in changes],
        [s.epoch for _, s in changes],
        [s.progress.generation for _, s in changes],
        [s.progress.commits for _, s in changes],
        [encode(s.progress.position) for _, s in changes],
        [s.rests for _, s in changes],
        [s.settled for _, s in changes],
        *totals_of(s.progress.totals for _, s in changes),
        kind,
        actor,
        owner or was_owner,
        encode(changes[0][0].progress.position) if kind == "edited" else None,  # An edit is of one stream.
    )
    _check(status, "INSERT 0", changes)


async def _deal(connection: Session, changes: Changes) -> None:
    status = await connection.execute(
        sql("streams/deal"),
        [s.id for _, s in changes],
        [s.epoch for _, s in changes],
        [s.progress.generation for _, s in changes],
        [encode(s.progress.position) for _, s in changes],
        [s.version for _, s in changes],
        [s.source_identity for _, s in changes],
        [s.source_mark for _, s in changes],
    )
    _check(status, "INSERT 0", changes)


def _check(status: str, verb: str, changes: Changes) -> None:
    if status != f"{verb} {len(changes)}":
        raise Changed


def stream_of(row: Row) -> Stream:
    """A locked row, as the core sees it."""
    return Stream(
        id=row["id"],
        owner=row["owner"],
        run=row["run"],
        epoch=row["epoch"],
        progress=Progress(row["generation"], row["commits"], decode(row["position"]), totals_in(row)),
        version=row["version"],
        source_identity=row["source_identity"],
        sink_identity=row["sink_identity"],
        rests=row["rests"],
        settled=row["settled"],
        transactional=row["transactional"],
        source_mark=row.get("source_mark"),  # Read only where it may change.
        sink_mark=row.get("sink_mark"),
    )


def totals_of(all: Iterable[Totals]) -> list[list[int]]:
    """The totals of many streams as columns."""
    rows = [(one.read, one.written, one.filtered, one.dead_lettered, one.skipped) for one in all]
    return [list(column) for column in zip(*rows, strict=True)]


def totals_in(row: Row) -> Totals:
    """The totals of a row."""
    return Totals(
        row["records_read"],
        row["records_written"],
        row["records_filtered"],
        row["records_dead_lettered"],
        row["records_skipped"],
    )


def encode(position: Position) -> str | None:
    """A position as it is stored."""
    return None if position is None else msgspec.json.encode(position).decode()


def decode(text: str | None) -> Position:
    """A position that was stored."""
    return None if text is None else msgspec.json.decode(text)
