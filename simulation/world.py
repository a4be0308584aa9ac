"""A world: nodes, a database, sinks and clients, made from one seed and run on virtual time.

First faults and operators do what they like; then everything is mended and has to run again; then everything is
stopped and has to be at rest. The checkers watch all the while.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import UUID

from headgate.core.groups.delivery import LEASE_S
from headgate.core.groups.machine import Group
from headgate.core.groups.roster import Roster
from headgate.core.parts import UNNAMED
from simulation.checkers import Checkers
from simulation.client import Client
from simulation.client import Sequence as PushedSequence
from simulation.database import Database, Member
from simulation.faults import Faults
from simulation.fences import Resource
from simulation.group_checkers import GroupCheckers
from simulation.kernel import Loop, Process
from simulation.liveness import Liveness
from simulation.network import Network
from simulation.node import Node
from simulation.operators import Operators
from simulation.pipes import Pipe
from simulation.programs import Program
from simulation.registry import Datasource, Version
from simulation.scenarios import Kind
from simulation.sinks import PlainSink, StoreSink, TableSink
from simulation.sources import NEVER_S, Origin
from simulation.trace import Trace

MOVE_S = 2.5
REST_S = 3.0
SKEW = 0.05  # Clocks differ in rate by so much in either direction.


@dataclass(eq=False)
class Machine:
    """Where processes of a node live, one after the other. The clock belongs to the machine."""

    world: World
    name: str
    rate: float
    offset_s: float
    is_pooled: bool = False  # A pooler is between it and the database.
    process: Process | None = None
    last_process: Process | None = None
    node: Node | None = None

    def __post_init__(self) -> None:
        self.pipes: list[Pipe] = []

    def is_up(self) -> bool:
        """Whether a process runs here, or is paused."""
        return self.process is not None and self.process.is_alive

    def is_ready(self) -> bool:
        """Whether a node runs here that may act and takes streams."""
        process, node = self.process, self.node
        if process is None or node is None or not process.is_alive or process.is_paused:
            return False
        if node.manager is None or node.is_leaving:
            return False
        return node.has_trust() and not node.manager.is_draining

    def start(self) -> None:
        """A new process, unless there is one."""
        if not self.is_up():
            self.world.note((self.name,), "starts")
            self.process = self.last_process = Process(self.world.loop, self.name, self.rate, self.offset_s)
            self.process.on_stumble = self.world.faults.stumbled
            self.node = Node(self.world, self, self.process)
            self.world.faults.arm(self)

    def process_arms(self, steps: int) -> None:
        """Have the process stumble after this many steps; negative: never."""
        if self.process is not None:
            self.process.steps_left = steps

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.world.note((self.name,), "is killed")
            self.process.kill()
            self._cut_pipes()
            for session in self.world.database.sessions_of(self.process):
                session.abandon()

    def ended(self, process: Process) -> None:
        """A process has ended by itself; another one follows."""
        if process is self.process:
            self.world.note((self.name,), "has ended")
            process.kill()
            self._cut_pipes()
            self.world.loop.after(self.world.random.uniform(0.05, 2.0), self.start)

    def terminate(self) -> None:
        """SIGTERM."""
        node = self.node
        if node is not None and self.is_up() and not node.is_leaving:
            self.world.note((self.name,), "is told to leave")
            node.process.run(lambda: _leave(node))

    def pause(self) -> None:
        """SIGSTOP."""
        if self.process is not None:
            self.world.note((self.name,), "is stopped")
            self.process.pause()

    def resume(self) -> None:
        """SIGCONT."""
        if self.process is not None and self.process.is_paused:
            self.world.note((self.name,), "goes on")
            self.process.resume()

    def _cut_pipes(self) -> None:
        for pipe in self.pipes:
            pipe.cut()
        self.pipes = []


def _leave(node: Node) -> None:
    if not node.is_leaving:
        node.process.spawn(node.leave())


class World:
    """Everything there is."""

    def __init__(self, seed: int, kind: Kind) -> None:
        self.kind = kind
        self.random = Random(seed)
        self.loop = Loop()
        self.trace = Trace()
        self.network = Network(self.loop, self.random, kind.weather)
        self.checkers = Checkers(self)
        self.liveness = Liveness(self)
        self.database = Database(self.network, self.checkers)
        self.sinks: dict[str, PlainSink | TableSink | StoreSink] = {
            "plain": PlainSink(self.network, "plain", self.checkers),
            "table": TableSink(self.network, "table", self.checkers),
            "store": StoreSink(self.network, "store", self.checkers),
        }
        for sink in self.sinks.values():
            sink.work_s = self.random.choice((0.0, self.random.random() * kind.slowest_sink_s))
        self._ids = 0
        self._disturbances: list[tuple[float, Machine | None]] = []
        self._names: dict[UUID, str] = {}
        self._origins: dict[UUID, Origin] = {}
        self._sequences: dict[UUID, PushedSequence] = {}
        self._fenced: set[UUID] = set()  # Groups.
        self.worker_datasources = [self._add_source(i) for i in range(self.random.randint(*kind.streams))]
        self.groups = [self._add_group(number) for number in range(self.random.randint(*kind.groups))]
        self.machines = [self._add_machine(number) for number in range(self.random.randint(*kind.nodes))]
        self.faults = Faults(self)
        self.operators = Operators(self)
        self.clients = self._add_clients()
        self.group_checkers = GroupCheckers(self)
        self.resources = {group: Resource(self, group) for group in self.groups}
        self.programs: list[Program] = []
        for group in self.groups:
            self.programs += [self._add_program(group, number) for number in range(self.random.randint(2, 4))]
        self.is_healed = False  # Nothing goes wrong any more.
        for machine in self.machines:
            self.loop.after(self.random.random() * 0.5, machine.start)

    def run(self) -> None:
        """From the beginning to the end. Raises the first violation."""
        self.loop.run(self.kind.active_s)
        self.is_healed = True
        self.faults.heal()
        self.operators.finish()
        self.note((), "everything is mended")
        for client in self.clients:
            client.finish()
        self.loop.run(self.kind.active_s + self.kind.recover_s)
        self.liveness.remember()
        self.loop.run(self.loop.now_s + self.kind.records_every_s + MOVE_S)
        self.liveness.check_progress()
        self.group_checkers.check_progress()
        self.operators.stop_all()
        self.loop.run(self.loop.now_s + REST_S)
        self.liveness.check_rest()

    def end(self) -> None:
        """Nothing runs any more."""
        self.operators.process.kill()
        for machine in self.machines:
            if machine.process is not None:
                machine.process.kill()
        for program in self.programs:
            program.process.kill()

    # What it is made of.

    def _add_source(self, number: int) -> UUID:
        """A datasource that nodes read, with its first stream."""
        stream = self._add_stream(f"stream{number}", is_pushed=False)
        id = self.database.members[stream].datasource
        parts = self.random.choice(self.kind.parts)
        names = tuple(f"part {letter}" for letter in "abcdefgh"[:parts]) or UNNAMED
        most = self.random.choice((2, 5, 50))
        every_s = NEVER_S if self.random.random() < self.kind.idle else self.kind.records_every_s
        self._origins[id] = Origin(self.loop, names, every_s, most)
        return id

    def _add_stream(self, name: str, *, is_pushed: bool) -> UUID:
        number = len(self.database.datasources) + 1
        datasource, stream = UUID(int=(1 << 100) + number), UUID(int=(1 << 101) + number)
        version = Version(sink=self.random.choice(self.kind.sinks))
        self._names[stream] = self._names[datasource] = name
        self.database.change(Datasource(datasource, name, (version,), is_pushed=is_pushed))
        self.database.add_stream(stream, Member(datasource))
        return stream

    def _add_group(self, number: int) -> UUID:
        group = UUID(int=(1 << 102) + number)
        self._names[group] = f"group{number}"
        partition = self.random.choice((None, number, number + 1))
        if self.random.random() < self.kind.fenced:
            self._fenced.add(group)
        empty = Roster(group, f"group{number}", f"group{number}", LEASE_S, Group(partition), {})
        self.database.rosters[group] = empty
        return group

    def _add_program(self, group: UUID, number: int) -> Program:
        name, partition = f"{self._names[group]}{'abcd'[number]}", self.database.rosters[group].group.partition
        is_odd = self.random.random() < self.kind.odd  # It says something else than the others.
        return Program(self, name, group, partition, self._rate(), is_fenced=(group in self._fenced) != is_odd)

    def _rate(self) -> float:
        return 1.0 + self.random.choice((-SKEW, self.random.uniform(-SKEW, SKEW), SKEW))

    def _add_machine(self, number: int) -> Machine:
        is_pooled = self.random.random() < self.kind.pooled
        return Machine(self, f"node{number}", self._rate(), self.random.uniform(0.0, 1e6), is_pooled)

    def _add_clients(self) -> list[Client]:
        clients = []
        for number in range(self.random.randint(*self.kind.clients)):
            stream = self._add_stream(f"pushed{number}", is_pushed=True)
            sequence = PushedSequence(self.random.choice((0, 0, 7)), self.random.choice((1, 1, 3)), 6.0)
            self._sequences[stream] = sequence
            for rival in range(2 if self.random.random() < 0.4 else 1):
                name = f"client{number}{'ab'[rival]}"
                clients.append(Client(self, name, stream, sequence, self.random.random() < 0.3))
        return clients

    # What its parts ask for.

    def note(self, about: tuple[str, ...], text: str, *args: Any) -> None:
        """Write an event down."""
        self.trace.add(self.loop.now_s, about, text, *args)

    def new_id(self) -> UUID:
        """An id that nobody else has."""
        self._ids += 1
        return UUID(int=self._ids)

    def new_incarnation(self, name: str) -> UUID:
        """An id for a node's next incarnation."""
        id = self.new_id()
        self._names[id] = name
        return id

    def name(self, id: UUID) -> str:
        """What people call it."""
        if id not in self._names and id in self.database.members:
            member = self.database.members[id]
            self._names[id] = f"{self._names[member.datasource]}:{member.index}"
        return self._names.get(id, "?")

    def node_name(self, node: UUID | None) -> str:
        """What people call a node."""
        return "nobody" if node is None else self.name(node)

    def is_pooled(self, name: str) -> bool:
        """Whether a pooler is between this machine and the database."""
        return any(machine.name == name and machine.is_pooled for machine in self.machines)

    def node_of(self, incarnation: UUID) -> Node | None:
        """The node that is this incarnation now."""
        for machine in self.machines:
            if machine.node is not None and machine.node.incarnation == incarnation:
                return machine.node
        return None

    def origin(self, datasource: UUID) -> Origin:
        """What the streams of a datasource read."""
        return self._origins[datasource]

    def index(self, stream: UUID, position: Any) -> int:
        """Which record of its sequence a position names; -1 for none."""
        if stream in self._sequences:
            return self._sequences[stream].index(position)
        return -1 if position is None else int(position)

    def disturbed(self, machine: Machine | None = None) -> None:
        """Something happened to one machine or, without one, to all, that excuses being late."""
        self._disturbances.append((self.loop.now_s, machine))

    def is_disturbed_since(self, since_s: float, but: Machine) -> bool:
        """Whether anything happened that excuses the others, apart from what happened to one machine."""
        return any(at_s > since_s and machine is not but for at_s, machine in self._disturbances)
