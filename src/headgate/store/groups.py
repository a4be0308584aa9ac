"""Groups of programs outside: rows are locked in the order of their ids, stepped by `core.groups.requests`, and saved.

One transaction carries out the requests for any number of groups (`group_batches`). A group's row is the lock on all of
its consumers. Groups are made before any row is locked: a transaction that waits for another one which makes or removes
the same group holds nothing that the other could wait for.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from headgate.core.groups import requests as core
from headgate.core.groups.deadlines import Silent
from headgate.core.groups.delivery import LEASE_S, Order
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
from headgate.errors import StoreError
from headgate.ids import new_id
from headgate.store.database import Database, sql
from headgate.store.group_batches import MOST, Answers, Asked, Batches, Place

LATELY = 20  # Transitions that are kept of each group.
EMPTY = timedelta(hours=1)  # How long the row of an empty group is kept.
MOST_ROWS = 2000  # Consumers that a batch reads, which is more than one group may have.
LOOKS_IN_A_GO = 1000  # Consumers that are stepped through before everything else on this node has a turn.

# A batch waits only for transactions that make or remove the same groups, and not for long.
_BATCH = "; SET LOCAL lock_timeout = 500"


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


class HeldUp(StoreError):
    """Requests for some groups could not be carried out now; those for the others were."""

    def __init__(self, error: StoreError, outcomes: Mapping[UUID, Outcome], groups: Collection[UUID]) -> None:
        super().__init__(error.message, hint=error.hint)
        self.outcomes = outcomes
        self.groups = groups  # The ones that should be asked again.


@dataclass(frozen=True, slots=True)
class _Locked:
    """A group as it was read, under its lock."""

    roster: Roster
    lately: list[msgspec.Raw]  # Transitions, oldest first. They are kept and not read.
    now: datetime  # Of the transaction.


class Groups:
    """The rows of groups: requests are carried out on them, and nodes look at them.

    `trust_s` is how long the node that asks trusts itself at most without an answered beat.
    """

    def __init__(self, database: Database, trust_s: float = 5.0) -> None:
        self._database = database
        self._trust_s = trust_s
        self._batches = Batches(self._carry_out)

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
        while (outcome := await self._batches.put((stream, name), [request])) is None:
            pass  # The row of an empty group was removed in this moment: the next attempt makes it again.
        (reply,) = outcome.replies
        assert isinstance(reply, Joined | Refused)
        return reply

    async def is_settling(self) -> bool:
        """Whether an era has just begun: a consumer that nobody knows of any more may still believe."""
        return bool(await self._database.fetchval(sql("groups/is_settling"), LEASE_S))

    async def rejoin(
        self, consumer: UUID, node: UUID, stream: str, name: str, *, is_fenced: bool = False
    ) -> Joined | None:
        """A consumer is back. None: it is unknown, or was never in the group that it names."""
        request = Rejoin(consumer, node, self._trust_s, stream, name, is_fenced)
        outcome = await self._batches.put((stream, name), [request])
        replies = () if outcome is None else outcome.replies
        return next((reply for reply in replies if isinstance(reply, Joined)), None)

    async def apply(self, requests: Mapping[UUID, Sequence[Request]]) -> dict[UUID, Outcome]:
        """Carry out requests for these groups. A group that is gone has no outcome.

        Those for one group are carried out together or not at all. `HeldUp` says which groups could not be asked now.
        """
        outcomes: dict[UUID, Outcome] = {}
        failures: dict[UUID, Exception] = {}
        waiting = iter(requests)
        while piece := list(itertools.islice(waiting, MOST)):  # Not all at once, so that other commands come between.
            for group, answer in (await self._ask(requests, piece)).items():
                if isinstance(answer, Exception):
                    failures[group] = answer
                elif answer is not None:
                    outcomes[group] = answer
            if failures.keys() >= set(piece):
                break  # The database is away.
        if failures:
            error = min(failures.values(), key=lambda one: isinstance(one, StoreError))
            if isinstance(error, StoreError):
                raise HeldUp(error, outcomes, {*failures, *waiting}) from error
            raise error
        return outcomes

    async def _ask(
        self, requests: Mapping[UUID, Sequence[Request]], groups: Iterable[UUID]
    ) -> dict[UUID, Outcome | Exception | None]:
        futures = {group: self._batches.put(group, requests[group]) for group in groups}
        answers: dict[UUID, Outcome | Exception | None] = {}
        try:
            for group, future in futures.items():
                try:
                    answers[group] = await future
                except Exception as error:
                    answers[group] = error
        finally:
            for future in futures.values():
                future.cancel()  # If the caller has gone.
        return answers

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
        try:
            return len(await self.apply(stranded))
        except HeldUp as error:
            if error.outcomes:
                return len(error.outcomes)  # The others are still stranded, and are found again.
            raise

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

    async def _carry_out(self, asked: Sequence[Asked], *, waits: bool) -> Answers:
        async with self._database.transaction("" if waits else _BATCH) as connection:
            await _make(connection, asked)
            locked = await _lock(connection, {one.place for one in asked}, waits=waits)
            answers, outcomes = await _step(locked, asked)
            await _save(connection, outcomes)
        return {**dict.fromkeys(asked), **answers} if waits else answers


# Lock, step, save.


async def _make(connection: Any, asked: Iterable[Asked]) -> None:
    """Make the groups that are joined and do not exist."""
    joins = {one.place: request for one in asked for request in one.requests if isinstance(request, Join)}
    if joins:
        await connection.execute(
            sql("groups/make"),
            [new_id() for _ in joins],
            *_names(joins),
            [join.partition for join in joins.values()],
            [join.lease_s for join in joins.values()],
        )


async def _lock(connection: Any, places: Collection[Place], *, waits: bool) -> dict[Place, _Locked]:
    """The groups, by id and by names. Unless it `waits`, only as many as fit, and none that others have locked."""
    ids = [place for place in places if isinstance(place, UUID)]
    rows = await connection.fetch(sql("groups/lock") + ("" if waits else " SKIP LOCKED"), ids, *_names(places))
    most = None if waits else MOST_ROWS + 1
    found = await connection.fetch(sql("groups/consumers"), [row["id"] for row in rows], most) if rows else []
    if most is not None and len(found) == most:  # The last group is not all there, and those behind it are not at all.
        end = found[-1]["group"]
        rows = [row for row in rows if row["id"] < end]
    members: dict[UUID, list[Any]] = {}
    for member in found:
        members.setdefault(member["group"], []).append(member)
    locked: dict[Place, _Locked] = {}
    for row in rows:
        one = _Locked(
            _roster(row, members.get(row["id"], [])),
            msgspec.json.decode(row["lately"], type=list[msgspec.Raw]),
            row["now"],
        )
        locked[row["id"]] = locked[row["stream"], row["name"]] = one
    return locked


def _names(places: Iterable[Place]) -> tuple[list[str], list[str]]:
    names = [place for place in places if not isinstance(place, UUID)]
    return [stream for stream, _ in names], [name for _, name in names]


async def _step(
    locked: Mapping[Place, _Locked], asked: Iterable[Asked]
) -> tuple[dict[Asked, Outcome | Exception | None], list[tuple[_Locked, Outcome]]]:
    """What becomes of each, and of the groups. One that goes wrong leaves its group to the next as it was."""
    answers: dict[Asked, Outcome | Exception | None] = {}
    outcomes: dict[UUID, tuple[_Locked, Outcome]] = {}
    looks = 0
    for one in asked:
        if (was := locked.get(one.place)) is None:
            continue
        _, before = outcomes.get(was.roster.id, (was, Outcome(was.roster)))
        try:
            done = core.carry_out(before.roster, one.requests, was.now)
        except Exception as error:
            answers[one] = error
            continue
        answers[one] = done
        outcomes[was.roster.id] = was, replace(done, transitions=(*before.transitions, *done.transitions))
        looks += len(one.requests) * (1 + len(done.roster.seats))
        if looks >= LOOKS_IN_A_GO:
            looks = 0
            await asyncio.sleep(0)
    return answers, list(outcomes.values())


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
    gone = [id for was, now in changes for id in was.seats if id not in now.seats]
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
        [c.id for c in consumers],  # The driver takes ids as text, and reads them faster than Python does.
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
        [None if one is None else one.id for one in active],
        [roster.group.ignored for roster in rosters],
        [msgspec.json.encode(one).decode() for one in lately],
        [roster.vacant_since for roster in rosters],
        [roster.group.is_fenced for roster in rosters],
    )
