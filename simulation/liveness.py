"""What must happen in the end: takeovers in time, progress once faults have stopped, and rest once all is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from headgate.core.lifecycle import Running
from simulation.checkers import COOPERATIVE, DURABLE, TAKEOVER
from simulation.eras import positions_of
from simulation.handle import Handle
from simulation.network import FAIR
from simulation.registry import Datasource
from simulation.sinks import PlainSink
from simulation.trace import Violation

if TYPE_CHECKING:
    from simulation.manager import Manager
    from simulation.world import Machine, World

TAKEOVER_S = 7.0
PAUSE_S = 11.0  # A stop is over after ten seconds, whatever a run does.
AT_ONCE_S = 3.0  # For what need not wait for a lease.
LOOK_S = 2.0
MOST_LOOKS = 3
MOST_STALE = 4  # Looks. A manager asks every five seconds.
PROGRESS = "liveness (everything runs again once faults have stopped)"
LOST = "liveness (a run whose stream was taken learns of it)"
OWNER = "liveness (nobody owns a stream that he does not know of)"
TRIAL = "liveness (a new version takes the place of the old one, unless it is no good)"
REST = "liveness (a stop or a pause gives everything back)"


class Liveness:
    """Raises `Violation` where something that must happen did not."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._positions: dict[tuple[UUID, str], int] = {}  # By datasource and part.
        self._ignorance: dict[UUID, int] = {}  # For how many looks in a row an owner has not known of its stream.
        self._stale: dict[Handle, int] = {}  # For how many looks in a row a run has not known that its grant is over.
        world.loop.after(LOOK_S, self._look)

    # Owners.

    def _look(self) -> None:
        """A node that has a stream learns of it, or is no longer alive."""
        world = self._world
        for stream, row in world.database.streams.items():
            node = world.node_of(row.owner) if row.owner is not None else None
            is_running = row.run is not None or world.database.is_pushed(stream)
            if node is None or not is_running or not node.process.is_alive or node.has_left or node.knows(stream):
                self._ignorance[stream] = 0
            elif not node.process.is_paused:
                self._ignorance[stream] = self._ignorance.get(stream, 0) + 1
                if self._ignorance[stream] >= MOST_LOOKS:
                    self._fail_owner(stream, f"is owned by {node.machine.name}, which does not know it")
        self._look_for_stale_runs()
        world.loop.after(LOOK_S, self._look)

    def _look_for_stale_runs(self) -> None:
        """A run whose grant is over ends, even if it has nothing to write, as soon as its node can ask."""
        world, stale = self._world, {}
        for machine in world.machines:
            for manager, handle in self._runs_of(machine):
                row = world.database.streams[handle.stream]
                if (row.owner, row.epoch) != (manager.id, handle.holding.epoch):
                    stale[handle] = self._stale.get(handle, 0) + 1
                    if stale[handle] > MOST_STALE:
                        text = f"{machine.name} runs {world.name(handle.stream)}, which is not its own any more"
                        raise Violation(LOST, text, (world.name(handle.stream), machine.name))
        self._stale = stale

    def _runs_of(self, machine: Machine) -> list[tuple[Manager, Handle]]:
        """What a node runs, if nothing keeps it from asking whether that is still its own."""
        process, node, world = machine.process, machine.node, self._world
        if process is None or node is None or node.manager is None or not process.is_alive or process.is_paused:
            return []
        is_reached = world.database.mode == "up" and world.network.mode(machine.name, world.database.name) == "up"
        if not is_reached or world.network.weather_of(machine.name) != FAIR:
            return []
        manager = node.manager
        return [(manager, handle) for handle in manager.handles.values() if isinstance(handle.state.phase, Running)]

    def _fail_owner(self, stream: UUID, text: str) -> None:
        name, owner = self._world.name(stream), self._world.database.streams[stream].owner
        raise Violation(OWNER, f"{name} {text}", (name, self._world.node_name(owner)))

    # Takeover.

    def killed(self, machine: Machine) -> None:
        """A node was killed: unless more happens, others have its streams in time."""
        world, process = self._world, machine.last_process
        incarnations = [row.id for row in world.database.nodes.values() if row.name == machine.name]
        owned = [row.id for row in world.database.streams.values() if row.owner in incarnations]
        workers = [stream for stream in owned if not world.database.is_pushed(stream)]
        healthy = [one for one in world.machines if one is not machine and one.is_ready()]
        if workers and healthy and process is not None and world.network.is_fair():
            now_s = world.loop.now_s
            epochs = {stream: world.database.streams[stream].epoch for stream in workers}
            world.loop.after(TAKEOVER_S, self._check_takeover, machine, now_s, epochs, incarnations)
            world.loop.after(AT_ONCE_S, self._check_at_once, machine, now_s, epochs, incarnations)

    def _check_at_once(
        self, machine: Machine, killed_at_s: float, epochs: dict[UUID, int], incarnations: list[UUID]
    ) -> None:
        """What a sink fences does not wait for the lease, if the server has noticed the end of the process."""
        world = self._world
        rows = [row for id in incarnations if (row := world.database.nodes.get(id)) is not None]
        if not all(row.is_ended for row in rows):
            return  # Noticed late, or not at all; or nobody had seen it beat; or it had no lock.
        fenced = {stream: epoch for stream, epoch in epochs.items() if world.database.streams[stream].transactional}
        if fenced:
            world.trace.count("takeovers at once")
            self._check_takeover(machine, killed_at_s, fenced, incarnations)

    def _check_takeover(
        self, machine: Machine, killed_at_s: float, epochs: dict[UUID, int], incarnations: list[UUID]
    ) -> None:
        world = self._world
        if world.is_disturbed_since(killed_at_s, machine) or world.database.mode != "up" or not world.network.is_fair():
            return
        world.trace.count("takeovers in time")
        for stream, epoch in epochs.items():
            row = world.database.streams[stream]
            is_moved = row.owner is not None and row.owner not in incarnations and row.epoch > epoch
            if not is_moved and world.database.is_to_run(stream):
                after_s = world.loop.now_s - killed_at_s
                text = f"{world.name(stream)} was not granted elsewhere {after_s:.0f} s after a kill"
                raise Violation(TAKEOVER, text, (world.name(stream), machine.name))

    # Pauses.

    def paused(self, one: Datasource) -> None:
        """A datasource was paused: where nothing goes wrong, nobody has its streams for long."""
        if self._world.kind.is_cooperative:
            self._world.loop.after(PAUSE_S, self._check_pause, one)

    def _check_pause(self, paused: Datasource) -> None:
        world = self._world
        if not world.database.datasources[paused.id].is_paused or not self._is_as_it_was(paused):
            return
        world.trace.count("pauses that were kept")
        for stream in world.database.streams_of(paused.id):
            if (owner := world.database.streams[stream].owner) is not None:
                name = world.name(stream)
                raise Violation(REST, f"{name} has an owner, and is paused", (name, world.node_name(owner)))

    def _is_as_it_was(self, paused: Datasource) -> bool:
        """Whether nobody has touched it since, so that the pause is the same one."""
        return self._world.database.datasources[paused.id] == paused

    # In the end.

    def remember(self) -> None:
        """Where every part stands, some time after the last fault."""
        self._check_owners()
        self._positions = self._reached()

    def _reached(self) -> dict[tuple[UUID, str], int]:
        world = self._world
        return {
            (datasource, part): at
            for datasource in world.worker_datasources
            for stream in world.database.streams_of(datasource)[: world.database.datasources[datasource].dealt]
            for part, at in positions_of(world.database.streams[stream].progress.position).items()
        }

    def check_progress(self) -> None:
        """Every part has moved since then, every datasource is read as it should be, and every client is done."""
        world = self._world
        self._check_owners()
        reached = self._reached()
        for id in world.worker_datasources:
            one = world.database.datasources[id]
            about = (one.name, *map(world.name, world.database.streams_of(id)))
            for part in () if world.origin(id).is_idle else world.origin(id).parts:
                if reached.get((id, part), -1) <= self._positions.get((id, part), -1):
                    raise Violation(PROGRESS, f"part {part!r} of {one.name} does not move", about)
            if one.dealt != one.streams or one.is_dealing:
                raise Violation(PROGRESS, f"{one.name} has {one.dealt} streams, not {one.streams}", about)
            if world.kind.is_cooperative:
                self._check_version(one, about)
        for client in world.clients:
            if not client.is_done:
                about = (world.name(client.stream), client.name)
                raise Violation(PROGRESS, f"{client.name} did not get its records through", about)
        for machine in world.machines:
            node = machine.node
            if node is None or world.database.live(node.incarnation) is None:
                raise Violation(PROGRESS, f"{machine.name} is alive and has no row", (machine.name,))

    def _check_version(self, one: Datasource, about: tuple[str, ...]) -> None:
        """Where nothing goes wrong, the published version runs; or the one before it, if it is no good."""
        if one.is_rejected != (one.version(one.published).flaw is not None) and one.running is not None:
            raise Violation(
                TRIAL, f"{one.name}: version {one.published} was rejected for nothing, or not at all", about
            )
        if not one.is_rejected and one.running != one.published:
            raise Violation(TRIAL, f"{one.name}: version {one.published} has not taken the place of the last", about)

    def _check_owners(self) -> None:
        world = self._world
        for stream, row in world.database.streams.items():
            node = world.node_of(row.owner) if row.owner is not None else None
            if row.owner is not None and (node is None or world.database.live(row.owner) is None):
                self._fail_owner(stream, "is owned by somebody who is gone")

    def check_rest(self) -> None:
        """Everything was given back, and the registry stands where the sinks do."""
        world = self._world
        for stream, row in world.database.streams.items():
            name, sink = world.name(stream), world.sinks[row.sink_identity or "plain"]
            if row.owner is not None:
                raise Violation(REST, f"{name} still has an owner", (name, world.node_name(row.owner)))
            if not isinstance(sink, PlainSink):
                progress = sink.rows.progress(stream)
                if progress.generation == row.progress.generation and progress.position != row.progress.position:
                    text = f"{name} stands at {row.progress} in the registry and at {progress} in its sink"
                    raise Violation(COOPERATIVE, text, (name,))
        for client in world.clients:
            position = world.index(client.stream, world.database.streams[client.stream].progress.position)
            if position < client.acked:
                text = f"{world.name(client.stream)} stands before what {client.name} was told"
                raise Violation(DURABLE, text, (client.name,))
