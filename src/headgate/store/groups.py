"""Groups of programs outside: rows are locked in the order of their ids, stepped by `core.groups`, and saved.

One transaction per command, or for many groups together. A group's row is the lock on all of its consumers. Beside what
the machine knows, a consumer has what its delivery needs: the node that its connection hangs on, whether it has
answered its last order, and whether it is muted because it did not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from headgate.core.groups import machine as core
from headgate.core.groups.deadlines import Silent
from headgate.core.groups.machine import (
    Command,
    Confirm,
    ConnectionDisconnected,
    ConnectionDown,
    ConnectionReconnected,
    Consumer,
    Evaluate,
    Group,
    Register,
    Reply,
    TellActive,
    TellStepDown,
)
from headgate.ids import as_id, new_id
from headgate.store.database import Database, sql

LATELY = 20  # Transitions that are kept of each group.
EMPTY = timedelta(hours=1)  # How long the row of an empty group is kept.


@dataclass(frozen=True, slots=True)
class Joined:
    """A consumer's place in its group."""

    consumer: UUID
    group: UUID
    losses: int  # Its incarnation: how often it has lost touch.
    lease_s: float
    muted: bool


@dataclass(frozen=True, slots=True)
class Order:
    """What a consumer was told, and has not answered."""

    consumer: UUID
    group: UUID
    is_active: bool  # Else it is to step down.
    epoch: int
    losses: int
    partition: int | None


@dataclass(frozen=True, slots=True)
class Mute:
    """A consumer let an order go unanswered: no node echoes its beats until it does; unless it has come back since."""

    consumer: UUID
    epoch: int
    losses: int


@dataclass(frozen=True, slots=True)
class Drop:
    """The lease of a consumer that let an order go unanswered has ended; unless it has answered since."""

    consumer: UUID
    epoch: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A consumer has heard that it is active."""

    consumer: UUID
    epoch: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A consumer's connection is gone; unless it has come back by another since."""

    consumer: UUID
    losses: int
    is_proved: bool  # It does not believe anything any more. Else it may, until its lease ends.


