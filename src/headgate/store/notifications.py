"""Notifications: the document that says who is told of what, the incidents that are known, and what is to be sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from headgate.core.incidents import Incident, Reckoned, Tell
from headgate.ids import new_id
from headgate.store.database import Database, Row, Session, sql
from headgate.store.events import Event, append
from headgate.store.rows import decode

SENDER = timedelta(seconds=30)  # How long a node sends without another word. One that has ended is followed at once.
LOST = timedelta(days=1)  # A node that has not come back by then is gone for good.
MOST_WAITING = 1000  # Messages for one target.


@dataclass(frozen=True, slots=True)
class Written:
    """The document as it was written, and by whom."""

    document: Any  # As plain data, with the names of secrets in it. None: there is none.
    version: int
    author: str | None
    changed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Message:
    """Something to be sent."""

    number: int
    id: UUID
    target: str
    body: Mapping[str, Any]
    attempts: int
    age_s: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a target has not taken yet."""

    target: str
    messages: int
    attempts: int  # Of the oldest,
    reason: str | None  # and why the last one failed.
    due_at: datetime


class Notifications:
    """Read and write all of it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self) -> Written:
        """The document."""
        row = await self._database.fetchrow(sql("notifications/read"))
        assert row is not None
        return _written(row)

    async def write(self, document: Any, actor: str, *, over: int | None = None) -> int | None:
        """Write the document, or None in its place. Returns its version; None if it is not `over` that it replaces."""
        async with self._database.transaction() as connection:
            text = None if document is None else msgspec.json.encode(document).decode()
            version: int | None = await connection.fetchval(sql("notifications/set"), text, actor, over)
            if version is None:
                return None
            type = "notifications_deleted" if document is None else "notifications_set"
            await append(connection, [Event(None, None, type, {"version": version}, actor)])
        return version

    async def claim(self, node: UUID) -> Written | None:
        """Be the node that sends, for a while. None: another is, or there is nothing to send and nothing to watch."""
        row = await self._database.fetchrow(sql("notifications/claim"), node, SENDER)
        return None if row is None else _written(row)

    async def incidents(self) -> list[Incident]:
        """All that are known."""
        return [_incident(row) for row in await self._database.fetch(sql("notifications/incidents"))]

    async def lost_nodes(self) -> list[str]:
        """The names of nodes that were found dead and have not come back."""
        await self._database.execute(sql("notifications/forget_lost"), LOST)
        return [row["name"] for row in await self._database.fetch(sql("notifications/lost_nodes"), LOST)]

    async def reckon(
        self,
        node: UUID,
        version: int,
        step: Callable[[Sequence[Incident], float], Reckoned],
        body: Callable[[Tell, UUID, float], Mapping[str, Any]],
    ) -> int:
        """Step the incidents, and save them with what is to be sent. Returns the number of messages; none if another
        node sends by now, or if the document is another one."""
        async with self._database.transaction() as connection:
            now_s = await connection.fetchval(sql("notifications/hold"), node, version)
            if now_s is None:
                return 0
            before = [_incident(row) for row in await connection.fetch(sql("notifications/incidents"))]
            reckoned = step(before, now_s)
            await _save(connection, before, reckoned)
            ids = [new_id() for _ in reckoned.tells]
            bodies = [body(tell, id, now_s) for tell, id in zip(reckoned.tells, ids, strict=True)]
            if ids:
                texts = [msgspec.json.encode(one).decode() for one in bodies]
                targets = [tell.target for tell in reckoned.tells]
                await connection.execute(sql("notifications/append"), ids, targets, texts)
                await connection.execute(sql("notifications/drop_beyond"), MOST_WAITING)
            await append(connection, _events(reckoned))
        return len(ids)

    async def due(self) -> list[Message]:
        """What is to be sent now, one message for each target."""
        return [_message(row) for row in await self._database.fetch(sql("notifications/due"))]

    async def remove(self, message: Message) -> None:
        """Its target has taken it, or is gone."""
        await self._database.execute(sql("notifications/delete_message"), message.number)

    async def postpone(self, message: Message, again_in_s: float, reason: str) -> None:
        """It could not be sent."""
        again = timedelta(seconds=again_in_s)
        await self._database.execute(sql("notifications/postpone"), message.number, again, reason)

    async def give_up(self, message: Message, reason: str, actor: str) -> None:
        """It will not be sent any more."""
        async with self._database.transaction() as connection:
            await connection.execute(sql("notifications/delete_message"), message.number)
            payload = {"target": message.target, "reason": reason, "attempts": message.attempts + 1}
            await append(connection, [Event(None, None, "notification_failed", payload, actor)])

    async def waiting(self) -> list[Waiting]:
        """What targets have not taken yet."""
        rows = await self._database.fetch(sql("notifications/waiting"))
        return [Waiting(**{name: row[name] for name in Waiting.__slots__}) for row in rows]


async def _save(connection: Session, before: Sequence[Incident], reckoned: Reckoned) -> None:
    known = {one.key: one for one in before}
    kept = {one.key for one in reckoned.incidents}
    changed = [one for one in reckoned.incidents if known.get(one.key) != one]
    gone = [one for one in before if one.key not in kept]
    if changed:
        await connection.execute(
            sql("notifications/save_incidents"),
            [one.rule for one in changed],
            [one.subject for one in changed],
            [one.why for one in changed],
            [one.since_s for one in changed],
            [one.told_at_s for one in changed],
            [msgspec.json.encode(one.told_to).decode() for one in changed],
            [one.better_since_s for one in changed],
        )
    if gone:
        rules, subjects = [one.rule for one in gone], [one.subject for one in gone]
        await connection.execute(sql("notifications/forget_incidents"), rules, subjects)


def _events(reckoned: Reckoned) -> list[Event]:
    """What is told, once for each rule."""
    found = {(tell.rule, tell.is_over): tell for tell in reckoned.tells}
    return [
        Event(
            None,
            None,
            "incident_over" if is_over else "incident_opened",
            {"rule": rule, "subjects": [one.subject for one in tell.incidents[:20]], "count": len(tell.incidents)},
            "headgate",
        )
        for (rule, is_over), tell in found.items()
    ]


def _written(row: Row) -> Written:
    return Written(decode(row["document"]), row["version"], row["author"], row["changed_at"])


def _incident(row: Row) -> Incident:
    return Incident(
        row["rule"],
        row["subject"],
        row["why"],
        row["since_s"],
        row["told_at_s"],
        tuple(row["told_to"]),
        row["better_since_s"],
    )


def _message(row: Row) -> Message:
    body = msgspec.json.decode(row["body"], type=dict[str, Any])
    return Message(row["number"], row["id"], row["target"], body, row["attempts"], row["age_s"])
