"""The tick: grants free streams to nodes, wishes streams where they should be, and frees what nobody owns any more.

Any node may run it, one at a time: the node that gets the advisory lock is, for that one transaction, what other
systems call the leader. There is nothing to elect and nothing to lose: the next tick may run anywhere. What it decides
is in `core.planner`. A stream that its holder hands over is granted to the next in the holder's own transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from headgate.clock import boot_s
from headgate.core import planner
from headgate.core.patience import StandingOrder
from headgate.core.planner import Candidate, Free, Placed
from headgate.core.push import PUSH
from headgate.core.streams import Grant, Revoke
from headgate.errors import NotFound, Refused
from headgate.ids import lock_key
from headgate.store.database import Database, Row, Session, sql
from headgate.store.events import Event, append
from headgate.store.listed import Listed
from headgate.store.nodes import Node
from headgate.store.rows import step_and_save, stream_of

MOST = 1000  # Streams granted in one transaction.
UNABLE = timedelta(minutes=10)  # How long a node that could not run a stream is not granted it.
UNDER_WAY = 100  # Streams that may be on the move at a time.
CALM_S = 5.0  # How often an even spread is checked by counting,
CLOSE_S = 60.0  # and by what streams weigh.
AGAIN_S = 0.2  # While streams move, every wake-up would be a reason to look at all of them.

_LOCK = lock_key("tick")


class Placement:
    """Which node runs which stream."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._nodes: tuple[tuple[UUID, bool], ...] = ()  # As they were when the spread was last found even.
        self._calm_until_s = self._close_look_s = self._again_s = 0.0

    async def grant(self, silent: Collection[UUID]) -> dict[UUID, UUID]:
        """Give free streams to nodes, but to none that has fallen silent. Empty if another node is at it."""
        async with self._database.transaction() as connection:
            if not await connection.fetchval(sql("placement/lock"), _LOCK):
                return {}
            return await grant_free(connection, None, silent)

    async def balance(self, silent: Collection[UUID], *, moves: bool = True) -> int:
        """Wish streams where they should be, and have their holders step down. Returns how many were told to.

        Looks closely only when nodes have come or gone, when one has more streams than another, when wishes are open,
        and once a minute. Without `moves` nothing new is wished: somebody has just vanished, and may be back soon.
        """
        async with self._database.transaction() as connection:
            if not await connection.fetchval(sql("placement/lock"), _LOCK):
                return 0
            nodes = await connection.fetch(sql("placement/nodes"))
            if not await self._is_due(connection, nodes):
                return 0
            candidates = await _candidates(connection, nodes, silent, "placement/pushed")
            placed = [_placed(row) for row in await connection.fetch(sql("placement/placed"))]
            wishes = planner.plan(placed, candidates, UNDER_WAY) if moves else {}
            await _wish(connection, wishes)
            wished = [_with_wish(one, wishes) for one in placed]
            eligible = {one.node for one in candidates if one.is_eligible}
            under_way = [one for one in wished if one.preferred in eligible - one.unable - {one.owner}]
            told = planner.orders(under_way, candidates)
            if told:
                await connection.execute(sql("placement/order"), told)
            if moves and not under_way:
                self._nodes = _shape(nodes)
                self._calm_until_s = boot_s() + CALM_S
            return len(told)

    async def _is_due(self, connection: Session, nodes: Sequence[Row]) -> bool:
        """Whether the spread is worth a closer look."""
        now_s = boot_s()
        if len(nodes) < 2 or now_s < self._again_s:
            return False
        self._again_s = now_s + AGAIN_S
        if _shape(nodes) != self._nodes or now_s >= self._close_look_s:
            self._close_look_s = now_s + CLOSE_S
            return True
        if await connection.fetchval(sql("placement/is_wished")):
            return True
        if now_s < self._calm_until_s:
            return False
        self._calm_until_s = now_s + CALM_S
        loads = {row["owner"]: row["streams"] for row in await connection.fetch(sql("placement/loads"))}
        counts = [loads.get(row["id"], 0) for row in nodes if not row["draining"]]
        return max(counts, default=0) - min(counts, default=0) > 1

    async def move(self, found: Listed, node: Node, actor: str) -> None:
        """An operator's wish for a stream: outranks the planner until its node leaves."""
        if found.label is not None:
            raise Refused(f"{found.name} is pushed by a program", code="pushed", hint="it is where its session is")
        async with self._database.transaction() as connection:
            if await connection.fetchval(sql("placement/is_modulo"), found.id):
                raise Refused(
                    f"{found.name} is placed by its number", code="modulo", hint="publish it with assignment: sticky"
                )
            if await connection.fetchval(sql("placement/pin"), found.id, node.id) is None:
                raise NotFound(f"node {node.name!r} has left meanwhile", hint="headgate nodes list")
            await _record(connection, found, "stream_moved", {"node": node.name, "id": str(node.id)}, actor)

    async def unpin(self, found: Listed, actor: str) -> None:
        """Leave the stream to the planner again."""
        async with self._database.transaction() as connection:
            if await connection.fetchval(sql("placement/unpin"), found.id):
                await _record(connection, found, "stream_unpinned", {}, actor)

    async def standing_orders(self) -> list[StandingOrder]:
        """Who was told to step down and has not yet."""
        rows = await self._database.fetch(sql("placement/standing_orders"))
        return [StandingOrder(row["id"], row["owner"], row["epoch"], row["lease_s"]) for row in rows]

    async def take(self, order: StandingOrder) -> bool:
        """Take a stream from a holder that did not step down in time. That node is unable for it for a while."""
        async with self._database.transaction() as connection:
            rows = await connection.fetch(sql("streams/lock"), [order.stream])
            streams = [stream_of(row) for row in rows if (row["owner"], row["epoch"]) == (order.owner, order.epoch)]
            if not streams:
                return False
            await step_and_save(connection, streams, {order.stream: Revoke(order.owner, order.epoch)})
            await connection.execute(sql("placement/mark_stuck"), order.stream, order.owner)
            return True

    async def sweep(self) -> int:
        """Free the streams of owners that are gone. Returns how many there were."""
        async with self._database.transaction() as connection:
            if not await connection.fetchval(sql("placement/lock"), _LOCK):
                return 0
            orphans = [stream_of(row) for row in await connection.fetch(sql("placement/orphans"))]
            revocations = {stream.id: Revoke(stream.owner) for stream in orphans if stream.owner is not None}
            await step_and_save(connection, orphans, revocations)
            return len(orphans)


