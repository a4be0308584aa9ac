"""Streams: rows are locked in the order of their ids, stepped by `core.streams`, and saved, many in one transaction.

Every change of hands and every edit leaves a line of history in the same transaction; a checkpoint does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from headgate.connectors.api import PUSH
from headgate.core import streams as core
from headgate.core.streams import (
    Acquire,
    Busy,
    Checkpoint,
    Command,
    Done,
    Edit,
    Fenced,
    Grant,
    Held,
    Release,
    Reply,
    Revoke,
    Step,
    Stream,
)
from headgate.errors import NotFound, Refused
from headgate.ids import as_id, new_id, stream_name
from headgate.store.database import Database, sql
from headgate.store.events import Event, append

KEEP_HISTORY = timedelta(days=30)
DONE = Done()
KEEP_LINES = 100  # Of each stream, however old they are.

# Rows are found one by one, in the order of their ids: batches that meet rows in different orders deadlock. Nor does a
# bitmap scan mark the dead entries of an index that it comes across: rows that change hands often would be found more
# and more slowly until the next vacuum (measured: nine times, after two rounds of claim and release).
_BY_ID = "; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_hashjoin = off"

_KINDS: dict[type, str] = {Grant: "granted", Release: "released", Revoke: "revoked", Edit: "edited"}


@dataclass(frozen=True, slots=True)
class Offer:
    """A stream that was granted to a node which has not acquired it for a run yet."""

    stream: UUID
    datasource: UUID
    index: int
    epoch: int


class Streams:
    """The global registry of who owns what."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def apply(self, node: UUID, commands: Mapping[UUID, Command]) -> dict[UUID, Step]:
        """One command for each of these streams. A stream that is gone has no answer.

        The node's own row is held first: an incarnation that has been ended can claim nothing any more. Rows are read
        without a lock and saved if they are as they were read, since hardly anyone else writes them; if one is not, it
        is all done again with the rows locked. A lock costs as much as a write.
        """
        if not commands:
            return {}
        try:
            return await self._apply(node, commands, "streams/read")
        except _Changed:
            return await self._apply(node, commands, "streams/lock")

    async def _apply(self, node: UUID, commands: Mapping[UUID, Command], read: str) -> dict[UUID, Step]:
        async with self._database.transaction(_BY_ID) as connection:
            alive = await connection.fetchval(sql("nodes/hold"), node) is not None
            rows = await connection.fetch(sql(read), list(commands))
            if not alive:
                return {row["id"]: Step(stream_of(row), Fenced()) for row in rows}
            steps = await step_and_save(connection, map(stream_of, rows), commands)
            await _mark_unable(connection, node, commands, steps)
            return steps

    async def checkpoint(self, node: UUID, commands: Mapping[UUID, Checkpoint]) -> dict[UUID, Reply]:
        """The same for checkpoints, of which there are many. Where all is as the node believes, one statement does."""
        try:
            await self._checkpoint(node, commands)
        except _Changed:
            return {stream: step.reply for stream, step in (await self.apply(node, commands)).items()}
        return dict.fromkeys(commands, DONE)

    async def _checkpoint(self, node: UUID, commands: Mapping[UUID, Checkpoint]) -> None:
        async with self._database.transaction(_BY_ID) as connection:
            alive = await connection.fetchval(sql("nodes/hold"), node) is not None
            status = await connection.execute(
                sql("streams/checkpoint"),
                node,
                list(commands),
                [command.epoch for command in commands.values()],
                [command.n for command in commands.values()],
                [_encode(command.position) for command in commands.values()],
            )
            if not alive or status != f"UPDATE {len(commands)}":
                raise _Changed

    async def granted(self, node: UUID) -> list[Offer]:
        """What this node has been granted and has not begun to run."""
        rows = await self._database.fetch(sql("streams/granted"), node)
        return [Offer(row["id"], row["datasource"], row["index"], row["epoch"]) for row in rows]

    async def label(self, labels: Iterable[tuple[UUID, str]]) -> dict[tuple[UUID, str], UUID]:
        """The streams of these datasources and labels, made where they do not exist."""
        wanted = list(dict.fromkeys(labels))
        datasources, names = [d for d, _ in wanted], [label for _, label in wanted]
        found = await self._labelled(datasources, names)
        missing = [pair for pair in wanted if pair not in found]
        if missing:
            ids = [new_id() for _ in missing]
            await self._database.execute(
                sql("streams/label"), ids, [d for d, _ in missing], [name for _, name in missing]
            )
            found = await self._labelled(datasources, names)
        return found

    async def _labelled(self, datasources: list[UUID], labels: list[str]) -> dict[tuple[UUID, str], UUID]:
        rows = await self._database.fetch(sql("streams/find_labelled"), datasources, labels)
        return {(row["datasource"], row["label"]): row["id"] for row in rows}

    async def find(self, name: str) -> dict[str, Any]:
        """One stream by its name (`orders:0`) or id, for people."""
        datasource, _, part = name.partition(":")
        rows = await self._database.fetch(sql("streams/find"), as_id(name), datasource, part)
        if not rows:
            raise NotFound(f"there is no stream {name!r}", hint="headgate streams list")
        if len(rows) > 1:
            ids = " and ".join(str(row["id"]) for row in rows)
            raise Refused(f"two streams are called {name!r}", code="ambiguous", hint=f"name one by its id: {ids}")
        return plain(rows[0])

    async def all(self) -> list[dict[str, Any]]:
        """All streams, for people."""
        return [plain(row) for row in await self._database.fetch(sql("streams/list"), PUSH)]

    async def unable(self, datasource: UUID) -> list[dict[str, Any]]:
        """Which nodes said that they cannot run which stream of a datasource, as it is wished now, and why."""
        return [dict(row) for row in await self._database.fetch(sql("streams/unable"), datasource)]

    async def history(self, stream: UUID, limit: int) -> list[dict[str, Any]]:
        """Where it stood when it changed hands or was edited, the latest first."""
        found = []
        for row in await self._database.fetch(sql("streams/history"), stream, limit):
            line = {**dict(row), "position": _decode(row["position"])}
            del line["before"]
            found.append(line | ({"before": _decode(row["before"])} if row["kind"] == "edited" else {}))
        return found

    async def edit(self, name: str, position: Any, actor: str) -> dict[str, Any]:
        """An operator's word on where a stream stands. Refused while somebody has it."""
        return await self._edit(name, actor, lambda before: position)

    async def undo_edit(self, name: str, actor: str) -> dict[str, Any]:
        """Back to the position that the last edit replaced. Undoing twice is doing it again."""

        def previous(before: Any) -> Any:
            if before is None:
                raise Refused(f"the position of {name} was never edited", code="nothing_to_undo")
            return _decode(before["before"])

        return await self._edit(name, actor, previous)

    async def _edit(self, name: str, actor: str, choose: Any) -> dict[str, Any]:
        found = await self.find(name)
        async with self._database.transaction() as connection:
            rows = await connection.fetch(sql("streams/lock"), [found["id"]])
            if not rows:
                raise NotFound(f"there is no stream {name!r}", hint="headgate streams list")
            before = stream_of(rows[0])
            position = choose(await connection.fetchrow(sql("streams/last_edit"), before.id))
            step = (await step_and_save(connection, [before], {before.id: Edit(position)}, actor=actor))[before.id]
            if isinstance(step.reply, Busy):
                node = found["node"] or step.reply.owner
                raise Refused(
                    f"{found['name']} is running on {node}",
                    code="active",
                    hint=f"headgate ds stop {found['datasource']} first",
                )
            await connection.execute(sql("streams/forgive"), before.id)
            payload = {"stream": found["name"], "before": before.held.position, "after": position}
            edited = Event(found["datasource_id"], found["datasource"], "position_edited", payload, actor)
            await append(connection, [edited])
        changed = {"position": position, "edits": step.stream.held.edits, "epoch": step.stream.epoch, "rests": False}
        return {**found, **changed, "before": before.held.position}

    async def clear_unable(self, node: UUID) -> None:
        """This node's own view of things has changed: it may be able now."""
        await self._database.execute(sql("streams/clear_unable"), node)

    async def trim_history(self) -> None:
        """Forget what is old."""
        await self._database.execute(sql("streams/trim_history"), KEEP_HISTORY, KEEP_LINES)


