"""One stream on this node: its machine, and what the machine cannot know."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from headgate.connectors.api import Held
from headgate.core import lifecycle
from headgate.core.lifecycle import Failure
from headgate.runtime.registry import Config
from headgate.runtime.worker import Run, Stats
from headgate.store.states import State


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
    held: Held = field(default_factory=Held)  # Where the stream stands.
    saved_n: int = 0  # What the registry knows.
    timer: asyncio.TimerHandle | None = None
    failure: Failure | None = None
    reported: tuple[Any, ...] = ()  # What was last written to the state table.
    forget: bool = False


def state_of(handle: Handle) -> State:
    """What people see of it."""
    status, detail = lifecycle.status(handle.state)
    phase = handle.state.phase
    failure = phase.failure if isinstance(phase, lifecycle.BackingOff | lifecycle.Quarantined) else None
    return State(
        stream=handle.stream,
        epoch=handle.epoch,
        worker_status=status,
        detail=detail,
        version=getattr(phase, "version", None),
        metrics=handle.stats.plain(),
        error=None if failure is None else {"cause": str(failure.cause), "message": failure.message},
    )


def figures(state: State) -> tuple[Any, ...]:
    """What makes a state worth writing again."""
    return (state.worker_status, state.detail, state.version, state.metrics, state.error)
