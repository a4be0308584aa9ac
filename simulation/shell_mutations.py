"""Planted bugs of the loops around the core: when to act, what to ask again, what to read first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from headgate.core import lease
from headgate.core.lease import Expired
from headgate.core.streams import Command, Progress, Stream
from simulation.database import NodeRow
from simulation.kernel import Process
from simulation.manager import Manager
from simulation.mutations import Mutation, instead
from simulation.network import Away
from simulation.node import Node
from simulation.sinks import Outcome, Rows, StoreSink
from simulation.store import Store
from simulation.worker import Worker

# Nodes.


def _trust_from_now(self: Node, sent_at_s: float) -> None:
    self.trust = lease.beat_answered(self.trust, self.process.clock_s())
    self._watch_trust()


async def _stays_dead(self: Node) -> None:
    """Goes on as if nothing had been said."""


def _by_wall_clock(self: Node, rows: Sequence[NodeRow], asked_at_s: float) -> list[Expired]:
    now_s = self.process.clock_s()
    return [
        Expired(row.id, row.beat)
        for row in rows
        if row.id != self.incarnation and row.beat and now_s - row.stamp_s > row.lease_s
    ]


def _any_beat(self: Store, node: UUID, beat: int | None) -> bool:
    return node in self._database.nodes


def _without_its_row(self: Store, node: UUID, commands: Mapping[UUID, Command]) -> list[Stream]:
    return [self._database.streams[stream] for stream in sorted(commands)]


NODES = (
    instead("trust_counts_from_the_answer", "lease", Node, "_trust_from", _trust_from_now),
    instead("an_ended_incarnation_goes_on", "network", Node, "_refused", _stays_dead),
    instead("observer_compares_wall_clocks", "crash", Node, "_observed", _by_wall_clock),
    instead("expire_ignores_the_beat", "pause", Store, "_is_to_end", _any_beat),
    instead("an_ended_incarnation_may_claim", "push", Store, "_rows_for", _without_its_row),
    instead("tick_does_not_hold_its_nodes", "upgrade", Store, "holds_nodes", False),
    instead("writes_without_trust", "lease", Node, "_may_write", lambda self: True),
    instead("a_write_outlasts_trust", "zombie", Node, "trust_ended", lambda self: None),
)


# Workers.


def _acks_first(write: Any) -> Any:
    async def planted(self: Node, batch: Any, is_wanted: Any) -> Outcome:
        worker = self.manager.workers.get(batch.stream) if self.manager is not None else None
        if worker is not None:
            worker._committed(batch)
        outcome: Outcome = await write(self, batch, is_wanted)
        return outcome

    return planted


def _fenced_is_lost(self: Worker) -> None:
    self.lose()


def _releases_at_once(drain: Any) -> Any:
    def planted(self: Worker) -> None:
        epoch = self.epoch
        if epoch is not None and not self._is_draining and not self._is_wanted():
            self.process.spawn(self.manager.release(self.stream, epoch, self.progress.commits, self.progress.position))
        drain(self)

    return planted


async def _forgets_what_may_be_its_own(self: Worker, epoch: int) -> None:
    await self.manager.release(self.stream, epoch, self.progress.commits, self.progress.position)
    self.epoch = None


async def _asks_once(self: Manager, stream: UUID, command: Command) -> Any:
    try:
        return (await self.apply(stream, command)).reply
    except Away:
        return None


WORKERS = (
    Mutation("acks_before_durable", "crash", Node, "write", _acks_first),
    instead("a_fence_of_ones_own_making_ends_the_worker", "restless", Worker, "_fenced", _fenced_is_lost),
    Mutation("releases_before_the_last_write_has_ended", "cooperative", Worker, "_drain", _releases_at_once),
    instead("an_unanswered_acquisition_is_forgotten", "restless", Worker, "_give_back", _forgets_what_may_be_its_own),
    instead("a_release_is_not_asked_again", "push", Manager, "persist", _asks_once),
)


# Sinks.


def _reads_first(open_sink: Any) -> Any:
    """Where the data stand is read before the epoch is raised: an older write may still commit in between."""

    async def planted(
        self: StoreSink, process: Process, node: UUID, stream: UUID, epoch: int
    ) -> Progress | Outcome | None:
        self.network.release_stuck(self.name)
        try:
            progress: Progress = await self.ask(process, lambda: self.rows.progress(stream))
        except Away:
            return "failed"
        opened = await open_sink(self, process, node, stream, epoch)
        return progress if isinstance(opened, Progress) else opened

    return planted


SINKS = (
    Mutation("sink_reads_before_it_raises_the_epoch", "zombie", StoreSink, "open", _reads_first),
    instead("sink_commits_under_any_epoch", "zombie", Rows, "is_ours", lambda self, write: True),
)


SHELL = (*NODES, *WORKERS, *SINKS)
