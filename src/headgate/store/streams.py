"""Streams: rows are locked in the order of their ids, stepped by `core.streams`, and saved, many in one transaction.

Every change of hands and every edit leaves a line of history in the same transaction; a checkpoint does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeAlias
from uuid import UUID

from headgate.core.figures import Reported
from headgate.core.parts import edited, restored
from headgate.core.push import PUSH
from headgate.core.records import NOTHING, Totals
from headgate.core.streams import Busy, Checkpoint, Command, Done, Edit, Fenced, Position, Release, Reply, Step, step
from headgate.errors import NotFound, Refused
from headgate.ids import as_id, stream_id
from headgate.store.database import Database, Session, sql
from headgate.store.events import Event, append
from headgate.store.listed import (
    Edited,
    HistoryLine,
    Listed,
    StreamLine,
    Unable,
    WhichStreams,
    history_line,
    listed,
    stream_line,
)
from headgate.store.placement import grant_free
from headgate.store.rows import Changed, decode, encode, step_and_save, stream_of, totals_in, totals_of
from headgate.store.states import reported_of
from headgate.text import counted

KEEP_HISTORY = timedelta(days=30)
DONE = Done()
KEEP_LINES = 100  # Of each stream, however old they are.

# Rows are found one by one, in the order of their ids: batches that meet rows in different orders deadlock. Nor does a
# bitmap scan mark the dead entries of an index that it comes across: rows that change hands often would be found more
# and more slowly until the next vacuum (measured: nine times, after two rounds of claim and release).
_BY_ID = "; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_hashjoin = off"


@dataclass(frozen=True, slots=True)
class Offer:
    """A stream that was granted to a node which has not acquired it for a run yet."""

    stream: UUID
    datasource: UUID
    index: int
    dealt: int  # How many streams its datasource has, for as long as anyone has one of them.
    epoch: int
    is_settled: bool = True  # The registry has the position that the sink has.
    steps_down: bool = False  # Or one that it has, and was told to step down from.
    totals: Totals = NOTHING
    reported: Reported | None = None  # What its last node said of it.


Choose: TypeAlias = Callable[[Session, UUID, Position], Awaitable[Position]]
"""Finds the position that an edit writes, from the stream's id and present position."""


