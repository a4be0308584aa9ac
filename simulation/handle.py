"""One stream on one node: its machine, and what the machine cannot know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from headgate.core import lifecycle
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
        """The stream could not be had, or not be opened."""

    def opened(self, epoch: int, progress: Progress) -> None:
        """A run has opened it, the first or a later one, and it stands here."""

    def released(self, nack: Why | None) -> None:
        """It has been given back, or was not ours any more."""


@dataclass(slots=True, eq=False)
class Handle:
    """What the manager keeps for each stream."""

    stream: UUID
    datasource: UUID
    about: tuple[str, ...]  # The node's and the stream's name.
    state: lifecycle.Worker = field(default_factory=lifecycle.Worker)
    run: Run | None = None
    run_number: int = 0
    task: Task[None] | None = None
    config: Version | None = None  # Of the run that is being started.
    epoch: int | None = None  # Of our grant; None: not ours.
    last_epoch: int = 0  # Of the newest grant that we had.
    progress: Progress = field(default_factory=Progress)  # Where the stream stands.
    saved: Progress = field(default_factory=Progress)  # What the registry knows.
    timers: int = 0  # Only the last one counts.
    pusher: Pusher | None = None  # None: a worker stream, granted by the tick.
    wanted_key: str = ""
    is_opened: bool = False  # At least once.
    is_given_back: bool = False  # Its session is done with it, or it was told to step down.
    index: int = 0
    dealt: int = 1
    was_settled: bool = False  # Whether the registry had the sink's own position before the last run began.

    @property
    def is_settled(self) -> bool:
        """Whether `progress` is known to be what the sink has."""
        return self.was_settled if self.run is None else self.run.is_settled
