"""The registry's database: node rows, stream rows and wishes, and the one place where they change.

Everything here happens at the server. `store.py` is the client's side: what a node sends, and when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol
from uuid import UUID

from headgate.core.streams import Command, Fenced, Step, Stream
from simulation.kernel import Process, Signal
from simulation.network import Network
from simulation.transactions import TransactionalService

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


@dataclass(frozen=True, slots=True)
class Wish:
    """What should become of a stream."""

    is_enabled: bool = True
    version: int = 1
    source: str = "source"
    sink: str = "plain"
    is_pushed: bool = False


class Watcher(Protocol):
    """Sees every change of the registry, by any node."""

    def row_changed(self, before: Stream, after: Stream, command: Command, node: UUID | None) -> None:
        """A stream's row was saved."""

    def node_ended(self, row: NodeRow, by: UUID | None) -> None:
        """An incarnation was ended by another node, or by itself (None)."""

    def fenced(self, stream: UUID, node: UUID) -> None:
        """A command was refused because its grant is over."""


class Database(TransactionalService):
    """The rows."""

    def __init__(self, network: Network, watcher: Watcher) -> None:
        super().__init__(network, "database", IDLE_S)
        self.nodes: dict[UUID, NodeRow] = {}  # In the order of joining.
        self.streams: dict[UUID, Stream] = {}
        self.wishes: dict[UUID, Wish] = {}
        self.moves: dict[UUID, UUID] = {}  # Where a stream should be, if that was said: a node that is there.
        self.listeners: list[tuple[Process, Signal]] = []  # Those that would be woken.
        self.watcher = watcher

    def save(self, steps: Mapping[UUID, Step], commands: Mapping[UUID, Command], node: UUID | None) -> None:
        """Write what changed."""
        for stream, step in steps.items():
            before = self.streams[stream]
            if isinstance(step.reply, Fenced) and node is not None:
                self.watcher.fenced(stream, node)
            if step.stream != before:
                self.streams[stream] = step.stream
                self.watcher.row_changed(before, step.stream, commands[stream], node)

    def beat(self, node: UUID, stamp_s: float) -> bool:
        """One more beat, if the row is still there."""
        row = self.nodes.get(node)
        if row is None:
            return False
        self.nodes[node] = replace(row, beat=row.beat + 1, stamp_s=stamp_s)
        return True

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

    def wish(self, stream: UUID, **changes: Any) -> Wish:
        """Change what should become of a stream."""
        # A new mapping each time: a transaction that read the old one keeps what it read.
        self.wishes = {**self.wishes, stream: replace(self.wishes[stream], **changes)}
        return self.wishes[stream]

    def owned(self, node: UUID) -> list[UUID]:
        """The streams of a node, in the order of their ids."""
        return sorted(stream.id for stream in self.streams.values() if stream.owner == node)

    def is_to_step_down(self, stream: UUID) -> bool:
        """Whether the owner of a stream has been told that another should have it."""
        target = self.nodes.get(self.moves.get(stream, stream))
        return target is not None and target.draining_since_s is None and target.id != self.streams[stream].owner

    def free(self) -> list[UUID]:
        """The streams that should run and that nobody has, in the order of their ids."""
        return sorted(
            stream.id
            for stream in self.streams.values()
            if stream.owner is None and self.wishes[stream.id].is_enabled and not self.wishes[stream.id].is_pushed
        )

    def listen(self, process: Process, signal: Signal) -> None:
        """Have this signal set when something has changed."""
        self.listeners = [(one, other) for one, other in self.listeners if one.is_alive]
        self.listeners.append((process, signal))

    def wake(self) -> None:
        """A hint to everybody that something has changed. Some of them get lost."""
        for process, signal in self.listeners:
            if process.is_alive and self.network.random.random() < 0.7:
                self.network.loop.after(self.network.delay_s(), process.run, signal.set)
