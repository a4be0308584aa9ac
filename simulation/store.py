"""A node's way to the registry: what it asks the database, message by message."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from headgate.core import lease, parts, planner, streams
from headgate.core.lease import Expired, NodeBeat, Quiet
from headgate.core.patience import StandingOrder
from headgate.core.planner import Candidate, Free
from headgate.core.reconcile import Entry
from headgate.core.streams import Command, Done, Fenced, Grant, Release, Revoke, Step, Stream, TakeOver
from simulation.beats import lock_of
from simulation.database import Database, NodeRow
from simulation.kernel import Cancelled, Process
from simulation.network import Away
from simulation.registry import Version
from simulation.transactions import Mode, Stage, Transaction

TICK = "tick"


@dataclass(frozen=True, slots=True)
class Offer:
    """A stream that was granted to a node which has not acquired it for a run yet."""

    stream: UUID
    datasource: UUID
    index: int
    dealt: int  # How many streams its datasource has, for as long as anyone has one of them.
    epoch: int
    is_settled: bool
    steps_down: bool = False  # Or one that it has, and was told to step down from.


def beat_of(row: NodeRow) -> NodeBeat:
    """What a node's row says of its beat."""
    return NodeBeat(row.id, row.beat, row.lease_s, row.has_lock, row.is_ended)


