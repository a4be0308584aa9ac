"""One stream on this node: its machine, and what the machine cannot know."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from headgate.clock import boot_s, unix_s
from headgate.connectors.api import Feed, Progress
from headgate.core import lifecycle
from headgate.core.figures import LastFailure
from headgate.core.lifecycle.holding import Holding
from headgate.core.push.notifier import Reason
from headgate.core.records import NOTHING, Totals
from headgate.core.repeats import Episode
from headgate.core.streams import Why
from headgate.datasources.registry import Config
from headgate.runtime.streams.parts import Share
from headgate.runtime.streams.run import Run
from headgate.runtime.streams.sides import Awaited
from headgate.runtime.streams.stats import Stats
from headgate.spans import NOBODY, Span
from headgate.store.states import State


class Pusher(Protocol):
    """The session that pushes a stream: where its records come from, and who is told what becomes of it."""

    @property
    def feed(self) -> Feed:
        """Its records."""

    @property
    def is_brief(self) -> bool:
        """Whether it gives the stream back as soon as a run fails or somebody else asks for it."""

    def refused(self, reason: Reason) -> None:
        """The stream could not be acquired, or not be opened."""

    def opened(self, epoch: int, progress: Progress) -> None:
        """A run has opened it, the first or a later one, and it stands here."""

    def committed(self) -> None:
        """Something more is durable in the sink."""

    def released(self, nack: Why | None) -> None:
        """It has been given back, or was no longer ours."""


@dataclass(slots=True, eq=False)
class Handle:
    """What the manager keeps for each stream: the machine's state, and its links to the outside."""

    stream: UUID
    datasource: UUID
    name: str
    log: Any
    share: Share  # Which of the streams that nodes run for its datasource, and how many there are.
    state: lifecycle.Worker = field(default_factory=lifecycle.Worker)
    holding: Holding = field(default_factory=Holding)
    pusher: Pusher | None = None  # None: a worker stream, granted by the tick.
    stats: Stats = field(default_factory=Stats)
    totals_before: Totals = NOTHING  # When it was granted. A run that has acquired it knows better.
    config: Config | None = None  # Of the run that is being started.
    marks: tuple[str | None, str | None] = (None, None)  # What the registry knows of source and sink.
    run: Run | None = None
    run_number: int = 0
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    last_failure: LastFailure | None = None
    episode: Episode = field(default_factory=Episode)  # Of failures in a row, as far as people were told.
    awaited: Awaited | None = None  # What has to come back, while it waits for that.
    reported: tuple[Any, ...] = ()  # What was last written to the state table.
    span: Span = NOBODY  # Of its run, for those who trace.
    culprits: tuple[int, float] = (0, float("-inf"))  # Since the last event about them, and when that was.

    @property
    def totals(self) -> Totals:
        """All that the stream has ever handled, as far as this node knows."""
        return max(self.holding.progress.totals, self.totals_before, key=lambda one: one.read)

    def footprint(self) -> tuple[object, ...]:
        """What its figures are made of, apart from the time. While it is the same, they are."""
        found = self.stats
        return (
            self.holding.epoch,
            self.holding.progress,
            self.totals_before,
            found.batches,
            found.errors,
            found.restarts,
            found.waiting_since_s,
            found.writing_since_s,
            found.backlog,
            found.backlog_since_s,
            found.samples,
        )


def state_of(handle: Handle) -> State:
    """What people see of it."""
    status, detail = lifecycle.status(handle.state)
    phase = handle.state.phase
    if isinstance(phase, lifecycle.Idle):
        handle.stats.rests()  # Whatever it failed on before, nobody wants it now.
    return State(
        stream=handle.stream,
        epoch=handle.holding.last_epoch,
        worker_status=status,
        detail=detail,
        version=getattr(phase, "version", None),
        reported=handle.stats.reported(handle.totals),
        error=_failure_of(handle),
    )


def _failure_of(handle: Handle) -> LastFailure | None:
    """Why the last run failed. While the next one is being tried, that is still the news."""
    match handle.state.phase:
        case lifecycle.Acquiring() | lifecycle.Opening() if handle.state.attempt:
            return handle.last_failure
        case lifecycle.BackingOff(failure=failure, until_s=until_s):
            # To a tenth of a second: what is computed again must not look like news.
            next_try_at_s = round(unix_s() + until_s - boot_s(), 1)
            return LastFailure(str(failure.cause), failure.message, next_try_at_s, failure.awaits != "")
        case lifecycle.Quarantined(failure=failure):
            return LastFailure(str(failure.cause), failure.message)
        case _:
            return None


def figures(state: State) -> tuple[Any, ...]:
    """What makes a state worth writing again."""
    return (state.epoch, state.worker_status, state.detail, state.version, state.reported, state.error)
