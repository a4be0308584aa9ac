"""More or fewer streams for a datasource: what `core.streams` decides, carried out by the node that has the tick.

Each step is its own transaction. The last one, in which the parts are dealt, holds the rows of all streams, and
finds that nobody has any of them: so it is over before anyone reads under the new deal, and begins when nobody reads
under the old one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from headgate.core import parts as of_parts
from headgate.core.parts import Dealt, DealtStream, Keep, Share, Stop, TakeBack
from headgate.core.push import PUSH
from headgate.core.streams import Command, Deal, Stream
from headgate.ids import lock_key, stream_id
from headgate.store.database import Database, Row, Session, sql
from headgate.store.events import Event, append
from headgate.store.rows import decode, step_and_save, stream_of

PAUSE = timedelta(seconds=5)  # After a try that left one stream unsettled.

_TICK = lock_key("tick")


class Dealing:
    """How many streams each datasource has."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def act(self) -> int:
        """One step for each datasource that is not as wanted. Returns how many steps there were to take."""
        found = await self._database.fetch(sql("dealing/read"), PUSH, None)
        if not found:
            return 0
        rows = await self._database.fetch(sql("dealing/members"), [one["id"] for one in found])
        due = [one["id"] for one in found if not isinstance(_decided(one, rows), Keep)]
        return sum([await self._act(datasource) for datasource in due])

    async def _act(self, datasource: UUID) -> bool:
        """The same again, with the tick to ourselves and the rows locked: whatever was seen may have changed."""
        async with self._database.transaction() as connection:
            if not await connection.fetchval(sql("placement/lock"), _TICK):
                return False
            # A change of the registry takes the revision before it locks any stream.
            revision = await connection.fetchval(sql("registry/take_revision"))
            found = await connection.fetchrow(sql("dealing/read"), PUSH, datasource)
            if found is None:
                return False
            rows = await connection.fetch(sql("dealing/lock_members"), [datasource])
            match _decided(found, rows):
                case Stop():
                    await connection.execute(sql("dealing/stop"), datasource, revision)
                case TakeBack():
                    await connection.execute(sql("dealing/take_back"), datasource, revision, PAUSE)
                case Share(n=n):
                    await _deal(connection, found, rows, n)
                    await connection.execute(sql("dealing/set_dealt"), datasource, revision, n)
                    await _record(connection, found, n)
                case Keep():
                    return False
            return True


def _decided(found: Row, rows: Sequence[Row]) -> of_parts.Next:
    members = tuple(
        DealtStream(
            row["index"],
            row["owner"] is not None,
            row["is_running"],
            row["settled"],
            row["source_identity"],
            row["source_mark"],
        )
        for row in rows
        if row["datasource"] == found["id"]
    )
    decided = of_parts.next_step(Dealt(found["wanted"], found["dealt"], found["dealing"], members))
    return Keep() if isinstance(decided, Stop) and found["is_paused"] else decided


async def _deal(connection: Session, found: Row, rows: Sequence[Row], n: int) -> None:
    """Share the positions out among `n` streams. All rows are locked, free and settled."""
    streams = {row["index"]: stream_of(row) for row in rows}
    used = [streams[index] for index in range(found["dealt"])]
    parts = _parts(found)
    shares = of_parts.deal([stream.progress.position for stream in used], parts, n)
    streams |= await _made(connection, found["id"], [index for index in range(n) if index not in streams])
    version = max((stream.version for stream in used if stream.version is not None), default=None)
    read = next((stream for stream in used if stream.source_identity is not None), Stream(found["id"]))
    commands: dict[UUID, Command] = {
        stream.id: Deal(shares[index] if index < n else None, version, read.source_identity, read.source_mark)
        for index, stream in streams.items()
    }
    await step_and_save(connection, streams.values(), commands)
    await connection.execute(sql("streams/begin_again"), found["id"])


async def _record(connection: Session, found: Row, n: int) -> None:
    payload = {"from": found["dealt"], "to": n, "parts": len(_parts(found))}
    await append(connection, [Event(found["id"], found["name"], "streams_dealt", payload, "headgate")])


def _parts(found: Row) -> list[str]:
    return decode(found["parts"]) or []


async def _made(connection: Session, datasource: UUID, indexes: Sequence[int]) -> dict[int, Stream]:
    ids = [stream_id(datasource, index) for index in indexes]
    rows = await connection.fetch(sql("dealing/insert"), datasource, ids, list(indexes)) if ids else []
    return {row["index"]: Stream(row["id"], epoch=row["epoch"]) for row in rows}
