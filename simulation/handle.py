"""One stream on one node: its machine, and what the machine cannot know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from headgate.core import lifecycle
from headgate.core.lifecycle.holding import Holding
from headgate.core.push.notifier import Reason
from headgate.core.streams import Progress, Why
from simulation.kernel import Task
from simulation.registry import Version
from simulation.run import Run
from simulation.sources import Feed


class Pusher(Protocol):
    """The session that pushes a stream: where its records come from, and who is told what becomes of it."""

    @property
    def feed(self) -> Feed:
        """Its records."""

    def refused(self, reason: Reason) -> None:
        """The stream could not be acquired, or not be opened."""

    def opened(self, epoch: int, progress: Progress) -> None:
        """A run has opened it, the first or a later one, and it stands here."""

    def released(self, nack: Why | None) -> None:
        """It has been given back, or was no longer ours."""


@dataclass(slots=True, eq=False)
class Handle:
    """What the manager keeps for each stream: the machine's state, and its links to the outside."""

    stream: UUID
    datasource: UUID
    about: tuple[str, ...]  # The node's and the stream's name.
    state: lifecycle.Worker = field(default_factory=lifecycle.Worker)
    holding: Holding = field(default_factory=Holding)
    pusher: Pusher | None = None  # None: a worker stream, granted by the tick.
    config: Version | None = None  # Of the run that is being started.
    run: Run | None = None
    run_number: int = 0
    task: Task[None] | None = None
    timers: int = 0  # Only the last one counts.
    index: int = 0  # Which of the streams of its datasource,
    dealt: int = 1  # and how many there are.