async def grant_free(
    connection: Session, streams: Iterable[UUID] | None, silent: Collection[UUID] = ()
) -> dict[UUID, UUID]:
    """Grant these streams, or all, as far as they are free and should run."""
    only = None if streams is None else list(streams)
    nodes = await connection.fetch(sql("placement/nodes"))
    rows = await connection.fetch(sql("placement/free"), PUSH, MOST, UNABLE, only)
    if not rows:
        return {}
    placed = planner.place([_free(row) for row in rows], await _candidates(connection, nodes, silent))
    granted = [stream_of(row) for row in rows if row["id"] in placed]
    await step_and_save(connection, granted, {s.id: Grant(placed[s.id]) for s in granted})
    if any(row["preferred"] for row in rows):
        await connection.execute(sql("placement/arrived"), list(placed))
    return placed


async def _candidates(
    connection: Session, nodes: Sequence[Row], silent: Collection[UUID], counted: str = "placement/loads"
) -> list[Candidate]:
    loads = {row["owner"]: row["streams"] for row in await connection.fetch(sql(counted))}
    return [
        Candidate(
            row["id"],
            float(loads.get(row["id"], 0)),
            is_eligible=not row["draining"] and row["id"] not in silent,
            is_heard=row["id"] not in silent,
        )
        for row in nodes
    ]


async def _wish(connection: Session, wishes: dict[UUID, UUID | None]) -> None:
    dropped = [stream for stream, node in wishes.items() if node is None]
    if dropped:
        await connection.execute(sql("placement/unwish"), dropped)
    made = {stream: node for stream, node in wishes.items() if node is not None}
    if made:
        await connection.execute(sql("placement/wish"), list(made), list(made.values()))


async def _record(connection: Session, found: Listed, type: str, payload: Mapping[str, object], actor: str) -> None:
    payload = {"stream": found.name, **payload}
    await append(connection, [Event(found.datasource_id, found.datasource, type, payload, actor)])


def _shape(nodes: Sequence[Row]) -> tuple[tuple[UUID, bool], ...]:
    return tuple((row["id"], row["draining"]) for row in nodes)


def _free(row: Row) -> Free:
    return Free(row["id"], frozenset(row["unable"]), frozenset(row["unable_lately"]), row["preferred"], row["number"])


def _placed(row: Row) -> Placed:
    return Placed(
        row["id"],
        row["owner"],
        row["weight"],
        row["preferred"],
        row["pinned"],
        row["stepping"],
        frozenset(row["unable"]),
        row["number"],
    )


def _with_wish(one: Placed, wishes: dict[UUID, UUID | None]) -> Placed:
    return replace(one, preferred=wishes[one.stream], is_stepping=False) if one.stream in wishes else one
