"""Groups of programs outside: rows are locked in the order of their ids, stepped by `core.groups.requests`, and saved.

One transaction carries out the requests for any number of groups. A group's row is the lock on all of its consumers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from headgate.core.groups import requests as core
from headgate.core.groups.deadlines import Silent
from headgate.core.groups.delivery import Order
from headgate.core.groups.machine import Activity, Connectivity, Consumer, Group, Refused
from headgate.core.groups.requests import (
    ConnectionEnded,
    DropSilent,
    Join,
    Joined,
    Outcome,
    Rejoin,
    Request,
    StillBelieving,
    Transition,
)
from headgate.core.groups.roster import Roster, Seat, group_of
from headgate.ids import as_id, new_id
from headgate.store.database import Database, sql

LATELY = 20  # Transitions that are kept of each group.
EMPTY = timedelta(hours=1)  # How long the row of an empty group is kept.


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A consumer, for people."""

    id: UUID
    label: str
    node: str | None  # The name of the node that it is connected to; None: that node is gone.
    node_id: UUID
    connectivity: Connectivity
    activity: Activity
    epoch: int
    incarnation: int
    answered: bool
    muted: bool
    trust_s: float
    since: datetime  # Of its present status.


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group and its consumers in the order of registration, for people."""

    id: UUID
    stream: str
    name: str
    partition: int | None
    lease_s: float
    epoch: int
    ignored: int
    granted_to: UUID | None
    changed_at: datetime
    vacant_since: datetime | None
    members: tuple[ConsumerRow, ...]
    lately: tuple[Transition, ...]  # Oldest first.
    fenced: bool = False

    @property
    def group(self) -> Group:
        """What the machine sees of it."""
        consumers = (
            Consumer(str(m.id), str(m.id), m.label, m.connectivity, m.activity, m.epoch, m.incarnation)
            for m in self.members
        )
        return group_of(self.partition, consumers, self.epoch, self.ignored, self.fenced)

    def silent(self, member: ConsumerRow) -> Silent:
        """What an observer sees of one of its consumers."""
        return Silent(
            member.id,
            self.id,
            member.connectivity,
            member.incarnation,
            member.epoch,
            member.muted,
            self.lease_s,
            has_node=member.node is not None,
            trust_s=member.trust_s,
        )


@dataclass(frozen=True, slots=True)
class _Locked:
    """A group as it was read, under its lock."""

    roster: Roster
    lately: list[Transition]
    now: datetime  # Of the transaction.


class Groups:
    """The rows of groups: requests are carried out on them, and nodes look at them.

    `trust_s` is how long the node that asks trusts itself at most without an answered beat.
    """

    def __init__(self, database: Database, trust_s: float = 5.0) -> None:
        self._database = database
        self._trust_s = trust_s

    async def join(
        self,
        stream: str,
        name: str,
        partition: int | None,
        label: str,
        node: UUID,
        lease_s: float,
        *,
        is_fenced: bool = False,
    ) -> Joined | Refused:
        """Add a new consumer to a group; a group that does not exist is made."""
        request = Join(new_id(), node, self._trust_s, partition, label, lease_s, is_fenced)
        while (joined := await self._join(stream, name, request)) is None:
            pass  # The row of an empty group was removed in this moment: the next attempt makes it again.
        return joined

    async def _join(self, stream: str, name: str, request: Join) -> Joined | Refused | None:
        async with self._database.transaction() as connection:
            group = await connection.fetchval(sql("groups/find"), stream, name)
            if group is None:
                partition, lease_s = request.partition, request.lease_s
                await connection.execute(sql("groups/insert"), new_id(), stream, name, partition, lease_s)
                group = await connection.fetchval(sql("groups/find"), stream, name)
            outcome = (await _carry_out(connection, {group: [request]})).get(group)
        reply = None if outcome is None else outcome.replies[0]
        assert reply is None or isinstance(reply, Joined | Refused)
        return reply

    async def rejoin(
        self, consumer: UUID, node: UUID, stream: str, name: str, *, is_fenced: bool = False
    ) -> Joined | None:
        """A consumer is back. None: it is unknown, or was never in the group that it names."""
        async with self._database.transaction() as connection:
            groups = await connection.fetch(sql("groups/of_consumers"), [consumer])
            request = Rejoin(consumer, node, self._trust_s, stream, name, is_fenced)
            outcomes = await _carry_out(connection, {row["group"]: [request] for row in groups})
        replies = [reply for one in outcomes.values() for reply in one.replies]
        return next((reply for reply in replies if isinstance(reply, Joined)), None)

    async def apply(self, requests: Mapping[UUID, Sequence[Request]]) -> dict[UUID, Outcome]:
        """Carry out requests for these groups, all in one transaction. A group that is gone has no outcome."""
        if not requests:
            return {}
        async with self._database.transaction() as connection:
            return await _carry_out(connection, requests)

    async def drop_silent(self, group: UUID, *, is_forced: bool) -> tuple[UUID, ...]:
        """Drop the consumers that are out of touch. Returns those that may still believe: then nothing was done."""
        outcomes = await self.apply({group: [DropSilent(is_forced)]})
        replies = [reply for one in outcomes.values() for reply in one.replies]
        return next((reply.consumers for reply in replies if isinstance(reply, StillBelieving)), ())

    async def here(self, node: UUID) -> dict[UUID, tuple[UUID, int]]:
        """The consumers that are connected to this node: the group and the incarnation of each."""
        rows = await self._database.fetch(sql("groups/here"), node)
        return {row["id"]: (row["group"], row["incarnation"]) for row in rows}

    async def orders(self, node: UUID) -> list[Order]:
        """Orders that consumers on this node have not answered."""
        return [
            Order(
                row["id"],
                row["group"],
                row["activity"] == "active",
                row["epoch"],
                row["incarnation"],
                row["partition"],
            )
            for row in await self._database.fetch(sql("groups/orders"), node)
        ]

    async def silent(self) -> list[Silent]:
        """Consumers whose deadline runs."""
        return [
            Silent(
                row["id"],
                row["group"],
                row["connectivity"],
                row["incarnation"],
                row["epoch"],
                row["muted"],
                row["lease_s"],
                row["has_node"],
                row["trust_s"],
            )
            for row in await self._database.fetch(sql("groups/silent"))
        ]

    async def strand(self) -> int:
        """Consumers of a node that is gone have lost touch. Returns how many groups had one."""
        stranded: dict[UUID, list[Request]] = {}
        for row in await self._database.fetch(sql("groups/stranded")):
            stranded.setdefault(row["group"], []).append(
                ConnectionEnded(row["id"], row["incarnation"], is_proved=False)
            )
        return len(await self.apply(stranded))

    async def all(self, stream: str | None = None, name: str | None = None, limit: int = 1000) -> list[GroupRow]:
        """Groups and their consumers, for people."""
        rows = await self._database.fetch(sql("groups/list"), stream, name, limit)
        return [
            GroupRow(
                row["id"],
                row["stream"],
                row["name"],
                row["partition"],
                row["lease_s"],
                row["epoch"],
                row["ignored"],
                row["granted_to"],
                row["changed_at"],
                row["vacant_since"],
                msgspec.json.decode(row["members"], type=tuple[ConsumerRow, ...]),
                msgspec.json.decode(row["lately"], type=tuple[Transition, ...]),
                row["fenced"],
            )
            for row in rows
        ]

    async def figures(self) -> dict[str, int]:
        """For metrics."""
        (row,) = await self._database.fetch(sql("groups/figures"))
        return dict(row)

    async def clean(self) -> None:
        """Remove the rows of groups that have been empty for a while."""
        await self._database.execute(sql("groups/clean"), EMPTY)


# Lock, step, save.


async def _carry_out(connection: Any, requests: Mapping[UUID, Sequence[Request]]) -> dict[UUID, Outcome]:
    locked = await _lock(connection, list(requests))
    outcomes = {id: core.carry_out(one.roster, requests[id], one.now) for id, one in locked.items()}
    await _save(connection, [(locked[id], outcome) for id, outcome in outcomes.items()])
    return outcomes


async def _lock(connection: Any, groups: list[UUID]) -> dict[UUID, _Locked]:
    rows = await connection.fetch(sql("groups/lock"), groups)
    members: dict[UUID, list[Any]] = {}
    for member in await connection.fetch(sql("groups/consumers"), groups):
        members.setdefault(member["group"], []).append(member)
    return {
        row["id"]: _Locked(
            _roster(row, members.get(row["id"], [])),
            msgspec.json.decode(row["lately"], type=list[Transition]),
            row["now"],
        )
        for row in rows
    }


def _roster(row: Any, members: list[Any]) -> Roster:
    return Roster(
        row["id"],
        row["stream"],
        row["name"],
        row["lease_s"],
        group_of(row["partition"], map(_consumer, members), row["epoch"], row["ignored"], row["fenced"]),
        {
            str(m["id"]): Seat(m["number"], m["node"], m["trust_s"], m["label"], m["answered"], m["muted"])
            for m in members
        },
        row["vacant_since"],
        row["floor"],
    )


def _consumer(row: Any) -> Consumer:
    id = str(row["id"])
    return Consumer(id, id, row["label"], row["connectivity"], row["activity"], row["epoch"], row["incarnation"])


async def _save(connection: Any, outcomes: Sequence[tuple[_Locked, Outcome]]) -> None:
    """Write what has changed: the consumers that left, those that are different now, and the groups."""
    changes = [(was.roster, outcome.roster) for was, outcome in outcomes]
    gone = [as_id(id) for was, now in changes for id in was.seats if id not in now.seats]
    if gone:
        await connection.execute(sql("groups/delete_consumers"), gone)
    await _save_consumers(connection, [(now, c) for was, now in changes for c in _changed(was, now)])
    await _save_groups(connection, [one for one in outcomes if _is_changed(one[0].roster, one[1].roster)])


def _changed(was: Roster, now: Roster) -> Iterable[Consumer]:
    before = {c.id: (c, was.seats[c.id]) for c in was.group.consumers}
    return (c for c in now.group.consumers if before.get(c.id) != (c, now.seats[c.id]))


def _is_changed(was: Roster, now: Roster) -> bool:
    return (was.group, was.lease_s, was.vacant_since) != (now.group, now.lease_s, now.vacant_since)


async def _save_consumers(connection: Any, saved: Sequence[tuple[Roster, Consumer]]) -> None:
    if not saved:
        return
    consumers = [c for _, c in saved]
    seats = [roster.seats[c.id] for roster, c in saved]
    await connection.execute(
        sql("groups/save_consumers"),
        [as_id(c.id) for c in consumers],
        [roster.id for roster, _ in saved],
        [seat.number for seat in seats],
        [seat.node for seat in seats],
        [seat.trust_s for seat in seats],
        [seat.label for seat in seats],
        [c.connectivity for c in consumers],
        [c.activity for c in consumers],
        [c.epoch for c in consumers],
        [c.incarnation for c in consumers],
        [seat.answered for seat in seats],
        [seat.muted for seat in seats],
    )


async def _save_groups(connection: Any, saved: Sequence[tuple[_Locked, Outcome]]) -> None:
    if not saved:
        return
    rosters = [outcome.roster for _, outcome in saved]
    lately = [[*was.lately, *outcome.transitions][-LATELY:] for was, outcome in saved]
    active = [roster.group.active for roster in rosters]
    await connection.execute(
        sql("groups/save"),
        [roster.id for roster in rosters],
        [roster.group.partition for roster in rosters],
        [roster.lease_s for roster in rosters],
        [roster.group.epoch for roster in rosters],
        [None if one is None else as_id(one.id) for one in active],
        [roster.group.ignored for roster in rosters],
        [msgspec.json.encode(one).decode() for one in lately],
        [roster.vacant_since for roster in rosters],
        [roster.group.is_fenced for roster in rosters],
    )