Request: TypeAlias = Command | Mute | Drop | Answered | Ended


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the requests for a group."""

    replies: list[Reply]
    handed_over_s: float | None  # How long nobody was active, if that has ended just now.


@dataclass(slots=True)
class _Seat:
    """What a consumer has beside its state in the machine."""

    number: int
    node: UUID
    trust_s: float  # For how long that node trusts itself, at the most.
    label: str
    answered: bool = True
    muted: bool = False


@dataclass(slots=True)
class _Room:
    """A group and its consumers, locked."""

    id: UUID
    stream: str
    name: str
    lease_s: float
    group: Group
    seats: dict[str, _Seat]
    lately: list[Any]
    vacant_since: datetime | None  # Since when nobody has been active who knew it.
    now: datetime
    before: dict[str, tuple[Consumer, _Seat]] = field(default_factory=dict)
    is_changed: bool = False
    handed_over_s: float | None = None  # How long it was vacant, when that has ended just now.

    def carry_out(self, request: Request, at: str) -> Reply:
        """Step the machine, and keep what its delivery needs."""
        command = self._command(request)
        if isinstance(command, core.Ok | core.Refused):
            return command
        start: Group | None = self.group if self.group.consumers else None
        if start is None and isinstance(command, Register):
            start = Group(command.partition, epoch=self.group.epoch)
        step = core.step(start, command)
        told = []
        for effect in step.effects:
            if isinstance(effect, TellActive | TellStepDown):
                self.seats[effect.consumer].answered = False
                what = "active" if isinstance(effect, TellActive) else "step down"
                told.append([what, self.seats[effect.consumer].label, effect.epoch])
        if isinstance(command, Confirm) and isinstance(step.reply, core.Ok):
            self._answered(command.consumer)
        after = step.group or Group(self.group.partition, epoch=self.group.epoch, ignored=self.group.ignored)
        if after != self.group:
            self.is_changed = True
            self.lately.append({"at": at, "what": _words(command), "who": self._who(command), "told": told})
        before, active = self.group.active, after.active
        has_changed = active is None or before is None or active.id != before.id or active.connectivity != "connected"
        if after.consumers and self.group.consumers and has_changed:
            self.vacant_since = self.vacant_since or self.now
        self.group = after
        self.seats = {c.id: self.seats[c.id] for c in after.consumers}
        return step.reply

    def _command(self, request: Request) -> Command | Reply:
        """What a request means to the machine, or the answer if it means nothing to it."""
        match request:
            case Answered(consumer=id, epoch=epoch):
                found = self.find(id)
                if found is None or not found.is_holder or found.epoch != epoch:
                    return Confirm(str(id), -1)  # Nobody's: ignored, and counted.
                if found.activity != "active":  # It has been told to step down meanwhile, and has not answered that.
                    return core.Refused("stale")
                self._answered(found.id)
                self._occupied()
                return core.Ok()
            case Mute(consumer=id, epoch=epoch, losses=losses):
                found = self.find(id)
                if found is not None and (found.epoch, found.losses) == (epoch, losses):
                    self.seats[found.id].muted = not self.seats[found.id].answered
                return core.Ok()
            case Drop(consumer=id, epoch=epoch):
                found = self.find(id)
                is_meant = found is not None and found.epoch == epoch and self.seats[found.id].muted
                return ConnectionDown(str(id)) if is_meant else core.Ok()
            case Ended(consumer=id, losses=losses, is_proved=is_proved):
                found = self.find(id)
                if found is None or found.losses != losses:
                    return core.Ok()
                return ConnectionDown(str(id)) if is_proved else ConnectionDisconnected(str(id))
            case _:
                return request

    def find(self, consumer: UUID) -> Consumer | None:
        """One of its consumers."""
        return next((c for c in self.group.consumers if c.id == str(consumer)), None)

    def _occupied(self) -> None:
        if self.vacant_since is not None:
            self.handed_over_s = (self.now - self.vacant_since).total_seconds()
            self.vacant_since, self.is_changed = None, True

    def _answered(self, consumer: str) -> None:
        self.seats[consumer].answered, self.seats[consumer].muted = True, False

    def _who(self, command: Command) -> str:
        id = getattr(command, "consumer", getattr(command, "connection", ""))
        return self.seats[id].label if id in self.seats else ""


class Groups:
    """Join, leave, confirm, lose touch, and everything that is decided about it.

    `trust_s` is how long the node that asks trusts itself at the most without an answered beat.
    """

    def __init__(self, database: Database, trust_s: float = 5.0) -> None:
        self._database = database
        self._trust_s = trust_s

    async def join(
        self, stream: str, name: str, partition: int | None, label: str, node: UUID, lease_s: float
    ) -> Joined | core.Refused:
        """A new consumer. The first in a group decides its lease."""
        while (joined := await self._join(stream, name, partition, label, node, lease_s)) is None:
            pass  # The row of an empty group was removed just now: the next try makes it anew.
        return joined

    async def _join(
        self, stream: str, name: str, partition: int | None, label: str, node: UUID, lease_s: float
    ) -> Joined | core.Refused | None:
        consumer = new_id()
        async with self._database.transaction() as connection:
            group = await connection.fetchval(sql("groups/find"), stream, name)
            if group is None:
                await connection.execute(sql("groups/insert"), new_id(), stream, name, partition, lease_s)
                group = await connection.fetchval(sql("groups/find"), stream, name)
            rooms = await _lock(connection, [group])
            if not rooms:
                return None
            room = rooms[group]
            if not room.group.consumers:
                room.lease_s = lease_s
            number = max((seat.number for seat in room.seats.values()), default=0) + 1
            room.seats[str(consumer)] = _Seat(number, node, self._trust_s, label)
            reply = room.carry_out(Register(str(consumer), str(consumer), partition, label), _now())
            if isinstance(reply, core.Refused):
                return reply
            await _save(connection, [room])
            return Joined(consumer, group, 0, room.lease_s, muted=False)

    async def rejoin(self, consumer: UUID, node: UUID, group: tuple[str, str] | None = None) -> Joined | None:
        """A consumer is back, perhaps on another node, perhaps before its loss was noticed.

        None: it is unknown, or was never in the group that it names.
        """
        async with self._database.transaction() as connection:
            rooms = await _lock(connection, await _groups_of(connection, [consumer]))
            room = next(iter(rooms.values()), None)
            if room is None or room.find(consumer) is None or group not in (None, (room.stream, room.name)):
                return None
            id, at = str(consumer), _now()
            room.carry_out(ConnectionDisconnected(id), at)  # So that what the old connection still hears is old.
            room.seats[id].node, room.seats[id].trust_s = node, self._trust_s
            room.carry_out(ConnectionReconnected(id), at)
            await _save(connection, [room])
            found = room.find(consumer)
            assert found is not None
            return Joined(consumer, room.id, found.losses, room.lease_s, room.seats[id].muted)

    async def apply(self, requests: Mapping[UUID, Sequence[Request]]) -> dict[UUID, Outcome]:
        """Requests for these groups, all in one transaction. A group that is gone has no answer."""
        if not requests:
            return {}
        async with self._database.transaction() as connection:
            rooms, at = await _lock(connection, requests), _now()
            replies = {id: [room.carry_out(one, at) for one in requests[id]] for id, room in rooms.items()}
            await _save(connection, rooms.values())
            return {id: Outcome(replies[id], room.handed_over_s) for id, room in rooms.items()}

    async def evaluate(self, group: UUID, *, yes: bool) -> list[UUID]:
        """Drop whoever is out of touch, and settle; unless one may still believe, and nobody has said yes to that.

        Returns those: then nothing was done.
        """
        async with self._database.transaction() as connection:
            rooms = await _lock(connection, [group])
            for room in rooms.values():
                silent = [c for c in room.group.consumers if c.connectivity == "disconnected" and c.is_holder]
                if silent and not yes:
                    return [UUID(c.id) for c in silent]
                room.carry_out(Evaluate(), _now())
            await _save(connection, rooms.values())
            return []

    async def here(self, node: UUID) -> dict[UUID, tuple[UUID, int]]:
        """Who hangs on this node, its group, and its incarnation."""
        rows = await self._database.fetch(sql("groups/here"), node)
        return {row["id"]: (row["group"], row["losses"]) for row in rows}

    async def orders(self, node: UUID) -> list[Order]:
        """What consumers on this node have not answered."""
        rows = await self._database.fetch(sql("groups/orders"), node)
        return [
            Order(row["id"], row["group"], row["activity"] == "active", row["epoch"], row["losses"], row["partition"])
            for row in rows
        ]

    async def silent(self) -> list[Silent]:
        """Consumers whose deadline runs."""
        return [
            Silent(
                row["id"],
                row["group"],
                row["connectivity"],
                row["losses"],
                row["epoch"],
                row["muted"],
                row["lease_s"],
                row["has_node"],
                row["trust_s"],
            )
            for row in await self._database.fetch(sql("groups/silent"))
        ]

    async def strand(self) -> int:
        """Consumers that hung on a node which is gone have lost touch."""
        stranded: dict[UUID, list[Request]] = {}
        for row in await self._database.fetch(sql("groups/stranded")):
            stranded.setdefault(row["group"], []).append(Ended(row["id"], row["losses"], is_proved=False))
        return len(await self.apply(stranded))

    async def all(self, stream: str | None = None, name: str | None = None, limit: int = 1000) -> list[dict[str, Any]]:
        """Groups and their consumers, for people."""
        rows = await self._database.fetch(sql("groups/list"), stream, name, limit)
        return [
            {
                **{key: value for key, value in row.items() if key not in ("members", "lately")},
                "members": msgspec.json.decode(row["members"]),
                "lately": msgspec.json.decode(row["lately"]),
            }
            for row in rows
        ]

    async def figures(self) -> dict[str, int]:
        """For metrics."""
        (row,) = await self._database.fetch(sql("groups/figures"))
        return dict(row)

    async def clean(self) -> None:
        """Remove the rows of groups that have been empty for a while."""
        await self._database.execute(sql("groups/clean"), EMPTY)


def group_of(members: Iterable[Mapping[str, Any]], group: Mapping[str, Any]) -> Group:
    """A group that was listed, as the machine sees it."""
    consumers = tuple(
        Consumer(m["id"], m["id"], m["label"], m["connectivity"], m["activity"], m["epoch"], m["losses"])
        for m in members
    )
    return Group(group["partition"], consumers, group["epoch"], ignored=group["ignored"])


async def _groups_of(connection: Any, consumers: list[UUID]) -> list[UUID]:
    return [row["group"] for row in await connection.fetch(sql("groups/of_consumers"), consumers)]


async def _lock(connection: Any, groups: Iterable[UUID]) -> dict[UUID, _Room]:
    rooms: dict[UUID, _Room] = {}
    ids = list(groups)
    found = await connection.fetch(sql("groups/lock"), ids)
    members: dict[UUID, list[Any]] = {}
    for row in await connection.fetch(sql("groups/consumers"), ids):
        members.setdefault(row["group"], []).append(row)
    for row in found:
        seats = {
            str(m["id"]): _Seat(m["number"], m["node"], m["trust_s"], m["label"], m["answered"], m["muted"])
            for m in members.get(row["id"], [])
        }
        consumers = tuple(map(_consumer, members.get(row["id"], [])))
        epoch = row["epoch"] if consumers else max(row["epoch"], row["floor"])
        losses = max((c.losses for c in consumers), default=0)
        group = Group(row["partition"], consumers, epoch, losses, row["ignored"])
        before = {c.id: (c, replace(seats[c.id])) for c in consumers}
        lately = msgspec.json.decode(row["lately"])
        rooms[row["id"]] = _Room(
            row["id"],
            row["stream"],
            row["name"],
            row["lease_s"],
            group,
            seats,
            lately,
            row["vacant_since"],
            row["now"],
            before,
        )
    return rooms


def _consumer(row: Any) -> Consumer:
    id = str(row["id"])
    return Consumer(id, id, row["label"], row["connectivity"], row["activity"], row["epoch"], row["losses"])


async def _save(connection: Any, rooms: Iterable[_Room]) -> None:
    """Write what has changed: who left, who changed, and the groups."""
    rooms = list(rooms)
    gone = [as_id(id) for room in rooms for id in room.before if id not in room.seats]
    if gone:
        await connection.execute(sql("groups/delete_consumers"), gone)
    saved = [
        (room, c, room.seats[c.id])
        for room in rooms
        for c in room.group.consumers
        if room.before.get(c.id) != (c, room.seats[c.id])
    ]
    if saved:
        await connection.execute(
            sql("groups/save_consumers"),
            [as_id(c.id) for _, c, _ in saved],
            [room.id for room, _, _ in saved],
            [seat.number for _, _, seat in saved],
            [seat.node for _, _, seat in saved],
            [seat.trust_s for _, _, seat in saved],
            [seat.label for _, _, seat in saved],
            [c.connectivity for _, c, _ in saved],
            [c.activity for _, c, _ in saved],
            [c.epoch for _, c, _ in saved],
            [c.losses for _, c, _ in saved],
            [seat.answered for _, _, seat in saved],
            [seat.muted for _, _, seat in saved],
        )
    changed = [room for room in rooms if room.is_changed]
    if changed:
        await connection.execute(
            sql("groups/save"),
            [room.id for room in changed],
            [room.group.partition for room in changed],
            [room.lease_s for room in changed],
            [room.group.epoch for room in changed],
            [_holder(room.group) for room in changed],
            [room.group.ignored for room in changed],
            [msgspec.json.encode(room.lately[-LATELY:]).decode() for room in changed],
            [room.vacant_since if room.group.consumers else None for room in changed],
        )


def _holder(group: Group) -> UUID | None:
    active = group.active
    return None if active is None else as_id(active.id)


def _words(command: Command) -> str:
    """What happened, for people."""
    name = type(command).__name__
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
