"""A node's way to the registry: what it asks the database, message by message."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from headgate.core import planner, streams
from headgate.core.lease import Expired
from headgate.core.planner import Candidate, Free
from headgate.core.streams import Command, Done, Fenced, Grant, Release, Revoke, Step, Stream
from simulation.database import Database, NodeRow, Wish
from simulation.kernel import Cancelled, Process
from simulation.network import Away
from simulation.transactions import Mode, Stage, Transaction

ANSWER_S = 2.0  # A beat is not waited for longer.
TICK = "tick"


@dataclass(frozen=True, slots=True)
class Look:
    """What a node reads twice a second: its own offers, and what should become of every stream."""

    offers: tuple[Stream, ...]
    step_downs: frozenset[UUID]  # Which of its streams others should have.
    wishes: Mapping[UUID, Wish]


class Store:
    """Commands and questions of one process."""

    holds_nodes = True  # Whether the tick keeps the nodes that it chooses from.

    def __init__(self, database: Database, process: Process) -> None:
        self._database = database
        self._process = process

    async def join(self, row: NodeRow) -> None:
        """Write a new incarnation."""
        await self._database.ask(self._process, lambda: self._database.nodes.setdefault(row.id, row))

    async def beat(self, node: UUID) -> bool:
        """One more beat. False: this incarnation has been ended."""
        database, stamp_s = self._database, self._process.clock_s()
        found: bool = await database.at_once(
            self._process, lambda: [(node, "share")], lambda: database.beat(node, stamp_s), ANSWER_S
        )
        return found

    async def observe(self) -> list[NodeRow]:
        """All node rows, as they are now."""
        rows: list[NodeRow] = await self._database.ask(self._process, lambda: list(self._database.nodes.values()))
        return rows

    async def look(self, node: UUID) -> Look:
        """What was granted to this node and does not run yet, and what is wished."""
        database = self._database

        def read() -> Look:
            owned = [database.streams[stream] for stream in database.owned(node)]
            offers = [row for row in owned if row.run is None and not database.wishes[row.id].is_pushed]
            step_downs = frozenset(row.id for row in owned if database.is_to_step_down(row.id))
            return Look(tuple(offers), step_downs, database.wishes)

        found: Look = await database.ask(self._process, read)
        return found

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
        nodes = [row for row in self._database.nodes.values() if row.id in transaction.held or not self.holds_nodes]
        free = [row for row in released if self._database.wishes[row.id].is_enabled]
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
        moves = self._database.moves
        return planner.place([Free(row.id, preferred=moves.get(row.id)) for row in free], candidates)

    def _rows_for(self, node: UUID, commands: Mapping[UUID, Command]) -> list[Stream] | None:
        """The rows, unless the incarnation that asks has been ended."""
        if node not in self._database.nodes:
            return None
        return [self._database.streams[stream] for stream in sorted(commands)]

    async def expire(self, expired: Expired, by: UUID) -> bool:
        """End an incarnation that fell silent at this beat, and take its streams."""
        return await self._end(expired.node, expired.beat, by)

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
            is_at_it = TICK in transaction.held and self.holds_nodes and database.free()
            return [(node, "share") for node in sorted(database.nodes)] if is_at_it else []

        def free() -> list[tuple[Any, Mode]]:
            return [(stream, "skip") for stream in database.free()] if TICK in transaction.held else []

        return [lambda: [(TICK, "skip")], nodes, free]

    def _read_tick(self, transaction: Transaction) -> tuple[list[NodeRow], list[Stream]] | None:
        database = self._database
        free = [database.streams[stream] for stream in database.free() if stream in transaction.held]
        if not free:
            database.end(transaction)  # Another node is at it, or there is nothing to do.
            return None
        # One that has joined since is not among those that were locked, and not among those that were read.
        nodes = [row for row in database.nodes.values() if row.id in transaction.held or not self.holds_nodes]
        return nodes, free
