"""The guarantees of groups, checked from outside.

(8) At most one program of a group believes that it is active, whatever is lost or late; (9) once faults have stopped,
one that can be active is. The checker looks at all programs of a group whenever one of them learns anything or acts.

In a fenced group two may believe at once, and the later one may even begin its turn before the earlier one has heard
that its own is over: there it is the fence that guards. What the checker looks at then is what was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from simulation.trace import Violation

if TYPE_CHECKING:
    from simulation.programs import Program
    from simulation.world import World

ONE = "8 (at most one believes that it is active)"
TURNS = "8 (each turn has a higher epoch than the last)"
FENCE = "8 (a fence lets only one of them pass)"
EVENTUALLY = "9 (a program that can be active becomes active)"


class GroupCheckers:
    """Raises `Violation` at the first thing that must not be."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._turns: dict[UUID, tuple[int, str]] = {}  # The last turn of each group: its epoch, and whose it was.
        self._acts: dict[UUID, int] = {}

    def _fail(self, guarantee: str, text: str, *programs: Program) -> None:
        names = {one.name for one in programs}
        raise Violation(guarantee, text, (*names, self._world.name(programs[0].group), "groups"))

    def believed(self, program: Program) -> None:
        """A program has learned something."""
        if program.believes() is None:
            return
        for other in self._world.programs:
            is_rival = other is not program and other.group == program.group and other.believes() is not None
            if is_rival and not (program.is_fenced and other.is_fenced):
                text = f"{program.name} ({program.believes()}) and {other.name} ({other.believes()})"
                self._fail(ONE, f"both believe that they are active: {text}", program, other)

    def began(self, program: Program, consumer: str, epoch: int) -> None:
        """A program begins a turn."""
        self._world.trace.count("groups: turns")
        last, holder = self._turns.get(program.group, (0, ""))
        if program.is_fenced and epoch < last:
            return
        if epoch < last or (epoch == last and consumer != holder):
            self._fail(TURNS, f"{program.name} begins a turn under epoch {epoch}, after one under {last}", program)
        self._turns[program.group] = epoch, consumer

    def acted(self, program: Program, epoch: int) -> None:
        """A program does something that only the active one may do."""
        self._acts[program.group] = self._acts.get(program.group, 0) + 1
        self.believed(program)
        if epoch < self._turns[program.group][0] and not program.is_fenced:
            self._fail(TURNS, f"{program.name} acts under epoch {epoch}", program)

    def written(self, group: UUID, before: int, value: int) -> None:
        """A number was written past the fence of a group."""
        self._world.trace.count("groups: written past a fence")
        if value != before + 1:
            members = [one for one in self._world.programs if one.group == group]
            self._fail(FENCE, f"{value} was written after {before}", *members)

    def check_progress(self) -> None:
        """In every group one program is active."""
        for group in self._world.groups:
            members = [one for one in self._world.programs if one.group == group]
            active = [one for one in members if one.believes() is not None]
            if len(active) != 1:
                self._fail(EVENTUALLY, f"{len(active)} of {len(members)} programs are active", *members)
