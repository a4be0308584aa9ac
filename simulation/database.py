"""The registry's database: nodes, datasources and streams, and the one place where their rows change.

Everything here happens at the server. `store.py` is the client's side: what a node sends, and when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

from msgspec import structs

from headgate.core import lineage
from headgate.core.groups.roster import Roster
from headgate.core.lease import LEASE_S
from headgate.core.reconcile import Entry
from headgate.core.streams import Command, Done, Fenced, Release, Reply, Step, Stream
from simulation.beats import Session, lock_of
from simulation.kernel import Process, Signal
from simulation.network import Mode, Network
from simulation.registry import Datasource
from simulation.transactions import TransactionalService

GHOSTS = 1 << 103  # The ids of ghosts.
IDLE_S = 2.0  # A transaction that a stopped process left open ends after this.


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One incarnation."""

    id: UUID
    name: str
    lease_s: float
    beat: int = 0
    draining_since_s: float | None = None
    stamp_s: float = 0.0  # The node's own clock at its last beat, for people. Nothing may be decided by it.
    beaten_at_s: float = 0.0  # The true time of its last beat, for the checkers.
    has_lock: bool = False  # The session of its last beat holds its lock.
    is_ended: bool = False  # Before its lease was over.


@dataclass(frozen=True, slots=True)
class Member:
    """Which stream of its datasource a stream is."""

    datasource: UUID
    index: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """What a standby had when it lost its primary."""

    nodes: Mapping[UUID, NodeRow]
    streams: Mapping[UUID, Stream]
    datasources: Mapping[UUID, Datasource]
    states: dict[UUID, tuple[int, bool]]


class Watcher(Protocol):
    """Sees every change of the registry, by any node."""

    def answered(self, before: Stream, command: Command, reply: Reply) -> None:
        """A command on a stream's row is answered."""

    def row_changed(self, before: Stream, after: Stream, command: Command, node: UUID | None) -> None:
        """A stream's row was saved."""

    def node_ended(self, row: NodeRow, by: UUID | None) -> None:
        """An incarnation was ended by another node, or by itself (None)."""

    def node_ended_early(self, row: NodeRow, by: UUID, holders: Sequence[Process]) -> None:
        """An incarnation was ended before its lease was over, while these processes had its lock."""

    def went_back(self) -> None:
        """The rows are older than they were, and all incarnations are ended."""

    def dealt(self, before: Sequence[Stream], after: Sequence[Stream], parts: Sequence[str]) -> None:
        """The parts of a source were dealt: the streams that read them so far, and those that do from now on."""

    def fenced(self, stream: UUID, node: UUID) -> None:
        """A command was refused because its grant is over."""


