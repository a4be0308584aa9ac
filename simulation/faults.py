"""What goes wrong, drawn from the seed: processes, links, services, connections, and steps that are the last ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from simulation.database import Copy
from simulation.kernel import Process
from simulation.network import Mode, Service, Weather

if TYPE_CHECKING:
    from simulation.programs import Program
    from simulation.world import Machine, World

BAD_LINE = Weather(slow=0.1, slowest_s=1.0, loss=0.1, amnesia=0.3)
SLOW_LINE = Weather(slow=0.7, slowest_s=1.0)
STORM = Weather(slow=0.3, slowest_s=5.0, loss=0.05)


class Faults:
    """Injects faults until it is told to heal everything."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
        self._kind = world.kind
        self._is_over = False
        self._dozing: set[str] = set()  # Machines that fall asleep with their next beat.
        self._is_leaving_placed = False
        if self._kind.faults:
            self._names = list(self._kind.faults)
            self._weights = list(self._kind.faults.values())
            self._schedule()

    def heal(self) -> None:
        """From now on nothing goes wrong, and whatever is broken works again."""
        self._is_over = True
        world = self._world
        world.network.weather, world.network.worse = Weather(), {}
        for service in self._services():
            service.come_back()
        for machine in world.machines:
            machine.process_arms(-1)
            for service in self._services():
                world.network.restore(machine.name, service.name)
            machine.resume()
            machine.start()
        for program in world.programs:
            program.process.resume()
            program.start()

    def arm(self, machine: Machine) -> None:
        """Let a process stumble at some step."""
        if self._kind.stumble_every and not self._is_over:
            machine.process_arms(int(self._random.expovariate(1.0 / self._kind.stumble_every)))

    def stumbled(self, process: Process) -> None:
        """A process has come to the step at which something happens to it."""
        machine = next(one for one in self._world.machines if one.process is process)
        if self._random.random() < self._kind.kills:
            self._count("kill at a step")
            self._kill(machine)
        else:
            self._count("pause at a step")
            self._pause(machine)
            self.arm(machine)

    def _schedule(self) -> None:
        self._world.loop.after(self._random.expovariate(1.0 / self._kind.fault_every_s), self._strike)

    def _strike(self) -> None:
        if self._is_over:
            return
        name = self._random.choices(self._names, self._weights)[0]
        if getattr(self, f"_{name}")():
            self._count(name.replace("_", " "))
        self._schedule()

    def _count(self, name: str) -> None:
        self._world.trace.count(f"fault: {name}")

    def _services(self) -> list[Service]:
        return [self._world.database, *self._world.sinks.values()]

    def _machine(self) -> Machine:
        """Any of them, but rather one that has something to lose."""
        database = self._world.database
        owners = {self._world.node_name(row.owner) for row in database.streams.values() if row.owner is not None}
        busy = [machine for machine in self._world.machines if machine.name in owners and machine.is_up()]
        return self._random.choice(busy if busy and self._random.random() < 0.7 else self._world.machines)

    def _duration_s(self) -> float:
        """Short, about as long as a lease, or long."""
        shortest_s, longest_s = self._random.choice(((0.05, 1.0), (1.0, 4.0), (4.0, 6.5), (6.0, 12.0)))
        return self._random.uniform(shortest_s, longest_s)

    def _mode(self) -> Mode:
        return self._random.choice(("refuses", "hangs", "hangs"))

    # Processes.

    def _kill(self, machine: Machine | None = None) -> bool:
        machine = machine or self._machine()
        if not machine.is_up():
            return False
        self._world.disturbed(machine)
        machine.kill()
        self._world.liveness.killed(machine)
        self._world.loop.after(self._random.uniform(0.2, 12.0), machine.start)
        return True

    def _pause(self, machine: Machine | None = None) -> bool:
        machine = machine or self._machine()
        process = machine.process
        if process is None or not machine.is_up() or process.is_paused:
            return False
        self._world.disturbed(machine)
        machine.pause()
        self._world.loop.after(self._duration_s(), self._resume, machine, process)
        return True

    def _doze(self) -> bool:
        """A machine sleeps while its beat is under way, and when it wakes the database is out of reach for a while."""
        machine = self._machine()
        self._dozing.add(machine.name)
        return machine.is_up()

    def beating(self, machine: Machine) -> None:
        """A beat is being sent."""
        if machine.name in self._dozing:
            self._dozing.discard(machine.name)
            self._world.loop.after(0.0004, self._fall_asleep, machine)

    def _fall_asleep(self, machine: Machine) -> None:
        process = machine.process
        if self._is_over or process is None or not machine.is_up() or process.is_paused:
            return
        self._world.disturbed(machine)
        machine.pause()
        asleep_s = self._random.uniform(1.0, 4.5)
        self._world.loop.after(asleep_s - 0.1, self._out_of_reach, machine)
        self._world.loop.after(asleep_s, self._resume, machine, process)

    def _leave_placed(self) -> bool:
        """A node leaves while the tick, whose node is paused, is about to grant it a stream."""
        self._is_leaving_placed = True
        return True

    def placing(self, machine: Machine, nodes: Iterable[UUID]) -> None:
        """A tick has decided, and not committed."""
        chosen = [node for one in nodes if (node := self._world.node_of(one)) is not None]
        others = [node for node in chosen if node.machine is not machine]
        process = machine.process
        if self._is_leaving_placed and others and process is not None and not self._is_over:
            self._is_leaving_placed = False
            self._world.disturbed()
            self._random.choice(others).machine.terminate()
            machine.pause()
            self._world.loop.after(self._random.uniform(0.1, 1.5), self._resume, machine, process)

    def _out_of_reach(self, machine: Machine) -> None:
        self._cut(machine, self._world.database)

    def _resume(self, machine: Machine, process: Process) -> None:
        if machine.process is process:
            machine.resume()

    # Sessions of beats.

    def _drop_session(self) -> bool:
        """The session of a node's beats is cut while the node lives; now and then again, as soon as it is back."""
        machine = self._machine()
        self._drop(machine)
        if self._random.random() < 0.5:
            self._world.loop.after(self._random.random() * 0.02, self._drop, machine)
        return machine.is_up()

    def _drop(self, machine: Machine) -> None:
        for session in [] if machine.process is None else self._world.database.sessions_of(machine.process):
            self._world.note((machine.name,), "loses the session of its beats")
            session.break_off()

    def _keep_from_beating(self) -> bool:
        """A node loses the session of its beats, and its way to the database, and nothing else, about as long as it
        takes to be ended. The way back is slow."""
        machine = self._machine()
        if not machine.is_up():
            return False
        self._drop(machine)
        duration_s = self._random.uniform(0.8, 3.5)
        self._world.network.worse[machine.name] = SLOW_LINE
        self._world.loop.after(duration_s + 2.0, self._mend, machine)
        return self._cut(machine, self._world.database, duration_s=duration_s)

    # Links and services.

    def _cut_database(self) -> bool:
        """For any time, or long enough that another node takes over."""
        duration_s = self._random.choice((self._duration_s(), self._random.uniform(4.0, 12.0)))
        return self._cut(self._machine(), self._world.database, duration_s=duration_s)

    def _cut_sink(self) -> bool:
        return self._cut(self._machine(), self._random.choice(list(self._world.sinks.values())))

    def _isolate(self) -> bool:
        """A machine loses everybody at once, and gets everybody back at once."""
        return self._cut(self._machine(), *self._services(), duration_s=self._random.uniform(4.0, 12.0))

    def _cut(self, machine: Machine, *services: Service, duration_s: float | None = None) -> bool:
        if self._is_over:
            return False
        self._world.disturbed(machine)
        mode, duration_s = self._mode(), duration_s or self._duration_s()
        self._world.note((machine.name,), "loses {} for {:.2f} s: {}", [s.name for s in services], duration_s, mode)
        for service in services:
            self._world.network.cut(machine.name, service.name, mode)
            self._world.loop.after(duration_s, self._world.network.restore, machine.name, service.name)
        return True

    def _database_away(self) -> bool:
        return self._away(self._world.database)

    def _fail_over(self) -> bool:
        """A standby that lags by some seconds takes the place of the database, which is away meanwhile."""
        database = self._world.database
        if database.mode != "up":
            return False
        lag_s, away_s = self._random.uniform(0.05, 8.0), self._random.uniform(0.2, 6.0)
        self._world.loop.after(lag_s, self._lose_primary, database.copy(), away_s)
        return True

    def _lose_primary(self, copy: Copy, away_s: float) -> None:
        database = self._world.database
        if self._is_over or database.mode != "up":
            return
        self._world.disturbed()
        self._world.note((database.name,), "is lost with what was committed last")
        database.leave(self._mode())
        self._world.loop.after(away_s, self._promote, copy)

    def _promote(self, copy: Copy) -> None:
        database = self._world.database
        if database.mode != "up":
            self._world.disturbed()
            self._world.note((database.name,), "is a standby that was promoted, in a new era")
            database.set_back(copy)
            database.come_back()

    def _sink_away(self) -> bool:
        return self._away(self._random.choice(list(self._world.sinks.values())))

    def _away(self, service: Service) -> bool:
        if service.mode != "up":
            return False
        self._world.disturbed()
        mode = self._mode()
        self._world.note((service.name,), mode)
        service.leave(mode)
        self._world.loop.after(self._duration_s(), self._come_back, service)
        return True

    def _come_back(self, service: Service) -> None:
        self._world.note((service.name,), "is back")
        service.come_back()

    def _storm(self) -> bool:
        network = self._world.network
        if network.weather is STORM:
            return False
        self._world.disturbed()
        before, network.weather = network.weather, STORM
        self._world.loop.after(self._duration_s(), self._calm, before)
        return True

    def _bad_line(self) -> bool:
        """One machine does not learn of much that it has done."""
        network, machine = self._world.network, self._machine()
        self._world.disturbed(machine)
        self._world.note((machine.name,), "has a bad line")
        network.worse[machine.name] = BAD_LINE
        self._world.loop.after(self._duration_s(), self._mend, machine)
        return True

    def _mend(self, machine: Machine) -> None:
        self._world.network.worse.pop(machine.name, None)

    def _calm(self, weather: Weather) -> None:
        if not self._is_over:
            self._world.network.weather = weather

    def _cut_asking(self) -> bool:
        """Cut a client while its next request is under way."""
        if not self._world.clients:
            return False
        self._random.choice(self._world.clients).is_cut_asking = True
        return True

    def _cut_client(self) -> bool:
        pipes = [client.pipe for client in self._world.clients if client.pipe is not None]
        if not pipes:
            return False
        self._random.choice(pipes).cut()
        return True

    # Programs in groups.

    def _program(self) -> Program | None:
        """Any of them, but rather one that is active."""
        programs = self._world.programs
        active = [one for one in programs if one.believes() is not None]
        if active and self._random.random() < 0.6:
            return self._random.choice(active)
        return self._random.choice(programs) if programs else None

    def _kill_program(self) -> bool:
        program = self._program()
        return program is not None and program.kill()

    def _pause_program(self) -> bool:
        program = self._program()
        if program is None or not program.process.is_alive or program.process.is_paused:
            return False
        self._world.note((program.name,), "is stopped")
        program.process.pause()
        for_s = self._random.choice((1.0, 1.5)) * self._duration_s()
        self._world.loop.after(for_s, self._resume_program, program.process)
        return True

    def _resume_program(self, process: Process) -> None:
        self._world.note((process.name,), "goes on")
        process.resume()

    def _cut_program(self) -> bool:
        program = self._program()
        if program is None or program.pipe is None:
            return False
        program.pipe.cut()
        return True