class Store:
    """Commands and questions of one process."""

    holds_nodes = True  # Whether the tick keeps the nodes that it chooses from.

    def __init__(self, database: Database, process: Process) -> None:
        self._database = database
        self._process = process

    async def join(self, row: NodeRow) -> None:
        """Write a new incarnation."""
        await self._database.ask(self._process, lambda: self._database.nodes.setdefault(row.id, row))

    async def observe(self) -> list[NodeRow]:
        """All node rows, as they are now."""
        rows: list[NodeRow] = await self._database.ask(self._process, lambda: list(self._database.nodes.values()))
        return rows

    async def granted(self, node: UUID) -> list[Offer]:
        """What this node was told to step down from, and what it has been granted and does not run yet."""
        database = self._database

        def offer(row: Stream, *, steps_down: bool) -> Offer:
            member = database.members[row.id]
            dealt = database.datasources[member.datasource].dealt
            return Offer(row.id, member.datasource, member.index, dealt, row.epoch, row.settled, steps_down)

        def read() -> list[Offer]:
            owned = [database.streams[stream] for stream in database.owned(node) if not database.is_pushed(stream)]
            stepping = [offer(row, steps_down=True) for row in owned if database.is_to_step_down(row.id)]
            return [*stepping, *(offer(row, steps_down=False) for row in owned if row.run is None)]

        found: list[Offer] = await database.ask(self._process, read)
        return found

    async def sync(self) -> Mapping[UUID, Entry]:
        """What should run, as the registry has it now."""
        found: Mapping[UUID, Entry] = await self._database.ask(self._process, lambda: self._database.entries)
        return found

    async def config(self, datasource: UUID, version: int) -> Version:
        """What a version says."""
        found: Version = await self._database.ask(
            self._process, lambda: self._database.datasources[datasource].version(version)
        )
        return found

    async def list_parts(self, datasource: UUID, found: Sequence[str]) -> tuple[str, ...]:
        """The parts of a source in the order of first sight, with those that a run has found just now."""
        database = self._database

        def write() -> tuple[str, ...]:
            row = database.datasources[datasource]
            database.change(replace(row, parts=tuple(parts.with_new(row.parts, found))))
            return database.datasources[datasource].parts

        names: tuple[str, ...] = await database.ask(self._process, write)
        return names

    async def owned(self, node: UUID) -> dict[UUID, int]:
        """What this node has, and the epoch of each."""
        database = self._database
        found: dict[UUID, int] = await database.ask(
            self._process, lambda: {stream: database.streams[stream].epoch for stream in database.owned(node)}
        )
        return found

    async def decide(self, change: Callable[[], None]) -> None:
        """Write down what a worker has decided or does."""
        await self._database.ask(self._process, change)

    def prove(self, datasource: UUID, version: int) -> None:
        """This version has proved itself."""
        self._database.change(self._database.datasources[datasource].proved(version))
        self._database.wake()

    def reject(self, datasource: UUID, version: int) -> None:
        """This version was tried and failed, and the fault is its own."""
        self._database.change(self._database.datasources[datasource].rejected(version))
        self._database.wake()

    def report(self, node: UUID, states: Mapping[UUID, tuple[int, bool]]) -> None:
        """What the streams of a node do. A stale holder's word is not taken."""
        for stream, state in states.items():
            row = self._database.streams[stream]
            if row.owner == node and row.epoch == state[0]:
                self._database.states[stream] = state

    async def standing_orders(self) -> list[StandingOrder]:
        """Which holders were told to step down, and have not yet."""
        database = self._database

        def read() -> list[StandingOrder]:
            rows = [database.streams[stream] for stream in database.moves if database.is_to_step_down(stream)]
            owners = [(row, database.nodes.get(row.owner)) for row in rows if row.owner is not None]
            return [StandingOrder(row.id, one.id, row.epoch, one.lease_s) for row, one in owners if one is not None]

        found: list[StandingOrder] = await database.ask(self._process, read)
        return found

    async def take(self, order: StandingOrder, by: UUID) -> None:
        """Take a stream from a holder that did not step down in time, unless it is past that."""
        revoke = Revoke(order.owner, order.epoch)
        database = self._database
        transaction = database.begin(self._process)
        try:
            row: Stream = await transaction.lock(
                [lambda: [(order.stream, "exclusive")]], lambda: database.streams[order.stream]
            )
            if (row.owner, row.epoch) != (order.owner, order.epoch):
                transaction.close()
                return
            step = streams.step(row, revoke)
            await transaction.commit(lambda: database.save({row.id: step}, {row.id: revoke}, by))
        except (Away, Cancelled):
            transaction.close()
            raise
        database.wake()

    async def set_draining(self, node: UUID, draining: bool) -> None:
        """Whether a node should give its streams back."""
        await self._database.ask(self._process, lambda: self._database.set_draining(node, draining))

    async def apply(self, node: UUID, commands: Mapping[UUID, Command]) -> dict[UUID, Step]:
        """One command for each of these streams, in one transaction that holds the node's own row."""
        database = self._database
        transaction = database.begin(self._process)
        try:
            rows: list[Stream] | None = await transaction.lock(
                [
                    lambda: [(node, "share")],
                    lambda: [(stream, "exclusive") for stream in sorted(commands)],
                    lambda: [(one, "share") for one in sorted(database.nodes)] if self._hands_over(commands) else [],
                ],
                lambda: self._rows_for(node, commands),
            )
            if rows is None:
                transaction.close()
                for stream in commands:
                    database.watcher.fenced(stream, node)
                return {stream: Step(Stream(stream), Fenced()) for stream in commands}
            steps = {row.id: streams.step(row, commands[row.id]) for row in rows}
            grants = self._handed_over(transaction, steps, commands)

            def write() -> None:
                database.save(steps, commands, node)
                database.save({s: streams.step(steps[s].stream, grant) for s, grant in grants.items()}, grants, None)

            await transaction.commit(write)
        except (Away, Cancelled):
            transaction.close()
            raise
        return steps

    def _hands_over(self, commands: Mapping[UUID, Command]) -> bool:
        return self.holds_nodes and any(isinstance(one, Release) and one.hands_over for one in commands.values())

    def _handed_over(
        self, transaction: Transaction, steps: Mapping[UUID, Step], commands: Mapping[UUID, Command]
    ) -> dict[UUID, Grant]:
        """Who is granted what was given back so that it goes on elsewhere."""
        released = [
            steps[stream].stream
            for stream, command in sorted(commands.items())
            if isinstance(command, Release) and command.hands_over and isinstance(steps[stream].reply, Done)
        ]
        nodes = self._eligible(transaction)
        free = [row for row in released if self._database.is_to_run(row.id)]
        return {stream: Grant(node) for stream, node in self._place(free, nodes, ()).items()}

    def _place(self, free: Iterable[Stream], nodes: Iterable[NodeRow], silent: Collection[UUID]) -> dict[UUID, UUID]:
        loads: dict[UUID, int] = {}
        for row in self._database.streams.values():
            if row.owner is not None:
                loads[row.owner] = loads.get(row.owner, 0) + 1
        candidates = [
            Candidate(
                row.id,
                loads.get(row.id, 0),
                is_eligible=row.draining_since_s is None and row.id not in silent,
                is_heard=row.id not in silent,
            )
            for row in nodes
        ]
        return planner.place(map(self._free, free), candidates)

    def _free(self, row: Stream) -> Free:
        unable = self._database.unable_of(row.id)
        return Free(row.id, unable, unable, preferred=self._database.moves.get(row.id))

    def _rows_for(self, node: UUID, commands: Mapping[UUID, Command]) -> list[Stream] | None:
        """The rows, unless the incarnation that asks has been ended."""
        if self._database.live(node) is None:
            return None
        return [self._database.streams[stream] for stream in sorted(commands)]

    async def expire(self, expired: Expired, by: UUID) -> bool:
        """End an incarnation that fell silent at this beat, and take its streams."""
        return await self._end(expired.node, expired.beat, by)

    async def end_early(self, found: Quiet, by: UUID) -> bool:
        """End an incarnation whose beat is late if its lock is free, and take what need not wait for its lease."""
        database, node = self._database, found.node
        transaction = database.begin(self._process)

        def is_gone() -> bool:
            row = database.nodes.get(node) if node in transaction.locks else None
            return lease.is_gone(None if row is None else beat_of(row), found, self._is_free(transaction, node))

        def owned() -> Sequence[tuple[UUID, Mode]]:
            return [(stream, "exclusive") for stream in database.owned(node)] if is_gone() else []

        def read() -> list[Stream] | None:
            return [database.streams[stream] for stream in database.owned(node)] if is_gone() else None

        def write(steps: dict[UUID, Step]) -> None:
            database.end_early(node, by)
            database.save(steps, {stream: TakeOver(node) for stream in steps}, None)

        try:
            stages: list[Stage] = [lambda: [(node, "skip")], lambda: [(lock_of(node), "skip")], owned]
            rows: list[Stream] | None = await transaction.lock(stages, read)
            if rows is None:
                transaction.close()
                return False
            steps = {row.id: streams.step(row, TakeOver(node)) for row in rows}
            await transaction.commit(lambda: write(steps))
        except (Away, Cancelled):
            transaction.close()
            raise
        database.wake()
        return True

    def _is_free(self, transaction: Transaction, node: UUID) -> bool:
        return lock_of(node) in transaction.locks

    async def end(self, node: UUID) -> bool:
        """End one's own incarnation."""
        return await self._end(node, None, None)

    async def _end(self, node: UUID, beat: int | None, by: UUID | None) -> bool:
        database = self._database
        transaction = database.begin(self._process)

        def owned() -> Sequence[tuple[UUID, Mode]]:
            if not self._is_to_end(node, beat):
                return []
            return [(stream, "exclusive") for stream in database.owned(node)]

        def read() -> list[Stream] | None:
            if not self._is_to_end(node, beat):
                return None
            return [database.streams[stream] for stream in database.owned(node)]

        def write(steps: dict[UUID, Step]) -> None:
            database.end_node(node, by)
            database.save(steps, {stream: Revoke(node) for stream in steps}, None)

        try:
            rows: list[Stream] | None = await transaction.lock([lambda: [(node, "exclusive")], owned], read)
            if rows is None:
                transaction.close()
                return False
            steps = {row.id: streams.step(row, Revoke(node)) for row in rows}
            await transaction.commit(lambda: write(steps))
        except (Away, Cancelled):
            transaction.close()
            raise
        database.wake()
        return True

    def _is_to_end(self, node: UUID, beat: int | None) -> bool:
        row = self._database.nodes.get(node)
        return row is not None and beat in (None, row.beat)

    async def place(self, silent: Collection[UUID], on_decided: Callable[[Iterable[UUID]], None]) -> dict[UUID, UUID]:
        """The tick: grant free streams, but to none that has fallen silent. Empty if another node is at it."""
        database = self._database
        transaction = database.begin(self._process)
        try:
            found: tuple[list[NodeRow], list[Stream]] | None = await transaction.lock(
                self._tick_stages(transaction), lambda: self._read_tick(transaction)
            )
            if found is None:
                return {}
            nodes, free = found
            placed = self._place(free, nodes, silent)
            commands = {row.id: Grant(placed[row.id]) for row in free if row.id in placed}
            steps = {row.id: streams.step(row, commands[row.id]) for row in free if row.id in commands}
            on_decided(placed.values())
            await self._process.sleep(0.0)
            await transaction.commit(lambda: database.save(steps, commands, None))
        except (Away, Cancelled):
            transaction.close()
            raise
        return placed

    def _tick_stages(self, transaction: Transaction) -> list[Stage]:
        """One at a time; then every node's row, so that none is ended meanwhile; then what is free."""
        database = self._database

        def nodes() -> list[tuple[Any, Mode]]:
            is_at_it = TICK in transaction.locks and self.holds_nodes and database.free()
            return [(node, "share") for node in sorted(database.nodes)] if is_at_it else []

        def free() -> list[tuple[Any, Mode]]:
            return [(stream, "skip") for stream in database.free()] if TICK in transaction.locks else []

        return [lambda: [(TICK, "skip")], nodes, free]

    def _read_tick(self, transaction: Transaction) -> tuple[list[NodeRow], list[Stream]] | None:
        database = self._database
        free = [database.streams[stream] for stream in database.free() if stream in transaction.locks]
        if not free:
            database.end(transaction)  # Another node is at it, or there is nothing to do.
            return None
        return self._eligible(transaction), free

    def _eligible(self, transaction: Transaction) -> list[NodeRow]:
        """The nodes to choose from. One that has joined since the rows were locked is not among them."""
        rows = [row for row in self._database.nodes.values() if self._database.live(row.id) is not None]
        return [row for row in rows if row.id in transaction.locks or not self.holds_nodes]
