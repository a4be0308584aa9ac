"""What operators do meanwhile: moves, stops, new versions, edits. All of it through the database, as commands do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headgate.core import parts, streams
from headgate.core.parts import UNNAMED
from headgate.core.streams import Command, Done, Edit, Position, Reply, Revoke, Stream
from simulation.kernel import Cancelled, Process
from simulation.network import Away
from simulation.registry import Datasource

if TYPE_CHECKING:
    from simulation.world import World

TRIES = 20
TRY_S = 0.3


class Operators:
    """Acts until it is told to leave everything in order."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
        self._kind = world.kind
        self._is_over = False
        self.process = Process(world.loop, "operator")
        if self._kind.operations:
            self._names = list(self._kind.operations)
            self._weights = list(self._kind.operations.values())
            self._schedule()

    def finish(self) -> None:
        """Everything should run, everywhere."""
        self._is_over = True
        database = self._world.database
        database.moves = {}
        for node in list(database.nodes):
            database.set_draining(node, False)
        for pushed in database.datasources.keys() - set(self._world.worker_datasources):
            database.change(replace(database.datasources[pushed], is_paused=False))
        for datasource in self._world.worker_datasources:
            one = replace(database.datasources[datasource], is_enabled=True, is_paused=False)
            if one.version(one.published).flaw is not None and not self._has_way_back(one):
                one = one.with_version(replace(one.version(one.published), flaw=None))
            database.change(one)
        database.wake()

    def _has_way_back(self, one: Datasource) -> bool:
        """Whether the version that has proved itself could go on: not where another source has been read since."""
        rows = [self._world.database.streams[stream] for stream in self._world.database.streams_of(one.id)]
        sources = {one.version(one.published).source, *(row.source_identity for row in rows)} - {None}
        return one.running is not None and sources == {one.version(one.running).source}

    def stop_all(self) -> None:
        """Nothing should run."""
        for datasource in self._world.worker_datasources:
            one = self._world.database.datasources[datasource]
            self._world.database.change(replace(one, is_enabled=False, is_paused=False))

    def _schedule(self) -> None:
        self._world.loop.after(self._random.expovariate(1.0 / self._kind.operation_every_s), self._act)

    def _act(self) -> None:
        if self._is_over:
            return
        name = self._random.choices(self._names, self._weights)[0]
        self._world.trace.count(f"operation: {name.replace('_', ' ')}")
        getattr(self, f"_{name}")()
        self._schedule()

    def _datasource(self) -> Datasource | None:
        """One that nodes read, if there are any."""
        chosen = self._random.choice(self._world.worker_datasources) if self._world.worker_datasources else None
        return None if chosen is None else self._world.database.datasources[chosen]

    def _change(self, one: Datasource, text: str, *args: object) -> None:
        about = (one.name, *map(self._world.name, self._world.database.streams_of(one.id)))
        self._world.note(about, text, *args)
        self._world.database.change(one)
        self._world.database.wake()

    # Nodes.

    def _drain(self) -> None:
        """Drain a node, or undrain one; one at least stays ready."""
        database = self._world.database
        ready = [row for row in database.nodes.values() if row.draining_since_s is None]
        draining = [row for row in database.nodes.values() if row.draining_since_s is not None]
        if len(ready) > 1 and (not draining or self._random.random() < 0.5):
            row = self._random.choice(ready)
            self._world.disturbed()
            self._world.note((row.name,), "is to drain")
            database.set_draining(row.id, True)
        elif draining:
            database.set_draining(self._random.choice(draining).id, False)

    def _restart(self) -> None:
        """SIGTERM, and a new process when it has ended: one after another, as a deployment does it."""
        if all(machine.is_up() for machine in self._world.machines) or not self._kind.is_cooperative:
            machine = self._random.choice(self._world.machines)
            self._world.disturbed(machine)
            machine.terminate()

    # Streams.

    def _move(self) -> None:
        """Wish a stream somewhere, or nowhere in particular."""
        one, database = self._datasource(), self._world.database
        if one is not None and database.nodes:
            stream = self._random.choice(database.streams_of(one.id)[: one.dealt])
            target = self._random.choice(list(database.nodes.values()))
            self._world.note((self._world.name(stream),), "is to be on {}", target.name)
            database.moves = {**database.moves, stream: target.id}
            database.wake()

    def _take(self) -> None:
        """Take a stream from its holder, as from one that does not step down. Only where the sink fences it."""
        database = self._world.database
        rows = [row for row in database.streams.values() if row.owner is not None and not database.is_pushed(row.id)]
        fenced = [row for row in rows if row.run is not None and row.sink_identity != "plain"]
        if fenced:
            self.process.spawn(self._revoke(self._random.choice(fenced)))

    async def _revoke(self, row: Stream) -> None:
        assert row.owner is not None
        try:
            await self._step(row.id, lambda found: Revoke(row.owner or row.id, row.epoch))
            self._world.database.wake()
        except Away:
            return

    def _toggle(self) -> None:
        one = self._datasource()
        if one is not None:
            is_on = one.is_enabled and not one.is_paused
            self._change(replace(one, is_enabled=not is_on, is_paused=False), "is to {}", "stop" if is_on else "run")

    def _pause(self) -> None:
        """Pause a datasource, that of programs too, or end its pause."""
        one = self._random.choice(list(self._world.database.datasources.values()))
        one = replace(one, is_enabled=True, is_paused=not one.is_paused)
        self._change(one, "is {}", "paused" if one.is_paused else "to run")
        if one.is_paused:
            self._world.liveness.paused(one)

    def _again(self) -> None:
        """Restart: a rejected version gets another chance."""
        one = self._datasource()
        if one is not None:
            self._change(replace(one, restarts=one.restarts + 1, is_rejected=False), "is to begin again")

    def _swap(self) -> None:
        """A new version of the same source and sink. Where things go wrong, clients may be restarted with it."""
        one = self._random.choice(list(self._world.database.datasources.values()))
        self._publish(one)
        for client in self._world.clients:
            member = self._world.database.members[client.stream]
            if member.datasource == one.id and client.pipe is not None and not self._kind.is_cooperative:
                self._world.loop.after(self._random.random() * 0.02, client.pipe.cut, 0.005)

    def _swap_sink(self) -> None:
        one = self._datasource()
        if one is not None:
            self._publish(one, sink=self._random.choice(self._kind.sinks))

    def _swap_source(self) -> None:
        one = self._datasource()
        if one is not None:
            self._publish(one, source=f"source {one.published + 1}")

    def _deal(self) -> None:
        """A version that asks for another number of streams."""
        one = self._datasource()
        if one is not None:
            self._publish(one, streams=self._random.choice((1, 2, 3, 4)))

    def _blunder(self) -> None:
        """A version that is no good, whatever else it says."""
        one = self._datasource()
        if one is not None:
            flaw = self._random.choice(("check", "open"))
            streams = self._random.choice((one.streams, 2)) if "deal" in self._kind.operations else one.streams
            self._publish(one, flaw=flaw, streams=streams)

    def _publish(self, one: Datasource, **changes: Any) -> None:
        version = replace(one.version(one.published), **{"flaw": None, **changes})
        self._change(one.with_version(version), "is to run version {}: {}", one.published + 1, version)

    def _edit(self) -> None:
        """Stop or pause a datasource, set the position of one stream when nobody has it, and start it again."""
        one = self._datasource()
        if one is not None:
            stream = self._random.choice(self._world.database.streams_of(one.id)[: one.dealt])
            is_paused = self._random.random() < 0.5
            self._change(replace(one, is_enabled=is_paused, is_paused=is_paused), "is to rest for an edit")
            self.process.spawn(self._set_position(one.id, stream))

    async def _set_position(self, datasource: UUID, stream: UUID) -> None:
        """As a person does it: again and again, while the answer is that it still runs."""
        database = self._world.database
        for _ in range(TRIES):
            await self.process.sleep(TRY_S)
            try:
                if self._is_over or await self._try_edit(stream):
                    break
            except Away:
                continue
        database.change(replace(database.datasources[datasource], is_enabled=True, is_paused=False))
        database.wake()

    def _position(self, stream: UUID) -> Position:
        """Anywhere, of every part that the stream reads or of some of them."""
        database = self._world.database
        one, member = database.datasource_of(stream), database.members[stream]
        origin = self._world.origin(one.id)
        index = self._random.randint(-1, origin.ready())
        if origin.parts == UNNAMED:
            return index if index >= 0 and member.index == 0 else None
        mine = one.parts[member.index :: one.dealt]
        return {part: max(0, index) for part in mine if self._random.random() < 0.7}

    async def _try_edit(self, stream: UUID) -> bool:
        database = self._world.database
        one, index = database.datasource_of(stream), database.members[stream].index
        if index >= one.dealt:
            return True  # It was dealt away meanwhile.

        def edit(row: Stream) -> Edit:
            position = parts.edited(row.progress.position, self._position(stream), one.parts, index, one.dealt)
            return Edit(position)

        return isinstance(await self._step(stream, edit), Done)

    async def _step(self, stream: UUID, command_for: Callable[[Stream], Command]) -> Reply:
        """One command on a stream's row, in a transaction."""
        database = self._world.database
        transaction = database.begin(self.process)
        try:
            row: Stream = await transaction.lock([lambda: [(stream, "exclusive")]], lambda: database.streams[stream])
            command = command_for(row)
            step = streams.step(row, command)
            await transaction.commit(lambda: database.save({stream: step}, {stream: command}, None))
        except (Away, Cancelled):
            transaction.close()
            raise
        return step.reply
