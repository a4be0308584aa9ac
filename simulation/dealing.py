"""Another number of streams: what `core.parts` decides, carried out by whichever node has the tick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from headgate.core import parts, streams
from headgate.core.parts import Dealt, Keep, Next, Share, Stop, TakeBack
from headgate.core.streams import Deal, Stream
from simulation.database import Database, Member
from simulation.kernel import Cancelled, Process
from simulation.network import Away
from simulation.registry import Datasource
from simulation.store import TICK
from simulation.transactions import Mode, Transaction

PAUSE_S = 5.0  # After a try in which one stream did not settle.


@dataclass(frozen=True, slots=True)
class Found:
    """A datasource and its streams, as they were read."""

    datasource: Datasource
    rows: Mapping[int, Stream]  # By index.
    running: frozenset[UUID]


class Dealing:
    """How many streams each datasource has."""

    def __init__(self, database: Database, process: Process) -> None:
        self._database = database
        self._process = process

    async def act(self) -> None:
        """One step for each datasource that is not as wanted."""
        for datasource in await self._database.ask(self._process, self._database.due_deals):
            await self._act(datasource)

    async def _act(self, datasource: UUID) -> None:
        """With the tick to ourselves and the rows locked: whatever was seen may have changed."""
        database = self._database
        transaction = database.begin(self._process)
        row = ("datasource", datasource)

        def members() -> list[tuple[UUID, Mode]]:
            ids = sorted(database.streams_of(datasource)) if TICK in transaction.locks else []
            return [(stream, "exclusive") for stream in ids]

        try:
            found: Found | None = await transaction.lock(
                [lambda: [(TICK, "skip")], lambda: [(row, "exclusive")] if TICK in transaction.locks else [], members],
                lambda: self._read(transaction, datasource),
            )
            if found is None:
                return
            decided = self.decided(found)
            await transaction.commit(lambda: self._write(found, decided))
        except (Away, Cancelled):
            transaction.close()
            raise

    def _read(self, transaction: Transaction, datasource: UUID) -> Found | None:
        database = self._database
        if TICK not in transaction.locks:
            database.end(transaction)  # Another node has the tick.
            return None
        ids = database.streams_of(datasource)
        rows = {database.members[id].index: database.streams[id] for id in ids}
        running = {id for id in ids if database.states.get(id) == (database.streams[id].epoch, True)}
        return Found(database.datasources[datasource], rows, frozenset(running))

    def decided(self, found: Found) -> Next:
        """The next step for a datasource, but not again at once: each try pauses all of its streams."""
        one = found.datasource
        members = tuple(
            parts.DealtStream(index, row.owner is not None, row.id in found.running, row.settled, row.source_identity)
            for index, row in found.rows.items()
        )
        decided = parts.next_step(Dealt(one.streams, one.dealt, one.is_dealing, members))
        is_paused = self._database.network.loop.now_s < one.deal_after_s
        return Keep() if isinstance(decided, Stop) and is_paused else decided

    def _write(self, found: Found, decided: Next) -> None:
        """At the server, as one transaction."""
        database = self._database
        now = database.datasources[found.datasource.id]
        match decided:
            case Keep():
                return
            case Stop():
                database.change(replace(now, is_dealing=True))
            case TakeBack():
                database.change(replace(now, is_dealing=False, deal_after_s=database.network.loop.now_s + PAUSE_S))
            case Share(n=n):
                self._deal(found, n)
                database.change(replace(now, dealt=n, is_dealing=False, deal_after_s=0.0))
        database.wake()

    def _deal(self, found: Found, n: int) -> None:
        """Share the positions out among `n` streams: all of them are free and settled."""
        database, one = self._database, found.datasource
        rows = dict(found.rows)
        used = [rows[index] for index in range(one.dealt)]
        shares = parts.deal([row.progress.position for row in used], one.parts, n)
        for index in range(n):
            if index not in rows:
                stream = UUID(int=one.id.int + (index << 32))
                database.add_stream(stream, Member(one.id, index))
                rows[index] = database.streams[stream]
        version = max((row.version for row in used if row.version is not None), default=None)
        identity = next((row.source_identity for row in used if row.source_identity is not None), None)
        commands = {
            row.id: Deal(shares[index] if index < n else None, version, identity) for index, row in rows.items()
        }
        steps = {row.id: streams.step(row, commands[row.id]) for row in rows.values()}
        after = [steps[rows[index].id].stream for index in range(n)]
        database.watcher.dealt(used, after, one.parts)
        database.save(steps, commands, None)
        for row in rows.values():  # A node that was unable gets another chance.
            database.unable.pop(row.id, None)
