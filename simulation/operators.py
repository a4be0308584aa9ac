"""What operators do meanwhile: moves, stops, new versions, edits. All of it through the database, as commands do."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from headgate.core import streams
from headgate.core.streams import Done, Edit, Stream
from simulation.kernel import Cancelled, Process
from simulation.network import Away

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
        for stream in self._world.worker_streams:
            database.wish(stream, is_enabled=True)

    def stop_all(self) -> None:
        """Nothing should run."""
        for stream in self._world.worker_streams:
            self._world.database.wish(stream, is_enabled=False)

    def _schedule(self) -> None:
        self._world.loop.after(self._random.expovariate(1.0 / self._kind.operation_every_s), self._act)

    def _act(self) -> None:
        if self._is_over:
            return
        name = self._random.choices(self._names, self._weights)[0]
        self._world.trace.count(f"operation: {name.replace('_', ' ')}")
        getattr(self, f"_{name}")()
        self._schedule()

    def _stream(self) -> UUID | None:
        """One of the worker streams, if there are any."""
        return self._random.choice(self._world.worker_streams) if self._world.worker_streams else None

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
        stream, database = self._stream(), self._world.database
        if stream is not None and database.nodes:
            target = self._random.choice(list(database.nodes.values()))
            self._world.note((self._world.name(stream),), "is to be on {}", target.name)
            database.moves = {**database.moves, stream: target.id}
            database.wake()

    def _toggle(self) -> None:
        stream = self._stream()
        if stream is not None:
            is_enabled = not self._world.database.wishes[stream].is_enabled
            self._world.note((self._world.name(stream),), "is to {}", "run" if is_enabled else "stop")
            self._world.database.wish(stream, is_enabled=is_enabled)
            self._world.database.wake()

    def _swap(self) -> None:
        """A new version of the same source and sink. Where things go wrong, clients may be restarted with it."""
        stream = self._random.choice(list(self._world.database.streams))
        self._publish(stream)
        for client in self._world.clients:
            if client.stream == stream and client.pipe is not None and not self._kind.is_cooperative:
                self._world.loop.after(self._random.random() * 0.02, client.pipe.cut, 0.005)

    def _swap_sink(self) -> None:
        stream = self._stream()
        if stream is not None:
            self._publish(stream, sink=self._random.choice(self._kind.sinks))

    def _swap_source(self) -> None:
        stream = self._stream()
        if stream is not None:
            version = self._world.database.wishes[stream].version + 1
            self._publish(stream, source=f"source {version}")

    def _publish(self, stream: UUID, **changes: str) -> None:
        database = self._world.database
        wish = database.wish(stream, version=database.wishes[stream].version + 1, **changes)
        self._world.note((self._world.name(stream),), "is to run version {} from {} to {}", *_three(wish))
        database.wake()

    def _edit(self) -> None:
        """Stop a stream, set its position when nobody has it any more, and start it again."""
        stream = self._stream()
        if stream is not None:
            self._world.database.wish(stream, is_enabled=False)
            self._world.database.wake()
            self.process.spawn(self._set_position(stream))

    async def _set_position(self, stream: UUID) -> None:
        """As a person does it: again and again, while the answer is that it still runs."""
        for _ in range(TRIES):
            await self.process.sleep(TRY_S)
            index = self._random.randint(-1, self._world.source(stream).ready())
            try:
                if self._is_over or await self._try_edit(stream, Edit(index if index >= 0 else None)):
                    break
            except Away:
                continue
        self._world.database.wish(stream, is_enabled=True)
        self._world.database.wake()

    async def _try_edit(self, stream: UUID, edit: Edit) -> bool:
        database = self._world.database
        transaction = database.begin(self.process)
        try:
            row: Stream = await transaction.lock([lambda: [(stream, "exclusive")]], lambda: database.streams[stream])
            step = streams.step(row, edit)
            await transaction.commit(lambda: database.save({stream: step}, {stream: edit}, None))
        except (Away, Cancelled):
            transaction.close()
            raise
        return isinstance(step.reply, Done)


def _three(wish: object) -> tuple[object, object, object]:
    return (getattr(wish, "version", 0), getattr(wish, "source", ""), getattr(wish, "sink", ""))