class Streams:
    """The global registry of who owns what. `silent` names nodes that nothing should be handed over to."""

    def __init__(self, database: Database, silent: Callable[[], Collection[UUID]] = tuple) -> None:
        self._database = database
        self._silent = silent

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
        except Changed:
            return await self._apply(node, commands, "streams/lock")

    async def _apply(self, node: UUID, commands: Mapping[UUID, Command], read: str) -> dict[UUID, Step]:
        async with self._database.transaction(_BY_ID) as connection:
            alive = await connection.fetchval(sql("nodes/hold"), node) is not None
            rows = await connection.fetch(sql(read), list(commands))
            if not alive:
                return {row["id"]: Step(stream_of(row), Fenced()) for row in rows}
            steps = await step_and_save(connection, map(stream_of, rows), commands)
            await _mark_unable(connection, node, commands, steps)
            handed_over = [stream for stream, step in steps.items() if _is_handed_over(commands[stream], step)]
            if handed_over:
                await grant_free(connection, handed_over, self._silent())
            return steps

    async def checkpoint(self, node: UUID, commands: Mapping[UUID, Checkpoint]) -> dict[UUID, Reply]:
        """The same for checkpoints, of which there are many. Where all is as the node believes, one statement does."""
        try:
            await self._checkpoint(node, commands)
        except Changed:
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
                [command.commits for command in commands.values()],
                [encode(command.position) for command in commands.values()],
                *totals_of(command.totals for command in commands.values()),
            )
            if not alive or status != f"UPDATE {len(commands)}":
                raise Changed

    async def granted(self, node: UUID) -> list[Offer]:
        """What this node was told to step down from, and what it has been granted and has not begun to run."""
        rows = await self._database.fetch(sql("streams/granted"), node)
        return [
            Offer(
                row["id"],
                row["datasource"],
                row["index"],
                row["dealt"],
                row["epoch"],
                row["settled"],
                row["steps_down"],
                totals_in(row),
                reported_of(row["reported"]),
            )
            for row in rows
        ]

    async def owned(self, node: UUID) -> dict[UUID, int]:
        """What this node has, and the epoch of each."""
        return {row["id"]: row["epoch"] for row in await self._database.fetch(sql("streams/owned"), node)}

    async def label(self, labels: Iterable[tuple[UUID, str]]) -> dict[tuple[UUID, str], UUID]:
        """The streams of these datasources and labels, made where they do not exist."""
        wanted = list(dict.fromkeys(labels))
        datasources, names = [d for d, _ in wanted], [label for _, label in wanted]
        found = await self._labelled(datasources, names)
        missing = [pair for pair in wanted if pair not in found]
        if missing:
            ids = [stream_id(*pair) for pair in missing]
            await self._database.execute(
                sql("streams/label"), ids, [d for d, _ in missing], [name for _, name in missing]
            )
            found = await self._labelled(datasources, names)
        return found

    async def _labelled(self, datasources: list[UUID], labels: list[str]) -> dict[tuple[UUID, str], UUID]:
        rows = await self._database.fetch(sql("streams/find_labelled"), datasources, labels)
        return {(row["datasource"], row["label"]): row["id"] for row in rows}

    async def find(self, name: str) -> Listed:
        """One stream by its name (`orders:0`) or id, for people."""
        datasource, _, part = name.partition(":")
        rows = await self._database.fetch(sql("streams/find"), as_id(name), datasource, part)
        if not rows:
            raise NotFound(f"stream {name!r} does not exist", hint="headgate streams list")
        if len(rows) > 1:
            ids = " and ".join(str(row["id"]) for row in rows)
            raise Refused(
                f"stream {name!r} is ambiguous: two have this name", code="ambiguous", hint=f"name one by its id: {ids}"
            )
        return listed(rows[0])

    async def all(self) -> list[Listed]:
        """All streams, for people."""
        return [listed(row) for row in await self._database.fetch(sql("streams/list"), PUSH)]

    async def page(self, which: WhichStreams, after: tuple[str, int, str] | None, limit: int) -> list[StreamLine]:
        """Some of them with how they do, in the order of their names, after the place of one."""
        place = after or (None, None, None)
        rows = await self._database.fetch(sql("streams/page"), PUSH, *which.arguments(), *place, limit)
        return [stream_line(row) for row in rows]

    async def unable(self, datasource: UUID | None = None) -> list[Unable]:
        """Which nodes said that they cannot run which stream of a datasource, or of any, as it is wanted now."""
        rows = await self._database.fetch(sql("streams/unable"), datasource)
        return [Unable(**{name: row[name] for name in Unable.__slots__}) for row in rows]

    async def history(self, stream: UUID, limit: int) -> list[HistoryLine]:
        """Where it stood when it changed hands or was edited, the latest first."""
        return [history_line(row) for row in await self._database.fetch(sql("streams/history"), stream, limit)]

    async def edit(self, name: str, position: Position, actor: str, *, is_dry: bool = False) -> Edited:
        """An operator's word on where a stream stands. Refused while somebody has it. Dry: nothing is changed.

        Where a stream reads parts by name, its position is a map, and those parts change that are named.
        """

        async def chosen(connection: Session, stream: UUID, present: Position) -> Position:
            share = await _share(connection, name, stream)
            return position if share is None else edited(present, position, *share)

        return await self._edit(name, actor, chosen, is_dry=is_dry)

    async def restore(self, name: str, line: int, actor: str, *, is_dry: bool = False) -> Edited:
        """Back to the position of a line of its history."""

        async def recorded(connection: Session, stream: UUID, present: Position) -> Position:
            found = await connection.fetchrow(sql("streams/history_line"), stream, line)
            if found is None:
                hint = f"headgate streams history {name}"
                raise NotFound(f"the history of {name} has no line {line}", hint=hint)
            share, position = await _share(connection, name, stream), decode(found["position"])
            if share is None or not found["is_dealt_since"]:
                return position
            return restored(present, position, *share)

        return await self._edit(name, actor, recorded, is_dry=is_dry)

    async def undo_edit(self, name: str, actor: str, *, is_dry: bool = False) -> Edited:
        """Back to the position that the last edit replaced. Undoing twice is doing it again."""

        async def previous(connection: Session, stream: UUID, present: Position) -> Position:
            last = await connection.fetchrow(sql("streams/last_edit"), stream)
            if last is None:
                raise Refused(f"the position of {name} was never edited", code="nothing_to_undo")
            if last["kind"] == "dealt":
                text = f"{name} reads other parts of its source than when it was edited"
                raise Refused(text, code="nothing_to_undo", hint="headgate streams history says what it was")
            return decode(last["before"])

        return await self._edit(name, actor, previous, is_dry=is_dry)

    async def _edit(self, name: str, actor: str, choose: Choose, *, is_dry: bool) -> Edited:
        found = await self.find(name)
        async with self._database.transaction() as connection:
            rows = await connection.fetch(sql("streams/lock"), [found.id])
            if not rows:
                raise NotFound(f"stream {name!r} does not exist", hint="headgate streams list")
            before = stream_of(rows[0])
            position = await choose(connection, before.id, before.progress.position)
            reply = step(before, Edit(position)).reply
            if isinstance(reply, Busy):
                hint = f"headgate ds pause {found.datasource} first"
                raise Refused(f"{found.name} is running on {found.node or reply.owner}", code="active", hint=hint)
            if is_dry:
                return Edited(replace(found, position=position), before.progress.position)
            saved = (await step_and_save(connection, [before], {before.id: Edit(position)}, actor=actor))[before.id]
            await connection.execute(sql("streams/forgive"), before.id)
            payload = {"stream": found.name, "before": before.progress.position, "after": position}
            event = Event(found.datasource_id, found.datasource, "position_edited", payload, actor)
            await append(connection, [event])
        now = saved.stream
        changed = replace(found, position=position, generation=now.progress.generation, epoch=now.epoch, rests=False)
        return Edited(changed, before.progress.position)

    async def clear_unable(self, node: UUID) -> None:
        """This node's own view of things has changed: it may be able now."""
        await self._database.execute(sql("streams/clear_unable"), node)

    async def trim_history(self) -> None:
        """Forget what is old."""
        await self._database.execute(sql("streams/trim_history"), KEEP_HISTORY, KEEP_LINES)


