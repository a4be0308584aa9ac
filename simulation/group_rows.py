"""The rows of groups, and a node's way to them: locked, stepped by `core.groups.requests`, and saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from headgate.core import lease
from headgate.core.groups import requests
from headgate.core.groups.deadlines import Silent
from headgate.core.groups.delivery import Order, Place
from headgate.core.groups.machine import Consumer
from headgate.core.groups.requests import Answer, ConnectionEnded, Join, Joined, Outcome, Rejoin, Request
from headgate.core.groups.roster import Roster, Seat
from simulation.database import Database
from simulation.kernel import Cancelled, Process
from simulation.network import Away


class GroupRows:
    """Join, leave, confirm, lose touch, and everything that is decided about it."""

    def __init__(self, database: Database, process: Process, new_id: Callable[[], UUID]) -> None:
        self._database = database
        self._process = process
        self._new_id = new_id

    async def join(
        self, group: UUID, node: UUID, partition: int | None, label: str, lease_s: float, *, is_fenced: bool
    ) -> Answer:
        """A new consumer."""
        request = Join(self._new_id(), node, lease.LEASE_S, partition, label, lease_s, is_fenced)
        return (await self.apply({group: [request]}))[group].replies[0]

    async def rejoin(self, consumer: UUID, node: UUID, group: UUID, *, is_fenced: bool) -> Joined | None:
        """A consumer is back. None: it is unknown."""
        roster = self._database.rosters[group]
        request = Rejoin(consumer, node, lease.LEASE_S, roster.stream, roster.name, is_fenced)
        reply = (await self.apply({group: [request]}))[group].replies[0]
        return reply if isinstance(reply, Joined) else None

    async def apply(self, asked: Mapping[UUID, Sequence[Request]]) -> dict[UUID, Outcome]:
        """Requests for these groups. Any of them may be carried out and the next one not."""
        return {group: await self._carry_out(group, asked[group]) for group in sorted(asked)}

    async def _carry_out(self, group: UUID, asked: Sequence[Request]) -> Outcome:
        database = self._database
        transaction = database.begin(self._process)
        try:
            roster: Roster = await transaction.lock(
                [lambda: [(("group", group), "exclusive")]], lambda: database.rosters[group]
            )
            now = datetime.fromtimestamp(self._process.loop.now_s, UTC)
            outcome = requests.carry_out(roster, asked, now)
            await transaction.commit(lambda: self._save(outcome))
        except (Away, Cancelled):
            transaction.close()
            raise
        return outcome

    def _save(self, outcome: Outcome) -> None:
        self._database.rosters[outcome.roster.id] = outcome.roster
        self._database.wake()

    async def orders(self, node: UUID) -> list[Order]:
        """What consumers on this node have not answered."""
        found: list[Order] = await self._ask(lambda roster, consumer, seat: _order(roster, consumer, seat, node))
        return found

    async def here(self, node: UUID) -> dict[UUID, Place]:
        """Which consumers are connected to this node."""

        def read(roster: Roster, consumer: Consumer, seat: Seat) -> tuple[UUID, Place] | None:
            is_here = seat.node == node and consumer.connectivity == "connected"
            return (UUID(consumer.id), (roster.id, consumer.incarnation)) if is_here else None

        return dict(await self._ask(read))

    async def silent(self) -> list[Silent]:
        """Consumers whose deadline runs."""
        found: list[Silent] = await self._ask(self._silent)
        return found

    def _silent(self, roster: Roster, consumer: Consumer, seat: Seat) -> Silent | None:
        if consumer.connectivity == "connected" and not seat.muted:
            return None
        return Silent(
            UUID(consumer.id),
            roster.id,
            consumer.connectivity,
            consumer.incarnation,
            consumer.epoch,
            seat.muted,
            roster.lease_s,
            has_node=self._database.live(seat.node) is not None,
            trust_s=seat.trust_s,
        )

    async def strand(self) -> None:
        """Consumers that were connected to a node which is gone have lost touch."""

        def read(roster: Roster, consumer: Consumer, seat: Seat) -> tuple[UUID, ConnectionEnded] | None:
            is_stranded = consumer.connectivity == "connected" and self._database.live(seat.node) is None
            ended = ConnectionEnded(UUID(consumer.id), consumer.incarnation, is_proved=False)
            return (roster.id, ended) if is_stranded else None

        stranded: dict[UUID, list[Request]] = {}
        for group, ended in await self._ask(read):
            stranded.setdefault(group, []).append(ended)
        if stranded:
            await self.apply(stranded)

    async def _ask(self, read: Callable[[Roster, Consumer, Seat], Any]) -> list[Any]:
        """What there is to say of each consumer; None is left out."""

        def work() -> list[Any]:
            found = [
                read(roster, consumer, roster.seats[consumer.id])
                for roster in self._database.rosters.values()
                for consumer in roster.group.consumers
            ]
            return [one for one in found if one is not None]

        answer: list[Any] = await self._database.ask(self._process, work)
        return answer


def _order(roster: Roster, consumer: Consumer, seat: Seat, node: UUID) -> Order | None:
    is_open = consumer.connectivity == "connected" and consumer.activity != "waiting" and not seat.answered
    if seat.node != node or not is_open:
        return None
    is_active = consumer.activity == "active"
    id = UUID(consumer.id)
    return Order(id, roster.id, is_active, consumer.epoch, consumer.incarnation, roster.group.partition)