class Database(TransactionalService):
    """The rows."""

    def __init__(self, network: Network, watcher: Watcher) -> None:
        super().__init__(network, "database", IDLE_S)
        self.nodes: dict[UUID, NodeRow] = {}  # In the order of joining.
        self.streams: dict[UUID, Stream] = {}
        self.members: dict[UUID, Member] = {}  # By stream.
        self.datasources: Mapping[UUID, Datasource] = {}
        self.entries: Mapping[UUID, Entry] = {}  # The same, as nodes see them.
        self.states: dict[UUID, tuple[int, bool]] = {}  # Under which epoch a stream was last reported, and if it runs.
        self.unable: dict[UUID, dict[UUID, str]] = {}  # Which nodes could not run a stream, and for which wanted key.
        self.moves: dict[UUID, UUID] = {}  # Where a stream should be, if that was said: a node that is there.
        self.rosters: dict[UUID, Roster] = {}  # Groups of programs outside.
        self.listeners: list[tuple[Process, Signal]] = []  # Those that would be woken.
        self.sessions: list[Session] = []  # Of beats.
        self._has_refused = False
        self.watcher = watcher
        self.era = 0  # How often it went back in time.

    def save(self, steps: Mapping[UUID, Step], commands: Mapping[UUID, Command], node: UUID | None) -> None:
        """Write what changed."""
        for stream, step in steps.items():
            before = self.streams[stream]
            self.watcher.answered(before, commands[stream], step.reply)
            if isinstance(step.reply, Fenced) and node is not None:
                self.watcher.fenced(stream, node)
            if step.stream != before:
                self.streams[stream] = step.stream
                self.watcher.row_changed(before, step.stream, commands[stream], node)
            self._mark_unable(commands[stream], step)

    def _mark_unable(self, command: Command, step: Step) -> None:
        if isinstance(command, Release) and command.outcome == "unable" and isinstance(step.reply, Done):
            self.unable.setdefault(step.stream.id, {})[command.owner] = command.wanted_key

    def beat(self, node: UUID, stamp_s: float, *, has_lock: bool) -> bool:
        """One more beat, unless the incarnation is over."""
        row = self.live(node)
        if row is None:
            return False
        now_s = self.network.loop.now_s
        self.nodes[node] = replace(row, beat=row.beat + 1, stamp_s=stamp_s, beaten_at_s=now_s, has_lock=has_lock)
        return True

    def live(self, node: UUID) -> NodeRow | None:
        """The row of an incarnation that was not ended."""
        row = self.nodes.get(node)
        return None if row is None or row.is_ended else row

    def end_early(self, node: UUID, by: UUID) -> None:
        """End an incarnation, and keep its row: its lease is not over."""
        holders = [one.client for one in self.holders(lock_of(node)) if isinstance(one, Session)]
        self.watcher.node_ended_early(self.nodes[node], by, holders)
        self.nodes[node] = replace(self.nodes[node], is_ended=True)

    def sessions_of(self, client: Process | None = None) -> list[Session]:
        """The sessions of a process's beats, or of all, that the server has not ended."""
        self.sessions = [one for one in self.sessions if one.is_open]
        return [one for one in self.sessions if client is None or one.client is client]

    @property
    def refused_s(self) -> float:
        """How long it refused the last time that it was away; 0 if it hung then."""
        return max(0.0, self.back_at_s - self.away_at_s) if self._has_refused else 0.0

    def leave(self, mode: Mode) -> None:
        """Go away. A server that refuses was restarted, and has no sessions any more."""
        super().leave(mode)
        self._has_refused = mode == "refuses"
        if mode == "refuses":
            for session in self.sessions_of():
                session.break_off()

    def end_node(self, node: UUID, by: UUID | None) -> None:
        """Delete an incarnation."""
        self.watcher.node_ended(self.nodes.pop(node), by)
        self.moves = {stream: target for stream, target in self.moves.items() if target != node}

    def set_draining(self, node: UUID, draining: bool) -> None:
        """Whether a node should give its streams back."""
        row = self.nodes.get(node)
        if row is not None:
            since_s = self.network.loop.now_s if draining else None
            self.nodes[node] = replace(row, draining_since_s=since_s)

    def change(self, datasource: Datasource) -> None:
        """Write a datasource's row."""
        if self.datasources.get(datasource.id) != datasource:
            # New mappings each time: a transaction that read the old ones keeps what it read.
            self.datasources = {**self.datasources, datasource.id: datasource}
            self.entries = {**self.entries, datasource.id: datasource.entry()}

    def add_stream(self, stream: UUID, member: Member) -> None:
        """A new row."""
        self.streams[stream] = Stream(stream)
        self.members[stream] = member

    def datasource_of(self, stream: UUID) -> Datasource:
        """What a stream is a stream of."""
        return self.datasources[self.members[stream].datasource]

    def streams_of(self, datasource: UUID) -> list[UUID]:
        """The streams of a datasource, in the order of their indexes."""
        found = [(member.index, stream) for stream, member in self.members.items() if member.datasource == datasource]
        return [stream for _, stream in sorted(found)]

    def is_pushed(self, stream: UUID) -> bool:
        """Whether a program pushes it."""
        return self.datasource_of(stream).is_pushed

    def is_to_run(self, stream: UUID) -> bool:
        """Whether a node should run it."""
        member = self.members[stream]
        entry = self.entries[member.datasource]
        rests = self.streams[stream].rests is not None and self.streams[stream].rests == entry.wanted_key_of(
            member.index
        )
        return entry.is_to_run and not entry.is_pushed and member.index < entry.dealt and not rests

    def unable_of(self, stream: UUID) -> frozenset[UUID]:
        """Which nodes could not run what is wanted of it now."""
        member = self.members[stream]
        key = self.entries[member.datasource].wanted_key_of(member.index)
        return frozenset(node for node, wanted_key in self.unable.get(stream, {}).items() if wanted_key == key)

    def owned(self, node: UUID) -> list[UUID]:
        """The streams of a node, in the order of their ids."""
        return sorted(stream.id for stream in self.streams.values() if stream.owner == node)

    def is_to_step_down(self, stream: UUID) -> bool:
        """Whether the owner of a stream has been told that another should have it."""
        target = self.live(self.moves.get(stream, stream))
        return target is not None and target.draining_since_s is None and target.id != self.streams[stream].owner

    def free(self) -> list[UUID]:
        """The streams that should run and that nobody has, in the order of their ids."""
        return sorted(row.id for row in self.streams.values() if row.owner is None and self.is_to_run(row.id))

    def due_deals(self) -> list[UUID]:
        """The datasources that have another number of streams than they should, or have stopped to be dealt."""
        return [one.id for one in self.datasources.values() if one.streams != one.dealt or one.is_dealing]

    # What a standby has.

    def copy(self) -> Copy:
        """All rows, as they are now."""
        return Copy(dict(self.nodes), dict(self.streams), dict(self.datasources), dict(self.states))

    def set_back(self, copy: Copy) -> None:
        """A standby that lagged has taken the place of the primary, and a witness has begun a new era."""
        for transaction in [one for holders in list(self._holders.values()) for one in holders]:
            self.end(transaction)
        self.era += 1
        self.watcher.went_back()
        ghost = NodeRow(UUID(int=GHOSTS + self.era), "ghost", LEASE_S)
        rows = [*copy.nodes.values(), ghost]
        jump = lineage.first_epoch(self.era)  # An observer that has seen the beat before sees another.
        self.nodes = {row.id: replace(row, is_ended=True, beat=row.beat + jump) for row in rows}
        self.streams = {id: self._in_era(row) for id, row in copy.streams.items()}
        self.states, self.unable, self.moves = copy.states, {}, {}
        for datasource in copy.datasources.values():
            self.change(datasource)

    def _in_era(self, row: Stream) -> Stream:
        """What no sink fences goes to a ghost, which stands for the nodes of the time that was lost."""
        epoch = max(row.epoch + 1, lineage.first_epoch(self.era))
        holder = None if row.transactional else UUID(int=GHOSTS + self.era)
        return structs.replace(row, owner=holder, run=holder, epoch=epoch, settled=row.sink_identity is None)

    def listen(self, process: Process, signal: Signal) -> None:
        """Have this signal set when something has changed."""
        self.listeners = [(one, other) for one, other in self.listeners if one.is_alive]
        self.listeners.append((process, signal))

    def wake(self) -> None:
        """A hint to everybody that something has changed. Some of them get lost."""
        for process, signal in self.listeners:
            if process.is_alive and self.network.random.random() < 0.7:
                self.network.loop.after(self.network.delay_s(), process.run, signal.set)
