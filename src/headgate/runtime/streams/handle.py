"""One stream on this node: its machine, and what the machine cannot know."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from headgate.connectors.api import Feed, Progress
from headgate.core import lifecycle
from headgate.core.push.notifier import Reason
from headgate.core.streams import Why
from headgate.datasources.registry import Config
from headgate.runtime.streams.run import Run, Stats
from headgate.store.states import State


class Pusher(Protocol):
    """The session that pushes a stream: where its records come from, and who is told what becomes of it."""

    @property
    def feed(self) -> Feed:
        """Its records."""

    def refused(self, reason: Reason) -> None:
        """The stream could not be had, or not be opened."""

    def opened(self, epoch: int, progress: Progress) -> None:
        """A run has opened it, the first or a later one, and it stands here."""

    def committed(self) -> None:
        """Something more is durable in the sink."""

    def released(self, nack: Why | None) -> None:
        """It has been given back, or was not ours any more."""


@dataclass(slots=True, eq=False)
class Handle:
    """What the manager keeps for each stream."""

    stream: UUID
    datasource: UUID
    name: str
    log: Any
    state: lifecycle.Worker = field(default_factory=lifecycle.Worker)
    stats: Stats = field(default_factory=Stats)
    run: Run | None = None
    run_number: int = 0
    task: asyncio.Task[None] | None = None
    config: Config | None = None  # Of the run that is being started.
    epoch: int | None = None  # Of our grant; None: not ours.
    last_epoch: int | None = None  # Of the newest grant that we had.
    progress: Progress = field(default_factory=Progress)  # Where the stream stands.
    saved: Progress = field(default_factory=Progress)  # What the registry knows.
    timer: asyncio.TimerHandle | None = None
    reported: tuple[Any, ...] = ()  # What was last written to the state table.
    pusher: Pusher | None = None  # None: a worker stream, granted by the tick.
    wanted_key: str = ""  # The registry's, as last told.
    is_opened: bool = False  # At least once.
    is_given_back: bool = False  # Its session is done with it, or it was told to step down.
    index: int = 0  # Which of the streams that nodes run for its datasource,
    dealt: int = 1  # and how many there are.
    was_settled: bool = False  # Whether the registry had the sink's own position before the last run began.

    @property
    def is_settled(self) -> bool:
        """Whether `progress` is known to be what the sink has."""
        return self.was_settled if self.run is None else self.run.is_settled


def state_of(handle: Handle) -> State:
    """What people see of it."""
    status, detail = lifecycle.status(handle.state)
    phase = handle.state.phase
    failure = phase.failure if isinstance(phase, lifecycle.BackingOff | lifecycle.Quarantined) else None
    return State(
        stream=handle.stream,
        epoch=handle.last_epoch,
        worker_status=status,
        detail=detail,
        version=getattr(phase, "version", None),
        metrics=handle.stats.plain(),
        error=None if failure is None else {"cause": str(failure.cause), "message": failure.message},
    )


def figures(state: State) -> tuple[Any, ...]:
    """What makes a state worth writing again."""
    return (state.epoch, state.worker_status, state.detail, state.version, state.metrics, state.error)