def plain(row: Any) -> dict[str, Any]:
    """A stream as people see it."""
    fields = ("id", "index", "label", "owner", "run", "epoch", "edits", "n", "version", "node")
    part = row["index"] if row["label"] is None else row["label"]
    return {
        **{field: row[field] for field in fields},
        "name": stream_name(row["name"], part),
        "datasource": row["name"],
        "datasource_id": row["datasource"],
        "position": _decode(row["position"]),
        "rests": row["rests"] is not None,
    }


async def step_owned(connection: Any, owner: UUID, command: Command) -> dict[UUID, Step]:
    """The same command for every stream that this node owns."""
    rows = await connection.fetch(sql("streams/lock_owned"), owner)
    return await step_and_save(connection, map(stream_of, rows), {row["id"]: command for row in rows})


async def step_and_save(
    connection: Any,
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
        else:
            await _move(connection, _KINDS[command_type], was_owner, owner, changed, actor)
    return steps


class _Changed(Exception):
    """A row is not as it was read."""


Changes: TypeAlias = Sequence[tuple[Stream, Stream]]
"""Rows as they were read and as they are to be; all with the same old and the same new owner."""


async def _advance(connection: Any, owner: UUID | None, changes: Changes) -> None:
    status = await connection.execute(
        sql("streams/advance"),
        owner,
        [s.id for _, s in changes],
        [s.epoch for _, s in changes],
        [was.held.n for was, _ in changes],
        [s.held.n for _, s in changes],
        [_encode(s.held.position) for _, s in changes],
    )
    _check(status, "UPDATE", changes)


async def _acquire(connection: Any, was_owner: UUID | None, owner: UUID | None, changes: Changes) -> None:
    status = await connection.execute(
        sql("streams/acquire"),
        was_owner,
        owner,
        [s.id for _, s in changes],
        [was.epoch for was, _ in changes],
        [was.held.n for was, _ in changes],
        [s.run for _, s in changes],
        [s.epoch for _, s in changes],
        [s.held.edits for _, s in changes],
        [_encode(s.held.position) for _, s in changes],
        [s.version for _, s in changes],
        [s.source_identity for _, s in changes],
        [s.sink_identity for _, s in changes],
    )
    _check(status, "INSERT 0", changes)


async def _move(
    connection: Any, kind: str, was_owner: UUID | None, owner: UUID | None, changes: Changes, actor: str | None
) -> None:
    status = await connection.execute(
        sql("streams/move"),
        was_owner,
        owner,
        [s.id for _, s in changes],
        [was.epoch for was, _ in changes],
        [was.held.n for was, _ in changes],
        [s.epoch for _, s in changes],
        [s.held.edits for _, s in changes],
        [s.held.n for _, s in changes],
        [_encode(s.held.position) for _, s in changes],
        [s.rests for _, s in changes],
        kind,
        actor,
        owner or was_owner,
        _encode(changes[0][0].held.position) if kind == "edited" else None,  # An edit is of one stream.
    )
    _check(status, "INSERT 0", changes)


def _check(status: str, verb: str, changes: Changes) -> None:
    if status != f"{verb} {len(changes)}":
        raise _Changed


async def _mark_unable(
    connection: Any, node: UUID, commands: Mapping[UUID, Command], steps: Mapping[UUID, Step]
) -> None:
    """What this node could not run is given to another for a while."""
    found = [
        (stream, command.wish, command.reason)
        for stream, command in commands.items()
        if isinstance(command, Release) and command.outcome == "unable" and stream in steps
        if isinstance(steps[stream].reply, Done)
    ]
    if found:
        streams, wishes, reasons = zip(*found, strict=True)
        await connection.execute(sql("streams/mark_unable"), node, list(streams), list(wishes), list(reasons))


def stream_of(row: Any) -> Stream:
    """A locked row, as the core sees it."""
    return Stream(
        id=row["id"],
        owner=row["owner"],
        run=row["run"],
        epoch=row["epoch"],
        held=Held(row["edits"], row["n"], _decode(row["position"])),
        version=row["version"],
        source_identity=row["source_identity"],
        sink_identity=row["sink_identity"],
        rests=row["rests"],
    )


def _encode(position: Any) -> str | None:
    return None if position is None else msgspec.json.encode(position).decode()


def _decode(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