async def _share(connection: Session, name: str, stream: UUID) -> tuple[list[str], int, int] | None:
    """The parts of the source, and which stream of how many reads its share of them; None: a program pushes it."""
    share = await connection.fetchrow(sql("streams/read_share"), stream)
    if share is None or share["index"] is None:
        return None
    if share["index"] >= share["dealt"]:
        raise Refused(
            f"{name} is not in use: the datasource has {counted(share['dealt'], 'stream')}", code="not_in_use"
        )
    return decode(share["parts"]) or [], share["index"], share["dealt"]


async def checkpoint_one(connection: Session, node: UUID, stream: UUID, command: Checkpoint) -> bool:
    """One checkpoint, in a transaction that has more to save. False: the stream is not the node's any more."""
    if await connection.fetchval(sql("nodes/hold"), node) is None:
        return False
    rows = await connection.fetch(sql("streams/lock"), [stream])
    steps = await step_and_save(connection, map(stream_of, rows), {stream: command})
    return stream in steps and isinstance(steps[stream].reply, Done)


async def _mark_unable(
    connection: Session, node: UUID, commands: Mapping[UUID, Command], steps: Mapping[UUID, Step]
) -> None:
    """What this node could not run is given to another for a while."""
    found = [
        (stream, command.wanted_key, command.reason)
        for stream, command in commands.items()
        if isinstance(command, Release) and command.outcome == "unable" and stream in steps
        if isinstance(steps[stream].reply, Done)
    ]
    if found:
        streams, keys, reasons = zip(*found, strict=True)
        await connection.execute(sql("streams/mark_unable"), node, list(streams), list(keys), list(reasons))


def _is_handed_over(command: Command, step: Step) -> bool:
    return isinstance(command, Release) and command.hands_over and isinstance(step.reply, Done)
