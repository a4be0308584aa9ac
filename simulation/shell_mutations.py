"""Planted bugs of the loops around the core: when to act, what to ask again, what to read first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from msgspec import structs

from headgate.core import lease, lifecycle, lineage
from headgate.core.lease import Expired, Quiet
from headgate.core.streams import Command, Fenced, Progress, Reply, Stream
from simulation.beats import BeatSession, lock_of
from simulation.database import Database, NodeRow
from simulation.effects import Effects
from simulation.handle import Handle
from simulation.kernel import Process
from simulation.manager import Manager
from simulation.mutations import Mutation, instead
from simulation.network import Away
from simulation.node import Node
from simulation.run import Run
from simulation.sinks import Batch, Outcome, Rows, StoreSink
from simulation.store import Store
from simulation.transactions import Transaction

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


def _even_the_ended(self: Store, transaction: Transaction) -> list[NodeRow]:
    return [row for row in self._database.nodes.values() if row.id in transaction.locks or not self.holds_nodes]


def _asks_first(end_early: Any) -> Any:
    """Whether the lock is free is asked before the transaction, which does not take it."""

    async def planted(self: Store, found: Quiet, by: UUID) -> bool:
        database = self._database
        if await database.ask(self._process, lambda: bool(database.holders(lock_of(found.node)))):
            return False
        await self._process.sleep(0.5)
        self._is_free = lambda transaction, node: True  # type: ignore[method-assign]
        is_ended: bool = await end_early(self, found, by)
        return is_ended

    return planted


async def _never_asks(self: Manager) -> None:
    """A run that has nothing to write goes on."""


NODES = (
    instead("an_ended_incarnation_is_granted_streams", "takeover", Store, "_eligible", _even_the_ended),
    Mutation("the_lock_is_tried_before_the_transaction", "takeover", Store, "end_early", _asks_first),
    instead("a_lock_is_claimed_that_is_not_held", "takeover", BeatSession, "_has_lock", lambda self, session: True),
    instead("an_idle_run_never_learns", "restless", Manager, "_owned_loop", _never_asks),
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
    async def planted(self: Run, batch: Batch) -> None:
        self._on_commit(batch.progress)
        await write(self, batch)

    return planted


async def _release_once(self: Effects, handle: Handle, command: Command) -> Reply | None:
    """What is stale is taken for somebody else's."""
    try:
        reply = (await self.ownership.submit(handle.stream, command)).reply
    except Away:
        return None
    return Fenced("owned_by_other") if isinstance(reply, Fenced) else reply


def _without_asking(acquire: Any) -> Any:
    """The next run begins under the grant of the last one."""

    async def planted(self: Effects, handle: Handle, run: int, version: int) -> None:
        if not handle.holding.is_opened or handle.holding.epoch is None:
            await acquire(self, handle, run, version)
            return
        handle.config = self._world.database.datasources[handle.datasource].version(version)
        self._manager.dispatch(handle, lifecycle.Acquired(run, self._process.clock_s()))

    return planted


def _only_over(self: Manager) -> None:
    self.is_over = True
    self.push.lose_all()


WORKERS = (
    Mutation("acks_before_durable", "crash", Run, "_write", _acks_first),
    instead("a_release_is_not_asked_again", "push", Effects, "persist", _release_once),
    Mutation("a_restart_keeps_the_epoch", "restless", Effects, "_acquire", _without_asking),
    instead("the_runs_of_an_ended_incarnation_go_on", "pause", Manager, "lose_all", _only_over),
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


# A database that goes back in time.


def _registry_is_right(in_era: Any) -> Any:
    """Generations rise with the era by themselves: the registry's old position outranks that of the sink."""

    def planted(self: Database, row: Stream) -> Stream:
        found: Stream = in_era(self, row)
        progress = found.progress
        return structs.replace(found, progress=replace(progress, generation=progress.generation + 1))

    return planted


def _frees_all(in_era: Any) -> Any:
    """Streams that no sink fences are free at once, while their owner may still write."""

    def planted(self: Database, row: Stream) -> Stream:
        found: Stream = in_era(self, row)
        return structs.replace(found, owner=None, run=None)

    return planted


ERAS = (
    instead("a_new_era_has_old_epochs", "failover", lineage, "first_epoch", lambda era: 0),
    Mutation("a_new_era_raises_generations", "failover", Database, "_in_era", _registry_is_right),
    Mutation("a_new_era_frees_what_is_not_fenced", "failover", Database, "_in_era", _frees_all),
)


SHELL = (*NODES, *WORKERS, *SINKS, *ERAS)
